//! The peer's name, key and certificates, and the mesh's trust root, in one state folder.
//!
//! Files, all 0600: `ca.pem` (the trust root), `ca.key` (its key, where this peer holds it), `peer.key`,
//! and `peer.pem` (both certificates). `peer.pem` is written last: with it the identity is complete.

use std::path::{Path, PathBuf};

use arc_swap::ArcSwap;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::certs::{self, Authority, Proven};
use super::keys::{PublicKey, SecretKey};
use super::private;
use super::state::{read_optional, unpem, write_atomic};
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

/// Why an identity cannot be read, made or renewed. What was on disk before is still there.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The disk refuses.
    #[error("{0}: {1}")]
    Io(PathBuf, std::io::Error),
    /// A key or certificate could not be made.
    #[error("cannot make a {0}: {1}")]
    Make(&'static str, String),
    /// A key or certificate is not what it should be.
    #[error("{0} is damaged or of another mesh: {1}")]
    Bad(&'static str, String),
    /// This peer does not hold the mesh's key.
    #[error("this peer does not hold the mesh's key: ask a member that does")]
    NoCaKey,
    /// There is no identity, or only a part of one.
    #[error("{0} holds no complete identity: start a mesh or join one")]
    Missing(PathBuf),
    /// There is one already.
    #[error("{0} holds an identity already: open it, or remove the folder to begin anew")]
    Exists(PathBuf),
}

/// A peer's identity. Share it in an `Arc`; certificates are swapped in place at renewal.
#[derive(Debug)]
pub struct Identity {
    folder: PathBuf,
    name: PeerName,
    lifetime: Span,
    key: SecretKey,
    authority: Authority,
    current: ArcSwap<Current>,
}

/// The certificates in use.
#[derive(Debug)]
struct Current {
    issued: Issued,
    validity: (WallTime, WallTime),
}

impl Identity {
    /// Starts a mesh: makes its trust root and this peer's key and certificates in `folder`, all on disk
    /// when it returns.
    pub fn create_mesh(folder: &Path, name: &PeerName, lifetime: Span) -> Result<Self, IdentityError> {
        refuse_existing(folder)?;
        let key = own_key(folder)?;
        let authority = Authority::create()?;
        let issued = authority.issue(&key.public(), name, WallTime(certs::now()), lifetime)?;
        Self::keep(folder, key, authority, issued, lifetime)
    }

    /// The key of a peer that is about to join: read from `folder`, or made there.
    pub fn joining_key(folder: &Path) -> Result<PublicKey, IdentityError> {
        refuse_existing(folder)?;
        Ok(own_key(folder)?.public())
    }

    /// Keeps what the join answer brought: the trust root, certificates for [`Self::joining_key`], and
    /// the mesh's key if given. Everything is checked against everything before it is kept.
    pub fn join(
        folder: &Path,
        ca: &[u8],
        ca_key: Option<&[u8]>,
        issued: Issued,
        lifetime: Span,
    ) -> Result<Self, IdentityError> {
        refuse_existing(folder)?;
        let key = own_key(folder)?;
        Self::keep(folder, key, Authority::new(ca, ca_key)?, issued, lifetime)
    }

    /// Reads the identity of an earlier start. Expired certificates are no error: whoever holds the
    /// mesh's key renews them, the others cannot link before somebody did.
    pub fn open(folder: &Path, lifetime: Span) -> Result<Self, IdentityError> {
        let missing = || IdentityError::Missing(folder.to_owned());
        close_to_others(folder)?;
        let read = |file: &str| read_optional(&folder.join(file));
        let issued = unpem("peer.pem", &read("peer.pem")?.ok_or_else(missing)?)?;
        let ca = unpem("ca.pem", &read("ca.pem")?.ok_or_else(missing)?)?;
        let key = read("peer.key")?.ok_or_else(missing)?;
        let key = SecretKey::from_pkcs8(&key).ok_or(IdentityError::Bad("peer.key", "not a key".into()))?;
        let ([named, nameless], [ca]) = (issued.as_slice(), ca.as_slice()) else {
            return Err(IdentityError::Bad("peer.pem", "it must hold two certificates, ca.pem one".into()));
        };
        let authority = Authority::new(ca, read("ca.key")?.as_deref())?;
        let issued = Issued { named: named.clone(), nameless: nameless.clone() };
        Self::assemble(folder, key, authority, issued, lifetime, true)
    }

    fn keep(
        folder: &Path,
        key: SecretKey,
        authority: Authority,
        issued: Issued,
        lifetime: Span,
    ) -> Result<Self, IdentityError> {
        let identity = Self::assemble(folder, key, authority, issued.clone(), lifetime, false)?;
        write_atomic(&folder.join("ca.pem"), certs::pem(&[identity.authority.certificate()]).as_bytes())?;
        if let Some(ca_key) = identity.authority.key_pkcs8() {
            write_atomic(&folder.join("ca.key"), ca_key)?;
        }
        write_atomic(&folder.join("peer.pem"), certs::pem(&[&issued.named, &issued.nameless]).as_bytes())?;
        Ok(identity)
    }

    fn assemble(
        folder: &Path,
        key: SecretKey,
        authority: Authority,
        issued: Issued,
        lifetime: Span,
        stale_ok: bool,
    ) -> Result<Self, IdentityError> {
        let proven = authority.check(&issued, &key.public(), stale_ok)?;
        let current = Current { issued, validity: proven.validity };
        let folder = folder.to_owned();
        Ok(Self {
            folder,
            name: proven.name,
            lifetime,
            key,
            authority,
            current: ArcSwap::from_pointee(current),
        })
    }

    /// The name in the certificate.
    pub fn name(&self) -> &PeerName {
        &self.name
    }
    /// The mesh: the first 16 bytes of SHA-256 of the trust root.
    pub fn mesh(&self) -> MeshId {
        self.authority.mesh()
    }
    /// SHA-256 of the trust root, for join tokens.
    pub fn ca_fingerprint(&self) -> [u8; 32] {
        certs::fingerprint(self.authority.certificate())
    }
    /// The trust root, for join answers.
    pub fn ca_certificate(&self) -> &CertificateDer<'static> {
        self.authority.certificate()
    }
    /// The mesh's private key (PKCS#8), if this peer holds it. Only for the join answer.
    pub fn ca_key(&self) -> Option<&[u8]> {
        self.authority.key_pkcs8()
    }
    /// The mesh's public key: checks what [`Self::ca_sign_bytes`] signed.
    pub fn ca_public(&self) -> PublicKey {
        self.authority.public()
    }
    /// This peer's public key.
    pub fn public(&self) -> PublicKey {
        self.key.public()
    }
    /// The certificates in use.
    pub fn issued(&self) -> Issued {
        self.current.load().issued.clone()
    }
    /// From when to when the present certificates are good.
    pub fn validity(&self) -> (WallTime, WallTime) {
        self.current.load().validity
    }
    /// Two thirds of the certificates' life are over.
    pub fn renewal_due(&self, now: WallTime) -> bool {
        let (from, to) = self.validity();
        let life = to.0.saturating_sub(from.0).saturating_sub(certs::SKEW.as_millis());
        now.0.saturating_add(life / 3) >= to.0
    }

    /// Signs certificates for another peer's (or the own) key. Needs the mesh's key.
    pub fn sign(&self, key: &PublicKey, name: &PeerName) -> Result<Issued, IdentityError> {
        self.authority.issue(key, name, WallTime(certs::now()), self.lifetime)
    }

    /// Takes renewed certificates for the own key and name on disk and into use. Prefer
    /// [`super::Net::install`], which also shows them to the peers.
    pub fn install(&self, issued: Issued) -> Result<(), IdentityError> {
        let proven = self.authority.check(&issued, &self.key.public(), false)?;
        if proven.name != self.name {
            return Err(IdentityError::Bad("the new certificate", format!("it names {}", proven.name)));
        }
        let text = certs::pem(&[&issued.named, &issued.nameless]);
        write_atomic(&self.folder.join("peer.pem"), text.as_bytes())?;
        self.current.store(std::sync::Arc::new(Current { issued, validity: proven.validity }));
        info!(name = %self.name, good_until_ms = proven.validity.1.0, "certificates renewed");
        Ok(())
    }

    /// Signs with the peer's key.
    pub fn sign_bytes(&self, context: &str, bytes: &[u8]) -> Vec<u8> {
        self.key.sign_bytes(context, bytes)
    }
    /// Signs with the mesh's key, if this peer holds it.
    pub fn ca_sign_bytes(&self, context: &str, bytes: &[u8]) -> Result<Vec<u8>, IdentityError> {
        self.authority.sign_bytes(context, bytes)
    }

    /// Reads who a certificate of this mesh names. Refused: other meshes, expired, nameless, malformed.
    pub(super) fn prove(&self, named: &CertificateDer<'_>) -> Result<Proven, IdentityError> {
        self.authority.prove(named, false)
    }
    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }
    pub(super) fn key(&self) -> &SecretKey {
        &self.key
    }
}

