//! Checks whether the current tree is verified: reads the spec, the tree, a run's documents and our own record of
//! it, and evaluates them with `proctor_core::gate`. It runs no step, writes nothing, follows no link, and reads no
//! more than the bounds below.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::attestation::{Attestation, Subject};
use proctor_core::digest::SnapshotId;
use proctor_core::drift::display_path;
use proctor_core::gate::{self, ChangedPaths, Demands, Facts, Found, GateAnswer, IgnoreFile, Piece};
use proctor_core::names::{ChangesetId, ProfileName};
use proctor_core::plan::Plan;
use proctor_core::spec::Operator;
use proctor_core::status;
use proctor_snapshot::{Peek, Snapshot, SnapshotStore};

use crate::clock::Clock;
use crate::error::EngineError;
use crate::git_on_demand::git_on_demand;
use crate::guards;
use crate::repository::Repository;
use crate::request::EngineConfig;
use crate::spec_file::SpecFile;
use crate::store::attestations::Attestations;
use crate::store::directory::{Directory, is_temporary};
use crate::store::documents::{RUNS, STATUS, VERIFY, changeset_path};
use crate::store::{SNAPSHOTS, StoreError};

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
    pub demands: Demands,
}

/// Answers gate requests without an engine. The only program that it may run is `git` in a sandbox, for a
/// repository that libgit2 cannot read.
#[derive(Debug, Clone)]
pub struct Gate {
    pub(crate) state_dir: PathBuf,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) operator: Operator,
    pub(crate) clock: Clock,
    /// Required owner of the repository; `None` accepts any.
    pub(crate) owner: Option<u32>,
}

impl Gate {
    /// Creates a gate for the state directory and the operator configuration of `config`.
    pub fn new(config: EngineConfig, clock: Clock) -> Self {
        // Stored snapshots save reading the tree; without them, every file is read.
        let kept = Directory::open(&config.state_dir).and_then(|state| state.descend(SNAPSHOTS)).ok();
        let kept = kept.and_then(|kept| kept.as_fd().try_clone_to_owned().ok());
        let (state_dir, operator) = (config.state_dir.clone(), config.operator.clone());
        let helper = git_on_demand(config);
        Self { state_dir, snapshots: Arc::new(SnapshotStore::new(helper, kept)), operator, clock, owner: None }
    }

    /// Answers whether the tree is verified.
    ///
    /// # Errors
    /// The repository, its spec or its tree cannot be read, or the spec has no such profile.
    pub fn ask(&self, request: &GateRequest) -> Result<GateAnswer, EngineError> {
        Ok(self.ask_in_full(request)?.answer)
    }

    /// Answers like [`Gate::ask`], and returns the values that the answer is based on.
    ///
    /// # Errors
    /// Same as [`Gate::ask`].
    pub(crate) fn ask_in_full(&self, request: &GateRequest) -> Result<Asked, EngineError> {
        let demands = &request.demands;
        let repository = Repository::open(&request.repo)?;
        guards::owned(&repository, self.owner)?;
        let file = SpecFile::within(&repository)?;
        let plan = file.resolve(&file.parse()?.spec, &demands.profile, &self.operator)?.plan;
        let Peek { last, now } = self.snapshots.peek(repository.path())?;
        guards::same_spec(&now, &file)?;
        let worktree = Worktree { last, now: Arc::clone(&now) };
        let (answer, attestation) = self.of_tree(&repository, demands, &plan, &now.id, Some(worktree))?;
        Ok(Asked { answer, attestation, repository, plan, now })
    }

    /// Answers whether a tree with a known identity and plan is verified, and returns our own record of the run in
    /// question. For a worktree, the answer also names the paths that differ from the last stored snapshot, and
    /// takes the ignore rules outside the tree into account.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) fn of_tree(
        &self,
        repository: &Repository,
        demands: &Demands,
        plan: &Plan,
        tree: &SnapshotId,
        worktree: Option<Worktree>,
    ) -> Result<(GateAnswer, Option<Attestation>), EngineError> {
        let records = Records { repository, state: self.state(repository)?, demands };
        let Look { found, attestation, verified } = records.look(tree)?;
        let ignores = worktree.as_ref().map(|worktree| ignores(&worktree.now));
        let known = worktree.and_then(|Worktree { last, now }| Some((last?, now)));
        let known = known.filter(|(last, _)| verified.as_ref() == Some(&last.id));
        let facts = Facts {
            now_ms: self.clock.now_ms(),
            repository: repository.name(),
            snapshot: tree.clone(),
            ignores,
            changed: known.map(|(last, now)| changed(&last, &now)).unwrap_or_default(),
            plan,
            operator: &self.operator,
            found,
            attestation,
        };
        let ours = facts.attestation.as_deref().and_then(Attestation::parse);
        Ok((gate::answer(demands, &facts), ours))
    }

    /// Opens the state directory. A state directory inside the tree is refused: it comes from the author of the
    /// tree and proves nothing.
    fn state(&self, repository: &Repository) -> Result<Option<Directory>, EngineError> {
        let Ok(path) = self.state_dir.canonicalize() else { return Ok(None) };
        match path.starts_with(repository.path()) {
            true => Err(EngineError::StateInRepository(path)),
            false => Ok(there(Directory::open(&path))?),
        }
    }
}

