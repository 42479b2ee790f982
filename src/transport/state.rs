//! Small secret files: written whole or not at all, readable by their owner only.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::identity::IdentityError;
use crate::transport::private;

/// No key or certificate file is larger.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Replaces a file: when it returns, the new bytes are on disk; after a crash, the old or the new ones are.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), IdentityError> {
    let failed = |e| IdentityError::Io(path.to_owned(), e);
    let folder = path.parent().unwrap_or(Path::new("."));
    private::folder(folder).map_err(failed)?;
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let write = || {
        let mut file = private::options().write(true).create_new(true).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(failed)
}

/// Reads a file, none if there is none.
pub(super) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, IdentityError> {
    let failed = |e| IdentityError::Io(path.to_owned(), e);
    let file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// The certificates in PEM text.
pub(super) fn unpem(what: &'static str, text: &[u8]) -> Result<Vec<Vec<u8>>, IdentityError> {
    CertificateDer::pem_slice_iter(text)
        .map(|der| der.map(|der| der.to_vec()).map_err(|e| IdentityError::Bad(what, e.to_string())))
        .collect()
}
