//! What users do at once through different peers has an order, whatever happens to the peers meanwhile.

use std::time::{Duration, Instant};

use starling::base::{Rng, Span};
use starling::surface::fleet::chaos::{Histories, cancel, read, submitted};

use super::ground::*;

const USERS: u64 = 3;
const LASTS: Duration = Duration::from_secs(14);

pub async fn records_are_linearizable_under_kills_and_cuts(ground: &mut Ground) {
    let histories = Histories::default();
    let mut jobs = Vec::new();
    for n in 0..5 {
        let spec = ground.training(60 + 20 * n as u64, &[]);
        let client = ground.client(n % PEERS);
        let id = submitted(&client, &histories, &spec).await.expect("it is taken");
        jobs.push((spec.name.clone(), id));
    }
    let clients: Vec<_> = (0..PEERS).map(|i| ground.client(i)).collect();
    let begun = Instant::now();
    let users = async {
        let mut all = Vec::new();
        for (n, (name, id)) in jobs.iter().enumerate() {
            for user in 0..USERS {
                let mut rng = Rng::new(n as u64 * USERS + user);
                let (clients, histories) = (&clients, &histories);
                all.push(async move {
                    while begun.elapsed() < LASTS {
                        let client = &clients[rng.below(PEERS as u64) as usize];
                        // Two of three users of the last three jobs ask for their end, at about the same time.
                        let ends = n >= 2 && user < 2 && begun.elapsed() > LASTS / 2 && rng.chance(0.2);
                        if ends {
                            cancel(client, histories, name, id).await;
                        } else {
                            read(client, histories, name, id).await;
                        }
                        tokio::time::sleep(Duration::from_millis(20 + rng.below(200))).await;
                    }
                });
            }
        }
        futures::future::join_all(all).await;
    };
    let faults = async {
        lasts(Span::secs(1)).await;
        ground.fleet.kill(0).await.expect("killed");
        lasts(Span::secs(1)).await;
        ground.cut(&[1]);
        lasts(Span::secs(3)).await;
        ground.heal();
        ground.fleet.spawn(0, None).expect("it starts");
        lasts(Span::secs(1)).await;
        ground.cut(&[2, 3]);
        lasts(Span::secs(3)).await;
        ground.heal();
        ground.fleet.kill(4).await.expect("killed");
        ground.fleet.spawn(4, None).expect("it starts");
    };
    tokio::join!(users, faults);
    ground.mend().await;
    for (n, (name, id)) in jobs.iter().enumerate() {
        until("it has ended", async || {
            let job = ground.job(n % PEERS, id).await?;
            if job.done { Ok(()) } else { Err(job.reason) }
        })
        .await;
        for client in &clients {
            read(client, &histories, name, id).await;
        }
    }
    let checked = histories.check();
    println!(
        "measured: {} operations on {} records put in order, {} of them without an answer",
        checked.operations,
        jobs.len(),
        checked.open
    );
    assert_eq!(checked.broken, Vec::<String>::new());
    assert_eq!(checked.undecided, 0);
    assert!(checked.operations > 300, "{checked:?}");
}
