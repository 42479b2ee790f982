//! Certificates of one mesh: made with rcgen, checked with the stock WebPKI verifier, read with x509-parser.
//!
//! Each peer has two for its one key. The *named* one carries the SAN URI `spiffe://<mesh>/peer/<name>` and
//! serves as client certificate, which TLS 1.3 shows only to a server that proved itself. The *nameless*
//! one is what a server shows to whoever calls: it says nothing but that the mesh's key signed it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::OID_SIG_ED25519;

use super::identity::{IdentityError, Issued};
use super::keys::{PublicKey, SecretKey};
use crate::base::{MeshId, PeerName, Span, WallTime};

/// The DNS name in every certificate: constant, so that the stock verifier runs and nothing is told.
pub(super) const DNS_NAME: &str = "mesh.internal";
/// Certificates begin this long before they are made, for clocks that are behind.
pub(super) const SKEW: Span = Span::secs(300);
/// The trust root's life.
const CA_LIFETIME: Span = Span::secs(20 * 365 * 86_400);

/// Milliseconds since 1970, the only clock that certificates know.
#[allow(clippy::disallowed_methods, reason = "certificates are valid by the time of day")]
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// SHA-256 of a certificate.
pub(super) fn fingerprint(der: &[u8]) -> [u8; 32] {
    ring::digest::digest(&ring::digest::SHA256, der).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// PEM text of certificates.
pub(super) fn pem(certificates: &[&[u8]]) -> String {
    let mut out = String::new();
    for der in certificates {
        out.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in BASE64.encode(der).as_bytes().chunks(64) {
            out.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
            out.push('\n');
        }
        out.push_str("-----END CERTIFICATE-----\n");
    }
    out
}

/// The cryptography in use everywhere: ring.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// What a named certificate says, after it was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proven {
    pub name: PeerName,
    pub key: PublicKey,
    pub validity: (WallTime, WallTime),
}

/// The mesh's trust root, with its key where this peer holds it.
#[derive(Debug)]
pub(super) struct Authority {
    certificate: CertificateDer<'static>,
    public: PublicKey,
    key: Option<SecretKey>,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
}

struct Subject<'a>(&'a PublicKey);
impl PublicKeyData for Subject<'_> {
    fn der_bytes(&self) -> &[u8] {
        &self.0.0
    }
    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

