//! Slurm by its commands: sbatch, squeue, sinfo, scontrol, scancel.
//!
//! Every command runs in an environment of its own: what of the peer's would reach the job is chosen here.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use async_trait::async_trait;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::driver::{Driver, DriverError, NativeJob, NativeNode, Submission, SubmitError};
use super::parse;
use crate::backends::local::processes::OwnGroup;
use crate::base::Span;

/// A command that takes longer is given up; what it did is not known.
const PATIENCE: Span = Span::secs(30);
/// Bytes of one answer; a cluster of 100,000 jobs stays below.
const ANSWER_BYTES_MAX: usize = 512 << 20;
/// Bytes of what it says beside it.
const WORDS_BYTES_MAX: usize = 16 << 20;
/// What of the peer's environment the commands, and so the jobs, see.
const INHERITED: [&str; 9] =
    ["PATH", "HOME", "LANG", "USER", "LOGNAME", "TZ", "LD_LIBRARY_PATH", "SLURM_CONF", "SHELL"];

/// The commands of one cluster.
#[derive(Debug, Clone)]
pub struct Commands {
    /// Folder of the commands; none means PATH.
    pub bin: Option<PathBuf>,
    /// `SLURM_CONF`; none means as the peer has it.
    pub conf: Option<PathBuf>,
}

impl Commands {
    fn command(&self, name: &str) -> Command {
        let program = self.bin.as_ref().map_or_else(|| PathBuf::from(name), |bin| bin.join(name));
        let mut command = Command::new(program);
        command.env_clear();
        for name in INHERITED {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if let Some(conf) = &self.conf {
            command.env("SLURM_CONF", conf);
        }
        // Times are not read, but what is read shall not depend on the peer's language.
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true).current_dir("/");
        command
    }

    async fn run(&self, name: &str, args: &[&str], input: Option<&str>) -> Result<Output, DriverError> {
        let mut command = self.command(name);
        command.args(args);
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        let fault = |e: std::io::Error| DriverError(format!("{name}: {e}"));
        let mut child = command.spawn().map_err(fault)?;
        // A site may have a script in a command's place.
        let group = OwnGroup::of(&child);
        let done = async move {
            let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            let write = async {
                if let (Some(text), Some(mut stdin)) = (input, stdin) {
                    // A command that does not read says why itself.
                    let _ = stdin.write_all(text.as_bytes()).await;
                }
                Ok::<(), std::io::Error>(())
            };
            let (stdout, stderr) = (all_of(out, ANSWER_BYTES_MAX), all_of(err, WORDS_BYTES_MAX));
            let ((), stdout, stderr) = tokio::try_join!(write, stdout, stderr)?;
            let status = child.wait().await?;
            group.over();
            Ok(Output { status, stdout, stderr })
        };
        match tokio::time::timeout(PATIENCE.to_std(), done).await {
            Ok(output) => output.map_err(fault),
            Err(_) => Err(DriverError(format!("{name}: no answer in {} s", PATIENCE.as_secs_f64()))),
        }
    }

    async fn json(&self, name: &str, args: &[&str]) -> Result<Value, DriverError> {
        let output = self.run(name, args, None).await?;
        if !output.status.success() {
            return Err(DriverError(format!("{name}: {}", first_words(&output))));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|e| DriverError(format!("{name}: its answer is not whole JSON: {e}")))
    }

    /// The version that the commands say they are, for the log.
    pub async fn version(&self) -> Result<String, DriverError> {
        let output = self.run("sinfo", &["--version"], None).await?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// All that comes; an error as soon as it is more than it may be.
async fn all_of(from: Option<impl AsyncRead + Unpin>, max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(max as u64 + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() > max {
        return Err(std::io::Error::other(format!("answered with more than {max} bytes")));
    }
    Ok(bytes)
}

/// What a command said of its failure, shortened.
fn first_words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = if text.trim().is_empty() { String::from_utf8_lossy(&output.stdout) } else { text };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).take(4).collect();
    let joined: String = lines.join("; ").chars().take(400).collect();
    if joined.is_empty() { format!("failed ({})", output.status) } else { joined }
}

/// Slurm's own no, as opposed to trouble on the way to it.
fn is_refusal(text: &str) -> bool {
    let trouble = [
        "contact slurm controller",
        "timed out",
        "Zero Bytes",
        "Communication",
        "Transport",
        "connection",
        "Connection",
        "temporarily",
        "slurm_receive",
        "slurm_send",
        "Unspecified error",
        "Protocol",
        "munge",
        "Munge",
        "standby",
    ];
    text.contains("job submission failed") && !trouble.iter().any(|t| text.contains(t))
        || text.contains("Invalid") && text.contains("specification")
        || text.contains("unrecognized option")
}

#[async_trait]
impl Driver for Commands {
    fn describe(&self) -> String {
        match &self.bin {
            Some(bin) => format!("the commands in {}", bin.display()),
            None => "the commands".into(),
        }
    }

