//! Collects the results of all hooks, and generates the text of the spec from the imported ones.

use std::collections::{BTreeMap, BTreeSet};

use super::{Carried, Left, Tool};
use crate::evidence::escape_output;
use crate::names::ToolchainName;
use crate::spec;

/// A hook of the configuration, with its result.
#[derive(Debug)]
pub(super) struct Item {
    /// The name of the hook in the configuration.
    pub(super) name: String,
    /// The first part of its skill's name; components are joined by dots.
    pub(super) group: String,
    /// The line on which it begins.
    pub(super) line: u32,
    /// The chain that the hook belongs to. Hooks of one chain run in order until one fails, so they become steps of
    /// one skill.
    pub(super) chain: Option<usize>,
    /// True if it may run in parallel with others.
    pub(super) parallel: bool,
    /// The equivalent check, or the reason why it is missing.
    pub(super) fate: Result<Check, String>,
}

/// A check that is equivalent to a hook.
#[derive(Debug, Default)]
pub(super) struct Check {
    /// Human-readable description.
    pub(super) description: String,
    /// The command.
    pub(super) cmd: Vec<String>,
    /// The working directory; `None` for the root of the repository.
    pub(super) workdir: Option<String>,
    /// The timeout, if the configuration sets one.
    pub(super) timeout_ms: Option<u64>,
    /// Environment variables that it sets.
    pub(super) env: BTreeMap<String, String>,
    /// The tools that it needs.
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
    ["bash", "git"].map(|name| Tool::asked(name, &["--version"], None))
}

/// The result of all items.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// The imported hooks, in order.
    pub(super) carried: Vec<Carried>,
    /// The hooks that were not imported.
    pub(super) left: Vec<Left>,
    /// The tools by name, each with its distinct checks.
    pub(super) tools: BTreeMap<String, Vec<Tool>>,
    skills: Vec<Skill>,
    chains: BTreeMap<usize, usize>,
    names: Names,
}

#[derive(Debug)]
struct Skill {
    name: String,
    description: String,
    is_known: bool,
    parallel: bool,
    steps: Vec<Step>,
    names: Names,
}

#[derive(Debug)]
struct Step {
    name: String,
    line: u32,
    check: Check,
}

impl Draft {
    /// Sorts the items into imported ones and others.
    pub(super) fn of(items: Vec<Item>) -> Self {
        let mut draft = Self::default();
        for item in items {
            draft.add(item);
        }
        draft
    }

    fn add(&mut self, item: Item) {
        let Item { name, group, line, chain, parallel, fate } = item;
        let mut check = match fate.and_then(nameable) {
            Ok(check) => check,
            Err(reason) => return self.left.push(Left { name, line, reason }),
        };
        check.tools.iter().for_each(|tool| self.need(tool));
        let tools = std::mem::take(&mut check.tools).into_iter().map(|tool| tool.name).collect();
        let notes = check.notes.clone();
        let skill = self.skill(&group, chain, parallel, &name, &check);
        let step = skill.names.unique(&plain(&name));
        let skill_name = skill.name.clone();
        skill.steps.push(Step { name: step.clone(), line, check });
        self.carried.push(Carried { name, line, skill: skill_name, step, tools, notes });
    }

    fn need(&mut self, tool: &Tool) {
        let known = self.tools.entry(tool.name.clone()).or_default();
        // A check that runs the tool also shows that it exists.
        let is_asked = tool.is_only_found() && !known.is_empty();
        if !is_asked && !known.contains(tool) {
            known.push(tool.clone());
        }
    }

    /// Returns the skill for a check: that of its chain, or a new one.
    fn skill(&mut self, group: &str, chain: Option<usize>, parallel: bool, name: &str, check: &Check) -> &mut Skill {
        let known = chain.and_then(|chain| self.chains.get(&chain).copied());
        let at = known.unwrap_or_else(|| {
            let wanted = if chain.is_some() { plain(group) } else { format!("{}.{}", plain(group), plain(name)) };
            let name = self.names.unique(&wanted);
            let description = if chain.is_some() { String::new() } else { check.description.clone() };
            let (steps, names) = (Vec::new(), Names::default());
            self.skills.push(Skill { name, description, is_known: true, parallel, steps, names });
            self.skills.len() - 1
        });
        if let Some(chain) = chain {
            self.chains.insert(chain, at);
        }
        let skill = &mut self.skills[at];
        skill.is_known &= check.is_known;
        skill
    }

