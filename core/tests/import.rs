//! Imports published configurations and hostile ones: each hook is either imported or listed, and the generated
//! spec is valid.

use std::path::{Path, PathBuf};

use proctor_core::adopt::import::{ImportError, ImportRequest, ImportResult, Source, detect, import};
use proctor_core::model::names::ProfileName;
use proctor_core::model::plan::Determinism;
use proctor_core::model::tier::Tier;
use proctor_core::spec::{self, OperatorConfig};
use proctor_core::text::digest::Sha256Hex;
use proptest::prelude::*;
use serde_yaml::Value;

fn fixtures(source: Source) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/import").join(source.as_str());
    let found = std::fs::read_dir(&dir).expect("the fixtures").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = found.collect();
    found.sort();
    found
}

fn profile() -> ProfileName {
    ProfileName::new("pr").expect("a name")
}

fn import_bytes(source: Source, file: &str, bytes: &[u8]) -> Result<ImportResult, ImportError> {
    import(bytes, &ImportRequest { source, file, profile: &profile() })
}

fn import_text(source: Source, text: &str) -> ImportResult {
    import_bytes(source, "hooks.yaml", text.as_bytes()).unwrap_or_else(|error| panic!("{error:?}\n{text}"))
}

/// Imports a pre-commit configuration with a single hook; returns its command, or the reason why it was not
/// imported.
fn import_local_hook(hook: &str) -> Result<Vec<String>, String> {
    import_single_hook(Source::PreCommit, &format!("repos: [{{repo: local, hooks: [{hook}]}}]\n"))
}

fn import_single_hook(source: Source, text: &str) -> Result<Vec<String>, String> {
    let imported = import_text(source, text);
    assert_eq!(imported.imported.len() + imported.skipped.len(), 1, "{imported:#?}");
    match imported.skipped.first() {
        Some(left) => Err(left.reason.clone()),
        None => {
            let spec = spec::parse(imported.spec.expect("a spec").as_bytes()).expect("a good one").spec;
            let skill = &spec.skills.iter().next().expect("a skill").1;
            Ok(skill.steps.value[0].cmd.as_ref().expect("a command").value.argv().expect("words").words().to_vec())
        }
    }
}

/// Returns the hooks of a configuration by an independent parser.
fn expected_hook_names(source: Source, text: &str) -> Vec<String> {
    let mut root: Value = serde_yaml::from_str(text).expect("YAML");
    root.apply_merge().expect("merges");
    let mut names = Vec::new();
    match source {
        Source::PreCommit => {
            let repos = root["repos"].as_sequence().expect("a list").iter();
            let hooks = repos.flat_map(|repo| repo["hooks"].as_sequence().expect("a list"));
            names.extend(hooks.map(|hook| hook["id"].as_str().expect("an id").to_owned()));
        }
        Source::Lefthook => {
            let map = root.as_mapping().expect("a map");
            map.values().for_each(|hook| collect_job_names(hook, &mut names));
        }
    }
    names.sort();
    names
}

fn collect_job_names(holder: &Value, names: &mut Vec<String>) {
    for key in ["commands", "scripts"] {
        let named = holder.get(key).and_then(Value::as_mapping).into_iter().flat_map(|map| map.keys());
        names.extend(named.map(|name| name.as_str().expect("a name").to_owned()));
    }
    for job in holder.get("jobs").and_then(Value::as_sequence).into_iter().flatten() {
        match job.get("group") {
            Some(group) => collect_job_names(group, names),
            None => {
                let name = ["name", "run", "script"].iter().find_map(|key| job.get(key)?.as_str());
                names.push(name.expect("a job has one of these").to_owned());
            }
        }
    }
}

