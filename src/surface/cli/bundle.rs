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
use crate::base::Bytes;
use crate::surface::documents::{PeerDocument, wall_now};

/// What stands in the place of a secret.
const REDACTED: &str = "REDACTED";
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
    let secrets: Vec<String> = asking.token.iter().filter(|t| t.len() >= 8).cloned().collect();
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

/// Words that say that a secret follows.
const WORDS: [&str; 9] = [
    "token",
    "secret",
    "passw",
    "api_key",
    "apikey",
    "api-key",
    "credential",
    "authorization",
    "private_key",
];

/// A text without what looks like a secret: the known ones; what follows `token=`, `"password": "` and the like;
/// `Bearer …`, join tokens, private keys, users and passwords in addresses.
pub(super) fn scrub(text: &str, known: &[String]) -> String {
    let mut text = text.to_owned();
    for secret in known {
        text = text.replace(secret.as_str(), REDACTED);
    }
    let text = keys(&text);
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match secret_at(&text, &lower, at) {
            Some((begin, end)) if end > begin => {
                out.push_str(&text[at..begin]);
                out.push_str(REDACTED);
                at = end;
            }
            _ => {
                let step = text[at..].chars().next().map_or(1, char::len_utf8);
                out.push_str(&text[at..at + step]);
                at += step;
            }
        }
    }
    out
}

/// Ends a value that is no JSON text: blanks and what stands around arguments.
fn ends(b: u8) -> bool {
    b.is_ascii_whitespace()
        || matches!(b, b'"' | b'\'' | b',' | b';' | b'&' | b'}' | b']' | b')' | b'<' | b'\\')
}

/// Where a secret's value lies that is announced at this place.
fn secret_at(text: &str, lower: &str, at: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let until = |from: usize| bytes[from..].iter().position(|b| ends(*b)).map_or(bytes.len(), |n| from + n);
    let rest = lower.as_bytes().get(at..)?;
    let starts = |word: &str| rest.starts_with(word.as_bytes());
    for scheme in ["bearer ", "basic "] {
        if starts(scheme) {
            return Some((at + scheme.len(), until(at + scheme.len())));
        }
    }
    if starts("stl1-") {
        return Some((at, until(at)));
    }
    if starts("://") {
        let end = until(at + 3);
        let host = bytes[at + 3..end].iter().position(|b| *b == b'/').map_or(end, |n| at + 3 + n);
        let user = bytes[at + 3..host].iter().rposition(|b| *b == b'@')?;
        return Some((at + 3, at + 3 + user));
    }
    let word = WORDS.iter().find(|w| starts(w))?;
    let name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let mut i = at + word.len();
    i += bytes[i..].iter().take_while(|b| name(b)).count();
    i += bytes[i..].iter().take_while(|b| matches!(**b, b'"' | b'\\' | b' ')).count();
    if !matches!(bytes.get(i), Some(b'=' | b':')) {
        return None;
    }
    i += 1;
    let quoted = bytes[i..].iter().take_while(|b| matches!(**b, b'"' | b'\'' | b'\\' | b' ')).count();
    let has_quote = bytes[i..i + quoted].contains(&b'"');
    i += quoted;
    let end = if has_quote {
        // The whole text of a JSON or TOML value, blanks too.
        bytes[i..].iter().position(|b| matches!(b, b'"' | b'\\' | b'\n')).map_or(bytes.len(), |n| i + n)
    } else {
        until(i)
    };
    let value = &text[i..end];
    let harmless = value.is_empty()
        || value.starts_with(['{', '[', '/'])
        || value == REDACTED
        || (!has_quote && (["null", "true", "false"].contains(&value) || value.parse::<f64>().is_ok()));
    // `Authorization: Bearer x`: the scheme stays, what follows it goes by its own rule.
    let scheme = ["bearer", "basic"].contains(&value.to_ascii_lowercase().as_str());
    (!harmless && !scheme).then_some((i, end))
}

/// Private keys as PEM.
fn keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("-----BEGIN ") {
        let head = rest[begin..].find('\n').map_or(rest.len(), |n| begin + n);
        let end = rest[begin..].find("-----END ").map_or(rest.len(), |n| begin + n);
        if rest[begin..head].contains("PRIVATE KEY") || rest[begin..end].contains("PRIVATE KEY") {
            out.push_str(&rest[..begin]);
            out.push_str(REDACTED);
            let tail = rest[end..].find("KEY-----").map_or(rest.len(), |n| end + n + "KEY-----".len());
            rest = &rest[tail..];
        } else {
            let next = begin + "-----BEGIN ".len();
            out.push_str(&rest[..next]);
            rest = &rest[next..];
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_taken_out() {
        for (text, want) in [
            ("curl -H 'Authorization: Bearer abc.def' x", "curl -H 'Authorization: Bearer REDACTED' x"),
            (r#"{"token": "a b c", "n": 1}"#, r#"{"token": "REDACTED", "n": 1}"#),
            (r#"{"text":"ran --api-key=k3y&x"}"#, r#"{"text":"ran --api-key=REDACTED&x"}"#),
            ("PGPASSWORD=hunter2 psql", "PGPASSWORD=REDACTED psql"),
            ("AWS_SECRET_ACCESS_KEY='x/y'", "AWS_SECRET_ACCESS_KEY='REDACTED'"),
            ("s3://me:pw@host/a", "s3://REDACTED@host/a"),
            ("join stl1-abcdef@1.2.3.4:7", "join REDACTED"),
            ("\"a known-one b\"", "\"a REDACTED b\""),
            ("x -----BEGIN EC PRIVATE KEY-----\nMII\n-----END EC PRIVATE KEY----- y", "x REDACTED y"),
            (
                "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
                "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
            ),
            // What is none stays.
            (
                r#"{"tokens": 12, "secret": null, "token": ["a"]}"#,
                r#"{"tokens": 12, "secret": null, "token": ["a"]}"#,
            ),
            ("a token holder", "a token holder"),
            ("token = \"/etc/jwt\"", "token = \"/etc/jwt\""),
            ("größe: ü", "größe: ü"),
        ] {
            assert_eq!(scrub(text, &["known-one".into()]), want);
        }
    }

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
