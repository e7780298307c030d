//! Answers the question about a repository's refs and ignore rules.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::config::bounded_read::{RULES_BYTES, read_bounded};
use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::protocol::{GitHistory, GitSourceFile};
use crate::repository::git_dir;
use crate::repository::history::{HistoryBackend, RepositoryHistory};
use crate::repository::source_files;

/// Returns the refs of a repository and of those inside it, and the ignore rules in their git directories.
pub(crate) fn read_history(history: &RepositoryHistory<'_>, nested: &[RepoPath]) -> Result<GitHistory, GitError> {
    let of_nested = |path: &RepoPath| {
        let inside = RepositoryHistory::open(&history.worktree().join(OsStr::from_bytes(&path.0)), None).ok()?;
        let state = read_history(&inside, &[]).ok()?;
        Some((path.clone(), state))
    };
    history.program_output()?;
    let common_dir = &history.paths.common_dir;
    let (format, config) = match &history.backend {
        HistoryBackend::Libgit2(opened) => {
            let config = opened.repository.config().map_err(|error| history.unreadable(error.message()))?;
            (ObjectFormat::Sha1, Some(config))
        }
        HistoryBackend::Libgit2Objects(..) => (ObjectFormat::Sha1, None),
        HistoryBackend::Program(_) => (ObjectFormat::Sha256, None),
    };
    let setting = config.as_ref().and_then(|config| config.get_path("core.excludesfile").ok());
    // If two rules match, the later one takes precedence; the rules of the setting come first.
    let mut exclude = Vec::new();
    for file in setting.into_iter().chain([common_dir.join("info/exclude")]) {
        exclude.extend(read_bounded(&file, RULES_BYTES)?.unwrap_or_default());
        exclude.push(b'\n');
    }
    let head = read_bounded(&history.paths.git_dir.join("HEAD"), MAX_HEAD).ok().flatten();
    Ok(GitHistory {
        format,
        head: head.and_then(|bytes| head_line(&bytes)),
        objects: common_dir.join("objects"),
        refs: RepoPath(git_dir::packed_refs(history)?),
        shallow: git_dir::read_shallow(common_dir)?.map(RepoPath),
        exclude: RepoPath(exclude),
        ignore_case: config.is_some_and(|config| config.get_bool("core.ignorecase").unwrap_or(false)),
        nested: nested.iter().filter_map(of_nested).collect(),
    })
}

/// Returns the files and directories from which the history of a repository is read, without those inside it; `None` if
/// they cannot be determined.
pub(crate) fn sources(history: &RepositoryHistory<'_>) -> Result<Option<Vec<GitSourceFile>>, GitError> {
    let HistoryBackend::Libgit2(opened) = &history.backend else { return Ok(None) };
    let mut sources = Vec::new();
    let are_known =
        source_files::add_source_files(opened, &mut sources)? && source_files::add_ref_sources(opened, &mut sources)?;
    Ok(are_known.then_some(sources))
}

/// The largest HEAD that is read, in bytes.
pub(crate) const MAX_HEAD: u64 = 4096;

/// Returns the line of a HEAD file that names a branch or a commit.
pub(crate) fn head_line(bytes: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(bytes).ok()?.trim_end();
    let is_ref = |name: &str| name.starts_with("refs/heads/") && !name.contains(|c: char| c <= ' ' || c == '\u{7f}');
    let is_line = line.strip_prefix("ref: ").is_some_and(is_ref) || ObjectId::from_hex(line.as_bytes()).is_some();
    is_line.then(|| line.to_owned())
}
