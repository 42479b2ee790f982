//! What the surface needs from modules that are written at the same time: one place to join them.

use serde_json::Value;

use crate::model::JobSpec;
use crate::model::report::MemberView;

/// All mistakes of a document, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(pub Vec<String>);

/// SEAM(model::spec_input): reads a YAML or JSON job document.
pub fn parse_spec(text: &str) -> Result<JobSpec, Mistakes> {
    let value: Value = serde_saphyr::from_str(text).map_err(|e| Mistakes(vec![e.to_string()]))?;
    let Value::Object(map) = &value else { return Err(Mistakes(vec!["the document is not a mapping".into()])) };
    let mut wrong: Vec<String> = map
        .keys()
        .filter(|k| !["name", "tenant", "run", "nodes", "resources"].contains(&k.as_str()))
        .map(|k| format!("{k}: not known"))
        .collect();
    let text_of = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    let run = text_of("run");
    if run.is_none() {
        wrong.push("run: missing".into());
    }
    if !wrong.is_empty() {
        return Err(Mistakes(wrong));
    }
    let gpus = map.get("resources").and_then(|r| r.get("gpus")).and_then(Value::as_u64).unwrap_or(0);
    Ok(JobSpec {
        name: text_of("name").unwrap_or_else(|| "job".into()),
        tenant: text_of("tenant").unwrap_or_else(|| "default".into()),
        priority: 50,
        resources: crate::model::Resources {
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            cpus: crate::base::MilliCpu(1000),
            ..Default::default()
        },
        nodes: map.get("nodes").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        run: crate::model::spec::Run::Script(run.unwrap_or_default()),
        env: Default::default(),
        workdir: None,
        image: None,
        data: Vec::new(),
        checkpoint: None,
        communication: Default::default(),
        max_runtime: None,
        retries: 0,
        on_lost_contact: Default::default(),
        placement: Default::default(),
    })
}

/// SEAM(model::report_json): the member status report of one cluster.
pub fn status_report(member: &MemberView) -> Value {
    serde_json::json!({ "cluster_id": member.peer, "status": member.liveness })
}

/// SEAM(model::config): names every mistake of a configuration file.
pub fn check_config(_text: &str) -> Result<(), Mistakes> {
    Err(Mistakes(vec!["this binary was built without the configuration reader".into()]))
}
