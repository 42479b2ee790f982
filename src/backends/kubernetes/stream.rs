//! Answers without an end: changes of a watch, the output of a container.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes as Chunk;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;

use super::api::{Api, ApiError, unknown};
use super::objects::Object;

/// Bytes of one line.
const LINE_BYTES_MAX: usize = 4 << 20;

/// What a watch says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<T> {
    /// It is new or changed.
    Put(Box<T>),
    /// It is not there any more; so it was last.
    Gone(Box<T>),
    /// Nothing changed up to this version.
    Version(String),
}

/// A stream of lines.
pub struct Lines {
    body: Body,
    rest: VecDeque<u8>,
    silence: Duration,
    ended: bool,
    /// The rest of a line that was cut is left out.
    cut: bool,
}

impl Lines {
    /// Of a body; without a word for `silence` it is an error.
    pub fn new(body: Body, silence: Duration) -> Self {
        Self { body, rest: VecDeque::new(), silence, ended: false, cut: false }
    }

    /// The next whole line, without its end. None where the server ended it; what comes last without an end of
    /// line is a line too.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        match self.next_cut().await? {
            Some((_, true)) => Err(unknown("a line without an end")),
            whole => Ok(whole.map(|(line, _)| line)),
        }
    }

    /// The same of lines that may be of any length: of one that is too long its begin, and true. Its rest is left out.
    pub async fn next_cut(&mut self) -> Result<Option<(Vec<u8>, bool)>, ApiError> {
        let mut looked = 0;
        loop {
            if let Some(at) = self.rest.iter().skip(looked).position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=looked + at).collect();
                if std::mem::take(&mut self.cut) {
                    looked = 0;
                    continue;
                }
                line.pop();
                let long = line.len() > LINE_BYTES_MAX;
                line.truncate(LINE_BYTES_MAX);
                return Ok(Some((line, long)));
            }
            if self.cut {
                self.rest.clear();
            }
            looked = self.rest.len();
            if looked > LINE_BYTES_MAX {
                self.cut = true;
                let line = self.rest.drain(..LINE_BYTES_MAX).collect();
                return Ok(Some((line, true)));
            }
            if self.ended {
                return Ok((looked > 0).then(|| (self.rest.drain(..).collect(), false)));
            }
            let frame = tokio::time::timeout(self.silence, self.body.frame()).await;
            let data: Option<Chunk> = match frame.map_err(|_| unknown("silence on a stream"))? {
                None => {
                    self.ended = true;
                    None
                }
                Some(frame) => frame.map_err(unknown)?.into_data().ok(),
            };
            self.rest.extend(data.unwrap_or_default());
        }
    }

    /// The next change of a watch. None where the server ended it.
    pub async fn change<T: Object>(&mut self) -> Result<Option<Change<T>>, ApiError> {
        #[derive(Deserialize)]
        struct Line {
            #[serde(rename = "type")]
            kind: String,
            object: Value,
        }
        loop {
            // A line of which only a part ever comes is silence, too, however often parts come.
            let next = tokio::time::timeout(self.silence, self.next()).await;
            let Some(text) = next.map_err(|_| unknown("silence on a watch"))?? else { return Ok(None) };
            if text.is_empty() {
                continue;
            }
            let line: Line = Api::parse(&text)?;
            let object = line.object;
            let read = |object: Value| -> Result<Box<T>, ApiError> {
                let object: T = serde_json::from_value(object).map_err(unknown)?;
                if object.meta().name.is_empty() {
                    Err(unknown("an object without a name"))
                } else {
                    Ok(Box::new(object))
                }
            };
            return match line.kind.as_str() {
                "ADDED" | "MODIFIED" => Ok(Some(Change::Put(read(object)?))),
                "DELETED" => Ok(Some(Change::Gone(read(object)?))),
                "BOOKMARK" => {
                    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                    Ok(Some(Change::Version(version.to_owned())))
                }
                _ if object["code"] == 410 => Err(ApiError::Gone),
                _ => Err(unknown(format!("a watch ended: {}", object["message"]))),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: Vec<u8>) -> Vec<(usize, bool)> {
        let mut lines = Lines::new(Body::from(text), Duration::from_secs(1));
        let mut all = Vec::new();
        while let Some((line, cut)) = lines.next_cut().await.expect("reads") {
            all.push((line.len(), cut));
        }
        all
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_cut_and_the_next_one_comes() {
        let text = |n: usize| [&b"one\n"[..], &vec![b'x'; n], b"\nthree\nfour"].concat();
        for n in [LINE_BYTES_MAX + 1, 3 * LINE_BYTES_MAX] {
            assert_eq!(
                read(text(n)).await,
                [(3, false), (LINE_BYTES_MAX, true), (5, false), (4, false)],
                "{n}"
            );
        }
        let whole = [(3, false), (LINE_BYTES_MAX, false), (5, false), (4, false)];
        assert_eq!(read(text(LINE_BYTES_MAX)).await, whole);
        // Without an end of line at its end.
        assert_eq!(read(vec![b'x'; 2 * LINE_BYTES_MAX]).await, [(LINE_BYTES_MAX, true)]);
        // What a watch says is never cut.
        let mut lines = Lines::new(Body::from(text(2 * LINE_BYTES_MAX)), Duration::from_secs(1));
        assert!(lines.next().await.is_ok() && lines.next().await.is_err());
    }
}
