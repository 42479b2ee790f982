//! The lease: two jobs of different grace under one cluster's contact, two executors.
//!
//! The contact record's register is a tree of values: whoever proposes does so on some value, chosen or
//! not; a value may be chosen while it descends from the last chosen one; and every value can be *seen*
//! from the moment it was proposed. That is what the register model shows of a register: a chosen value
//! is the base of all that follows, and what is not chosen may be seen and lost. Job records change
//! atomically, which is the same with nobody looking at values that are not chosen.
//!
//! Nothing sent is forgotten: what was proposed may be chosen at any later time, a result may be learned
//! at any later time or never, a placement that was read may be acted on at any later time. So loss,
//! repetition, reordering, partitions and silent crashes are all in here.
//!
//! Time is ages in ticks. `hold` is the longest real time that an attempt runs after its last renewal was
//! sent, drift added; `wait` the shortest real time that a home waits, drift taken off. The homes are one
//! observer with the best luck of all: it sees each value when it is proposed.
// tidy: long because the state, the actions and what they do are one machine, and are reviewed together

use stateright::{Model, Property};

use super::Bug;
use super::invariants::{I2, I3, I4, I8, i2, i3};
use super::production::{Contact, ContactStep, Job, JobChange, apply_contact, apply_job, reflects_contact};

/// Incarnations are counted from 1; those of a second series from `SECOND`.
const LABELS: usize = 6;
const SECOND: u8 = 4;
const PENDING_MAX: usize = 3;
/// No age: it never happened, or so long ago that it no longer matters.
const NEVER: u8 = u8::MAX;

/// How large, and what may happen.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Longest hold of each job, in ticks; the first has the shorter grace.
    pub hold: [u8; 2],
    /// Shortest wait for each job; more than its hold.
    pub wait: [u8; 2],
    /// Renewals and claims that the cluster may send.
    pub nonces: u8,
    /// Highest incarnation of the first series.
    pub incarnations: u8,
    /// Highest epoch. Odd ones are at cluster 1, even ones at cluster 2.
    pub epochs: u8,
    /// Proposals for the contact record under way at once.
    pub pending: usize,
    /// The cluster may begin a second series.
    pub series: bool,
    /// Attempts may end before their time, with success too.
    pub ends: bool,
    /// The machine may stand still for a tick once, and checkpoints are published: S2t is not promised.
    pub suspends: bool,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Lease {
    pub sizes: Sizes,
    pub bug: Option<Bug>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Proposed {
    value: Contact,
    /// Since somebody could first see it.
    age: u8,
    /// What it was proposed on: 0 the chosen value, else the pending one of that number.
    on: u8,
}

/// A contact record's register.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Register {
    begun: bool,
    chosen: Contact,
    age: u8,
    pending: [Option<Proposed>; PENDING_MAX],
}

/// What the cluster asks of its contact record, and waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Asked {
    claim: bool,
    /// The incarnation that it renews, or that the claim must be above.
    incarnation: u8,
    nonce: u8,
    /// Since it was sent.
    age: u8,
    /// Since it could first be seen.
    seen: u8,
    /// Chosen, for this incarnation.
    made: u8,
}

/// The executing peer of cluster 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Executor {
    /// The incarnation that it holds, of each series.
    mine: [u8; 2],
    /// All that it ever held (bits): grants named them.
    held: u8,
    /// Age of the last renewal that counted, of each incarnation.
    renewed: [u8; LABELS],
    nonce: u8,
    asked: [Option<Asked>; 2],
    crashed: bool,
}

