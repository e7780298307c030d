//! What the library and `proctor-git` say to each other: one request as JSON, one answer in frames.
//!
//! In JSON, paths are bytes as lower-case hex, so that none of them is changed on the way. What is
//! many (`serde(skip)` here) travels beside it, in the form of `bulk.rs`.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::digest::{Sha256Hex, SnapshotId};
use serde::{Deserialize, Serialize};

use super::GitError;
pub use super::frames::{Ahead, BlobPieces};
use super::ignore::ExternalRules;
pub use super::index::{FileRules, Index, IndexEntry, IndexStat, Moment};
pub use super::object::{ObjectFormat, ObjectId};
pub use super::program::Places;

use crate::stamp::Stamp;

/// What is asked, on the helper's standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Which paths the tree consists of, and where it stands in its history.
    List {
        /// The top of the work tree.
        repo: PathBuf,
    },
    /// Which of some paths the rules on disk ignore.
    Ignored {
        /// The top of the work tree.
        repo: PathBuf,
        /// Where submodules are, which no rule of the repository around them ignores; `null` has the
        /// index asked, at a cost that grows with it.
        submodules: Option<Vec<RepoPath>>,
        /// Paths of directories, relative to the top.
        directories: Vec<RepoPath>,
        /// Paths of what is no directory.
        paths: Vec<RepoPath>,
    },
    /// Which commits a revision or a range names.
    Resolve {
        /// The top of the work tree.
        repo: PathBuf,
        /// One revision, `A..B` or `A...B`.
        revision: String,
        /// How many commits a range may hold.
        limit: usize,
    },
    /// Which commits a push sends.
    Pushed {
        /// The top of the work tree.
        repo: PathBuf,
        /// The push.
        push: Push,
    },
    /// Which commit an index would make.
    Staged {
        /// The top of the work tree.
        repo: PathBuf,
        /// The index.
        index: StagedIndex,
    },
    /// What a checkout of a commit would be.
    Content {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
    },
    /// What single files of a commit's tree are.
    Files {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
        /// The files.
        paths: Vec<RepoPath>,
    },
    /// What stands at each path of a commit's tree.
    Tree {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
        /// Whether the trees of submodules belong to it.
        submodules: bool,
    },
    /// The contents of files and links of a commit's tree.
    Blobs {
        /// The top of the work tree.
        repo: PathBuf,
        /// The commit.
        commit: CommitRef,
        /// Whether the trees of submodules belong to it.
        submodules: bool,
        /// Which leaves, by their numbers in [`CommitTree::leaves`]; sorted.
        wanted: Vec<u32>,
    },
    /// What the git directory of a private tree says: refs, and the rules that lie in the repository's git directory.
    History {
        /// The top of the work tree.
        repo: PathBuf,
        /// The directories of repositories inside it.
        nested: Vec<RepoPath>,
    },
}

/// What is answered, on the helper's standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::List`].
    List(Listing),
    /// To [`Request::Ignored`]: one for each directory, then for each path, in their order.
    Ignored {
        /// Whether it is ignored.
        ignored: Vec<bool>,
    },
    /// To [`Request::Resolve`], oldest first.
    Resolved {
        /// The commits; one at least.
        commits: Vec<NamedCommit>,
    },
    /// To [`Request::Pushed`].
    Pushed(Pushed),
    /// To [`Request::Staged`].
    Staged(NamedCommit),
    /// To [`Request::Content`].
    Content(CommitContent),
    /// To [`Request::Files`], in their order.
    Files {
        /// What each is; `null` where it is no regular file, or a larger one than is read.
        files: Vec<Option<CommittedFile>>,
    },
    /// To [`Request::Tree`].
    Tree(CommitTree),
    /// To [`Request::Blobs`]: all that were wanted were sent before it.
    Blobs,
    /// To [`Request::History`].
    History(GitHistory),
    /// It could not be answered.
    Refused {
        /// Why.
        why: GitError,
    },
}

