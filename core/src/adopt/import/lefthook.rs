//! Imports `lefthook.yml`: its hooks, and the jobs, commands and scripts of each.

mod job;
mod job_command;

use super::config_map::{ConfigMap, ConfigMapError, scalar_text};
use super::import_draft::HookConversion;
use super::path_pattern::GlobDialect;
use super::rejection::JobError;
use crate::adopt::import::import_result::{Setting, wrong_type};
use crate::spec::diagnostic_collector::DiagnosticCollector;
use crate::spec::quoted;
use crate::spec::yaml::Node;
use job::JobScope;

/// The git hooks that check files.
const FILE_HOOKS: [&str; 3] = ["pre-commit", "pre-merge-commit", "pre-push"];
/// The other git hooks.
const OTHER_HOOKS: [&str; 25] = [
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];
/// The keys of a hook that contain its jobs.
const JOB_KEYS: [&str; 3] = ["jobs", "commands", "scripts"];
/// The other keys of a hook.
const HOOK_KEYS: [&str; 10] = [
    "parallel",
    "piped",
    "follow",
    "fail_on_changes",
    "fail_on_changes_diff",
    "files",
    "exclude_tags",
    "exclude",
    "skip",
    "only",
];

/// Settings of the configuration for all hooks.
#[derive(Debug)]
pub(super) struct LefthookSettings<'t> {
    glob_dialect: GlobDialect,
    source_dir: &'t str,
    /// Replacement texts for `{name}` in a command.
    templates: Vec<(&'t str, &'t str)>,
}

/// A setting of the configuration, or of one of its hooks, that cannot be read.
#[derive(Debug, thiserror::Error)]
enum LefthookError {
    #[error(transparent)]
    Config(#[from] ConfigMapError),
    /// The dialect of the globs is unknown.
    #[error("`glob_matcher` is {}, which is unknown", quoted(.name))]
    UnknownGlobMatcher { name: String },
    /// The priority of a job is not a number.
    #[error("a `priority` is {}", quoted(.text))]
    InvalidPriority { text: String },
}

/// Returns whether a key is the name of a git hook.
pub(super) fn is_git_hook(key: &str) -> bool {
    FILE_HOOKS.contains(&key) || OTHER_HOOKS.contains(&key)
}

/// Reads the configuration. Returns `None` if it has no usable shape; problems go to `report`.
pub(super) fn read(root: &Node<'_>, report: &mut DiagnosticCollector) -> Option<(Vec<HookConversion>, Vec<Setting>)> {
    let Some(map) = ConfigMap::from_node(root) else {
        report.add(wrong_type(root, "a map of hooks is expected"));
        return None;
    };
    let common = match LefthookSettings::from_map(&map) {
        Ok(common) => common,
        Err(problem) => {
            report.add(wrong_type(root, problem.to_string()));
            return None;
        }
    };
    let (mut items, mut settings) = (Vec::new(), Vec::new());
    for (key, node) in map.iter().filter(|(_, node)| !node.is_null()) {
        let hook = ConfigMap::from_node(node)
            .filter(|hook| is_git_hook(key) || JOB_KEYS.iter().any(|jobs| hook.get(jobs).is_some()));
        match hook {
            Some(hook) => match convert_hook(key, &hook, &common, items.len()) {
                Ok((more, hook_settings)) => {
                    items.extend(more);
                    settings.extend(hook_settings);
                }
                Err(problem) => report.add(wrong_type(node, problem.to_string())),
            },
            None if is_git_hook(key) => report.add(wrong_type(node, format!("the hook `{key}` is not a map"))),
            None => settings.extend(setting_note(key, node)),
        }
    }
    Some((items, settings))
}

impl<'t> LefthookSettings<'t> {
    fn from_map(map: &ConfigMap<'t, '_>) -> Result<Self, LefthookError> {
        let globs = match map.text("glob_matcher")? {
            None | Some("gobwas") => GlobDialect::Gobwas,
            Some("doublestar") => GlobDialect::Doublestar,
            Some(other) => return Err(LefthookError::UnknownGlobMatcher { name: other.to_owned() }),
        };
        let templates = map.map("templates")?.map(|map| {
            let texts = map.iter().filter_map(|(key, node)| Some((key, scalar_text(node)?)));
            texts.collect()
        });
        let source_dir = map.text("source_dir")?.unwrap_or(".lefthook").trim_end_matches('/');
        Ok(Self { glob_dialect: globs, source_dir, templates: templates.unwrap_or_default() })
    }
}

/// Returns the jobs of one hook, and its other settings. `first` is the first chain number of this hook, which
/// keeps its chains separate from those of other hooks.
fn convert_hook(
    name: &str,
    hook: &ConfigMap<'_, '_>,
    common: &LefthookSettings<'_>,
    first_chain: usize,
) -> Result<(Vec<HookConversion>, Vec<Setting>), LefthookError> {
    let scope = JobScope::for_hook(name, hook, common, first_chain)?;
    let mut items = Vec::new();
    if let Some(jobs) = hook.list("jobs")? {
        job::import_list(jobs, &scope, first_chain, &mut items);
    }
    for key in ["commands", "scripts"] {
        let Some(named) = hook.map(key)? else { continue };
        job::import_named(key, &named, &scope, first_chain, &mut items)?;
    }
    if !FILE_HOOKS.contains(&name) {
        let hook = name.to_owned();
        let error = if is_git_hook(name) { JobError::NonTreeHook { hook } } else { JobError::CustomHook { hook } };
        items.iter_mut().for_each(|item| item.result = Err(error.clone().into()));
    }
    let unknown = hook.iter().filter(|(key, _)| !JOB_KEYS.contains(key) && !HOOK_KEYS.contains(key));
    let mut settings: Vec<Setting> =
        unknown.map(|(key, _)| Setting { key: format!("{name}.{key}"), note: "it is unknown".to_owned() }).collect();
    if hook.get("fail_on_changes").is_some() {
        let note = "a step that changes tracked files fails in any case".to_owned();
        settings.push(Setting { key: format!("{name}.fail_on_changes"), note });
    }
    Ok((items, settings))
}

/// Returns the note for a top-level setting; `None` if the import uses it.
fn setting_note(key: &str, node: &Node<'_>) -> Option<Setting> {
    let note = match key {
        "glob_matcher" | "source_dir" | "templates" => return None,
        "extends" | "remotes" | "remote" => {
            "other files, which are not read: import each of them by its own name".to_owned()
        }
        "rc" => format!(
            "a file that sets up the environment{}, which is not read: `env` of a spec says what steps are given",
            scalar_text(node).map(|name| format!(" ({})", quoted(name))).unwrap_or_default()
        ),
        "source_dir_local" => "scripts that exist on only one machine".to_owned(),
        "min_version" | "assert_lefthook_installed" | "no_auto_install" | "install_non_git_hooks" | "lefthook" => {
            "a run does not use lefthook".to_owned()
        }
        "colors" | "no_tty" | "output" | "skip_output" => "output options of lefthook".to_owned(),
        "skip_lfs" => "a run does not use git-lfs".to_owned(),
        key => format!("the key {} is unknown", quoted(key)),
    };
    Some(Setting { key: key.to_owned(), note })
}
