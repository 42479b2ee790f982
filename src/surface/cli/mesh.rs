//! `clusters`, `links`, `view`, `peer`, `token`, `member`, `drain`.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use serde_json::{Value, json};

use super::args::{ClustersArgs, MemberCommand, TokenCommand};
use super::output::{Style, Table, brief, plain};
use super::{Asking, CommandResult, Reply};
use crate::base::{Bytes, PeerName};
use crate::surface::documents::*;

/// `starling clusters [NAME]`
pub async fn clusters(asking: &Asking, args: ClustersArgs) -> CommandResult {
    if let Some(name) = args.name {
        if args.report {
            let report: Value = asking.client.get(&format!("/v1/clusters/{name}?report=true")).await?;
            return Ok(Reply::new(&report, format!("{report:#}\n")));
        }
        let cluster: ClusterDocument = asking.client.get(&format!("/v1/clusters/{name}")).await?;
        return Ok(Reply::new(&cluster, cluster_text(asking.style, &cluster)));
    }
    let list: ClusterList = asking.client.get("/v1/clusters").await?;
    let style = asking.style;
    let mut table = Table::new(
        style,
        &["CLUSTER", "STATE", "REGION", "GPUS FREE/ALL", "RUNS", "WAITS", "USD/GPUH", "BACKEND", "HEARD"],
    );
    for c in &list.clusters {
        table.row([
            c.name.to_string(),
            style.state(state_of(c)),
            plain(&c.region),
            gpus_text(&c.gpus, c.declared),
            c.running.to_string(),
            c.queued.to_string(),
            format!("{:.2}", c.price_usd),
            if c.witness { "witness".into() } else { plain(&c.backend) },
            c.age_ms.map_or_else(|| "never".into(), |ms| format!("{} ago", brief(ms))),
        ]);
    }
    let mut text = table.render();
    for c in &list.clusters {
        text.push_str(
            &c.disk_note.as_ref().map_or_else(String::new, |n| format!("{}: {}\n", c.name, plain(n))),
        );
    }
    if list.isolated {
        text.push_str("this peer reaches no other: what is said of them is old\n");
    }
    Ok(Reply::new(&list, text))
}

fn state_of(c: &ClusterDocument) -> &str {
    if c.liveness == "alive" && c.draining { "draining" } else { &c.liveness }
}

fn gpus_text(gpus: &BTreeMap<String, GpuCount>, declared: bool) -> String {
    let mark = if declared { " (virtual)" } else { "" };
    let reserved = |n: u64| if n == 0 { String::new() } else { format!(" ({n} reserved)") };
    let part = |(model, n): (&String, &GpuCount)| {
        format!("{}/{} {}{}", n.free, n.total, plain(model), reserved(n.reserved))
    };
    let parts: Vec<String> = gpus.iter().map(part).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") + mark }
}

