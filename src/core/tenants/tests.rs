//! One peer that is a mesh of its own: what it sends itself comes back at once, what it starts runs.

use std::collections::VecDeque;

use super::*;
use crate::base::{Bytes, MilliCpu, StoreId, WallTime};
use crate::core::api::{AttemptKey, BackendCommand, BackendEvent, ClientRequest, DiskImage, Input, Now};
use crate::core::testing;
use crate::model::report::{Liveness, MemberView, NodeCapacity, View};
use crate::model::{JobState, Outcome};

pub(in crate::core) struct Solo {
    pub peer: Peer,
    now: u64,
    token: u64,
    disk: DiskImage,
    pub running: Vec<AttemptKey>,
    answers: BTreeMap<u64, ClientResponse>,
    asks: Vec<(PeerName, Message)>,
}

fn node() -> NodeCapacity {
    NodeCapacity {
        name: "n".into(),
        count: 1,
        gpu_model: Some("H100".into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(256),
        declared: true,
    }
}

impl Solo {
    fn config() -> crate::core::CoreConfig {
        crate::core::CoreConfig { replicas: 1, nodes: vec![node()], ..testing::config("a", StoreId([1; 16])) }
    }

    pub(in crate::core) fn new() -> Self {
        let (peer, _) = Peer::recover(Self::config(), &DiskImage::default(), Now::default()).expect("empty");
        let mut solo = Solo {
            peer,
            now: 0,
            token: 0,
            disk: DiskImage::default(),
            running: Vec::new(),
            answers: BTreeMap::new(),
            asks: Vec::new(),
        };
        solo.look_around();
        solo.pass(3);
        solo
    }

    fn look_around(&mut self) {
        let name = testing::name("a");
        let member = MemberView {
            peer: name.clone(),
            store: StoreId([1; 16]),
            witness: false,
            liveness: Liveness::Alive,
            draining: false,
            report: None,
        };
        let view = View { members: BTreeMap::from([(name, member)]), isolated: false };
        self.give(Input::View(view.into()));
    }

    fn give(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = Now { mono: Instant(self.now), wall: WallTime(self.now / 1000) };
            for output in self.peer.step(now, input) {
                match output {
                    Output::Write(write) => {
                        let table = self.disk.tables.entry(write.table).or_default();
                        match write.value {
                            Some(value) => drop(table.insert(write.key, value)),
                            None => drop(table.remove(&write.key)),
                        }
                    }
                    Output::Send { to, message, .. } if to.as_str() == "a" => {
                        inputs.push_back(Input::Message { from: to, message });
                    }
                    Output::Send { to, message, .. } => self.asks.push((to, message)),
                    Output::Reply { token, response } => drop(self.answers.insert(token, response)),
                    Output::Backend(BackendCommand::Start(start)) if !self.running.contains(&start.key) => {
                        self.running.push(start.key);
                        let at = WallTime(self.now / 1000);
                        inputs.push_back(Input::Backend(BackendEvent::Started { key: start.key, at }));
                    }
                    _ => {}
                }
            }
        }
    }

    pub(in crate::core) fn pass(&mut self, secs: u64) {
        for _ in 0..secs * 10 {
            self.now += 100_000;
            self.give(Input::Tick);
        }
    }

    pub(in crate::core) fn ask(&mut self, request: ClientRequest) -> ClientResponse {
        self.token += 1;
        let token = self.token;
        self.give(Input::Client { token, request });
        self.pass(1);
        self.answers.remove(&token).expect("an answer")
    }

    pub(in crate::core) fn submit(&mut self, text: &str) -> ClientResponse {
        let spec = Box::new(crate::model::spec_input::parse_spec(text.as_bytes()).expect("a spec").spec);
        self.ask(ClientRequest::Submit { spec, key: None })
    }

    fn limit(&mut self, patch: LimitsPatch) -> ClientResponse {
        self.ask(ClientRequest::TenantSet { tenant: "t".into(), patch: Some(Box::new(patch)) })
    }

    pub(in crate::core) fn end_one(&mut self) {
        let key = self.running.remove(0);
        let at = WallTime(self.now / 1000);
        let outcome = Outcome::Exited(0);
        self.give(Input::Backend(BackendEvent::Ended { key, outcome, started_at: None, at }));
        self.pass(2);
    }

    fn ledger(&mut self) -> LedgerRecord {
        match self.ask(ClientRequest::TenantGet { tenant: "t".into() }) {
            ClientResponse::Tenant(report) => report.ledger.expect("read"),
            other => panic!("{other:?}"),
        }
    }
    pub(in crate::core) fn broken(&self) -> Vec<&&'static str> {
        self.peer.counters().keys().filter(|name| name.starts_with("invariant_")).collect()
    }
}

