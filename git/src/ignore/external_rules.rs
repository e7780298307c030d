//! Reads the ignore rules outside the tree: `info/exclude`, and the file named by `core.excludesFile` in the
//! repository's own config.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use proctor_core::model::drift::display_path;
use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{Mode, OFlags, fstat, open};
use serde::{Deserialize, Serialize};

use crate::config::bounded_read::{RULES_BYTES, io_error, too_large_error};
use crate::error::GitError;
use crate::files::read_beneath;
use crate::ignore::ignore_pattern::rule_lines;
use crate::repository::open_repository::{OpenRepository, libgit2_error};

/// A file or setting outside a tree that affects which paths are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalRules {
    /// The kind: `info/exclude`, `core.excludesFile` or `core.ignoreCase`. For a repository inside the tree, its path
    /// and a colon precede the kind.
    pub name: String,
    /// The file that contains the rules or the setting.
    pub file: PathBuf,
    /// The sha256 of the rules: each line that contains a rule, after git's trimming, with a line feed.
    pub rules_sha256: Sha256Hex,
}

/// Maximum number of named entries; the remaining ones are combined into one entry.
const MAX_NAMED: usize = 256;

impl ExternalRules {
    /// Prefixes the name with the path of a repository inside the outermost work tree.
    pub(crate) fn with_prefix(self, prefix: &[u8]) -> Self {
        match prefix {
            b"" => self,
            _ => Self { name: format!("{}: {}", display_path(prefix), self.name), ..self },
        }
    }

    /// Sorts the entries by name, and combines those beyond the bound.
    pub(crate) fn sort_and_combine(mut all: Vec<Self>, worktree: &Path) -> Vec<Self> {
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if all.len() > MAX_NAMED {
            let others = all.split_off(MAX_NAMED);
            let text: String = others.iter().map(|other| format!("{}\n{}\n", other.name, other.rules_sha256)).collect();
            let rules_sha256 = Sha256Hex::digest(text.as_bytes());
            all.push(Self { name: "other repositories".to_owned(), file: worktree.to_owned(), rules_sha256 });
        }
        all
    }
}

/// The rules outside the tree of one repository.
pub(crate) struct ExternalRuleFiles {
    /// The files and their texts, in ascending order of precedence.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    /// The value of `core.ignoreCase`.
    pub(crate) folds_case: bool,
    /// The files and settings that contain rules.
    pub(crate) rules: Vec<ExternalRules>,
}

/// Reads the rules of a repository outside its tree.
pub(crate) fn read_external_rules(opened: &OpenRepository) -> Result<ExternalRuleFiles, GitError> {
    let failed = |error: git2::Error| libgit2_error(&opened.worktree, &error);
    let config = opened.repository.config().and_then(|mut config| config.snapshot()).map_err(failed)?;
    let excludes = config.get_bytes("core.excludesfile").ok().and_then(|path| excludes_file(&opened.worktree, path));
    let folds_case = config.get_bool("core.ignorecase").unwrap_or(false);
    let named = [(EXCLUDES_FILE, excludes), (INFO_EXCLUDE, Some(opened.common_dir.join(INFO_EXCLUDE)))];
    let mut found = ExternalRuleFiles { files: Vec::new(), folds_case, rules: Vec::new() };
    for (name, file) in named {
        let Some(file) = file else { continue };
        let Some(text) = read_rules(&file)? else { continue };
        found.rules.extend(external_rule(name, &file, &text));
        found.files.push((file, text));
    }
    if folds_case {
        found.rules.extend(external_rule(IGNORE_CASE, &opened.common_dir.join("config"), FOLDS_CASE));
    }
    Ok(found)
}

pub(crate) const EXCLUDES_FILE: &str = "core.excludesFile";
pub(crate) const INFO_EXCLUDE: &str = "info/exclude";
pub(crate) const IGNORE_CASE: &str = "core.ignoreCase";
/// The text that is hashed if `core.ignoreCase` is set.
pub(crate) const FOLDS_CASE: &[u8] = b"true\n";

/// Makes the entry for a file or setting; returns `None` if its text contains no rules.
pub(crate) fn external_rule(name: &str, file: &Path, text: &[u8]) -> Option<ExternalRules> {
    let rules_sha256 = rules_digest(text)?;
    Some(ExternalRules { name: name.to_owned(), file: file.to_owned(), rules_sha256 })
}

/// Returns the path of a `core.excludesFile`. Returns `None` if it is in a user's home or in git's installation,
/// since these are not part of the repository.
fn excludes_file(worktree: &Path, value: &[u8]) -> Option<PathBuf> {
    let is_elsewhere = value.is_empty() || value.starts_with(b"~") || value.starts_with(b"%(prefix)");
    (!is_elsewhere).then(|| worktree.join(OsStr::from_bytes(value)))
}

/// Returns the sha256 of the rules in the text of a file, or `None` if it contains no rules.
fn rules_digest(text: &[u8]) -> Option<Sha256Hex> {
    let rules: Vec<u8> = rule_lines(text).flat_map(|(_, line)| [line, b"\n"].concat()).collect();
    (!rules.is_empty()).then(|| Sha256Hex::digest(&rules))
}

/// Reads a regular file, following links. Returns `None` if there is no file that git could read.
pub(crate) fn read_rules(path: &Path) -> Result<Option<Vec<u8>>, GitError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(fd) = open(path, flags, Mode::empty()) else { return Ok(None) };
    let stat = fstat(&fd).map_err(|errno| io_error(path, &errno.into()))?;
    // All types except regular files and directories were refused before.
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Ok(None);
    }
    let mut text = read_beneath::content_buffer(&stat, RULES_BYTES);
    File::from(fd).take(RULES_BYTES + 1).read_to_end(&mut text).map_err(|error| io_error(path, &error))?;
    if text.len() as u64 > RULES_BYTES {
        return Err(too_large_error(path, RULES_BYTES));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_rules_and_not_comments() {
        assert_eq!(rules_digest(b"# git ls-files --others\n\n  \n"), None);
        assert_eq!(rules_digest(b"#x\na  \r\n!b\n"), Some(Sha256Hex::digest(b"a\n!b\n")));
    }

    #[test]
    fn excludes_files_in_home_directories() {
        let top = Path::new("/w");
        assert_eq!(excludes_file(top, b"/etc/x"), Some("/etc/x".into()));
        assert_eq!(excludes_file(top, b"rules"), Some("/w/rules".into()));
        assert_eq!((excludes_file(top, b"~/x"), excludes_file(top, b"")), (None, None));
    }
}
