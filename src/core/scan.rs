//! Which jobs this disk holds, newest first, without looking at all of them: an index by the time of submission, one
//! over all jobs and one per tenant; and which of them were submitted with an idempotency key.

use std::collections::{BTreeMap, BTreeSet};

use super::acceptor::Acceptor;
use super::api::JobFilter;
use super::value::Value;
use crate::base::{JobId, KeyId, WallTime};
use crate::model::JobRecord;

/// When a job was submitted, and which: the order of every list.
type At = (WallTime, JobId);

/// Jobs by time, and by key.
#[derive(Debug, Clone, Default)]
pub(super) struct ByTime {
    all: BTreeSet<At>,
    by_tenant: BTreeMap<String, BTreeSet<At>>,
    by_key: BTreeSet<(KeyId, JobId)>,
}

impl ByTime {
    /// A value takes the place of another one of the same register.
    pub fn replace(&mut self, before: Option<&Value>, after: Option<&Value>) {
        let place = |value: Option<&Value>| match value {
            Some(Value::Job(record)) => Some(((record.submitted_at, record.id()), record.clone())),
            _ => None,
        };
        let same = match (before, after) {
            (Some(Value::Job(a)), Some(Value::Job(b))) => {
                a.submitted_at == b.submitted_at
                    && a.spec.tenant == b.spec.tenant
                    && a.birth == b.birth
                    && a.key == b.key
            }
            (before, after) => before.is_none() && after.is_none(),
        };
        if same {
            return;
        }
        if let Some((at, record)) = place(before) {
            if let Some(key) = record.key {
                self.by_key.remove(&(key, at.1));
            }
            self.all.remove(&at);
            if let Some(of_tenant) = self.by_tenant.get_mut(&record.spec.tenant) {
                of_tenant.remove(&at);
                if of_tenant.is_empty() {
                    self.by_tenant.remove(&record.spec.tenant);
                }
            }
        }
        if let Some((at, record)) = place(after) {
            if let Some(key) = record.key {
                self.by_key.insert((key, at.1));
            }
            self.all.insert(at);
            self.by_tenant.entry(record.spec.tenant.clone()).or_default().insert(at);
        }
    }

    /// Ids newest first, of one tenant or of all, older than `before`.
    fn newest(&self, tenant: Option<&String>, before: Option<At>) -> impl Iterator<Item = At> {
        use std::ops::Bound::{Excluded, Unbounded};
        let set = match tenant {
            Some(tenant) => self.by_tenant.get(tenant),
            None => Some(&self.all),
        };
        let to = before.map_or(Unbounded, Excluded);
        set.into_iter().flat_map(move |set| set.range((Unbounded, to)).rev().copied())
    }
}

impl Acceptor {
    /// The newest job of an idempotency key, as this disk accepted it last. A key may come again once it is over.
    pub fn of_key(&self, key: &KeyId) -> Option<&JobRecord> {
        let of_key = (*key, JobId([0; 20]))..=(*key, JobId([0xff; 20]));
        let jobs = self.by_time().by_key.range(of_key).filter_map(|(_, id)| self.job(id));
        jobs.max_by_key(|record| (record.submitted_at, record.id()))
    }

