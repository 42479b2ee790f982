//! What the views say: how old it is, what cannot be seen, and what stands in their tables.

use std::collections::BTreeMap;

use super::tests::get;
use super::*;
use crate::base::{Epoch, JobId, PeerName, Span, WallTime};
use crate::core::api::{AttemptView, Candidate, ClaimView, Event, Look};
use crate::core::placement::Reason;
use crate::model::report::Liveness;
use crate::runtime::eventlog::EventLog;
use crate::surface::fake::{Fake, State as FakeState, name};
use std::sync::Arc;

async fn page(fake: &Arc<Fake>, path: &str) -> String {
    let (status, _, text) = get(fake, path).await;
    assert_eq!(status, StatusCode::OK, "{path}: {text}");
    text
}

fn set(fake: &Fake, change: impl FnOnce(&mut FakeState)) {
    change(&mut fake.state.lock().expect("state"));
}

/// The ages that a text shows, in seconds.
fn ages(text: &str) -> Vec<u64> {
    let all = text.split("data-age=\"").skip(1);
    all.map(|rest| rest.split('"').next().and_then(|n| n.parse::<u64>().ok()).expect("a number") / 1_000)
        .collect()
}

/// The row that begins with this key.
fn row<'a>(text: &'a str, key: &str) -> &'a str {
    let marks = [format!("data-key=\"{key}\""), format!("data-key={key} "), format!("data-key={key}>")];
    let at = marks.iter().find_map(|mark| text.find(mark)).unwrap_or_else(|| panic!("no row {key}: {text}"));
    text[at..].split("</tr>").next().unwrap_or_default()
}

/// The panel under a heading.
fn part<'a>(text: &'a str, heading: &str) -> &'a str {
    let mark = format!("<h2>{heading}");
    let at = text.find(&mark).unwrap_or_else(|| panic!("no panel {heading}: {text}"));
    text[at..].split("</section>").next().unwrap_or_default()
}

fn has_age(text: &str, about: u64) -> bool {
    ages(text).iter().any(|age| (about..about + 60).contains(age))
}

/// `a` looks; `b` was heard 95 s ago and answers, `c` is lost and was heard 400 s ago, `d` has told nothing yet.
fn four() -> (Arc<Fake>, Arc<Fake>) {
    let (a, b) = (Fake::new("a"), Fake::new("b"));
    a.knows("b", Some(crate::surface::router(b.clone())));
    a.knows("c", None);
    a.knows("d", None);
    set(&a, |s| {
        s.heard_ago = [("a", 1), ("b", 95), ("c", 400)].map(|(p, secs)| (name(p), Span::secs(secs))).into();
        s.away.insert(name("c"), Liveness::Lost);
        s.unheard.insert(name("d"));
    });
    (a, b)
}

#[tokio::test]
async fn clusters_links_and_overview_say_how_old_their_figures_are() {
    let (a, _b) = four();
    let text = page(&a, "/").await;
    for heading in ["GPUs by model", "Pool"] {
        let panel = part(&text, heading);
        assert!(has_age(panel, 1) && has_age(panel, 400), "{heading}: {panel}");
        assert!(panel.contains("nothing yet by 1"), "{heading}: {panel}");
    }
    let tiles = text.split("class=\"soft told\"").nth(1).expect("the age of the sums");
    assert!(has_age(tiles.split("</p>").next().unwrap_or_default(), 400), "{tiles}");
    assert!(has_age(row(&text, "c-b"), 95) && has_age(row(&text, "t1-region-c"), 400));
    assert!(row(&text, "c-d").contains("<td class=\"n zero\">–</td>"), "none is not zero: {text}");
    let none = "none</span>";
    assert!(
        row(&text, "c-b").contains("class=bar") && !row(&text, "c-d").contains(none),
        "{}",
        row(&text, "c-d")
    );

    let text = page(&a, "/clusters").await;
    assert!(has_age(row(&text, "b"), 95) && has_age(row(&text, "c"), 400));
    assert!(row(&text, "d").contains("never") && row(&text, "d").contains("–</td>"), "{}", row(&text, "d"));
    assert!(row(&text, "b").contains("class=bar") && !row(&text, "d").contains(none), "{}", row(&text, "d"));
    assert!(has_age(part(&text, "Clusters"), 400));
    let text = page(&a, "/clusters/d").await;
    let facts = part(&text, "Facts");
    assert!(
        facts.contains("<dt>GPUs</dt><dd>–</dd><dt>Free</dt><dd>–</dd><dt>Work</dt><dd>–</dd>"),
        "{facts}"
    );
    assert!(!facts.contains(none), "{facts}");

    let text = page(&a, "/clusters/b").await;
    for heading in ["Facts", "Nodes"] {
        assert!(has_age(part(&text, heading), 95), "{heading}");
    }
    for heading in ["Runs here", "Waits here, in order", "Who uses it", "Events"] {
        assert!(ages(part(&text, heading)).contains(&0), "{heading}: asked for this very page");
    }
    let text = page(&a, "/clusters/c").await;
    assert!(text.contains("What runs and waits there cannot be asked") && has_age(&text, 400), "{text}");

    for show in ["rtt", "bandwidth", "loss"] {
        let text = page(&a, &format!("/links?show={show}")).await;
        let matrix = part(&text, "Matrix");
        assert!(has_age(matrix, 95) && has_age(matrix, 400), "{show}: {matrix}");
        assert!(matrix.contains("10 of 12 directions are not known"), "{show}: {matrix}");
    }
}

