//! Exit codes, and which failure gives which.

use super::super::client::{ClientFailure, Target};
use super::super::documents::{ErrorBody, ErrorDocument};

/// The codes with their meaning, as docs/reference/cli.md lists them.
pub const EXIT_CODES: &[(u8, &str)] = &[
    (OK, "done; for `wait` and `--wait`: every job succeeded"),
    (JOB_FAILED, "a job that was waited for failed or was cancelled"),
    (USAGE, "the command line, the job file or the configuration has mistakes; nothing changed"),
    (NOT_FOUND, "no such job, reservation, incident, cluster, member or log"),
    (
        UNREACHABLE,
        "no peer answers at the address, or none of the mesh of `--ca`, or the cluster that has the answer cannot be reached",
    ),
    (REFUSED, "refused: a conflict, no right, or no room; nothing changed"),
    (UNKNOWN, "outcome unknown or time is up: ask again with the same key or id, at any peer: that is safe"),
    (PARTIAL, "`jobs --complete`: some members did not answer"),
    (FAULT, "a fault of Starling or of this machine: please report it"),
];

/// Beyond those, the codes of `up`: a service manager may tell them apart.
pub const UP_EXIT_CODES: &[(u8, &str)] = &[
    (UP_FAULT, "`up`: a fault of Starling or of this machine, such as a backend that cannot be used"),
    (UP_DISK, "`up`: the state folder cannot be made, read or written, or the store is damaged"),
];

/// `up`: not the disk's fault.
pub const UP_FAULT: u8 = 70;
/// `up`: the disk's fault.
pub const UP_DISK: u8 = 74;

/// Done.
pub const OK: u8 = 0;
/// A job failed.
pub const JOB_FAILED: u8 = 1;
/// A mistake of the caller.
pub const USAGE: u8 = 2;
/// No such thing.
pub const NOT_FOUND: u8 = 3;
/// Nobody answers.
pub const UNREACHABLE: u8 = 4;
/// Refused.
pub const REFUSED: u8 = 5;
/// Outcome unknown.
pub const UNKNOWN: u8 = 6;
/// Some did not answer.
pub const PARTIAL: u8 = 7;
/// A fault.
pub const FAULT: u8 = 8;

/// Why a command did not do what it says.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The API or the way to it.
    #[error(transparent)]
    Client(#[from] ClientFailure),
    /// A mistake of the caller.
    #[error("{0}")]
    Usage(String, String),
    /// Several mistakes of the caller: in short, what to do, and each of them.
    #[error("{0}")]
    Lines(String, String, Vec<String>),
    /// This machine.
    #[error("{0}")]
    Io(String),
}

impl Failure {
    /// A mistake, and what to do about it.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage(message.into(), hint.into())
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(..) | Self::Lines(..) | Self::Client(ClientFailure::Setup(_)) => USAGE,
            Self::Io(_) | Self::Client(ClientFailure::Protocol(..)) => FAULT,
            Self::Client(ClientFailure::Unreachable(..) | ClientFailure::Untrusted(..)) => UNREACHABLE,
            Self::Client(ClientFailure::Broken(..)) => UNKNOWN,
            Self::Client(ClientFailure::Api(status, body)) => api_code(*status, &body.code),
        }
    }

    /// As an error document.
    pub fn document(&self) -> ErrorDocument {
        let (code, hint) = match self {
            Self::Client(ClientFailure::Api(_, body)) => return ErrorDocument { error: body.clone() },
            // Of this machine's own socket; of an address, what may be wrong with it.
            Self::Client(ClientFailure::Unreachable(Target::Unix(_), _)) => (
                "unreachable",
                "start one with `starling up`, or name another with --peer or STARLING_PEER".to_owned(),
            ),
            Self::Client(ClientFailure::Unreachable(..)) => (
                "unreachable",
                "is that where its API listens (`api.listen`; `starling peer` says it there) and is the way open? or name another peer with --peer or STARLING_PEER"
                    .to_owned(),
            ),
            Self::Client(ClientFailure::Untrusted(..)) => (
                "untrusted",
                "give --ca FILE (STARLING_CA) a copy of identity/ca.pem of a peer of that mesh; is it this address at all?"
                    .to_owned(),
            ),
            Self::Client(ClientFailure::Broken(..)) => {
                ("outcome_unknown", "ask again with the same key or id, at any peer; that is safe".to_owned())
            }
            Self::Client(ClientFailure::Protocol(..)) => {
                ("protocol", "is this a Starling peer of a like version? see `starling peer`".to_owned())
            }
            Self::Client(ClientFailure::Setup(_)) => ("usage", "see `starling --help`".to_owned()),
            Self::Usage(_, hint) | Self::Lines(_, hint, _) => ("usage", hint.clone()),
            Self::Io(_) => ("io", "see the message".to_owned()),
        };
        let details = if let Self::Lines(_, _, lines) = self { lines.clone() } else { Vec::new() };
        let error = ErrorBody { code: code.into(), message: self.to_string(), hint, details };
        ErrorDocument { error }
    }
}

fn api_code(status: u16, code: &str) -> u8 {
    match (status, code) {
        (_, "unreachable" | "stopping") => UNREACHABLE,
        (400 | 413 | 422, _) => USAGE,
        (404, _) => NOT_FOUND,
        (504, _) => UNKNOWN,
        (500, _) => FAULT,
        _ => REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_the_status_and_are_listed_once() {
        for (status, code, want) in [
            (409, "ambiguous", REFUSED),
            (422, "invalid_spec", USAGE),
            (404, "no_such_job", NOT_FOUND),
            (503, "unreachable", UNREACHABLE),
            (503, "disk_full", REFUSED),
            (504, "outcome_unknown", UNKNOWN),
            (401, "unauthorized", REFUSED),
        ] {
            assert_eq!(api_code(status, code), want, "{code}");
        }
        assert!(EXIT_CODES.iter().enumerate().all(|(i, (code, _))| i == usize::from(*code)));
    }
}
