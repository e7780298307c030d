//! Adds imported skills to an existing spec as text, so that its comments and its layout stay. The result is parsed to
//! check that it contains exactly the old spec and the imported skills. An imported check that the spec makes already is
//! not added.

mod changed_steps;
mod declarations;
mod repeated_checks;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::adopt::import::spec_yaml::profile_field;
use crate::model::names::ProfileName;
use crate::spec::diagnostic_collector::DiagnosticCollector;
use crate::spec::yaml::{self, Node, YamlFileKind, YamlValue};
use crate::spec::{self, Diagnostic, IMPLICIT_PROFILE, Spec, quoted};
use declarations::{declaration_lines, is_declaration, same_declarations};
use repeated_checks::{RepeatedCheck, repeated_checks};

/// The reason why imported skills cannot be added to a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The existing spec is invalid.
    #[error("the existing spec is invalid")]
    InvalidSpec(Vec<Diagnostic>),
    /// The existing spec has a skill of the same name.
    #[error("the spec already has a skill {}", quoted(.0))]
    SkillExists(String),
    /// Lines cannot be added to a part of the spec.
    #[error("the spec has no block of lines for `{0}` to which lines can be added")]
    Layout(&'static str),
    /// The result would differ from the old spec with the imported skills.
    #[error("the result would differ from the old spec with the imported skills")]
    Different,
}

/// A spec with imported skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedSpec {
    /// The text.
    pub text: String,
    /// The imported skills that were not added, because the spec makes their checks.
    pub repeated: Vec<RepeatedSkill>,
}

/// An imported skill whose check the spec makes already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepeatedSkill {
    /// The name of the imported skill.
    pub imported: String,
    /// The skill of the spec that makes the check.
    pub skill: String,
    /// The step of that skill.
    pub step: String,
}

/// Returns the text of `existing` with the toolchains and skills of `imported`, a spec that [`super::import`] has
/// generated, and with its skills in the profile. An imported skill is omitted if a step of the profile makes the same
/// check. That step then checks the files of both.
///
/// # Errors
/// The existing spec is invalid, has a skill of the same name, or has a layout to which lines cannot be added.
pub fn merge(existing: &str, imported: &str, profile: &ProfileName) -> Result<MergedSpec, MergeError> {
    let old = spec::parse(existing.as_bytes()).map_err(MergeError::InvalidSpec)?;
    let new = spec::parse(imported.as_bytes()).map_err(MergeError::InvalidSpec)?;
    let new_value = to_value(&new.spec);
    let is_known = |name: &Value| name.as_str().is_some_and(|name| old.spec.skills.get(name).is_some());
    if let Some(name) = included(&new_value, profile).iter().find(|name| is_known(name)).and_then(Value::as_str) {
        return Err(MergeError::SkillExists(name.to_owned()));
    }
    let mut repeated = repeated_checks(&old.spec, &new.spec, profile);
    let existing = changed_steps::change_steps(existing, &old.spec, &mut repeated);
    let text = add_imported(&existing, imported, (new_value, &repeated), (profile, old.warnings.len()))?;
    let repeated = repeated.into_iter();
    let repeated =
        repeated.map(|one| RepeatedSkill { imported: one.imported, skill: one.skill, step: one.step_name }).collect();
    Ok(MergedSpec { text, repeated })
}

