//! Reads and writes path sets and records on the server.
//!
//! The weak fingerprint of a step leads to an action whose result has path sets as its files, and each strong fingerprint to
//! an action whose result has one record. The server sees only digests and signed envelopes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use proctor_core::reuse::{ExpectedRecord, MAX_PATH_SET_BYTES, MAX_RECORD_BYTES, PathSet, SharedRecord};
use proctor_core::spec::RemoteCacheSettings;
use proctor_core::text::digest::Sha256Hex;
use proctor_remote::messages::{Action, ActionResult, Command, OutputFile};
use proctor_remote::{BlobDigest, BlobSource, Bytes, Client, RemoteError, RetryPolicy, Timeouts};
use prost::Message as _;

use super::envelope;
use super::keys::{KeyError, SigningKey, TrustedKeys};
use crate::remote_server::{ServerError, connect_to};
use crate::store::results::MAX_AGE;

const PATH_SET_TYPE: &str = "application/vnd.proctor.path-set";
const RECORD_TYPE: &str = "application/vnd.in-toto+json";
/// The salt of the actions; a change of the exchange must change it.
const SALT: &[u8] = b"proctor-shared-results-1";
const RECORD_FILE: &str = "record.dsse";
/// Suffixes of the names of path sets and of records.
const PATH_SET_SUFFIX: &str = ".paths";
const RECORD_SUFFIX: &str = ".dsse";
/// The name of the newest path set of a step without `per_file`.
const NEWEST_PATH_SET: &str = "00.paths";
/// Maximum number of path sets of one step.
const MAX_PATH_SETS: usize = 16;
/// Maximum number of records of a step with `per_file` for the same inputs.
const MAX_RECORDS: usize = 16;
/// Size of an envelope beyond its payload in base64, in bytes.
const ENVELOPE_OVERHEAD: usize = 16 << 10;
const MAX_PATH_SET_ENVELOPE: u64 = (MAX_PATH_SET_BYTES / 3 * 4 + ENVELOPE_OVERHEAD) as u64;
const MAX_RECORD_ENVELOPE: u64 = (MAX_RECORD_BYTES / 3 * 4 + ENVELOPE_OVERHEAD) as u64;
/// Maximum size of all path sets that one search reads, in bytes.
const MAX_SEARCH_BYTES: u64 = 4 * MAX_PATH_SET_ENVELOPE;
/// A server that does not work must not delay a run for long.
const RETRY: RetryPolicy = RetryPolicy {
    max_attempts: 2,
    budget: 5,
    first_pause: Duration::from_millis(50),
    max_pause: Duration::from_millis(200),
    max_failures: 3,
    cooldown: Duration::from_secs(60),
    max_busy: Duration::ZERO,
};

/// The reason why results cannot be exchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SharedResultsError {
    /// A key cannot be used.
    #[error("{0}")]
    Key(String),
    /// The settings of the server are not valid.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server cannot be used.
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

impl From<KeyError> for SharedResultsError {
    fn from(error: KeyError) -> Self {
        Self::Key(error.to_string())
    }
}

/// Returns a client of the server. It connects when it is first used.
///
/// # Errors
/// The address is not valid, or a file of the settings cannot be used.
pub(crate) fn create_client(settings: &RemoteCacheSettings) -> Result<Client, SharedResultsError> {
    let limit = Duration::from_millis(settings.timeout_ms);
    Ok(connect_to(&settings.server, RETRY, Timeouts { connect: limit, call: limit, idle: limit })?)
}

/// The exchange of results with one server.
#[derive(Debug)]
pub(crate) struct SharedResults {
    client: Client,
    pub(crate) settings: RemoteCacheSettings,
    trusted: TrustedKeys,
    signer: Option<SigningKey>,
}

/// An execution that other machines can use.
#[derive(Debug)]
pub(crate) struct SharedDraft {
    pub(crate) paths: PathSet,
    pub(crate) record: SharedRecord,
}

/// A path set or record that was found, or the reason why it is not used.
pub(crate) type Verified<T> = Result<T, String>;

