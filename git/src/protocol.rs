//! Defines the protocol between the library and `proctor-git`: one request as JSON, and one answer in frames.
//!
//! Paths in JSON are lower-case hex, so that all bytes are preserved. Large lists (marked `serde(skip)` here) are
//! sent after the JSON, in the format of `listing_encoding.rs`.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::error::GitError;
use crate::files::file_stat::FileStat;
use crate::files::repo_path::RepoPath;
use crate::ignore::external_rules::ExternalRules;
use crate::index::GitIndex;
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::object::object_pack::ObjectPack;
use crate::repository_paths::RepositoryPaths;

/// A request, on the helper's standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum GitRequest {
    /// Lists the paths of the tree, and its position in the history.
    List {
        /// The top of the work tree.
        repo: PathBuf,
    },
    /// Reports which of the given paths are ignored by the rules on disk.
    Ignored {
        /// The top of the work tree.
        repo: PathBuf,
        /// The paths of submodules, which the rules of the outer repository never ignore. With `null`, the helper
        /// reads them from the index, at a cost that grows with its size.
        submodules: Option<Vec<RepoPath>>,
        /// Paths of directories, relative to the top.
        directories: Vec<RepoPath>,
        /// Paths of files and links.
        paths: Vec<RepoPath>,
    },
    /// Resolves a revision or a range to commits.
    Resolve {
        /// The top of the work tree.
        repo: PathBuf,
        /// One revision, `A..B` or `A...B`.
        revision: String,
        /// Maximum number of commits in a range.
        limit: usize,
    },
    /// Finds the commits that a push sends.
    Pushed {
        /// The top of the work tree.
        repo: PathBuf,
        /// The push.
        push: Push,
    },
    /// Computes the commit that an index would make.
    Staged {
        /// The top of the work tree.
        repo: PathBuf,
        /// The index.
        index: StagedIndex,
    },
    /// Returns the files in which a tree differs from a commit.
    Changed {
        /// The top of the work tree.
        repo: PathBuf,
        /// A revision; `null` for HEAD. The files are compared with the merge base of this revision and the verified
        /// commit.
        base: Option<String>,
        /// The commit whose tree is compared; `null` for the work tree.
        target: Option<CommitRef>,
    },
    /// Returns the ids of a commit's tree, and the texts of single files.
    Content {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
        /// The files: a spec and the files that it includes.
        paths: Vec<RepoPath>,
        /// True if the identity is requested, for which all files are read.
        identity: bool,
    },
    /// Returns the hashes of single files in a commit's tree.
    Files {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
        /// The files.
        paths: Vec<RepoPath>,
    },
    /// Returns the entries of a commit's tree.
    Tree {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
        /// If true, the trees of submodules are included.
        submodules: bool,
    },
    /// Sends the contents of files and links in a commit's tree.
    Blobs {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
        /// If true, the trees of submodules are included.
        submodules: bool,
        /// The wanted leaves, in the order of [`CommitTree::leaves`].
        wanted: Vec<WantedLeaf>,
        /// Size of the files that the receiver has already, in bytes.
        held_bytes: u64,
    },
    /// Returns packs of a commit and other objects.
    Objects {
        /// The top of the work tree.
        repo: PathBuf,
        /// The objects.
        wanted: WantedObjects,
    },
    /// Returns the data for the git directory of a private tree: refs, and the rules in the repository's git
    /// directory.
    History {
        /// The top of the work tree.
        repo: PathBuf,
        /// The directories of the nested repositories.
        nested: Vec<RepoPath>,
    },
}

/// An answer, on the helper's standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum GitAnswer {
    /// The answer to [`GitRequest::List`].
    List(WorktreeListing),
    /// The answer to [`GitRequest::Ignored`]: one value for each directory, then one for each path, in their order.
    Ignored {
        /// True for each ignored path.
        ignored: Vec<bool>,
    },
    /// The answer to [`GitRequest::Resolve`], oldest first.
    Resolved {
        /// The commits; at least one.
        commits: Vec<NamedCommit>,
    },
    /// The answer to [`GitRequest::Pushed`].
    Pushed(ResolvedPush),
    /// The answer to [`GitRequest::Staged`].
    Staged(StagedCommit),
    /// The answer to [`GitRequest::Changed`].
    Changed(ChangedFiles),
    /// The answer to [`GitRequest::Content`].
    Content(CommitTreeContent),
    /// The answer to [`GitRequest::Files`], in their order.
    Files {
        /// The files; `null` for a path that is not a regular file, or a file that exceeds the size limit.
        files: Vec<Option<CommittedFile>>,
    },
    /// The answer to [`GitRequest::Tree`].
    Tree(CommitTree),
    /// The answer to [`GitRequest::Blobs`], sent after all wanted blobs.
    Blobs,
    /// The answer to [`GitRequest::Objects`].
    Objects(CommitObjects),
    /// The answer to [`GitRequest::History`].
    History {
        /// The history.
        history: GitHistory,
        /// The files and directories that it was read from; `null` if they cannot be determined.
        sources: Option<Vec<GitSourceFile>>,
    },
    /// The request could not be answered.
    Refused {
        /// The reason.
        why: GitError,
    },
}

