//! What the doctor compares between peers: settings, addresses, and homes that are away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;

use super::{Weight, finding, ok};
use crate::base::PeerName;
use crate::model::JobRecord;
use crate::runtime::MemberInfo;
use crate::surface::documents::{Finding, PeerDocument};

/// A name server that has not answered by then does not help a peer either.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(3);
/// Names in one finding.
const NAMED_MAX: usize = 8;

fn few(list: &[String]) -> String {
    let more = list.len().saturating_sub(NAMED_MAX);
    let named = list.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// Settings that are to be alike, and some that are better alike. Peers of an older version do not tell theirs.
pub fn drift(documents: &[PeerDocument]) -> Finding {
    let told: Vec<_> = documents.iter().filter_map(|d| Some((&d.name, d.settings.as_ref()?))).collect();
    let spread = |of: &dyn Fn(&crate::surface::documents::SettingsDocument) -> String| -> Option<String> {
        let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (name, settings) in &told {
            by.entry(of(settings)).or_default().push(name.as_str());
        }
        let each: Vec<String> = by.iter().map(|(v, names)| format!("{v} at {}", names.join(", "))).collect();
        (by.len() > 1).then(|| each.join(", "))
    };
    let safety = [
        ("timing.rho", spread(&|s| format!("{}/1000", s.rho_milli))),
        ("timing.margin", spread(&|s| format!("{} ms", s.margin_ms))),
    ];
    let habits = [
        ("replicas", spread(&|s| s.replicas.to_string())),
        ("timing.grace", spread(&|s| format!("{} s", s.grace_ms / 1_000))),
        (
            "notifiers",
            spread(&|s| if s.notifiers.is_empty() { "none".into() } else { s.notifiers.join(" and ") }),
        ),
    ];
    let list = |all: &[(&str, Option<String>)]| -> Vec<String> {
        all.iter().filter_map(|(key, spread)| Some(format!("{key}: {}", spread.as_ref()?))).collect()
    };
    let (grave, slight) = (list(&safety), list(&habits));
    if !grave.is_empty() {
        let todo = "make them the same at all peers and restart: how long a lost job waits before it runs again rests on them";
        return finding(Weight::Bad, "settings", few(&grave), todo);
    }
    if !slight.is_empty() {
        let todo = "fine if it is meant; a notifier that only one peer has is silent while that peer is gone";
        return finding(Weight::Note, "settings", few(&slight), todo);
    }
    ok("settings", format!("{} peers have the same rho, margin, replicas, grace and notifiers", told.len()))
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']'])
}

/// Addresses and ports that members are reached at.
pub async fn ports(members: &[MemberInfo], me: &PeerName, listen: &str) -> Finding {
    let members: Vec<&MemberInfo> = members.iter().filter(|m| !m.removed).collect();
    let loopback = |host: &str| host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let elsewhere = |m: &&&MemberInfo| m.name != *me && !m.addresses.iter().all(|a| loopback(host(a)));
    let mut wrong = Vec::new();
    let bound: Option<SocketAddr> = listen.parse().ok();
    if bound.is_some_and(|at| at.ip().is_loopback()) && members.iter().any(|m| elsewhere(&m)) {
        wrong.push(format!(
            "{me} listens on loopback only ({listen}), and other members are on other machines"
        ));
    }
    let mut seen: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for m in &members {
        for address in m.addresses.iter().collect::<BTreeSet<_>>() {
            seen.entry(address).or_default().push(m.name.as_str());
        }
    }
    let twice = seen.iter().filter(|(_, names)| names.len() > 1);
    wrong.extend(twice.map(|(address, names)| format!("{address} is told by {}", names.join(" and "))));
    let told = members.iter().find(|m| m.name == *me).and_then(|m| m.addresses.first());
    if let (Some(told), Some(bound)) = (told, bound)
        && told.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) != Some(bound.port())
    {
        wrong.push(format!(
            "{me} listens on UDP port {} and tells others {told}: right only behind a port that is passed on",
            bound.port()
        ));
    }
    let names: Vec<String> = members
        .iter()
        .flat_map(|m| &m.addresses)
        .filter(|a| host(a).parse::<IpAddr>().is_err())
        .cloned()
        .collect();
    let mut looked = futures::stream::iter(names.into_iter().collect::<BTreeSet<_>>())
        .map(|address| async move {
            let found =
                tokio::time::timeout(LOOKED_UP_WITHIN, tokio::net::lookup_host(address.clone())).await;
            let good = found.is_ok_and(|read| read.is_ok_and(|list| list.count() > 0));
            (!good).then_some(address)
        })
        .buffer_unordered(16);
    while let Some(unknown) = looked.next().await {
        wrong.extend(unknown.map(|address| format!("{address} is not resolved from here")));
    }
    if wrong.is_empty() {
        return ok("ports", format!("UDP {listen}; {} members, each at addresses of its own", members.len()));
    }
    finding(
        Weight::Warn,
        "ports",
        few(&wrong),
        "set `listen` and `advertise` of these peers; name resolution must work here",
    )
}

