//! Tests `proctor init`: each kind of repository gets a valid spec that passes if the tool is installed, and fails if
//! the repository is broken. Hostile repositories must not cause harm.

use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("init::every_kind_of_project_gets_a_valid_spec", every_template_gets_valid_spec),
    case("init::a_cargo_crate_passes_and_fails", cargo_crate).needs(&[Needs::Sandbox, Needs::Cargo, NEEDS_CC]),
    case("init::a_cargo_workspace_passes_and_fails", cargo_workspace)
        .needs(&[Needs::Sandbox, Needs::Cargo, NEEDS_CC])
        .long(),
    case("init::an_npm_package_passes_and_fails", npm_package).needs(&[Needs::Sandbox, NEEDS_NODE, NEEDS_NPM]),
    case("init::a_pnpm_workspace_passes_and_fails", pnpm_workspace).needs(&[Needs::Sandbox, NEEDS_NODE, NEEDS_PNPM]),
    case("init::a_python_project_passes_and_fails", python_project).needs(&[Needs::Sandbox, NEEDS_PYTEST]),
    case("init::a_go_module_passes_and_fails", go_module).needs(&[Needs::Sandbox, NEEDS_GO]).long(),
    case("init::a_makefile_passes_and_fails", makefile_project).needs(&[Needs::Sandbox, NEEDS_MAKE]),
    case("init::checks_of_workflows_pass_and_fail", workflow_targets).needs(&[Needs::Sandbox, NEEDS_MAKE]),
    case("init::shell_scripts_pass_and_fail", shell_scripts).needs(&[Needs::Sandbox]),
    case("", shell_scripts).unprivileged("init::shell_scripts_pass_and_fail_as_a_user").long(),
    case("init::several_projects_pass_and_fail", several_projects).needs(&[
        Needs::Sandbox,
        NEEDS_NODE,
        NEEDS_NPM,
        NEEDS_MAKE,
    ]),
    case("init::missing_tool_makes_runs_inconclusive", missing_tool_is_inconclusive).needs(&[
        Needs::Sandbox,
        NEEDS_PYTHON3,
        NEEDS_BLACK_MISSING,
    ]),
    dry_case("init::existing_spec_is_replaced_only_with_force", existing_spec_is_kept_without_force),
    dry_case("init::obstacles_at_the_spec_path_are_reported", obstacles_at_spec_path_are_reported),
    dry_case("", unwritable_repository_is_reported).unprivileged("init::unwritable_repository_is_reported"),
    dry_case("init::unrecognised_project_gets_no_spec", unrecognised_project_gets_no_spec),
    dry_case("init::directory_without_git_is_refused", directory_without_git_is_refused),
    dry_case("init::hostile_repository_is_read_within_bounds", hostile_repository_is_read_within_bounds),
];

const NEEDS_CC: Needs = Needs::WorkingCommand(&["cc", "--version"]);
const NEEDS_NODE: Needs = Needs::WorkingCommand(&["node", "--test", "/dev/null"]);
const NEEDS_NPM: Needs = Needs::WorkingCommand(&["npm", "--version"]);
const NEEDS_PNPM: Needs = Needs::WorkingCommand(&["pnpm", "--version"]);
const NEEDS_PYTEST: Needs = Needs::WorkingCommand(&["python3", "-c", "import pytest"]);
const NEEDS_PYTHON3: Needs = Needs::Program("python3");
/// The tool `black` must be missing.
const NEEDS_BLACK_MISSING: Needs = Needs::WorkingCommand(&["sh", "-c", "! command -v black"]);
const NEEDS_GO: Needs = Needs::WorkingCommand(&["go", "version"]);
const NEEDS_MAKE: Needs = Needs::WorkingCommand(&["make", "--version"]);

/// A repository before `proctor init`, and a file that breaks it.
struct ProjectTemplate {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    breaking_file: (&'static str, &'static str),
}

