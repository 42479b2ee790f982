//! Forgetting a finished record, and copies of its "create" that arrive afterwards.
//!
//! From the design: the terminal value is first at *all* homes; then each replaces its register by a
//! floor on the minter's sequence, below which nothing may begin. Who may forget, and
//! the floor, are rules here; all else that a home does is `Acceptor::handle`.
//!
//! Ballot 1 is the minter's create, whose accepts stay in the network for ever; the last ballot is a
//! caller's retry under the same key, whose prepare carries the birth too; those between are changes.

use stateright::{Model, Property};

use super::Bug;
use super::invariants::{I8, I8_COPY};
use super::production::{Ask, Job, JobChange, Said, Slot, accept, apply_job};

const HOMES: usize = 3;
const BALLOTS_MAX: usize = 6;

/// The model.
#[derive(Debug, Clone)]
pub struct Forgetting {
    pub ballots: u8,
    pub bug: Option<Bug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Home {
    slot: Slot,
    promises: [Option<u8>; BALLOTS_MAX],
    /// Ballots for which it ever sent "accepted" (bits).
    accepted: u8,
    forgot: bool,
    /// Refuses to begin this record.
    floor: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    homes: [Home; HOMES],
    proposals: [Option<Job>; BALLOTS_MAX],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Prepare(u8, u8),
    /// Proposes the next change to what was found, or the same again.
    Propose(u8, bool),
    Accept(u8, u8),
    Forget(u8),
}

fn at(ballot: u8) -> usize {
    usize::from(ballot) - 1
}

impl Forgetting {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn value(state: &State, ballot: u8) -> Option<Job> {
        if ballot == 0 { None } else { state.proposals[at(ballot)] }
    }

    /// The job's life here: placed, then ended with success.
    fn change(job: Job) -> Option<Job> {
        let change = match job.at {
            0 => JobChange::Place { epoch: job.epoch + 1, at: 1, bound: 1 },
            _ => JobChange::Close { epoch: job.epoch, succeeded: true },
        };
        apply_job(job, change)
    }

    fn accepts(state: &State, ballot: u8) -> usize {
        state.homes.iter().filter(|h| h.accepted & (1 << ballot) != 0).count()
    }

    fn ended(&self, state: &State) -> bool {
        (1..=self.ballots)
            .any(|b| Self::accepts(state, b) >= 2 && Self::value(state, b).is_some_and(|v| v.ended))
    }

    fn found(state: &State, ballot: u8) -> Option<u8> {
        let promises = state.homes.iter().filter_map(|h| h.promises[at(ballot)]);
        (promises.clone().count() >= 2).then(|| promises.max()).flatten()
    }

    fn ask(&self, home: &mut Home, ask: Ask) -> Option<Said> {
        let begins = match ask {
            Ask::Prepare { origin, .. } | Ask::Accept { origin, .. } => origin && !home.slot.known,
            Ask::Read => false,
        };
        if begins && home.floor {
            return None;
        }
        let (slot, said) = accept(home.slot, ask, true);
        home.slot = slot;
        Some(said)
    }

    fn tidy(&self, mut state: State) -> State {
        for ballot in 1..=self.ballots {
            if state.proposals[at(ballot)].is_some() {
                state.homes.iter_mut().for_each(|h| h.promises[at(ballot)] = None);
            }
        }
        state.homes.sort_unstable();
        state
    }
}

impl Model for Forgetting {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut proposals = [None; BALLOTS_MAX];
        proposals[0] = Some(Job::default());
        vec![State { homes: Default::default(), proposals }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for ballot in 1..=self.ballots {
            let proposed = state.proposals[at(ballot)].is_some();
            for (h, home) in state.homes.iter().enumerate() {
                // An accept may come again at a home that has forgotten.
                if proposed && (home.accepted & (1 << ballot) == 0 || !home.slot.known) {
                    actions.push(Action::Accept(ballot, h as u8));
                }
                let promises = state.homes.iter().filter(|o| o.promises[at(ballot)].is_some()).count();
                if !proposed && promises < 2 && home.promises[at(ballot)].is_none() {
                    actions.push(Action::Prepare(ballot, h as u8));
                }
            }
            if !proposed && Self::found(state, ballot).is_some() {
                actions.extend([Action::Propose(ballot, true), Action::Propose(ballot, false)]);
            }
        }
        for (h, home) in state.homes.iter().enumerate() {
            let ended = Self::value(state, home.slot.accepted).is_some_and(|v| v.ended);
            let enough = if self.is(Bug::TombstoneAtMajority) { 2 } else { HOMES };
            if ended && Self::accepts(state, home.slot.accepted) >= enough {
                actions.push(Action::Forget(h as u8));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Prepare(ballot, h) => {
                let home = &mut state.homes[usize::from(h)];
                let ask = Ask::Prepare { ballot, origin: ballot == self.ballots };
                if let Some(Said::Promise(newest)) = self.ask(home, ask) {
                    home.promises[at(ballot)] = Some(newest);
                }
            }
            Action::Propose(ballot, changes) => {
                let found = Self::found(&state, ballot)?;
                let value = match (Self::value(&state, found), changes) {
                    (Some(value), true) => Self::change(value)?,
                    (Some(value), false) => value,
                    // Nothing is known: only the retry of the create begins it.
                    (None, false) if ballot == self.ballots => Job::default(),
                    (None, _) => return None,
                };
                state.proposals[at(ballot)] = Some(value);
            }
            Action::Accept(ballot, h) => {
                let home = &mut state.homes[usize::from(h)];
                let ask = Ask::Accept { ballot, next: 0, origin: true };
                if self.ask(home, ask) == Some(Said::Accepted) {
                    home.accepted |= 1 << ballot;
                }
            }
            Action::Forget(h) => {
                let home = &mut state.homes[usize::from(h)];
                home.slot = Slot::default();
                home.forgot = true;
                home.floor = !self.is(Bug::LateCreate);
            }
        }
        let state = self.tidy(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // A read would answer with a living job after its end was chosen.
        let i8 = |model: &Forgetting, state: &State| {
            let answers = |ballot: u8| {
                let holds = state.homes.iter().filter(|h| h.slot.accepted == ballot).count();
                holds >= 2 && Self::value(state, ballot).is_some_and(|v| !v.ended)
            };
            !model.ended(state) || !(1..=model.ballots).any(answers)
        };
        let copy = |_: &Forgetting, state: &State| {
            let living = |home: &Home| {
                home.slot.known && !Self::value(state, home.slot.accepted).is_some_and(|v| v.ended)
            };
            !state.homes.iter().any(|h| h.forgot) || !state.homes.iter().any(living)
        };
        let mut all = vec![Property::<Self>::always(I8, i8), Property::<Self>::always(I8_COPY, copy)];
        if self.bug.is_none() {
            all.push(Property::<Self>::sometimes("reach: all homes have forgotten it", |_, state| {
                state.homes.iter().all(|h| h.forgot)
            }));
        }
        all
    }
}
