//! Reads keys of providers. A key appears in no message, log or document.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::spec::KeySource;

/// Variable with the directory of the credentials that systemd passes to a service.
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";
/// Maximum size of a key, in bytes.
const MAX_KEY_BYTES: u64 = 16 << 10;
/// Minimum length of a key that is replaced in texts, in bytes.
const MIN_SECRET_BYTES: usize = 8;
/// Mode bits that let users other than the owner use a file.
const OTHERS: u32 = 0o077;

/// A secret text. `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret([redacted])")
    }
}

impl Secret {
    /// Returns the text, to send it to the server that it is for.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Replaces the secret in a text. A short key, such as a placeholder for a local server, is not a secret.
    pub(crate) fn redact(&self, text: &str) -> String {
        if self.0.len() < MIN_SECRET_BYTES { text.to_owned() } else { text.replace(&self.0, "[redacted]") }
    }
}

/// Reason why there is no key. The message contains no part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("the key file `{}` cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users can use the file.
    #[error("other users may read or write the key file `{}`; hint: set its mode to 0600", file.display())]
    NotPrivate {
        /// The file.
        file: PathBuf,
    },
    /// Another user owns the file.
    #[error("the key file `{}` belongs to another user", file.display())]
    OtherOwner {
        /// The file.
        file: PathBuf,
    },
    /// Proctor was started without credentials.
    #[error("the credential `{name}` is not available, because `$CREDENTIALS_DIRECTORY` is not set")]
    NoCredentials {
        /// The credential.
        name: String,
    },
    /// The variable is not set.
    #[error("the variable `{name}` with the key is not set")]
    NoVariable {
        /// The variable.
        name: String,
    },
    /// The key is empty, too long, or has characters that a header cannot contain.
    #[error("the key from {origin} is not one line of printable ASCII")]
    Malformed {
        /// The origin of the key.
        origin: String,
    },
}

/// Reads a key. `env` is the environment of the process.
///
/// # Errors
/// The key is missing or malformed, or other users can read it.
pub fn read_key(source: &KeySource, env: &BTreeMap<String, String>) -> Result<Secret, KeyError> {
    let (text, origin) = match source {
        KeySource::File(path) => (read_private_file(Path::new(path))?, format!("`{path}`")),
        KeySource::Credential(name) => {
            let directory = env.get(CREDENTIALS_DIRECTORY).filter(|directory| !directory.is_empty());
            let directory = directory.ok_or_else(|| KeyError::NoCredentials { name: name.clone() })?;
            (read_private_file(&Path::new(directory).join(name))?, format!("the credential `{name}`"))
        }
        KeySource::Variable(name) => {
            let value = env.get(name).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| KeyError::NoVariable { name: name.clone() })?;
            (value.clone(), format!("the variable `{name}`"))
        }
    };
    let key = text.trim();
    let is_printable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_printable { Ok(Secret(key.to_owned())) } else { Err(KeyError::Malformed { origin }) }
}

fn read_private_file(file: &Path) -> Result<String, KeyError> {
    let unreadable = |source| KeyError::Unreadable { file: file.to_owned(), source };
    let open = std::fs::File::open(file).map_err(unreadable)?;
    // The opened file is examined, so that its name cannot stand for another file in the meantime.
    let meta = open.metadata().map_err(unreadable)?;
    if !meta.is_file() {
        return Err(unreadable(io::Error::other("it is not a file")));
    }
    if meta.mode() & OTHERS != 0 {
        return Err(KeyError::NotPrivate { file: file.to_owned() });
    }
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(KeyError::OtherOwner { file: file.to_owned() });
    }
    let mut bytes = Vec::new();
    open.take(MAX_KEY_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let malformed = || KeyError::Malformed { origin: format!("`{}`", file.display()) };
    if bytes.len() as u64 > MAX_KEY_BYTES {
        return Err(malformed());
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file_with_mode(directory: &Path, name: &str, text: &[u8], mode: u32) -> String {
        let mut file = tempfile::NamedTempFile::new_in(directory).expect("a file");
        file.write_all(text).expect("writes");
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).expect("sets the mode");
        let path = directory.join(name);
        file.persist(&path).expect("renames");
        path.to_string_lossy().into_owned()
    }

    #[test]
    fn reads_key_from_each_source() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = file_with_mode(directory.path(), "key", b"sk-1\n", 0o600);
        let env = BTreeMap::from([
            (CREDENTIALS_DIRECTORY.to_owned(), directory.path().to_string_lossy().into_owned()),
            ("K".to_owned(), "sk-22222".to_owned()),
        ]);
        let read = |source| read_key(&source, &env).expect("a key");
        assert_eq!(read(KeySource::File(file)).expose(), "sk-1");
        assert_eq!(read(KeySource::Credential("key".into())).expose(), "sk-1");
        let secret = read(KeySource::Variable("K".into()));
        assert_eq!(secret.expose(), "sk-22222");
        assert!(!format!("{secret:?}").contains("sk-22222"));
        assert_eq!(secret.redact("the key sk-22222 is wrong"), "the key [redacted] is wrong");
    }

    #[test]
    fn refuses_key_that_others_can_read() {
        let directory = tempfile::tempdir().expect("a directory");
        for mode in [0o640, 0o604, 0o660, 0o777] {
            let file = file_with_mode(directory.path(), &format!("key{mode}"), b"sk-secret", mode);
            let error = read_key(&KeySource::File(file), &BTreeMap::new()).expect_err("not private");
            assert!(matches!(error, KeyError::NotPrivate { .. }), "{error}");
            assert!(!format!("{error} {error:?}").contains("sk-secret"));
        }
    }

    #[test]
    fn refuses_missing_and_malformed_keys() {
        let directory = tempfile::tempdir().expect("a directory");
        let env = BTreeMap::from([("EMPTY".to_owned(), String::new()), ("LINES".to_owned(), "a\nb".to_owned())]);
        for (name, text) in [("empty", &b" \n"[..]), ("lines", b"a\nb"), ("bytes", b"\xff")] {
            let file = file_with_mode(directory.path(), name, text, 0o600);
            let error = read_key(&KeySource::File(file), &env).expect_err(name);
            assert!(matches!(error, KeyError::Malformed { .. }), "{error}");
        }
        let long = file_with_mode(directory.path(), "long", &vec![b'a'; MAX_KEY_BYTES as usize + 1], 0o600);
        assert!(matches!(read_key(&KeySource::File(long), &env), Err(KeyError::Malformed { .. })));
        let missing = [
            KeySource::File("/nonexistent".into()),
            KeySource::File(directory.path().to_string_lossy().into_owned()),
            KeySource::Credential("key".into()),
            KeySource::Variable("EMPTY".into()),
            KeySource::Variable("LINES".into()),
        ];
        for source in missing {
            read_key(&source, &env).expect_err("no key");
        }
    }
}
