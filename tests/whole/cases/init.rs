//! Tests `proctor init`: each kind of repository gets a valid spec that passes if the tool is installed, and fails if
//! the repository is broken. Hostile repositories must not cause harm.

use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};

pub(super) const CASES: &[Case] = &[
    dry_case("init::each_kind_gets_a_valid_spec", each_kind),
    case("init::a_cargo_crate_passes_and_fails", cargo).needs(&[Needs::Sandbox, Needs::Cargo, CC]),
    case("init::a_cargo_workspace_passes_and_fails", workspace).needs(&[Needs::Sandbox, Needs::Cargo, CC]),
    case("init::an_npm_package_passes_and_fails", npm).needs(&[Needs::Sandbox, NODE, NPM]),
    case("init::a_pnpm_workspace_passes_and_fails", pnpm).needs(&[Needs::Sandbox, NODE, PNPM]),
    case("init::a_python_project_passes_and_fails", python).needs(&[Needs::Sandbox, PYTEST]),
    case("init::a_go_module_passes_and_fails", go).needs(&[Needs::Sandbox, GO]),
    case("init::a_makefile_passes_and_fails", make).needs(&[Needs::Sandbox, MAKE]),
    case("init::shell_scripts_pass_and_fail", shell).needs(&[Needs::Sandbox]),
    case("", shell).unprivileged("init::shell_scripts_pass_and_fail_as_a_user"),
    case("init::several_projects_pass_and_fail", several).needs(&[Needs::Sandbox, NODE, NPM, MAKE]),
    case("init::a_tool_that_is_not_there_makes_runs_inconclusive", missing_tool).needs(&[
        Needs::Sandbox,
        PYTHON3,
        NO_BLACK,
    ]),
    dry_case("init::a_spec_that_is_there_stays_unless_force_is_said", overwrite),
    dry_case("init::what_stands_in_the_way_is_named", in_the_way),
    dry_case("", read_only).unprivileged("init::a_repository_that_cannot_be_written_is_named"),
    dry_case("init::nothing_recognised_is_no_spec", nothing),
    dry_case("init::a_directory_without_git_is_no_repository", no_git),
    dry_case("init::a_hostile_repository_is_looked_at_within_bounds", hostile),
];

const CC: Needs = Needs::Works(&["cc", "--version"]);
const NODE: Needs = Needs::Works(&["node", "--test", "/dev/null"]);
const NPM: Needs = Needs::Works(&["npm", "--version"]);
const PNPM: Needs = Needs::Works(&["pnpm", "--version"]);
const PYTEST: Needs = Needs::Works(&["python3", "-c", "import pytest"]);
const PYTHON3: Needs = Needs::Program("python3");
/// The tool `black` must be missing.
const NO_BLACK: Needs = Needs::Works(&["sh", "-c", "! command -v black"]);
const GO: Needs = Needs::Works(&["go", "version"]);
const MAKE: Needs = Needs::Works(&["make", "--version"]);

/// A repository before `proctor init`, and a file that breaks it.
struct Kind {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    broken: (&'static str, &'static str),
}

const CRATE: Kind = Kind {
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
    broken: (
        "src/lib.rs",
        "//! Says hello.\n\n/// ```\n/// assert_eq!(hello::hello(), \"hello\");\n/// ```\npub fn hello() -> &'static str {\n    \"bye\"\n}\n",
    ),
};

const WORKSPACE: Kind = Kind {
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
    broken: ("one/src/lib.rs", "//! One.\n\n/// One.\npub fn one() -> u32 {\n    return 1;\n}\n"),
};

const NPM_PACKAGE: Kind = Kind {
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
    broken: ("hello.js", "exports.hello = () => 'bye';\n"),
};

const PNPM_WORKSPACE: Kind = Kind {
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
    broken: ("packages/one/one.js", "exports.one = ;\n"),
};

const PYTHON: Kind = Kind {
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
    broken: ("hello.py", "def hello():\n    return \"bye\"\n"),
};

