//! slurmrestd as it fails: what is asked of it then, and what is concluded.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::base::PeerName;

const FIND: &str = "Unable find requested URL. Please view /openapi/v3 for API reference.";

type Answers = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// Answers as it is told, and keeps what it was asked.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<(String, String)>>>,
}

impl Server {
    async fn start(answers: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let answers: Arc<Answers> = Arc::new(answers);
        let asked = Arc::<Mutex<Vec<(String, String)>>>::default();
        let server = Self { address, asked: asked.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, asked) = (answers.clone(), asked.clone());
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let token = request.headers().get("X-SLURM-USER-TOKEN");
                    let token = token.and_then(|t| t.to_str().ok()).unwrap_or_default().to_owned();
                    let path = request.uri().path().to_owned();
                    let (status, text) = answers(&path);
                    open(&asked).push((path, token));
                    let body = Full::new(bytes::Bytes::from(text));
                    let answer = Response::builder().status(status).body(body);
                    std::future::ready(answer)
                });
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
            }
        });
        server
    }
    fn asked(&self) -> Vec<String> {
        open(&self.asked).iter().map(|(path, _)| path.clone()).collect()
    }
    /// A peer that is asked over TCP, and has none of the commands.
    fn driver(&self, folder: &std::path::Path, interval: Span) -> Arc<dyn Driver> {
        let token = folder.join("token");
        std::fs::write(&token, "SLURM_JWT=first\n").expect("writes");
        let peer = PeerName::new("here").expect("a name");
        let mut config = SlurmConfig::new(folder.join("shared"), "/bin/true".into(), peer);
        (config.rest, config.token) = (Some(self.address.clone()), Some(token));
        (config.bin, config.interval) = (Some(folder.join("bin")), interval);
        driver(&config).expect("a way")
    }
}

fn ping() -> (u16, String) {
    (200, json!({"meta": {}, "errors": [], "pings": [{"hostname": "h", "ping": "UP"}]}).to_string())
}

#[test]
fn pauses_grow_to_a_minute_and_questions_that_were_under_way_count_once() {
    let (mut rests, interval) = (Rests::default(), Span::secs(2));
    let why = DriverError("no".into());
    let mut now = Instant(5);
    for (n, seconds) in [4, 8, 16, 32, 60, 60, 60].into_iter().enumerate() {
        assert!(rests.may_ask(now).is_ok(), "{n}");
        rests.failed(now, interval, &why);
        rests.failed(now, interval, &why);
        let over = now + Span::secs(seconds);
        assert!(rests.may_ask(Instant(over.0 - 1)).is_err_and(|e| e.0.starts_with("no (left alone")), "{n}");
        now = over;
    }
}

#[tokio::test]
async fn one_that_fails_is_asked_once_and_then_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(|_| (500, "internal error".into())).await;
    let driver = server.driver(folder.path(), Span::secs(3_600));
    let error = driver.jobs().await.expect_err("it fails");
    assert!(error.0.contains("500") && error.0.contains("internal error"), "{error}");
    for _ in 0..5 {
        let error = driver.jobs().await.expect_err("it is left alone");
        assert!(error.0.contains("left alone") && error.0.contains("internal error"), "{error}");
        assert!(driver.nodes().await.is_err() && driver.job(7).await.is_err());
    }
    assert_eq!(server.asked().len(), 1, "not once a version, nor once a question: {:?}", server.asked());
}

/// An answer without the job is not Slurm's word that it has none: an attempt would be given up.
#[tokio::test]
async fn only_slurms_own_word_says_that_there_is_no_such_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let unfound =
        json!({"errors": [{"error_number": 2017, "error": "Invalid job id specified"}]}).to_string();
    let other = json!({"errors": [], "jobs": [{"job_id": 5, "job_state": "RUNNING"}]}).to_string();
    let server = Server::start(move |path| match path.rsplit('/').next() {
        Some("ping") => ping(),
        Some("1") => (200, json!({"errors": [], "jobs": []}).to_string()),
        Some("2") => (200, other.clone()),
        Some("3") => (200, r#"{"jobs": [{"job_id": 3"#.into()),
        Some("4") => (404, unfound.clone()),
        _ => (500, unfound.clone()),
    })
    .await;
    for id in [1, 2, 3] {
        let driver = server.driver(folder.path(), Span::ZERO);
        assert!(driver.job(id).await.is_err(), "{id}: unknown, not gone");
    }
    for id in [4, 5] {
        let driver = server.driver(folder.path(), Span::ZERO);
        assert_eq!(driver.job(id).await, Ok(None), "{id}");
    }
}