/// A job: its record, and what either cluster has of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    record: Job,
    /// Incarnations under which cluster 1 was ever chosen (bits), for epochs 1 and 3: what was read.
    chosen: [u8; 2],
    /// What runs at cluster 1, bound to which incarnation, and the age of the renewal it lives by.
    runs: u8,
    bound: u8,
    age: u8,
    orphan: bool,
    /// Newest epoch that cluster 1 has durably closed.
    closed: u8,
    /// Incarnations of a newer series to which the cluster has asked to move the binding (bits). Until it
    /// knows the outcome, the record may be bound to either: the attempt lives by the older of the two last
    /// renewals, and no renewal of the older series extends it.
    moving: u8,
    /// Closes under way (bits by epoch), and whether they say success.
    told: u8,
    succeeded: bool,
    /// What runs at cluster 2 (its own contact never lapses here), and what it has closed.
    runs2: u8,
    closed2: u8,
    /// The checkpoint store: newest epoch that wrote.
    stored: u8,
    /// Some rule of a record was broken on the way: epochs fell, or an end was undone.
    fell: bool,
    revived: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    registers: [Register; 2],
    executor: Executor,
    /// Age of the oldest sight of the renewal on which an incarnation was taken over.
    over: [u8; LABELS],
    jobs: [Side; 2],
    /// Since the beginning; counted only where a bug needs it.
    since: u8,
    paused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The cluster sends a renewal or a claim of a series.
    Renew(u8),
    Claim(u8),
    /// Sends the same one again.
    Again(u8),
    /// What was asked is proposed on a value: 0 the chosen one.
    Propose(u8, u8),
    /// A home proposes a takeover on a value, expecting this nonce.
    TakeOver(u8, u8, u8),
    /// A proposed value is chosen.
    Choose(u8, u8),
    /// The cluster hears that what it asked was chosen.
    Counted(u8),
    BeginSeries,
    /// The job's record: placed under an epoch, bound to an incarnation; or freed.
    Place(u8, u8, u8),
    Free(u8, u8, u8),
    /// The cluster asks to move the binding to a newer series; the swap is made.
    Move(u8, u8),
    Rebind(u8, u8, u8, u8),
    Close(u8, u8),
    /// Cluster 1 starts the epoch that it has read, bound to this incarnation.
    Start(u8, u8, u8),
    /// A message alone starts it.
    Pushed(u8, u8),
    /// Cluster 1 hears that the binding was moved.
    Rebound(u8, u8),
    /// The guard stops it at its deadline.
    Expire(u8),
    /// It ends by itself, with success or not; or is declined before it began.
    End(u8, bool),
    Decline(u8),
    Start2(u8),
    End2(u8),
    /// The attempt at this cluster writes a checkpoint.
    Publish(u8, u8),
    /// The peer of cluster 1 crashes and comes back.
    Crash,
    Tick,
    /// Time passes and cluster 1's machine stands still.
    TickAsleep,
}

fn bit(n: u8) -> u8 {
    1 << n
}

/// From a series to a newer one.
fn crosses(from: u8, to: u8) -> bool {
    from < SECOND && to >= SECOND
}

fn older(age: u8, most: u8) -> u8 {
    if age == NEVER { NEVER } else { (age + 1).min(most) }
}

impl Register {
    fn value(&self, at: u8) -> Option<(Contact, u8)> {
        match at {
            0 => Some((self.chosen, self.age)),
            n => self.pending[usize::from(n) - 1].map(|p| (p.value, p.age)),
        }
    }

    fn live(&self, nonce: u8) -> bool {
        self.pending.iter().flatten().any(|p| p.value.nonce == nonce)
    }

    fn add(&mut self, proposed: Proposed) {
        if let Some(free) = self.pending.iter_mut().find(|p| p.is_none()) {
            *free = Some(proposed);
        }
        self.sort();
    }

    /// Siblings have no order.
    fn sort(&mut self) {
        if self.pending.iter().flatten().all(|p| p.on == 0) {
            self.pending.sort_unstable_by_key(|p| (p.is_none(), *p));
        }
    }

    fn choose(&mut self, at: u8) {
        let Some(chosen) = self.pending[usize::from(at) - 1] else { return };
        (self.chosen, self.age) = (chosen.value, chosen.age);
        // What does not descend from it can no longer be chosen.
        let mut kept = [false; PENDING_MAX];
        let mut moved = [0u8; PENDING_MAX];
        let mut next = [None; PENDING_MAX];
        let mut count = 0u8;
        for (i, pending) in self.pending.into_iter().enumerate() {
            let Some(pending) = pending else { continue };
            let on = usize::from(pending.on);
            if pending.on == at || (on > 0 && kept[on - 1]) {
                kept[i] = true;
                let on = if pending.on == at { 0 } else { moved[on - 1] };
                next[usize::from(count)] = Some(Proposed { on, ..pending });
                count += 1;
                moved[i] = count;
            }
        }
        self.pending = next;
        self.sort();
    }
}

