//! A guard on another machine than its peer's asks it how long its attempt may live.
//!
//! The two have no clock in common, so no time of day is compared. The guard notes its own time, asks with a
//! fresh number, and the peer answers how old the last counted renewal is; counted back from when the question
//! was *asked*, the renewal is never taken for younger than it is. Asked over a TCP line where one stands, else
//! through two files in the attempt's folder. Questions and answers on the line carry a MAC under the attempt's
//! secret, which only this user can read; what is not ours is no answer.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use data_encoding::HEXLOWER;
use ring::hmac;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::clock;
use super::super::files::{AttemptDir, Ended, Remote, Started, Stop, read_json, write_json_unsynced};
use crate::base::{Instant, Span};
use crate::core::api::AttemptKey;

/// Bytes of one line, either way.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Longest time for a connection, and for an answer.
const CONNECT_TIME: Duration = Duration::from_secs(1);
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// After a line failed it is not tried again for so long.
const LINE_PAUSE: Span = Span::secs(5);

/// What a guard says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// May this guard run its part? Only one may, ever; the answer says.
    Begin,
    /// How long may it live?
    Ask,
    /// Its program runs.
    Started(Started),
    /// No process of it is left.
    Ended(Ended),
}

/// One line of a guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Which attempt.
    pub key: AttemptKey,
    /// Which of its guards: empty, or `node-N`.
    pub part: String,
    /// Which of the guards that a scheduler may start for one part; empty where the right to run is a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub guard: String,
    /// Never used twice.
    pub nonce: String,
    /// What it says.
    pub what: What,
}

/// One line of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Answer {
    /// The question's.
    pub nonce: String,
    /// How old the last counted renewal of its binding is, in microseconds; none where none is known.
    #[serde(default)]
    pub age_us: Option<u64>,
    /// The peer wants it to stop.
    #[serde(default)]
    pub stop: Option<Stop>,
    /// Whether this guard may run its part; none while not all parts of a gang are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may: Option<bool>,
    /// Address of the first node of a gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
}

/// Where a peer listens, in a shared file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineFile {
    /// `host:port`, tried in order.
    pub addresses: Vec<String>,
    /// Port on the machine whose boot this is: the shortest way.
    pub boot: String,
    /// That port.
    pub port: u16,
}

/// A text and what proves whose it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Sealed {
    body: String,
    mac: String,
}

/// Direction of a line; a line of one is no line of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// Guard to peer.
    Guard,
    /// Peer to guard.
    Peer,
}

fn proof(from: From, body: &str) -> String {
    let who = if from == From::Guard { "guard" } else { "peer" };
    format!("starling line 1 {who}\n{body}")
}

/// A line with its end. None where the value is larger than a line may be.
pub fn seal(secret: &[u8], from: From, value: &impl Serialize) -> Option<Vec<u8>> {
    let body = serde_json::to_string(value).ok()?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mac = HEXLOWER.encode(hmac::sign(&key, proof(from, &body).as_bytes()).as_ref());
    let mut line = serde_json::to_vec(&Sealed { body, mac }).ok()?;
    line.push(b'\n');
    (line.len() <= LINE_BYTES_MAX).then_some(line)
}

/// What a line says, if it is of this secret.
pub fn open<T: DeserializeOwned>(secret: &[u8], from: From, line: &[u8]) -> Option<T> {
    let sealed: Sealed = serde_json::from_slice(line).ok()?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let mac = HEXLOWER.decode(sealed.mac.as_bytes()).ok()?;
    hmac::verify(&key, proof(from, &sealed.body).as_bytes(), &mac).ok()?;
    serde_json::from_str(&sealed.body).ok()
}

/// Whose line it claims to be, before the secret is known.
pub fn claimed(line: &[u8]) -> Option<Question> {
    let sealed: Sealed = serde_json::from_slice(line).ok()?;
    serde_json::from_str(&sealed.body).ok()
}

/// What the peer said, on this machine's clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// When the last counted renewal was sent, at the latest.
    pub renewed_at: Option<Instant>,
    /// It wants the attempt to stop.
    pub stop: Option<Stop>,
    /// Whether this guard may run.
    pub may: Option<bool>,
    /// Address of the first node of a gang.
    pub master: Option<String>,
}

struct Line {
    reader: BufReader<TcpStream>,
}