#[tokio::test]
async fn jobs_ring_and_events_say_how_old_their_figures_are() {
    let (a, b) = four();
    let job = a.put(Fake::spec("name: waits\nrun: x\n"));
    let folder = tempfile::tempdir().expect("a folder");
    let log = EventLog::open(folder.path()).expect("a log");
    let now = crate::surface::documents::wall_now().0;
    log.event(Event::new("job.placed", Some(job), "placed"), WallTime(now - 95_000));
    log.flushed().await;
    set(&b, |s| s.log = Some(log.clone()));
    let other = tempfile::tempdir().expect("a folder");
    set(&a, |s| s.log = Some(EventLog::open(other.path()).expect("a log")));

    let text = page(&a, "/jobs").await;
    let head = text.split("as of ").nth(1).expect("the list's age");
    assert!(ages(&head[..80]).contains(&0), "{head}");
    assert!(text.contains("c, d did not answer") || text.contains("d, c did not answer"), "{text}");

    let text = page(&a, &format!("/jobs/{job}")).await;
    assert!(ages(part(&text, "Candidates")).len() >= 2, "asked when, and from figures how old");
    assert!(part(&text, "Facts").contains("generation") && ages(part(&text, "Facts")).contains(&0));
    assert!(part(&text, "Events").contains("without those of"), "{text}");

    let text = page(&a, "/ring").await;
    assert!(ages(part(&text, "Shares")).contains(&0) && text.contains("jobs as of"));
    assert!(!row(&text, "b").contains("not told"), "{}", row(&text, "b"));
    assert!(row(&text, "c").contains("not told") && row(&text, "d").contains("not told"));

    let text = page(&a, "/events").await;
    assert!(has_age(part(&text, "All peers"), 95), "{text}");
    assert!(ages(part(&text, "Incidents")).contains(&0), "{text}");
    assert!(text.contains("Not complete: no answer from"), "{text}");
}

#[tokio::test]
async fn half_of_the_mesh_away_is_said_and_counts_as_down() {
    let a = Fake::new("a");
    let b = Fake::new("b");
    a.knows("b", Some(crate::surface::router(b)));
    for gone in ["c", "d"] {
        a.knows(gone, None);
        set(&a, |s| s.away.extend([(name(gone), Liveness::Lost)]));
    }
    for path in ["/", "/clusters", "/links", "/ring"] {
        let text = page(&a, path).await;
        assert!(text.contains("<b>Cannot see 2 of 4 peers.</b>"), "{path}: {text}");
        for gone in ["c", "d"] {
            let link = format!("<li><a href=\"/clusters/{gone}\">{gone}</a> <span class=\"state lost\">lost");
            assert!(text.contains(&link), "{path}: {text}");
        }
    }
    let text = page(&a, "/").await;
    assert!(row(&text, "t0-mesh").contains("10 used, 0 reserved, 6 free, 16 down of 32 GPUs"), "{text}");
    let text = page(&a, "/jobs").await;
    assert!(text.contains("did not answer. A job is shown as long as one of its homes answers"), "{text}");
    assert!(!text.contains(">b did not") && !text.contains("b, c"), "who answers is not named: {text}");
}

