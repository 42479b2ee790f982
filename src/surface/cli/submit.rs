//! `submit` and `run`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Method;
use serde_json::{Map, Value, json};

use super::args::{LogsArgs, RunArgs, SubmitArgs, WaitArgs};
use super::{Asking, CommandResult, Failure, Reply, exit, jobs, logs, plain, sbatch};
use crate::model::brought;
use crate::model::input::Mistake;
use crate::model::sbatch::CommandLine;
use crate::model::spec::limits::DOCUMENT_BYTES_MAX;
use crate::surface::documents::{SubmitDocument, WhyDocument};

/// A submission may wait for a majority of homes.
const SUBMIT_WITHIN: Duration = Duration::from_secs(40);

/// What to do with a job once it is taken.
struct After {
    key: Option<String>,
    dry_run: bool,
    wait: bool,
    follow: bool,
}

/// `starling submit FILE`
pub async fn submit(asking: &Asking, args: SubmitArgs) -> CommandResult {
    let document = converted(&args.file, read(&args.file)?)?;
    let after = After { key: args.key, dry_run: args.dry_run, wait: args.wait, follow: args.follow };
    send(asking, document, after).await
}

/// `starling slurm sbatch`: a script, or a job file, with what the command line adds to it.
pub async fn sbatch(asking: &Asking, mut line: CommandLine, wait: bool) -> CommandResult {
    let wrap = line.take("wrap");
    let file = match (&wrap, line.rest.is_empty()) {
        (Some(_), false) => {
            return Err(Failure::usage("sbatch: --wrap takes no file", "leave one of them out"));
        }
        (Some(_), true) => PathBuf::from("--wrap"),
        (None, true) => PathBuf::from("-"),
        (None, false) => PathBuf::from(line.rest.remove(0)),
    };
    let text = match wrap {
        Some(command) => {
            let own = line.options.iter().any(|d| d.name == "job-name");
            let name = if own { "" } else { "#SBATCH --job-name=wrap\n" };
            format!("#!/bin/sh\n{name}# Made by sbatch --wrap.\n\n{command}\n").into_bytes()
        }
        None => read(&file)?,
    };
    let document = if line.options.is_empty() && line.rest.is_empty() {
        converted(&file, text)?
    } else {
        let shown = file.display();
        let text = Some(text).filter(|t| sbatch::is_script(t)).and_then(|t| String::from_utf8(t).ok());
        let text = text.ok_or_else(|| {
            let hint = "put into the job file what it needs: docs/reference/spec.md";
            Failure::usage(
                format!("{shown}: options and arguments are for scripts, which begin with #!"),
                hint,
            )
        })?;
        let (text, first) = line.into_script(&text).map_err(|e| Failure::usage(e, "give it in one line"))?;
        let said = |mut all: Vec<String>| {
            for n in 0..line.options.len() {
                let at = format!("line {}: ", first + n);
                all.iter_mut()
                    .filter(|t| t.starts_with(&at))
                    .for_each(|t| *t = t.replacen(&at, "command line: ", 1));
            }
            all
        };
        let folder = std::env::current_dir().map_err(|e| Failure::Io(e.to_string()))?;
        let made = sbatch::convert(&text, &folder);
        let mut made = finished(&file, made.map_err(&said).map(|m| (m.document, said(m.notes))))?;
        if let Some(run) = made.get_mut("run").and_then(Value::as_array_mut) {
            run.extend(line.rest.iter().map(|a| json!(a)));
        }
        made.to_string().into_bytes()
    };
    send(asking, document, After { key: None, dry_run: false, wait, follow: false }).await
}

/// `starling run -- CMD…`
pub async fn run(asking: &Asking, args: RunArgs) -> CommandResult {
    let document = document(&args).to_string().into_bytes();
    let after = After { key: args.key, dry_run: args.dry_run, wait: args.wait, follow: args.follow };
    send(asking, document, after).await
}

/// An sbatch file, a Kubernetes Job or a SkyPilot task as a job document; a job document as it is. What is carried over
/// in another way, or not at all, is said on standard error.
fn converted(file: &Path, text: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let folder = std::env::current_dir().map_err(|e| Failure::Io(e.to_string()))?;
    let lines = |list: &[Mistake]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (document, notes, wrong) = if sbatch::is_script(&text) {
        let text = std::str::from_utf8(&text)
            .map_err(|e| Failure::usage(format!("{}: {e}", file.display()), "scripts are UTF-8"))?;
        match sbatch::convert(text, &folder) {
            Ok(made) => (made.document, made.notes, Vec::new()),
            Err(wrong) => (Value::Null, Vec::new(), wrong),
        }
    } else {
        match brought::bring(&text, &folder.display().to_string()) {
            None => return Ok(text),
            Some(Ok(made)) => (made.document, lines(&made.notes), Vec::new()),
            Some(Err(refused)) => (Value::Null, lines(&refused.notes), lines(&refused.lines)),
        }
    };
    let made = if wrong.is_empty() {
        Ok((document, notes))
    } else {
        say(file, &notes);
        Err(wrong)
    };
    Ok(finished(file, made)?.to_string().into_bytes())
}

fn say(file: &Path, notes: &[String]) {
    for note in notes {
        eprintln!("starling: {}: {}", file.display(), plain(note));
    }
}

