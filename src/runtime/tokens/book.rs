//! The tokens that this peer issued: what is on disk, what is spent, what is over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::{TTL_MAX, Token};
use crate::base::{Instant, Span, WallTime};
use crate::core::api::Now;
use crate::runtime::members::DurableKv;

/// Tokens of this peer that may be open at once.
const OPEN_MAX: usize = 1_000;
/// The same newcomer may fetch its answer again for this long.
const RETRY: Span = Span::secs(300);
/// Wrong secrets for one token before it is burnt.
const WRONG_MAX: u32 = 5;
/// Unknown tokens that are looked at per window; beyond, they are turned away unread.
const UNKNOWN_MAX: u32 = 20;
const UNKNOWN_WINDOW: Span = Span::secs(60);
const ROW_PREFIX: &[u8] = b"token/";

/// Why no token was made, or why one was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The wanted lifetime.
    #[error("a token lives between 1s and {TTL_MAX}, not {0}")]
    Ttl(Span),
    /// Enough are open.
    #[error("{OPEN_MAX} tokens are open: wait until some are spent or over")]
    TooMany,
    /// Not of this peer, never made, long over, or the secret is wrong: it is not said which.
    #[error("the token is not valid at this peer: make a new one where you join")]
    Unknown,
    /// Its time is over.
    #[error("the token has expired: make a new one")]
    Expired,
    /// It was spent by somebody else.
    #[error("the token was used already: make a new one")]
    Used,
    /// Too many wrong ones came.
    #[error("too many wrong tokens came lately: try again in a minute")]
    Busy,
    /// No randomness.
    #[error("the system gives no random bytes")]
    Random,
    /// Nothing was made or spent.
    #[error("the token could not be written, nothing changed: {0}")]
    Store(#[from] std::io::Error),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    secret_hash: String,
    expires: WallTime,
    /// The bearer gets the CA key.
    admit: bool,
    /// Who spent it, and when.
    spent: Option<(String, WallTime)>,
}

struct Open {
    row: Row,
    /// Over on the monotonic clock too: setting the clock back does not revive a token.
    deadline: Instant,
    wrong: u32,
}

struct Books {
    open: BTreeMap<[u8; 8], Open>,
    unknown: (Instant, u32),
}

/// This peer's tokens. Methods write and fsync: call them where waiting for the disk is allowed.
pub struct TokenBook {
    kv: Arc<dyn DurableKv>,
    books: Mutex<Books>,
}

fn row_key(id: &[u8; 8]) -> Vec<u8> {
    [ROW_PREFIX, data_encoding::HEXLOWER.encode(id).as_bytes()].concat()
}

fn hash(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

/// Compares without telling by its time where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0u8, |differ, (x, y)| differ | (x ^ y)) == 0
}