const FOUR: &str = "{run: x, tenant: t, resources: {gpus: 4}, max_runtime: 1h}";

#[test]
fn a_cluster_runs_no_more_of_a_tenant_than_its_limit() {
    let mut solo = Solo::new();
    solo.limit(LimitsPatch { gpus: Some(Some(4)), ..LimitsPatch::default() });
    for _ in 0..2 {
        assert!(matches!(solo.submit(FOUR), ClientResponse::Submitted { .. }));
    }
    solo.submit("{run: x, tenant: other, resources: {gpus: 1}}");
    solo.pass(5);
    assert_eq!(solo.running.len(), 2, "one of each tenant");
    assert_eq!(solo.ledger().total().gpus, 4);
    // Why the second waits can be read.
    let waits = solo.peer.tenants_known().remove(0).here.waits.expect("asked in vain");
    assert!(waits.contains("0 of 4 GPUs are left"), "{waits}");
    solo.end_one();
    solo.pass(20);
    assert_eq!(solo.running.len(), 2, "the next one got its turn");
    // What is idle goes back.
    solo.end_one();
    solo.end_one();
    solo.pass(30);
    assert_eq!(solo.ledger().total().gpus, 0);
    assert_eq!(solo.peer.tenants_known().remove(0).here.waits, None, "nobody waits");
    assert_eq!(solo.broken(), Vec::<&&str>::new());
}

#[test]
fn what_never_fits_is_refused_with_numbers() {
    let mut solo = Solo::new();
    solo.limit(LimitsPatch { gpus: Some(Some(3)), ..LimitsPatch::default() });
    let ClientResponse::Error(ClientError::OverQuota(why)) = solo.submit(FOUR) else { panic!("taken") };
    assert_eq!(why, "tenant t may use 3 GPUs at most, the job asks for 4");
    // A dry run says the same.
    let spec = Box::new(crate::model::spec_input::parse_spec(FOUR.as_bytes()).expect("a spec").spec);
    let ClientResponse::Why(report) = solo.ask(ClientRequest::WhySpec { spec }) else { panic!("no table") };
    assert!(report.refused.is_some_and(|said| said.contains(&why)), "{}", report.summary);
    // Limits that are lifted bind nobody; who has none is told so.
    solo.ask(ClientRequest::TenantSet { tenant: "t".into(), patch: None });
    assert!(matches!(solo.submit(FOUR), ClientResponse::Submitted { .. }));
    let nobody = solo.ask(ClientRequest::TenantGet { tenant: "u".into() });
    assert_eq!(nobody, ClientResponse::Error(ClientError::NoSuchTenant("u".into())));
}

#[test]
fn what_ran_before_a_limit_began_is_counted_and_goes_on() {
    let mut solo = Solo::new();
    solo.submit(FOUR);
    solo.submit(FOUR);
    solo.pass(2);
    assert_eq!(solo.running.len(), 2);
    solo.limit(LimitsPatch { gpus: Some(Some(4)), ..LimitsPatch::default() });
    solo.pass(3);
    assert_eq!((solo.running.len(), solo.ledger().total().gpus), (2, 8));
    solo.submit(FOUR);
    solo.end_one();
    solo.pass(20);
    assert_eq!(solo.running.len(), 1, "four run of four: no more");
    solo.end_one();
    solo.pass(20);
    assert_eq!(solo.running.len(), 1, "now there is room");
    assert_eq!(solo.broken(), Vec::<&&str>::new());
}

