//! Where the models' small values meet the production code.
//!
//! What a change *means* comes from `JobRecord::apply`, `ContactRecord::apply` and `Acceptor::handle`; a
//! model only decides who may try it, and when. Each small value is turned into a real record (or a real
//! acceptor that was led there by real requests), the change is applied, and the result is turned back.
//! Every pair of value and change is worked out once and remembered.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::OnceLock;

use starling::base::{BoundedVec, ContactId, Epoch, Home, PeerName, StoreId, TraceId, WallTime};
use starling::core::acceptor::{Acceptor, Room};
use starling::core::message::{AnswerBody, Ballot, Origin, RegisterBody, RegisterRequest};
use starling::core::value::{Encoded, Value};
use starling::model::record::{Change, ContactChange, contact_id};
use starling::model::spec_input::parse_spec;
use starling::model::{
    AttemptSummary, Birth, Checkpoint, ContactRecord, JobRecord, JobState, Outcome, Placement,
};

/// A job's record as far as the models tell records apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Job {
    /// The newest epoch given out.
    pub epoch: u8,
    /// The cluster that holds it, 1 or 2; 0 for none.
    pub at: u8,
    /// The incarnation that the placement is bound to; 0 where there is none.
    pub bound: u8,
    /// The newest attempt ended as lost, and nothing was placed since.
    pub lost: bool,
    /// Final.
    pub ended: bool,
    /// Epoch of the published checkpoint; 0 for none.
    pub published: u8,
    /// The generation's last value: it names the next homes.
    pub sealed: bool,
}

/// A change to a job's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobChange {
    Place {
        epoch: u8,
        at: u8,
        bound: u8,
    },
    Free {
        epoch: u8,
        bound: u8,
    },
    Rebind {
        epoch: u8,
        from: u8,
        to: u8,
    },
    /// With success, or stopped for a move.
    Close {
        epoch: u8,
        succeeded: bool,
    },
    Publish {
        epoch: u8,
    },
    /// Of generation 0.
    Seal,
}

/// A contact record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Contact {
    pub incarnation: u8,
    pub nonce: u8,
    /// The cluster itself wrote this incarnation, and not a home that took it over.
    pub held: bool,
}

/// A change to a contact record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContactStep {
    Renew { incarnation: u8, nonce: u8 },
    TakeOver { incarnation: u8, nonce: u8 },
    Claim { above: u8, nonce: u8 },
}

/// The nonce that a takeover writes; renewals use lower ones.
pub const HOME_NONCE: u8 = 200;

fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a name")
}

fn cluster(at: u8) -> PeerName {
    name(["none", "c1", "c2"][usize::from(at)])
}

fn at_of(cluster: &PeerName) -> u8 {
    if cluster.as_str() == "c1" { 1 } else { 2 }
}

/// The disk of the models' acceptors.
pub const STORE: StoreId = StoreId([1; 16]);
/// Another disk.
pub const OTHER_STORE: StoreId = StoreId([9; 16]);

fn homes() -> Vec<Home> {
    let home = |n: &str, store| Home { peer: name(n), store };
    vec![home("h1", STORE), home("h2", StoreId([2; 16])), home("h3", StoreId([3; 16]))]
}

fn next_homes() -> Vec<Home> {
    let home = |n: &str, store| Home { peer: name(n), store: StoreId([store; 16]) };
    vec![home("h2", 2), home("h3", 3), home("h4", 4)]
}

/// The record that every job of a model begins with.
pub fn new_job() -> JobRecord {
    static NEW: OnceLock<JobRecord> = OnceLock::new();
    let make = || {
        let birth = Birth {
            tenant: "default".into(),
            minter: name("h1"),
            sequence: 1,
            homes: homes().try_into().expect("three homes"),
        };
        let spec = parse_spec(b"run: 'true'").expect("a spec").spec;
        JobRecord::new(birth, spec, TraceId([1; 16]), WallTime(1))
    };
    NEW.get_or_init(make).clone()
}

const CONTACT: ContactId = ContactId([7; 20]);

fn placement(at: u8, bound: u8) -> Placement {
    Placement {
        cluster: cluster(at),
        contact: CONTACT,
        incarnation: u64::from(bound),
        series: 1,
        contact_homes: BoundedVec::default(),
        at: WallTime(2),
    }
}

