//! `simulate model [NAME|all] [--bug NAME|all] [--large] [--trace] [--json]`

use std::process::ExitCode;

use super::{BUGS, Known, MODELS, Report, run, sentence};

/// Runs what the arguments ask for. 0: the models hold, or the bug was found as documented; 1: not so;
/// 2: the arguments are wrong.
pub fn command(args: &[String]) -> ExitCode {
    match ask(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            let bugs: Vec<&str> = BUGS.iter().map(|b| b.name).collect();
            eprintln!("simulate: {why}");
            eprintln!("usage: simulate model [NAME|all] [--bug NAME|all] [--large] [--trace] [--json]");
            eprintln!("models: {}", MODELS.join(" "));
            eprintln!("bugs: {}", bugs.join(" "));
            ExitCode::from(2)
        }
    }
}

struct Asked {
    large: bool,
    trace: bool,
    json: bool,
}

fn ask(args: &[String]) -> Result<bool, String> {
    let mut asked = Asked { large: false, trace: false, json: false };
    let (mut name, mut bug) = (None, None);
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--large" => asked.large = true,
            "--trace" => asked.trace = true,
            "--json" => asked.json = true,
            "--bug" => bug = Some(rest.next().ok_or("--bug wants a name")?.as_str()),
            other if other.starts_with('-') => return Err(format!("{other} is not known")),
            other if name.is_none() => name = Some(other),
            other => return Err(format!("{other:?} is one name too many")),
        }
    }
    if let Some(name) = name.filter(|n| *n != "all" && !MODELS.contains(n)) {
        return Err(format!("there is no model {name:?}"));
    }
    match bug {
        None => Ok(models(name.filter(|n| *n != "all"), &asked)),
        Some("all") => Ok(bugs(BUGS.iter().collect(), name, &asked)),
        Some(bug) => {
            let known = BUGS.iter().find(|b| b.name == bug);
            Ok(bugs(vec![known.ok_or(format!("there is no bug {bug:?}"))?], name, &asked))
        }
    }
}

fn models(name: Option<&str>, asked: &Asked) -> bool {
    let mut holds = true;
    if !asked.json {
        println!(
            "{:<18} {:>12} {:>12} {:>6} {:>9}  outcome",
            "model", "states", "unique", "depth", "seconds"
        );
    }
    for name in MODELS.into_iter().filter(|known| name.is_none_or(|n| n == *known)) {
        let Some(report) = run(name, None, asked.large) else { continue };
        holds &= report.holds();
        if asked.json {
            println!("{}", report.json(None));
            continue;
        }
        let outcome = match (report.holds(), report.violated.first(), report.unreached.first()) {
            (true, _, _) => "holds".to_owned(),
            (_, Some(id), _) => format!("BROKEN {id}: {}", sentence(id)),
            (_, _, Some(what)) => format!("NOT SEEN {what}"),
            _ => "CUT SHORT".to_owned(),
        };
        println!(
            "{:<18} {:>12} {:>12} {:>6} {:>9.2}  {outcome}",
            report.model, report.states, report.unique, report.depth, report.seconds
        );
        tell(&report, asked);
    }
    holds
}

fn bugs(known: Vec<&Known>, name: Option<&str>, asked: &Asked) -> bool {
    let mut found_all = true;
    if !asked.json {
        println!(
            "{:<39} {:<17} {:<8} {:>10} {:>6} {:>9}  found",
            "bug", "model", "breaks", "states", "depth", "seconds"
        );
    }
    for bug in known {
        let name = name.filter(|n| *n != "all").unwrap_or(bug.model);
        let Some(report) = run(name, Some(bug), asked.large) else { continue };
        let found = report.violated.contains(&bug.breaks);
        found_all &= found;
        if asked.json {
            println!("{}", report.json(Some(bug.name)));
            continue;
        }
        println!(
            "{:<39} {:<17} {:<8} {:>10} {:>6} {:>9.2}  {}",
            bug.name,
            report.model,
            bug.breaks,
            report.unique,
            report.trace.len(),
            report.seconds,
            if found { "yes" } else { "NO" }
        );
        tell(&report, asked);
    }
    found_all
}

fn tell(report: &Report, asked: &Asked) {
    if asked.trace {
        for (i, step) in report.trace.iter().enumerate() {
            println!("  {:>3}  {step}", i + 1);
        }
    }
}
