//! Clusters that are cut off and come back.

use starling::base::Span;
use starling::model::JobState;
use starling::surface::fleet::chaos;
use starling::surface::ledger::Kind;

use super::ground::*;

/// How long the others wait before they take a cluster's jobs.
fn wait() -> Span {
    chaos::wait(GRACE, chaos::MARGIN)
}

fn done(ground: &Ground, id: &str) -> Result<(), String> {
    let lines = ground.lines(id);
    let done = lines.iter().any(|e| e.kind == Kind::Done);
    if done { Ok(()) } else { Err(format!("{:?}", lines.last())) }
}

pub async fn finishes_while_cut_off_and_is_run_once(ground: &mut Ground) {
    let spec = ground.patient(25, &[]);
    let id = ground.submit(0, &spec).await;
    let at = ground.stepped(&id, 3).await;
    let asked = ground.other(&[at]);
    ground.cut(&[at]);
    until("it is done, cut off", async || done(ground, &id)).await;
    let seen = ground.job(asked, &id).await.expect("the others still know it");
    assert!(!seen.done, "nobody could have told them: {seen:?}");
    lasts(Span::secs(1)).await;
    ground.mend().await;
    let job = ground.in_state(asked, &id, JobState::Succeeded).await;
    assert_eq!((job.attempts.len(), job.losses, ground.begins(&id)), (1, 0, 1), "{job:?}");
    assert_eq!(ground.judge(&[&id]).moved, 0);
}

/// A third of the time after which these jobs' guards would give notice.
pub async fn a_blip_moves_nothing(ground: &mut Ground) {
    let mut ids = Vec::new();
    for at in 0..4 {
        let spec = ground.patient(90, &[2]);
        ids.push(ground.submit(at, &spec).await);
    }
    for id in &ids {
        ground.stepped(id, 2).await;
    }
    ground.cut(&[2]);
    lasts(Span::secs(5)).await;
    ground.mend().await;
    for id in &ids {
        let job = ground.in_state(0, id, JobState::Succeeded).await;
        assert_eq!((job.attempts.len(), job.losses, ground.begins(id)), (1, 0, 1), "{job:?}");
    }
    assert_eq!(ground.judge(&ids.iter().map(String::as_str).collect::<Vec<_>>()).moved, 0);
}

pub async fn cut_for_long_moves_without_overlap(ground: &mut Ground) {
    let spec = ground.training(120, &[]);
    let id = ground.submit(1, &spec).await;
    let at = ground.stepped(&id, 10).await;
    let asked = ground.other(&[at]);
    let cut = ground.cut(&[at]);
    let detection = ground.detected(at, cut).await;
    let moved = ground.first_step_after(&id, 2, cut).await;
    let bound = bound(GRACE, detection);
    println!(
        "measured: {moved} from the cut to the next attempt's first step (bound {bound}, detection {detection})"
    );
    assert!(moved <= bound, "{moved} > {bound}");
    let job = ground.in_state(asked, &id, JobState::Succeeded).await;
    assert_eq!((job.attempts.len(), job.losses), (2, 1), "{job:?}");
    let lines = ground.lines(&id).len();
    // Still cut, and then healed: the old cluster has nothing more to write.
    lasts(Span::secs(2)).await;
    ground.mend().await;
    let again = ground.in_state(at, &id, JobState::Succeeded).await;
    assert_eq!(again.attempts.len(), 2, "{again:?}");
    assert_eq!(ground.lines(&id).len(), lines, "{:?}", ground.lines(&id));
    assert_eq!(ground.judge(&[&id]).moved, 1);
}

pub async fn cut_for_half_an_hour_moves_without_overlap(ground: &mut Ground) {
    // Steps of 100 ms that append all the while.
    let spec = ground.training(18_300, &[]);
    let id = ground.submit(1, &spec).await;
    let at = ground.stepped(&id, 10).await;
    let cut = ground.cut(&[at]);
    let moved = ground.first_step_after(&id, 2, cut).await;
    println!("measured: {moved} from the cut to the next attempt's first step");
    for minute in 1..=30 {
        lasts(Span::secs(60)).await;
        println!("{minute} minutes: {} lines", ground.lines(&id).len());
    }
    ground.mend().await;
    for _ in 0..20 {
        if done(ground, &id).is_ok() {
            break;
        }
        lasts(Span::secs(30)).await;
    }
    let job = ground.in_state(ground.other(&[at]), &id, JobState::Succeeded).await;
    assert_eq!((job.attempts.len(), job.losses), (2, 1), "{job:?}");
    assert_eq!(ground.judge(&[&id]).moved, 1);
}

