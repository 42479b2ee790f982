//! Moving a job's record to another home set, and disks that are lost.
//!
//! From the design: **seal** fixes the last value and names the next homes, by a swap in the old
//! generation; the sealed value is **installed** at the new homes; only where it is does the new
//! generation accept. Seal and first value are `JobRecord::apply` and `JobRecord::installed`; what an
//! acceptor promises and accepts within a generation is `Acceptor::handle`.
//!
//! Generation 0 is at acceptors {0, 1, 2}; generation 1 at {0, 3, 4} (`far`) or {1, 2, 3}. A proposal
//! is made on a majority's promises, as in the register model; the network never forgets. Ballot 1 of
//! generation 0 is the minter's create, which needs no prepare.

use stateright::{Model, Property};

use super::Bug;
use super::invariants::{I1, I7};
use super::production::{Ask, Job, JobChange, Said, Slot, accept, apply_job, installed};

const ACCEPTORS: usize = 5;
const BALLOTS_MAX: usize = 4;

/// The model.
#[derive(Debug, Clone)]
pub struct Moving {
    /// Ballots of each generation.
    pub ballots: [u8; 2],
    /// Changes that may be made to the record.
    pub changes: u8,
    /// Only one home stays.
    pub far: bool,
    /// One disk may be lost; its peer comes back with another.
    pub lost_disk: bool,
    pub bug: Option<Bug>,
}

