//! What an attempt needs before its program can start, and how far each part of it has come. Told while it is brought; a
//! record never holds it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::text::words;
use crate::base::{Bytes, Span, WallTime, secrets};

/// Parts that are told of one attempt.
pub const PARTS_MAX: usize = 64;
/// Characters of a part's name, and of its note.
const TEXT_MAX: usize = 200;

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PartKind {
    /// A dataset.
    Data,
    /// An image.
    Image,
    /// Room, where a scheduler below says when and where it starts.
    Room,
    /// Of a later version.
    #[serde(other)]
    Other,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PartState {
    /// It is needed, and nothing is done for it yet.
    Waits,
    /// It is being moved or pulled.
    Comes,
    /// It is there.
    There,
    /// It could not be brought so far.
    Fails,
    /// Of a later version.
    #[serde(other)]
    Other,
}

/// One dataset or image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Its name.
    pub name: String,
    /// How far it has come.
    pub state: PartState,
    /// Bytes that are there, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<Bytes>,
    /// Bytes of all of it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Bytes>,
    /// When its bringing began; none where it was there already, or has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<WallTime>,
    /// When that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<WallTime>,
    /// A few words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// All parts of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Staging {
    /// The parts, datasets first.
    pub parts: Vec<Part>,
    /// When this was seen.
    #[serde(default)]
    pub at: WallTime,
}

impl Part {
    /// Something that is needed.
    pub fn needed(kind: PartKind, name: &str) -> Self {
        let (state, note) = (PartState::Waits, String::new());
        Self { kind, name: name.into(), state, done: None, total: None, from: None, to: None, note }
    }

    /// It was there before anything was done for it.
    pub fn there(self, size: Option<Bytes>) -> Self {
        Self { state: PartState::There, done: size, total: size, ..self }
    }

    /// Bytes that were moved for this attempt.
    pub fn moved(&self) -> Option<Bytes> {
        self.done.filter(|_| self.from.is_some())
    }

    /// One line for people: `image x:1: pulling, 12 MiB of 40 MiB, for 3.2s`.
    pub fn words(&self, now: WallTime) -> String {
        let (kind, coming) = match self.kind {
            PartKind::Data => ("data", "moving"),
            PartKind::Image => ("image", "pulling"),
            PartKind::Room => ("room", "coming"),
            PartKind::Other => ("part", "coming"),
        };
        let brought = self.from.is_some();
        let state = match (self.state, self.kind) {
            (PartState::Waits, _) => "waits",
            (PartState::Comes, _) => coming,
            (PartState::There, PartKind::Image) if brought => "pulled",
            (PartState::There, PartKind::Room) => "found",
            (PartState::There, _) if brought => "moved",
            (PartState::There, _) => "there already",
            (PartState::Fails, _) => "not there",
            (PartState::Other, _) => "in a state that this version does not know",
        };
        let bytes = match (self.done, self.total) {
            (Some(done), Some(total)) if done != total || self.state != PartState::There => {
                format!(", {done} of {total}")
            }
            (Some(bytes), _) | (None, Some(bytes)) => format!(", {bytes}"),
            (None, None) => String::new(),
        };
        let lasted = self.from.map(|from| self.to.unwrap_or(now).0.saturating_sub(from.0));
        let lasted = lasted.map_or_else(String::new, |ms| {
            let word = if self.to.is_some() { "in" } else { "for" };
            format!(", {word} {}", Span::millis(ms))
        });
        let note = if self.note.is_empty() { String::new() } else { format!(": {}", self.note) };
        format!("{kind} {}: {state}{bytes}{lasted}{note}", self.name)
    }
}

impl Staging {
    /// Short enough to be told, without what opens a door: names of data are addresses now and then.
    pub fn bounded(mut self) -> Self {
        self.parts.truncate(PARTS_MAX);
        for part in &mut self.parts {
            for text in [&mut part.name, &mut part.note] {
                *text = words(&secrets::scrub(text, &[]), TEXT_MAX);
            }
        }
        self
    }