fn cluster_text(style: Style, c: &ClusterDocument) -> String {
    let labels: Vec<String> = c.labels.iter().map(|(k, v)| format!("{}={}", plain(k), plain(v))).collect();
    let mut rows = vec![
        ("cluster", c.name.to_string()),
        ("state", style.state(state_of(c))),
        ("backend", plain(&c.backend)),
        ("place", plain(&format!("{} {}", c.region, c.zone))),
        ("labels", labels.join(" ")),
        ("GPUs", gpus_text(&c.gpus, c.declared)),
        ("free", format!("{} CPU, {} memory", c.cpus_free_milli as f64 / 1e3, Bytes(c.memory_free_bytes))),
        ("work", format!("{} run, {} wait for {} GPUs", c.running, c.queued, c.queued_gpus)),
        ("price", format!("{:.3} USD per GPU hour, PUE {:.2}", c.price_usd, c.pue)),
        ("containers", c.container_runtime.as_deref().map_or_else(|| "no runtime".into(), plain)),
        ("heard", c.age_ms.map_or_else(|| "never".into(), |ms| format!("{} ago", brief(ms)))),
    ];
    rows.extend(c.disk_note.as_ref().map(|note| ("disk", plain(note))));
    rows.extend(c.closed.as_ref().map(|why| ("closed", plain(why))));
    let mut text: String =
        rows.iter().map(|(k, v)| format!("{} {}\n", style.dim(&format!("{k:<11}")), v.trim_end())).collect();
    let mut table = Table::new(style, &["NODES", "COUNT", "GPUS EACH", "CPUS", "MEMORY"]);
    for n in &c.nodes {
        let gpu = n.gpu_model.as_deref().map_or_else(|| "-".into(), |m| format!("{} {}", n.gpus, plain(m)));
        table.row([plain(&n.name), n.count.to_string(), gpu, n.cpus.to_string(), n.memory.to_string()]);
    }
    text.push('\n');
    text.push_str(&table.render());
    if c.nodes_out.nodes.is_empty() && c.nodes_out.more > 0 {
        text.push_str(&format!("\n{} nodes take nothing\n", c.nodes_out.more));
    } else if !c.nodes_out.is_empty() {
        let mut table = Table::new(style, &["TAKES NOTHING", "WHY"]);
        for n in &c.nodes_out.nodes {
            table.row([plain(&n.name), plain(&n.why)]);
        }
        text.push('\n');
        text.push_str(&table.render());
        if c.nodes_out.more > 0 {
            text.push_str(&format!("and {} more nodes\n", c.nodes_out.more));
        }
    }
    if let Some(slurm) = &c.slurm {
        let more = |n: u32, what: &str| if n > 0 { format!("and {n} more {what}\n") } else { String::new() };
        for (title, sets, left, what) in [
            ("PARTITION", &slurm.partitions, slurm.partitions_more, "partitions"),
            ("FEATURE", &slurm.features, slurm.features_more, "features"),
        ] {
            if sets.is_empty() {
                continue;
            }
            let mut table = Table::new(style, &[title, "NODES", "UP", "GPUS UP"]);
            for set in sets {
                table.row([
                    plain(&set.name),
                    set.nodes.to_string(),
                    set.up.to_string(),
                    set.gpus.to_string(),
                ]);
            }
            text.push('\n');
            text.push_str(&table.render());
            text.push_str(&more(left, what));
        }
    }
    if !c.reservations.is_empty() {
        let mut table = Table::new(style, &["RESERVED", "TENANT", "GPUS", "USED", "IDLE", "FROM", "TO"]);
        for r in &c.reservations {
            let id = if r.confirmed { r.id.short() } else { format!("{} (asked)", r.id.short()) };
            let gpus =
                if r.short > 0 { format!("{} ({} short)", r.gpus, r.short) } else { r.gpus.to_string() };
            let at = |ms| crate::model::timestamp::to_rfc3339(crate::base::WallTime(ms));
            let (used, idle) = (r.used.to_string(), r.idle.to_string());
            table.row([id, plain(&r.tenant), gpus, used, idle, at(r.from_ms), at(r.until_ms)]);
        }
        text.push('\n');
        text.push_str(&table.render());
        if c.reservations_more > 0 {
            text.push_str(&format!("and {} more: starling reservations\n", c.reservations_more));
        }
    }
    text
}

/// `starling links`: rows measure, columns are measured.
pub async fn links(asking: &Asking) -> CommandResult {
    let list: LinkList = asking.client.get("/v1/links").await?;
    Ok(Reply::new(&list, links_text(asking.style, &list)))
}

