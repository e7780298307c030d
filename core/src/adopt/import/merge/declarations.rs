//! Compares the determinism and the tier of imported skills with those that the `defaults` of the existing spec would give
//! them, and generates the lines that keep them.

use serde_json::Value;

use crate::spec::built_in;

/// The keys of a skill that `defaults` can set too.
pub(super) const KEYS: [&str; 2] = ["determinism", "tier"];

/// Returns whether a line of a generated skill sets one of the keys.
pub(super) fn is_declaration(line: &str) -> bool {
    let field = line.strip_prefix("    ").filter(|field| !field.starts_with(' '));
    field.and_then(|field| field.split_once(": ")).is_some_and(|(key, _)| KEYS.contains(&key))
}

/// Returns the lines that an imported skill needs in the existing spec to keep its determinism and its tier.
pub(super) fn declaration_lines(existing: &Value, (imported, skill): (&Value, &Value)) -> Vec<String> {
    let needed = KEYS.into_iter().filter_map(|key| {
        let declared = declared(imported, skill, key)?;
        let is_inherited = inherited(existing, key).as_ref() == Some(&declared);
        (!is_inherited).then(|| match declared {
            Value::String(text) => format!("    {key}: {text}"),
            number => format!("    {key}: {number}"),
        })
    });
    needed.collect()
}

/// Returns whether two skills, each with its spec, have the same determinism and the same tier.
pub(super) fn same_declarations((spec, skill): (&Value, &Value), (other_spec, other): (&Value, &Value)) -> bool {
    KEYS.into_iter().all(|key| {
        let own = declared(spec, skill, key);
        own.is_some() && own == declared(other_spec, other, key)
    })
}

/// Returns the value that applies to a skill; `None` if it depends on an included file.
fn declared(spec: &Value, skill: &Value, key: &str) -> Option<Value> {
    if skill[key].is_null() { inherited(spec, key) } else { Some(skill[key].clone()) }
}

