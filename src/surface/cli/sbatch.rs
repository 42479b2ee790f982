//! An sbatch file as a job document. The script goes along as it is; its `#SBATCH` lines are read here for what
//! every cluster must know, and again at a Slurm cluster for what only Slurm understands. What cannot be carried
//! over is named, line by line.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::model::array::ArraySpec;
use crate::model::sbatch::{self, Directive};
use crate::model::spec::WarnSignal;

/// A job document, and what is to be said about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Converted {
    /// The job.
    pub document: Value,
    /// One line each, with the line of the file where it has one.
    pub notes: Vec<String>,
}

/// True if this text is a script and no job document.
pub fn is_script(text: &[u8]) -> bool {
    text.starts_with(b"#!")
}

/// Options that would change what is run, and that Starling has no word for.
const REFUSED: &[(&str, &str)] = &[
    ("begin", "submit it at that time"),
    ("hold", "submit it when it shall run"),
    ("clusters", "name them in a job file: placement.clusters"),
    ("cluster", "name them in a job file: placement.clusters"),
    ("nodefile", "only Slurm clusters have these nodes: give --nodelist"),
    ("test-only", "use starling submit --dry-run"),
];

/// Options that only Slurm understands, and that a job cannot do without.
const NEEDS_SLURM: &[&str] = &[
    "constraint",
    "nodelist",
    "exclude",
    "reservation",
    "licenses",
    "gpus-per-socket",
    "bb",
    "bbf",
    "switches",
];

/// Options that are handled by Starling in its own way, with what it does.
const OWN_WAY: &[(&str, &str)] = &[
    ("output", "its output is kept by Starling: starling logs ID"),
    ("error", "its output is kept by Starling: starling logs ID"),
    ("open-mode", "its output is kept by Starling: starling logs ID"),
    ("input", "it reads nothing from standard input"),
    ("comment", "the comment carries Starling's own tag"),
    ("requeue", "Starling runs it again itself where a cluster is lost; Slurm does not requeue it"),
    (
        "no-requeue",
        "Starling runs it again where a cluster is lost; to forbid it: on_lost_contact: {grace: never}",
    ),
    ("wait", "use starling submit --wait"),
    ("parsable", "use --json"),
    ("quiet", "it means nothing here"),
    ("verbose", "it means nothing here"),
    ("get-user-env", "the login environment is the peer's, not a user's"),
    ("export-file", "give variables with --export=NAME=VALUE"),
    ("kill-on-invalid-dep", "it means nothing here"),
    (
        "nice",
        "at a Slurm cluster it holds among Slurm's own jobs; for the mesh give a priority in a job file",
    ),
    ("uid", "it runs as the peer's user"),
    ("gid", "it runs as the peer's user"),
];

/// Options that are read here.
const READ: &[&str] = &[
    "job-name",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "gres",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "time",
    "chdir",
    "signal",
    "export",
    "array",
    "dependency",
];

struct Asked<'a> {
    by_name: BTreeMap<&'a str, &'a Directive>,
}

impl<'a> Asked<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        self.by_name.get(name).map(|d| d.value.as_str())
    }
    fn number(&self, name: &str, wrong: &mut Vec<String>) -> Option<u64> {
        let directive = self.by_name.get(name)?;
        // `2-4` nodes: the least will do.
        let text = directive.value.split(['-', ':']).next().unwrap_or_default();
        match text.parse() {
            Ok(n) if n > 0 => Some(n),
            _ => {
                wrong.push(format!("line {}: --{name}={}: not a number", directive.line, directive.value));
                None
            }
        }
    }
}

