//! How many series there are, and which are there from the start.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::*;
use crate::base::{Epoch, JobId, Span};
use crate::core::api::{AttemptView, ClaimView, Event};
use crate::surface::api::routes::{Watched, router_with};
use crate::surface::api::tests::send;
use crate::surface::fake::{Fake, name};
use crate::surface::measure::Measures;

async fn text_of(app: &axum::Router) -> String {
    let (status, bytes) = send(app, "GET", "/metrics", "").await;
    assert_eq!(status, StatusCode::OK);
    String::from_utf8(bytes).expect("UTF-8")
}

fn series(text: &str) -> Vec<&str> {
    text.lines().filter(|l| !l.starts_with('#')).collect()
}

/// So many peers, tenants, jobs, kinds of events and callers: what `/metrics` says then.
async fn crowded(peers: u32, others: u32) -> String {
    let fake = Fake::new("p0");
    (1..peers).for_each(|n| fake.knows(&format!("p{n}"), None));
    let mut measures = Measures::default();
    for n in 0..others {
        measures.note(&Event::new(&format!("kind.{n}"), None, "x"));
    }
    let job = |n: u32| {
        let mut id = [0; 20];
        id[..4].copy_from_slice(&n.to_be_bytes());
        JobId(id)
    };
    {
        let mut state = fake.state.lock().expect("state");
        state.measures = true;
        state.attempts = (0..others)
            .map(|n| AttemptView {
                job: job(n),
                epoch: Epoch(1),
                name: format!("job-{n}"),
                tenant: format!("tenant-{n}"),
                gpus: 1,
                phase: "running".into(),
                age: Span::secs(1),
                staging: None,
            })
            .collect();
        state.queue = (0..others)
            .map(|n| ClaimView {
                job: job(n),
                owner: name(&format!("p{}", n % peers)),
                priority: 50,
                gpus: 1,
                granted: false,
                age: Span::secs(1),
                why: format!("reason {n}"),
                starts_in: None,
            })
            .collect();
    }
    let watched = Watched { measures: Arc::new(Mutex::new(measures)), ..Watched::default() };
    let app = router_with(fake, watched);
    for n in 0..others.min(50) {
        for path in [format!("/v1/jobs/nobody{n}"), format!("/nothing/{n}"), format!("/v1/clusters/c{n}")] {
            send(&app, "GET", &path, "").await;
        }
    }
    text_of(&app).await
}

/// Tenants, jobs and callers make no series; members make a few each, up to a bound; kinds are bounded.
#[tokio::test]
async fn however_many_there_are_the_series_are_few() {
    let small = crowded(4, 70).await;
    let more = crowded(4, 3_000).await;
    assert_eq!(series(&small).len(), series(&more).len(), "tenants, jobs, kinds, callers");
    assert!(series(&small).len() < 300, "{}", series(&small).len());
    let wide = crowded(20, 70).await;
    let each = (series(&wide).len() - series(&small).len()) / 16;
    assert!(each <= 5, "{each} series for one more member");
    let huge = crowded(3_000, 1).await;
    assert!(series(&huge).len() <= 5 * LINKS_MAX + 300, "{}", series(&huge).len());
    // A new label is a decision: what it may be must be bounded.
    let mut labels = BTreeSet::new();
    for line in series(&huge) {
        let inside =
            line.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(inside, _)| inside);
        for label in inside.into_iter().flat_map(|inside| inside.split("\",")) {
            labels.insert(label.split('=').next().unwrap_or_default().to_owned());
        }
    }
    let known = ["kind", "le", "liveness", "model", "outcome", "route", "severity", "state", "status", "to"];
    assert_eq!(labels, known.map(str::to_owned).into(), "{labels:?}");
    assert!(!more.contains("tenant-") && !more.contains("nobody1"), "{more}");
}

/// `increase()` of a counter that begins with 1 is 0: the first of these must not be missed.
#[tokio::test]
async fn what_a_rule_counts_is_there_before_it_happens() {
    let text = text_of(&router_with(Fake::new("a"), Watched::default())).await;
    let rules = include_str!("../../../deploy/prometheus/rules.yml");
    let kinds: BTreeSet<&str> =
        rules.split("kind=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(kinds.len() >= 3, "{kinds:?}");
    for kind in kinds {
        let line = format!("starling_events_total{{kind=\"{kind}\"}} 0");
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    for file in [rules, include_str!("../../../deploy/grafana/starling.json")] {
        let words = file.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for counter in words.filter(|w| w.starts_with("starling_core_")) {
            let zero = format!("{counter} 0");
            assert!(text.lines().any(|l| l == zero), "{zero}: {text}");
        }
    }
}

/// Grafana takes a panel for another one of the same number, and shows everything in a panel in the panel's unit.
#[test]
fn every_panel_of_the_dashboard_has_a_number_of_its_own_and_the_unit_of_all_that_it_shows() {
    let text = include_str!("../../../deploy/grafana/starling.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let (mut numbers, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = &panel["title"];
        assert!(numbers.insert(panel["id"].as_u64().expect("a number")), "{title}");
        let at = &panel["gridPos"];
        assert!(places.insert((at["y"].as_u64(), at["x"].as_u64())), "{title}");
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let letters: BTreeSet<&str> = targets.iter().filter_map(|t| t["refId"].as_str()).collect();
        assert_eq!(letters.len(), targets.len(), "{title}");
        let seconds = panel["fieldConfig"]["defaults"]["unit"] == "s";
        for target in &targets {
            let asks = target["expr"].as_str().expect("a question");
            assert_eq!(asks.contains("_seconds"), seconds, "{title}: {asks}");
        }
    }
    assert!(numbers.len() > 40);
}
