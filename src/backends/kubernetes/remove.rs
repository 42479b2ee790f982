//! Ending an attempt's pods, and taking away what Kubernetes has of it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use super::api::ApiError;
use super::names;
use super::objects::{Job, Meta};
use super::run::Watch;
use crate::base::Span;
use crate::core::api::AttemptKey;

/// Between two tries to remove what is not needed any more.
const REMOVE_AGAIN: Span = Span::secs(5);

impl Watch {
    /// Of the Job with this identity only, where it is known.
    pub(super) async fn suspend(
        &self,
        key: AttemptKey,
        uid: Option<&str>,
        suspend: bool,
    ) -> Result<(), ApiError> {
        let mut patch = json!({ "spec": { "suspend": suspend } });
        if let Some(uid) = uid {
            patch["metadata"] = json!({ "uid": uid });
        }
        self.api.patch(&self.jobs_folder(), &names::native_name(key), &patch).await
    }

    /// Deletes the Job of what has ended. Our finalizer keeps it until the result is kept; its pods stay as long.
    pub(super) async fn withdraw(&self, key: AttemptKey) {
        while let Err(error) = self.withdraw_once(key).await {
            tracing::info!(%key, trace = self.keeper.dir(key).trace(), %error, "a queued attempt's Job could not be deleted");
            if error == ApiError::Absent || self.pause(REMOVE_AGAIN).await {
                return;
            }
        }
    }

    async fn withdraw_once(&self, key: AttemptKey) -> Result<(), ApiError> {
        let (jobs, name) = (self.jobs_folder(), names::native_name(key));
        let Some(kept) = self.keeper.kept(key) else { return Ok(()) };
        let job: Job = self.api.get(&jobs, &name).await?;
        let ours = self.keeper.labels(key, &kept.mark);
        if ours.iter().any(|(k, v)| job.metadata.labels.get(k) != Some(v)) {
            return Ok(());
        }
        self.api.delete(&jobs, &name, &job.metadata.uid).await
    }

    /// Until Kubernetes has nothing of it, or the peer stops; the next run goes on with it.
    pub(super) async fn remove(&self, key: AttemptKey) {
        let held = |set: &Mutex<BTreeSet<AttemptKey>>, add: bool| {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            if add { set.insert(key) } else { set.remove(&key) }
        };
        if !held(&self.removing, true) {
            return;
        }
        loop {
            match self.remove_once(key).await {
                Ok(true) => break self.keeper.removed(key),
                Ok(false) => {}
                Err(error) => {
                    tracing::info!(%key, trace = self.keeper.dir(key).trace(), %error, "an attempt's Job could not be removed")
                }
            }
            if self.pause(REMOVE_AGAIN).await {
                break;
            }
        }
        held(&self.removing, false);
    }

    /// True where nothing of ours is there under its name.
    async fn remove_once(&self, key: AttemptKey) -> Result<bool, ApiError> {
        let Some(kept) = self.keeper.to_remove(key) else { return Ok(true) };
        let (jobs, name) = (self.jobs_folder(), names::native_name(key));
        let job: Job = match self.api.get(&jobs, &name).await {
            Ok(job) => job,
            Err(ApiError::Absent) => return Ok(true),
            Err(other) => return Err(other),
        };
        let ours = self.keeper.labels(key, &kept.mark);
        if ours.iter().any(|(k, v)| job.metadata.labels.get(k) != Some(v)) {
            // Somebody else's of the same name: untouched.
            return Ok(true);
        }
        let meta = job.metadata;
        if meta.deletion_timestamp.is_none() {
            self.api.delete(&jobs, &name, &meta.uid).await?;
            if meta.finalizers.iter().any(|f| f == names::FINALIZER) {
                // Deleted just now: its version has changed.
                return Box::pin(self.remove_once(key)).await;
            }
        }
        match self.let_go(&name, meta).await {
            Ok(()) | Err(ApiError::Absent) => Ok(true),
            Err(other) => Err(other),
        }
    }

    /// A Job that was deleted goes, as far as that is ours to say.
    async fn let_go(&self, name: &str, meta: Meta) -> Result<(), ApiError> {
        let Meta { uid, resource_version, finalizers, .. } = meta;
        if finalizers.iter().all(|f| f != names::FINALIZER) {
            return Ok(());
        }
        let rest: Vec<&String> = finalizers.iter().filter(|f| *f != names::FINALIZER).collect();
        // Nobody else's finalizer is lost to a change in between.
        let meta = json!({ "finalizers": rest, "uid": uid, "resourceVersion": resource_version });
        self.api.patch(&self.jobs_folder(), name, &json!({ "metadata": meta })).await
    }

    /// Ends its pods. A Job that was deleted does not do that by itself while our finalizer keeps it; it was to end,
    /// and what its pods say is heard from them.
    pub(super) async fn end(&self, key: AttemptKey, uid: Option<&str>) -> Result<(), ApiError> {
        let (name, kept) = (names::native_name(key), self.keeper.kept(key));
        let job: Job = self.api.get(&self.jobs_folder(), &name).await?;
        let ours = kept.map(|kept| self.keeper.labels(key, &kept.mark)).unwrap_or_default();
        let is_ours = !ours.is_empty() && ours.iter().all(|(k, v)| job.metadata.labels.get(k) == Some(v));
        if !is_ours || uid.is_some_and(|uid| uid != job.metadata.uid) {
            return Err(ApiError::Absent);
        }
        if job.metadata.deletion_timestamp.is_some() {
            return self.let_go(&name, job.metadata).await;
        }
        self.suspend(key, Some(&job.metadata.uid), true).await
    }
}
