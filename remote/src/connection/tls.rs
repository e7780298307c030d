//! Reads the certificates and the key of a connection.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::system_roots::SYSTEM_ROOT_FILES;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::RemoteError;

/// Maximum size of a file with certificates or a key, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// The name of HTTP/2 in the handshake of TLS.
const ALPN: &[u8] = b"h2";

/// The files of a TLS connection, all in PEM format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The trusted certificates; those of the system if `None`.
    pub roots: Option<PathBuf>,
    /// The certificate of this client and its key, for servers that require one.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Returns the configuration of a TLS connection.
///
/// # Errors
/// A file cannot be read, or does not contain certificates or a key.
pub(crate) fn client_config(files: &TlsFiles) -> Result<ClientConfig, RemoteError> {
    let tls = |error: rustls::Error| RemoteError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(tls)?;
    let builder = builder.with_root_certificates(trusted_roots(files.roots.as_deref())?);
    let mut config = match &files.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = read_certificates(certificate, "the client certificate")?;
            let what = "the key of the client certificate";
            let parsed = PrivateKeyDer::from_pem_slice(&read_file(key, what)?);
            // The text of the error does not contain the key.
            let key = parsed.map_err(|error| file_error(what, key, io::Error::other(error.to_string())))?;
            builder.with_client_auth_cert(chain, key).map_err(tls)?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn trusted_roots(given: Option<&Path>) -> Result<RootCertStore, RemoteError> {
    let system = || SYSTEM_ROOT_FILES.iter().map(PathBuf::from).find(|file| file.is_file());
    let file = given.map(Path::to_owned).or_else(system).ok_or_else(|| {
        RemoteError::Tls("the system has no file of trusted certificates; install `ca-certificates`".to_owned())
    })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read_certificates(&file, "the file of trusted certificates")?);
    Ok(roots)
}

fn read_certificates(file: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, RemoteError> {
    let pem = read_file(file, what)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
    if found.is_empty() {
        return Err(file_error(what, file, io::Error::other("it contains no certificate in PEM format")));
    }
    Ok(found)
}

/// Reads a file up to a bound.
pub(super) fn read_file(file: &Path, what: &'static str) -> Result<Vec<u8>, RemoteError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let opened = fs::File::open(file)?;
        if !opened.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        opened.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_BYTES { Err(io::Error::other("it is too large")) } else { Ok(bytes) }
    };
    read().map_err(|source| file_error(what, file, source))
}

fn file_error(what: &'static str, file: &Path, source: io::Error) -> RemoteError {
    RemoteError::File { what, path: file.display().to_string(), source }
}
