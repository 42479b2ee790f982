//! A real Prometheus scrapes a real mesh, with the rules of `deploy/`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::harness::*;
use super::mesh::{Mesh, Plan};
use super::seeing::named;

struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended with an error, which the test shows.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn ask(&self, path: &str) -> Result<Value, String> {
        let text = |e: std::io::Error| e.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(text)?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(text)?;
        let head = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).map_err(text)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(text)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| answer.clone())?;
        serde_json::from_str(body).map_err(|e| format!("{e}: {body}"))
    }

    fn series(&self, query: &str) -> Result<Vec<Value>, String> {
        let found = self.ask(&format!("/api/v1/query?query={query}"))?;
        found["data"]["result"].as_array().cloned().ok_or_else(|| found.to_string())
    }
}

/// What is recorded is named with a colon; what is only there where GPUs are measured is left out.
fn wanted(file: &str) -> BTreeSet<String> {
    let names = named(file).into_iter();
    names.filter(|n| !n.contains(':') && n != "starling_gpu_use_ratio").collect()
}

#[test]
fn a_real_prometheus_scrapes_every_peer_and_has_what_is_shown() {
    if Command::new("prometheus")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err()
    {
        println!("not tried: a real Prometheus: no prometheus here");
        return;
    }
    let plan = |name| Plan { probe_every: "5s", api: "127.0.0.1:0", ..Plan::new(name) };
    let mesh = Mesh::start(["alpha", "beta", "gamma"].map(plan));
    let id = submit(mesh.state("alpha"), "name: a\nresources: {gpus: 1}\nrun: [\"true\"]\n");
    succeeded(mesh.state("alpha"), &id);
    let runs = submit(mesh.state("alpha"), "name: b\nresources: {gpus: 1}\nrun: [sleep, \"600\"]\n");
    in_state(mesh.state("alpha"), &runs, &["running"]);
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    let folder = mesh.folder.path();
    let mut config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [\"{}\"]\nscrape_configs:\n",
        deploy.join("rules.yml").display()
    );
    for name in ["alpha", "beta", "gamma"] {
        let api = mesh.peer(name).get("/v1/peer")["api"].as_str().expect("an address").to_owned();
        let token = mesh.state(name).join("api.token");
        config.push_str(&format!(
            "  - job_name: {name}\n    authorization: {{credentials_file: \"{}\"}}\n    static_configs: [{{targets: [\"{api}\"], labels: {{peer: {name}}}}}]\n    relabel_configs: [{{target_label: job, replacement: starling}}]\n",
            token.display()
        ));
    }
    let file = folder.join("prometheus.yml");
    fs::write(&file, config).expect("a configuration");
    // Its own port 0 is not told anywhere: a port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let log = fs::File::create(folder.join("prometheus.log")).expect("a log");
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("prometheus starts");
    let prometheus = Prometheus { child, port };
    let words = || fs::read_to_string(folder.join("prometheus.log")).unwrap_or_default();
    until("all peers are up", || {
        let found = prometheus.ask("/api/v1/targets").map_err(|e| format!("{e}\n{}", words()))?;
        let targets = found["data"]["activeTargets"].as_array().cloned().unwrap_or_default();
        let up = targets.iter().filter(|t| t["health"] == "up").count();
        if targets.len() == 3 && up == 3 { Ok(()) } else { Err(format!("{found:#}\n{}", words())) }
    });
    until("up says so", || {
        let up = prometheus.series("up")?;
        let good = up.iter().filter(|s| s["value"][1] == "1" && s["metric"]["job"] == "starling").count();
        if good == 3 { Ok(()) } else { Err(format!("{up:?}")) }
    });
    // Everything that a dashboard or a rule asks for is there, as Prometheus itself names it.
    until("every metric that is shown", || {
        let found = prometheus.ask("/api/v1/label/__name__/values")?;
        let all: BTreeSet<&str> =
            found["data"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut missing = BTreeSet::new();
        for file in ["prometheus/rules.yml", "prometheus/rules_test.yml", "grafana/starling.json"] {
            missing.extend(wanted(file).into_iter().filter(|n| !all.contains(n.as_str())));
        }
        if missing.is_empty() { Ok(()) } else { Err(format!("missing: {missing:?}")) }
    });
    until("the rules are evaluated without an error", || {
        let found = prometheus.ask("/api/v1/rules")?;
        let groups = found["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules: Vec<&Value> = groups.iter().filter_map(|g| g["rules"].as_array()).flatten().collect();
        let bad: Vec<&&Value> = rules.iter().filter(|r| r["health"] != "ok").collect();
        if rules.len() > 15 && bad.is_empty() { Ok(()) } else { Err(format!("{bad:#?}")) }
    });
    // Of a mesh that is well none of the grave ones fires.
    let firing = prometheus.series("ALERTS%7Balertstate%3D%22firing%22%7D").expect("an answer");
    assert!(firing.iter().all(|a| a["metric"]["severity"] != "critical"), "{firing:#?}");
}
