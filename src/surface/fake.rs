//! A peer for tests: records in a map, other peers as routers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use tokio::sync::broadcast;

use crate::base::*;
use crate::core::api::*;
use crate::core::placement::{Estimate, Reason};
use crate::model::partitions::{NodeSet, SlurmReport};
use crate::model::record::{Birth, CancelIntent, Change, MoveIntent};
use crate::model::report::{
    CapacityReport, HealthReport, LinkSample, Liveness, MemberView, NodeCapacity, Report, View,
};
use crate::model::{JobRecord, JobSpec, Placement, QueueReport};
use crate::runtime::*;
use crate::surface::documents;

pub fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a name")
}

#[derive(Default)]
pub struct State {
    pub records: BTreeMap<JobId, JobRecord>,
    pub keys: BTreeMap<String, JobId>,
    pub sequence: u64,
    pub attempts: Vec<AttemptView>,
    pub fails: Option<ClientError>,
    pub draining: bool,
    pub removed: BTreeSet<PeerName>,
    pub queue: Vec<ClaimView>,
    /// How far it was told to look into it.
    pub looks: Vec<Look>,
    /// Peers that are not alive.
    pub away: BTreeMap<PeerName, Liveness>,
    /// Peers that have told nothing yet.
    pub unheard: BTreeSet<PeerName>,
    /// How long ago a peer was heard, and measured its links; others: at the beginning of time.
    pub heard_ago: BTreeMap<PeerName, Span>,
    pub isolated: bool,
    /// Regions; others have one of their own.
    pub regions: BTreeMap<PeerName, String>,
    pub health: BTreeMap<PeerName, HealthReport>,
    /// Clusters without a GPU.
    pub no_gpus: BTreeSet<PeerName>,
    /// More rows of `why`.
    pub candidates: Vec<Candidate>,
    /// It measures its links to all others.
    pub measures: bool,
    pub log: Option<crate::runtime::eventlog::EventLog>,
}

/// The fake.
pub struct Fake {
    pub me: PeerName,
    pub others: Mutex<BTreeMap<PeerName, Option<Router>>>,
    pub state: Mutex<State>,
    pub logs: Mutex<BTreeMap<AttemptKey, Vec<PathBuf>>>,
    pub events: broadcast::Sender<Event>,
}

impl Fake {
    pub fn new(me: &str) -> Arc<Self> {
        Arc::new(Self {
            me: name(me),
            others: Mutex::default(),
            state: Mutex::default(),
            logs: Mutex::default(),
            events: broadcast::channel(16).0,
        })
    }

    /// Another member: reached through its router, or known and silent.
    pub fn knows(&self, other: &str, router: Option<Router>) {
        self.others.lock().expect("others").insert(name(other), router);
    }

    pub fn spec(text: &str) -> JobSpec {
        crate::model::spec_input::parse_spec(text.as_bytes()).expect("a spec").spec
    }

    pub fn put(&self, spec: JobSpec) -> JobId {
        let mut state = self.state.lock().expect("state");
        state.sequence += 1;
        let home = Home { peer: self.me.clone(), store: StoreId([1; 16]) };
        let birth = Birth {
            tenant: spec.tenant.clone(),
            minter: self.me.clone(),
            sequence: state.sequence,
            homes: vec![home].try_into().expect("one"),
        };
        let id = birth.id();
        let at = WallTime(1_000 + state.sequence);
        state.records.insert(id, JobRecord::new(birth, spec, TraceId([2; 16]), at));
        id
    }

    /// Changes a record as the core would and tells it.
    pub fn change(&self, id: JobId, change: Change) {
        let mut state = self.state.lock().expect("state");
        let mut next = state.records[&id].apply(&change).expect("it applies");
        next.version += u64::from(next.version == state.records[&id].version);
        state.records.insert(id, next);
        drop(state);
        let _ = self.events.send(Event::new("job.changed", Some(id), "changed"));
    }

    pub fn place(&self, id: JobId, cluster: &str) {
        let epoch = self.state.lock().expect("state").records[&id].epoch.next();
        let placement = Placement {
            cluster: name(cluster),
            contact: ContactId([3; 20]),
            incarnation: 1,
            series: 1,
            contact_homes: BoundedVec::default(),
            at: WallTime(2_000),
        };
        self.change(id, Change::Place { placement, epoch });
        self.change(id, Change::Started { epoch, at: WallTime(2_100), nodes: Some("n[1-2]".into()) });
    }