/// Adds the imported skills that are not `repeated`, and their toolchains.
fn add_imported(
    existing: &str,
    imported: &str,
    (mut new_value, repeated): (Value, &[RepeatedCheck]),
    (profile, warnings): (&ProfileName, usize),
) -> Result<String, MergeError> {
    let old_value = to_value(&spec::parse(existing.as_bytes()).map_err(MergeError::InvalidSpec)?.spec);
    remove_repeated(&mut new_value, repeated, profile);
    let names: Vec<String> =
        included(&new_value, profile).iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    let mut root_report = DiagnosticCollector::default();
    let root = yaml::parse_file(YamlFileKind::Foreign, existing.as_bytes(), &mut root_report);
    let root = root.ok_or(MergeError::Layout("version"))?;
    let mut edits = Edits::new(existing);
    if !names.is_empty() {
        // A new section comes after the skills.
        edits.add_to_section(&root, "skills", &skill_lines(imported, (&old_value, &new_value)))?;
        edits.add_to_profile(&root, &names, profile, &old_value)?;
    }
    for one in repeated.iter().filter(|one| !one.toolchains.is_empty()) {
        let names: Vec<String> =
            one.toolchains.iter().map(|name| toolchain_name(name, &old_value, &new_value)).collect();
        let skill = value(&root, "skills").and_then(|skills| value(skills, &one.skill));
        let list = skill.and_then(|skill| value(skill, "toolchains")).ok_or(MergeError::Layout("toolchains"))?;
        edits.add_to_list(list, &names, "toolchains")?;
    }
    edits.add_toolchains(&root, imported, (&old_value, &new_value))?;
    let text = edits.apply();
    let merged = spec::parse(text.as_bytes()).map_err(|_| MergeError::Different)?;
    let is_same = means_both(&to_value(&merged.spec), (&old_value, &new_value), (profile, repeated));
    if is_same && merged.warnings.len() <= warnings { Ok(text) } else { Err(MergeError::Different) }
}

/// Removes the skills that are not added, and the toolchains that no skill uses then.
fn remove_repeated(new: &mut Value, repeated: &[RepeatedCheck], profile: &ProfileName) {
    let is_repeated = |name: &str| repeated.iter().any(|one| one.imported == name);
    if let Some(skills) = new["skills"].as_object_mut() {
        skills.retain(|name, _| !is_repeated(name));
    }
    if let Some(list) = new["profiles"][profile.as_str()]["include"].as_array_mut() {
        list.retain(|name| !name.as_str().is_some_and(is_repeated));
    }
    let mut used: BTreeSet<String> = repeated.iter().flat_map(|one| one.toolchains.iter().cloned()).collect();
    for skill in new["skills"].as_object().into_iter().flat_map(|skills| skills.values()) {
        let names = skill["toolchains"].as_array().into_iter().flatten();
        used.extend(names.filter_map(|name| name.as_str().map(str::to_owned)));
    }
    if let Some(toolchains) = new["toolchains"].as_object_mut() {
        toolchains.retain(|name, _| used.contains(name));
    }
}

fn to_value(spec: &Spec) -> Value {
    serde_json::to_value(spec).unwrap_or_default()
}

fn keys(map: &Value) -> Vec<String> {
    map.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect()
}

/// Returns the names of the skills in a profile.
fn included(spec: &Value, profile: &ProfileName) -> Vec<Value> {
    spec["profiles"][profile.as_str()]["include"].as_array().cloned().unwrap_or_default()
}

/// Returns whether a spec has everything of the old spec, and the imported skills and toolchains.
fn means_both(
    merged: &Value,
    (old, new): (&Value, &Value),
    (profile, repeated): (&ProfileName, &[RepeatedCheck]),
) -> bool {
    let same_rest = ["version", "ignored", "defaults"].iter().all(|key| merged[key] == old[key]);
    let profiles = keys(&old["profiles"])
        .iter()
        .all(|name| name == profile.as_str() || merged["profiles"][name] == old["profiles"][name]);
    let included = included(merged, profile) == [included(old, profile), included(new, profile)].concat();
    let own = |skill: &Value| {
        let mut skill = skill.clone();
        if let Some(map) = skill.as_object_mut() {
            for key in ["env", "needs", "toolchains"].into_iter().chain(declarations::KEYS) {
                map.remove(key);
            }
        }
        skill
    };
    let count = keys(&merged["skills"]).len() == keys(&old["skills"]).len() + keys(&new["skills"]).len();
    let mut added: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for one in repeated {
        let names = one.toolchains.iter().map(|name| Value::from(toolchain_name(name, old, new)));
        added.entry(&one.skill).or_default().extend(names);
    }
    let old_skills = keys(&old["skills"]).iter().all(|name| {
        let mut expected = old["skills"][name].clone();
        if let Some(list) = expected["toolchains"].as_array_mut() {
            list.extend(added.get(name.as_str()).into_iter().flatten().cloned());
        }
        merged["skills"][name] == expected
    });
    let names_of = |skill: &Value| skill["toolchains"].as_array().cloned().unwrap_or_default();
    let new_skills = keys(&new["skills"]).iter().all(|name| {
        let (skill, imported) = (&merged["skills"][name], &new["skills"][name]);
        let expected =
            names_of(imported).into_iter().map(|tool| toolchain_name(tool.as_str().unwrap_or_default(), old, new));
        own(skill) == own(imported)
            && same_declarations((merged, skill), (new, imported))
            && names_of(skill).into_iter().eq(expected.map(Value::from))
    });
    let old_tools = keys(&old["toolchains"]).iter().all(|name| merged["toolchains"][name] == old["toolchains"][name]);
    let tools: Vec<&Value> = merged["toolchains"].as_object().into_iter().flat_map(|map| map.values()).collect();
    let new_tools = keys(&new["toolchains"]).iter().all(|name| tools.contains(&&new["toolchains"][name]));
    same_rest && profiles && included && count && old_skills && new_skills && old_tools && new_tools
}

