//! The table `kubernetes`: what its backend is told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use toml::{Table, Value as Toml};

use super::keys::KUBERNETES;
use super::read::{address, path, set};
use crate::base::Span;
use crate::model::input::fill::{labels, span};
use crate::model::input::words::span_text;
use crate::model::input::{Fields, Mistakes};
use crate::model::spec::limits::LIST_MAX;

/// The Kubernetes backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesBackendConfig {
    /// Kubeconfig file. Default none: KUBECONFIG, `~/.kube/config`, else the account of this pod.
    pub kubeconfig: Option<PathBuf>,
    /// Its context. Default none: the current one.
    pub context: Option<String>,
    /// Where jobs run. Default none: the context's, or this pod's.
    pub namespace: Option<String>,
    /// Image of jobs that name none. Default none: such jobs are not started here.
    pub image: Option<String>,
    /// Image whose entry point is the `starling` binary. Default none: no guard stands in pods.
    pub guard_image: Option<String>,
    /// Kueue's local queue. Default none.
    pub queue: Option<String>,
    /// PodGroups of Volcano or the coscheduling plugin for gangs, where they are. Default true.
    pub pod_groups: bool,
    /// `schedulerName` of pods. Default none: Kubernetes' (Volcano's for its gangs).
    pub scheduler: Option<String>,
    /// `priorityClassName` of pods. Default none.
    pub priority_class: Option<String>,
    /// `runtimeClassName` of pods. Default none.
    pub runtime_class: Option<String>,
    /// `serviceAccountName` of pods. Default none: they get no token.
    pub service_account: Option<String>,
    /// Secrets for their images, at most 64. Default none.
    pub pull_secrets: Vec<String>,
    /// Only nodes with these labels. Default none: all.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that pods tolerate, `key` or `key=value`, with `:effect` or without. GPU taints always are.
    pub tolerations: Vec<String>,
    /// Models of product labels or resources that do not say enough.
    pub gpu_names: BTreeMap<String, String>,
    /// Between two looks, 200 ms to 10 min. Default 2 s.
    pub interval: Span,
    /// An attempt that Kubernetes leaves waiting for longer is given back, 1 s to 30 days. Default 1 h.
    pub pending_max: Span,
    /// An image may take so long, 1 s to 30 days. Default 30 min.
    pub pull_max: Span,
    /// TCP address at which guards are heard. Default `0.0.0.0:0`, a free port, the same again where it can be had.
    pub guard_listen: SocketAddr,
    /// Name or address at which pods reach this peer. Default none: this pod's address, else the host name.
    pub guard_host: Option<String>,
}

impl Default for KubernetesBackendConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: None,
            image: None,
            guard_image: None,
            queue: None,
            pod_groups: true,
            scheduler: None,
            priority_class: None,
            runtime_class: None,
            service_account: None,
            pull_secrets: Vec::new(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            gpu_names: BTreeMap::new(),
            interval: Span::secs(2),
            pending_max: Span::secs(3_600),
            pull_max: Span::secs(1_800),
            guard_listen: super::any(0),
            guard_host: None,
        }
    }
}

const WORD: &str = "must be 1 to 255 characters without blanks";
const NAME: &str = "must be a name of Kubernetes: 1 to 253 characters of a-z, 0-9, '-' and '.'";

fn word(text: &str) -> Option<String> {
    let good = (1..=255).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    good.then(|| text.to_owned())
}

fn name(text: &str) -> Option<String> {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let good = text.len() <= 253 && edge(text.chars().next()) && edge(text.chars().last());
    (good && text.bytes().all(inner)).then(|| text.to_owned())
}

