//! `starling slurm …`: the verbs that fingers know, over the whole mesh. A cluster takes the place of a partition, a
//! tenant that of a user.

use axum::http::Method;
use clap::{Args, Subcommand};
use serde_json::json;

use super::args::SubmitArgs;
use super::output::{Style, Table, plain};
use super::{Asking, CommandResult, Reply, submit};
use crate::model::{JobState, Outcome};
use crate::surface::api::escape;
use crate::surface::documents::*;

/// Slurm's verbs.
#[derive(Debug, Clone, Subcommand)]
pub enum SlurmCommand {
    /// Jobs that wait or run
    Squeue(SqueueArgs),
    /// Clusters and their nodes
    Sinfo(SinfoArgs),
    /// Submit an sbatch file or a job file
    Sbatch(SbatchArgs),
    /// End jobs
    Scancel(ScancelArgs),
    /// Jobs, ended ones too, with how they ended
    Sacct(SacctArgs),
}

/// `squeue`.
#[derive(Debug, Clone, Args)]
pub struct SqueueArgs {
    /// States with commas between, or all
    #[arg(short = 't', long)]
    pub states: Option<String>,
    /// Tenant
    #[arg(short = 'u', long)]
    pub user: Option<String>,
    /// Job ids with commas between
    #[arg(short = 'j', long)]
    pub jobs: Option<String>,
    /// Cluster
    #[arg(short = 'p', long)]
    pub partition: Option<String>,
    /// No headings
    #[arg(long)]
    pub noheader: bool,
}

/// `sinfo`.
#[derive(Debug, Clone, Args)]
pub struct SinfoArgs {
    /// Cluster
    #[arg(short = 'p', long)]
    pub partition: Option<String>,
}

/// `sbatch`.
#[derive(Debug, Clone, Args)]
pub struct SbatchArgs {
    /// The file; - reads standard input
    pub file: std::path::PathBuf,
    /// Print the id alone
    #[arg(long)]
    pub parsable: bool,
    /// Wait until it has ended
    #[arg(short = 'W', long)]
    pub wait: bool,
}

/// `scancel`.
#[derive(Debug, Clone, Args)]
pub struct ScancelArgs {
    /// Job ids
    #[arg(required = true)]
    pub ids: Vec<String>,
}

/// `sacct`.
#[derive(Debug, Clone, Args)]
pub struct SacctArgs {
    /// Job ids with commas between
    #[arg(short = 'j', long)]
    pub jobs: Option<String>,
}

/// Carries one out.
pub async fn perform(asking: &Asking, command: SlurmCommand) -> CommandResult {
    match command {
        SlurmCommand::Squeue(args) => squeue(asking, args).await,
        SlurmCommand::Sinfo(args) => sinfo(asking, args).await,
        SlurmCommand::Sbatch(args) => sbatch(asking, args).await,
        SlurmCommand::Scancel(args) => scancel(asking, args).await,
        SlurmCommand::Sacct(args) => sacct(asking, args).await,
    }
}

/// Slurm's words for a state.
fn word(job: &JobDocument) -> (&'static str, &'static str) {
    let timed_out = job.attempts.last().is_some_and(|a| a.outcome == Some(Outcome::TimedOut));
    match job.state {
        JobState::Succeeded => ("COMPLETED", "CD"),
        JobState::Cancelled => ("CANCELLED", "CA"),
        JobState::Failed if timed_out => ("TIMEOUT", "TO"),
        JobState::Failed => ("FAILED", "F"),
        JobState::Running => ("RUNNING", "R"),
        _ => ("PENDING", "PD"),
    }
}

/// `h:mm:ss`, with days where there are some.
fn elapsed(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{}:{:02}:{:02}", rest / 3_600, rest % 3_600 / 60, rest % 60);
    if days > 0 { format!("{days}-{clock}") } else { clock }
}

fn ran(job: &JobDocument) -> u64 {
    let last = job.attempts.last();
    let from = last.and_then(|a| a.started_at_ms);
    let until = last.and_then(|a| a.ended_at_ms).unwrap_or_else(|| wall_now().0);
    from.map_or(0, |from| until.saturating_sub(from))
}

fn cluster(job: &JobDocument) -> String {
    let last = job.attempts.last().map(|a| &a.cluster);
    job.cluster.as_ref().or(last).map_or_else(|| "(none)".into(), ToString::to_string)
}

async fn jobs(
    asking: &Asking,
    ids: Option<&str>,
    tenant: Option<&str>,
) -> Result<Vec<JobDocument>, super::Failure> {
    if let Some(ids) = ids {
        let mut found = Vec::new();
        for id in ids.split(',').filter(|i| !i.is_empty()) {
            found.push(asking.client.get(&format!("/v1/jobs/{}", escape(id))).await?);
        }
        return Ok(found);
    }
    let tenant = tenant.map(|t| format!("&tenant={}", escape(t))).unwrap_or_default();
    let list: JobList = asking.client.get(&format!("/v1/jobs?limit=1000{tenant}")).await?;
    if !list.unanswered.is_empty() {
        let names: Vec<&str> = list.unanswered.iter().map(|n| n.as_str()).collect();
        eprintln!("starling: not complete: no answer from {}", names.join(", "));
    }
    Ok(list.jobs)
}

