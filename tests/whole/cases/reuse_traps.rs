//! Tests the reuse of results where a careless cache would answer wrongly: programs that conclude from times that a file is
//! unchanged, files outside of the repository, and facts that no file contains. `docs/development/reuse-traps.md` lists
//! all traps.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::reuse::ReuseRepo;
use crate::environment::{CHANGESET, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::TestStep;

pub(super) const CASES: &[CaseDefinition] = &[
    trap("reuse_traps::git_diff_sees_an_edit_of_the_same_size", git_diff_sees_edit),
    trap("", git_diff_sees_edit).unprivileged("reuse_traps::git_diff_sees_an_edit_of_the_same_size_as_a_user"),
    trap("reuse_traps::later_step_sees_what_an_earlier_one_made_of_ignored_files", ignored_file_reaches_later_step),
    trap("reuse_traps::evidence_and_state_of_earlier_runs_are_invisible", evidence_is_invisible),
    trap("reuse_traps::inherited_limits_are_a_part_of_the_step", inherited_limits_matter),
    trap("reuse_traps::young_file_of_the_host_is_not_trusted", young_file_is_not_trusted),
    host_trap("reuse_traps::edited_module_outside_executes_its_importer", edited_module_outside),
    host_trap("reuse_traps::replaced_program_executes_the_step", replaced_program),
    host_trap("reuse_traps::new_program_earlier_on_path_executes_the_step", new_program_on_path),
    case("reuse_traps::file_on_tmpfs_is_not_trusted", file_on_tmpfs_is_not_trusted).needs(NEEDS_TMPFS),
    host_trap("reuse_traps::old_results_and_results_of_the_future_are_not_used", dated_results_are_not_used),
];

const NEEDS: &[Needs] = &[Needs::Sandbox, Needs::Views];
const NEEDS_FAKETIME: &[Needs] =
    &[Needs::Sandbox, Needs::Views, Needs::WorkingCommand(&["faketime", "2020-01-01 00:00:00", "true"])];

const NEEDS_TMPFS: &[Needs] = &[
    Needs::Sandbox,
    Needs::Views,
    Needs::WorkingCommand(&["faketime", "2020-01-01 00:00:00", "true"]),
    Needs::WorkingCommand(&["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]),
];

const fn trap(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case(name, run).needs(NEEDS)
}

/// A trap with new files outside of the repository. The clock of Proctor is ahead, so that the files count as old.
const fn host_trap(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case(name, run).needs(NEEDS_FAKETIME)
}

/// Runs through a wrapper, and expects a pass.
fn pass_through(env: &TestEnvironment, reuse: &ReuseRepo<'_>, wrapper: &[&str]) -> FinishedProcess {
    let words = ["run", "--profile", "pr", "--changeset", CHANGESET];
    env.finish(env.start_through(reuse.repo.path(), wrapper, &words)).exits(0)
}

/// Runs with a clock that differs by `offset`, and expects a pass.
fn pass_at(env: &TestEnvironment, reuse: &ReuseRepo<'_>, offset: &str) {
    // Only the clock is shifted, not the times of files.
    pass_through(env, reuse, &["env", "NO_FAKE_STAT=1", "faketime", "-f", offset]);
}

/// A time after which new files of the host count as settled.
const SETTLED: &str = "+60s";

/// Creates a directory outside of the repository that steps see.
fn tool_directory(env: &TestEnvironment) -> PathBuf {
    let tools = env.root().join("tools");
    fs::create_dir(&tools).expect("a new directory");
    machine::make_dir_public(&tools);
    show_to_steps(env, &tools);
    tools
}

fn show_to_steps(env: &TestEnvironment, directory: &Path) {
    let settings = format!("tool_mounts = ['{}']\n[reuse]\nrecheck_percent = 0\n", directory.display());
    env.configure_operator(&settings);
}

fn write_program(path: &Path, prints: &str) {
    machine::write(path, format!("#!/bin/sh\necho {prints}\n"));
    machine::make_executable(path);
}

/// Git reads no file whose time and size equal those in the index.
fn git_diff_sees_edit(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", "git diff --exit-code")]);
    reuse.repo.write("README.md", "one\n");
    reuse.repo.commit();
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    reuse.repo.write("README.md", "two\n");
    reuse.repo.run().exits(1);
    assert_eq!(reuse.executed(), ["it"]);
}

/// The identity of a later step contains the inputs of the earlier one, because its files are not observed.
fn ignored_file_reaches_later_step(env: &TestEnvironment) {
    let make = TestStep::sh("make", "cat target/data > target/made");
    let reuse = ReuseRepo::new(env, [make, TestStep::sh("use", "cat target/made")]);
    reuse.repo.write("target/data", "one\n");
    reuse.pass();
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("use")), (Vec::new(), "one\n".to_owned()));
    reuse.repo.write("target/data", "two\n");
    reuse.pass();
    assert_eq!(reuse.executed(), ["make", "use"]);
    assert_eq!(reuse.stdout("use"), "two\n");
}

/// Otherwise each run would change the inputs of the next one.
fn evidence_is_invisible(env: &TestEnvironment) {
    let state = env.state_dir();
    let script = format!("find changes -type f | sort; test ! -e {}/results && echo hidden", state.display());
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", &script)]);
    reuse.pass();
    let first = reuse.stdout("it");
    assert!(first.ends_with("hidden\n") && !first.contains("verify"), "{first}");
    assert!(reuse.repo.changeset().join("verify").exists() && state.join("results").exists());
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("it")), (Vec::new(), first));
}

