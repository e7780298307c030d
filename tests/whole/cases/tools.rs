//! Tests real tools inside the sandbox: each case verifies a repository of `fixtures/tools` without network and with
//! an empty home, and checks the output of its steps.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::binaries;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("tools::cargo_builds_tests_and_reuses_its_cache", cargo_reuses_its_cache).needs(CARGO).long(),
    case("", cargo_reuses_its_cache)
        .needs(CARGO)
        .unprivileged("tools::cargo_builds_tests_and_reuses_its_cache_as_a_user"),
    case("tools::npm_installs_and_tests", npm_installs_and_tests).needs(NPM).long(),
    case("", npm_installs_and_tests).needs(NPM).unprivileged("tools::npm_installs_and_tests_as_a_user"),
    case("tools::node_from_a_version_manager_in_the_home", node_from_version_manager).needs(NPM),
    case("tools::npm_installs_from_the_callers_cache", npm_installs_from_callers_cache).needs(NPM),
    case("", npm_installs_from_callers_cache)
        .needs(NPM)
        .unprivileged("tools::npm_installs_from_the_callers_cache_as_a_user")
        .long(),
    case("tools::pip_installs_into_a_virtual_environment", pip_installs_into_venv).needs(VENV).long(),
    case("", pip_installs_into_venv)
        .needs(VENV)
        .unprivileged("tools::pip_installs_into_a_virtual_environment_as_a_user"),
    case("tools::pytest_with_processes_and_databases", pytest_with_processes_and_databases).needs(PYTEST),
    case("", pytest_with_processes_and_databases)
        .needs(PYTEST)
        .unprivileged("tools::pytest_with_processes_and_databases_as_a_user")
        .long(),
    case("tools::go_runs_tests_in_parallel", go_runs_tests_in_parallel).needs(GO),
    case("", go_runs_tests_in_parallel).needs(GO).unprivileged("tools::go_runs_tests_in_parallel_as_a_user").long(),
    case("tools::go_builds_with_the_callers_modules", go_builds_with_callers_modules).needs(GO),
    case("", go_builds_with_callers_modules)
        .needs(GO)
        .unprivileged("tools::go_builds_with_the_callers_modules_as_a_user")
        .long(),
    case("tools::parallel_processes_with_ports_sockets_and_locks", parallel_processes).needs(PYTHON),
    case("", parallel_processes)
        .needs(PYTHON)
        .unprivileged("tools::parallel_processes_with_ports_sockets_and_locks_as_a_user")
        .long(),
    case("tools::localhost_answers", localhost_answers).needs(PYTHON),
    case("", localhost_answers).needs(PYTHON).unprivileged("tools::localhost_answers_as_a_user").long(),
    case("tools::localhost_answers_over_v6", localhost_answers_over_v6).needs(&[Needs::Sandbox, PYTHON3, IPV6]),
    case("tools::sqlite_in_wal_mode", sqlite_in_wal_mode).needs(PYTHON),
    case("", sqlite_in_wal_mode).needs(PYTHON).unprivileged("tools::sqlite_in_wal_mode_as_a_user").long(),
    case("tools::sqlite_shell_in_wal_mode", sqlite_shell_in_wal_mode)
        .needs(&[Needs::Sandbox, Needs::Program("sqlite3")]),
    case("tools::a_headless_browser_renders_a_page", headless_browser_renders_page).needs(CHROMIUM),
    case("", headless_browser_renders_page)
        .needs(CHROMIUM)
        .unprivileged("tools::a_headless_browser_renders_a_page_as_a_user")
        .long(),
    case("tools::steps_can_open_terminals", steps_can_open_terminals).needs(PYTHON),
    case("", steps_can_open_terminals).needs(PYTHON).unprivileged("tools::steps_can_open_terminals_as_a_user").long(),
    case("tools::script_opens_a_terminal", script_opens_terminal).needs(&[Needs::Sandbox, Needs::Program("script")]),
    case("tools::shared_memory", shared_memory).needs(PYTHON),
    case("", shared_memory).needs(PYTHON).unprivileged("tools::shared_memory_as_a_user").long(),
    case("tools::users_locales_and_time_zones", users_locales_and_time_zones).needs(TIME_ZONES),
    case("", users_locales_and_time_zones)
        .needs(TIME_ZONES)
        .unprivileged("tools::users_locales_and_time_zones_as_a_user")
        .long(),
    case("tools::a_compiler_in_a_temporary_directory", compiler_in_temporary_directory)
        .needs(&[Needs::Sandbox, C_COMPILER]),
    case("", compiler_in_temporary_directory)
        .needs(&[Needs::Sandbox, C_COMPILER])
        .unprivileged("tools::a_compiler_in_a_temporary_directory_as_a_user")
        .long(),
    case("tools::gdb_debugs_its_own_child", gdb_debugs_its_child).needs(GDB),
    case("", gdb_debugs_its_child).needs(GDB).unprivileged("tools::gdb_debugs_its_own_child_as_a_user").long(),
    case("tools::strace_follows_its_own_child", strace_follows_its_child).needs(STRACE),
    case("", strace_follows_its_child)
        .needs(STRACE)
        .unprivileged("tools::strace_follows_its_own_child_as_a_user")
        .long(),
    case("tools::git_reads_the_repository", git_reads_repository).needs(&[Needs::Sandbox, Needs::Program("git")]),
    case("", git_reads_repository)
        .needs(&[Needs::Sandbox, Needs::Program("git")])
        .unprivileged("tools::git_reads_the_repository_as_a_user")
        .long(),
    case("tools::linked_toolchains_are_visible_without_credentials", linked_toolchains_without_credentials),
    case("", linked_toolchains_without_credentials)
        .unprivileged("tools::linked_toolchains_are_visible_without_credentials_as_a_user")
        .long(),
    case("tools::a_home_behind_a_link", home_behind_link),
    case("tools::make_with_a_jobserver", make_with_jobserver).needs(&[Needs::Sandbox, MAKE]),
    case("", make_with_jobserver)
        .needs(&[Needs::Sandbox, MAKE])
        .unprivileged("tools::make_with_a_jobserver_as_a_user")
        .long(),
];

