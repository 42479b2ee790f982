//! A cut pair of peers: everything between them goes through the third one.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use starling::app::{Node, Settings, Wish, up};
use starling::base::{Bytes, MilliCpu, PeerName, Span};
use starling::model::NodeCapacity;
use starling::runtime::PeerHandle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::harness::*;

/// A peer inside this process, so that its pairs can be cut.
struct Inside {
    node: Arc<Node>,
    listen: String,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

fn name(text: &str) -> PeerName {
    PeerName::new(text).expect("a name")
}

async fn start(folder: &Path, who: &str, join: Option<(String, std::net::SocketAddr)>) -> Inside {
    let mut settings = Settings::new(folder.join(who));
    settings.wish = Wish { name: Some(name(who)), join: join.map(|(token, at)| (token, at.to_string())) };
    (settings.renew_every, settings.margin) = (Span::millis(500), Span::secs(1));
    settings.probe_every = Span::ZERO;
    settings.self_exe = Some(STARLING.into());
    settings.nodes = vec![NodeCapacity {
        name: "pool".into(),
        count: 1,
        gpu_model: Some("A100-80G".into()),
        gpus: 4,
        gpu_memory: Bytes::gib(80),
        cpus: MilliCpu(16_000),
        memory: Bytes::gib(64),
        declared: true,
    }];
    let running = up(settings).await.expect("a peer");
    let (node, listen) = (running.node.clone(), running.quic.to_string());
    let (stop, stopped) = oneshot::channel::<()>();
    let ended = tokio::spawn(async move {
        let end = running.run(async move { drop(stopped.await) }).await;
        end.expect("an orderly end");
    });
    Inside { node, listen, stop, ended }
}

/// Kills what is left under the folders, also when a check fails.
struct Leftovers<'a>(&'a Path);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        ["alpha", "beta", "gamma"].iter().for_each(|who| kill_attempts(&self.0.join(who)));
    }
}

#[test]

fn a_cut_pair_works_through_the_third() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let _leftovers = Leftovers(path);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let peers: Vec<Inside> = runtime.block_on(async {
        let mut peers = vec![start(path, "alpha", None).await];
        for who in ["beta", "gamma"] {
            let token = peers[0].node.token_create(Span::secs(60)).await.expect("a token");
            let at = peers[0].listen.parse().expect("an address");
            peers.push(start(path, who, Some((token, at))).await);
        }
        peers
    });
    let state = |who: &str| path.join(who);
    let sees_all = |who: &str| {
        until(&format!("{who} sees all"), || {
            let list = get(&state(who), "/v1/clusters")?;
            let alive = list["clusters"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|c| c["liveness"] == "alive" && c["gpus"] != json!({}));
            if alive.count() == 3 { Ok(()) } else { Err(list.to_string()) }
        });
    };
    ["alpha", "beta", "gamma"].iter().for_each(|who| sees_all(who));
    runtime.block_on(async {
        peers[0].node.net().block(&name("gamma"));
        peers[2].node.net().block(&name("alpha"));
    });
    let spec = "name: far\nresources: {gpus: 1}\nplacement: {clusters: [gamma]}\nrun: 'echo at $STARLING_CLUSTER; exec sleep 600'\n";
    let id = submit(&state("alpha"), spec);
    let job = until("it runs at gamma", || {
        let job = job(&state("alpha"), &id)?;
        let why =
            || get(&state("alpha"), &format!("/v1/jobs/{id}/why")).map_or_else(|e| e, |w| w.to_string());
        let links = || get(&state("alpha"), "/v1/links").map_or_else(|e| e, |w| w.to_string());
        if job["state"] == "running" { Ok(job) } else { Err(format!("{} {}", why(), links())) }
    });
    assert_eq!(job["cluster"], "gamma", "{job:#}");
    until("the log is read through the third", || {
        let out = cli(&state("alpha"), &["logs", &id]);
        if out.out.contains("at gamma") { Ok(()) } else { Err(format!("{out:?}")) }
    });
    // A lost pair is no lost peer.
    sees_all("alpha");
    sees_all("gamma");
    // The link is seen to have ended once it was silent for as long as that takes.
    until("the pair shows as cut", || {
        let links = get(&state("alpha"), "/v1/links")?;
        let cut = |l: &&serde_json::Value| l["from"] == "alpha" && l["to"] == "gamma";
        let pair = links["links"].as_array().into_iter().flatten().find(cut);
        if pair.is_none_or(|l| l["direct"] == false) { Ok(()) } else { Err(links.to_string()) }
    });
    cli(&state("alpha"), &["cancel", &id]).ok();
    assert_eq!(ended(&state("alpha"), &id)["state"], "cancelled");
    runtime.block_on(async {
        for peer in peers {
            // It ends by itself if it has failed; the join says so.
            let _ = peer.stop.send(());
            peer.ended.await.expect("no panic");
        }
    });
}
