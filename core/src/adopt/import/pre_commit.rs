//! Imports `.pre-commit-config.yaml`: its repositories and hooks.

mod hook;

use super::config_map::{ConfigMap, ConfigMapError, scalar_text};
use super::import_draft::HookConversion;
use super::path_pattern::PathPattern;
use super::rejection::HookError;
use crate::adopt::import::import_result::{Setting, wrong_type};
use crate::spec::diagnostic_collector::DiagnosticCollector;
use crate::spec::quoted;
use crate::spec::yaml::Node;
use hook::PreCommitHook;

/// Settings of the configuration for all hooks.
#[derive(Debug)]
pub(super) struct PreCommitSettings {
    /// Pattern that must match a path; `Err` if it has no equivalent.
    files: Option<Result<PathPattern, HookError>>,
    /// Pattern that must not match a path.
    exclude: Option<Result<PathPattern, HookError>>,
    /// The stages of hooks that set none.
    stages: Result<Option<Vec<String>>, ConfigMapError>,
    /// The environment in which the tools of the hooks run.
    environment: ToolEnvironment,
}

/// The environment in which the tool of a hook runs as a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolEnvironment {
    /// The programs of the machine, without the additional dependencies of a hook.
    Machine,
    /// The environment of the project, with the dependencies of its code.
    Project,
}

/// The reason why an entry of `repos` cannot be read.
#[derive(Debug, thiserror::Error)]
enum RepoEntryError {
    #[error(transparent)]
    Config(#[from] ConfigMapError),
    /// The entry is not a map.
    #[error("a repository is a map")]
    NotMap,
    /// A required key is missing.
    #[error("a repository has the key `{0}`")]
    MissingKey(&'static str),
}

/// Reads the configuration, whose source is `bytes`. Returns `None` if it has no usable shape; problems go to `report`.
pub(super) fn read(
    bytes: &[u8],
    root: &Node<'_>,
    environment: ToolEnvironment,
    report: &mut DiagnosticCollector,
) -> Option<(Vec<HookConversion>, Vec<Setting>)> {
    let Some(map) = ConfigMap::from_node(root) else {
        report.add(wrong_type(root, "a map with the key `repos` is expected"));
        return None;
    };
    let repos = match map.list("repos") {
        Ok(Some(repos)) => repos,
        Ok(None) => {
            report.add(wrong_type(root, "there is no key `repos`, so this is not a configuration of pre-commit"));
            return None;
        }
        Err(problem) => {
            report.add(wrong_type(map.get("repos").unwrap_or(root), problem.to_string()));
            return None;
        }
    };
    let common = PreCommitSettings::from_map(&map, environment);
    let mut items = Vec::new();
    for repo in repos {
        match read_repo(bytes, repo) {
            Ok((address, rev, hooks)) => {
                items.extend(hooks.iter().map(|hook| PreCommitHook::convert(hook, &address, rev.as_ref(), &common)));
            }
            Err(problem) => report.add(wrong_type(repo, problem.to_string())),
        }
    }
    Some((items, setting_notes(&map)))
}

/// The revision that a repository is pinned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revision {
    /// The value of `rev`: a tag, a branch or a commit id.
    text: String,
    /// The tag that `pre-commit autoupdate --freeze` or `prek autoupdate --freeze` noted in a comment next to the
    /// commit id.
    frozen_tag: Option<String>,
}

impl Revision {
    /// Returns the revision at `node`, with the frozen tag from the comment on the same line.
    fn from_node(bytes: &[u8], node: &Node<'_>) -> Option<Self> {
        Some(Self { text: scalar_text(node)?.to_owned(), frozen_tag: frozen_tag(bytes, node.span.end) })
    }

    /// Returns the name that contains the version: the frozen tag if there is one, otherwise the revision as
    /// written.
    pub(super) fn tag(&self) -> &str {
        self.frozen_tag.as_deref().unwrap_or(&self.text)
    }
}

/// Returns the tag in a comment `# frozen: TAG` between byte `end` and the end of its line.
fn frozen_tag(bytes: &[u8], end: u32) -> Option<String> {
    let rest = bytes.get(usize::try_from(end).ok()?..)?;
    let line = std::str::from_utf8(rest.split(|byte| *byte == b'\n').next()?).ok()?;
    let (_, comment) = line.split_once('#')?;
    comment.trim().strip_prefix("frozen:")?.split_whitespace().next().map(str::to_owned)
}

/// Returns a repository's address, its `rev`, and its hooks.
fn read_repo<'t, 'a>(
    bytes: &[u8],
    repo: &'t Node<'a>,
) -> Result<(String, Option<Revision>, &'t [Node<'a>]), RepoEntryError> {
    let map = ConfigMap::from_node(repo).ok_or(RepoEntryError::NotMap)?;
    let address = map.text("repo")?.ok_or(RepoEntryError::MissingKey("repo"))?.to_owned();
    let hooks = map.list("hooks")?.ok_or(RepoEntryError::MissingKey("hooks"))?;
    Ok((address, map.get("rev").and_then(|node| Revision::from_node(bytes, node)), hooks))
}

impl PreCommitSettings {
    fn from_map(map: &ConfigMap<'_, '_>, environment: ToolEnvironment) -> Self {
        let pattern = |key| match map.text(key) {
            Ok(text) => {
                let pattern = PathPattern::from_python_regex(text?);
                Some(pattern.map_err(|source| HookError::CommonPattern { key, source }))
            }
            Err(source) => Some(Err(HookError::CommonPatternType { key, source })),
        };
        let stages = map.texts("default_stages").map(|stages| stages.map(to_owned_strings));
        Self { files: pattern("files"), exclude: pattern("exclude"), stages, environment }
    }
}

fn to_owned_strings(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// Returns the top-level settings other than hooks, each with a note for the user.
fn setting_notes(map: &ConfigMap<'_, '_>) -> Vec<Setting> {
    let note = |key: &str| match key {
        "repos" | "files" | "exclude" | "default_stages" => None,
        "fail_fast" => Some("`proctor run --fail-fast` stops after the first failure".to_owned()),
        "minimum_pre_commit_version" => Some("a run does not use pre-commit".to_owned()),
        "default_language_version" => {
            Some("tools are those of the machine; a toolchain check can demand a version".to_owned())
        }
        "default_install_hook_types" => Some("`proctor hook install` installs git hooks".to_owned()),
        "ci" => Some("settings of pre-commit.ci".to_owned()),
        key => Some(format!("the key {} is unknown", quoted(key))),
    };
    map.iter().filter_map(|(key, _)| Some(Setting { key: key.to_owned(), note: note(key)? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_frozen_tag_from_comment() {
        let cases = [
            ("rev: c60c980e  # frozen: v0.15.9\n", Some("v0.15.9")),
            ("rev: c60c980e # frozen: v0.15.9 by autoupdate\nrev: x", Some("v0.15.9")),
            ("rev: c60c980e #frozen:   2.0", Some("2.0")),
            ("rev: c60c980e # pinned: v0.15.9\n", None),
            ("rev: c60c980e # frozen:\n", None),
            ("rev: c60c980e\n# frozen: v0.15.9\n", None),
        ];
        for (text, expected) in cases {
            assert_eq!(frozen_tag(text.as_bytes(), 13).as_deref(), expected, "{text}");
        }
        assert_eq!(frozen_tag(b"x", 9), None);
    }
}
