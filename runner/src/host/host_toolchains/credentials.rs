//! Finds the credentials among the files that a step sees, and masks them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proctor_sandbox::{AccessRights, ToolKind, ToolMount};

use super::{MountSource, MountSources, ToolchainSearch, expand_home, resolve_links};
use crate::store::directory::Directory;

/// Files and directories below a home for credentials or typed input. The built-in list of tools includes none of
/// them; a directory that the operator configured may contain them.
const HOME_CREDENTIALS: [&str; 38] = [
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
const CREDENTIAL_FILE_NAMES: [&str; 6] =
    ["credentials", "credentials.toml", ".git-credentials", ".netrc", ".npmrc", ".pypirc"];

/// Settings of one version of a tool: the directory of versions below a home, and the file in each version. They
/// are masked if they contain a secret.
const VERSION_SETTINGS: [(&str, &str); 3] =
    [(".pyenv/versions", "pip.conf"), (".nvm/versions/node", "etc/npmrc"), (".volta/tools/image/node", "etc/npmrc")];

/// Settings below a home, which are masked if they contain a secret.
const HOME_SETTINGS: [&str; 11] = [
    ".cargo/config",
    ".cargo/config.toml",
    ".pyenv/.git/config",
    ".nvm/.git/config",
    ".asdf/.git/config",
    ".rbenv/.git/config",
    "miniconda3/.condarc",
    "anaconda3/.condarc",
    "miniforge3/.condarc",
    "mambaforge/.condarc",
    "micromamba/.condarc",
];

/// Returns whether a path is for credentials, or is inside such a path.
pub(super) fn is_credential(path: &Path, home: &Path) -> bool {
    let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
    HOME_CREDENTIALS.iter().any(|below| path.starts_with(home.join(below)))
}

/// Maximum size of settings that are read, in bytes.
const MAX_SETTINGS: u64 = 1 << 20;

/// Returns whether settings contain a secret. Unreadable settings count as secret.
pub(super) fn contains_secret(file: &Path) -> bool {
    read_text(file).is_none_or(|text| is_secret_text(&text))
}

/// Returns the text of a regular file. Other kinds are not opened: the owner of the home may have created an entry
/// that blocks its reader, has no end, or has side effects when it is opened.
fn read_text(file: &Path) -> Option<String> {
    let real = fs::canonicalize(file).ok()?;
    let directory = Directory::open(real.parent()?).ok()?;
    let bytes = directory.read(real.file_name()?.to_str()?, MAX_SETTINGS).ok()??;
    String::from_utf8(bytes).ok()
}

fn is_secret_text(text: &str) -> bool {
    const WORDS: [&str; 6] = ["token", "secret", "password", "credential", "_auth", "passwd"];
    let lower = text.to_ascii_lowercase();
    WORDS.iter().any(|word| lower.contains(word)) || lower.split("://").skip(1).any(starts_with_user)
}

/// Returns whether the text after `://` starts with a user, and possibly a password. The user `git` of ssh
/// addresses is not secret.
fn starts_with_user(rest: &str) -> bool {
    let host = rest.split(['/', '"', '\'', ' ', '\n']).next().unwrap_or_default();
    host.rsplit_once('@').is_some_and(|(user, _)| user != "git")
}

/// The inputs of the search for credentials.
pub(super) struct CredentialSearch<'a> {
    pub(super) search: &'a ToolchainSearch<'a>,
    /// `CARGO_HOME`, which may be in a visible directory.
    pub(super) cargo: &'a Path,
    /// The mounts.
    pub(super) sources: &'a MountSources,
}

