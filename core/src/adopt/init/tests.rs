//! Tests drafts: snapshots of the text for each kind of repository, and hostile repositories, which get a correct
//! spec or none.

mod ci_scripts;
mod existing_checks;
mod fixes;

use proptest::prelude::*;

use super::*;

fn scan_of(files: &[(&str, &str)]) -> RepoScan {
    let mut tree = RepoScan::default();
    for (path, text) in files {
        let content = match read_scope(path) {
            ReadScope::Name => ScannedContent::NameOnly,
            ReadScope::Script if is_template(text) => ScannedContent::Template,
            ReadScope::Script | ReadScope::Whole => ScannedContent::Text((*text).to_owned()),
        };
        tree.add_file(*path, content);
    }
    tree
}

/// Returns the same tree on a machine that has every program.
fn scan_with_programs(files: &[(&str, &str)]) -> RepoScan {
    let mut tree = scan_of(files);
    PROGRAMS.into_iter().for_each(|name| tree.add_program(name));
    tree
}

fn render_draft(tree: &RepoScan) -> String {
    let draft = draft_spec(tree).expect("a draft");
    let found: String = draft
        .projects
        .iter()
        .map(|found| format!("found {} in {}: {:?}\n", found.title, found.dir, found.files))
        .collect();
    let notes: String =
        draft.notes.iter().map(|note| format!("note: {}\n  hint: {}\n", note.message, note.hint)).collect();
    format!("{found}{notes}\n{}", draft.text)
}

/// Returns the parts of a draft that differ between repositories.
fn render_skills(tree: &RepoScan) -> String {
    let text = render_draft(tree);
    let (head, rest) = text.split_once("\n# The checks for changes").expect("the head");
    let toolchains =
        rest.split_once("toolchains:\n").expect("toolchains").1.split_once("\n\n").expect("a gap").0.to_owned();
    let env =
        rest.split_once("  env:\n").map(|(_, rest)| rest.split_once("\n\n").expect("a gap").0).unwrap_or_default();
    let profiles = rest.split_once("profiles:\n").expect("profiles").1.split_once("\n\n").expect("a gap").0;
    let skills = rest.split_once("skills:\n").expect("skills").1;
    format!("{head}\n{toolchains}\nenv:\n{env}\nprofiles:\n{profiles}\nskills:\n{skills}")
}

#[test]
fn a_crate_in_full() {
    let manifest = "[package]\nname = \"a\"\nedition = \"2024\"\n";
    insta::assert_snapshot!(render_draft(&scan_with_programs(&[
        ("Cargo.toml", manifest),
        ("Cargo.lock", ""),
        ("src/lib.rs", "")
    ])));
}

#[test]
fn commands_of_the_ci_system_win() {
    let workflow = "jobs:\n  a:\n    steps:\n      - run: cargo fmt --all --check\n      - run: cargo clippy -- -D warnings\n      \
                    - run: cargo test --features pcre2\n      - run: cargo doc --no-deps\n";
    let files =
        [("Cargo.toml", "[package]\nname = \"a\"\n"), ("Cargo.lock", ""), (".github/workflows/ci.yml", workflow)];
    insta::assert_snapshot!(render_skills(&scan_with_programs(&files)));
    let nextest = [("Cargo.toml", "[package]\nname = \"a\"\n"), ("Cargo.lock", ""), (".config/nextest.toml", "")];
    let text = render_skills(&scan_with_programs(&nextest));
    assert!(text.contains("cmd: [\"cargo\", \"nextest\", \"run\", \"--locked\"]"), "{text}");
}

fn workflow(commands: &[&str]) -> String {
    let steps: String = commands.iter().map(|command| format!("      - run: {command}\n")).collect();
    format!(
        "on: push\njobs:\n  ci:\n    runs-on: ubuntu-latest\n    steps:\n      - uses: actions/checkout@v4\n{steps}"
    )
}