pub async fn healed_and_cut_again_at_once(ground: &mut Ground) {
    let mut ids = Vec::new();
    for at in [0, 1, 3] {
        let spec = ground.training(130, &[2, 4]);
        ids.push(ground.submit(at, &spec).await);
    }
    let at = ground.stepped(&ids[0], 3).await;
    for id in &ids {
        ground.stepped(id, 3).await;
    }
    let asked = ground.other(&[at]);
    ground.cut(&[at]);
    until("the first is taken from its cluster", async || {
        let job = ground.job(asked, &ids[0]).await?;
        if job.losses > 0 { Ok(()) } else { Err(job.reason) }
    })
    .await;
    // Just long enough for the cluster to hear of it and to claim the next incarnation.
    ground.heal();
    lasts(Span::millis(400)).await;
    ground.cut(&[at]);
    lasts(Span::secs(4)).await;
    ground.mend().await;
    for id in &ids {
        ground.in_state(asked, id, JobState::Succeeded).await;
    }
    ground.judge(&ids.iter().map(String::as_str).collect::<Vec<_>>());
}

pub async fn a_result_that_is_reported_late_counts(ground: &mut Ground) {
    // It may run nowhere else, so that nothing newer is placed while its cluster is away.
    let spec = ground.training(20, &[3]);
    let id = ground.submit(0, &spec).await;
    ground.stepped(&id, 2).await;
    ground.cut(&[3]);
    until("it is given up", async || {
        let job = ground.job(0, &id).await?;
        if job.losses == 1 && job.state == JobState::Pending { Ok(()) } else { Err(job.reason) }
    })
    .await;
    done(ground, &id).expect("it had finished long before");
    lasts(wait()).await;
    ground.mend().await;
    // Its work is done once. The record does not always know: when all is healed, a new claim there may be
    // faster than the report, and then an attempt begins that finds nothing to do.
    ground.in_state(1, &id, JobState::Succeeded).await;
    let verdict = ground.judge(&[&id]);
    println!("measured: {} of 1 results were overtaken by a new attempt", verdict.again);
}

pub async fn an_owner_that_is_alone_kills_nothing(ground: &mut Ground) {
    let alone = 4;
    let mut owned = Vec::new();
    // Jobs that the lonely peer drives and that run at others; the rest ends by itself meanwhile.
    let mut others = Vec::new();
    for n in 0..40 {
        if owned.len() == 3 {
            break;
        }
        let spec = ground.training(170, &[0, 1, 2]);
        let id = ground.submit(n % PEERS, &spec).await;
        let job = ground.job(0, &id).await.expect("it is there");
        if job.homes.first() == Some(&ground.name(alone)) { owned.push(id) } else { others.push(id) }
    }
    assert_eq!(owned.len(), 3, "the ring gives some peer's jobs to each");
    for id in owned.iter().chain(&others) {
        ground.stepped(id, 1).await;
    }
    let cut = ground.cut(&[alone]);
    until("it knows that it is alone", async || {
        let list: starling::surface::documents::ClusterList =
            ground.client(alone).get("/v1/clusters").await.map_err(|e| e.to_string())?;
        if list.isolated { Ok(()) } else { Err("it sees others".into()) }
    })
    .await;
    // Past every lease, and past the time after which a member counts as lost.
    let past = (wait() + Span::secs(4)).max(Span::secs(12));
    let gone = starling::surface::documents::boottime_now().since(cut);
    lasts(past - gone).await;
    ground.mend().await;
    for id in owned.iter().chain(&others) {
        let job = ground.in_state(alone, id, JobState::Succeeded).await;
        assert_eq!((job.attempts.len(), job.losses, ground.begins(id)), (1, 0, 1), "{job:?}");
    }
    ground.judge(&owned.iter().chain(&others).map(String::as_str).collect::<Vec<_>>());
}
