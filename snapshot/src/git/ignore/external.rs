//! Reads the ignore rules that lie outside of the tree: `info/exclude`, and the file that `core.excludesFile` of the
//! repository's own config names.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::display_path;
use rustix::fs::{Mode, OFlags, fstat, open};
use serde::{Deserialize, Serialize};

use super::pattern::rule_lines;
use crate::beneath;
use crate::git::GitError;
use crate::git::config::{RULES_BYTES, io, too_large};
use crate::git::reader::{Opened, unreadable};

/// A place outside of a tree that has a say in what is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalRules {
    /// What it is: `info/exclude`, `core.excludesFile` or `core.ignoreCase`; of a repository inside the tree, behind its
    /// path and a colon.
    pub name: String,
    /// The file that holds the rules, or the setting.
    pub file: PathBuf,
    /// The sha256 of its rules: each line that holds one, without what git cuts from it, and a line feed.
    pub rules_sha256: Sha256Hex,
}

/// The most places that are named; what the others hold is one entry.
const MAX_NAMED: usize = 256;

impl ExternalRules {
    /// The same place of the repository at `prefix` of the outermost work tree.
    pub(in crate::git) fn at(self, prefix: &[u8]) -> Self {
        match prefix {
            b"" => self,
            _ => Self { name: format!("{}: {}", display_path(prefix), self.name), ..self },
        }
    }

    /// Sorts places by their names and makes one of those that are too many to be named.
    pub(in crate::git) fn sorted(mut all: Vec<Self>, worktree: &Path) -> Vec<Self> {
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if all.len() > MAX_NAMED {
            let others = all.split_off(MAX_NAMED);
            let text: String = others.iter().map(|other| format!("{}\n{}\n", other.name, other.rules_sha256)).collect();
            let rules_sha256 = Sha256Hex::of(text.as_bytes());
            all.push(Self { name: "other repositories".to_owned(), file: worktree.to_owned(), rules_sha256 });
        }
        all
    }
}

/// The rules outside of the tree of one repository.
pub(super) struct Found {
    /// The files and their texts, those that precede over the others last.
    pub(super) files: Vec<(PathBuf, Vec<u8>)>,
    /// `core.ignoreCase`.
    pub(super) folds_case: bool,
    /// The places that hold rules.
    pub(super) rules: Vec<ExternalRules>,
}

/// Reads the rules of a repository that lie outside of its tree.
pub(super) fn read(opened: &Opened) -> Result<Found, GitError> {
    let failed = |error: git2::Error| unreadable(&opened.worktree, &error);
    let config = opened.repository.config().and_then(|mut config| config.snapshot()).map_err(failed)?;
    let excludes = config.get_bytes("core.excludesfile").ok().and_then(|path| excludes_file(&opened.worktree, path));
    let folds_case = config.get_bool("core.ignorecase").unwrap_or(false);
    let named = [(EXCLUDES_FILE, excludes), (INFO_EXCLUDE, Some(opened.common_dir.join(INFO_EXCLUDE)))];
    let mut found = Found { files: Vec::new(), folds_case, rules: Vec::new() };
    for (name, file) in named {
        let Some(file) = file else { continue };
        let Some(text) = read_rules(&file)? else { continue };
        found.rules.extend(external(name, &file, &text));
        found.files.push((file, text));
    }
    if folds_case {
        found.rules.extend(external(IGNORE_CASE, &opened.common_dir.join("config"), FOLDS_CASE));
    }
    Ok(found)
}

pub(in crate::git) const EXCLUDES_FILE: &str = "core.excludesFile";
pub(in crate::git) const INFO_EXCLUDE: &str = "info/exclude";
pub(in crate::git) const IGNORE_CASE: &str = "core.ignoreCase";
/// What is recorded where `core.ignoreCase` is set.
pub(in crate::git) const FOLDS_CASE: &[u8] = b"true\n";

/// A place with the rules in its text; `None` where it holds none.
pub(in crate::git) fn external(name: &str, file: &Path, text: &[u8]) -> Option<ExternalRules> {
    let rules_sha256 = digest_of_rules(text)?;
    Some(ExternalRules { name: name.to_owned(), file: file.to_owned(), rules_sha256 })
}

/// The place of a `core.excludesFile`; `None` for one of a user's home or of git's own installation, which is not
/// part of the repository.
fn excludes_file(worktree: &Path, value: &[u8]) -> Option<PathBuf> {
    let is_elsewhere = value.is_empty() || value.starts_with(b"~") || value.starts_with(b"%(prefix)");
    (!is_elsewhere).then(|| worktree.join(OsStr::from_bytes(value)))
}

/// The sha256 of the rules in the text of a file; `None` where it holds none.
fn digest_of_rules(text: &[u8]) -> Option<Sha256Hex> {
    let rules: Vec<u8> = rule_lines(text).flat_map(|(_, line)| [line, b"\n"].concat()).collect();
    (!rules.is_empty()).then(|| Sha256Hex::of(&rules))
}

/// Returns the text of a regular file, where links lead; `None` where there is none that git could read.
pub(super) fn read_rules(path: &Path) -> Result<Option<Vec<u8>>, GitError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(fd) = open(path, flags, Mode::empty()) else { return Ok(None) };
    let stat = fstat(&fd).map_err(|errno| io(path, &errno.into()))?;
    // Anything but a file, a directory or nothing was refused before.
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Ok(None);
    }
    let mut text = beneath::room_for(&stat, RULES_BYTES);
    File::from(fd).take(RULES_BYTES + 1).read_to_end(&mut text).map_err(|error| io(path, &error))?;
    if text.len() as u64 > RULES_BYTES {
        return Err(too_large(path, RULES_BYTES));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_rules_and_not_comments() {
        assert_eq!(digest_of_rules(b"# git ls-files --others\n\n  \n"), None);
        assert_eq!(digest_of_rules(b"#x\na  \r\n!b\n"), Some(Sha256Hex::of(b"a\n!b\n")));
    }

    #[test]
    fn files_of_a_home_are_no_part_of_the_repository() {
        let top = Path::new("/w");
        assert_eq!(excludes_file(top, b"/etc/x"), Some("/etc/x".into()));
        assert_eq!(excludes_file(top, b"rules"), Some("/w/rules".into()));
        assert_eq!((excludes_file(top, b"~/x"), excludes_file(top, b"")), (None, None));
    }
}