/// The document that was made, with what is to be said of it; or why there is none.
fn finished(file: &Path, made: Result<(Value, Vec<String>), Vec<String>>) -> Result<Value, Failure> {
    let wrong = match made {
        Ok((document, notes)) => {
            say(file, &notes);
            return Ok(document);
        }
        Err(wrong) => wrong,
    };
    let text =
        format!("{}: {} line(s) cannot be carried over; nothing was submitted", file.display(), wrong.len());
    let hint = "take them out, or write a job file: docs/reference/spec.md, docs/reference/bring.md";
    Err(Failure::Lines(text, hint.into(), wrong))
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let fault = |e: std::io::Error| {
        Failure::usage(
            format!("{}: {e}", file.display()),
            "name a job file that can be read, or - for standard input",
        )
    };
    let mut bytes = Vec::new();
    let limit = DOCUMENT_BYTES_MAX as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(fault)?;
    } else {
        std::fs::File::open(file).and_then(|f| f.take(limit).read_to_end(&mut bytes)).map_err(fault)?;
    }
    if bytes.len() > DOCUMENT_BYTES_MAX {
        let text = format!("{} has more than {DOCUMENT_BYTES_MAX} bytes", file.display());
        return Err(Failure::usage(text, "keep files out of the job: put them where it can read them"));
    }
    Ok(bytes)
}

/// The job document of an ad hoc command.
pub fn document(args: &RunArgs) -> Value {
    let mut resources = Map::new();
    let mut job = Map::new();
    fn put(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
        if let Some(value) = value {
            map.insert(key.to_owned(), value);
        }
    }
    fn list(items: &[String]) -> Option<Value> {
        (!items.is_empty()).then(|| json!(items))
    }
    put(&mut resources, "gpus", args.gpus.map(Value::from));
    put(&mut resources, "gpu", list(&args.gpu));
    put(&mut resources, "cpus", args.cpus.clone().map(Value::from));
    put(&mut resources, "memory", args.memory.clone().map(Value::from));
    put(&mut job, "name", Some(args.name.clone().unwrap_or_else(|| name_of(&args.command)).into()));
    put(&mut job, "tenant", args.tenant.clone().map(Value::from));
    put(&mut job, "nodes", args.nodes.map(Value::from));
    let priority = args.priority.as_ref().map(|p| p.parse::<u8>().map_or_else(|_| json!(p), |n| json!(n)));
    put(&mut job, "priority", priority);
    put(&mut job, "image", args.image.clone().map(Value::from));
    put(&mut job, "max_runtime", args.max_runtime.clone().map(Value::from));
    put(&mut job, "retries", args.retries.map(Value::from));
    put(&mut job, "checkpoint", args.checkpoint.as_ref().map(|path| json!({ "path": path })));
    put(&mut job, "placement", list(&args.region).map(|regions| json!({ "regions": regions })));
    put(&mut job, "resources", (!resources.is_empty()).then_some(Value::Object(resources)));
    let env: Map<String, Value> = args.env.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    put(&mut job, "env", (!env.is_empty()).then_some(Value::Object(env)));
    put(&mut job, "run", Some(json!(args.command)));
    Value::Object(job)
}

/// A name from the program's, in the alphabet of names.
fn name_of(command: &[String]) -> String {
    let program = command.first().map(String::as_str).unwrap_or_default();
    let base = program.rsplit('/').next().unwrap_or_default();
    let name: String =
        base.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(64).collect();
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) { name } else { "run".into() }
}

async fn send(asking: &Asking, document: Vec<u8>, after: After) -> CommandResult {
    let kind = if document.first() == Some(&b'{') { "application/json" } else { "application/yaml" };
    let payload = Some((kind, document));
    if after.dry_run {
        let why: WhyDocument = asking.client.send(Method::POST, "/v1/jobs?dry_run=true", payload).await?;
        let code = if why.refused.is_some() { exit::USAGE } else { exit::OK };
        return Ok(Reply::new(&why, jobs::why_text(asking, &why)).with_code(code));
    }
    let mut headers: Vec<_> = after.key.into_iter().map(|key| ("idempotency-key", key)).collect();
    // Whoever submits as part of a trace (a pipeline, another job) has its jobs in that trace.
    headers.extend(std::env::var("TRACEPARENT").ok().filter(|t| t.is_ascii()).map(|t| ("traceparent", t)));
    let taken: SubmitDocument =
        asking.client.json(Method::POST, "/v1/jobs", payload, &headers, SUBMIT_WITHIN).await?;
    let id = taken.id.to_string();
    if after.follow && !asking.json {
        eprintln!("job {id}");
        let args = LogsArgs {
            id: id.clone(),
            follow: true,
            index: None,
            rank: None,
            stream: None,
            tail: None,
            epoch: None,
        };
        logs::logs(asking, args).await?;
    } else if !after.wait && !after.follow {
        return Ok(Reply::new(&taken, text(asking, &taken)));
    }
    jobs::wait(asking, WaitArgs { ids: vec![id], timeout: None }).await
}

fn text(asking: &Asking, taken: &SubmitDocument) -> String {
    let homes: Vec<&str> = taken.homes.iter().map(|h| h.as_str()).collect();
    let verb = if taken.existed { "was there already under this key" } else { "is held by" };
    let head = if taken.existed {
        format!("job {} {verb}\n", asking.style.bold(&taken.id.to_string()))
    } else {
        format!("job {} {verb} {}\n", asking.style.bold(&taken.id.to_string()), homes.join(", "))
    };
    let hints: String = taken.hints.iter().map(|hint| format!("  {hint}\n")).collect();
    head + &asking.style.dim("next:") + "\n" + &hints
}

/// The exit code of a job that has ended.
pub fn code_of(state: crate::model::JobState) -> u8 {
    if state == crate::model::JobState::Succeeded { exit::OK } else { exit::JOB_FAILED }
}
