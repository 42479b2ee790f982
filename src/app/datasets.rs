//! The datasets that the configuration declares, measured where it does not say how large they are.

use std::path::{Path, PathBuf};

use crate::base::Bytes;
use crate::model::config::DatasetConfig;
use crate::model::report::Item;

/// Files looked at per dataset; a larger one should state its size.
const FILES_MAX: usize = 200_000;

/// Names and sizes. One that cannot be read is not offered, and the log says so.
pub async fn measure(datasets: &[DatasetConfig]) -> Vec<Item> {
    let datasets = datasets.to_vec();
    let all = move || datasets.iter().filter_map(one).collect();
    tokio::task::spawn_blocking(all).await.unwrap_or_default()
}

fn one(dataset: &DatasetConfig) -> Option<Item> {
    let name = dataset.name.clone();
    if let Some(path) = dataset.path.as_ref().filter(|p| !p.exists()) {
        tracing::error!("dataset {name}: {} is not there: it is not offered", path.display());
        return None;
    }
    let size = match (dataset.size, &dataset.path) {
        (Some(size), _) => size,
        (None, Some(path)) => match size_of(path) {
            Ok(size) => size,
            Err(error) => {
                tracing::error!("dataset {name}: {}: {error}: it is not offered", path.display());
                return None;
            }
        },
        (None, None) => return None,
    };
    Some(Item { name, size })
}

/// Bytes of a file, or of all files below a folder; links are not followed.
fn size_of(path: &Path) -> std::io::Result<Bytes> {
    let (mut bytes, mut files) = (0u64, 0usize);
    let mut folders: Vec<PathBuf> = Vec::new();
    let meta = std::fs::metadata(path)?;
    if meta.is_dir() {
        folders.push(path.to_owned());
    } else {
        bytes = meta.len();
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            files += 1;
            if files > FILES_MAX {
                let why = format!("has more than {FILES_MAX} files: state its size");
                return Err(std::io::Error::other(why));
            }
            if meta.is_dir() {
                folders.push(entry.path());
            } else if meta.is_file() {
                bytes = bytes.saturating_add(meta.len());
            }
        }
    }
    Ok(Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_no_size_is_measured_and_what_is_not_there_is_not_offered() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("sub")).expect("a folder");
        std::fs::write(folder.path().join("a"), [0; 100]).expect("written");
        std::fs::write(folder.path().join("sub/b"), [0; 23]).expect("written");
        let set = |name: &str, size: Option<u64>, path: Option<PathBuf>| DatasetConfig {
            name: name.into(),
            size: size.map(Bytes),
            path,
        };
        let here = Some(folder.path().to_owned());
        let all = [
            set("measured", None, here.clone()),
            set("said", Some(7), here),
            set("gone", Some(7), Some(folder.path().join("nothing"))),
            set("elsewhere", Some(9), None),
        ];
        let found: Vec<(String, u64)> = measure(&all).await.into_iter().map(|i| (i.name, i.size.0)).collect();
        assert_eq!(found, [("measured".into(), 123), ("said".into(), 7), ("elsewhere".into(), 9)]);
    }
}