impl Side {
    fn hold_over(&self, hold: u8) -> bool {
        self.runs != 0 && !self.orphan && self.age >= hold
    }

    /// Applies a change to the record as production does; false where it is refused.
    fn change(&mut self, change: JobChange) -> bool {
        let Some(next) = apply_job(self.record, change) else { return false };
        self.fell |= next.epoch < self.record.epoch || next.published < self.record.published;
        self.revived |= self.record.ended;
        self.record = next;
        if next.at == 1 {
            self.chosen[usize::from(next.epoch / 2)] |= bit(next.bound);
        }
        true
    }

    fn close_here(&mut self, epoch: u8, succeeded: bool) {
        (self.runs, self.bound, self.age, self.orphan) = (0, 0, 0, false);
        self.closed = self.closed.max(epoch);
        self.told |= bit(epoch);
        self.succeeded = succeeded;
    }
}

impl Lease {
    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn wait(&self, job: usize) -> u8 {
        match self.bug {
            Some(Bug::NoWait) => 0,
            Some(Bug::WaitWithoutDrift) => self.sizes.hold[job],
            Some(Bug::GracesConfused) => self.sizes.wait[0],
            _ => self.sizes.wait[job],
        }
    }

    fn hold_max(&self) -> u8 {
        self.sizes.hold[1]
    }
    fn wait_max(&self) -> u8 {
        self.sizes.wait[1]
    }

    fn highest(&self, series: u8) -> u8 {
        match (series, self.sizes.series) {
            (0, _) => self.sizes.incarnations,
            _ => SECOND + 1,
        }
    }

    fn odd_epochs(&self) -> impl Iterator<Item = u8> {
        (1..=self.sizes.epochs).filter(|e| e % 2 == 1)
    }

    /// The record may be bound to a newer series already.
    fn in_doubt(&self, side: &Side, bound: u8) -> bool {
        let newer = (SECOND..LABELS as u8).any(|to| side.moving & bit(to) != 0);
        bound < SECOND && newer && !self.is(Bug::OldSeriesExtends)
    }

    /// Epochs of cluster 1 that it may still start: read, and not closed.
    fn startable<'a>(&'a self, side: &'a Side) -> impl Iterator<Item = (u8, u8)> + 'a {
        self.odd_epochs()
            .filter(|e| side.runs == 0 && *e > side.closed)
            .flat_map(|e| (1..LABELS as u8).map(move |b| (e, b)))
            .filter(|(e, b)| side.chosen[usize::from(e / 2)] & bit(*b) != 0)
    }

    /// Forgets what can no longer matter, so that equal futures are equal states.
    fn tidy(&self, mut state: State) -> State {
        let last = self.odd_epochs().last().unwrap_or(1);
        for side in &mut state.jobs {
            for epoch in [1u8, 3] {
                // A closed epoch is not read again, and a refused close stays refused.
                if epoch <= side.closed && side.runs != epoch && !self.is(Bug::ClosedLostInCrash) {
                    side.chosen[usize::from(epoch / 2)] = 0;
                }
                let close = JobChange::Close { epoch, succeeded: side.succeeded };
                if side.told & bit(epoch) != 0 && apply_job(side.record, close).is_none() {
                    side.told &= !bit(epoch);
                }
            }
            if side.told == 0 && side.runs == 0 {
                side.succeeded = false;
            }
            if side.closed >= side.record.epoch && side.record.at != 1 {
                side.moving = 0;
            }
            if side.closed >= last && side.runs == 0 && side.told == 0 {
                side.closed = last;
            }
        }
        state
    }