#[test]
fn imports_or_lists_every_published_hook() {
    for source in [Source::PreCommit, Source::Lefthook] {
        for path in fixtures(source) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("read");
            let result =
                import_bytes(source, &name, text.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error:#?}"));
            let reported =
                result.imported.iter().map(|one| &one.name).chain(result.skipped.iter().map(|one| &one.name));
            let mut reported_names: Vec<String> = reported.cloned().collect();
            reported_names.sort();
            assert_eq!(reported_names, expected_hook_names(source, &text), "{name}");
            assert_eq!(detect(text.as_bytes()), Ok(Some(source)), "{name}");
            let spec = result.spec.expect("at least one hook is imported");
            assert_eq!(spec::parse(spec.as_bytes()).expect("a spec").warnings, [], "{name}");
            let imported = result.imported.iter().map(|one| {
                format!(
                    "{} (line {}) -> {}/{} {:?} {:?}\n",
                    one.name, one.line, one.skill, one.step, one.tools, one.notes
                )
            });
            let left = result.skipped.iter().map(|one| format!("{} (line {}): {}\n", one.name, one.line, one.reason));
            let settings = result.settings.iter().map(|one| format!("{}: {}\n", one.key, one.note));
            let lists: String = imported
                .chain(["left\n".to_owned()])
                .chain(left)
                .chain(["settings\n".to_owned()])
                .chain(settings)
                .collect();
            let stem = name.split('.').next().expect("a stem");
            insta::assert_snapshot!(format!("{}_{stem}", source.as_str()), format!("{lists}---\n{spec}"));
        }
    }
}

#[test]
fn imported_configuration_of_flask_is_short() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/import/pre-commit/flask.yaml");
    let text = std::fs::read_to_string(path).expect("the fixture");
    let result = import_text(Source::PreCommit, &text);
    let (spec, hooks) = (result.spec.expect("a spec"), result.imported.len());
    assert_eq!((hooks, result.skipped.len()), (9, 0));
    assert!(spec.lines().count() <= 80, "{} lines:\n{spec}", spec.lines().count());
    assert!(spec.contains("version: \"^0.15.9\""), "{spec}");
    let parsed = spec::parse(spec.as_bytes()).expect("valid").spec;
    let resolved = spec::resolve(&parsed, &profile(), &OperatorConfig::default(), Sha256Hex::digest(b""), 1);
    for skill in resolved.expect("resolves").plan.skills {
        assert_eq!((skill.determinism, skill.declared_tier), (Determinism::D1, Tier::ONE), "{}", skill.name);
    }
}

/// Only checks of known tools are deterministic and of tier 1.
#[test]
fn one_unknown_hook_keeps_declarations_out_of_defaults() {
    let text = "repos:\n- {repo: local, hooks: [{id: x, language: system, entry: ./x}]}\n\
                - {repo: 'https://github.com/psf/black', rev: 24.3.0, hooks: [{id: black}]}\n";
    let text = import_text(Source::PreCommit, text).spec.expect("a spec");
    let parsed = spec::parse(text.as_bytes()).expect("valid").spec;
    let defaults = parsed.defaults.as_ref();
    assert!(defaults.is_none_or(|defaults| defaults.determinism.is_none() && defaults.tier.is_none()), "{text}");
    let resolved = spec::resolve(&parsed, &profile(), &OperatorConfig::default(), Sha256Hex::digest(b""), 1);
    let plan = resolved.expect("resolves").plan;
    let declared: Vec<_> = plan.skills.iter().map(|skill| (skill.determinism, skill.declared_tier)).collect();
    assert_eq!(declared, [(Determinism::D2, Tier::TWO), (Determinism::D1, Tier::ONE)]);
}

#[test]
fn only_profiles_other_than_pr_are_written() {
    let config = b"repos: [{repo: 'https://github.com/psf/black', rev: 24.3.0, hooks: [{id: black}]}]\n";
    for (name, is_written) in [("pr", false), ("push", true)] {
        let profile = ProfileName::new(name).expect("a name");
        let request = ImportRequest { source: Source::PreCommit, file: "x", profile: &profile };
        let text = import(config, &request).expect("valid").spec.expect("a spec");
        assert_eq!(text.contains("\nprofiles:\n"), is_written, "{text}");
        let parsed = spec::parse(text.as_bytes()).expect("valid").spec;
        let profiles: Vec<&str> = parsed.profiles.keys().collect();
        assert_eq!(profiles, [name]);
    }
}

