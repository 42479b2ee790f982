//! The consistent-hash ring: it proposes home sets and never decides them.

use std::collections::{BTreeMap, BTreeSet};

use ring::digest;

use crate::base::{Home, PeerName};
use crate::model::report::{Liveness, MemberView, View};

/// Points per member; more of them even the shares out.
const POINTS: u32 = 32;

/// Members on a circle of 64-bit points.
#[derive(Debug, Clone, Default)]
pub struct Ring {
    points: BTreeMap<u64, PeerName>,
    members: BTreeSet<PeerName>,
}

impl Ring {
    /// Follows the member list; cheap when it has not changed.
    pub fn update(&mut self, view: &View) {
        let same = self.members.len() == view.members.len()
            && self.members.iter().all(|m| view.members.contains_key(m));
        if same {
            return;
        }
        self.members = view.members.keys().cloned().collect();
        self.points.clear();
        for member in &self.members {
            for i in 0..POINTS {
                let text = format!("{member}/{i}");
                let hash = digest::digest(&digest::SHA256, text.as_bytes());
                let point = u64::from_be_bytes(hash.as_ref()[..8].try_into().expect("8 of 32"));
                self.points.insert(point, member.clone());
            }
        }
    }

    /// The circle as parts from 0 to 1, each with the member whose point ends it: the first that is proposed there.
    pub fn arcs(&self) -> Vec<(f64, f64, &PeerName)> {
        let place = |point: u64| point as f64 / u64::MAX as f64;
        let Some((first, owner)) = self.points.first_key_value() else { return Vec::new() };
        let mut from = 0.0;
        let mut arcs = Vec::with_capacity(self.points.len() + 1);
        for (point, member) in &self.points {
            arcs.push((from, place(*point), member));
            from = place(*point);
        }
        // Behind the last point the circle begins again.
        if place(*first) < 1.0 {
            arcs.push((from, 1.0, owner));
        }
        arcs
    }

    /// How much of the circle each member is first for; they sum up to 1.
    pub fn shares(&self) -> BTreeMap<PeerName, f64> {
        let mut shares = BTreeMap::new();
        for (from, to, member) in self.arcs() {
            *shares.entry(member.clone()).or_default() += to - from;
        }
        shares
    }

    /// All members in the order in which the ring proposes them for a key.
    pub fn order(&self, key: u64) -> Vec<PeerName> {
        let mut seen = BTreeSet::new();
        let around = self.points.range(key..).chain(self.points.range(..key));
        // All have been met long before the circle is closed.
        around.map(|(_, m)| m).filter(|m| seen.insert(*m)).take(self.members.len()).cloned().collect()
    }

    /// Homes of a set where this many members are and so many are wanted: 1, 3 or 5; 2 where only two are.
    pub fn set_size(&self, members: usize, wanted: usize) -> usize {
        match members {
            2 => 2.min(wanted.max(1)),
            n if n >= wanted => wanted,
            n if n >= 3 => 3,
            n => n.max(1),
        }
    }

    /// Fills a home set up to a size with members that fit, other regions first.
    pub fn fill(
        &self,
        view: &View,
        key: u64,
        keep: Vec<Home>,
        size: usize,
        fits: impl Fn(&MemberView) -> bool,
    ) -> Vec<Home> {
        let order = self.order(key);
        let candidates: Vec<&MemberView> =
            order.iter().filter_map(|name| view.members.get(name)).filter(|m| fits(m)).collect();
        let kept = keep.iter().filter_map(|h| view.members.get(&h.peer));
        let mut regions: BTreeSet<String> = kept.map(region).collect();
        let mut homes = keep;
        for fresh_region_only in [true, false] {
            for m in &candidates {
                let taken = homes.iter().any(|h| h.peer == m.peer);
                if homes.len() < size && !taken && (!fresh_region_only || regions.insert(region(m))) {
                    homes.push(Home { peer: m.peer.clone(), store: m.store });
                }
            }
        }
        homes
    }

