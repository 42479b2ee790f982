//! What other tools' files become, and that nothing in them is dropped in silence.
// tidy: long because each case is a file of another tool and what becomes of it, read side by side

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::spec::{JobSpec, Run};

fn made(text: &str) -> (JobSpec, Vec<String>) {
    match bring(text.as_bytes(), "/home/u") {
        Some(Ok(brought)) => {
            let spec = parse_spec(brought.document.to_string().as_bytes()).expect("a job").spec;
            (spec, brought.notes.iter().map(ToString::to_string).collect())
        }
        other => panic!("{text}\n{other:#?}"),
    }
}

fn refused(text: &str) -> Vec<String> {
    match bring(text.as_bytes(), "/home/u") {
        Some(Err(refused)) => refused.lines.iter().map(ToString::to_string).collect(),
        other => panic!("{text}\n{other:#?}"),
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

/// A Job with these lines in its spec, pod spec and container.
fn manifest(job: &str, pod: &str, container: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n  backoffLimit: 0\n{job}  template:\n    spec:\n      \
         restartPolicy: Never\n{pod}      containers:\n      - name: c\n        image: img:1\n{container}"
    )
}

#[test]
fn a_job_of_one_pod() {
    let (spec, notes) = made(include_str!("../../../docs/examples/bring/train-job.yaml"));
    assert_eq!((spec.name.as_str(), spec.nodes, spec.retries), ("finetune", 1, 2));
    assert_eq!(spec.max_runtime, Some(crate::base::Span::secs(86_400)));
    assert_eq!((spec.resources.gpus, spec.resources.gpu.as_slice()), (8, &["A100-80G".to_owned()][..]));
    assert_eq!((spec.resources.cpus.0, spec.resources.memory), (32_000, crate::base::Bytes::gib(512)));
    assert_eq!(spec.image.as_deref(), Some("registry.example.com/nlp/finetune:1.4"));
    assert_eq!(spec.env["EPOCHS"], "3");
    let Run::Argv(run) = &spec.run else { panic!("{:?}", spec.run) };
    assert_eq!(run[2], "cd -- '/workspace' || exit 126\nexec \"$0\" \"$@\"");
    assert_eq!(run[3..], ["python", "train.py", "--epochs=3", "--resume"]);
    for (line, key) in [
        (6, "metadata.labels"),
        (9, "spec.activeDeadlineSeconds"),
        (10, "spec.ttlSecondsAfterFinished"),
        (16, "spec.template.spec.tolerations"),
        (22, "spec.template.spec.containers[0].workingDir"),
        (28, "spec.template.spec.containers[0].volumeMounts[0]"),
        (31, "spec.template.spec.volumes[0].emptyDir"),
    ] {
        assert!(
            notes.iter().any(|n| n.starts_with(&format!("line {line}: {key}"))),
            "{line} {key}: {notes:#?}"
        );
    }
    assert_eq!(notes.len(), 7, "{notes:#?}");
}

#[test]
fn completions_become_nodes_or_an_array() {
    let (spec, notes) = made(include_str!("../../../docs/examples/bring/indexed-job.yaml"));
    assert_eq!(spec.array.as_ref().map(|a| (a.len(), a.at_once)), Some((100, 10)));
    assert_eq!((spec.nodes, spec.name.as_str(), spec.retries), (1, "sweep", 1));
    assert!(
        spec.resources.gpu.contains(&"H100".to_owned()) && !spec.resources.gpu.contains(&"MI300X".to_owned())
    );
    let Run::Argv(run) = &spec.run else { panic!("{:?}", spec.run) };
    assert!(run[2].starts_with("JOB_COMPLETION_INDEX=\"$STARLING_ARRAY_INDEX\"; export"), "{run:?}");
    assert!(notes.iter().any(|n| n.contains("array of 100 jobs")), "{notes:?}");

    let command = "        command: [train]\n";
    let of = |job: &str| made(&manifest(job, "", command)).0;
    let gang = of("  completions: 4\n  parallelism: 4\n  completionMode: Indexed\n");
    assert_eq!((gang.nodes, gang.array), (4, None));
    let Run::Argv(run) = gang.run else { panic!("argv") };
    assert!(run[2].contains("JOB_COMPLETION_INDEX=\"$RANK\""), "{run:?}");
    let plain = of("  completions: 4\n  parallelism: 4\n");
    assert_eq!((plain.nodes, plain.array.map(|a| (a.len(), a.at_once))), (1, Some((4, 4))));
    assert_eq!(plain.run, Run::Argv(vec!["train".into()]), "its pods have no index");
    let one = of("  completions: 1\n  completionMode: Indexed\n");
    assert_eq!((one.array, one.env["JOB_COMPLETION_INDEX"].as_str()), (None, "0"));
    assert_eq!(of("  parallelism: 1\n").nodes, 1);
    for (job, named) in [
        ("  parallelism: 3\n", "line 6: spec.parallelism: 3"),
        ("  parallelism: 0\n  completions: 3\n", "line 6: spec.parallelism: 0"),
        ("  completionMode: Indexed\n", "Indexed needs completions"),
        ("  completionMode: Sorted\n", "line 6: spec.completionMode"),
        ("  completions: 9999\n  parallelism: 9999\n  completionMode: Indexed\n", "at most 4096 nodes"),
        ("  completions: 20000\n", "an array has 10000 at most"),
        ("  suspend: true\n", "line 6: spec.suspend: true: cannot be carried over: submit it when"),
    ] {
        let wrong = refused(&manifest(job, "", command));
        assert!(wrong.iter().any(|w| w.contains(named)), "{job}: {wrong:?}");
    }
    let entry = refused(&manifest("  completions: 2\n  completionMode: Indexed\n", "", ""));
    assert!(entry[0].contains("containers[0].command: is missing"), "{entry:?}");
}

#[test]
fn what_only_its_cluster_has_is_refused_line_by_line() {
    let pod = "      serviceAccountName: robot\n      volumes:\n      - name: data\n        persistentVolumeClaim: {claimName: a}\n      \
               - name: cfg\n        configMap: {name: b}\n      initContainers:\n      - {name: i, image: j}\n";
    let container = "        env:\n        - name: TOKEN\n          valueFrom: {secretKeyRef: {name: s, key: k}}\n        \
                     - {name: RANK, value: \"0\"}\n        envFrom: [{configMapRef: {name: m}}]\n        command: [x]\n        \
                     volumeMounts:\n        - {name: data, mountPath: /data}\n        resources: {limits: {rdma/hca: 1}}\n      \
                     - {name: side, image: log:1}\n";
    let text = manifest("", pod, container);
    let wrong = refused(&text);
    let at = |what: &str| text.lines().position(|l| l.contains(what)).expect("there") + 1;
    for (what, key) in [
        ("persistentVolumeClaim", "volumes[0].persistentVolumeClaim"),
        ("configMap: {", "volumes[1].configMap"),
        ("{name: i,", "initContainers"),
        ("valueFrom", "env[0].valueFrom"),
        ("envFrom", "envFrom"),
        ("mountPath", "volumeMounts[0]"),
        ("rdma/hca", "rdma/hca"),
        ("side", "containers[1]"),
    ] {
        let line = at(what);
        let named = |w: &String| w.starts_with(&format!("line {line}: ")) && w.contains(key);
        assert!(wrong.iter().any(named), "{line} {key}: {wrong:#?}");
    }
    assert_eq!(wrong.len(), 8, "{wrong:#?}");
}

#[test]
fn selectors_name_models_regions_and_labels() {
    let gpus = "        command: [x]\n        resources: {limits: {nvidia.com/gpu: 1}}\n";
    let pod = "      nodeSelector: {topology.kubernetes.io/region: eu-west, net: ib, kubernetes.io/os: linux}\n      affinity:\n        \
               nodeAffinity:\n          requiredDuringSchedulingIgnoredDuringExecution:\n            nodeSelectorTerms:\n            \
               - matchExpressions:\n              - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H100-80GB-HBM3, NVIDIA-H200]}\n";
    let (spec, notes) = made(&manifest("", pod, gpus));
    assert_eq!(spec.resources.gpu, ["H100", "H200"]);
    assert_eq!(
        (spec.placement.regions, spec.placement.labels["net"].as_str()),
        (vec!["eu-west".to_owned()], "ib")
    );
    assert_eq!(notes.len(), 1, "{notes:?}");
    for (pod, named) in [
        ("      nodeSelector: {kubernetes.io/hostname: n1}\n", "names a node"),
        ("      nodeSelector: {nvidia.com/gpu.product: MI300X}\n", "another maker"),
        ("      nodeSelector: {nvidia.com/gpu.product: A100-MIG-1g.5gb}\n", "parts of a GPU"),
        ("      nodeName: n1\n", "names a node"),
        (
            "      affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z}]}}\n",
            "other pods",
        ),
    ] {
        let wrong = refused(&manifest("", pod, gpus));
        assert!(wrong.len() == 1 && wrong[0].contains(named), "{pod}: {wrong:?}");
    }
    let ascend = "        command: [x]\n        resources: {limits: {huawei.com/Ascend910: 8}}\n";
    assert_eq!(made(&manifest("", "", ascend)).0.resources.gpu.len(), 3);
    let none = refused(&manifest(
        "",
        "      nodeSelector: {nvidia.com/gpu.product: T4}\n",
        "        command: [x]\n",
    ));
    assert!(none[0].contains("and no GPU"), "{none:?}");
}

#[test]
fn rules_about_one_label_hold_together() {
    let gpus = "        command: [x]\n        resources: {limits: {nvidia.com/gpu: 1}}\n";
    let pod = |selector: &str, rules: &str| {
        format!(
            "      nodeSelector: {{{selector}}}\n      affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
             {{nodeSelectorTerms: [{{matchExpressions: [{rules}]}}]}}}}}}\n"
        )
    };
    let rule = |key: &str, values: &str| format!("{{key: {key}, operator: In, values: [{values}]}}");
    let (product, region) = ("nvidia.com/gpu.product", "topology.kubernetes.io/region");
    let of = |selector: &str, rules: &str| made(&manifest("", &pod(selector, rules), gpus)).0;
    // A family and its members, and two labels that name products.
    let some = rule(product, "NVIDIA-A100-SXM4-80GB, NVIDIA-H100-80GB-HBM3");
    assert_eq!(of(&format!("{product}: A100"), &some).resources.gpu, ["A100-80G"]);
    let google =
        format!("{some}, {}", rule("cloud.google.com/gke-accelerator", "nvidia-h100-80gb, nvidia-l4"));
    assert_eq!(of("a: b", &google).resources.gpu, ["H100"]);
    let regions = rule(region, "eu, us");
    assert_eq!(of(&format!("{region}: us"), &regions).placement.regions, ["us"]);
    assert_eq!(of("net: ib", &rule("net", "ib")).placement.labels["net"], "ib");
    for (selector, rules, named) in [
        (format!("{product}: L4"), some, "no GPU is A100-80G, H100 and L4, which another rule asks for"),
        (format!("{region}: asia"), regions, "no node is in eu, us and in asia, which another rule asks for"),
        (
            "net: ib".into(),
            rule("net", "roce"),
            "no node has \"roce\" and \"ib\", which another rule asks for",
        ),
    ] {
        let wrong = refused(&manifest("", &pod(&selector, &rules), gpus));
        assert!(wrong.len() == 1 && wrong[0].contains(named), "{selector}: {wrong:?}");
    }
}

