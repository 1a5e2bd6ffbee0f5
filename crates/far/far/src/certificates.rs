//! Files of certificates.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use farfork_fabric::{CertificateSource, Certificates};
use farfork_sys::sync::locked;
use farfork_types::TlsFiles;

use crate::error::FarError;

/// The certificates in these files. The private key must be readable for its owner alone.
///
/// # Errors
/// [`FarError::Io`], [`FarError::ExposedKey`], [`FarError::Certificates`].
pub fn certificates_at(files: &TlsFiles) -> Result<Certificates, FarError> {
    let read = |what, path: &Path| fs::read(path).map_err(FarError::io(what, path));
    let chain = read("read the certificate", &files.cert)?;
    let key = read("read the private key", &files.key)?;
    let found = fs::metadata(&files.key).map_err(FarError::io("look at", &files.key))?;
    if found.mode() & 0o077 != 0 {
        return Err(FarError::ExposedKey { path: files.key.clone() });
    }
    let authorities = read("read the certificate of the authority", &files.ca)?;
    Certificates::from_pem(&chain, &key, &authorities)
        .map_err(|reason| FarError::Certificates { files: files.clone(), reason })
}

/// The certificates of a server, which are read again for each connection. Files that cannot be used, because
/// they are being replaced, leave those that were read before.
///
/// # Errors
/// As with [`certificates_at`].
pub fn renewed(files: &TlsFiles) -> Result<CertificateSource, FarError> {
    let (files, last) = (files.clone(), Mutex::new(certificates_at(files)?));
    Ok(Arc::new(move || {
        let mut last = locked(&last);
        match certificates_at(&files) {
            Ok(certificates) => *last = certificates,
            Err(why) => eprintln!("farfork: {why}; the certificates read before are used"),
        }
        last.clone()
    }))
}