    pub fn close(&self, id: JobId, code: i32) {
        let epoch = self.state.lock().expect("state").records[&id].epoch;
        let outcome = crate::model::Outcome::Exited(code);
        self.change(
            id,
            Change::Close { epoch, outcome, started_at: None, at: WallTime(3_000), note: None, nodes: None },
        );
    }

    fn why(&self) -> ClientResponse {
        let candidate = Candidate {
            cluster: self.me.clone(),
            fits_ever: true,
            fits_now: false,
            reasons: vec![Reason::GpusBusy { wanted: 8, free: 0, queued: 3 }],
            score: Some(1.5),
            terms: BTreeMap::from([("wait_s".into(), 12.0)]),
            estimate: Some(Estimate {
                wait: Span::secs(12),
                start: Span::secs(12),
                usd: 2.5,
                ..Estimate::default()
            }),
            claim: Some(2),
            report_age: Some(Span::millis(40)),
        };
        let (summary, owner) = ("waits for GPUs".into(), Some(self.me.clone()));
        let (policy, groups) = (BTreeMap::from([("wait".to_owned(), 0.3)]), None);
        let mut clusters = vec![candidate];
        clusters.extend(self.state.lock().expect("state").candidates.iter().cloned());
        ClientResponse::Why(Box::new(WhyReport {
            summary,
            state: None,
            owner,
            policy,
            groups,
            refused: None,
            clusters,
        }))
    }

    fn report(&self, peer: &PeerName, others: &[PeerName]) -> Report {
        let state = self.state.lock().expect("state");
        let ago = state.heard_ago.get(peer).copied();
        let heard_at =
            ago.map_or(Instant(0), |ago| Instant(documents::boottime_now().0.saturating_sub(ago.0)));
        let at = ago.map_or(WallTime(1), |ago| WallTime(documents::wall_now().0 - ago.as_millis()));
        let node = NodeCapacity {
            name: "n".into(),
            count: 1,
            gpu_model: Some("A100-80G".into()),
            gpus: 8,
            gpu_memory: Bytes::gib(80),
            cpus: MilliCpu(8_000),
            memory: Bytes::gib(64),
            declared: true,
        };
        let capacity = CapacityReport {
            backend: "local".into(),
            region: state.regions.get(peer).cloned().unwrap_or_else(|| format!("region-{peer}")),
            zone: String::new(),
            labels: BTreeMap::new(),
            price_milli: 2_500,
            pue_milli: 1_200,
            nodes: vec![node],
            container_runtime: None,
            terms: Default::default(),
            nodes_out: Default::default(),
            slurm: slurm(),
        };
        let gpus = |n| BTreeMap::from([("A100-80G".to_owned(), n)]);
        let mut queue =
            QueueReport { gpus_free: gpus(3), gpus_total: gpus(8), running: 5, ..QueueReport::default() };
        if state.no_gpus.contains(peer) {
            (queue.gpus_free, queue.gpus_total) = Default::default();
        }
        let link = |to: &PeerName| LinkSample {
            to: to.clone(),
            rtt_us: 1_500,
            loss_ppm: 0,
            bandwidth_bps: Some(1_000_000_000),
            bandwidth_at: Some(at),
            at,
            direct: true,
        };
        let links = match *peer == self.me {
            true => others.iter().filter(|_| state.measures).map(link).collect(),
            false => vec![link(&self.me)],
        };
        Report {
            peer: peer.clone(),
            store: StoreId([1; 16]),
            capacity: Some(capacity),
            queue: Some(queue),
            contact: None,
            health: state.health.get(peer).cloned(),
            build: None,
            links,
            data: None,
            images: None,
            alerts: None,
            heard_at,
        }
    }

