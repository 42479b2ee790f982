//! `tenant`: what tenants may use over the whole mesh.

use axum::http::Method;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::output::{Table, plain};
use super::{Asking, CommandResult, Failure, Reply};
use crate::base::{Bytes, PeerName, Span};
use crate::surface::api::escape;
use crate::surface::documents::*;

/// `starling tenant`.
#[derive(Debug, Clone, Subcommand)]
pub enum TenantCommand {
    /// List tenants that have limits
    List,
    /// Show a tenant's limits, who holds shares of them, and what each cluster says
    Show {
        /// Which tenant
        name: String,
    },
    /// Set limits; what is not named stays
    Set(Box<SetArgs>),
    /// End all limits of a tenant
    Remove {
        /// Which tenant
        name: String,
    },
    /// Take back the share of a cluster that is gone for good and runs nothing any more
    Reclaim {
        /// Which tenant
        name: String,
        /// Which cluster
        cluster: PeerName,
        /// Do it: what ran there has stopped
        #[arg(long)]
        yes: bool,
    },
}

/// `starling tenant set`.
#[derive(Debug, Clone, Default, Args)]
pub struct SetArgs {
    /// Which tenant
    pub name: String,
    /// GPUs at once, over all clusters; none lifts it (so for the others)
    #[arg(long, value_name = "N|none")]
    pub gpus: Option<String>,
    /// CPU cores at once, such as 64 or 500m
    #[arg(long, value_name = "N|none")]
    pub cpus: Option<String>,
    /// Memory at once, such as 512G
    #[arg(long, value_name = "SIZE|none")]
    pub memory: Option<String>,
    /// GPU-hours in all, until they are reset
    #[arg(long, value_name = "H|none")]
    pub gpu_hours: Option<String>,
    /// GPUs of its own: for them others' borrowed ones are given back
    #[arg(long, value_name = "N")]
    pub guaranteed: Option<u64>,
    /// GPUs beyond these that it may borrow while they are idle
    #[arg(long, value_name = "N|none")]
    pub borrow: Option<String>,
    /// Its part in fair share, 1 to 1000
    #[arg(long, value_name = "N")]
    pub weight: Option<u32>,
    /// Longest on_lost_contact.grace of its jobs, such as 10m, or never
    #[arg(long, value_name = "TIME")]
    pub grace: Option<String>,
    /// GPUs that a cluster keeps even while they are idle, for when it is cut off; may be given more than once
    #[arg(long, value_name = "CLUSTER=N", value_parser = keep)]
    pub keep: Vec<(PeerName, u64)>,
    /// GPU-hours used so far no longer count
    #[arg(long)]
    pub reset_hours: bool,
}

fn keep(text: &str) -> Result<(PeerName, u64), String> {
    let (cluster, gpus) = text.split_once('=').ok_or("not CLUSTER=N")?;
    let cluster = PeerName::new(cluster).map_err(|e| e.to_string())?;
    Ok((cluster, gpus.parse().map_err(|_| "not CLUSTER=N")?))
}

fn number(flag: &str, text: &str) -> Result<Value, Failure> {
    let wrong =
        || Failure::usage(format!("{flag}: {text:?} is not a number or none"), "starling tenant set --help");
    match text {
        "none" => Ok(Value::Null),
        text => match text.parse::<u64>() {
            Ok(n) => Ok(json!(n)),
            Err(_) => text.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| json!(x)).ok_or_else(wrong),
        },
    }
}

fn body(args: &SetArgs) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    let counts = [("gpus", &args.gpus), ("gpu_hours", &args.gpu_hours), ("borrow", &args.borrow)];
    for (key, text) in counts {
        if let Some(text) = text {
            body.insert(key.into(), number(key, text)?);
        }
    }
    for (key, text) in [("cpus", &args.cpus), ("memory", &args.memory), ("grace", &args.grace)] {
        if let Some(text) = text {
            let lifted = text == "none" && key != "grace";
            body.insert(key.into(), if lifted { Value::Null } else { json!(text) });
        }
    }
    body.extend(args.guaranteed.map(|n| ("guaranteed".into(), json!(n))));
    body.extend(args.weight.map(|n| ("weight".into(), json!(n))));
    if !args.keep.is_empty() {
        let keep: Map<String, Value> = args.keep.iter().map(|(c, n)| (c.to_string(), json!(n))).collect();
        body.insert("keep".into(), Value::Object(keep));
    }
    if args.reset_hours {
        body.insert("reset_hours".into(), json!(true));
    }
    Ok(body)
}

