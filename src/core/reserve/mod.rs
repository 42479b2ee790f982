//! Reservations: GPUs kept for a tenant for a time, at one cluster or several.
//!
//! `keep` is a cluster's half: it pins GPUs, puts that on disk, and ends it by its own clock. `gather` is the owner's: it
//! asks the clusters one after the other and confirms with one swap. What a record's changes mean is `model::reserve`;
//! what the queue makes of what is pinned, `schedule::promised`. docs/reservations.md has the messages and the faults.

mod gather;
mod keep;

use serde::{Deserialize, Serialize};

use super::api::ClientError;
use super::message::SPEAKS_RESERVE;
use super::peer::Peer;
use super::propose::OpResult;
use crate::base::{JobId, PeerName, WallTime};
use crate::model::record::Birth;
use crate::model::reserve::{Asked, At};
use crate::model::spec::JobSpec;
pub(super) use gather::Gatherings;
pub(super) use keep::{Keeping, reserved_words};

/// Words about a reservation between its owner and a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReserveWord {
    /// Owner to cluster: hold this. Repeated until the record says what becomes of it.
    Hold {
        /// Certifies the id, and names the homes and the tenant.
        birth: Birth,
        /// What.
        asked: Asked,
        /// Under which round of the record.
        round: u64,
    },
    /// Cluster to owner: held, on disk.
    Held {
        /// Which reservation.
        id: JobId,
        /// Under which round.
        round: u64,
    },
    /// Cluster to owner: not held.
    Not {
        /// Which reservation.
        id: JobId,
        /// Under which round.
        round: u64,
        /// Why.
        why: String,
        /// From when on it could be.
        #[serde(default)]
        next: Option<WallTime>,
        /// One that is not confirmed yet is in the way: ask again.
        #[serde(default)]
        later: bool,
    },
    /// Owner to cluster: no longer, unless the record says otherwise.
    Drop {
        /// Which reservation.
        id: JobId,
    },
}

/// Why a reservation's record was asked.
#[derive(Debug, Clone, Copy)]
pub enum ReservePurpose {
    /// The owner changed it.
    Changed(JobId),
    /// A cluster that keeps a part reads it, or lets go.
    Seen(JobId),
}

impl Peer {
    pub(super) fn reserve_done(&mut self, purpose: ReservePurpose, result: OpResult) {
        match purpose {
            ReservePurpose::Changed(job) => self.reservation_changed(job, result),
            ReservePurpose::Seen(job) => self.reservation_read(job, result),
        }
    }

    /// It reads words about reservations.
    fn reads_reservations(&self, peer: &PeerName) -> bool {
        *peer == self.cfg.name || self.wire_of(peer).is_some_and(|wire| wire >= SPEAKS_RESERVE)
    }

    /// Why a reservation cannot be taken; nothing is stored then.
    pub(super) fn can_reserve(&mut self, spec: &JobSpec) -> Result<(), ClientError> {
        let Some(reserve) = &spec.reserve else { return Ok(()) };
        let refuse = |why: String| Err(ClientError::NoReservation(why));
        let older: Vec<&str> =
            self.view.members.keys().filter(|p| !self.reads_reservations(p)).map(PeerName::as_str).collect();
        if !older.is_empty() {
            return refuse(format!(
                "{} run a version that knows no reservations, or have not said which: upgrade them first",
                older.join(", ")
            ));
        }
        if let At::Named(names) = &reserve.at {
            let unknown = names.iter().find(|n| self.view.members.get(*n).is_none_or(|m| m.witness));
            if let Some(name) = unknown {
                return refuse(format!("{name} is no cluster of this mesh"));
            }
        }
        let all = u64::from(spec.nodes).saturating_mul(reserve.at.count() as u64);
        if let Some(most) = self.gpus_at_once(&spec.tenant).filter(|most| all > *most) {
            let tenant = &spec.tenant;
            return Err(ClientError::OverQuota(format!(
                "tenant {tenant} may use {most} GPUs at most, the reservation asks for {all}"
            )));
        }
        Ok(())
    }
}