impl SharedResults {
    /// Reads the keys. They are read for each run, so that a key that is no longer trusted has no effect.
    ///
    /// # Errors
    /// A key cannot be used.
    pub(crate) fn open(settings: &RemoteCacheSettings, client: Client) -> Result<Self, SharedResultsError> {
        let signing_key: Option<&PathBuf> = settings.signing_key.as_ref().filter(|_| settings.write);
        Ok(Self {
            client,
            settings: settings.clone(),
            trusted: TrustedKeys::read(&settings.trusted_keys)?,
            signer: signing_key.map(|file| SigningKey::read(file)).transpose()?,
        })
    }

    /// Returns the address of the server.
    pub(crate) fn endpoint(&self) -> &str {
        self.client.endpoint()
    }

    /// Returns the id of the key that signs results of this machine.
    pub(crate) fn signing_key(&self) -> Option<&Sha256Hex> {
        self.signer.as_ref().map(|signer| &signer.id)
    }

    /// Returns the ids of the keys whose results count.
    pub(crate) fn trusted_keys(&self) -> impl Iterator<Item = &Sha256Hex> {
        self.trusted.ids()
    }

    /// Checks whether the server answers, and can store results if this machine writes.
    ///
    /// # Errors
    /// It does not.
    pub(crate) async fn check(&self) -> Result<(), RemoteError> {
        let capabilities = self.client.capabilities().await?;
        // The capabilities can be known from an earlier connection.
        self.client.find_missing(&[BlobDigest::for_bytes(b"")]).await?;
        if self.signer.is_some() && !capabilities.may_update_results {
            let problem = "does not let clients store results";
            return Err(RemoteError::Unsupported { endpoint: self.endpoint().to_owned(), problem });
        }
        Ok(())
    }

    /// Returns the path sets of a step.
    ///
    /// # Errors
    /// The server does not answer, or returns wrong bytes.
    pub(crate) async fn path_sets(&self, weak: &Sha256Hex) -> Result<Vec<Verified<PathSet>>, RemoteError> {
        let action = NamedAction::for_path_sets(weak);
        // Most searches need only the newest path set.
        let result = self.client.action_result(&action.digest, &[NEWEST_PATH_SET]).await?;
        let Some(result) = result else { return Ok(Vec::new()) };
        let (mut wanted, mut inlined, mut total) = (Vec::new(), BTreeMap::new(), 0u64);
        for file in result.output_files.into_iter().take(MAX_PATH_SETS) {
            let Ok(digest) = BlobDigest::from_message(file.digest.as_ref()) else { continue };
            let with_it = total.saturating_add(digest.bytes);
            if digest.bytes > MAX_PATH_SET_ENVELOPE || with_it > MAX_SEARCH_BYTES || wanted.contains(&digest) {
                continue;
            }
            total = with_it;
            if digest.matches(&file.contents) {
                inlined.insert(digest.clone(), Bytes::from(file.contents));
            }
            wanted.push(digest);
        }
        let others = wanted.iter().filter(|digest| !inlined.contains_key(*digest)).cloned().collect();
        let blobs = self.client.read(&others, MAX_SEARCH_BYTES).await?;
        // The server removes blobs that are not used.
        let found = wanted.iter().filter_map(|digest| inlined.get(digest).or_else(|| blobs.get(digest)));
        Ok(found.map(|bytes| self.open_path_set(bytes, weak)).collect())
    }

    fn open_path_set(&self, bytes: &[u8], weak: &Sha256Hex) -> Verified<PathSet> {
        let (payload, _) =
            envelope::open(bytes, PATH_SET_TYPE, &self.trusted).map_err(|refusal| format!("a path set: {refusal}"))?;
        PathSet::decode(&payload)
            .filter(|set| set.weak == *weak)
            .ok_or_else(|| "a path set: it belongs to another step, or is of another version".to_owned())
    }