fn inherited_limits_matter(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", "ulimit -s")]);
    reuse.pass();
    let usual = reuse.stdout("it");
    let smaller = ["sh", "-c", "ulimit -S -s 4096 && exec \"$@\"", "sh"];
    pass_through(env, &reuse, &smaller);
    assert_eq!((reuse.executed(), reuse.stdout("it")), (vec!["it".to_owned()], "4096\n".to_owned()));
    pass_through(env, &reuse, &smaller);
    assert_eq!(reuse.executed(), [""; 0]);
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("it")), (Vec::new(), usual));
}

fn young_file_is_not_trusted(env: &TestEnvironment) {
    let tools = tool_directory(env);
    write_program(&tools.join("tool"), "one");
    let tool = tools.join("tool").display().to_string();
    let reuse = ReuseRepo::new(env, [TestStep::argv("it", &[&tool])]);
    for _ in 0..2 {
        reuse.pass();
        assert_eq!(reuse.executed(), ["it"]);
    }
    let explained = reuse.explain("verify.it/it");
    assert!(explained.contains(&format!("`{tool}` changed less than 40 s ago")), "{explained}");
}

/// Python reads no source whose time and size equal those in the compiled file. An edit of the source changes neither
/// the size nor the compiled file.
fn edited_module_outside(env: &TestEnvironment) {
    let tools = tool_directory(env);
    let module = tools.join("module.py");
    machine::write(&module, "value = 1\n");
    // Python compares whole seconds.
    let some_day = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let opened = fs::File::options().write(true).open(&module).expect("opens");
    opened.set_modified(some_day).expect("sets the time");
    let mut compile = machine::command("python3");
    compile.args(["-m", "compileall", "-q"]).arg(&tools);
    RunningProcess::start(compile).wait().exits(0);
    let script = format!("import sys; sys.path.insert(0, '{}'); import module; print(module.value)", tools.display());
    let reuse = ReuseRepo::new(env, [TestStep::argv("it", &["python3", "-c", &script])]);
    for executed in [vec!["it".to_owned()], Vec::new()] {
        pass_at(env, &reuse, SETTLED);
        assert_eq!((reuse.executed(), reuse.stdout("it")), (executed, "1\n".to_owned()));
    }
    machine::write(&module, "value = 2\n");
    pass_at(env, &reuse, SETTLED);
    assert_eq!((reuse.executed(), reuse.stdout("it")), (vec!["it".to_owned()], "2\n".to_owned()));
}

fn replaced_program(env: &TestEnvironment) {
    let tools = tool_directory(env);
    let tool = tools.join("tool");
    write_program(&tool, "one");
    let reuse = ReuseRepo::new(env, [TestStep::argv("it", &[tool.to_str().expect("UTF-8")])]);
    for executed in [vec!["it".to_owned()], Vec::new()] {
        pass_at(env, &reuse, SETTLED);
        assert_eq!((reuse.executed(), reuse.stdout("it")), (executed, "one\n".to_owned()));
    }
    // The new program has the size, the mode and the time of the old one.
    write_program(&tools.join("new"), "two");
    let mut touch = machine::command("touch");
    touch.arg("-r").arg(&tool).arg(tools.join("new"));
    RunningProcess::start(touch).wait().exits(0);
    fs::rename(tools.join("new"), &tool).expect("renamed");
    pass_at(env, &reuse, SETTLED);
    assert_eq!((reuse.executed(), reuse.stdout("it")), (vec!["it".to_owned()], "two\n".to_owned()));
}

fn new_program_on_path(env: &TestEnvironment) {
    let tools = tool_directory(env);
    let (first, second) = (tools.join("first"), tools.join("second"));
    for dir in [&first, &second] {
        fs::create_dir(dir).expect("a new directory");
    }
    write_program(&second.join("tool"), "second");
    let script = format!("PATH={}:{}:$PATH; tool", first.display(), second.display());
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", &script)]);
    for executed in [vec!["it".to_owned()], Vec::new()] {
        pass_at(env, &reuse, SETTLED);
        assert_eq!((reuse.executed(), reuse.stdout("it")), (executed, "second\n".to_owned()));
    }
    write_program(&first.join("tool"), "first");
    pass_at(env, &reuse, SETTLED);
    assert_eq!((reuse.executed(), reuse.stdout("it")), (vec!["it".to_owned()], "first\n".to_owned()));
    fs::remove_file(first.join("tool")).expect("removed");
    pass_at(env, &reuse, SETTLED);
    assert_eq!((reuse.executed(), reuse.stdout("it")), (Vec::new(), "second\n".to_owned()), "an earlier result holds");
}

/// A write through a mapping sets no time of a file on tmpfs, so that its stamp proves nothing.
fn file_on_tmpfs_is_not_trusted(env: &TestEnvironment) {
    let tools = tool_directory(env);
    let file = tools.join("file");
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", &format!("cat {}", file.display()))]);
    let mount = format!(
        "mount -t tmpfs -o mode=755 none {} && echo on tmpfs > {} && exec \"$@\"",
        tools.display(),
        file.display()
    );
    let clock = ["env", "NO_FAKE_STAT=1", "faketime", "-f", SETTLED];
    pass_through(env, &reuse, &[&["unshare", "--mount", "sh", "-c", &mount, "sh"], &clock[..]].concat());
    assert_eq!(reuse.stdout("it"), "on tmpfs\n");
    let explained = reuse.explain("verify.it/it");
    assert!(explained.contains("is on a file system whose times do not show every change"), "{explained}");
}

fn dated_results_are_not_used(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", "cat README.md")]);
    let executed_at = |offset: &str| {
        pass_at(env, &reuse, offset);
        !reuse.executed().is_empty()
    };
    assert!(executed_at("+0") && !executed_at("+6d") && executed_at("+8d"), "a result is used for seven days");
    reuse.repo.write("README.md", "edited\n");
    assert!(executed_at("+1h") && executed_at("+0") && !executed_at("+0"), "the clock was set back");
}
