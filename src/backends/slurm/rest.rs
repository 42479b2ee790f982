//! Slurm by slurmrestd: over its unix socket, or over TCP with a JWT. Where an answer cannot be had, or a job needs
//! what its API does not say, the commands are used.
//!
//! The newest version that both sides know is taken. An HTTP status says little there: `errors` does. A slurmrestd that
//! fails is asked ever more seldom.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::answers::{
    NO_SUCH_JOB, error_words, failures, few_words, no_job, refused, says_failed, slurms_own,
};
use super::commands::Commands;
use super::driver::{Driver, DriverError, NativeJob, NativeNode, Submission, SubmitError, pause};
use super::{SlurmConfig, parse};
use crate::backends::hold::open;
use crate::backends::local::clock;
use crate::base::{Instant, Span};
use crate::model::sbatch;

/// slurmrestd waits 9 s for a slurmctld that is gone.
const PATIENCE: Span = Span::secs(20);
const ANSWER_BYTES_MAX: usize = 512 << 20;
/// Versions of the API, newest first; only those that were tried, and their neighbours.
const VERSIONS: [u32; 9] = [44, 43, 42, 41, 40, 39, 38, 37, 36];
/// From here on numbers are objects and the environment is a list.
const OBJECTS_FROM: u32 = 40;
/// Where distributions put the socket.
const SOCKETS: [&str; 3] =
    ["/run/slurmrestd/slurmrestd.socket", "/run/slurmrestd.socket", "/var/lib/slurmrestd.socket"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Unix(PathBuf),
    Tcp(String),
}

/// slurmrestd, with the commands beside it.
pub struct Rest {
    target: Target,
    token: Option<PathBuf>,
    /// The version of its API, once it is known.
    version: tokio::sync::Mutex<Option<u32>>,
    rests: Mutex<Rests>,
    /// The first pause after a failure.
    interval: Span,
    commands: Commands,
}

/// How often it has failed in a row, and until when it is left alone.
#[derive(Debug, Default)]
struct Rests {
    failures: u32,
    until: Instant,
    why: String,
}

impl Rests {
    fn may_ask(&self, now: Instant) -> Result<(), DriverError> {
        if now >= self.until {
            return Ok(());
        }
        Err(DriverError(format!("{} (left alone for a while, after {} failures)", self.why, self.failures)))
    }

    /// Questions that were under way together fail once.
    fn failed(&mut self, now: Instant, interval: Span, why: &DriverError) {
        if now >= self.until {
            self.failures = self.failures.saturating_add(1);
            self.until = now + pause(interval, self.failures);
            self.why.clone_from(&why.0);
        }
    }
}

/// Why there is no answer.
enum Fault {
    /// It has no such path: it speaks another version of the API.
    NoPath(DriverError),
    /// Whatever else.
    Other(DriverError),
}

impl From<Fault> for DriverError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NoPath(error) | Fault::Other(error) => error,
        }
    }
}

/// The way that the configuration names, else a socket that is there, else the commands.
pub fn driver(config: &SlurmConfig) -> anyhow::Result<Arc<dyn Driver>> {
    let commands = Commands { bin: config.bin.clone(), conf: config.conf.clone() };
    let text = match &config.rest {
        Some(text) if text == "off" => None,
        Some(text) => Some(text.clone()),
        // With SLURM_CONF named, a socket of the machine's own cluster may be another cluster's.
        None if config.conf.is_some() => None,
        None => SOCKETS.iter().find(|s| std::path::Path::new(s).exists()).map(|s| format!("unix:{s}")),
    };
    let Some(text) = text else { return Ok(Arc::new(commands)) };
    let target = match text.strip_prefix("unix:") {
        Some(path) => Target::Unix(path.into()),
        None => Target::Tcp(text.strip_prefix("http://").unwrap_or(&text).trim_end_matches('/').to_owned()),
    };
    anyhow::ensure!(
        matches!(target, Target::Unix(_)) || config.token.is_some(),
        "slurmrestd at {text} is asked with a JWT: set slurm.token to a file that `scontrol token` filled"
    );
    Ok(Arc::new(Rest {
        target,
        token: config.token.clone(),
        version: tokio::sync::Mutex::default(),
        rests: Mutex::default(),
        interval: config.interval,
        commands,
    }))
}