impl Authority {
    /// A new mesh.
    pub fn create() -> Result<Self, IdentityError> {
        let made = |e: rcgen::Error| IdentityError::Make("trust root", e.to_string());
        let key = SecretKey::generate().ok_or(IdentityError::Make("key", "no randomness".into()))?;
        let mut params = params(WallTime(now()), CA_LIFETIME)?;
        params.distinguished_name.push(DnType::CommonName, "mesh");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&rcgen_key(&key)?).map_err(made)?;
        Self::new(certificate.der(), Some(key.pkcs8()))
    }

    /// From its certificate and, where there is one, its key.
    pub fn new(certificate: &[u8], key: Option<&[u8]>) -> Result<Self, IdentityError> {
        let bad = |e: String| IdentityError::Bad("the trust root", e);
        let certificate = CertificateDer::from(certificate.to_vec());
        let public = ed25519(&parse(&certificate).map_err(bad)?).map_err(bad)?;
        let key = match key {
            None => None,
            Some(bytes) => match SecretKey::from_pkcs8(bytes) {
                Some(key) if key.public() == public => Some(key),
                _ => return Err(IdentityError::Bad("ca.key", "it is not the trust root's key".into())),
            },
        };
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(|e| bad(e.to_string()))?;
        let roots = Arc::new(roots);
        // Optional, since strangers may use the join channel: the mesh's own protocol insists after TLS.
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .allow_unauthenticated()
            .clear_root_hint_subjects()
            .build()
            .map_err(|e| bad(e.to_string()))?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider());
        let servers = servers.build().map_err(|e| bad(e.to_string()))?;
        Ok(Self { certificate, public, key, clients, servers })
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }
    pub fn public(&self) -> PublicKey {
        self.public
    }
    pub fn key_pkcs8(&self) -> Option<&[u8]> {
        self.key.as_ref().map(SecretKey::pkcs8)
    }
    pub fn clients(&self) -> Arc<dyn ClientCertVerifier> {
        self.clients.clone()
    }
    pub fn servers(&self) -> Arc<WebPkiServerVerifier> {
        self.servers.clone()
    }
    pub fn mesh(&self) -> MeshId {
        MeshId(fingerprint(&self.certificate)[..16].try_into().expect("16 of 32"))
    }
    pub fn sign_bytes(&self, context: &str, bytes: &[u8]) -> Result<Vec<u8>, IdentityError> {
        Ok(self.key.as_ref().ok_or(IdentityError::NoCaKey)?.sign_bytes(context, bytes))
    }

    /// Makes a peer's two certificates, good from now (less the skew) on.
    pub fn issue(
        &self,
        key: &PublicKey,
        name: &PeerName,
        from: WallTime,
        life: Span,
    ) -> Result<Issued, IdentityError> {
        let made = |e: rcgen::Error| IdentityError::Make("certificate", e.to_string());
        let ca_key = self.key.as_ref().ok_or(IdentityError::NoCaKey)?;
        let issuer = Issuer::from_ca_cert_der(&self.certificate, rcgen_key(ca_key)?).map_err(made)?;
        let dns = SanType::DnsName(DNS_NAME.try_into().map_err(made)?);
        let uri = format!("spiffe://{}/peer/{name}", self.mesh());
        let one = |names: Vec<SanType>, usage: ExtendedKeyUsagePurpose| {
            let mut params = params(from, life)?;
            params.subject_alt_names = names;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            params.signed_by(&Subject(key), &issuer).map(|c| c.der().to_vec()).map_err(made)
        };
        let uri = SanType::URI(uri.as_str().try_into().map_err(made)?);
        Ok(Issued {
            named: one(vec![dns.clone(), uri], ExtendedKeyUsagePurpose::ClientAuth)?,
            nameless: one(vec![dns], ExtendedKeyUsagePurpose::ServerAuth)?,
        })
    }

    /// Who a certificate names, if this mesh's key signed it and it is good now.
    pub fn prove(&self, named: &CertificateDer<'_>, stale_ok: bool) -> Result<Proven, IdentityError> {
        let bad = |e: String| IdentityError::Bad("the certificate", e);
        match self.clients.verify_client_cert(named, &[], UnixTime::now()) {
            Err(e) if !(stale_ok && is_stale(&e)) => return Err(bad(e.to_string())),
            _ => {}
        }
        let parsed = parse(named).map_err(bad)?;
        let validity = parsed.validity();
        let millis = |t: i64| WallTime(u64::try_from(t).unwrap_or(0).saturating_mul(1_000));
        Ok(Proven {
            name: peer_name(&parsed, self.mesh()).map_err(bad)?,
            key: ed25519(&parsed).map_err(bad)?,
            validity: (millis(validity.not_before.timestamp()), millis(validity.not_after.timestamp())),
        })
    }

    /// Checks that both certificates are this mesh's, for this key, and each of its kind.
    pub fn check(&self, issued: &Issued, key: &PublicKey, stale_ok: bool) -> Result<Proven, IdentityError> {
        let bad = |e: String| IdentityError::Bad("the certificate", e);
        let proven = self.prove(&CertificateDer::from(issued.named.as_slice()), stale_ok)?;
        let nameless = CertificateDer::from(issued.nameless.as_slice());
        let host = ServerName::try_from(DNS_NAME).expect("a constant DNS name");
        match self.servers.verify_server_cert(&nameless, &[], &host, &[], UnixTime::now()) {
            Err(e) if !(stale_ok && is_stale(&e)) => return Err(bad(e.to_string())),
            _ => {}
        }
        let parsed = parse(&nameless).map_err(bad)?;
        if proven.key != *key || ed25519(&parsed).map_err(bad)? != *key {
            return Err(bad("it is for another key".into()));
        }
        if peer_name(&parsed, self.mesh()).is_ok() {
            return Err(bad("the nameless one has a name".into()));
        }
        Ok(proven)
    }
}

fn is_stale(error: &rustls::Error) -> bool {
    use CertificateError::{Expired, ExpiredContext};
    matches!(error, rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }))
}

fn params(from: WallTime, life: Span) -> Result<CertificateParams, IdentityError> {
    let made = |e: String| IdentityError::Make("certificate", e);
    let at = |ms: u64| {
        OffsetDateTime::from_unix_timestamp(i64::try_from(ms / 1_000).unwrap_or(i64::MAX))
            .map_err(|e| made(e.to_string()))
    };
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| made("no randomness".into()))?;
    serial[0] &= 0x7f;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = at(from.0.saturating_sub(SKEW.as_millis()))?;
    params.not_after = at(from.0.saturating_add(life.as_millis()))?;
    Ok(params)
}

fn rcgen_key(key: &SecretKey) -> Result<KeyPair, IdentityError> {
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(key.pkcs8()), &PKCS_ED25519)
        .map_err(|e| IdentityError::Make("key", e.to_string()))
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<x509_parser::certificate::X509Certificate<'a>, String> {
    let (rest, parsed) = x509_parser::parse_x509_certificate(der).map_err(|e| e.to_string())?;
    if rest.is_empty() { Ok(parsed) } else { Err("bytes follow it".into()) }
}

fn ed25519(certificate: &x509_parser::certificate::X509Certificate<'_>) -> Result<PublicKey, String> {
    let spki = certificate.public_key();
    let bytes = <[u8; 32]>::try_from(spki.subject_public_key.data.as_ref());
    match bytes {
        Ok(bytes) if spki.algorithm.algorithm == OID_SIG_ED25519 => Ok(PublicKey(bytes)),
        _ => Err("its key is not Ed25519".into()),
    }
}

/// The one SAN URI must be this mesh's and name a peer.
fn peer_name(
    certificate: &x509_parser::certificate::X509Certificate<'_>,
    mesh: MeshId,
) -> Result<PeerName, String> {
    let names = certificate.subject_alternative_name().map_err(|e| e.to_string())?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err("it does not name exactly one peer".into());
    };
    let name =
        uri.strip_prefix(&format!("spiffe://{mesh}/peer/")).ok_or("it names a peer of another mesh")?;
    PeerName::new(name).map_err(|e| e.to_string())
}