const C_COMPILER: Needs = Needs::WorkingCommand(&["cc", "--version"]);
const MAKE: Needs = Needs::WorkingCommand(&["make", "--version"]);
const PYTHON3: Needs = Needs::Program("python3");
const IPV6: Needs =
    Needs::WorkingCommand(&["python3", "-c", "import socket; socket.socket(socket.AF_INET6).bind(('::1', 0))"]);
const PYTHON: &[Needs] = &[Needs::Sandbox, PYTHON3];
const TIME_ZONES: &[Needs] =
    &[Needs::Sandbox, Needs::WorkingCommand(&["python3", "-c", "import zoneinfo; zoneinfo.ZoneInfo('Europe/Berlin')"])];
const CARGO: &[Needs] = &[Needs::Sandbox, Needs::Cargo, C_COMPILER, MAKE];
const NPM: &[Needs] = &[
    Needs::Sandbox,
    Needs::WorkingCommand(&["node", "--test", "/dev/null"]),
    Needs::WorkingCommand(&["npm", "--version"]),
];
const VENV: &[Needs] = &[Needs::Sandbox, Needs::WorkingCommand(&["/usr/bin/python3", "-c", "import ensurepip, venv"])];
const PYTEST: &[Needs] = &[Needs::Sandbox, Needs::WorkingCommand(&["/usr/bin/python3", "-c", "import pytest"])];
const GO: &[Needs] = &[Needs::Sandbox, Needs::WorkingCommand(&["go", "version"])];
const CHROMIUM: &[Needs] = &[Needs::Sandbox, PYTHON3, Needs::WorkingCommand(&["chromium", "--version"])];
const GDB: &[Needs] =
    &[Needs::Sandbox, C_COMPILER, Needs::WorkingCommand(&["gdb", "-batch", "-nx", "-ex", "run", "true"])];
const STRACE: &[Needs] = &[Needs::Sandbox, PYTHON3, Needs::WorkingCommand(&["strace", "-o", "/dev/null", "true"])];

/// Creates the repository `fixtures/tools/<name>`, with the marker of the case in its spec.
fn fixture_repo<'e>(env: &'e TestEnvironment, name: &str) -> Repo<'e> {
    let repo = env.repo_from_fixture(&format!("tools/{name}"));
    let spec = repo.read("spec/verification.yaml");
    let marked = spec.replace("TEST_MARKER: fixture", &format!("TEST_MARKER: {}", env.marker()));
    assert_ne!(marked, spec, "the spec of {name} has no mark to replace");
    repo.write("spec/verification.yaml", marked);
    repo.commit();
    repo
}