const CARGO_CRATE: ProjectTemplate = ProjectTemplate {
    name: "crate",
    files: &[
        (".gitignore", "/target\n"),
        ("Cargo.toml", "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"),
        ("Cargo.lock", "version = 4\n\n[[package]]\nname = \"hello\"\nversion = \"0.1.0\"\n"),
        (
            "src/lib.rs",
            "//! Says hello.\n\n/// ```\n/// assert_eq!(hello::hello(), \"hello\");\n/// ```\npub fn hello() -> &'static str {\n    \"hello\"\n}\n",
        ),
    ],
    breaking_file: (
        "src/lib.rs",
        "//! Says hello.\n\n/// ```\n/// assert_eq!(hello::hello(), \"hello\");\n/// ```\npub fn hello() -> &'static str {\n    \"bye\"\n}\n",
    ),
};

const CARGO_WORKSPACE: ProjectTemplate = ProjectTemplate {
    name: "workspace",
    files: &[
        (".gitignore", "/target\n"),
        (
            "Cargo.toml",
            "[workspace]\nresolver = \"2\"\nmembers = [\"one\", \"two\"]\n\n[workspace.lints.clippy]\nall = \"warn\"\n",
        ),
        (
            "Cargo.lock",
            "version = 4\n\n[[package]]\nname = \"one\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"two\"\nversion = \"0.1.0\"\ndependencies = [\n \"one\",\n]\n",
        ),
        (
            "one/Cargo.toml",
            "[package]\nname = \"one\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[lints]\nworkspace = true\n",
        ),
        ("one/src/lib.rs", "//! One.\n\n/// One.\npub fn one() -> u32 {\n    1\n}\n"),
        (
            "two/Cargo.toml",
            "[package]\nname = \"two\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[dependencies]\none = { path = \"../one\" }\n",
        ),
        ("two/src/lib.rs", "//! Two.\n\n/// Two.\npub fn two() -> u32 {\n    one::one() + 1\n}\n"),
    ],
    // Only Clippy rejects this: `needless_return`.
    breaking_file: ("one/src/lib.rs", "//! One.\n\n/// One.\npub fn one() -> u32 {\n    return 1;\n}\n"),
};

const NPM_PACKAGE: ProjectTemplate = ProjectTemplate {
    name: "npm",
    files: &[
        (".gitignore", "node_modules/\n"),
        (
            "package.json",
            "{ \"name\": \"hello\", \"version\": \"1.0.0\", \"engines\": { \"node\": \">=18\" },\n  \"scripts\": { \"lint\": \"node --check hello.js\", \"test\": \"node --test\" } }\n",
        ),
        (
            "package-lock.json",
            "{ \"name\": \"hello\", \"version\": \"1.0.0\", \"lockfileVersion\": 3, \"requires\": true, \"packages\": { \"\": { \"name\": \"hello\", \"version\": \"1.0.0\" } } }\n",
        ),
        ("hello.js", "exports.hello = () => 'hello';\n"),
        (
            "hello.test.js",
            "require('node:test')('it says hello', () => require('node:assert').strictEqual(require('./hello').hello(), 'hello'));\n",
        ),
    ],
    breaking_file: ("hello.js", "exports.hello = () => 'bye';\n"),
};

const PNPM_WORKSPACE: ProjectTemplate = ProjectTemplate {
    name: "pnpm",
    files: &[
        (".gitignore", "node_modules/\n"),
        ("package.json", "{ \"name\": \"all\", \"private\": true }\n"),
        ("pnpm-workspace.yaml", "packages:\n  - 'packages/*'\n"),
        (
            "pnpm-lock.yaml",
            "lockfileVersion: '9.0'\n\nsettings:\n  autoInstallPeers: true\n  excludeLinksFromLockfile: false\n\nimporters:\n\n  .: {}\n\n  packages/one: {}\n",
        ),
        (
            "packages/one/package.json",
            "{ \"name\": \"one\", \"version\": \"1.0.0\", \"scripts\": { \"test\": \"node --check one.js\" } }\n",
        ),
        ("packages/one/one.js", "exports.one = 1;\n"),
    ],
    breaking_file: ("packages/one/one.js", "exports.one = ;\n"),
};

