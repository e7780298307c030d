//! Checks whether the current tree is verified: reads the spec, the tree, a run's documents and Proctor's own record of
//! it, and evaluates them with `proctor_core::decision::gate`. It runs no step, writes nothing, follows no link, and
//! reads no more than the bounds below.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::decision::gate::{
    self, ChangedPaths, EvidenceFileContent, GateAnswer, GateFacts, GateRequirements, IgnoreFile, RecordedDocuments,
    TrustedKeyIds,
};
use proctor_core::model::drift::display_path;
use proctor_core::model::names::{ChangesetId, ProfileName};
use proctor_core::model::plan::Plan;
use proctor_core::record::attestation::{Attestation, Subject};
use proctor_core::record::status;
use proctor_core::spec::OperatorConfig;
use proctor_core::text::digest::SnapshotId;
use proctor_snapshot::{LastAndCurrent, Snapshot, SnapshotStore};

use crate::clock::Clock;
use crate::error::{EngineError, one_line};
use crate::host::git_on_demand::git_on_demand;
use crate::host::repository::Repository;
use crate::host::spec_file::SpecFile;
use crate::run::preflight;
use crate::run::request::EngineConfig;
use crate::shared_results::TrustedKeys;
use crate::store::attestations::Attestations;
use crate::store::directory::{Directory, is_temporary};
use crate::store::documents::{RUNS_DIR, STATUS_FILE, VERIFY_DIR, changeset_path};
use crate::store::{SNAPSHOTS_DIR, StoreError};

/// Maximum size of an evidence document, in bytes.
const MAX_DOCUMENT: u64 = 64 << 20;
/// Maximum size of all evidence that is read, in bytes.
const MAX_EVIDENCE: u64 = 256 << 20;
/// Maximum number of entries of `verify/` that are read.
const MAX_ENTRIES: usize = 4_096;

/// Maximum number of differing paths that are named.
const MAX_PATHS: usize = 100;

/// A request to check whether a tree is verified.
#[derive(Debug, Clone)]
pub struct GateRequest {
    /// Top directory of the repository's worktree.
    pub repo: PathBuf,
    /// The requirements.
    pub demands: GateRequirements,
}

/// Answers gate requests without an engine. The only program that it may run is `git` in a sandbox, for a
/// repository that libgit2 cannot read.
#[derive(Debug, Clone)]
pub struct Gate {
    pub(crate) state_dir: PathBuf,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) operator: OperatorConfig,
    pub(crate) clock: Clock,
    /// Required owner of the repository; `None` accepts any.
    pub(crate) owner: Option<u32>,
}

impl Gate {
    /// Creates a gate for the state directory and the operator configuration of `config`.
    pub fn new(config: EngineConfig, clock: Clock) -> Self {
        // Stored snapshots save reading the tree; without them, every file is read.
        let kept = Directory::open(&config.state_dir).and_then(|state| state.descend(SNAPSHOTS_DIR)).ok();
        let kept = kept.and_then(|kept| kept.as_fd().try_clone_to_owned().ok());
        let (state_dir, operator) = (config.state_dir.clone(), config.operator.clone());
        let helper = git_on_demand(config);
        Self { state_dir, snapshots: Arc::new(SnapshotStore::new(helper, kept)), operator, clock, owner: None }
    }

    /// Answers whether the tree is verified.
    ///
    /// # Errors
    /// The repository, its spec or its tree cannot be read, or the spec has no such profile.
    pub fn check(&self, request: &GateRequest) -> Result<GateAnswer, EngineError> {
        Ok(self.check_with_details(request)?.answer)
    }

    /// Answers like [`Gate::check`], and returns the values that the answer is based on.
    ///
    /// # Errors
    /// Same as [`Gate::check`].
    pub(crate) fn check_with_details(&self, request: &GateRequest) -> Result<GateDecision, EngineError> {
        let demands = &request.demands;
        let repository = Repository::find(&request.repo)?;
        preflight::require_owner(&repository, self.owner)?;
        demands.changeset.as_ref().map_or(Ok(()), |id| preflight::require_changeset_at_top(&repository, id))?;
        let file = SpecFile::read_in(&repository)?;
        let plan = file.resolve(&file.parse()?.spec, &demands.profile, &self.operator)?.plan;
        let LastAndCurrent { last, now } = self.snapshots.take_without_storing(repository.path())?;
        preflight::require_same_spec(&now, &repository, &file)?;
        let worktree = GateWorktree { last, now: Arc::clone(&now) };
        let (answer, attestation) = self.check_tree(&repository, demands, &plan, &now.id, Some(worktree))?;
        Ok(GateDecision { answer, attestation, repository, plan, now })
    }