    /// Returns the record of an execution, and the id of the key that signed it.
    ///
    /// # Errors
    /// The server does not answer, or returns wrong bytes.
    pub(crate) async fn record(
        &self,
        expected: &ExpectedRecord<'_>,
    ) -> Result<Option<Verified<(SharedRecord, Sha256Hex)>>, RemoteError> {
        let action = NamedAction::for_record(expected.strong);
        let Some(result) = self.client.action_result(&action.digest, &[RECORD_FILE]).await? else { return Ok(None) };
        let file = result.output_files.into_iter().find(|file| file.path == RECORD_FILE);
        let Some((digest, file)) =
            file.and_then(|file| Some((BlobDigest::from_message(file.digest.as_ref()).ok()?, file)))
        else {
            return Ok(Some(Err("the server's entry has no record".to_owned())));
        };
        if digest.bytes > MAX_RECORD_ENVELOPE {
            return Ok(Some(Err(format!("a record: it has {} bytes", digest.bytes))));
        }
        let bytes = if digest.matches(&file.contents) {
            file.contents.into()
        } else {
            let mut blobs = self.client.read(&BTreeSet::from([digest.clone()]), MAX_RECORD_ENVELOPE).await?;
            let Some(bytes) = blobs.remove(&digest) else { return Ok(None) };
            bytes
        };
        Ok(Some(self.open_record(&bytes, expected)))
    }

    /// Returns the records of executions of a step with `per_file`.
    ///
    /// # Errors
    /// The server does not answer, or returns wrong bytes.
    pub(crate) async fn records(
        &self,
        expected: &ExpectedRecord<'_>,
    ) -> Result<Vec<Verified<(SharedRecord, Sha256Hex)>>, RemoteError> {
        let action = NamedAction::for_record(expected.strong);
        let Some(result) = self.client.action_result(&action.digest, &[]).await? else { return Ok(Vec::new()) };
        let files = result.output_files.iter().filter(|file| file.path.ends_with(RECORD_SUFFIX)).take(MAX_RECORDS);
        let digests = files.filter_map(|file| BlobDigest::from_message(file.digest.as_ref()).ok());
        let (mut wanted, mut total) = (BTreeSet::new(), 0u64);
        for digest in digests.filter(|digest| digest.bytes <= MAX_RECORD_ENVELOPE) {
            total = total.saturating_add(digest.bytes);
            if total <= MAX_SEARCH_BYTES {
                wanted.insert(digest);
            }
        }
        let blobs = self.client.read(&wanted, MAX_SEARCH_BYTES).await?;
        Ok(blobs.values().map(|bytes| self.open_record(bytes, expected)).collect())
    }

    fn open_record(&self, bytes: &[u8], expected: &ExpectedRecord<'_>) -> Verified<(SharedRecord, Sha256Hex)> {
        let (payload, key) =
            envelope::open(bytes, RECORD_TYPE, &self.trusted).map_err(|refusal| format!("a record: {refusal}"))?;
        let record = SharedRecord::from_statement(&payload, expected);
        record.map(|record| (record, key)).map_err(|refusal| format!("a record: {refusal}"))
    }

