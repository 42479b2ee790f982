//! What a register operation is for: where its result goes.

use super::api::{AttemptKey, ClientRequest};
use super::peer::Peer;
use super::propose::OpResult;
use super::reserve::ReservePurpose;
use super::tenants::TenantPurpose;
use crate::base::{ContactId, Instant, JobId, WallTime};
use crate::model::record::ContactRecord;

/// Where an operation's result goes.
#[derive(Debug, Clone)]
pub enum Purpose {
    /// Nobody waits for it.
    Nothing,
    /// A user's submit.
    Submit {
        /// Whom to answer.
        token: u64,
        /// The job.
        job: JobId,
        /// When the request came, and when it was proposed.
        begun: (WallTime, WallTime),
        /// It was there before this request.
        existed: bool,
    },
    /// A user's read, cancel or publish.
    Client {
        /// Whom to answer.
        token: u64,
        /// The job.
        job: JobId,
        /// What was asked.
        request: Box<ClientRequest>,
        /// When it was proposed.
        begun: WallTime,
    },
    /// The owner places a job.
    Place(JobId),
    /// The owner reads a record to refresh its hint.
    OwnerRead,
    /// A home that does not act reads a record that it may be alone to hold.
    Unsettled(JobId),
    /// The owner frees a job whose cluster was given up.
    Free(JobId),
    /// An observer reads a contact it has not seen yet.
    Observe(ContactId),
    /// An observer takes an incarnation over on behalf of this job.
    TakeOver(ContactId, JobId, Instant),
    /// This cluster begins a contact record.
    ContactCreate(Box<ContactRecord>),
    /// This cluster renews.
    Renew {
        /// Which contact.
        contact: ContactId,
        /// Its incarnation then.
        incarnation: u64,
        /// When the first request left.
        sent_at: Instant,
    },
    /// This cluster claims the next incarnation.
    ContactClaim {
        /// Which contact.
        contact: ContactId,
        /// When the first request left.
        sent_at: Instant,
    },
    /// The executor looks at a record that somebody said concerns it.
    Look(JobId),
    /// The executor moves a binding.
    Rebind(AttemptKey, (ContactId, u64)),
    /// The executor says that the attempt runs.
    Started(AttemptKey),
    /// The executor says how the attempt ended.
    Close(AttemptKey),
    /// The sweep moves a record to other homes.
    MoveHomes(JobId),
    /// The sweep puts a final value on all homes, to forget it then.
    ForgetSettled(JobId),
    /// All homes were told to forget it.
    Forgotten(JobId),
    /// The owner reads a job that another waits for.
    After {
        /// Which waits.
        job: JobId,
        /// For which of its `after`.
        which: u32,
    },
    /// The owner makes, reads or cancels a job of an array.
    ArrayChild {
        /// Which array.
        job: JobId,
        /// Which of its jobs.
        rank: u32,
    },
    /// The owner changed an array, or a job that waits.
    ArrayChanged(JobId),
    /// About a tenant's ledger.
    Tenant(TenantPurpose),
    /// About a reservation.
    Reserve(ReservePurpose),
    /// The owner changed or read the record of a job with groups.
    GroupsJob(JobId),
    /// The owner places all groups of a job.
    GroupsPlace(JobId),
    /// The owner made, read or changed the record of a group.
    Group {
        /// Of which job.
        job: JobId,
        /// Which.
        index: u32,
    },
}

impl Peer {
    /// Hands a finished operation to whoever asked for it.
    pub(super) fn op_done(&mut self, purpose: Purpose, result: OpResult) {
        match purpose {
            Purpose::Nothing => {}
            Purpose::Submit { token, job, begun, existed } => {
                self.client_submitted(token, job, begun, existed, result);
            }
            Purpose::Client { token, job, request, begun } => {
                self.client_done(token, job, *request, begun, result);
            }
            Purpose::Place(job) => self.owner_placed(job, result),
            Purpose::OwnerRead => self.owner_read(result),
            Purpose::Unsettled(job) => self.unsettled_read(job, result),
            Purpose::Free(job) => self.owner_freed(job, result),
            Purpose::Observe(contact) => self.observe_result(contact, result),
            Purpose::TakeOver(contact, job, since) => self.took_over(contact, Some(job), since, result),
            Purpose::ContactCreate(record) => self.contact_created(*record, result),
            Purpose::Renew { contact, incarnation, sent_at } => {
                self.renewed(contact, incarnation, sent_at, result)
            }
            Purpose::ContactClaim { contact, sent_at } => self.contact_claimed(contact, sent_at, result),
            Purpose::Look(job) => self.looked(job, result),
            Purpose::Rebind(key, to) => self.rebound(key, to, result),
            Purpose::Started(key) => self.started_recorded(key, result),
            Purpose::Close(key) => self.closed_recorded(key, result),
            Purpose::MoveHomes(job) => self.homes_moved(job, result),
            Purpose::ForgetSettled(job) => self.forget_settled(job, result),
            Purpose::Forgotten(job) => self.job_forgotten(job, &result),
            Purpose::After { job, which } => self.after_read(job, which, result),
            Purpose::ArrayChild { job, rank } => self.child_asked(job, rank, result),
            Purpose::ArrayChanged(job) => self.array_changed(job, result),
            Purpose::Tenant(purpose) => self.tenant_done(purpose, result),
            Purpose::Reserve(purpose) => self.reserve_done(purpose, result),
            Purpose::GroupsJob(job) => self.groups_read(job, result),
            Purpose::GroupsPlace(job) => self.groups_placed(job, result),
            Purpose::Group { job, index } => self.group_asked(job, index, result),
        }
    }
}