    fn submit(&self, spec: JobSpec, key: Option<String>) -> ClientResponse {
        if let Some(id) = key.as_ref().and_then(|k| self.state.lock().expect("state").keys.get(k).copied()) {
            let state = self.state.lock().expect("state");
            if state.records[&id].spec != spec {
                return ClientResponse::Error(ClientError::KeyReused(id));
            }
            return ClientResponse::Submitted {
                job: id,
                homes: state.records[&id].homes().to_vec(),
                existed: true,
            };
        }
        let job = self.put(spec);
        let mut state = self.state.lock().expect("state");
        if let Some(key) = key {
            state.keys.insert(key, job);
        }
        ClientResponse::Submitted { job, homes: state.records[&job].homes().to_vec(), existed: false }
    }

    fn local(&self, filter: &JobFilter) -> ClientResponse {
        let state = self.state.lock().expect("state");
        let keep = |r: &&JobRecord| {
            filter.prefix.as_ref().is_none_or(|p| r.id().to_string().starts_with(p.as_str()))
                && filter.tenant.as_ref().is_none_or(|t| r.spec.tenant == *t)
                && (filter.states.is_empty() || filter.states.contains(&r.state))
        };
        let mut jobs: Vec<JobRecord> = state.records.values().filter(keep).cloned().collect();
        jobs.sort_by_key(|r| std::cmp::Reverse(r.submitted_at));
        jobs.truncate(filter.limit);
        ClientResponse::Jobs(jobs)
    }

    fn record(&self, job: JobId) -> Result<JobRecord, ClientResponse> {
        let state = self.state.lock().expect("state");
        state.records.get(&job).cloned().ok_or(ClientResponse::Error(ClientError::NoSuchJob(job)))
    }

    fn try_change(
        &self,
        job: JobId,
        change: Change,
        answer: impl Fn(&JobRecord) -> ClientResponse,
    ) -> ClientResponse {
        match self.record(job).map(|r| r.apply(&change)) {
            Err(response) => response,
            Ok(Err(refused)) => ClientResponse::Error(refused.into()),
            Ok(Ok(next)) => {
                let response = answer(&next);
                self.state.lock().expect("state").records.insert(job, next);
                response
            }
        }
    }
}