    /// The newest jobs that the filter lets through, as this disk accepted them last.
    pub fn scan(&self, filter: &JobFilter) -> Vec<&JobRecord> {
        let keep = |r: &&JobRecord| {
            filter.reservations == r.is_reservation()
                && (filter.states.is_empty() || filter.states.contains(&r.state))
                && filter.tenant.as_ref().is_none_or(|t| r.spec.tenant == *t)
                && filter.since.is_none_or(|since| r.submitted_at >= since)
                && match filter.array {
                    Some(array) => {
                        r.array_of.is_some_and(|of| of.parent == array)
                            || r.group_of.as_ref().is_some_and(|of| of.parent == array)
                    }
                    None => {
                        filter.prefix.is_some()
                            || filter.touched.is_some()
                            || (r.array_of.is_none() && r.group_of.is_none())
                    }
                }
                && filter.touched.as_ref().is_none_or(|(cluster, since)| r.touched_by(cluster, *since))
        };
        if let Some(prefix) = &filter.prefix {
            // An id's text sorts as its bytes do.
            let named = self.jobs_from(JobId::first_of(prefix));
            let named = named.take_while(|(id, _)| id.to_string().starts_with(prefix.as_str()));
            let mut jobs: Vec<&JobRecord> = named.map(|(_, r)| r).filter(keep).take(filter.limit).collect();
            jobs.sort_by_key(|r| std::cmp::Reverse((r.submitted_at, r.id())));
            return jobs;
        }
        let until = filter.until.map(|until| (until, JobId([0; 20])));
        let before = [until, filter.before].into_iter().flatten().min();
        let newest = self.by_time().newest(filter.tenant.as_ref(), before);
        newest
            .take_while(|(at, _)| filter.since.is_none_or(|since| *at >= since))
            .filter_map(|(_, id)| self.job(&id))
            .filter(keep)
            .take(filter.limit)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::acceptor::Room;
    use super::super::message::{Ballot, Origin, RecordKey, RegisterBody, RegisterRequest};
    use super::super::testing::{name, spec};
    use super::*;
    use crate::base::{BoundedVec, Home, StoreId, TraceId};
    use crate::model::JobState;
    use crate::model::record::{Birth, CancelIntent, Change};

    const STORE: StoreId = StoreId([1; 16]);

    fn record(sequence: u64, tenant: &str, at: u64) -> JobRecord {
        let homes = BoundedVec::try_from(vec![Home { peer: name("a"), store: STORE }]).expect("one");
        let birth = Birth { tenant: tenant.into(), minter: name("a"), sequence, homes };
        let spec = crate::model::spec::JobSpec { tenant: tenant.into(), ..spec() };
        JobRecord::new(birth, spec, TraceId::default(), WallTime(at))
    }

    fn accept(acceptor: &mut Acceptor, record: &JobRecord, round: u64) {
        let key = RecordKey::Job(record.id());
        let value = Value::Job(Arc::new(record.clone())).encode().expect("fits");
        let ballot = Ballot { round, proposer: "a".into(), boot: 1 };
        let origin = Some(Origin::Job(record.birth.clone()));
        let body = RegisterBody::Accept { ballot, value, next: None, origin };
        let request = RegisterRequest { op: 1, key, generation: 0, store: STORE, body };
        let room = Room { disk_full: false, jobs_max: 1_000_000 };
        let me = name("a");
        assert!(acceptor.handle((&me, STORE), &me, &request, room).accepted);
    }

    #[test]
    fn pages_are_in_order_whole_and_bounded() {
        let mut acceptor = Acceptor::default();
        let all: Vec<JobRecord> =
            (0..300).map(|n| record(n + 1, ["x", "y", "z"][n as usize % 3], 1_000 + n / 7)).collect();
        for r in &all {
            accept(&mut acceptor, r, 1);
        }
        let ended =
            all[5].apply(&Change::Cancel { intent: CancelIntent { by: "u".into(), at: WallTime(9) } });
        accept(&mut acceptor, &ended.expect("pending"), 2);
        let mut expected: Vec<At> = all.iter().map(|r| (r.submitted_at, r.id())).collect();
        expected.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
        let places =
            |jobs: &[&JobRecord]| -> Vec<At> { jobs.iter().map(|r| (r.submitted_at, r.id())).collect() };
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = acceptor.scan(&JobFilter { before, limit: 37, ..JobFilter::default() });
            assert!(page.len() <= 37);
            let Some(last) = page.last() else { break };
            before = Some((last.submitted_at, last.id()));
            seen.extend(places(&page));
        }
        assert_eq!(seen, expected);
        let filter = JobFilter {
            tenant: Some("y".into()),
            since: Some(WallTime(1_010)),
            until: Some(WallTime(1_020)),
            limit: 1_000,
            ..JobFilter::default()
        };
        let found = acceptor.scan(&filter);
        let wanted =
            all.iter().filter(|r| r.spec.tenant == "y" && (1_010..1_020).contains(&r.submitted_at.0));
        assert_eq!(found.len(), wanted.count());
        let states = [JobState::Cancelled].into();
        let cancelled = acceptor.scan(&JobFilter { states, limit: 10, ..JobFilter::default() });
        assert_eq!(places(&cancelled), [(all[5].submitted_at, all[5].id())]);
        let id = all[99].id();
        for length in 1..=32 {
            let prefix = id.to_string()[..length].to_owned();
            let wanted = all.iter().filter(|r| r.id().to_string().starts_with(&prefix)).count();
            let filter = JobFilter { prefix: Some(prefix), limit: 1_000, ..JobFilter::default() };
            assert_eq!(acceptor.scan(&filter).len(), wanted);
        }
        acceptor.forget(&all[5].id());
        assert_eq!(acceptor.scan(&JobFilter { limit: 1_000, ..JobFilter::default() }).len(), 299);
    }
}
