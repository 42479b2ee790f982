//! What is made of a start command.

use serde_json::{Value, json};

use super::super::nodes::Rules;
use super::super::objects::Node;
use super::*;
use crate::backends::conformance::{key, script, start};
use crate::base::PeerName;

fn map() -> NodeMap {
    let node = json!({ "metadata": { "name": "n", "labels": { "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" } },
        "status": { "allocatable": { "cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8" },
            "conditions": [{ "type": "Ready", "status": "True" }] } });
    let node: Node = serde_json::from_value(node).expect("a node");
    NodeMap::new([&node], &Rules::default())
}

fn made(change: impl FnOnce(&mut JobSpec, &mut KubernetesConfig, &mut Gangs)) -> Result<Kept, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let peer = PeerName::new("here").expect("a name");
    let mut config = KubernetesConfig::new(folder.path().to_owned(), peer, "mesh".into());
    (config.image, config.guard_image) = (Some("plain".into()), Some("starling".into()));
    let (mut spec, mut gangs) = (script("true"), Gangs::default());
    change(&mut spec, &mut config, &mut gangs);
    let line = LineFile { addresses: vec!["here:1".into()], boot: String::new(), port: 1 };
    let dir = AttemptDir::new(folder.path().join("x"));
    let command = start(key(1), spec);
    prepare(&command, &config, &map(), gangs, Some(&line), &dir).map(|kept| kept.expect("a new name"))
}

fn pod(kept: &Kept) -> &Value {
    &kept.job["spec"]["template"]["spec"]
}

#[test]
fn a_job_is_suspended_guarded_and_kept_until_its_result_is() {
    let kept = made(|spec, _, _| {
        spec.env.insert("TOKEN".into(), "secret-value".into());
        (spec.resources.gpus, spec.resources.gpu) = (2, vec!["H100".into()]);
    })
    .expect("made");
    let job = &kept.job;
    assert_eq!(job["spec"]["suspend"], true);
    assert_eq!((&job["spec"]["backoffLimit"], &job["spec"]["completions"]), (&json!(0), &json!(1)));
    assert_eq!(job["metadata"]["finalizers"], json!([names::FINALIZER]));
    let text = job.to_string();
    assert!(!text.contains("secret-value") && !text.contains(&kept.secret), "only the Secret holds these");
    assert!(
        kept.files["spec.json"].contains("secret-value") && kept.files["spec.json"].contains(&kept.secret)
    );
    let main = &pod(&kept)["containers"][0];
    for container in [main, &pod(&kept)["initContainers"][0]] {
        let clock = json!({ "name": "STARLING_TEST_CLOCK", "value": "" });
        assert_eq!(container["env"][0], clock, "no image moves a guard's clock");
    }
    assert_eq!(main["command"], json!(["/starling/starling"]));
    assert_eq!(main["resources"]["limits"]["nvidia.com/gpu"], "2");
    assert!(main["resources"]["limits"]["cpu"].is_null() && main["resources"]["requests"]["cpu"] == "1000m");
    assert_eq!(pod(&kept)["automountServiceAccountToken"], false);
    assert_eq!(pod(&kept)["restartPolicy"], "Never");
    let terms = &pod(&kept)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"],
        json!(["NVIDIA-H100-80GB-HBM3"])
    );
    assert_eq!(pod(&kept)["tolerations"], json!([{ "key": "nvidia.com/gpu", "operator": "Exists" }]));
}

#[test]
fn without_a_guard_only_what_nobody_runs_again_by_itself() {
    let no_guard = |never: bool| {
        made(|spec, config, _| {
            config.guard_image = None;
            spec.env.insert("TOKEN".into(), "secret-value".into());
            if never {
                spec.on_lost_contact.grace = None;
            }
        })
    };
    let why = no_guard(false).expect_err("refused");
    assert!(why.contains("grace: never") && why.contains("operator's word"), "{why}");
    let kept = no_guard(true).expect("taken");
    assert!(!kept.guarded && kept.secret.is_empty());
    assert!(!kept.job.to_string().contains("secret-value"), "only the Secret holds its environment");
    assert_eq!(kept.files["TOKEN"], "secret-value");
    assert!(kept.files["STARLING_JOB_ID"] == key(1).job.to_string());
    let name = names::native_name(key(1));
    let main = &pod(&kept)["containers"][0];
    assert_eq!(main["envFrom"], json!([{ "secretRef": { "name": name } }]));
    assert!(main["env"].is_null(), "{main}");
    assert_eq!(pod(&kept)["containers"][0]["command"], json!(["/bin/sh", "-c", "true"]));
    let image =
        made(|spec, _, _| (spec.run, spec.image) = (Run::Image, Some("x".into()))).expect_err("refused");
    assert!(image.contains("entry point"), "{image}");
    let none = made(|_, config, _| config.image = None).expect_err("refused");
    assert!(none.contains("kubernetes.image"), "{none}");
    let models = made(|spec, _, _| (spec.resources.gpus, spec.resources.gpu) = (1, vec!["A100-80G".into()]));
    assert!(models.expect_err("refused").contains("no node here"));
}

#[test]
fn a_gang_is_indexed_and_uses_what_the_cluster_has_for_gangs() {
    let gang = |change: fn(&mut KubernetesConfig, &mut Gangs)| {
        made(|spec, config, gangs| {
            spec.nodes = 3;
            change(config, gangs);
        })
        .expect("made")
    };
    let plain = gang(|_, _| {});
    assert_eq!(
        (&plain.job["spec"]["completionMode"], &plain.job["spec"]["parallelism"]),
        (&"Indexed".into(), &3.into())
    );
    assert!(plain.group.is_none() && !plain.queued);
    let volcano = gang(|_, gangs| gangs.volcano = true);
    assert_eq!(pod(&volcano)["schedulerName"], "volcano");
    assert_eq!(volcano.group.expect("a group").1["spec"]["minMember"], 3);
    let plugin = gang(|_, gangs| gangs.coscheduling = true);
    assert!(
        plugin.job["spec"]["template"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"].is_string()
    );
    let kueue = gang(|config, gangs| {
        (gangs.kueue, gangs.volcano) = (true, true);
        config.queue = Some("team".into());
    });
    assert_eq!(kueue.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
    assert!(kueue.queued && kueue.group.is_none(), "Kueue says when, as a whole");
    assert!(
        !gang(|config, _| config.queue = Some("team".into())).queued,
        "and where it is not, nobody waits for it"
    );
}
