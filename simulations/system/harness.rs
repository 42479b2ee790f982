//! The `starling` binary, its API and its processes. Everything that is started is ended by id.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use starling::surface::client::{Client, ClientFailure, Target};
use starling::surface::documents::ErrorBody;
use starling::surface::ledger::{Expected, judge};

/// The binary under test.
pub const STARLING: &str = env!("CARGO_BIN_EXE_starling");
/// Failure bound of a wait; nothing takes so long unless it is broken or the machine is very busy.
pub const LONG: Duration = Duration::from_secs(90);

/// Waits until `look` finds something, and says what was last seen where it never does.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > LONG => panic!("{what}: not within {LONG:?}; last seen: {seen}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// What a command left.
#[derive(Debug)]
pub struct Out {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Out {
    /// Its standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("no JSON ({e}): {self:?}"))
    }

    /// As a success.
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

/// A command that sees nothing of this process's own Starling settings.
pub fn command() -> Command {
    command_of(Path::new(STARLING))
}

/// The same of another build.
pub fn command_of(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for name in
        ["STARLING_PEER", "STARLING_TOKEN", "STARLING_CA", "STARLING_STATE", "STARLING_JOIN", "RUST_LOG"]
    {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs `starling ARGS --state STATE` to its end.
pub fn cli(state: &Path, args: &[&str]) -> Out {
    let mut command = command();
    // Before the arguments: what follows `--` is the job's.
    let done = command.arg("--state").arg(state).args(args).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Out { code: done.status.code().unwrap_or(-1), out: text(&done.stdout), err: text(&done.stderr) }
}

/// Asks the API over the unix socket of a state folder. The error is the status with its document; 0 for no
/// answer.
pub fn ask(
    state: &Path,
    method: Method,
    path: &str,
    body: Option<&[u8]>,
    headers: &[(&'static str, &str)],
) -> Result<Value, (u16, ErrorBody)> {
    let client = Client::new(Target::Unix(state.join("api.sock")), None, None).expect("a client");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let headers: Vec<_> = headers.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
    let payload = body.map(|b| ("application/yaml", b.to_vec()));
    let answer = runtime.block_on(client.json(method, path, payload, &headers, Duration::from_secs(40)));
    answer.map_err(|failure| match failure {
        ClientFailure::Api(status, body) => (status, body),
        other => {
            let body = ErrorBody {
                code: "none".into(),
                message: other.to_string(),
                hint: String::new(),
                details: Vec::new(),
            };
            (0, body)
        }
    })
}

/// `GET` of a document.
pub fn get(state: &Path, path: &str) -> Result<Value, String> {
    ask(state, Method::GET, path, None, &[]).map_err(|(status, body)| format!("{status}: {}", body.message))
}

/// Submits a spec and gives the job's id.
pub fn submit(state: &Path, spec: &str) -> String {
    try_submit(state, spec, None).unwrap_or_else(|e| panic!("not taken: {e:?}\n{spec}"))
}

/// Submits a spec, with a key where one is given.
pub fn try_submit(state: &Path, spec: &str, key: Option<&str>) -> Result<String, (u16, ErrorBody)> {
    let headers: Vec<_> = key.map(|k| ("idempotency-key", k)).into_iter().collect();
    let taken = ask(state, Method::POST, "/v1/jobs", Some(spec.as_bytes()), &headers)?;
    Ok(taken["id"].as_str().expect("an id").to_owned())
}

/// A job as a peer tells it.
pub fn job(state: &Path, id: &str) -> Result<Value, String> {
    get(state, &format!("/v1/jobs/{id}"))
}

/// Waits until a job is in one of these states.
pub fn in_state(state: &Path, id: &str, wanted: &[&str]) -> Value {
    until(&format!("job {id} is {wanted:?}"), || {
        let job = job(state, id)?;
        match job["state"].as_str() {
            Some(now) if wanted.contains(&now) => Ok(job),
            _ => Err(format!("{} ({}), {}", job["state"], job["reason"], job["attempts"])),
        }
    })
}

/// Waits until a job has ended.
pub fn ended(state: &Path, id: &str) -> Value {
    in_state(state, id, &["succeeded", "failed", "cancelled"])
}

/// Waits until a job has ended well.
pub fn succeeded(state: &Path, id: &str) -> Value {
    let job = ended(state, id);
    assert_eq!(job["state"], "succeeded", "{job:#}");
    job
}

/// The field of every attempt of a job, in order.
pub fn of_attempts(job: &Value, field: &str) -> Vec<Value> {
    job["attempts"].as_array().expect("attempts").iter().map(|a| a[field].clone()).collect()
}

/// A job document of real work that writes a ledger and keeps its checkpoint where every cluster sees it.
pub fn training(folder: &Path, name: &str, steps: u32, step_ms: u32, grace: &str) -> String {
    let (ledger, checkpoint) = (folder.join("ledger"), folder.join(format!("checkpoint-{name}")));
    format!(
        "name: {name}\n\
         resources: {{gpus: 1, cpus: 1, memory: 1G}}\n\
         run: [{STARLING}, work, train, --steps, \"{steps}\", --step-ms, \"{step_ms}\", --checkpoint-every, \"5\", --ledger, {}]\n\
         checkpoint: {{path: {}}}\n\
         on_lost_contact: {{grace: {grace}}}\n",
        ledger.display(),
        checkpoint.display(),
    )
}

/// Session and start of a process, from /proc.
fn session_and_start(pid: i32) -> Option<(i32, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(3)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// Kills what attempts of this state folder have left: each guard that its file names, and its session.
pub fn kill_attempts(state: &Path) {
    let Ok(attempts) = fs::read_dir(state.join("attempts")) else { return };
    for attempt in attempts.flatten() {
        let guarded = fs::read(attempt.path().join("guarded")).unwrap_or_default();
        let Ok(guarded) = serde_json::from_slice::<Value>(&guarded) else { continue };
        let number = |key: &str| guarded["guard"][key].as_u64();
        let (Some(pid), Some(start)) = (number("pid").and_then(|p| i32::try_from(p).ok()), number("start"))
        else {
            continue;
        };
        // Another process may have the number by now.
        if session_and_start(pid).is_none_or(|(_, s)| s != start) {
            continue;
        }
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let members: Vec<i32> =
            pids.filter(|p| session_and_start(*p).is_some_and(|(s, _)| s == pid)).collect();
        for member in members.into_iter().chain([pid]) {
            if let Some(member) = Pid::from_raw(member) {
                // It may have ended by itself.
                let _ = kill_process(member, Signal::KILL);
            }
        }
    }
}

/// The state of a job, as a word.
pub fn job_state(state: &Path, id: &str) -> String {
    job(state, id).ok().and_then(|j| j["state"].as_str().map(str::to_owned)).unwrap_or_default()
}

/// The ledger that [`training`] jobs write says: every job ran once, step by step, and `moved` of them moved.
pub fn verdict_holds(folder: &Path, ids: &[&str], moved: u64) {
    let expected: Vec<Expected> = ids.iter().map(|id| Expected { job: (*id).to_owned(), ranks: 1 }).collect();
    let verdict = judge(&[folder.join("ledger")], &expected).expect("a ledger");
    assert!(verdict.holds(), "{verdict:#?}");
    assert_eq!((verdict.moved, verdict.unexpected), (moved, 0), "{verdict:#?}");
}

/// The outcome of a program that ended with this code.
pub fn exited(code: i32) -> Value {
    serde_json::json!({ "kind": "exited", "value": code })
}

/// Waits until a [`training`] job has written a checkpoint.
pub fn checkpointed(folder: &Path, id: &str) {
    until("a checkpoint is in the ledger", || {
        let text = fs::read_to_string(folder.join("ledger")).map_err(|e| e.to_string())?;
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let found = lines.filter(|l| l["job"] == id && l["kind"] == "checkpoint").count();
        if found > 0 { Ok(()) } else { Err(format!("{} lines", text.lines().count())) }
    });
}