/// `starling tenant …`
pub async fn tenant(asking: &Asking, command: TenantCommand) -> CommandResult {
    let path = |name: &str| format!("/v1/tenants/{}", escape(name));
    match command {
        TenantCommand::List => {
            let list: TenantList = asking.client.get("/v1/tenants").await?;
            let style = asking.style;
            let mut table = Table::new(
                style,
                &["TENANT", "GPUS HELD/LIMIT", "GUARANTEED", "CPUS", "MEMORY", "GPU-HOURS", "WEIGHT"],
            );
            for t in &list.tenants {
                table.row(row(t));
            }
            let text = if list.tenants.is_empty() {
                "no tenant has limits: starling tenant set NAME --gpus N\n".into()
            } else {
                table.render()
            };
            Ok(Reply::new(&list, text))
        }
        TenantCommand::Show { name } => {
            let document: TenantDocument = asking.client.get(&path(&name)).await?;
            Ok(Reply::new(&document, shown(asking, &document)))
        }
        TenantCommand::Set(args) => {
            let payload = Value::Object(body(&args)?).to_string().into_bytes();
            let sent = Some(("application/json", payload));
            let document: TenantDocument = asking.client.send(Method::PUT, &path(&args.name), sent).await?;
            let name = plain(&document.tenant);
            let text = format!(
                "{}tenant {name}: held by {}; a cluster keeps to it once it has heard of it: starling tenant show {name}\n",
                shown(asking, &document),
                document.homes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
            Ok(Reply::new(&document, text))
        }
        TenantCommand::Remove { name } => {
            let document: TenantDocument = asking.client.send(Method::DELETE, &path(&name), None).await?;
            Ok(Reply::new(&document, format!("tenant {}: nothing is limited any more\n", plain(&name))))
        }
        TenantCommand::Reclaim { name, cluster, yes } => {
            if !yes {
                let text = format!(
                    "this gives what {cluster} holds of tenant {} to others although attempts may still run there: if \
                     they do, the tenant uses more than its limit. Make sure that its machines are off or its \
                     processes gone",
                    plain(&name)
                );
                return Err(Failure::usage(
                    text,
                    format!("starling tenant reclaim {} {cluster} --yes", plain(&name)),
                ));
            }
            let payload = json!({ "cluster": cluster }).to_string().into_bytes();
            let sent = Some(("application/json", payload));
            let path = format!("{}/reclaim", path(&name));
            let document: TenantDocument = asking.client.send(Method::POST, &path, sent).await?;
            Ok(Reply::new(&document, shown(asking, &document)))
        }
    }
}

fn most<T: std::fmt::Display>(limit: Option<T>) -> String {
    limit.map_or_else(|| "no limit".into(), |n| n.to_string())
}

fn row(t: &TenantDocument) -> [String; 7] {
    let name = plain(&t.tenant);
    let Some(limits) = &t.limits else {
        let dash = || "-".to_owned();
        return [name, "no limits".into(), dash(), dash(), dash(), dash(), dash()];
    };
    [
        name,
        format!("{}/{}", t.held.gpus, most(limits.gpus)),
        match limits.borrow {
            Some(borrow) => format!("{} + {borrow} borrowed at most", limits.guaranteed),
            None => limits.guaranteed.to_string(),
        },
        format!("{}/{}", t.held.cpus, most(limits.cpus)),
        format!("{}/{}", Bytes(t.held.memory_bytes), most(limits.memory_bytes.map(Bytes))),
        format!("{:.2}/{}", t.spent_gpu_hours + t.held.gpu_hours, most(limits.gpu_hours)),
        limits.weight.to_string(),
    ]
}

fn shown(asking: &Asking, t: &TenantDocument) -> String {
    let style = asking.style;
    let mut text = String::new();
    let mut line =
        |key: &str, value: String| text.push_str(&format!("{} {value}\n", style.dim(&format!("{key:<11}"))));
    let [name, gpus, guaranteed, cpus, memory, hours, weight] = row(t);
    line("tenant", name);
    line("GPUs", format!("{gpus} held, {guaranteed} guaranteed"));
    line("CPUs", cpus);
    line("memory", memory);
    line("GPU-hours", format!("{hours}, {:.2} of them used up", t.spent_gpu_hours));
    line("weight", weight);
    if let Some(limits) = &t.limits {
        let grace =
            limits.grace_ms.map_or_else(|| "any".into(), |ms| format!("at most {}", Span::millis(ms)));
        line("grace", grace);
        let kept: Vec<String> = limits.keep.iter().map(|(c, n)| format!("{c}={n}")).collect();
        if !kept.is_empty() {
            line("kept", kept.join(" "));
        }
    }
    let mut table = Table::new(style, &["CLUSTER", "SHARE", "USED", "IN THE LEDGER", "WAITS"]);
    let told =
        |cluster: &PeerName| t.shares.iter().find(|s| s.cluster == *cluster).map_or(0, |s| s.held.gpus);
    for c in &t.clusters {
        let waits = match (c.knows, &c.waits) {
            (false, _) => "has not heard of the limits yet".into(),
            (true, Some(why)) => plain(why),
            (true, None) => String::new(),
        };
        let (share, used) = (c.share.gpus.to_string(), c.used.gpus.to_string());
        table.row([c.cluster.to_string(), share, used, told(&c.cluster).to_string(), waits]);
    }
    // Who is not there to be asked may hold a share all the same.
    for s in t.shares.iter().filter(|s| !t.clusters.iter().any(|c| c.cluster == s.cluster)) {
        let silent = if t.unanswered.contains(&s.cluster) { "does not answer" } else { "" };
        table.row([s.cluster.to_string(), "?".into(), "?".into(), s.held.gpus.to_string(), silent.into()]);
    }
    if !t.clusters.is_empty() || !t.shares.is_empty() {
        text.push_str(&table.render());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_named() {
        let args = SetArgs {
            gpus: Some("8".into()),
            cpus: Some("none".into()),
            gpu_hours: Some("1.5".into()),
            grace: Some("never".into()),
            keep: vec![keep("a=2").expect("good")],
            ..SetArgs::default()
        };
        let body = Value::Object(body(&args).expect("good"));
        assert_eq!(
            body,
            json!({"gpus": 8, "cpus": null, "gpu_hours": 1.5, "grace": "never", "keep": {"a": 2}})
        );
        assert!(number("gpus", "nan").is_err() && number("gpus", "many").is_err());
        assert!(keep("a").is_err() && keep("A=1").is_err() && keep("a=-1").is_err());
    }
}