/// Returns the commands of all steps of a draft.
fn commands(tree: &RepoScan) -> Vec<String> {
    let draft = draft_spec(tree).expect("a draft");
    let reading = crate::spec::parse(draft.text.as_bytes()).expect("a spec");
    let steps = reading.spec.skills.iter().flat_map(|(_, skill)| &skill.steps.value);
    steps
        .map(|step| step.cmd.as_ref().expect("a command").value.argv().map(Vec::from).expect("words").join(" "))
        .collect()
}

#[test]
fn programs_of_dependencies_that_workflows_run_become_steps() {
    let manifest = r#"{ "scripts": { "typecheck": "tsc --noEmit" }, "devDependencies": { "eslint": "9", "prettier": "3",
        "typescript": "5", "vitest": "3", "mocha": "11" } }"#;
    let ci = workflow(&[
        "npm ci && npx eslint . && npx prettier --check .",
        "npx --no-install eslint --fix .",
        "npx prettier --write .",
        "pnpm exec vitest run",
        "npx vitest",
        "npx tsc --noEmit",
        "npx stylelint .",
        "npx mocha@10",
    ]);
    let tree = scan_of(&[("package.json", manifest), ("package-lock.json", "{}"), (".github/workflows/ci.yml", &ci)]);
    let commands = commands(&tree);
    let mut sorted: Vec<&str> = commands.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [
            "node_modules/.bin/eslint .",
            "node_modules/.bin/prettier --check .",
            "node_modules/.bin/vitest run",
            "npm run typecheck"
        ]
    );
}

#[test]
fn scripts_that_workflows_run_become_steps() {
    let scripts = r#"{ "scripts": { "lint": "eslint .", "lint:css": "stylelint .", "lint:fix": "eslint . --fix",
        "test": "node --test", "test-ci": "c8 npm test", "test:e2e": "playwright test", "check:ci": "run-s lint test",
        "check:links": "node links.js", "deploy": "x", "check-env": "node --watch x" } }"#;
    let ci = workflow(&[
        "npm ci",
        "npm run lint",
        "npm run lint:css",
        "npm run lint:fix",
        "npm test",
        "npm run test-ci",
        "npm run test:e2e -- --shard 1",
        "npm run check:ci",
        "yarn check:links",
        "npm run check:links",
        "npm run check:missing",
        "npm run check-env",
        "npm run --workspaces test",
        "npm run deploy",
        "npm publish",
    ]);
    let files = [("package.json", scripts), ("package-lock.json", "{}"), (".github/workflows/ci.yml", ci.as_str())];
    insta::assert_snapshot!(render_skills(&scan_with_programs(&files)));
    let bun = workflow(&["bun install", "bun test", "bun run typecheck"]);
    let files = [
        ("package.json", r#"{ "scripts": { "typecheck": "tsc" } }"#),
        ("bun.lock", ""),
        (".github/workflows/ci.yaml", bun.as_str()),
    ];
    assert_eq!(commands(&scan_with_programs(&files)), ["bun run typecheck", "bun test"]);
}

#[test]
fn omits_aggregate_script_only_if_other_steps_run_all_its_scripts() {
    let scripts = |more: &str| {
        format!(
            r#"{{ "scripts": {{ "check": "npm run check:type && npm run check:lint && npm run check:format",
            "check:format": "prettier --check .", "check:lint": "eslint .", "check:type": "npm run check:type:js",
            "check:type:js": "tsc -p js", "test": "node --test"{more} }} }}"#
        )
    };
    let drafted = |manifest: &str, lines: &[&str]| {
        let ci = workflow(lines);
        commands(&scan_with_programs(&[("package.json", manifest), (".github/workflows/ci.yml", ci.as_str())]))
    };
    let each = ["npm run check:format", "npm run check:lint", "npm run check:type", "npm run test"];
    assert_eq!(drafted(&scripts(""), &["npm test", "npm run check"]), each);
    let more = r#", "check:all": "run-s check:lint check:links", "check:links": "node links.js",
        "check:ci": "npm run check:lint && node ci.js", "check:both": "run-s check:lint check:type:js""#;
    let lines = ["npm run check:all", "npm run check:ci", "npm run check:both"];
    let [format, lint, types, test] = each;
    let expected = [format, lint, types, "npm run check:all", "npm run check:ci", test];
    assert_eq!(drafted(&scripts(more), &lines), expected);
}

