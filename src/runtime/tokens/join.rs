//! The join itself: what the newcomer sends, what the issuer answers, both ends.
//!
//! It runs on the transport's join channel: TLS in which the newcomer has checked the mesh's CA
//! fingerprint from its token, and in which it has shown nothing yet. The mesh's CA key travels only
//! here, and only under a token that says so.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::{Token, TokenBook, TokenError};
use crate::base::text::words;
use crate::base::{PeerName, Span, StoreId};
use crate::core::api::Now;
use crate::runtime::members::entry::hex;
use crate::runtime::members::{Candidate, Members, MembersError, SignedEntry};
use crate::transport::{Identity, IdentityError, Issued, JoinHandler, NetError, PublicKey, join_call};

/// Bytes of member lines in an answer; the rest comes by the members' exchange.
const LINES_BYTES_MAX: usize = 512 * 1024;
/// What this version speaks.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    token: String,
    name: PeerName,
    store: StoreId,
    addresses: Vec<String>,
    #[serde(with = "hex")]
    public_key: PublicKey,
    witness: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Welcome(Box<Welcome>),
    Refused(String),
}

/// Bytes as base64.
#[derive(Serialize, Deserialize)]
struct Welcome {
    named: String,
    nameless: String,
    ca: String,
    ca_key: Option<String>,
    lines: Vec<SignedEntry>,
}

impl std::fmt::Debug for Welcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Welcome({} lines)", self.lines.len())
    }
}

/// Why a join failed. Unless it says otherwise, nobody was admitted and the token is not spent.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The text is no token.
    #[error("this is not a whole join token: copy it again, all {0} characters of it", super::PREFIX.len() + 96)]
    NotAToken,
    /// The issuer says no.
    #[error("the mesh refused: {0}")]
    Refused(String),
    /// The token.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// The list.
    #[error("{0}")]
    Members(#[from] MembersError),
    /// Keys and certificates. The token may be spent: joining again with the same folder still works for a few minutes.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// The way to the issuer. It may have admitted this peer: joining again with the same folder is safe.
    #[error("{0}")]
    Net(#[from] NetError),
    /// The answer makes no sense. It may have admitted this peer.
    #[error("the answer of the mesh cannot be read: {0}")]
    Answer(String),
}

/// What the issuing side needs.
pub struct IssuerParts {
    /// Signs certificates and member lines.
    pub identity: Arc<Identity>,
    /// Takes the new member.
    pub members: Arc<Members>,
    /// Knows the tokens.
    pub book: TokenBook,
    /// The peer's clocks.
    pub now: Arc<dyn Fn() -> Now + Send + Sync>,
}

/// Makes tokens and answers those who bring one.
pub struct TokenIssuer(Arc<IssuerParts>);

impl TokenIssuer {
    /// Over these parts.
    pub fn new(parts: IssuerParts) -> Self {
        Self(Arc::new(parts))
    }

    /// A token's text. Writes to disk: call it where waiting is allowed.
    pub fn create(&self, ttl: Span, admit: bool) -> Result<String, JoinError> {
        if self.0.identity.ca_key().is_none() {
            return Err(MembersError::NoCaKey.into());
        }
        let token = self.0.book.create(ttl, admit, self.0.identity.ca_fingerprint(), (self.0.now)())?;
        Ok(token.to_text())
    }
}

#[async_trait]
impl JoinHandler for TokenIssuer {
    async fn handle(&self, request: Vec<u8>) -> Vec<u8> {
        let parts = self.0.clone();
        let answer = tokio::task::spawn_blocking(move || match parts.welcome(&request) {
            Ok(welcome) => Answer::Welcome(Box::new(welcome)),
            Err(e) => {
                tracing::warn!("join refused: {e}");
                Answer::Refused(e.to_string())
            }
        });
        let answer =
            answer.await.unwrap_or_else(|_| Answer::Refused("this peer is stopping: try another one".into()));
        serde_json::to_vec(&answer).unwrap_or_default()
    }
}

impl IssuerParts {
    /// Checks, spends, signs, adds, in this order: what is refused before the token is spent costs the
    /// newcomer nothing, and what crashes after it can be asked for again by the same newcomer.
    fn welcome(&self, request: &[u8]) -> Result<Welcome, JoinError> {
        let request: Request =
            serde_json::from_slice(request).map_err(|e| JoinError::Answer(e.to_string()))?;
        if request.version != VERSION {
            return Err(JoinError::Refused(format!("join version {} is not spoken here", request.version)));
        }
        let token = Token::from_text(&request.token).ok_or(JoinError::NotAToken)?;
        let ca_key = self.identity.ca_key().ok_or(MembersError::NoCaKey)?;
        let Request { name, store, addresses, public_key, witness, .. } = request;
        let mut wanted = Candidate { name, store, addresses, public_key, witness, can_admit: false };
        let bearer = [&wanted.public_key.0[..], &wanted.store.0, wanted.name.as_str().as_bytes()].concat();
        let now = (self.now)();
        let admit =
            self.book.spend(&token, &bearer, now, || self.members.check(&wanted).map_err(JoinError::from))?;
        wanted.can_admit = admit;
        let issued = self.identity.sign(&wanted.public_key, &wanted.name)?;
        let line = self.members.admit(wanted, &*self.identity)?;
        let mut room = LINES_BYTES_MAX;
        let list = self.members.list();
        let own = list.line(self.identity.name()).cloned();
        let others = list.lines_after(None).cloned();
        let mut lines: Vec<SignedEntry> = vec![line];
        lines.extend(own.into_iter().chain(others).take_while(|line| {
            room = room.saturating_sub(line.wire_len());
            room > 0
        }));
        Ok(Welcome {
            named: BASE64.encode(&issued.named),
            nameless: BASE64.encode(&issued.nameless),
            ca: BASE64.encode(self.identity.ca_certificate()),
            ca_key: admit.then(|| BASE64.encode(ca_key)),
            lines,
        })
    }
}

/// What the newcomer brings.
#[derive(Debug, Clone)]
pub struct Joiner<'a> {
    /// The token's text.
    pub token: &'a str,
    /// A listening address of the peer that made it.
    pub addr: SocketAddr,
    /// The state folder; keys and certificates are kept here.
    pub folder: &'a Path,
    /// The name it wants.
    pub name: &'a PeerName,
    /// Its disk.
    pub store: StoreId,
    /// Where others reach it, `host:port`.
    pub addresses: Vec<String>,
    /// Holds records only.
    pub witness: bool,
    /// How long the certificates it may sign shall live.
    pub lifetime: Span,
}

