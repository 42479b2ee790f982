//! The CLI against a fake peer over a real unix socket.

use clap::CommandFactory;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::surface::client::{Client, Target};
use crate::surface::fake::Fake;
use crate::surface::serve::{ApiListeners, bind_unix, serve};

pub(super) struct Peer {
    dir: tempfile::TempDir,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

pub(super) fn peer(fake: std::sync::Arc<Fake>) -> Peer {
    let dir = tempfile::tempdir().expect("dir");
    let unix = bind_unix(&dir.path().join("api.sock")).expect("socket");
    let stop = CancellationToken::new();
    let listeners = ApiListeners { unix: Some(unix), ..Default::default() };
    let serving = tokio::spawn(serve(listeners, crate::surface::router(fake), stop.clone()));
    Peer { dir, stop, serving }
}

impl Peer {
    async fn does(&self, line: &[&str]) -> CommandResult {
        let state = self.dir.path().to_str().expect("a path").to_owned();
        let line = ["starling", "--state", &state].into_iter().chain(line.iter().copied());
        let cli = Cli::try_parse_from(line).expect("it parses");
        let asking = Asking {
            client: client(&cli.global)?.0,
            style: Style { colour: false },
            json: cli.global.json,
            token: None,
            secret: None,
        };
        let done = tokio::time::timeout(std::time::Duration::from_secs(30), perform(&asking, cli.command));
        done.await.expect("in time")
    }

