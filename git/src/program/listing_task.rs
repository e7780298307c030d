//! Lists a work tree with the `git` program, for formats that libgit2 cannot read. The result is the same as that
//! of the libgit2 reader, except for the differences that docs/development/snapshot.md describes.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::drift::display_path;
use rustix::fs::FileType;

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::files::{paths, read_beneath};
use crate::ignore::external_rules::{
    EXCLUDES_FILE, ExternalRules, FOLDS_CASE, IGNORE_CASE, INFO_EXCLUDE, external_rule,
};
use crate::index::{ConversionConfig, GITLINK_MODE, GitIndex, IndexEntry, IndexStat, IndexTimestamp};
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::program::script_output::ScriptOutput;
use crate::program::{GitProgram, GitTask, parse_staged_line, run_task};
use crate::protocol::{NestedRepository, WorktreeListing};
use crate::repository::listing::MAX_DEPTH;
use crate::repository::worktree_walk::MAX_PATHS;
use crate::repository_paths::RepositoryPaths;

/// Sorted paths without duplicates.
type PathSet = BTreeSet<Vec<u8>>;

/// Prints each part after a line with its name, its exit code and its length.
const SCRIPT: &str = r#"set -eu
top=$(pwd -P)
export GIT_DIR="$top/.git" GIT_WORK_TREE="$top"
out=$(mktemp)
part() {
  name=$1; shift
  if "$@" > "$out"; then code=0; else code=$?; fi
  printf '%s %s %s\n' "$name" "$code" "$(wc -c < "$out")"
  cat "$out"
}
attributes() {
  file=$(git rev-parse --git-path info/attributes)
  if [ -e "$file" ]; then cat "$file"; fi
}
exclude() {
  file=$(git rev-parse --git-path info/exclude)
  if [ -f "$file" ]; then cat "$file"; fi
}
excludes() {
  file=$(git config --type=path --default= core.excludesFile)
  if [ -f "$file" ]; then cat "$file"; fi
}
written() {
  file=$(git rev-parse --git-path index)
  if [ -e "$file" ]; then stat -c %Y "$file"; fi
}
part head git rev-parse --verify -q 'HEAD^{commit}'
part tree git rev-parse --verify -q 'HEAD^{tree}'
part branch git symbolic-ref -q HEAD
part format git rev-parse --show-object-format
part written written
part index git ls-files --stage --debug -z
part committed git ls-tree -r -z --full-tree HEAD
part untracked git ls-files --others --exclude-standard -z
part ignored git ls-files --others --ignored --exclude-standard --directory -z
part filemode git config --type=bool --default=true core.fileMode
part symlinks git config --type=bool --default=true core.symlinks
part autocrlf git config --default=false core.autocrlf
part foreign git config --get-regexp '^(core\.attributesfile|attr\.tree)$'
part attributes attributes
part exclude exclude
part excludeplace git rev-parse --git-path info/exclude
part excludes excludes
part excludesplace git config --type=path --default= core.excludesFile
part ignorecase git config --type=bool --default=false core.ignoreCase
"#;

/// Maximum number of repositories inside a work tree that are listed; each takes a separate sandbox.
const MAX_NESTED: usize = 256;

/// Lists the work tree of the repository at `places`.
///
/// # Errors
/// Git failed, or a bound was exceeded.
pub(crate) fn list(program: &dyn GitProgram, places: &RepositoryPaths) -> Result<WorktreeListing, GitError> {
    let top = read_beneath::open_canonical(&places.worktree).map_err(|error| io_error(&places.worktree, &error))?;
    let mut reader = ProgramListingReader {
        program,
        places,
        top: top.as_fd(),
        tracked: PathSet::new(),
        untracked: PathSet::new(),
        ignored: PathSet::new(),
    };
    let (mut nested, mut indexes) = (Vec::new(), Vec::new());
    let own = reader.list_repository(b"")?;
    let (mut pending, mut external_rules) = (own.nested, own.external_rules);
    let (head_commit, branch) = (own.head, own.branch);
    indexes.push(Arc::new(own.index));
    while let Some((path, recorded)) = pending.pop() {
        if nested.len() >= MAX_NESTED {
            return Err(too_many(places, MAX_NESTED, "repositories inside it, in a git format that is slow to read"));
        }
        let mut commit = recorded.map(|id| id.to_string());
        if reader.is_repository(&path)? {
            let inner = reader.list_repository(&path)?;
            commit = inner.head;
            external_rules.extend(inner.external_rules);
            pending.extend(inner.nested);
            indexes.push(Arc::new(inner.index));
        }
        nested.push(NestedRepository { path: RepoPath(path), commit });
    }
    nested.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let as_paths = |set: PathSet| set.into_iter().map(RepoPath).collect();
    let RepositoryPaths { worktree, git_dir, common_dir, .. } = places.clone();
    let (tracked, untracked) = (as_paths(reader.tracked), as_paths(reader.untracked));
    let ignored = as_paths(reader.ignored);
    // Git does not report which directories it searched and which files affected the result.
    let (rules, directories, sources) = (Vec::new(), Vec::new(), None);
    Ok(WorktreeListing {
        external_rules: ExternalRules::sort_and_combine(external_rules, &worktree),
        skips_rules: false,
        worktree,
        git_dir,
        common_dir,
        head_commit,
        branch,
        tracked,
        untracked,
        rules,
        ignored,
        directories,
        sources,
        sent_early: false,
        nested,
        indexes,
    })
}