/// What a program sees that is started as this with the peer's own variables: these names, in order.
fn seen(run: &Run, peers: &[(&str, &str)], names: &[&str]) -> Vec<String> {
    let Run::Argv(argv) = run else { panic!("{run:?}") };
    let out = std::process::Command::new(&argv[0])
        .args(&argv[1..])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(peers.iter().copied())
        .output()
        .expect("there is a shell");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let value = |name: &&str| {
        let found = text.lines().find_map(|l| l.strip_prefix(&format!("{name}=")));
        found.unwrap_or("(none)").to_owned()
    };
    names.iter().map(value).collect()
}

#[test]
fn a_rank_that_is_the_index_is_what_it_was() {
    let from = "valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}}";
    let env: String = ["RANK", "NODE_RANK", "LOCAL_RANK"]
        .iter()
        .map(|name| format!("        - name: {name}\n          {from}\n"))
        .collect();
    let container = format!("        command: [env]\n        env:\n{env}");
    let names = ["JOB_COMPLETION_INDEX", "RANK", "NODE_RANK", "LOCAL_RANK"];
    // An array: the peer would say 0 to each of its jobs.
    let (spec, notes) =
        made(&manifest("  completions: 9\n  parallelism: 3\n  completionMode: Indexed\n", "", &container));
    let peers = [("STARLING_ARRAY_INDEX", "7"), ("RANK", "0"), ("NODE_RANK", "0"), ("LOCAL_RANK", "0")];
    assert_eq!(seen(&spec.run, &peers, &names), ["7", "7", "7", "7"]);
    assert!(!notes.iter().any(|n| n.contains("to the same")), "{notes:?}");
    let told = notes
        .iter()
        .filter(|n| n.contains("is the index, as under Kubernetes") && n.contains("WORLD_SIZE is 1"));
    assert_eq!(told.count(), 3, "{notes:?}");
    // One job of several nodes: the index is the rank, but never the place on a node.
    let (spec, notes) =
        made(&manifest("  completions: 9\n  parallelism: 9\n  completionMode: Indexed\n", "", &container));
    let peers = [("RANK", "7"), ("NODE_RANK", "7"), ("LOCAL_RANK", "0")];
    assert_eq!(seen(&spec.run, &peers, &names), ["7", "7", "7", "7"]);
    assert_eq!(notes.iter().filter(|n| n.contains("to the same")).count(), 2, "{notes:?}");
    // One index: it is 0 in every way.
    let (spec, notes) = made(&manifest("  completions: 1\n  completionMode: Indexed\n", "", &container));
    assert_eq!(spec.env["JOB_COMPLETION_INDEX"], "0");
    assert_eq!(notes.iter().filter(|n| n.contains("to the same")).count(), 3, "{notes:?}");
    // What cannot be the same is refused, or its value said.
    let array = "  completions: 9\n  parallelism: 3\n  completionMode: Indexed\n";
    let refuse = |container: &str| refused(&manifest(array, "", container));
    for (container, named) in [
        (
            format!("        command: [x]\n        env:\n        - name: WORLD_SIZE\n          {from}\n"),
            "set by the peer, to 1",
        ),
        (
            format!("        command: [x, $(RANK)]\n        env:\n        - name: RANK\n          {from}\n"),
            "only the attempt knows RANK: let a shell read it, as $RANK",
        ),
        (
            format!(
                "        command: [x]\n        env:\n        - name: I\n          {from}\n        - {{name: OUT, value: out/$(I)}}\n"
            ),
            "only the attempt knows I: make OUT in command",
        ),
        (
            "        command: [x]\n        args: [$(JOB_COMPLETION_INDEX)]\n".into(),
            "as $JOB_COMPLETION_INDEX",
        ),
    ] {
        let wrong = refuse(&container);
        assert!(wrong.len() == 1 && wrong[0].contains(named), "{container}: {wrong:?}");
    }
    let (_, notes) = made(&manifest(
        "",
        "",
        "        command: [x, $$(RANK)]\n        env: [{name: RANK, value: \"5\"}]\n",
    ));
    assert!(notes[0].contains("RANK is set by the peer, to 0"), "{notes:?}");
}

