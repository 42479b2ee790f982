//! Peers, disks and members that go away.

use std::collections::BTreeMap;

use rustix::process::Signal;
use starling::base::Span;
use starling::model::JobState;
use starling::model::spec::Run;
use starling::surface::documents::{JobList, boottime_now};
use starling::surface::fleet::chaos;

use super::ground::*;

pub async fn the_owner_of_ten_jobs_is_killed(ground: &mut Ground) {
    // They run at the first two; the owner is one of the others.
    let mut by_owner: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut all = Vec::new();
    let mut victim = None;
    for n in 0..150 {
        let mut spec = ground.training(1, &[0, 1]);
        spec.run = Run::Script("echo hello from $STARLING_JOB_ID; exec sleep 600".into());
        let id = ground.submit(n % PEERS, &spec).await;
        let owner = ground.place(&ground.job(0, &id).await.expect("it is there").homes[0]);
        all.push(id.clone());
        let held = by_owner.entry(owner).or_default();
        held.push(id);
        if owner >= 2 && held.len() == 10 {
            victim = Some(owner);
            break;
        }
    }
    let victim = victim.expect("the ring gives each peer its share");
    let ten = by_owner.remove(&victim).expect("ten");
    for id in &ten {
        until("it has said hello", async || {
            let text = ground.logs(victim, id).await?;
            if text.contains(id.as_str()) { Ok(()) } else { Err(text) }
        })
        .await;
    }
    let begun = boottime_now();
    ground.fleet.kill(victim).await.expect("killed");
    let others: Vec<usize> = (0..PEERS).filter(|i| *i != victim).collect();
    for at in &others {
        until("the list is whole", async || {
            let list: JobList =
                ground.client(*at).get("/v1/jobs?limit=1000").await.map_err(|e| e.to_string())?;
            let listed = ten.iter().filter(|id| list.jobs.iter().any(|j| j.id.to_string() == **id)).count();
            if listed == ten.len() { Ok(()) } else { Err(format!("{listed} of ten")) }
        })
        .await;
        for id in &ten {
            let text = until("the logs are read", async || ground.logs(*at, id).await).await;
            assert!(text.contains(id.as_str()), "{text}");
        }
    }
    println!(
        "measured: {} until list and logs of ten jobs were read at every other peer",
        boottime_now().since(begun)
    );
    let begun = boottime_now();
    for (n, id) in ten.iter().enumerate() {
        let at = others[n % others.len()];
        until("it can be cancelled", async || ground.cancel(at, id).await.map(drop)).await;
    }
    for (n, id) in ten.iter().enumerate() {
        // Asked at another one than it was cancelled at.
        ground.in_state(others[(n + 1) % others.len()], id, JobState::Cancelled).await;
    }
    println!("measured: {} until ten jobs were cancelled", boottime_now().since(begun));
    for id in all.iter().filter(|id| !ten.contains(id)) {
        ground.cancel(others[0], id).await.expect("cancelled");
    }
    ground.restart(victim).await;
}

pub async fn a_disk_is_lost_and_a_second_home_restarts(ground: &mut Ground) {
    let spec = ground.patient(150, &[]);
    let mut ids = vec![ground.submit(0, &spec).await];
    let runs_at = ground.stepped(&ids[0], 1).await;
    let homes = ground.job(0, &ids[0]).await.expect("it is there").homes;
    let homes: Vec<usize> = homes.iter().map(|h| ground.place(h)).collect();
    // Not the one that drives it, nor the one that runs it.
    let first = homes[1..].iter().copied().find(|h| *h != runs_at).expect("a home");
    let second = homes[1..].iter().copied().find(|h| *h != first).expect("another home");
    let others: Vec<usize> = (0..PEERS).filter(|i| *i != first).collect();
    for at in 0..PEERS {
        let spec = ground.patient(150, &others);
        ids.push(ground.submit(at, &spec).await);
    }
    for id in &ids {
        ground.stepped(id, 3).await;
    }
    let name = ground.name(first);
    ground.fleet.kill(first).await.expect("killed");
    chaos::kill_guards(&ground.state(first));
    // The records alone: what is left does not start as a mesh of its own.
    std::fs::remove_file(ground.state(first).join("store.redb")).expect("a store");
    ground.fleet.spawn(first, None).expect("it starts");
    let refused = ground.fleet.ready(first).await.expect_err("it must not start").to_string();
    assert!(refused.contains("ended with exit status: 5"), "{refused}");
    // Then as the message says: removed, and joined with an empty folder.
    let asked = ground.other(&[first, second]);
    ground.delete(asked, &format!("/v1/members/{name}?force=true")).await;
    std::fs::remove_dir_all(ground.state(first)).expect("removed");
    let join = ground.fleet.token(asked).await.expect("a token");
    ground.fleet.spawn(first, Some(&join)).expect("it starts");
    ground.fleet.ready(first).await.expect("it has joined");
    ground.fleet.agree().await.expect("all see its report");
    // One home of the first job is gone, one is away: its record has to wait for that one, and is not lost.
    ground.fleet.kill(second).await.expect("killed");
    ground.restart(second).await;
    for id in &ids {
        for at in 0..PEERS {
            until("every peer still knows it", async || ground.job(at, id).await.map(drop)).await;
        }
        let job = ground.in_state(others[0], id, JobState::Succeeded).await;
        assert_eq!((job.attempts.len(), job.losses), (1, 0), "{job:?}");
    }
    ground.judge(&ids.iter().map(String::as_str).collect::<Vec<_>>());
}

pub async fn a_member_is_removed_while_it_is_suspected(ground: &mut Ground) {
    let mut ids = Vec::new();
    for at in 0..PEERS {
        let spec = ground.training(90, &[at, (at + 1) % PEERS]);
        ids.push(ground.submit(at, &spec).await);
    }
    let mut places = Vec::new();
    for id in &ids {
        places.push(ground.stepped(id, 3).await);
    }
    let gone = places[0];
    let asked = ground.other(&[gone]);
    ground.fleet.peers[gone].signal(Signal::STOP);
    until("it is suspected", async || match ground.sees(asked, gone).await?.as_str() {
        "suspect" | "lost" => Ok(()),
        other => Err(other.to_owned()),
    })
    .await;
    let removed = ground.delete(asked, &format!("/v1/members/{}?force=true", ground.name(gone))).await;
    assert_eq!(removed["removed"], true, "{removed}");
    for id in &ids {
        ground.in_state(asked, id, JobState::Succeeded).await;
    }
    // It wakes, and is no member any more: it changes nothing.
    ground.fleet.peers[gone].signal(Signal::CONT);
    let lines: Vec<usize> = ids.iter().map(|id| ground.lines(id).len()).collect();
    lasts(Span::secs(3)).await;
    for (id, lines) in ids.iter().zip(lines) {
        assert_eq!(ground.lines(id).len(), lines, "nothing is written after the end");
        ground.in_state(asked, id, JobState::Succeeded).await;
    }
    let verdict = ground.judge(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(verdict.moved >= 1, "{verdict:?}");
    assert_eq!(ground.sees(asked, gone).await.expect("an answer"), "unknown");
    ground.fleet.kill(gone).await.expect("killed");
}
