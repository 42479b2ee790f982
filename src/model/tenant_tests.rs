//! The ledger and the cluster's half of a share, alone and together under crashes.

use super::*;
use crate::base::{Rng, StoreId};

fn home(n: u8) -> Home {
    Home { peer: PeerName::new(&format!("p{n}")).expect("a name"), store: StoreId([n; 16]) }
}
fn gpus(n: u64) -> Amount {
    Amount { gpus: n, ..Amount::ZERO }
}
fn binding(incarnation: u64) -> Binding {
    Binding { contact: ContactId([7; 20]), series: 1, homes: BoundedVec::default(), incarnation }
}
fn ledger(limit: u64) -> LedgerRecord {
    let homes = BoundedVec::try_from(vec![home(1)]).expect("one");
    let limits = Limits { gpus: Some(limit), ..Limits::default() };
    LedgerRecord::new("t", homes).apply(&set(limits, false, 1)).expect("limits")
}
/// The nth change of the limits.
fn set(limits: Limits, removed: bool, n: u64) -> LedgerChange {
    let limits = Box::new(limits);
    LedgerChange::Limits { limits, removed, reset_hours: false, expect: n - 1, nonce: (9, n) }
}
fn moves(n: u8, held: Amount, spent: u64, nonce: u64) -> LedgerChange {
    let bindings = vec![binding(1)];
    LedgerChange::Share { home: home(n), held, spent, bindings, adopts: None, nonce: (u64::from(n), nonce) }
}

#[test]
fn the_last_gpus_go_to_one_of_two() {
    let free = ledger(8);
    let first = free.apply(&moves(1, gpus(8), 0, 1)).expect("eight are free");
    let why = first.apply(&moves(2, gpus(8), 0, 1)).expect_err("none is left").to_string();
    assert_eq!(why, "0 of 8 GPUs are left, 8 more are wanted");
    // Given back in part, the rest can be had, and no more.
    let back = first.apply(&moves(1, gpus(5), 0, 2)).expect("down is always right");
    assert!(back.apply(&moves(2, gpus(4), 0, 1)).is_err());
    let both = back.apply(&moves(2, gpus(3), 0, 1)).expect("three are left");
    assert_eq!(both.total(), gpus(8));
    // The same change again is seen to be made.
    assert!(both.reflects(&moves(2, gpus(3), 0, 1)) && !both.reflects(&moves(2, gpus(3), 0, 2)));
}

#[test]
fn a_lowered_limit_takes_nothing_back_and_gives_nothing_out() {
    let full = ledger(8).apply(&moves(1, gpus(8), 0, 1)).expect("free");
    let low = full.apply(&set(Limits { gpus: Some(4), ..Limits::default() }, false, 2)).expect("limits");
    assert!(low.apply(&moves(2, gpus(1), 0, 1)).is_err());
    let less = low.apply(&moves(1, gpus(6), 0, 2)).expect("down");
    assert!(less.apply(&moves(1, gpus(7), 0, 3)).is_err());
    assert!(less.apply(&moves(1, gpus(6), 0, 4)).is_ok(), "what does not rise is no question of limits");
}

#[test]
fn what_ran_before_is_stated_once() {
    let free = ledger(4);
    let states = |n: u8, held, era, nonce| LedgerChange::Share {
        home: home(n),
        held,
        spent: 0,
        bindings: vec![binding(1)],
        adopts: Some(era),
        nonce: (u64::from(n), nonce),
    };
    let over = free.apply(&states(1, gpus(6), 1, 1)).expect("it ran before");
    assert_eq!((over.total(), over.adopted), (gpus(6), gpus(6)));
    assert!(over.apply(&states(1, gpus(9), 1, 2)).is_err(), "only once");
    assert!(over.apply(&states(2, gpus(1), 0, 1)).is_err(), "not of an older era");
    assert!(over.apply(&moves(2, gpus(1), 0, 2)).is_err(), "nothing is left for others");
    // Limits that end and begin again are another era.
    let again = over.apply(&set(Limits::default(), true, 2)).expect("removed");
    let again = again.apply(&set(over.limits.clone(), false, 3)).expect("set");
    assert!(again.apply(&set(Limits::default(), true, 3)).is_err(), "somebody else was first");
    assert!(again.apply(&states(1, gpus(9), 2, 3)).is_ok());
}

