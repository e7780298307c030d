//! Collects the results of all hooks, and generates the text of the spec from the imported ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::adopt::import::import_result::{ImportedHook, SkippedHook, Tool};
use crate::adopt::import::rejection::Rejection;
use crate::adopt::import::spec_yaml::{
    command_field, comment_text, files_field, flow_list, line_fits, list_field, profile_field, yaml_scalar,
};
use crate::model::names::ToolchainName;
use crate::model::plan::FileRules;
use crate::spec::IMPLICIT_PROFILE;

/// The declarations of known checks, as lines of `defaults`.
const DEFAULT_DECLARATIONS: &str = "  determinism: D1 # a rerun gives the same outcome; a skill can set another value
  tier: 1 # every caller may run the skills, agents too
";

/// A hook of the configuration, with its result.
#[derive(Debug)]
pub(super) struct HookConversion {
    /// The name of the hook in the configuration.
    pub(super) name: String,
    /// The first part of the skill's name; components are joined by dots.
    pub(super) group: String,
    /// The line on which the hook begins.
    pub(super) line: u32,
    /// The chain that the hook belongs to. Hooks of one chain run in order until one fails, so they become steps of
    /// one skill.
    pub(super) chain: Option<usize>,
    /// True if the step may run in parallel with others.
    pub(super) parallel: bool,
    /// The equivalent check, or the reason why it is missing.
    pub(super) result: Result<EquivalentCheck, Rejection>,
}

/// A check that is equivalent to a hook.
#[derive(Debug, Default)]
pub(super) struct EquivalentCheck {
    /// Human-readable description.
    pub(super) description: String,
    /// The command.
    pub(super) cmd: Vec<String>,
    /// The files that the check is for; `None` if it always runs.
    pub(super) files: Option<FileRules>,
    /// The command that fixes what the check reports.
    pub(super) fix: Option<Vec<String>>,
    /// The working directory; `None` for the root of the repository.
    pub(super) workdir: Option<String>,
    /// The timeout, if the configuration sets one.
    pub(super) timeout_ms: Option<u64>,
    /// Environment variables for the command.
    pub(super) env: BTreeMap<String, String>,
    /// The tools that the check needs.
    pub(super) tools: Vec<Tool>,
    /// True if it is a known tool's own check. Such a check is of tier 1, and its outcome depends only on the tree.
    pub(super) is_known: bool,
    /// Differences from the original hook, one sentence each.
    pub(super) notes: Vec<String>,
}

/// The result of all items.
#[derive(Debug, Default)]
pub(super) struct ImportDraft {
    /// The imported hooks, in order.
    pub(super) imported: Vec<ImportedHook>,
    /// The hooks that were not imported.
    pub(super) skipped: Vec<SkippedHook>,
    /// The tools by name, each with its distinct checks.
    pub(super) tools: BTreeMap<String, Vec<Tool>>,
    skills: Vec<ImportedSkill>,
    chains: BTreeMap<usize, usize>,
    names: UniqueNames,
}

#[derive(Debug)]
struct ImportedSkill {
    name: String,
    description: String,
    is_known: bool,
    parallel: bool,
    /// The tools that its steps need.
    tools: BTreeSet<String>,
    steps: Vec<ImportedStep>,
    names: UniqueNames,
}

#[derive(Debug)]
struct ImportedStep {
    name: String,
    check: EquivalentCheck,
}

impl ImportDraft {
    /// Separates the imported items from the other items.
    pub(super) fn from_conversions(items: Vec<HookConversion>) -> Self {
        let mut draft = Self::default();
        for item in items {
            draft.add(item);
        }
        draft
    }

    fn add(&mut self, item: HookConversion) {
        let HookConversion { name, group, line, chain, parallel, result: conversion } = item;
        let mut check = match conversion.and_then(validate_tool_names) {
            Ok(check) => check,
            Err(rejection) => return self.skipped.push(SkippedHook { name, line, reason: rejection.to_string() }),
        };
        check.tools.iter().for_each(|tool| self.add_tool(tool));
        let tools: Vec<String> = std::mem::take(&mut check.tools).into_iter().map(|tool| tool.name).collect();
        let notes = check.notes.clone();
        let skill = self.skill_for(&group, chain, parallel, &name, &check);
        let step = skill.names.make_unique(&sanitize_name(&name));
        let skill_name = skill.name.clone();
        skill.tools.extend(tools.iter().cloned());
        skill.steps.push(ImportedStep { name: step.clone(), check });
        self.imported.push(ImportedHook { name, line, skill: skill_name, step, tools, notes });
    }

