//! Keeps what the runs of a process share for the exchange of results: the connection, and the digests of files.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use proctor_core::spec::RemoteCacheSettings;
use proctor_core::text::digest::Sha256Hex;
use proctor_remote::Client;

use crate::clock::Clock;
use crate::error::one_line;
use crate::shared_results::{ContentHashes, SharedResults, SharedResultsError, create_client, stamp_of};
use crate::step::process_facts::OWN_PROGRAM;
use crate::store::directory::Directory;
use crate::store::results::RESULTS_DIR;

/// The exchange of results, which all runs of a process share: the connection, and the digests of files.
#[derive(Debug, Default)]
pub(super) struct SharedResultsCache {
    /// The client for the last settings.
    client: Mutex<Option<(RemoteCacheSettings, Client)>>,
    hashes: OnceLock<Arc<ContentHashes>>,
}

impl SharedResultsCache {
    /// Returns the remembered digests of files.
    pub(super) fn hashes(&self, state: &Directory) -> Arc<ContentHashes> {
        let read = || {
            let results = state.ensure(RESULTS_DIR, 0o700);
            let results = results.inspect_err(|error| tracing::debug!(%error, "the results cannot be opened"));
            Arc::new(results.map_or_else(|_| ContentHashes::default(), |results| ContentHashes::read(&results)))
        };
        Arc::clone(self.hashes.get_or_init(read))
    }

    /// Reads the keys of the settings.
    ///
    /// # Errors
    /// A file of the settings cannot be used.
    pub(super) fn open(&self, settings: &RemoteCacheSettings) -> Result<Arc<SharedResults>, String> {
        let opened = self.client(settings).and_then(|client| SharedResults::open(settings, client));
        opened.map(Arc::new).map_err(|error| one_line(&error))
    }

    fn client(&self, settings: &RemoteCacheSettings) -> Result<Client, SharedResultsError> {
        let mut known = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = known.as_ref().filter(|(known, _)| known == settings) {
            return Ok(client.clone());
        }
        let client = create_client(settings)?;
        *known = Some((settings.clone(), client.clone()));
        Ok(client)
    }
}

/// Returns the version and the content of Proctor's programs, which other machines can compare.
///
/// # Errors
/// A program cannot be read.
pub(super) fn portable_programs(hashes: &ContentHashes, helper: &Path, clock: Clock) -> Result<String, String> {
    let now_ns = i64::try_from(clock.now_ns()).unwrap_or(i64::MAX);
    let digest = |program: &Path| -> Result<Sha256Hex, String> {
        let failed = |error: std::io::Error| format!("the program `{}` cannot be read: {error}", program.display());
        let program = fs::canonicalize(program).map_err(failed)?;
        let stamp = stamp_of(&fs::metadata(&program).map_err(failed)?);
        let hash = hashes.hash(&program, &stamp, now_ns);
        hash.map(Sha256Hex::from_raw).ok_or_else(|| format!("the program `{}` cannot be read", program.display()))
    };
    Ok(format!("{} {} {}", env!("CARGO_PKG_VERSION"), digest(Path::new(OWN_PROGRAM))?, digest(helper)?))
}
