//! What is an incident, and who is told of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use toml::{Table, Value};

use super::keys::{ALERTS, COMMANDS, WEBHOOKS};
use crate::base::{Bytes, Span};
use crate::model::alert::{AlertKind, AlertsReport, Severity};
use crate::model::input::fill::{memory, span};
use crate::model::input::words::{self, size_text, span_text};
use crate::model::input::{Field, Fields, Mistakes};

/// Longest address of a webhook, bytes.
const URL_BYTES_MAX: usize = 2_048;
/// Arguments of a command.
const ARGUMENTS_MAX: usize = 64;
/// Headers of a webhook.
const HEADERS_MAX: usize = 16;
/// What stands in the place of a secret.
const REDACTED: &str = "REDACTED";

/// Thresholds of alerts. The defaults are those of the rules in `deploy/prometheus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertsConfig {
    /// People are told of an incident that has lasted so long, 0 s to 1 h. Default 30 s.
    pub notify_after: Span,
    /// An incident is over when it was not seen for so long, 1 s to 1 h. Default 10 s.
    pub recover_after: Span,
    /// The next member in line tells people so much later than the one before it, 1 s to 10 min. Default 15 s.
    pub stagger: Span,
    /// How long a kind must hold before it is an incident, where it is not the kind's own.
    pub holds: BTreeMap<AlertKind, Span>,
    /// A contact that was not renewed for so long is an alert, 1 s to 1 h. Default 30 s.
    pub contact_age: Span,
    /// Less free disk than this is an alert. Default 1 GiB.
    pub disk_low: Bytes,
    /// One commit in a hundred that takes longer is an alert, 1 ms to 1 min. Default 500 ms.
    pub commit: Span,
    /// A certificate that ends sooner is an alert, 0 s to 400 days. Default 3 days.
    pub certificate: Span,
    /// Lost packets of a link, thousandths. Default 50.
    pub link_loss_milli: u32,
    /// Use of a link, thousandths. Default 800.
    pub link_use_milli: u32,
    /// One job in twenty waits longer for its placement, 10 ms to 1 day. Default 10 s.
    pub schedule: Span,
    /// One program in twenty starts later after its admission, 10 ms to 1 day. Default 5 min.
    pub start: Span,
    /// Placements lost with their cluster, thousandths. Default 50.
    pub lost_milli: u32,
    /// Use of the GPUs below which it is an alert while claims wait, thousandths. Default 300.
    pub gpus_used_milli: u32,
    /// Use of a tenant's limit, thousandths. Default 900.
    pub quota_milli: u32,
    /// Who is told.
    pub notifiers: Vec<NotifierConfig>,
}

/// One way to tell people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotifierConfig {
    /// Its name. Notifiers of the same name at several peers are one: one of these peers tells.
    pub name: String,
    /// How.
    pub through: Through,
    /// Only what matters as much. Default warning.
    pub severity: Severity,
    /// Only these kinds; empty means all.
    pub kinds: BTreeSet<AlertKind>,
    /// Longest time of one try, 100 ms to 5 min. Default 10 s.
    pub timeout: Span,
}

/// How people are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Through {
    /// HTTP POST of a JSON document.
    Webhook {
        /// `http://` or `https://`.
        url: String,
        /// More headers.
        headers: BTreeMap<String, String>,
        /// Certificates (PEM) that the server's must be signed by; none: those of the system.
        ca: Option<PathBuf>,
    },
    /// A program that reads the document from standard input.
    Command {
        /// Program and arguments.
        run: Vec<String>,
    },
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            notify_after: Span::secs(30),
            recover_after: Span::secs(10),
            stagger: Span::secs(15),
            holds: BTreeMap::new(),
            contact_age: Span::secs(30),
            disk_low: Bytes::gib(1),
            commit: Span::millis(500),
            certificate: Span::secs(3 * 86_400),
            link_loss_milli: 50,
            link_use_milli: 800,
            schedule: Span::secs(10),
            start: Span::secs(300),
            lost_milli: 50,
            gpus_used_milli: 300,
            quota_milli: 900,
            notifiers: Vec::new(),
        }
    }
}

impl AlertsConfig {
    /// How long a kind must hold before it is an incident.
    pub fn holds(&self, kind: AlertKind) -> Span {
        self.holds.get(&kind).copied().unwrap_or_else(|| kind.holds())
    }

    /// Without addresses beyond their host, header values and what commands are given.
    pub(super) fn without_secrets(&self) -> Self {
        let mut out = self.clone();
        for notifier in &mut out.notifiers {
            match &mut notifier.through {
                Through::Webhook { url, headers, .. } => {
                    let (scheme, rest) = url.split_once("://").unwrap_or(("https", ""));
                    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
                    let host = host.rsplit('@').next().unwrap_or_default();
                    *url = format!("{scheme}://{host}/{REDACTED}");
                    headers.values_mut().for_each(|value| *value = REDACTED.into());
                }
                Through::Command { run } => run.iter_mut().skip(1).for_each(|a| *a = REDACTED.into()),
            }
        }
        out
    }
}

