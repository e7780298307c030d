//! Finds the credentials among the files that a step sees, and masks them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proctor_sandbox::{Rights, ToolKind, ToolMount};

use super::{Look, Place, Places, expand, resolved};
use crate::store::directory::Directory;

/// Files and directories below a home for credentials or typed input. The built-in list of tools includes none of
/// them; a directory that the operator configured may contain them.
const BELOW_HOME: [&str; 38] = [
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".composer/auth.json",
    ".config/composer/auth.json",
    ".config/containers/auth.json",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/hub",
    ".config/op",
    ".config/pip",
    ".config/rclone",
    ".docker/config.json",
    ".gem/credentials",
    ".git-credentials",
    ".gnupg",
    ".gradle/gradle.properties",
    ".kube",
    ".local/share/keyrings",
    ".local/share/uv/credentials",
    ".m2/settings-security.xml",
    ".m2/settings.xml",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".nuget/NuGet/NuGet.Config",
    ".password-store",
    ".pip/pip.conf",
    ".pypirc",
    ".python_history",
    ".ssh",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".yarnrc.yml",
    ".zsh_history",
];

/// Files that hold credentials in the top level of any mounted directory.
const ANYWHERE: [&str; 6] = ["credentials", "credentials.toml", ".git-credentials", ".netrc", ".npmrc", ".pypirc"];

/// Settings of one version of a tool: the directory of versions below a home, and the file in each version. They
/// are masked if they contain a secret.
const OF_VERSIONS: [(&str, &str); 3] =
    [(".pyenv/versions", "pip.conf"), (".nvm/versions/node", "etc/npmrc"), (".volta/tools/image/node", "etc/npmrc")];

/// Settings below a home, which are masked if they contain a secret.
const SETTINGS: [&str; 4] = [".cargo/config", ".cargo/config.toml", ".pyenv/.git/config", ".nvm/.git/config"];

/// Returns whether a path is for credentials, or is inside such a path.
pub(super) fn is_credential(path: &Path, home: &Path) -> bool {
    let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
    BELOW_HOME.iter().any(|below| path.starts_with(home.join(below)))
}

/// Maximum size of settings that are read, in bytes.
const MAX_SETTINGS: u64 = 1 << 20;

/// Returns whether settings contain a secret. Unreadable settings count as secret.
pub(super) fn holds_secret(file: &Path) -> bool {
    text_of(file).is_none_or(|text| tells_secret(&text))
}

/// Returns the text of a regular file. Other kinds are not opened: the owner of the home may have created an entry
/// that blocks its reader, has no end, or has side effects when it is opened.
fn text_of(file: &Path) -> Option<String> {
    let real = fs::canonicalize(file).ok()?;
    let directory = Directory::open(real.parent()?).ok()?;
    let bytes = directory.read(real.file_name()?.to_str()?, MAX_SETTINGS).ok()??;
    String::from_utf8(bytes).ok()
}

fn tells_secret(text: &str) -> bool {
    const WORDS: [&str; 6] = ["token", "secret", "password", "credential", "_auth", "passwd"];
    let lower = text.to_ascii_lowercase();
    WORDS.iter().any(|word| lower.contains(word)) || lower.split("://").skip(1).any(names_user)
}

/// Returns whether the text after `://` starts with a user, and possibly a password. The user `git` of ssh
/// addresses is not secret.
fn names_user(rest: &str) -> bool {
    let host = rest.split(['/', '"', '\'', ' ', '\n']).next().unwrap_or_default();
    host.rsplit_once('@').is_some_and(|(user, _)| user != "git")
}

/// The inputs of the search for credentials.
pub(super) struct Credentials<'a> {
    pub(super) look: &'a Look<'a>,
    /// `CARGO_HOME`, which may be in a visible directory.
    pub(super) cargo: &'a Path,
    /// The mounts.
    pub(super) places: &'a Places,
}