#[test]
fn environment_and_resources_are_read_as_kubernetes_does() {
    let container = "        command: [sh, -c, 'echo $(A) $$(A) $(B) $HOME']\n        env:\n        - {name: A, value: a}\n        \
                     - {name: EMPTY}\n        - {name: C, value: \"$(A)/c\"}\n        - {name: N, value: \"1.10\"}\n        \
                     resources: {requests: {cpu: 500m, memory: 1G}, limits: {cpu: 2, memory: 1.5Gi}}\n";
    let (spec, notes) = made(&manifest("", "", container));
    assert_eq!(spec.run, Run::Argv(vec!["sh".into(), "-c".into(), "echo a $(A) $(B) $HOME".into()]));
    assert_eq!(
        (spec.env["EMPTY"].as_str(), spec.env["C"].as_str(), spec.env["N"].as_str()),
        ("", "a/c", "1.10")
    );
    assert_eq!((spec.resources.cpus.0, spec.resources.memory.0), (500, 3 << 29));
    assert_eq!(notes.len(), 2, "{notes:?}");
    let index = "        command: [x]\n        env: [{name: SHARD, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}}}]\n";
    let (spec, _) =
        made(&manifest("  completions: 2\n  parallelism: 1\n  completionMode: Indexed\n", "", index));
    let Run::Argv(run) = spec.run else { panic!("argv") };
    assert!(run[2].contains("SHARD=\"$STARLING_ARRAY_INDEX\"; export SHARD"), "{run:?}");
    let args = refused(&manifest("", "", "        args: [--fast]\n"));
    assert!(args[0].contains("line 12: spec.template.spec.containers[0].args"), "{args:?}");
    assert_eq!(made(&manifest("", "", "")).0.run, Run::Image);
}