    pub(super) fn client(&self) -> Client {
        Client::new(Target::Unix(self.dir.path().join("api.sock")), None, None).expect("a client")
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        self.serving.await.expect("no panic").expect("ok");
    }
}

fn code(result: CommandResult) -> u8 {
    match result {
        Ok(reply) => reply.code,
        Err(failure) => failure.code(),
    }
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
    for bad in [
        &["starling", "demo", "--clusters", "17"][..],
        &["starling", "demo", "--clusters", "0"],
        &["starling", "run", "--gpus", "1"],
        &["starling", "submit"],
        &["starling", "clusters", "--report"],
        &["starling", "queue", "--at", "a", "--tenant", "t"],
        &["starling", "replay", "t.csv", "--speed", "nan"],
        &["starling", "logs", "x", "--stream", "both"],
        &["starling", "up", "--name", "Not A Name"],
        &["starling", "fly"],
    ] {
        assert!(Cli::try_parse_from(bad).is_err(), "{bad:?}");
    }
    let line = ["starling", "run", "--gpus", "2", "-e", "A=b=c", "--", "sh", "-c", "echo --gpus 9"];
    let Command::Run(args) = Cli::try_parse_from(line).expect("parses").command else { panic!("run") };
    let document = submit::document(&args);
    assert_eq!(document["run"], json!(["sh", "-c", "echo --gpus 9"]));
    assert_eq!((&document["resources"]["gpus"], &document["env"]["A"]), (&json!(2), &json!("b=c")));
    assert_eq!(document["name"], "sh");
    crate::model::spec_input::parse_spec(document.to_string().as_bytes()).expect("what run makes is a job");
}

#[test]
fn every_flag_of_run_makes_a_job_that_reads() {
    let line = [
        "starling",
        "run",
        "--name",
        "n",
        "--tenant",
        "t",
        "--gpus",
        "1",
        "--gpu",
        "H100",
        "--gpu",
        "A100-80G",
        "--cpus",
        "4",
        "--memory",
        "16G",
        "--nodes",
        "2",
        "--priority",
        "high",
        "--env",
        "A=1",
        "--checkpoint",
        "/ckpt",
        "--max-runtime",
        "2h",
        "--retries",
        "3",
        "--region",
        "eu",
        "--",
        "train",
    ];
    let Command::Run(args) = Cli::try_parse_from(line).expect("parses").command else { panic!("run") };
    let document = submit::document(&args).to_string();
    let spec = crate::model::spec_input::parse_spec(document.as_bytes()).expect("reads").spec;
    assert_eq!((spec.nodes, spec.retries, spec.resources.gpu.len()), (2, 3, 2));
    assert_eq!(spec.placement.regions, ["eu"]);
}

#[tokio::test]
async fn a_job_from_submit_to_its_end() {
    let fake = Fake::new("a");
    let peer = peer(fake.clone());
    let file = peer.dir.path().join("job.yaml");
    std::fs::write(&file, "name: train\nrun: ./train.sh\n").expect("write");
    let file = file.to_str().expect("a path");
    let taken = peer.does(&["submit", file, "--key", "k"]).await.expect("taken");
    assert!(taken.text.contains("starling logs") && taken.text.contains("is held by a"), "{}", taken.text);
    let again = peer.does(&["submit", file, "--key", "k"]).await.expect("the same");
    assert_eq!((&again.document["existed"], &again.document["id"]), (&json!(true), &taken.document["id"]));
    let id = taken.document["id"].as_str().expect("an id").to_owned();
    let short = &id[..8];
    assert!(peer.does(&["queue"]).await.expect("jobs").text.contains(short));
    assert!(peer.does(&["why", short]).await.expect("why").text.contains("0 of 8 GPUs wanted"));
    let waited = peer.does(&["wait", short, "--timeout", "20ms"]).await.expect("in time");
    assert_eq!(waited.code, exit::UNKNOWN);
    let job = id.parse().expect("an id");
    fake.place(job, "a");
    fake.close(job, 3);
    assert_eq!(code(peer.does(&["wait", short]).await), exit::JOB_FAILED);
    let shown = peer.does(&["job", short]).await.expect("job").text;
    assert!(shown.contains("exit 3") && shown.contains("failed"), "{shown}");
    assert!(shown.contains("NODES") && shown.contains("n[1-2]") && shown.contains("STARTED"), "{shown}");
    let attempt = peer.does(&["job", short]).await.expect("job").document["attempts"][0].clone();
    assert_eq!((&attempt["nodes"], &attempt["started_at_ms"]), (&json!("n[1-2]"), &json!(2_100)));
    assert_eq!(code(peer.does(&["cancel", short]).await), exit::REFUSED);
    let ran = peer.does(&["run", "--key", "r", "--", "true"]).await.expect("taken");
    let job = ran.document["id"].as_str().expect("id").parse().expect("an id");
    fake.place(job, "a");
    fake.close(job, 0);
    assert_eq!(code(peer.does(&["run", "--key", "r", "--wait", "--", "true"]).await), exit::OK);
    peer.end().await;
}

#[tokio::test]
async fn failures_have_their_codes() {
    let fake = Fake::new("a");
    fake.knows("gone", None);
    let peer = peer(fake.clone());
    let bad = peer.dir.path().join("bad.yaml");
    std::fs::write(&bad, "speed: 9\n").expect("write");
    let big = peer.dir.path().join("big.yaml");
    std::fs::write(&big, format!("run: {}\n", "x".repeat(60_000))).expect("write");
    let [bad, big] = [&bad, &big].map(|p| p.to_str().expect("a path"));
    for (line, want) in [
        (&["submit", bad][..], exit::USAGE),
        (&["submit", big], exit::USAGE),
        (&["submit", "/no/such/file"], exit::USAGE),
        (&["job", "zzzzzzzz"], exit::NOT_FOUND),
        (&["clusters", "nobody"], exit::NOT_FOUND),
        (&["drain", "gone"], exit::UNREACHABLE),
        (&["jobs", "--states", "pending,running"], exit::OK),
        (&["jobs", "--complete"], exit::PARTIAL),
        (&["--peer", "unix:/no/such.sock", "peer"], exit::UNREACHABLE),
        (&["--peer", "ftp://x:1", "peer"], exit::USAGE),
        (&["--peer", "https://10.0.0.1:1", "peer"], exit::USAGE),
    ] {
        assert_eq!(code(peer.does(line).await), want, "{line:?}");
    }
    let error = peer.does(&["submit", bad]).await.err().expect("refused").document().error;
    assert!(!error.details.is_empty() && error_text(&error).contains("hint:"), "{error:?}");
    fake.state.lock().expect("state").fails =
        Some(crate::core::api::ClientError::Unknown { answered: 1, needed: 2, job: None });
    assert_eq!(code(peer.does(&["run", "--", "true"]).await), exit::UNKNOWN);
    peer.end().await;
}

#[tokio::test]
async fn the_queue_of_one_cluster_says_why_each_waits() {
    let (fake, other) = (Fake::new("a"), Fake::new("b"));
    let claim = |n: u8, why: &str, starts_in| crate::core::api::ClaimView {
        job: crate::base::JobId([n; 20]),
        owner: crate::surface::fake::name("a"),
        priority: 50,
        gpus: 8,
        granted: false,
        age: crate::base::Span::secs(95),
        why: why.into(),
        starts_in,
    };
    let soon = Some(crate::base::Span::secs(300));
    other.state.lock().expect("state").queue =
        vec![claim(1, "3 of 8 GPUs wanted are free", soon), claim(2, "kept for \u{1b}[31mred", None)];
    fake.knows("b", Some(crate::surface::router(other)));
    fake.knows("gone", None);
    let peer = peer(fake);
    let reply = peer.does(&["queue", "--at", "b"]).await.expect("a queue");
    let lines: Vec<&str> = reply.text.lines().collect();
    assert_eq!(lines.len(), 3, "{}", reply.text);
    assert!(lines[1].starts_with("1 ") && lines[1].contains("95s"), "{}", reply.text);
    assert!(lines[1].contains("5m") && lines[1].ends_with("3 of 8 GPUs wanted are free"), "{}", reply.text);
    assert!(lines[2].contains("kept for") && !reply.text.contains('\u{1b}'), "{}", reply.text);
    let first = &reply.document["claims"][0];
    assert_eq!((&first["why"], &first["place"]), (&json!("3 of 8 GPUs wanted are free"), &json!(1)));
    assert_eq!((&first["starts_in_ms"], &first["waited_ms"]), (&json!(300_000), &json!(95_000)));
    let short = peer.does(&["queue", "--at", "b", "--limit", "1"]).await.expect("a queue").text;
    assert!(short.contains("and 1 more") && !short.contains("kept for"), "{short}");
    assert!(peer.does(&["queue", "--at", "a"]).await.expect("a queue").text.contains("nothing waits at a"));
    assert_eq!(code(peer.does(&["queue", "--at", "nobody"]).await), exit::NOT_FOUND);
    assert_eq!(code(peer.does(&["queue", "--at", "gone"]).await), exit::UNREACHABLE);
    peer.end().await;
}

#[tokio::test]
async fn the_mesh_is_shown() {
    let fake = Fake::new("a");
    fake.knows("b", None);
    let peer = peer(fake.clone());
    for (line, words) in [
        (&["clusters"][..], &["3/8 A100-80G (virtual)", "region-b"][..]),
        (&["clusters", "b"], &["2.500 USD", "8 A100-80G"]),
        (&["clusters", "b"], &["PARTITION", "main", "FEATURE", "ib", "and 7 more features"]),
        (&["links"], &["1.5ms 1.0G"]),
        (&["view", "--tree"], &["pool default", "└─ ", "6/16 A100-80G"]),
        (&["peer"], &["2 alive"]),
        (&["member", "list"], &["127.0.0.1:1"]),
        (&["token", "create", "--ttl", "5m"], &["token-300000"]),
        (&["member", "remove", "b"], &["no longer a member"]),
        (&["drain"], &["a takes no new attempts"]),
        (&["undrain"], &["a takes attempts again"]),
    ] {
        let reply = peer.does(line).await.unwrap_or_else(|e| panic!("{line:?}: {e}"));
        assert!(words.iter().all(|w| reply.text.contains(w)), "{line:?}: {}", reply.text);
        assert!(reply.document.is_object(), "{line:?} has a document");
    }
    let events = peer.does(&["events", "--count", "1"]);
    let told = async {
        while fake.events.receiver_count() == 0 {
            tokio::task::yield_now().await;
        }
        fake.put(Fake::spec("run: x"));
        let event = crate::core::api::Event::new("job.x", None, "told");
        fake.events.send(event).expect("a reader");
    };
    assert_eq!(code(tokio::join!(events, told).0), exit::OK);
    peer.end().await;
}

#[test]
fn the_reference_lists_every_command_and_code() {
    let page = include_str!("../../../docs/reference/cli.md");
    fn walk(command: &clap::Command, path: &str, page: &str) {
        for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
            let name = format!("{path} {}", sub.get_name());
            assert!(page.contains(&format!("`{name}")), "cli.md lacks `{name}`");
            for flag in
                sub.get_arguments().filter_map(|a| a.get_long()).filter(|f| !["help", "version"].contains(f))
            {
                assert!(page.contains(&format!("--{flag}")), "cli.md lacks --{flag} of {name}");
            }
            walk(sub, &name, page);
        }
    }
    walk(&Cli::command(), "starling", page);
    for (code, meaning) in EXIT_CODES.iter().chain(UP_EXIT_CODES) {
        assert!(
            page.contains(&format!("| {code} | {meaning} |")),
            "cli.md lacks exit code {code}: {meaning}"
        );
    }
}

#[test]
fn the_token_of_this_machines_peer_is_for_that_peer() {
    let dir = tempfile::tempdir().expect("dir");
    let state = dir.path().to_str().expect("a path");
    std::fs::write(dir.path().join("api.token"), "its-own-token\n").expect("written");
    let known = |peer: &str, more: &[&str]| {
        let line = ["starling", "--state", state].into_iter().chain(more.iter().copied()).chain(["jobs"]);
        let cli = Cli::try_parse_from(line).expect("it parses");
        token_for(&cli.global, &peer.parse().expect("a target"))
    };
    let socket = format!("unix:{state}/api.sock");
    for own in [&socket, "http://127.0.0.1:1"] {
        assert_eq!(known(own, &[]), Some("its-own-token".into()), "{own}");
    }
    // Whoever listens there would have it.
    for other in ["unix:/tmp/another.sock", "https://elsewhere:1", "https://127.0.0.1:1"] {
        assert_eq!(known(other, &[]), None, "{other}");
        assert_eq!(known(other, &["--token", "given"]), Some("given".into()), "{other}");
    }
}