const SEVERITIES: [(&str, Severity); 3] =
    [("info", Severity::Info), ("warning", Severity::Warning), ("critical", Severity::Critical)];

pub(super) fn read(c: &mut AlertsConfig, mut t: Fields, m: &mut Mistakes) {
    let (second, hour, day) = (Span::secs(1), Span::secs(3_600), Span::secs(86_400));
    for (key, low, high, place) in [
        ("notify_after", Span::ZERO, hour, &mut c.notify_after),
        ("recover_after", second, hour, &mut c.recover_after),
        ("stagger", second, Span::secs(600), &mut c.stagger),
        ("contact_age", second, hour, &mut c.contact_age),
        ("commit", Span::millis(1), Span::secs(60), &mut c.commit),
        ("certificate", Span::ZERO, day.scale(400, 1), &mut c.certificate),
        ("schedule", Span::millis(10), day, &mut c.schedule),
        ("start", Span::millis(10), day, &mut c.start),
    ] {
        if let Some(value) = t.take(key, m).and_then(|f| span(f, m, low, high)) {
            *place = value;
        }
    }
    for (key, place) in [
        ("link_loss", &mut c.link_loss_milli),
        ("link_use", &mut c.link_use_milli),
        ("lost", &mut c.lost_milli),
        ("gpus_used", &mut c.gpus_used_milli),
        ("quota", &mut c.quota_milli),
    ] {
        let share = t.take(key, m).and_then(|f| f.milli(m, 0..=1_000));
        if let Some(share) = share.and_then(|n| u32::try_from(n).ok()) {
            *place = share;
        }
    }
    if let Some(size) = t.take("disk_low", m).and_then(|f| memory(f, m)) {
        c.disk_low = size;
    }
    for (kind, field) in t.take("for", m).and_then(|f| f.pairs(m, AlertKind::ALL.len())).unwrap_or_default() {
        match AlertKind::named(&kind) {
            None => field.wrong(m, kinds_want()),
            Some(kind) => drop(span(field, m, Span::ZERO, day).map(|s| c.holds.insert(kind, s))),
        }
    }
    let max = AlertsReport::NOTIFIERS_MAX;
    for (key, webhook) in [("webhooks", true), ("commands", false)] {
        for item in t.take(key, m).and_then(|f| f.items(m, max)).unwrap_or_default() {
            let at = Field { path: format!("{}.name", item.path), node: item.node.clone() };
            let Some(notifier) = notifier(item, webhook, m) else { continue };
            if c.notifiers.iter().any(|n| n.name == notifier.name) {
                at.wrong(m, "two notifiers have this name: give each its own");
            } else if c.notifiers.len() == max {
                at.wrong(m, format!("at most {max} notifiers in all"));
            } else {
                c.notifiers.push(notifier);
            }
        }
    }
    t.finish(
        m,
        ALERTS,
        &[("webhook", "write [[alerts.webhooks]]"), ("command", "write [[alerts.commands]]")],
    );
}

fn kinds_want() -> String {
    let all: Vec<&str> = AlertKind::ALL.iter().map(|k| k.as_str()).collect();
    format!("not a kind of alert; they are {}", all.join(", "))
}

fn notifier(item: Field, webhook: bool, m: &mut Mistakes) -> Option<NotifierConfig> {
    let mut t = Fields::of(item, m)?;
    let name =
        t.take("name", m).and_then(|f| f.read(m, words::NAME, |t| words::name(t).then(|| t.to_owned())));
    if name.is_none() && !t.had("name") {
        t.missing(m, "name", "is missing: notifiers of one name at several peers are one");
    }
    let severity = t.take("severity", m).and_then(|f| f.word(m, &SEVERITIES)).unwrap_or(Severity::Warning);
    let mut kinds = BTreeSet::new();
    if let Some(field) = t.take("kinds", m) {
        for kind in field.one_or_many(m, AlertKind::ALL.len()) {
            kinds.extend(kind.read(m, &kinds_want(), AlertKind::named));
        }
    }
    let timeout = t.take("timeout", m).and_then(|f| span(f, m, Span::millis(100), Span::secs(300)));
    let through = if webhook { read_webhook(&mut t, m) } else { read_command(&mut t, m) };
    t.finish(
        m,
        if webhook { WEBHOOKS } else { COMMANDS },
        &[("command", "write run"), ("address", "write url")],
    );
    Some(NotifierConfig {
        name: name?,
        through: through?,
        severity,
        kinds,
        timeout: timeout.unwrap_or(Span::secs(10)),
    })
}

