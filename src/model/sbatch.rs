//! `#SBATCH` lines: what they say, by line and long name. Pure; what is made of them is decided elsewhere.

use super::spec::{Run, WarnSignal};
use crate::base::Span;

/// One option of one `#SBATCH` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// Line, from 1.
    pub line: usize,
    /// Long name without dashes.
    pub name: String,
    /// Its value; empty for a flag.
    pub value: String,
}

/// Short options, their long names, and whether they take a value.
const SHORT: &[(char, &str, bool)] = &[
    ('A', "account", true),
    ('a', "array", true),
    ('B', "extra-node-info", true),
    ('b', "begin", true),
    ('C', "constraint", true),
    ('c', "cpus-per-task", true),
    ('D', "chdir", true),
    ('d', "dependency", true),
    ('e', "error", true),
    ('F', "nodefile", true),
    ('G', "gpus", true),
    ('H', "hold", false),
    ('i', "input", true),
    ('J', "job-name", true),
    ('k', "no-kill", false),
    ('L', "licenses", true),
    ('M', "clusters", true),
    ('m', "distribution", true),
    ('N', "nodes", true),
    ('n', "ntasks", true),
    ('O', "overcommit", false),
    ('o', "output", true),
    ('p', "partition", true),
    ('q', "qos", true),
    ('Q', "quiet", false),
    ('S', "core-spec", true),
    ('s', "oversubscribe", false),
    ('t', "time", true),
    ('v', "verbose", false),
    ('W', "wait", false),
    ('w', "nodelist", true),
    ('x', "exclude", true),
];

/// Long options that are flags, or whose value is given with `=` only.
const FLAGS: &[&str] = &[
    "contiguous",
    "exclusive",
    "hold",
    "ignore-pbs",
    "no-kill",
    "no-requeue",
    "overcommit",
    "oversubscribe",
    "parsable",
    "propagate",
    "quiet",
    "reboot",
    "requeue",
    "spread-job",
    "test-only",
    "use-min-nodes",
    "verbose",
    "wait",
    "get-user-env",
    "nice",
    "share",
];

/// Long options with a value that no short one stands for. A line of a script may have others, for Slurm to judge.
const VALUES: &[&str] = &[
    "acctg-freq",
    "batch",
    "bb",
    "bbf",
    "cluster-constraint",
    "comment",
    "container",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "deadline",
    "delay-boot",
    "export",
    "export-file",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "kill-on-invalid-dep",
    "mail-type",
    "mail-user",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "ntasks-per-socket",
    "open-mode",
    "power",
    "prefer",
    "priority",
    "profile",
    "reservation",
    "signal",
    "sockets-per-node",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time-min",
    "tmp",
    "uid",
    "wait-all-nodes",
    "wckey",
    "wrap",
];

/// What follows `sbatch` on a command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandLine {
    /// Its options, long names; the line is 0.
    pub options: Vec<Directive>,
    /// The script's file and its arguments.
    pub rest: Vec<String>,
}

impl CommandLine {
    /// Reads it as sbatch does: what follows the first word that is no option is the script's own.
    pub fn read(all: &[String]) -> Result<Self, String> {
        let mut at = 0;
        let mut line = Self::default();
        while let Some(word) = all.get(at).filter(|w| w.len() > 1 && w.starts_with('-')) {
            at += 1;
            if word == "--" {
                break;
            }
            let mut one = vec![word.clone()];
            if let Some(long) = word.strip_prefix("--") {
                let name = long.split('=').next().unwrap_or_default();
                let takes = VALUES.contains(&name) || SHORT.iter().any(|(_, n, takes)| *takes && *n == name);
                if !takes && !FLAGS.contains(&name) {
                    return Err(format!("--{name}: not an option of sbatch that is known here"));
                }
                if takes && !long.contains('=') {
                    let value = all.get(at).ok_or(format!("--{name}: its value is missing"))?;
                    at += 1;
                    one = vec![format!("--{name}={value}")];
                }
            } else if SHORT
                .iter()
                .any(|(s, _, takes)| *takes && word.get(1..) == Some(s.encode_utf8(&mut [0; 4])))
            {
                one.push(all.get(at).ok_or(format!("{word}: its value is missing"))?.clone());
                at += 1;
            }
            let mut unread = Vec::new();
            options(0, &one, &mut line.options, &mut unread);
            if let Some((_, what)) = unread.first() {
                return Err(format!("{what}: not an option of sbatch"));
            }
        }
        line.rest = all.get(at..).unwrap_or_default().to_vec();
        Ok(line)
    }

