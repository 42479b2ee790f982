//! Reservations in the simulated mesh: users ask for them, two at a time for the same GPUs, and end some; the judge reads the
//! clusters' disks and the machines' own attempts.
//!
//! - **R1**: at no time does a cluster promise more than it has: what is pinned is there, and pins that meet in time are different.
//! - **R2**: what other tenants run, and what is reserved, together is never more than a cluster has, once the notice is over.
//! - **R3**: when all has healed, whoever keeps a part is named by the record, and the other way round.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use starling::base::{Instant, JobId, Rng, Span, WallTime};
use starling::core::api::NodeShare;
use starling::core::{ClientRequest, ClientResponse, Input, Table};
use starling::model::JobState;
use starling::model::record::Birth;
use starling::model::reserve::{Asked, At, reservation};

use super::users::Act;
use super::{Event, World, shapes};

/// Reservations asked for, always two at once.
const PAIRS: usize = 3;
/// Tenants that reserve; some jobs are theirs.
const TENANTS: [&str; 2] = ["r0", "r1"];
/// From the notice to the end of what was told to stop: notice, kill, and what the peer needs to see it.
const GOES_WITHIN: Span = Span::secs(40);
/// Clusters ask the record of what they keep this often, and wait so long for an answer.
const KNOWN_WITHIN: Span = Span::secs(80);

/// A cluster's row, as it is on its disk.
#[derive(Debug, Deserialize)]
struct Row {
    birth: Birth,
    asked: Asked,
    confirmed: bool,
    shares: Vec<NodeShare>,
}

/// What the users asked for.
#[derive(Debug, Default)]
pub struct Reservations {
    ids: Vec<Option<JobId>>,
    waiting: BTreeMap<u64, usize>,
    /// Since when each peer has worked without a pause.
    awake: BTreeMap<usize, (u64, u64, Instant)>,
    /// Since when a peer's disk has known of a reservation.
    told: BTreeMap<(usize, JobId), Instant>,
    /// Of these some cluster kept a part, some were refused, some were ended by a user.
    pub kept: BTreeSet<JobId>,
    pub refused: BTreeSet<JobId>,
    /// Attempts that ran inside.
    pub inside: usize,
}

impl World {
    pub(super) fn employ_reservers(&mut self) {
        if !self.scenario.reserved {
            return;
        }
        self.reserved.ids = vec![None; 2 * PAIRS];
        let chaos = self.scenario.chaos_for.0;
        for pair in 0..PAIRS {
            let when = Span::secs(3) + Span(self.more.below(chaos.saturating_sub(6_000_000).max(1)));
            for n in [2 * pair, 2 * pair + 1] {
                let apart = Span(self.more.below(400_000));
                self.at(when + apart, Event::User(Act::Reserve(n)));
                if self.more.chance(0.25) {
                    let ends = when + Span::secs(5 + self.more.below(40));
                    self.at(ends, Event::User(Act::Unreserve(n)));
                }
            }
        }
    }

    /// A job of a world with reservations: some are of tenants that reserve, some may be stopped, some say when they end.
    pub(super) fn reserving_shape(&self, spec: &mut starling::model::JobSpec, shape: &mut Rng) {
        if !self.scenario.reserved {
            return;
        }
        match shape.below(6) {
            0 | 1 => spec.tenant = TENANTS[shape.below(2) as usize].into(),
            2 | 3 => spec.max_runtime = Some(self.scenario.work_max + Span::secs(5)),
            4 => spec.preemptible = Some(true),
            _ => {}
        }
    }