/// A newer Slurm in the place of the one that was asked before.
#[tokio::test]
async fn an_upgrade_under_the_running_peer_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let speaks = Arc::new(Mutex::new("v0.0.38"));
    let now = speaks.clone();
    let server = Server::start(move |path| match path.split('/').nth(2) {
        Some(version) if version == *open(&now) => match path.rsplit('/').next() {
            Some("ping") => ping(),
            _ => (200, json!({"errors": [], "jobs": []}).to_string()),
        },
        _ => (404, FIND.into()),
    })
    .await;
    let driver = server.driver(folder.path(), Span::ZERO);
    assert_eq!(driver.jobs().await, Ok(Vec::new()));
    *open(&speaks) = "v0.0.42";
    assert!(driver.jobs().await.is_err(), "this answer is lost");
    assert_eq!(driver.jobs().await, Ok(Vec::new()));
    assert_eq!(server.asked().last().map(String::as_str), Some("/slurm/v0.0.42/jobs"));
}

/// The file is read each time, since a token is replaced before it is over; what slurmrestd says of a bad one is told.
#[tokio::test]
async fn a_token_is_sent_as_the_file_has_it_now() {
    let folder = tempfile::tempdir().expect("a folder");
    let refuses = Arc::new(Mutex::new(false));
    let now = refuses.clone();
    let server = Server::start(move |path| match path.rsplit('/').next() {
        _ if *open(&now) => (401, "Authentication failure".into()),
        Some("ping") => ping(),
        _ => (200, json!({"errors": [], "jobs": []}).to_string()),
    })
    .await;
    let driver = server.driver(folder.path(), Span::ZERO);
    assert_eq!(driver.jobs().await, Ok(Vec::new()));
    std::fs::write(folder.path().join("token"), "second").expect("writes");
    assert_eq!(driver.jobs().await, Ok(Vec::new()));
    let tokens: Vec<String> = open(&server.asked).iter().map(|(_, token)| token.clone()).collect();
    assert_eq!((tokens[0].as_str(), tokens.last().map(String::as_str)), ("first", Some("second")));
    *open(&refuses) = true;
    let error = driver.jobs().await.expect_err("refused");
    assert!(error.0.contains("401") && error.0.contains("Authentication failure"), "{error}");
    std::fs::remove_file(folder.path().join("token")).expect("removes");
    assert!(driver.jobs().await.is_err_and(|e| e.0.contains("No such file")), "no token, no question");
}

/// Writes its words down, in the place of a command.
fn command(folder: &std::path::Path, name: &str, more: &str) {
    use std::os::unix::fs::PermissionsExt;
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).expect("a folder");
    let text = format!("#!/bin/sh\necho {name} \"$@\" >> {}\n{more}\n", folder.join("said").display());
    std::fs::write(bin.join(name), text).expect("writes");
    let all = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(bin.join(name), all).expect("rights");
}