    fn settled(&self, state: &State) -> bool {
        let last = self.odd_epochs().last().unwrap_or(1);
        let over = |s: &Side| {
            let done = s.record.ended || (s.record.epoch == self.sizes.epochs && s.record.at == 2);
            let started = s.record.ended || s.runs2 != 0 || s.closed2 >= s.record.epoch;
            done && started && s.runs == 0 && s.closed >= last && !self.sizes.suspends
        };
        self.bug.is_none() && state.jobs.iter().all(over)
    }

    fn contact_actions(&self, state: &State, s: u8, actions: &mut Vec<Action>) {
        let i = usize::from(s);
        let (register, executor) = (&state.registers[i], &state.executor);
        if !register.begun {
            return;
        }
        let mine = executor.mine[i];
        let fresh_nonce = executor.nonce < self.sizes.nonces;
        // One that nobody has seen yet is only late.
        let replaceable = executor.asked[i].is_none_or(|a| a.seen != NEVER);
        if fresh_nonce && replaceable {
            actions.push(Action::Renew(s));
            if register.chosen.incarnation > mine && register.chosen.incarnation < self.highest(s) {
                actions.push(Action::Claim(s));
            }
        }
        let room = register.pending.iter().flatten().count() < self.sizes.pending;
        if let Some(asked) = executor.asked[i] {
            let seen = asked.seen != NEVER;
            if asked.made == 0 && !register.live(asked.nonce) {
                for at in 0..=PENDING_MAX as u8 {
                    if register.value(at).is_some() && (room || at == 0) {
                        actions.push(Action::Propose(s, at));
                    }
                }
            }
            if asked.made != 0 || (self.is(Bug::MinorityConfirmation) && register.live(asked.nonce)) {
                actions.push(Action::Counted(s));
            }
            if self.is(Bug::NonceReused) && seen && asked.age > 0 {
                actions.push(Action::Again(s));
            }
        }
        for at in 0..=PENDING_MAX as u8 {
            let Some((value, age)) = register.value(at) else { continue };
            let twin = |p: &Proposed| p.on == at && !p.value.held;
            let timed = match self.bug {
                Some(Bug::TakeoverWithoutCondition) => state.since >= self.wait(0),
                _ => age >= self.wait(0),
            };
            if room
                && timed
                && value.held
                && value.incarnation < self.highest(s)
                && !register.pending.iter().flatten().any(twin)
            {
                actions.push(Action::TakeOver(s, at, value.nonce));
            }
        }
        // A home that has timed an older nonce tries too; the record's condition refuses it.
        let newest = register.chosen;
        if room && newest.held && newest.incarnation < self.highest(s) {
            actions.extend((0..newest.nonce).map(|nonce| Action::TakeOver(s, 0, nonce)));
        }
        for at in 1..=PENDING_MAX as u8 {
            if register.pending[usize::from(at) - 1].is_some_and(|p| p.on == 0) {
                actions.push(Action::Choose(s, at));
            }
        }
    }

