//! Opens the stored results of steps for a run.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use proctor_core::api::RemoteCacheCheck;
use proctor_core::reuse::ReuseObstacle;
use proctor_core::spec::RemoteCacheSettings;
use proctor_core::text::digest::Sha256Hex;
use proctor_remote::Client;
use proctor_sandbox::StepUser;

use super::Engine;
use crate::clock::Clock;
use crate::error::one_line;
use crate::shared_results::{
    ContentHashes, PortableIdentity, SharedResults, SharedResultsError, SharedRun, create_client, stamp_of,
};
use crate::step::reuse::{OWN_PROGRAM, ReuseConfig, ReuseRequest, StepReuse};
use crate::store::directory::Directory;
use crate::store::results::RESULTS_DIR;

/// The reason why no result is reused if the operator disables it.
pub(super) const DISABLED_BY_OPERATOR: &str =
    "the operator's config disables the reuse of results (`[reuse] enabled = false`)";

/// The reason why no result is reused in a run without all controls.
const NOT_STRICT: &str = "controls of the sandbox may be missing (`--sandbox=best-effort`)";

impl Engine {
    /// Opens the stored results of steps for a run over a private copy of the tree or over the worktree itself. Without
    /// them, every step is executed.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(super) fn open_reuse(
        &self,
        request: Option<ReuseRequest>,
        user: StepUser,
        is_private_copy: bool,
    ) -> Result<StepReuse, String> {
        let Some(request) = request else { return Err(NOT_STRICT.to_owned()) };
        if !is_private_copy {
            return Err(ReuseObstacle::SharedTree.to_string());
        }
        let settings = self.config.operator.reuse;
        let config = ReuseConfig {
            settings,
            request,
            max_store_bytes: self.config.operator.daemon.retention.max_result_bytes,
            helper: &self.config.helpers.sandbox,
            user: user.ids_in_sandbox(),
            clock: self.clock,
            shared: self.open_shared(),
        };
        if !settings.enabled {
            return Err(DISABLED_BY_OPERATOR.to_owned());
        }
        StepReuse::open(&self.state, &self.state_path, config).map_err(|error| {
            tracing::warn!(%error, "results of steps cannot be stored or reused");
            format!("the stored results cannot be opened: {}", one_line(&error))
        })
    }

    /// Checks the server of the remote cache and its keys; `None` without a remote cache.
    pub async fn check_remote_cache(&self) -> Option<RemoteCacheCheck> {
        let settings = self.config.operator.remote_cache.as_ref()?;
        let opened = self.shared_results.open(settings);
        let (signing_key, trusted_keys) = opened.as_ref().map_or_else(
            |_| (None, Vec::new()),
            |results| (results.signing_key().cloned(), results.trusted_keys().cloned().collect()),
        );
        let problem = match opened {
            Ok(results) => results.check().await.err().map(|error| error.to_string()),
            Err(problem) => Some(problem),
        };
        Some(RemoteCacheCheck { endpoint: settings.endpoint.clone(), signing_key, trusted_keys, problem })
    }

    /// Returns the exchange of results with other machines for a run; `None` without a remote cache.
    fn open_shared(&self) -> Option<SharedRun> {
        let settings = self.config.operator.remote_cache.as_ref()?;
        let hashes = self.shared_results.hashes(&self.state);
        let programs = portable_programs(&hashes, &self.config.helpers.sandbox, self.clock);
        let (results, programs) = match (self.shared_results.open(settings), programs) {
            (Ok(results), Ok(programs)) => (Ok(results), programs),
            (Err(problem), _) | (Ok(_), Err(problem)) => (Err(problem), String::new()),
        };
        let identity = PortableIdentity { programs, ignored: settings.ignore_machine.clone() };
        Some(SharedRun::new(&settings.endpoint, results, hashes, identity))
    }
}

/// The exchange of results, which all runs of a process share: the connection, and the digests of files.
#[derive(Debug, Default)]
pub(super) struct SharedResultsCache {
    /// The client for the last settings.
    client: Mutex<Option<(RemoteCacheSettings, Client)>>,
    hashes: OnceLock<Arc<ContentHashes>>,
}

impl SharedResultsCache {
    fn hashes(&self, state: &Directory) -> Arc<ContentHashes> {
        let read = || {
            let results = state.ensure(RESULTS_DIR, 0o700);
            let results = results.inspect_err(|error| tracing::debug!(%error, "the results cannot be opened"));
            Arc::new(results.map_or_else(|_| ContentHashes::default(), |results| ContentHashes::read(&results)))
        };
        Arc::clone(self.hashes.get_or_init(read))
    }

    fn open(&self, settings: &RemoteCacheSettings) -> Result<Arc<SharedResults>, String> {
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
fn portable_programs(hashes: &ContentHashes, helper: &Path, clock: Clock) -> Result<String, String> {
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
