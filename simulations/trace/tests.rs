//! A small trace, generated: what must hold for the large ones, in seconds.

use super::load::{Scale, Site, gang, generate, read};
use super::mesh::Setting;
use super::result::Row;
use super::rivals::Rival;
use super::{Net, one};
use crate::world::RttMatrix;
use starling::base::{Rng, Span};

fn setting(seed: u64) -> Setting {
    Setting { replicas: 1, claims: 3, seed, trace: false }
}

/// Starling keeps up with a scheduler that knows everything at once; without the mesh users wait.
#[test]
fn a_small_trace_is_placed_as_well_as_from_a_centre() {
    let mut trace = generate(3, 500, &[4, 3, 2, 2, 1, 1]);
    trace.scale(0.85, Scale::Arrivals).expect("jobs");
    let net = Net::new(RttMatrix::generated(&mut Rng::new(3), 6), 6);
    let row = |who| one(&trace, &net, who, setting(3)).expect("all jobs end");
    let (central, isolated, starling) = (row(Some(Rival::Central)), row(Some(Rival::Isolated)), row(None));
    assert_eq!(starling.jobs, 500);
    assert!(central.wait > 1.0, "nobody waits: nothing is compared");
    assert!(
        starling.completion <= 1.05 * central.completion,
        "{} of {}",
        starling.completion,
        central.completion
    );
    assert!(
        isolated.completion > 1.2 * starling.completion,
        "{} of {}",
        isolated.completion,
        starling.completion
    );
    // The same seed is the same run.
    let again = row(None);
    assert_eq!(
        (again.events, again.messages, again.completion),
        (starling.events, starling.messages, starling.completion)
    );
}

/// Another seed is another draw of nearly the same arrivals; what it came to is told seed by seed.
#[test]
fn arrivals_are_moved_a_little_by_each_seed_otherwise() {
    let plain = generate(3, 200, &[4, 2]);
    let moved = |seed, most| {
        let mut trace = plain.clone();
        trace.jitter(seed, Span::secs(most));
        trace.jobs
    };
    assert_eq!(moved(1, 0), plain.jobs);
    assert_eq!(moved(1, 60), moved(1, 60));
    assert_ne!(moved(1, 60), moved(2, 60));
    let (before, after) = (&plain.jobs, moved(1, 60));
    assert!(after.is_sorted_by_key(|j| j.at) && after.len() == before.len());
    let sum = |jobs: &[super::load::Job]| jobs.iter().map(|j| j.at.0 as f64 / 1e6).sum::<f64>();
    let mean = (sum(&after) - sum(before)) / 200.0;
    assert!((20.0..40.0).contains(&mean), "{mean} s later");
    // In order, each comes no sooner than it did in that place, and no more than a minute later.
    assert!(after.iter().zip(before).all(|(a, b)| a.at >= b.at && a.at.since(b.at) < Span::secs(60)));

    let net = Net::new(RttMatrix::generated(&mut Rng::new(3), 2), 2);
    let mut trace = plain.clone();
    trace.scale(0.9, Scale::Arrivals).expect("jobs");
    let rows = |who| -> Vec<Row> {
        let one = |seed| {
            let mut trace = trace.clone();
            trace.jitter(seed, Span::secs(60));
            one(&trace, &net, Some(who), setting(seed)).expect("all jobs end")
        };
        (1..4).map(one).collect()
    };
    let (central, random) = (rows(Rival::Central), rows(Rival::Random));
    let mut mean = Row::mean(&random).expect("three");
    assert_eq!(mean.range(), None, "beside nothing yet");
    mean.beside(&random, &central);
    let ratios: Vec<f64> = random.iter().zip(&central).map(|(r, c)| r.completion / c.completion).collect();
    assert_eq!(mean.draws.iter().map(|d| d.0).collect::<Vec<_>>(), ratios);
    let (low, high) = mean.range().expect("three");
    assert!(low < high && ratios.contains(&low) && ratios.contains(&high), "{ratios:?}");
}

#[test]
fn tables_are_read_by_the_names_of_their_columns() {
    let folder = tempfile::tempdir().expect("a folder");
    let (jobs, nodes) = (folder.path().join("jobs.csv"), folder.path().join("nodes.csv"));
    std::fs::write(&nodes, "gpus_per_node,cluster,nodes\n4,a,2\n,b,1\n").expect("written");
    let text = "vc,gpu_num,submit_time,user,duration\n\
                b,2,2020-10-02 00:00:10,x,60.5\n\
                a,1,2020-10-02 00:00:00,y,30\n\
                a,1,2020-12-02 00:00:00,y,30\n\
                gone,1,2020-10-02 00:00:00,y,30\n\
                a,64,2020-10-02 00:00:00,y,30\n\
                a,1,yesterday,y,30\n";
    std::fs::write(&jobs, text).expect("written");
    let mut trace = read(&jobs, &nodes, &vec![10, 11]).expect("a trace");
    assert_eq!(trace.sites[1], Site { name: "b".into(), nodes: 1, gpus: 8 });
    assert_eq!(trace.jobs.len(), 2);
    assert_eq!(trace.left_out.values().sum::<usize>(), 4, "{:?}", trace.left_out);
    trace.scale(0.5, Scale::Arrivals).expect("jobs");
    assert_eq!((trace.jobs[0].home, trace.jobs[0].runs), (0, Span::secs(30)));
    // (30 + 121) GPU seconds over 16 GPUs and 10 s.
    assert!((trace.load_found - 151.0 / 160.0).abs() < 1e-9);
    let apart = trace.jobs[1].at.since(trace.jobs[0].at).as_secs_f64();
    assert!((apart - 10.0 * trace.load_found / 0.5).abs() < 1e-3, "{apart}");
    std::fs::write(&jobs, "vc,duration,gpus\na,1,1\n").expect("written");
    let wrong = read(&jobs, &nodes, &vec![]).expect_err("no time");
    assert!(wrong.contains("timestamp"), "{wrong}");
}

#[test]
fn clusters_are_cut_into_whole_nodes_and_every_job_still_fits() {
    let mut trace = generate(1, 300, &[16, 8, 3, 1]);
    let before = trace.sites.iter().map(|s| s.nodes).sum::<u32>();
    trace.cut(10).expect("28 nodes");
    assert_eq!(trace.sites.len(), 10);
    assert_eq!(trace.sites.iter().map(|s| s.nodes).sum::<u32>(), before);
    assert!(trace.sites.iter().all(|s| s.nodes >= 1));
    assert_eq!(trace.jobs.len(), 300);
    assert!(trace.jobs.iter().all(|j| trace.sites[j.home].fits(j)));
    assert!(trace.cut(29).is_err());
    // Fewer nodes instead: the load comes out as asked, and every cluster keeps one.
    let mut fewer = generate(1, 300, &[16, 8, 3, 1]);
    fewer.scale(0.9, Scale::Arrivals).expect("jobs");
    let before = fewer.sites.iter().map(|s| s.nodes).sum::<u32>();
    let came = fewer.jobs.last().expect("jobs").at;
    fewer.scale(1.8, Scale::Nodes).expect("jobs");
    let after = fewer.sites.iter().map(|s| s.nodes).sum::<u32>();
    assert!(after * 2 == before && fewer.sites.iter().all(|s| s.nodes >= 1), "{after} of {before}");
    let apart = fewer.jobs.last().expect("jobs").at.0 as f64 / came.0 as f64;
    assert!((0.97..1.03).contains(&apart), "they come when they came: {apart}");
    assert_eq!((gang(1), gang(8), gang(12), gang(32)), ((1, 1), (1, 8), (2, 6), (4, 8)));
}
