//! What a run is made of, all of it drawn from the seed: sizes, faults, or one planted bug.

use std::sync::Arc;

use starling::base::{Rng, Span};

use super::network::RttMatrix;

/// One run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub peers: usize,
    pub jobs: usize,
    /// Faults are injected for this long; then the world heals.
    pub chaos_for: Span,
    /// Grace of all jobs.
    pub grace: Span,
    /// Renewal period of the contacts.
    pub renew_every: Span,
    /// Longest work of one attempt.
    pub work_max: Span,
    /// Clock rates differ from true time by up to this many thousandths; the core is told 10.
    pub drift_milli: u64,
    pub faults: Faults,
    /// Mean length of a cut.
    pub cut_for: Span,
    /// All cuts have this shape, both ways, and nothing is relayed around them.
    pub only_cut: Option<Shape>,
    /// Of so many jobs one has `grace: never`; zero is none. An operator looks after these.
    pub never_of: u64,
    /// Ended records are kept for this long only.
    pub retain: Option<Span>,
    /// A planted bug, to show that the judge finds it.
    pub bug: Option<Bug>,
    /// GPUs that the tenant of all jobs may run at once, over all clusters.
    pub limit: Option<u32>,
    /// Starling is told that many more: the judge must see it.
    pub limit_told_wrong: u32,
    /// Most jobs have groups, which start together, in as many clusters as they take.
    pub groups: bool,
    /// GPUs are reserved for tenants, two at a time for the same ones.
    pub reserved: bool,
    /// The judge takes so many GPUs of each cluster for missing: it must see that more is promised and used.
    pub judged_less: u32,
    /// Round trips between regions; generated where none is given.
    pub rtt: Option<Arc<RttMatrix>>,
    /// Print what happens.
    pub trace: bool,
}

/// Which faults a seed enables, and how hard ("swarm": a run with every fault at once hides what a run
/// with three of them shows). Zero is off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// Chance of a message to be lost; to come twice; to come again many seconds later; to be very late.
    pub loss: f64,
    pub duplicate: f64,
    pub late_duplicate: f64,
    pub reorder: f64,
    /// Mean time between crashes of some peer, with or without its machine.
    pub crash: Span,
    /// A third of the peers are spot machines, each gone about this often.
    pub churn: Span,
    /// Chance of a crash around one batch of writes, before or after it is on disk.
    pub crash_at_write: f64,
    /// Mean time between cuts: halves, one alone, one pair, a ring; one way or both.
    pub partition: Span,
    /// Mean time between links that begin to flap.
    pub flap: Span,
    /// Mean time between suspended machines (everything on them pauses, the clock runs on).
    pub suspend: Span,
    /// Mean time between stopped peer processes (guards and jobs go on).
    pub stall: Span,
    /// Mean time between disks that become slow, up to seconds per sync.
    pub slow_disk: Span,
    /// Mean time between disks that become full.
    pub full_disk: Span,
    /// One peer comes back with an empty disk, this long after the start or later.
    pub lost_disk: Span,
    /// One peer's disk is copied this long after the start or later, and put back some time after that.
    pub roll_back: Span,
    /// Views lag by up to this.
    pub stale_gossip: Span,
    /// Mean time between clusters that are told to drain, for a while.
    pub drain: Span,
}

/// Names for `--without`, in the order of `Faults`.
pub const FAULTS: [&str; 17] = [
    "loss",
    "duplicate",
    "late-duplicate",
    "reorder",
    "crash",
    "churn",
    "crash-at-write",
    "partition",
    "flap",
    "suspend",
    "stall",
    "slow-disk",
    "full-disk",
    "lost-disk",
    "roll-back",
    "stale-gossip",
    "drain",
];

impl Faults {
    pub const NONE: Faults = Faults {
        loss: 0.0,
        duplicate: 0.0,
        late_duplicate: 0.0,
        reorder: 0.0,
        crash: Span::ZERO,
        churn: Span::ZERO,
        crash_at_write: 0.0,
        partition: Span::ZERO,
        flap: Span::ZERO,
        suspend: Span::ZERO,
        stall: Span::ZERO,
        slow_disk: Span::ZERO,
        full_disk: Span::ZERO,
        lost_disk: Span::ZERO,
        roll_back: Span::ZERO,
        stale_gossip: Span::ZERO,
        drain: Span::ZERO,
    };