/// Asserts that every step of a profile passes without drift and without network, and that git sees an unchanged
/// tree.
fn assert_passes_without_drift(repo: &Repo<'_>, profile: &str) {
    repo.run_with_only(&["--profile", profile, "--changeset", CHANGESET]).exits(0);
    assert_eq!(repo.last_run()["outcome"], "passed");
    let evidence = repo.evidence(&skill_for_profile(profile));
    for step in evidence["steps"].as_array().expect("the schema says so") {
        assert_eq!((&step["outcome"], &step["network"]), (&"passed".into(), &"deny".into()), "{step:#}");
        assert_eq!(step["enforcement"]["network_namespace"]["state"], "enforced", "{step:#}");
        assert_eq!(step["drift"]["changes"].as_array().map(Vec::len), Some(0), "{step:#}");
    }
    // Only a control that an ordinary user cannot get on this host may raise the tier.
    let reasons = &evidence["tier_reasons"];
    assert!(reasons == &serde_json::json!([]) || reasons == &serde_json::json!(["control_not_enforced"]), "{reasons}");
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
}

/// Returns the skill of a profile: a fixture with one purpose has the profile `pr`, others have a profile for each
/// skill.
fn skill_for_profile(profile: &str) -> String {
    if profile == "pr" { "verify.it".to_owned() } else { format!("verify.{profile}") }
}

/// Returns the standard output of a step.
#[track_caller]
fn step_stdout(repo: &Repo<'_>, profile: &str, step: &str) -> String {
    step_output(repo, profile, step, "stdout")
}

#[track_caller]
fn step_output(repo: &Repo<'_>, profile: &str, step: &str, stream: &str) -> String {
    let evidence = repo.evidence(&skill_for_profile(profile));
    let steps = evidence["steps"].as_array().expect("the schema says so");
    let step = steps.iter().find(|it| it["name"] == step).unwrap_or_else(|| panic!("no {step} in {evidence:#}"));
    step[format!("{stream}_preview")].as_str().expect("text").to_owned()
}

/// Asserts the whole output of the step `run` of a profile.
#[track_caller]
fn assert_prints(repo: &Repo<'_>, profile: &str, text: &str) {
    assert_passes_without_drift(repo, profile);
    assert_eq!(step_stdout(repo, profile, "run"), text);
}

/// The toolchain is a link from the home to a directory that is hidden from steps, as `rustup toolchain link` creates
/// it. The programs in the home refer to it.
fn cargo_reuses_its_cache(env: &TestEnvironment) {
    let toolchain = readable_toolchain(env);
    let repo = fixture_repo(env, "cargo");
    machine::create_rust_home(&env.home_dir(), &toolchain);
    env.give_to_actor(&env.home_dir());
    assert_passes_without_drift(&repo, "pr");
    assert!(step_output(&repo, "pr", "build", "stderr").contains("Compiling hello"));
    let tests = step_stdout(&repo, "pr", "test");
    assert_eq!(tests.matches("test result: ok.").count(), 1, "{tests}");
    assert!(tests.contains("test tests::localhost_answers ... ok"), "{tests}");
    assert_eq!(step_stdout(&repo, "pr", "run"), "hello, step 1 2 3 4 5 6\n");
    assert!(!repo.file("target").exists(), "a cache was written into the repository");
    assert_passes_without_drift(&repo, "pr");
    let again = step_output(&repo, "pr", "build", "stderr");
    assert!(again.contains("Finished") && !again.contains("Compiling"), "the cache was not used: {again}");
}

/// Returns the toolchain that built the tests, at a path that the actor can read.
fn readable_toolchain(env: &TestEnvironment) -> PathBuf {
    let own = machine::rust_toolchain().expect("the case needs one");
    if env.changes_user() { binaries::public_toolchain(&own) } else { own }
}

fn npm_installs_and_tests(env: &TestEnvironment) {
    let repo = fixture_repo(env, "npm");
    assert_passes_without_drift(&repo, "pr");
    assert_npm_results(&repo);
}