/// The state of a repository beside its work tree, HEAD and index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitHistory {
    /// The format of its object ids.
    pub format: ObjectFormat,
    /// The directory of its objects.
    pub objects: PathBuf,
    /// The line in its HEAD: `ref: ` and the name of a branch, or an id; `null` where that cannot be read.
    pub head: Option<String>,
    /// Its refs, in the form of `packed-refs`.
    pub refs: RepoPath,
    /// The edges of a shallow clone; `null` for a whole one.
    pub shallow: Option<RepoPath>,
    /// The ignore rules of `core.excludesFile` and `info/exclude`, in the order of their precedence.
    pub exclude: RepoPath,
    /// Whether `core.ignoreCase` is set.
    pub ignore_case: bool,
    /// The repositories inside the work tree, by their directories. Those that libgit2 does not read are left out.
    pub nested: Vec<(RepoPath, GitHistory)>,
}

impl GitHistory {
    /// Returns the id that a ref has, as text.
    pub fn target(&self, name: &str) -> Option<String> {
        let lines = self.refs.0.split(|byte| *byte == b'\n');
        let mut refs = lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once(' '));
        refs.find(|(_, found)| *found == name).map(|(id, _)| id.to_owned())
    }
}

/// A commit that a revision or a range names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCommit {
    /// Its id, in full.
    pub id: String,
    /// The first line of its message, escaped and cut, for people.
    pub subject: String,
}

/// A commit: one of the repository's, or one that an index would make and that stands nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitRef {
    /// Its id, in full.
    pub id: String,
    /// The index that makes it; `null` where the repository has it.
    pub staged: Option<StagedIndex>,
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

/// An index, of which a commit is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedIndex {
    /// Its file, absolute; `null` for that of the work tree. Git makes another one for `commit --all` and for
    /// a commit of single paths.
    pub file: Option<PathBuf>,
}

/// What a checkout of a commit would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitContent {
    /// The identity of the tree; `null` where it has submodules.
    pub snapshot: Option<SnapshotId>,
    /// The spec; `null` where there is none, or none that is text of a usual size.
    pub spec: Option<String>,
}

/// A regular file of a commit's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedFile {
    /// Whether it may be executed.
    pub executable: bool,
    /// The sha256 of its content.
    pub sha256: Sha256Hex,
    /// The first line of a script, which names its interpreter; `None` where the file is no script.
    pub shebang: Option<String>,
}

impl CommittedFile {
    /// Returns the first line of a script behind its `#!`, as much of it as the kernel reads; `None` where `head`
    /// is not the beginning of a script.
    pub fn shebang_of(head: &[u8]) -> Option<String> {
        let line = head.get(..SHEBANG_BYTES.min(head.len()))?.strip_prefix(b"#!")?;
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Some(String::from_utf8_lossy(line).trim().to_owned())
    }
}

/// How many bytes of a script the kernel reads to find its interpreter.
pub const SHEBANG_BYTES: usize = 256;

/// What a push sends, as git tells a `pre-push` hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// The ids that are pushed, in full.
    pub tips: Vec<String>,
    /// Ids that the remote has, in full; they need not be here.
    pub known: Vec<String>,
    /// Whether every commit counts that no remote is known to have, and not only the tips.
    pub each: bool,
    /// How many commits it may come to.
    pub limit: usize,
}

/// What a push comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pushed {
    /// Where HEAD and the index of the work tree are.
    pub git_dir: PathBuf,
    /// What each of the ids is, in their order.
    pub tips: Vec<PushedTip>,
    /// The commits that are to be looked at, each of them once, oldest first.
    pub commits: Vec<NamedCommit>,
}

/// What is pushed, behind the tags that lead to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum PushedTip {
    /// A commit.
    Commit {
        /// Its id, in full.
        id: String,
    },
    /// A tree or a blob.
    Other {
        /// Which of them.
        kind: String,
    },
}

/// What stands at each path of a commit's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitTree {
    /// The bytes of the commit object.
    pub object: RepoPath,
    /// The format of the repository's object ids.
    pub format: ObjectFormat,
    /// The directories that are not in the form in which git writes them, with the bytes of their objects.
    pub odd: Vec<(RepoPath, RepoPath)>,
    /// The submodules that belong to the tree, each before those that lie in it.
    pub submodules: Vec<CommitModule>,
    /// The files, links and submodules: those of the top, sorted by path, then those of each submodule.
    #[serde(skip)]
    pub leaves: Vec<CommittedLeaf>,
}

/// A submodule of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitModule {
    /// Its directory, relative to the top of the outermost tree.
    pub path: RepoPath,
    /// Its commit.
    pub commit: ObjectId,
    /// The bytes of the commit object.
    pub object: RepoPath,
    /// The directory of its objects.
    pub objects: PathBuf,
}

