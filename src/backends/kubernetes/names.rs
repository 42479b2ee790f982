//! The name of an attempt's Job, and the labels by which an object is ours.

use std::collections::BTreeMap;

use super::objects::Meta;
use crate::backends::local::parse_key;
use crate::core::api::AttemptKey;

/// Label: the attempt's job.
pub const JOB: &str = "starling/job";
/// Label: its epoch.
pub const EPOCH: &str = "starling/epoch";
/// Label: the peer that made it.
pub const PEER: &str = "starling/peer";
/// Label: the mesh of that peer.
pub const MESH: &str = "starling/mesh";
/// Label: tells the objects of this life of the attempt's folder from those of another one under its name.
pub const MARK: &str = "starling/mark";
/// Annotation and label of the pods of Indexed Jobs: their rank.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Keeps a Job until its result is kept here, whoever deletes it (a TTL, a user).
pub const FINALIZER: &str = "starling/result";

/// The name of an attempt's Job, and of what belongs to it.
pub fn native_name(key: AttemptKey) -> String {
    format!("starling-{key}")
}

/// The attempt of a name.
pub fn read_name(name: &str) -> Option<AttemptKey> {
    parse_key(name.strip_prefix("starling-")?)
}

/// The labels of an attempt's objects.
pub fn labels(key: AttemptKey, mark: &str, peer: &str, mesh: &str) -> BTreeMap<String, String> {
    let pairs = [
        (JOB, key.job.to_string()),
        (EPOCH, key.epoch.to_string()),
        (PEER, peer.to_owned()),
        (MESH, mesh.to_owned()),
        (MARK, mark.to_owned()),
    ];
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
}

/// Whose objects are ours. Labels are anybody's to write: they count in our namespace only, and all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// Where our objects are.
    pub namespace: String,
    /// The peer that made them.
    pub peer: String,
    /// The mesh of that peer.
    pub mesh: String,
}

impl Own {
    /// The attempt and the mark of an object that is ours.
    pub fn read<'a>(&self, meta: &'a Meta) -> Option<(AttemptKey, &'a str)> {
        let says = |label: &str, value: &String| meta.labels.get(label) == Some(value);
        let ours = meta.namespace == self.namespace && says(PEER, &self.peer) && says(MESH, &self.mesh);
        read_labels(&meta.labels).filter(|_| ours)
    }
}

/// The attempt and the mark that labels name.
pub fn read_labels(labels: &BTreeMap<String, String>) -> Option<(AttemptKey, &str)> {
    let key = parse_key(&format!("{}-{}", labels.get(JOB)?, labels.get(EPOCH)?))?;
    Some((key, labels.get(MARK)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, JobId};

    #[test]
    fn names_and_labels_read_back() {
        let key = AttemptKey { job: JobId([250; 20]), epoch: Epoch(123_456) };
        let name = native_name(key);
        // A pod's name gets an index and five letters more, a host name must not be longer than 63.
        assert!(name.len() <= 50, "{name}");
        assert_eq!(read_name(&name), Some(key));
        assert_eq!(read_name("starling-x"), None);
        let labels = labels(key, "abcd", "here", "m");
        assert_eq!(read_labels(&labels), Some((key, "abcd")));
        assert!(labels.values().all(|v| v.len() <= 63));
        assert_eq!(read_labels(&BTreeMap::new()), None);
    }
}
