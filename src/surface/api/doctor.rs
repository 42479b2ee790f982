//! `GET /v1/doctor`: looks this peer and the mesh over and says what is wrong and what to do about it.
//!
//! Every finding is from what this peer sees now; asked at another peer it may look different, which is a finding too.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures::StreamExt;

use super::{Api, ApiResult, mesh, resolve};
use crate::backends::local::clock;
use crate::base::PeerName;
use crate::core::api::JobFilter;
use crate::model::JobState;
use crate::model::report::Liveness;
use crate::surface::documents::{
    ClusterDocument, DoctorDocument, Finding, LinkDocument, PeerDocument, Weight, wall_now,
};
use crate::transport::{OTHER_DISK, STARTED_SINCE};

const PEER_ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// Wall clocks may be off by this much before it is said: they are for people only, but people compare log lines.
const CLOCK_OFF_MS: u64 = 2_000;
/// A certificate that ends sooner was not renewed in time.
const CERTIFICATE_MS: u64 = 5 * 86_400_000;
/// Commits that take longer on average make every change of a record slow.
const COMMIT_SLOW_SECS: f64 = 0.1;
/// A link's figures that are older are no measurement any more.
const LINK_OLD_MS: u64 = 120_000;
/// Live records that are looked at.
const RECORDS_MAX: usize = 10_000;

fn finding(weight: Weight, about: &str, text: impl Into<String>, todo: impl Into<String>) -> Finding {
    Finding { weight, about: about.into(), text: text.into(), todo: todo.into() }
}

fn ok(about: &str, text: impl Into<String>) -> Finding {
    finding(Weight::Ok, about, text, "")
}

/// The handler.
pub async fn doctor(State(api): State<Api>) -> ApiResult<Json<DoctorDocument>> {
    let clusters = mesh::clusters(State(api.clone())).await.0;
    let links = mesh::links(State(api.clone())).await.0.links;
    let me = mesh::peer(State(api.clone())).await.0;
    let mut findings = vec![members(&clusters.clusters, clusters.isolated, &me.name), size(&api)];
    findings.extend(link_findings(&clusters.clusters, &links));
    findings.extend(peers(&api, &me).await);
    findings.push(versions(&clusters.clusters));
    findings.extend(clusters.clusters.iter().filter_map(closed));
    findings.push(disk(&api.handle.metrics()));
    findings.extend(records(&api).await);
    findings.extend(refused(&me.name, &api.handle.refusals()));
    findings.push(compare::ports(&api.handle.members(), &me.name, &me.listen).await);
    findings.sort_by_key(|f| std::cmp::Reverse(f.weight));
    Ok(Json(DoctorDocument { peer: me.name, at_ms: wall_now().0, findings }))
}

/// What a member says of this peer itself comes before any guess about the network.
fn refused(me: &PeerName, told: &[(PeerName, String)]) -> Option<Finding> {
    // They hold a link with another process of this name, and this one runs.
    let other = [STARTED_SINCE, OTHER_DISK].map(|words| format!("{me}{words}"));
    if let Some((peer, why)) = told.iter().find(|(_, why)| other.iter().any(|words| why.starts_with(words))) {
        return Some(finding(
            Weight::Bad,
            "identity",
            format!("another process uses the identity of {me}: {peer} says that {why}"),
            "this state folder was copied, or is an older copy put back: stop this peer, keep the one that the others take, and give a \
             second machine a token and an empty folder of its own",
        ));
    }
    let (peer, why) = told.first()?;
    let text = format!("{peer} takes no link from this peer: {why}");
    Some(finding(
        Weight::Bad,
        "refused",
        text,
        "a removed peer joins again with a new token and an empty state folder; a certificate or a name that is not taken: `starling members` there",
    ))
}

fn members(clusters: &[ClusterDocument], isolated: bool, me: &PeerName) -> Finding {
    if isolated {
        return finding(
            Weight::Bad,
            "members",
            format!("{me} reaches no other member"),
            "its own network is the likely fault: check the UDP port of `listen`, `advertise`, firewalls; then ask a peer on the other side",
        );
    }
    let dark: Vec<String> = clusters
        .iter()
        .filter(|c| c.liveness != "alive")
        .map(|c| format!("{} is {}", c.name, c.liveness))
        .collect();
    match dark.as_slice() {
        [] => ok("members", format!("all {} are alive", clusters.len())),
        list => finding(
            Weight::Bad,
            "members",
            list.join(", "),
            "look at these machines; one that is gone for good is removed with `starling member remove NAME`",
        ),
    }
}