    /// The program starts: what was on its way has come.
    pub fn over(mut self, at: WallTime) -> Self {
        for part in &mut self.parts {
            let waited = part.kind == PartKind::Room && part.state == PartState::Waits;
            if part.state == PartState::Comes || waited {
                (part.state, part.to) = (PartState::There, Some(at));
            }
        }
        self
    }

    /// Bytes that were moved for this attempt; none where nobody counted any.
    pub fn moved(&self) -> Option<Bytes> {
        self.parts
            .iter()
            .filter_map(Part::moved)
            .fold(None, |sum: Option<Bytes>, b| Some(Bytes(sum.unwrap_or_default().0.saturating_add(b.0))))
    }
}

/// What a program that pulls an image says of it, line by line: layers, and their bytes where it tells them.
#[derive(Debug, Default)]
pub struct PullWords {
    layers: std::collections::BTreeMap<String, Layer>,
}

#[derive(Debug, Default)]
struct Layer {
    done: Option<Bytes>,
    total: Option<Bytes>,
    whole: bool,
}

/// Layers that are followed.
const LAYERS_MAX: usize = 256;

impl PullWords {
    /// Takes a line of docker's (`4abcf2066143: Downloading  12.3MB/45.6MB`) or of podman's (`Copying blob 4abcf2066143
    /// 12.3MiB / 45.6MiB`). Whatever else is said is passed over.
    pub fn line(&mut self, line: &str) {
        let line = line.trim();
        let (id, rest) = match line.strip_prefix("Copying blob ") {
            Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
            None => match line.split_once(": ") {
                Some(found) => found,
                None => return,
            },
        };
        let id = id.trim_start_matches("sha256:");
        if id.len() < 8 || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return;
        }
        if self.layers.len() >= LAYERS_MAX && !self.layers.contains_key(id) {
            return;
        }
        let layer = self.layers.entry(id.to_owned()).or_default();
        let words = ["Pull complete", "Already exists", "done", "skipped"];
        layer.whole |= words.iter().any(|w| rest.contains(w));
        // Unpacking counts from the start again, in other bytes.
        if !rest.starts_with("Extracting")
            && let Some((done, total)) = amounts(rest)
        {
            (layer.done, layer.total) = (Some(done), Some(total));
        }
        if layer.whole {
            layer.done = layer.total.or(layer.done);
        }
    }

    /// Bytes that have come and all that are known of; none where no line told any.
    pub fn bytes(&self) -> (Option<Bytes>, Option<Bytes>) {
        let sum = |of: fn(&Layer) -> Option<Bytes>| {
            let known: Vec<u64> = self.layers.values().filter_map(of).map(|b| b.0).collect();
            (!known.is_empty()).then(|| Bytes(known.iter().fold(0, |a, b| a.saturating_add(*b))))
        };
        (sum(|l| l.done), sum(|l| l.total))
    }

    /// `3 of 7 layers`; empty where none was named.
    pub fn layers(&self) -> String {
        let whole = self.layers.values().filter(|l| l.whole).count();
        if self.layers.is_empty() {
            String::new()
        } else {
            format!("{whole} of {} layers", self.layers.len())
        }
    }
}

/// `12.3MB/45.6MB` somewhere in a line.
fn amounts(text: &str) -> Option<(Bytes, Bytes)> {
    let (before, after) = text.split_once('/')?;
    let done = before.trim_end().rsplit([' ', '\t', ']']).next()?;
    let total = after.trim_start().split([' ', '\t', '|']).next()?;
    Some((amount(done)?, amount(total)?))
}