const PYTHON_PROJECT: ProjectTemplate = ProjectTemplate {
    name: "python",
    files: &[
        (".gitignore", "__pycache__/\n"),
        (
            "pyproject.toml",
            "[project]\nname = \"hello\"\nversion = \"1\"\nrequires-python = \">=3.8\"\n\n[dependency-groups]\ndev = [\"pytest>=7\"]\n",
        ),
        ("hello.py", "def hello():\n    return \"hello\"\n"),
        ("tests/test_hello.py", "from hello import hello\n\n\ndef test_hello():\n    assert hello() == \"hello\"\n"),
    ],
    breaking_file: ("hello.py", "def hello():\n    return \"bye\"\n"),
};

const GO_MODULE: ProjectTemplate = ProjectTemplate {
    name: "go",
    files: &[
        ("go.mod", "module example.com/hello\n\ngo 1.19\n"),
        (
            "hello.go",
            "// Package hello says hello.\npackage hello\n\n// Hello is it.\nfunc Hello() string { return \"hello\" }\n",
        ),
        (
            "hello_test.go",
            "package hello\n\nimport \"testing\"\n\nfunc TestHello(t *testing.T) {\n\tif Hello() != \"hello\" {\n\t\tt.Fatal(Hello())\n\t}\n}\n",
        ),
        ("testdata/odd.go", "package odd\nfunc  Odd ( ) { }\n"),
    ],
    // Only the formatting is wrong.
    breaking_file: (
        "hello.go",
        "// Package hello says hello.\npackage hello\n\n// Hello is it.\nfunc Hello() string { return   \"hello\" }\n",
    ),
};

const WORKFLOW_TARGETS: ProjectTemplate = ProjectTemplate {
    name: "workflow",
    files: &[
        ("Makefile", ".PHONY: check-links release\ncheck-links:\n\t@grep -q good words\nrelease:\n\t@false\n"),
        (
            ".github/workflows/ci.yml",
            "on: push\njobs:\n  ci:\n    runs-on: ubuntu-latest\n    steps:\n      - run: make check-links\n      - run: make release\n",
        ),
        ("words", "good\n"),
    ],
    breaking_file: ("words", "bad\n"),
};

const MAKEFILE: ProjectTemplate = ProjectTemplate {
    name: "make",
    files: &[
        (".gitignore", "*.o\n"),
        (
            "Makefile",
            ".PHONY: check test lint\ncheck: lint test\nlint:\n\tgrep -q hello hello.txt\ntest:\n\ttest -s hello.txt && touch made.o\n",
        ),
        ("hello.txt", "hello\n"),
    ],
    breaking_file: ("hello.txt", "bye\n"),
};

const SHELL_SCRIPTS: ProjectTemplate = ProjectTemplate {
    name: "shell",
    files: &[
        ("hello.sh", "#!/bin/sh\nset -eu\necho \"hello ${1:-you}\"\n"),
        ("a dir/with a space.sh", "#!/usr/bin/env bash\nnames=(one two)\necho \"${names[@]}\"\n"),
    ],
    breaking_file: ("hello.sh", "#!/bin/sh\nif true; then echo hello\n"),
};

const SEVERAL_PROJECTS: ProjectTemplate = ProjectTemplate {
    name: "several",
    files: &[
        ("Makefile", "test:\n\t./test.sh\n"),
        ("test.sh", "#!/bin/sh\ntest -f web/package.json\n"),
        ("web/package.json", "{ \"scripts\": { \"test\": \"node --check hello.js\" } }\n"),
        ("web/hello.js", "exports.hello = 1;\n"),
        ("tools/two words/Makefile", "check:\n\tgrep -q hello hello.txt\n"),
        ("tools/two words/hello.txt", "hello\n"),
    ],
    breaking_file: ("tools/two words/hello.txt", "bye\n"),
};

