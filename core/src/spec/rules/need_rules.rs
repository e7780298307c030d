//! Rules for `needs` of skills.

use std::collections::{BTreeMap, BTreeSet};

use super::super::diagnostic::{Code, Diagnostic};
use super::super::diagnostic_collector::DiagnosticCollector;
use super::super::span::Spanned;
use crate::model::names::SkillName;
use crate::spec::rules::spec_index::{SpecIndex, for_each_repeated};
use crate::text::escape::quoted;

pub(super) fn check_needs_known(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (name, skill) in index.skills() {
        for need in skill.needs() {
            let text = need.value.as_str();
            if need.value == name.value {
                problems.add_with(|| {
                    Diagnostic::error(Code::SelfNeed, need.span, format!("{} needs itself", quoted(text)))
                });
            } else if !index.has_skill(&need.value) {
                problems.add_with(|| {
                    let message = format!("there is no skill {}", quoted(text));
                    Diagnostic::error(Code::UnknownNeed, need.span, message)
                        .did_you_mean(text, index.spec.skills.keys())
                });
            }
        }
    }
}

pub(super) fn check_needs_unique(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (_, skill) in index.skills() {
        for_each_repeated(skill.needs(), |need, first| {
            problems.add_with(|| {
                let message = format!("{} is needed twice", quoted(need.value.as_str()));
                Diagnostic::error(Code::DuplicateNeed, need.span, message).label(first, "first here")
            });
        });
    }
}

/// A skill on the path of the traversal.
struct Visit<'a, I> {
    name: &'a str,
    needs: I,
    /// The need that leads to the next skill on the path.
    followed: Option<&'a Spanned<SkillName>>,
}

/// Visits skills depth first, each once and without recursion; reports the first cycle.
pub(super) fn check_needs_acyclic(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let visit = |name: &'_ str| {
        index.skills.get_key_value(name).map(|(name, skill)| Visit { name, needs: skill.needs(), followed: None })
    };
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for start in index.skills.keys() {
        let mut path: Vec<_> = visit(start).filter(|_| !done.contains(start)).into_iter().collect();
        let mut depths: BTreeMap<&str, usize> = BTreeMap::from([(*start, 0)]);
        while let Some(last) = path.last_mut() {
            last.followed = last.needs.next();
            let Some(need) = last.followed else {
                done.insert(last.name);
                depths.remove(last.name);
                path.pop();
                continue;
            };
            let name = need.value.as_str();
            let is_self_need = name == last.name;
            match depths.get(name) {
                Some(_) if is_self_need => {}
                Some(depth) => {
                    let cycle: Vec<_> = path[*depth..].iter().filter_map(|visit| visit.followed).collect();
                    return problems.add_with(|| cycle_diagnostic(&cycle));
                }
                None if done.contains(name) => {}
                None => {
                    if let Some(next) = visit(name) {
                        depths.insert(next.name, path.len());
                        path.push(next);
                    }
                }
            }
        }
    }
}

/// Builds the diagnostic of a cycle. It names at most ten skills, starting with the one that is first in the file.
fn cycle_diagnostic(cycle: &[&Spanned<SkillName>]) -> Diagnostic {
    const MAX_SHOWN_SKILLS: usize = 10;
    let first = (0..cycle.len()).min_by_key(|at| cycle[*at].span.start).unwrap_or(0);
    let in_order: Vec<_> = cycle[first..].iter().chain(&cycle[..first]).collect();
    let names: Vec<String> = in_order.iter().take(MAX_SHOWN_SKILLS).map(|need| quoted(need.value.as_str())).collect();
    let end = if cycle.len() > MAX_SHOWN_SKILLS { "…".to_owned() } else { names[0].clone() };
    let message = format!("skills need each other: {} needs {end}", names.join(" needs "));
    let problem = Diagnostic::error(Code::NeedCycle, in_order[0].span, message);
    in_order.iter().take(MAX_SHOWN_SKILLS).skip(1).fold(problem, |problem, need| problem.label(need.span, "and here"))
}