impl TokenBook {
    /// Reads what was issued before, and drops what is over.
    pub fn load(kv: Arc<dyn DurableKv>, now: Now) -> Result<Self, TokenError> {
        let mut open = BTreeMap::new();
        let mut dead = Vec::new();
        for (key, value) in kv.scan(ROW_PREFIX)? {
            let id = key.get(ROW_PREFIX.len()..).and_then(|hex| data_encoding::HEXLOWER.decode(hex).ok());
            let id = id.and_then(|id| <[u8; 8]>::try_from(id).ok());
            match (id, serde_json::from_slice::<Row>(&value)) {
                (Some(id), Ok(row)) if row.expires.0 + RETRY.as_millis() > now.wall.0 => {
                    let left = Span::millis(row.expires.0.saturating_sub(now.wall.0)).min(TTL_MAX);
                    open.insert(id, Open { row, deadline: now.mono + left, wrong: 0 });
                }
                _ => dead.push((key, None)),
            }
        }
        if !dead.is_empty() {
            kv.put_all(dead)?;
        }
        Ok(Self { kv, books: Mutex::new(Books { open, unknown: (now.mono, 0) }) })
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a token that is good for `ttl`. `admit`: its bearer gets the CA key and may admit others.
    pub fn create(&self, ttl: Span, admit: bool, ca_fingerprint: [u8; 32], now: Now) -> Result<Token, TokenError> {
        if ttl < Span::secs(1) || ttl > TTL_MAX {
            return Err(TokenError::Ttl(ttl));
        }
        let mut books = self.books();
        self.sweep(&mut books, now)?;
        if books.open.len() >= OPEN_MAX {
            return Err(TokenError::TooMany);
        }
        let mut random = [0u8; 24];
        SystemRandom::new().fill(&mut random).map_err(|_| TokenError::Random)?;
        let (id, secret) = random.split_at(8);
        let token = Token {
            id: id.try_into().expect("8 of 24 bytes"),
            secret: secret.try_into().expect("16 of 24 bytes"),
            ca_fingerprint,
        };
        let expires = WallTime(now.wall.0 + ttl.as_millis());
        let row = Row { secret_hash: hash(&token.secret), expires, admit, spent: None };
        self.write(&token.id, &row)?;
        books.open.insert(token.id, Open { row, deadline: now.mono + ttl, wrong: 0 });
        Ok(token)
    }

    /// Spends a token for `bearer` (whatever names one newcomer) if `allowed` agrees, and says whether it
    /// brings the CA key. On disk when it returns. The same bearer may spend it again for a few minutes.
    pub fn spend<E: From<TokenError>>(
        &self,
        token: &Token,
        bearer: &[u8],
        now: Now,
        allowed: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut books = self.books();
        let Some(open) = books.open.get_mut(&token.id) else {
            return Err(Self::count_unknown(&mut books, now).into());
        };
        if !same(hash(&token.secret).as_bytes(), open.row.secret_hash.as_bytes()) {
            open.wrong += 1;
            if open.wrong >= WRONG_MAX {
                // Somebody has half of the token: its owner shall make a new one.
                let burnt = Row { spent: Some((String::new(), WallTime(0))), ..open.row.clone() };
                self.write(&token.id, &burnt).map_err(E::from)?;
                open.row = burnt;
            }
            return Err(TokenError::Unknown.into());
        }
        let bearer = hash(bearer);
        if let Some((spender, at)) = &open.row.spent {
            let lately = now.wall.0.saturating_sub(at.0) <= RETRY.as_millis() && now.mono < open.deadline + RETRY;
            return if same(spender.as_bytes(), bearer.as_bytes()) && lately {
                Ok(open.row.admit)
            } else {
                Err(TokenError::Used.into())
            };
        }
        if now.wall >= open.row.expires || now.mono >= open.deadline {
            return Err(TokenError::Expired.into());
        }
        allowed()?;
        let spent = Row { spent: Some((bearer, now.wall)), ..open.row.clone() };
        self.write(&token.id, &spent).map_err(E::from)?;
        open.row = spent;
        Ok(open.row.admit)
    }

    fn count_unknown(books: &mut Books, now: Now) -> TokenError {
        if now.mono.since(books.unknown.0) > UNKNOWN_WINDOW {
            books.unknown = (now.mono, 0);
        }
        books.unknown.1 = books.unknown.1.saturating_add(1);
        if books.unknown.1 > UNKNOWN_MAX { TokenError::Busy } else { TokenError::Unknown }
    }

    /// Forgets what nobody can use any more, on disk too.
    fn sweep(&self, books: &mut Books, now: Now) -> Result<(), TokenError> {
        let over = |open: &Open| now.mono > open.deadline + RETRY || now.wall.0 > open.row.expires.0 + RETRY.as_millis();
        let dead: Vec<_> = books.open.iter().filter(|(_, open)| over(open)).map(|(id, _)| *id).collect();
        if !dead.is_empty() {
            self.kv.put_all(dead.iter().map(|id| (row_key(id), None)).collect())?;
            books.open.retain(|id, _| !dead.contains(id));
        }
        Ok(())
    }

    fn write(&self, id: &[u8; 8], row: &Row) -> Result<(), TokenError> {
        let bytes = serde_json::to_vec(row).map_err(std::io::Error::from)?;
        Ok(self.kv.put(&row_key(id), Some(&bytes))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::members::MemoryKv;

    fn at(seconds: u64) -> Now {
        Now { mono: Instant(seconds * 1_000_000), wall: WallTime(1_790_000_000_000 + seconds * 1_000) }
    }
    fn book(kv: &Arc<MemoryKv>, now: Now) -> TokenBook {
        TokenBook::load(kv.clone(), now).expect("a store")
    }
    fn spend(book: &TokenBook, token: &Token, bearer: &str, now: Now) -> Result<bool, TokenError> {
        book.spend(token, bearer.as_bytes(), now, || Ok(()))
    }

    #[test]
    fn a_token_is_good_once_also_after_a_crash() {
        let kv = Arc::new(MemoryKv::default());
        let first = book(&kv, at(0));
        let token = first.create(Span::secs(600), true, [7; 32], at(0)).expect("room");
        assert!(matches!(spend(&first, &token, "a", at(1)), Ok(true)));
        assert!(matches!(spend(&first, &token, "b", at(2)), Err(TokenError::Used)));
        let after_crash = book(&kv, at(10));
        assert!(matches!(spend(&after_crash, &token, "b", at(11)), Err(TokenError::Used)));
        assert!(matches!(spend(&after_crash, &token, "a", at(12)), Ok(true)), "the same newcomer asks again");
        assert!(matches!(spend(&after_crash, &token, "a", at(400)), Err(TokenError::Used)), "but not for ever");
    }

    #[test]
    fn nothing_is_spent_that_is_not_on_disk() {
        let kv = Arc::new(MemoryKv::default());
        let books = book(&kv, at(0));
        let token = books.create(Span::secs(600), false, [7; 32], at(0)).expect("room");
        kv.fail_writes(true);
        assert!(matches!(spend(&books, &token, "a", at(1)), Err(TokenError::Store(_))));
        kv.fail_writes(false);
        let no = books.spend(&token, b"a", at(1), || Err(TokenError::Busy));
        assert!(matches!(no, Err(TokenError::Busy)), "what was not allowed spends nothing");
        assert!(matches!(spend(&books, &token, "b", at(2)), Ok(false)));
    }

    #[test]
    fn both_clocks_end_a_token() {
        let kv = Arc::new(MemoryKv::default());
        let books = book(&kv, at(0));
        assert!(matches!(books.create(Span::secs(3601), true, [7; 32], at(0)), Err(TokenError::Ttl(_))));
        assert!(matches!(books.create(Span::ZERO, true, [7; 32], at(0)), Err(TokenError::Ttl(_))));
        let token = books.create(Span::secs(60), true, [7; 32], at(0)).expect("room");
        assert!(matches!(spend(&books, &token, "a", at(60)), Err(TokenError::Expired)));
        let set_back = Now { wall: at(0).wall, ..at(61) };
        assert!(matches!(spend(&books, &token, "a", set_back), Err(TokenError::Expired)));
        let set_forward = Now { wall: at(90).wall, ..at(1) };
        assert!(matches!(spend(&books, &token, "a", set_forward), Err(TokenError::Expired)));
        books.create(Span::secs(60), true, [7; 32], at(1000)).expect("room");
        assert_eq!(kv.scan(ROW_PREFIX).expect("rows").len(), 1, "what is over leaves the disk");
    }

    #[test]
    fn guessing_is_slow_and_burns_the_token() {
        let kv = Arc::new(MemoryKv::default());
        let books = book(&kv, at(0));
        let token = books.create(Span::secs(600), true, [7; 32], at(0)).expect("room");
        let wrong = Token { secret: [0; 16], ..token.clone() };
        for _ in 0..WRONG_MAX {
            assert!(matches!(spend(&books, &wrong, "x", at(1)), Err(TokenError::Unknown)));
        }
        assert!(matches!(spend(&books, &token, "a", at(2)), Err(TokenError::Used)));
        let stray = Token { id: [0; 8], ..token };
        for _ in 0..UNKNOWN_MAX {
            assert!(matches!(spend(&books, &stray, "x", at(3)), Err(TokenError::Unknown)));
        }
        assert!(matches!(spend(&books, &stray, "x", at(3)), Err(TokenError::Busy)));
        let other = books.create(Span::secs(600), true, [7; 32], at(4)).expect("room");
        assert!(matches!(spend(&books, &other, "a", at(4)), Ok(true)), "a flood does not shut out a good token");
        assert!(matches!(spend(&books, &stray, "x", at(100)), Err(TokenError::Unknown)));
    }
}
