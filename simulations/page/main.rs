//! The page in a real browser on a live mesh of three peers. Pictures of every view lie in `target/page` afterwards,
//! or where STARLING_PICTURES says.
#![allow(clippy::disallowed_methods, reason = "starts real processes and bounds real time")]

mod driver;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use driver::Browser;
use serde_json::Value;
use starling::base::{Bytes, MilliCpu};
use starling::model::NodeCapacity;
use starling::model::config::Config;
use starling::model::spec_input::parse_spec;
use starling::surface::documents::PeerDocument;
use starling::surface::fleet::{Fleet, Shape};

const CHECKS: &str = include_str!("checks.js");

fn nodes() -> Vec<NodeCapacity> {
    let group = |name: &str, count, model: &str| NodeCapacity {
        name: name.into(),
        count,
        gpu_model: Some(model.into()),
        gpus: 8,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(64_000),
        memory: Bytes::gib(512),
        declared: true,
    };
    vec![group("a100", 2, "A100-80G"), group("h100", 1, "H100")]
}

struct Scene {
    runtime: tokio::runtime::Runtime,
    fleet: Fleet,
    browser: Browser,
    origin: String,
    token: String,
    pictures: PathBuf,
}

impl Scene {
    fn submit(&self, at: usize, text: &str) -> String {
        let spec = parse_spec(text.as_bytes()).expect("a spec").spec;
        self.runtime.block_on(self.fleet.submit(at, &spec, &format!("page-{}", spec.name))).expect("taken")
    }

    /// Nothing is wrong with what is shown, on any screen and in any colours; with pictures.
    fn looks_right(&self, name: &str) {
        for (width, height) in [(360, 1100), (1280, 900), (3840, 2160)] {
            for colours in ["light", "dark"] {
                self.browser.screen(width, height, colours);
                let wrong = self.browser.run(CHECKS);
                self.browser.picture(&self.pictures.join(format!("{name}-{width}-{colours}.png")));
                assert_eq!(wrong, Value::Array(Vec::new()), "{name} at {width} px, {colours}");
            }
        }
        self.browser.screen(1280, 900, "light");
    }

    /// The document was not loaded anew since `mark`.
    fn marked(&self) -> bool {
        self.browser.run("return window.starlingMark === 1") == Value::Bool(true)
    }

    fn mark(&self) {
        self.browser.run("window.starlingMark = 1");
    }
}

fn scene() -> Option<Scene> {
    let browser = Browser::start()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let adapt = |_: u32, config: &mut Config| config.api.listen = Some(([127, 0, 0, 1], 0).into());
    let exe = Some(PathBuf::from(env!("CARGO_BIN_EXE_starling")));
    let shape = Shape {
        clusters: 3,
        nodes: nodes(),
        attempts_kept: 100,
        exe,
        adapt: Some(&adapt),
        ..Shape::default()
    };
    let fleet = runtime.block_on(Fleet::start(&shape, None, |_| {})).expect("a mesh");
    let about: PeerDocument =
        runtime.block_on(fleet.peers[0].client.get("/v1/peer")).expect("the first peer");
    let token = std::fs::read_to_string(fleet.peers[0].state().join("api.token")).expect("a token");
    let origin = format!("http://{}", about.api.expect("an address"));
    let pictures = match std::env::var_os("STARLING_PICTURES") {
        Some(given) => PathBuf::from(given),
        None => PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../page"),
    };
    std::fs::create_dir_all(&pictures).expect("a folder for pictures");
    Some(Scene { runtime, fleet, browser, origin, token: token.trim().to_owned(), pictures })
}

#[test]
fn the_page_shows_a_live_mesh_and_acts_on_it() {
    let Some(mut scene) = scene() else {
        println!("not tried: the page in a browser: no chromium with chromedriver here");
        return;
    };
    signs_in(&scene);
    views(&scene);
    keyboard(&scene);
    let job = a_job_moves_without_reload(&scene);
    logs_and_cancel(&scene, &job);
    let touched = jobs_at_the_third(&scene);
    a_peer_is_lost(&mut scene, &touched);
    nothing_else_happened(&scene);
    scene.runtime.block_on(scene.fleet.stop(false));
}