/// A value: the record, and how many changes it has seen (0 is "nothing").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Value {
    changes: u8,
    job: Job,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Acceptor {
    slots: [Slot; 2],
    /// Generation 1 was installed here, with this value.
    installed: Option<Value>,
    /// Promises it sent: (accepted ballot, value), for each generation and ballot.
    promises: [[Option<(u8, Value)>; BALLOTS_MAX]; 2],
    /// Ballots for which it sent "accepted" (bits).
    accepted: [u8; 2],
    /// Its disk is another one now.
    new_disk: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Proposal {
    value: Value,
    /// Changes that its base had seen.
    base: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    acceptors: [Acceptor; ACCEPTORS],
    proposals: [[Option<Proposal>; BALLOTS_MAX]; 2],
    disk_lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Create,
    /// Writes back what was found.
    Same,
    Change,
    Seal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Act {
    what: What,
    generation: u8,
    ballot: u8,
    acceptor: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Prepare,
    Propose(Kind),
    Accept,
    /// The value sealed under this ballot is installed.
    Install,
    LoseDisk,
}

fn at(ballot: u8) -> usize {
    usize::from(ballot) - 1
}

impl Moving {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn members(&self, generation: usize) -> [usize; 3] {
        match (generation, self.far) {
            (0, _) => [0, 1, 2],
            (_, true) => [0, 3, 4],
            (_, false) => [1, 2, 3],
        }
    }

    /// The record's next change: it is placed and taken back in turn. A sealed one refuses.
    fn change(&self, value: Value) -> Option<Value> {
        let goes_on = self.is(Bug::MoveWithoutSeal);
        let job = if goes_on { Job { sealed: false, ..value.job } } else { value.job };
        let change = match job.at {
            0 => JobChange::Place { epoch: job.epoch + 1, at: 1, bound: 1 },
            _ => JobChange::Free { epoch: job.epoch, bound: 1 },
        };
        let next = apply_job(job, change)?;
        Some(Value { changes: value.changes + 1, job: Job { sealed: value.job.sealed, ..next } })
    }

    fn made(&self, value: Value, kind: Kind) -> Option<Value> {
        match kind {
            Kind::Create => Some(Value { changes: 1, ..Value::default() }),
            Kind::Same => Some(value),
            Kind::Change => self.change(value).filter(|v| v.changes <= self.changes),
            Kind::Seal => Some(Value { job: apply_job(value.job, JobChange::Seal)?, ..value }),
        }
    }

    fn accepts(state: &State, generation: usize, ballot: u8) -> usize {
        state.acceptors.iter().filter(|a| a.accepted[generation] & (1 << ballot) != 0).count()
    }

    /// Ballots of a generation with their proposals and how many accepted them.
    fn proposals<'a>(
        &'a self,
        state: &'a State,
        generation: usize,
    ) -> impl Iterator<Item = (u8, Proposal, usize)> + 'a {
        (1..=self.ballots[generation]).filter_map(move |b| {
            let proposal = state.proposals[generation][at(b)]?;
            Some((b, proposal, Self::accepts(state, generation, b)))
        })
    }

    /// This peer answers for the generation: its disk is the one that the record names, and the
    /// generation has begun here; an accept may begin it, with a value of it.
    fn answers(&self, acceptor: &Acceptor, generation: usize, accepts: bool) -> bool {
        if acceptor.new_disk && !self.is(Bug::NewDiskAsOld) {
            return false;
        }
        let begun = acceptor.installed.is_some() || acceptor.slots[1].known;
        generation == 0 || begun || accepts || self.is(Bug::UnknownAsEmpty)
    }

    fn held(state: &State, acceptor: &Acceptor, generation: usize) -> (u8, Value) {
        let accepted = acceptor.slots[generation].accepted;
        if accepted > 0
            && let Some(proposal) = state.proposals[generation][at(accepted)]
        {
            return (accepted, proposal.value);
        }
        let installed = if generation == 1 { acceptor.installed } else { None };
        (0, installed.unwrap_or_default())
    }

    fn found(&self, state: &State, generation: usize, ballot: u8) -> Option<Value> {
        let promises = self
            .members(generation)
            .into_iter()
            .filter_map(|m| state.acceptors[m].promises[generation][at(ballot)]);
        (promises.clone().count() >= 2).then(|| promises.max().map(|(_, v)| v)).flatten()
    }

    fn kinds(&self, value: Value, generation: usize) -> Vec<Kind> {
        if value.changes == 0 {
            let begins = generation == 0 || self.is(Bug::UnknownAsEmpty);
            return if begins { vec![Kind::Create] } else { Vec::new() };
        }
        // Whether a sealed value takes a change, or another seal, is the record's to say.
        let mut kinds = vec![Kind::Same, Kind::Change];
        if generation == 0 {
            kinds.push(Kind::Seal);
        }
        kinds
    }

    fn moved(&self, state: &State) -> bool {
        self.proposals(state, 1).any(|(_, p, accepts)| accepts >= 2 && p.value.changes > p.base)
    }

    fn tidy(&self, mut state: State) -> State {
        for generation in 0..2 {
            for ballot in 1..=self.ballots[generation] {
                let open = |m: &usize| {
                    let a = &state.acceptors[*m];
                    a.promises[generation][at(ballot)].is_some() || a.slots[generation].promised < ballot
                };
                let hopeless = self.members(generation).iter().filter(|m| open(m)).count() < 2;
                if state.proposals[generation][at(ballot)].is_some() || hopeless {
                    state.acceptors.iter_mut().for_each(|a| a.promises[generation][at(ballot)] = None);
                }
            }
        }
        // Members of the same generations are alike.
        let alike: &[(usize, usize)] = if self.far { &[(1, 2), (3, 4)] } else { &[(1, 2)] };
        for (x, y) in alike {
            if state.acceptors[*x] > state.acceptors[*y] {
                state.acceptors.swap(*x, *y);
            }
        }
        state
    }
}

