//! A store that turned out to be an older copy of itself: it is put aside, and the peer begins a new disk.
//!
//! What promises nothing goes along: the member list, and what callers' idempotency keys stand for. All else stays in
//! the old store. Its records are held by their other homes, which move them to whole home sets; attempts that
//! still run here are ended, as after a lost disk.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{OpenError, Settings};
use crate::base::text::words;
use crate::base::{PeerName, StoreId, WallTime};
use crate::core::{DiskImage, Table, Write, outlives_quarantine};
use crate::runtime::store::{Store, StoreError, aside_folder};
use crate::transport::Identity;

const ROW: &[u8] = b"quarantine";
/// Rows of the member list.
const MEMBERS: &[u8] = b"member/";
/// The old process's parts let go of the store within this.
const LET_GO: std::time::Duration = std::time::Duration::from_secs(10);

/// Why a store was begun anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    old: StoreId,
    why: String,
    at: WallTime,
}

impl Note {
    /// As long as the old store is kept.
    pub fn for_people(&self, state: &Path) -> Option<String> {
        let aside = aside_folder(state);
        let kept = std::fs::read_dir(&aside).is_ok_and(|mut entries| entries.next().is_some());
        let why = words(&self.why, 300);
        kept.then(|| format!("began a new disk: {why}; the old store is kept in {}", aside.display()))
            .map(|text| text.chars().take(480).collect())
    }
}

/// The note that a begun-anew store carries.
pub(super) fn note_in(image: &DiskImage) -> Option<Note> {
    image.tables.get(&Table::Runtime)?.get(ROW).and_then(|row| serde_json::from_slice(row).ok())
}

/// Puts the store aside and begins a new one. The peer must have ended.
pub(super) async fn begin(settings: &Settings, why: &str, at: WallTime) -> Result<(), OpenError> {
    let identity = Identity::open(&settings.identity(), settings.certificate_lifetime)?;
    if identity.ca_key().is_none() {
        return Err(OpenError::RolledBack(identity.name().clone(), why.to_owned()));
    }
    let (state, text) = (settings.state.clone(), why.to_owned());
    let done = tokio::task::spawn_blocking(move || anew(&state, identity.name(), &text, at));
    done.await.map_err(|e| OpenError::Rows(e.to_string()))??;
    Ok(())
}

fn anew(state: &Path, name: &PeerName, why: &str, at: WallTime) -> Result<(), StoreError> {
    let rows = |old: StoreId, image: &DiskImage| -> Vec<Write> {
        let note = Note { old, why: why.to_owned(), at };
        let note = serde_json::to_vec(&note).unwrap_or_default();
        let kept = image.tables.iter().flat_map(|(table, rows)| {
            rows.iter().map(|(key, value)| Write {
                table: *table,
                key: key.clone(),
                value: Some(value.clone()),
            })
        });
        let member = |w: &Write| w.table == Table::Runtime && w.key.starts_with(MEMBERS);
        kept.filter(|w| member(w) || outlives_quarantine(w))
            .chain([Write { table: Table::Runtime, key: ROW.to_vec(), value: Some(note) }])
            .collect()
    };
    let mut waited = std::time::Duration::ZERO;
    let pause = std::time::Duration::from_millis(50);
    let aside = loop {
        match Store::begin_anew(state, rows) {
            // Some part of the peer that has just ended still holds it.
            Err(StoreError::Locked { .. }) if waited < LET_GO => std::thread::sleep(pause),
            done => break done?,
        }
        waited += pause;
    };
    tracing::error!("{name}: {why}: the store is put aside in {}, a new one begins", aside.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_disk_takes_along_what_promises_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, _) = Store::open(folder.path()).expect("opens");
        let old = store.id();
        let row = |table, key: &[u8]| Write { table, key: key.to_vec(), value: Some(b"x".to_vec()) };
        store
            .commit_blocking(vec![
                row(Table::Acceptors, b"j1"),
                row(Table::Attempts, b"a1"),
                row(Table::Meta, b"key/t/k"),
                row(Table::Meta, b"contacts"),
                row(Table::Runtime, b"member/a"),
                row(Table::Runtime, b"token/1"),
            ])
            .expect("commits");
        drop(store);
        let name = PeerName::new("a").expect("a name");
        anew(folder.path(), &name, "seen elsewhere", WallTime(7)).expect("begins anew");
        let (store, image) = Store::open(folder.path()).expect("opens the new one");
        assert_ne!(store.id(), old);
        let keys = |table| -> Vec<Vec<u8>> {
            image.tables.get(&table).map(|rows| rows.keys().cloned().collect()).unwrap_or_default()
        };
        assert!(keys(Table::Acceptors).is_empty() && keys(Table::Attempts).is_empty());
        assert_eq!(keys(Table::Meta), [b"key/t/k".to_vec()]);
        assert_eq!(keys(Table::Runtime), [b"member/a".to_vec(), ROW.to_vec()]);
        let note = note_in(&image).expect("a note");
        assert_eq!((note.old, note.why.as_str()), (old, "seen elsewhere"));
        let text = note.for_people(folder.path()).expect("the old store is kept");
        assert!(text.contains("seen elsewhere") && text.contains("aside"), "{text}");
        std::fs::remove_dir_all(aside_folder(folder.path())).expect("an operator removes it");
        assert_eq!(note.for_people(folder.path()), None);
        drop(store);
    }
}
