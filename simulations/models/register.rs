//! The register alone: three acceptors, proposers with ballots 1 to K, each used for one proposal.
//!
//! An acceptor's step is `Acceptor::handle`. Requests and answers stay in the network for ever and arrive
//! late, often, in any order or never. Ballot 1 is the minter's create, which needs no prepare; some
//! ballots are the fast right that an accept carried along (`production::fast_right`).
//!
//! What it shows, and what the other models stand on: **a proposal's base is the newest value that was
//! answered before, or one proposed on that** (I1). So a register's values are a tree, the chosen ones
//! a path in it, and only what descends from the last chosen one can still be chosen. Reads and refused
//! changes that find a majority at one accepted ballot answer with a chosen value: nothing to add.

use stateright::{Model, Property};

use super::Bug;
use super::invariants::I1;
use super::production::{Ask, Said, Slot, accept, fast_right};

const ACCEPTORS: usize = 3;
const BALLOTS_MAX: usize = 7;
/// No promise was sent.
const NONE: u8 = u8::MAX;

/// The model.
#[derive(Debug, Clone)]
pub struct Register {
    /// Ballots, at most `BALLOTS_MAX`.
    pub ballots: u8,
    pub bug: Option<Bug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Acceptor {
    slot: Slot,
    /// The promise it sent for each ballot: the accepted ballot that it named.
    promises: [u8; BALLOTS_MAX],
    /// Ballots for which it sent "accepted" (bits).
    accepted: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    acceptors: [Acceptor; ACCEPTORS],
    /// What each ballot's proposal was made on; `NONE` where nothing was proposed. 0 is a create.
    base: [u8; BALLOTS_MAX],
    forgot: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A prepare of this ballot reaches an acceptor.
    Prepare(u8, u8),
    /// The proposer has a majority's promises (or needs none) and proposes on this ballot's value.
    Propose(u8, u8),
    /// The accept reaches an acceptor.
    Accept(u8, u8),
    /// The acceptor's disk forgets.
    Forget(u8),
}

fn at(ballot: u8) -> usize {
    usize::from(ballot) - 1
}

impl Register {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Needs no prepare: the fresh create, and fast rights. Gives the ballot that it builds on.
    fn unprepared(ballot: u8) -> Option<u8> {
        match ballot {
            1 => Some(0),
            b => (1..b).find(|before| fast_right(*before) == b),
        }
    }

    /// The minter's second boot may create too, if it finds nothing; the others only change.
    fn creates(ballot: u8) -> bool {
        ballot == 1 || ballot >= 6
    }

    fn accepts(state: &State, ballot: u8) -> usize {
        state.acceptors.iter().filter(|a| a.accepted & (1 << ballot) != 0).count()
    }

    /// The proposer has told its caller that it is done.
    fn answered(&self, state: &State, ballot: u8) -> bool {
        let enough = if self.is(Bug::EarlyAnswer) { 1 } else { 2 };
        Self::accepts(state, ballot) >= enough
    }

    fn promises(state: &State, ballot: u8) -> impl Iterator<Item = u8> + Clone + '_ {
        state.acceptors.iter().map(move |a| a.promises[at(ballot)]).filter(|p| *p != NONE)
    }

    fn descends(state: &State, mut from: u8, of: u8) -> bool {
        while from > of {
            from = state.base[at(from)];
        }
        from == of
    }

    fn tidy(&self, mut state: State) -> State {
        for ballot in 1..=self.ballots {
            let open = |a: &&Acceptor| a.promises[at(ballot)] != NONE || a.slot.promised < ballot;
            let hopeless = state.acceptors.iter().filter(open).count() < 2;
            if state.base[at(ballot)] != NONE || hopeless {
                state.acceptors.iter_mut().for_each(|a| a.promises[at(ballot)] = NONE);
            }
        }
        state.acceptors.sort_unstable();
        state
    }

    fn accept(&self, slot: Slot, ballot: u8) -> (Slot, Said) {
        let ask = Ask::Accept { ballot, next: fast_right(ballot), origin: true };
        let (next, said) = accept(slot, ask, true);
        if self.is(Bug::NoBallotCheck) && said == Said::Higher {
            return (Slot { accepted: ballot, ..slot }, Said::Accepted);
        }
        (next, said)
    }
}