/// Returns the name of an imported toolchain in the merged spec. A different toolchain of the old spec keeps its name.
fn toolchain_name(name: &str, old: &Value, new: &Value) -> String {
    let known = &old["toolchains"][name];
    let is_other = !known.is_null() && *known != new["toolchains"][name];
    if is_other { format!("hooks-{name}") } else { name.to_owned() }
}

/// Returns the lines of a section of a generated spec, without its key.
fn section<'t>(text: &'t str, key: &str) -> Vec<&'t str> {
    let is_head = |line: &str| line.split(" #").next().and_then(|head| head.strip_suffix(':')) == Some(key);
    let lines = text.lines().skip_while(|line| !is_head(line)).skip(1);
    lines.take_while(|line| line.starts_with(' ') || line.is_empty()).collect()
}

/// Returns the lines of the imported skills. The variables and the declarations of the imported `defaults` become those of
/// each skill, and `needs` is added or removed so that the order of the old skills does not change.
fn skill_lines(imported: &str, (old, new): (&Value, &Value)) -> Vec<String> {
    let has_needs = |spec: &Value| keys(&spec["skills"]).iter().any(|name| !spec["skills"][name]["needs"].is_null());
    let (old_needs, new_needs) = (has_needs(old), has_needs(new));
    let defaults = section(imported, "defaults").into_iter().map(|line| format!("  {line}"));
    let env: Vec<String> = defaults.filter(|line| !is_declaration(line)).collect();
    let renamed = |name: &str| {
        let plain = name.trim_matches('"');
        let merged = toolchain_name(plain, old, new);
        if merged == plain { name.to_owned() } else { merged }
    };
    let mut lines = Vec::new();
    let (mut in_toolchains, mut is_removed) = (false, false);
    for line in section(imported, "skills") {
        if let Some(name) = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')) {
            let name = name.trim_end_matches(':').trim_matches('"');
            is_removed = new["skills"].get(name).is_none();
        }
        if is_removed || is_declaration(line) {
            continue;
        }
        let is_needs = line == "    needs: []";
        let flow = line.strip_prefix("    toolchains: [").and_then(|rest| rest.strip_suffix(']'));
        let item = line.strip_prefix("      - ").filter(|_| in_toolchains);
        in_toolchains = line == "    toolchains:" || item.is_some();
        if let Some(names) = flow {
            let names: Vec<String> = names.split(", ").map(renamed).collect();
            lines.push(format!("    toolchains: [{}]", names.join(", ")));
        } else if let Some(name) = item {
            lines.push(format!("      - {}", renamed(name)));
        } else if !is_needs || old_needs {
            lines.push(line.to_owned());
        }
        if line.starts_with("  ") && !line.starts_with("   ") && line.ends_with(':') {
            lines.extend(env.iter().cloned());
            if old_needs && !new_needs {
                lines.push("    needs: []".to_owned());
            }
            let name = line.trim().trim_end_matches(':').trim_matches('"');
            lines.extend(declaration_lines(old, (new, &new["skills"][name])));
        }
    }
    lines
}