    /// Returns the text of the spec, or `None` if it would have no steps. `file` is the name of the configuration
    /// file.
    pub(super) fn text(&self, file: &str, profile: &str) -> Option<String> {
        if self.skills.is_empty() {
            return None;
        }
        let mut text = format!(
            "# Made from {} by `proctor import`, and yours from here on: edit it as you like.\n# `proctor \
             validate` checks it, `proctor run --profile {}` runs it.\nversion: 1\n",
            comment(file),
            comment(profile)
        );
        text.push_str(&self.toolchains());
        text.push_str(&self.defaults());
        text.push_str(&format!("profiles:\n  {}:\n    include:\n", scalar(profile)));
        for skill in &self.skills {
            text.push_str(&format!("      - {}\n", scalar(&skill.name)));
        }
        text.push_str("skills:\n");
        for skill in &self.skills {
            text.push_str(&skill.text());
        }
        if !self.left.is_empty() {
            text.push_str("\n# Not carried over:\n");
        }
        for left in &self.left {
            text.push_str(&format!("# - line {}, {}: {}\n", left.line, comment(&left.name), comment(&left.reason)));
        }
        Some(text)
    }

    fn toolchains(&self) -> String {
        let mut text = String::from(if self.tools.is_empty() { "" } else { "toolchains:\n" });
        for (name, tools) in &self.tools {
            text.push_str(&format!("  {}:\n    required:\n", scalar(name)));
            tools.iter().for_each(|tool| text.push_str(&required(tool)));
        }
        text
    }