/// The state of a repository apart from its work tree and index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitHistory {
    /// The format of the object ids.
    pub format: ObjectFormat,
    /// The directory of the objects.
    pub objects: PathBuf,
    /// The line in its HEAD: `ref: ` and the name of a branch, or an id; `null` if HEAD cannot be read.
    pub head: Option<String>,
    /// The refs, in the format of `packed-refs`.
    pub refs: RepoPath,
    /// The boundary commits of a shallow clone; `null` for a complete clone.
    pub shallow: Option<RepoPath>,
    /// The ignore rules of `core.excludesFile` and `info/exclude`, in the order of their precedence.
    pub exclude: RepoPath,
    /// True if `core.ignoreCase` is set.
    pub ignore_case: bool,
    /// The repositories inside the work tree, by their directories. Repositories that libgit2 cannot read are
    /// omitted.
    pub nested: Vec<(RepoPath, GitHistory)>,
}

impl GitHistory {
    /// Returns the id of a ref, as text.
    pub fn ref_target(&self, name: &str) -> Option<String> {
        let lines = self.refs.0.split(|byte| *byte == b'\n');
        let mut refs = lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once(' '));
        refs.find(|(_, found)| *found == name).map(|(id, _)| id.to_owned())
    }
}

/// The files in which a tree differs from a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedFiles {
    /// The full id of the commit.
    pub base: String,
    /// The files that exist in the tree and that the commit lacks or has in another form. Submodules, and files in
    /// them, are not included.
    pub paths: Vec<RepoPath>,
    /// The files of the commit that the tree lacks.
    pub deleted: Vec<RepoPath>,
}

/// A commit that a revision or a range names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCommit {
    /// The full id.
    pub id: String,
    /// The first line of the message, escaped and shortened, in human-readable form.
    pub subject: String,
}

/// A commit in the repository, or one that an index would make and that is not stored anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitRef {
    /// The full id.
    pub id: String,
    /// The objects of the commit that the repository lacks; `null` if the commit is in the repository.
    pub staged: Option<StagedObjects>,
}

/// The objects of a commit that an index would make, as far as the repository lacks them: trees, each after the trees in
/// it, and the commit last. The bytes of each object are hashed before use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedObjects {
    /// The trees.
    pub trees: Vec<RepoPath>,
    /// The commit.
    pub commit: RepoPath,
}

/// A commit that an index would make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedCommit {
    /// Its name.
    pub name: NamedCommit,
    /// Its objects.
    pub objects: StagedObjects,
    /// The directory that contains HEAD and the index of the work tree.
    pub git_dir: PathBuf,
}

impl From<&StagedCommit> for CommitRef {
    fn from(commit: &StagedCommit) -> Self {
        Self { id: commit.name.id.clone(), staged: Some(commit.objects.clone()) }
    }
}

impl From<&str> for CommitRef {
    fn from(id: &str) -> Self {
        Self { id: id.to_owned(), staged: None }
    }
}

impl From<&String> for CommitRef {
    fn from(id: &String) -> Self {
        id.as_str().into()
    }
}

impl From<&CommitRef> for CommitRef {
    fn from(commit: &CommitRef) -> Self {
        commit.clone()
    }
}

/// An index from which a commit would be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedIndex {
    /// The absolute path of the index file; `null` for the index of the work tree. Git uses another file for
    /// `commit --all` and for a commit of single paths.
    pub file: Option<PathBuf>,
}

