//! Manages the caches of the skills of one run: their initial content, the directories for writes, and the commit
//! to a new base after the verdict. No two skills share a directory that one of them can write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use proctor_core::model::cache::{CacheEnd, CacheEvidence, CacheShown, CacheTrust};
use proctor_core::model::drift::display_path;
use proctor_core::model::names::SkillName;
use proctor_core::model::plan::RelPath;
use proctor_core::record::evidence::TreeSource;
use proctor_sandbox::{CACHE_UPPER, CacheForm, CacheMount, CacheSource, RunSpace, StepUser};
use proctor_snapshot::GitFacts;

use crate::error::one_line;
use crate::run::request::CacheMode;
use crate::store::StoreError;
use crate::store::caches::{
    BaseLookup, CacheCommit, CacheScope, CacheStore, CommitOutcome, RunCacheDir, SkillCacheError,
};
use crate::store::directory::Directory;

/// Maximum number of paths that a reason names.
const MAX_NAMED_PATHS: usize = 5;

/// The identity under which caches are stored, and the scopes that a run reads.
#[derive(Debug, Clone)]
pub(crate) struct CacheScopes {
    /// The user who requested the run.
    pub(crate) caller: u32,
    /// User who owns the files of caches on disk.
    pub(crate) owner: u32,
    /// The repository's path, as text.
    pub(crate) repository: String,
    /// The trust scopes that the run writes to and reads from.
    pub(crate) trust: TrustScopes,
}

/// The trust scopes of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrustScopes {
    /// The scope that the run writes, and reads first.
    pub(crate) own: String,
    /// The scopes that the run reads, in this order, if its own has no base.
    pub(crate) fallbacks: Vec<String>,
}

/// The caches of one run.
pub(crate) struct RunCaches {
    pub(crate) scopes: CacheScopes,
    pub(crate) mode: CacheMode,
    pub(crate) form: CacheForm,
    /// Maximum number of bytes that one skill may add to a cache in one run.
    pub(crate) max_bytes: u64,
    /// The user of this run's steps on the host.
    pub(crate) user: StepUser,
    pub(crate) state: Directory,
    pub(crate) state_path: PathBuf,
    /// Path of an empty directory.
    pub(crate) empty: PathBuf,
    pub(crate) opened: OpenedCaches,
}

/// The directories and caches that this run has opened.
#[derive(Default)]
pub(crate) struct OpenedCaches {
    store: OnceLock<(CacheStore, RunCacheDir)>,
    room_count: AtomicUsize,
    skills: Mutex<BTreeMap<SkillName, Arc<Vec<OpenCache>>>>,
    committed: AtomicBool,
}

/// One cache of one skill.
struct OpenCache {
    at: RelPath,
    scope: CacheScope,
    base_lookup: BaseLookup,
    write_dir: PathBuf,
    source: CacheSource,
    shown: CacheShown,
}

impl TrustScopes {
    /// Returns the trust scopes of a run of this tree, in a repository whose git directory is `common_dir`.
    ///
    /// Commits and worktrees never share a scope. Tools that compare modification times are correct only among the
    /// trees of one private copy, and commits and worktrees have separate copies.
    pub(crate) fn new(source: &TreeSource, git: &GitFacts, common_dir: &Path) -> Self {
        let defaults = default_branches(common_dir);
        let (own, scope_of): (String, &dyn Fn(&str) -> String) = match source {
            TreeSource::Rev { commit, submodules, .. } => {
                let with = if *submodules { "+submodules" } else { "" };
                let own = match branch_of_commit(commit, git, &defaults) {
                    Some(branch) => format!("{COMMITS_PREFIX}{}{with}", branch_scope(&branch)),
                    None => format!("commit:{commit}{with}"),
                };
                (own, &move |name| format!("{COMMITS_PREFIX}{}{with}", branch_scope(name)))
            }
            TreeSource::Worktree { .. } => {
                (git.branch.as_deref().map_or_else(|| DETACHED_SCOPE.to_owned(), branch_scope), &branch_scope)
            }
        };
        let fallbacks = defaults.iter().map(|name| scope_of(name)).filter(|scope| *scope != own).collect();
        Self { own, fallbacks }
    }
}

/// Prefix of the scopes of a branch's commits.
const COMMITS_PREFIX: &str = "commits-of-";
/// Maximum size of a list of refs, in bytes.
const MAX_REFS: u64 = 64 << 20;

