//! The models hold in small bounds, exhaustively; every bug is found; and the small values mean what
//! production means.

#[path = "mod.rs"]
mod models;
mod owner_tests;

use std::collections::BTreeSet;

use models::production::{
    Ask, Contact, ContactStep, HOME_NONCE, Job, JobChange, Said, Slot, accept, apply_contact, apply_job,
    contact_is_certified, installed, job_change, new_job, real_ballot, reflects_contact, small_job,
};
use models::{ALL, BUGS, Known, MODELS, run};

/// States below which a run would have tried too little, for each model in its small size.
const AT_LEAST: [(&str, usize); 14] = [
    ("register", 9_000),
    ("lease", 21_000),
    ("lease-register", 270_000),
    ("lease-return", 50_000),
    ("lease-ends", 38_000),
    ("lease-back", 49_000),
    ("series", 500_000),
    ("suspend", 49_000),
    ("moving", 110_000),
    ("moving-far", 78_000),
    ("moving-lost-disk", 8_800),
    ("forgetting", 19_000),
    ("quota", 110_000),
    ("quarantine", 1_000),
];

fn holds(name: &str) {
    let report = run(name, None, false).expect("a model");
    let least = AT_LEAST.iter().find(|(n, _)| *n == name).expect("a bound").1;
    assert!(report.holds(), "{report:#?}");
    assert!(report.unique >= least, "{name} saw only {} states, not {least}", report.unique);
}

#[test]
fn the_register_holds() {
    holds("register");
}

#[test]
fn the_lease_holds() {
    for name in ["lease", "lease-return", "lease-ends", "lease-back"] {
        holds(name);
    }
}

#[test]
fn series_hold() {
    holds("series");
}

#[test]
fn the_lease_holds_over_the_full_register() {
    holds("lease-register");
}

/// S2t is not promised on a machine that stands still, and is seen to break; S2f holds.
#[test]
fn checkpoints_hold_on_a_machine_that_stands_still() {
    holds("suspend");
}

#[test]
fn moving_holds() {
    for name in ["moving", "moving-far", "moving-lost-disk"] {
        holds(name);
    }
}

#[test]
fn forgetting_holds() {
    holds("forgetting");
}

/// A tenant runs no more than its limit, whatever is lost, and a share comes back only when nothing spends it.
#[test]
fn quotas_hold() {
    holds("quota");
}

/// A disk that is put back from an older copy answers for nothing.
#[test]
fn the_quarantine_holds() {
    holds("quarantine");
    finds(&["quarantine"]);
}

#[test]
fn bugs_of_quotas_are_found() {
    finds(&["quota"]);
}

fn finds(models: &[&str]) {
    for bug in BUGS.iter().filter(|b| models.contains(&b.model)) {
        find(bug.model, bug);
    }
}

fn find(model: &str, bug: &Known) {
    let report = run(model, Some(bug), false).expect("a model");
    assert!(report.violated.contains(&bug.breaks), "{} did not break {}: {report:#?}", bug.name, bug.breaks);
    assert!(!report.complete && !report.trace.is_empty(), "{}: {report:#?}", bug.name);
}

#[test]
fn bugs_of_the_register_are_found() {
    finds(&["register"]);
}

#[test]
fn bugs_of_the_lease_are_found() {
    finds(&["lease", "lease-ends", "suspend"]);
}

/// What the tree of values and the real register both know, both find.
#[test]
fn the_full_register_finds_the_same() {
    let names = ["minority-confirmation", "unchosen-takeover-counts", "no-ballot-check", "acceptor-forgets"];
    for bug in BUGS.iter().filter(|b| names.contains(&b.name)) {
        find("lease-register", bug);
    }
}

#[test]
fn bugs_of_series_are_found() {
    finds(&["series"]);
}

#[test]
fn bugs_of_coming_back_are_found() {
    finds(&["lease-return"]);
}

#[test]
fn bugs_of_moving_and_forgetting_are_found() {
    finds(&["moving", "moving-far", "moving-lost-disk", "forgetting"]);
}

#[test]
fn every_bug_has_a_name_a_model_and_an_invariant() {
    let names: BTreeSet<&str> = BUGS.iter().map(|b| b.name).collect();
    assert_eq!(names.len(), BUGS.len());
    for bug in &BUGS {
        assert!(MODELS.contains(&bug.model), "{}", bug.name);
        assert!(ALL.iter().any(|(id, _)| *id == bug.breaks), "{}", bug.name);
        assert!(!bug.says.is_empty());
        assert!(bug.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", bug.name);
    }
    assert!(run("no-such-model", None, false).is_none());
}

#[test]
fn a_report_is_one_json_object() {
    let report = run("forgetting", None, false).expect("a model");
    let read: serde_json::Value = serde_json::from_str(&report.json(None)).expect("JSON");
    assert_eq!(read["model"], "forgetting");
    assert_eq!((&read["complete"], &read["violations"]), (&true.into(), &0.into()));
    assert_eq!(read["unique_states"], report.unique);
    let read: serde_json::Value = serde_json::from_str(&report.json(Some("late-create"))).expect("JSON");
    assert_eq!(read["bug"], "late-create");
}

#[test]
fn the_page_names_every_bug_and_model() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/models.md")).expect("page");
    let row = |name: &str| format!("| `{name}` |");
    for name in BUGS.iter().map(|b| b.name).chain(MODELS) {
        assert!(page.contains(&row(name)), "docs/models.md has no row for {name}");
    }
    for bug in &BUGS {
        let row = page.lines().find(|l| l.starts_with(&row(bug.name))).expect("a row");
        assert!(row.contains(bug.breaks) && row.contains(bug.model), "{row}");
    }
}