fn read_webhook(t: &mut Fields, m: &mut Mistakes) -> Option<Through> {
    let want = "must be http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH of at most 2048 characters";
    // Whoever knows a webhook's address, or what its headers say, may send to it.
    let secret = |f: Field, m: &mut Mistakes, want: &str, good: &dyn Fn(&str) -> bool| match &f.node.value {
        crate::model::input::Value::Text(text) if good(text) => Some(text.clone()),
        _ => {
            f.wrong_secret(m, want);
            None
        }
    };
    let url = t.take("url", m).and_then(|f| secret(f, m, want, &address));
    if url.is_none() && !t.had("url") {
        t.missing(m, "url", "is missing: where it is sent to");
    }
    let mut headers = BTreeMap::new();
    for (name, field) in t.take("headers", m).and_then(|f| f.pairs(m, HEADERS_MAX)).unwrap_or_default() {
        let good = (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !["host", "content-length", "content-type", "transfer-encoding", "connection"]
                .contains(&name.to_ascii_lowercase().as_str());
        if !good {
            field.wrong_secret(m, "not the name of a header that may be set: letters, digits and '-'");
            continue;
        }
        let good = |t: &str| t.len() <= 2_048 && t.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        if let Some(value) = secret(field, m, "must be printable ASCII of at most 2048 characters", &good) {
            headers.insert(name, value);
        }
    }
    let path = |t: &str| words::absolute(t).then(|| PathBuf::from(t));
    let ca = t.take("ca", m).and_then(|f| f.read(m, "must be an absolute path", path));
    Some(Through::Webhook { url: url?, headers, ca })
}

fn read_command(t: &mut Fields, m: &mut Mistakes) -> Option<Through> {
    let plain = |t: &str| (t.len() <= 4_096 && !t.contains('\0')).then(|| t.to_owned());
    let want = "must be text of at most 4096 bytes";
    let run: Option<Vec<String>> = t.take("run", m).map(|f| {
        let items = f.items(m, ARGUMENTS_MAX).unwrap_or_default();
        items.into_iter().filter_map(|f| f.read(m, want, plain)).collect()
    });
    let shell = t.take("shell", m).and_then(|f| f.read(m, want, plain));
    match (run, shell) {
        (Some(run), None) if run.first().is_some_and(|p| words::absolute(p)) => {
            Some(Through::Command { run })
        }
        (None, Some(line)) => Some(Through::Command { run: vec!["/bin/sh".into(), "-c".into(), line] }),
        (None, None) if t.had("run") || t.had("shell") => None,
        (Some(_), None) => {
            t.missing(m, "run", "must be a list that begins with the absolute path of a program");
            None
        }
        _ => {
            t.missing(
                m,
                "run",
                "give either run, a list of a program and its arguments, or shell, a line for /bin/sh",
            );
            None
        }
    }
}

/// Only what is sent to is looked at here; the name may not resolve yet.
fn address(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) else {
        return false;
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|_| !authority.ends_with(']'));
    text.len() <= URL_BYTES_MAX
        && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>' | b'\\' | b'#'))
        && !authority.is_empty()
        && !authority.contains('@')
        && !authority.starts_with(':')
        && port.is_none_or(|p| p.parse::<u16>().is_ok_and(|p| p > 0))
}