/// Homes of live jobs that are away: what they hold has no copy to spare.
pub fn homes(jobs: &[JobRecord], alive: impl Fn(&PeerName) -> bool) -> Finding {
    let mut away: BTreeMap<&PeerName, u64> = BTreeMap::new();
    for home in jobs.iter().filter(|j| !j.state.is_final()).flat_map(JobRecord::homes) {
        if !alive(&home.peer) {
            *away.entry(&home.peer).or_default() += 1;
        }
    }
    if away.is_empty() {
        return ok("homes", "every home of the live jobs held here is there");
    }
    let list: Vec<String> =
        away.iter().map(|(name, n)| format!("{name} is a home of {n} live jobs")).collect();
    let todo = "one more loss may stop changes of these jobs; a home that stays away is replaced after `timing.rehome_after`";
    finding(Weight::Warn, "homes", format!("away: {}", few(&list)), todo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::surface::documents::SettingsDocument;
    use crate::surface::fake::{Fake, name};

    fn peer(text: &str, settings: Option<SettingsDocument>) -> PeerDocument {
        let document = serde_json::json!({
            "name": text, "mesh": "m", "store": "s", "boot": 1, "listen": "127.0.0.1:1", "api": null, "version": "0",
            "certificate_from_ms": 0, "certificate_until_ms": 1, "started_at_ms": 0, "draining": false,
            "isolated": false, "members": {},
        });
        PeerDocument { settings, ..serde_json::from_value(document).expect("a peer of an older version") }
    }

    fn settings() -> SettingsDocument {
        SettingsDocument {
            rho_milli: 10,
            margin_ms: 3_000,
            replicas: 3,
            grace_ms: 120_000,
            notifiers: vec!["ops".into()],
        }
    }

    #[test]
    fn what_must_be_alike_is_told_from_what_should_be() {
        let (a, old) = (peer("a", Some(settings())), peer("old", None));
        assert_eq!(drift(&[a.clone(), peer("b", Some(settings())), old.clone()]).weight, Weight::Ok);
        let silent = SettingsDocument { notifiers: Vec::new(), ..settings() };
        let found = drift(&[a.clone(), peer("b", Some(silent))]);
        assert_eq!((found.weight, found.text.as_str()), (Weight::Note, "notifiers: none at b, ops at a"));
        let hasty = SettingsDocument { margin_ms: 100, ..settings() };
        let found = drift(&[a, old, peer("b", Some(hasty))]);
        assert_eq!(
            (found.weight, found.text.as_str()),
            (Weight::Bad, "timing.margin: 100 ms at b, 3000 ms at a")
        );
    }

    #[tokio::test]
    async fn addresses_that_cannot_be_right_are_named() {
        let member = |text: &str, address: &str| MemberInfo {
            name: name(text),
            store: crate::base::StoreId::default(),
            addresses: vec![address.into()],
            removed: false,
            witness: false,
        };
        let me = name("a");
        let well = [member("a", "127.0.0.1:7"), member("b", "127.0.0.1:8")];
        assert_eq!(ports(&well, &me, "127.0.0.1:7").await.weight, Weight::Ok);
        let apart = [member("a", "127.0.0.1:7"), member("b", "10.0.0.1:8")];
        assert!(ports(&apart, &me, "127.0.0.1:7").await.text.contains("loopback only"));
        let twice = [member("a", "10.0.0.1:7"), member("b", "10.0.0.1:7")];
        assert!(ports(&twice, &me, "0.0.0.0:7").await.text.contains("10.0.0.1:7 is told by a and b"));
        let other = [member("a", "10.0.0.1:7")];
        assert!(ports(&other, &me, "0.0.0.0:9").await.text.contains("listens on UDP port 9"));
    }

    #[test]
    fn homes_that_are_away_are_counted() {
        let fake = Fake::new("a");
        let id = fake.put(Fake::spec("run: x"));
        let jobs = [fake.state.lock().expect("state").records[&id].clone()];
        assert_eq!(homes(&jobs, |_| true).weight, Weight::Ok);
        assert_eq!(homes(&jobs, |_| false).text, "away: a is a home of 1 live jobs");
    }
}