    /// A home set for a key: as many as wanted, alive and spread over regions first. A cut-off side
    /// with a majority of the wanted number takes members it does not reach as the rest. Two members
    /// alone form a set of two, since both are needed to decide.
    ///
    /// Returns `Err((alive, needed))` when a majority cannot be reached.
    pub fn homes(
        &self,
        view: &View,
        key: u64,
        wanted: usize,
        avoid: Option<&PeerName>,
    ) -> Result<Vec<Home>, (usize, usize)> {
        let order = self.order(key);
        let member = |name: &PeerName| view.members.get(name);
        let (mut good, rest): (Vec<_>, Vec<_>) =
            order.iter().filter_map(member).partition(|m| m.liveness == Liveness::Alive && !m.disk_full());
        // A draining cluster's peer still holds records; the others come first, since it may be leaving.
        good.sort_by_key(|m| m.draining);
        let size = self.set_size(good.len() + rest.len(), wanted);
        let mut chosen: Vec<&MemberView> = Vec::new();
        let mut regions = BTreeSet::new();
        let avoided = |m: &MemberView| avoid.is_some_and(|a| *a == m.peer);
        for fresh_region_only in [true, false] {
            for m in good.iter().filter(|m| !avoided(m)) {
                let taken = chosen.iter().any(|c| c.peer == m.peer);
                if chosen.len() < size && !taken && (!fresh_region_only || regions.insert(region(m))) {
                    chosen.push(m);
                }
            }
        }
        // The executor itself, or members out of reach, only where nothing better is there.
        chosen.extend(good.iter().filter(|m| avoided(m)).take(size.saturating_sub(chosen.len())));
        let (alive, needed) = (chosen.len(), size / 2 + 1);
        if alive < needed {
            return Err((alive, needed));
        }
        chosen.extend(rest.iter().take(size.saturating_sub(alive)));
        Ok(chosen.into_iter().map(|m| Home { peer: m.peer.clone(), store: m.store }).collect())
    }
}

fn region(m: &MemberView) -> String {
    m.report.as_ref().and_then(|r| r.capacity.as_ref()).map(|c| c.region.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::StoreId;

    fn view(n: usize, lost: &[usize]) -> View {
        let member = |i: usize| {
            let peer = PeerName::new(&format!("p{i}")).expect("name");
            let liveness = if lost.contains(&i) { Liveness::Lost } else { Liveness::Alive };
            let view = MemberView {
                peer: peer.clone(),
                store: StoreId([i as u8; 16]),
                witness: false,
                liveness,
                draining: false,
                report: None,
            };
            (peer, view)
        };
        View { members: (0..n).map(member).collect(), isolated: false }
    }

    fn names(homes: &[Home]) -> BTreeSet<&str> {
        homes.iter().map(|h| h.peer.as_str()).collect()
    }

    #[test]
    fn home_sets_have_the_wanted_size_and_reach_a_majority() {
        let mut ring = Ring::default();
        for (n, wanted, size) in [(1, 3, 1), (2, 3, 2), (3, 3, 3), (4, 5, 3), (5, 5, 5), (9, 3, 3), (2, 1, 1)]
        {
            let view = view(n, &[]);
            ring.update(&view);
            let homes = ring.homes(&view, 77, wanted, None).expect("homes");
            assert_eq!((homes.len(), names(&homes).len()), (size, size), "{n} members, {wanted} wanted");
        }
        let cut = view(5, &[0, 1, 2]);
        ring.update(&cut);
        let homes = ring.homes(&cut, 5, 3, None).expect("two of three alive");
        assert_eq!(homes.len(), 3);
        assert!(names(&homes).is_superset(&BTreeSet::from(["p3", "p4"])));
        let alone = view(5, &[0, 1, 2, 3]);
        assert_eq!(ring.homes(&alone, 5, 3, None), Err((1, 2)));
    }

    #[test]
    fn draining_peers_are_homes_only_where_too_few_others_are() {
        let mut view = view(4, &[]);
        for (i, member) in view.members.values_mut().enumerate() {
            member.draining = i < 2;
        }
        let mut ring = Ring::default();
        ring.update(&view);
        let homes = ring.homes(&view, 9, 3, None).expect("homes");
        assert!(names(&homes).is_superset(&BTreeSet::from(["p2", "p3"])));
        view.members.values_mut().for_each(|m| m.draining = true);
        assert_eq!(ring.homes(&view, 9, 3, None).map(|h| h.len()), Ok(3));
    }

    #[test]
    fn the_executor_is_avoided_where_others_do() {
        let mut ring = Ring::default();
        let view = view(4, &[]);
        ring.update(&view);
        let me = PeerName::new("p2").expect("name");
        for key in 0..50u64 {
            let homes =
                ring.homes(&view, key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 3, Some(&me)).expect("homes");
            assert!(!names(&homes).contains("p2"));
        }
    }

    #[test]
    fn one_member_more_moves_few_keys() {
        let (mut a, mut b) = (Ring::default(), Ring::default());
        a.update(&view(20, &[]));
        b.update(&view(21, &[]));
        let moved = (0..2000u64).filter(|i| {
            let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            a.order(key)[0] != b.order(key)[0]
        });
        assert!(moved.count() < 300, "about 1 in 21 moves");
    }
}