const GO_MODULE: Kind = Kind {
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
    broken: (
        "hello.go",
        "// Package hello says hello.\npackage hello\n\n// Hello is it.\nfunc Hello() string { return   \"hello\" }\n",
    ),
};

const MAKEFILE: Kind = Kind {
    name: "make",
    files: &[
        (".gitignore", "*.o\n"),
        (
            "Makefile",
            ".PHONY: check test lint\ncheck: lint test\nlint:\n\tgrep -q hello hello.txt\ntest:\n\ttest -s hello.txt && touch made.o\n",
        ),
        ("hello.txt", "hello\n"),
    ],
    broken: ("hello.txt", "bye\n"),
};

const SHELL: Kind = Kind {
    name: "shell",
    files: &[
        ("hello.sh", "#!/bin/sh\nset -eu\necho \"hello ${1:-you}\"\n"),
        ("a dir/with a space.sh", "#!/usr/bin/env bash\nnames=(one two)\necho \"${names[@]}\"\n"),
    ],
    broken: ("hello.sh", "#!/bin/sh\nif true; then echo hello\n"),
};

const SEVERAL: Kind = Kind {
    name: "several",
    files: &[
        ("Makefile", "test:\n\t./test.sh\n"),
        ("test.sh", "#!/bin/sh\ntest -f web/package.json\n"),
        ("web/package.json", "{ \"scripts\": { \"test\": \"node --check hello.js\" } }\n"),
        ("web/hello.js", "exports.hello = 1;\n"),
        ("tools/two words/Makefile", "check:\n\tgrep -q hello hello.txt\n"),
        ("tools/two words/hello.txt", "hello\n"),
    ],
    broken: ("tools/two words/hello.txt", "bye\n"),
};

const KINDS: [&Kind; 9] =
    [&CRATE, &WORKSPACE, &NPM_PACKAGE, &PNPM_WORKSPACE, &PYTHON, &GO_MODULE, &MAKEFILE, &SHELL, &SEVERAL];

fn repo_of<'e>(env: &'e TestEnvironment, kind: &Kind) -> Repo<'e> {
    let repo = env.empty_repo_at(kind.name);
    for (path, text) in kind.files {
        repo.write(path, text);
        if path.ends_with(".sh") {
            machine::open_to_all(&repo.file(path));
        }
    }
    repo.commit();
    repo
}

/// Runs `init`, and asserts that it writes only a spec, which is valid without a warning.
fn init(repo: &Repo<'_>) -> Finished {
    let said = repo.proctor(&["init"]).exits(0).says(&["wrote spec/verification.yaml", "proctor run --profile quick"]);
    assert_eq!(repo.changes_seen_by_git(), ["spec/verification.yaml"]);
    let valid = repo.proctor(&["validate"]).exits(0).says(&["valid spec/verification.yaml: ", "quick, pr"]);
    assert!(!valid.everything().contains("warning"), "{valid}");
    said
}

fn each_kind(env: &TestEnvironment) {
    for kind in KINDS {
        let repo = repo_of(env, kind);
        let dry = repo.proctor(&["init", "--dry-run"]).exits(0);
        assert_eq!(repo.changes_seen_by_git(), [""; 0], "{}", kind.name);
        init(&repo);
        assert_eq!(dry.stdout, repo.read("spec/verification.yaml"), "{}", kind.name);
    }
}

/// Asserts that both profiles pass, for the worktree and for a commit, and that the broken repository fails.
fn demand_passes_and_fails(env: &TestEnvironment, kind: &Kind) {
    let repo = repo_of(env, kind);
    init(&repo);
    repo.commit();
    run(env, &repo, &["--profile", "quick"]).exits(0);
    run(env, &repo, &["--rev", "HEAD"]).exits(0);
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
    repo.write(kind.broken.0, kind.broken.1);
    run(env, &repo, &[]).exits(1);
}