pub(super) fn write(c: &AlertsConfig) -> Table {
    let text = |t: &str| Value::String(t.to_owned());
    let time = |s: Span| Value::String(span_text(s));
    let share = |n: u32| Value::Float(f64::from(n) / 1e3);
    let holds: Table = c.holds.iter().map(|(kind, s)| (kind.as_str().to_owned(), time(*s))).collect();
    let mut out: Table = [
        ("notify_after", time(c.notify_after)),
        ("recover_after", time(c.recover_after)),
        ("stagger", time(c.stagger)),
        ("contact_age", time(c.contact_age)),
        ("disk_low", Value::String(size_text(c.disk_low))),
        ("commit", time(c.commit)),
        ("certificate", time(c.certificate)),
        ("link_loss", share(c.link_loss_milli)),
        ("link_use", share(c.link_use_milli)),
        ("schedule", time(c.schedule)),
        ("start", time(c.start)),
        ("lost", share(c.lost_milli)),
        ("gpus_used", share(c.gpus_used_milli)),
        ("quota", share(c.quota_milli)),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect();
    let (mut webhooks, mut commands) = (Vec::new(), Vec::new());
    for n in &c.notifiers {
        let mut one = Table::new();
        one.insert("name".into(), text(&n.name));
        one.insert("severity".into(), text(n.severity.as_str()));
        one.insert("timeout".into(), time(n.timeout));
        one.insert("kinds".into(), Value::Array(n.kinds.iter().map(|k| text(k.as_str())).collect()));
        match &n.through {
            Through::Webhook { url, headers, ca } => {
                one.insert("url".into(), text(url));
                if let Some(ca) = ca {
                    one.insert("ca".into(), text(&ca.to_string_lossy()));
                }
                let headers: Table = headers.iter().map(|(k, v)| (k.clone(), text(v))).collect();
                one.insert("headers".into(), Value::Table(headers));
                webhooks.push(Value::Table(one));
            }
            Through::Command { run } => {
                one.insert("run".into(), Value::Array(run.iter().map(|a| text(a)).collect()));
                commands.push(Value::Table(one));
            }
        }
    }
    for (key, list) in [("webhooks", webhooks), ("commands", commands)] {
        if !list.is_empty() {
            out.insert(key.into(), Value::Array(list));
        }
    }
    if !holds.is_empty() {
        out.insert("for".into(), Value::Table(holds));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Config;

    const GOOD: &str = "[alerts]\nnotify_after = \"5s\"\nlink_loss = 0.1\n[alerts.for]\ncluster = \"1s\"\nlink = \"30s\"\n\
        [[alerts.webhooks]]\nname = \"ops\"\nurl = \"https://hooks.example.com:8443/T0/secret-path?key=k3y\"\nseverity = \"critical\"\n\
        kinds = [\"cluster\", \"isolated\"]\nheaders = {Authorization = \"Bearer s3cr3t\"}\n\
        [[alerts.commands]]\nname = \"page\"\nrun = [\"/usr/local/bin/page\", \"--key\", \"pa55\"]\n\
        [[alerts.commands]]\nname = \"sh\"\nshell = \"cat > /tmp/x\"\n";

    #[test]
    fn notifiers_are_read_and_written_back() {
        let c = Config::check(GOOD).expect("good");
        assert_eq!(c.alerts.holds(AlertKind::Cluster), Span::secs(1));
        assert_eq!(c.alerts.holds(AlertKind::GpusIdle), Span::secs(1_800));
        assert_eq!((c.alerts.link_loss_milli, c.alerts.notifiers.len()), (100, 3));
        let sh = Through::Command { run: vec!["/bin/sh".into(), "-c".into(), "cat > /tmp/x".into()] };
        assert_eq!(c.alerts.notifiers[2].through, sh);
        assert_eq!(Config::check(&c.to_toml()), Ok(c));
    }

    #[test]
    fn secrets_of_notifiers_are_left_out() {
        let c = Config::check(GOOD).expect("good").without_secrets();
        let text = c.to_toml();
        for secret in ["secret-path", "k3y", "s3cr3t", "pa55", "/tmp/x"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(text.contains("https://hooks.example.com:8443/REDACTED"), "{text}");
        assert_eq!(Config::check(&text), Ok(c), "it is a configuration all the same");
    }

    #[test]
    fn mistakes_of_notifiers_are_named() {
        for (text, part) in [
            ("[alerts]\nlink_loss = 5", "alerts.link_loss"),
            ("[alerts.for]\nmoon = \"1s\"", "not a kind of alert"),
            ("[[alerts.webhooks]]\nurl = \"https://a/\"", "name: is missing"),
            ("[[alerts.webhooks]]\nname = \"a\"", "url: is missing"),
            ("[[alerts.webhooks]]\nname = \"a\"\nurl = \"ftp://a/\"", "must be http://"),
            ("[[alerts.webhooks]]\nname = \"a\"\nurl = \"https://u:p@a/\"", "must be http://"),
            ("[[alerts.webhooks]]\nname = \"a\"\nurl = \"http://a/\"\nheaders = {Host = \"b\"}", "header"),
            ("[[alerts.webhooks]]\nname = \"a\"\nurl = \"http://a/\"\nkinds = \"moon\"", "not a kind"),
            ("[[alerts.commands]]\nname = \"a\"\nrun = [\"page\"]", "absolute path"),
            ("[[alerts.commands]]\nname = \"a\"", "either run"),
            ("[[alerts.commands]]\nname = \"a\"\nrun = [\"/a\"]\nshell = \"b\"", "either run"),
            (
                "[[alerts.commands]]\nname = \"a\"\nrun = [\"/a\"]\n[[alerts.webhooks]]\nname = \"a\"\nurl = \"http://a/\"",
                "two notifiers",
            ),
            ("[alerts]\nwebhook = 1", "write [[alerts.webhooks]]"),
        ] {
            let found: Vec<String> =
                Config::check(text).expect_err(text).iter().map(ToString::to_string).collect();
            assert!(found.iter().any(|f| f.contains(part)), "{text}\nno {part:?} in {found:?}");
        }
    }
}