    /// Returns the `defaults` section: variables that keep tools from writing caches to the tree, and from waiting
    /// for a registry that they cannot reach.
    fn defaults(&self) -> String {
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
            wanted.map(|(_, variable, value)| format!("    {variable}: {}\n", scalar(value))).collect();
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

impl Skill {
    fn text(&self) -> String {
        let mut text = format!("  {}:\n", scalar(&self.name));
        if !self.description.is_empty() {
            text.push_str(&format!("    description: {}\n", scalar(&self.description)));
        }
        if self.is_known {
            text.push_str("    determinism: D1\n    tier: 1\n");
        }
        if self.parallel {
            text.push_str("    needs: []\n");
        }
        text.push_str("    steps:\n");
        for step in &self.steps {
            text.push_str(&step.text());
        }
        text
    }
}

impl Step {
    fn text(&self) -> String {
        let mut text = format!("      # line {}\n", self.line);
        for note in &self.check.notes {
            text.push_str(&format!("      # {}\n", comment(note)));
        }
        text.push_str(&format!("      - name: {}\n", scalar(&self.name)));
        let cmd = &self.check.cmd;
        match cmd.split_last() {
            Some((script, words)) if as_block(script) => {
                text.push_str("        cmd:\n");
                for word in words {
                    text.push_str(&format!("          - {}\n", scalar(word)));
                }
                text.push_str("          - |-\n");
                for line in script.lines() {
                    text.push_str(format!("            {line}").trim_end_matches(' '));
                    text.push('\n');
                }
            }
            _ => {
                let line = format!("        cmd: {}\n", flow(cmd));
                if is_short(&line) {
                    text.push_str(&line);
                } else {
                    text.push_str("        cmd:\n");
                    cmd.iter().for_each(|word| text.push_str(&format!("          - {}\n", quoted(word))));
                }
            }
        }
        if let Some(workdir) = &self.check.workdir {
            text.push_str(&format!("        workdir: {}\n", scalar(workdir)));
        }
        if let Some(timeout_ms) = self.check.timeout_ms {
            text.push_str(&format!("        timeout_ms: {timeout_ms}\n"));
        }
        if !self.check.env.is_empty() {
            text.push_str("        env:\n");
        }
        for (name, value) in &self.check.env {
            text.push_str(&format!("          {}: {}\n", scalar(name), scalar(value)));
        }
        text
    }
}

/// Returns the YAML of a toolchain check.
fn required(tool: &Tool) -> String {
    let cmd = flow(&tool.cmd);
    let range = tool.version.as_deref().map(scalar);
    let line = match &range {
        Some(range) => format!("      - {{ cmd: {cmd}, version: {range} }}\n"),
        None => format!("      - {{ cmd: {cmd} }}\n"),
    };
    if is_short(&line) {
        return line;
    }
    let range = range.map(|range| format!("        version: {range}\n")).unwrap_or_default();
    let words: String = tool.cmd.iter().map(|word| format!("          - {}\n", quoted(word))).collect();
    format!("      - cmd:\n{words}{range}")
}

/// Returns whether a flow-style list fits on this line. Formatters such as prettier break lines above 80
/// characters, and they also check the spec.
fn is_short(line: &str) -> bool {
    line.trim_end().chars().count() <= 80
}

/// Returns the check, or an error if the name of a tool is not valid as a toolchain name.
fn nameable(check: Check) -> Result<Check, String> {
    match check.tools.iter().find(|tool| ToolchainName::new(tool.name.as_str()).is_err()) {
        Some(tool) => Err(format!("its program is called {}", spec::quoted(&tool.name))),
        None => Ok(check),
    }
}

/// Returns whether to write a text as a block scalar. The text must survive unchanged and be easier to read than a
/// quoted string. It must contain nothing that a terminal or the log of a CI system interprets when the spec is
/// shown.
fn as_block(text: &str) -> bool {
    let safe =
        |line: &str| !line.ends_with([' ', '\t']) && !line.trim_start().starts_with("::") && !line.chars().any(escaped);
    let plain =
        !text.ends_with('\n') && !text.starts_with([' ', '\t', '\n']) && !speaks_to_ci(text) && !text.contains('\r');
    text.contains('\n') && plain && text.lines().all(safe)
}

/// Returns whether the log of a CI system would interpret a part of a line as a command.
fn speaks_to_ci(text: &str) -> bool {
    ["##[", "##vso[", "##teamcity["].iter().any(|command| text.contains(command))
}

/// Returns whether a character must be escaped in a spec: YAML requires it, or the character would change the
/// direction of the displayed text.
fn escaped(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Formats strings as a flow-style list.
fn flow(words: &[String]) -> String {
    format!("[{}]", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", "))
}

/// Formats a string as a scalar that every YAML parser reads as this string.
fn scalar(text: &str) -> String {
    let first = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic());
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    if first && plain && !words.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    quoted(text)
}

/// Quotes a string with double quotes. Uses single quotes if it contains double quotes and needs no other escape,
/// as formatters prefer.
fn quoted(text: &str) -> String {
    let is_bare = |c: char| c != '\\' && c != '\t' && c != '\n' && !escaped(c);
    if text.contains('"') && text.chars().all(is_bare) && !speaks_to_ci(text) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if escaped(c) => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    if speaks_to_ci(&out) { out.replace("##", "#\\u0023") } else { out }
}

/// Formats a text for a `#` comment: a single line of limited length.
fn comment(text: &str) -> String {
    const SHOWN: usize = 400;
    let shown: String = text.chars().take(SHOWN).collect();
    escape_output(shown.as_bytes()).replace(['\n', '\t'], " ").replace("##", "# #")
}

/// Converts a text to a valid name of a skill or a step.
fn plain(text: &str) -> String {
    const LONGEST: usize = 60;
    let kept = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let name: String = text.chars().take(LONGEST).map(kept).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "check".to_owned() } else { name.to_owned() }
}

/// Names in use, compared without case, and the last number that was appended to each.
#[derive(Debug, Default)]
struct Names {
    taken: BTreeSet<String>,
    numbers: BTreeMap<String, u32>,
}

impl Names {
    /// Returns `wanted`, with a number appended if it is in use.
    fn unique(&mut self, wanted: &str) -> String {
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
    fn texts_are_quoted_where_they_must_be() {
        let cases = [
            ("black", "black"),
            ("yes", "\"yes\""),
            ("1.5", "\"1.5\""),
            ("a: b", "\"a: b\""),
            ("\u{85}\u{2028}\u{1}\n\"\\", "\"\\u0085\\u2028\\u0001\\n\\\"\\\\\""),
        ];
        for (text, yaml) in cases {
            assert_eq!(scalar(text), yaml);
        }
    }

    #[test]
    fn names_are_allowed_and_unique() {
        let mut names = Names::default();
        assert_eq!(["A", "a-2", "a", "a", "b"].map(|name| names.unique(name)), ["A", "a-2", "a-3", "a-4", "b"]);
        assert_eq!([plain("Check: it!"), plain("…"), plain("a/b c")], ["Check--it", "check", "a-b-c"]);
    }
}
