//! What each change to a job with groups does, and that no order of them, by owners that know little, lets two epochs run.

use super::*;
use crate::base::{BoundedVec, ContactId, Home, PeerName, Rng, StoreId, TraceId};
use crate::model::record::{Birth, CancelIntent, Change};
use crate::model::spec_input::parse_spec;

const SPEC: &str = "name: pair\nrun: x\ncommunication: async\nretries: 2\ngroups:\n- {name: left, nodes: 2, resources: \
                    {gpus: 4}}\n- {name: right, resources: {gpus: 1}}\n- {name: third}\n";

fn homes() -> BoundedVec<Home, 5> {
    let home = Home { peer: PeerName::new("a").expect("a name"), store: StoreId([1; 16]) };
    vec![home].try_into().expect("one")
}

fn parent() -> JobRecord {
    let birth = Birth {
        tenant: "default".into(),
        minter: PeerName::new("a").expect("a name"),
        sequence: 1,
        homes: homes(),
    };
    JobRecord::new(birth, parse_spec(SPEC.as_bytes()).expect("a spec").spec, TraceId([1; 16]), WallTime(1))
}

fn at(cluster: &str) -> Placement {
    Placement {
        cluster: PeerName::new(cluster).expect("a name"),
        contact: ContactId([7; 20]),
        incarnation: 1,
        series: 1,
        contact_homes: BoundedVec::default(),
        at: WallTime(2),
    }
}

fn place(epoch: u64) -> Change {
    let placements = ["c", "d", "c"].map(at).to_vec();
    Change::Groups(GroupsChange::Place { epoch: Epoch(epoch), placements, homes: homes() })
}

fn seen(epoch: u64, ended: &[(u32, Outcome)]) -> Change {
    let (started, ended) = (vec![0, 1, 2], ended.to_vec());
    Change::Groups(GroupsChange::Seen { epoch: Epoch(epoch), started, ended, at: WallTime(5) })
}

fn after(mut record: JobRecord, changes: &[Change]) -> JobRecord {
    for change in changes {
        record = record.apply(change).expect("holds");
        assert!(record.reflects(change), "{change:?}");
    }
    record
}

const OK: Outcome = Outcome::Exited(0);

/// Those of the job's birth may be gone when capacity comes free: their ids say where the groups are born, for good.
#[test]
fn groups_are_born_where_the_jobs_record_is_when_it_is_first_placed() {
    let born: BoundedVec<Home, 5> = homes();
    let home = |name: &str, n| Home { peer: PeerName::new(name).expect("a name"), store: StoreId([n; 16]) };
    let [later, last] = ["d", "e"].map(|n| vec![home(n, 4)].try_into().expect("one"));
    let mut job = parent();
    assert_eq!(job.group(0).expect("certified").birth.homes, born);
    job.moved_to = Some(later);
    let first = job.group(0).expect("certified");
    assert_eq!(first.birth.homes, job.moved_to.clone().expect("moved"));
    assert_ne!(first.id(), parent().group(0).expect("certified").id());
    let placements = ["c", "d", "c"].map(at).to_vec();
    let place = GroupsChange::Place { epoch: Epoch(1), placements, homes: job.group_homes() };
    let mut job = after(job, &[Change::Groups(place)]);
    job.moved_to = Some(last);
    assert_eq!(job.group(0).expect("certified").id(), first.id(), "once placed they are what they are");
    // A record that was placed before this was written down.
    job.groups.as_mut().expect("groups").homes = None;
    assert_eq!(job.group(0).expect("certified").birth.homes, born);
}

#[test]
fn all_groups_are_placed_by_one_change_or_none() {
    let job = parent();
    let some =
        Change::Groups(GroupsChange::Place { epoch: Epoch(1), placements: vec![at("c")], homes: homes() });
    assert_eq!(job.apply(&some), Err(Refused::Stale(Epoch(1))));
    assert_eq!(job.apply(&place(2)), Err(Refused::Stale(Epoch(2))));
    let one = Change::Place { placement: at("c"), epoch: Epoch(1) };
    assert!(matches!(job.apply(&one), Err(Refused::Held(_))), "never like a job without groups");
    let placed = after(job, &[place(1)]);
    assert_eq!(placed.groups_at(), "left at c, right at d, third at c");
    assert!(matches!(placed.apply(&place(2)), Err(Refused::Placed(_, Epoch(1)))));
    let runs = after(placed, &[seen(1, &[])]);
    assert_eq!((runs.state, runs.placement.is_none()), (JobState::Running, true));
    // Not before all of them are closed.
    let some = after(runs, &[seen(1, &[(0, OK), (2, Outcome::Exited(3))])]);
    assert!(some.groups_halt() && matches!(some.apply(&place(2)), Err(Refused::Placed(..))));
    let all = after(some, &[seen(1, &[(1, Outcome::Stopped("halt".into()))])]);
    assert_eq!(
        (all.state, all.failures, all.attempts.last().and_then(|a| a.outcome.clone())),
        (JobState::Pending, 1, Some(Outcome::Exited(3)))
    );
    assert!(all.reason.contains("group third"), "{}", all.reason);
    let again = after(all, &[place(2)]);
    assert_eq!(again.apply(&seen(1, &[])), Err(Refused::Stale(Epoch(1))), "an owner that knows less");
}