/// Finds the branch of a commit. For staged content, it is the branch that HEAD names; otherwise, a branch whose
/// newest commit this is, preferably a default branch. `git` describes the commit's private copy.
fn branch_of_commit(commit: &str, git: &GitFacts, defaults: &[String]) -> Option<String> {
    let directory = Directory::open(&git.git_dir).ok()?;
    let head = directory.read("HEAD", MAX_REF).ok().flatten()?;
    if let Some(name) = head.strip_prefix(b"ref: refs/heads/") {
        return Some(String::from_utf8_lossy(name).trim().to_owned());
    }
    let refs = directory.read("packed-refs", MAX_REFS).ok().flatten()?;
    let wanted = format!("{commit} refs/heads/");
    let names = refs.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(wanted.as_bytes()));
    let names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.iter().find(|name| defaults.contains(name)).or(names.iter().min()).cloned()
}

/// The scope of a worktree with a detached HEAD.
const DETACHED_SCOPE: &str = "detached";
/// The file in which git stores the default branch of the remote `origin`.
const ORIGIN_HEAD: &str = "refs/remotes/origin/HEAD";
/// Maximum size of a ref file, in bytes.
const MAX_REF: u64 = 4096;

fn branch_scope(name: &str) -> String {
    format!("branch:{}", display_path(name.as_bytes()))
}

/// Returns the default branch of `origin`; if it is not known, the usual names of default branches.
fn default_branches(common_dir: &Path) -> Vec<String> {
    let read = Directory::open(common_dir).and_then(|git| {
        let (parent, name) = ORIGIN_HEAD.rsplit_once('/').unwrap_or(("", ORIGIN_HEAD));
        git.descend(parent)?.read(name, MAX_REF)
    });
    let text = read.ok().flatten().and_then(|bytes| String::from_utf8(bytes).ok());
    let named = text.as_deref().and_then(|text| text.trim().strip_prefix("ref: refs/remotes/origin/"));
    match named {
        Some(name) => vec![name.to_owned()],
        None => ["main", "master"].map(str::to_owned).to_vec(),
    }
}

