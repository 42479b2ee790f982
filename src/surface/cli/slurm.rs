//! `starling slurm …`: the verbs that fingers know, over the whole mesh. A cluster takes the place of a partition, a
//! tenant that of a user.

use axum::http::Method;
use clap::{Args, Subcommand};
use serde_json::json;

use super::output::{Style, Table, plain};
use super::squeue_format::Format;
use super::{Asking, CommandResult, Failure, Reply, submit};
use crate::model::sbatch::CommandLine;
use crate::model::{JobState, Outcome, timestamp};
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
#[command(disable_help_flag = true)]
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
    /// Names of jobs with commas between
    #[arg(short = 'n', long)]
    pub name: Option<String>,
    /// What sbatch submits here: the tenant `default`
    #[arg(long, conflicts_with = "user")]
    pub me: bool,
    /// Columns in Slurm's letters, such as "%.10i %.9P %.20j %.2t %M %R"
    #[arg(short = 'o', long)]
    pub format: Option<String>,
    /// No headings
    #[arg(short = 'h', long)]
    pub noheader: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// `sinfo`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true)]
pub struct SinfoArgs {
    /// Cluster
    #[arg(short = 'p', long)]
    pub partition: Option<String>,
    /// By nodes: a line per group of nodes that are alike, which is what a mesh knows
    #[arg(short = 'N', long = "Node")]
    pub node: bool,
    /// All that is known, which is printed without it, too
    #[arg(short = 'l', long)]
    pub long: bool,
    /// No headings
    #[arg(short = 'h', long)]
    pub noheader: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// `sbatch`.
#[derive(Debug, Clone, Args)]
pub struct SbatchArgs {
    /// sbatch's own options (--parsable, -W/--wait, --wrap COMMAND, and those of #SBATCH lines), then the file (none, or
    /// -: standard input), then the script's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS FILE ARGUMENTS")]
    pub words: Vec<String>,
}

/// `scancel`.
#[derive(Debug, Clone, Args)]
pub struct ScancelArgs {
    /// Job ids
    #[arg(required_unless_present_any = ["user", "me", "name"])]
    pub ids: Vec<String>,
    /// All jobs of this tenant
    #[arg(short = 'u', long)]
    pub user: Option<String>,
    /// All jobs that sbatch submitted here: the tenant `default`
    #[arg(long, conflicts_with = "user")]
    pub me: bool,
    /// Jobs of these names, with commas between
    #[arg(short = 'n', long, alias = "jobname")]
    pub name: Option<String>,
    /// Only jobs in this state: PENDING or RUNNING
    // No long form: --state is the peer's folder, of every command.
    #[arg(short = 't', value_name = "STATE")]
    pub only: Option<String>,
}

/// `sacct`.
#[derive(Debug, Clone, Args)]
pub struct SacctArgs {
    /// Job ids with commas between
    #[arg(short = 'j', long)]
    pub jobs: Option<String>,
    /// Tenant
    #[arg(short = 'u', long)]
    pub user: Option<String>,
    /// Only what had not ended by then: 2026-06-01, 2026-06-01T12:00:00 (UTC), now-2days
    #[arg(short = 'S', long)]
    pub starttime: Option<String>,
    /// Whole jobs, which is all that there is here: no steps
    #[arg(short = 'X', long)]
    pub allocations: bool,
    /// No headings
    #[arg(short = 'n', long)]
    pub noheader: bool,
}

/// The tenant of jobs that name none.
const OWN: &str = "default";

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
pub(super) fn word(job: &JobDocument) -> (&'static str, &'static str) {
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

/// Why it is where it is, shortened.
pub(super) fn reason(job: &JobDocument) -> String {
    plain(&job.reason).chars().take(60).collect()
}

/// `h:mm:ss`, with days where there are some.
pub(super) fn elapsed(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{}:{:02}:{:02}", rest / 3_600, rest % 3_600 / 60, rest % 60);
    if days > 0 { format!("{days}-{clock}") } else { clock }
}

pub(super) fn ran(job: &JobDocument) -> u64 {
    let last = job.attempts.last();
    let from = last.and_then(|a| a.started_at_ms);
    let until = last.and_then(|a| a.ended_at_ms).unwrap_or_else(|| wall_now().0);
    from.map_or(0, |from| until.saturating_sub(from))
}

pub(super) fn cluster(job: &JobDocument) -> String {
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
    if list.truncated {
        eprintln!(
            "starling: not complete: these are the newest 1000; starling jobs --before shows older ones"
        );
    }
    Ok(list.jobs)
}

fn named(job: &JobDocument, names: Option<&str>) -> bool {
    names.is_none_or(|all| all.split(',').any(|n| n == job.name))
}

async fn squeue(asking: &Asking, args: SqueueArgs) -> CommandResult {
    let format = args.format.as_deref().map(Format::read).transpose();
    let format = format
        .map_err(|e| Failure::usage(format!("squeue: --format: {e}"), "see starling slurm squeue --help"))?;
    let tenant = args.user.as_deref().or(args.me.then_some(OWN));
    let mut all = jobs(asking, args.jobs.as_deref(), tenant).await?;
    all.retain(|job| named(job, args.name.as_deref()) && tenant.is_none_or(|t| job.tenant == t));
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
    if let Some(format) = format {
        return Ok(Reply::new(&all, format.render(!args.noheader, &all)));
    }
    let headings: &[&str] = if args.noheader {
        &[]
    } else {
        &["JOBID", "PARTITION", "NAME", "USER", "STATE", "TIME", "NODES", "REASON"]
    };
    let mut table = Table::new(Style { colour: false }, headings);
    for job in &all {
        table.row([
            job.id.short(),
            cluster(job),
            plain(&job.name).chars().take(24).collect(),
            plain(&job.tenant),
            word(job).0.to_owned(),
            elapsed(ran(job)),
            job.nodes.to_string(),
            format!("({})", reason(job)),
        ]);
    }
    Ok(Reply::new(&all, table.render()))
}

async fn sinfo(asking: &Asking, args: SinfoArgs) -> CommandResult {
    let mut list: ClusterList = asking.client.get("/v1/clusters").await?;
    if let Some(wanted) = &args.partition {
        list.clusters.retain(|c| c.name.as_str() == wanted);
    }
    if args.node {
        eprintln!(
            "starling: sinfo --Node: a line per group of alike nodes, by the first one's name: a mesh knows no others"
        );
    }
    let headings = ["PARTITION", "AVAIL", "NODES", "STATE", "CPUS", "GRES", "FREE", "NODELIST"];
    let headings: Vec<&str> = headings.into_iter().filter(|_| !args.noheader).collect();
    let mut table = Table::new(Style { colour: false }, &headings);
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
    let hint = "give it in the script as a line of #SBATCH, or see starling slurm sbatch --help";
    let mut line =
        CommandLine::read(&args.words).map_err(|e| Failure::usage(format!("sbatch: {e}"), hint))?;
    let parsable = line.take("parsable").is_some();
    let wait = line.take("wait").is_some();
    let reply = submit::sbatch(asking, line, wait).await?;
    let text = match reply.document.get("id").and_then(serde_json::Value::as_str) {
        Some(id) if parsable => format!("{id}\n"),
        Some(id) => format!("Submitted batch job {id}\n"),
        None => reply.text.clone(),
    };
    Ok(Reply { text, ..reply })
}

async fn scancel(asking: &Asking, args: ScancelArgs) -> CommandResult {
    let state = args.only.as_deref().map(str::to_ascii_uppercase);
    if let Some(state) = state.as_deref().filter(|s| !["PENDING", "PD", "RUNNING", "R"].contains(s)) {
        return Err(Failure::usage(format!("scancel: -t {state}"), "give PENDING or RUNNING"));
    }
    // `ID_7` is Slurm's way to write job 7 of an array.
    let ids = args.ids.iter().flat_map(|i| i.split(',')).filter(|i| !i.is_empty());
    let mut ids: Vec<String> = ids.map(|id| id.replace('_', ".")).collect();
    let tenant = args.user.as_deref().or(args.me.then_some(OWN));
    let filters = tenant.is_some() || args.name.is_some() || state.is_some();
    if filters {
        // All of them must hold, as in Slurm.
        let given = (!ids.is_empty()).then(|| ids.join(","));
        let all = jobs(asking, given.as_deref(), tenant).await?;
        let wanted = |job: &&JobDocument| {
            let (long, short) = word(job);
            !job.done
                && tenant.is_none_or(|t| job.tenant == t)
                && named(job, args.name.as_deref())
                && state.as_deref().is_none_or(|s| s == long || s == short)
        };
        ids = all.iter().filter(wanted).map(|job| job.id.to_string()).collect();
    }
    let mut done = Vec::new();
    for id in ids {
        let path = format!("/v1/jobs/{}/cancel", escape(&id));
        let answer: serde_json::Value = asking.client.send(Method::POST, &path, None).await?;
        done.push(answer);
    }
    Ok(Reply::new(&json!({ "cancelled": done }), String::new()))
}

/// Milliseconds since 1970 of what `sacct -S` takes.
fn since(text: &str, now: u64) -> Option<u64> {
    if let Some(ago) = text.strip_prefix("now") {
        let Some(ago) = ago.strip_prefix('-') else { return ago.is_empty().then_some(now) };
        let digits = ago.len() - ago.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = ago.split_at_checked(digits)?;
        let seconds = match unit.trim_end_matches('s') {
            "" | "second" => 1,
            "minute" => 60,
            "hour" => 3_600,
            "day" => 86_400,
            "week" => 604_800,
            _ => return None,
        };
        return Some(
            now.saturating_sub(number.parse::<u64>().ok()?.checked_mul(seconds)?.checked_mul(1_000)?),
        );
    }
    let whole = match text.len() {
        10 => format!("{text}T00:00:00"),
        16 => format!("{text}:00"),
        _ => text.to_owned(),
    };
    timestamp::parse(&whole).map(|at| at.0)
}

async fn sacct(asking: &Asking, args: SacctArgs) -> CommandResult {
    let from = args.starttime.as_deref().map(|text| {
        let hint = "give a date such as 2026-06-01T12:00:00 (UTC), or now-2days";
        since(text, wall_now().0)
            .ok_or_else(|| Failure::usage(format!("sacct: --starttime={text}: not a time"), hint))
    });
    let from = from.transpose()?;
    let mut all = jobs(asking, args.jobs.as_deref(), args.user.as_deref()).await?;
    all.retain(|job| {
        let late = from.is_none_or(|from| job.finished_at_ms.is_none_or(|at| at >= from));
        late && args.user.as_deref().is_none_or(|t| job.tenant == t)
    });
    let headings = ["JobID", "JobName", "Partition", "Account", "AllocGPUs", "State", "ExitCode", "Elapsed"];
    let headings: Vec<&str> = headings.into_iter().filter(|_| !args.noheader).collect();
    let mut table = Table::new(Style { colour: false }, &headings);
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
    fn a_start_time_of_sacct() {
        let now = 1_748_779_200_000;
        assert_eq!(since("now-2hours", now), Some(now - 7_200_000));
        assert_eq!(since("now", now), Some(now));
        assert_eq!(since("2025-06-01", now), Some(1_748_736_000_000));
        assert_eq!(since("2025-06-01T12:00", now), Some(now));
        for bad in ["yesterday", "now-", "now-1fortnight", "now+1hour", "0601"] {
            assert_eq!(since(bad, now), None, "{bad}");
        }
    }

    #[test]
    fn times_look_as_slurm_writes_them() {
        assert_eq!(elapsed(0), "0:00:00");
        assert_eq!(elapsed(3_723_000), "1:02:03");
        assert_eq!(elapsed(90_061_000), "1-1:01:01");
    }
}