/// Fields of these objects in Kubernetes 1.34; whatever is not read must be named.
const POD_FIELDS: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resourceClaims",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];
const CONTAINER_FIELDS: &[&str] = &[
    "env",
    "envFrom",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
    "args",
];
const JOB_FIELDS: &[&str] = &[
    "activeDeadlineSeconds",
    "backoffLimitPerIndex",
    "completionMode",
    "completions",
    "managedBy",
    "manualSelector",
    "maxFailedIndexes",
    "parallelism",
    "podFailurePolicy",
    "podReplacementPolicy",
    "selector",
    "successPolicy",
    "suspend",
    "ttlSecondsAfterFinished",
];

/// Everything that is said of a file, and the job.
fn all_said(text: &str) -> (String, Json) {
    match bring(text.as_bytes(), "/w") {
        Some(Ok(b)) => (b.notes.iter().map(|n| format!("{n}\n")).collect(), b.document),
        Some(Err(r)) => (r.lines.iter().chain(&r.notes).map(|n| format!("{n}\n")).collect(), Json::Null),
        None => panic!("not taken: {text}"),
    }
}

#[test]
fn no_field_is_dropped_in_silence() {
    let base = manifest("", "", "        command: [x]\n");
    let (quiet, plain) = all_said(&base);
    assert_eq!(quiet, "");
    // What kubectl writes and says nothing is no field.
    let written = base.replace("{name: x}", "{name: x, creationTimestamp: null}")
        + "        resources: {}\nstatus: {}\n";
    assert_eq!(all_said(&written), (String::new(), plain.clone()));
    let value = |field: &str| match field {
        "activeDeadlineSeconds" | "completions" | "backoffLimitPerIndex" => "7",
        "parallelism" => "2",
        "restartPolicy" => "OnFailure",
        "suspend" | "privileged" => "true",
        "completionMode" => "Indexed",
        "containers" | "env" | "volumes" | "volumeMounts" | "args" => "[{zzz: 1}]",
        "workingDir" => "/x",
        _ => "{zzz: 1}",
    };
    let told = |text: String, field: &str| {
        let (said, job) = all_said(&text);
        assert!(said.contains(field) || job != plain && job != Json::Null, "{field}: {said}\n{job}");
    };
    for field in POD_FIELDS {
        let known = POD.iter().any(|(name, ..)| name == field) || READ.contains(field);
        assert!(known, "{field} is in no table");
        if !["restartPolicy", "containers"].contains(field) {
            told(
                manifest("", &format!("      {field}: {}\n", value(field)), "        command: [x]\n"),
                field,
            );
        }
    }
    for field in CONTAINER_FIELDS {
        told(manifest("", "", &format!("        command: [x]\n        {field}: {}\n", value(field))), field);
    }
    for field in JOB_FIELDS {
        told(manifest(&format!("  {field}: {}\n", value(field)), "", "        command: [x]\n"), field);
    }
    for (at, text) in [
        ("zzz", base.replace("kind: Job", "kind: Job\nzzz: 1")),
        ("metadata.zzz", base.replace("{name: x}", "{name: x, zzz: 1}")),
        ("spec.zzz", manifest("  zzz: 1\n", "", "        command: [x]\n")),
        ("spec.template.spec.zzz", manifest("", "      zzz: 1\n", "        command: [x]\n")),
        ("containers[0].zzz", manifest("", "", "        command: [x]\n        zzz: 1\n")),
    ] {
        let (said, _) = all_said(&text);
        assert!(said.contains(&format!("{at}: 1: cannot be carried over")), "{at}: {said}");
    }
}