    fn job_actions(&self, state: &State, j: u8, actions: &mut Vec<Action>) {
        let i = usize::from(j);
        let (side, executor) = (&state.jobs[i], &state.executor);
        let record = side.record;
        // Whether a change still holds is the record's to say: old ones are tried as well.
        for epoch in 1..=self.sizes.epochs {
            if epoch % 2 == 0 {
                actions.push(Action::Place(j, epoch, 1));
                continue;
            }
            for bound in 1..LABELS as u8 {
                if executor.held & bit(bound) != 0 {
                    actions.push(Action::Place(j, epoch, bound));
                }
                let ended = state.over[usize::from(bound)];
                if ended != NEVER && ended >= self.wait(i) {
                    actions.push(Action::Free(j, epoch, bound));
                }
                for to in bound + 1..LABELS as u8 {
                    let asked = !crosses(bound, to) || side.moving & bit(to) != 0;
                    if executor.held & bit(to) != 0 && asked {
                        actions.push(Action::Rebind(j, epoch, bound, to));
                    }
                }
            }
        }
        let here = (side.runs != 0 && !side.orphan) || self.startable(side).next().is_some();
        for to in SECOND..LABELS as u8 {
            let fresh = executor.renewed[usize::from(to)] < self.sizes.hold[i];
            if here && fresh && executor.mine[1] == to && side.moving & bit(to) == 0 && side.bound < SECOND {
                actions.push(Action::Move(j, to));
            }
        }
        for epoch in self.odd_epochs().filter(|e| side.told & bit(*e) != 0) {
            actions.push(Action::Close(j, epoch));
        }
        for (epoch, bound) in self.startable(side) {
            let current = executor.mine.contains(&bound);
            let fresh = |b: u8| executor.renewed[usize::from(b)] < self.sizes.hold[i];
            if current && fresh(bound) && !self.in_doubt(side, bound) {
                actions.push(Action::Start(j, epoch, bound));
            }
            let newest = executor.mine[0];
            if self.is(Bug::OldPlacementUnderNewIncarnation) && bound < newest && fresh(newest) {
                actions.push(Action::Start(j, epoch, newest));
            }
        }
        if self.is(Bug::PushedStart) {
            let mut epochs: Vec<u8> = self.startable(side).map(|(e, _)| e).collect();
            epochs.dedup();
            actions.extend(epochs.into_iter().map(|e| Action::Pushed(j, e)));
        }
        if side.runs != 0 && !side.orphan {
            for to in side.bound + 1..LABELS as u8 {
                let swapped = side.chosen[usize::from(side.runs / 2)] & bit(to) != 0;
                let alone = self.is(Bug::RebindWithoutCondition) && executor.mine.contains(&to);
                if swapped || alone {
                    actions.push(Action::Rebound(j, to));
                }
            }
            if side.hold_over(self.sizes.hold[i]) {
                actions.push(Action::Expire(j));
            }
            if self.sizes.ends {
                actions.extend([Action::End(j, false), Action::End(j, true)]);
            }
        }
        if self.sizes.ends && self.startable(side).next().is_some() {
            actions.push(Action::Decline(j));
        }
        if record.epoch >= 2 && side.runs2 == 0 && side.closed2 < 2 {
            actions.push(Action::Start2(j));
        }
        if self.sizes.epochs > 2 && record.at == 2 {
            actions.push(Action::End2(j));
        }
        if self.sizes.suspends {
            if side.runs != 0 {
                actions.push(Action::Publish(j, 1));
            }
            if side.runs2 != 0 {
                actions.push(Action::Publish(j, 2));
            }
        }
    }

    fn propose(&self, state: &mut State, s: u8, at: u8) -> Option<()> {
        let i = usize::from(s);
        let asked = state.executor.asked[i].as_mut()?;
        let (base, _) = state.registers[i].value(at)?;
        let step = match asked.claim {
            true => ContactStep::Claim { above: asked.incarnation, nonce: asked.nonce },
            false => ContactStep::Renew { incarnation: asked.incarnation, nonce: asked.nonce },
        };
        if reflects_contact(base, step) {
            // It is there already, so it counts as made: as soon as it is chosen.
            if at != 0 {
                return None;
            }
            asked.made = base.incarnation;
            return Some(());
        }
        let value = apply_contact(base, step)?;
        if value.incarnation > self.highest(s) || state.registers[i].pending[self.sizes.pending - 1].is_some()
        {
            return None;
        }
        if asked.seen == NEVER {
            asked.seen = 0;
        }
        let age = asked.seen;
        state.registers[i].add(Proposed { value, age, on: at });
        Some(())
    }

    fn choose(&self, state: &mut State, s: u8, at: u8) -> Option<()> {
        let i = usize::from(s);
        let register = &mut state.registers[i];
        let (before, sighted) = (register.chosen, register.age);
        register.choose(at);
        let value = register.chosen;
        if !value.held && before.held {
            let waited = matches!(self.bug, Some(Bug::NoWait | Bug::TakeoverWithoutCondition));
            let over = &mut state.over[usize::from(before.incarnation)];
            let timed = if waited { self.wait_max() } else { sighted };
            *over = if *over == NEVER { timed } else { timed.max(*over) };
        }
        if let Some(asked) = state.executor.asked[i].as_mut()
            && asked.nonce == value.nonce
        {
            asked.made = if asked.claim { value.incarnation } else { asked.incarnation };
        }
        Some(())
    }