    pub(super) fn reserve(&mut self, n: usize) {
        if self.reserved.ids[n].is_some() || self.healed {
            return;
        }
        let Some(i) = self.any_peer() else { return };
        // Both of a pair want the same GPUs at the same time.
        let mut shape = Rng::new(self.scenario.seed ^ 0x7265_7365 ^ ((n / 2) as u64) << 32);
        let gpus = 3 + shape.below(6) as u32;
        let clusters = 1 + shape.below(self.machines.len().min(2) as u64) as usize;
        let at = match shape.chance(0.6) {
            true => {
                let first = shape.below(self.machines.len() as u64) as usize;
                let all = self.machines.len();
                At::Named((0..clusters).map(|k| self.machines[(first + k) % all].name.clone()).collect())
            }
            false => At::Any(clusters as u32),
        };
        let wall = WallTime(self.t.0 / 1000);
        let from = WallTime(wall.0 + shape.below(30) * 1_000);
        let until = WallTime(from.0 + 20_000 + shape.below(60) * 1_000);
        let asked = Asked { gpus, models: vec![], from, until };
        let tenant = TENANTS[n % 2];
        let spec = match reservation(&format!("r{n}"), tenant, &asked, at, wall) {
            Ok(spec) => Box::new(spec),
            Err(why) => return self.violation(format!("a good reservation is refused: {why}")),
        };
        let token = (1 << 40) + self.t.0;
        self.reserved.waiting.insert(token, n);
        self.input(i, Input::Client { token, request: ClientRequest::Submit { spec, key: None } });
    }

    pub(super) fn unreserve(&mut self, n: usize) {
        let (Some(job), Some(i)) = (self.reserved.ids[n], self.any_peer()) else { return };
        let token = (1 << 41) + self.t.0;
        self.fault("unreserve");
        self.input(i, Input::Client { token, request: ClientRequest::Cancel { job, by: "user".into() } });
    }

    /// True where the answer was to a reserver.
    pub(super) fn answered_reserver(&mut self, token: u64, response: &ClientResponse) -> bool {
        let Some(n) = self.reserved.waiting.remove(&token) else { return token >= 1 << 40 };
        if let ClientResponse::Submitted { job, .. } = response {
            self.reserved.ids[n] = Some(*job);
        }
        true
    }

    fn rows(&self, i: usize) -> Vec<Row> {
        let meta = self.machines[i].disk.tables.get(&Table::Meta);
        let all = meta.into_iter().flatten().filter(|(key, _)| key.starts_with(b"reserve/"));
        all.filter_map(|(_, row)| serde_json::from_slice(row).ok()).collect()
    }