fn size(api: &Api) -> Finding {
    let n = api.handle.members().iter().filter(|m| !m.removed).count();
    match n {
        1 => finding(
            Weight::Note,
            "size",
            "a mesh of one: its disk is the only copy",
            "join two more peers, or witnesses",
        ),
        2 => finding(
            Weight::Warn,
            "size",
            "two members: both are needed to decide anything, so the loss of either stops the mesh",
            "add a third, if only a witness: `starling up --witness --join TOKEN@HOST:PORT`",
        ),
        n => ok("size", format!("{n} members: the loss of one costs nothing")),
    }
}

fn link_findings(clusters: &[ClusterDocument], links: &[LinkDocument]) -> Vec<Finding> {
    let alive: BTreeSet<&PeerName> =
        clusters.iter().filter(|c| c.liveness == "alive").map(|c| &c.name).collect();
    let of: BTreeMap<(&PeerName, &PeerName), &LinkDocument> = links
        .iter()
        .filter(|l| alive.contains(&l.from) && alive.contains(&l.to))
        .map(|l| ((&l.from, &l.to), l))
        .collect();
    let works =
        |a: &PeerName, b: &PeerName| of.get(&(a, b)).is_some_and(|l| l.direct && l.age_ms < LINK_OLD_MS);
    let (mut one_way, mut relayed, mut lossy) = (Vec::new(), Vec::new(), Vec::new());
    for a in &alive {
        for b in alive.iter().filter(|b| a < *b) {
            match (works(a, b), works(b, a)) {
                (true, true) => {}
                (true, false) => one_way.push(format!("{a} to {b}, not back")),
                (false, true) => one_way.push(format!("{b} to {a}, not back")),
                (false, false) => relayed.push(format!("{a} and {b}")),
            }
        }
    }
    for link in of.values().filter(|l| l.loss > 0.05 && l.age_ms < LINK_OLD_MS) {
        lossy.push(format!("{} to {}: {:.1} %", link.from, link.to, 100.0 * link.loss));
    }
    let mut out = Vec::new();
    for (list, what, todo) in [
        (
            one_way,
            "a direct link one way only",
            "a firewall or a wrong `advertise` at one end: check UDP in both directions",
        ),
        (
            relayed,
            "no direct link",
            "they talk through others, which is slower: check UDP between them and their `advertise`",
        ),
        (lossy, "more than 5 % of packets lost", "the path is overloaded or faulty: `starling links`"),
    ] {
        if !list.is_empty() {
            let more = if list.len() > 8 { format!(" and {} more", list.len() - 8) } else { String::new() };
            let named = list.iter().take(8).cloned().collect::<Vec<_>>().join("; ");
            out.push(finding(Weight::Warn, "links", format!("{what}: {named}{more}"), todo));
        }
    }
    if out.is_empty() {
        let n = alive.len() * alive.len().saturating_sub(1);
        out.push(ok("links", format!("{n} directions, all direct and fresh")));
    }
    out
}

/// Asks every living member about itself: certificates and clocks.
async fn peers(api: &Api, me: &PeerDocument) -> Vec<Finding> {
    let view = api.handle.view();
    let others: Vec<PeerName> = view
        .members
        .values()
        .filter(|m| m.liveness == Liveness::Alive && m.peer != me.name)
        .map(|m| m.peer.clone())
        .collect();
    let asked = others.into_iter().map(|name| {
        let api = api.clone();
        async move {
            let before = wall_now().0;
            let answer = tokio::time::timeout(
                PEER_ANSWERS_WITHIN,
                resolve::ask(&api, &name, "GET", "/v1/peer".into()),
            )
            .await;
            let read = answer
                .ok()
                .and_then(Result::ok)
                .and_then(|b| serde_json::from_slice::<PeerDocument>(&b).ok());
            (name, before, wall_now().0, read)
        }
    });
    let answers: Vec<Answer> = futures::stream::iter(asked).buffer_unordered(16).collect().await;
    of_answers(me, answers, wall_now().0)
}

/// Who was asked, the time here before and after, and what it said, if it did.
type Answer = (PeerName, u64, u64, Option<PeerDocument>);

