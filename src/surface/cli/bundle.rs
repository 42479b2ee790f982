//! `starling support-bundle`: what a person who helps needs, in one `.tar.zst`, with nothing in it that opens a door.
//!
//! Nothing of a job's environment, script or command goes in: of records only what `starling jobs` shows. The
//! configuration comes from the peer without secrets. Whatever is text goes through [`scrub`] all the same.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::args::BundleArgs;
use super::output::plain;
use super::{Asking, CommandResult, Failure, Reply};
use crate::base::{Bytes, secrets::scrub};
use crate::surface::documents::{PeerDocument, wall_now};

/// Bytes of one part; more is cut, which is said.
const PART_BYTES_MAX: usize = 32 << 20;
/// Parts that are documents of the API: file, path.
const DOCUMENTS: [(&str, &str); 11] = [
    ("peer.json", "/v1/peer"),
    ("view.json", "/v1/view"),
    ("clusters.json", "/v1/clusters"),
    ("members.json", "/v1/members"),
    ("links.json", "/v1/links"),
    ("doctor.json", "/v1/doctor"),
    ("incidents.json", "/v1/incidents"),
    ("silences.json", "/v1/silences"),
    ("tenants.json", "/v1/tenants"),
    ("inspect.json", "/v1/local/inspect"),
    ("events.json", "/v1/history?limit=5000"),
];

/// `starling support-bundle [--out FILE]`
pub async fn bundle(asking: &Asking, args: BundleArgs) -> CommandResult {
    let about: PeerDocument = asking.client.get("/v1/peer").await?;
    let secrets: Vec<String> =
        asking.token.iter().chain(&asking.secret).filter(|t| t.len() >= 8).cloned().collect();
    let mut parts: Vec<(String, String)> = Vec::new();
    let mut failed: Vec<Value> = Vec::new();
    for (file, path) in DOCUMENTS {
        match asking.client.get::<Value>(path).await {
            Ok(document) => parts.push((file.into(), format!("{document:#}\n"))),
            Err(error) => failed.push(json!({ "part": file, "error": error.to_string() })),
        }
    }
    match asking.client.get::<Value>("/v1/local/jobs?limit=5000").await {
        Ok(list) => parts.push(("records.json".into(), format!("{:#}\n", headers(list)))),
        Err(error) => failed.push(json!({ "part": "records.json", "error": error.to_string() })),
    }
    match asking.client.get::<Value>("/v1/local/config").await {
        Ok(config) => {
            let toml = config["toml"].as_str().unwrap_or_default().to_owned();
            parts.push(("config.toml".into(), toml));
        }
        Err(error) => failed.push(json!({ "part": "config.toml", "error": error.to_string() })),
    }
    match asking.client.text("/metrics").await {
        Ok(text) => parts.push(("metrics.txt".into(), text)),
        Err(error) => failed.push(json!({ "part": "metrics.txt", "error": error.to_string() })),
    }
    let at = wall_now();
    let manifest = json!({
        "starling": env!("CARGO_PKG_VERSION"),
        "peer": about.name,
        "peer_version": about.version,
        "mesh": about.mesh,
        "at_ms": at.0,
        "parts": parts.iter().map(|(file, text)| json!({ "file": file, "bytes": text.len() })).collect::<Vec<_>>(),
        "failed": failed,
    });
    parts.insert(0, ("manifest.json".into(), format!("{manifest:#}\n")));
    let folder = format!("starling-support-{}", about.name);
    let mut tar = Vec::new();
    for (file, text) in &parts {
        let text = scrub(text, &secrets);
        let cut: String = if text.len() > PART_BYTES_MAX {
            let end = (0..=PART_BYTES_MAX).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            format!("{}\n(cut here)\n", &text[..end])
        } else {
            text
        };
        entry(&mut tar, &format!("{folder}/{file}"), cut.as_bytes(), at.0 / 1_000);
    }
    tar.extend_from_slice(&[0; 1_024]);
    let packed = zstd::encode_all(&tar[..], 6).map_err(|e| Failure::Io(format!("packing: {e}")))?;
    let out = args.out.unwrap_or_else(|| PathBuf::from(format!("{folder}.tar.zst")));
    write(&out, &packed)?;
    let text = format!(
        "{}: {} in {} parts{}\nNo keys, tokens, environments or commands are in it; names of jobs, tenants and hosts are. Look at it before you send it: tar --zstd -xf {}\n",
        out.display(),
        Bytes(packed.len() as u64),
        parts.len(),
        if failed.is_empty() {
            String::new()
        } else {
            format!(", {} could not be had (manifest.json says why)", failed.len())
        },
        plain(&out.display().to_string()),
    );
    let document = json!({ "file": out, "bytes": packed.len(), "parts": parts.iter().map(|(f, _)| f).collect::<Vec<_>>(), "failed": failed });
    Ok(Reply::new(&document, text))
}

/// Replaces nothing that is there already: a bundle is not to overwrite somebody's file.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let wrong = |e: std::io::Error| {
        Failure::usage(
            format!("{}: {e}", path.display()),
            "name a new file in a folder that can be written: --out FILE",
        )
    };
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(wrong)
}

/// Of records what a list of jobs shows, without where checkpoints are: such an address may open them.
fn headers(mut list: Value) -> Value {
    for job in list["jobs"].as_array_mut().into_iter().flatten() {
        if let Some(job) = job.as_object_mut() {
            job.remove("spec");
            if let Some(checkpoint) = job.get_mut("checkpoint").and_then(Value::as_object_mut) {
                checkpoint.remove("uri");
            }
        }
    }
    list
}

/// One file of a tar archive (ustar), mode 0600.
fn entry(tar: &mut Vec<u8>, name: &str, bytes: &[u8], at_secs: u64) {
    let mut head = [0_u8; 512];
    let mut put = |at: usize, text: &[u8]| head[at..at + text.len()].copy_from_slice(text);
    put(0, &name.as_bytes()[..name.len().min(99)]);
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", bytes.len()).as_bytes());
    put(136, format!("{at_secs:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = head.iter().map(|b| u32::from(*b)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&head);
    tar.extend_from_slice(bytes);
    tar.resize(tar.len().div_ceil(512) * 512, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_one_that_tar_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut tar = Vec::new();
        entry(&mut tar, "a/one.txt", b"one", 1_700_000_000);
        entry(&mut tar, "a/two.txt", &[b'x'; 1_000], 1_700_000_000);
        tar.extend_from_slice(&[0; 1_024]);
        let file = folder.path().join("x.tar");
        write(&file, &tar).expect("written");
        assert!(write(&file, &tar).is_err(), "nothing is overwritten");
        let done =
            std::process::Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(folder.path()).status();
        if done.is_ok_and(|status| status.success()) {
            assert_eq!(std::fs::read(folder.path().join("a/one.txt")).expect("a file"), b"one");
            assert_eq!(std::fs::read(folder.path().join("a/two.txt")).expect("a file").len(), 1_000);
        } else {
            println!("not tried: the archive: no tar here");
        }
    }
}
