//! Reads Ed25519 keys from PEM files, as `openssl` writes them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::text::digest::Sha256Hex;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

/// Maximum size of a file with a key, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// The bytes before an Ed25519 key in its SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const OTHERS: u32 = 0o077;

/// The reason why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    /// The file cannot be read.
    #[error("the key in `{}` cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file contains another kind of key.
    #[error("`{}` contains no {kind} Ed25519 key in PEM format", file.display())]
    OtherKey {
        /// The file.
        file: PathBuf,
        /// Private or public.
        kind: &'static str,
    },
    /// Other users can read the private key.
    #[error("other users can read the private key in `{}`; run chmod 600", .0.display())]
    Exposed(PathBuf),
}

/// A private key that signs results.
pub(crate) struct SigningKey {
    pair: Ed25519KeyPair,
    /// The id of the public key.
    pub(crate) id: Sha256Hex,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Reads a private key in PKCS#8 form.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it, or it has no such key.
    pub(crate) fn read(file: &Path) -> Result<Self, KeyError> {
        let (pem, mode) = read_bounded(file)?;
        if mode & OTHERS != 0 {
            return Err(KeyError::Exposed(file.to_owned()));
        }
        let other = || KeyError::OtherKey { file: file.to_owned(), kind: "private" };
        let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| other())?;
        // OpenSSL writes the first version of PKCS#8, which does not contain the public key.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()).map_err(|_| other())?;
        let id = key_id(pair.public_key().as_ref());
        Ok(Self { pair, id })
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

/// The public keys whose results count, by their ids.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrustedKeys(BTreeMap<Sha256Hex, Vec<u8>>);

impl TrustedKeys {
    /// Reads public keys.
    ///
    /// # Errors
    /// A file cannot be read, or has no such key.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self, KeyError> {
        let read = |file: &PathBuf| read_public_key(file).map(|key| (key_id(&key), key));
        files.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &Sha256Hex> {
        self.0.keys()
    }

    /// Returns whether the key with this id signed the message; `None` if the key is not trusted.
    pub(crate) fn verify(&self, id: &Sha256Hex, message: &[u8], signature: &[u8]) -> Option<bool> {
        let key = self.0.get(id)?;
        Some(UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok())
    }
}

fn read_public_key(file: &Path) -> Result<Vec<u8>, KeyError> {
    let other = || KeyError::OtherKey { file: file.to_owned(), kind: "public" };
    let (pem, _) = read_bounded(file)?;
    let der = SubjectPublicKeyInfoDer::from_pem_slice(&pem).map_err(|_| other())?;
    let key = der.as_ref().strip_prefix(&SPKI_PREFIX).filter(|key| key.len() == 32).ok_or_else(other)?;
    Ok(key.to_vec())
}

/// Returns the id of a public key: the sha256 of its SubjectPublicKeyInfo.
fn key_id(public: &[u8]) -> Sha256Hex {
    Sha256Hex::digest(&[SPKI_PREFIX.as_slice(), public].concat())
}

/// Returns the content and the mode of a file.
fn read_bounded(file: &Path) -> Result<(Vec<u8>, u32), KeyError> {
    let read = || -> io::Result<(Vec<u8>, u32)> {
        let opened = fs::File::open(file)?;
        let meta = opened.metadata()?;
        if !meta.is_file() || meta.len() > MAX_BYTES {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        opened.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok((bytes, meta.permissions().mode()))
    };
    read().map_err(|source| KeyError::Unreadable { file: file.to_owned(), source })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Keys that `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` wrote.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIE0NoTiw5IwIg9hpBuAygAYuNOTvcUh2ZqF8407ilFNa\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAi+kaW1pTp7y+4eW8m1kHhHP+CvqB6N99YRD8kggGpEQ=\n-----END PUBLIC KEY-----\n";

    fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        #[expect(clippy::disallowed_methods, reason = "a file of the test")]
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("private");
        path
    }

    /// Returns the key of the tests, and the keys that trust it.
    pub(in crate::shared_results) fn test_keys() -> (SigningKey, TrustedKeys) {
        let directory = tempfile::tempdir().expect("a directory");
        let private = SigningKey::read(&file(directory.path(), "private", PRIVATE)).expect("a key");
        let trusted = TrustedKeys::read(&[file(directory.path(), "public", PUBLIC)]).expect("a key");
        (private, trusted)
    }

    #[test]
    fn reads_keys_of_openssl() {
        let (private, trusted) = test_keys();
        let signature = private.sign(b"message");
        assert_eq!(trusted.ids().collect::<Vec<_>>(), [&private.id]);
        assert_eq!(trusted.verify(&private.id, b"message", &signature), Some(true));
        assert_eq!(trusted.verify(&private.id, b"other", &signature), Some(false));
        assert_eq!(trusted.verify(&Sha256Hex::digest(b"other"), b"message", &signature), None);
        assert!(!format!("{private:?}").contains("pair"));
    }

    #[test]
    fn refuses_other_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let private = file(directory.path(), "private", PRIVATE);
        let public = file(directory.path(), "public", PUBLIC);
        assert!(matches!(SigningKey::read(&public), Err(KeyError::OtherKey { kind: "private", .. })));
        assert!(matches!(
            TrustedKeys::read(std::slice::from_ref(&private)),
            Err(KeyError::OtherKey { kind: "public", .. })
        ));
        assert!(matches!(SigningKey::read(&directory.path().join("absent")), Err(KeyError::Unreadable { .. })));
        fs::set_permissions(&private, fs::Permissions::from_mode(0o644)).expect("readable");
        assert!(matches!(SigningKey::read(&private), Err(KeyError::Exposed(_))));
    }
}