/// What it got.
#[derive(Debug)]
pub struct Joined {
    /// On disk already.
    pub identity: Identity,
    /// Member lines, for `Members::offer` under `identity.ca_public()`.
    pub lines: Vec<SignedEntry>,
}

/// Joins a mesh. Safe to repeat with the same folder, disk and name while the token's time lasts.
pub async fn join(joiner: Joiner<'_>) -> Result<Joined, JoinError> {
    let token = Token::from_text(joiner.token).ok_or(JoinError::NotAToken)?;
    let request = Request {
        version: VERSION,
        token: joiner.token.trim().to_owned(),
        name: joiner.name.clone(),
        store: joiner.store,
        addresses: joiner.addresses,
        public_key: Identity::joining_key(joiner.folder)?,
        witness: joiner.witness,
    };
    let body = serde_json::to_vec(&request).map_err(|e| JoinError::Answer(e.to_string()))?;
    let answer = join_call(joiner.addr, token.ca_fingerprint, body).await?;
    let unreadable = |e: &dyn std::fmt::Display| JoinError::Answer(e.to_string());
    let welcome = match serde_json::from_slice(&answer).map_err(|e| unreadable(&e))? {
        Answer::Welcome(welcome) => welcome,
        Answer::Refused(why) => return Err(JoinError::Refused(words(&why, 400))),
    };
    let bytes = |text: &str| BASE64.decode(text.as_bytes()).map_err(|e| unreadable(&e));
    let issued = Issued { named: bytes(&welcome.named)?, nameless: bytes(&welcome.nameless)? };
    let ca_key = welcome.ca_key.as_deref().map(bytes).transpose()?;
    let identity =
        Identity::join(joiner.folder, &bytes(&welcome.ca)?, ca_key.as_deref(), issued, joiner.lifetime)?;
    if identity.ca_fingerprint() != token.ca_fingerprint || identity.name() != joiner.name {
        return Err(JoinError::Answer("it is of another mesh, or for another name".into()));
    }
    Ok(Joined { identity, lines: welcome.lines })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Instant, WallTime};
    use crate::runtime::members::{DurableKv, MemoryKv};

    struct Issuer {
        _folder: tempfile::TempDir,
        kv: Arc<MemoryKv>,
        issuer: TokenIssuer,
    }

    fn now() -> Now {
        Now { mono: Instant(1), wall: WallTime(1_790_000_000_000) }
    }
    fn name(text: &str) -> PeerName {
        PeerName::new(text).expect("a label")
    }

    fn issuer() -> Issuer {
        let folder = tempfile::tempdir().expect("a folder");
        let identity =
            Arc::new(Identity::create_mesh(folder.path(), &name("first"), Span::secs(86_400)).expect("made"));
        let kv = Arc::new(MemoryKv::default());
        Issuer { issuer: over(&kv, identity), kv, _folder: folder }
    }
    fn over(kv: &Arc<MemoryKv>, identity: Arc<Identity>) -> TokenIssuer {
        let members = Arc::new(Members::load(kv.clone(), identity.ca_public()).expect("readable"));
        let book = TokenBook::load(kv.clone(), now()).expect("readable");
        TokenIssuer::new(IssuerParts { identity, members, book, now: Arc::new(now) })
    }
    fn request(token: &str, wanted: &str, salt: u8) -> Vec<u8> {
        let request = Request {
            version: VERSION,
            token: token.into(),
            name: name(wanted),
            store: StoreId([salt; 16]),
            addresses: vec!["127.0.0.1:9".into()],
            public_key: PublicKey([salt; 32]),
            witness: false,
        };
        serde_json::to_vec(&request).expect("json")
    }

    async fn ask(issuer: &TokenIssuer, token: &str, wanted: &str, salt: u8) -> Answer {
        serde_json::from_slice(&issuer.handle(request(token, wanted, salt)).await).expect("an answer")
    }

    #[tokio::test]
    async fn a_lost_answer_can_be_fetched_again_by_the_same_newcomer_only() {
        let i = issuer();
        let token = i.issuer.create(Span::secs(60), true).expect("a token");
        assert!(
            matches!(ask(&i.issuer, &token, "second", 1).await, Answer::Welcome(w) if w.ca_key.is_some())
        );
        // The peer crashes after it answered; the newcomer never got it.
        let again = over(&i.kv, i.issuer.0.identity.clone());
        assert!(
            matches!(ask(&again, &token, "second", 1).await, Answer::Welcome(w) if w.lines[0].body().contains("second"))
        );
        assert!(matches!(ask(&again, &token, "second", 2).await, Answer::Refused(_)), "another key");
        assert!(matches!(ask(&again, &token, "third", 1).await, Answer::Refused(_)), "another name");
    }

    #[tokio::test]
    async fn a_crash_between_spending_and_adding_is_made_good() {
        let i = issuer();
        let token = i.issuer.create(Span::secs(60), false).expect("a token");
        let parts = &i.issuer.0;
        let bearer = [&[1u8; 32][..], &[1; 16], b"second"].concat();
        let read = Token::from_text(&token).expect("a token");
        parts.book.spend::<TokenError>(&read, &bearer, now(), || Ok(())).expect("good");
        let again = over(&i.kv, parts.identity.clone());
        assert!(again.0.members.list().is_empty(), "the crash came before the list was written");
        let answer = ask(&again, &token, "second", 1).await;
        assert!(
            matches!(answer, Answer::Welcome(w) if w.ca_key.is_none()),
            "and this token brings no CA key"
        );
        assert!(again.0.members.list().member(&name("second")).is_some_and(|e| !e.can_admit));
    }

    #[tokio::test]
    async fn a_taken_name_does_not_cost_the_token_and_garbage_gets_an_answer() {
        let i = issuer();
        let (one, two) = (i.issuer.create(Span::secs(60), true), i.issuer.create(Span::secs(60), true));
        let (one, two) = (one.expect("a token"), two.expect("a token"));
        assert!(matches!(ask(&i.issuer, &one, "x", 1).await, Answer::Welcome(_)));
        match ask(&i.issuer, &two, "x", 2).await {
            Answer::Refused(why) => assert!(why.contains("a member named x exists"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(ask(&i.issuer, &two, "y", 2).await, Answer::Welcome(_)));
        for garbage in [&b""[..], b"{}", b"\xff", b"[[[[[[[["] {
            let answer = i.issuer.handle(garbage.to_vec()).await;
            assert!(matches!(serde_json::from_slice(&answer), Ok(Answer::Refused(_))));
        }
        assert_eq!(i.kv.scan(b"member/").expect("rows").len(), 2);
    }
}
