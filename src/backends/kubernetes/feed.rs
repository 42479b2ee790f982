//! One watch per kind: listed once, then followed, with resume from the last version.
//!
//! A watch that breaks is no lost cluster: it goes on where it was. Only "410 Gone" makes it list again. A list that
//! is suddenly empty is not believed before a second one says the same.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::api::{Api, ApiError};
use super::objects::Object;
use super::stream::Change;
use crate::backends::local::clock;
use crate::base::{Instant, Span};

/// Between two tries, at first and at last.
const PAUSE_MIN: Span = Span::millis(500);
const PAUSE_MAX: Span = Span::secs(30);
/// Between an empty list and the one that must confirm it.
const CONFIRM: Duration = Duration::from_secs(2);

/// What is known of one kind.
#[derive(Debug)]
pub struct Mirror<V> {
    /// By name, or namespace and name.
    objects: Mutex<BTreeMap<String, V>>,
    state: Mutex<State>,
    /// Whole lists so far.
    lists: std::sync::atomic::AtomicU64,
}

#[derive(Debug, Default, Clone)]
struct State {
    /// Since when it fails; none while it goes.
    failing: Option<Instant>,
    listed: bool,
    /// The server said that this account may not.
    refused: Option<String>,
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Self { objects: Mutex::default(), state: Mutex::default(), lists: Default::default() }
    }
}

impl<V> Mirror<V> {
    /// What is known now.
    pub fn read(&self) -> MutexGuard<'_, BTreeMap<String, V>> {
        open(&self.objects)
    }

    /// It was listed, and has not failed for longer than this.
    pub fn fresh(&self, within: Span) -> bool {
        let state = open(&self.state);
        state.listed && state.failing.is_none_or(|since| clock::now().since(since) <= within)
    }

    /// The server's word that this account may not list it.
    pub fn refused(&self) -> Option<String> {
        open(&self.state).refused.clone()
    }

    /// Whole lists so far.
    pub fn lists(&self) -> u64 {
        self.lists.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Takes a whole list for what is known; what was known and is not in it.
    fn replace(&self, found: BTreeMap<String, V>) -> Vec<V> {
        let mut objects = self.read();
        let mut old = std::mem::replace(&mut *objects, found);
        old.retain(|name, _| !objects.contains_key(name));
        old.into_values().collect()
    }

    /// An empty one that was listed.
    #[cfg(test)]
    pub(super) fn listed() -> Self {
        let mirror = Self::default();
        mirror.lists.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        mirror
    }

    fn works(&self) {
        let mut state = open(&self.state);
        (state.failing, state.listed, state.refused) = (None, true, None);
    }

    fn fails(&self, error: &ApiError) {
        let mut state = open(&self.state);
        state.failing.get_or_insert(clock::now());
        if let ApiError::Refused(403, why) = error {
            state.refused = Some(why.clone());
        }
    }
}

/// Hears of what changed, and whether it is still there.
pub type Heard<V> = Box<dyn Fn(&V, bool) + Send + Sync>;

/// From an object to what is kept of it; none where nothing is.
pub type Keep<T, V> = Box<dyn Fn(&T) -> Option<V> + Send + Sync>;

/// What is watched.
pub struct Feed<T: Object, V> {
    /// Of the API: `/api/v1/pods`.
    pub folder: String,
    /// Selectors.
    pub query: String,
    /// What is kept.
    pub keep: Keep<T, V>,
    /// Where it is kept.
    pub mirror: Arc<Mirror<V>>,
    /// Called after each change with what changed, now or last.
    pub seen: Heard<V>,
}

fn name_of<T: Object>(object: &T) -> String {
    let meta = object.meta();
    // A pod that takes another's name is another pod.
    format!("{}/{}", meta.name, meta.uid)
}

impl<T: Object, V: Clone + Send + 'static> Feed<T, V> {
    /// Runs until it is stopped.
    pub async fn run(self, api: Arc<Api>, stop: CancellationToken) {
        tokio::select! { biased;
            () = stop.cancelled() => {}
            () = self.follow(&api) => {}
        }
    }

    async fn follow(self, api: &Api) {
        let mut pause = PAUSE_MIN;
        let mut version: Option<String> = None;
        loop {
            match self.once(api, &mut version).await {
                Ok(()) => pause = PAUSE_MIN,
                Err(ApiError::Gone) => {
                    tracing::info!(folder = %self.folder, "the watch is too old: listed again");
                    version = None;
                    continue;
                }
                Err(error) => {
                    self.mirror.fails(&error);
                    tracing::info!(folder = %self.folder, %error, "a watch broke");
                    tokio::time::sleep(jittered(pause)).await;
                    pause = pause.scale(2, 1).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Lists where needed, and watches to the watch's end.
    async fn once(&self, api: &Api, version: &mut Option<String>) -> Result<(), ApiError> {
        let from = match version.clone() {
            Some(from) => from,
            None => {
                let from = self.list(api).await?;
                *version = Some(from.clone());
                from
            }
        };
        let mut lines = api.watch(&self.folder, &self.query, &from).await?;
        self.mirror.works();
        while let Some(change) = lines.change::<T>().await? {
            let next = match change {
                Change::Version(next) => next,
                Change::Put(object) => {
                    self.put(&object);
                    object.meta().resource_version.clone()
                }
                Change::Gone(object) => {
                    let was = self.mirror.read().remove(&name_of(&*object));
                    // As it was last, which may say how it ended.
                    if let Some(kept) = (self.keep)(&object).or(was) {
                        (self.seen)(&kept, false);
                    }
                    object.meta().resource_version.clone()
                }
            };
            if !next.is_empty() {
                *version = Some(next);
            }
        }
        Ok(())
    }

    fn put(&self, object: &T) {
        let name = name_of(object);
        match (self.keep)(object) {
            Some(kept) => {
                self.mirror.read().insert(name, kept.clone());
                (self.seen)(&kept, true);
            }
            None => {
                self.mirror.read().remove(&name);
            }
        }
    }

    async fn list(&self, api: &Api) -> Result<String, ApiError> {
        let (mut objects, mut version) = api.list::<T>(&self.folder, &self.query).await?;
        if objects.is_empty() && !self.mirror.read().is_empty() {
            tokio::time::sleep(CONFIRM).await;
            (objects, version) = api.list::<T>(&self.folder, &self.query).await?;
        }
        let mut found = BTreeMap::new();
        for object in &objects {
            if let Some(kept) = (self.keep)(object) {
                found.insert(name_of(object), kept);
            }
        }
        // Whatever is missing now went while nobody watched: that it did says nothing of how, but it is told.
        let missing = self.mirror.replace(found.clone());
        self.mirror.lists.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.mirror.works();
        missing.iter().for_each(|kept| (self.seen)(kept, false));
        found.values().for_each(|kept| (self.seen)(kept, true));
        Ok(version)
    }
}

/// Between half and the whole of it, so that many peers do not come at once.
pub fn jittered(pause: Span) -> Duration {
    pause.scale(500 + u64::from(rand::random::<u16>() % 500), 1_000).to_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_list_lacks_is_missed() {
        let mirror = Mirror::<u32>::default();
        let list = |names: &[(&str, u32)]| names.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        assert!(mirror.replace(list(&[("a/1", 1), ("b/2", 2)])).is_empty());
        // The same name with another identity is another object.
        assert_eq!(mirror.replace(list(&[("a/3", 3), ("b/2", 4)])), [1]);
        assert_eq!(mirror.replace(list(&[])), [3, 4]);
    }
}