#[test]
fn checks_program_once_for_projects_with_and_without_version() {
    let project = "[tool.pytest.ini_options]\n[project]\nname = \"a\"\n";
    let newer = format!("{project}requires-python = \">=3.10\"\n");
    let text = draft_spec(&scan_with_programs(&[("a/pyproject.toml", newer.as_str()), ("b/pyproject.toml", project)]))
        .expect("a draft")
        .text;
    let checks: Vec<&str> = text.lines().filter(|line| line.contains(r#"["python3", "--version"]"#)).collect();
    assert!(checks.len() == 1 && checks[0].contains(">=3.10"), "{checks:?}");
}

#[test]
fn python_tools_that_workflows_run_become_steps() {
    let ci = workflow(&[
        "python -m pip install -e .",
        "pip install ruff",
        "ruff check --fix .",
        "ruff check src",
        "uv run --locked black --check src",
        "poetry run mypy --strict src",
        "python -m pytest tests -x --cov pkg --cov-report=xml --junitxml report.xml",
        "tox -e lint",
        "python -m build",
        "twine upload dist/*",
    ]);
    let files = [("setup.py", ""), ("tox.ini", "[testenv:lint]\n"), (".github/workflows/ci.yml", ci.as_str())];
    insta::assert_snapshot!(render_skills(&scan_with_programs(&files)));
    // A configured tool has its step already.
    let files = [("pyproject.toml", "[tool.pytest.ini_options]\n"), (".github/workflows/ci.yml", ci.as_str())];
    let commands = commands(&scan_with_programs(&files));
    assert_eq!(commands.iter().filter(|command| command.contains("pytest")).count(), 1, "{commands:?}");
}

#[test]
fn ruff_gets_each_option_once() {
    for (command, expected) in [
        ("ruff check src", "ruff check src --no-cache --no-fix"),
        ("ruff check --no-fix -n src", "ruff check --no-fix -n src"),
        ("ruff check --diff --no-cache .", "ruff check --diff --no-cache . --no-fix"),
        ("ruff format --no-cache --check .", "ruff format --no-cache --check ."),
    ] {
        let ci = workflow(&[command]);
        let files = [("setup.py", ""), (".github/workflows/ci.yml", ci.as_str())];
        assert_eq!(commands(&scan_with_programs(&files)), [expected]);
    }
}

#[test]
fn sessions_that_workflows_run_become_steps() {
    let ci =
        workflow(&["uv run --group dev tox run -e typing", "tox -e py312", "tox -e undeclared-lint", "tox -e release"]);
    let manifest = "[dependency-groups]\ndev = [\"pytest\"]\n[tool.tox.env.typing]\n[tool.tox.env.release]\n";
    let files = [("pyproject.toml", manifest), (".github/workflows/tests.yaml", ci.as_str())];
    insta::assert_snapshot!(render_skills(&scan_with_programs(&files)));
    let ci = workflow(&["nox -s lint tests-3.12", "nox --session=docs"]);
    let noxfile =
        "import nox\n@nox.session\ndef lint(session): ...\n@nox.session(python=[\"3.12\"])\ndef tests(session): ...\n";
    let files = [("noxfile.py", noxfile), (".github/workflows/tests.yaml", ci.as_str())];
    assert_eq!(commands(&scan_with_programs(&files)), ["nox -R -s lint", "nox -R -s tests-3.12"]);
}

#[test]
fn go_commands_of_workflows_win() {
    let ci = workflow(&[
        "go mod download",
        "go build ./...",
        "go vet -tags integration ./...",
        "go test -race ./...",
        "go test -race -coverprofile=c.out ./...",
        "go test ./internal",
        "golangci-lint run --timeout 5m",
        "go install example.com/tool@latest",
    ]);
    let files = [("go.mod", "module a\n"), (".github/workflows/ci.yml", ci.as_str())];
    let commands = commands(&scan_with_programs(&files));
    let run: Vec<&str> = commands.iter().filter_map(|command| Some(command.split_once("exec ")?.1)).collect();
    assert_eq!(run, ["go vet -tags integration ./...", "golangci-lint run --timeout 5m", "go test -race ./..."]);
}

#[test]
fn targets_that_workflows_make_become_steps() {
    let ci = workflow(&[
        "make",
        "make deps install",
        "make lint check-links",
        "make test",
        "make release",
        "make verify-all",
    ]);
    let makefile = "install:\ndeps:\nlint:\ncheck-links:\ntest:\nrelease:\n";
    let alone = [("Makefile", makefile), (".github/workflows/ci.yml", ci.as_str())];
    assert_eq!(commands(&scan_with_programs(&alone)), ["make lint", "make check-links", "make test"]);
    // The targets for kinds of checks that another tool covers usually call that tool.
    let with_go = [("Makefile", makefile), ("go.mod", "module a\n"), (".github/workflows/ci.yml", ci.as_str())];
    let commands = commands(&scan_with_programs(&with_go));
    let made: Vec<&String> = commands.iter().filter(|command| command.starts_with("make")).collect();
    assert_eq!(made, ["make check-links"]);
}

#[test]
fn installed_programs_add_no_checks() {
    let files = [("Cargo.toml", "[package]\nname = \"a\"\n"), ("Cargo.lock", ""), ("a.sh", "#!/bin/sh\n")];
    let text = render_skills(&scan_with_programs(&files));
    assert!(!["fmt", "clippy", "nextest", "shellcheck"].iter().any(|tool| text.contains(tool)), "{text}");
}

#[test]
fn keeps_excludes_of_pre_commit() {
    let config = "repos:\n  - repo: https://github.com/astral-sh/ruff-pre-commit\n    rev: v0.16.0\n    hooks:\n      - id: ruff\n        \
                  exclude: tests/test_lowlevel.py\n";
    let files = [("pyproject.toml", "[tool.ruff]\n"), (".pre-commit-config.yaml", config)];
    let text = render_draft(&scan_with_programs(&files));
    assert!(text.contains("exclude: [\"regex:tests/test_lowlevel.py\"]") && text.contains("import --into"), "{text}");
}

#[test]
fn a_cargo_workspace() {
    let root = "[workspace]\nmembers = [\"a\"]\nexclude = [\"fuzz\"]\n[workspace.package]\nrust-version = \"1.90\"\n\
                [workspace.lints.clippy]\nall = \"warn\"\n";
    let member = "[package]\nname = \"a\"\n";
    insta::assert_snapshot!(render_skills(&scan_with_programs(&[
        ("Cargo.toml", root),
        ("Cargo.lock", ""),
        ("a/Cargo.toml", member),
        ("fuzz/Cargo.toml", "[package]\nname = \"fuzz\"\n[workspace]\n"),
        ("lone/x/Cargo.toml", member),
    ])));
}

#[test]
fn an_npm_package() {
    let manifest = r#"{ "engines": { "node": ">=18" }, "devDependencies": { "prettier": "3", "typescript": "5" },
        "scripts": { "lint": "eslint --fix .", "lint:check": "eslint .", "test": "node --test", "x\ny: [": "z" } }"#;
    insta::assert_snapshot!(render_skills(&scan_with_programs(&[
        ("package.json", manifest),
        ("package-lock.json", "{}"),
        ("tsconfig.json", "{}"),
    ])));
}

#[test]
fn a_pnpm_workspace() {
    let member = r#"{ "scripts": { "test": "vitest", "lint": "eslint ." } }"#;
    insta::assert_snapshot!(render_skills(&scan_with_programs(&[
        ("package.json", r#"{ "scripts": { "lint": "eslint ." } }"#),
        ("pnpm-lock.yaml", ""),
        ("pnpm-workspace.yaml", "packages:\n  - 'packages/*'\n  - \"!packages/no\"\nother: 1\n"),
        ("packages/one/package.json", member),
        ("packages/two words/package.json", member),
        ("packages/no/package.json", member),
    ])));
}

#[test]
fn packages_of_yarn_and_bun_and_an_unknown_manager() {
    let scripts = r#"{ "packageManager": "yarn@4.1.0", "scripts": { "test": "jest" } }"#;
    let bun = r#"{ "scripts": { "test": "bun test" } }"#;
    insta::assert_snapshot!(render_skills(&scan_of(&[
        ("package.json", scripts),
        ("b/package.json", bun),
        ("b/bun.lock", ""),
        ("c/package.json", r#"{ "packageManager": "other@1", "scripts": { "test": "x" } }"#),
    ])));
}

#[test]
fn a_python_project() {
    let manifest = "[project]\nrequires-python = \">=3.9\"\n[dependency-groups]\ndev = [\"pytest>=8\", \"Black\"]\n\
                    [tool.ruff.format]\n[tool.mypy]\nfiles = [\"src\"]\n";
    insta::assert_snapshot!(render_skills(&scan_with_programs(&[("pyproject.toml", manifest)])));
}

#[test]
fn a_python_project_with_an_environment() {
    let manifest = "[tool.poetry.dependencies]\npython = \"^3.10\"\n[tool.poetry.group.dev.dependencies]\npytest = \"*\"\nruff = \"*\"\n";
    let mut tree = scan_with_programs(&[("a/pyproject.toml", manifest), ("poetry.lock", ""), ("venv/bin/ruff", "")]);
    tree.add_directory("venv");
    insta::assert_snapshot!(render_skills(&tree));
    let expected = scan_with_programs(&[("a/pyproject.toml", manifest), ("a/uv.lock", "")]);
    insta::assert_snapshot!(render_skills(&expected));
}

#[test]
fn a_go_module() {
    insta::assert_snapshot!(render_skills(&scan_with_programs(&[
        ("go.mod", "module example.com/a\n\ngo 1.22\n"),
        ("a.go", "")
    ])));
}

#[test]
fn a_makefile() {
    let makefile = ".PHONY: test\ntest: lint\n\t./test.sh\nlint:\n\t./lint.sh\n";
    insta::assert_snapshot!(render_skills(&scan_with_programs(&[("Makefile", makefile)])));
}

#[test]
fn shell_scripts() {
    insta::assert_snapshot!(render_skills(&scan_with_programs(&[
        ("a.sh", "#!/bin/sh\n"),
        ("b/c.sh", "#!/bin/dash\nx")
    ])));
    let bash = scan_of(&[("a.sh", "#!/usr/bin/env bash\n"), (".shellcheckrc", "")]);
    insta::assert_snapshot!(render_skills(&bash));
}

#[test]
fn templates_and_test_data_are_not_shell_scripts() {
    let template = "#!/bin/sh\nunset <%= NAMES %>\n";
    let mut tree = scan_with_programs(&[("a.sh", "#!/bin/sh\n"), ("b/[c].sh", template)]);
    tree.add_directory("test/fixtures");
    let text = render_draft(&tree);
    assert!(text.contains(r#"exclude: ["**/fixtures/**", "b/[[]c[]].sh"]"#), "{text}");
    let only = draft_spec(&scan_with_programs(&[("c.sh", template)]));
    assert!(matches!(only, Err(InitError::NoProjects { .. })), "{only:?}");
}

#[test]
fn several_projects() {
    insta::assert_snapshot!(render_skills(&scan_of(&[
        ("Cargo.toml", "[package]\nname = \"a\"\n"),
        ("Makefile", "test:\n\tcargo test\n"),
        ("web/package.json", r#"{ "scripts": { "test": "node --test", "lint": "node lint.js" } }"#),
        ("web/go.mod", "module a\n"),
        ("Web/go.mod", "module b\n"),
        ("we\nb/go.mod", "module c\n"),
        ("node_modules/x/readme", ""),
    ])));
}

#[test]
fn reports_skipped_projects_if_none_is_usable() {
    assert_eq!(draft_spec(&RepoScan::default()), Err(InitError::NoProjects { notes: Vec::new() }));
    let mut tree =
        scan_of(&[("Cargo.toml", "not toml ["), ("a/package.json", "[]"), ("pyproject.toml", "[project]\n")]);
    tree.add_file("b/package.json", ScannedContent::Unreadable("is larger than 1 byte".to_owned()));
    let Err(InitError::NoProjects { notes }) = draft_spec(&tree) else { panic!("something was found") };
    let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn limits_number_of_projects() {
    let mut tree = RepoScan::default();
    for number in 0..MAX_PROJECTS + 5 {
        tree.add_file(format!("m{number:03}/go.mod"), ScannedContent::Text("module a\n".to_owned()));
    }
    let draft = draft_spec(&tree).expect("a draft");
    assert_eq!(draft.projects.len(), MAX_PROJECTS);
    assert!(draft.notes.iter().any(|note| note.message.starts_with("5 more projects")), "{:?}", draft.notes);
}

/// Generates files with known names and varied contents.
fn generated_file() -> impl Strategy<Value = (String, String)> {
    let names = [
        "Cargo.toml",
        "package.json",
        "pyproject.toml",
        "go.mod",
        "Makefile",
        "a.sh",
        "setup.cfg",
        "yarn.lock",
        "pnpm-workspace.yaml",
        "tox.ini",
        "noxfile.py",
    ];
    let dir = prop_oneof![
        3 => Just(String::new()),
        2 => "[a-z]{1,3}",
        2 => "[ -~]{1,8}",
        1 => "\\PC{1,6}",
        1 => any::<String>(),
    ];
    let text = prop_oneof![
        Just("[package]\nname = \"a\"\nedition = \"2021\"\n[workspace]\n".to_owned()),
        Just(r#"{"scripts":{"test":"x","lint":"y"},"workspaces":["**"],"engines":{"node":">=1 #"},"dependencies":{"prettier":"1"}}"#.to_owned()),
        "\\{\"scripts\":\\{\"test\":\"[ -!#-\\[\\]-~]{0,12}\"\\},\"engines\":\\{\"node\":\"[ -!#-\\[\\]-~]{0,8}\"\\}\\}",
        "\\[project\\]\nrequires-python = '[ -&(-~]{0,8}'\n\\[tool.pytest\\]\n",
        "(test|lint|check): [ -~]{0,12}\n",
        "go [ -~]{0,8}\n",
        "#![ -~]{0,20}\n",
        any::<String>(),
    ];
    (dir, prop::sample::select(names.to_vec()), text)
        .prop_map(|(dir, name, text)| (path_text::join(dir.trim_matches('/'), name), text))
}

proptest! {
    /// Any repository gets a spec that parses as intended, or an error.
    #[test]
    fn drafts_parse_as_intended(files in prop::collection::vec(generated_file(), 0..8), programs in any::<bool>()) {
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let tree = if programs { scan_with_programs(&files) } else { scan_of(&files) };
        match draft_spec(&tree) {
            Ok(draft) => prop_assert!(crate::spec::parse(draft.text.as_bytes()).is_ok_and(|reading| reading.warnings.is_empty())),
            Err(InitError::NoProjects { .. }) => {}
            Err(InitError::InvalidDraft(why)) => prop_assert!(false, "{why}"),
        }
    }

    /// The parser reads any quoted text back unchanged.
    #[test]
    fn quoted_text_reads_back(value in any::<String>().prop_filter("no environment holds it", |text| !text.contains('\0'))) {
        let spec = format!(
            "version: 1\nprofiles: {{ p: {{ include: [s] }} }}\nskills: {{ s: {{ steps: [{{ name: a, cmd: [x, {}] }}] }} }}\n",
            spec_text::quote_yaml(&value)
        );
        let reading = crate::spec::parse(spec.as_bytes()).map_err(|found| TestCaseError::fail(format!("{found:?}")))?;
        let (_, skill) = reading.spec.skills.iter().next().expect("a skill");
        let argv: Vec<String> = skill.steps.value[0].cmd.as_ref().expect("a command").value.argv().expect("words").into();
        prop_assert_eq!(&argv[1], &value);
    }
}