use super::kubernetes::{POD_LEFT as POD, READ};

#[test]
fn other_objects_and_other_documents_are_named() {
    let job = manifest("", "", "        command: [x]\n");
    let two = format!("---\n# with its settings\n---\napiVersion: v1\nkind: ConfigMap\n---\n{job}---\n");
    let wrong = refused(&two);
    assert_eq!(wrong.len(), 1);
    assert!(wrong[0].starts_with("line 4: \"ConfigMap\": cannot be carried over"), "{wrong:?}");
    assert!(made(&format!("---\n{job}")).0.name == "x");
    for (kind, version) in
        [("CronJob", "batch/v1"), ("Pod", "v1"), ("Job", "batch/v1beta1"), ("PyTorchJob", "kubeflow.org/v1")]
    {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{}}\n");
        assert!(refused(&text)[0].contains("only a Job of batch/v1"), "{kind}");
    }
    let json = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"backoffLimit": 0, "template": {"spec": {
        "containers": [{"name": "c", "image": "i", "command": ["x"]}]}}}});
    assert_eq!(made(&json.to_string()).0.name, "j");
    // A queue of Kueue's is why it is suspended.
    let queued = job.replace("{name: x}", "{name: x, labels: {kueue.x-k8s.io/queue-name: q}}");
    let (_, notes) = made(&queued.replace("  backoffLimit: 0\n", "  backoffLimit: 0\n  suspend: true\n"));
    assert!(notes.iter().any(|n| n.contains("Kueue")), "{notes:?}");
}