    /// Answers whether a tree with a known identity and plan is verified, and returns Proctor's own record of the run
    /// in question. For a worktree, the answer also names the paths that differ from the last stored snapshot, and
    /// takes the ignore rules outside the tree into account.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) fn check_tree(
        &self,
        repository: &Repository,
        demands: &GateRequirements,
        plan: &Plan,
        tree: &SnapshotId,
        worktree: Option<GateWorktree>,
    ) -> Result<(GateAnswer, Option<Attestation>), EngineError> {
        let records = GateRecords { repository, state: self.open_state(repository)?, demands };
        let LoadedRunRecords { found, attestation, verified_tree: verified } = records.load(tree)?;
        let ignores = worktree.as_ref().map(|worktree| ignore_files(&worktree.now));
        let known = worktree.and_then(|GateWorktree { last, now }| Some((last?, now)));
        let known = known.filter(|(last, _)| verified.as_ref() == Some(&last.id));
        let facts = GateFacts {
            now_ms: self.clock.now_ms(),
            repository: repository.record_name(),
            snapshot: tree.clone(),
            ignores,
            changed_paths: known.map(|(last, now)| changed_paths(&last, &now)).unwrap_or_default(),
            plan,
            operator: &self.operator,
            trusted_keys: trusted_key_ids(&self.operator),
            documents: found,
            attestation,
        };
        let ours = facts.attestation.as_deref().and_then(Attestation::parse);
        Ok((gate::evaluate(demands, &facts), ours))
    }

    /// Opens the state directory. A state directory inside the tree is refused: it comes from the author of the
    /// tree and proves nothing.
    fn open_state(&self, repository: &Repository) -> Result<Option<Directory>, EngineError> {
        let Ok(path) = self.state_dir.canonicalize() else { return Ok(None) };
        match path.starts_with(repository.path()) {
            true => Err(EngineError::StateInRepository(path)),
            false => Ok(none_if_missing(Directory::open(&path))?),
        }
    }
}

/// The answer for a worktree, and the values that it is based on.
pub(crate) struct GateDecision {
    pub(crate) answer: GateAnswer,
    /// Proctor's own record of the run.
    pub(crate) attestation: Option<Attestation>,
    pub(crate) repository: Repository,
    /// The plan that the spec resolves to now.
    pub(crate) plan: Plan,
    /// The current snapshot of the worktree.
    pub(crate) now: Arc<Snapshot>,
}

/// A worktree to check.
pub(crate) struct GateWorktree {
    /// The last stored snapshot; `None` if none is stored.
    last: Option<Arc<Snapshot>>,
    /// The current snapshot.
    now: Arc<Snapshot>,
}

/// The records of the runs that may answer a request.
struct GateRecords<'a> {
    repository: &'a Repository,
    state: Option<Directory>,
    demands: &'a GateRequirements,
}

/// The documents of a run, and Proctor's own record of the run.
struct LoadedRunRecords {
    found: RecordedDocuments,
    attestation: Option<Vec<u8>>,
    /// The tree that was verified, according to the record.
    verified_tree: Option<SnapshotId>,
}

