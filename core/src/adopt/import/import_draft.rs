//! Collects the results of all hooks, and generates the text of the spec from the imported ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::adopt::import::import_result::{Carried, Left, Tool};
use crate::adopt::import::rejection::Rejection;
use crate::model::names::ToolchainName;
use crate::text::escape::escape_output;

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

/// Returns a command that runs the lines as one pipeline, which fails if any part fails.
pub(super) fn pipeline(lines: &[String]) -> Vec<String> {
    let mut cmd: Vec<String> = ["bash", "-euo", "pipefail", "-c"].map(str::to_owned).to_vec();
    cmd.push(lines.join(" |\n"));
    cmd
}

/// Returns the tools that every pipeline needs.
pub(super) fn pipeline_tools() -> [Tool; 2] {
    ["bash", "git"].map(|name| Tool::with_version_check(name, &["--version"], None))
}

/// The result of all items.
#[derive(Debug, Default)]
pub(super) struct ImportDraft {
    /// The imported hooks, in order.
    pub(super) carried: Vec<Carried>,
    /// The hooks that were not imported.
    pub(super) left: Vec<Left>,
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
    steps: Vec<ImportedStep>,
    names: UniqueNames,
}

#[derive(Debug)]
struct ImportedStep {
    name: String,
    line: u32,
    check: EquivalentCheck,
}

impl ImportDraft {
    /// Sorts the items into imported ones and others.
    pub(super) fn from_conversions(items: Vec<HookConversion>) -> Self {
        let mut draft = Self::default();
        for item in items {
            draft.add(item);
        }
        draft
    }

    fn add(&mut self, item: HookConversion) {
        let HookConversion { name, group, line, chain, parallel, result: fate } = item;
        let mut check = match fate.and_then(validate_tool_names) {
            Ok(check) => check,
            Err(rejection) => return self.left.push(Left { name, line, reason: rejection.to_string() }),
        };
        check.tools.iter().for_each(|tool| self.add_tool(tool));
        let tools = std::mem::take(&mut check.tools).into_iter().map(|tool| tool.name).collect();
        let notes = check.notes.clone();
        let skill = self.skill_for(&group, chain, parallel, &name, &check);
        let step = skill.names.make_unique(&sanitize_name(&name));
        let skill_name = skill.name.clone();
        skill.steps.push(ImportedStep { name: step.clone(), line, check });
        self.carried.push(Carried { name, line, skill: skill_name, step, tools, notes });
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
            let (steps, names) = (Vec::new(), UniqueNames::default());
            self.skills.push(ImportedSkill { name, description, is_known: true, parallel, steps, names });
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
        let mut text = format!(
            "# Generated from {} by `proctor import`; edit it as you like.\n# `proctor \
             validate` checks it, `proctor run --profile {}` runs it.\nversion: 1\n",
            comment_text(file),
            comment_text(profile)
        );
        text.push_str(&self.render_toolchains());
        text.push_str(&self.render_defaults());
        text.push_str(&format!("profiles:\n  {}:\n    include:\n", yaml_scalar(profile)));
        for skill in &self.skills {
            text.push_str(&format!("      - {}\n", yaml_scalar(&skill.name)));
        }
        text.push_str("skills:\n");
        for skill in &self.skills {
            text.push_str(&skill.render());
        }
        if !self.left.is_empty() {
            text.push_str("\n# Not carried over:\n");
        }
        for left in &self.left {
            text.push_str(&format!(
                "# - line {}, {}: {}\n",
                left.line,
                comment_text(&left.name),
                comment_text(&left.reason)
            ));
        }
        Some(text)
    }

    fn render_toolchains(&self) -> String {
        let mut text = String::from(if self.tools.is_empty() { "" } else { "toolchains:\n" });
        for (name, tools) in &self.tools {
            text.push_str(&format!("  {}:\n    required:\n", yaml_scalar(name)));
            tools.iter().for_each(|tool| text.push_str(&render_tool_check(tool)));
        }
        text
    }

    /// Returns the `defaults` section: variables that keep tools from writing caches to the tree, and from waiting
    /// for a registry that they cannot reach.
    fn render_defaults(&self) -> String {
        let has = |name: &str| self.tools.contains_key(name);
        let known = [
            ("mypy", "MYPY_CACHE_DIR", "/dev/null"),
            ("ruff", "RUFF_NO_CACHE", "true"),
            ("python3", "PYTHONDONTWRITEBYTECODE", "1"),
            ("python", "PYTHONDONTWRITEBYTECODE", "1"),
            ("pytest", "PYTHONDONTWRITEBYTECODE", "1"),
            ("pytest", "PYTEST_ADDOPTS", "-p no:cacheprovider"),
        ];
        let wanted = known.iter().filter(|(tool, ..)| has(tool));
        let mut lines: BTreeSet<String> =
            wanted.map(|(_, variable, value)| format!("    {variable}: {}\n", yaml_scalar(value))).collect();
        if has("npx") {
            lines.insert(
                "    # No step reaches a registry, and npx need not wait for one.\n    npm_config_offline: \"true\"\n"
                    .to_owned(),
            );
        }
        if lines.is_empty() {
            return String::new();
        }
        let lines: String = lines.into_iter().collect();
        format!("defaults:\n  # A cache that a tool leaves in the tree would be drift.\n  env:\n{lines}")
    }
}