fn links_text(style: Style, list: &LinkList) -> String {
    if list.links.is_empty() {
        return "nothing measured yet\n".into();
    }
    let names: BTreeSet<&PeerName> = list.links.iter().flat_map(|l| [&l.from, &l.to]).collect();
    let by_pair: BTreeMap<_, _> = list.links.iter().map(|l| ((&l.from, &l.to), l)).collect();
    let headings: Vec<&str> =
        std::iter::once("RTT, BANDWIDTH").chain(names.iter().map(|n| n.as_str())).collect();
    let mut table = Table::new(style, &headings);
    for from in &names {
        let cell = |to: &&PeerName| match by_pair.get(&(*from, *to)) {
            _ if from == to => "-".to_owned(),
            None => style.dim("?"),
            Some(link) => style.heat(heat(link), &link_text(link)),
        };
        table.row(std::iter::once(from.to_string()).chain(names.iter().map(cell)));
    }
    let legend = "~ through another peer; a percentage is loss; `--json` has the ages\n";
    table.render() + &style.dim(legend.trim_end()) + "\n"
}

/// From 0 (1 ms or less, no loss) to 1 (300 ms, or 5 % loss).
fn heat(link: &LinkDocument) -> f64 {
    let rtt = (link.rtt_ms.max(1.0).ln() / 300_f64.ln()).clamp(0.0, 1.0);
    rtt.max((link.loss / 0.05).clamp(0.0, 1.0))
}

fn link_text(link: &LinkDocument) -> String {
    let mut text = format!("{:.1}ms", link.rtt_ms);
    if let Some(bps) = link.bandwidth_bps {
        let (value, unit) =
            if bps >= 1_000_000_000 { (bps as f64 / 1e9, "G") } else { (bps as f64 / 1e6, "M") };
        text.push_str(&format!(" {value:.1}{unit}"));
    }
    if link.loss >= 0.0005 {
        text.push_str(&format!(" {:.1}%", link.loss * 100.0));
    }
    if link.direct { text } else { format!("~{text}") }
}

/// `starling view`
pub async fn view(asking: &Asking) -> CommandResult {
    let view: ViewDocument = asking.client.get("/v1/view").await?;
    let mut text = String::new();
    for pool in &view.pools {
        branch(asking.style, pool, "", "", &mut text);
    }
    Ok(Reply::new(&view, if text.is_empty() { "no clusters\n".into() } else { text }))
}

fn branch(style: Style, node: &ViewNode, lead: &str, indent: &str, out: &mut String) {
    let state = node.liveness.as_deref().map_or_else(String::new, |l| format!(" {}", style.state(l)));
    let name = if node.level == "cluster" { plain(&node.name) } else { style.bold(&plain(&node.name)) };
    let figures = format!("{}, {} run, {} wait", gpus_text(&node.gpus, false), node.running, node.queued);
    let note = node.disk_note.as_ref().map_or_else(String::new, |note| format!("; {}", plain(note)));
    out.push_str(&format!("{lead}{} {name}{state}  {figures}{note}\n", style.dim(&node.level)));
    let last = node.children.len().saturating_sub(1);
    for (i, child) in node.children.iter().enumerate() {
        let (fork, below) = if i == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branch(style, child, &format!("{indent}{fork}"), &format!("{indent}{below}"), out);
    }
}

/// `starling peer`
pub async fn peer(asking: &Asking) -> CommandResult {
    let peer: PeerDocument = asking.client.get("/v1/peer").await?;
    let now = wall_now().0;
    let members: Vec<String> = peer.members.iter().map(|(state, n)| format!("{n} {state}")).collect();
    let rows = [
        ("peer", peer.name.to_string()),
        ("mesh", plain(&peer.mesh)),
        ("members", members.join(", ")),
        ("listens", plain(&peer.listen)),
        ("API", peer.api.as_deref().map_or_else(|| "unix socket only".into(), plain)),
        ("version", plain(&peer.version)),
        ("up for", brief(now.saturating_sub(peer.started_at_ms))),
        ("certificate", format!("ends in {}", brief(peer.certificate_until_ms.saturating_sub(now)))),
        ("disk", {
            let note = peer.disk_note.as_ref().map_or_else(String::new, |note| format!("; {}", plain(note)));
            format!("{} (start {}){note}", plain(&peer.store), peer.boot)
        }),
        (
            "state",
            if peer.disk_full {
                asking
                    .style
                    .state_as("lost", "disk full: it takes no new jobs; free space before it must stop")
            } else if peer.draining {
                "draining".into()
            } else if peer.isolated {
                "isolated".into()
            } else {
                "ok".into()
            },
        ),
    ];
    let text = rows.iter().map(|(k, v)| format!("{} {v}\n", asking.style.dim(&format!("{k:<11}")))).collect();
    Ok(Reply::new(&peer, text))
}