#[test]
fn gpu_hours_are_used_up_and_can_be_reset() {
    let hour = 3_600_000;
    let limits = Limits { gpu_ms: Some(10 * hour), ..Limits::default() };
    let free = ledger(8).apply(&set(limits.clone(), false, 2)).expect("limits");
    let held = |gpu_ms| Amount { gpus: 1, gpu_ms, ..Amount::ZERO };
    let runs = free.apply(&moves(1, held(6 * hour), 0, 1)).expect("six hours");
    // Five of them were used; the share went down by that.
    let used = runs.apply(&moves(1, held(hour), 5 * hour, 2)).expect("told");
    assert_eq!((used.spent(), used.total().gpu_ms), (5 * hour, 6 * hour));
    assert!(used.apply(&moves(2, held(5 * hour), 0, 1)).is_err());
    let limits = Box::new(limits);
    let reset = LedgerChange::Limits { limits, removed: false, reset_hours: true, expect: 2, nonce: (9, 3) };
    let fresh = used.apply(&reset).expect("reset");
    assert_eq!(fresh.spent(), 0);
    assert!(fresh.apply(&moves(2, held(5 * hour), 0, 1)).is_ok());
    // A share that is given up for lost counts as used.
    let nonce = fresh.share(&home(1)).expect("there").nonce;
    let gone = fresh.apply(&LedgerChange::Reclaim { home: home(1), nonce }).expect("as seen");
    assert_eq!((gone.spent(), gone.total().gpus), (hour, 0));
}

#[test]
fn a_share_is_reclaimed_only_as_it_was_seen() {
    let held = ledger(8).apply(&moves(1, gpus(8), 0, 1)).expect("free");
    let seen = held.share(&home(1)).expect("there").nonce;
    let back = held.apply(&moves(1, gpus(8), 0, 2)).expect("it came back under another incarnation");
    assert_eq!(back.apply(&LedgerChange::Reclaim { home: home(1), nonce: seen }), Err(Refused::Unbound));
    let gone = held.apply(&LedgerChange::Reclaim { home: home(1), nonce: seen }).expect("unchanged");
    assert_eq!(gone.total(), Amount::ZERO);
}

#[test]
fn a_share_lives_as_long_as_its_longest_grace() {
    let held = ledger(8).apply(&moves(1, gpus(2), 0, 1)).expect("free");
    let short = Limits { grace: Some(Span::secs(5)), ..held.limits.clone() };
    let short = held.apply(&set(short, false, 2)).expect("limits");
    let grace = |l: &LedgerRecord| l.share(&home(1)).expect("there").grace;
    let more = short.apply(&moves(1, gpus(3), 0, 2)).expect("free");
    assert_eq!(grace(&more), Some(GRACE_DEFAULT), "what began under the longer one may still run");
    let zero = more.apply(&moves(1, Amount::ZERO, 1, 3)).expect("down");
    let anew = zero.apply(&moves(1, gpus(1), 1, 4)).expect("free");
    assert_eq!(grace(&anew), Some(Span::secs(5)));
    assert_eq!(longer(None, Some(Span::secs(1))), None);
}

#[test]
fn limits_say_what_is_wrong_with_them_and_what_never_fits() {
    let job = |text: &str| crate::model::spec_input::parse_spec(text.as_bytes()).expect("a spec").spec;
    let limits = Limits { gpus: Some(8), guaranteed: 2, borrow: Some(2), ..Limits::default() };
    assert_eq!(limits.ceiling()[0], Some(4));
    let big = job("{run: x, nodes: 2, resources: {gpus: 4}}");
    assert_eq!(limits.never_fits(&big).expect("never"), "may use 4 GPUs at most, the job asks for 8");
    assert_eq!(limits.never_fits(&job("{run: x, resources: {gpus: 4}}")), None);
    let never = job("{run: x, on_lost_contact: {grace: never}}");
    assert!(limits.never_fits(&never).expect("never").contains("grace is never"));
    let hours = Limits { gpu_ms: Some(3_600_000), ..Limits::default() };
    assert!(hours.never_fits(&big).expect("unsaid").contains("max_runtime"));
    let long = job("{run: x, max_runtime: 2h, resources: {gpus: 1}}");
    assert!(hours.never_fits(&long).expect("long").contains("1.00 GPU-hours"));
    for bad in [
        Limits { guaranteed: 9, gpus: Some(8), ..Limits::default() },
        Limits { weight: 0, ..Limits::default() },
        Limits { cpus: Some(u64::MAX), ..Limits::default() },
        Limits { gpus: Some(1), keep: BTreeMap::from([(home(1).peer, 2)]), ..Limits::default() },
    ] {
        assert!(bad.mistake().is_some(), "{bad:?}");
    }
}