fn of_answers(me: &PeerDocument, answers: Vec<Answer>, now: u64) -> Vec<Finding> {
    let mut documents = vec![me.clone()];
    let (mut silent, mut clocks) = (Vec::new(), Vec::new());
    for (name, before, after, read) in answers {
        let Some(document) = read else {
            silent.push(name.to_string());
            continue;
        };
        // Its clock was read somewhere between question and answer: what lies outside of that is its error.
        if let Some(there) = document.now_ms {
            let off = before.saturating_sub(there).max(there.saturating_sub(after));
            if off > CLOCK_OFF_MS {
                clocks.push(format!("{name} by {:.1} s", off as f64 / 1e3));
            }
        }
        documents.push(document);
    }
    let ending: Vec<String> = documents
        .iter()
        .filter(|d| d.certificate_until_ms.saturating_sub(now) < CERTIFICATE_MS)
        .map(|d| {
            format!(
                "{} in {:.1} days",
                d.name,
                d.certificate_until_ms.saturating_sub(now) as f64 / 86_400_000.0
            )
        })
        .collect();
    let mut out = Vec::new();
    silent.sort();
    out.push(match silent.as_slice() {
        [] => ok("requests", format!("{} peers answer requests", documents.len())),
        list => finding(
            Weight::Bad,
            "requests",
            format!("looks alive and does not answer: {}", list.join(", ")),
            "ask again; if it stays so, look at that peer's own log",
        ),
    });
    out.push(match clocks.as_slice() {
        [] => ok("clocks", format!("within {} s of each other", CLOCK_OFF_MS / 1_000)),
        list => finding(
            Weight::Warn,
            "clocks",
            format!("off from {}'s: {}", me.name, list.join(", ")),
            "set up time synchronisation there: no decision rests on it, but log lines and ages mislead",
        ),
    });
    out.extend(test_clocks(&documents));
    out.push(compare::drift(&documents));
    out.push(match ending.as_slice() {
        [] => ok("certificates", "none ends within 5 days"),
        list => finding(
            Weight::Bad,
            "certificates",
            list.join(", "),
            "they renew themselves while a member that holds the CA key is reachable: check that one is",
        ),
    });
    out
}

/// Who goes by a clock that is made for tests: its leases and graces are not those of the other machines.
fn test_clocks(documents: &[PeerDocument]) -> Option<Finding> {
    let who: Vec<&str> = documents.iter().filter(|d| d.test_clock).map(|d| d.name.as_str()).collect();
    let todo = format!(
        "unset {} there and start it again: a job may run twice beside such a clock",
        clock::TEST_CLOCK
    );
    let text = || format!("made for tests, not the machine's own: {}", who.join(", "));
    (!who.is_empty()).then(|| finding(Weight::Warn, "clocks", text(), todo))
}

fn versions(clusters: &[ClusterDocument]) -> Finding {
    let mut of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for c in clusters.iter().filter(|c| c.liveness == "alive") {
        if let Some(version) = &c.version {
            of.entry(version).or_default().push(c.name.as_str());
        }
    }
    if of.len() <= 1 {
        return ok(
            "versions",
            of.keys().next().map_or_else(|| "not told yet".into(), |v| format!("all are {v}")),
        );
    }
    let list: Vec<String> = of.iter().map(|(v, names)| format!("{v} at {}", names.join(", "))).collect();
    finding(Weight::Note, "versions", list.join("; "), "fine during an upgrade; finish it")
}

fn closed(c: &ClusterDocument) -> Option<Finding> {
    let why = c.closed.as_ref().filter(|_| c.liveness == "alive")?;
    Some(finding(
        Weight::Note,
        "clusters",
        format!("{} takes no new work: {why}", c.name),
        "`starling undrain NAME` if that is not wanted; free space if its disk is full",
    ))
}

/// The mean time of a commit, from the store's own figures.
fn disk(metrics: &str) -> Finding {
    let value = |name: &str| {
        metrics.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<f64>().ok())
    };
    let (sum, count) =
        (value("starling_store_commit_seconds_sum"), value("starling_store_commit_seconds_count"));
    match (sum, count) {
        (Some(sum), Some(count)) if count > 0.0 => {
            let mean = sum / count;
            let text = format!("a commit takes {:.1} ms on average over {count:.0}", 1e3 * mean);
            if mean > COMMIT_SLOW_SECS {
                finding(Weight::Warn, "disk", text, "give the state folder a faster disk, or one of its own")
            } else {
                ok("disk", text)
            }
        }
        _ => ok("disk", "nothing was committed yet"),
    }
}