fn signs_in(scene: &Scene) {
    let browser = &scene.browser;
    // Without the token: a form, and not a word about the mesh.
    browser.open(&format!("{}/jobs", scene.origin));
    browser
        .until("the form", "document.querySelector('#signin') && !document.querySelector('#signin').hidden");
    let source = browser.run("return document.documentElement.outerHTML");
    assert!(!source.as_str().expect("text").contains("peer c1"), "{source}");
    browser.run("document.querySelector('#token').value = 'wrong'");
    browser.click("#signin button");
    browser.until(
        "it says that the token is wrong",
        "document.querySelector('#why').textContent.includes('not the one')",
    );
    browser.open("about:blank");
    // With the link that `starling page` prints: in, and the token is gone from the address.
    browser.open(&format!("{}/#token={}", scene.origin, scene.token));
    browser.until("the overview", "document.querySelector('main[data-view=Overview]')");
    browser.until("live", "document.querySelector('#live').dataset.state === 'on'");
    let address = browser.run("return location.href + document.cookie");
    assert!(!address.as_str().expect("text").contains(&scene.token), "{address}");
}

fn views(scene: &Scene) {
    let browser = &scene.browser;
    scene.mark();
    scene.submit(0, "name: filler\nresources: {gpus: 6, gpu: [H100]}\nrun: [sleep, \"600\"]\n");
    scene.submit(1, "name: too-big-for-now\ntenant: vision\nresources: {gpus: 8, gpu: [A100-80G]}\nnodes: 2\nrun: [sleep, \"600\"]\n");
    for (key, view) in
        [("o", "Overview"), ("j", "Jobs"), ("c", "Clusters"), ("l", "Links"), ("r", "Ring"), ("e", "Events")]
    {
        browser.keys(&format!("g{key}"));
        browser.until(view, &format!("document.querySelector('main').dataset.view === '{view}'"));
    }
    browser.click("nav a[href='/links']");
    browser.until("all links are measured", "document.querySelectorAll('.heat td[class^=h]').length === 6");
    scene.looks_right("links");
    browser.click("nav a[href='/clusters']");
    browser.until("the clusters", "document.querySelectorAll('main tbody tr').length === 3");
    scene.looks_right("clusters");
    browser.click("nav a[href='/ring']");
    browser.until("the ring", "document.querySelectorAll('path.share').length > 30");
    scene.looks_right("ring");
    browser.click("nav a[href='/jobs']");
    browser.until("two jobs run", "[...document.querySelectorAll('tbody .state.running')].length === 2");
    scene.looks_right("jobs");
    browser.click("nav a[href='/events']");
    browser.until("events", "document.querySelectorAll('main tbody tr').length > 1");
    scene.looks_right("events");
    browser.click("nav a[href='/']");
    browser.until(
        "GPUs in use",
        "document.querySelector('[aria-label^=\"22 used\"], [aria-label^=\"16 used\"]')",
    );
    scene.looks_right("overview");
    let place = browser
        .until("a cluster in the tree", "document.querySelector('main tbody th a').getAttribute('href')");
    browser.click(&format!("main a[href='{}']", place.as_str().expect("an address")));
    browser.until("the cluster", "document.querySelector('main').dataset.view.startsWith('Cluster ')");
    scene.looks_right("cluster");
    assert!(scene.marked(), "a link loaded the whole document");
}

/// Everything that is shown is reached without a mouse. Two jobs run.
fn keyboard(scene: &Scene) {
    const ENTER: &str = "\u{e007}";
    const ESCAPE: &str = "\u{e00c}";
    const TAB: &str = "\u{e004}";
    let browser = &scene.browser;
    browser.keys("gj");
    browser.until("jobs", "document.querySelector('main').dataset.view === 'Jobs'");
    browser.until("two rows", "document.querySelectorAll('main tbody tr').length === 2");
    browser.keys("?");
    browser.until("the keys are listed", "document.querySelector('#keys').open");
    browser.keys(ESCAPE);
    browser.until("and closed", "!document.querySelector('#keys').open");
    // Down, down, no further; up; and into the job that has the focus.
    let at = "[...document.querySelectorAll('tr[data-href] a.id')].indexOf(document.activeElement)";
    for (key, row) in [("j", 0), ("j", 1), ("j", 1), ("k", 0)] {
        browser.keys(key);
        browser.until(&format!("{key} goes to row {row}"), &format!("{at} === {row}"));
    }
    let name = browser.run("return document.querySelector('tr[data-href] td:nth-child(2)').textContent");
    browser.keys(ENTER);
    let name = name.as_str().expect("a name");
    browser.until("the job", &format!("document.querySelector('h1').textContent === '{name}'"));
    // What acts can be reached, and asks; escape leaves things as they are.
    browser.run("document.querySelector('main').focus()");
    browser.keys(TAB);
    browser.until("the first button", "document.activeElement.matches('main button[data-act]')");
    browser.keys(ENTER);
    browser.until("it asks", "document.querySelector('#ask').open");
    browser.keys(ESCAPE);
    browser.until("and leaves it", "!document.querySelector('#ask').open");
    assert_eq!(browser.run("return document.querySelector('.state.big').textContent"), "running");
    // Letters that are typed are no commands.
    browser.keys("gj");
    browser.until("jobs", "document.querySelector('main').dataset.view === 'Jobs'");
    browser.keys("/");
    browser.keys("gc");
    browser.until(
        "no job is like that",
        "document.querySelector('main').textContent.includes('No job is like that')",
    );
    assert_eq!(browser.run("return document.querySelector('main').dataset.view"), "Jobs");
    browser.keys(ESCAPE);
    browser.keys("go");
    browser.until("the overview", "document.querySelector('main').dataset.view === 'Overview'");
    assert!(scene.marked(), "a key loaded the whole document");
}