impl Model for Register {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let acceptor = Acceptor { slot: Slot::default(), promises: [NONE; BALLOTS_MAX], accepted: 0 };
        vec![State { acceptors: [acceptor; ACCEPTORS], base: [NONE; BALLOTS_MAX], forgot: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for ballot in 1..=self.ballots {
            let proposed = state.base[at(ballot)] != NONE;
            for a in 0..ACCEPTORS as u8 {
                let acceptor = &state.acceptors[usize::from(a)];
                if proposed {
                    if acceptor.accepted & (1 << ballot) == 0 {
                        actions.push(Action::Accept(ballot, a));
                    }
                } else if Self::unprepared(ballot).is_none()
                    && acceptor.promises[at(ballot)] == NONE
                    && Self::promises(state, ballot).count() < 2
                {
                    actions.push(Action::Prepare(ballot, a));
                }
            }
            if proposed {
                continue;
            }
            match Self::unprepared(ballot) {
                Some(0) => actions.push(Action::Propose(ballot, 0)),
                // The right is used by a proposer that knows its last change chosen.
                Some(before) if self.answered(state, before) => {
                    actions.push(Action::Propose(ballot, before));
                }
                Some(_) => {}
                None => {
                    let promises = Self::promises(state, ballot);
                    let newest = promises.clone().max().unwrap_or(0);
                    if promises.count() >= 2 && (newest > 0 || Self::creates(ballot)) {
                        actions.push(Action::Propose(ballot, newest));
                    }
                }
            }
        }
        if self.is(Bug::AcceptorForgets) && !state.forgot {
            actions.extend((0..ACCEPTORS as u8).map(Action::Forget));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Prepare(ballot, a) => {
                let acceptor = &mut state.acceptors[usize::from(a)];
                let ask = Ask::Prepare { ballot, origin: Self::creates(ballot) };
                let (slot, said) = accept(acceptor.slot, ask, true);
                acceptor.slot = slot;
                if let Said::Promise(newest) = said {
                    acceptor.promises[at(ballot)] = newest;
                }
            }
            Action::Propose(ballot, base) => state.base[at(ballot)] = base,
            Action::Accept(ballot, a) => {
                let acceptor = &mut state.acceptors[usize::from(a)];
                let (slot, said) = self.accept(acceptor.slot, ballot);
                acceptor.slot = slot;
                if said == Said::Accepted {
                    acceptor.accepted |= 1 << ballot;
                }
            }
            Action::Forget(a) => {
                state.acceptors[usize::from(a)].slot = Slot::default();
                state.forgot = true;
            }
        }
        let state = self.tidy(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // What was answered is in the past of all that was proposed above it: one path in the tree.
        let i1 = |model: &Register, state: &State| {
            let proposed = |b: &u8| state.base[at(*b)] != NONE;
            (1..=model.ballots).filter(proposed).filter(|b| model.answered(state, *b)).all(|early| {
                (early + 1..=model.ballots).filter(proposed).all(|late| Self::descends(state, late, early))
            })
        };
        let mut all = vec![Property::<Self>::always(I1, i1)];
        if self.bug.is_some() {
            return all;
        }
        all.extend([
            Property::<Self>::sometimes("reach: a fast right is used and chosen", |m, s| {
                (1..=m.ballots)
                    .any(|b| Self::unprepared(b).is_some_and(|on| on > 0) && Self::accepts(s, b) > 1)
            }),
            Property::<Self>::sometimes("reach: a value that one acceptor held is recovered", |m, s| {
                (2..=m.ballots).any(|b| {
                    let base = s.base[at(b)];
                    base != NONE && base > 0 && Self::accepts(s, base) == 1 && Self::accepts(s, b) > 1
                })
            }),
            Property::<Self>::sometimes("reach: a value that one acceptor held is lost", |m, s| {
                (1..=m.ballots).any(|b| {
                    let lost = |late: u8| s.base[at(late)] != NONE && s.base[at(late)] < b;
                    Self::accepts(s, b) == 1
                        && (b + 1..=m.ballots).any(|l| lost(l) && Self::accepts(s, l) > 1)
                })
            }),
        ]);
        all
    }
}