/// Insertions into a text, by byte offset.
struct Edits<'t> {
    text: &'t str,
    insertions: Vec<(usize, String)>,
}

impl<'t> Edits<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, insertions: Vec::new() }
    }

    fn add_toolchains(
        &mut self,
        root: &Node<'_>,
        imported: &str,
        (old, new): (&Value, &Value),
    ) -> Result<(), MergeError> {
        let known: BTreeSet<String> = keys(&old["toolchains"]).into_iter().collect();
        let (mut lines, mut skips) = (Vec::new(), false);
        for line in section(imported, "toolchains") {
            let name =
                line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')).and_then(|rest| rest.split_once(':'));
            let Some((name, rest)) = name else {
                lines.extend((!skips).then(|| line.to_owned()));
                continue;
            };
            let plain = name.trim_matches('"');
            let merged = toolchain_name(plain, old, new);
            skips = known.contains(plain) && merged == plain || new["toolchains"].get(plain).is_none();
            if !skips {
                let name = if merged == plain { name.to_owned() } else { merged };
                lines.push(format!("  {name}:{rest}"));
            }
        }
        if lines.is_empty() {
            return Ok(());
        }
        if value(root, "toolchains").is_some() {
            return self.add_to_section(root, "toolchains", &lines);
        }
        self.insertions.push((self.text.len(), format!("toolchains:\n{}\n", lines.join("\n"))));
        Ok(())
    }

    /// Adds names to the list of a profile, or adds the profile.
    fn add_to_profile(
        &mut self,
        root: &Node<'_>,
        names: &[String],
        profile: &ProfileName,
        old: &Value,
    ) -> Result<(), MergeError> {
        let Some(profiles) = value(root, "profiles") else {
            return self.add_beside_implicit_profile(root, names, profile, old);
        };
        let Some(include) = value(profiles, profile.as_str()).and_then(|profile| value(profile, "include")) else {
            let items = names.iter().map(|name| format!("      - {name}"));
            let lines =
                [format!("  {profile}:"), "    include:".to_owned()].into_iter().chain(items).collect::<Vec<_>>();
            return self.add_to_section(root, "profiles", &lines);
        };
        self.add_to_list(include, names, "include")
    }

    /// Adds names to the profile of a spec without profiles, which has all skills. Another profile needs both to be
    /// written.
    fn add_beside_implicit_profile(
        &mut self,
        root: &Node<'_>,
        names: &[String],
        profile: &ProfileName,
        old: &Value,
    ) -> Result<(), MergeError> {
        // An included file can have profiles.
        if value(root, "include").is_some() {
            return Err(MergeError::Layout("profiles"));
        }
        if profile.as_str() == IMPLICIT_PROFILE {
            return Ok(());
        }
        let implicit = included(old, &ProfileName::new(IMPLICIT_PROFILE).map_err(|_| MergeError::Different)?);
        let implicit = profile_field(IMPLICIT_PROFILE, implicit.iter().filter_map(Value::as_str));
        let added = profile_field(profile.as_str(), names.iter().map(String::as_str));
        self.insertions.push((self.text.len(), format!("profiles:\n{implicit}{added}")));
        Ok(())
    }

    /// Adds names to the end of a list.
    fn add_to_list(&mut self, list: &Node<'_>, names: &[String], key: &'static str) -> Result<(), MergeError> {
        let YamlValue::Seq(items) = &list.value else { return Err(MergeError::Layout(key)) };
        let last = items.last().ok_or(MergeError::Layout(key))?;
        let (start, end) = (offset(last.span.start), offset(last.span.end));
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let before = &self.text[line_start..start];
        if before.trim() == "-" {
            let lines: String = names.iter().map(|name| format!("{before}{name}\n")).collect();
            self.insertions.push((self.line_end(end), lines));
        } else {
            self.insertions.push((end, names.iter().map(|name| format!(", {name}")).collect()));
        }
        Ok(())
    }

    /// Adds lines, which are indented by two spaces, to the end of a section.
    fn add_to_section(&mut self, root: &Node<'_>, key: &'static str, lines: &[String]) -> Result<(), MergeError> {
        let YamlValue::Map(sections) = &root.value else { return Err(MergeError::Layout(key)) };
        let at = sections.iter().position(|(name, _)| name.text == key).ok_or(MergeError::Layout(key))?;
        let YamlValue::Map(entries) = &sections[at].1.value else { return Err(MergeError::Layout(key)) };
        let first = entries.first().map(|(name, _)| offset(name.span.start)).ok_or(MergeError::Layout(key))?;
        let line_start = self.text[..first].rfind('\n').map_or(0, |at| at + 1);
        let indent = &self.text[line_start..first];
        if indent.is_empty() || !indent.bytes().all(|byte| byte == b' ') {
            return Err(MergeError::Layout(key));
        }
        let end = sections.get(at + 1).map_or(self.text.len(), |(name, _)| offset(name.span.start));
        // Comments and empty lines after the section belong to the next one.
        let mut insert_at = first;
        let mut start = line_start;
        for line in self.text[line_start..end].split_inclusive('\n') {
            start += line.len();
            if line.starts_with(' ') && !line.trim().is_empty() {
                insert_at = start;
            }
        }
        let lines = lines.iter().map(|line| match line.strip_prefix("  ") {
            Some(rest) => format!("{indent}{rest}\n"),
            None => "\n".to_owned(),
        });
        self.insertions.push((insert_at, lines.collect()));
        Ok(())
    }

    fn line_end(&self, at: usize) -> usize {
        self.text[at..].find('\n').map_or(self.text.len(), |length| at + length + 1)
    }

    /// Returns the text with all insertions. A line break is added to a last line that lacks one.
    fn apply(self) -> String {
        let mut insertions = self.insertions;
        insertions.sort_by_key(|(at, _)| *at);
        let (mut text, mut done) = (String::new(), 0);
        for (at, new) in insertions {
            text.push_str(&self.text[done..at]);
            if new.ends_with('\n') && !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&new);
            done = at;
        }
        text.push_str(&self.text[done..]);
        text
    }
}