    /// Takes an option out; its value, where it was given.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let value = self.options.iter().rev().find(|d| d.name == name).map(|d| d.value.clone());
        self.options.retain(|d| d.name != name);
        value
    }

    /// The script with the options as lines of their own behind its own, so that they win, as sbatch has it. Also the
    /// first of those lines.
    pub fn into_script(&self, script: &str) -> Result<(String, usize), String> {
        let header = |l: &str| l.trim_start().is_empty() || l.trim_start().starts_with('#');
        let head = script.lines().take_while(|l| header(l)).count();
        let mut lines: Vec<String> = script.lines().take(head).map(str::to_owned).collect();
        for d in &self.options {
            if d.value.contains(['\n', '\r', '\0']) {
                return Err(format!("--{}: its value has more than one line", d.name));
            }
            let plain = |c: char| c.is_alphanumeric() || "._-/:,=%@+".contains(c);
            let value: String =
                d.value.chars().flat_map(|c| (!plain(c)).then_some('\\').into_iter().chain([c])).collect();
            let equals = if FLAGS.contains(&d.name.as_str()) && d.value.is_empty() { "" } else { "=" };
            lines.push(format!("#SBATCH --{}{equals}{value}", d.name));
        }
        lines.extend(script.lines().skip(head).map(str::to_owned));
        Ok((lines.join("\n") + "\n", head + 1))
    }
}

/// Options of `#SBATCH` lines in order, as sbatch reads them: up to the first line that is no comment.
/// The second list holds what could not be read, with its line.
pub fn directives(script: &str) -> (Vec<Directive>, Vec<(usize, String)>) {
    let (mut found, mut unread) = (Vec::new(), Vec::new());
    for (at, text) in script.lines().enumerate() {
        let line = at + 1;
        let trimmed = text.trim_start();
        if trimmed.is_empty() {
            continue;
        }
        if !trimmed.starts_with('#') {
            break;
        }
        let Some(rest) = trimmed.strip_prefix("#SBATCH") else { continue };
        if !rest.starts_with([' ', '\t']) {
            continue;
        }
        match words(rest) {
            Some(all) => options(line, &all, &mut found, &mut unread),
            None => unread.push((line, format!("a quote is not closed: {}", rest.trim()))),
        }
    }
    (found, unread)
}

/// The script of a job that brings `#SBATCH` lines.
pub fn batch_script(run: &Run) -> Option<&str> {
    let text = match run {
        Run::Script(text) => text,
        Run::Argv(argv) => argv.get(2).filter(|_| argv.get(1).is_some_and(|a| a == "-c"))?,
        Run::Image => return None,
    };
    (!directives(text).0.is_empty()).then_some(text.as_str())
}

/// What `--signal` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalWish {
    /// The signal.
    pub signal: WarnSignal,
    /// So long before the time limit; a minute where it does not say.
    pub before: Span,
    /// For the shell of the script alone, else for all that it started.
    pub shell: bool,
    /// Also for a reservation of Slurm's.
    pub reservation: bool,
}

/// `[R][B]:SIGNAL[@SECONDS]`. None where it is none of the signals that a guard passes on.
pub fn signal(text: &str) -> Option<SignalWish> {
    let (flags, rest) = text.split_once(':').unwrap_or(("", text));
    let flags = flags.to_ascii_uppercase();
    if flags.chars().any(|c| !"RB".contains(c)) {
        return None;
    }
    let (name, seconds) = rest.split_once('@').unwrap_or((rest, "60"));
    // Slurm's own bound.
    let seconds = seconds.parse::<u64>().ok().filter(|s| *s <= 65_535)?;
    Some(SignalWish {
        signal: WarnSignal::read(name)?,
        before: Span::secs(seconds),
        shell: flags.contains('B'),
        reservation: flags.contains('R'),
    })
}