impl Credentials<'_> {
    /// Returns the masks, to be set up after the mounts that they cover. A file that the step's user cannot reach
    /// needs no mask, and a mask would reveal that it exists. Paths that we mounted with our own rights are
    /// searched with these rights.
    ///
    /// # Errors
    /// The search cannot run with the reader's rights.
    pub(super) fn masks(&self) -> io::Result<Vec<ToolMount>> {
        let mut files = self.look.as_reader(|| self.found(self.look.rights()))?;
        if self.look.rights() == Rights::Ours {
            return Ok(self.masks_of(&files));
        }
        let by_us: Vec<&Place> = self.places.values().filter(|place| place.rights == Rights::Ours).collect();
        let is_ours = |file: &Path| by_us.iter().any(|place| file.starts_with(&place.source));
        files.extend(self.found(Rights::Ours).into_iter().filter(|(file, _)| is_ours(file)));
        Ok(self.masks_of(&files))
    }

    fn masks_of(&self, files: &BTreeMap<PathBuf, Found>) -> Vec<ToolMount> {
        let seen = files.iter().flat_map(|(file, found)| self.seen_at(file).map(move |at| (at, file, *found)));
        seen.map(|(at, file, found)| self.mask(at, file, found)).collect()
    }

    /// Returns the existing credentials, by their paths without links.
    fn found(&self, rights: Rights) -> BTreeMap<PathBuf, Found> {
        let files = self.secrets().filter_map(|path| resolved(&path));
        files.map(|file| (file.clone(), Found { is_dir: file.is_dir(), rights })).collect()
    }

    fn secrets(&self) -> impl Iterator<Item = PathBuf> {
        let home = self.look.home;
        let of_cargo = ["credentials", "credentials.toml"].map(|name| self.cargo.join(name));
        let named = BELOW_HOME.iter().map(|below| home.join(below)).chain(of_cargo);
        let anywhere = self.places.values().flat_map(|dir| ANYWHERE.iter().map(|name| dir.source.join(name)));
        let settings = SETTINGS.iter().map(|below| home.join(below));
        let of_cargo = ["config", "config.toml"].map(|name| self.cargo.join(name));
        let settings = settings.chain(of_cargo).chain(OF_VERSIONS.iter().flat_map(|(dir, file)| {
            let versions = fs::read_dir(home.join(dir)).into_iter().flatten().flatten();
            versions.map(move |version| version.path().join(file))
        }));
        let by_operator = self.look.operator.tool_masks.iter().map(|path| expand(path, home));
        named.chain(by_operator).chain(anywhere).chain(settings.filter(|path| path.exists() && holds_secret(path)))
    }

    /// Returns the paths at which a step would see a file of the host: its own path unless it is hidden, and its
    /// path in each mount that contains it.
    fn seen_at(&self, file: &Path) -> impl Iterator<Item = PathBuf> {
        let [repo, _] = self.look.kept;
        let own = (!(self.look.is_hidden)(file)).then(|| file.to_owned());
        let shown = self.places.iter().filter_map(|(at, place)| {
            let below = file.strip_prefix(&place.source).ok()?;
            Some(if below.as_os_str().is_empty() { at.clone() } else { at.join(below) })
        });
        let places: BTreeSet<PathBuf> = own.into_iter().chain(shown).filter(|at| !at.starts_with(repo)).collect();
        places.into_iter()
    }

    fn mask(&self, at: PathBuf, file: &Path, found: Found) -> ToolMount {
        let Found { is_dir, rights } = found;
        if is_dir {
            let (kind, rights) = (ToolKind::ReadOnly, Rights::Ours);
            return ToolMount { source: self.look.empty.to_owned(), at, kind, rights };
        }
        ToolMount { source: file.to_owned(), at, kind: ToolKind::Masked, rights }
    }
}

/// A credential, and the rights with which it was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    is_dir: bool,
    rights: Rights,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_told_by_words_and_by_users_in_addresses() {
        let secret = [
            "//registry.example/:_authToken=abc",
            "_auth=abc",
            "index-url = https://user:pass@example.org/simple",
            "url = https://ghp_abc@example.org/x.git",
            "[registry]\ntoken = 'x'",
        ];
        let plain = [
            "registry=https://registry.example.org/",
            "url = ssh://git@example.org/x.git",
            "[source.a]\nregistry = \"https://example.org/a@b\"",
            "prefix=~/.npm-global",
        ];
        assert!(secret.iter().all(|text| tells_secret(text)));
        assert!(!plain.iter().any(|text| tells_secret(text)));
    }
}