#[test]
fn our_own_files_stay_ours() {
    for text in [
        "run: x\n",
        "name: a\nrun: echo hi\nresources: {gpus: 1, gpu: A100}\n",
        "name: a\nnodes: 2\nsetup: x\nrun: y\n",
        "resources: {gpus: 2, region: eu}\nrun: y\n",
        "run: [\n",
        "",
        "a\n---\nb\n",
    ] {
        assert_eq!(bring(text.as_bytes(), "/w"), None, "{text}");
    }
    for file in ["awk.yaml", "gang.yaml", "placed.yaml", "retry.yaml", "train.yaml", "seed-request.json"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples").join(file);
        assert_eq!(bring(&std::fs::read(path).expect("there"), "/w"), None, "{file}");
    }
}

#[test]
fn a_task_of_skypilot() {
    let (spec, notes) = made(include_str!("../../../docs/examples/bring/skypilot.yaml"));
    assert_eq!((spec.name.as_str(), spec.nodes, spec.resources.gpus), ("pretrain", 2, 2));
    assert_eq!(spec.resources.gpu, ["A100-80G", "H100"]);
    assert_eq!((spec.resources.cpus.0, spec.resources.memory), (8_000, crate::base::Bytes::gib(64)));
    assert_eq!((spec.preemptible, spec.env["STEPS"].as_str()), (Some(true), "1000"));
    for (line, key) in [(8, "resources.use_spot"), (12, "setup"), (14, "run")] {
        assert!(
            notes.iter().any(|n| n.starts_with(&format!("line {line}: {key}"))),
            "{line} {key}: {notes:#?}"
        );
    }
    assert_eq!(notes.len(), 3, "{notes:#?}");
}

#[test]
fn a_tasks_scripts_find_their_variables() {
    let text = "name: t\nnum_nodes: 2\nresources: {accelerators: A100:4, cpus: 1}\nenvs: {WHO: me}\nsetup: echo setup $SKYPILOT_SETUP_NODE_RANK\nrun: |\n  \
                echo \"$WHO $SKYPILOT_NODE_RANK/$SKYPILOT_NUM_NODES $SKYPILOT_NUM_GPUS_PER_NODE\"\n  echo \"$SKYPILOT_NODE_IPS\" | wc -l\n  exit 3\n";
    let (spec, _) = made(text);
    let Run::Argv(run) = &spec.run else { panic!("{:?}", spec.run) };
    let ran = |run: &[String]| {
        let mut command = std::process::Command::new(&run[0]);
        command.args(&run[1..]).envs(&spec.env).env_remove("SLURM_JOB_NODELIST");
        let out = command
            .env("RANK", "1")
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "10.0.0.1")
            .env("STARLING_JOB_ID", "j")
            .output()
            .expect("there is bash");
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    assert_eq!(ran(run), (Some(3), "setup 1\nme 1/2 4\n2\n".to_owned()));
    let (spec, _) = made("setup: \"false\"\nresources: {cpus: 1}\nrun: echo no\n");
    let Run::Argv(run) = &spec.run else { panic!("{:?}", spec.run) };
    assert_eq!(ran(run), (Some(100), String::new()), "a setup that fails ends it");
}