impl Rest {
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), Fault> {
        let said = |e: &dyn std::fmt::Display| DriverError(format!("slurmrestd: {path}: {e}"));
        let fault = |e: &dyn std::fmt::Display| Fault::Other(said(e));
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
        if let Some(file) = &self.token {
            // Read each time: it is replaced before it is over.
            let token = std::fs::read_to_string(file).map_err(|e| fault(&e))?;
            let token = token.trim();
            let token = token.strip_prefix("SLURM_JWT=").unwrap_or(token);
            let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
            request = request.header("X-SLURM-USER-NAME", user).header("X-SLURM-USER-TOKEN", token);
        }
        let bytes = body.map(|b| b.to_string().into_bytes()).unwrap_or_default();
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(bytes::Bytes::from(bytes))).map_err(|e| fault(&e))?;
        let asked = async {
            match &self.target {
                Target::Unix(path) => exchange(UnixStream::connect(path).await?, request).await,
                Target::Tcp(address) => exchange(TcpStream::connect(address).await?, request).await,
            }
        };
        let answer = tokio::time::timeout(PATIENCE.to_std(), asked).await;
        let (status, bytes) = answer.map_err(|_| fault(&"no answer in time"))?.map_err(|e| fault(&e))?;
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(answer) if status == StatusCode::NOT_FOUND && !no_job(&answer) => {
                Err(Fault::NoPath(said(&status)))
            }
            Ok(answer) => Ok((status, answer)),
            Err(_) if status == StatusCode::NOT_FOUND => Err(Fault::NoPath(said(&status))),
            Err(_) if !status.is_success() => Err(fault(&format!("{status}: {}", few_words(&bytes)))),
            Err(e) => Err(fault(&format!("its answer is not whole JSON: {e}"))),
        }
    }

    /// The version of its API; nothing else was asked where there is an error.
    async fn version(&self) -> Result<u32, DriverError> {
        open(&self.rests).may_ask(clock::now())?;
        let mut known = self.version.lock().await;
        // It may have failed for the one that was waited for.
        open(&self.rests).may_ask(clock::now())?;
        if let Some(version) = *known {
            return Ok(version);
        }
        let mut last = DriverError("slurmrestd: it speaks no version that is known here".into());
        for version in VERSIONS {
            let path = format!("/slurm/v0.0.{version}/ping");
            match self.send(Method::GET, &path, None).await {
                // One that fails would fail, or be waited for, once a version.
                Ok((status, answer)) if !status.is_success() => {
                    last = refused(&path, status, &answer);
                    break;
                }
                Ok((_, answer)) if answer.get("meta").is_some() && answer.get("pings").is_some() => {
                    *known = Some(version);
                    return Ok(version);
                }
                Ok(_) | Err(Fault::NoPath(_)) => {}
                Err(Fault::Other(error)) => {
                    last = error;
                    break;
                }
            }
        }
        open(&self.rests).failed(clock::now(), self.interval, &last);
        Err(last)
    }

    /// Asks under the version that is known.
    async fn ask(
        &self,
        method: Method,
        version: u32,
        what: &str,
        body: Option<&Value>,
    ) -> Result<Value, DriverError> {
        let path = format!("/slurm/v0.0.{version}/{what}");
        let gets = method == Method::GET;
        let error = match self.send(method, &path, body).await {
            // Slurm's own no comes with any status, and slurmrestd did not fail.
            Ok((status, answer))
                if no_job(&answer)
                    || status.is_success() && !(gets && says_failed(&answer))
                    || !gets && slurms_own(&answer) =>
            {
                *open(&self.rests) = Rests::default();
                return Ok(answer);
            }
            Ok((status, answer)) => refused(&path, status, &answer),
            Err(fault) => {
                if matches!(fault, Fault::NoPath(_)) {
                    // Slurm was upgraded under the running peer.
                    *self.version.lock().await = None;
                }
                fault.into()
            }
        };
        open(&self.rests).failed(clock::now(), self.interval, &error);
        Err(error)
    }

    async fn get(&self, what: &str) -> Result<Value, DriverError> {
        let version = self.version().await?;
        self.ask(Method::GET, version, what, None).await
    }

    /// Its DELETE knows no name: whose number it is now is looked at first.
    async fn delete(&self, id: u64, name: &str) -> Result<(), DriverError> {
        match self.job(id).await? {
            Some(job) if job.name == name && !job.state.is_over() => {}
            _ => return Ok(()),
        }
        let version = self.version().await?;
        let answer = self.ask(Method::DELETE, version, &format!("job/{id}"), None).await?;
        let failed = failures(&answer);
        if failed.iter().all(|number| matches!(*number, 0 | NO_SUCH_JOB)) {
            return Ok(());
        }
        Err(DriverError(format!("slurmrestd: {}", error_words(&answer))))
    }
}