/// Returns the value that applies to a skill without the key; `None` if it depends on an included file.
fn inherited(spec: &Value, key: &str) -> Option<Value> {
    let default = &spec["defaults"][key];
    if !default.is_null() {
        return Some(default.clone());
    }
    if !spec["include"].is_null() {
        return None;
    }
    match key {
        "determinism" => serde_json::to_value(built_in::DETERMINISM).ok(),
        _ => serde_json::to_value(built_in::TIER).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adopt::import::merge::{MergeError, means_both, merge, to_value};
    use crate::adopt::import::{ImportRequest, Source, import};
    use crate::model::names::ProfileName;
    use crate::spec::{self, OperatorConfig};
    use crate::text::digest::Sha256Hex;

    const KNOWN: &str = "- {repo: 'https://github.com/psf/black', rev: 24.3.0, hooks: [{id: black}]}\n";
    const UNKNOWN: &str = "- {repo: local, hooks: [{id: mine, language: system, entry: ./mine}]}\n";

    fn imported(repos: &str, profile: &ProfileName) -> String {
        let request = ImportRequest { source: Source::PreCommit, file: "x", profile };
        import(format!("repos:\n{repos}").as_bytes(), &request).expect("valid").spec.expect("a spec")
    }

    fn merge_into(existing: &str, repos: &str, profile: &str) -> Result<String, MergeError> {
        let profile = ProfileName::new(profile).expect("a name");
        Ok(merge(existing, &imported(repos, &profile), &profile)?.text)
    }

    /// Returns the determinism and the tier of each skill of the profile.
    fn planned(text: &str, profile: &str) -> Vec<String> {
        let spec = spec::parse(text.as_bytes()).expect("valid").spec;
        let profile = ProfileName::new(profile).expect("a name");
        let plan = spec::resolve(&spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b""), 1);
        let skills = plan.expect("resolves").plan.skills.into_iter();
        skills.map(|skill| format!("{} {:?} {}", skill.name, skill.determinism, skill.declared_tier)).collect()
    }

    fn existing(top: &str) -> String {
        format!("version: 1\n{top}skills:\n  test: {{ steps: [{{ name: a, cmd: a }}] }}\n")
    }

    #[test]
    fn imported_skills_keep_their_declarations() {
        let cases = [
            ("", "test D2 2"),
            ("defaults: { determinism: D1, tier: 1 }\n", "test D1 1"),
            ("defaults: { determinism: D2, tier: 2 }\n", "test D2 2"),
            ("defaults: { determinism: D0 }\n", "test D0 2"),
            ("defaults: { tier: 1 }\n", "test D2 1"),
        ];
        for (top, own) in cases {
            for repos in [KNOWN.to_owned(), UNKNOWN.to_owned(), format!("{KNOWN}{UNKNOWN}")] {
                let text = merge_into(&existing(top), &repos, "pr").expect("merged");
                let mut expected = vec![own.to_owned()];
                expected.extend(repos.contains("black").then(|| "pre-commit.black D1 1".to_owned()));
                expected.extend(repos.contains("mine").then(|| "pre-commit.mine D2 2".to_owned()));
                assert_eq!(planned(&text, "pr"), expected, "{text}");
            }
        }
    }

    #[test]
    fn only_different_values_are_written() {
        let text = merge_into(&existing("defaults: { tier: 1 }\n"), KNOWN, "pr").expect("merged");
        assert!(text.contains("    determinism: D1\n") && !text.contains("    tier:"), "{text}");
        let text = merge_into(&existing("defaults: { tier: 1 }\n"), UNKNOWN, "pr").expect("merged");
        assert!(!text.contains("    determinism:") && text.contains("    tier: 2\n"), "{text}");
    }

    #[test]
    fn values_of_included_files_cannot_apply() {
        let profiles = "include: [other.yaml]\nprofiles: { pr: { include: [test] } }\n";
        let text = merge_into(&existing(profiles), UNKNOWN, "pr").expect("merged");
        assert!(text.contains("    determinism: D2\n    tier: 2\n"), "{text}");
        // The included file can have profiles.
        assert_eq!(merge_into(&existing("include: [other.yaml]\n"), KNOWN, "pr"), Err(MergeError::Layout("profiles")));
    }

    #[test]
    fn spec_without_profiles_can_be_extended() {
        let text = merge_into(&existing(""), KNOWN, "pr").expect("merged");
        assert!(!text.contains("profiles"), "{text}");
        let text = merge_into(&text, UNKNOWN, "push").expect("merged");
        assert_eq!(planned(&text, "pr"), ["test D2 2", "pre-commit.black D1 1"]);
        assert_eq!(planned(&text, "push"), ["pre-commit.mine D2 2"]);
    }

    #[test]
    fn imported_spec_can_be_extended() {
        let first = imported(KNOWN, &ProfileName::new("pr").expect("a name"));
        let text = merge_into(&first, UNKNOWN, "pr").expect("merged");
        assert_eq!(planned(&text, "pr"), ["pre-commit.black D1 1", "pre-commit.mine D2 2"]);
        assert!(text.contains("  pre-commit.mine:\n    determinism: D2\n    tier: 2\n"), "{text}");
    }

    #[test]
    fn merged_spec_with_inherited_declarations_is_refused() {
        let profile = ProfileName::new("pr").expect("a name");
        let parse = |text: &str| to_value(&spec::parse(text.as_bytes()).expect("valid").spec);
        let old = existing("defaults: { determinism: D1, tier: 1 }\n");
        let text = merge_into(&old, UNKNOWN, "pr").expect("merged");
        let (old, new) = (parse(&old), parse(&imported(UNKNOWN, &profile)));
        assert!(means_both(&parse(&text), (&old, &new), (&profile, &[])));
        for line in ["    determinism: D2\n", "    tier: 2\n"] {
            assert!(!means_both(&parse(&text.replace(line, "")), (&old, &new), (&profile, &[])), "{line}");
        }
    }

    #[test]
    fn different_declarations_are_detected() {
        let spec = |defaults: &str| serde_json::json!({ "defaults": { "determinism": defaults, "tier": null } });
        let skill = serde_json::json!({ "determinism": null, "tier": 1 });
        assert!(same_declarations((&spec("D1"), &skill), (&spec("D1"), &skill)));
        assert!(!same_declarations((&spec("D1"), &skill), (&spec("D2"), &skill)));
        let other = serde_json::json!({ "determinism": "D1", "tier": 2 });
        assert!(!same_declarations((&spec("D1"), &skill), (&spec("D1"), &other)));
        let including = serde_json::json!({ "include": ["x"], "defaults": null });
        assert!(!same_declarations((&including, &skill), (&including, &skill)));
    }
}