/// Runs with a long time limit: a run may have to compile the standard library on a busy machine.
fn run(env: &TestEnvironment, repo: &Repo<'_>, arguments: &[&str]) -> Finished {
    let running = repo.start_other(&[&["run"], arguments].concat());
    env.finish(running.patient(Duration::from_secs(900)))
}

/// Sets up a home with the toolchain that built the tests, and a matching `PATH`.
fn with_cargo(env: &TestEnvironment) {
    let toolchain = machine::rust_toolchain().expect("the case needs one");
    machine::rust_home(&env.home(), &toolchain);
    let bin = env.home().join(".cargo/bin");
    for proxy in ["cargo-fmt", "rustfmt", "cargo-clippy", "clippy-driver"] {
        symlink("rustup", bin.join(proxy)).expect("a link of the test");
    }
    env.caller_has("PATH", &format!("{}:{}", bin.display(), machine::PATH));
}

fn cargo(env: &TestEnvironment) {
    with_cargo(env);
    demand_passes_and_fails(env, &CRATE);
}

fn workspace(env: &TestEnvironment) {
    with_cargo(env);
    demand_passes_and_fails(env, &WORKSPACE);
}

fn npm(env: &TestEnvironment) {
    demand_passes_and_fails(env, &NPM_PACKAGE);
}

fn pnpm(env: &TestEnvironment) {
    demand_passes_and_fails(env, &PNPM_WORKSPACE);
}

fn python(env: &TestEnvironment) {
    demand_passes_and_fails(env, &PYTHON);
}

fn go(env: &TestEnvironment) {
    demand_passes_and_fails(env, &GO_MODULE);
}

fn make(env: &TestEnvironment) {
    demand_passes_and_fails(env, &MAKEFILE);
}

fn shell(env: &TestEnvironment) {
    demand_passes_and_fails(env, &SHELL);
}

fn several(env: &TestEnvironment) {
    demand_passes_and_fails(env, &SEVERAL);
}

fn missing_tool(env: &TestEnvironment) {
    let repo = env.empty_repo_at("repo");
    repo.write("requirements-dev.txt", "black==24.1\n");
    repo.commit();
    init(&repo).complains(&["warning: the program `black` is missing", "`python` says so", "hint: install it"]);
    run(env, &repo, &[]).exits(5).says(&["black --version"]);
}

fn overwrite(env: &TestEnvironment) {
    let repo = repo_of(env, &MAKEFILE);
    repo.write("spec/verification.yaml", "mine\n");
    repo.proctor(&["init"]).exits(2).complains(&["`spec/verification.yaml` already exists", "hint: ", "--force"]);
    assert_eq!(repo.read("spec/verification.yaml"), "mine\n");
    let dry = repo.proctor(&["init", "--dry-run"]).exits(0);
    assert_eq!(repo.read("spec/verification.yaml"), "mine\n");
    repo.proctor(&["init", "--force"]).exits(0);
    assert_eq!(repo.read("spec/verification.yaml"), dry.stdout);
    assert_eq!(std::fs::read_dir(repo.file("spec")).expect("a directory").count(), 1, "something was left");
    repo.proctor(&["init", "--force", "--dry-run"]).exits(2);
}

fn in_the_way(env: &TestEnvironment) {
    let repo = repo_of(env, &MAKEFILE);
    let outside = env.root().join("outside");
    std::fs::create_dir_all(&outside).expect("a directory of the test");
    repo.link("spec", &outside);
    for force in [&["init"][..], &["init", "--force"]] {
        repo.proctor(force).exits(2).complains(&["`spec` is a symbolic link", "hint: "]);
    }
    std::fs::remove_file(repo.file("spec")).expect("the link");
    repo.write("spec", "a file\n");
    repo.proctor(&["init"]).exits(2).complains(&["`spec` is no directory"]);
    std::fs::remove_file(repo.file("spec")).expect("the file");
    std::fs::create_dir_all(repo.file("spec")).expect("a directory of the test");
    repo.link("spec/verification.yaml", &outside.join("victim"));
    repo.proctor(&["init", "--force"]).exits(2).complains(&["`spec/verification.yaml` is a symbolic link"]);
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("the link");
    std::fs::create_dir_all(repo.file("spec/verification.yaml")).expect("a directory of the test");
    repo.proctor(&["init", "--force"]).exits(2).complains(&["`spec/verification.yaml` is no file"]);
    assert_eq!(std::fs::read_dir(outside).expect("a directory").count(), 0, "a link was followed");
}