pub(super) fn read(k: &mut KubernetesBackendConfig, mut t: Fields, m: &mut Mistakes) {
    k.kubeconfig = t.take("kubeconfig", m).and_then(|f| path(f, m));
    for (key, place) in [
        ("context", &mut k.context),
        ("image", &mut k.image),
        ("guard_image", &mut k.guard_image),
        ("guard_host", &mut k.guard_host),
    ] {
        *place = t.take(key, m).and_then(|f| f.read(m, WORD, word));
    }
    for (key, place) in [
        ("namespace", &mut k.namespace),
        ("queue", &mut k.queue),
        ("scheduler", &mut k.scheduler),
        ("priority_class", &mut k.priority_class),
        ("runtime_class", &mut k.runtime_class),
        ("service_account", &mut k.service_account),
    ] {
        *place = t.take(key, m).and_then(|f| f.read(m, NAME, name));
    }
    set(&mut k.pod_groups, t.take("pod_groups", m).and_then(|f| f.flag(m)));
    if let Some(field) = t.take("pull_secrets", m) {
        let items = field.one_or_many(m, LIST_MAX).into_iter();
        k.pull_secrets = items.filter_map(|f| f.read(m, NAME, name)).collect();
    }
    if let Some(field) = t.take("tolerations", m) {
        let want = "must be key or key=value, with :NoSchedule or :NoExecute behind it or without";
        let toleration = |t: &str| {
            let effect = t.rsplit_once(':').map_or("NoSchedule", |(_, e)| e);
            let good = matches!(effect, "NoSchedule" | "NoExecute") && !t.starts_with(['=', ':']);
            word(t).filter(|_| good)
        };
        let items = field.one_or_many(m, LIST_MAX).into_iter();
        k.tolerations = items.filter_map(|f| f.read(m, want, toleration)).collect();
    }
    set(&mut k.node_selector, t.take("node_selector", m).map(|f| labels(f, m)));
    set(&mut k.gpu_names, t.take("gpu_names", m).map(|f| labels(f, m)));
    let month = Span::secs(30 * 86_400);
    for (key, place, low, high) in [
        ("interval", &mut k.interval, Span::millis(200), Span::secs(600)),
        ("pending_max", &mut k.pending_max, Span::secs(1), month),
        ("pull_max", &mut k.pull_max, Span::secs(1), month),
    ] {
        set(place, t.take(key, m).and_then(|f| span(f, m, low, high)));
    }
    set(&mut k.guard_listen, t.take("guard_listen", m).and_then(|f| address(f, m)));
    t.finish(m, KUBERNETES, &[("selector", "write node_selector"), ("kueue", "write queue")]);
}

pub(super) fn write(k: &KubernetesBackendConfig) -> Table {
    let text = |t: &String| Toml::String(t.clone());
    let list = |all: &Vec<String>| (!all.is_empty()).then(|| Toml::Array(all.iter().map(text).collect()));
    let pairs = |all: &BTreeMap<String, String>| {
        let table: Table = all.iter().map(|(k, v)| (k.clone(), text(v))).collect();
        (!table.is_empty()).then_some(Toml::Table(table))
    };
    let span = |s: Span| Some(Toml::String(span_text(s)));
    let all = [
        ("kubeconfig", k.kubeconfig.as_ref().map(|p| Toml::String(p.to_string_lossy().into_owned()))),
        ("context", k.context.as_ref().map(text)),
        ("namespace", k.namespace.as_ref().map(text)),
        ("image", k.image.as_ref().map(text)),
        ("guard_image", k.guard_image.as_ref().map(text)),
        ("queue", k.queue.as_ref().map(text)),
        ("pod_groups", Some(Toml::Boolean(k.pod_groups))),
        ("scheduler", k.scheduler.as_ref().map(text)),
        ("priority_class", k.priority_class.as_ref().map(text)),
        ("runtime_class", k.runtime_class.as_ref().map(text)),
        ("service_account", k.service_account.as_ref().map(text)),
        ("pull_secrets", list(&k.pull_secrets)),
        ("node_selector", pairs(&k.node_selector)),
        ("tolerations", list(&k.tolerations)),
        ("gpu_names", pairs(&k.gpu_names)),
        ("interval", span(k.interval)),
        ("pending_max", span(k.pending_max)),
        ("pull_max", span(k.pull_max)),
        ("guard_listen", Some(Toml::String(k.guard_listen.to_string()))),
        ("guard_host", k.guard_host.as_ref().map(text)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}