const PROJECT_TEMPLATES: [&ProjectTemplate; 9] = [
    &CARGO_CRATE,
    &CARGO_WORKSPACE,
    &NPM_PACKAGE,
    &PNPM_WORKSPACE,
    &PYTHON_PROJECT,
    &GO_MODULE,
    &MAKEFILE,
    &SHELL_SCRIPTS,
    &SEVERAL_PROJECTS,
];

fn repo_from_template<'e>(env: &'e TestEnvironment, template: &ProjectTemplate) -> Repo<'e> {
    let repo = env.empty_repo_at(template.name);
    for (path, text) in template.files {
        repo.write(path, text);
        if path.ends_with(".sh") {
            machine::make_dir_public(&repo.file(path));
        }
    }
    repo.commit();
    repo
}

/// Runs `init`, and asserts that it writes only a spec, which is valid without a warning.
fn init_writes_valid_spec(repo: &Repo<'_>) -> FinishedProcess {
    let finished = repo.proctor(&["init"]).exits(0).prints(&["wrote spec/verification.yaml", "\n  proctor run\n"]);
    assert_eq!(repo.changes_seen_by_git(), ["spec/verification.yaml"]);
    let valid = repo.proctor(&["validate"]).exits(0).prints(&["valid spec/verification.yaml: ", "quick, pr"]);
    assert!(!valid.all_output().contains("warning"), "{valid}");
    finished
}

fn every_template_gets_valid_spec(env: &TestEnvironment) {
    for kind in PROJECT_TEMPLATES {
        let repo = repo_from_template(env, kind);
        let dry = repo.proctor(&["init", "--dry-run"]).exits(0);
        assert_eq!(repo.changes_seen_by_git(), [""; 0], "{}", kind.name);
        init_writes_valid_spec(&repo);
        assert_eq!(dry.stdout, repo.read("spec/verification.yaml"), "{}", kind.name);
    }
}

/// Asserts that both profiles pass, for the worktree and for a commit, and that the broken repository fails.
fn assert_passes_then_fails(env: &TestEnvironment, template: &ProjectTemplate) {
    let repo = repo_from_template(env, template);
    init_writes_valid_spec(&repo);
    repo.commit();
    run_with_long_time_limit(env, &repo, &["--profile", "quick"]).exits(0);
    run_with_long_time_limit(env, &repo, &["--rev", "HEAD"]).exits(0);
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
    repo.write(template.breaking_file.0, template.breaking_file.1);
    run_with_long_time_limit(env, &repo, &[]).exits(1);
}

/// Runs with a long time limit: a run may have to compile the standard library on a busy machine.
fn run_with_long_time_limit(env: &TestEnvironment, repo: &Repo<'_>, arguments: &[&str]) -> FinishedProcess {
    let running = repo.start_proctor(&[&["run"], arguments].concat());
    env.finish(running.with_extended_timeout(Duration::from_secs(900)))
}

/// Sets up a home with the toolchain that built the tests, and a matching `PATH`.
fn set_up_cargo_home(env: &TestEnvironment) {
    let toolchain = machine::rust_toolchain().expect("the case needs one");
    machine::create_rust_home(&env.home_dir(), &toolchain);
    let bin = env.home_dir().join(".cargo/bin");
    for proxy in ["cargo-fmt", "rustfmt", "cargo-clippy", "clippy-driver"] {
        symlink("rustup", bin.join(proxy)).expect("a link of the test");
    }
    env.set_caller_var("PATH", &format!("{}:{}", bin.display(), machine::PATH));
}

fn cargo_crate(env: &TestEnvironment) {
    set_up_cargo_home(env);
    assert_passes_then_fails(env, &CARGO_CRATE);
}

fn cargo_workspace(env: &TestEnvironment) {
    set_up_cargo_home(env);
    assert_passes_then_fails(env, &CARGO_WORKSPACE);
}

fn npm_package(env: &TestEnvironment) {
    assert_passes_then_fails(env, &NPM_PACKAGE);
}