#[test]
fn it_ends_when_its_groups_records_say_so() {
    let done = after(parent(), &[place(1), seen(1, &[(0, OK), (1, OK), (2, OK)])]);
    assert_eq!(
        (done.state, done.groups.as_ref().and_then(|g| g.ending)),
        (JobState::Running, Some(JobState::Succeeded))
    );
    assert_eq!(done.apply(&place(2)), Err(Refused::Cancelled));
    // A cancel that comes now is too late, as it is for a job that has exited with 0.
    let intent = CancelIntent { by: "me".into(), at: WallTime(8) };
    let late = after(done, &[Change::Cancel { intent: intent.clone() }]);
    let over = after(late, &[Change::Groups(GroupsChange::Over { at: WallTime(9) })]);
    assert_eq!((over.state, over.finished_at), (JobState::Succeeded, Some(WallTime(9))));
    // Never placed: at once. Else its groups stop first.
    let cancel = Change::Cancel { intent };
    assert_eq!(after(parent(), std::slice::from_ref(&cancel)).state, JobState::Cancelled);
    let stops = after(parent(), &[place(1), cancel]);
    assert!(stops.groups_halt() && !stops.state.is_final());
    let stopped = Outcome::Stopped("halt".into());
    let ended = [(0, stopped.clone()), (1, stopped.clone()), (2, stopped)];
    let over = after(stops, &[seen(1, &ended), Change::Groups(GroupsChange::Over { at: WallTime(9) })]);
    assert_eq!(over.state, JobState::Cancelled);
}

#[test]
fn a_group_that_lost_its_peers_did_not_fail_by_itself() {
    let job = after(parent(), &[place(1), seen(1, &[(0, Outcome::Exited(1))])]);
    let job = after(job, &[seen(1, &[(1, Outcome::Lost), (2, Outcome::Stopped("halt".into()))])]);
    assert_eq!((job.failures, job.losses, job.state), (0, 1, JobState::Pending));
}

#[test]
fn a_groups_record_begins_halts_and_ends_on_the_jobs_word_alone() {
    let job = parent();
    let group = job.group(1).expect("it has three");
    assert_eq!(group.id(), job.child_birth(1).expect("certified").id());
    assert_eq!(job.group(1), Some(group.clone()), "whoever makes it");
    assert!(job.group(3).is_none());
    assert_eq!((group.spec.name.as_str(), group.spec.resources.gpus), ("pair-right", 1));
    assert_eq!(group.spec.env["STARLING_GROUP"], "right");
    let begin = |epoch| {
        Change::Groups(GroupsChange::Begin { epoch: Epoch(epoch), placement: at("d"), clusters: Vec::new() })
    };
    let halt =
        |epoch| Change::Groups(GroupsChange::Halt { epoch: Epoch(epoch), why: "w".into(), at: WallTime(4) });
    let close = |epoch, outcome| Change::Close {
        epoch: Epoch(epoch),
        outcome,
        started_at: None,
        at: WallTime(3),
        note: None,
        nodes: None,
    };
    let intent = CancelIntent { by: "me".into(), at: WallTime(8) };
    assert!(matches!(group.apply(&Change::Cancel { intent }), Err(Refused::Held(_))));
    assert!(matches!(
        group.apply(&Change::Place { placement: at("d"), epoch: Epoch(1) }),
        Err(Refused::Held(_))
    ));
    let runs =
        after(group.clone(), &[begin(1), Change::Started { epoch: Epoch(1), at: WallTime(3), nodes: None }]);
    assert!(matches!(runs.apply(&begin(2)), Err(Refused::Placed(..))), "one attempt at a time");
    // Its end is not the job's.
    let ended = after(runs.clone(), &[close(1, OK)]);
    assert_eq!((ended.state, ended.placement.clone()), (JobState::Pending, None));
    assert_eq!(ended.apply(&begin(1)), Err(Refused::Stale(Epoch(1))));
    // What was halted before it began never begins; what runs is told so.
    let burned = after(group, &[halt(1)]);
    assert_eq!(burned.apply(&begin(1)), Err(Refused::Stale(Epoch(1))));
    assert_eq!(after(burned, &[begin(2)]).epoch, Epoch(2));
    let stops = after(runs, &[halt(1)]);
    assert!(stops.halted());
    // Given up, it stays so: the job has gone on without it.
    let free = Change::Free { epoch: Epoch(1), contact: ContactId([7; 20]), incarnation: 1, at: WallTime(4) };
    let lost = after(stops, &[free]);
    assert_eq!(lost.apply(&close(1, OK)), Err(Refused::Stale(Epoch(1))));
    assert!(!after(lost.clone(), &[begin(2)]).halted());
    let finish = Change::Groups(GroupsChange::Finish {
        state: JobState::Failed,
        reason: "over".into(),
        at: WallTime(9),
    });
    assert_eq!(after(lost, &[finish]).state, JobState::Failed);
}