/// Real records, changed again and again, go where the small values say.
#[test]
fn small_jobs_mean_what_records_mean() {
    let mut changes = vec![JobChange::Seal];
    for epoch in 1..=3 {
        for bound in [1, 3] {
            changes.push(JobChange::Place { epoch, at: 1 + (epoch + 1) % 2, bound });
            changes.push(JobChange::Free { epoch, bound });
        }
        changes.push(JobChange::Rebind { epoch, from: 1, to: 3 });
        changes.push(JobChange::Publish { epoch });
        changes.extend([true, false].map(|succeeded| JobChange::Close { epoch, succeeded }));
    }
    let mut front = vec![new_job()];
    let mut seen = BTreeSet::from([Job::default()]);
    let (mut made, mut refused) = (0, 0);
    for _ in 0..7 {
        let mut next = Vec::new();
        for record in front {
            for change in &changes {
                let real = record.apply(&job_change(*change)).ok();
                let small = apply_job(small_job(&record), *change);
                assert_eq!(real.as_ref().map(small_job), small, "{change:?} on {record:?}");
                let first = record.installed().map(|r| small_job(&r));
                assert_eq!(first, installed(small_job(&record)), "{record:?}");
                match real {
                    Some(real) if real.version == record.version + 1 => {
                        made += 1;
                        if seen.insert(small_job(&real)) {
                            next.push(real);
                        }
                    }
                    Some(real) => panic!("{change:?} made version {} of {}", real.version, record.version),
                    None => refused += 1,
                }
            }
        }
        front = next;
    }
    assert!(seen.len() > 30 && made > 50 && refused > 300, "{} {made} {refused}", seen.len());
}

#[test]
fn small_contacts_mean_what_records_mean() {
    let held = |incarnation, nonce| Contact { incarnation, nonce, held: true };
    let renew = |incarnation| ContactStep::Renew { incarnation, nonce: 5 };
    let take = |incarnation, nonce| ContactStep::TakeOver { incarnation, nonce };
    assert_eq!(apply_contact(held(1, 4), renew(1)), Some(held(1, 5)));
    assert_eq!(apply_contact(held(2, 4), renew(1)), None);
    let taken = Contact { incarnation: 2, nonce: HOME_NONCE + 1, held: false };
    assert_eq!(apply_contact(held(1, 4), take(1, 4)), Some(taken));
    assert_eq!(apply_contact(held(1, 5), take(1, 4)), None, "a renewal in between makes it fail");
    assert_eq!(apply_contact(taken, renew(2)), None, "a taken incarnation is not renewed");
    let claim = ContactStep::Claim { above: 1, nonce: 6 };
    assert_eq!(apply_contact(taken, claim), Some(held(3, 6)));
    assert_eq!(apply_contact(held(1, 5), claim), None);
    assert!(reflects_contact(held(3, 6), claim) && !reflects_contact(held(3, 7), claim));
    assert!(contact_is_certified());
}

/// Every run of three requests to a real acceptor answers and ends as its small slot does.
#[test]
fn small_slots_mean_what_acceptors_mean() {
    let mut asks = vec![(Ask::Read, true), (Ask::Read, false)];
    for ballot in 1..=4 {
        for origin in [true, false] {
            asks.push((Ask::Prepare { ballot, origin }, true));
        }
        let next = models::production::fast_right(ballot);
        asks.push((Ask::Accept { ballot, next, origin: true }, true));
        asks.push((Ask::Accept { ballot, next, origin: true }, false));
    }
    asks.push((Ask::Accept { ballot: 2, next: 0, origin: false }, true));
    let mut slots = BTreeSet::new();
    for a in &asks {
        for b in &asks {
            for c in &asks {
                let (real, said) = models::production::walk(&[*a, *b, *c]);
                let mut slot = Slot::default();
                for ((ask, own), said) in [*a, *b, *c].into_iter().zip(said) {
                    let (next, small) = accept(slot, ask, own);
                    assert_eq!(small, said, "{a:?} {b:?} {c:?}");
                    slot = next;
                }
                assert_eq!(slot, real, "{a:?} {b:?} {c:?}");
                slots.insert(slot);
            }
        }
    }
    assert!(slots.len() > 10, "{slots:?}");
}

#[test]
fn another_disk_and_an_unknown_record_answer_as_unknown() {
    let known = Slot { known: true, promised: 3, accepted: 3 };
    let accept_4 = Ask::Accept { ballot: 4, next: 0, origin: true };
    assert_eq!(accept(known, accept_4, false), (known, Said::Unknown));
    assert_eq!(accept(known, accept_4, true).1, Said::Accepted);
    let bare = Ask::Prepare { ballot: 2, origin: false };
    assert_eq!(accept(Slot::default(), bare, true), (Slot::default(), Said::Unknown));
}

#[test]
fn ballots_are_in_their_order() {
    assert!((0..7).all(|n| real_ballot(n) < real_ballot(n + 1)));
}