/// The data that git reports about one repository.
struct ProgramListing {
    head: Option<String>,
    branch: Option<String>,
    index: GitIndex,
    /// The paths of repositories inside it, and the commits that are recorded for them.
    nested: Vec<(Vec<u8>, Option<ObjectId>)>,
    /// The ignore rules outside the tree that affect the listing.
    external_rules: Vec<ExternalRules>,
}

struct ProgramListingReader<'a> {
    program: &'a dyn GitProgram,
    places: &'a RepositoryPaths,
    top: BorrowedFd<'a>,
    tracked: PathSet,
    untracked: PathSet,
    ignored: PathSet,
}

impl ProgramListingReader<'_> {
    /// Lists the repository whose work tree is at `at`.
    fn list_repository(&mut self, at: &[u8]) -> Result<ProgramListing, GitError> {
        let directory = RepoPath(at.to_vec());
        let task = GitTask { script: SCRIPT, directory, input: Default::default() };
        let failed = |problem: String| GitError::Unreadable { path: self.absolute_path(at), problem };
        let printed = run_task(self.program, self.places, &task).map_err(|error| failed(error.to_string()))?;
        let parts = ScriptOutput::parse(&printed).ok_or_else(|| failed(MALFORMED_OUTPUT.to_owned()))?;
        let index = parts.index(at).ok_or_else(|| failed(MALFORMED_OUTPUT.to_owned()))?;
        let untracked =
            parts.paths("untracked").ok_or_else(|| failed("git cannot determine the untracked files".to_owned()))?;
        let committed = parts.committed_paths().ok_or_else(|| failed("git cannot read the tree of HEAD".to_owned()))?;
        let ignored =
            parts.paths("ignored").ok_or_else(|| failed("git cannot determine the ignored files".to_owned()))?;
        let mut inside = Vec::new();
        for entry in &index.entries {
            let path = paths::join(at, &entry.path.0);
            if entry.mode == GITLINK_MODE {
                if self.is_directory(&path)? {
                    inside.push((path, Some(entry.id)));
                }
                continue;
            }
            // Git does not list a repository that replaced a tracked file.
            if self.is_directory(&path)? && self.is_repository(&path)? {
                inside.push((path.clone(), None));
            }
            self.tracked.insert(path);
        }
        inside.dedup_by(|one, other| one.0 == other.0);
        self.tracked.extend(committed.iter().map(|path| paths::join(at, path)));
        for (path, _) in &inside {
            self.add_unborn_submodule_files(path)?;
        }
        self.ignored.extend(ignored.into_iter().map(|path| paths::join(at, path.strip_suffix(b"/").unwrap_or(path))));
        for path in untracked {
            match path.strip_suffix(b"/") {
                Some(repository) => inside.push((paths::join(at, repository), None)),
                None => drop(self.untracked.insert(paths::join(at, path))),
            }
        }
        self.check_limits()?;
        let external_rules =
            parts.external_rules(&self.absolute_path(at)).into_iter().map(|rules| rules.with_prefix(at)).collect();
        Ok(ProgramListing { head: parts.text("head"), branch: parts.branch(), index, nested: inside, external_rules })
    }

    /// Adds the files in the directory of a submodule that is not checked out.
    fn add_unborn_submodule_files(&mut self, path: &[u8]) -> Result<(), GitError> {
        if self.is_repository(path)? {
            return Ok(());
        }
        let files = read_beneath::list_leaves(self.top, path, MAX_PATHS)
            .map_err(|error| io_error(&self.absolute_path(path), &error))?;
        let files = files.ok_or_else(|| too_many(self.places, MAX_PATHS, "paths"))?;
        self.untracked.extend(files.into_iter().filter(|file| paths::file_name(file) != b".git"));
        Ok(())
    }

    fn check_limits(&self) -> Result<(), GitError> {
        if self.tracked.len() + self.untracked.len() + self.ignored.len() > MAX_PATHS {
            return Err(too_many(self.places, MAX_PATHS, "paths"));
        }
        let deep = |path: &Vec<u8>| paths::ancestors(path).count() > MAX_DEPTH;
        if self.tracked.iter().chain(&self.untracked).any(deep) {
            return Err(too_many(self.places, MAX_DEPTH, "levels of directories"));
        }
        Ok(())
    }

    fn is_directory(&self, path: &[u8]) -> Result<bool, GitError> {
        let found =
            read_beneath::open_entry(self.top, path).map_err(|error| io_error(&self.absolute_path(path), &error))?;
        Ok(found.is_some_and(|(_, stat)| FileType::from_raw_mode(stat.st_mode) == FileType::Directory))
    }

    /// Checks whether the directory `path` is the work tree of a repository, by git's criteria.
    fn is_repository(&self, path: &[u8]) -> Result<bool, GitError> {
        is_repository(self.top, path).map_err(|error| io_error(&self.absolute_path(path), &error))
    }

    fn absolute_path(&self, path: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        self.places.worktree.join(std::ffi::OsStr::from_bytes(path))
    }
}

