//! Rules for the paths that skills mount in the tree: caches and needed paths; and for the toolchains of skills.

use std::collections::BTreeMap;

use super::super::diagnostic::{Code, Diagnostic};
use super::super::diagnostic_collector::DiagnosticCollector;
use super::super::span::{Span, Spanned};
use crate::model::plan::RelPath;
use crate::spec::caches::WrittenCache;
use crate::spec::needed_paths::{Prepare, WrittenPath};
use crate::spec::rules::spec_index::{SpecIndex, for_each_repeated};
use crate::spec::rules::step_rules::bad_command;
use crate::spec::spec_types::{Skill, SpannedMap};
use crate::text::escape::{list_names, quoted};

/// Returns whether a mount at this path would hide the repository, its git directory or `changes`.
fn hides_tree(path: &RelPath) -> bool {
    matches!(path.as_str().split('/').next(), Some("." | ".git" | "changes"))
}

pub(super) fn check_cache_paths(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let caches = index.skills().flat_map(|(_, skill)| skill.caches.iter().flatten());
    for cache in caches.filter(|cache| hides_tree(cache.value.path())) {
        problems.add_with(|| {
            let message = format!("{} cannot be a cache", quoted(cache.value.path().as_str()));
            let hint =
                "caches are directories of build output, such as `target`; not the repository, `.git` or `changes`";
            Diagnostic::error(Code::BadCache, cache.span, message).hint(hint)
        });
    }
}

/// Rejects a path that is a transparent cache and another cache of the same skill.
pub(super) fn check_cache_declarations(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (_, skill) in index.skills() {
        let mut first: BTreeMap<&RelPath, &Spanned<WrittenCache>> = BTreeMap::new();
        for cache in skill.caches.iter().flatten() {
            let known = *first.entry(cache.value.path()).or_insert(cache);
            if known.value.is_transparent() != cache.value.is_transparent() {
                problems.add_with(|| {
                    let path = quoted(cache.value.path().as_str());
                    let message = format!("the cache {path} is declared as transparent and as not transparent");
                    Diagnostic::error(Code::BadCache, cache.span, message).label(known.span, "the other one")
                });
            }
        }
    }
}

/// A list of needed paths as written.
type PathList = Spanned<Vec<Spanned<WrittenPath>>>;

fn written_lists<'a>(index: &SpecIndex<'a>) -> impl Iterator<Item = &'a PathList> {
    let of_defaults = index.spec.defaults.iter().filter_map(|defaults| defaults.needs_paths.as_ref());
    of_defaults.chain(index.skills().flat_map(|(_, skill)| lists_of_skill(skill)))
}

fn lists_of_skill(skill: &Skill) -> impl Iterator<Item = &PathList> {
    skill.needs_paths.iter().chain(skill.steps.value.iter().filter_map(|step| step.needs_paths.as_ref()))
}

/// Returns the commands that write needed paths.
pub(super) fn preparing_commands<'a>(index: &SpecIndex<'a>) -> impl Iterator<Item = &'a Prepare> {
    written_lists(index).flat_map(|list| &list.value).filter_map(|written| written.value.map()?.prepare.as_ref())
}

pub(super) fn check_preparing_commands(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for cmd in preparing_commands(index).map(|prepare| &prepare.cmd) {
        if let Err(bad) = cmd.value.argv() {
            problems.add_with(|| bad_command(cmd, &bad));
        }
    }
}

pub(super) fn check_needed_paths(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for list in written_lists(index) {
        let mut first: BTreeMap<&RelPath, Span> = BTreeMap::new();
        for written in &list.value {
            check_written_path(written, problems);
            if let Some(earlier) = first.insert(written.value.path(), written.span) {
                problems.add_with(|| {
                    let message = format!("{} is needed twice", quoted(written.value.path().as_str()));
                    Diagnostic::error(Code::BadNeededPath, written.span, message).label(earlier, "first here")
                });
            }
        }
    }
}