fn assert_npm_results(repo: &Repo<'_>) {
    assert!(step_stdout(repo, "pr", "list").contains("shout@1.0.0 -> ./shout"), "{}", step_stdout(repo, "pr", "list"));
    let tests = step_stdout(repo, "pr", "test");
    assert!(tests.contains("# pass 3") && tests.contains("# fail 0"), "{tests}");
    assert!(!repo.file("node_modules").exists());
}

/// With several versions in the home, the caller's `PATH` selects one.
fn node_from_version_manager(env: &TestEnvironment) {
    let bin = env.home_dir().join(".nvm/versions/node/v99.0.0/bin");
    std::fs::create_dir_all(&bin).expect("a directory of the test");
    std::fs::copy(machine::find_program("node").expect("the case needs it"), bin.join("node")).expect("a copy of node");
    symlink(machine::find_program("npm").expect("the case needs it"), bin.join("npm")).expect("a link");
    env.set_caller_var("PATH", &format!("{}:{}", bin.display(), machine::PATH));
    let repo = fixture_repo(env, "npm");
    assert_passes_without_drift(&repo, "pr");
    assert_eq!(step_stdout(&repo, "pr", "which"), format!("{}\n", bin.join("node").display()));
    assert_npm_results(&repo);
}

/// The package is only in the caller's cache, and the registry cannot be reached.
fn npm_installs_from_callers_cache(env: &TestEnvironment) {
    let shout = crate::schemas::workspace_root().join("fixtures/tools/npm/shout");
    let packed = run_outside_sandbox(env, env.root(), &["npm", "pack", "--json", shout.to_str().expect("UTF-8")]);
    let packed: Value = serde_json::from_str(&packed).expect("npm says JSON");
    run_outside_sandbox(env, env.root(), &["npm", "cache", "add", "shout-1.0.0.tgz"]);
    std::fs::remove_dir_all(env.home_dir().join(".npm/_logs")).expect("npm has said what it did");
    env.give_to_actor(&env.home_dir());
    let package = serde_json::json!({ "name": "hello", "version": "1.0.0", "dependencies": { "shout": "1.0.0" } });
    let lock = serde_json::json!({
        "name": "hello", "version": "1.0.0", "lockfileVersion": 3, "requires": true,
        "packages": {
            "": package,
            "node_modules/shout": {
                "version": "1.0.0",
                "resolved": "https://registry.npmjs.org/shout/-/shout-1.0.0.tgz",
                "integrity": packed[0]["integrity"],
            },
        },
    });
    let say = TestStep::argv("say", &["node", "-p", "require('shout').shout('all is well')"]);
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("install", &["npm", "ci"]), say]));
    repo.write("package.json", package.to_string());
    repo.write("package-lock.json", lock.to_string());
    repo.write(".gitignore", "node_modules/\n");
    repo.commit();
    assert_passes_without_drift(&repo, "pr");
    assert_eq!(repo.step("say")["stdout_preview"], "ALL IS WELL!\n");
}

/// Runs a program outside of any sandbox, with the home of the case.
fn run_outside_sandbox(env: &TestEnvironment, dir: &Path, words: &[&str]) -> String {
    let mut command = machine::command(words[0]);
    command.args(&words[1..]).current_dir(dir).env("HOME", env.home_dir());
    let finished = RunningProcess::start(command).wait();
    assert_eq!(finished.code, Some(0), "{words:?}\n{finished}");
    finished.stdout
}

fn pip_installs_into_venv(env: &TestEnvironment) {
    let repo = fixture_repo(env, "pip");
    assert_passes_without_drift(&repo, "pr");
    assert!(step_stdout(&repo, "pr", "install").contains("Successfully installed counter-1.0 words-1.0"));
    assert_eq!(step_stdout(&repo, "pr", "check"), "No broken requirements found.\n");
    assert_eq!(step_stdout(&repo, "pr", "run"), "2 the, 1 cat, 1 and, 1 dog\n");
    assert!(!repo.file(".venv").exists() && !repo.file("wheels").exists());
}

fn pytest_with_processes_and_databases(env: &TestEnvironment) {
    let repo = fixture_repo(env, "pytest");
    assert_passes_without_drift(&repo, "pr");
    assert!(step_stdout(&repo, "pr", "test").contains("7 passed"), "{}", step_stdout(&repo, "pr", "test"));
    assert!(!repo.file(".pytest_cache").exists());
}