/// `starling doctor`
pub async fn doctor(asking: &Asking) -> CommandResult {
    let found: DoctorDocument = asking.client.get("/v1/doctor").await?;
    let mut text = String::new();
    for f in &found.findings {
        let word = match f.weight {
            Weight::Ok => asking.style.dim("ok  "),
            Weight::Note => asking.style.bold("note"),
            Weight::Warn => asking.style.state_as("suspect", "warn"),
            Weight::Bad => asking.style.state_as("lost", "BAD "),
        };
        text.push_str(&format!("{word}  {:<13} {}\n", plain(&f.about), plain(&f.text)));
        if !f.todo.is_empty() {
            text.push_str(&format!("{:>20} {}\n", "->", plain(&f.todo)));
        }
    }
    let bad = found.findings.iter().any(|f| f.weight == Weight::Bad);
    text.push_str(&format!("as {} sees it now; another peer may see more\n", found.peer));
    let code = if bad { super::exit::REFUSED } else { super::exit::OK };
    Ok(Reply::new(&found, text).with_code(code))
}

/// `starling token create`
pub async fn token(asking: &Asking, command: TokenCommand) -> CommandResult {
    let TokenCommand::Create { ttl } = command;
    let body = json!({ "ttl": format!("{}ms", ttl.as_millis()) }).to_string().into_bytes();
    let made: Value =
        asking.client.send(Method::POST, "/v1/tokens", Some(("application/json", body))).await?;
    let part = |key: &str| plain(made[key].as_str().unwrap_or_default());
    let hint =
        format!("good once, for {ttl}; on the other machine: starling up --join TOKEN@{}", part("listen"));
    eprintln_unless(asking.json, &asking.style.dim(&hint));
    Ok(Reply::new(&made, format!("{}\n", part("token"))))
}

fn eprintln_unless(quiet: bool, text: &str) {
    if !quiet {
        eprintln!("{text}");
    }
}

/// `starling member list`, `starling member remove NAME`
pub async fn member(asking: &Asking, command: MemberCommand) -> CommandResult {
    match command {
        MemberCommand::List => {
            let list: MemberList = asking.client.get("/v1/members").await?;
            let mut table = Table::new(asking.style, &["MEMBER", "STATE", "ROLE", "ADDRESSES"]);
            for m in &list.members {
                let role = if m.witness { "witness" } else { "cluster" };
                let state = asking.style.state(&m.liveness);
                table.row([m.name.to_string(), state, role.into(), plain(&m.addresses.join(" "))]);
            }
            Ok(Reply::new(&list, table.render()))
        }
        MemberCommand::Remove { name, force } => {
            let path = format!("/v1/members/{name}?force={force}");
            let done: Value = asking.client.send(Method::DELETE, &path, None).await?;
            Ok(Reply::new(&done, format!("{name} is no longer a member\n")))
        }
    }
}

/// `starling drain`, `starling undrain`
pub async fn drain(asking: &Asking, cluster: Option<PeerName>, draining: bool) -> CommandResult {
    let verb = if draining { "drain" } else { "undrain" };
    let query = cluster.map_or_else(String::new, |c| format!("?cluster={c}"));
    let done: Value = asking.client.send(Method::POST, &format!("/v1/{verb}{query}"), None).await?;
    let name = plain(done["cluster"].as_str().unwrap_or("the cluster"));
    let text = if draining {
        format!("{name} takes no new attempts; what runs there moves on (see `starling jobs`)\n")
    } else {
        format!("{name} takes attempts again\n")
    };
    Ok(Reply::new(&done, text))
}
