//! A tenant's ledger and the shares that two clusters spend: `LedgerRecord::apply` and `Escrow` of production.
//!
//! The register is taken as one (what "register" and "moving" establish): a change is made at any time after it was
//! sent, or never; a newer one of the same cluster fences it. Answers may be lost, clusters crash between any two
//! steps. The lease is taken as its rule (what "lease" establishes): an incarnation is taken over only when nothing
//! bound to it runs, and nothing begins under one that was. Each job wants one GPU; the limit is two.

use starling::base::{BoundedVec, ContactId, Home, PeerName, StoreId};
use starling::model::tenant::{Amount, Binding, Escrow, LedgerChange, LedgerRecord, Limits};
use stateright::{Model, Property};

use super::Bug;
use super::invariants::{I5, I5_SHARE};

const CLUSTERS: usize = 2;
const LIMIT: u8 = 2;

/// The model.
#[derive(Debug, Clone)]
pub struct Quota {
    /// Changes that a cluster sends in its life.
    pub changes: u8,
    pub bug: Option<Bug>,
}

/// What the ledger says of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Row {
    held: u8,
    /// Incarnations, a bit each.
    bound: u8,
    nonce: u8,
}

/// The cluster's half, as in `Escrow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Half {
    share: u8,
    bound: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Sent {
    held: u8,
    bound: u8,
    nonce: u8,
    made: bool,
    refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Cluster {
    half: Half,
    disk: Half,
    sent: Option<Sent>,
    /// With the planted fault: a change that was fenced, and may be made all the same.
    stray: Option<Sent>,
    waits: bool,
    nonces: u8,
    /// Attempts that run, by incarnation.
    runs: [u8; 2],
    /// The incarnation under which it begins attempts, and those that were taken over.
    own: u8,
    taken: u8,
    /// What a home saw of the row, to take it back.
    seen: Option<(u8, u8)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    rows: [Option<Row>; CLUSTERS],
    clusters: [Cluster; CLUSTERS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A cluster sends: its share shall be this.
    Send(usize, u8),
    Make(usize),
    MakeStray(usize),
    Answer(usize),
    GiveUp(usize),
    Crash(usize),
    Begin(usize),
    End(usize, usize),
    /// Another contact is used from now on.
    Next(usize),
    Rebind(usize),
    TakeOver(usize, usize),
    See(usize),
    Reclaim(usize),
}

fn home(c: usize) -> Home {
    Home { peer: PeerName::new(&format!("p{c}")).expect("a name"), store: StoreId([c as u8; 16]) }
}
fn gpus(n: u8) -> Amount {
    Amount { gpus: u64::from(n), ..Amount::ZERO }
}
fn contact(i: u8) -> ContactId {
    ContactId([i; 20])
}
fn bindings(bound: u8) -> Vec<Binding> {
    let one =
        |i: u8| Binding { contact: contact(i), series: 1, homes: BoundedVec::default(), incarnation: 1 };
    (0..2).filter(|i| bound & (1 << i) != 0).map(one).collect()
}
fn ids(bound: u8) -> Vec<(ContactId, u64)> {
    bindings(bound).iter().map(|b| (b.contact, b.incarnation)).collect()
}
fn bits(bound: &[(ContactId, u64)]) -> u8 {
    bound.iter().map(|(c, _)| 1 << c.0[0]).sum()
}

/// Production's ledger as the state has it.
fn ledger(rows: &[Option<Row>; CLUSTERS]) -> LedgerRecord {
    let homes = BoundedVec::try_from(vec![home(9)]).expect("one");
    let limits = Limits { gpus: Some(u64::from(LIMIT)), ..Limits::default() };
    let set = LedgerChange::Limits {
        limits: Box::new(limits),
        removed: false,
        reset_hours: false,
        expect: 0,
        nonce: (0, 1),
    };
    let mut ledger = LedgerRecord::new("t", homes).apply(&set).expect("limits");
    for (c, row) in rows.iter().enumerate() {
        if let Some(row) = row {
            let share = starling::model::tenant::Share {
                home: home(c),
                held: gpus(row.held),
                spent: 0,
                nonce: (c as u64, u64::from(row.nonce)),
                grace: ledger.limits.grace,
                bindings: BoundedVec::try_from(bindings(row.bound)).expect("two"),
                era: 0,
            };
            ledger.shares.push(share);
        }
    }
    ledger
}

fn rows(ledger: &LedgerRecord) -> [Option<Row>; CLUSTERS] {
    std::array::from_fn(|c| {
        ledger.share(&home(c)).map(|s| Row {
            held: s.held.gpus as u8,
            bound: s.bindings.iter().map(|b| 1 << b.contact.0[0]).sum(),
            nonce: s.nonce.1 as u8,
        })
    })
}

fn with(half: &mut Half, f: impl FnOnce(&mut Escrow)) {
    let mut escrow = Escrow { share: gpus(half.share), bound: ids(half.bound), ..Escrow::default() };
    f(&mut escrow);
    *half = Half { share: escrow.share.gpus as u8, bound: bits(&escrow.bound) };
}

impl Quota {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn make(&self, state: &mut State, c: usize, sent: Sent) -> bool {
        let change = LedgerChange::Share {
            home: home(c),
            held: gpus(sent.held),
            spent: 0,
            bindings: bindings(sent.bound),
            adopts: None,
            nonce: (c as u64, u64::from(sent.nonce)),
        };
        match ledger(&state.rows).apply(&change) {
            Ok(next) => {
                state.rows = rows(&next);
                true
            }
            Err(_) => false,
        }
    }
}

impl Model for Quota {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { rows: [None; CLUSTERS], clusters: [Cluster::default(); CLUSTERS] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (c, cluster) in state.clusters.iter().enumerate() {
            let used = cluster.runs[0] + cluster.runs[1];
            if !cluster.waits && cluster.nonces < self.changes {
                // It keeps what it uses; it may ask for more, or give the rest back.
                let least = if self.is(Bug::ShareLoweredAtLedgerFirst) { 0 } else { used };
                actions.extend((least..=LIMIT).map(|held| Action::Send(c, held)));
            }
            if let Some(sent) = &cluster.sent {
                if !sent.made && !sent.refused {
                    actions.push(Action::Make(c));
                }
                if cluster.waits {
                    actions.push(Action::GiveUp(c));
                    if sent.made || sent.refused {
                        actions.push(Action::Answer(c));
                    }
                }
            }
            if cluster.stray.is_some() {
                actions.push(Action::MakeStray(c));
            }
            if cluster.waits || cluster.half != cluster.disk {
                actions.push(Action::Crash(c));
            }
            let own = usize::from(cluster.own);
            let mut escrow = cluster.half;
            let mut covers = false;
            let binding = (contact(cluster.own), 1);
            with(&mut escrow, |e| covers = e.covers(&gpus(used + 1), binding));
            covers |= self.is(Bug::SpentWithoutShare);
            if covers && used < LIMIT && cluster.taken & (1 << own) == 0 {
                actions.push(Action::Begin(c));
            }
            for i in 0..2 {
                if cluster.runs[i] > 0 {
                    actions.push(Action::End(c, i));
                }
                // One cluster is lost for good, or comes back.
                let stopped = cluster.runs[i] == 0 && i <= own;
                if c == 0 && stopped && cluster.taken & (1 << i) == 0 {
                    actions.push(Action::TakeOver(c, i));
                }
            }
            if c == 0 && own == 0 {
                actions.push(Action::Next(c));
            }
            let follows = cluster.half.bound & 2 != 0 || self.is(Bug::ReboundUnknownToLedger);
            if own == 1 && cluster.runs[0] > 0 && cluster.taken & 3 == 0 && follows {
                actions.push(Action::Rebind(c));
            }
            if let Some(row) = state.rows[c].filter(|row| c == 0 && row.held > 0)
                && cluster.seen != Some((row.nonce, row.bound))
            {
                actions.push(Action::See(c));
            }
            if let Some((_, bound)) = cluster.seen
                && (bound & !cluster.taken == 0 || self.is(Bug::ReclaimedByTime))
            {
                actions.push(Action::Reclaim(c));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Send(c, held) => {
                let cluster = &mut state.clusters[c];
                cluster.nonces += 1;
                let living = (0..2).filter(|i| cluster.runs[*i] > 0).map(|i| 1 << i).sum::<u8>();
                let bound = if held == 0 { 0 } else { living | 1 << cluster.own };
                let sent = Sent { held, bound, nonce: cluster.nonces, made: false, refused: false };
                if self.is(Bug::OldShareMadeLate) {
                    cluster.stray = cluster.sent.filter(|s| !s.made && !s.refused).or(cluster.stray);
                }
                if self.is(Bug::ShareRaisedBeforeLedger) {
                    with(&mut cluster.half, |e| e.chosen(gpus(held), &ids(bound), 0));
                } else if !self.is(Bug::ShareLoweredAtLedgerFirst) {
                    with(&mut cluster.half, |e| e.leaves(gpus(held), &ids(bound)));
                }
                if !self.is(Bug::LoweredShareLostInCrash) {
                    cluster.disk = cluster.half;
                }
                (cluster.sent, cluster.waits) = (Some(sent), true);
            }
            Action::Make(c) => {
                let sent = state.clusters[c].sent?;
                let made = self.make(&mut state, c, sent);
                state.clusters[c].sent = Some(Sent { made, refused: !made, ..sent });
            }
            Action::MakeStray(c) => {
                let sent = state.clusters[c].stray.take()?;
                self.make(&mut state, c, sent);
            }
            Action::Answer(c) => {
                let row = ledger(&state.rows);
                let cluster = &mut state.clusters[c];
                let sent = cluster.sent.take()?;
                match sent.made {
                    true => with(&mut cluster.half, |e| e.chosen(gpus(sent.held), &ids(sent.bound), 0)),
                    false => with(&mut cluster.half, |e| e.at_most(row.share(&home(c)))),
                }
                cluster.disk = cluster.half;
                cluster.waits = false;
            }
            Action::GiveUp(c) => {
                state.clusters[c].waits = false;
            }
            Action::Crash(c) => {
                let cluster = &mut state.clusters[c];
                cluster.half = cluster.disk;
                cluster.waits = false;
            }
            Action::Begin(c) => {
                let own = usize::from(state.clusters[c].own);
                state.clusters[c].runs[own] += 1;
            }
            Action::End(c, i) => state.clusters[c].runs[i] -= 1,
            Action::Next(c) => state.clusters[c].own = 1,
            Action::Rebind(c) => {
                let runs = &mut state.clusters[c].runs;
                (runs[0], runs[1]) = (runs[0] - 1, runs[1] + 1);
            }
            Action::TakeOver(c, i) => state.clusters[c].taken |= 1 << i,
            Action::See(c) => {
                state.clusters[c].seen = state.rows[c].map(|row| (row.nonce, row.bound));
            }
            Action::Reclaim(c) => {
                let (nonce, _) = state.clusters[c].seen.take()?;
                let nonce = match state.rows[c].filter(|_| self.is(Bug::ReclaimedWithoutCondition)) {
                    Some(row) => row.nonce,
                    None => nonce,
                };
                let change = LedgerChange::Reclaim { home: home(c), nonce: (c as u64, u64::from(nonce)) };
                let next = ledger(&state.rows).apply(&change).ok()?;
                state.rows = rows(&next);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let i5 = |_: &Quota, state: &State| {
            state.clusters.iter().map(|c| c.runs[0] + c.runs[1]).sum::<u8>() <= LIMIT
                && ledger(&state.rows).total().within(&gpus(LIMIT))
        };
        // What was reclaimed may still stand at the cluster, under incarnations of which none can begin anything.
        let within = |_: &Quota, state: &State| {
            state.clusters.iter().zip(&state.rows).all(|(cluster, row)| {
                let used = cluster.runs[0] + cluster.runs[1];
                used <= row.map_or(0, |row| row.held)
            })
        };
        let mut all = vec![Property::<Self>::always(I5, i5), Property::<Self>::always(I5_SHARE, within)];
        if self.bug.is_none() {
            all.push(Property::<Self>::sometimes("reach: both clusters run at once", |_, state| {
                state.clusters.iter().all(|c| c.runs[0] > 0)
            }));
            all.push(Property::<Self>::sometimes(
                "reach: the other spends what was reclaimed",
                |_, state| {
                    state.rows[0].is_none()
                        && state.clusters[0].taken > 0
                        && state.clusters[1].runs[0] == LIMIT
                },
            ));
        }
        all
    }
}