impl RunCaches {
    /// Opens the caches of a skill unless they are open: finds their initial content and creates the directories
    /// for writes. Blocks on the disk.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn open(&self, skill: &SkillName, wanted: &[RelPath]) -> Result<(), SkillCacheError> {
        if wanted.is_empty() || self.skills().contains_key(skill) {
            return Ok(());
        }
        let open: Result<Vec<_>, _> = wanted.iter().map(|at| self.open_one(skill, at)).collect();
        // If another task was faster, its directories are used, and these are removed when the run ends.
        self.skills().entry(skill.clone()).or_insert(Arc::new(open?));
        Ok(())
    }

    /// Returns the store, and a new directory for writes, which is removed when the run ends.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn create_room(&self) -> Result<(&CacheStore, PathBuf), StoreError> {
        let (store, run) = self.opened_store()?;
        Ok((store, run.create_write_dir(self.opened.room_count.fetch_add(1, Ordering::Relaxed))?))
    }

    /// Returns the store and the directory of this run in it.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn opened_store(&self) -> Result<&(CacheStore, RunCacheDir), StoreError> {
        if let Some(open) = self.opened.store.get() {
            return Ok(open);
        }
        let store = CacheStore::open(&self.state, &self.state_path)?;
        let run_dirs = store.create_run_dir()?;
        // If another skill was faster, its directory is used and this one is removed.
        Ok(self.opened.store.get_or_init(|| (store, run_dirs)))
    }

    fn scope(&self, skill: &SkillName, at: &RelPath) -> CacheScope {
        let CacheScopes { caller, owner, repository, trust } = &self.scopes;
        CacheScope {
            caller: *caller,
            owner: *owner,
            repository: repository.clone(),
            skill: skill.to_string(),
            path: at.to_string(),
            trust_scope: trust.own.clone(),
        }
    }

    fn open_one(&self, skill: &SkillName, at: &RelPath) -> Result<OpenCache, SkillCacheError> {
        let (store, room) = self.create_room()?;
        let scope = self.scope(skill, at);
        let mut found = BaseLookup::default();
        if self.mode == CacheMode::Persistent && !matches!(self.form, CacheForm::Empty { .. }) {
            found = store.find_base(&scope, &self.scopes.trust.fallbacks)?;
        }
        let (source, shown) = match &self.form {
            CacheForm::Layers => {
                let lowers = found.base.as_ref().map(|base| base.layer_paths().to_vec());
                let lowers = lowers.unwrap_or_else(|| vec![self.empty.clone()]);
                (CacheSource::Layers { room: room.clone(), lowers }, CacheShown::Layers)
            }
            CacheForm::Copy { .. } => {
                if let Some(base) = &found.base {
                    store.copy_base(base, &room, self.copies_owner())?;
                }
                (CacheSource::Directory(room.join(CACHE_UPPER)), CacheShown::Copy)
            }
            CacheForm::Empty { .. } => (CacheSource::Directory(room.join(CACHE_UPPER)), CacheShown::Empty),
        };
        Ok(OpenCache { at: at.clone(), scope, base_lookup: found, write_dir: room, source, shown })
    }

    /// Returns the owner of a directory that is mounted without an overlay: the user that all runs have on disk.
    pub(crate) fn copies_owner(&self) -> Option<(u32, u32)> {
        self.user.is_set_up_by_root().then(|| self.user.cache_owner())
    }

    /// Returns the cache mounts for the steps of a skill.
    ///
    /// # Errors
    /// Same as [`RunCaches::open`].
    pub(crate) fn mounts(&self, skill: &SkillName, wanted: &[RelPath]) -> Result<Vec<CacheMount>, SkillCacheError> {
        self.open(skill, wanted)?;
        let open = self.skills().get(skill).cloned().unwrap_or_default();
        Ok(open.iter().map(|cache| CacheMount { at: cache.at.clone(), source: cache.source.clone() }).collect())
    }

    /// Returns mounts that show an empty directory for each cache. Their writes are discarded when the run ends.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn create_empty_mounts(&self, wanted: &[RelPath]) -> Result<Vec<CacheMount>, StoreError> {
        let mount = |at: &RelPath| {
            let (_, room) = self.create_room()?;
            let source = match &self.form {
                CacheForm::Layers => CacheSource::Layers { room, lowers: vec![self.empty.clone()] },
                CacheForm::Copy { .. } | CacheForm::Empty { .. } => CacheSource::Directory(room.join(CACHE_UPPER)),
            };
            Ok(CacheMount { at: at.clone(), source })
        };
        wanted.iter().map(mount).collect()
    }

    /// Returns the scope from which the content of a skill's cache comes: the widest one for a cache that is not open.
    pub(crate) fn trust(&self, skill: &SkillName, at: &RelPath) -> CacheTrust {
        let open = self.skills().get(skill).cloned().unwrap_or_default();
        let cache = open.iter().find(|cache| cache.at == *at);
        cache.map_or(CacheTrust::Default, |cache| {
            cache.base_lookup.base.as_ref().map_or(CacheTrust::None, |base| base.trust())
        })
    }

    /// Finds the cache that contains `path`. Returns the directory that takes its writes, the path relative to the
    /// cache, and the lower layers; `None` if no cache of the skill contains it.
    pub(crate) fn find_containing(
        &self,
        skill: &SkillName,
        path: &RelPath,
    ) -> Option<(Directory, RelPath, Vec<PathBuf>)> {
        let open = self.skills().get(skill).cloned()?;
        let below =
            |cache: &OpenCache| Some(path.as_str().strip_prefix(cache.at.as_str())?.strip_prefix('/')?.to_owned());
        // If caches are nested, the inner one is mounted over the outer one.
        let holds = open.iter().filter_map(|cache| Some((cache, below(cache)?)));
        let (cache, below) = holds.max_by_key(|(cache, _)| cache.at.as_str().len())?;
        let lowers = match &cache.source {
            CacheSource::Directory(_) | CacheSource::Original(_) => Vec::new(),
            CacheSource::Layers { lowers, .. } => lowers.clone(),
        };
        Some((Directory::open(&cache.source.upper()).ok()?, RelPath::new(below).ok()?, lowers))
    }

    /// Commits the writes of a skill after the verdict if it `passed`, and discards them otherwise. Returns the
    /// evidence of its caches; `None` if it has no open cache. Blocks on the disk.
    pub(crate) fn commit_or_discard(
        &self,
        space: &RunSpace,
        skill: &SkillName,
        passed: bool,
    ) -> Option<Vec<CacheEvidence>> {
        let open = self.skills().remove(skill)?;
        Some(open.iter().map(|cache| self.commit_or_discard_one(space, cache, passed)).collect())
    }

    fn commit_or_discard_one(&self, space: &RunSpace, cache: &OpenCache, passed: bool) -> CacheEvidence {
        // A prepared sandbox may still have the cache mounted.
        space.release_cache(&cache.source);
        let (end, why) = self.commit_result(cache, passed);
        if end == CacheEnd::Committed {
            self.opened.committed.store(true, Ordering::Relaxed);
        }
        let base = cache.base_lookup.base.as_ref();
        CacheEvidence {
            path: cache.at.clone(),
            scope: cache.scope.trust_scope.clone(),
            trust: base.map_or(CacheTrust::None, |base| base.trust()),
            base: base.map(|base| base.to_record()),
            form: cache.shown,
            end,
            reason: why.or_else(|| cache.base_lookup.reason.clone()),
        }
    }

    fn commit_result(&self, cache: &OpenCache, passed: bool) -> (CacheEnd, Option<String>) {
        match (&self.form, self.mode, passed) {
            (CacheForm::Empty { reason }, ..) => return (CacheEnd::Discarded, Some(reason.clone())),
            (_, CacheMode::Empty, _) => return (CacheEnd::Discarded, Some("no caches were wanted".to_owned())),
            (_, _, false) => return (CacheEnd::Discarded, None),
            (_, _, true) => {}
        }
        match self.commit(cache) {
            Ok(CommitOutcome::New { left_out }) if left_out.is_empty() => (CacheEnd::Committed, None),
            Ok(CommitOutcome::New { left_out }) => (CacheEnd::Committed, Some(omitted_paths_reason(&left_out))),
            Ok(CommitOutcome::Unchanged) => (CacheEnd::Unchanged, None),
            Ok(CommitOutcome::Stale) => {
                (CacheEnd::Stale, Some("another run of the same scope committed first".to_owned()))
            }
            Err(fault) => (CacheEnd::Refused, Some(one_line(&fault))),
        }
    }

    fn commit(&self, cache: &OpenCache) -> Result<CommitOutcome, SkillCacheError> {
        let (store, _) = self.opened_store()?;
        store.commit(&CacheCommit {
            scope: &cache.scope,
            lookup: &cache.base_lookup,
            write_dir: &cache.write_dir,
            is_overlay: cache.shown == CacheShown::Layers,
            owner: self.committed_owner(),
            max_bytes: self.max_bytes,
        })
    }

    /// Returns the owner of stored files on disk, if the steps of each run have a separate user id.
    pub(crate) fn committed_owner(&self) -> Option<(u32, u32)> {
        let owner = self.user.cache_owner();
        (self.user.is_mapped() && owner.0 != self.user.uid()).then_some(owner)
    }

    /// Returns whether a cache of this run was committed.
    pub(crate) fn any_committed(&self) -> bool {
        self.opened.committed.load(Ordering::Relaxed)
    }

    fn skills(&self) -> MutexGuard<'_, BTreeMap<SkillName, Arc<Vec<OpenCache>>>> {
        self.opened.skills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn omitted_paths_reason(left_out: &[String]) -> String {
    let named: Vec<String> = left_out.iter().take(MAX_NAMED_PATHS).map(|path| format!("`{path}`")).collect();
    let more = match left_out.len().saturating_sub(MAX_NAMED_PATHS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("sockets, fifos and devices were left out: {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a git directory in which `origin` has this default branch.
    fn git_dir(head: Option<&str>) -> tempfile::TempDir {
        let temp = tempfile::tempdir().expect("temp");
        if let Some(head) = head {
            let git = Directory::open(temp.path()).expect("opens");
            let remotes = ["refs", "remotes", "origin"].into_iter();
            let origin = remotes.fold(git, |dir, name| dir.ensure(name, 0o755).expect("makes"));
            origin.write("HEAD", head.as_bytes()).expect("writes");
        }
        temp
    }

    #[test]
    fn reads_default_branch_or_uses_usual_names() {
        let of = |head| default_branches(git_dir(head).path());
        assert_eq!(of(Some("ref: refs/remotes/origin/trunk\n")), ["trunk"]);
        assert_eq!(of(None), ["main", "master"]);
        assert_eq!(of(Some("0123456789\n")), ["main", "master"]);
    }

    #[test]
    fn does_not_follow_link_in_git_directory() {
        let temp = git_dir(None);
        let elsewhere = git_dir(Some("ref: refs/remotes/origin/trunk\n"));
        std::os::unix::fs::symlink(elsewhere.path().join("refs"), temp.path().join("refs")).expect("links");
        assert_eq!(default_branches(temp.path()), ["main", "master"]);
    }

    #[test]
    fn names_first_omitted_paths() {
        let many: Vec<String> = (0..7).map(|number| number.to_string()).collect();
        assert!(omitted_paths_reason(&many).ends_with("`4` and 2 more"));
        assert!(omitted_paths_reason(&many[..1]).ends_with("`0`"));
    }
}
