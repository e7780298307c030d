//! Imports `.pre-commit-config.yaml`: its repositories and hooks.

mod hook;

use super::config::{Map, scalar};
use super::draft::Item;
use super::pattern::Pattern;
use super::{Setting, misshapen};
use crate::spec::quoted;
use crate::spec::report::Report;
use crate::spec::yaml::Node;
use hook::Hook;

/// Settings of the configuration for all hooks.
#[derive(Debug)]
pub(super) struct Common {
    /// Pattern that must match a path; `Err` if it has no equivalent.
    keep: Option<Result<Pattern, String>>,
    /// Pattern that must not match a path.
    drop: Option<Result<Pattern, String>>,
    /// The stages of hooks that set none.
    stages: Result<Option<Vec<String>>, String>,
}

/// Reads the configuration, whose source is `bytes`. Returns `None` if it has no usable shape; problems go to `report`.
pub(super) fn read(bytes: &[u8], root: &Node<'_>, report: &mut Report) -> Option<(Vec<Item>, Vec<Setting>)> {
    let Some(map) = Map::of(root) else {
        report.add(misshapen(root, "a map with the key `repos` is expected"));
        return None;
    };
    let repos = match map.list("repos") {
        Ok(Some(repos)) => repos,
        Ok(None) => {
            report.add(misshapen(root, "there is no key `repos`, so this is no configuration of pre-commit"));
            return None;
        }
        Err(problem) => {
            report.add(misshapen(map.get("repos").unwrap_or(root), problem));
            return None;
        }
    };
    let common = Common::of(&map);
    let mut items = Vec::new();
    for repo in repos {
        match hooks(bytes, repo) {
            Ok((address, rev, hooks)) => {
                items.extend(hooks.iter().map(|hook| Hook::item(hook, &address, rev.as_ref(), &common)));
            }
            Err(problem) => report.add(misshapen(repo, problem)),
        }
    }
    Some((items, settings(&map)))
}

/// The revision that a repository is pinned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revision {
    /// The value of `rev`: a tag, a branch or a commit id.
    text: String,
    /// The tag that `pre-commit autoupdate --freeze` or `prek autoupdate --freeze` noted in a comment next to the
    /// commit id.
    frozen: Option<String>,
}

impl Revision {
    /// Returns the revision at `node`, with the frozen tag from the comment on the same line.
    fn read(bytes: &[u8], node: &Node<'_>) -> Option<Self> {
        Some(Self { text: scalar(node)?.to_owned(), frozen: frozen_tag(bytes, node.span.end) })
    }

    /// Returns the name that contains the version: the frozen tag if there is one, otherwise the revision as
    /// written.
    pub(super) fn tag(&self) -> &str {
        self.frozen.as_deref().unwrap_or(&self.text)
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
fn hooks<'t, 'a>(bytes: &[u8], repo: &'t Node<'a>) -> Result<(String, Option<Revision>, &'t [Node<'a>]), String> {
    let map = Map::of(repo).ok_or("a repository is a map")?;
    let address = map.text("repo")?.ok_or("a repository has the key `repo`")?.to_owned();
    let hooks = map.list("hooks")?.ok_or("a repository has the key `hooks`")?;
    Ok((address, map.get("rev").and_then(|node| Revision::read(bytes, node)), hooks))
}

impl Common {
    fn of(map: &Map<'_, '_>) -> Self {
        let pattern = |key: &str| match map.text(key) {
            Ok(text) => text.map(Pattern::python),
            Err(problem) => Some(Err(problem)),
        };
        let stages = map.texts("default_stages").map(|stages| stages.map(owned));
        Self { keep: pattern("files"), drop: pattern("exclude"), stages }
    }
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// Returns the top-level settings other than hooks, each with a note for the user.
fn settings(map: &Map<'_, '_>) -> Vec<Setting> {
    let note = |key: &str| match key {
        "repos" | "files" | "exclude" | "default_stages" => None,
        "fail_fast" => Some("`proctor run --fail-fast` stops after the first that fails".to_owned()),
        "minimum_pre_commit_version" => Some("pre-commit takes no part in a run".to_owned()),
        "default_language_version" => {
            Some("tools are those of the machine; a toolchain check can demand a version".to_owned())
        }
        "default_install_hook_types" => Some("`proctor hook install` puts hooks of git in place".to_owned()),
        "ci" => Some("settings of pre-commit.ci".to_owned()),
        key => Some(format!("the key {} is not known here", quoted(key))),
    };
    map.iter().filter_map(|(key, _)| Some(Setting { key: key.to_owned(), note: note(key)? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_revision_keeps_the_tag_of_its_comment() {
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
