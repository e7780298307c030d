//! The functions and limits of a server.

use crate::messages::{SHA256, ServerCapabilities, ZSTD};

/// The size of a batch of a server that states no limit, in bytes: the usual bound of a message, without its frame.
const DEFAULT_BATCH: u64 = (4 << 20) - (64 << 10);

/// The functions and limits of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Maximum size of all blobs of a batch, in bytes.
    pub max_batch_bytes: u64,
    /// Maximum size of a blob, in bytes; `None` if the server states none.
    pub max_blob_bytes: Option<u64>,
    /// True if single blobs can be transferred with zstd.
    pub zstd: bool,
    /// True if blobs of a batch can be uploaded with zstd.
    pub zstd_batches: bool,
    /// True if clients may write to the action cache.
    pub may_update_results: bool,
    /// True if the server executes actions.
    pub executes: bool,
}

/// Reads what a server offers.
///
/// # Errors
/// A function is missing without which the client cannot work.
pub(crate) fn capabilities_of(answer: &ServerCapabilities) -> Result<Capabilities, &'static str> {
    let cache = answer.cache_capabilities.as_ref().ok_or("has no content store")?;
    if !cache.digest_functions.contains(&SHA256) {
        return Err("does not offer sha256 digests");
    }
    let positive = |size: i64| u64::try_from(size).ok().filter(|size| *size > 0);
    let execution = answer.execution_capabilities.as_ref();
    Ok(Capabilities {
        max_batch_bytes: positive(cache.max_batch_total_size_bytes).unwrap_or(DEFAULT_BATCH).min(DEFAULT_BATCH),
        max_blob_bytes: positive(cache.max_cas_blob_size_bytes),
        zstd: cache.supported_compressors.contains(&ZSTD),
        zstd_batches: cache.supported_batch_update_compressors.contains(&ZSTD),
        may_update_results: cache.action_cache_update_capabilities.as_ref().is_some_and(|update| update.update_enabled),
        executes: execution.is_some_and(|execution| {
            execution.exec_enabled
                && (execution.digest_function == SHA256 || execution.digest_functions.contains(&SHA256))
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{CacheCapabilities, ExecutionCapabilities};

    #[test]
    fn reads_limits() {
        let cache = CacheCapabilities { digest_functions: vec![SHA256], ..CacheCapabilities::default() };
        let answer = |cache| ServerCapabilities { cache_capabilities: Some(cache), execution_capabilities: None };
        let small = capabilities_of(&answer(CacheCapabilities { max_batch_total_size_bytes: 65_536, ..cache.clone() }));
        assert_eq!(small.expect("capabilities").max_batch_bytes, 65_536);
        for unbounded in [0, -1, i64::MAX] {
            let given = CacheCapabilities { max_batch_total_size_bytes: unbounded, ..cache.clone() };
            assert_eq!(capabilities_of(&answer(given)).expect("capabilities").max_batch_bytes, DEFAULT_BATCH);
        }
        assert!(capabilities_of(&ServerCapabilities::default()).is_err());
        assert!(capabilities_of(&answer(CacheCapabilities::default())).is_err(), "no sha256");
        let executing = ExecutionCapabilities { digest_function: SHA256, exec_enabled: true, digest_functions: vec![] };
        let both = ServerCapabilities { execution_capabilities: Some(executing), ..answer(cache) };
        assert!(capabilities_of(&both).expect("capabilities").executes);
    }
}
