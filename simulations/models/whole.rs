//! The lease over the full register, for a small bound: the contact record at three acceptors with
//! ballots, promises and accepts (`Acceptor::handle`), instead of the tree of values in `lease`.
//!
//! It is here to show that the tree hides nothing: what may be seen before it is chosen, chosen late or
//! lost comes from real promises and accepts. Everything else is as in `lease`, and smaller: both jobs
//! are placed at cluster 1 from the beginning, one series, no ends before their time.

use stateright::{Model, Property};

use super::Bug;
use super::invariants::{I1, I2, i2};
use super::production::{
    Ask, Contact, ContactStep, Job, JobChange, Said, Slot, accept, apply_contact, apply_job, reflects_contact,
};

const ACCEPTORS: usize = 3;
const BALLOTS_MAX: usize = 6;
const LABELS: usize = 4;
const NONE: u8 = u8::MAX;

/// The model. Ballot 1 is the record's birth, which all three have.
#[derive(Debug, Clone)]
pub struct Whole {
    pub ballots: u8,
    pub nonces: u8,
    pub hold: [u8; 2],
    pub wait: [u8; 2],
    pub bug: Option<Bug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Acceptor {
    slot: Slot,
    promises: [u8; BALLOTS_MAX],
    accepted: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Proposal {
    value: Contact,
    base: u8,
    /// Since this value could first be seen.
    age: u8,
    /// For a takeover: the age of what it was made on.
    timed: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Asked {
    claim: bool,
    incarnation: u8,
    nonce: u8,
    age: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Side {
    record: Job,
    /// Incarnations under which it was ever chosen at cluster 1 (bits).
    chosen: u8,
    runs: bool,
    bound: u8,
    age: u8,
    closed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    acceptors: [Acceptor; ACCEPTORS],
    proposals: [Option<Proposal>; BALLOTS_MAX],
    mine: u8,
    renewed: [u8; LABELS],
    nonce: u8,
    asked: Option<Asked>,
    over: [u8; LABELS],
    jobs: [Side; 2],
    forgot: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Writes back what was found.
    Same,
    /// What the cluster asked.
    Asked,
    TakeOver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Send { claim: bool },
    Prepare(u8, u8),
    Propose(u8, Kind),
    Accept(u8, u8),
    Counted(u8),
    Forget(u8),
    Start(u8, u8),
    Expire(u8),
    Free(u8),
    Close(u8),
    Place(u8),
    Rebind(u8),
    Rebound(u8, u8),
    Tick,
}

fn at(ballot: u8) -> usize {
    usize::from(ballot) - 1
}

fn older(age: u8, most: u8) -> u8 {
    if age == NONE { NONE } else { (age + 1).min(most) }
}

impl Whole {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn accepts(state: &State, ballot: u8) -> usize {
        state.acceptors.iter().filter(|a| a.accepted & (1 << ballot) != 0).count()
    }

    fn found(state: &State, ballot: u8) -> Option<u8> {
        let promises = state.acceptors.iter().map(|a| a.promises[at(ballot)]).filter(|p| *p != NONE);
        (promises.clone().count() >= 2).then(|| promises.max()).flatten()
    }

    fn newest_chosen(&self, state: &State) -> u8 {
        (1..=self.ballots).rev().find(|b| Self::accepts(state, *b) >= 2).unwrap_or(0)
    }

    /// The value's own age: since any proposal of it could be seen.
    fn sighted(state: &State, value: Contact) -> u8 {
        let same = state.proposals.iter().flatten().filter(|p| p.value == value);
        same.map(|p| p.age).max().unwrap_or(0)
    }

    fn step(asked: Asked) -> ContactStep {
        match asked.claim {
            true => ContactStep::Claim { above: asked.incarnation, nonce: asked.nonce },
            false => ContactStep::Renew { incarnation: asked.incarnation, nonce: asked.nonce },
        }
    }

    fn proposal(&self, state: &State, ballot: u8, kind: Kind) -> Option<Proposal> {
        let base = Self::found(state, ballot)?;
        let found = state.proposals.get(usize::from(base).checked_sub(1)?).copied().flatten()?;
        let (value, timed) = match kind {
            Kind::Same => (found.value, found.timed),
            Kind::Asked => {
                let step = Self::step(state.asked?);
                if reflects_contact(found.value, step) {
                    return None;
                }
                (apply_contact(found.value, step)?, NONE)
            }
            Kind::TakeOver => {
                let age = Self::sighted(state, found.value);
                if age < self.wait[0] || !found.value.held {
                    return None;
                }
                let Contact { incarnation, nonce, .. } = found.value;
                (apply_contact(found.value, ContactStep::TakeOver { incarnation, nonce })?, age)
            }
        };
        (usize::from(value.incarnation) < LABELS).then(|| Proposal {
            value,
            base,
            age: Self::sighted(state, value),
            timed,
        })
    }

    /// The incarnation for which the cluster's request was chosen (or, with the bug, accepted once).
    fn made(&self, state: &State, asked: Asked) -> Option<u8> {
        let enough = if self.is(Bug::MinorityConfirmation) { 1 } else { 2 };
        (1..=self.ballots).find_map(|b| {
            let value = state.proposals[at(b)]?.value;
            let counts = if asked.claim { value.incarnation } else { asked.incarnation };
            (value.nonce == asked.nonce && Self::accepts(state, b) >= enough).then_some(counts)
        })
    }

    fn due(&self, state: &State, j: usize) -> bool {
        state.jobs[j].runs && state.jobs[j].age >= self.hold[j]
    }

    fn tidy(&self, mut state: State) -> State {
        for ballot in 1..=self.ballots {
            let open = |a: &&Acceptor| a.promises[at(ballot)] != NONE || a.slot.promised < ballot;
            let hopeless = state.acceptors.iter().filter(open).count() < 2;
            if state.proposals[at(ballot)].is_some() || hopeless {
                state.acceptors.iter_mut().for_each(|a| a.promises[at(ballot)] = NONE);
            }
        }
        state.acceptors.sort_unstable();
        state
    }

    fn settled(&self, state: &State) -> bool {
        self.bug.is_none() && state.jobs.iter().all(|s| s.record.epoch == 2 && !s.runs && s.closed)
    }

    fn register_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for ballot in 2..=self.ballots {
            let proposed = state.proposals[at(ballot)].is_some();
            let found = Self::found(state, ballot).is_some();
            for a in 0..ACCEPTORS as u8 {
                let acceptor = &state.acceptors[usize::from(a)];
                if proposed && acceptor.accepted & (1 << ballot) == 0 {
                    actions.push(Action::Accept(ballot, a));
                }
                if !proposed && !found && acceptor.promises[at(ballot)] == NONE {
                    actions.push(Action::Prepare(ballot, a));
                }
            }
            if !proposed && found {
                actions.extend([Kind::Same, Kind::Asked, Kind::TakeOver].map(|k| Action::Propose(ballot, k)));
            }
        }
        if self.is(Bug::AcceptorForgets) && !state.forgot {
            actions.extend((0..ACCEPTORS as u8).map(Action::Forget));
        }
    }

    fn job_actions(&self, state: &State, j: u8, actions: &mut Vec<Action>) {
        let i = usize::from(j);
        let side = &state.jobs[i];
        let record = side.record;
        if record.at == 1 {
            if state.over[usize::from(record.bound)] != NONE
                && state.over[usize::from(record.bound)] >= self.wait[i]
            {
                actions.push(Action::Free(j));
            }
            if side.closed {
                actions.push(Action::Close(j));
            }
            if state.mine > record.bound {
                actions.push(Action::Rebind(j));
            }
        }
        if record.at == 0 && record.epoch == 1 {
            actions.push(Action::Place(j));
        }
        for bound in (1..LABELS as u8).filter(|b| side.chosen & (1 << b) != 0) {
            let fresh = state.renewed[usize::from(bound)] < self.hold[i];
            if !side.runs && !side.closed && bound == state.mine && fresh {
                actions.push(Action::Start(j, bound));
            }
            if side.runs && bound > side.bound {
                actions.push(Action::Rebound(j, bound));
            }
        }
        if self.due(state, i) {
            actions.push(Action::Expire(j));
        }
    }

    fn job_step(&self, state: &mut State, action: Action) -> Option<()> {
        let (renewed, mine) = (state.renewed, state.mine);
        match action {
            Action::Start(j, bound) => {
                let side = &mut state.jobs[usize::from(j)];
                (side.runs, side.bound, side.age) = (true, bound, renewed[usize::from(bound)]);
            }
            Action::Expire(j) => {
                let side = &mut state.jobs[usize::from(j)];
                (side.runs, side.bound, side.age, side.closed) = (false, 0, 0, true);
            }
            Action::Rebound(j, to) => {
                let side = &mut state.jobs[usize::from(j)];
                (side.bound, side.age) = (to, side.age.min(renewed[usize::from(to)]));
            }
            Action::Free(j) | Action::Close(j) | Action::Place(j) | Action::Rebind(j) => {
                let side = &mut state.jobs[usize::from(j)];
                let Job { epoch, bound, .. } = side.record;
                let change = match action {
                    Action::Free(_) => JobChange::Free { epoch, bound },
                    Action::Close(_) => JobChange::Close { epoch, succeeded: false },
                    Action::Place(_) => JobChange::Place { epoch: epoch + 1, at: 2, bound: 1 },
                    _ => JobChange::Rebind { epoch, from: bound, to: mine },
                };
                side.record = apply_job(side.record, change)?;
                if side.record.at == 1 {
                    side.chosen |= 1 << side.record.bound;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn take_step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Send { claim } => {
                state.nonce += 1;
                state.asked = Some(Asked { claim, incarnation: state.mine, nonce: state.nonce, age: 0 });
            }
            Action::Prepare(ballot, a) => {
                let acceptor = &mut state.acceptors[usize::from(a)];
                let (slot, said) = accept(acceptor.slot, Ask::Prepare { ballot, origin: false }, true);
                acceptor.slot = slot;
                if let Said::Promise(newest) = said {
                    acceptor.promises[at(ballot)] = newest;
                }
            }
            Action::Propose(ballot, kind) => {
                let proposal = self.proposal(state, ballot, kind)?;
                state.proposals[at(ballot)] = Some(proposal);
                if kind == Kind::TakeOver && self.is(Bug::UnchosenTakeoverCounts) {
                    let over = &mut state.over[usize::from(proposal.value.incarnation) - 1];
                    *over = if *over == NONE { 0 } else { *over };
                }
            }
            Action::Accept(ballot, a) => self.accepted(state, ballot, a),
            Action::Counted(incarnation) => {
                let asked = state.asked.take()?;
                if asked.claim {
                    state.mine = incarnation;
                }
                let renewed = &mut state.renewed[usize::from(incarnation)];
                *renewed = (*renewed).min(asked.age);
                for side in state.jobs.iter_mut().filter(|s| s.runs && s.bound == incarnation) {
                    side.age = side.age.min(asked.age);
                }
            }
            Action::Forget(a) => {
                state.acceptors[usize::from(a)].slot = Slot::default();
                state.forgot = true;
            }
            Action::Tick => self.tick(state),
            other => self.job_step(state, other)?,
        }
        Some(())
    }

    fn accepted(&self, state: &mut State, ballot: u8, a: u8) {
        let acceptor = &mut state.acceptors[usize::from(a)];
        let (mut slot, mut said) = accept(acceptor.slot, Ask::Accept { ballot, next: 0, origin: true }, true);
        if self.is(Bug::NoBallotCheck) && said == Said::Higher {
            (slot, said) = (Slot { accepted: ballot, ..acceptor.slot }, Said::Accepted);
        }
        acceptor.slot = slot;
        if said != Said::Accepted {
            return;
        }
        acceptor.accepted |= 1 << ballot;
        // A takeover was chosen: the incarnation before it has ended.
        if let Some(Proposal { value, timed, .. }) = state.proposals[at(ballot)]
            && Self::accepts(state, ballot) == 2
            && !value.held
        {
            let over = &mut state.over[usize::from(value.incarnation) - 1];
            *over = if *over == NONE { timed } else { timed.max(*over) };
        }
    }

    fn tick(&self, state: &mut State) {
        let (wait, hold) = (self.wait[1], self.hold[1]);
        for proposal in state.proposals.iter_mut().flatten() {
            (proposal.age, proposal.timed) = (older(proposal.age, wait), older(proposal.timed, wait));
        }
        for age in &mut state.over {
            *age = older(*age, wait);
        }
        for age in &mut state.renewed {
            *age = older(*age, hold);
            *age = if *age >= hold { NONE } else { *age };
        }
        if let Some(asked) = &mut state.asked {
            asked.age = older(asked.age, hold);
        }
        if state.asked.is_some_and(|a| a.age >= hold && !a.claim) {
            state.asked = None;
        }
        for side in state.jobs.iter_mut().filter(|s| s.runs) {
            side.age = older(side.age, hold);
        }
    }
}

impl Model for Whole {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let born = Contact { incarnation: 1, nonce: 0, held: true };
        let slot = accept(Slot::default(), Ask::Accept { ballot: 1, next: 0, origin: true }, true).0;
        let acceptor = Acceptor { slot, promises: [NONE; BALLOTS_MAX], accepted: 1 << 1 };
        let mut proposals = [None; BALLOTS_MAX];
        proposals[0] = Some(Proposal { value: born, base: 0, age: 0, timed: NONE });
        let record = apply_job(Job::default(), JobChange::Place { epoch: 1, at: 1, bound: 1 });
        let record = record.expect("a new job is placed");
        let side = Side { record, chosen: 1 << 1, runs: false, bound: 0, age: 0, closed: false };
        let mut renewed = [NONE; LABELS];
        renewed[1] = 0;
        vec![State {
            acceptors: [acceptor; ACCEPTORS],
            proposals,
            mine: 1,
            renewed,
            nonce: 0,
            asked: None,
            over: [NONE; LABELS],
            jobs: [side; 2],
            forgot: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.settled(state) {
            return;
        }
        self.register_actions(state, actions);
        if state.nonce < self.nonces {
            actions.push(Action::Send { claim: false });
            let newest = self.newest_chosen(state);
            if newest > 0 && state.proposals[at(newest)].is_some_and(|p| p.value.incarnation > state.mine) {
                actions.push(Action::Send { claim: true });
            }
        }
        if let Some(asked) = state.asked
            && let Some(incarnation) = self.made(state, asked)
        {
            actions.push(Action::Counted(incarnation));
        }
        for j in 0..2 {
            self.job_actions(state, j, actions);
        }
        if !self.due(state, 0) && !self.due(state, 1) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.take_step(&mut state, action)?;
        let state = self.tidy(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let i1 = |model: &Whole, state: &State| {
            (1..=model.ballots).filter(|b| Self::accepts(state, *b) >= 2).all(|early| {
                let above = (early + 1..=model.ballots).filter_map(|b| state.proposals[at(b)]);
                above.map(|p| p.base).all(|base| base >= early)
            })
        };
        let mut all = vec![
            Property::<Self>::always(I1, i1),
            Property::<Self>::always(I2, |_, state| {
                state.jobs.iter().all(|s| i2(u8::from(s.runs), s.record.epoch))
            }),
        ];
        if self.bug.is_none() {
            all.extend([
                Property::<Self>::sometimes("reach: an attempt lives on under a new binding", |_, s| {
                    s.jobs.iter().any(|j| j.runs && j.bound == 3)
                }),
                Property::<Self>::sometimes("reach: one job was taken, the other goes on", |_, s| {
                    s.jobs[0].record.epoch == 2 && s.jobs[1].runs && s.jobs[1].bound == 1
                }),
            ]);
        }
        all
    }
}