fn pnpm_workspace(env: &TestEnvironment) {
    assert_passes_then_fails(env, &PNPM_WORKSPACE);
}

fn python_project(env: &TestEnvironment) {
    assert_passes_then_fails(env, &PYTHON_PROJECT);
}

fn go_module(env: &TestEnvironment) {
    assert_passes_then_fails(env, &GO_MODULE);
}

fn makefile_project(env: &TestEnvironment) {
    assert_passes_then_fails(env, &MAKEFILE);
}

/// Runs a target that only a workflow declares as a check.
fn workflow_targets(env: &TestEnvironment) {
    assert_passes_then_fails(env, &WORKFLOW_TARGETS);
}

fn shell_scripts(env: &TestEnvironment) {
    assert_passes_then_fails(env, &SHELL_SCRIPTS);
}

fn several_projects(env: &TestEnvironment) {
    assert_passes_then_fails(env, &SEVERAL_PROJECTS);
}

fn missing_tool_is_inconclusive(env: &TestEnvironment) {
    let repo = env.empty_repo_at("repo");
    repo.write("requirements-dev.txt", "black==24.1\n");
    repo.commit();
    init_writes_valid_spec(&repo).prints_to_stderr(&[
        "warning: the program `black` is missing",
        "the toolchain check of `python` fails",
        "hint: install it",
    ]);
    run_with_long_time_limit(env, &repo, &[]).exits(5).prints(&["missing tool: python (`black`)"]);
}

fn existing_spec_is_kept_without_force(env: &TestEnvironment) {
    let repo = repo_from_template(env, &MAKEFILE);
    repo.write("spec/verification.yaml", "mine\n");
    repo.proctor(&["init"]).exits(2).prints_to_stderr(&[
        "`spec/verification.yaml` already exists",
        "hint: ",
        "--force",
    ]);
    assert_eq!(repo.read("spec/verification.yaml"), "mine\n");
    let dry = repo.proctor(&["init", "--dry-run"]).exits(0);
    assert_eq!(repo.read("spec/verification.yaml"), "mine\n");
    repo.proctor(&["init", "--force"]).exits(0);
    assert_eq!(repo.read("spec/verification.yaml"), dry.stdout);
    assert_eq!(std::fs::read_dir(repo.file("spec")).expect("a directory").count(), 1, "something was left");
    repo.proctor(&["init", "--force", "--dry-run"]).exits(2);
}

fn obstacles_at_spec_path_are_reported(env: &TestEnvironment) {
    let repo = repo_from_template(env, &MAKEFILE);
    let outside = env.root().join("outside");
    std::fs::create_dir_all(&outside).expect("a directory of the test");
    repo.link("spec", &outside);
    for force in [&["init"][..], &["init", "--force"]] {
        repo.proctor(force).exits(2).prints_to_stderr(&["`spec` is a symbolic link", "hint: "]);
    }
    std::fs::remove_file(repo.file("spec")).expect("the link");
    repo.write("spec", "a file\n");
    repo.proctor(&["init"]).exits(2).prints_to_stderr(&["`spec` is not a directory"]);
    std::fs::remove_file(repo.file("spec")).expect("the file");
    std::fs::create_dir_all(repo.file("spec")).expect("a directory of the test");
    repo.link("spec/verification.yaml", &outside.join("victim"));
    repo.proctor(&["init", "--force"]).exits(2).prints_to_stderr(&["`spec/verification.yaml` is a symbolic link"]);
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("the link");
    std::fs::create_dir_all(repo.file("spec/verification.yaml")).expect("a directory of the test");
    repo.proctor(&["init", "--force"]).exits(2).prints_to_stderr(&["`spec/verification.yaml` is not a file"]);
    assert_eq!(std::fs::read_dir(outside).expect("a directory").count(), 0, "a link was followed");
}

