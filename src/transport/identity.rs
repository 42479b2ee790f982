//! The peer's name, key and certificates, and the mesh's trust root, in one state folder.

use std::path::Path;

use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::keys::PublicKey;
use crate::base::{MeshId, PeerName, Span, WallTime};

/// Certificates live this long unless configured otherwise.
pub const LIFETIME: Span = Span::secs(30 * 86_400);

/// The certificates of one peer, as the mesh's key signed them. They are public.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Names the peer; shown only to proven members. DER.
    pub named: Vec<u8>,
    /// Names nobody; shown to whoever calls. DER.
    pub nameless: Vec<u8>,
}

/// Why an identity cannot be read, made or renewed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The disk refuses. What was there is still there.
    #[error("{0}: {1}")]
    Io(std::path::PathBuf, std::io::Error),
    /// A key or certificate could not be made.
    #[error("cannot make a {0}: {1}")]
    Make(&'static str, String),
    /// A key or certificate is not what it should be.
    #[error("{0} is damaged or of another mesh: {1}")]
    Bad(&'static str, String),
    /// This peer does not hold the mesh's key.
    #[error("this peer does not hold the mesh's key: ask a member that does")]
    NoCaKey,
    /// Files that belong together are not all there.
    #[error("{0} has no complete identity: start a mesh or join one")]
    Missing(std::path::PathBuf),
}

/// A peer's identity. Cheap to share (`Arc`); certificates are swapped in place at renewal.
#[derive(Debug)]
pub struct Identity {}

impl Identity {
    /// Starts a mesh: makes its trust root and this peer's key and certificates in `folder`, all on disk when it returns.
    pub fn create_mesh(folder: &Path, name: &PeerName, lifetime: Span) -> Result<Self, IdentityError> {
        let _ = (folder, name, lifetime);
        todo!()
    }
    /// The key of a peer that is about to join: read from `folder`, or made there.
    pub fn joining_key(folder: &Path) -> Result<PublicKey, IdentityError> {
        let _ = folder;
        todo!()
    }
    /// Keeps what the join answer brought: the trust root, certificates for [`Self::joining_key`], and the mesh's key if given.
    pub fn join(
        folder: &Path,
        ca: &[u8],
        ca_key: Option<&[u8]>,
        issued: Issued,
        lifetime: Span,
    ) -> Result<Self, IdentityError> {
        let _ = (folder, ca, ca_key, issued, lifetime);
        todo!()
    }
    /// Reads the identity of an earlier start.
    pub fn open(folder: &Path, lifetime: Span) -> Result<Self, IdentityError> {
        let _ = (folder, lifetime);
        todo!()
    }
    /// The name in the certificate.
    pub fn name(&self) -> &PeerName {
        todo!()
    }
    /// The mesh: the first 16 bytes of SHA-256 of the trust root.
    pub fn mesh(&self) -> MeshId {
        todo!()
    }
    /// SHA-256 of the trust root, for join tokens.
    pub fn ca_fingerprint(&self) -> [u8; 32] {
        todo!()
    }
    /// The trust root, for join answers.
    pub fn ca_certificate(&self) -> &CertificateDer<'static> {
        todo!()
    }
    /// The mesh's private key (PKCS#8), if this peer holds it. Only for the join answer.
    pub fn ca_key(&self) -> Option<&[u8]> {
        todo!()
    }
    /// The mesh's public key: checks what `ca_sign_bytes` signed.
    pub fn ca_public(&self) -> PublicKey {
        todo!()
    }
    /// This peer's public key.
    pub fn public(&self) -> PublicKey {
        todo!()
    }
    /// From when to when the present certificates are good.
    pub fn validity(&self) -> (WallTime, WallTime) {
        todo!()
    }
    /// Two thirds of the certificates' life are over.
    pub fn renewal_due(&self, now: WallTime) -> bool {
        let _ = now;
        todo!()
    }
    /// Signs certificates for another peer's (or the own) key. Needs the mesh's key.
    pub fn sign(&self, key: &PublicKey, name: &PeerName) -> Result<Issued, IdentityError> {
        let _ = (key, name);
        todo!()
    }
    /// Takes renewed certificates for the own key into use and on disk. Prefer [`super::Net::install`].
    pub fn install(&self, issued: Issued) -> Result<(), IdentityError> {
        let _ = issued;
        todo!()
    }
    /// Signs with the peer's key.
    pub fn sign_bytes(&self, context: &str, bytes: &[u8]) -> Vec<u8> {
        let _ = (context, bytes);
        todo!()
    }
    /// Signs with the mesh's key, if this peer holds it.
    pub fn ca_sign_bytes(&self, context: &str, bytes: &[u8]) -> Result<Vec<u8>, IdentityError> {
        let _ = (context, bytes);
        todo!()
    }
}