/// Asks. One per guard.
pub struct Asker {
    key: AttemptKey,
    guard: String,
    remote: Remote,
    secret: Vec<u8>,
    dir: AttemptDir,
    line: Option<Line>,
    line_again: Instant,
    due: Instant,
    /// The question in the file, and when it was asked.
    filed: Option<(String, Instant)>,
    trouble: String,
}

impl Asker {
    /// Nothing is sent yet.
    pub fn new(key: AttemptKey, remote: Remote, dir: AttemptDir) -> Self {
        let secret = HEXLOWER.decode(remote.secret.as_bytes()).unwrap_or_default();
        let zero = Instant(0);
        Self {
            key,
            guard: if remote.begin { own_name() } else { String::new() },
            remote,
            secret,
            dir,
            line: None,
            line_again: zero,
            due: zero,
            filed: None,
            trouble: String::new(),
        }
    }

    /// What went wrong last.
    pub fn trouble(&self) -> String {
        let file = self.remote.line.display();
        format!("{} (and no answer in its folder; the peer's address is in {file})", self.trouble)
    }

    /// To wait on; the peer may say at any time that it wants to be asked.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.as_ref().map(|l| l.reader.get_ref().as_fd())
    }

    /// Looks whether the peer wants to be asked.
    pub fn listen(&mut self, woken: bool) {
        if woken {
            self.due = Instant(0);
        }
        let Some(line) = &mut self.line else { return };
        if line.reader.get_ref().set_nonblocking(true).is_err() {
            self.line = None;
            return;
        }
        match line.reader.fill_buf() {
            Ok([]) => self.line = None,
            Ok(bytes) => {
                let n = bytes.len();
                line.reader.consume(n);
                self.due = Instant(0);
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => self.line = None,
        }
    }

    /// Asks if it is time.
    pub fn ask_if_due(&mut self, now: Instant, every: Span) -> Option<Told> {
        if now < self.due {
            return None;
        }
        self.due = now + every;
        self.ask()
    }

    /// Asks for the right to run. Only over the line: the files are for those who have it.
    pub fn begin(&mut self) -> Option<Told> {
        self.line_again = Instant(0);
        self.exchange(What::Begin)
    }

    /// Asks over the line, else through the files.
    pub fn ask(&mut self) -> Option<Told> {
        let told = self.exchange(What::Ask);
        if self.remote.begin { told } else { told.or_else(|| self.by_file()) }
    }

    /// Says what happened; the files in the folder say it too, only later.
    pub fn tell(&mut self, what: What) {
        // A line that broke since the last question is only noticed now.
        for _ in 0..2 {
            self.line_again = Instant(0);
            if self.exchange(what.clone()).is_some() {
                return;
            }
        }
    }

    fn exchange(&mut self, what: What) -> Option<Told> {
        let now = clock::now();
        if self.line.is_none() {
            if now < self.line_again {
                return None;
            }
            match self.connect() {
                Ok(line) => self.line = Some(line),
                Err(why) => {
                    self.trouble = why;
                    self.line_again = clock::now() + LINE_PAUSE;
                    return None;
                }
            }
        }
        let asked_at = clock::now();
        let nonce = nonce();
        let question = self.question(nonce, what);
        match self.speak(&question) {
            Ok(answer) => Some(told(answer, asked_at)),
            Err(error) => {
                self.trouble = format!("the line broke: {error}");
                self.line = None;
                None
            }
        }
    }

    fn question(&self, nonce: String, what: What) -> Question {
        let (part, guard) = (self.remote.part.clone(), self.guard.clone());
        Question { key: self.key, part, guard, nonce, what }
    }

    fn connect(&self) -> Result<Line, String> {
        let file: LineFile = read_json(&self.remote.line).map_err(|e| format!("no address: {e}"))?;
        let here = clock::boot_id().is_ok_and(|boot| boot == file.boot);
        let near = here.then(|| format!("127.0.0.1:{}", file.port));
        let mut trouble = "no address".to_owned();
        for address in near.iter().chain(&file.addresses) {
            let resolved = address.to_socket_addrs().map(|a| a.take(4).collect::<Vec<_>>());
            match resolved {
                Err(e) => trouble = format!("{address}: {e}"),
                Ok(all) => {
                    for one in all {
                        match TcpStream::connect_timeout(&one, CONNECT_TIME) {
                            Ok(stream) => {
                                let _ = stream.set_nodelay(true);
                                return Ok(Line { reader: BufReader::new(stream) });
                            }
                            Err(e) => trouble = format!("{one}: {e}"),
                        }
                    }
                }
            }
        }
        Err(trouble)
    }

    fn speak(&mut self, question: &Question) -> std::io::Result<Answer> {
        let other = |text: &str| std::io::Error::other(text.to_owned());
        let sealed = seal(&self.secret, From::Guard, question).ok_or_else(|| other("too long"))?;
        let line = self.line.as_mut().ok_or_else(|| other("no line"))?;
        let stream = line.reader.get_ref();
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        let mut writer = stream;
        writer.write_all(&sealed)?;
        let until = clock::now() + Span::secs(2);
        let mut text = Vec::new();
        while clock::now() < until {
            text.clear();
            let mut limited = std::io::Read::take(&mut line.reader, LINE_BYTES_MAX as u64);
            if limited.read_until(b'\n', &mut text)? == 0 {
                return Err(other("closed by the peer"));
            }
            // Anything else is a wish to be asked, or the answer to an older question.
            if let Some(answer) = open::<Answer>(&self.secret, From::Peer, &text)
                && answer.nonce == question.nonce
            {
                return Ok(answer);
            }
        }
        Err(other("no answer in time"))
    }

    /// Leaves a question in the folder; what is said to the one before counts.
    fn by_file(&mut self) -> Option<Told> {
        let answer: Option<Answer> = read_json(&self.dir.file("answer.json")).ok();
        let mine = self.filed.take();
        let found = match (&answer, &mine) {
            (Some(answer), Some((nonce, at))) if answer.nonce == *nonce => Some(told(answer.clone(), *at)),
            _ => None,
        };
        // An unanswered question stays: it may be answered yet, and counts from when it was asked.
        if found.is_none() && mine.is_some() {
            self.filed = mine;
            return None;
        }
        let (asked_at, nonce) = (clock::now(), nonce());
        let question = self.question(nonce.clone(), What::Ask);
        if write_json_unsynced(&self.dir.file("question.json"), &question).is_ok() {
            self.filed = Some((nonce, asked_at));
        }
        found
    }
}

