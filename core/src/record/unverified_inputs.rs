//! Unverified inputs: files that are not part of a snapshot but can be visible to the steps of a run. Git ignores them,
//! or a command has prepared them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::plan::Network;
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Maximum number of inputs that a record lists; further ones are only counted.
pub const MAX_ENTRIES: usize = 200;

/// The files at the start of a run that its steps could see and that are not part of the tree. Only
/// [`UnverifiedInputs::new`] creates this, so a truncated list always contains the copied files first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UnverifiedInputs {
    /// The first 200 inputs: those that the steps could see, then those that were left out, each sorted by path.
    pub entries: Vec<UnverifiedInput>,
    /// The number of further inputs.
    pub omitted: u64,
    /// The sha256 of the complete list as canonical JSON. If paths were mounted in addition to ignored files, the sha256 of
    /// the JSON list of the two hashes: of the ignored files, and of the mounted paths.
    pub sha256: Sha256Hex,
}

/// An ignored file, or a directory with only ignored contents or without any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnverifiedInput {
    /// The path relative to the repository. Bytes that are not UTF-8 are written as `\xNN`; a directory has no slash at
    /// its end.
    pub path: String,
    /// The type of the input.
    pub kind: InputKind,
    /// The number of files in it: 1 for a file or a symbolic link.
    pub files: u64,
    /// The total size of the files, in bytes.
    pub bytes: u64,
    /// The digest of the contents; `null` if it was not read.
    pub sha256: Option<Sha256Hex>,
    /// The sha256 of the permissions of the files in it: of a text `PERMISSIONS PATH` with a NUL byte at its end, with
    /// octal permissions, for each file whose permissions are not 644, sorted by path; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Sha256Hex>,
    /// The visibility of the input to the steps.
    pub shown: InputShown,
    /// The command that produced the input; absent if the input comes from the worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<PreparedInput>,
    /// The reason why the file was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The production of an input by the command of `prepare`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreparedInput {
    /// The command.
    pub cmd: String,
    /// The digest of everything that determines the result as far as Proctor knows: the command and its environment, the
    /// key files, the platform and the programs.
    pub key: Sha256Hex,
    /// The trust scope of the run that ran the command, as for caches.
    pub scope: String,
    /// The network access of the command.
    pub network: Network,
    /// The time at which the command ended, in UTC, RFC 3339.
    pub at: String,
}

/// The type of an unverified input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A directory with only ignored contents, or an empty one.
    Directory,
}

/// The visibility of an unverified input to the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputShown {
    /// The input was mounted for the skills that need it, because a commit does not contain it.
    Mounted,
    /// The input was copied along with the tree; the steps see the copy.
    Copied,
    /// The steps do not see the input.
    LeftOut,
}

impl UnverifiedInputs {
    /// Sorts the inputs, hashes the whole list, and keeps the first [`MAX_ENTRIES`].
    pub fn new(mut entries: Vec<UnverifiedInput>) -> Self {
        entries.sort_by(|a, b| (a.shown, &a.path).cmp(&(b.shown, &b.path)));
        let sha256 = Sha256Hex::digest(&canonical::to_vec(&entries));
        let omitted = entries.len().saturating_sub(MAX_ENTRIES) as u64;
        entries.truncate(MAX_ENTRIES);
        Self { entries, omitted, sha256 }
    }

    /// Returns the ignored files together with the paths that were mounted for skills; `None` if there are neither. The
    /// hash covers the hash of the ignored files and the list of the mounted paths.
    pub fn with_mounted(ignored: Option<Self>, mounted: Vec<UnverifiedInput>) -> Option<Self> {
        if mounted.is_empty() {
            return ignored;
        }
        let mut inputs = Self::new(mounted);
        if let Some(Self { entries, omitted, sha256 }) = ignored {
            inputs.sha256 = Sha256Hex::digest(&canonical::to_vec(&[&sha256, &inputs.sha256]));
            inputs.entries.extend(entries);
            inputs.omitted += omitted + inputs.entries.len().saturating_sub(MAX_ENTRIES) as u64;
            inputs.entries.truncate(MAX_ENTRIES);
        }
        Some(inputs)
    }

    /// Returns the listed inputs that the steps could see.
    pub fn visible(&self) -> impl Iterator<Item = &UnverifiedInput> {
        self.entries.iter().filter(|entry| entry.shown != InputShown::LeftOut)
    }