    /// Stores an execution. Returns false if it is too large, or if this machine does not write.
    ///
    /// # Errors
    /// The server does not answer, or refuses it.
    pub(crate) async fn publish(&self, draft: &SharedDraft) -> Result<bool, RemoteError> {
        let Some(signer) = &self.signer else { return Ok(false) };
        let (paths, statement) = (draft.paths.encode(), draft.record.to_statement());
        if paths.len() > MAX_PATH_SET_BYTES || statement.len() > MAX_RECORD_BYTES {
            return Ok(false);
        }
        let paths = envelope::seal(signer, PATH_SET_TYPE, &paths);
        let record = envelope::seal(signer, RECORD_TYPE, &statement);
        let (of_paths, of_record) =
            (NamedAction::for_path_sets(&draft.record.weak), NamedAction::for_record(&draft.record.strong));
        let (paths_digest, record_digest) = (BlobDigest::for_bytes(&paths), BlobDigest::for_bytes(&record));
        let mut blobs = BTreeMap::new();
        blobs.insert(paths_digest.clone(), BlobSource::Bytes(paths.into()));
        blobs.insert(record_digest.clone(), BlobSource::Bytes(record.into()));
        blobs.extend(of_paths.blobs.iter().chain(&of_record.blobs).cloned());
        self.client.upload(&blobs).await?;
        if !draft.record.files.is_empty() {
            let now_ms = draft.record.executed_ms;
            self.add_file(&of_record.digest, (&record_digest, now_ms), (RECORD_SUFFIX, MAX_RECORDS)).await?;
            self.add_file(&of_paths.digest, (&paths_digest, now_ms), (PATH_SET_SUFFIX, MAX_PATH_SETS)).await?;
            return Ok(true);
        }
        // Stores the record first: a path set without a record would only cost other machines a request.
        let file = |path: &str, digest: &BlobDigest| OutputFile {
            path: path.to_owned(),
            digest: Some(digest.to_message()),
            ..OutputFile::default()
        };
        let result = |files| ActionResult { output_files: files, ..ActionResult::default() };
        self.client.store_action_result(&of_record.digest, result(vec![file(RECORD_FILE, &record_digest)])).await?;
        let known = self.client.action_result(&of_paths.digest, &[]).await?.unwrap_or_default();
        let earlier: Vec<BlobDigest> = known
            .output_files
            .iter()
            .filter_map(|file| BlobDigest::from_message(file.digest.as_ref()).ok())
            .filter(|digest| *digest != paths_digest && digest.bytes <= MAX_PATH_SET_ENVELOPE)
            .take(MAX_PATH_SETS - 1)
            .collect();
        if known.output_files.len() == earlier.len() + 1 && is_first(&known, &paths_digest) {
            return Ok(true);
        }
        let missing = self.client.find_missing(&earlier).await?;
        let kept = std::iter::once(&paths_digest).chain(earlier.iter().filter(|digest| !missing.contains(digest)));
        let files = kept.enumerate().map(|(number, digest)| file(&format!("{number:02}.paths"), digest)).collect();
        // If two machines do this at the same time, one path set is lost, which only costs cache hits.
        self.client.store_action_result(&of_paths.digest, result(files)).await?;
        Ok(true)
    }
}

impl SharedResults {
    /// Adds a file to the files of an action's result. Executions of a step with `per_file` check different files, so
    /// their records must not replace each other. If two machines do this at the same time, one file is lost, which
    /// only costs cache hits.
    async fn add_file(
        &self,
        action: &BlobDigest,
        (digest, now_ms): (&BlobDigest, u64),
        (suffix, max): (&str, usize),
    ) -> Result<(), RemoteError> {
        let known = self.client.action_result(action, &[]).await?.unwrap_or_default();
        let mut kept = kept_files(&known, (digest, now_ms), (suffix, max));
        let digests: Vec<BlobDigest> = kept.iter().map(|file| file.digest.clone()).collect();
        let missing = self.client.find_missing(&digests).await?;
        kept.retain(|file| !missing.contains(&file.digest));
        let file = |kept: &KeptFile| OutputFile {
            path: kept.name(suffix),
            digest: Some(kept.digest.to_message()),
            ..OutputFile::default()
        };
        let mut output_files: Vec<OutputFile> = kept.iter().map(file).collect();
        output_files.sort_by(|one, other| one.path.cmp(&other.path));
        self.client.store_action_result(action, ActionResult { output_files, ..ActionResult::default() }).await
    }
}

/// A file of an action's result. Its name contains the time at which it was stored. A server that changes the time only
/// affects cache hits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptFile {
    stored_ms: u64,
    digest: BlobDigest,
}

impl KeptFile {
    fn name(&self, suffix: &str) -> String {
        format!("{:015}-{}{suffix}", self.stored_ms, self.digest.sha256.prefix(8))
    }

    fn parse(file: &OutputFile, suffix: &str) -> Option<Self> {
        let (time, _) = file.path.strip_suffix(suffix)?.split_once('-')?;
        let digest = BlobDigest::from_message(file.digest.as_ref()).ok()?;
        Some(Self { stored_ms: time.parse().ok()?, digest })
    }
}