/// Checks whether the directory `path` below `top` is the work tree of a repository: its `.git` is a file, or a
/// directory that contains a HEAD.
pub(crate) fn is_repository(top: BorrowedFd<'_>, path: &[u8]) -> std::io::Result<bool> {
    let dot_git = paths::join(path, b".git");
    let Some((_, stat)) = read_beneath::open_entry(top, &dot_git)? else { return Ok(false) };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => true,
        FileType::Directory => read_beneath::open_entry(top, &paths::join(&dot_git, b"HEAD"))?.is_some(),
        _ => false,
    })
}

const MALFORMED_OUTPUT: &str = "the answer of the `git` program has an unknown format";

fn too_many(places: &RepositoryPaths, limit: usize, what: &str) -> GitError {
    GitError::TooMany { path: places.worktree.clone(), limit, what: what.to_owned() }
}

fn io_error(path: &Path, error: &std::io::Error) -> GitError {
    GitError::Io { path: path.to_owned(), problem: error.to_string() }
}

impl<'a> ScriptOutput<'a> {
    fn branch(&self) -> Option<String> {
        self.bytes("branch")?.trim_ascii_end().strip_prefix(b"refs/heads/").map(display_path)
    }

    fn paths(&self, part: &str) -> Option<Vec<&'a [u8]>> {
        Some(self.bytes(part)?.split(|b| *b == 0).filter(|path| !path.is_empty()).collect())
    }

    /// Returns the ignore rules outside the tree of the repository at `place`, as git read them.
    fn external_rules(&self, place: &Path) -> Vec<ExternalRules> {
        let file = |part| place.join(self.text(part).unwrap_or_default());
        let folds_case = self.text("ignorecase").is_some_and(|text| text == "true");
        let found = [
            (INFO_EXCLUDE, file("excludeplace"), self.bytes("exclude")),
            (EXCLUDES_FILE, file("excludesplace"), self.bytes("excludes")),
            (IGNORE_CASE, place.join(".git/config"), folds_case.then_some(FOLDS_CASE)),
        ];
        found.into_iter().filter_map(|(name, file, text)| external_rule(name, &file, text?)).collect()
    }

    /// Returns the paths in HEAD without submodules; returns no paths before the first commit.
    fn committed_paths(&self) -> Option<Vec<&'a [u8]>> {
        if self.text("head").is_none() {
            return Some(Vec::new());
        }
        let lines = self.bytes("committed")?.split(|b| *b == 0).filter(|line| !line.is_empty());
        let path = |line: &'a [u8]| Some(&line[line.iter().position(|b| *b == b'\t')? + 1..]);
        lines.filter(|line| !line.starts_with(b"160000 ")).map(path).collect()
    }

    fn index(&self, at: &[u8]) -> Option<GitIndex> {
        let head_tree = match self.text("tree") {
            Some(text) => Some(ObjectId::from_hex(text.as_bytes())?),
            None => None,
        };
        let seconds = self.text("written").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let format = match self.text("format")?.as_str() {
            "sha1" => ObjectFormat::Sha1,
            "sha256" => ObjectFormat::Sha256,
            _ => return None,
        };
        Some(GitIndex {
            at: RepoPath(at.to_vec()),
            format,
            head_tree,
            // An index stores the low 32 bits.
            written: (u32::try_from(seconds & u64::from(u32::MAX)).ok()?, 0),
            entries: parse_entries(self.bytes("index")?)?,
            rules: ConversionConfig {
                file_mode: self.text("filemode")? == "true",
                symlinks: self.text("symlinks")? == "true",
                autocrlf: self.text("autocrlf")? != "false",
                foreign_attributes: self.bytes("foreign").is_some(),
                own_attributes: self.bytes("attributes").map(|text| RepoPath(text.to_vec())),
            },
        })
    }
}

