//! Held submissions to a Slurm cluster of this machine: `sbatch --hold`, a process each as its users have it, and
//! slurmrestd on connections that stay open. Held, so that taking a job is measured and not running it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use axum::http::{Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::Load;
use crate::common::Sample;
use crate::sandbox::{Cluster, Munge, Restd, installed};

/// ESLURM_JOB_HELD.
const HELD: u64 = 2042;

/// One cluster of two nodes, and slurmrestd where it is installed.
pub struct Held {
    pub cluster: Cluster,
    /// As it says it itself.
    pub version: String,
    rest: Option<Restd>,
    _munge: Munge,
    _dir: tempfile::TempDir,
}

impl Held {
    /// Starts it; the error says what is missing.
    pub fn start() -> anyhow::Result<Self> {
        installed().map_err(anyhow::Error::msg)?;
        let dir = tempfile::Builder::new().prefix("starling-held.").tempdir()?;
        let munge = Munge::start(dir.path());
        // Held jobs stay; the default would refuse the 10,000th.
        let cluster = Cluster::start(dir.path(), &munge, "held", 2, "MaxJobCount=500000");
        let version = Command::new("slurmctld").arg("-V").output()?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        let rest = Restd::start(&cluster, cluster.dir.join("rest.sock"));
        Ok(Self { cluster, version, rest, _munge: munge, _dir: dir })
    }

    /// True where slurmrestd is there.
    pub fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Clients that each run one `sbatch`, wait for it, and run the next.
    pub async fn sbatch(&self, clients: usize, span: Duration, load: &mut Load) -> anyhow::Result<()> {
        let begun = Instant::now();
        let conf = self.cluster.conf();
        let tasks = (0..clients).map(|_| {
            let conf = conf.clone();
            async move {
                let mut sample = Sample::default();
                while begun.elapsed() < span {
                    let at = Instant::now();
                    let mut command = tokio::process::Command::new("sbatch");
                    command.args(["--hold", "--parsable", "-o", "/dev/null", "--wrap", "true"]);
                    command.env("SLURM_CONF", &conf).stdin(Stdio::null()).kill_on_drop(true);
                    let out = command.output().await?;
                    if !out.status.success() {
                        bail!("sbatch: {}", String::from_utf8_lossy(&out.stderr));
                    }
                    sample.add(at.elapsed().as_secs_f64() * 1e3);
                }
                Ok::<_, anyhow::Error>(sample)
            }
        });
        for sample in futures::future::join_all(tasks).await {
            load.latency_ms.extend(&sample?);
        }
        load.seconds += begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Connections that each submit one held job, wait for the answer, and submit the next.
    pub async fn rest(&self, connections: usize, span: Duration, load: &mut Load) -> anyhow::Result<()> {
        let Restd { socket, api, .. } = self.rest.as_ref().context("no slurmrestd")?;
        let environment = if *api == "v0.0.38" { json!({ "PATH": "/bin" }) } else { json!(["PATH=/bin"]) };
        let job = json!({
            "script": "#!/bin/sh\ntrue\n",
            "job": {
                "name": "held", "hold": true, "current_working_directory": "/tmp", "standard_output": "/dev/null",
                "environment": environment,
            },
        });
        let body = Bytes::from(job.to_string());
        let mut open = Vec::new();
        for _ in 0..connections {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            open.push(sender);
        }
        let begun = Instant::now();
        let tasks = open.into_iter().map(|mut sender| {
            let body = body.clone();
            async move {
                let mut sample = Sample::default();
                while begun.elapsed() < span {
                    let request = Request::post(format!("/slurm/{api}/job/submit"))
                        .header(header::HOST, "slurm")
                        .header(header::CONTENT_TYPE, "application/json")
                        .body(Full::new(body.clone()))?;
                    let at = Instant::now();
                    sender.ready().await?;
                    let answer = sender.send_request(request).await?;
                    let bytes = answer.into_body().collect().await?.to_bytes();
                    let answer: Value = serde_json::from_slice(&bytes)?;
                    // Some versions name the hold that was asked for as an error of a job that was taken.
                    let errors = answer["errors"].as_array().into_iter().flatten();
                    let failed = errors.into_iter().any(|error| error["error_code"] != HELD);
                    if failed || answer["job_id"].is_null() {
                        bail!("slurmrestd: {answer}");
                    }
                    sample.add(at.elapsed().as_secs_f64() * 1e3);
                }
                Ok::<_, anyhow::Error>(sample)
            }
        });
        for sample in futures::future::join_all(tasks).await {
            load.latency_ms.extend(&sample?);
        }
        load.seconds += begun.elapsed().as_secs_f64();
        Ok(())
    }
}