    fn counted(&self, state: &mut State, s: u8) -> Option<()> {
        let i = usize::from(s);
        let asked = state.executor.asked[i].take()?;
        let age = if self.is(Bug::LeaseFromReply) { 0 } else { asked.age };
        let incarnation = if asked.made == 0 { asked.incarnation } else { asked.made };
        if asked.claim {
            state.executor.mine[i] = incarnation;
            state.executor.held |= bit(incarnation);
        } else if state.executor.mine[i] != asked.incarnation {
            return Some(());
        }
        let renewed = &mut state.executor.renewed[usize::from(incarnation)];
        *renewed = (*renewed).min(age);
        for side in state.jobs.iter_mut().filter(|side| side.runs != 0) {
            let bound = side.bound == incarnation && !self.in_doubt(side, incarnation);
            if bound || self.is(Bug::RenewalOfNewIncarnationExtendsOld) {
                side.age = side.age.min(age);
            }
        }
        Some(())
    }

    fn tick(&self, state: &mut State, asleep: bool) {
        let (wait, hold) = (self.wait_max(), self.hold_max());
        for register in &mut state.registers {
            if register.begun {
                register.age = older(register.age, wait);
            }
            for pending in register.pending.iter_mut().flatten() {
                pending.age = older(pending.age, wait);
            }
        }
        for age in &mut state.over {
            *age = older(*age, wait);
        }
        if self.is(Bug::TakeoverWithoutCondition) {
            state.since = older(state.since, wait);
        }
        let late = matches!(self.bug, Some(Bug::LeaseFromReply | Bug::NonceReused));
        for asked in state.executor.asked.iter_mut() {
            let Some(a) = asked else { continue };
            a.seen = older(a.seen, wait);
            if !asleep {
                a.age = older(a.age, hold);
            }
            // Too old to count for anything.
            if a.age >= hold && !a.claim && !late {
                *asked = None;
            }
        }
        if asleep {
            state.paused = true;
            return;
        }
        for age in &mut state.executor.renewed {
            *age = older(*age, hold);
            if *age >= hold {
                *age = NEVER;
            }
        }
        for side in state.jobs.iter_mut().filter(|s| s.runs != 0 && !s.orphan) {
            side.age = older(side.age, hold);
        }
    }

    fn crash(&self, state: &mut State) {
        let executor = &mut state.executor;
        executor.crashed = true;
        executor.asked = [None; 2];
        match self.bug {
            Some(Bug::NonceLostInCrash) => executor.nonce = 0,
            Some(Bug::NoGuard) => {
                for side in state.jobs.iter_mut().filter(|s| s.runs != 0) {
                    (side.orphan, side.age) = (true, 0);
                }
            }
            Some(Bug::ClosedLostInCrash) => state.jobs.iter_mut().for_each(|side| side.closed = 0),
            _ => {}
        }
    }