/// The change as production makes it.
pub fn job_change(change: JobChange) -> Change {
    let epoch = |e: u8| Epoch(u64::from(e));
    match change {
        JobChange::Place { epoch: e, at, bound } => {
            Change::Place { placement: placement(at, bound), epoch: epoch(e) }
        }
        JobChange::Free { epoch: e, bound } => {
            Change::Free { epoch: epoch(e), contact: CONTACT, incarnation: u64::from(bound), at: WallTime(3) }
        }
        JobChange::Rebind { epoch: e, from, to } => Change::Rebind {
            epoch: epoch(e),
            from: (CONTACT, u64::from(from)),
            to: (CONTACT, u64::from(to)),
            series: 1,
            homes: Vec::new(),
        },
        JobChange::Close { epoch: e, succeeded } => Change::Close {
            epoch: epoch(e),
            outcome: if succeeded { Outcome::Exited(0) } else { Outcome::Stopped("moved".into()) },
            started_at: None,
            at: WallTime(4),
            note: None,
            nodes: None,
        },
        JobChange::Publish { epoch: e } => {
            Change::Publish { checkpoint: Checkpoint { epoch: epoch(e), uri: String::new() } }
        }
        JobChange::Seal => Change::Seal { generation: 0, next: next_homes() },
    }
}

/// A real record that stands where the small value says.
fn real_job(job: Job) -> JobRecord {
    let mut record = new_job();
    record.epoch = Epoch(u64::from(job.epoch));
    record.version = 1 + u64::from(job.epoch);
    if job.at != 0 {
        record.placement = Some(placement(job.at, job.bound));
        record.state = JobState::Placed;
    }
    if job.ended {
        record.state = JobState::Succeeded;
    }
    if job.epoch > 0 {
        let outcome = match (job.at, job.lost, job.ended) {
            (0, true, _) => Some(Outcome::Lost),
            (0, false, true) => Some(Outcome::Exited(0)),
            (0, false, false) => Some(Outcome::Stopped("moved".into())),
            _ => None,
        };
        record.attempts.push_rolling(AttemptSummary {
            epoch: record.epoch,
            cluster: cluster(job.at),
            placed_at: WallTime(2),
            started_at: None,
            ended_at: None,
            outcome,
            note: None,
            nodes: None,
        });
    }
    record.sealed = job.sealed.then(|| next_homes().try_into().expect("three homes"));
    record.checkpoint = (job.published > 0)
        .then(|| Checkpoint { epoch: Epoch(u64::from(job.published)), uri: String::new() });
    record
}

/// The small value of a real record.
pub fn small_job(record: &JobRecord) -> Job {
    let small = |n: u64| u8::try_from(n).expect("models count to a few");
    let last = record.attempts.last();
    let lost = last.is_some_and(|a| a.epoch == record.epoch && a.outcome == Some(Outcome::Lost));
    Job {
        epoch: small(record.epoch.0),
        at: record.placement.as_ref().map_or(0, |p| at_of(&p.cluster)),
        bound: record.placement.as_ref().map_or(0, |p| small(p.incarnation)),
        lost: lost && record.placement.is_none(),
        ended: record.state.is_final(),
        sealed: record.sealed.is_some(),
        published: record.checkpoint.as_ref().map_or(0, |c| small(c.epoch.0)),
    }
}

fn remembered<K: Copy + Eq + Hash, V: Copy>(
    memory: &RefCell<HashMap<K, V>>,
    key: K,
    work: impl FnOnce() -> V,
) -> V {
    if let Some(known) = memory.borrow().get(&key) {
        return *known;
    }
    let value = work();
    memory.borrow_mut().insert(key, value);
    value
}

/// `JobRecord::apply`. None where production refuses the change.
pub fn apply_job(job: Job, change: JobChange) -> Option<Job> {
    thread_local!(static MEMORY: RefCell<HashMap<(Job, JobChange), Option<Job>>> = RefCell::default());
    let work = || real_job(job).apply(&job_change(change)).ok().map(|r| small_job(&r));
    MEMORY.with(|memory| remembered(memory, (job, change), work))
}