fn a_job_moves_without_reload(scene: &Scene) -> String {
    let browser = &scene.browser;
    browser.keys("gj");
    browser.until("jobs", "document.querySelector('main').dataset.view === 'Jobs'");
    scene.mark();
    let script = "i=0; while [ $i -lt 1200 ]; do i=$((i+1)); echo step $i of many; sleep 0.5; done";
    let id = scene
        .submit(1, &format!("name: counting\ntenant: language\nresources: {{gpus: 2}}\nrun: '{script}'\n"));
    browser.until("the new job", &format!("document.querySelector('tr[data-key=\"{id}\"]')"));
    browser.until("it runs", &format!("document.querySelector('tr[data-key=\"{id}\"] .state.running')"));
    assert!(scene.marked(), "the list was loaded anew");
    // Found by typing, and opened.
    browser.keys("/");
    browser.keys("counting");
    browser.until("one row", "document.querySelectorAll('main tbody tr').length === 1");
    browser.click(&format!("tr[data-key=\"{id}\"] a"));
    browser.until("the job", "document.querySelector('h1').textContent === 'counting'");
    id
}

fn logs_and_cancel(scene: &Scene, id: &str) {
    let browser = &scene.browser;
    browser.until("the first line", "document.querySelector('pre.logs').textContent.includes('step 1 of')");
    let lines = "document.querySelector('pre.logs').textContent.split('\\n').length";
    let before = browser.run(&format!("return {lines}")).as_u64().expect("a number");
    browser.until("more lines come by themselves", &format!("{lines} > {}", before + 2));
    browser.until("its candidates", "document.querySelectorAll('[data-key^=y-]').length === 3");
    scene.looks_right("job");
    browser.click("button[data-act$='/cancel']");
    browser.until("it asks", "document.querySelector('#ask').open");
    browser.picture(&scene.pictures.join("ask-1280-light.png"));
    browser.click("#ask button[value=no]");
    assert_eq!(browser.run("return document.querySelector('.state.big').textContent"), "running");
    browser.click("button[data-act$='/cancel']");
    browser.click("#ask-go");
    browser.until("it has ended", "document.querySelector('.state.big').textContent === 'cancelled'");
    browser.until("it can be run again", "document.querySelector('button[data-goto]')");
    let job: Value =
        scene.runtime.block_on(scene.fleet.peers[1].client.get(&format!("/v1/jobs/{id}"))).expect("the job");
    assert_eq!(
        (&job["state"], &job["cancelled_by"]),
        (&"cancelled".into(), &"a token holder".into()),
        "{job:#}"
    );
    assert!(scene.marked(), "an action loaded the document anew");
    scene.looks_right("job-cancelled");
}