#[test]
fn what_a_task_wishes_of_machines() {
    let of = |resources: &str| made(&format!("resources: {resources}\nrun: x\nenvs: {{A: b}}\n")).0;
    let refuse = |resources: &str| refused(&format!("resources: {resources}\nrun: x\nenvs: {{A: b}}\n"));
    for (text, models, n) in [
        ("{accelerators: A100:8}", vec!["A100"], 8),
        ("{accelerators: A100}", vec!["A100"], 1),
        ("{accelerators: {A100: 8}}", vec!["A100"], 8),
        ("{accelerators: {\"A100:8\", \"H100:8\"}}", vec!["A100", "H100"], 8),
        ("{accelerators: [H100:2, L4:2]}", vec!["H100", "L4"], 2),
        ("{any_of: [{accelerators: H100:2}, {accelerators: A100-80GB:2}]}", vec!["H100", "A100-80G"], 2),
    ] {
        let spec = of(text);
        assert_eq!(
            (spec.resources.gpu, spec.resources.gpus),
            (models.into_iter().map(String::from).collect(), n),
            "{text}"
        );
    }
    let spec = of("{infra: aws/us-east-1, cpus: 4, memory: 16GB, image_id: \"docker:repo/x:1\"}");
    assert_eq!(
        (spec.placement.regions, spec.image.as_deref()),
        (vec!["us-east-1".to_owned()], Some("repo/x:1"))
    );
    assert_eq!(
        (spec.placement.labels["cloud"].as_str(), spec.resources.memory),
        ("aws", crate::base::Bytes::gib(16))
    );
    for (infra, regions, zones) in [
        ("aws/us-east-1/us-east-1a", vec!["us-east-1"], vec!["us-east-1a"]),
        ("aws/*/us-east-1a", vec![], vec!["us-east-1a"]),
        ("aws//us-east-1a", vec![], vec!["us-east-1a"]),
        ("'*/us-east-1'", vec!["us-east-1"], vec![]),
        ("/us-east-1/", vec!["us-east-1"], vec![]),
        ("AWS/*/*", vec![], vec![]),
    ] {
        let placement = of(&format!("{{infra: {infra}}}")).placement;
        assert_eq!((placement.regions, placement.zones), (owned(&regions), owned(&zones)), "{infra}");
    }
    assert_eq!(of("{cloud: kubernetes}").placement.labels["scheduler"], "kubernetes");
    assert_eq!(of("{any_of: [{region: a}, {region: b}]}").placement.regions, ["a", "b"]);
    assert_eq!(of("{any_of: [{use_spot: false}, {use_spot: true}]}").preemptible, Some(true));
    assert_eq!(of("{job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 3}}").retries, 3);
    for (text, named) in [
        ("{accelerators: tpu-v5e-8}", "TPUs"),
        ("{accelerators: T4:0.5}", "whole number"),
        ("{accelerators: [A100:8, H100:4]}", "one count"),
        ("{any_of: [{accelerators: A100:8}, {accelerators: H100:4}]}", "differ in one thing"),
        ("{any_of: [{region: a, use_spot: true}, {region: b}]}", "differ in one thing"),
        ("{instance_type: p4d.24xlarge}", "no instance types"),
        ("{image_id: ami-1}", "docker:IMAGE"),
        ("{memory: 4x}", "multiples"),
        ("{infra: k8s/mine}", "context"),
        ("{cloud: aws, zzz: 1}", "resources.zzz"),
        ("{infra: aws/eu/a/b}", "CLOUD/REGION/ZONE"),
        ("{infra: aws, zone: a}", "resources.zone: \"a\": cannot be carried over: infra says it too"),
    ] {
        let wrong = refuse(text);
        assert!(wrong.len() == 1 && wrong[0].contains(named), "{text}: {wrong:?}");
    }
}

#[test]
fn what_a_task_cannot_have_is_refused() {
    let text = "workdir: {url: git}\nnum_nodes: 1\nresources: {cpus: 1}\nfile_mounts:\n  /data: s3://b/x\n  /code: ./src\nsecrets:\n  KEY: hush\n\
                envs:\n  TOKEN: null\nservice: {replicas: 2}\nrun: echo $SKYPILOT_CLUSTER_INFO\n";
    let wrong = refused(text);
    for named in [
        "line 1: workdir",
        "line 5: file_mounts./data",
        "line 6: file_mounts./code",
        "line 8: secrets.KEY: cannot",
        "line 10: envs.TOKEN",
        "line 11: service",
        "line 12: run",
    ] {
        assert!(wrong.iter().any(|w| w.starts_with(named)), "{named}: {wrong:#?}");
    }
    assert!(wrong.len() == 7 && !wrong.iter().any(|w| w.contains("hush")), "{wrong:#?}");
    let (spec, notes) = made("workdir: .\nresources: {cpus: 2+}\nrun: x\n");
    assert_eq!(spec.workdir.as_deref(), Some("/home/u"));
    assert!(notes[0].contains("nothing is uploaded"), "{notes:?}");
    let two = refused("name: p\n---\nname: a\nresources: {cpus: 2+}\nrun: x\n");
    assert!(two[0].contains("pipeline"), "{two:?}");
    assert!(refused("setup: x\n")[0].contains("run: is missing"));
}