impl ImportedSkill {
    fn render(&self) -> String {
        let mut text = format!("  {}:\n", yaml_scalar(&self.name));
        if !self.description.is_empty() {
            text.push_str(&format!("    description: {}\n", yaml_scalar(&self.description)));
        }
        if self.is_known {
            text.push_str("    determinism: D1\n    tier: 1\n");
        }
        if self.parallel {
            text.push_str("    needs: []\n");
        }
        text.push_str("    steps:\n");
        for step in &self.steps {
            text.push_str(&step.render());
        }
        text
    }
}

impl ImportedStep {
    fn render(&self) -> String {
        let mut text = format!("      # line {}\n", self.line);
        for note in &self.check.notes {
            text.push_str(&format!("      # {}\n", comment_text(note)));
        }
        text.push_str(&format!("      - name: {}\n", yaml_scalar(&self.name)));
        let cmd = &self.check.cmd;
        match cmd.split_last() {
            Some((script, words)) if use_block_scalar(script) => {
                text.push_str("        cmd:\n");
                for word in words {
                    text.push_str(&format!("          - {}\n", yaml_scalar(word)));
                }
                text.push_str("          - |-\n");
                for line in script.lines() {
                    text.push_str(format!("            {line}").trim_end_matches(' '));
                    text.push('\n');
                }
            }
            _ => {
                let line = format!("        cmd: {}\n", flow_list(cmd));
                if fits_on_line(&line) {
                    text.push_str(&line);
                } else {
                    text.push_str("        cmd:\n");
                    cmd.iter().for_each(|word| text.push_str(&format!("          - {}\n", quote_yaml(word))));
                }
            }
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

/// Returns the YAML of a toolchain check.
fn render_tool_check(tool: &Tool) -> String {
    let cmd = flow_list(&tool.cmd);
    let range = tool.version.as_deref().map(yaml_scalar);
    let line = match &range {
        Some(range) => format!("      - {{ cmd: {cmd}, version: {range} }}\n"),
        None => format!("      - {{ cmd: {cmd} }}\n"),
    };
    if fits_on_line(&line) {
        return line;
    }
    let range = range.map(|range| format!("        version: {range}\n")).unwrap_or_default();
    let words: String = tool.cmd.iter().map(|word| format!("          - {}\n", quote_yaml(word))).collect();
    format!("      - cmd:\n{words}{range}")
}

/// Returns whether a flow-style list fits on this line. Formatters such as prettier break lines above 80
/// characters, and they also check the spec.
fn fits_on_line(line: &str) -> bool {
    line.trim_end().chars().count() <= 80
}

/// Returns the check, or an error if the name of a tool is not valid as a toolchain name.
fn validate_tool_names(check: EquivalentCheck) -> Result<EquivalentCheck, Rejection> {
    match check.tools.iter().find(|tool| ToolchainName::new(tool.name.as_str()).is_err()) {
        Some(tool) => Err(Rejection::InvalidToolName { name: tool.name.clone() }),
        None => Ok(check),
    }
}

/// Returns whether to write a text as a block scalar. The text must survive unchanged and be easier to read than a
/// quoted string. It must contain nothing that a terminal or the log of a CI system interprets when the spec is
/// shown.
fn use_block_scalar(text: &str) -> bool {
    let safe = |line: &str| {
        !line.ends_with([' ', '\t']) && !line.trim_start().starts_with("::") && !line.chars().any(needs_escape)
    };
    let plain = !text.ends_with('\n')
        && !text.starts_with([' ', '\t', '\n'])
        && !contains_ci_command(text)
        && !text.contains('\r');
    text.contains('\n') && plain && text.lines().all(safe)
}

/// Returns whether the log of a CI system would interpret a part of a line as a command.
fn contains_ci_command(text: &str) -> bool {
    ["##[", "##vso[", "##teamcity["].iter().any(|command| text.contains(command))
}

/// Returns whether a character must be escaped in a spec: YAML requires it, or the character would change the
/// direction of the displayed text.
fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Formats strings as a flow-style list.
fn flow_list(words: &[String]) -> String {
    format!("[{}]", words.iter().map(|word| quote_yaml(word)).collect::<Vec<_>>().join(", "))
}

/// Formats a string as a scalar that every YAML parser reads as this string.
fn yaml_scalar(text: &str) -> String {
    let first = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic());
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    if first && plain && !words.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    quote_yaml(text)
}

/// Quotes a string with double quotes. Uses single quotes if it contains double quotes and needs no other escape,
/// as formatters prefer.
fn quote_yaml(text: &str) -> String {
    let is_bare = |c: char| c != '\\' && c != '\t' && c != '\n' && !needs_escape(c);
    if text.contains('"') && text.chars().all(is_bare) && !contains_ci_command(text) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if needs_escape(c) => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    if contains_ci_command(&out) { out.replace("##", "#\\u0023") } else { out }
}

/// Formats a text for a `#` comment: a single line of limited length.
fn comment_text(text: &str) -> String {
    const MAX_COMMENT_CHARS: usize = 400;
    let shown: String = text.chars().take(MAX_COMMENT_CHARS).collect();
    escape_output(shown.as_bytes()).replace(['\n', '\t'], " ").replace("##", "# #")
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
    fn quotes_scalars_when_necessary() {
        let cases = [
            ("black", "black"),
            ("yes", "\"yes\""),
            ("1.5", "\"1.5\""),
            ("a: b", "\"a: b\""),
            ("\u{85}\u{2028}\u{1}\n\"\\", "\"\\u0085\\u2028\\u0001\\n\\\"\\\\\""),
        ];
        for (text, yaml) in cases {
            assert_eq!(yaml_scalar(text), yaml);
        }
    }

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