    async fn jobs(&self) -> Result<Vec<NativeJob>, DriverError> {
        let document = self.json("squeue", &["--json", "--states=all", "--local", "--all"]).await?;
        let all = parse::list(&document, "jobs").map_err(|e| DriverError(format!("squeue: {e}")))?;
        Ok(all.iter().filter_map(parse::job).collect())
    }

    async fn job(&self, id: u64) -> Result<Option<NativeJob>, DriverError> {
        let output = self.run("scontrol", &["--oneliner", "show", "job", &id.to_string()], None).await?;
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        if said.contains("Invalid job id specified") {
            return Ok(None);
        }
        if !output.status.success() {
            return Err(DriverError(format!("scontrol: {}", first_words(&output))));
        }
        one_line(&String::from_utf8_lossy(&output.stdout))
            .map(Some)
            .ok_or_else(|| DriverError("scontrol: its answer cannot be read".into()))
    }

    async fn nodes(&self) -> Result<Vec<NativeNode>, DriverError> {
        // Since 23.02 scontrol gives the nodes themselves and sinfo gives groups of them; before, sinfo gave nodes.
        let whole = |d: &Value| {
            parse::list(d, "nodes").map(|all| all.iter().filter_map(parse::node).collect::<Vec<_>>())
        };
        // Without --all, a partition that is hidden is in no node's list; what may be offered is asked for by itself.
        let first = self.json("scontrol", &["show", "nodes", "--json", "--all"]).await;
        if let Ok(nodes) = first.as_ref().map_err(|e| e.0.clone()).and_then(whole) {
            return Ok(nodes);
        }
        let document = self.json("sinfo", &["--json", "--all"]).await?;
        whole(&document).map_err(|e| DriverError(format!("sinfo: {e}")))
    }