/// Trees of the words of both kinds, so that random ones go deep.
fn junk() -> impl Strategy<Value = Json> {
    let words: Vec<&str> = POD_FIELDS
        .iter()
        .chain(CONTAINER_FIELDS)
        .chain(JOB_FIELDS)
        .copied()
        .chain([
            "apiVersion",
            "kind",
            "metadata",
            "spec",
            "template",
            "name",
            "value",
            "valueFrom",
            "fieldRef",
            "limits",
            "requests",
            "cpu",
            "memory",
            "nvidia.com/gpu",
            "amd.com/gpu",
            "num_nodes",
            "accelerators",
            "any_of",
            "infra",
            "use_spot",
            "setup",
            "run",
            "envs",
            "file_mounts",
            "workdir",
            "matchExpressions",
            "nodeSelectorTerms",
            "nvidia.com/gpu.product",
            "command",
            "image",
            "mountPath",
            "emptyDir",
            "job_recovery",
            "backoffLimit",
        ])
        .collect();
    let scalar = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        (0..5i64).prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "\\PC{0,12}".prop_map(Json::from),
        proptest::sample::select(vec![
            "batch/v1",
            "Job",
            "Indexed",
            "Never",
            "A100:8",
            "$(A)$$(B)",
            "1.5Gi",
            "500m",
            "é$(",
            "aws/eu",
            "8+",
            "docker:x",
        ])
        .prop_map(Json::from),
    ];
    scalar.prop_recursive(6, 96, 8, move |inner| {
        let words = words.clone();
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            proptest::collection::btree_map(proptest::sample::select(words), inner, 0..8)
                .prop_map(|m| Json::Object(m.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

fn held(result: Option<Result<Brought, Refused>>) {
    match result {
        Some(Ok(made)) => {
            parse_spec(made.document.to_string().as_bytes()).expect("what is made is a job");
        }
        Some(Err(refused)) => assert!(!refused.lines.is_empty()),
        None => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn junk_is_a_job_or_is_refused(tree in junk(), job in junk(), pod in junk(), container in junk(), resources in junk()) {
        held(bring(tree.to_string().as_bytes(), "/w"));
        // Into each place of a manifest and of a task.
        let mut whole = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": tree, "spec": {"template": {"spec": {
            "containers": [{"image": "i", "command": ["x"]}]}}}});
        held(bring(whole.to_string().as_bytes(), "/w"));
        let pour = |into: &mut Json, from: &Json| {
            if let (Json::Object(into), Json::Object(from)) = (into, from) {
                into.extend(from.clone());
            }
        };
        whole["metadata"] = json!({"name": "n"});
        pour(&mut whole["spec"], &job);
        held(bring(whole.to_string().as_bytes(), "/w"));
        whole["spec"] = json!({"template": {"spec": {"containers": [{"image": "i", "command": ["x"]}]}}});
        pour(&mut whole["spec"]["template"]["spec"], &pod);
        held(bring(whole.to_string().as_bytes(), "/w"));
        whole["spec"] = json!({"template": {"spec": {"containers": [{"image": "i", "command": ["x"], "resources": resources.clone()}]}}});
        pour(&mut whole["spec"]["template"]["spec"]["containers"][0], &container);
        held(bring(whole.to_string().as_bytes(), "/w"));
        let mut task = json!({"num_nodes": 2, "run": "x", "resources": resources});
        held(bring(task.to_string().as_bytes(), "/w"));
        pour(&mut task, &pod);
        held(bring(task.to_string().as_bytes(), "/w"));
    }

    #[test]
    fn any_text_is_taken_or_left(text in "\\PC{0,200}", cut in 0usize..2_000) {
        held(bring(text.as_bytes(), "/w"));
        let whole = include_str!("../../../docs/examples/bring/train-job.yaml");
        let end = whole.char_indices().map(|(i, _)| i).take_while(|i| *i <= cut).last().unwrap_or(0);
        held(bring(&whole.as_bytes()[..end], "/w"));
    }
}
