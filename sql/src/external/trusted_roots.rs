//! Reads the certificates that a connection to a server trusts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::system_roots::SYSTEM_ROOT_FILES;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Maximum size of a file with certificates, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// The reason why there are no trusted certificates.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file cannot be read.
    #[error("the certificates in `{}` cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file contains no certificate.
    #[error("`{}` contains no certificate in PEM format", .0.display())]
    NoCertificate(PathBuf),
    /// The system has no trusted certificates.
    #[error(
        "the system has no file of trusted certificates; install `ca-certificates`, or name one with `sslrootcert`"
    )]
    NoSystemFile,
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Returns the file with the trusted certificates: the given one, or that of the system.
///
/// # Errors
/// The system has no trusted certificates.
pub(crate) fn roots_file(given: Option<&Path>) -> Result<PathBuf, TrustError> {
    let system = || SYSTEM_ROOT_FILES.iter().map(PathBuf::from).find(|file| file.is_file());
    given.map(Path::to_owned).or_else(system).ok_or(TrustError::NoSystemFile)
}

/// Returns the content of a file with trusted certificates.
///
/// # Errors
/// The file cannot be read, or contains no certificate.
pub(crate) fn read_roots(file: &Path) -> Result<Vec<u8>, TrustError> {
    let unreadable = |source| TrustError::Unreadable { file: file.to_owned(), source };
    let meta = fs::metadata(file).map_err(unreadable)?;
    if !meta.is_file() || meta.len() > MAX_BYTES {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file of certificates")));
    }
    let pem = fs::read(file).map_err(unreadable)?;
    let has_certificate = CertificateDer::pem_slice_iter(&pem).any(|certificate| certificate.is_ok());
    if has_certificate { Ok(pem) } else { Err(TrustError::NoCertificate(file.to_owned())) }
}

/// Returns a configuration that verifies servers with the trusted certificates.
///
/// # Errors
/// There are no trusted certificates.
pub(crate) fn client_config(given: Option<&Path>) -> Result<ClientConfig, TrustError> {
    let pem = read_roots(&roots_file(given)?)?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