fn go_runs_tests_in_parallel(env: &TestEnvironment) {
    let repo = fixture_repo(env, "go");
    assert_passes_without_drift(&repo, "pr");
    let tests = step_stdout(&repo, "pr", "test");
    for package in ["locked", "served"] {
        assert!(tests.contains(&format!("ok  \texample.com/parallel/{package}")), "{tests}");
    }
}

/// The caller has downloaded the module earlier, from a proxy that is a directory.
fn go_builds_with_callers_modules(env: &TestEnvironment) {
    let proxy = env.root().join("proxy/example.com/one/@v");
    let module = "module example.com/one\n\ngo 1.19\n";
    machine::write(&proxy.join("v1.0.0.info"), "{\"Version\":\"v1.0.0\"}");
    machine::write(&proxy.join("v1.0.0.mod"), module);
    let files = env.root().join("zip/example.com/one@v1.0.0");
    machine::write(&files.join("go.mod"), module);
    machine::write(&files.join("one.go"), "package one\n\nfunc One() int { return 1 }\n");
    let zip = proxy.join("v1.0.0.zip");
    let program = "import pathlib, sys, zipfile\nroot = pathlib.Path('zip')\nwith zipfile.ZipFile(sys.argv[1], 'w') as z:\n    \
                   for path in root.rglob('*.*o*'):\n        if path.is_file(): z.write(path, path.relative_to(root))";
    run_outside_sandbox(env, env.root(), &["python3", "-c", program, zip.to_str().expect("UTF-8")]);
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["go", "run", "."])]));
    let program = "package main\n\nimport \"example.com/one\"\n\nfunc main() { print(one.One()) }\n";
    repo.write("main.go", program);
    repo.write("go.mod", "module example.com/use\n\ngo 1.19\n\nrequire example.com/one v1.0.0\n");
    let url = format!("GOPROXY=file://{}", env.root().join("proxy").display());
    let settings = [url.as_str(), "GONOSUMDB=*", "GOFLAGS=-mod=mod -modcacherw"];
    run_outside_sandbox(env, repo.path(), &[&["env"], &settings[..], &["go", "mod", "tidy"]].concat());
    env.give_to_actor(&env.home_dir());
    repo.commit();
    assert_passes_without_drift(&repo, "pr");
    assert_eq!(repo.step("it")["stderr_preview"], "1");
}

fn parallel_processes(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "servers"), "parallel", "320 turns\n");
}

fn localhost_answers(env: &TestEnvironment) {
    let repo = fixture_repo(env, "servers");
    assert_passes_without_drift(&repo, "localhost");
    assert!(step_stdout(&repo, "localhost", "run").starts_with("the name is found\n127.0.0.1 answers\n"));
}

fn localhost_answers_over_v6(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "servers"), "localhost", "the name is found\n127.0.0.1 answers\n::1 answers\n");
}

fn sqlite_in_wal_mode(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "sqlite"), "python", "wal 300 ok\n");
}

fn sqlite_shell_in_wal_mode(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "sqlite"), "shell", "wal\n30\nok\n");
}

fn headless_browser_renders_page(env: &TestEnvironment) {
    let repo = fixture_repo(env, "chromium");
    assert_passes_without_drift(&repo, "pr");
    let page = step_stdout(&repo, "pr", "render");
    assert!(page.contains("<p id=\"answer\">the server says: all is well</p>"), "{page}");
}

fn steps_can_open_terminals(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "everyday"), "terminal", "a line\n33 77\ngot a line\n");
}

fn script_opens_terminal(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "everyday"), "script", "on a terminal\n");
}

fn shared_memory(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "everyday"), "memory", "1200 hello there\n");
}

fn users_locales_and_time_zones(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "everyday"), "names", "2026-07-01T14:00:00+02:00\n09:00\n");
}

fn compiler_in_temporary_directory(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "everyday"), "compiler", "counted to 10\ncounted to 10\n");
}

fn gdb_debugs_its_child(env: &TestEnvironment) {
    let repo = fixture_repo(env, "everyday");
    assert_passes_without_drift(&repo, "gdb");
    let text = step_stdout(&repo, "gdb", "run");
    for line in ["hit Breakpoint 1, count", "$1 = 0", "counted to 10", "exited normally"] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

fn strace_follows_its_child(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "everyday"), "strace", "1\n");
}