    /// R1 and R2 at one cluster, now and then.
    pub(super) fn check_reserved(&mut self, i: usize) {
        if !self.scenario.reserved {
            return;
        }
        let all = shapes::GPUS - self.scenario.judged_less;
        let (rows, wall, mut wrong) = (self.rows(i), WallTime(self.t.0 / 1000), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            let pins = |row: &Row| -> BTreeSet<(u32, u32)> {
                row.shares.iter().flat_map(|s| s.gpus.iter().map(|g| (s.node, *g))).collect()
            };
            let (mine, id) = (pins(row), row.birth.id());
            if mine.len() > row.asked.gpus as usize || mine.iter().any(|(_, g)| *g >= all) {
                wrong.push(format!("R1: peer {i} pins {mine:?} for {id}"));
            }
            // One whose time is over may be forgotten a moment after the next has taken its place.
            let both =
                |other: &&Row| other.asked.meets(&row.asked) && wall < other.asked.until.min(row.asked.until);
            for other in rows[..at].iter().filter(both) {
                if !mine.is_disjoint(&pins(other)) {
                    wrong.push(format!("R1: peer {i} pins the same GPUs for {id} and {}", other.birth.id()));
                }
            }
            if row.confirmed {
                self.reserved.kept.insert(id);
                let runs = row.asked.from <= wall && wall < row.asked.until;
                let own = self.machines[i].attempts.values().any(|r| r.tenant == row.birth.tenant);
                self.reserved.inside += usize::from(runs && own);
            }
        }
        let (core, pause) = (self.machines[i].life, self.machines[i].pause);
        let seen = self.reserved.awake.get(&i).filter(|(life, paused, _)| (*life, *paused) == (core, pause));
        let since = seen.map_or(self.t, |(_, _, at)| *at);
        let since = if self.runs(i) { since } else { self.t };
        self.reserved.awake.insert(i, (core, pause, since));
        // A disk that was put back does not know of what is reserved, and gives the notice when it is told again.
        self.reserved.told.retain(|(peer, id), _| *peer != i || rows.iter().any(|r| r.birth.id() == *id));
        for row in &rows {
            self.reserved.told.entry((i, row.birth.id())).or_insert(self.t);
        }
        let told = &self.reserved.told;
        let begun = |row: &&Row| {
            // The notice is due before the start; a peer that was away then gives it when it is back.
            let due = Instant(row.asked.from.0 * 1_000).max(since).max(told[&(i, row.birth.id())]);
            row.asked.until > wall && self.t >= due + GOES_WITHIN
        };
        let mut kept: BTreeMap<String, u32> = BTreeMap::new();
        for row in rows.iter().filter(begun) {
            let pinned: usize = row.shares.iter().map(|s| s.gpus.len()).sum();
            *kept.entry(row.birth.tenant.clone()).or_default() += pinned as u32;
        }
        if !kept.is_empty() {
            let mut runs: BTreeMap<String, u32> = BTreeMap::new();
            for running in self.machines[i].attempts.values() {
                *runs.entry(running.tenant.clone()).or_default() += running.gpus;
            }
            for (tenant, gpus) in &kept {
                let used = runs.entry(tenant.clone()).or_default();
                *used = (*used).max(*gpus);
            }
            let sum: u32 = runs.values().sum();
            if sum > all {
                wrong.push(format!("R2: peer {i} keeps {kept:?}, and with what runs that is {sum} GPUs"));
            }
        }
        // Once is enough: it would be seen again at every look.
        wrong.retain(|w| !self.violations.contains(w));
        wrong.into_iter().for_each(|w| self.violation(w));
    }

    /// Every record of a reservation has ended, and nobody keeps anything for one any more.
    pub(super) fn reservations_over(&self) -> bool {
        let mut ids = self.reserved.ids.iter().flatten();
        let over = |id: &JobId| self.newest(id).is_none_or(|r| r.state.is_final());
        !self.scenario.reserved
            || (ids.all(over) && (0..self.machines.len()).all(|i| self.rows(i).is_empty()))
    }

    /// R3, once all has had its time since the healing.
    pub(super) fn check_kept(&mut self) {
        let since = self.t.since(self.healed_at);
        if !self.scenario.reserved || since < KNOWN_WITHIN {
            return;
        }
        let wall = WallTime(self.t.0 / 1000);
        let mut wrong = Vec::new();
        for id in self.reserved.ids.iter().flatten().copied().collect::<Vec<_>>() {
            let Some(record) = self.newest(&id).cloned() else { continue };
            if record.state == JobState::Failed {
                self.reserved.refused.insert(id);
            }
            let Some(asked) = record.asked() else { continue };
            let near = wall.0.abs_diff(asked.until.0) < 3_000;
            for i in 0..self.machines.len() {
                let name = &self.machines[i].name;
                let named = record.parts().iter().find(|part| part.cluster == *name);
                let runs = record.state == JobState::Running && asked.until > wall;
                let should = runs && named.is_some_and(|part| part.lost.is_none());
                let keeps = self.rows(i).iter().any(|row| row.birth.id() == id && row.confirmed);
                if should && !keeps && !near {
                    wrong.push(format!("R3: peer {i} does not keep its part of {id}: {}", record.reason));
                }
                if keeps && named.is_none() {
                    wrong.push(format!("R3: peer {i} keeps {id}, which does not name it"));
                }
            }
        }
        wrong.into_iter().for_each(|w| self.violation(w));
    }
}