#[tokio::test]
async fn an_isolated_peer_says_so_on_every_view() {
    let (a, _b) = four();
    let job = a.put(Fake::spec("run: x\n"));
    let paths = ["/", "/jobs", "/clusters", "/clusters/b", "/links", "/ring", "/events"].map(str::to_owned);
    let paths: Vec<String> = paths.into_iter().chain([format!("/jobs/{job}")]).collect();
    for path in &paths {
        assert!(!page(&a, path).await.contains("This peer reaches no other"), "{path}");
    }
    set(&a, |s| s.isolated = true);
    for path in &paths {
        assert!(page(&a, path).await.contains("<b>This peer reaches no other.</b>"), "{path}");
    }
}

#[tokio::test]
async fn jobs_are_sorted_and_filtered() {
    let a = Fake::new("a");
    let put = |name: &str, tenant: &str, gpus: u32| {
        a.put(Fake::spec(&format!("name: {name}\ntenant: {tenant}\nresources: {{gpus: {gpus}}}\nrun: x\n")))
    };
    let (mid, low, top) = (put("mid", "red", 4), put("low", "blue", 1), put("top", "red", 8));
    a.place(top, "a");
    a.place(low, "b");
    a.close(low, 1);
    let order = |text: &str| -> Vec<&'static str> {
        let of = [(mid, "mid"), (low, "low"), (top, "top")];
        let mut at: Vec<(usize, &str)> = of
            .iter()
            .filter_map(|(id, name)| Some((text.find(&format!("<tr data-key={id} "))?, *name)))
            .collect();
        at.sort_unstable();
        at.into_iter().map(|(_, name)| name).collect()
    };
    for (path, want) in [
        ("/jobs", &["top", "low", "mid"][..]),
        ("/jobs?sort=-age", &["mid", "low", "top"]),
        ("/jobs?sort=gpus", &["low", "mid", "top"]),
        ("/jobs?sort=-gpus", &["top", "mid", "low"]),
        ("/jobs?sort=name", &["low", "mid", "top"]),
        ("/jobs?sort=-tenant", &["top", "mid", "low"]),
        ("/jobs?sort=-cluster", &["low", "top", "mid"]),
        ("/jobs?tenant=red&sort=name", &["mid", "top"]),
        ("/jobs?cluster=b", &["low"]),
        ("/jobs?state=running", &["top"]),
        ("/jobs?state=failed", &["low"]),
        ("/jobs?q=BLUE", &["low"]),
        ("/jobs?q=to&tenant=red", &["top"]),
        ("/jobs?q=nothing-like-it", &[]),
    ] {
        assert_eq!(order(&page(&a, path).await), want, "{path}");
    }
    let text = page(&a, "/jobs?sort=-gpus&tenant=red").await;
    assert_eq!(text.matches("aria-sort").count(), 1);
    assert!(
        text.contains("aria-sort=descending><a href=\"/jobs?tenant=red&amp;sort=gpus\">GPUs ▾"),
        "{text}"
    );
    assert!(text.contains("<option selected>red</option>"), "{text}");
    // The tabs count what the other filters leave.
    assert!(text.contains("all <b>2</b>"), "{text}");
    assert!(page(&a, "/jobs?q=nothing-like-it").await.contains("No job is like that."));
}

#[tokio::test]
async fn why_and_events_have_real_content_and_no_markup_of_others() {
    let a = Fake::new("a");
    let job = a.put(Fake::spec("name: waits\ntenant: vision\nrun: x\n"));
    set(&a, |s| {
        s.candidates.push(Candidate {
            cluster: name("b"),
            fits_ever: true,
            fits_now: false,
            reasons: vec![Reason::Closed { why: "<b onclick=x>drains</b>".into() }],
            score: None,
            terms: BTreeMap::new(),
            estimate: None,
            claim: None,
            report_age: Some(Span::secs(95)),
        });
    });
    let text = page(&a, &format!("/jobs/{job}")).await;
    let first = row(&text, "y-a");
    for cell in ["later", "<td class=n>1.500</td>", "<td class=n>3</td>", "wait s&nbsp;12.00"] {
        assert!(first.contains(cell), "{cell}: {first}");
    }
    assert!(first.contains("0 of 8 GPUs wanted are free; 3 jobs wait there"), "{first}");
    let second = row(&text, "y-b");
    let said = "takes no new jobs: &lt;b onclick=x&gt;drains&lt;/b&gt;";
    assert!(second.contains(said) && has_age(second, 95), "{second}");

    let folder = tempfile::tempdir().expect("a folder");
    let log = EventLog::open(folder.path()).expect("a log");
    let now = crate::surface::documents::wall_now().0;
    let mut event = Event::new("job.placed", Some(job), "at <img src=x onerror=alert(1)>");
    event.tenant = Some("<i>red</i>".into());
    log.event(event, WallTime(now - 5_000));
    log.event(Event::new("peer.lost", None, "b is lost"), WallTime(now - 4_000));
    log.flushed().await;
    set(&a, |s| s.log = Some(log.clone()));
    let rows = |text: &str| part(text, "All peers").matches("<tr><td").count();
    let text = page(&a, "/events").await;
    let events = part(&text, "All peers");
    for cell in [
        "at &lt;img src=x onerror=alert(1)&gt;",
        "&lt;i&gt;red&lt;/i&gt;",
        "<code>job.placed</code>",
        "<td class=tight>a</td>",
        &format!("<a class=id href=\"/jobs/{job}\">{}</a>", job.short()),
    ] {
        assert!(events.contains(cell), "{cell}: {events}");
    }
    assert!(!text.contains("<img") && !text.contains("<i>"), "{text}");
    assert!(events.find("b is lost") < events.find("onerror"), "the newest first: {events}");
    assert_eq!(rows(&text), 2);
    for (path, want) in [
        ("/events?kind=job.", 1),
        ("/events?q=lost", 1),
        ("/events?q=RED", 1),
        ("/events?kind=peer.&q=onerror", 0),
    ] {
        assert_eq!(rows(&page(&a, path).await), want, "{path}");
    }
    // The job's own page has its part of them.
    let text = page(&a, &format!("/jobs/{job}")).await;
    let events = part(&text, "Events");
    assert!(events.contains("&lt;img src=x") && !events.contains("b is lost"), "{events}");
}