/// Live jobs, of those that this peer holds, that cannot change now since too few of their homes are there.
async fn records(api: &Api) -> Vec<Finding> {
    let states = [JobState::Pending, JobState::Placed, JobState::Running].into();
    let filter = JobFilter { states, limit: RECORDS_MAX, ..JobFilter::default() };
    let Ok(jobs) = resolve::local_jobs(api, filter).await else {
        let todo = "look at its log, restart it";
        return vec![finding(Weight::Bad, "records", "this peer's core does not answer", todo)];
    };
    let view = api.handle.view();
    let alive = |peer: &PeerName| view.members.get(peer).is_some_and(|m| m.liveness == Liveness::Alive);
    let stuck: Vec<String> = jobs
        .iter()
        .filter(|job| 2 * job.homes().iter().filter(|h| alive(&h.peer)).count() <= job.homes().len())
        .map(|job| job.id().short())
        .collect();
    let records = match stuck.len() {
        0 => ok("records", format!("{} live jobs held here have a majority of their homes", jobs.len())),
        n => finding(
            Weight::Bad,
            "records",
            format!(
                "{n} live jobs have too few homes to change: {}",
                stuck.iter().take(8).cloned().collect::<Vec<_>>().join(", ")
            ),
            "they go on where they run; bring their homes back (`starling job ID` names them)",
        ),
    };
    vec![records, compare::homes(&jobs, alive)]
}

#[cfg(test)]
#[path = "doctor/found_tests.rs"]
mod found_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PeerName {
        PeerName::new(text).expect("a name")
    }

    fn cluster(text: &str) -> ClusterDocument {
        let fake = crate::surface::fake::Fake::new(text);
        let view = crate::runtime::PeerHandle::view(&*fake);
        ClusterDocument::new(&view.members[&name(text)], Some(1))
    }

    fn link(from: &str, to: &str, direct: bool, loss: f64) -> LinkDocument {
        LinkDocument {
            from: name(from),
            to: name(to),
            rtt_ms: 1.0,
            loss,
            bandwidth_bps: None,
            bandwidth_age_ms: None,
            age_ms: 10,
            direct,
        }
    }

    #[test]
    fn a_clock_made_for_tests_is_named() {
        let peer = |text: &str, test_clock: bool| {
            let mut document = serde_json::json!({
                "name": text, "mesh": "m", "store": "s", "boot": 1, "listen": "127.0.0.1:1", "api": null, "version": "0",
                "certificate_from_ms": 0, "certificate_until_ms": 1, "started_at_ms": 0, "draining": false,
                "isolated": false, "members": {},
            });
            if test_clock {
                document["test_clock"] = true.into();
            }
            serde_json::from_value::<PeerDocument>(document).expect("a peer, also of an older version")
        };
        assert_eq!(test_clocks(&[peer("a", false)]), None);
        let found = test_clocks(&[peer("a", false), peer("b", true), peer("c", true)]).expect("one");
        assert_eq!((found.weight, found.about.as_str()), (Weight::Warn, "clocks"));
        assert!(found.text.ends_with("b, c") && found.todo.contains("STARLING_TEST_CLOCK"), "{found:?}");
        // A peer on the machine's own clock says nothing of it: an older version reads its document.
        let plain = serde_json::to_value(peer("a", false)).expect("a document");
        assert_eq!(plain.get("test_clock"), None);
    }

    #[test]
    fn links_are_told_apart() {
        let clusters = ["a", "b", "c"].map(cluster);
        let mut links = Vec::new();
        for (from, to) in [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")] {
            links.push(link(from, to, true, 0.0));
        }
        let found = link_findings(&clusters, &links);
        assert_eq!((found.len(), found[0].weight), (1, Weight::Ok), "{found:?}");
        links[1].direct = false;
        links[4].direct = false;
        links[5].direct = false;
        links[0].loss = 0.2;
        let found = link_findings(&clusters, &links);
        let text: Vec<&str> = found.iter().map(|f| f.text.as_str()).collect();
        assert_eq!(
            text,
            [
                "a direct link one way only: a to b, not back",
                "no direct link: b and c",
                "more than 5 % of packets lost: a to b: 20.0 %"
            ]
        );
    }

    #[test]
    fn the_disk_is_judged_by_its_mean() {
        let text = |sum: f64| {
            format!("x 1\nstarling_store_commit_seconds_sum {sum}\nstarling_store_commit_seconds_count 10\n")
        };
        assert_eq!(disk(&text(0.05)).weight, Weight::Ok);
        assert_eq!(disk(&text(5.0)).weight, Weight::Warn);
        assert_eq!(disk("").weight, Weight::Ok);
    }
}