fn check_written_path(written: &Spanned<WrittenPath>, problems: &mut DiagnosticCollector) {
    let path = written.value.path();
    if hides_tree(path) {
        problems.add_with(|| {
            let message = format!("{} cannot be a needed path", quoted(path.as_str()));
            let hint = "name a directory that git ignores, such as `node_modules`; not the repository, `.git` or \
                        `changes`";
            Diagnostic::error(Code::BadNeededPath, written.span, message).hint(hint)
        });
    }
    let Some(map) = written.value.map() else { return };
    let prepare = map.prepare.as_ref();
    if let (Some(key), Some(_)) = (&map.key, prepare) {
        problems.add_with(|| {
            let message = "a path with `prepare` has its `key` inside of `prepare`";
            Diagnostic::error(Code::BadNeededPath, key.span, message)
        });
    }
    for key in map.key.iter().chain(prepare.and_then(|prepare| prepare.key.as_ref())) {
        if key.value.is_empty() {
            problems.add_with(|| {
                let message = "`key` is empty, so nothing would determine the content";
                Diagnostic::error(Code::EmptyList, key.span, message).hint("omit it to use the lock files")
            });
        }
        for file in key.value.iter().filter(|file| is_below(&file.value, path)) {
            problems.add_with(|| {
                let message = format!("the key file {} is in the path itself", quoted(file.value.as_str()));
                Diagnostic::error(Code::BadNeededPath, file.span, message).hint("name a file that git tracks")
            });
        }
    }
}

/// Rejects needed paths of a skill that contain each other or a cache, and different definitions by two steps.
pub(super) fn check_needed_paths_disjoint(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (_, skill) in index.skills() {
        let of_steps: Vec<&Spanned<WrittenPath>> =
            skill.steps.value.iter().flat_map(|step| step.needs_paths.iter().flat_map(|list| &list.value)).collect();
        for (at, one) in of_steps.iter().enumerate() {
            let same = |other: &&&Spanned<WrittenPath>| other.value.path() == one.value.path();
            if let Some(other) = of_steps[..at].iter().find(same).filter(|other| other.value != one.value) {
                problems.add_with(|| {
                    let path = quoted(one.value.path().as_str());
                    let message = format!("two steps of the skill define {path} differently");
                    Diagnostic::error(Code::BadNeededPath, one.span, message).label(other.span, "the other one")
                });
            }
        }
        let of_defaults = index.spec.defaults.iter().filter_map(|defaults| defaults.needs_paths.as_ref());
        let needed = of_defaults.chain(lists_of_skill(skill)).flat_map(|list| &list.value);
        let needed: Vec<(&RelPath, Span)> = needed.map(|written| (written.value.path(), written.span)).collect();
        let caches = skill.caches.iter().flatten().map(|cache| (cache.value.path(), cache.span));
        let others: Vec<(&RelPath, Span)> = caches.chain(needed.iter().copied()).collect();
        for (path, span) in &needed {
            let nested = |(other, at): &&(&RelPath, Span)| {
                let is_same_list = path == other && needed.iter().any(|(_, known)| known == at);
                !is_same_list && (is_below(path, other) || is_below(other, path))
            };
            if let Some((other, at)) = others.iter().find(nested) {
                problems.add_with(|| {
                    let message = format!("{} and {} overlap", quoted(path.as_str()), quoted(other.as_str()));
                    Diagnostic::error(Code::BadNeededPath, *span, message).label(*at, "the other one")
                });
            }
        }
    }
}

/// Returns whether `path` is `directory` or below it.
fn is_below(path: &RelPath, directory: &RelPath) -> bool {
    let rest = path.as_str().strip_prefix(directory.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(super) fn check_skill_toolchains(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (_, skill) in index.skills() {
        let named = skill.toolchains.iter().flat_map(|list| &list.value);
        for name in named.clone() {
            let text = name.value.as_str();
            if index.spec.toolchains.as_ref().is_none_or(|known| known.get(text).is_none()) {
                problems.add_with(|| {
                    let known: Vec<&str> = index.spec.toolchains.iter().flat_map(SpannedMap::keys).collect();
                    let problem = Diagnostic::error(
                        Code::UnknownToolchain,
                        name.span,
                        format!("there is no toolchain {}", quoted(text)),
                    );
                    let problem = problem.did_you_mean(text, known.iter().copied());
                    match known.is_empty() {
                        true => problem.hint("the spec has no `toolchains`"),
                        false => problem.hint(format!("the toolchains are {}", list_names(known))),
                    }
                });
            }
        }
        for_each_repeated(named, |name, first| {
            problems.add_with(|| {
                let message = format!("the toolchain {} is named twice", quoted(name.value.as_str()));
                Diagnostic::error(Code::UnknownToolchain, name.span, message).label(first, "first here")
            });
        });
    }
}
