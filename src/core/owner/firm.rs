//! Which of a job's claims does more than wait: the one for which capacity is kept free, and the one that may send
//! others away.

use super::Driven;
use super::claims::Laid;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::base::{Instant, PeerName, Span, WallTime};

/// A cluster that has the preemption token and does not start the job by then loses it to another.
const TOKEN_FOR: Span = Span::secs(180);

/// A claim that stands longer has had its chance to begin emptying nodes: it is not moved for the size of another cluster.
const SETTLES_AFTER_MS: u64 = 30_000;

/// The one of a job's claims for which its cluster keeps capacity free; what each of them keeps is lost to all others. It is
/// the one that has the preemption token, else the one with the fewest jobs ahead: only for the first in line anything is kept.
/// Of equals it is the largest (`sizes`, in GPUs that would do): of many nodes the few that are wanted empty soonest.
/// It moves where less than half as many are ahead, and at first to a larger cluster where no more are.
pub(super) fn choose(
    driven: &mut Driven,
    wanted: &[PeerName],
    sizes: &BTreeMap<PeerName, u64>,
    now: WallTime,
) -> Option<PeerName> {
    let claims = &driven.claims;
    let laid = |c: &&PeerName| claims.get(*c).filter(|l| l.refused.is_none());
    let ahead = |c: &&PeerName| laid(c).and_then(|l| l.ahead);
    let size = |c: &PeerName| sizes.get(c).copied().unwrap_or(0);
    let token = driven.token.as_ref().map(|(cluster, _)| cluster).filter(|c| wanted.contains(c));
    let mine = wanted.iter().find(|c| laid(c).is_some_and(|l| !l.lean));
    let answered = wanted.iter().filter_map(|c| Some((ahead(&c)?, Reverse(size(c)), c)));
    let best = answered.min_by_key(|(n, size, _)| (*n, *size)).map(|(n, _, c)| (n, c));
    let chosen = match (token, mine, best) {
        (Some(token), ..) => Some(token),
        (_, Some(mine), Some((n, best))) => {
            let before = ahead(&mine);
            let young = laid(&mine).is_some_and(|l| now.0.saturating_sub(l.since.0) < SETTLES_AFTER_MS);
            let nearer = before.is_some_and(|mine| n < mine.div_ceil(2));
            let larger = young && size(best) > size(mine) && before.is_none_or(|mine| n <= mine);
            Some(if nearer || larger { best } else { mine })
        }
        // The first of the largest.
        (_, mine, best) => {
            mine.or(best.map(|(_, c)| c)).or_else(|| wanted.iter().rev().max_by_key(|c| size(c)))
        }
    };
    let chosen = chosen.cloned();
    for (cluster, laid) in &mut driven.claims {
        if laid.refused.is_none() && laid.lean == (chosen.as_ref() == Some(cluster)) {
            // It hears so at once.
            laid.every = Span::ZERO;
        }
    }
    chosen
}