    fn job_step(&self, state: &mut State, action: Action) -> Option<()> {
        let renewed = state.executor.renewed;
        let side = |j: u8| usize::from(j);
        let done = |changed: bool| changed.then_some(());
        match action {
            Action::Place(j, epoch, bound) => {
                let at = if epoch % 2 == 0 { 2 } else { 1 };
                done(state.jobs[side(j)].change(JobChange::Place { epoch, at, bound }))
            }
            Action::Free(j, epoch, bound) => {
                done(state.jobs[side(j)].change(JobChange::Free { epoch, bound }))
            }
            Action::Move(j, to) => {
                let side = &mut state.jobs[side(j)];
                side.moving |= bit(to);
                if side.runs != 0 && !self.is(Bug::OldSeriesExtends) {
                    side.age = side.age.max(renewed[usize::from(to)]);
                }
                Some(())
            }
            Action::Rebind(j, epoch, from, to) => {
                done(state.jobs[side(j)].change(JobChange::Rebind { epoch, from, to }))
            }
            Action::Close(j, epoch) => {
                let side = &mut state.jobs[side(j)];
                let succeeded = side.succeeded;
                done(side.change(JobChange::Close { epoch, succeeded }))
            }
            Action::Start(j, epoch, bound) => {
                let side = &mut state.jobs[side(j)];
                (side.runs, side.bound, side.age) = (epoch, bound, renewed[usize::from(bound)]);
                Some(())
            }
            Action::Pushed(j, epoch) => {
                let bound = state.executor.mine[0];
                let side = &mut state.jobs[side(j)];
                (side.runs, side.bound, side.age) = (epoch, bound, 0);
                Some(())
            }
            Action::Rebound(j, to) => {
                let side = &mut state.jobs[side(j)];
                (side.bound, side.age) = (to, side.age.min(renewed[usize::from(to)]));
                Some(())
            }
            Action::Expire(j) => {
                let side = &mut state.jobs[side(j)];
                side.close_here(side.runs, false);
                Some(())
            }
            Action::End(j, succeeded) => {
                let side = &mut state.jobs[side(j)];
                side.close_here(side.runs, succeeded);
                Some(())
            }
            Action::Decline(j) => {
                let (epoch, _) = self.startable(&state.jobs[side(j)]).next()?;
                state.jobs[side(j)].close_here(epoch, false);
                Some(())
            }
            Action::Start2(j) => {
                state.jobs[side(j)].runs2 = 2;
                Some(())
            }
            Action::End2(j) => {
                let side = &mut state.jobs[side(j)];
                (side.runs2, side.closed2) = (0, 2);
                done(side.change(JobChange::Close { epoch: 2, succeeded: false }))
            }
            Action::Publish(j, at) => {
                let unfenced = self.is(Bug::SuspendWithoutFence);
                let side = &mut state.jobs[side(j)];
                let epoch = if at == 1 { side.runs } else { side.runs2 };
                if !unfenced && !side.change(JobChange::Publish { epoch }) {
                    return None;
                }
                side.fell |= epoch < side.stored;
                side.stored = epoch;
                Some(())
            }
            _ => None,
        }
    }

    fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Renew(s) | Action::Claim(s) => {
                let i = usize::from(s);
                let executor = &mut state.executor;
                executor.nonce += 1;
                executor.asked[i] = Some(Asked {
                    claim: matches!(action, Action::Claim(_)),
                    incarnation: executor.mine[i],
                    nonce: executor.nonce,
                    age: 0,
                    seen: NEVER,
                    made: 0,
                });
            }
            Action::Again(s) => state.executor.asked[usize::from(s)].as_mut()?.age = 0,
            Action::Propose(s, at) => self.propose(state, s, at)?,
            Action::TakeOver(s, at, nonce) => {
                let register = &mut state.registers[usize::from(s)];
                let (base, _) = register.value(at)?;
                let step = ContactStep::TakeOver { incarnation: base.incarnation, nonce };
                let value = apply_contact(base, step)?;
                if nonce != base.nonce {
                    state.over[usize::from(base.incarnation)] = self.wait_max();
                }
                register.add(Proposed { value, age: 0, on: at });
                if self.is(Bug::UnchosenTakeoverCounts) {
                    let over = &mut state.over[usize::from(base.incarnation)];
                    *over = if *over == NEVER { 0 } else { *over };
                }
            }
            Action::Choose(s, at) => self.choose(state, s, at)?,
            Action::Counted(s) => self.counted(state, s)?,
            Action::BeginSeries => {
                let value = Contact { incarnation: SECOND, nonce: 0, held: true };
                state.registers[1] =
                    Register { begun: true, chosen: value, age: 0, pending: Default::default() };
                state.executor.mine[1] = SECOND;
                state.executor.held |= bit(SECOND);
                // Its first renewal goes out with it, and counts.
                state.executor.renewed[usize::from(SECOND)] = 0;
            }
            Action::Crash => self.crash(state),
            Action::Tick | Action::TickAsleep => self.tick(state, action == Action::TickAsleep),
            other => self.job_step(state, other)?,
        }
        Some(())
    }
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let value = Contact { incarnation: 1, nonce: 0, held: true };
        let register = |begun| Register { begun, chosen: value, age: 0, pending: [None; PENDING_MAX] };
        let mut renewed = [NEVER; LABELS];
        renewed[1] = 0;
        let side = Side {
            record: Job::default(),
            chosen: [0; 2],
            runs: 0,
            bound: 0,
            age: 0,
            orphan: false,
            closed: 0,
            moving: 0,
            told: 0,
            succeeded: false,
            runs2: 0,
            closed2: 0,
            stored: 0,
            fell: false,
            revived: false,
        };
        vec![State {
            registers: [register(true), register(false)],
            executor: Executor {
                mine: [1, 0],
                held: bit(1),
                renewed,
                nonce: 0,
                asked: [None; 2],
                crashed: false,
            },
            over: [NEVER; LABELS],
            jobs: [side.clone(), side],
            since: 0,
            paused: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.settled(state) {
            return;
        }
        for s in 0..2 {
            self.contact_actions(state, s, actions);
        }
        if self.sizes.series && !state.registers[1].begun {
            actions.push(Action::BeginSeries);
        }
        for j in 0..2 {
            self.job_actions(state, j, actions);
        }
        let crashes = [Bug::NoGuard, Bug::NonceLostInCrash, Bug::ClosedLostInCrash];
        if self.bug.is_some_and(|b| crashes.contains(&b)) && !state.executor.crashed {
            actions.push(Action::Crash);
        }
        // Guards stop in time: no tick passes over a deadline.
        let due = |j: usize| state.jobs[j].hold_over(self.sizes.hold[j]);
        if !due(0) && !due(1) {
            actions.push(Action::Tick);
        }
        if self.sizes.suspends && !state.paused {
            actions.push(Action::TickAsleep);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action)?;
        let state = self.tidy(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![Property::<Self>::always(I4, |_, s| s.jobs.iter().all(|j| !j.fell))];
        if !self.sizes.suspends {
            all.extend([
                Property::<Self>::always(I2, |_, s| {
                    s.jobs.iter().all(|j| i2(j.runs, j.record.epoch) && i2(j.runs2, j.record.epoch))
                }),
                Property::<Self>::always(I3, |_, s| s.jobs.iter().all(|j| i3(&[j.runs, j.runs2]))),
                Property::<Self>::always(I8, |_, s| {
                    let after = |j: &Side| j.record.ended && (j.runs != 0 || j.runs2 != 0);
                    !s.jobs.iter().any(|j| j.revived || after(j))
                }),
            ]);
        } else {
            all.push(Property::<Self>::sometimes("reach: two run at once after a standstill", |_, s| {
                s.jobs.iter().any(|j| !i3(&[j.runs, j.runs2]))
            }));
        }
        if self.bug.is_some() {
            return all;
        }
        all.extend([
            Property::<Self>::sometimes("reach: both jobs run at cluster 2 after a takeover", |_, s| {
                s.jobs.iter().all(|j| j.runs2 == 2) && s.over[1] != NEVER
            }),
            Property::<Self>::sometimes("reach: one job was taken, the other goes on", |_, s| {
                let on = |j: &Side| j.runs == 1 && j.bound == 1;
                s.jobs[0].record.at == 2 && on(&s.jobs[1])
            }),
            Property::<Self>::sometimes("reach: a renewal keeps an attempt alive", |_, s| {
                s.jobs.iter().any(|j| j.runs == 1 && j.bound == 1 && s.registers[0].chosen.nonce > 0)
            }),
        ]);
        if self.sizes.incarnations > 2 || self.sizes.series {
            all.push(Property::<Self>::sometimes(
                "reach: an attempt lives on under a new binding",
                |_, s| s.jobs.iter().any(|j| j.runs == 1 && j.bound > 2),
            ));
        }
        if self.sizes.epochs > 2 {
            all.push(Property::<Self>::sometimes("reach: a job comes back to cluster 1", |_, s| {
                s.jobs.iter().any(|j| j.runs == 3)
            }));
        }
        all
    }
}