/// `12.3MB`, `12.3MiB`.
fn amount(text: &str) -> Option<Bytes> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let number: f64 = text.get(..digits)?.parse().ok()?;
    let per: u64 = match text.get(digits..)?.to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return None,
    };
    let bytes = number * per as f64;
    (bytes.is_finite() && bytes < 1e18).then_some(Bytes(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_runtimes_are_read() {
        let mut docker = PullWords::default();
        for line in [
            "1.2: Pulling from library/x",
            "4abcf2066143: Pulling fs layer",
            "e95bfee0e1a5: Pulling fs layer",
            "4abcf2066143: Downloading [=====>      ]  1.5MB/3MB",
            "e95bfee0e1a5: Downloading  500kB/7MB",
            "4abcf2066143: Download complete",
            "4abcf2066143: Extracting [>  ]  32.77kB/3MB",
            "4abcf2066143: Pull complete",
            "Digest: sha256:0123",
            "Status: Downloaded newer image for x:1.2",
        ] {
            docker.line(line);
        }
        assert_eq!(docker.bytes(), (Some(Bytes(3_500_000)), Some(Bytes(10_000_000))));
        assert_eq!(docker.layers(), "1 of 2 layers");
        let mut podman = PullWords::default();
        for line in [
            "Trying to pull registry.example.com/x:1...",
            "Getting image source signatures",
            "Copying blob sha256:4abcf20661432fb2d719aaf90656f55c287f8ca915dc1c92ec14ff61e67fbaf8",
            "Copying blob e95bfee0e1a5 [====>-----] 1.0MiB / 4.0MiB | 2.1 MiB/s",
            "Copying blob 0123456789ab skipped: already exists",
            "Copying config sha256:aa done",
        ] {
            podman.line(line);
        }
        assert_eq!(podman.bytes(), (Some(Bytes::mib(1)), Some(Bytes::mib(4))));
        assert_eq!(podman.layers(), "1 of 3 layers");
        let mut wild = PullWords::default();
        for n in 0..10_000 {
            wild.line(&format!("{n:012x}: Downloading 999999999999999999999999GB/1e9MB é/"));
        }
        assert_eq!((wild.bytes(), wild.layers()), ((None, None), "0 of 256 layers".into()));
    }

    #[test]
    fn words_say_state_bytes_and_age() {
        let image = Part::needed(PartKind::Image, "x:1");
        assert_eq!(image.words(WallTime(0)), "image x:1: waits");
        let comes = Part {
            state: PartState::Comes,
            done: Some(Bytes::mib(12)),
            total: Some(Bytes::mib(40)),
            from: Some(WallTime(1_000)),
            ..image.clone()
        };
        assert_eq!(comes.words(WallTime(4_300)), "image x:1: pulling, 12 MiB of 40 MiB, for 3.3s");
        let all = Staging { parts: vec![comes], at: WallTime(0) }.over(WallTime(6_000));
        assert_eq!(all.moved(), Some(Bytes::mib(12)));
        assert_eq!(all.parts[0].words(WallTime(99_000)), "image x:1: pulled, 12 MiB of 40 MiB, in 5.0s");
        let mut room = Part { from: Some(WallTime(1_000)), ..Part::needed(PartKind::Room, "in Kubernetes") };
        room.note = "Unschedulable: 0/3 nodes are available".into();
        let words = "room in Kubernetes: waits, for 3.0s: Unschedulable: 0/3 nodes are available";
        assert_eq!(room.words(WallTime(4_000)), words);
        let found = Part { state: PartState::There, to: Some(WallTime(6_000)), note: String::new(), ..room };
        assert_eq!(found.words(WallTime(9_000)), "room in Kubernetes: found, in 5.0s");
        let data = Part::needed(PartKind::Data, "corpus").there(Some(Bytes::mib(3)));
        assert_eq!(data.words(WallTime(0)), "data corpus: there already, 3 MiB");
        assert_eq!(data.moved(), None);
    }

    #[test]
    fn it_is_bounded_and_a_later_version_is_read() {
        let part =
            Part { note: "a\u{1b}b".repeat(500), ..Part::needed(PartKind::Data, "s3://u:p@h/x?sig=1") };
        let all = Staging { parts: vec![part; 1_000], at: WallTime(1) }.bounded();
        assert_eq!(
            (all.parts.len(), all.parts[0].name.as_str()),
            (PARTS_MAX, "s3://REDACTED@h/x?sig=REDACTED")
        );
        assert!(all.parts[0].note.len() == TEXT_MAX && !all.parts[0].note.contains('\u{1b}'));
        let later =
            r#"{"parts":[{"kind":"licence","name":"x","state":"frozen","more":[1]}],"at":5,"new":{}}"#;
        let read: Staging = serde_json::from_str(later).expect("what is not known is passed over");
        assert_eq!((read.parts[0].kind, read.parts[0].state), (PartKind::Other, PartState::Other));
    }
}