/// It used to be granted and taken back once a second for ever, an epoch each time.
#[test]
fn a_job_that_later_limits_forbid_waits_and_says_why() {
    let mut solo = Solo::new();
    // Full, so that it waits.
    solo.submit("{run: x, tenant: other, resources: {gpus: 8}}");
    let long = "{run: x, tenant: t, resources: {gpus: 1}, on_lost_contact: {grace: 10m}}";
    let ClientResponse::Submitted { job: id, .. } = solo.submit(long) else { panic!("not taken") };
    solo.limit(LimitsPatch {
        gpus: Some(Some(4)),
        grace: Some(Some(Span::secs(60))),
        ..LimitsPatch::default()
    });
    solo.end_one();
    solo.pass(60);
    let record = |solo: &mut Solo| match solo.ask(ClientRequest::Get { job: id }) {
        ClientResponse::Job(record) => record,
        other => panic!("{other:?}"),
    };
    let waits = record(&mut solo);
    assert_eq!(
        (solo.running.len(), waits.state, waits.epoch.0),
        (0, JobState::Pending, 0),
        "{}",
        waits.reason
    );
    let ClientResponse::Why(report) = solo.ask(ClientRequest::Why { job: id }) else { panic!("no table") };
    let why = "tenant t takes jobs with a grace of 1m 0s at most, the job's on_lost_contact.grace is 10m 0s";
    assert!(report.summary.contains(why), "{}", report.summary);
    solo.limit(LimitsPatch { grace: Some(Some(Span::secs(600))), ..LimitsPatch::default() });
    solo.pass(20);
    assert_eq!(solo.running.len(), 1, "{:?}", record(&mut solo).reason);
}

#[test]
fn gpu_hours_run_out() {
    let mut solo = Solo::new();
    let hours = |n: u64| LimitsPatch { gpu_ms: Some(Some(n * 3_600_000)), ..LimitsPatch::default() };
    solo.limit(hours(7));
    solo.submit(FOUR);
    solo.submit(FOUR);
    solo.pass(1800);
    let seen = solo.peer.tenants_known().remove(0);
    assert_eq!(solo.running.len(), 1, "four of seven GPU-hours are held for the first: {:?}", seen.here);
    solo.end_one();
    // It ran for half an hour: two GPU-hours are used, five are left.
    solo.pass(40);
    assert_eq!(solo.running.len(), 1);
    let ledger = solo.ledger();
    assert!((7_200_000..7_400_000).contains(&ledger.spent()), "{}", ledger.spent());
    assert!(ledger.total().gpu_ms <= 7 * 3_600_000);
    assert_eq!(solo.broken(), Vec::<&&str>::new());
}

#[test]
fn a_restart_spends_no_more_than_before() {
    let mut solo = Solo::new();
    solo.limit(LimitsPatch { gpus: Some(Some(4)), ..LimitsPatch::default() });
    solo.submit(FOUR);
    solo.submit(FOUR);
    solo.pass(2);
    let config = crate::core::CoreConfig { boot: 2, ..Solo::config() };
    let now = Now { mono: Instant(solo.now), wall: WallTime(solo.now / 1000) };
    (solo.peer, _) = Peer::recover(config, &solo.disk, now).expect("its own disk");
    solo.look_around();
    let running = solo.running.clone();
    solo.give(Input::Backend(BackendEvent::Adopted { running }));
    solo.pass(30);
    assert_eq!((solo.running.len(), solo.ledger().total().gpus), (1, 4));
    assert_eq!(solo.broken(), Vec::<&&str>::new());
}

#[test]
fn peers_agree_on_one_of_two_ledgers_and_keep_the_newest_limits() {
    let mut solo = Solo::new();
    let home = |n: u8| vec![Home { peer: testing::name(&format!("p{n}")), store: StoreId([n; 16]) }];
    let card = |n: u8, version: u64, gpus: u64| Card {
        tenant: "t".into(),
        homes: home(n),
        generation: 0,
        held_by: home(n),
        limits: Limits { gpus: Some(gpus), ..Limits::default() },
        limits_version: version,
        removed: false,
        era: 1,
    };
    let (first, second) = (card(1, 1, 4), card(2, 1, 5));
    let (low, high) = if first.id() < second.id() { (first, second) } else { (second, first) };
    for (a, b) in [(&low, &high), (&high, &low)] {
        solo.peer.learn_card(a);
        solo.peer.learn_card(b);
        assert_eq!(solo.peer.tenants.cards["t"].id(), low.id());
    }
    let newer =
        Card { limits_version: 3, limits: Limits { gpus: Some(9), ..Limits::default() }, ..low.clone() };
    assert!(solo.peer.learn_card(&newer) && !solo.peer.learn_card(&low));
    assert_eq!(solo.peer.tenants.cards["t"].limits.gpus, Some(9));
    let moved = Card { generation: 2, held_by: home(7), ..low };
    assert!(solo.peer.learn_card(&moved));
    let known = &solo.peer.tenants.cards["t"];
    assert_eq!((known.limits.gpus, known.held_by.clone()), (Some(9), home(7)));
    let absurd = Card { limits: Limits { weight: 0, ..Limits::default() }, ..card(3, 9, 1) };
    assert!(!solo.peer.learn_card(&absurd));
}

