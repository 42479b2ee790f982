//! deploy/kubernetes as `kubectl kustomize` renders it: what the account may is what the backend does, and no more.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use starling::backends::Backend;
use starling::backends::conformance::{Ear, key, script, stop};
use starling::base::Span;
use starling::core::BackendCommand;
use starling::core::api::StopReason;
use starling::model::Outcome;
use starling::model::config::Config;

use super::backend::{Desk, none_left};
use super::ground::{Ground, block_on};

/// (verb, group, resource).
type Right = (String, String, String);

/// Every call that the backend makes, as the recorded server saw it.
async fn used() -> BTreeSet<Right> {
    let ground = Ground::make().await;
    let server = ground.server.clone().expect("recorded");
    server.add_group(("scheduling.volcano.sh", "v1beta1"), &["podgroups"]);
    server.add_group(("scheduling.x-k8s.io", "v1alpha1"), &["podgroups"]);
    let desk = Desk::new(&ground, &ground.url, "rights", |_| {}).await;
    let (mut ear, _) = Ear::adopt(&*desk.backend).await;
    desk.go(key(1), script("true")).await;
    assert_eq!(ear.ended(key(1)).await, Outcome::Exited(0));
    let mut gang = script("while :; do sleep 0.05; done");
    gang.nodes = 2;
    desk.go(key(2), gang).await;
    ear.started(key(2)).await;
    desk.backend.command(stop(key(2), Span::ZERO, StopReason::Cancel)).await;
    assert_eq!(ear.ended(key(2)).await, Outcome::Cancelled);
    for n in [1, 2] {
        desk.backend.command(BackendCommand::Forget { key: key(n) }).await;
    }
    // Without a guard: its environment in a Secret, and proofs before anything is given back.
    let change = |c: &mut starling::backends::kubernetes::KubernetesConfig| {
        (c.guard_image, c.pull_max) = (None, Span::millis(500));
    };
    let plain = Desk::new(&ground, &ground.url, "plain", change).await;
    let (mut ear, _) = Ear::adopt(&*plain.backend).await;
    let mut absent = script("true");
    (absent.image, absent.on_lost_contact.grace) = (Some("absent/image:1".into()), None);
    plain.go(key(3), absent).await;
    assert!(matches!(ear.ended(key(3)).await, Outcome::Refused(_)));
    plain.backend.command(BackendCommand::Forget { key: key(3) }).await;
    none_left(&ground).await;
    let mut all = server.asked();
    // The coscheduling plugin's kind is the same under another name; what is used depends on the cluster.
    let plugin: Vec<Right> = all
        .iter()
        .filter(|(_, group, _)| group == "scheduling.volcano.sh")
        .map(|(verb, _, kind)| (verb.clone(), "scheduling.x-k8s.io".to_owned(), kind.clone()))
        .collect();
    all.extend(plugin);
    all
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|w| w.as_str().map(str::to_owned)).collect()
}

pub fn the_account_may_what_the_backend_does_and_no_more() {
    if super::real::binaries().is_some() {
        println!("not tried: the rights, which the recorded server notes");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubernetes");
    let rendered = match Command::new("kubectl").arg("kustomize").arg(&folder).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!(
                "not tried: deploy/kubernetes, because kubectl is not installed (Debian's kubernetes-client)"
            );
            return;
        }
        rendered => rendered.expect("kubectl"),
    };
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let text = String::from_utf8(rendered.stdout).expect("UTF-8");
    let objects: Vec<Value> = text
        .split("\n---\n")
        .map(|one| serde_saphyr::from_str(one).unwrap_or_else(|e| panic!("{e}:\n{one}")))
        .collect();
    let of = |kind: &str| objects.iter().filter(|o| o["kind"] == kind).collect::<Vec<_>>();
    for kind in [
        "Namespace",
        "ServiceAccount",
        "StatefulSet",
        "Service",
        "ConfigMap",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
    ] {
        assert_eq!(of(kind).len(), 1, "{kind} in\n{text}");
    }
    let mut granted: BTreeSet<Right> = BTreeSet::new();
    for role in of("Role").into_iter().chain(of("ClusterRole")) {
        for rule in role["rules"].as_array().expect("rules") {
            for (verb, group) in words(&rule["verbs"])
                .iter()
                .flat_map(|v| words(&rule["apiGroups"]).into_iter().map(move |g| (v, g)))
            {
                for resource in words(&rule["resources"]) {
                    granted.insert((verb.clone(), group.clone(), resource));
                }
            }
        }
    }
    let used = block_on(used());
    let missing: Vec<&Right> = used.difference(&granted).collect();
    assert!(missing.is_empty(), "used and not granted: {missing:?}");
    let more: Vec<&Right> = granted.difference(&used).collect();
    assert!(more.is_empty(), "granted and not used: {more:?}");
    // Beyond its namespace it reads, and only what makes its report.
    let wide = of("ClusterRole")[0]["rules"].as_array().expect("rules");
    assert!(wide.iter().flat_map(|r| words(&r["verbs"])).all(|v| v == "list" || v == "watch"));

    let set = &of("StatefulSet")[0]["spec"];
    let pod = &set["template"]["spec"];
    assert_eq!((&set["replicas"], &pod["containers"][0]["image"]), (&1.into(), &"starling".into()));
    assert_eq!(set["serviceName"], of("Service")[0]["metadata"]["name"]);
    assert_eq!(pod["serviceAccountName"], of("ServiceAccount")[0]["metadata"]["name"]);
    assert!(set["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"].is_string());
    let config = of("ConfigMap")[0]["data"]["starling.toml"].as_str().expect("a configuration");
    let config = Config::check(config).unwrap_or_else(|e| panic!("{e:?}"));
    let ports: Vec<u64> = of("Service")[0]["spec"]["ports"]
        .as_array()
        .expect("ports")
        .iter()
        .filter_map(|p| p["port"].as_u64())
        .collect();
    assert!(ports.contains(&u64::from(config.kubernetes.guard_listen.port())), "guards reach it: {ports:?}");
    assert!(ports.contains(&u64::from(config.listen.port())), "peers reach it: {ports:?}");
    let host = config.kubernetes.guard_host.expect("a name that stays");
    assert!(host.starts_with("starling-0.starling."), "{host}");
}