/// The ids of a commit's tree, and the texts of single files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitTreeContent {
    /// The id of the tree object; `null` if the tree has a directory for changesets, since the identity does not cover
    /// the evidence in it.
    pub tree: Option<String>,
    /// The identity of the tree; `null` if it was not requested, or if the tree has submodules.
    pub snapshot: Option<SnapshotId>,
    /// The texts, in the order of the request; `null` if there is no such regular file, or it is not text or too large.
    pub texts: Vec<Option<String>>,
}

/// A regular file of a commit's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedFile {
    /// True if the file is executable.
    pub executable: bool,
    /// The sha256 of the content.
    pub sha256: Sha256Hex,
    /// The first line of a script, which names its interpreter; `None` if the file is not a script.
    pub shebang: Option<String>,
}

impl CommittedFile {
    /// Returns the first line of a script after `#!`, cut where the kernel stops reading, or `None` if `head` is
    /// not the beginning of a script.
    pub fn parse_shebang(head: &[u8]) -> Option<String> {
        let line = head.get(..SHEBANG_BYTES.min(head.len()))?.strip_prefix(b"#!")?;
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Some(String::from_utf8_lossy(line).trim().to_owned())
    }
}

/// Number of bytes of a script that the kernel reads to find its interpreter.
pub const SHEBANG_BYTES: usize = 256;

/// A push, as git describes it to a `pre-push` hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// The full ids that are pushed.
    pub tips: Vec<String>,
    /// For each of these ids, the full id that the ref on the remote has now; `null` for a new ref.
    pub former: Vec<Option<String>>,
    /// The full ids that the remote has; they may be missing in this repository.
    pub known: Vec<String>,
    /// The name of the remote. Its remote-tracking branches show which other commits it has.
    pub remote: Option<String>,
    /// If true, all commits that no remote is known to have are verified, and not only the tips.
    pub each: bool,
    /// Maximum number of commits.
    pub limit: usize,
}

/// The resolved contents of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedPush {
    /// The directory that contains HEAD and the index of the work tree.
    pub git_dir: PathBuf,
    /// The object behind each of the ids, in their order.
    pub tips: Vec<PushedTip>,
    /// The commits to verify, without duplicates, oldest first.
    pub commits: Vec<NamedCommit>,
    /// For each of these commits, the start of the pushed range; `null` if none is known, so that everything counts as
    /// changed.
    pub bases: Vec<Option<RangeBase>>,
}

/// The commits with which a pushed commit is compared to find its changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeBase {
    /// The full id of the commit that the remote has and from which the pushed range starts.
    pub since: String,
    /// The full id of the commit to which the remote's ref points now, if the push removes it from the ref.
    pub replaced: Option<String>,
}

/// A pushed object, after following tags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum PushedTip {
    /// A commit.
    Commit {
        /// The full id.
        id: String,
    },
    /// A tree or a blob.
    Other {
        /// The kind of object.
        kind: String,
    },
}

/// The entries of a commit's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitTree {
    /// The bytes of the commit object.
    pub object: RepoPath,
    /// The format of the repository's object ids.
    pub format: ObjectFormat,
    /// The directories whose tree objects are not in the canonical form of git, with the bytes of these objects.
    pub odd: Vec<(RepoPath, RepoPath)>,
    /// The submodules that are included, each before its own submodules.
    pub submodules: Vec<CommitSubmodule>,
    /// The files, links and submodules: those of the top, sorted by path, then those of each submodule.
    #[serde(skip)]
    pub leaves: Vec<CommittedLeaf>,
}

/// A submodule of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitSubmodule {
    /// The directory, relative to the top of the outermost tree.
    pub path: RepoPath,
    /// Its commit.
    pub commit: ObjectId,
    /// The bytes of the commit object.
    pub object: RepoPath,
    /// The directory of the objects.
    pub objects: PathBuf,
}

/// A file, link or submodule of a commit's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedLeaf {
    /// The path, relative to the top of the outermost tree.
    pub path: Vec<u8>,
    /// The mode in the tree object.
    pub mode: u32,
    /// The id of the blob, or of a submodule's commit.
    pub id: ObjectId,
}

/// A file or link whose content is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedLeaf {
    /// The number of the leaf in [`CommitTree::leaves`].
    pub number: u32,
    /// The path.
    pub path: RepoPath,
    /// The mode in the tree object.
    pub mode: u32,
    /// The id of the blob.
    pub id: ObjectId,
}

/// The objects that a git directory needs without its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantedObjects {
    /// The commit. Its trees and their blobs are wanted too, but not its parents.
    pub commit: ObjectId,
    /// Objects that may be tags. Those that lead to the commit are wanted.
    pub tags: Vec<ObjectId>,
    /// Other blobs, which the index names.
    pub blobs: Vec<ObjectId>,
}