/// The registers of a job and its groups, what runs, and two owners that know some of it.
struct Walk {
    job: JobRecord,
    kids: Vec<JobRecord>,
    runs: Vec<Option<u64>>,
    ran: Vec<u64>,
    owners: [(JobRecord, Vec<JobRecord>); 2],
    /// Planted: an owner takes a group for closed that it has not seen closed.
    guesses: bool,
}

impl Walk {
    fn change(record: &mut JobRecord, change: GroupsChange) {
        if let Ok(next) = record.apply(&Change::Groups(change)) {
            *record = next;
        }
    }

    fn close(&mut self, k: usize, outcome: Outcome) {
        let Some(epoch) = self.runs[k].take() else { return };
        let close = Change::Close {
            epoch: Epoch(epoch),
            outcome,
            started_at: None,
            at: WallTime(3),
            note: None,
            nodes: None,
        };
        if let Ok(next) = self.kids[k].apply(&close) {
            self.kids[k] = next;
        }
    }

    /// An owner does one thing, from what it knows.
    fn act(&mut self, o: usize, rng: &mut Rng) {
        let (job, kids) = self.owners[o].clone();
        let state = job.groups.clone().expect("it has groups");
        let (epoch, wall) = (job.epoch, WallTime(6));
        if let Some(ending) = state.ending {
            for kid in &mut self.kids {
                Self::change(kid, GroupsChange::Finish { state: ending, reason: "over".into(), at: wall });
            }
            return;
        }
        if !state.under_way() {
            let placements = ["c", "d", "c"].map(at).to_vec();
            return Self::change(
                &mut self.job,
                GroupsChange::Place { epoch: epoch.next(), placements, homes: homes() },
            );
        }
        let k = rng.below(3) as usize;
        let halt = GroupsChange::Halt { epoch, why: "halt".into(), at: wall };
        if kids[k].epoch < epoch {
            let begin = GroupsChange::Begin {
                epoch,
                placement: state.placed[k].placement.clone(),
                clusters: Vec::new(),
            };
            Self::change(&mut self.kids[k], if job.groups_halt() { halt } else { begin });
        } else if kids[k].epoch == epoch && (kids[k].placement.is_none() || self.guesses) {
            let of = kids[k].attempts.last().and_then(|a| a.outcome.clone());
            let ended = vec![(k as u32, of.unwrap_or(Outcome::Lost))];
            Self::change(&mut self.job, GroupsChange::Seen { epoch, started: Vec::new(), ended, at: wall });
        } else if job.groups_halt() {
            Self::change(&mut self.kids[k], halt);
        }
    }

    /// Runs of many steps; the first epochs that ran at once and should not have.
    fn walk(guesses: bool, seed: u64) -> (Option<String>, usize) {
        let job = parent();
        let kids: Vec<JobRecord> = (0..3).filter_map(|i| job.group(i)).collect();
        let owners = [(job.clone(), kids.clone()), (job.clone(), kids.clone())];
        let mut w = Walk { job, kids, runs: vec![None; 3], ran: vec![0; 3], owners, guesses };
        let mut rng = Rng::new(seed);
        for _ in 0..600 {
            let (o, k) = (rng.below(2) as usize, rng.below(3) as usize);
            match rng.below(8) {
                0 => w.owners[o].0 = w.job.clone(),
                1 => w.owners[o].1[k] = w.kids[k].clone(),
                2..=4 => w.act(o, &mut rng),
                // The cluster reads the record, and starts, stops, or loses it.
                5 if w.kids[k].placement.is_some() && w.runs[k].is_none() => {
                    let epoch = w.kids[k].epoch.0;
                    if epoch > w.ran[k] && !w.kids[k].halted() {
                        if let Some(other) = w.runs.iter().flatten().find(|other| **other != epoch) {
                            return (Some(format!("epoch {epoch} beside {other}")), 0);
                        }
                        (w.runs[k], w.ran[k]) = (Some(epoch), epoch);
                    } else if epoch > w.ran[k] {
                        (w.runs[k], w.ran[k]) = (Some(epoch), epoch);
                        w.close(k, Outcome::NotStarted("halted".into()));
                    }
                }
                6 if w.kids[k].halted() => w.close(k, Outcome::Stopped("halt".into())),
                7 if rng.below(4) == 0 => {
                    let outcome = [OK, OK, Outcome::Exited(1), Outcome::Stopped("drain".into())];
                    w.close(k, outcome[rng.below(4) as usize].clone());
                }
                _ => {}
            }
        }
        (None, w.job.epoch.0 as usize)
    }
}

#[test]
fn two_epochs_never_run_at_once_whoever_acts_on_what_it_knows() {
    let (mut epochs, mut ended) = (0, 0);
    for seed in 1..=2_000 {
        let (broken, reached) = Walk::walk(false, seed);
        assert_eq!(broken, None, "seed {seed}");
        epochs += reached;
        ended += usize::from(reached > 1);
    }
    assert!(epochs > 2_500 && ended > 400, "{epochs} {ended}");
    let found = (1..=2_000).find(|seed| Walk::walk(true, *seed).0.is_some());
    assert!(found.is_some(), "an owner that guesses is not noticed");
}