    async fn shown(&self) -> Result<Option<Vec<String>>, DriverError> {
        let output = self.run("sinfo", &["--noheader", "--format=%R"], None).await?;
        if !output.status.success() {
            return Err(DriverError(format!("sinfo: {}", first_words(&output))));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut names: Vec<String> =
            text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        Ok(Some(names))
    }

    async fn submit(&self, job: &Submission) -> Result<u64, SubmitError> {
        let mut args = vec![
            "--parsable".to_owned(),
            "--no-requeue".into(),
            format!("--job-name={}", job.name),
            format!("--comment={}", job.comment),
            format!("--chdir={}", job.folder.display()),
            format!("--output={}", job.output.display()),
            "--open-mode=append".into(),
        ];
        for (name, value) in &job.options {
            args.push(if value.is_empty() { format!("--{name}") } else { format!("--{name}={value}") });
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output =
            self.run("sbatch", &args, Some(&job.script)).await.map_err(|e| SubmitError::Unknown(e.0))?;
        let said = String::from_utf8_lossy(&output.stdout);
        // `id` or `id;cluster`.
        let id = said.trim().split(';').next().and_then(|t| t.parse().ok());
        match (output.status.success(), id) {
            (true, Some(id)) => Ok(id),
            (true, None) => Err(SubmitError::Unknown("sbatch: it gave no job id".into())),
            (false, _) => {
                let words = first_words(&output);
                let text = format!("sbatch: {words}");
                Err(if is_refusal(&words) { SubmitError::Refused(text) } else { SubmitError::Unknown(text) })
            }
        }
    }

    async fn cancel(&self, id: u64, name: &str) -> Result<(), DriverError> {
        // Both must be so, or nothing is cancelled.
        let args = [format!("--name={name}"), id.to_string()];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = self.run("scancel", &args, None).await?;
        if output.status.success() {
            return Ok(());
        }
        Err(DriverError(format!("scancel: {}", first_words(&output))))
    }

    async fn kill_wait(&self) -> Option<u64> {
        let output = self.run("scontrol", &["show", "config"], None).await.ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|l| l.trim_start().starts_with("KillWait"))?;
        line.split('=').nth(1)?.split_whitespace().next()?.parse().ok()
    }
}

/// `scontrol --oneliner show job`: `Key=Value` with blanks between; values with blanks go on to the next key.
fn one_line(text: &str) -> Option<NativeJob> {
    let value = |key: &str| {
        let start = text.find(&format!(" {key}=")).map(|at| at + key.len() + 2)?;
        let rest = text.get(start..)?;
        let mut end = rest.len();
        for (at, _) in rest.match_indices(' ') {
            let next = rest.get(at + 1..).unwrap_or_default();
            let word = next.split(' ').next().unwrap_or_default();
            if word.is_empty() || word.contains('=') {
                end = at;
                break;
            }
        }
        rest.get(..end).map(|v| v.trim().to_owned()).filter(|v| v != "(null)")
    };
    let id: u64 = text.trim_start().strip_prefix("JobId=")?.split_whitespace().next()?.parse().ok()?;
    let word = value("JobState").unwrap_or_default();
    let exit = value("ExitCode").unwrap_or_default();
    let (code, signal) = exit.split_once(':').unwrap_or((&exit, "0"));
    let number = |t: &str| t.parse::<i32>().unwrap_or(0);
    Some(NativeJob {
        id,
        name: value("JobName").unwrap_or_default(),
        comment: value("Comment").unwrap_or_default(),
        state: super::driver::NativeState::read(&word),
        word,
        reason: value("Reason").unwrap_or_default(),
        status: (number(code) << 8) | number(signal),
        restarts: value("Restarts").and_then(|t| t.parse().ok()).unwrap_or(0),
        user: value("UserId").and_then(|t| t.split('(').next().map(str::to_owned)).unwrap_or_default(),
        parts: Vec::new(),
        partition: value("Partition").unwrap_or_default(),
        gpus_wanted: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::driver::NativeState;
    use super::*;

    #[test]
    fn a_job_in_one_line() {
        let text = "JobId=2 JobName=wrap UserId=root(0) GroupId=root(0) MCS_label=N/A Restarts=1 BatchFlag=1 \
                    JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 ExitCode=3:0 \
                    Comment=starling abc-1 Power= \n";
        let job = one_line(text).expect("read");
        assert_eq!((job.id, job.name.as_str(), job.state), (2, "wrap", NativeState::Failed));
        assert_eq!((job.status, job.restarts, job.user.as_str()), (3 << 8, 1, "root"));
        assert_eq!(job.comment, "starling abc-1", "with its blank");
        assert_eq!(one_line("slurm_load_jobs error"), None);
    }

    fn with(folder: &std::path::Path, name: &str, text: &str) -> Commands {
        use std::os::unix::fs::PermissionsExt;
        let file = folder.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("writes");
        let all = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&file, all).expect("rights");
        Commands { bin: Some(folder.into()), conf: None }
    }

    /// A partition that is hidden from users is one that a script may name.
    #[tokio::test]
    async fn nodes_are_asked_for_with_their_hidden_partitions() {
        let folder = tempfile::tempdir().expect("a folder");
        let says = r#"case " $* " in *" --all "*) more=',"hidden"';; esac
echo "{\"nodes\": [{\"name\": \"n1\", \"partitions\": [\"main\"$more]}]}""#;
        with(folder.path(), "sinfo", says);
        for scontrol in [says, "echo unknown option; exit 1"] {
            let nodes = with(folder.path(), "scontrol", scontrol).nodes().await.expect("answers");
            assert_eq!(nodes[0].partitions, ["main", "hidden"], "{scontrol}");
        }
    }

    #[tokio::test]
    async fn partitions_that_are_shown_are_asked_for_without_the_hidden_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let says = r#"case " $* " in *" --all "*) exit 1;; *"%R"*) printf 'main\nlow \n\nmain\n';; *) exit 1;; esac"#;
        let commands = with(folder.path(), "sinfo", says);
        assert_eq!(commands.shown().await, Ok(Some(vec!["low".into(), "main".into()])));
        let all_hidden = with(folder.path(), "sinfo", "exit 0").shown().await;
        assert_eq!(all_hidden, Ok(Some(Vec::new())), "which is told, too");
        let error = with(folder.path(), "sinfo", "echo no >&2; exit 1").shown().await.expect_err("it fails");
        assert_eq!(error.0, "sinfo: no");
    }

    /// Nor does one that writes before it reads, and more than a pipe holds, wait for ever.
    #[tokio::test]
    async fn an_answer_without_end_fills_no_memory() {
        let endless = tokio::io::repeat(b'x');
        let error = all_of(Some(endless), 1_000).await.expect_err("too much");
        assert!(error.to_string().contains("more than 1000 bytes"), "{error}");
        assert_eq!(all_of(Some(&b"1000"[..]), 4).await.expect("as much as may be"), b"1000");
        let folder = tempfile::tempdir().expect("a folder");
        let commands = with(folder.path(), "sbatch", "head -c 300000 /dev/zero; cat > /dev/null; echo 7 >&2");
        let output = commands.run("sbatch", &[], Some(&"x".repeat(300_000))).await.expect("ends");
        assert_eq!((output.stdout.len(), output.stderr.as_slice()), (300_000, &b"7\n"[..]));
    }

    #[test]
    fn trouble_on_the_way_is_no_refusal() {
        let no = "sbatch: error: Batch job submission failed: Requested node configuration is not available";
        assert!(is_refusal(no));
        assert!(is_refusal("sbatch: error: Invalid --gres specification"));
        for trouble in [
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
            "Killed",
            "",
        ] {
            assert!(!is_refusal(trouble), "{trouble}");
        }
    }
}
