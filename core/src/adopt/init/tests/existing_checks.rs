//! Tests that a draft follows the checks that a repository already has.

use super::*;

#[test]
fn tests_of_single_crates_do_not_replace_tests_of_workspace() {
    let manifest = "[workspace]\nmembers = [\"a\", \"b\"]\n";
    let ci = workflow(&[
        "make test-${{ matrix.features }}",
        "cargo test -p a -F x",
        "cargo clippy --package b -- -D warnings",
    ]);
    let files = [("Cargo.toml", manifest), ("Cargo.lock", ""), (".github/workflows/ci.yml", ci.as_str())];
    assert_eq!(
        commands(&scan_of(&files)),
        [
            "cargo clippy --workspace --all-targets --locked -- -D warnings",
            "cargo clippy --package b -- -D warnings",
            "cargo test --workspace --locked",
            "cargo test -p a -F x",
        ]
    );
    // An option of the test program is not one of cargo.
    let ci = workflow(&["cargo test --all -- -p"]);
    let files = [("Cargo.toml", manifest), ("Cargo.lock", ""), (".github/workflows/ci.yml", ci.as_str())];
    assert_eq!(commands(&scan_of(&files)), ["cargo test --all -- -p"]);
}

fn package_commands(scripts: &str, workflow_commands: &[&str]) -> Vec<String> {
    let manifest = format!(
        r#"{{ "scripts": {{ {scripts} }}, "devDependencies": {{ "prettier": "3", "typescript": "5", "eslint": "9" }} }}"#
    );
    let ci = workflow(workflow_commands);
    let files = [
        ("package.json", manifest.as_str()),
        ("package-lock.json", "{}"),
        ("tsconfig.json", "{}"),
        (".github/workflows/ci.yml", ci.as_str()),
    ];
    commands(&scan_of(&files))
}

#[test]
fn checkers_in_scripts_get_no_second_step() {
    let lint = r#""lint": "eslint . && prettier -c src test", "test": "npm run types && node --test", "types": "tsc --noEmit""#;
    assert_eq!(package_commands(lint, &[]), ["npm run lint", "npm run test"]);
    let other = r#""lint:prettier": "prettier --check src", "build": "tsc -b", "fix": "prettier --write .""#;
    assert_eq!(package_commands(other, &[]), ["npm run lint:prettier", "node_modules/.bin/tsc --noEmit"]);
    let workflow = ["npx prettier --check src", "npx tsc --noEmit -p src"];
    assert_eq!(
        package_commands(r#""prepack": "tsc --noEmit && node x.js""#, &workflow),
        ["node_modules/.bin/prettier --check src", "node_modules/.bin/tsc --noEmit -p src"]
    );
}

#[test]
fn names_settings_of_prettier_that_reject_the_spec() {
    let package = ("package.json", r#"{ "devDependencies": { "prettier": "3" } }"#);
    let notes = |config: (&str, &str)| {
        let draft = draft_spec(&scan_of(&[package, ("package-lock.json", "{}"), config])).expect("a draft");
        draft.notes.into_iter().map(|note| note.message).filter(|note| note.contains("layout")).collect::<Vec<_>>()
    };
    let note = |setting: &str| {
        vec![format!("prettier may reject the layout of `spec/verification.yaml`: its configuration sets `{setting}`")]
    };
    assert_eq!(notes((".prettierrc.json", r#"{ "singleQuote": true }"#)), note("singleQuote"));
    assert_eq!(notes((".prettierrc", "tabWidth: 4\n")), note("tabWidth"));
    assert_eq!(notes(("prettier.config.js", "export default { bracketSpacing: false };")), note("bracketSpacing"));
    assert!(notes((".prettierrc", "singleQuote: false\ntabWidth: 2\njsxSingleQuote: false\n")).is_empty());
}

#[test]
fn tools_outside_of_a_locked_environment_are_taken_from_the_machine() {
    let manifest = "[dependency-groups]\ndev = [\"pytest\"]\n[tool.ruff]\n[tool.mypy]\nfiles = [\"src\"]\n";
    let expected = ["ruff check --no-cache --no-fix .", "mypy --cache-dir=/dev/null"];
    let found = commands(&scan_of(&[("pyproject.toml", manifest), ("uv.lock", "")]));
    assert_eq!(found[..2], expected, "{found:?}");
    assert!(found[2].starts_with(".venv/bin/python -m pytest"), "{found:?}");
    // A member of a workspace of uv uses the tools of its root.
    let root = ("pyproject.toml", "[dependency-groups]\ndev = [\"ruff\"]\n");
    let found = commands(&scan_of(&[root, ("uv.lock", ""), ("pkg/pyproject.toml", "[tool.ruff]\n")]));
    assert!(found.contains(&"../.venv/bin/ruff check --no-cache --no-fix .".to_owned()), "{found:?}");
}

#[test]
fn directories_of_a_python_project_are_not_reported_as_left_out() {
    let files = [("pyproject.toml", "[tool.ruff]\n"), ("docs/requirements.txt", "sphinx\n"), ("web/tox.ini", "")];
    let draft = draft_spec(&scan_of(&files)).expect("a draft");
    assert!(draft.notes.iter().all(|note| !note.message.contains("left out")), "{:?}", draft.notes);
    let files = [("Makefile", "test:\n\ttrue\n"), ("tools/setup.py", "")];
    let draft = draft_spec(&scan_of(&files)).expect("a draft");
    assert!(draft.notes.iter().any(|note| note.message.contains("`tools` was left out")), "{:?}", draft.notes);
}

#[test]
fn mypy_checks_the_files_of_its_hook() {
    let manifest = "[tool.mypy]\nstrict = true\n";
    let hooks = "repos:\n- repo: https://github.com/pre-commit/mirrors-mypy\n  rev: v2.0.0\n  hooks:\n  - id: mypy\n    \
                 files: ^(src/|testing/)\n    args: [--strict]\n    additional_dependencies: [pytest]\n";
    let text = render_draft(&scan_of(&[("pyproject.toml", manifest), (".pre-commit-config.yaml", hooks)]));
    assert!(text.contains("cmd: [\"mypy\", \"--cache-dir=/dev/null\", \"--strict\", \"{files}\"]"), "{text}");
    assert!(text.contains("regex:^(src/|testing/)"), "{text}");
    // The paths in the configuration of mypy take precedence.
    let found = commands(&scan_of(&[
        ("pyproject.toml", "[tool.mypy]\nfiles = [\"src\"]\n"),
        (".pre-commit-config.yaml", hooks),
    ]));
    assert_eq!(found, ["mypy --cache-dir=/dev/null"]);
}