    /// Each fault is on in about half of the seeds, at an intensity of its own.
    pub fn draw(rng: &mut Rng, more: &mut Rng) -> Self {
        let mut chance = |p: f64, max: f64| {
            let (on, x) = (rng.chance(p), rng.unit());
            if on { max * x * x } else { 0.0 }
        };
        let (loss, duplicate) = (chance(0.6, 0.15), chance(0.5, 0.15));
        let (late_duplicate, reorder) = (chance(0.5, 0.02), chance(0.5, 0.05));
        let crash_at_write = chance(0.4, 0.004);
        let mut every = |p: f64, low: u64, high: u64| {
            let (on, x) = (rng.chance(p), rng.unit());
            let secs = low as f64 * (high as f64 / low as f64).powf(x);
            if on { Span((secs * 1e6) as u64) } else { Span::ZERO }
        };
        let drain = if more.chance(0.3) { Span::secs(6 + more.below(25)) } else { Span::ZERO };
        let lost_disk = every(0.35, 5, 40);
        // One disk of a home set at a time.
        let roll_back = every(0.3, 3, 20);
        let roll_back = if lost_disk > Span::ZERO { Span::ZERO } else { roll_back };
        Faults {
            lost_disk,
            roll_back,
            loss,
            duplicate,
            late_duplicate,
            reorder,
            crash: every(0.6, 3, 30),
            churn: every(0.3, 6, 40),
            crash_at_write,
            partition: every(0.6, 4, 30),
            flap: every(0.3, 5, 30),
            suspend: every(0.4, 6, 40),
            stall: every(0.4, 6, 40),
            slow_disk: every(0.4, 5, 30),
            full_disk: every(0.25, 8, 40),
            stale_gossip: every(0.4, 1, 8),
            drain,
        }
    }

    /// The same without one of them; false where there is none of that name.
    pub fn without(&mut self, name: &str) -> bool {
        let none = Self::NONE;
        match name {
            "loss" => self.loss = none.loss,
            "duplicate" => self.duplicate = none.duplicate,
            "late-duplicate" => self.late_duplicate = none.late_duplicate,
            "reorder" => self.reorder = none.reorder,
            "crash" => self.crash = none.crash,
            "churn" => self.churn = none.churn,
            "crash-at-write" => self.crash_at_write = none.crash_at_write,
            "partition" => self.partition = none.partition,
            "flap" => self.flap = none.flap,
            "suspend" => self.suspend = none.suspend,
            "stall" => self.stall = none.stall,
            "slow-disk" => self.slow_disk = none.slow_disk,
            "full-disk" => self.full_disk = none.full_disk,
            "lost-disk" => self.lost_disk = none.lost_disk,
            "roll-back" => self.roll_back = none.roll_back,
            "stale-gossip" => self.stale_gossip = none.stale_gossip,
            "drain" => self.drain = none.drain,
            _ => return false,
        }
        true
    }
}

/// Bugs that the world can plant around the core: in the guard, the disk, the clock, the wire, the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Attempts have no guard: nothing stops them at their deadline.
    NoGuard,
    /// The guard stops them half a grace too late.
    GuardLate,
    /// The guard's clock stands still while the machine is suspended.
    SuspendWithoutBoottime,
    /// The guard counts a renewal from its answer, not from its request.
    LeaseFromReply,
    /// The guard takes a renewal of any contact and incarnation for its own.
    AnyRenewal,
    /// Clocks are off by up to 400 thousandths, the core is told 10.
    Drift,
    /// A crash loses what the disk had confirmed.
    LyingDisk,
    /// Answers leave before their writes are on disk.
    AnswersUnsynced,
    /// A peer with an empty disk answers under its old store id.
    NewDiskAsOld,
    /// The boot number is not counted: nonces, ballots and operation numbers come again.
    BootForgotten,
    /// "Closed" and the run token are lost in a crash.
    ClosedLost,
    /// Some acceptor's yes is made up by the network: confirmed by less than a majority.
    ForgedAccept,
    /// A read is answered from one peer's last accepted value.
    StaleRead,
    /// Nobody remembers what was seen of a disk: one that is put back from an older copy is used on.
    NoQuarantine,
    /// An operator says of attempts that run that they have stopped for good.
    ConfirmedAlive,
}