fn offset(at: u32) -> usize {
    at.try_into().unwrap_or(usize::MAX)
}

fn value<'t, 'a>(node: &'t Node<'a>, key: &str) -> Option<&'t Node<'a>> {
    let YamlValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|(name, _)| name.text == key).map(|(_, value)| value).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adopt::import::{ImportRequest, Source, import};

    fn imported() -> String {
        let config = "repos:\n- repo: https://github.com/astral-sh/ruff-pre-commit\n  rev: v0.16.0\n  hooks: [{id: ruff}, {id: ruff-format}]\n";
        let profile = ProfileName::new("pr").expect("a name");
        let request = ImportRequest { source: Source::PreCommit, file: "x", profile: &profile };
        import(config.as_bytes(), &request).expect("valid").spec.expect("a spec")
    }

    fn merge_into(existing: &str) -> Result<String, MergeError> {
        Ok(merge(existing, &imported(), &ProfileName::new("pr").expect("a name"))?.text)
    }

    const EXISTING: &str = "\
# My checks.
version: 1
toolchains:
  make: { required: [{ cmd: [make, --version] }] } # any

# Profiles.
profiles:
  pr:
    include:
      - verify.test # first
  all: { include: [verify.test] }

skills:
  # The tests.
  verify.test:
    steps:
      - { name: test, cmd: [make, test] }
