//! How long it takes, measured on the real binary.

use std::time::Duration;

use starling::base::Span;
use starling::model::JobState;
use starling::surface::documents::boottime_now;
use starling::surface::fleet::chaos;

use super::ground::*;

/// From SIGTERM to the next attempt's first step.
const CLEAN_STOP: Span = Span::secs(5);

pub async fn a_clean_stop_moves_jobs_within_5_s(ground: &mut Ground) {
    // These two are configured to move their jobs when they are told to end.
    let spec = ground.training(100, &[2, 4]);
    let id = ground.submit(0, &spec).await;
    let at = ground.stepped(&id, 5).await;
    let begun = boottime_now();
    let ended = ground.fleet.terminate(at, Duration::from_secs(30)).await.expect("it ends");
    let stopped = boottime_now().since(begun);
    assert!(ended, "it ended well");
    let next = ground.first_step_after(&id, 2, begun).await;
    println!(
        "measured: {next} from SIGTERM to the next attempt's first step, {stopped} to the peer's end (bound {CLEAN_STOP})"
    );
    assert!(next <= CLEAN_STOP, "{next}");
    let job = ground.in_state(0, &id, JobState::Succeeded).await;
    assert_eq!((job.losses, job.failures), (0, 0), "{job:?}");
    ground.judge(&[&id]);
    ground.restart(at).await;
}

pub async fn a_lost_clusters_job_goes_on_in_time(ground: &mut Ground) {
    // The whole machine: the peer, its guards, and so its jobs.
    let spec = ground.training(60, &[]);
    let id = ground.submit(0, &spec).await;
    let at = ground.stepped(&id, 10).await;
    let asked = ground.other(&[at]);
    let begun = boottime_now();
    ground.fleet.kill(at).await.expect("killed");
    assert!(chaos::kill_guards(&ground.state(at)) > 0, "a guard was there");
    let detection = ground.detected(at, begun).await;
    let next = ground.first_step_after(&id, 2, begun).await;
    let bound = bound(GRACE, detection);
    println!(
        "measured: {next} from the loss to the next attempt's first step (bound {bound}, detection {detection})"
    );
    assert!(next <= bound, "{next} > {bound}");
    ground.in_state(asked, &id, JobState::Succeeded).await;
    assert_eq!(ground.judge(&[&id]).moved, 1);
    ground.restart(at).await;
}