/// The answer for a worktree, and the values that it is based on.
pub(crate) struct Asked {
    pub(crate) answer: GateAnswer,
    /// Our own record of the run.
    pub(crate) attestation: Option<Attestation>,
    pub(crate) repository: Repository,
    /// The plan that the spec resolves to now.
    pub(crate) plan: Plan,
    /// The current snapshot of the worktree.
    pub(crate) now: Arc<Snapshot>,
}

/// A worktree to check.
pub(crate) struct Worktree {
    /// The last stored snapshot; `None` if none is stored.
    last: Option<Arc<Snapshot>>,
    /// The current snapshot.
    now: Arc<Snapshot>,
}

/// The records of the runs that may answer a request.
struct Records<'a> {
    repository: &'a Repository,
    state: Option<Directory>,
    demands: &'a Demands,
}

/// A run's documents, and our own record of it.
struct Look {
    found: Found,
    attestation: Option<Vec<u8>>,
    /// The tree that was verified, according to the record.
    verified: Option<SnapshotId>,
}

impl Records<'_> {
    fn look(&self, now: &SnapshotId) -> Result<Look, StoreError> {
        match &self.demands.changeset {
            Some(id) => self.of_changeset(id, now),
            None => self.of_newest_run(now),
        }
    }

    /// Reads the run that the changeset's status file names, and our own record of it, if there is one.
    fn of_changeset(&self, id: &ChangesetId, now: &SnapshotId) -> Result<Look, StoreError> {
        let path = changeset_path(id);
        let Some(root) = there(self.repository.directory.descend(&path))? else {
            return Err(StoreError::NoChangeset { path });
        };
        let found = found(&root)?;
        let told = match &found.status {
            Piece::Bytes(bytes) => status::last_run(bytes).ok().flatten(),
            Piece::Absent | Piece::Unreadable(_) => None,
        };
        let (profile, tree) = match &told {
            Some(run) => (&run.profile, &run.snapshot),
            None => (&self.demands.profile, now),
        };
        let attestation = self.attestations().map(|all| all.on_tree(&self.subject(profile), tree)).transpose()?;
        let verified = told.map(|run| run.snapshot);
        Ok(Look { found, attestation: attestation.flatten(), verified })
    }

    /// Reads the newest recorded run on this tree or, if there is none, on any tree.
    fn of_newest_run(&self, now: &SnapshotId) -> Result<Look, StoreError> {
        let attestation = self.newest_run(now)?;
        let run = attestation.as_deref().and_then(Attestation::parse).map(|known| known.last_run);
        let path = run.as_ref().map(|run| format!("{RUNS}/{}", run.run_id));
        let root = match (&self.state, &path) {
            (Some(state), Some(path)) => there(state.descend(path))?,
            _ => None,
        };
        let found = root.as_ref().map_or_else(|| Ok(nothing()), found)?;
        Ok(Look { found, attestation, verified: run.map(|run| run.snapshot) })
    }

    fn newest_run(&self, now: &SnapshotId) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(all) = self.attestations() else { return Ok(None) };
        let subject = self.subject(&self.demands.profile);
        match all.on_tree(&subject, now)? {
            Some(bytes) => Ok(Some(bytes)),
            None => all.newest(&subject),
        }
    }

    fn attestations(&self) -> Option<Attestations> {
        self.state.as_ref().map(Attestations::of)
    }

    fn subject(&self, profile: &ProfileName) -> Subject {
        let changeset_id = self.demands.changeset.clone();
        Subject { repository: self.repository.name(), changeset_id, profile: profile.clone() }
    }
}

/// Returns the ignore rules outside a worktree that affect which files belong to it.
fn ignores(now: &Snapshot) -> BTreeMap<String, IgnoreFile> {
    let rules = now.git.external_rules.iter().map(|rules| {
        let path = display_path(rules.file.as_os_str().as_bytes());
        (rules.name.clone(), IgnoreFile { path, rules_sha256: rules.rules_sha256.clone() })
    });
    rules.collect()
}

/// Returns the paths that differ between the verified and the current tree.
fn changed(then: &Snapshot, now: &Snapshot) -> ChangedPaths {
    let differing = then.difference(now);
    let paths = differing.iter().take(MAX_PATHS).map(|path| display_path(path)).collect();
    ChangedPaths { paths, omitted: differing.len().saturating_sub(MAX_PATHS) as u64 }
}

