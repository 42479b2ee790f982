//! Clocks that are off, and machines that sleep.

use starling::base::Span;
use starling::model::JobState;
use starling::surface::fleet::chaos;

use super::ground::*;

/// As far as the peers believe that a clock may be off, in millionths.
const RHO_PPM: i64 = (chaos::RHO_MILLI * 1_000) as i64;
const HOUR_S: i64 = 3_600;

pub async fn clocks_as_far_off_as_they_may_be_break_nothing(ground: &mut Ground) {
    let spec = ground.training(130, &[]);
    let id = ground.submit(0, &spec).await;
    let at = ground.stepped(&id, 5).await;
    // The worst: who runs it counts slowly, who waits for its end counts fast. And nobody knows what day it is.
    for i in 0..PEERS {
        let rate = if i == at { -RHO_PPM } else { RHO_PPM };
        ground.clocks.set(i, rate, (i as i64 - 2) * 19 * HOUR_S).expect("set");
    }
    let asked = ground.other(&[at]);
    let cut = ground.cut(&[at]);
    let detection = ground.detected(at, cut).await;
    let moved = ground.first_step_after(&id, 2, cut).await;
    let bound = bound(GRACE, detection);
    println!(
        "measured: {moved} from the cut to the next attempt's first step with clocks off (bound {bound})"
    );
    // It goes on, and the days go by.
    for i in 0..PEERS {
        ground
            .clocks
            .set(i, if i == at { RHO_PPM } else { -RHO_PPM }, (2 - i as i64) * 19 * HOUR_S)
            .expect("set");
    }
    ground.mend().await;
    let job = ground.in_state(asked, &id, JobState::Succeeded).await;
    assert_eq!((job.attempts.len(), job.losses), (2, 1), "{job:?}");
    assert_eq!(ground.judge(&[&id]).moved, 1);
    assert!(moved <= bound, "{moved} > {bound}");
    ground.true_clocks();
}

/// The judge would see it: with a clock that is off by far more than anybody believes, the promise breaks.
pub async fn a_clock_that_is_off_by_far_more_is_seen(ground: &mut Ground) {
    let spec = ground.training(250, &[]);
    let id = ground.submit(0, &spec).await;
    let at = ground.stepped(&id, 5).await;
    ground.clocks.set(at, -850_000, 0).expect("set");
    let cut = ground.cut(&[at]);
    ground.first_step_after(&id, 2, cut).await;
    until("both have written", async || {
        let verdict = ground.verdict(&[&id]);
        if verdict.overlaps > 0 { Ok(()) } else { Err(format!("{verdict:?}")) }
    })
    .await;
    assert!(!ground.verdict(&[&id]).holds());
    ground.true_clocks();
    ground.mend().await;
    let asked = ground.other(&[at]);
    let _ended = ground.cancel(asked, &id).await;
    until("it has ended", async || {
        let job = ground.job(asked, &id).await?;
        if job.done { Ok(()) } else { Err(job.reason) }
    })
    .await;
}

pub async fn a_machine_sleeps_past_its_grace(ground: &mut Ground) {
    let spec = ground.training(130, &[]);
    let id = ground.submit(1, &spec).await;
    let at = ground.stepped(&id, 5).await;
    let asked = ground.other(&[at]);
    let netns = ground.network.hosts[at].netns.clone();
    let begun = starling::surface::documents::boottime_now();
    assert!(chaos::suspend(&netns) >= 3, "a peer, a guard and a job");
    let moved = ground.first_step_after(&id, 2, begun).await;
    println!("measured: {moved} from a machine's suspend to the next attempt's first step");
    // It wakes while the next attempt runs.
    chaos::wake(&netns).await;
    ground.fleet.agree().await.expect("they agree again");
    let job = ground.in_state(asked, &id, JobState::Succeeded).await;
    assert_eq!((job.attempts.len(), job.losses), (2, 1), "{job:?}");
    assert_eq!(ground.judge(&[&id]).moved, 1);
}

pub async fn a_machine_sleeps_for_a_moment(ground: &mut Ground) {
    let spec = ground.patient(60, &[]);
    let id = ground.submit(1, &spec).await;
    let at = ground.stepped(&id, 5).await;
    let netns = ground.network.hosts[at].netns.clone();
    chaos::suspend(&netns);
    let lines = ground.lines(&id).len();
    lasts(Span::secs(2)).await;
    assert_eq!(ground.lines(&id).len(), lines, "nothing moves there");
    chaos::wake(&netns).await;
    let job = ground.in_state(ground.other(&[at]), &id, JobState::Succeeded).await;
    assert_eq!((job.attempts.len(), job.losses, ground.begins(&id)), (1, 0, 1), "{job:?}");
    ground.judge(&[&id]);
}