impl CredentialSearch<'_> {
    /// Returns the masks, to be set up after the mounts that they cover. A file that the step's user cannot reach
    /// needs no mask, and a mask would reveal that it exists. Paths that we mounted with our own rights are
    /// searched with these rights.
    ///
    /// # Errors
    /// The search cannot run with the reader's rights.
    pub(super) fn masks(&self) -> io::Result<Vec<ToolMount>> {
        let mut files = self.search.with_reader_rights(|| self.find_credentials(self.search.reopen_rights()))?;
        if self.search.reopen_rights() == AccessRights::Ours {
            return Ok(self.masks_for(&files));
        }
        let own_sources: Vec<&MountSource> =
            self.sources.values().filter(|place| place.rights == AccessRights::Ours).collect();
        let is_ours = |file: &Path| own_sources.iter().any(|place| file.starts_with(&place.source));
        files.extend(self.find_credentials(AccessRights::Ours).into_iter().filter(|(file, _)| is_ours(file)));
        Ok(self.masks_for(&files))
    }

    fn masks_for(&self, files: &BTreeMap<PathBuf, FoundCredential>) -> Vec<ToolMount> {
        let seen = files.iter().flat_map(|(file, found)| self.visible_paths(file).map(move |at| (at, file, *found)));
        seen.map(|(at, file, found)| self.mask(at, file, found)).collect()
    }

    /// Returns the existing credentials, by their paths without links.
    fn find_credentials(&self, rights: AccessRights) -> BTreeMap<PathBuf, FoundCredential> {
        let files = self.candidate_paths().filter_map(|path| resolve_links(&path));
        files.map(|file| (file.clone(), FoundCredential { is_dir: file.is_dir(), rights })).collect()
    }

    fn candidate_paths(&self) -> impl Iterator<Item = PathBuf> {
        let home = self.search.home;
        let of_cargo = ["credentials", "credentials.toml"].map(|name| self.cargo.join(name));
        let named = HOME_CREDENTIALS.iter().map(|below| home.join(below)).chain(of_cargo);
        let anywhere =
            self.sources.values().flat_map(|dir| CREDENTIAL_FILE_NAMES.iter().map(|name| dir.source.join(name)));
        let settings = HOME_SETTINGS.iter().map(|below| home.join(below));
        let of_cargo = ["config", "config.toml"].map(|name| self.cargo.join(name));
        let settings = settings.chain(of_cargo).chain(VERSION_SETTINGS.iter().flat_map(|(dir, file)| {
            let versions = fs::read_dir(home.join(dir)).into_iter().flatten().flatten();
            versions.map(move |version| version.path().join(file))
        }));
        let by_operator = self.search.operator.tool_masks.iter().map(|path| expand_home(path, home));
        let of_config = self.search.operator.secret_files();
        named
            .chain(by_operator)
            .chain(of_config)
            .chain(anywhere)
            .chain(settings.filter(|path| path.exists() && contains_secret(path)))
    }

    /// Returns the paths at which a step would see a file of the host: its own path unless it is hidden, and its
    /// path in each mount that contains it.
    fn visible_paths(&self, file: &Path) -> impl Iterator<Item = PathBuf> {
        let [repo, _] = self.search.unexposed;
        let own = (!(self.search.is_hidden)(file)).then(|| file.to_owned());
        let shown = self.sources.iter().filter_map(|(at, place)| {
            let below = file.strip_prefix(&place.source).ok()?;
            Some(if below.as_os_str().is_empty() { at.clone() } else { at.join(below) })
        });
        let places: BTreeSet<PathBuf> = own.into_iter().chain(shown).filter(|at| !at.starts_with(repo)).collect();
        places.into_iter()
    }

    fn mask(&self, at: PathBuf, file: &Path, found: FoundCredential) -> ToolMount {
        let FoundCredential { is_dir, rights } = found;
        if is_dir {
            let (kind, rights) = (ToolKind::ReadOnly, AccessRights::Ours);
            return ToolMount { source: self.search.empty_dir.to_owned(), at, kind, rights };
        }
        ToolMount { source: file.to_owned(), at, kind: ToolKind::Masked, rights }
    }
}

/// A credential, and the rights with which it was found.
#[derive(Debug, Clone, Copy)]
struct FoundCredential {
    is_dir: bool,
    rights: AccessRights,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_secrets_by_words_and_url_users() {
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
        assert!(secret.iter().all(|text| is_secret_text(text)));
        assert!(!plain.iter().any(|text| is_secret_text(text)));
    }
}