impl GateRecords<'_> {
    fn load(&self, now: &SnapshotId) -> Result<LoadedRunRecords, StoreError> {
        match &self.demands.changeset {
            Some(id) => self.load_changeset(id, now),
            None => self.load_newest_run(now),
        }
    }

    /// Reads the run that the changeset's status file names, and Proctor's own record of it, if there is one.
    fn load_changeset(&self, id: &ChangesetId, now: &SnapshotId) -> Result<LoadedRunRecords, StoreError> {
        let path = changeset_path(id);
        let Some(root) = none_if_missing(self.repository.directory.descend(&path))? else {
            return Err(StoreError::NoChangeset { path });
        };
        let found = read_run_documents(&root)?;
        let last_run = match &found.status {
            EvidenceFileContent::Bytes(bytes) => status::last_run(bytes).ok().flatten(),
            EvidenceFileContent::Absent | EvidenceFileContent::Unreadable(_) => None,
        };
        let (profile, tree) = match &last_run {
            Some(run) => (&run.profile, &run.snapshot),
            None => (&self.demands.profile, now),
        };
        let attestation = self.attestations().map(|all| all.read_for_tree(&self.subject(profile), tree)).transpose()?;
        let verified = last_run.map(|run| run.snapshot);
        Ok(LoadedRunRecords { found, attestation: attestation.flatten(), verified_tree: verified })
    }

    /// Reads the newest recorded run on this tree or, if there is none, on any tree.
    fn load_newest_run(&self, now: &SnapshotId) -> Result<LoadedRunRecords, StoreError> {
        let attestation = self.newest_attestation(now)?;
        let run = attestation.as_deref().and_then(Attestation::parse).map(|known| known.last_run);
        let path = run.as_ref().map(|run| format!("{RUNS_DIR}/{}", run.run_id));
        let root = match (&self.state, &path) {
            (Some(state), Some(path)) => none_if_missing(state.descend(path))?,
            _ => None,
        };
        let found = root.as_ref().map_or_else(|| Ok(empty_documents()), read_run_documents)?;
        Ok(LoadedRunRecords { found, attestation, verified_tree: run.map(|run| run.snapshot) })
    }

    fn newest_attestation(&self, now: &SnapshotId) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(all) = self.attestations() else { return Ok(None) };
        let subject = self.subject(&self.demands.profile);
        match all.read_for_tree(&subject, now)? {
            Some(bytes) => Ok(Some(bytes)),
            None => all.read_newest(&subject),
        }
    }

    fn attestations(&self) -> Option<Attestations> {
        self.state.as_ref().map(Attestations::in_state)
    }

    fn subject(&self, profile: &ProfileName) -> Subject {
        let changeset_id = self.demands.changeset.clone();
        Subject { repository: self.repository.record_name(), changeset_id, profile: profile.clone() }
    }
}

/// Returns the keys whose shared results count now. They are read for each request, so that a key that is no longer
/// trusted has no effect.
fn trusted_key_ids(operator: &OperatorConfig) -> TrustedKeyIds {
    let Some(settings) = &operator.remote_cache else { return TrustedKeyIds::default() };
    match TrustedKeys::read(&settings.trusted_keys) {
        Ok(keys) => TrustedKeyIds { ids: keys.ids().cloned().collect(), problem: None },
        Err(error) => TrustedKeyIds { problem: Some(one_line(&error)), ..TrustedKeyIds::default() },
    }
}

/// Returns the ignore rules outside a worktree that affect which files belong to it.
fn ignore_files(now: &Snapshot) -> BTreeMap<String, IgnoreFile> {
    let rules = now.git.external_rules.iter().map(|rules| {
        let path = display_path(rules.file.as_os_str().as_bytes());
        (rules.name.clone(), IgnoreFile { path, rules_sha256: rules.rules_sha256.clone() })
    });
    rules.collect()
}

/// Returns the paths that differ between the verified and the current tree.
fn changed_paths(then: &Snapshot, now: &Snapshot) -> ChangedPaths {
    let differing = then.difference(now);
    let paths = differing.iter().take(MAX_PATHS).map(|path| display_path(path)).collect();
    ChangedPaths { paths, omitted: differing.len().saturating_sub(MAX_PATHS) as u64 }
}