fn unwritable_repository_is_reported(env: &TestEnvironment) {
    let repo = repo_from_template(env, &MAKEFILE);
    let mode = |mode: u32| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(repo.path(), permissions).expect("a mode");
    };
    mode(0o555);
    repo.proctor(&["init"]).exits(5).prints_to_stderr(&["spec", "Permission denied", "hint: `--dry-run`"]);
    repo.proctor(&["init", "--dry-run"]).exits(0).prints(&["verify.check"]);
    mode(0o755);
}

fn unrecognised_project_gets_no_spec(env: &TestEnvironment) {
    let repo = env.empty_repo_at("repo");
    repo.write("README.md", "nothing\n");
    repo.write("package.json", "{ \"scripts\": { \"lint\": \"eslint --fix .\" } }\n");
    let finished = repo.proctor(&["init"]).exits(2);
    let finished = finished.prints_to_stderr(&[
        "found no supported project",
        "the script `lint` of `package.json`",
        "hint: write `spec/verification.yaml`",
    ]);
    assert_eq!(finished.stdout, "");
    assert!(!repo.file("spec").exists());
}

fn directory_without_git_is_refused(env: &TestEnvironment) {
    let dir = env.root().join("plain");
    machine::write(&dir.join("Makefile"), "test:\n\ttrue\n");
    env.give_to_actor(&dir);
    env.proctor_in(&dir, &["init"]).exits(2).prints_to_stderr(&["no `.git`", "git init"]);
    env.proctor_in(&dir, &["init", "--repo", "."]).exits(2).prints_to_stderr(&["is not a git repository", "git init"]);
    let repo = repo_from_template(env, &SEVERAL_PROJECTS);
    env.proctor_in(&repo.file("web"), &["init"]).exits(0);
    assert!(repo.file("spec/verification.yaml").exists() && !repo.file("web/spec").exists());
    env.proctor_in(repo.path(), &["init", "--repo", "web"]).exits(0);
    assert!(repo.file("web/spec/verification.yaml").exists());
}

/// The repository contains a manifest of a gigabyte, a FIFO, a device name, circular links, names that are YAML or
/// terminal escapes, and very deep directories.
fn hostile_repository_is_read_within_bounds(env: &TestEnvironment) {
    let repo = repo_from_template(env, &MAKEFILE);
    let large = std::fs::File::options().create(true).append(true).open(repo.file("package.json"));
    large.expect("a file").set_len(1 << 30).expect("a sparse file");
    let mut pipe = machine::command("mkfifo");
    pipe.arg(repo.file("Cargo.toml"));
    RunningProcess::start(pipe).wait().exits(0);
    repo.link("pyproject.toml", std::path::Path::new("/etc/passwd"));
    repo.link("loop", repo.path());
    let names = [
        "a: [b",
        "- x",
        "#",
        "\"",
        "'}",
        "a\nskills: {}",
        "\x1b[2J",
        "::error::x",
        "\u{202e}x",
        " ",
        "&a *a",
        "!!x",
        "%",
    ];
    for name in names {
        repo.write(&format!("{name}/go.mod"), "module \"\\x1b\" # : [\n\ngo 1.19\n");
    }
    repo.write(&format!("{}go.mod", "d/".repeat(400)), "module deep\n");
    let run = repo.proctor(&["init"]).exits(0);
    let output = run.all_output();
    assert!(output.contains("`package.json` was left out: it is larger than 1048576 bytes"), "{output}");
    assert!(output.contains("`Cargo.toml` was left out: it is not a regular file"), "{output}");
    assert!(output.contains("`pyproject.toml` was left out: it is a symbolic link"), "{output}");
    assert!(output.contains("`a\\nskills: {}` was left out: its name"), "{output}");
    assert!(!output.contains(['\x1b', '\u{202e}']) && !output.contains("\n::error"), "{output}");
    let spec = repo.read("spec/verification.yaml");
    assert!(!spec.contains("root:") && !spec.contains(['\x1b', '\u{202e}']), "{spec}");
    assert!(spec.contains("workdir: \"a: [b\"") && !spec.contains("\nskills: {}"), "{spec}");
    repo.proctor(&["validate"]).exits(0);
}
