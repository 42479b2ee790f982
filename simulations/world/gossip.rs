//! Soft state: what each peer hears of the others, late, in part, and through others where it must.

use std::sync::Arc;

use starling::base::{Instant, Span};
use starling::core::Input;
use starling::model::Report;
use starling::model::report::{BuildReport, HealthReport, Liveness, MemberView, View};

use super::{Event, World, shapes};

impl World {
    /// How often a peer's view is renewed; a large mesh gossips in longer rounds.
    pub(super) fn view_every(&self) -> Span {
        Span::millis(500).scale((self.machines.len() as u64).max(50), 50)
    }

    fn hears(&mut self, from: usize, to: usize) -> bool {
        if !self.runs(from) || (!self.healed && self.rng.chance(0.2)) {
            return false;
        }
        !self.cut(from, to) || self.relay(from, to).is_some()
    }

    pub(super) fn gossip(&mut self, i: usize) {
        let every = self.view_every();
        self.at(every, Event::View(i));
        if !self.runs(i) {
            return;
        }
        let lag = if self.healed { Span::ZERO } else { self.scenario.faults.stale_gossip };
        for from in 0..self.machines.len() {
            if from == i || !self.hears(from, i) {
                continue;
            }
            let way = self.net.rtt.one_way(self.net.region[from], self.net.region[i]);
            let late = way + Span(self.rng.below(lag.0 + 1));
            let by = Instant(self.t.0.saturating_sub(late.0));
            let Some(soft) = self.machines[from].told(by).cloned() else { continue };
            let heard = self.machines[i].heard.entry(from).or_insert_with(|| (by, soft.clone()));
            if by >= heard.0 {
                *heard = (by, soft);
            }
        }
        let view = self.view(i);
        self.input(i, Input::View(view.into()));
    }

    fn view(&self, me: usize) -> View {
        let m = &self.machines[me];
        let (every, lag) = (self.view_every(), self.scenario.faults.stale_gossip);
        let (suspect, lost) =
            (Span::secs(2) + every.scale(3, 1) + lag, Span::secs(7) + every.scale(5, 1) + lag);
        let mut view = View::default();
        let mut reached = 0;
        for (i, other) in self.machines.iter().enumerate() {
            let heard = match i == me {
                true => m.published.back().cloned().map(|(_, soft)| (self.t, soft)),
                false => m.heard.get(&i).cloned(),
            };
            let age = heard.as_ref().map_or(Span::FOREVER, |(at, _)| self.t.since(*at));
            let liveness = match age {
                _ if i == me => Liveness::Alive,
                a if a < suspect => Liveness::Alive,
                a if a < lost => Liveness::Suspect,
                _ => Liveness::Lost,
            };
            reached += usize::from(i != me && liveness == Liveness::Alive);
            let draining = heard.as_ref().is_some_and(|(_, soft)| soft.draining);
            let report = heard.map(|(at, soft)| Report {
                peer: other.name.clone(),
                store: other.store,
                capacity: Some(shapes::capacity(self.net.region[i])),
                queue: soft.queue.clone(),
                contact: soft.contact.clone(),
                health: Some(HealthReport { disk_full: soft.disk_full, ..HealthReport::default() }),
                build: Some(BuildReport { version: String::new(), wire: starling::core::message::SPEAKS }),
                links: Vec::new(),
                data: None,
                images: None,
                alerts: None,
                heard_at: m.clock(at),
            });
            let member = MemberView {
                peer: other.name.clone(),
                store: other.store,
                witness: false,
                liveness,
                draining,
                report: report.map(Arc::new),
            };
            view.members.insert(other.name.clone(), member);
        }
        view.isolated = reached == 0 && self.machines.len() > 1;
        if view.isolated {
            for member in view.members.values_mut().filter(|m| m.liveness == Liveness::Lost) {
                member.liveness = Liveness::Suspect;
            }
        }
        view
    }
}