/// Gives the job's one preemption token to the cluster where the fewest attempts would have to go, once all have
/// answered (or have had a second to). It stays there until that cluster refuses or has had its time.
pub(super) fn give_token(driven: &mut Driven, now: Instant) {
    let stands = |c: &PeerName| driven.claims.get(c).is_some_and(|l| l.refused.is_none());
    let mut last = None;
    if let Some((cluster, since)) = &driven.token {
        if stands(cluster) && now.since(*since) < TOKEN_FOR {
            return;
        }
        last = Some(cluster.clone());
    }
    let open = |l: &&Laid| l.ahead.is_none() && l.refused.is_none();
    let waits = driven.claims.values().filter(open).any(|l| now.since(l.sent_at) < Span::secs(1));
    let price = |(c, l): (&PeerName, &Laid)| {
        let victims = l.prospects.victims.filter(|n| *n > 0 && l.refused.is_none())?;
        // The one that had it and could not use it comes last.
        Some((last.as_ref() == Some(c), victims, c.clone()))
    };
    let best = driven.claims.iter().filter_map(price).min().filter(|_| !waits);
    // Whoever had it hears at once that it has it no longer; whoever gets it, too.
    let next = best.map(|(.., cluster)| cluster);
    for cluster in last.iter().chain(&next) {
        if let Some(laid) = driven.claims.get_mut(cluster) {
            laid.every = Span::ZERO;
        }
    }
    driven.token = next.map(|cluster| (cluster, now));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Epoch;
    use crate::core::testing::name;

    fn laid(lean: bool, ahead: Option<u32>) -> Laid {
        Laid {
            epoch: Epoch(1),
            since: WallTime(0),
            sent_at: Instant(0),
            every: Span::secs(300),
            ahead,
            refused: None,
            tries: 1,
            lean,
            prospects: Default::default(),
        }
    }

    #[test]
    fn one_keeps_and_it_moves_to_where_the_job_is_much_nearer() {
        let wanted: Vec<PeerName> = ["a", "b", "c"].map(name).into();
        let (same, old) = (BTreeMap::new(), WallTime(SETTLES_AFTER_MS));
        let mut driven = Driven::default();
        assert_eq!(
            choose(&mut driven, &wanted, &same, old),
            Some(name("a")),
            "the best, before anybody has answered"
        );
        for (cluster, lean, ahead) in [("a", false, 5), ("b", true, 3), ("c", true, 9)] {
            driven.claims.insert(name(cluster), laid(lean, Some(ahead)));
        }
        assert_eq!(choose(&mut driven, &wanted, &same, old), Some(name("a")), "3 is not half of 5");
        assert!(driven.claims.values().all(|l| l.every > Span::ZERO), "nothing new to say");
        // Two jobs that are each first where the other is kept for would wait for each other for ever.
        driven.claims.get_mut(&name("b")).expect("stands").ahead = Some(0);
        driven.claims.get_mut(&name("a")).expect("stands").ahead = Some(1);
        assert_eq!(choose(&mut driven, &wanted, &same, old), Some(name("b")));
        let said: Vec<bool> = driven.claims.values().map(|l| l.every == Span::ZERO).collect();
        assert_eq!(said, [true, true, false], "both hear of it at once");
        // Whoever may send others away keeps what these leave.
        driven.token = Some((name("c"), Instant(0)));
        assert_eq!(choose(&mut driven, &wanted, &same, old), Some(name("c")));
        driven.token = None;
        // One that refuses keeps nothing.
        for cluster in ["a", "b"] {
            driven.claims.get_mut(&name(cluster)).expect("stands").refused = Some((Instant(0), "no".into()));
        }
        assert_eq!(choose(&mut driven, &wanted, &same, old), Some(name("c")));
    }
    #[test]
    fn of_equals_the_largest_keeps_and_a_claim_that_has_settled_stays() {
        let wanted: Vec<PeerName> = ["a", "b", "c"].map(name).into();
        let sizes: BTreeMap<PeerName, u64> =
            [("a", 8), ("b", 64), ("c", 64)].map(|(c, n)| (name(c), n)).into();
        let mut driven = Driven::default();
        assert_eq!(choose(&mut driven, &wanted, &sizes, WallTime(0)), Some(name("b")), "nobody has answered");
        for (cluster, lean, ahead) in [("a", false, 0), ("b", true, 0), ("c", true, 1)] {
            driven.claims.insert(name(cluster), laid(lean, Some(ahead)));
        }
        let young = WallTime(SETTLES_AFTER_MS - 1);
        assert_eq!(choose(&mut driven, &wanted, &sizes, young), Some(name("b")));
        for (cluster, lean) in [("a", false), ("b", true)] {
            driven.claims.insert(name(cluster), laid(lean, Some(0)));
        }
        let settled = WallTime(SETTLES_AFTER_MS);
        assert_eq!(
            choose(&mut driven, &wanted, &sizes, settled),
            Some(name("a")),
            "it empties nodes already"
        );
        driven.claims.insert(name("b"), laid(true, Some(1)));
        assert_eq!(choose(&mut driven, &wanted, &sizes, young), Some(name("a")), "more are ahead there");
    }
}