#[test]
fn preserves_command_words() {
    let whole =
        |hook: &str| import_local_hook(&format!("{{id: x, language: system, pass_filenames: false, entry: {hook}}}"));
    assert_eq!(
        whole("'bash -c ''a \"$1\" | b; exit 3'' -- \"it''s\"'"),
        Ok(to_strings(&["bash", "-c", "a \"$1\" | b; exit 3", "--", "it's"]))
    );
    assert_eq!(whole("\"printf '\\\\u2028 \\\\x01 é'\""), Ok(to_strings(&["printf", "\\u2028 \\x01 é"])));
    let script = "{id: x, language: script, entry: check.sh, pass_filenames: false, args: ['--a b', '$X', '#']}";
    assert_eq!(import_local_hook(script), Ok(to_strings(&["./check.sh", "--a b", "$X", "#"])));
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn lists_unsupported_hooks_with_reason() {
    let cases = [
        ("{id: x, language: system, entry: a, files: '(a'}", "not a regular expression"),
        ("{id: x, language: system, entry: a, exclude: '[[a]'}", "inside of brackets"),
        ("{id: x, language: system, entry: a, types: [frobnicate]}", "`frobnicate`"),
        ("{id: x, language: fail, entry: a, types: [directory]}", "submodules"),
        ("{id: x, language: system, entry: 'a {files}'}", "stands for the files"),
        ("{id: x, language: fail, entry: '{files}'}", "stands for the files"),
        ("{id: x, language: docker, entry: a}", "container daemon"),
        ("{id: x, language: system, entry: \"a 'b\"}", "inside a quote"),
        ("{id: x, language: system, entry: ''}", "empty"),
        ("{id: x, language: system}", "no `entry`"),
        ("{id: x, entry: a}", "no `language`"),
        ("{id: x, language: system, entry: a, stages: [commit-msg]}", "commit-msg"),
        ("{id: x, language: system, entry: a, stages: [manual]}", "manual"),
        ("{id: x, language: system, entry: a, colour: red}", "`colour`"),
        ("{id: x, language: system, entry: a, args: {b: c}}", "not a list of texts"),
        ("{id: x, language: system, entry: a, pass_filenames: perhaps}", "neither true nor false"),
        ("{id: x, language: system, entry: npx lint-staged}", "staged"),
        ("{id: x, language: system, entry: docker run x}", "daemon"),
        ("{id: x, language: python, entry: a, additional_dependencies: [b]}", "`b`"),
        ("{id: x, language: pygrep, entry: a, args: [--frobnicate]}", "`--frobnicate`"),
        ("[]", "a hook is a map"),
        ("{}", "no `id`"),
    ];
    for (hook, reason) in cases {
        let left = import_local_hook(hook).expect_err(hook);
        assert!(left.contains(reason), "{hook}: {left}");
    }
}

/// Imports one hook of a public repository. Returns its spec and its notes, or the reason why it is skipped.
fn import_public_hook(repo: &str, rev: &str, hook: &str) -> Result<(String, String), String> {
    let text = format!("repos: [{{repo: 'https://github.com/{repo}', rev: {rev}, hooks: [{hook}]}}]\n");
    let result = import_text(Source::PreCommit, &text);
    match result.skipped.first() {
        Some(left) => Err(left.reason.clone()),
        None => Ok((result.spec.expect("a spec"), result.imported[0].notes.join("; "))),
    }
}

#[test]
fn pygrep_hooks_search_for_the_expression_of_their_version() {
    let noqa = |rev: &str| import_public_hook("pre-commit/pygrep-hooks", rev, "{id: python-check-blanket-noqa}");
    let (spec, notes) = noqa("v1.10.0").expect("imported");
    assert!(spec.contains("(?i)# noqa(?!: )") && spec.contains("types: [python]"), "{spec}");
    assert_eq!(notes, "");
    assert!(!noqa("v1.4.0").expect("imported").0.contains("(?i)"));
    assert!(noqa("v1.0.0").expect_err("it did not exist").contains("is not read"));
    let (spec, notes) = noqa("0123abc").expect("imported");
    assert!(spec.contains("(?i)") && notes.contains("newest known expression"), "{notes}");
    let (spec, _) = import_public_hook(
        "pre-commit/pygrep-hooks",
        "v1.10.0",
        "{id: text-unicode-replacement-char, args: [--multiline]}",
    )
    .expect("imported");
    assert!(spec.contains("re.DOTALL") && !spec.contains('\u{fffd}'), "{spec}");
}

#[test]
fn hooks_of_uv_zizmor_vulture_and_blacken_docs_are_imported() {
    let import = |repo, rev, hook: &str| import_public_hook(repo, rev, hook);
    let (lock, _) = import("astral-sh/uv-pre-commit", "0.9.8", "{id: uv-lock}").expect("imported");
    assert!(lock.contains("cmd: [uv, lock, --locked]") && lock.contains("fix: [uv, lock]"), "{lock}");
    assert!(lock.contains("version: \"^0.9.8\"") && lock.contains("UV_OFFLINE: \"true\""), "{lock}");
    let (export, notes) = import("astral-sh/uv-pre-commit", "0.9.8", "{id: uv-export}").expect("imported");
    assert!(export.contains(r#"[uv, export, --frozen, "--output-file=requirements.txt", --quiet]"#), "{export}");
    assert!(notes.contains("changes count as drift"), "{notes}");
    for (id, reason) in [("pip-compile", "a package index"), ("uv-audit", "vulnerabilities"), ("uv-sync", "checkout")] {
        let left = import("astral-sh/uv-pre-commit", "0.9.8", &format!("{{id: {id}}}")).expect_err(id);
        assert!(left.contains(reason), "{left}");
    }
    let (zizmor, _) = import("woodruffw/zizmor-pre-commit", "v1.22.0", "{id: zizmor}").expect("imported");
    assert!(zizmor.contains("cmd: [zizmor, --no-progress, \"{files}\"]"), "{zizmor}");
    let (vulture, _) = import("jendrikseipp/vulture", "v2.14", "{id: vulture}").expect("imported");
    assert!(vulture.contains("cmd: [vulture]") && vulture.contains("types: [python]"), "{vulture}");
    let hook = "{id: blacken-docs, additional_dependencies: [black==24.1.0]}";
    let (docs, notes) = import("adamchainz/blacken-docs", "1.19.1", hook).expect("imported");
    assert!(docs.contains("cmd: [blacken-docs, \"{files}\"]"), "{docs}");
    assert!(notes.contains("installed black, not with `black==24.1.0`"), "{notes}");
    let hook = "{id: blacken-docs, additional_dependencies: [black, cython]}";
    assert!(import("adamchainz/blacken-docs", "1.19.1", hook).expect_err("another package").contains("cython"));
}

#[test]
fn empty_list_of_types_selects_links() {
    let hook = |keys: &str| {
        let text = format!("repos: [{{repo: local, hooks: [{{id: x, language: system, entry: a, {keys}}}]}}]\n");
        let imported = import_text(Source::PreCommit, &text);
        let spec = imported.spec.expect("a spec");
        let rules = spec.lines().find_map(|line| line.trim().strip_prefix("files: ")).expect("files").to_owned();
        (rules, imported.imported[0].notes.join("; "))
    };
    assert_eq!(hook("types: [], types_or: [symlink]"), ("{ types: [symlink] }".to_owned(), String::new()));
    assert_eq!(hook("types: [], types_or: [python]"), ("{ types_or: [python] }".to_owned(), String::new()));
    assert_eq!(hook("types: [], exclude_types: [symlink]"), ("{}".to_owned(), String::new()));
    for keys in ["types: []", "types: [], types_or: [symlink, python]"] {
        assert!(hook(keys).1.contains("symbolic links"), "{keys}");
    }
}

#[test]
fn file_types_of_lefthook_become_types() {
    let job = |kinds: &str| format!("pre-commit: {{jobs: [{{run: 'a {{staged_files}}', file_types: [{kinds}]}}]}}\n");
    for (kinds, rules) in [("binary", "[binary]"), ("symlink", "[symlink]"), ("text, not symlink", "[text]")] {
        let spec = import_text(Source::Lefthook, &job(kinds)).spec.expect("a spec");
        assert!(spec.contains(&format!("files: {{ types: {rules} }}")), "{spec}");
    }
    for kinds in ["symlink, text", "text/x-sh"] {
        let left = import_single_hook(Source::Lefthook, &job(kinds)).expect_err(kinds);
        assert!(left.contains("file_types"), "{left}");
    }
}

#[test]
fn empty_list_of_stages_means_default_stages() {
    let hook = "{id: x, language: system, entry: a, stages: []}";
    let text = format!("default_stages: [manual]\nrepos: [{{repo: local, hooks: [{hook}]}}]\n");
    assert!(import_single_hook(Source::PreCommit, &text).expect_err("left").contains("manual"));
}

#[test]
fn untranslatable_global_pattern_skips_hooks_with_files() {
    let text = "exclude: '[[a]'\nrepos: [{repo: local, hooks: [{id: x, language: system, entry: a}]}]\n";
    assert!(import_single_hook(Source::PreCommit, text).expect_err("left").contains("for all hooks, the `exclude`"));
}

#[test]
fn piped_groups_of_two_hooks_become_two_skills() {
    let group = |word: &str| {
        format!("{{jobs: [{{group: {{piped: true, jobs: [{{run: test -f {word}1}}, {{run: test -f {word}2}}]}}}}]}}")
    };
    let text = format!("pre-commit: {}\npre-push: {}\n", group("a"), group("b"));
    let imported = import_text(Source::Lefthook, &text);
    assert_eq!(imported.skipped.len(), 0, "{imported:#?}");
    let spec = spec::parse(imported.spec.expect("a spec").as_bytes()).expect("a good one").spec;
    let steps: Vec<usize> = spec.skills.iter().map(|(_, skill)| skill.steps.value.len()).collect();
    assert_eq!(steps, [2, 2]);
}

#[test]
fn converts_hook_names_to_unique_skill_names() {
    let hooks = ["'a b'", "'a-b'", "A-B", "'é'", "\"x\\ny\"", "'*'", "yes", "'-'", "'..'"];
    let hooks: Vec<String> =
        hooks.iter().map(|id| format!("{{id: {id}, language: system, entry: a, pass_filenames: false}}")).collect();
    let text = format!("repos: [{{repo: local, hooks: [{}]}}]\n", hooks.join(", "));
    let imported = import_text(Source::PreCommit, &text);
    let names: Vec<&str> = imported.imported.iter().map(|one| one.skill.as_str()).collect();
    assert_eq!(
        names,
        ["a-b", "a-b-2", "A-B-3", "check", "x-y", "check-2", "yes", "check-3", "check-4"]
            .map(|name| format!("pre-commit.{name}"))
    );
}

#[test]
fn rejects_invalid_configurations() {
    let deep = format!("repos: {}{}", "[".repeat(200), "]".repeat(200));
    let mut bomb = String::from("a0: &a0 [x, x]\n");
    (1..40).for_each(|n| bomb.push_str(&format!("a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1)));
    bomb.push_str("repos: *a39\n");
    let long = format!("t: &t '{}'\nrepos:\n{}", "x".repeat(100_000), "- *t\n".repeat(1000));
    let large = " ".repeat(spec::MAX_BYTES + 1);
    let texts = [
        "",
        "[]",
        "5",
        "repos: 5",
        "a: b",
        "repos: [5]",
        "repos: [{repo: local}]",
        "repos: [{hooks: []}]",
        "repos: [*x]",
        "a: &a [*a]\nrepos: []",
        "repos: []\nrepos: []",
        "a: !x b",
        "%YAML 1.1\n---\na: b",
        "repos: []\n---\nb: c",
        "\u{1}",
        deep.as_str(),
        bomb.as_str(),
        long.as_str(),
        large.as_str(),
    ];
    for text in texts {
        let start: String = text.chars().take(40).collect();
        match import_bytes(Source::PreCommit, "f", text.as_bytes()) {
            Err(ImportError::InvalidConfig(diagnostics)) => assert!(!diagnostics.is_empty(), "{start}"),
            other => panic!("{start}: {other:?}"),
        }
    }
    for text in [
        "[]",
        "pre-commit: 5",
        "pre-commit: {jobs: 5}",
        "glob_matcher: x",
        "pre-commit: {commands: {a: {priority: x}}}",
    ] {
        assert!(
            matches!(import_bytes(Source::Lefthook, "f", text.as_bytes()), Err(ImportError::InvalidConfig(_))),
            "{text}"
        );
    }
    assert!(matches!(import_bytes(Source::PreCommit, "f", b"\xff"), Err(ImportError::InvalidConfig(_))));
}

#[test]
fn returns_no_spec_without_imported_hooks() {
    let nothing = import_text(Source::PreCommit, "repos: []\n");
    assert_eq!((nothing.spec, nothing.imported.len(), nothing.skipped.len()), (None, 0, 0));
    assert_eq!(import_text(Source::Lefthook, "colors: false\n").spec, None);
}

#[test]
fn rejects_too_many_hooks() {
    let hook = "- {id: x, language: system, entry: a}\n";
    let text = format!("repos:\n- repo: local\n  hooks:\n{}", format!("  {hook}").repeat(9_000));
    assert!(matches!(import_bytes(Source::PreCommit, "f", text.as_bytes()), Err(ImportError::InvalidSpec { .. })));
}

/// Generates text with characters that are special in YAML, shells, sed or regular expressions.
fn special_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-z]{1,4}",
        proptest::sample::select(vec![
            "'",
            "\"",
            "\\",
            "$",
            "`",
            "{",
            "}",
            "[",
            "]",
            "(",
            ")",
            "|",
            "&",
            ";",
            "#",
            ":",
            "- ",
            ",",
            "*",
            "?",
            "^",
            "+",
            ".",
            "~",
            "!",
            "%",
            "\n",
            "\t",
            "\u{1}",
            "\u{85}",
            "\u{2028}",
            "é",
            " ",
            "{staged_files}",
            "{files}",
            "(?i)",
            "--",
        ])
        .prop_map(str::to_owned),
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn imports_or_lists_any_hook(
        id in special_text(), entry in special_text(), arg in special_text(), files in special_text(), name in special_text(), language in 0..4_usize,
    ) {
        let language = ["system", "pygrep", "fail", "script"][language];
        let hook = serde_json::json!({
            "id": id, "name": name, "entry": entry, "args": [arg], "files": files, "language": language,
        });
        let text = serde_json::json!({ "repos": [{ "repo": "local", "hooks": [hook] }] }).to_string();
        if let Ok(imported) = import_bytes(Source::PreCommit, &name, escape_for_yaml(&text).as_bytes()) {
            prop_assert_eq!(imported.imported.len() + imported.skipped.len(), 1);
        } else {
            prop_assert!(false, "{}", text);
        }
    }

    #[test]
    fn imports_or_lists_any_job(
        name in special_text(), run in special_text(), glob in special_text(), exclude in special_text(), root in special_text(), value in special_text(),
    ) {
        let job = serde_json::json!({
            "name": name, "run": run, "glob": glob, "exclude": exclude, "root": root, "env": { "A": value }, "fail_text": run,
        });
        let text = serde_json::json!({ "pre-commit": { "jobs": [job] } }).to_string();
        match import_bytes(Source::Lefthook, &name, escape_for_yaml(&text).as_bytes()) {
            Ok(imported) => prop_assert_eq!(imported.imported.len() + imported.skipped.len(), 1),
            Err(error) => prop_assert!(false, "{:?}\n{}", error, text),
        }
    }
}

/// Escapes the characters in JSON that YAML requires to be escaped.
fn escape_for_yaml(json: &str) -> String {
    let out = json.chars().map(|c| match c {
        c if c.is_control() || c == '\u{2028}' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    out.collect()
}