    fn add_tool(&mut self, tool: &Tool) {
        let known = self.tools.entry(tool.name.clone()).or_default();
        // A check that runs the tool also shows that it exists.
        let is_checked = tool.is_path_lookup() && !known.is_empty();
        if !is_checked && !known.contains(tool) {
            known.push(tool.clone());
        }
    }

    /// Returns the skill for a check: that of its chain, or a new one.
    fn skill_for(
        &mut self,
        group: &str,
        chain: Option<usize>,
        parallel: bool,
        name: &str,
        check: &EquivalentCheck,
    ) -> &mut ImportedSkill {
        let known = chain.and_then(|chain| self.chains.get(&chain).copied());
        let index = known.unwrap_or_else(|| {
            let wanted = if chain.is_some() {
                sanitize_name(group)
            } else {
                format!("{}.{}", sanitize_name(group), sanitize_name(name))
            };
            let name = self.names.make_unique(&wanted);
            let description = if chain.is_some() { String::new() } else { check.description.clone() };
            let (tools, steps, names) = (BTreeSet::new(), Vec::new(), UniqueNames::default());
            self.skills.push(ImportedSkill { name, description, is_known: true, parallel, tools, steps, names });
            self.skills.len() - 1
        });
        if let Some(chain) = chain {
            self.chains.insert(chain, index);
        }
        let skill = &mut self.skills[index];
        skill.is_known &= check.is_known;
        skill
    }

    /// Returns the text of the spec, or `None` if it would have no steps. `file` is the name of the configuration
    /// file.
    pub(super) fn render(&self, file: &str, profile: &str) -> Option<String> {
        if self.skills.is_empty() {
            return None;
        }
        let mut text =
            format!("# Generated from {} by `proctor import`; edit it as you like.\nversion: 1\n", comment_text(file));
        text.push_str(&self.render_toolchains());
        // Defaults must not give an unknown check the declarations of the known ones.
        let all_are_known = self.skills.iter().all(|skill| skill.is_known);
        text.push_str(&self.render_defaults(all_are_known));
        if profile == IMPLICIT_PROFILE {
            text.push_str(&format!("skills: # the profile `{profile}` has all of them\n"));
        } else {
            let names = self.skills.iter().map(|skill| skill.name.as_str());
            text.push_str(&format!("profiles:\n{}skills:\n", profile_field(profile, names)));
        }
        for skill in &self.skills {
            text.push_str(&skill.render(all_are_known));
        }
        for skipped in &self.skipped {
            let (name, reason) = (comment_text(&skipped.name), comment_text(&skipped.reason));
            text.push_str(&format!("# Not imported: {name} (line {}): {reason}\n", skipped.line));
        }
        Some(text)
    }

    fn render_toolchains(&self) -> String {
        let mut text = String::from(if self.tools.is_empty() { "" } else { "toolchains:\n" });
        for (name, tools) in &self.tools {
            let name = yaml_scalar(name);
            let checks: Vec<String> = tools.iter().map(tool_check).collect();
            let line = format!("  {name}: {{ required: [{}] }}\n", checks.join(", "));
            if line_fits(&line) {
                text.push_str(&line);
            } else {
                text.push_str(&format!("  {name}:\n    required:\n"));
                tools.iter().for_each(|tool| text.push_str(&render_tool_check(tool)));
            }
        }
        text
    }

    /// Returns the `defaults` section: the declarations of known checks, if all are known, and variables that keep tools
    /// from writing caches to the tree, and from waiting for a registry that they cannot reach.
    fn render_defaults(&self, all_are_known: bool) -> String {
        let declarations = if all_are_known { DEFAULT_DECLARATIONS } else { "" };
        match declarations.to_owned() + &self.render_variables() {
            text if text.is_empty() => text,
            text => format!("defaults:\n{text}"),
        }
    }

    fn render_variables(&self) -> String {
        const VARIABLES: [(&str, &str, &str); 8] = [
            ("mypy", "MYPY_CACHE_DIR", "/dev/null"),
            ("npx", "npm_config_offline", "true"),
            ("ruff", "RUFF_NO_CACHE", "true"),
            ("python", "PYTHONDONTWRITEBYTECODE", "1"),
            ("pytest", "PYTHONDONTWRITEBYTECODE", "1"),
            ("pytest", "PYTEST_ADDOPTS", "-p no:cacheprovider"),
            ("uv", "UV_NO_CACHE", "true"),
            ("uv", "UV_OFFLINE", "true"),
        ];
        let wanted = VARIABLES.iter().filter(|(tool, ..)| self.tools.contains_key(*tool));
        let variables: BTreeSet<String> =
            wanted.map(|(_, variable, value)| format!("{variable}: {}", yaml_scalar(value))).collect();
        if variables.is_empty() {
            return String::new();
        }
        let variables: Vec<String> = variables.into_iter().collect();
        let line = format!("  env: {{ {} }}\n", variables.join(", "));
        match line_fits(&line) {
            true => line,
            false => format!("  env:\n{}", variables.iter().map(|line| format!("    {line}\n")).collect::<String>()),
        }
    }
}