/// A file, link or submodule of a commit's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedLeaf {
    /// Relative to the top of the outermost tree.
    pub path: Vec<u8>,
    /// As the tree has it.
    pub mode: u32,
    /// The id of the blob, or of a submodule's commit.
    pub id: ObjectId,
    /// The size of the blob in bytes.
    pub size: u64,
}

/// What git knows of a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The top of the work tree, absolute, without symbolic links.
    pub worktree: PathBuf,
    /// Where HEAD and the index are.
    pub git_dir: PathBuf,
    /// Where objects, refs and config are; differs from `git_dir` in a linked worktree.
    pub common_dir: PathBuf,
    /// The commit that HEAD names; `null` before the first one.
    pub head_commit: Option<String>,
    /// The branch that HEAD names, without `refs/heads/`; `null` where it names a commit.
    pub branch: Option<String>,
    /// The files in the index or in HEAD, those of nested repositories too, in any order; what was
    /// told ahead may be left out.
    #[serde(skip)]
    pub tracked: Vec<RepoPath>,
    /// What is neither tracked nor ignored; sorted.
    #[serde(skip)]
    pub untracked: Vec<RepoPath>,
    /// Files that the tree does not cover and that have a say in what it is: ignored `.gitignore` and
    /// `.gitattributes`.
    #[serde(skip)]
    pub rules: Vec<RepoPath>,
    /// The ignored files and directories that lie in directories which are not ignored; sorted. A directory may hold
    /// tracked files all the same.
    #[serde(skip)]
    pub ignored: Vec<RepoPath>,
    /// The directories that are not ignored and were looked into.
    #[serde(skip)]
    pub directories: Vec<WalkedDirectory>,
    /// The ignore rules outside of the tree that decided, in the repository and in those inside it.
    pub external_rules: Vec<ExternalRules>,
    /// Whether an index skips a file of rules, which then need not be in the work tree.
    pub skips_rules: bool,
    /// The files of git that all this was read from: while none of them changes, git has nothing
    /// else to say. `null` where that cannot be told by looking at files.
    pub sources: Option<Vec<Source>>,
    /// Submodules and nested repositories, outermost first.
    pub nested: Vec<Nested>,
    /// Whether what the outermost index tracks, and its entries, were told ahead: they are then left out on the way.
    pub told_ahead: bool,
    /// The index of the repository, then of each one inside it.
    pub indexes: Vec<Arc<Index>>,
}

impl Listing {
    /// Where the repository is.
    pub fn places(&self) -> Places {
        Places {
            worktree: self.worktree.clone(),
            git_dir: self.git_dir.clone(),
            common_dir: self.common_dir.clone(),
            checkout_of: None,
        }
    }
}

/// A directory that was looked into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedDirectory {
    /// Where it is; empty for the top.
    pub path: RepoPath,
    /// What it was like before.
    pub(crate) stamp: Stamp,
}

/// A file of git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// A directory, absolute, without symbolic links.
    pub place: PathBuf,
    /// The path below it.
    pub path: RepoPath,
    /// What the file is like; `null` where there is none.
    pub stamp: Option<Stamp>,
}

/// A repository inside the work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nested {
    /// Where it stands.
    pub path: RepoPath,
    /// The commit that it is at; `null` where it has none or is not checked out.
    pub commit: Option<String>,
}

/// A path relative to the top of the work tree, `/` between its parts.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepoPath(pub Vec<u8>);

impl From<RepoPath> for String {
    fn from(path: RepoPath) -> String {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let digits = |b: u8| [HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]];
        path.0.iter().flat_map(|b| digits(*b)).map(char::from).collect()
    }
}

impl TryFrom<String> for RepoPath {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a path in hex");
        let nibble = |b: u8| match b {
            b'0'..=b'9' => Ok(b - b'0'),
            b'a'..=b'f' => Ok(b - b'a' + 10),
            _ => Err(bad()),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(bad());
        }
        pairs.iter().map(|[high, low]| Ok(nibble(*high)? << 4 | nibble(*low)?)).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_way() {
        let path = RepoPath((1..=255).collect());
        let text = serde_json::to_string(&path).expect("serialises");
        assert_eq!(serde_json::from_str::<RepoPath>(&text).expect("parses"), path);
        assert!(serde_json::from_str::<RepoPath>("\"0\"").is_err());
        assert!(serde_json::from_str::<RepoPath>("\"0G\"").is_err());
    }
}