#[tokio::test]
async fn the_queue_of_a_cluster_says_why_each_waits() {
    let a = Fake::new("a");
    let claim = |n: u8, why: &str, granted: bool| ClaimView {
        job: JobId([n; 20]),
        owner: name("a"),
        priority: 50,
        gpus: 8,
        granted,
        age: Span::secs(95),
        why: why.into(),
        starts_in: (n == 2).then(|| Span::secs(300)),
    };
    set(&a, |s| {
        s.queue = vec![
            claim(1, "holds a grant, for 20.0s more: its owner has not taken it yet", true),
            claim(2, "3 of 8 GPUs wanted are free", false),
            claim(3, "tenant <b>red</b> has 0 of 8 GPUs left", false),
            claim(4, "", false),
        ];
        s.attempts.push(AttemptView {
            job: JobId([9; 20]),
            epoch: Epoch(2),
            name: "<u>run</u>".into(),
            tenant: "red".into(),
            gpus: 4,
            phase: "running".into(),
            age: Span::secs(95),
            staging: None,
        });
    });
    let text = page(&a, "/clusters/a").await;
    let of = |n: u8| row(&text, &format!("q-{}", JobId([n; 20]))).to_owned();
    assert!(of(1).contains("Holds a grant, for 20.0s more"), "{}", of(1));
    assert!(of(2).contains("3 of 8 GPUs wanted are free.") && of(2).contains("in 5 min"), "{}", of(2));
    assert!(of(3).contains("Tenant &lt;b&gt;red&lt;/b&gt; has 0 of 8 GPUs left."), "{}", of(3));
    assert!(of(4).contains("not looked at yet"), "{}", of(4));
    assert!(part(&text, "Nodes").contains("ib (1 of 1 up), and 7 more"), "{}", part(&text, "Nodes"));
    set(&a, |s| s.queue = (0..1_203).map(|_| claim(5, &"x".repeat(300), false)).collect());
    let queue = page(&a, "/clusters/a").await;
    let queue = part(&queue, "Waits here, in order");
    assert!(
        queue.contains("and 1\u{202f}003 more") && queue.matches("data-key=\"q-").count() == 200,
        "{queue}"
    );
    assert!(!queue.contains(&"x".repeat(200)), "long words are cut");
    let asked = a.state.lock().expect("state").looks.last().copied();
    assert_eq!(asked, Some(Look { claims: 200, reasons: true }));
    assert!(text.contains("&lt;u&gt;run&lt;/u&gt;") && part(&text, "Who uses it").contains("red"), "{text}");
}

fn hundred(region: impl Fn(u32) -> String) -> Arc<Fake> {
    let a = Fake::new("p0");
    for n in 0..100 {
        if n > 0 {
            a.knows(&format!("p{n}"), None);
        }
        set(&a, |s| drop(s.regions.insert(name(&format!("p{n}")), region(n))));
    }
    a
}