/// Parses the output of `git ls-files --stage --debug -z`. Returns `None` if the format is unknown.
fn parse_entries(mut text: &[u8]) -> Option<Vec<IndexEntry>> {
    let mut entries = Vec::new();
    while !text.is_empty() {
        let end = text.iter().position(|b| *b == 0)?;
        let (mode, id, stage, path) = parse_staged_line(&text[..end])?;
        let mut rest = &text[end + 1..];
        let mut line = || {
            let end = rest.iter().position(|b| *b == b'\n')?;
            let line = std::str::from_utf8(&rest[..end]).ok()?;
            rest = &rest[end + 1..];
            Some(line.trim_start())
        };
        let ctime = parse_timestamp(line()?.strip_prefix("ctime: ")?)?;
        let mtime = parse_timestamp(line()?.strip_prefix("mtime: ")?)?;
        let ino = line()?.split_once("ino: ")?.1.parse().ok()?;
        line()?.strip_prefix("uid: ")?;
        let (size, flags) = line()?.strip_prefix("size: ")?.split_once("\tflags: ")?;
        let flags = u64::from_str_radix(flags, 16).ok()?;
        entries.push(IndexEntry {
            path: RepoPath(path.to_vec()),
            mode,
            id,
            stage,
            intent_to_add: flags & INTENT_TO_ADD != 0,
            skip_worktree: flags & SKIP_WORKTREE != 0,
            stat: Some(IndexStat { mtime, ctime, ino, size: size.parse().ok()? }),
        });
        text = rest;
    }
    Some(entries)
}

/// Flags of an entry in git's memory (`CE_INTENT_TO_ADD`, `CE_SKIP_WORKTREE`).
const INTENT_TO_ADD: u64 = 1 << 29;
const SKIP_WORKTREE: u64 = 1 << 30;

fn parse_timestamp(text: &str) -> Option<IndexTimestamp> {
    let (seconds, nanoseconds) = text.split_once(':')?;
    Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_truncated_entries() {
        let id = "45b983be36b73c0788dc9cbcb76cbb80fc7bb057";
        let stat = "  ctime: 5:6\n  mtime: 3:4\n  dev: 7\tino: 8\n  uid: 0\tgid: 0\n  size: 2\tflags: ";
        let output = format!("100644 {id} 0\ta\n\tb\0{stat}0\n100755 {id} 2\tc\0{stat}60004000\n");
        let read = parse_entries(output.as_bytes()).expect("reads");
        assert_eq!((read[0].path.0.as_slice(), read[1].path.0.as_slice()), (&b"a\n\tb"[..], &b"c"[..]));
        assert_eq!(read[0].stat, Some(IndexStat { mtime: (3, 4), ctime: (5, 6), ino: 8, size: 2 }));
        assert_eq!((read[1].stage, read[1].mode), (2, 0o100_755));
        assert!(read[1].intent_to_add && read[1].skip_worktree && !read[0].intent_to_add && !read[0].skip_worktree);
        for cut in 1..output.len() {
            let whole = output[..cut].ends_with("flags: 0\n");
            assert_eq!(parse_entries(&output.as_bytes()[..cut]).is_some(), whole, "{cut}");
        }
    }
}
