//! What the surface reads and writes through `model`, in the shape it needs.

use crate::model::config::Config;
use crate::model::report::MemberView;
use crate::model::report_json::StatusReport;
use crate::model::spec_input::{self, ParsedSpec, SpecDefaults};
use crate::surface::documents::{boottime_now, wall_now};

/// All mistakes of a document, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes(pub Vec<String>);

/// Reads a YAML or JSON job document; what is wrong with it, line by line.
pub fn parse_spec(text: &str, defaults: &SpecDefaults) -> Result<ParsedSpec, Mistakes> {
    spec_input::parse_spec_with(text.as_bytes(), defaults).map_err(|errors| match errors.mistakes() {
        [] => Mistakes(vec![errors.to_string()]),
        list => Mistakes(list.iter().map(ToString::to_string).collect()),
    })
}

/// The member status report of one cluster; none where nothing was heard of it yet.
pub fn status_report(member: &MemberView) -> Option<StatusReport> {
    let report = member.report.as_ref()?;
    Some(StatusReport::new(report, boottime_now().since(report.heard_at), wall_now()))
}

/// Names every mistake of a configuration file.
pub fn check_config(text: &str) -> Result<(), Mistakes> {
    match Config::check(text) {
        Ok(_) => Ok(()),
        Err(list) => Err(Mistakes(list.iter().map(ToString::to_string).collect())),
    }
}
