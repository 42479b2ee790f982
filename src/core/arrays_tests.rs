//! Arrays and waiting jobs over a peer that is a mesh of its own.

use crate::base::{Epoch, JobId};
use crate::core::api::{ClientError, ClientRequest, ClientResponse, JobFilter};
use crate::core::tenants::tests::Solo;
use crate::model::array::{After, On};
use crate::model::spec_input::parse_spec;
use crate::model::{JobRecord, JobState};

fn taken(answer: ClientResponse) -> JobId {
    match answer {
        ClientResponse::Submitted { job, .. } => job,
        other => panic!("{other:?}"),
    }
}
fn read(solo: &mut Solo, job: JobId) -> JobRecord {
    match solo.ask(ClientRequest::Get { job }) {
        ClientResponse::Job(record) => *record,
        other => panic!("{other:?}"),
    }
}
fn listed(solo: &mut Solo, array: Option<JobId>) -> Vec<JobRecord> {
    let filter = JobFilter { array, limit: 100, ..JobFilter::default() };
    match solo.ask(ClientRequest::Local { filter }) {
        ClientResponse::Jobs(jobs) => jobs,
        other => panic!("{other:?}"),
    }
}
fn waiting(solo: &mut Solo, other: JobId, on: On) -> ClientResponse {
    let mut spec = Box::new(parse_spec(b"{run: x, resources: {gpus: 1}}").expect("a spec").spec);
    spec.after.push(After { birth: read(solo, other).birth, on });
    solo.ask(ClientRequest::Submit { spec, key: None })
}

#[test]
fn an_array_runs_a_few_at_a_time_to_its_end() {
    let mut solo = Solo::new();
    let array = taken(solo.submit("{run: x, array: 5-9%2, resources: {gpus: 1}}"));
    let mut most = 0;
    for _ in 0..5 {
        solo.pass(3);
        most = most.max(solo.running.len());
        solo.end_one();
    }
    solo.pass(3);
    let record = read(&mut solo, array);
    assert_eq!((record.state, record.reason.as_str()), (JobState::Succeeded, "5 of 5 jobs succeeded"));
    assert_eq!((most, record.epoch), (2, Epoch(0)), "two at a time, and the array itself is never placed");
    // Its jobs are listed when they are asked for.
    assert_eq!(listed(&mut solo, None).len(), 1);
    let mut names: Vec<String> = listed(&mut solo, Some(array)).into_iter().map(|r| r.spec.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["job-5", "job-6", "job-7", "job-8", "job-9"]);
    assert!(listed(&mut solo, Some(array)).iter().all(|r| r.epoch == Epoch(1)), "each ran once");
    assert_eq!(solo.broken(), Vec::<&&str>::new());
}

#[test]
fn a_cancelled_array_ends_its_jobs() {
    let mut solo = Solo::new();
    let array = taken(solo.submit("{run: x, array: 100%3, resources: {gpus: 4}}"));
    solo.pass(5);
    assert_eq!((solo.running.len(), listed(&mut solo, Some(array)).len()), (2, 3), "two fit, one waits");
    solo.ask(ClientRequest::Cancel { job: array, by: "me".into() });
    solo.pass(5);
    // The two that run were told to stop; they do.
    solo.end_one();
    solo.end_one();
    solo.pass(15);
    let record = read(&mut solo, array);
    assert_eq!(record.state, JobState::Cancelled, "{}", record.reason);
    assert_eq!(listed(&mut solo, Some(array)).len(), 3, "no more were made");
    assert!(listed(&mut solo, Some(array)).iter().all(|r| r.state.is_final()));
}

#[test]
fn a_job_starts_when_what_it_waits_for_has_ended_so() {
    let mut solo = Solo::new();
    let first = taken(solo.submit("{run: x, resources: {gpus: 1}}"));
    let good = taken(waiting(&mut solo, first, On::Ok));
    let bad = taken(waiting(&mut solo, first, On::Fail));
    let array = taken(solo.submit("{run: x, array: 2, resources: {gpus: 1}}"));
    let last = taken(waiting(&mut solo, array, On::Any));
    solo.pass(5);
    assert_eq!(solo.running.len(), 3, "the first and the array's two");
    assert_eq!(read(&mut solo, good).reason, "waits for 1 jobs to end");
    for _ in 0..3 {
        solo.end_one();
    }
    solo.pass(10);
    assert_eq!(solo.running.len(), 2, "the one that wants success, and the one after the array");
    let never = read(&mut solo, bad);
    assert_eq!(never.state, JobState::Cancelled);
    assert!(never.reason.contains("to end as fail, and that ended as succeeded"), "{}", never.reason);
    let state = read(&mut solo, last).state;
    assert!(matches!(state, JobState::Placed | JobState::Running), "{state:?}");
    assert_eq!(solo.broken(), Vec::<&&str>::new());
}

#[test]
fn a_cancelled_job_waits_for_nothing() {
    let mut solo = Solo::new();
    let first = taken(solo.submit("{run: x, resources: {gpus: 1}}"));
    let waits = taken(waiting(&mut solo, first, On::Ok));
    solo.ask(ClientRequest::Cancel { job: waits, by: "me".into() });
    assert_eq!(read(&mut solo, waits).state, JobState::Cancelled);
    let nobody = solo.ask(ClientRequest::Get { job: JobId([3; 20]) });
    assert!(matches!(nobody, ClientResponse::Error(ClientError::NoSuchJob(_))), "{nobody:?}");
}