    /// Returns the number of inputs that are not listed and that the steps may have seen.
    pub fn omitted_visible(&self) -> u64 {
        // Visible inputs come first, so if the last listed input was left out, all further ones were as well.
        let ends_visible = self.entries.last().is_none_or(|entry| entry.shown != InputShown::LeftOut);
        if ends_visible { self.omitted } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn input(path: &str, shown: InputShown) -> UnverifiedInput {
        UnverifiedInput {
            path: path.into(),
            kind: InputKind::Directory,
            files: 2,
            bytes: 7,
            sha256: (shown == InputShown::Copied).then(|| Sha256Hex::digest(b"content")),
            permissions: None,
            shown,
            prepared: None,
            reason: (shown == InputShown::LeftOut).then(|| "too large".into()),
        }
    }

    fn paths(inputs: &UnverifiedInputs) -> Vec<&str> {
        inputs.entries.iter().map(|entry| entry.path.as_str()).collect()
    }

    #[test]
    fn lists_copied_inputs_first_and_in_order() {
        let (copied, left_out) = (InputShown::Copied, InputShown::LeftOut);
        let all = vec![input("a", left_out), input("node_modules", copied), input(".env", copied)];
        let inputs = UnverifiedInputs::new(all.clone());
        assert_eq!(paths(&inputs), [".env", "node_modules", "a"]);
        assert_eq!((inputs.visible().count(), inputs.omitted, inputs.omitted_visible()), (2, 0, 0));
        let reversed = UnverifiedInputs::new(all.into_iter().rev().collect());
        assert_eq!(reversed, inputs);
    }

    #[test]
    fn mounted_inputs_are_visible() {
        let inputs = UnverifiedInputs::new(vec![input("x", InputShown::LeftOut), input("y", InputShown::Mounted)]);
        assert_eq!((paths(&inputs), inputs.visible().count()), (vec!["y", "x"], 1));
        assert_eq!(UnverifiedInputs::new(vec![input("y", InputShown::Mounted)]).omitted_visible(), 0);
    }

    #[test]
    fn combines_ignored_files_and_mounted_paths() {
        let mounted = || vec![input("node_modules", InputShown::Mounted)];
        let ignored = UnverifiedInputs::new(vec![input("a", InputShown::Copied), input("b", InputShown::LeftOut)]);
        assert_eq!(UnverifiedInputs::with_mounted(None, vec![]), None);
        assert_eq!(UnverifiedInputs::with_mounted(Some(ignored.clone()), vec![]), Some(ignored.clone()));
        assert_eq!(UnverifiedInputs::with_mounted(None, mounted()), Some(UnverifiedInputs::new(mounted())));
        let both = UnverifiedInputs::with_mounted(Some(ignored.clone()), mounted()).expect("both");
        assert_eq!((paths(&both), both.omitted), (vec!["node_modules", "a", "b"], 0));
        let other = UnverifiedInputs::with_mounted(Some(ignored.clone()), vec![input("x", InputShown::Mounted)]);
        assert!(both.sha256 != ignored.sha256 && Some(both.sha256) != other.map(|other| other.sha256));
        let many = (0..MAX_ENTRIES).map(|number| input(&format!("f{number:03}"), InputShown::Copied)).collect();
        let both = UnverifiedInputs::with_mounted(Some(UnverifiedInputs::new(many)), mounted()).expect("both");
        assert_eq!((both.entries.len(), both.omitted, both.entries[0].path.as_str()), (MAX_ENTRIES, 1, "node_modules"));
    }

    #[test]
    fn limits_list_and_hashes_all_inputs() {
        let many = |shown, count: usize| (0..count).map(move |number| input(&format!("f{number:03}"), shown));
        let all = |last: &str| {
            let others = many(InputShown::Copied, MAX_ENTRIES + 2);
            UnverifiedInputs::new(others.chain([input(last, InputShown::LeftOut)]).collect())
        };
        let inputs = all("x");
        assert_eq!((inputs.entries.len(), inputs.omitted, inputs.omitted_visible()), (MAX_ENTRIES, 3, 3));
        assert_eq!(all("y").entries, inputs.entries);
        assert_ne!(all("y").sha256, inputs.sha256, "an omitted input counts too");
        let mixed = many(InputShown::LeftOut, MAX_ENTRIES).chain([input("z", InputShown::Copied)]);
        let mixed = UnverifiedInputs::new(mixed.collect());
        assert_eq!((mixed.visible().count(), mixed.omitted, mixed.omitted_visible()), (1, 1, 0));
    }

    #[test]
    fn hashes_the_entries_as_canonical_json() {
        let inputs = UnverifiedInputs::new(vec![input("a", InputShown::Copied)]);
        let json = serde_json::to_value(&inputs).expect("writes");
        let entry = json!({
            "path": "a", "kind": "directory", "files": 2, "bytes": 7, "sha256": Sha256Hex::digest(b"content"),
            "shown": "copied",
        });
        assert_eq!(json["entries"], json!([entry]));
        assert_eq!(inputs.sha256, Sha256Hex::digest(&canonical::to_vec(&json["entries"])));
        assert_eq!(serde_json::from_value::<UnverifiedInputs>(json).expect("reads"), inputs);
    }
}