/// An answer was lost: the ledger counts more here than this cluster has. It goes back although more is wanted all the time;
/// of several such clusters each would else wait for what the others do not have.
#[test]
fn what_only_the_ledger_counts_goes_back_while_more_is_wanted() {
    let mut solo = Solo::new();
    solo.limit(LimitsPatch { gpus: Some(Some(4)), ..LimitsPatch::default() });
    let share = |solo: &mut Solo, peer: &str| {
        let peer = testing::name(peer);
        let home = Home { peer, store: StoreId([1; 16]) };
        let binding = crate::model::tenant::Binding {
            contact: ContactId([9; 20]),
            series: 1,
            homes: vec![home.clone()].try_into().expect("one"),
            incarnation: 1,
        };
        let held = Amount { gpus: 2, ..Amount::ZERO };
        let nonce = solo.peer.fresh_nonce();
        let bindings = vec![binding];
        let change = LedgerChange::Share { home, held, spent: 0, bindings, adopts: None, nonce };
        let origin = solo.peer.tenants.cards["t"].origin();
        solo.peer.propose(origin, Task::Ledger(change), Purpose::Nothing, PATIENCE);
        solo.pass(1);
    };
    share(&mut solo, "b");
    solo.submit(FOUR);
    share(&mut solo, "a");
    assert_eq!(solo.ledger().total().gpus, 4);
    solo.peer.tenants.spenders.get_mut("t").expect("of the tenant").unsure = true;
    solo.pass(30);
    assert_eq!((solo.ledger().total().gpus, solo.running.len()), (2, 0));
}

impl Solo {
    /// Why each claim waits, as the queue says.
    fn whys(&mut self) -> Vec<String> {
        let look = crate::core::api::Look { claims: 1_000, reasons: true };
        match self.ask(ClientRequest::Inspect(look)) {
            ClientResponse::Inspect(report) => report.queue.into_iter().map(|c| c.why).collect(),
            other => panic!("{other:?}"),
        }
    }
}

/// More is asked for only for the first that are held back; the others wait for the same reason.
#[test]
fn however_many_a_limit_holds_back_each_says_so() {
    let mut solo = Solo::new();
    solo.limit(LimitsPatch { gpus: Some(Some(4)), ..LimitsPatch::default() });
    solo.submit(FOUR);
    solo.submit("{run: x, tenant: other, resources: {gpus: 4}}");
    for _ in 0..40 {
        solo.submit(FOUR);
    }
    assert_eq!(solo.running.len(), 2);
    assert!(solo.whys().iter().all(|why| why == "0 of 4 GPUs wanted are free"), "{:?}", solo.whys());
    solo.running.reverse();
    solo.end_one();
    solo.pass(5);
    let whys = solo.whys();
    assert_eq!((solo.running.len(), whys.len()), (1, 40));
    let wrong: Vec<_> = whys.iter().filter(|why| !why.contains("0 of 4 GPUs are left")).collect();
    assert!(wrong.is_empty(), "{} of them: {:?}", wrong.len(), wrong[0]);
}

/// Nothing is limited any more: nobody hears of a limit.
#[test]
fn limits_that_have_ended_hold_nobody_back() {
    let mut solo = Solo::new();
    solo.limit(LimitsPatch { gpus: Some(Some(4)), ..LimitsPatch::default() });
    for _ in 0..2 {
        solo.submit(FOUR);
    }
    solo.pass(5);
    assert!(solo.whys()[0].contains("tenant t: "), "{:?}", solo.whys());
    solo.submit("{run: x, tenant: other, resources: {gpus: 4}}");
    solo.pass(5);
    assert_eq!(solo.running.len(), 2);
    solo.ask(ClientRequest::TenantSet { tenant: "t".into(), patch: None });
    solo.pass(5);
    assert_eq!(solo.whys(), ["0 of 4 GPUs wanted are free"]);
}
