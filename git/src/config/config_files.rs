//! Reads git's small files with size limits before libgit2 accesses them: the config, a `.git` file, and
//! `commondir`.

pub use crate::config::bounded_read::RULES_BYTES;

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::config::bounded_read::{CONFIG_BYTES, POINTER_BYTES, check_size, config_error, io_error, read_bounded};
use crate::config::config_includes::{self, IncludeConditions};
use crate::error::GitError;
use crate::object::object_id::ObjectFormat;
use crate::repository_paths::RepositoryPaths;

/// The largest index and the largest `packed-refs` that are read, in bytes.
const TABLE_BYTES: u64 = 1 << 30;

/// Refuses git files that are too large, since libgit2 reads them completely, and special files on which it would
/// block.
pub(crate) fn check_files(worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<(), GitError> {
    let own = [("HEAD", POINTER_BYTES), ("index", TABLE_BYTES), ("shallow", RULES_BYTES)];
    let common = [
        ("packed-refs", TABLE_BYTES),
        ("info/exclude", RULES_BYTES),
        ("info/attributes", RULES_BYTES),
        ("info/grafts", RULES_BYTES),
        ("objects/info/alternates", CONFIG_BYTES),
    ];
    own.iter().try_for_each(|(name, limit)| check_size(&git_dir.join(name), *limit))?;
    common.iter().try_for_each(|(name, limit)| check_size(&common_dir.join(name), *limit))?;
    check_size(&worktree.join(".gitignore"), RULES_BYTES)?;
    let head = read_bounded(&git_dir.join("HEAD"), POINTER_BYTES)?.unwrap_or_default();
    let Some(branch) = head.strip_prefix(b"ref:").map(<[u8]>::trim_ascii) else { return Ok(()) };
    let branch = Path::new(std::ffi::OsStr::from_bytes(branch));
    [git_dir, common_dir].iter().try_for_each(|dir| check_size(&dir.join(branch), POINTER_BYTES))
}

/// Reads an attributes file in the git directory. Returns `None` if it is not a regular file or is too large, and
/// an empty text if it does not exist.
pub(crate) fn read_attributes(path: &Path) -> Option<Vec<u8>> {
    read_bounded(path, CONFIG_BYTES).map(Option::unwrap_or_default).ok()
}

/// Returns the path that a `.git` file names, relative to the directory of the file.
pub(crate) fn gitfile_target(path: &Path) -> Result<PathBuf, GitError> {
    let bytes = read_bounded(path, POINTER_BYTES)?.unwrap_or_default();
    let Some(target) = bytes.strip_prefix(b"gitdir:") else {
        return Err(config_error(path, "it does not contain `gitdir: <path>`".into(), "run `git worktree repair`"));
    };
    Ok(resolve(path, target))
}

/// Returns the directory that a linked worktree's `commondir` names, or `git_dir` itself if there is no such file.
pub(crate) fn common_dir(git_dir: &Path) -> Result<PathBuf, GitError> {
    let pointer = git_dir.join("commondir");
    Ok(read_bounded(&pointer, POINTER_BYTES)?.map_or_else(|| git_dir.to_owned(), |bytes| resolve(&pointer, &bytes)))
}

/// Returns the `.git` file that a linked worktree's git directory links back to.
pub(crate) fn back_link(git_dir: &Path) -> Result<Option<PathBuf>, GitError> {
    let pointer = git_dir.join("gitdir");
    Ok(read_bounded(&pointer, POINTER_BYTES)?.map(|bytes| resolve(&pointer, &bytes)))
}

fn resolve(pointer: &Path, target: &[u8]) -> PathBuf {
    let target = Path::new(std::ffi::OsStr::from_bytes(target.trim_ascii()));
    pointer.parent().unwrap_or(Path::new("/")).join(target)
}

/// A config file for libgit2, without includes.
pub(crate) struct ConfigFile {
    /// The path from which libgit2 reads the file.
    pub(crate) path: PathBuf,
    /// The text with all included files inserted; `None` if there are no includes, so that the original file is
    /// read.
    pub(crate) flattened: Option<OwnedFd>,
}

impl ConfigFile {
    /// Reads the config at `path`; returns `None` if it does not exist.
    ///
    /// # Errors
    /// The file, or a file that it includes, is refused or cannot be read.
    pub(crate) fn read(path: &Path, conditions: &IncludeConditions<'_>) -> Result<Option<Self>, GitError> {
        let Some(bytes) = config_bytes(path)? else { return Ok(None) };
        if include_line(&bytes).is_none() {
            return Ok(Some(Self { path: path.to_owned(), flattened: None }));
        }
        let text = config_includes::flatten(path, &bytes, conditions)?;
        let failed = |error: std::io::Error| io_error(path, &error);
        let memory = memfd_create("config", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let mut file = File::from(memory);
        file.write_all(&text).map_err(failed)?;
        let memory = OwnedFd::from(file);
        let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
        Ok(Some(Self { path, flattened: Some(memory) }))
    }
}

fn config_bytes(path: &Path) -> Result<Option<Vec<u8>>, GitError> {
    let bytes = read_bounded(path, CONFIG_BYTES)?;
    if bytes.as_ref().is_some_and(|bytes| bytes.contains(&0)) {
        return Err(config_error(path, "it holds a NUL byte".into(), "write it again"));
    }
    Ok(bytes)
}

/// Returns the number of the first line that may open an `include` or `includeIf` section.
///
/// Git and libgit2 both accept several section headers in one line, so the whole line is searched. If a line begins
/// like a comment, both treat it as a comment or as the continuation of a value.
pub(crate) fn include_line(config: &[u8]) -> Option<usize> {
    config.split(|b| *b == b'\n').position(may_open_include).map(|at| at + 1)
}

fn may_open_include(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    if line.starts_with(b"#") || line.starts_with(b";") {
        return false;
    }
    let opens = |at: usize| {
        let name = line[at + 1..].trim_ascii_start();
        name.len() >= 7 && name[..7].eq_ignore_ascii_case(b"include")
    };
    line.iter().enumerate().any(|(at, b)| *b == b'[' && opens(at))
}

/// Refuses a `core.worktree` that names a directory other than the one that is read.
pub(crate) fn check_worktree(config: &git2::Config, file: &Path, git_dir: &Path, top: &Path) -> Result<(), GitError> {
    let Ok(named) = config.get_entry("core.worktree") else { return Ok(()) };
    let named = Path::new(std::ffi::OsStr::from_bytes(named.value_bytes()));
    if git_dir.join(named).canonicalize().is_ok_and(|named| named == top) {
        return Ok(());
    }
    Err(config_error(
        file,
        format!("`core.worktree` points to `{}`, which is not this work tree", named.display()),
        "run `git config --local --unset core.worktree`",
    ))
}

/// A format that libgit2 cannot read.
pub(crate) struct UnsupportedFormat {
    pub(crate) what: &'static str,
    /// How to avoid the unsupported format.
    pub(crate) mend: &'static str,
    pub(crate) objects: ObjectFormat,
}

impl UnsupportedFormat {
    /// Makes the error for a reader that only uses libgit2.
    pub(crate) fn into_error(self, places: RepositoryPaths) -> GitError {
        let Self { what, mend, objects } = self;
        GitError::Format { places, what: what.to_owned(), mend: mend.to_owned(), objects }
    }
}

/// Returns the format in the config that libgit2 cannot read, if there is one.
pub(crate) fn find_unsupported_format(config: &git2::Config) -> Option<UnsupportedFormat> {
    let lower = |key: &str| config.get_string(key).ok().map(|value| value.to_ascii_lowercase());
    let foreign = |what, mend, objects| Some(UnsupportedFormat { what, mend, objects });
    if lower("extensions.objectformat").is_some_and(|format| format != "sha1") {
        return foreign(
            "the sha256 object format",
            "`git init --object-format=sha1` elsewhere, and transfer the history with `git fast-export --all | git \
                fast-import`",
            ObjectFormat::Sha256,
        );
    }
    if lower("extensions.refstorage").is_some_and(|format| format != "files") {
        let mend = "run `git refs migrate --ref-format=files`";
        return foreign("the reftable format of refs", mend, ObjectFormat::Sha1);
    }
    lower("extensions.partialclone")
        .and_then(|_| foreign("a partial clone", "clone it again without `--filter`", ObjectFormat::Sha1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_spelling_of_include() {
        for bad in [
            "[include]\n\tpath = x",
            "[core]\n a = b\n  [IncludeIf \"gitdir:x\"]\n",
            "[core] [include] path = x",
            "\u{feff}[include]",
            "[ include]",
            "a = \"\\\n[include]",
        ] {
            assert!(include_line(bad.as_bytes()).is_some(), "{bad:?}");
        }
        for good in ["[core]\n\tbare = false\n# [include]\n; [include]\n", "[includ]", "", "["] {
            assert_eq!(include_line(good.as_bytes()), None, "{good:?}");
        }
        assert_eq!(include_line(b"[a]\n\n[include]"), Some(3));
    }
}