/// The last `--signal` of a script.
pub fn wanted_signal(script: &str) -> Option<SignalWish> {
    let all = directives(script).0;
    all.iter().rev().find(|d| d.name == "signal").and_then(|d| signal(&d.value))
}

/// Splits at blanks, with quotes, up to a comment.
fn words(text: &str) -> Option<Vec<String>> {
    let (mut all, mut word, mut quote, mut begun) = (Vec::new(), String::new(), None, false);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.push(c),
            (None, '"' | '\'') => (quote, begun) = (Some(c), true),
            (None, '\\') => {
                begun = true;
                word.extend(chars.next());
            }
            (None, '#') if !begun => break,
            (None, c) if c.is_whitespace() => {
                if begun {
                    all.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (None, c) => {
                begun = true;
                word.push(c);
            }
        }
    }
    if begun {
        all.push(word);
    }
    quote.is_none().then_some(all)
}

fn options(line: usize, words: &[String], found: &mut Vec<Directive>, unread: &mut Vec<(usize, String)>) {
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let mut push = |name: &str, value: String| {
            found.push(Directive { line, name: name.to_owned(), value });
        };
        if let Some(long) = word.strip_prefix("--") {
            match long.split_once('=') {
                Some((name, value)) => push(name, value.to_owned()),
                None if FLAGS.contains(&long) => push(long, String::new()),
                None => match words.next_if(|w| !w.starts_with("--")) {
                    Some(value) => push(long, value.clone()),
                    None => push(long, String::new()),
                },
            }
            continue;
        }
        let mut short = word.strip_prefix('-').unwrap_or_default().chars();
        let known = short.next().and_then(|c| SHORT.iter().find(|(s, ..)| *s == c));
        let Some((_, name, takes)) = known else {
            unread.push((line, word.clone()));
            continue;
        };
        let rest: String = short.collect();
        match (takes, rest.is_empty()) {
            (false, _) => push(name, String::new()),
            (true, false) => push(name, rest.trim_start_matches('=').to_owned()),
            (true, true) => match words.next() {
                Some(value) => push(name, value.clone()),
                None => unread.push((line, word.clone())),
            },
        }
    }
}

/// Seconds of Slurm's time: `minutes`, `m:s`, `h:m:s`, `d-h`, `d-h:m`, `d-h:m:s`. None is no limit or not a time.
pub fn seconds(text: &str) -> Option<u64> {
    let (days, rest) = match text.trim().split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
        None => (None, text.trim()),
    };
    let parts: Vec<u64> = rest.split(':').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    let total = match (days, parts.as_slice()) {
        (None, [m]) => m.checked_mul(60)?,
        (None, [m, s]) => m.checked_mul(60)?.checked_add(*s)?,
        (_, [h, m, s]) => h.checked_mul(3_600)?.checked_add(m.checked_mul(60)?)?.checked_add(*s)?,
        (Some(_), [h]) => h.checked_mul(3_600)?,
        (Some(_), [h, m]) => h.checked_mul(3_600)?.checked_add(m.checked_mul(60)?)?,
        _ => return None,
    };
    total.checked_add(days.unwrap_or(0).checked_mul(86_400)?).filter(|s| *s > 0)
}