async fn exchange<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    request: Request<Full<bytes::Bytes>>,
) -> anyhow::Result<(StatusCode, Vec<u8>)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let talk = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok::<_, anyhow::Error>((status, body.map_err(|e| anyhow::anyhow!("{e}"))?.to_bytes().to_vec()))
    };
    tokio::pin!(talk);
    tokio::pin!(connection);
    tokio::select! { biased;
        answer = &mut talk => answer,
        ended = &mut connection => {
            ended?;
            talk.await
        }
    }
}

/// The body of a submission. None where an option has no place in the API.
fn body(version: u32, job: &Submission) -> Option<Value> {
    let objects = version >= OBJECTS_FROM;
    let number =
        |n: u64| if objects { json!({ "set": true, "infinite": false, "number": n }) } else { json!(n) };
    let mut fields = Map::new();
    for (key, value) in [("name", &job.name), ("comment", &job.comment)] {
        fields.insert(key.into(), json!(value));
    }
    let folder = job.folder.display().to_string();
    fields.insert("current_working_directory".into(), json!(folder));
    fields.insert("standard_output".into(), json!(job.output.display().to_string()));
    fields.insert("requeue".into(), json!(false));
    for (name, value) in &job.options {
        let whole = value.parse::<u64>().ok();
        let (key, value) = match name.as_str() {
            "partition" | "account" | "qos" | "reservation" => (name.as_str(), json!(value)),
            "constraint" => ("constraints", json!(value)),
            "nodes" if objects => ("nodes", json!(whole.map(|n| format!("{n}-{n}"))?)),
            "nodes" => ("nodes", json!([whole?, whole?])),
            "ntasks" => ("tasks", json!(whole?)),
            "ntasks-per-node" => ("tasks_per_node", json!(whole?)),
            "cpus-per-task" => ("cpus_per_task", json!(whole?)),
            "mem" => ("memory_per_node", number(parse::megabytes(value)?)),
            "gres" if objects => ("tres_per_node", json!(gres_list(value))),
            "gres" => ("gres", json!(value)),
            "time" => ("time_limit", number(sbatch::seconds(value)?.div_ceil(60))),
            _ => return None,
        };
        fields.insert(key.into(), value);
    }
    let inherited = ["PATH", "HOME", "LANG", "USER", "LOGNAME", "SHELL"];
    let env: Vec<(&str, String)> =
        inherited.iter().filter_map(|n| std::env::var(n).ok().map(|v| (*n, v))).collect();
    let env = if objects {
        json!(env.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>())
    } else {
        Value::Object(env.into_iter().map(|(n, v)| (n.to_owned(), json!(v))).collect())
    };
    fields.insert("environment".into(), env);
    Some(json!({ "script": job.script, "job": fields }))
}

fn gres_list(text: &str) -> String {
    let item = |i: &str| if i.starts_with("gres") { i.to_owned() } else { format!("gres/{i}") };
    text.split(',').map(item).collect::<Vec<_>>().join(",")
}

#[async_trait]
impl Driver for Rest {
    fn describe(&self) -> String {
        match &self.target {
            Target::Unix(path) => format!("slurmrestd at unix:{}", path.display()),
            Target::Tcp(address) => format!("slurmrestd at {address}"),
        }
    }

    async fn jobs(&self) -> Result<Vec<NativeJob>, DriverError> {
        match self.get("jobs").await.and_then(|d| whole(&d, "jobs", parse::job)) {
            Ok(jobs) => Ok(jobs),
            Err(error) => self.commands.jobs().await.map_err(|e| DriverError(format!("{error}; {e}"))),
        }
    }

    async fn job(&self, id: u64) -> Result<Option<NativeJob>, DriverError> {
        let asked = match self.get(&format!("job/{id}")).await {
            Ok(answer) if no_job(&answer) => return Ok(None),
            Ok(answer) => whole(&answer, "jobs", parse::job),
            Err(error) => Err(error),
        };
        // A list without it says nothing: only Slurm's own word that it has none does.
        let asked = asked.and_then(|jobs| {
            let job = jobs.into_iter().find(|j| j.id == id);
            job.ok_or_else(|| DriverError(format!("slurmrestd: its answer is not about job {id}")))
        });
        match asked {
            Ok(job) => Ok(Some(job)),
            Err(error) => self.commands.job(id).await.map_err(|e| DriverError(format!("{error}; {e}"))),
        }
    }