/// An older version made the folder as the umask said, and a backup that was put back may be readable by anybody.
fn close_to_others(folder: &Path) -> Result<(), IdentityError> {
    let failed = |e| IdentityError::Io(folder.to_owned(), e);
    private::tighten(folder).map_err(failed)?;
    for public in ["ca.pem", "peer.pem"] {
        private::tighten(&folder.join(public)).map_err(failed)?;
    }
    for secret in ["ca.key", "peer.key"] {
        private::tighten_secret(&folder.join(secret)).map_err(failed)?;
    }
    Ok(())
}

fn refuse_existing(folder: &Path) -> Result<(), IdentityError> {
    match read_optional(&folder.join("peer.pem"))? {
        Some(_) => Err(IdentityError::Exists(folder.to_owned())),
        None => Ok(()),
    }
}

/// Reads `peer.key`, or makes it: a join that broke off goes on with the key it began with.
fn own_key(folder: &Path) -> Result<SecretKey, IdentityError> {
    let path = folder.join("peer.key");
    if let Some(bytes) = read_optional(&path)? {
        return SecretKey::from_pkcs8(&bytes).ok_or(IdentityError::Bad("peer.key", "not a key".into()));
    }
    let key = SecretKey::generate().ok_or(IdentityError::Make("key", "no randomness".into()))?;
    write_atomic(&path, key.pkcs8())?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn name(text: &str) -> PeerName {
        PeerName::new(text).expect("a name")
    }

    #[test]
    fn a_mesh_is_made_kept_and_reopened() {
        let folder = tempfile::tempdir().expect("temp");
        assert!(matches!(Identity::open(folder.path(), LIFETIME), Err(IdentityError::Missing(_))));
        let made = Identity::create_mesh(folder.path(), &name("a"), LIFETIME).expect("made");
        let again = Identity::open(folder.path(), LIFETIME).expect("opened");
        assert_eq!((again.name(), again.mesh(), again.public()), (made.name(), made.mesh(), made.public()));
        assert_eq!(made.mesh().0, made.ca_fingerprint()[..16]);
        assert!(matches!(
            Identity::create_mesh(folder.path(), &name("b"), LIFETIME),
            Err(IdentityError::Exists(_))
        ));
        for entry in std::fs::read_dir(folder.path()).expect("lists") {
            let entry = entry.expect("entry");
            assert_eq!(entry.metadata().expect("stat").permissions().mode() & 0o777, 0o600, "{entry:?}");
        }
        let signature = made.ca_sign_bytes("member", b"x").expect("holds the key");
        assert!(again.ca_public().verify_bytes("member", b"x", &signature));
        std::fs::write(folder.path().join("peer.pem"), "junk").expect("writes");
        assert!(matches!(Identity::open(folder.path(), LIFETIME), Err(IdentityError::Bad(..))));
    }

    #[test]
    fn joining_checks_what_it_was_given() {
        let (a, b, c) = (
            tempfile::tempdir().expect("t"),
            tempfile::tempdir().expect("t"),
            tempfile::tempdir().expect("t"),
        );
        let first = Identity::create_mesh(a.path(), &name("a"), LIFETIME).expect("made");
        let other = Identity::create_mesh(c.path(), &name("a"), LIFETIME).expect("made");
        let key = Identity::joining_key(b.path()).expect("made");
        assert_eq!(Identity::joining_key(b.path()).expect("kept"), key);
        let issued = first.sign(&key, &name("b")).expect("signs");
        let join = |ca: &[u8], ca_key: Option<&[u8]>, issued: &Issued| {
            Identity::join(b.path(), ca, ca_key, issued.clone(), LIFETIME)
        };
        assert!(join(other.ca_certificate(), None, &issued).is_err(), "of another mesh");
        let for_other_key = first.sign(&other.public(), &name("b")).expect("signs");
        assert!(join(first.ca_certificate(), None, &for_other_key).is_err(), "for another key");
        let swapped = Issued { named: issued.nameless.clone(), nameless: issued.named.clone() };
        assert!(join(first.ca_certificate(), None, &swapped).is_err(), "swapped");
        assert!(join(first.ca_certificate(), other.ca_key(), &issued).is_err(), "with another mesh's key");
        assert!(Identity::open(b.path(), LIFETIME).is_err(), "nothing was kept");
        let joined = join(first.ca_certificate(), None, &issued).expect("joins");
        assert_eq!((joined.name(), joined.mesh()), (&name("b"), first.mesh()));
        assert!(matches!(joined.sign(&key, &name("x")), Err(IdentityError::NoCaKey)));
        assert!(matches!(joined.ca_sign_bytes("x", b""), Err(IdentityError::NoCaKey)));
    }

    #[test]
    fn renewal_is_due_after_two_thirds() {
        let folder = tempfile::tempdir().expect("temp");
        let made = Identity::create_mesh(folder.path(), &name("a"), Span::secs(3_000)).expect("made");
        let now = certs::now();
        assert!(!made.renewal_due(WallTime(now + 1_990_000)));
        assert!(made.renewal_due(WallTime(now + 2_010_000)));
        let renewed = made.sign(&made.public(), &name("a")).expect("signs");
        made.install(renewed.clone()).expect("takes it");
        assert_eq!(Identity::open(folder.path(), LIFETIME).expect("opens").issued(), renewed);
        let foreign = made.sign(&made.public(), &name("b")).expect("signs");
        assert!(made.install(foreign).is_err(), "another name");
        assert_eq!(made.issued(), renewed);
    }
}