/// Maps "not found" to `None`.
fn there(opened: Result<Directory, StoreError>) -> Result<Option<Directory>, StoreError> {
    match opened {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn nothing() -> Found {
    Found { status: Piece::Absent, files: BTreeMap::new(), writer: false }
}

/// Reads the documents of a run. It also reports a run that starts or ends during the read.
fn found(root: &Directory) -> Result<Found, StoreError> {
    // On a file system without locks, no run can hold one.
    let held = || root.is_locked().unwrap_or(false);
    let before = held();
    let status = piece(root, STATUS, status::MAX_BYTES);
    let files = evidence(root)?;
    Ok(Found { status, files, writer: before || held() })
}

/// Reads every entry of `verify/`. An entry that cannot be read, or exceeds a bound, is reported as unreadable.
fn evidence(root: &Directory) -> Result<BTreeMap<String, Piece>, StoreError> {
    let mut pieces = BTreeMap::new();
    let verify = match there(root.descend(VERIFY)) {
        Ok(Some(verify)) => verify,
        Ok(None) => return Ok(pieces),
        Err(error) => {
            pieces.insert(VERIFY.to_owned(), Piece::Unreadable(error.to_string()));
            return Ok(pieces);
        }
    };
    let mut left = MAX_EVIDENCE;
    let names = verify.entries(MAX_ENTRIES + 1)?;
    for name in names.iter().take(MAX_ENTRIES) {
        let read = match std::str::from_utf8(name) {
            Ok(name) if is_temporary(name) => continue,
            Ok(name) => piece(&verify, name, MAX_DOCUMENT.min(left)),
            Err(_) => Piece::Unreadable("its name is no text".to_owned()),
        };
        if let Piece::Bytes(bytes) = &read {
            left = left.saturating_sub(bytes.len() as u64);
        }
        pieces.insert(format!("{VERIFY}/{}", display_path(name)), read);
    }
    if names.len() > MAX_ENTRIES {
        let beyond = format!("there are more than {MAX_ENTRIES} entries");
        pieces.insert(VERIFY.to_owned(), Piece::Unreadable(beyond));
    }
    Ok(pieces)
}

fn piece(directory: &Directory, name: &str, limit: u64) -> Piece {
    match directory.read(name, limit) {
        Ok(Some(bytes)) => Piece::Bytes(bytes),
        Ok(None) => Piece::Absent,
        Err(error) => Piece::Unreadable(error.to_string()),
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

    fn unreadable(piece: &Piece, why: &str) -> bool {
        matches!(piece, Piece::Unreadable(said) if said.contains(why))
    }

    #[test]
    fn what_is_no_file_is_named_and_never_opened() {
        let (temp, root) = directory();
        let verify = root.ensure(VERIFY, 0o755).expect("makes");
        verify.write("a.json", b"{}").expect("writes");
        let at = temp.path().join(VERIFY);
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
        let found = found(&root).expect("reads");
        assert_eq!(found.status, Piece::Absent);
        assert_eq!(found.files["verify/a.json"], Piece::Bytes(b"{}".to_vec()));
        assert!(unreadable(&found.files["verify/link.json"], "symbolic link"), "{found:?}");
        for other in ["verify/dir.json", "verify/fifo.json"] {
            assert!(unreadable(&found.files[other], "not a regular file"), "{found:?}");
        }
        assert!(!found.writer);
    }

    #[test]
    fn a_directory_that_is_a_link_is_an_entry_of_its_own() {
        let (temp, root) = directory();
        symlink("/tmp", temp.path().join(VERIFY)).expect("links");
        let found = found(&root).expect("reads");
        assert!(unreadable(&found.files["verify"], "symbolic link"), "{found:?}");
    }

    #[test]
    fn who_holds_the_place_is_seen_and_not_disturbed() {
        let (temp, root) = directory();
        let writer = Directory::open(temp.path()).expect("opens");
        assert!(writer.try_lock().expect("locks"));
        assert!(found(&root).expect("reads").writer);
        assert!(!root.try_lock().expect("asks"));
        drop(writer);
        assert!(!found(&root).expect("reads").writer);
        assert!(root.try_lock().expect("locks"));
    }

    #[test]
    fn entries_are_bounded() {
        let (temp, root) = directory();
        let verify = temp.path().join(VERIFY);
        std::fs::create_dir(&verify).expect("makes");
        for number in 0..=MAX_ENTRIES {
            std::fs::File::create_new(verify.join(format!("{number}.json"))).expect("makes");
        }
        let found = found(&root).expect("reads");
        assert_eq!(found.files.len(), MAX_ENTRIES + 1);
        assert!(unreadable(&found.files["verify"], "more than 4096"));
    }
}
