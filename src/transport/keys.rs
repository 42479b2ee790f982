//! Signatures over bytes: a peer's key pair and what it proves outside TLS.

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// An Ed25519 public key: a peer's or the mesh's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Whether this key signed these bytes in this context. A wrong length is simply not a signature.
    pub fn verify_bytes(&self, context: &str, bytes: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(&framed(context, bytes), signature).is_ok()
    }
}

/// A private key. It prints as its public half.
pub struct SecretKey {
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
}

impl SecretKey {
    /// A fresh one from the system's randomness; none if that fails.
    pub fn generate() -> Option<Self> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).ok()?;
        Self::from_pkcs8(pkcs8.as_ref())
    }
    /// From PKCS#8 bytes, none if they are not an Ed25519 key.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).ok()?;
        Some(Self { pair, pkcs8: pkcs8.to_vec() })
    }
    /// The bytes to keep on disk.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }
    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.pair.public_key().as_ref().try_into().expect("an Ed25519 public key has 32 bytes"))
    }
    /// Signs bytes in a context, so that a signature for one purpose is worthless for another.
    pub fn sign_bytes(&self, context: &str, bytes: &[u8]) -> Vec<u8> {
        self.pair.sign(&framed(context, bytes)).as_ref().to_vec()
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SecretKey").field(&self.public()).finish()
    }
}

/// What is really signed: unlike anything that TLS or a certificate signs.
fn framed(context: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = b"starling signature 1\0".to_vec();
    out.extend_from_slice(&(context.len() as u64).to_be_bytes());
    out.extend_from_slice(context.as_bytes());
    out.extend_from_slice(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_bound_to_key_context_and_bytes() {
        let (a, b) = (SecretKey::generate().expect("random"), SecretKey::generate().expect("random"));
        let signature = a.sign_bytes("facet", b"x");
        assert_eq!(signature.len(), SIGNATURE_BYTES);
        assert!(a.public().verify_bytes("facet", b"x", &signature));
        assert!(!b.public().verify_bytes("facet", b"x", &signature));
        assert!(!a.public().verify_bytes("facets", b"x", &signature));
        assert!(!a.public().verify_bytes("facet", b"y", &signature));
        assert!(!a.public().verify_bytes("facet", b"x", &signature[1..]));
        let again = SecretKey::from_pkcs8(a.pkcs8()).expect("its own bytes");
        assert_eq!(again.public(), a.public());
        assert!(SecretKey::from_pkcs8(b"junk").is_none());
        assert!(!format!("{a:?}").contains(&format!("{:?}", a.pkcs8())));
    }
}