impl ImportedSkill {
    fn render(&self, all_are_known: bool) -> String {
        let mut text = format!("  {}:\n", yaml_scalar(&self.name));
        if !self.description.is_empty() && !self.name.ends_with(&format!(".{}", self.description)) {
            text.push_str(&format!("    description: {}\n", yaml_scalar(&self.description)));
        }
        if self.is_known && !all_are_known {
            text.push_str("    determinism: D1\n    tier: 1\n");
        }
        if self.parallel {
            text.push_str("    needs: []\n");
        }
        // A missing tool of one hook must not stop the others.
        text.push_str(&list_field("    ", "toolchains", &Vec::from_iter(self.tools.iter().cloned())));
        text.push_str("    steps:\n");
        for step in &self.steps {
            text.push_str(&step.render());
        }
        text
    }
}

impl ImportedStep {
    fn render(&self) -> String {
        let mut text = String::new();
        for note in &self.check.notes {
            text.push_str(&format!("      # {}\n", comment_text(note)));
        }
        text.push_str(&format!("      - name: {}\n", yaml_scalar(&self.name)));
        if let Some(files) = &self.check.files {
            text.push_str(&files_field(files));
        }
        text.push_str(&command_field("cmd", &self.check.cmd));
        if let Some(fix) = &self.check.fix {
            text.push_str(&command_field("fix", fix));
        }
        if let Some(workdir) = &self.check.workdir {
            text.push_str(&format!("        workdir: {}\n", yaml_scalar(workdir)));
        }
        if let Some(timeout_ms) = self.check.timeout_ms {
            text.push_str(&format!("        timeout_ms: {timeout_ms}\n"));
        }
        if !self.check.env.is_empty() {
            text.push_str("        env:\n");
        }
        for (name, value) in &self.check.env {
            text.push_str(&format!("          {}: {}\n", yaml_scalar(name), yaml_scalar(value)));
        }
        text
    }
}

/// Returns a toolchain check in one line.
fn tool_check(tool: &Tool) -> String {
    let range = tool.version.as_deref().map(|range| format!(", version: {}", yaml_scalar(range)));
    format!("{{ cmd: {}{} }}", flow_list(&tool.cmd), range.unwrap_or_default())
}

/// Returns the YAML of a toolchain check, as an element of a list.
fn render_tool_check(tool: &Tool) -> String {
    let line = format!("      - {}\n", tool_check(tool));
    if line_fits(&line) {
        return line;
    }
    let range = tool.version.as_deref().map(|range| format!("        version: {}\n", yaml_scalar(range)));
    let words: String = tool.cmd.iter().map(|word| format!("          - {}\n", yaml_scalar(word))).collect();
    format!("      - cmd:\n{words}{}", range.unwrap_or_default())
}

/// Returns the check, or an error if the name of a tool is not valid as a toolchain name.
fn validate_tool_names(check: EquivalentCheck) -> Result<EquivalentCheck, Rejection> {
    match check.tools.iter().find(|tool| ToolchainName::new(tool.name.as_str()).is_err()) {
        Some(tool) => Err(Rejection::InvalidToolName { name: tool.name.clone() }),
        None => Ok(check),
    }
}

/// Converts a text to a valid name of a skill or a step.
fn sanitize_name(text: &str) -> String {
    const MAX_NAME_CHARS: usize = 60;
    let kept = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let name: String = text.chars().take(MAX_NAME_CHARS).map(kept).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "check".to_owned() } else { name.to_owned() }
}

/// Names in use, compared without case, and the last number that was appended to each.
#[derive(Debug, Default)]
struct UniqueNames {
    taken: BTreeSet<String>,
    numbers: BTreeMap<String, u32>,
}

impl UniqueNames {
    /// Returns `wanted`, with a number appended if it is in use.
    fn make_unique(&mut self, wanted: &str) -> String {
        let number = self.numbers.entry(wanted.to_ascii_lowercase()).or_insert(1);
        let mut name = wanted.to_owned();
        while !self.taken.insert(name.to_ascii_lowercase()) {
            *number += 1;
            name = format!("{wanted}-{number}");
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_names_valid_and_unique() {
        let mut names = UniqueNames::default();
        assert_eq!(["A", "a-2", "a", "a", "b"].map(|name| names.make_unique(name)), ["A", "a-2", "a-3", "a-4", "b"]);
        assert_eq!(
            [sanitize_name("Check: it!"), sanitize_name("…"), sanitize_name("a/b c")],
            ["Check--it", "check", "a-b-c"]
        );
    }
}