impl Bug {
    pub const ALL: [Bug; 15] = [
        Bug::NoGuard,
        Bug::GuardLate,
        Bug::SuspendWithoutBoottime,
        Bug::LeaseFromReply,
        Bug::AnyRenewal,
        Bug::Drift,
        Bug::LyingDisk,
        Bug::AnswersUnsynced,
        Bug::NewDiskAsOld,
        Bug::BootForgotten,
        Bug::ClosedLost,
        Bug::ForgedAccept,
        Bug::StaleRead,
        Bug::NoQuarantine,
        Bug::ConfirmedAlive,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Bug::NoGuard => "no-guard",
            Bug::GuardLate => "guard-late",
            Bug::SuspendWithoutBoottime => "suspend-without-boottime",
            Bug::LeaseFromReply => "lease-from-reply",
            Bug::AnyRenewal => "any-renewal",
            Bug::Drift => "drift",
            Bug::LyingDisk => "lying-disk",
            Bug::AnswersUnsynced => "answers-unsynced",
            Bug::NewDiskAsOld => "new-disk-as-old",
            Bug::BootForgotten => "boot-forgotten",
            Bug::ClosedLost => "closed-lost",
            Bug::ForgedAccept => "forged-accept",
            Bug::StaleRead => "stale-read",
            Bug::NoQuarantine => "no-quarantine",
            Bug::ConfirmedAlive => "confirmed-alive",
        }
    }

    /// A disk does not hold what it should, and nobody remembers marks: or the quarantine would hide the bug.
    pub fn of_a_disk(self) -> bool {
        use Bug::*;
        matches!(self, LyingDisk | AnswersUnsynced | NewDiskAsOld | BootForgotten | NoQuarantine)
    }

    pub fn named(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|b| b.name() == name)
    }
}

/// The shape of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Halves,
    One,
    Pair,
    Ring,
    /// All that comes to one peer is late by two renewal periods; once a renewal was answered so, it is alone.
    LateThenGone,
}

/// What a caller may fix; the rest comes from the seed.
#[derive(Debug, Clone, Default)]
pub struct Fixed {
    pub peers: Option<usize>,
    pub jobs: Option<usize>,
    pub bug: Option<Bug>,
    /// The tenant of all jobs is limited.
    pub limited: bool,
    /// Most jobs have groups.
    pub groups: bool,
    /// GPUs are reserved.
    pub reserved: bool,
    pub rtt: Option<Arc<RttMatrix>>,
    pub without: Vec<String>,
    pub trace: bool,
}

impl Scenario {
    /// The run of one seed.
    pub fn draw(seed: u64, fixed: &Fixed) -> Self {
        let mut rng = Rng::new(seed ^ 0x5363_656e_6172_696f);
        let peers = [1, 2, 3, 3, 4, 5, 5, 5, 6, 7][rng.below(10) as usize];
        // A bug needs a mesh that can be split.
        let peers = if fixed.bug.is_some() { 5 + peers % 3 } else { peers };
        let peers = fixed.peers.unwrap_or(peers);
        let few = peers < 3;
        let jobs = if few { 3 + rng.below(4) } else { 6 + rng.below(10) };
        // What came later is drawn apart, so that seeds of before stay what they were.
        let mut more = Rng::new(seed ^ 0x6d6f_7265);
        let (never, retain) = (more.chance(0.35), more.chance(0.3));
        let never_of = if never { 1 + more.below(4) } else { 0 };
        let retain = retain.then(|| Span::secs(2 + more.below(25)));
        let mut faults = Faults::draw(&mut rng, &mut more);
        if fixed.bug.is_some() {
            faults.drain = Span::ZERO;
        }
        if few {
            // A record of one or two homes does not outlive one of their disks.
            (faults.lost_disk, faults.roll_back) = (Span::ZERO, Span::ZERO);
        }
        for name in &fixed.without {
            faults.without(name);
        }
        let grace = Span::millis(4_000 + rng.below(8_000));
        let chaos_for = Span::secs(25 + rng.below(40));
        let big = peers as u64 / 100;
        let cut_for = Span::secs(4 + rng.below(12));
        let drawn = Scenario {
            seed,
            peers,
            jobs: fixed.jobs.unwrap_or(jobs as usize),
            chaos_for,
            grace: grace + Span::secs(3 * big),
            renew_every: Span::secs(1) + Span::millis(400 * big),
            work_max: Span::secs(18),
            drift_milli: if fixed.bug == Some(Bug::Drift) { 400 } else { rng.below(11) },
            faults,
            cut_for,
            only_cut: None,
            never_of: if fixed.bug.is_some() { 0 } else { never_of },
            retain: retain.filter(|_| fixed.bug.is_none()),
            bug: fixed.bug,
            limit: fixed.limited.then_some(8 + (seed % 9) as u32),
            limit_told_wrong: 0,
            groups: fixed.groups,
            reserved: fixed.reserved,
            judged_less: 0,
            rtt: fixed.rtt.clone(),
            trace: fixed.trace,
        };
        fixed.bug.map_or(drawn.clone(), |bug| drawn.with_chance_for(bug))
    }