/// The colours of the dots in a table, and of the sectors or arcs of the ring.
fn colours(text: &str) -> (Vec<&str>, Vec<&str>) {
    let all = |text: &'_ str, mark: &str| -> Vec<std::ops::Range<usize>> {
        let starts = text.match_indices(mark).map(|(at, _)| at + mark.len());
        starts.map(|at| at..at + text[at..].find('"').expect("closed")).collect()
    };
    let of = |mark| all(text, mark).into_iter().map(|range| &text[range]).collect();
    (of("<circle class=\"b"), of("class=\"share a"))
}

#[tokio::test]
async fn the_ring_and_its_table_have_the_same_colours_and_none_twice() {
    // Each of 48 peers.
    let a = Fake::new("p10");
    (11..58).for_each(|n| a.knows(&format!("p{n}"), None));
    let text = page(&a, "/ring").await;
    let (dots, arcs) = colours(&text);
    let different: std::collections::BTreeSet<&str> = dots.iter().copied().collect();
    assert_eq!((dots.len(), different.len()), (48, 48), "{dots:?}");
    assert_eq!(arcs.into_iter().collect::<std::collections::BTreeSet<_>>(), different);
    // Each of 100 regions, of which some have no row: those are one sector, of a colour of its own.
    let a = hundred(|n| format!("r{n:02}"));
    let text = page(&a, "/ring").await;
    let (dots, sectors) = colours(&text);
    assert_eq!((dots.len(), &dots), (49, &sectors));
    assert_eq!(dots.iter().collect::<std::collections::BTreeSet<_>>().len(), 49);
    assert!(text.contains("<title>52 more regions: "), "{text}");
    // The ring shows regions, so all peers of one are of its colour.
    let a = hundred(|n| format!("region-{}", n % 4));
    let text = page(&a, "/ring?region=region-2").await;
    let (dots, sectors) = colours(&text);
    assert!(dots.len() == 25 && dots.iter().all(|d| *d == sectors[2]), "{dots:?} {sectors:?}");
}

fn shares(text: &str) -> f64 {
    let cells = part(text, "Shares").split("<td class=n>").skip(1);
    cells.filter_map(|c| c.split(" %").next()?.parse::<f64>().ok().filter(|_| c.contains(" %</td>"))).sum()
}

#[tokio::test]
async fn the_ring_of_a_hundred_peers_is_readable() {
    let a = hundred(|n| format!("region-{}", n % 4));
    set(&a, |s| s.away.extend([(name("p5"), Liveness::Lost)]));
    let text = page(&a, "/ring").await;
    assert_eq!(text.matches("data-key=\"r-").count(), 4);
    assert!(row(&text, "r-region-1").contains("24 of 25") && row(&text, "r-region-2").contains("25 of 25"));
    assert!((shares(&text) - 100.0).abs() < 0.5, "{}", shares(&text));
    assert_eq!(text.matches("class=\"share a").count(), 4, "a sector a region");
    assert!(text.len() < 20_000, "{} bytes", text.len());
    let text = page(&a, "/ring?region=region-1").await;
    let peers = part(&text, "Shares");
    assert_eq!(peers.matches("<tr data-key=").count(), 25);
    assert!(row(&text, "p5").contains("lost") && peers.contains("href=\"/ring\""), "{peers}");
    let (status, _, _) = get(&a, "/ring?region=nowhere").await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    // One region only: its peers at once, as many as can be read, with a count of the others.
    let a = hundred(|_| "eu".into());
    let text = page(&a, "/ring").await;
    assert_eq!(part(&text, "Shares").matches("<tr data-key=").count(), 48);
    assert!(text.contains("and 52 more peers"), "{text}");

    // As many regions as peers: the same.
    let a = hundred(|n| format!("r{n}"));
    let text = page(&a, "/ring").await;
    assert_eq!(text.matches("data-key=\"r-").count(), 48);
    assert!(row(&text, "rest").contains("52 more regions") && row(&text, "rest").contains("52 of 52"));
    assert!((shares(&text) - 100.0).abs() < 5.0, "{}", shares(&text));
}

#[tokio::test]
async fn the_ring_of_a_few_shows_each() {
    let (a, _b) = four();
    let text = page(&a, "/ring").await;
    assert!((shares(&text) - 100.0).abs() < 0.5, "{}", shares(&text));
    assert!(text.matches("class=\"share a").count() > 30, "its points are drawn");
    let missing: Vec<PeerName> = ["a", "b", "c", "d"]
        .map(name)
        .into_iter()
        .filter(|p| !text.contains(&format!("data-key=\"{p}\"")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
