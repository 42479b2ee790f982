//! A disk that is put back from an older copy: what its peer has forgotten, and who remembers.
//!
//! One register with three homes that are the whole mesh. The first home's disk may be copied, and put back later
//! while its peer is down; its commits are counted (the mark), the mark is told to the other two, and a peer that
//! starts asks them before it answers for anything (`core/past.rs`). Acceptors are production's; who asks whom, and
//! what contradicts, are rules. From the quarantine on the home is another disk, and answers for this record never.
//!
//! The premise is the page's: both others have heard of more than the copy holds.

use stateright::{Model, Property};

use super::Bug;
use super::invariants::I1;
use super::production::{Ask, Said, Slot, accept, fast_right};

const BALLOTS_MAX: usize = 4;
/// No promise was sent; nothing was proposed.
const NONE: u8 = u8::MAX;

/// The model.
#[derive(Debug, Clone)]
pub struct Quarantine {
    /// Ballots, at most `BALLOTS_MAX`.
    pub ballots: u8,
    /// Starts of the first home's peer, at most.
    pub starts: u8,
    pub bug: Option<Bug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Acceptor {
    slot: Slot,
    promises: [u8; BALLOTS_MAX],
    /// Ballots for which it sent "accepted" (bits).
    accepted: u8,
}

/// What was seen of the first home's disk: which start, of which process, how many commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Seen {
    boot: u8,
    life: u8,
    mark: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Witness {
    acceptor: Acceptor,
    seen: Option<Seen>,
    /// It has answered this life's question.
    answered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Standing {
    Asks,
    Confirmed,
    /// The store was put aside.
    Aside,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    first: Acceptor,
    mark: u8,
    start: u8,
    boot: u8,
    /// No two processes share one.
    life: u8,
    standing: Standing,
    copy: Option<(Slot, u8, u8)>,
    rolled_back: bool,
    witnesses: [Witness; 2],
    base: [u8; BALLOTS_MAX],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Prepare(u8, u8),
    Propose(u8, u8),
    Accept(u8, u8),
    /// Somebody copies the first home's disk.
    Copy,
    /// Its peer's process starts anew.
    Restart,
    /// It starts with the copy.
    RollBack,
    /// A witness hears of the newest mark.
    Tell(u8),
    /// A witness is asked, and answers.
    AskWitness(u8),
    /// Enough have answered.
    Confirm,
    /// A witness' process starts anew.
    WitnessRestarts(u8),
}

fn at(ballot: u8) -> usize {
    usize::from(ballot) - 1
}

impl Quarantine {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// As `register::Register::unprepared`: the create, and fast rights.
    fn unprepared(ballot: u8) -> Option<u8> {
        match ballot {
            1 => Some(0),
            b => (1..b).find(|before| fast_right(*before) == b),
        }
    }

    fn acceptors(state: &State) -> [&Acceptor; 3] {
        [&state.first, &state.witnesses[0].acceptor, &state.witnesses[1].acceptor]
    }

    fn acceptor(state: &mut State, a: u8) -> &mut Acceptor {
        match a {
            0 => &mut state.first,
            w => &mut state.witnesses[usize::from(w) - 1].acceptor,
        }
    }

    /// It answers register requests.
    fn answers(&self, state: &State, a: u8) -> bool {
        a > 0
            || match state.standing {
                Standing::Confirmed => true,
                Standing::Asks => self.is(Bug::AnswersUnconfirmed),
                Standing::Aside => false,
            }
    }

    fn chosen(state: &State, ballot: u8) -> bool {
        Self::acceptors(state).iter().filter(|a| a.accepted & (1 << ballot) != 0).count() >= 2
    }

    fn promises(state: &State, ballot: u8) -> Vec<u8> {
        Self::acceptors(state).iter().map(|a| a.promises[at(ballot)]).filter(|p| *p != NONE).collect()
    }

    fn descends(state: &State, mut from: u8, of: u8) -> bool {
        while from > of {
            from = state.base[at(from)];
        }
        from == of
    }

    /// `core/past.rs`: what was seen is more than this life can have grown out of.
    fn contradicts(state: &State, seen: Seen) -> bool {
        seen.boot > state.boot
            || (seen.boot == state.boot && seen.life != state.life)
            || (seen.boot < state.boot && seen.mark > state.start)
    }

    fn ask(state: &mut State, a: u8, ask: Ask) -> Said {
        let acceptor = Self::acceptor(state, a);
        let (slot, said) = accept(acceptor.slot, ask, true);
        let wrote = slot != acceptor.slot;
        acceptor.slot = slot;
        // Each batch of writes is one commit more.
        state.mark += u8::from(a == 0 && wrote);
        said
    }

    fn begin(state: &mut State) {
        state.life += 1;
        state.start = state.mark;
        state.standing = Standing::Asks;
        state.witnesses.iter_mut().for_each(|w| w.answered = false);
    }

    fn tidy(&self, mut state: State) -> State {
        for ballot in 1..=self.ballots {
            if state.base[at(ballot)] != NONE {
                for a in 0..3 {
                    Self::acceptor(&mut state, a).promises[at(ballot)] = NONE;
                }
            }
        }
        state.witnesses.sort_unstable();
        state
    }
}

impl Model for Quarantine {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let acceptor = Acceptor { slot: Slot::default(), promises: [NONE; BALLOTS_MAX], accepted: 0 };
        let witness = Witness { acceptor, seen: None, answered: false };
        vec![State {
            first: acceptor,
            mark: 0,
            start: 0,
            boot: 1,
            life: 1,
            // A first start has no past.
            standing: Standing::Confirmed,
            copy: None,
            rolled_back: false,
            witnesses: [witness; 2],
            base: [NONE; BALLOTS_MAX],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for ballot in 1..=self.ballots {
            let proposed = state.base[at(ballot)] != NONE;
            for (a, acceptor) in Self::acceptors(state).into_iter().enumerate() {
                if !self.answers(state, a as u8) {
                    continue;
                }
                if proposed && acceptor.accepted & (1 << ballot) == 0 {
                    actions.push(Action::Accept(ballot, a as u8));
                }
                let open = acceptor.promises[at(ballot)] == NONE && Self::promises(state, ballot).len() < 2;
                if !proposed && open && Self::unprepared(ballot).is_none() {
                    actions.push(Action::Prepare(ballot, a as u8));
                }
            }
            if proposed {
                continue;
            }
            match Self::unprepared(ballot) {
                Some(0) => actions.push(Action::Propose(ballot, 0)),
                Some(before) if Self::chosen(state, before) => actions.push(Action::Propose(ballot, before)),
                Some(_) => {}
                None => {
                    let promises = Self::promises(state, ballot);
                    let newest = promises.iter().copied().max().unwrap_or(0);
                    if promises.len() >= 2 && newest > 0 {
                        actions.push(Action::Propose(ballot, newest));
                    }
                }
            }
        }
        let aside = state.standing == Standing::Aside;
        if state.copy.is_none() && !state.rolled_back && !aside {
            actions.push(Action::Copy);
        }
        if state.boot < self.starts && !aside {
            actions.push(Action::Restart);
        }
        if let Some((_, mark, boot)) = state.copy.filter(|(.., boot)| !aside && *boot < self.starts) {
            // A later start alone is not more: two starts of the copy are as many.
            let more = |s: &Seen| s.mark > mark || (s.boot > boot && self.is(Bug::StartsAreEnough));
            let told = state.witnesses.iter().all(|w| w.seen.as_ref().is_some_and(more));
            if told || self.is(Bug::CopyTooYoung) || self.is(Bug::MarksForgotten) {
                actions.push(Action::RollBack);
            }
        }
        for w in 0..2 {
            match state.standing {
                Standing::Confirmed => actions.push(Action::Tell(w)),
                Standing::Asks if !state.witnesses[usize::from(w)].answered => {
                    actions.push(Action::AskWitness(w));
                }
                _ => {}
            }
            if self.is(Bug::MarksForgotten) {
                actions.push(Action::WitnessRestarts(w));
            }
        }
        // With the first they are most of a mesh of three; the other was waited for.
        if state.standing == Standing::Asks && state.witnesses.iter().any(|w| w.answered) {
            actions.push(Action::Confirm);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Prepare(ballot, a) => {
                let said = Self::ask(&mut state, a, Ask::Prepare { ballot, origin: false });
                if let Said::Promise(newest) = said {
                    Self::acceptor(&mut state, a).promises[at(ballot)] = newest;
                }
            }
            Action::Propose(ballot, base) => state.base[at(ballot)] = base,
            Action::Accept(ballot, a) => {
                let ask = Ask::Accept { ballot, next: fast_right(ballot), origin: true };
                if Self::ask(&mut state, a, ask) == Said::Accepted {
                    Self::acceptor(&mut state, a).accepted |= 1 << ballot;
                }
            }
            Action::Copy => state.copy = Some((state.first.slot, state.mark, state.boot)),
            Action::Restart => {
                state.boot += 1;
                Self::begin(&mut state);
            }
            Action::RollBack => {
                let (slot, mark, boot) = state.copy.take()?;
                (state.first.slot, state.mark, state.boot) = (slot, mark, boot + 1);
                state.rolled_back = true;
                Self::begin(&mut state);
            }
            Action::Tell(w) => {
                let new = Seen { boot: state.boot, life: state.life, mark: state.mark };
                let witness = &mut state.witnesses[usize::from(w)];
                let newer = |s: Seen| (new.boot, new.mark) > (s.boot, s.mark);
                if witness.seen.is_none_or(newer) {
                    witness.seen = Some(new);
                }
            }
            Action::AskWitness(w) => {
                let seen = state.witnesses[usize::from(w)].seen;
                if seen.is_some_and(|s| Self::contradicts(&state, s)) && !self.is(Bug::NoQuarantine) {
                    state.standing = Standing::Aside;
                    state.copy = None;
                } else {
                    let new = Seen { boot: state.boot, life: state.life, mark: state.start };
                    let witness = &mut state.witnesses[usize::from(w)];
                    (witness.answered, witness.seen) = (true, Some(new));
                }
            }
            Action::Confirm => state.standing = Standing::Confirmed,
            Action::WitnessRestarts(w) => state.witnesses[usize::from(w)].seen = None,
        }
        let state = self.tidy(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let i1 = |model: &Quarantine, state: &State| {
            let proposed = |b: &u8| state.base[at(*b)] != NONE;
            (1..=model.ballots).filter(proposed).filter(|b| Self::chosen(state, *b)).all(|early| {
                (early + 1..=model.ballots).filter(proposed).all(|late| Self::descends(state, late, early))
            })
        };
        let mut all = vec![Property::<Self>::always(I1, i1)];
        if self.bug.is_some() {
            return all;
        }
        all.extend([
            // Nobody is put aside who has lost nothing.
            Property::<Self>::always(QUIET, |_, s: &State| s.rolled_back || s.standing != Standing::Aside),
            Property::<Self>::sometimes("reach: an older copy is put aside", |_, s| {
                s.standing == Standing::Aside
            }),
            Property::<Self>::sometimes("reach: a disk that lost nothing goes on", |_, s| {
                s.boot > 1 && !s.rolled_back && s.standing == Standing::Confirmed && s.mark > s.start
            }),
            Property::<Self>::sometimes("reach: the others go on without it", |m, s| {
                s.standing == Standing::Aside && Self::chosen(s, m.ballots)
            }),
        ]);
        all
    }
}

const QUIET: &str = "a disk that was never put back is not put aside";
