//! Join tokens: short-lived, single-use, and worthless to whoever reads the issuer's disk.
//!
//! A token is text for a person to carry: which mesh to trust (the CA's fingerprint, so that the
//! newcomer cannot be taken in by another mesh) and a secret for that mesh. Only the peer that made
//! it can spend it; it keeps a hash. Spending is on disk before anything is handed out, so that a
//! crash cannot make a token good twice; what a crash may take is the answer, and for that the *same*
//! newcomer (key, disk and name) may ask again for a few minutes.

mod book;
pub mod join;

pub use book::{TokenBook, TokenError};
pub use join::{IssuerParts, JoinError, Joined, Joiner, TokenIssuer, join};

use data_encoding::BASE32_NOPAD;
use ring::digest::{SHA256, digest};

use crate::base::Span;

/// No token lives longer.
pub const TTL_MAX: Span = Span::secs(3600);

const PREFIX: &str = "stl1-";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 16;
const CHECK_BYTES: usize = 4;
const RAW_BYTES: usize = ID_BYTES + SECRET_BYTES + 32 + CHECK_BYTES;

/// What the text of a token says. It prints without its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Names it at its issuer.
    pub id: [u8; ID_BYTES],
    /// Proves that the bearer has the text.
    pub secret: [u8; SECRET_BYTES],
    /// SHA-256 of the mesh's CA certificate.
    pub ca_fingerprint: [u8; 32],
}

impl Token {
    /// The text for a person.
    pub fn to_text(&self) -> String {
        let mut raw = [&self.id[..], &self.secret, &self.ca_fingerprint].concat();
        let check = digest(&SHA256, &raw);
        raw.extend_from_slice(&check.as_ref()[..CHECK_BYTES]);
        format!("{PREFIX}{}", BASE32_NOPAD.encode(&raw).to_ascii_lowercase())
    }

    /// Reads a text; upper and lower case are the same. None for anything that is not a whole token.
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() > 256 || !text.is_ascii() {
            return None;
        }
        let text = text.to_ascii_lowercase();
        let raw = BASE32_NOPAD.decode(text.strip_prefix(PREFIX)?.to_ascii_uppercase().as_bytes()).ok()?;
        if raw.len() != RAW_BYTES {
            return None;
        }
        let (body, check) = raw.split_at(RAW_BYTES - CHECK_BYTES);
        if &digest(&SHA256, body).as_ref()[..CHECK_BYTES] != check {
            return None;
        }
        let (id, rest) = body.split_at(ID_BYTES);
        let (secret, fingerprint) = rest.split_at(SECRET_BYTES);
        Some(Self {
            id: id.try_into().ok()?,
            secret: secret.try_into().ok()?,
            ca_fingerprint: fingerprint.try_into().ok()?,
        })
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({})", data_encoding::HEXLOWER.encode(&self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_a_slip_of_the_pen_shows() {
        let token = Token { id: [1; 8], secret: [2; 16], ca_fingerprint: [3; 32] };
        let text = token.to_text();
        assert_eq!(text.len(), PREFIX.len() + 96);
        assert_eq!(Token::from_text(&text), Some(token.clone()));
        assert_eq!(Token::from_text(&format!("  {}\n", text.to_ascii_uppercase())), Some(token.clone()));
        for i in PREFIX.len()..text.len() {
            let mut typo = text.clone().into_bytes();
            typo[i] = if typo[i] == b'a' { b'b' } else { b'a' };
            assert_eq!(Token::from_text(&String::from_utf8(typo).expect("ascii")), None, "character {i}");
        }
        for bad in ["", "stl1-", "stl2-aaaa", &text[..text.len() - 1], &"x".repeat(10_000), "stl1-é"] {
            assert_eq!(Token::from_text(bad), None, "{bad:.20}");
        }
        assert!(!format!("{token:?}").contains("0202"), "the secret stays out of logs");
    }
}