async fn squeue(asking: &Asking, args: SqueueArgs) -> CommandResult {
    let mut all = jobs(asking, args.jobs.as_deref(), args.user.as_deref()).await?;
    let states: Vec<String> =
        args.states.iter().flat_map(|s| s.split(',')).map(str::to_ascii_uppercase).collect();
    all.retain(|job| match states.as_slice() {
        [] => args.jobs.is_some() || !job.done,
        [one] if one == "ALL" => true,
        some => some.iter().any(|s| *s == word(job).0 || *s == word(job).1),
    });
    if let Some(wanted) = &args.partition {
        all.retain(|job| cluster(job) == *wanted);
    }
    let headings: &[&str] = if args.noheader {
        &[]
    } else {
        &["JOBID", "PARTITION", "NAME", "USER", "STATE", "TIME", "NODES", "REASON"]
    };
    let mut table = Table::new(Style { colour: false }, headings);
    for job in &all {
        let reason: String = plain(&job.reason).chars().take(60).collect();
        table.row([
            job.id.short(),
            cluster(job),
            plain(&job.name).chars().take(24).collect(),
            plain(&job.tenant),
            word(job).0.to_owned(),
            elapsed(ran(job)),
            job.nodes.to_string(),
            format!("({reason})"),
        ]);
    }
    Ok(Reply::new(&all, table.render()))
}

async fn sinfo(asking: &Asking, args: SinfoArgs) -> CommandResult {
    let mut list: ClusterList = asking.client.get("/v1/clusters").await?;
    if let Some(wanted) = &args.partition {
        list.clusters.retain(|c| c.name.as_str() == wanted);
    }
    let mut table = Table::new(
        Style { colour: false },
        &["PARTITION", "AVAIL", "NODES", "STATE", "CPUS", "GRES", "FREE", "NODELIST"],
    );
    for c in list.clusters.iter().filter(|c| !c.witness) {
        let avail = if c.liveness == "alive" && !c.draining && c.closed.is_none() { "up" } else { "down" };
        let state =
            c.closed.clone().unwrap_or_else(|| if c.draining { "drain".into() } else { c.liveness.clone() });
        for group in &c.nodes {
            let gres = group
                .gpu_model
                .as_ref()
                .map_or_else(|| "(null)".into(), |m| format!("gpu:{m}:{}", group.gpus));
            let free = group.gpu_model.as_ref().and_then(|m| c.gpus.get(m)).map_or(0, |g| g.free);
            table.row([
                c.name.to_string(),
                avail.to_owned(),
                group.count.to_string(),
                plain(&state).chars().take(60).collect(),
                (group.cpus.0 / 1_000).to_string(),
                gres,
                free.to_string(),
                plain(&group.name),
            ]);
        }
    }
    Ok(Reply::new(&list, table.render()))
}

async fn sbatch(asking: &Asking, args: SbatchArgs) -> CommandResult {
    let submit = SubmitArgs { file: args.file, key: None, dry_run: false, wait: args.wait, follow: false };
    let reply = submit::submit(asking, submit).await?;
    let text = match reply.document.get("id").and_then(serde_json::Value::as_str) {
        Some(id) if args.parsable => format!("{id}\n"),
        Some(id) => format!("Submitted batch job {id}\n"),
        None => reply.text.clone(),
    };
    Ok(Reply { text, ..reply })
}

async fn scancel(asking: &Asking, args: ScancelArgs) -> CommandResult {
    let mut done = Vec::new();
    for id in args.ids.iter().flat_map(|i| i.split(',')).filter(|i| !i.is_empty()) {
        // `ID_7` is Slurm's way to write job 7 of an array.
        let path = format!("/v1/jobs/{}/cancel", escape(&id.replace('_', ".")));
        let answer: serde_json::Value = asking.client.send(Method::POST, &path, None).await?;
        done.push(answer);
    }
    Ok(Reply::new(&json!({ "cancelled": done }), String::new()))
}

async fn sacct(asking: &Asking, args: SacctArgs) -> CommandResult {
    let all = jobs(asking, args.jobs.as_deref(), None).await?;
    let mut table = Table::new(
        Style { colour: false },
        &["JobID", "JobName", "Partition", "Account", "AllocGPUs", "State", "ExitCode", "Elapsed"],
    );
    for job in &all {
        let code = match job.attempts.last().and_then(|a| a.outcome.as_ref()) {
            Some(Outcome::Exited(code)) => format!("{code}:0"),
            Some(Outcome::Signaled(signal)) => format!("0:{signal}"),
            _ => "0:0".into(),
        };
        table.row([
            job.id.short(),
            plain(&job.name).chars().take(24).collect(),
            cluster(job),
            plain(&job.tenant),
            job.gpus.to_string(),
            word(job).0.to_owned(),
            code,
            elapsed(ran(job)),
        ]);
    }
    Ok(Reply::new(&all, table.render()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_look_as_slurm_writes_them() {
        assert_eq!(elapsed(0), "0:00:00");
        assert_eq!(elapsed(3_723_000), "1:02:03");
        assert_eq!(elapsed(90_061_000), "1-1:01:01");
    }
}
