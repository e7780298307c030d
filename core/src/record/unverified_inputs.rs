//! Unverified inputs: files that git ignores, which are not part of a snapshot but can be visible to the steps of a
//! run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Maximum number of inputs that a record lists; further ones are only counted.
pub const MAX_ENTRIES: usize = 200;

/// The ignored files of a worktree at the start of a run. Only [`UnverifiedInputs::new`] creates this, so a
/// truncated list always contains the copied files first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UnverifiedInputs {
    /// The first 200 inputs: those that were copied, then those that were left out, each sorted by path.
    pub entries: Vec<UnverifiedInput>,
    /// The number of further inputs.
    pub omitted: u64,
    /// The sha256 of the complete list as canonical JSON.
    pub sha256: Sha256Hex,
}

/// An ignored file, or a directory with only ignored contents.
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
    /// The sum of their sizes, in bytes.
    pub bytes: u64,
    /// The digest of the contents; `null` if it was not read.
    pub sha256: Option<Sha256Hex>,
    /// The visibility of the input to the steps.
    pub shown: InputShown,
    /// The reason why it was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The type of an unverified input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A directory with only ignored contents.
    Directory,
}

/// The visibility of an unverified input to the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InputShown {
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

    /// Returns the listed inputs that the steps could see.
    pub fn copied(&self) -> impl Iterator<Item = &UnverifiedInput> {
        self.entries.iter().filter(|entry| entry.shown == InputShown::Copied)
    }

    /// Returns the number of inputs that are not listed and that the steps may have seen.
    pub fn omitted_copied(&self) -> u64 {
        // Copied inputs come first, so if the last listed input was left out, all further ones were as well.
        let ends_copied = self.entries.last().is_none_or(|entry| entry.shown == InputShown::Copied);
        if ends_copied { self.omitted } else { 0 }
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
            shown,
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
        assert_eq!((inputs.copied().count(), inputs.omitted, inputs.omitted_copied()), (2, 0, 0));
        let reversed = UnverifiedInputs::new(all.into_iter().rev().collect());
        assert_eq!(reversed, inputs);
    }

    #[test]
    fn limits_list_and_hashes_all_inputs() {
        let many = |shown, count: usize| (0..count).map(move |number| input(&format!("f{number:03}"), shown));
        let all = |last: &str| {
            let others = many(InputShown::Copied, MAX_ENTRIES + 2);
            UnverifiedInputs::new(others.chain([input(last, InputShown::LeftOut)]).collect())
        };
        let inputs = all("x");
        assert_eq!((inputs.entries.len(), inputs.omitted, inputs.omitted_copied()), (MAX_ENTRIES, 3, 3));
        assert_eq!(all("y").entries, inputs.entries);
        assert_ne!(all("y").sha256, inputs.sha256, "an omitted input counts too");
        let mixed = many(InputShown::LeftOut, MAX_ENTRIES).chain([input("z", InputShown::Copied)]);
        let mixed = UnverifiedInputs::new(mixed.collect());
        assert_eq!((mixed.copied().count(), mixed.omitted, mixed.omitted_copied()), (1, 1, 0));
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