fn read_only(env: &TestEnvironment) {
    let repo = repo_of(env, &MAKEFILE);
    let mode = |mode: u32| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(repo.path(), permissions).expect("a mode");
    };
    mode(0o555);
    repo.proctor(&["init"]).exits(5).complains(&["spec", "Permission denied", "hint: `--dry-run`"]);
    repo.proctor(&["init", "--dry-run"]).exits(0).says(&["verify.check"]);
    mode(0o755);
}

fn nothing(env: &TestEnvironment) {
    let repo = env.empty_repo_at("repo");
    repo.write("README.md", "nothing\n");
    repo.write("package.json", "{ \"scripts\": { \"lint\": \"eslint --fix .\" } }\n");
    let said = repo.proctor(&["init"]).exits(2);
    let said = said.complains(&[
        "found no supported project",
        "the script `lint` of `package.json`",
        "hint: write `spec/verification.yaml`",
    ]);
    assert_eq!(said.stdout, "");
    assert!(!repo.file("spec").exists());
}

fn no_git(env: &TestEnvironment) {
    let dir = env.root().join("plain");
    machine::write(&dir.join("Makefile"), "test:\n\ttrue\n");
    env.hand_over(&dir);
    env.proctor_in(&dir, &["init"]).exits(2).complains(&["no `.git`", "git init"]);
    env.proctor_in(&dir, &["init", "--repo", "."]).exits(2).complains(&["is not under git", "git init"]);
    let repo = repo_of(env, &SEVERAL);
    env.proctor_in(repo.path(), &["init", "--repo", "web"]).exits(2).complains(&["is not the top", "--repo"]);
    env.proctor_in(&repo.file("web"), &["init"]).exits(0);
    repo.write("web/spec/verification.yaml", repo.read("spec/verification.yaml"));
    let run = env.proctor_in(&repo.file("web"), &["run"]).exits(2);
    let run = run.complains(&["is not the top directory of its repository", "workdir: web"]);
    assert!(!run.everything().contains("git init"), "{run}");
    assert!(repo.file("spec/verification.yaml").exists());
}

/// The repository contains a manifest of a gigabyte, a FIFO, a device name, circular links, names that are YAML or
/// terminal escapes, and very deep directories.
fn hostile(env: &TestEnvironment) {
    let repo = repo_of(env, &MAKEFILE);
    let large = std::fs::File::options().create(true).append(true).open(repo.file("package.json"));
    large.expect("a file").set_len(1 << 30).expect("a sparse file");
    let mut pipe = machine::command("mkfifo");
    pipe.arg(repo.file("Cargo.toml"));
    Running::start(pipe).wait().exits(0);
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
    let said = run.everything();
    assert!(said.contains("`package.json` was left out: it is larger than 1048576 bytes"), "{said}");
    assert!(said.contains("`Cargo.toml` was left out: it is not a regular file"), "{said}");
    assert!(said.contains("`pyproject.toml` was left out: it is a symbolic link"), "{said}");
    assert!(said.contains("`a\\nskills: {}` was left out: its name"), "{said}");
    assert!(!said.contains(['\x1b', '\u{202e}']) && !said.contains("\n::error"), "{said}");
    let spec = repo.read("spec/verification.yaml");
    assert!(!spec.contains("root:") && !spec.contains(['\x1b', '\u{202e}']), "{spec}");
    assert!(spec.contains("workdir: \"a: [b\"") && !spec.contains("\nskills: {}"), "{spec}");
    repo.proctor(&["validate"]).exits(0);
}
