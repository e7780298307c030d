//! Tests every spec in `fixtures/specs`: the good ones are accepted, resolve and match the schema. For the bad
//! ones, the diagnostics match the snapshot next to each file.

use std::fs;
use std::path::{Path, PathBuf};

use proctor_core::spec::{self, Diagnostic, OperatorConfig, ParsedSpec, Severity};
use proctor_core::text::digest::Sha256Hex;

fn fixtures(kind: &str) -> Vec<(String, Vec<u8>)> {
    let directory: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/specs").join(kind);
    let mut found: Vec<(String, Vec<u8>)> = fs::read_dir(&directory)
        .expect("the fixtures")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(path).expect("a fixture"))
        })
        .collect();
    found.sort();
    assert!(found.len() > 3, "no fixtures in {}", directory.display());
    found
}

fn render_diagnostics(diagnostics: &[Diagnostic]) -> String {
    let mut text = String::new();
    for problem in diagnostics {
        let position = problem.span.map_or_else(|| "-".to_owned(), |span| span.to_string());
        text.push_str(&format!("{position} {} {}: {}\n", problem.severity.as_str(), problem.code, problem.message));
        for label in &problem.labels {
            text.push_str(&format!("    {}: {}\n", label.span, label.text));
        }
        for hint in &problem.hints {
            text.push_str(&format!("    hint: {hint}\n"));
        }
    }
    text
}

fn snapshot_settings(kind: &str) -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(format!("../../fixtures/specs/{kind}"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings
}

fn parse_fixture(name: &str, bytes: &[u8]) -> ParsedSpec {
    spec::parse(bytes).unwrap_or_else(|found| panic!("{name} is refused:\n{}", render_diagnostics(&found)))
}

#[test]
fn rejects_bad_specs_with_recorded_diagnostics() {
    for (name, bytes) in fixtures("bad") {
        let found = spec::parse(&bytes).expect_err(&name);
        assert!(found.iter().any(|problem| problem.severity == Severity::Error), "{name}");
        snapshot_settings("bad").bind(|| insta::assert_snapshot!(name, render_diagnostics(&found)));
    }
}

#[test]
fn diagnostic_positions_match_offsets() {
    for (name, bytes) in fixtures("bad") {
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        for problem in spec::parse(&bytes).expect_err(&name) {
            let span = problem.span.expect("a place");
            let mark = if span.line == 1 && text.starts_with('\u{feff}') { 3 } else { 0 };
            let line_start =
                text.split_inclusive('\n').take(span.line as usize - 1).map(str::len).sum::<usize>() + mark;
            let line = &text[line_start..];
            let before = line.chars().take(span.column as usize - 1).map(char::len_utf8).sum::<usize>();
            assert_eq!(line_start + before, span.start as usize, "{name}: {problem}");
            assert!(text.get(span.start as usize..span.end as usize).is_some(), "{name}: {problem}");
        }
    }
}

#[test]
fn reports_all_problems_at_once() {
    let (_, bytes) = fixtures("bad").into_iter().find(|(name, _)| name == "everything_wrong_at_once").expect("it");
    let found = spec::parse(&bytes).expect_err("bad");
    let codes: std::collections::BTreeSet<_> = found.iter().map(|problem| problem.code).collect();
    assert!(codes.len() >= 14, "{codes:?}");
}

#[test]
fn good_specs_are_accepted_and_resolve() {
    for (name, bytes) in fixtures("good") {
        let reading = parse_fixture(&name, &bytes);
        assert_eq!(
            reading.warnings.is_empty(),
            name != "warnings",
            "{name}:\n{}",
            render_diagnostics(&reading.warnings)
        );
        for profile in reading.spec.profiles.iter().map(|(profile, _)| &profile.value) {
            let resolved =
                spec::resolve(&reading.spec, profile, &OperatorConfig::default(), Sha256Hex::digest(&bytes), 2)
                    .expect(&name);
            assert!(!resolved.plan.skills.is_empty());
        }
    }
}

#[test]
fn warnings_match_snapshot() {
    let (name, bytes) = fixtures("good").into_iter().find(|(name, _)| name == "warnings").expect("it");
    snapshot_settings("good")
        .bind(|| insta::assert_snapshot!(name.clone(), render_diagnostics(&parse_fixture(&name, &bytes).warnings)));
}

#[test]
fn good_specs_match_schema() {
    let schema = spec::schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    for (name, bytes) in fixtures("good") {
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
        let value: serde_json::Value = serde_yaml::from_slice(bytes).expect("yaml");
        let problems: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{} at {}", error, error.instance_path().as_str()))
            .collect();
        assert!(problems.is_empty(), "{name}: {problems:#?}");
    }
}

#[test]
fn schema_rejects_malformed_specs() {
    let validator = jsonschema::draft202012::new(&spec::schema()).expect("a schema");
    for name in ["missing", "crlf", "columns"] {
        let (_, bytes) = fixtures("bad").into_iter().find(|(fixture, _)| fixture == name).expect("it");
        let value: serde_json::Value = serde_yaml::from_slice(&bytes).expect("yaml");
        assert!(!validator.is_valid(&value), "{name}");
    }
}

/// The complete plan of the v1 example, which must match what v1 would have run.
#[test]
fn v1_example_resolves_to_recorded_plan() {
    let (name, bytes) = fixtures("good").into_iter().find(|(name, _)| name == "v1_full").expect("it");
    let reading = parse_fixture(&name, &bytes);
    let profile = "pr".parse().expect("a name");
    let resolved =
        spec::resolve(&reading.spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b""), 2).expect("a plan");
    snapshot_settings("good").bind(|| insta::assert_json_snapshot!("v1_full_plan", resolved.plan));
    let mut text = String::new();
    for path in resolved.provenance.paths() {
        text.push_str(&format!("{path}\n"));
        for field in resolved.provenance.step_values(path).expect("its own path") {
            text.push_str(&format!("    {} = {} ({})\n", field.field, field.value, field.origin));
        }
    }
    snapshot_settings("good").bind(|| insta::assert_snapshot!("v1_full_explained", text));
}