";

    #[test]
    fn adds_skills_and_keeps_comments() {
        let text = merge_into(EXISTING).expect("merged");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn adds_skills_to_other_layouts() {
        let flow = "version: 1\nprofiles: { pr: { include: [verify.test] } }\nskills:\n    verify.test: { needs: [], steps: [{ name: a, cmd: a }] }";
        let text = merge_into(flow).expect("merged");
        assert!(text.contains("include: [verify.test, pre-commit.ruff, pre-commit.ruff-format]"), "{text}");
        assert!(
            text.contains("\n    pre-commit.ruff:\n      env:") && text.contains("\ntoolchains:\n  ruff:"),
            "{text}"
        );
        let other =
            EXISTING.replace("  pr:\n    include:\n      - verify.test # first\n", "").replace("make:", "ruff:");
        let text = merge_into(&other).expect("merged");
        assert!(
            text.contains("\n  pr:\n    include:\n      - pre-commit.ruff\n") && text.contains("  hooks-ruff: {"),
            "{text}"
        );
    }

    /// A spec with the checks of [`imported`], in the layout of `proctor init`.
    const WITH_RUFF: &str = "\
version: 1
toolchains:
  python: { required: [{ cmd: [ruff, --version] }] }
profiles: { pr: { include: [verify.lint, verify.format] } }
skills:
  verify.lint:
    toolchains: [python]
    steps:
      # All files.
      - name: ruff
        cmd: [\"ruff\", \"check\", \"--no-cache\", \"--no-fix\", \".\"]
        fix: [\"ruff\", \"check\", \"--exit-zero\", \"--fix\", \"--no-cache\", \".\"]

  verify.format:
    steps:
      - name: ruff_format
        files:
          types_or: [pyi, python, jupyter]
        cmd:
          - ruff
          - format
          - --check
          - --no-cache
          - --force-exclude
          - \"{files}\"
";

    #[test]
    fn omits_checks_that_the_spec_makes() {
        let text = merge_into(WITH_RUFF).expect("merged");
        insta::assert_snapshot!(text);
        assert_eq!(merge_into(&text).as_ref(), Ok(&text), "a second time, nothing changes");
        let merged = merge(WITH_RUFF, &imported(), &ProfileName::new("pr").expect("a name")).expect("merged");
        let repeated: Vec<String> =
            merged.repeated.iter().map(|one| format!("{} {}/{}", one.imported, one.skill, one.step)).collect();
        assert_eq!(repeated, ["pre-commit.ruff verify.lint/ruff", "pre-commit.ruff-format verify.format/ruff_format"]);
    }

    #[test]
    fn keeps_checks_of_other_files_and_options() {
        let excluding = WITH_RUFF.replace("types_or: [pyi, python, jupyter]", "exclude: [docs/**]");
        let options = WITH_RUFF.replace("\"--no-fix\"", "\"--no-fix\", \"--select=E\"");
        let elsewhere = WITH_RUFF.replace("    toolchains: [python]\n", "    workdir: src\n");
        let unlisted = WITH_RUFF.replace("include: [verify.lint, verify.format]", "include: [verify.format]");
        for (other, kept) in [
            (excluding, "pre-commit.ruff-format:"),
            (options, "pre-commit.ruff:"),
            (elsewhere, "pre-commit.ruff:"),
            (unlisted, "pre-commit.ruff:"),
        ] {
            let text = merge_into(&other).expect("merged");
            assert!(text.contains(&format!("\n  {kept}\n")), "{kept} in {text}");
        }
        // The tool of an environment has its own version.
        let environment = WITH_RUFF.replace("[\"ruff\"", "[\".venv/bin/ruff\"");
        let text = merge_into(&environment).expect("merged");
        assert!(text.contains(".venv/bin/ruff check --no-cache --no-fix --force-exclude {files}"), "{text}");
        assert!(text.contains("    toolchains: [python]\n"), "{text}");
    }

    #[test]
    fn refuses_what_it_cannot_merge() {
        let named = EXISTING.replace("verify.test", "pre-commit.ruff");
        assert_eq!(merge_into(&named), Err(MergeError::SkillExists("pre-commit.ruff".to_owned())));
        let flow =
            "{ version: 1, profiles: { pr: { include: [a] } }, skills: { a: { steps: [{ name: a, cmd: a }] } } }\n";
        assert!(matches!(merge_into(flow), Err(MergeError::Layout(_))));
        assert!(matches!(merge_into("version: 2\n"), Err(MergeError::InvalidSpec(_))));
    }
}