fn git_reads_repository(env: &TestEnvironment) {
    let repo = fixture_repo(env, "everyday");
    assert_passes_without_drift(&repo, "git");
    let commits = "a commit of a test\na commit of a test\n";
    assert_eq!(step_stdout(&repo, "git", "run"), format!("{commits}git.sh\ngit.sh\n1\n"));
}

fn make_with_jobserver(env: &TestEnvironment) {
    assert_prints(&fixture_repo(env, "everyday"), "make", "12\n");
}

const CREDENTIAL: &str = "the-credential-of-the-caller";

/// The operator mounts directories that contain credentials among other files. Links in the home point to a version
/// manager, a toolchain, the home itself, a directory with credentials, and a missing target.
fn linked_toolchains_without_credentials(env: &TestEnvironment) {
    let secrets = [
        "home/.ssh/id_ed25519",
        "home/.cargo/credentials.toml",
        "home/.config/gh/hosts.yml",
        "home/.config/pip/pip.conf",
        "home/.local/share/keyrings/login",
        "home/.config/tool/private",
        "home/.npmrc",
        "elsewhere/nvm/versions/node/v1/etc/npmrc",
        "elsewhere/secret",
    ];
    secrets.iter().for_each(|path| machine::write(&env.root().join(path), CREDENTIAL));
    machine::write(&env.home_dir().join(".cargo/config.toml"), format!("[registry]\ntoken = \"{CREDENTIAL}\"\n"));
    machine::write(&env.home_dir().join(".config/tool/settings"), "settings\n");
    let tool = env.root().join("elsewhere/nvm/versions/node/v1/bin/a-tool");
    machine::write(&tool, "#!/bin/sh\necho a tool ran\n");
    machine::make_dir_public(&tool);
    machine::write(&env.root().join("elsewhere/toolchain/lib"), "a library\n");
    create_home_links(env);
    let config = "tool_mounts = ['~/.cargo', '~/.config', '~/.local/share', '~/absent']\n\
                  tool_masks = ['~/.config/tool/private', '~/absent']\n";
    machine::write(&env.root().join("config/proctor/proctord.toml"), config);
    let bin = env.home_dir().join(".nvm/versions/node/v1/bin");
    env.set_caller_var("PATH", &format!("{}:{}", bin.display(), machine::PATH));
    let script = format!(
        "a-tool; {}; cat ~/.rustup/toolchains/linked/lib ~/.config/tool/settings; ls -A ~/.config/gh; \
         grep -rls {CREDENTIAL} ~ {}/elsewhere /root /home /run; ls ~/.volta ~/.pyenv ~/.local/bin 2>/dev/null; true",
        tool.display(),
        env.root().display()
    );
    let repo = env.repo(&TestSpec::from_script(&script));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "a tool ran\na tool ran\na library\nsettings\n");
}

fn create_home_links(env: &TestEnvironment) {
    let links = [
        (".nvm", "elsewhere/nvm"),
        (".rustup/toolchains/linked", "elsewhere/toolchain"),
        (".volta", "home"),
        (".local/bin", "home/.ssh"),
        (".pyenv", "nowhere"),
    ];
    for (link, target) in links {
        let link = env.home_dir().join(link);
        std::fs::create_dir_all(link.parent().expect("it is in the home")).expect("a directory of the test");
        symlink(env.root().join(target), link).expect("a link of the test");
    }
}

fn home_behind_link(env: &TestEnvironment) {
    let link = env.root().join("home-link");
    symlink(env.home_dir(), &link).expect("a link of the test");
    let tool = env.home_dir().join(".nvm/current/bin/a-tool");
    machine::write(&tool, "#!/bin/sh\necho a tool ran\n");
    machine::make_dir_public(&tool);
    env.set_caller_var("HOME", link.to_str().expect("UTF-8"));
    let script = "a-tool && echo x > ~/file && cat ~/file ~/secret.txt; ls -A ~ | grep -v '^.gitconfig$'";
    let repo = env.repo_at("home/src/repo", &TestSpec::from_script(script));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "a tool ran\nx\n.nvm\nfile\n");
}