#[async_trait]
impl PeerHandle for Fake {
    fn about(&self) -> SelfInfo {
        SelfInfo {
            name: self.me.clone(),
            mesh: "ab".into(),
            store: StoreId([1; 16]),
            boot: 1,
            listen: "127.0.0.1:1".into(),
            api: None,
            version: "0".into(),
            certificate: (WallTime(0), WallTime(1 << 50)),
            started_at: WallTime(0),
            draining: self.state.lock().expect("state").draining,
        }
    }
    fn view(&self) -> Arc<View> {
        let others: Vec<PeerName> = self.others.lock().expect("others").keys().cloned().collect();
        let (away, unheard, isolated) = {
            let state = self.state.lock().expect("state");
            (state.away.clone(), state.unheard.clone(), state.isolated)
        };
        let member = |peer: &PeerName| MemberView {
            peer: peer.clone(),
            store: StoreId([1; 16]),
            witness: false,
            liveness: away.get(peer).copied().unwrap_or(Liveness::Alive),
            draining: false,
            report: (!unheard.contains(peer)).then(|| Arc::new(self.report(peer, &others))),
        };
        let members = others.iter().chain([&self.me]).map(|p| (p.clone(), member(p))).collect();
        Arc::new(View { members, isolated })
    }
    fn members(&self) -> Vec<MemberInfo> {
        let state = self.state.lock().expect("state");
        let info = |name: &PeerName| MemberInfo {
            name: name.clone(),
            store: StoreId([1; 16]),
            addresses: vec!["127.0.0.1:1".into()],
            removed: state.removed.contains(name),
            witness: false,
        };
        self.others.lock().expect("others").keys().chain([&self.me]).map(info).collect()
    }
    async fn call(&self, request: ClientRequest) -> Result<ClientResponse, CallError> {
        if let Some(error) = self.state.lock().expect("state").fails.clone() {
            return Ok(ClientResponse::Error(error));
        }
        Ok(match request {
            ClientRequest::Submit { spec, key } | ClientRequest::SubmitUnder { spec, key, .. } => {
                self.submit(*spec, key)
            }
            ClientRequest::Get { job } => {
                self.record(job).map_or_else(|e| e, |r| ClientResponse::Job(Box::new(r)))
            }
            ClientRequest::Local { filter } => self.local(&filter),
            ClientRequest::Cancel { job, by } => {
                let intent = CancelIntent { by, at: WallTime(9) };
                self.try_change(job, Change::Cancel { intent }, |r| ClientResponse::Cancelled {
                    state: r.state,
                })
            }
            ClientRequest::ConfirmLost { job, epoch, cluster, by } => {
                let change = Change::ConfirmLost { epoch, cluster, by, at: WallTime(9) };
                self.try_change(job, change, |r| ClientResponse::Job(Box::new(r.clone())))
            }
            ClientRequest::Move { job, to, by } => {
                let intent = MoveIntent { to, by, at: WallTime(9) };
                self.try_change(job, Change::Move { intent }, |r| ClientResponse::Job(Box::new(r.clone())))
            }
            ClientRequest::Release { job, by } => {
                self.try_change(job, Change::Release { by }, |r| ClientResponse::Job(Box::new(r.clone())))
            }
            ClientRequest::Publish { job, epoch, uri } => {
                let checkpoint = crate::model::Checkpoint { epoch, uri };
                self.try_change(job, Change::Publish { checkpoint }, |_| ClientResponse::Published)
            }
            ClientRequest::Why { job } => self.record(job).map_or_else(|e| e, |_| self.why()),
            ClientRequest::WhySpec { .. } => self.why(),
            ClientRequest::TenantSet { tenant, .. }
            | ClientRequest::TenantGet { tenant }
            | ClientRequest::TenantReclaim { tenant, .. } => {
                ClientResponse::Error(ClientError::NoSuchTenant(tenant))
            }
            ClientRequest::Tenants => ClientResponse::Tenants(Vec::new()),
            ClientRequest::Inspect(look) => {
                let mut state = self.state.lock().expect("state");
                state.looks.push(look);
                let counters = BTreeMap::from([("commits".into(), 7)]);
                let attempts = state.attempts.clone();
                let mut queue: Vec<ClaimView> = state.queue.iter().take(look.claims).cloned().collect();
                if !look.reasons {
                    queue.iter_mut().for_each(|claim| claim.why.clear());
                }
                let records = state.records.len();
                ClientResponse::Inspect(Box::new(InspectReport {
                    attempts,
                    queue,
                    queue_total: Some(state.queue.len() as u64),
                    queue_oldest: state.queue.iter().map(|c| c.age).max(),
                    records,
                    counters,
                    ..Default::default()
                }))
            }
        })
    }
    async fn proxy(&self, peer: &PeerName, request: ProxyRequest) -> Result<ProxyResponse, CallError> {
        let router = self.others.lock().expect("others").get(peer).cloned();
        match router {
            None => Err(CallError::NoSuchPeer(peer.clone())),
            Some(None) => Err(CallError::Unreachable(peer.clone(), self.me.clone())),
            Some(Some(router)) => Ok(crate::surface::serve_proxy(router, request).await),
        }
    }
    async fn token_create(&self, ttl: Span) -> Result<String, CallError> {
        Ok(format!("token-{}", ttl.as_millis()))
    }
    async fn member_remove(&self, name: &PeerName) -> Result<(), CallError> {
        self.state.lock().expect("state").removed.insert(name.clone());
        Ok(())
    }
    async fn drain(&self, draining: bool) -> Result<(), CallError> {
        self.state.lock().expect("state").draining = draining;
        Ok(())
    }
    fn logs(&self, key: AttemptKey) -> Option<Vec<PathBuf>> {
        self.logs.lock().expect("logs").get(&key).cloned()
    }
    fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }
    fn log(&self) -> Option<crate::runtime::eventlog::EventLog> {
        self.state.lock().expect("state").log.clone()
    }
    fn metrics(&self) -> String {
        "starling_fake 1\n# EOF\n".into()
    }
}

/// One partition, one feature of which nobody has told all.
fn slurm() -> Option<SlurmReport> {
    let set = |name: &str, nodes, up, gpus| NodeSet { name: name.into(), nodes, up, gpus };
    Some(SlurmReport {
        partitions: vec![set("main", 3, 2, 16)],
        features: vec![set("ib", 1, 1, 8)],
        features_more: 7,
        ..SlurmReport::default()
    })
}