/// The objects for a git directory without a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitObjects {
    /// The bound that the objects exceed; there are then no objects.
    pub exceeded: Option<ObjectBound>,
    /// True if the commit has parents.
    pub has_parents: bool,
    /// The wanted tags that lead to the commit.
    pub tags: Vec<ObjectId>,
    /// The packs of the objects. Blobs that the repository lacks are omitted.
    #[serde(skip)]
    pub packs: Vec<ObjectPack>,
}

/// A bound on the objects for a git directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum ObjectBound {
    /// The number of objects.
    #[error("HEAD has more than {MAX_OBJECTS} objects")]
    Objects,
    /// The size of all objects together, before compression.
    #[error("the objects of HEAD have more than {} MiB", MAX_OBJECT_BYTES >> 20)]
    Bytes,
}

/// Maximum number of objects for a git directory.
pub const MAX_OBJECTS: usize = 200_000;
/// Maximum size of all objects for a git directory before compression, in bytes.
pub const MAX_OBJECT_BYTES: u64 = 256 << 20;

/// Git's listing of a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreeListing {
    /// The top of the work tree, absolute, without symbolic links.
    pub worktree: PathBuf,
    /// The directory that contains HEAD and the index.
    pub git_dir: PathBuf,
    /// The directory that contains objects, refs and config; differs from `git_dir` in a linked worktree.
    pub common_dir: PathBuf,
    /// The commit of HEAD; `null` before the first commit.
    pub head_commit: Option<String>,
    /// The branch that HEAD names, without `refs/heads/`; `null` if HEAD is detached.
    pub branch: Option<String>,
    /// The files in the index or in HEAD, including those of nested repositories, in any order. Files of an index
    /// that was sent ahead may be omitted.
    #[serde(skip)]
    pub tracked: Vec<RepoPath>,
    /// The paths that are neither tracked nor ignored; sorted.
    #[serde(skip)]
    pub untracked: Vec<RepoPath>,
    /// Files that the tree does not cover but that affect its listing or content: ignored `.gitignore` and
    /// `.gitattributes` files.
    #[serde(skip)]
    pub rules: Vec<RepoPath>,
    /// The ignored files and directories whose parent directory is not ignored; sorted. An ignored directory may
    /// still contain tracked files.
    #[serde(skip)]
    pub ignored: Vec<RepoPath>,
    /// The directories that are not ignored and were searched.
    #[serde(skip)]
    pub directories: Vec<SearchedDirectory>,
    /// The ignore rules outside the tree that affect the listing, of the repository and of those inside it.
    pub external_rules: Vec<ExternalRules>,
    /// True if an index entry for an ignore file has `skip-worktree`, so the file may be missing in the work tree.
    pub skips_rules: bool,
    /// The git files that this listing was read from. The listing is valid while none of them changes. `null` if
    /// files alone cannot show that.
    pub sources: Option<Vec<GitSourceFile>>,
    /// Submodules and nested repositories, outermost first.
    pub nested: Vec<NestedRepository>,
    /// True if the outermost index was sent ahead. Its entries and tracked paths are then omitted in the encoded
    /// listing.
    pub sent_early: bool,
    /// The index of the repository, then of each repository inside it.
    pub indexes: Vec<Arc<GitIndex>>,
}

impl WorktreeListing {
    /// Returns the paths of the repository.
    pub fn paths(&self) -> RepositoryPaths {
        RepositoryPaths {
            worktree: self.worktree.clone(),
            git_dir: self.git_dir.clone(),
            common_dir: self.common_dir.clone(),
            checkout_of: None,
        }
    }
}

/// A directory that was searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedDirectory {
    /// The path; empty for the top.
    pub path: RepoPath,
    /// The stat data from before the search.
    pub stat: FileStat,
}

/// A git file, or a directory of refs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitSourceFile {
    /// A directory, absolute, without symbolic links.
    pub place: PathBuf,
    /// The path below that directory.
    pub path: RepoPath,
    /// The stat data of the file; `null` if it does not exist.
    pub stamp: Option<FileStat>,
}

/// A repository inside the work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedRepository {
    /// Its path.
    pub path: RepoPath,
    /// The commit of its HEAD, or the recorded commit if it is not checked out; `null` if neither exists.
    pub commit: Option<String>,
}