fn told(answer: Answer, asked_at: Instant) -> Told {
    let renewed_at = answer.age_us.map(|age| Instant(asked_at.0.saturating_sub(age)));
    Told { renewed_at, stop: answer.stop, may: answer.may, master: answer.master }
}

fn nonce() -> String {
    HEXLOWER.encode(&rand::random::<[u8; 16]>())
}

/// Where a scheduler starts pods, there is one guard in each, and the scheduler can say how that pod ended.
fn own_name() -> String {
    std::env::var("STARLING_POD_UID").ok().filter(|uid| !uid.is_empty()).unwrap_or_else(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, JobId};

    fn question() -> Question {
        let key = AttemptKey { job: JobId([3; 20]), epoch: Epoch(2) };
        Question { key, part: String::new(), guard: String::new(), nonce: "n".into(), what: What::Ask }
    }

    #[test]
    fn only_lines_of_the_same_secret_and_direction_count() {
        let line = seal(b"secret", From::Guard, &question()).expect("fits");
        assert_eq!(open::<Question>(b"secret", From::Guard, &line), Some(question()));
        assert_eq!(claimed(&line), Some(question()));
        assert_eq!(open::<Question>(b"other", From::Guard, &line), None);
        assert_eq!(open::<Question>(b"secret", From::Peer, &line), None, "a question is no answer");
        let mut changed = line;
        let at = changed.windows(4).position(|w| w == b"node" || w == b"part").expect("there");
        changed[at] ^= 1;
        assert_eq!(open::<Question>(b"secret", From::Guard, &changed), None);
    }

    #[test]
    fn a_renewal_is_never_taken_for_younger_than_it_is() {
        let answer = Answer { age_us: Some(3_000_000), ..Answer::default() };
        assert_eq!(told(answer, Instant(10_000_000)).renewed_at, Some(Instant(7_000_000)));
        assert_eq!(told(Answer::default(), Instant(10_000_000)).renewed_at, None);
        let old = Answer { age_us: Some(u64::MAX), ..Answer::default() };
        assert_eq!(told(old, Instant(10)).renewed_at, Some(Instant(0)));
    }
}