/// Maps "not found" to `None`.
fn none_if_missing(opened: Result<Directory, StoreError>) -> Result<Option<Directory>, StoreError> {
    match opened {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn empty_documents() -> RecordedDocuments {
    RecordedDocuments { status: EvidenceFileContent::Absent, files: BTreeMap::new(), run_in_progress: false }
}

/// Reads the documents of a run. It also reports a run that starts or ends during the read.
fn read_run_documents(root: &Directory) -> Result<RecordedDocuments, StoreError> {
    // On a file system without locks, no run can hold one.
    let has_writer = || root.is_locked().unwrap_or(false);
    let before = has_writer();
    let status = read_piece(root, STATUS_FILE, status::MAX_STATUS_BYTES);
    let files = read_evidence(root)?;
    Ok(RecordedDocuments { status, files, run_in_progress: before || has_writer() })
}

/// Reads every entry of `verify/`. An entry that cannot be read, or exceeds a bound, is reported as unreadable.
fn read_evidence(root: &Directory) -> Result<BTreeMap<String, EvidenceFileContent>, StoreError> {
    let mut pieces = BTreeMap::new();
    let verify = match none_if_missing(root.descend(VERIFY_DIR)) {
        Ok(Some(verify)) => verify,
        Ok(None) => return Ok(pieces),
        Err(error) => {
            pieces.insert(VERIFY_DIR.to_owned(), EvidenceFileContent::Unreadable(error.to_string()));
            return Ok(pieces);
        }
    };
    let mut left = MAX_EVIDENCE;
    let names = verify.entries(MAX_ENTRIES + 1)?;
    for name in names.iter().take(MAX_ENTRIES) {
        let read = match std::str::from_utf8(name) {
            Ok(name) if is_temporary(name) => continue,
            Ok(name) => read_piece(&verify, name, MAX_DOCUMENT.min(left)),
            Err(_) => EvidenceFileContent::Unreadable("its name is not text".to_owned()),
        };
        if let EvidenceFileContent::Bytes(bytes) = &read {
            left = left.saturating_sub(bytes.len() as u64);
        }
        pieces.insert(format!("{VERIFY_DIR}/{}", display_path(name)), read);
    }
    if names.len() > MAX_ENTRIES {
        let beyond = format!("there are more than {MAX_ENTRIES} entries");
        pieces.insert(VERIFY_DIR.to_owned(), EvidenceFileContent::Unreadable(beyond));
    }
    Ok(pieces)
}

fn read_piece(directory: &Directory, name: &str, limit: u64) -> EvidenceFileContent {
    match directory.read(name, limit) {
        Ok(Some(bytes)) => EvidenceFileContent::Bytes(bytes),
        Ok(None) => EvidenceFileContent::Absent,
        Err(error) => EvidenceFileContent::Unreadable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temp = tempfile::tempdir().expect("temp");
        let root = Directory::open(temp.path()).expect("opens");
        (temp, root)
    }

    fn is_unreadable(piece: &EvidenceFileContent, reason: &str) -> bool {
        matches!(piece, EvidenceFileContent::Unreadable(message) if message.contains(reason))
    }

    #[test]
    fn names_non_files_without_opening_them() {
        let (temp, root) = directory();
        let verify = root.ensure(VERIFY_DIR, 0o755).expect("makes");
        verify.write("a.json", b"{}").expect("writes");
        let at = temp.path().join(VERIFY_DIR);
        symlink("/etc/passwd", at.join("link.json")).expect("links");
        std::fs::create_dir(at.join("dir.json")).expect("makes");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at.join("fifo.json"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .expect("makes");
        let found = read_run_documents(&root).expect("reads");
        assert_eq!(found.status, EvidenceFileContent::Absent);
        assert_eq!(found.files["verify/a.json"], EvidenceFileContent::Bytes(b"{}".to_vec()));
        assert!(is_unreadable(&found.files["verify/link.json"], "symbolic link"), "{found:?}");
        for other in ["verify/dir.json", "verify/fifo.json"] {
            assert!(is_unreadable(&found.files[other], "not a regular file"), "{found:?}");
        }
        assert!(!found.run_in_progress);
    }

    #[test]
    fn reports_linked_directory_as_unreadable() {
        let (temp, root) = directory();
        symlink("/tmp", temp.path().join(VERIFY_DIR)).expect("links");
        let found = read_run_documents(&root).expect("reads");
        assert!(is_unreadable(&found.files["verify"], "symbolic link"), "{found:?}");
    }

    #[test]
    fn detects_writer_lock_without_taking_it() {
        let (temp, root) = directory();
        let writer = Directory::open(temp.path()).expect("opens");
        assert!(writer.try_lock().expect("locks"));
        assert!(read_run_documents(&root).expect("reads").run_in_progress);
        assert!(!root.try_lock().expect("asks"));
        drop(writer);
        assert!(!read_run_documents(&root).expect("reads").run_in_progress);
        assert!(root.try_lock().expect("locks"));
    }

    #[test]
    fn limits_number_of_entries() {
        let (temp, root) = directory();
        let verify = temp.path().join(VERIFY_DIR);
        std::fs::create_dir(&verify).expect("makes");
        for number in 0..=MAX_ENTRIES {
            std::fs::File::create_new(verify.join(format!("{number}.json"))).expect("makes");
        }
        let found = read_run_documents(&root).expect("reads");
        assert_eq!(found.files.len(), MAX_ENTRIES + 1);
        assert!(is_unreadable(&found.files["verify"], "more than 4096"));
    }
}