/// What is cancelled while slurmrestd fails, or is left alone, is cancelled by the command, by number and name.
#[tokio::test]
async fn a_cancel_is_not_lost_while_slurmrestd_is_left_alone() {
    let running = json!({"errors": [], "jobs": [{"job_id": 7, "name": "mine", "job_state": "RUNNING"}]});
    let fails = Arc::new(Mutex::new(true));
    for only_delete in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        command(
            folder.path(),
            "scontrol",
            "echo 'JobId=7 JobName=mine UserId=u(1) JobState=RUNNING Reason=None '",
        );
        command(folder.path(), "scancel", "");
        let (now, text, asked) = (fails.clone(), running.to_string(), Mutex::new(0));
        let server = Server::start(move |path| {
            if !only_delete && *open(&now) {
                return (500, "internal error".into());
            }
            match path.rsplit('/').next() {
                Some("ping") => ping(),
                // The first one about it looks at it, the second would end it.
                _ => {
                    *open(&asked) += 1;
                    if *open(&asked) > 1 { (500, "no".into()) } else { (200, text.clone()) }
                }
            }
        })
        .await;
        let driver = server.driver(folder.path(), Span::secs(3_600));
        if !only_delete {
            assert!(driver.jobs().await.is_err(), "left alone from here on");
        }
        driver.cancel(7, "mine").await.expect("cancels");
        let said = std::fs::read_to_string(folder.path().join("said")).expect("a command ran");
        assert!(said.lines().any(|l| l == "scancel --name=mine 7"), "{only_delete}: {said}");
    }
}

/// Errors in JSON are a failure like any other, but for Slurm's own no.
#[tokio::test]
async fn an_answer_that_failed_counts_as_failed_unless_slurm_itself_says_no() {
    let folder = tempfile::tempdir().expect("a folder");
    let says = |number: i64| json!({"errors": [{"error_number": number, "error": "words"}], "jobs": []});
    let server = Server::start(move |path| match path.rsplit('/').next() {
        Some("ping") => ping(),
        Some("submit") => (500, says(2_000).to_string()),
        Some("9") => (500, says(NO_SUCH_JOB).to_string()),
        Some("nodes") => (401, says(1_007).to_string()),
        // As some do whose slurmctld is away.
        Some("5") => (200, says(1_800).to_string()),
        _ => (500, json!({"errors": [], "jobs": []}).to_string()),
    })
    .await;
    let submission = Submission {
        name: "n".into(),
        comment: "c".into(),
        script: "#!/bin/sh\n".into(),
        folder: "/f".into(),
        output: "/f/o".into(),
        options: Vec::new(),
    };
    for what in ["nodes", "jobs", "job"] {
        let driver = server.driver(folder.path(), Span::secs(3_600));
        for _ in 0..2 {
            assert_eq!(driver.job(9).await, Ok(None));
            let no = driver.submit(&submission).await.expect_err("refused");
            assert!(matches!(no, SubmitError::Refused(text) if text.contains("words")));
        }
        let before = server.asked().len();
        for _ in 0..3 {
            if what == "nodes" {
                let error = driver.nodes().await.expect_err("fails");
                assert!(error.0.contains("401") && error.0.contains("words"), "{error}");
            } else if what == "job" {
                assert!(driver.job(5).await.is_err_and(|e| e.0.contains("words")));
            } else {
                assert!(driver.jobs().await.is_err(), "no list from an answer with status 500");
            }
        }
        assert_eq!(server.asked().len(), before + 1, "{what}: asked once, then left alone");
    }
}

/// Those that waited while one learned that it fails do not ask it again.
#[tokio::test]
async fn questions_that_come_together_learn_once_that_it_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(|_| (500, "internal error".into())).await;
    let driver = server.driver(folder.path(), Span::secs(3_600));
    let (jobs, nodes, job) = tokio::join!(driver.jobs(), driver.nodes(), driver.job(7));
    assert!(jobs.is_err() && nodes.is_err() && job.is_err());
    assert_eq!(server.asked().len(), 1, "{:?}", server.asked());
}

#[tokio::test]
async fn a_list_that_was_cut_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = json!({"errors": [], "jobs": [{"job_id": 5, "job_state": "RUNNING"}]}).to_string();
    let end = Arc::new(Mutex::new(0));
    let (at, text) = (end.clone(), whole.clone());
    let server = Server::start(move |path| match path.rsplit('/').next() {
        Some("ping") => ping(),
        _ => (200, text[..*open(&at)].to_owned()),
    })
    .await;
    let driver = server.driver(folder.path(), Span::ZERO);
    for n in 0..whole.len() {
        *open(&end) = n;
        assert!(driver.jobs().await.is_err(), "{}", &whole[..n]);
    }
    *open(&end) = whole.len();
    assert_eq!(driver.jobs().await.map(|jobs| jobs.len()), Ok(1));
}