/// `JobRecord::installed`: the first value of the next generation, where this one is sealed.
pub fn installed(job: Job) -> Option<Job> {
    real_job(job).installed().map(|next| small_job(&next))
}

fn real_contact(contact: Contact) -> ContactRecord {
    ContactRecord {
        cluster: cluster(1),
        series: 1,
        homes: homes().try_into().expect("three homes"),
        incarnation: u64::from(contact.incarnation),
        nonce: (1, u64::from(contact.nonce)),
        holder: if contact.held { cluster(1) } else { name("h1") },
        ext: BTreeMap::new(),
    }
}

fn contact_change(step: ContactStep, base: Contact) -> ContactChange {
    let nonce = |n: u8| (1, u64::from(n));
    match step {
        ContactStep::Renew { incarnation, nonce: n } => {
            ContactChange::Renew { incarnation: u64::from(incarnation), nonce: nonce(n) }
        }
        ContactStep::TakeOver { incarnation, nonce: n } => ContactChange::TakeOver {
            expect: (u64::from(incarnation), nonce(n)),
            nonce: nonce(HOME_NONCE + base.incarnation),
            by: name("h1"),
        },
        ContactStep::Claim { above, nonce: n } => {
            ContactChange::Claim { above: u64::from(above), nonce: nonce(n) }
        }
    }
}

/// `ContactRecord::apply`. None where production refuses the change.
pub fn apply_contact(contact: Contact, step: ContactStep) -> Option<Contact> {
    type Known = HashMap<(Contact, ContactStep), Option<Contact>>;
    thread_local!(static MEMORY: RefCell<Known> = RefCell::default());
    let small = |n: u64| u8::try_from(n).expect("models count to a few");
    let work = || {
        let base = real_contact(contact);
        let next = base.apply(&contact_change(step, contact)).ok()?;
        let held = next.holder == next.cluster;
        Some(Contact { incarnation: small(next.incarnation), nonce: small(next.nonce.1), held })
    };
    MEMORY.with(|memory| remembered(memory, (contact, step), work))
}

/// `ContactRecord::reflects`: the record carries this change already, so it counts as made.
pub fn reflects_contact(contact: Contact, step: ContactStep) -> bool {
    type Known = HashMap<(Contact, ContactStep), bool>;
    thread_local!(static MEMORY: RefCell<Known> = RefCell::default());
    let work = || real_contact(contact).reflects(&contact_change(step, contact));
    MEMORY.with(|memory| remembered(memory, (contact, step), work))
}

/// What one acceptor holds of one register. Ballots are numbered from 1 in their order; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Slot {
    /// The register has begun here.
    pub known: bool,
    pub promised: u8,
    pub accepted: u8,
}

/// A request to an acceptor. `origin` says that it carries the record's certified birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ask {
    Prepare { ballot: u8, origin: bool },
    Accept { ballot: u8, next: u8, origin: bool },
    Read,
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Said {
    /// With the accepted ballot, 0 for none.
    Promise(u8),
    Accepted,
    Higher,
    State(u8),
    /// "I do not know this record": not "it is empty".
    Unknown,
    Refused,
}

/// The real ballots behind the numbers. Those of one proposer come in pairs: (1, 2) is the minter's first
/// and its fast right to the next, (3, 4) those of another proposer; 5 and 6 are proposers of their own.
pub fn real_ballot(number: u8) -> Ballot {
    let (round, proposer, boot) = match number {
        0 => (0, "", 0),
        1 => (1, "h1", 1),
        2 => (2, "h1", 1),
        3 => (2, "h2", 1),
        4 => (3, "h2", 1),
        5 => (3, "h3", 1),
        n => (u64::from(n) - 2, "h1", 2),
    };
    Ballot { round, proposer: proposer.into(), boot }
}

/// The ballot that an accept under this one asks to be promised along with it; 0 for none.
pub fn fast_right(ballot: u8) -> u8 {
    match ballot {
        1 => 2,
        3 => 4,
        _ => 0,
    }
}

fn ballot_number(ballot: &Ballot) -> u8 {
    (0..16).find(|n| real_ballot(*n) == *ballot).expect("a ballot of the models")
}