/// Slurm's form of a time, `minutes:seconds`, never less than given.
pub fn time_text(seconds: u64) -> String {
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(script: &str) -> Vec<(usize, String, String)> {
        directives(script).0.into_iter().map(|d| (d.line, d.name, d.value)).collect()
    }
    fn own(all: &[(usize, &str, &str)]) -> Vec<(usize, String, String)> {
        all.iter().map(|(l, n, v)| (*l, (*n).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn lines_are_read_as_sbatch_reads_them() {
        let script = "#!/bin/bash\n#SBATCH -N 2 --gres=gpu:h100:4\n# a comment\n#SBATCH --job-name \"my job\" # why\n\
                      \n#SBATCH -c8 -t 1-2:30\n##SBATCH --nodes=9\n#SBATCHX -N 7\n#SBATCH --exclusive --requeue\necho hi\n#SBATCH -N 5\n";
        assert_eq!(
            names(script),
            own(&[
                (2, "nodes", "2"),
                (2, "gres", "gpu:h100:4"),
                (4, "job-name", "my job"),
                (6, "cpus-per-task", "8"),
                (6, "time", "1-2:30"),
                (9, "exclusive", ""),
                (9, "requeue", ""),
            ])
        );
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        let (found, unread) = directives("#!/bin/sh\n#SBATCH -Z 3\n#SBATCH --name=\"x\n#SBATCH -N\n");
        assert!(found.is_empty(), "{found:?}");
        let lines: Vec<usize> = unread.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 2, 3, 4]);
    }

    #[test]
    fn a_command_line_is_read_as_sbatch_reads_it() {
        let read = |text: &str| {
            let all: Vec<String> = text.split(' ').map(str::to_owned).collect();
            CommandLine::read(&all)
        };
        let line = read("-N 2 --gres gpu:4 -t10 --exclusive --mem=4G f.sh --wait 7").expect("read");
        let options: Vec<_> = line.options.iter().map(|d| (d.name.as_str(), d.value.as_str())).collect();
        let wanted = [("nodes", "2"), ("gres", "gpu:4"), ("time", "10"), ("exclusive", ""), ("mem", "4G")];
        assert_eq!(options, wanted);
        assert_eq!(line.rest, ["f.sh", "--wait", "7"], "what follows the file is the script's");
        for (bad, named) in [("--nodez 2 f", "--nodez"), ("-Z f", "-Z"), ("-N", "-N"), ("--mem", "--mem")] {
            let why = read(bad).expect_err(bad);
            assert!(why.contains(named), "{why}");
        }
        let script = "#!/bin/sh\n#SBATCH -N 1\n\ntrue\n#SBATCH -N 9\n";
        let mut line = line;
        line.options.push(Directive { line: 0, name: "comment".into(), value: "it's \"a # b\" c\\d".into() });
        assert_eq!(line.take("exclusive"), Some(String::new()));
        let (made, first) = line.into_script(script).expect("made");
        assert!(made.ends_with("\ntrue\n#SBATCH -N 9\n") && first == 4, "{made}");
        let (found, unread) = directives(&made);
        assert!(unread.is_empty(), "{unread:?}");
        assert_eq!(found.iter().rfind(|d| d.name == "nodes").map(|d| d.value.as_str()), Some("2"));
        assert_eq!(found.last().map(|d| d.value.as_str()), Some("it's \"a # b\" c\\d"));
    }

    #[test]
    fn signals_and_when() {
        let read =
            |text| signal(text).map(|w| (w.signal, w.before.as_millis() / 1_000, w.shell, w.reservation));
        assert_eq!(read("USR1"), Some((WarnSignal::Usr1, 60, false, false)));
        assert_eq!(read("B:SIGusr2@300"), Some((WarnSignal::Usr2, 300, true, false)));
        assert_eq!(read("RB:10@5"), Some((WarnSignal::Usr1, 5, true, true)));
        for bad in ["", "KILL", "9@10", "X:USR1", "USR1@x", "USR1@99999", "USR1@-1"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        let script = "#!/bin/sh\n#SBATCH --signal=USR1\n#SBATCH --signal B:TERM@9\ntrue\n";
        assert_eq!(wanted_signal(script).map(|w| w.signal), Some(WarnSignal::Term), "the last one counts");
    }

    #[test]
    fn times() {
        for (text, wanted) in [
            ("30", 1_800),
            ("1:30", 90),
            ("2:00:00", 7_200),
            ("1-12", 129_600),
            ("1-0:30", 88_200),
            ("2-1:00:05", 176_405),
        ] {
            assert_eq!(seconds(text), Some(wanted), "{text}");
        }
        for bad in ["", "UNLIMITED", "INFINITE", "0", "x:1", "1-", "99999999999999999999"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert_eq!(time_text(90), "1:30");
        assert_eq!(seconds(&time_text(86_399)), Some(86_399));
    }
}