/// Reads an sbatch file that is submitted from `folder`. The error names every line that cannot be carried over
/// and would change what is run.
pub fn convert(text: &str, folder: &Path) -> Result<Converted, Vec<String>> {
    let (directives, unread) = sbatch::directives(text);
    let mut wrong: Vec<String> =
        unread.into_iter().map(|(line, what)| format!("line {line}: cannot be read: {what}")).collect();
    let mut notes = Vec::new();
    let interpreter = interpreter(text).unwrap_or_else(|why| {
        wrong.push(why);
        Vec::new()
    });
    for d in &directives {
        let shown = if d.value.is_empty() { d.name.clone() } else { format!("{}={}", d.name, d.value) };
        let of = |list: &[(&str, &'static str)]| list.iter().find(|(n, _)| *n == d.name).map(|(_, why)| *why);
        if let Some(why) = of(REFUSED) {
            wrong.push(format!("line {}: --{shown} cannot be carried over: {why}", d.line));
        } else if let Some(why) = of(OWN_WAY) {
            notes.push(format!("line {}: --{shown} is not carried over: {why}", d.line));
        } else if NEEDS_SLURM.contains(&d.name.as_str()) {
            notes.push(format!("line {}: --{shown} is Slurm's: the job runs on Slurm clusters only", d.line));
        } else if !READ.contains(&d.name.as_str()) {
            notes.push(format!(
                "line {}: --{shown} holds on Slurm clusters and means nothing elsewhere",
                d.line
            ));
        }
    }
    let asked = Asked { by_name: directives.iter().map(|d| (d.name.as_str(), d)).collect() };
    let document = document(text, folder, interpreter, &asked, &mut notes, &mut wrong);
    if wrong.is_empty() { Ok(Converted { document, notes }) } else { Err(wrong) }
}

/// The program of the first line, as one that takes the script after `-c`.
fn interpreter(text: &str) -> Result<Vec<String>, String> {
    let first = text.lines().next().unwrap_or_default().trim_start_matches("#!").trim();
    let words: Vec<&str> = first.split_whitespace().collect();
    let program = match words.as_slice() {
        [env, rest @ ..] if env.ends_with("/env") => rest.iter().find(|w| !w.starts_with('-')).copied(),
        [program, ..] => Some(*program),
        [] => None,
    };
    let name = program.and_then(|p| p.rsplit('/').next()).unwrap_or_default();
    let taken = ["sh", "bash", "dash", "zsh", "ksh", "python", "python3"];
    if !taken.contains(&name) {
        return Err(format!("line 1: {first}: scripts are run by {}", taken.join(", ")));
    }
    let flags: Vec<&str> = words.iter().copied().filter(|w| w.starts_with('-') && *w != "-S").collect();
    if !flags.is_empty() {
        let flags = flags.join(" ");
        return Err(format!(
            "line 1: {flags}: options of the interpreter are not taken: set them in the script"
        ));
    }
    Ok(vec![program.unwrap_or_default().to_owned()])
}

fn document(
    text: &str,
    folder: &Path,
    mut run: Vec<String>,
    asked: &Asked<'_>,
    notes: &mut Vec<String>,
    wrong: &mut Vec<String>,
) -> Value {
    let mut job = Map::new();
    let name: String = asked
        .text("job-name")
        .unwrap_or("sbatch")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
        .take(64)
        .collect();
    let name = if name.starts_with(|c: char| c.is_ascii_alphanumeric()) { name } else { format!("j{name}") };
    job.insert("name".into(), json!(name));

    let per_node = asked.number("ntasks-per-node", wrong);
    let tasks = asked.number("ntasks", wrong);
    let nodes = asked.number("nodes", wrong);
    let nodes = nodes.unwrap_or_else(|| match (tasks, per_node) {
        (Some(tasks), Some(each)) => tasks.div_ceil(each),
        _ => 1,
    });
    let tasks_per_node = per_node.unwrap_or_else(|| tasks.unwrap_or(nodes).div_ceil(nodes)).max(1);
    let cpus = tasks_per_node.saturating_mul(asked.number("cpus-per-task", wrong).unwrap_or(1));
    job.insert("nodes".into(), json!(nodes));

    let mut resources = Map::new();
    resources.insert("cpus".into(), json!(cpus));
    let gpus = gpus(asked, nodes, tasks_per_node, wrong);
    if let Some((kind, n)) = &gpus {
        resources.insert("gpus".into(), json!(n));
        if let Some(kind) = kind {
            resources.insert("gpu".into(), json!([kind]));
        }
    }
    let gpu_count = gpus.map_or(0, |(_, n)| n);
    let memory = |name: &str, times: u64, wrong: &mut Vec<String>| {
        let d = asked.by_name.get(name)?;
        match crate::backends::slurm::parse::megabytes(&d.value) {
            Some(mb) => Some(mb.saturating_mul(times)),
            None => {
                wrong.push(format!("line {}: --{name}={}: not a size", d.line, d.value));
                None
            }
        }
    };
    let mb = memory("mem", 1, wrong)
        .or_else(|| memory("mem-per-cpu", cpus, wrong))
        .or_else(|| memory("mem-per-gpu", gpu_count, wrong));
    if let Some(mb) = mb.filter(|mb| *mb > 0) {
        resources.insert("memory".into(), json!(format!("{mb}MiB")));
    }
    job.insert("resources".into(), Value::Object(resources));

    if let Some(d) = asked.by_name.get("time") {
        match sbatch::seconds(&d.value) {
            Some(seconds) => {
                job.insert("max_runtime".into(), json!(format!("{seconds}s")));
            }
            None if ["UNLIMITED", "INFINITE", "0"].contains(&d.value.to_ascii_uppercase().as_str()) => {}
            None => wrong.push(format!("line {}: --time={}: not a time", d.line, d.value)),
        }
    }
    let workdir = asked.text("chdir").map_or_else(|| folder.to_owned(), |d| folder.join(d));
    if asked.text("chdir").is_none() {
        notes.push(format!(
            "it starts in {}, which must be there at the cluster (--chdir)",
            workdir.display()
        ));
    }
    job.insert("workdir".into(), json!(workdir.display().to_string()));
    let env = exported(asked, notes);
    if !env.is_empty() {
        job.insert("env".into(), Value::Object(env));
    }
    if let Some(d) = asked.by_name.get("signal") {
        if sbatch::signal(&d.value).is_none() {
            let names: Vec<&str> = WarnSignal::ALL.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            wrong.push(format!(
                "line {}: --signal={}: [B:]NAME[@SECONDS], with a name of {names}",
                d.line, d.value
            ));
        } else if !job.contains_key("max_runtime") {
            notes.push(format!(
                "line {}: --signal={} without --time: before a limit of Slurm's it comes on Slurm clusters only; where \
                 the job is stopped with notice it comes everywhere",
                d.line, d.value
            ));
        }
    }
    if let Some(d) = asked.by_name.get("array") {
        match array(&d.value) {
            Ok(list) => {
                job.insert("array".into(), json!(list));
                notes.push(format!(
                    "line {}: --array={}: its jobs may run at different clusters; SLURM_ARRAY_TASK_ID is the index, \
                     SLURM_ARRAY_JOB_ID the array's id here, a text",
                    d.line, d.value
                ));
            }
            Err(why) => wrong.push(format!("line {}: --array={}: {why}", d.line, d.value)),
        }
    }
    if let Some(d) = asked.by_name.get("dependency") {
        match after(&d.value) {
            Ok(list) => {
                job.insert("after".into(), json!(list));
            }
            Err(why) => wrong.push(format!("line {}: --dependency={}: {why}", d.line, d.value)),
        }
    }
    let steps =
        text.lines().any(|l| !l.trim_start().starts_with('#') && l.split_whitespace().any(|w| w == "srun"));
    let needs = asked.by_name.keys().any(|name| NEEDS_SLURM.contains(name));
    if steps || needs || nodes > 1 {
        job.insert("placement".into(), json!({ "labels": { "scheduler": "slurm" } }));
        if !needs {
            notes.push(
                "it starts steps with srun, or has several nodes: it runs on Slurm clusters only".into(),
            );
        }
    }
    if nodes > 1 {
        job.insert("on_lost_contact".into(), json!({ "grace": "never" }));
        notes.push(
            "its steps on other nodes have no guard: with its cluster out of reach it goes on, and is run again only \
             on your word (on_lost_contact: {grace: never}; starling job ID confirm-lost)"
                .into(),
        );
    }
    run.extend(["-c".to_owned(), text.to_owned(), name]);
    job.insert("run".into(), json!(run));
    Value::Object(job)
}

/// Slurm's list of indices as ours: a number alone is that index there, and how many jobs here.
fn array(text: &str) -> Result<String, String> {
    let (list, most) = text.split_once('%').map_or((text, None), |(list, most)| (list, Some(most)));
    let single = list.parse::<u32>().is_ok();
    let mut ours = if single { format!("{list}-{list}") } else { list.to_owned() };
    // %0 is no limit.
    if let Some(most) = most.filter(|m| m.parse() != Ok(0_u32)) {
        ours = format!("{ours}%{most}");
    }
    ArraySpec::parse(&ours).map(|_| ours)
}

/// `afterok:ID[:ID…][,afterany:ID…]` as the entries of `after`.
fn after(text: &str) -> Result<Vec<Value>, String> {
    if text.contains('?') {
        return Err("? (any of them will do) has no word here: wait for all of them, with commas".into());
    }
    let mut list = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (kind, ids) = part.split_once(':').unwrap_or((part, ""));
        let on = match kind.to_ascii_lowercase().as_str() {
            "afterok" => "ok",
            "afternotok" => "fail",
            "afterany" => "any",
            _ => return Err(format!("{kind}: afterok, afternotok and afterany are taken")),
        };
        for id in ids.split(':') {
            if id.is_empty() || id.contains('+') {
                return Err(format!("{part:?}: name the ids of jobs of this mesh, as sbatch printed them"));
            }
            if id.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
                return Err(format!("{id} is a number of Slurm's: only jobs of this mesh can be waited for"));
            }
            list.push(json!({ "job": id.replace('_', "."), "on": on }));
        }
    }
    if list.is_empty() { Err("names no job".into()) } else { Ok(list) }
}