/// The value under a ballot: a job's record whose version tells which.
fn bytes_of(ballot: u8) -> Encoded {
    let record = JobRecord { version: u64::from(ballot), ..new_job() };
    Value::job(record).encode().expect("small")
}

fn request(ask: Ask, store: StoreId) -> RegisterRequest {
    let birth = new_job().birth;
    let origin = Origin::Job(birth);
    let key = origin.key();
    let with = |origin_too: bool| origin_too.then(|| origin.clone());
    let body = match ask {
        Ask::Prepare { ballot, origin } => {
            RegisterBody::Prepare { ballot: real_ballot(ballot), origin: with(origin) }
        }
        Ask::Accept { ballot, next, origin } => RegisterBody::Accept {
            ballot: real_ballot(ballot),
            value: bytes_of(ballot),
            next: (next > 0).then(|| real_ballot(next)),
            origin: with(origin),
        },
        Ask::Read => RegisterBody::Read,
    };
    RegisterRequest { op: 1, key, generation: 0, store, body }
}

fn handle(acceptor: &mut Acceptor, ask: Ask, store: StoreId) -> Said {
    let room = Room { disk_full: false, jobs_max: 10 };
    let of = |accepted: Option<(Ballot, Encoded)>| accepted.map_or(0, |(b, _)| ballot_number(&b));
    match acceptor.handle((&name("h1"), STORE), &name("h2"), &request(ask, store), room).answer {
        AnswerBody::Promise { accepted, .. } => Said::Promise(of(accepted)),
        AnswerBody::Accepted { .. } => Said::Accepted,
        AnswerBody::Higher { .. } => Said::Higher,
        AnswerBody::State { accepted } => Said::State(of(accepted)),
        AnswerBody::Unknown => Said::Unknown,
        AnswerBody::Refused { .. } | AnswerBody::Moved { .. } | AnswerBody::Forgotten => Said::Refused,
    }
}

/// An acceptor that real requests have led to this slot.
fn real_acceptor(slot: Slot) -> Acceptor {
    let mut acceptor = Acceptor::default();
    if slot.accepted > 0 {
        handle(&mut acceptor, Ask::Accept { ballot: slot.accepted, next: 0, origin: true }, STORE);
    }
    if slot.promised > slot.accepted {
        handle(&mut acceptor, Ask::Prepare { ballot: slot.promised, origin: true }, STORE);
    }
    acceptor
}

fn small_slot(acceptor: &Acceptor) -> Slot {
    match acceptor.slot(&Origin::Job(new_job().birth).key()) {
        None => Slot::default(),
        Some(slot) => Slot {
            known: true,
            promised: ballot_number(&slot.promised),
            accepted: slot.accepted.as_ref().map_or(0, |(b, _)| ballot_number(b)),
        },
    }
}

/// `Acceptor::handle`, asked as the disk that it is (`own`) or as another one.
pub fn accept(slot: Slot, ask: Ask, own: bool) -> (Slot, Said) {
    type Known = HashMap<(Slot, Ask, bool), (Slot, Said)>;
    thread_local!(static MEMORY: RefCell<Known> = RefCell::default());
    let work = || {
        let mut acceptor = real_acceptor(slot);
        let said = handle(&mut acceptor, ask, if own { STORE } else { OTHER_STORE });
        (small_slot(&acceptor), said)
    };
    MEMORY.with(|memory| remembered(memory, (slot, ask, own), work))
}

/// The id of the models' contact record is certified like any other.
pub fn contact_is_certified() -> bool {
    let contact = real_contact(Contact { incarnation: 1, nonce: 1, held: true });
    let id = contact_id(&contact.cluster, contact.series, &contact.homes);
    Origin::Contact(contact.cluster, contact.series, contact.homes.to_vec()).key()
        == starling::core::message::RecordKey::Contact(id)
}

/// One real acceptor's answers to requests in a row, and where they leave it.
pub fn walk(asks: &[(Ask, bool)]) -> (Slot, Vec<Said>) {
    let mut acceptor = Acceptor::default();
    let store = |own: bool| if own { STORE } else { OTHER_STORE };
    let said = asks.iter().map(|(ask, own)| handle(&mut acceptor, *ask, store(*own))).collect();
    (small_slot(&acceptor), said)
}
