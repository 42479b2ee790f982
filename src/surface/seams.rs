//! What the surface needs from modules that are written at the same time: one place to join them.

use serde_json::Value;

use crate::model::config::Config;
use crate::model::report::MemberView;
use crate::model::spec_input::{self, ParsedSpec};

/// All mistakes of a document, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(pub Vec<String>);

/// Reads a YAML or JSON job document; what is wrong with it, line by line.
pub fn parse_spec(text: &str) -> Result<ParsedSpec, Mistakes> {
    spec_input::parse_spec(text.as_bytes()).map_err(|errors| match errors.mistakes() {
        [] => Mistakes(vec![errors.to_string()]),
        list => Mistakes(list.iter().map(ToString::to_string).collect()),
    })
}

/// SEAM(model::report_json): the member status report of one cluster.
pub fn status_report(member: &MemberView) -> Value {
    serde_json::json!({ "cluster_id": member.peer, "status": member.liveness })
}

/// Names every mistake of a configuration file.
pub fn check_config(text: &str) -> Result<(), Mistakes> {
    match Config::check(text) {
        Ok(_) => Ok(()),
        Err(list) => Err(Mistakes(list.iter().map(ToString::to_string).collect())),
    }
}