/// GPUs of one node, and their type.
fn gpus(asked: &Asked<'_>, nodes: u64, tasks: u64, wrong: &mut Vec<String>) -> Option<(Option<String>, u64)> {
    let read = |name: &str, wrong: &mut Vec<String>| {
        let d = asked.by_name.get(name)?;
        let text = if name == "gres" { d.value.clone() } else { format!("gpu:{}", d.value) };
        let found = crate::backends::slurm::parse::gpus_of(&text);
        if found.is_none() && name != "gres" {
            wrong.push(format!("line {}: --{name}={}: not a number of GPUs", d.line, d.value));
        }
        found.map(|(kind, n)| (Some(kind).filter(|k| !k.is_empty()), u64::from(n)))
    };
    read("gres", wrong)
        .or_else(|| read("gpus-per-node", wrong))
        .or_else(|| read("gpus", wrong).map(|(kind, n)| (kind, n.div_ceil(nodes))))
        .or_else(|| read("gpus-per-task", wrong).map(|(kind, n)| (kind, n.saturating_mul(tasks))))
        .filter(|(_, n)| *n > 0)
}

/// `--export=NAME=VALUE,NAME`: the rest of this shell's environment stays here.
fn exported(asked: &Asked<'_>, notes: &mut Vec<String>) -> Map<String, Value> {
    let mut env = Map::new();
    let Some(d) = asked.by_name.get("export") else {
        notes.push("the environment of this shell is not sent along: --export=NAME sends a variable".into());
        return env;
    };
    for item in d.value.split(',') {
        match item.split_once('=') {
            Some((name, value)) => {
                env.insert(name.to_owned(), json!(value));
            }
            None if ["ALL", "NONE", "NIL"].contains(&item) => {
                if item == "ALL" {
                    notes.push(format!(
                        "line {}: --export=ALL: only variables that are named are sent",
                        d.line
                    ));
                }
            }
            None => match std::env::var(item) {
                Ok(value) => {
                    env.insert(item.to_owned(), json!(value));
                }
                Err(_) => notes.push(format!("line {}: --export={item}: not set here", d.line)),
            },
        }
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec_input::parse_spec;

    #[test]
    fn a_file_becomes_a_job() {
        let text = "#!/bin/bash\n#SBATCH -J \"my train\" -N 2 --ntasks-per-node=4 -c 2\n#SBATCH --gres=gpu:h100:4 --mem=64G\n\
                    #SBATCH --time=1-00:00:00 -p big --constraint=ib\n#SBATCH -o out.%j --export=A=1,B=2\nsrun ./train\n";
        let made = convert(text, Path::new("/home/u")).expect("carried over");
        let spec = parse_spec(made.document.to_string().as_bytes()).expect("a job").spec;
        assert_eq!((spec.name.as_str(), spec.nodes, spec.resources.gpus), ("my-train", 2, 4));
        assert_eq!((spec.resources.cpus.0, spec.resources.memory), (8_000, crate::base::Bytes::gib(64)));
        assert_eq!(spec.max_runtime, Some(crate::base::Span::secs(86_400)));
        assert_eq!(spec.on_lost_contact.grace, None);
        assert_eq!(spec.placement.labels.get("scheduler").map(String::as_str), Some("slurm"));
        assert_eq!((spec.env["A"].as_str(), spec.workdir.as_deref()), ("1", Some("/home/u")));
        let crate::model::spec::Run::Argv(run) = &spec.run else { panic!("{:?}", spec.run) };
        assert_eq!((run[0].as_str(), run[2].as_str()), ("/bin/bash", text), "the script as it is");
        for (line, what) in [(4, "partition"), (4, "constraint"), (5, "output")] {
            let named = made.notes.iter().any(|n| n.starts_with(&format!("line {line}: --{what}")));
            assert!(named, "{what}: {:?}", made.notes);
        }
    }

    #[test]
    fn a_small_one_runs_anywhere() {
        let made = convert("#!/bin/sh\n#SBATCH --gpus=2\n./train\n", Path::new("/w")).expect("carried over");
        let spec = parse_spec(made.document.to_string().as_bytes()).expect("a job").spec;
        assert!(spec.placement.labels.is_empty() && spec.on_lost_contact.grace.is_some());
        assert_eq!(spec.resources.gpus, 2);
    }

    #[test]
    fn arrays_and_dependencies_are_carried_over() {
        let made = |line: &str| {
            let text = format!("#!/bin/sh\n#SBATCH {line}\ntrue\n");
            convert(&text, Path::new("/w")).map(|made| {
                parse_spec(made.document.to_string().as_bytes()).unwrap_or_else(|e| panic!("{line}: {e:?}"))
            })
        };
        for (line, wanted, at_once) in [
            ("--array=1-9:2%3", vec![1, 3, 5, 7, 9], 3),
            ("-a 5", vec![5], 1_000),
            ("--array=0,7%0", vec![0, 7], 1_000),
        ] {
            let array = made(line).expect("carried over").spec.array.expect("an array");
            let indices: Vec<u32> = (0..array.len()).filter_map(|rank| array.index(rank)).collect();
            assert_eq!((indices, array.at_once), (wanted, at_once), "{line}");
        }
        use crate::model::array::On;
        assert_eq!(
            made("-d afterok:abcd:abce_7,afternotok:abcf,afterany:abcg").expect("carried over").after,
            [("abcd", On::Ok), ("abce.7", On::Ok), ("abcf", On::Fail), ("abcg", On::Any)]
                .map(|(id, on)| (id.to_owned(), on))
        );
        for (line, part) in [
            ("--array=9-1", "line 2: --array=9-1"),
            ("--array=0-99999", "an array has 10000 at most"),
            ("-d afterok:7", "a number of Slurm's"),
            ("-d singleton", "singleton: afterok"),
            ("-d afterok:abcd?afterok:abce", "any of them"),
            ("-d after:abcd+5", "after: afterok"),
            ("-d afterok", "name the ids"),
        ] {
            let wrong = made(line).expect_err("refused");
            assert!(wrong.iter().any(|w| w.contains(part)), "{line}: {wrong:?}");
        }
    }

    #[test]
    fn what_would_change_it_is_refused_line_by_line() {
        let text =
            "#!/bin/bash\n#SBATCH --begin=now+1\n#SBATCH -d afterok:7 --time=soon\n#SBATCH -N x -Z\ntrue\n";
        let wrong = convert(text, Path::new("/w")).expect_err("refused");
        for part in [
            "line 2: --begin=now+1",
            "line 3: --dependency",
            "line 3: --time=soon",
            "line 4: --nodes=x",
            "-Z",
        ] {
            assert!(wrong.iter().any(|w| w.contains(part)), "{part}: {wrong:?}");
        }
        assert!(convert("#!/usr/bin/perl\nprint 1\n", Path::new("/w")).is_err());
        assert!(convert("#!/bin/bash -l\ntrue\n", Path::new("/w")).expect_err("refused")[0].contains("-l"));
        assert!(convert("#!/usr/bin/env python3\nprint(1)\n", Path::new("/w")).is_ok());
    }
}
