//! Moving the bindings of living attempts to another contact or incarnation.

use super::*;

impl Peer {
    /// Moves the bindings of living attempts to the newest contact and incarnation, each by a swap on
    /// the job's record. The guard stops by itself what is past its own grace.
    ///
    /// From before the swap leaves until its outcome is known the attempt lives by the older of both contacts'
    /// renewals: the record may name either, and its homes time that one alone.
    pub(in crate::core) fn rebind_attempts(&mut self) {
        let pending = |a: &Attempt| a.phase != Phase::Closed && a.row.moving_to.is_some() && !a.rebinding;
        let again: Vec<AttemptKey> =
            self.exec.attempts.iter().filter(|(_, a)| pending(a)).map(|(k, _)| *k).collect();
        for key in again {
            // This peer may have been started anew before the guard was told.
            self.guard_follows_both(key);
            self.propose_rebind(key);
        }
        let Some(newest) = self.contact_fresh() else { return };
        let (to, renewed) = ((newest.id, newest.incarnation), newest.renewed);
        let (series, homes) = (newest.series, newest.homes.clone());
        // The new one must not be older than what the attempt lives by now, or its end would have to move back.
        let old_enough = |from: &(ContactId, u64)| {
            let old = self.contacts.get(&from.0).filter(|c| c.incarnation == from.1).and_then(|c| c.renewed);
            old.is_none_or(|old| renewed.is_some_and(|new| new >= old))
        };
        let due: Vec<AttemptKey> = self
            .exec
            .attempts
            .iter()
            .filter(|(_, a)| a.phase != Phase::Closed && a.row.binding != to && a.row.moving_to.is_none())
            .filter(|(_, a)| old_enough(&a.row.binding))
            .filter(|(_, a)| self.quota_follows(&a.row.spec.tenant, to))
            .map(|(k, _)| *k)
            .collect();
        for key in due {
            let Some(attempt) = self.exec.attempts.get_mut(&key) else { continue };
            attempt.row.moving_to = Some(NextBinding { to, series, homes: homes.clone() });
            self.save(key);
            self.guard_follows_both(key);
            self.propose_rebind(key);
        }
    }

    fn guard_follows_both(&mut self, key: AttemptKey) {
        let Some(attempt) = self.exec.attempts.get(&key) else { return };
        let (Some(next), and) = (&attempt.row.moving_to, Some(attempt.row.binding)) else { return };
        let to = next.to;
        self.backend(BackendCommand::Rebind { key, to, and });
    }

    pub(super) fn propose_rebind(&mut self, key: AttemptKey) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        let Some(NextBinding { to, series, homes }) = attempt.row.moving_to.clone() else { return };
        attempt.rebinding = true;
        let (from, origin) = (attempt.row.binding, Origin::Job(attempt.row.birth.clone()));
        let change = Change::Rebind { epoch: key.epoch, from, to, series, homes };
        self.propose(origin, Task::Job(change), Purpose::Rebind(key, to), PATIENCE);
    }

    pub(in crate::core) fn rebound(&mut self, key: AttemptKey, to: (ContactId, u64), result: OpResult) {
        let Some(attempt) = self.exec.attempts.get_mut(&key) else { return };
        attempt.rebinding = false;
        match result {
            OpResult::Value { refused: None, .. } => {
                attempt.row.binding = to;
                attempt.row.moving_to = None;
                if attempt.phase != Phase::Closed {
                    self.save(key);
                    self.backend(BackendCommand::Rebind { key, to, and: None });
                }
            }
            OpResult::Value { refused: Some(_), .. } | OpResult::Forgotten => self.look_again(key.job),
            // Unknown: the next renewal asks again, until it is known.
            _ => {}
        }
    }
}
