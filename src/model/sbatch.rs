//! `#SBATCH` lines: what they say, by line and long name. Pure; what is made of them is decided elsewhere.

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
