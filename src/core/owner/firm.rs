//! Which of a job's claims keeps capacity free.

use super::Driven;
use crate::base::{PeerName, Span};

/// The one of a job's claims for which its cluster keeps capacity free. Two clusters that do so for one gang keep the others
/// out of twice its size, and all of them together make a mesh as slow as one of a quarter fewer nodes. It is the one that
/// has the preemption token, else the one with the fewest jobs ahead: only the first in line is kept anything for. It moves
/// where half as many are ahead, not for less.
pub(super) fn choose(driven: &mut Driven, wanted: &[PeerName]) -> Option<PeerName> {
    let claims = &driven.claims;
    let laid = |c: &&PeerName| claims.get(*c).filter(|l| l.refused.is_none());
    let ahead = |c: &&PeerName| laid(c).and_then(|l| l.ahead);
    let token = driven.token.as_ref().map(|(cluster, _)| cluster).filter(|c| wanted.contains(c));
    let now = wanted.iter().find(|c| laid(c).is_some_and(|l| !l.lean));
    let best = wanted.iter().filter_map(|c| Some((ahead(&c)?, c))).min_by_key(|(n, _)| *n);
    let chosen = match (token, now, best) {
        (Some(token), ..) => Some(token),
        (_, Some(now), Some((n, best))) => {
            let nearer = ahead(&now).is_some_and(|mine| n < mine.div_ceil(2));
            Some(if nearer { best } else { now })
        }
        (_, now, best) => now.or(best.map(|(_, c)| c)).or(wanted.first()),
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

#[cfg(test)]
mod tests {
    use super::super::claims::Laid;
    use super::*;
    use crate::base::{Epoch, Instant, WallTime};
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
        let mut driven = Driven::default();
        assert_eq!(choose(&mut driven, &wanted), Some(name("a")), "the best, before anybody has answered");
        for (cluster, lean, ahead) in [("a", false, 5), ("b", true, 3), ("c", true, 9)] {
            driven.claims.insert(name(cluster), laid(lean, Some(ahead)));
        }
        assert_eq!(choose(&mut driven, &wanted), Some(name("a")), "3 is not half of 5");
        assert!(driven.claims.values().all(|l| l.every > Span::ZERO), "nothing new to say");
        // Two jobs that are each first where the other is kept for would wait for each other for ever.
        driven.claims.get_mut(&name("b")).expect("stands").ahead = Some(0);
        driven.claims.get_mut(&name("a")).expect("stands").ahead = Some(1);
        assert_eq!(choose(&mut driven, &wanted), Some(name("b")));
        let said: Vec<bool> = driven.claims.values().map(|l| l.every == Span::ZERO).collect();
        assert_eq!(said, [true, true, false], "both hear of it at once");
        // Whoever may send others away keeps what these leave.
        driven.token = Some((name("c"), Instant(0)));
        assert_eq!(choose(&mut driven, &wanted), Some(name("c")));
        driven.token = None;
        // One that refuses keeps nothing.
        for cluster in ["a", "b"] {
            driven.claims.get_mut(&name(cluster)).expect("stands").refused = Some((Instant(0), "no".into()));
        }
        assert_eq!(choose(&mut driven, &wanted), Some(name("c")));
    }
}