    async fn nodes(&self) -> Result<Vec<NativeNode>, DriverError> {
        match self.get("nodes").await.and_then(|d| whole(&d, "nodes", parse::node)) {
            Ok(nodes) => Ok(nodes),
            Err(error) => self.commands.nodes().await.map_err(|e| DriverError(format!("{error}; {e}"))),
        }
    }

    async fn shown(&self) -> Result<Option<Vec<String>>, DriverError> {
        let version = self.version().await?;
        let path = format!("/slurm/v0.0.{version}/partitions");
        // One that cannot say this does not fail: its lists count.
        match self.send(Method::GET, &path, None).await {
            Ok((status, answer)) if status.is_success() && !says_failed(&answer) => Ok(parse::shown(&answer)),
            Ok((status, answer)) => Err(refused(&path, status, &answer)),
            Err(fault) => Err(fault.into()),
        }
    }

    async fn submit(&self, job: &Submission) -> Result<u64, SubmitError> {
        let (version, body) = match self.version().await.ok().map(|v| (v, body(v, job))) {
            Some((version, Some(body))) => (version, body),
            // Nothing was asked yet.
            _ => return self.commands.submit(job).await,
        };
        let answer = self.ask(Method::POST, version, "job/submit", Some(&body)).await;
        let answer = answer.map_err(|e| SubmitError::Unknown(e.0))?;
        let failed = failures(&answer);
        let id = answer.get("job_id").and_then(|n| n.as_u64().or_else(|| n.get("number")?.as_u64()));
        match (failed.is_empty(), id.filter(|id| *id > 0)) {
            (true, Some(id)) => Ok(id),
            (true, None) => Err(SubmitError::Unknown("slurmrestd: it gave no job id".into())),
            (false, _) => {
                let text = format!("slurmrestd: {}", error_words(&answer));
                Err(if slurms_own(&answer) { SubmitError::Refused(text) } else { SubmitError::Unknown(text) })
            }
        }
    }

    async fn cancel(&self, id: u64, name: &str) -> Result<(), DriverError> {
        // While slurmrestd is left alone, too: scancel goes by number and name.
        match self.delete(id, name).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.commands.cancel(id, name).await.map_err(|e| DriverError(format!("{error}; {e}")))
            }
        }
    }

    async fn kill_wait(&self) -> Option<u64> {
        self.commands.kill_wait().await
    }
}

fn whole<T>(document: &Value, key: &str, read: fn(&Value) -> Option<T>) -> Result<Vec<T>, DriverError> {
    let all = parse::list(document, key).map_err(|e| DriverError(format!("slurmrestd: {e}")))?;
    Ok(all.iter().filter_map(read).collect())
}

#[cfg(test)]
#[path = "rest_tests.rs"]
mod rest_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(options: &[(&str, &str)]) -> Submission {
        Submission {
            name: "n".into(),
            comment: "c".into(),
            script: "#!/bin/sh\n".into(),
            folder: "/f".into(),
            output: "/f/o".into(),
            options: options.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        }
    }

    #[test]
    fn a_submission_in_both_forms() {
        let job = submission(&[("nodes", "2"), ("mem", "1G"), ("gres", "gpu:h100:2"), ("time", "1:30")]);
        let old = body(38, &job).expect("can be said");
        assert_eq!(old["job"]["nodes"], json!([2, 2]));
        assert_eq!(
            (&old["job"]["memory_per_node"], &old["job"]["gres"]),
            (&json!(1024), &json!("gpu:h100:2"))
        );
        assert!(old["job"]["environment"].is_object() && old["job"]["time_limit"] == 2);
        let new = body(42, &job).expect("can be said");
        assert_eq!(
            (&new["job"]["nodes"], &new["job"]["tres_per_node"]),
            (&json!("2-2"), &json!("gres/gpu:h100:2"))
        );
        assert!(new["job"]["environment"].is_array() && new["job"]["time_limit"]["number"] == 2);
        assert_eq!(body(42, &submission(&[("exclusive", "")])), None, "the commands can say it");
    }

    #[test]
    fn a_token_is_needed_over_tcp() {
        let peer = crate::base::PeerName::new("here").expect("a name");
        let mut config = SlurmConfig::new("/s".into(), "/b".into(), peer);
        config.rest = Some("http://head:6820".into());
        assert!(driver(&config).is_err());
        config.token = Some("/t".into());
        assert_eq!(driver(&config).expect("a way").describe(), "slurmrestd at head:6820");
        config.rest = Some("unix:/run/x".into());
        assert_eq!(driver(&config).expect("a way").describe(), "slurmrestd at unix:/run/x");
    }
}