    /// A bug is looked for where it can show: the faults that it needs are on, the rest is as drawn.
    fn with_chance_for(mut self, bug: Bug) -> Self {
        match bug {
            Bug::NoGuard | Bug::GuardLate => {
                self.grace = Span::secs(4);
                self.cut_long(Shape::One, Span::secs(14));
            }
            // A renewal's answer counts up to three periods after it was sent.
            Bug::LeaseFromReply => {
                (self.grace, self.renew_every) = (Span::secs(35), Span::secs(10));
                self.cut_long(Shape::LateThenGone, Span::secs(45));
            }
            Bug::AnyRenewal => {
                (self.grace, self.peers) = (Span::secs(12), 7);
                self.cut_long(Shape::Halves, Span::secs(25));
            }
            Bug::Drift => {
                self.grace = Span::secs(30);
                self.cut_long(Shape::One, Span::secs(50));
            }
            Bug::SuspendWithoutBoottime => {
                (self.faults.suspend, self.grace) = (Span::secs(4), Span::secs(4));
            }
            Bug::LyingDisk | Bug::BootForgotten | Bug::ClosedLost => self.faults.crash = Span::secs(4),
            Bug::AnswersUnsynced => {
                (self.faults.slow_disk, self.faults.crash) = (Span::secs(2), Span::secs(4));
                self.faults.crash_at_write = 0.03;
            }
            Bug::NewDiskAsOld => (self.faults.lost_disk, self.faults.loss) = (Span::secs(12), 0.15),
            Bug::NoQuarantine => {
                (self.faults.roll_back, self.faults.loss) = (Span::secs(6), 0.15);
                self.faults.lost_disk = Span::ZERO;
            }
            Bug::ConfirmedAlive => self.never_of = 1,
            Bug::ForgedAccept | Bug::StaleRead => self.faults.partition = Span::secs(8),
        }
        self
    }

    /// One long cut at a time, over jobs that run for long, and nothing else: with more, nobody has the
    /// majority that would place a job again while its old attempt still runs.
    fn cut_long(&mut self, shape: Shape, lasts: Span) {
        self.only_cut = Some(shape);
        self.faults = Faults { partition: lasts, ..Faults::NONE };
        self.cut_for = lasts;
        (self.chaos_for, self.work_max, self.jobs) =
            (Span::secs(120) + lasts.scale(2, 1), Span::secs(40) + lasts, 2 * self.jobs);
    }

    /// A home waits this long before it takes a silent contact over.
    pub fn takeover_after(&self) -> Span {
        self.grace.scale(1020, 1000) + MARGIN
    }

    /// After the world has healed every job must be final within this: two takeovers in a row, operations
    /// that run into their patience, claims and back-off, and the work itself, queued.
    pub fn settle_bound(&self) -> Span {
        let rounds = 2 + self.jobs.div_ceil(self.peers) as u64;
        // Under a limit jobs may have to run one after another, each after another cluster's share has come back: idle
        // for 10 s, or lost, and asked for again at most 16 s later.
        let turns = if self.limit.is_some() { self.jobs as u64 } else { 0 };
        let turn = self.work_max + Span::secs(30);
        // Jobs with groups may run one after another, each after a gathering that was given up, or two.
        let gathered = if self.groups { self.jobs as u64 } else { 0 };
        self.takeover_after().scale(2, 1)
            + Span::secs(50)
            + self.work_max.scale(rounds, 1)
            + turn.scale(turns, 1)
            + (self.work_max + Span::secs(60)).scale(gathered, 1)
            // The last one begins half a minute after it was asked for, and lasts 100 s; what waited for its end runs then.
            + if self.reserved { Span::secs(260) + self.work_max.scale(self.jobs as u64, 1) } else { Span::ZERO }
    }
}

/// Time that killing an attempt may take, as the core is told.
pub const MARGIN: Span = Span::millis(1500);
/// Clock rates are off by at most so many thousandths, as the core is told.
pub const RHO_MILLI: u64 = 10;