#[test]
fn a_full_ledger_stays_within_a_records_size() {
    let limits = Limits::default();
    let homes = BoundedVec::try_from((0..5).map(home).collect::<Vec<_>>()).expect("five");
    let long = |n: usize| Home {
        peer: PeerName::new(&format!("{n:03}{}", "x".repeat(20))).expect("a name"),
        store: StoreId([200; 16]),
    };
    let homes3 = BoundedVec::try_from((0..3).map(long).collect::<Vec<_>>()).expect("three");
    let mut full = LedgerRecord::new("t", homes).apply(&set(limits, false, 1)).expect("limits");
    for n in 0..ROWS_MAX {
        // Half of the clusters hold something, the others have used something.
        let holds = n % 2 == 0;
        let held = Amount { gpus: 8, cpus: 64_000, memory: 1 << 40, gpu_ms: 1 << 40 };
        let held = if holds { held } else { Amount::ZERO };
        let one = Binding { homes: homes3.clone(), incarnation: 1 << 20, ..binding(1) };
        let bindings = if holds { vec![one] } else { vec![] };
        let change = LedgerChange::Share {
            home: long(n),
            held,
            spent: 1 << 40,
            bindings,
            adopts: None,
            nonce: (1 << 60, 1 << 50),
        };
        full = full.apply(&change).expect("room");
    }
    let bytes = serde_json::to_vec(&full).expect("json").len();
    assert!(bytes < crate::model::record::RECORD_BYTES_MAX, "{bytes} bytes");
    for held in [gpus(1), Amount::ZERO] {
        let refused = full.apply(&moves(201, held, 1, 1)).expect_err("one cluster too many").to_string();
        assert!(refused.contains("clusters"), "{refused}");
    }
}

/// Any order of steps, crashes between the two halves, changes that were sent and may be made later or never.
#[test]
fn the_two_halves_never_overshoot() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut ledger = ledger(8);
        let mut halves = vec![Escrow::default(); 3];
        // Sent, and not known to be made: of each cluster only the newest can still be.
        let mut open: Vec<Option<(Amount, u64)>> = vec![None; 3];
        let bound = vec![(ContactId([7; 20]), 1)];
        for step in 0..400u64 {
            let i = rng.below(3) as usize;
            match rng.below(4) {
                0 => {
                    let held = gpus(rng.below(9));
                    halves[i].leaves(held, &bound);
                    open[i] = Some((held, step));
                }
                1 => {
                    let Some((held, n)) = open[i].take() else { continue };
                    match ledger.apply(&moves(i as u8, held, 0, n)) {
                        Ok(next) => {
                            ledger = next;
                            // The answer may be lost.
                            if rng.chance(0.6) {
                                halves[i].chosen(held, &bound, 0);
                            }
                        }
                        Err(_) => halves[i].at_most(ledger.share(&home(i as u8))),
                    }
                }
                2 => open[i] = None,
                _ => halves[i].at_most(ledger.share(&home(i as u8))),
            }
            let spendable: u64 = halves.iter().map(|h| h.share.gpus).sum();
            assert!(spendable <= 8 && ledger.total().gpus <= 8, "seed {seed} step {step}");
            for (n, half) in halves.iter().enumerate() {
                let told = ledger.share(&home(n as u8)).map_or(Amount::ZERO, |s| s.held);
                assert!(half.share.within(&told), "seed {seed} step {step}: {half:?} of {told:?}");
            }
        }
    }
}