/// Returns a new file and the existing files to keep: the largest ones of the last days, because these records are
/// about the most files.
fn kept_files(
    known: &ActionResult,
    (digest, now_ms): (&BlobDigest, u64),
    (suffix, max): (&str, usize),
) -> Vec<KeptFile> {
    let max_age_ms = u64::try_from(MAX_AGE.as_millis()).unwrap_or(u64::MAX);
    let is_kept = |file: &KeptFile| file.digest != *digest && now_ms.saturating_sub(file.stored_ms) <= max_age_ms;
    let known = known.output_files.iter().filter_map(|file| KeptFile::parse(file, suffix)).filter(is_kept);
    let mut known: Vec<KeptFile> = known.collect();
    known.sort_by_key(|file| std::cmp::Reverse((file.digest.bytes, file.stored_ms)));
    known.truncate(max - 1);
    known.push(KeptFile { stored_ms: now_ms, digest: digest.clone() });
    known
}

fn is_first(result: &ActionResult, digest: &BlobDigest) -> bool {
    let first = result.output_files.first().and_then(|file| BlobDigest::from_message(file.digest.as_ref()).ok());
    first.as_ref() == Some(digest)
}

/// An action that stands for a fingerprint. No server executes it.
struct NamedAction {
    digest: BlobDigest,
    /// The blobs that a server can require before it stores a result of the action.
    blobs: Vec<(BlobDigest, BlobSource)>,
}

impl NamedAction {
    fn for_path_sets(weak: &Sha256Hex) -> Self {
        Self::new("proctor-path-sets", weak)
    }

    fn for_record(strong: &Sha256Hex) -> Self {
        Self::new("proctor-record", strong)
    }

    fn new(name: &str, fingerprint: &Sha256Hex) -> Self {
        let arguments = vec![name.to_owned(), fingerprint.to_string()];
        let command = Command { arguments, ..Command::default() }.encode_to_vec();
        let root = Vec::new();
        let action = Action {
            command_digest: Some(BlobDigest::for_bytes(&command).to_message()),
            input_root_digest: Some(BlobDigest::for_bytes(&root).to_message()),
            salt: SALT.to_vec(),
            ..Action::default()
        };
        let action = action.encode_to_vec();
        let digest = BlobDigest::for_bytes(&action);
        let blob = |bytes: Vec<u8>| (BlobDigest::for_bytes(&bytes), BlobSource::Bytes(bytes.into()));
        Self { digest, blobs: vec![blob(command), blob(root), blob(action)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

    fn digest(content: &str, bytes: u64) -> BlobDigest {
        BlobDigest { sha256: Sha256Hex::digest(content.as_bytes()), bytes }
    }

    fn result(files: &[KeptFile]) -> ActionResult {
        let file = |kept: &KeptFile| OutputFile {
            path: kept.name(RECORD_SUFFIX),
            digest: Some(kept.digest.to_message()),
            ..OutputFile::default()
        };
        ActionResult { output_files: files.iter().map(file).collect(), ..ActionResult::default() }
    }

    #[test]
    fn records_of_few_files_do_not_replace_the_record_of_all() {
        let mut known = ActionResult::default();
        let all = digest("all", 10_000);
        for number in 0..40u64 {
            let new = if number == 0 { all.clone() } else { digest(&number.to_string(), 100 + number) };
            let kept = kept_files(&known, (&new, number), (RECORD_SUFFIX, MAX_RECORDS));
            assert!(kept.iter().any(|file| file.digest == all) && kept.last().map(|file| &file.digest) == Some(&new));
            assert!(kept.len() <= MAX_RECORDS);
            known = result(&kept);
        }
        let later = kept_files(&known, (&all, 8 * DAY_MS), (RECORD_SUFFIX, MAX_RECORDS));
        assert_eq!(later, [KeptFile { stored_ms: 8 * DAY_MS, digest: all }], "the others are too old");
    }

    #[test]
    fn other_files_are_left_out() {
        let mut known = result(&[KeptFile { stored_ms: 5, digest: digest("a", 1) }]);
        for path in ["record.dsse", "x-1.dsse", "00.paths"] {
            known.output_files.push(OutputFile { path: path.to_owned(), ..known.output_files[0].clone() });
        }
        let kept = kept_files(&known, (&digest("b", 1), 6), (RECORD_SUFFIX, MAX_RECORDS));
        assert_eq!(kept.iter().map(|file| file.stored_ms).collect::<Vec<_>>(), [5, 6]);
    }
}
