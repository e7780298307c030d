//! The secret of a state directory, which keys of stored results depend on.

use std::io;

use super::RESULTS_DIR;
use crate::store::StoreError;
use crate::store::directory::{Directory, random_u64};

const SECRET_FILE: &str = "secret";
/// Size of the secret, in bytes.
pub(super) const SECRET_BYTES: usize = 32;

/// Returns the secret of a state directory, which makes digests of values unusable for guessing the values.
///
/// # Errors
/// It cannot be read or written.
pub(crate) fn state_secret(state: &Directory) -> Result<[u8; SECRET_BYTES], StoreError> {
    ensure_secret(&state.ensure(RESULTS_DIR, 0o700)?)
}

pub(super) fn ensure_secret(root: &Directory) -> Result<[u8; SECRET_BYTES], StoreError> {
    if let Some(secret) = read_secret(root)? {
        return Ok(secret);
    }
    let mut bytes = Vec::with_capacity(SECRET_BYTES);
    while bytes.len() < SECRET_BYTES {
        bytes.extend_from_slice(&random_u64()?.to_le_bytes());
    }
    // Another process may write its own secret at the same time; every process uses the one that it reads afterwards.
    root.write(SECRET_FILE, &bytes)?;
    match read_secret(root)? {
        Some(secret) => Ok(secret),
        None => Err(StoreError::Io {
            action: "read",
            path: format!("{RESULTS_DIR}/{SECRET_FILE}"),
            source: io::Error::other("it does not have the length of a secret"),
        }),
    }
}

fn read_secret(root: &Directory) -> Result<Option<[u8; SECRET_BYTES]>, StoreError> {
    let bytes = root.read(SECRET_FILE, SECRET_BYTES as u64)?;
    Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
}