/// A job with a short grace that runs at the third peer, and a long one.
fn jobs_at_the_third(scene: &Scene) -> Vec<String> {
    let job = |name: &str, grace: &str| {
        scene.submit(0, &format!("name: {name}\nplacement: {{clusters: [c3]}}\non_lost_contact: {{grace: {grace}}}\nresources: {{cpus: 1}}\nrun: [sleep, \"600\"]\n"))
    };
    let anywhere = scene.submit(
        0,
        "name: moves-on\non_lost_contact: {grace: 10s}\nresources: {cpus: 1}\nrun: [sleep, \"600\"]\n",
    );
    let stays = job("stays", "5m");
    let client = &scene.fleet.peers[0].client;
    let at = |id: &str| {
        let found: Value = scene.runtime.block_on(client.get(&format!("/v1/jobs/{id}"))).expect("the job");
        (found["state"] == "running").then(|| found["cluster"].as_str().unwrap_or_default().to_owned())
    };
    let begun = Instant::now();
    let wait = |id: &str, what: &dyn Fn(&str) -> bool| {
        while !at(id).is_some_and(|cluster| what(&cluster)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{id} is not where it should be");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    wait(&stays, &|cluster| cluster == "c3");
    wait(&anywhere, &|_| true);
    if at(&anywhere).as_deref() != Some("c3") {
        let body = serde_json::json!({ "to": "c3" }).to_string().into_bytes();
        let path = format!("/v1/jobs/{anywhere}/move");
        let moved = client.send::<Value>(axum::http::Method::POST, &path, Some(("application/json", body)));
        scene.runtime.block_on(moved).expect("moved");
        wait(&anywhere, &|cluster| cluster == "c3");
    }
    vec![anywhere, stays]
}

fn a_peer_is_lost(scene: &mut Scene, touched: &[String]) {
    scene.browser.keys("go");
    scene.browser.until(
        "the overview",
        "document.querySelector('main[data-view=Overview] .notice:not(.bad):not(.warn)')",
    );
    scene.runtime.block_on(scene.fleet.kill(2)).expect("killed");
    let begun = Instant::now();
    scene.browser.until(
        "it says whom it cannot see",
        "document.querySelector('.notice.bad, .notice.warn')?.textContent.includes('c3')",
    );
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "seen after {took:?}");
    println!("a killed peer is on the page after {took:?}");
    scene
        .browser
        .until("its GPUs are down", "document.querySelector('tr.l0 [aria-label*=\" 24 down of 72\"]')");
    scene.looks_right("overview-lost");
    scene.browser.click("main a[href='/clusters/c3']");
    scene.browser.until(
        "its page says that it cannot be asked",
        "document.querySelector('main').textContent.includes('cannot be asked')",
    );
    scene.looks_right("cluster-lost");
    scene.browser.keys("ge");
    let incident = ".incident[data-kind=cluster][data-subject=c3]";
    scene.browser.until("the incident", &format!("document.querySelector('{incident}')"));
    for id in touched {
        scene.browser.until(
            "its jobs and what is done for them",
            &format!("document.querySelector('{incident} tr[data-key=\"t-{id}\"][data-doing]')"),
        );
    }
    let took = begun.elapsed();
    println!("the incident with its {} jobs is on the page after {took:?}", touched.len());
    assert!(took < Duration::from_secs(30), "seen after {took:?}");
    scene.looks_right("incident");
    scene.browser.until(
        "a job that is taken over runs again",
        &format!("document.querySelector('{incident} tr[data-doing=runs-again]')"),
    );
    assert!(scene.marked());
    // Every other view stands too while one of three is gone.
    for (keys, view) in [("gl", "Links"), ("gr", "Ring"), ("gj", "Jobs"), ("gc", "Clusters")] {
        scene.browser.keys(keys);
        scene.browser.until(view, &format!("document.querySelector('main[data-view={view}]')"));
        scene.looks_right(&format!("{}-lost", view.to_lowercase()));
    }
    scene.browser.click("main a[href='/clusters/c1']");
    scene.browser.until(
        "what its peer wrote down",
        "[...document.querySelectorAll('section')].some(s => s.querySelector('h2')?.textContent.startsWith('Events') && s.querySelector('tbody tr'))",
    );
    scene.looks_right("cluster");
}

fn nothing_else_happened(scene: &Scene) {
    // What the network says (a peer that is gone, a wrong token) is no fault of the page; anything else is.
    let words = scene.browser.log("browser");
    let faults: Vec<&Value> = words
        .iter()
        .filter(|w| w["source"] != "network" && w["level"] != "INFO" && w["level"] != "DEBUG")
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let mut asked = 0;
    for entry in scene.browser.log("performance") {
        let message: Value =
            serde_json::from_str(entry["message"].as_str().unwrap_or_default()).unwrap_or_default();
        if message["message"]["method"] == "Network.requestWillBeSent" {
            let url = message["message"]["params"]["request"]["url"].as_str().unwrap_or_default();
            asked += 1;
            let own = url.starts_with(&format!("{}/", scene.origin));
            // The browser's own first tab is none of the page's doing.
            let browsers = ["data:", "about:", "chrome:"].iter().any(|scheme| url.starts_with(scheme));
            assert!(own || browsers, "asked {url}");
        }
    }
    assert!(asked > 20, "the network was watched: {asked} requests");
}
