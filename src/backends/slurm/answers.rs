//! What an answer of slurmrestd says of failures: an HTTP status says little there, `errors` does.

use hyper::StatusCode;
use serde_json::Value;

use super::driver::DriverError;
use super::parse;
use crate::base::text::words;

/// Slurm's number for "Invalid job id specified".
pub(super) const NO_SUCH_JOB: i64 = 2017;
/// Numbers of slurmctld's own answers.
const OWN_NUMBERS: std::ops::Range<i64> = 2_000..2_200;

/// The beginning of an answer.
pub(super) fn few_words(bytes: &[u8]) -> String {
    words(&String::from_utf8_lossy(bytes), 120)
}

fn errors(answer: &Value) -> &[Value] {
    answer.get("errors").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The numbers of what an answer says of failures.
pub(super) fn failures(answer: &Value) -> Vec<i64> {
    let number = |e: &Value| e.get("error_number").or_else(|| e.get("error_code")).and_then(Value::as_i64);
    errors(answer).iter().map(|e| number(e).unwrap_or(0)).collect()
}

/// Its words, shortened.
pub(super) fn error_words(answer: &Value) -> String {
    parse::error_texts(errors(answer))
}

pub(super) fn says_failed(answer: &Value) -> bool {
    !errors(answer).is_empty()
}

pub(super) fn no_job(answer: &Value) -> bool {
    failures(answer).contains(&NO_SUCH_JOB)
}

/// All that it says of failures is slurmctld's own answer; the rest is trouble on the way.
pub(super) fn slurms_own(answer: &Value) -> bool {
    let failed = failures(answer);
    !failed.is_empty() && failed.iter().all(|number| OWN_NUMBERS.contains(number))
}

/// An answer with a status that is none of success, in words.
pub(super) fn refused(path: &str, status: StatusCode, answer: &Value) -> DriverError {
    DriverError(format!("slurmrestd: {path}: {status}: {}", few_words(error_words(answer).as_bytes())))
}