impl Model for Moving {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let mut proposals: [[Option<Proposal>; BALLOTS_MAX]; 2] = Default::default();
        let value = Value { changes: 1, ..Value::default() };
        proposals[0][0] = Some(Proposal { value, base: 0 });
        vec![State { acceptors: Default::default(), proposals, disk_lost: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Act>) {
        for g in 0..2 {
            let generation = g as u8;
            for ballot in 1..=self.ballots[g] {
                let proposal = state.proposals[g][at(ballot)];
                let members = self.members(g);
                let promises =
                    members.iter().filter(|m| state.acceptors[**m].promises[g][at(ballot)].is_some()).count();
                for m in members {
                    let acceptor = &state.acceptors[m];
                    if !self.answers(acceptor, g, proposal.is_some()) {
                        continue;
                    }
                    let act = |what| Act { what, generation, ballot, acceptor: m as u8 };
                    match proposal {
                        Some(_) if acceptor.accepted[g] & (1 << ballot) == 0 => {
                            actions.push(act(What::Accept));
                        }
                        None if promises < 2 && acceptor.promises[g][at(ballot)].is_none() => {
                            actions.push(act(What::Prepare));
                        }
                        _ => {}
                    }
                }
                if proposal.is_none()
                    && let Some(value) = self.found(state, g, ballot)
                {
                    let kinds = self.kinds(value, g).into_iter();
                    actions.extend(kinds.map(|k| Act {
                        what: What::Propose(k),
                        generation,
                        ballot,
                        acceptor: 0,
                    }));
                }
            }
        }
        for (ballot, proposal, accepts) in self.proposals(state, 0) {
            let enough = if self.is(Bug::InstallUnchosen) { 1 } else { 2 };
            if proposal.value.job.sealed && accepts >= enough {
                for m in self.members(1) {
                    let acceptor = &state.acceptors[m];
                    if acceptor.installed.is_none() && !acceptor.new_disk {
                        actions.push(Act { what: What::Install, generation: 1, ballot, acceptor: m as u8 });
                    }
                }
            }
        }
        if self.lost_disk && !state.disk_lost {
            for (m, acceptor) in state.acceptors.iter().enumerate() {
                if acceptor.slots.iter().any(|s| s.known) || acceptor.installed.is_some() {
                    actions.push(Act { what: What::LoseDisk, generation: 0, ballot: 0, acceptor: m as u8 });
                }
            }
        }
    }

    fn next_state(&self, last: &State, act: Act) -> Option<State> {
        let mut state = last.clone();
        let (g, m) = (usize::from(act.generation), usize::from(act.acceptor));
        match act.what {
            What::Prepare => {
                let held = Self::held(&state, &state.acceptors[m], g);
                let acceptor = &mut state.acceptors[m];
                // A generation that is known here takes any prepare; create carries the birth.
                let (slot, said) =
                    accept(acceptor.slots[g], Ask::Prepare { ballot: act.ballot, origin: true }, true);
                acceptor.slots[g] = slot;
                if let Said::Promise(_) = said {
                    acceptor.promises[g][at(act.ballot)] = Some(held);
                }
            }
            What::Propose(kind) => {
                let found = self.found(&state, g, act.ballot)?;
                let value = self.made(found, kind)?;
                state.proposals[g][at(act.ballot)] = Some(Proposal { value, base: found.changes });
            }
            What::Accept => {
                let acceptor = &mut state.acceptors[m];
                let ask = Ask::Accept { ballot: act.ballot, next: 0, origin: true };
                let (slot, said) = accept(acceptor.slots[g], ask, true);
                acceptor.slots[g] = slot;
                if said == Said::Accepted {
                    acceptor.accepted[g] |= 1 << act.ballot;
                }
            }
            What::Install => {
                let sealed = state.proposals[0][at(act.ballot)]?.value;
                state.acceptors[m].installed = Some(Value { job: installed(sealed.job)?, ..sealed });
            }
            What::LoseDisk => {
                let acceptor = &mut state.acceptors[m];
                (acceptor.slots, acceptor.installed) = Default::default();
                acceptor.new_disk = true;
                state.disk_lost = true;
            }
        }
        let state = self.tidy(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let i1 = |model: &Moving, state: &State| {
            let all = || (0..2).flat_map(|g| model.proposals(state, g).map(move |(b, p, n)| ((g, b), p, n)));
            all().filter(|(_, _, accepts)| *accepts >= 2).all(|(early, chosen, _)| {
                all().all(|(late, p, _)| late <= early || p.base >= chosen.value.changes)
            })
        };
        let i7 = |model: &Moving, state: &State| {
            let mut sealed = model
                .proposals(state, 0)
                .filter(|(_, p, accepts)| p.value.job.sealed && *accepts >= 2)
                .map(|(_, p, _)| p.value);
            sealed.next().is_none_or(|first| sealed.all(|other| other == first))
        };
        let mut all = vec![Property::<Self>::always(I1, i1), Property::<Self>::always(I7, i7)];
        if self.bug.is_some() {
            return all;
        }
        all.push(Property::<Self>::sometimes("reach: the next generation commits a change", Self::moved));
        if self.lost_disk {
            all.push(Property::<Self>::sometimes(
                "reach: with a lost disk the next generation commits a change",
                |model, state| state.disk_lost && model.moved(state),
            ));
        }
        all
    }
}
