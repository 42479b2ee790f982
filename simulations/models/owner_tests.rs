//! The production core in the traces that the models found to be dangerous.

use std::collections::BTreeMap;

use starling::base::{BoundedVec, Home, Instant, PeerName, Span, StoreId, WallTime};
use starling::core::acceptor::{Acceptor, Room};
use starling::core::api::Output;
use starling::core::api::Pace;
use starling::core::message::{
    Ballot, Message, Origin, RecordKey, RegisterAnswer, RegisterBody, RegisterRequest,
};
use starling::core::value::Value;
use starling::core::{CoreConfig, DiskImage, Input, Now, Peer};
use starling::model::record::{Change, contact_id};
use starling::model::report::{Liveness, MemberView, View};
use starling::model::{ContactRecord, JobRecord, Placement};

use super::models::production::new_job;

fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a name")
}

/// Home h1 as a whole peer; h2 and h3 as acceptors; cluster c1 as the test itself.
struct Homes {
    now: Instant,
    peer: Peer,
    others: BTreeMap<PeerName, (StoreId, Acceptor)>,
    homes: Vec<Home>,
}

impl Homes {
    fn new() -> Self {
        let homes = new_job().birth.homes.to_vec();
        let cfg = CoreConfig {
            name: homes[0].peer.clone(),
            store: homes[0].store,
            boot: 1,
            first_boot: true,
            replicas: 3,
            renew_every: Span::secs(5),
            rho_milli: 10,
            margin: Span::secs(3),
            grant_for: Span::secs(5),
            claims_max: 3,
            jobs_max: 10,
            rehome_after: Span::FOREVER,
            retain: Span::FOREVER,
            retain_jobs: 10,
            nodes: Vec::new(),
            schedule: Default::default(),
            runs_images: false,
            policies: Default::default(),
            pace: Pace::default(),
            seed: 1,
        };
        let now = Now { mono: Instant(0), wall: WallTime(0) };
        let (peer, _) = Peer::recover(cfg, &DiskImage::default(), now).expect("an empty disk");
        let others = homes[1..].iter().map(|h| (h.peer.clone(), (h.store, Acceptor::default()))).collect();
        let mut all = Homes { now: now.mono, peer, others, homes };
        let stores = all.homes.iter().map(|h| (h.peer.clone(), h.store));
        let member = |(peer, store): (PeerName, StoreId)| {
            let liveness = Liveness::Alive;
            (
                peer.clone(),
                MemberView { peer, store, witness: false, liveness, draining: false, report: None },
            )
        };
        let members = stores.chain([(name("c1"), StoreId([8; 16]))]).map(member).collect();
        all.step(Input::View(View { members, isolated: false }.into()));
        all
    }

    fn step(&mut self, input: Input) {
        let now = Now { mono: self.now, wall: WallTime(self.now.0 / 1000) };
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.peer.step(now, input) {
                let Output::Send { to, message, .. } = output else { continue };
                if to == self.homes[0].peer {
                    inputs.push(Input::Message { from: to, message });
                } else if let Message::Register(request) = message
                    && self.others.contains_key(&to)
                {
                    let answer = self.ask(&to, &request);
                    inputs.push(Input::Message { from: to, message: Message::Answer(answer) });
                }
            }
        }
    }

    fn ask(&mut self, home: &PeerName, request: &RegisterRequest) -> RegisterAnswer {
        let (store, acceptor) = self.others.get_mut(home).expect("a home");
        let room = Room { disk_full: false, jobs_max: 10 };
        let body = acceptor.handle((home, *store), &name("h1"), request, room).answer;
        RegisterAnswer { op: request.op, key: request.key, store: *store, body }
    }

    /// An accept from some proposer reaches these homes (by number).
    fn accept(&mut self, ballot: (u64, &str), origin: &Origin, value: &Value, reaches: &[usize]) {
        let (round, proposer) = ballot;
        for home in reaches.iter().map(|i| self.homes[*i].clone()).collect::<Vec<_>>() {
            let request = RegisterRequest {
                op: round,
                key: origin.key(),
                generation: 0,
                store: home.store,
                body: RegisterBody::Accept {
                    ballot: Ballot { round, proposer: proposer.into(), boot: 1 },
                    value: value.encode().expect("small"),
                    next: None,
                    origin: Some(origin.clone()),
                },
            };
            if home.peer == self.homes[0].peer {
                self.step(Input::Message { from: name(proposer), message: Message::Register(request) });
            } else {
                self.ask(&home.peer, &request);
            }
        }
    }

    fn pass(&mut self, time: Span) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Span::millis(500);
            self.step(Input::Tick);
        }
    }

    fn job_at(&self, home: usize, key: RecordKey) -> JobRecord {
        let slot = self.others[&self.homes[home].peer].1.slot(&key).expect("held");
        match &slot.value {
            Some(Value::Job(record)) => (**record).clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// A job of grace 120 s runs at c1, whose contact is renewed all the time. One takeover of that contact
/// reaches h1 only and is never chosen. The job must not be freed.
/// The models found that it was: a value that h1 alone held was taken as the end of the incarnation.
#[test]
fn a_takeover_that_was_never_chosen_frees_nothing() {
    renewed_all_the_time(true);
}

#[test]
fn a_contact_that_is_renewed_frees_nothing() {
    renewed_all_the_time(false);
}

fn renewed_all_the_time(tried: bool) {
    let mut homes = Homes::new();
    let held: BoundedVec<Home, 5> = homes.homes.clone().try_into().expect("three");
    let (cluster, series) = (name("c1"), 1);
    let contact_origin = Origin::Contact(cluster.clone(), series, homes.homes.clone());
    let contact = |incarnation, counter, holder: &str| {
        Value::Contact(Box::new(ContactRecord {
            cluster: name("c1"),
            series,
            homes: held.clone(),
            incarnation,
            nonce: (1, counter),
            holder: name(holder),
            ext: BTreeMap::new(),
        }))
    };
    let placement = Placement {
        cluster: cluster.clone(),
        contact: contact_id(&cluster, series, &homes.homes),
        incarnation: 1,
        series,
        contact_homes: held.clone(),
        at: WallTime(1),
    };
    let job = new_job();
    let placed =
        job.apply(&Change::Place { placement, epoch: job.epoch.next() }).expect("a pending job is placed");
    let (origin, key) = (Origin::Job(placed.birth.clone()), RecordKey::Job(placed.id()));
    homes.accept((1, "c1"), &contact_origin, &contact(1, 1, "c1"), &[0, 1, 2]);
    homes.accept((1, "h1"), &origin, &Value::job(placed.clone()), &[0, 1, 2]);
    homes.pass(Span::secs(2));
    // Another home's takeover, at ballot 2, gets no further than h1.
    if tried {
        homes.accept((2, "h2"), &contact_origin, &contact(2, 1 << 40, "h2"), &[0]);
    }
    // The cluster goes on renewing, at higher ballots. A majority has each renewal, and h1 hears of it.
    for renewal in 0..40 {
        homes.pass(Span::secs(5));
        homes.accept((3 + renewal, "c1"), &contact_origin, &contact(1, 2 + renewal, "c1"), &[1, 2, 0]);
    }
    let now = homes.job_at(1, key);
    assert_eq!((&now.placement, now.losses), (&placed.placement, 0), "{}", now.reason);
}
