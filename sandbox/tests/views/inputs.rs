//! Tests of views that show only the inputs of a command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;
use proctor_core::decision::input_filter::InputRules;
use proctor_core::model::plan::RelPath;
use proctor_core::model::trace::PathState;
use proctor_sandbox::Policy;

use super::{entries_in_repo, find};
use crate::environment::{self, SandboxTestEnv, TestCommand, TestOutcome};

/// Creates files in the repository that are not inputs in these tests.
fn create_files(bench: &SandboxTestEnv) -> Result<(), Failed> {
    fs::create_dir_all(bench.repo.join("docs/deep"))?;
    for (name, text) in [("docs/a.md", "doc\n"), ("docs/deep/b.md", "deep\n"), ("src/notes.txt", "notes\n")] {
        fs::write(bench.repo.join(name), text)?;
    }
    std::os::unix::fs::symlink("../tracked.txt", bench.repo.join("src/to-tracked.rs"))?;
    if bench.role.is_foreign() {
        environment::chown_to_user(&bench.repo)?;
    }
    Ok(())
}

fn with_inputs(bench: &SandboxTestEnv, script: &str, globs: &[&str]) -> Result<Policy, Failed> {
    let rules = InputRules {
        globs: globs.iter().map(|glob| (*glob).to_owned()).collect(),
        shown: Vec::new(),
        workdir: RelPath::new(".")?,
    };
    Ok(Policy { inputs: Some(rules), ..bench.policy(&TestCommand::shell(script))? })
}

/// Runs a script that sees only the sources.
fn run(bench: &SandboxTestEnv, script: &str) -> Result<TestOutcome, Failed> {
    bench.run_policy(&with_inputs(bench, script, &["src/*.rs"])?, &[])
}

fn withheld(outcome: &TestOutcome) -> Vec<&str> {
    let paths = outcome.withheld.as_ref().expect("the view reports withheld paths");
    assert_eq!(paths.count, paths.listed.len() as u64);
    paths.listed.iter().map(String::as_str).collect()
}

pub(crate) fn withheld_files_are_absent_and_reported(bench: &SandboxTestEnv) -> Result<(), Failed> {
    create_files(bench)?;
    let script = "
        cat tracked.txt 2>&1
        test ! -e docs && test ! -e src/notes.txt && test ! -e docs/a.md
        stat missing 2>&1
        ls . src
    ";
    let outcome = run(bench, script)?;
    let output = outcome.stdout_of_success();
    assert!(output.contains("tracked.txt: No such file or directory"), "{output}");
    assert!(output.ends_with(".:\nsrc\n\nsrc:\nlib.rs\nto-tracked.rs"), "{output}");
    assert_eq!(withheld(&outcome), ["docs", "src/notes.txt", "tracked.txt"], "`missing` does not exist");
    Ok(())
}

pub(crate) fn inputs_and_their_directories_behave_as_usual(bench: &SandboxTestEnv) -> Result<(), Failed> {
    create_files(bench)?;
    let script = "cat src/lib.rs .git/HEAD && cd src && cat ../src/lib.rs && test -d ../.git";
    let outcome = run(bench, script)?;
    assert_eq!(outcome.stdout_of_success(), "// nothing\nref: refs/heads/main\n// nothing");
    assert!(withheld(&outcome).is_empty());
    let listed = run(bench, "ls -a; ls -a src")?;
    assert_eq!(listed.stdout_of_success(), ".\n..\n.git\nsrc\n.\n..\nlib.rs\nto-tracked.rs");
    assert!(withheld(&listed).is_empty(), "a listing is no lookup of the entries that it lacks");
    Ok(())
}

pub(crate) fn trace_is_that_of_the_shown_files(bench: &SandboxTestEnv) -> Result<(), Failed> {
    create_files(bench)?;
    let outcome = run(bench, "test ! -e tracked.txt; ls src > /dev/null; read line < src/lib.rs")?;
    let trace = outcome.trace.as_ref().ok_or("no trace")?.as_ref().map_err(ToString::to_string)?;
    let absent = find(trace, &bench.repo.join("tracked.txt")).map(|entry| &entry.state);
    assert_eq!(absent, Some(&PathState::Absent), "the comparison of inputs uses the same rules");
    let entries = entries_in_repo(bench, trace);
    assert!(entries.contains(&"dir src listed".to_owned()), "{entries:?}");
    let listing = find(trace, &bench.repo.join("src")).and_then(|entry| entry.listing);
    let shown = proctor_sandbox::observe_shown_listing(&bench.repo.join("src"), |name, _| name.ends_with(b".rs"))?;
    assert_eq!(listing, Some(shown));
    Ok(())
}

pub(crate) fn withheld_files_cannot_be_reached_by_other_names(bench: &SandboxTestEnv) -> Result<(), Failed> {
    create_files(bench)?;
    // A link that is an input leads to a file that is not an input.
    let link = run(bench, "readlink src/to-tracked.rs; cat src/to-tracked.rs 2>&1; true")?;
    let output = link.stdout_of_success();
    assert!(output.starts_with("../tracked.txt\n") && output.contains("No such file"), "{output}");
    assert_eq!(withheld(&link), ["tracked.txt"]);
    let repo = bench.repo.display();
    let names = format!(
        "{repo}/tracked.txt src/../tracked.txt ./tracked.txt /proc/self/cwd/tracked.txt /proc/self/root{repo}/tracked.txt \
         /proc/1/cwd/tracked.txt TRACKED.TXT src/../docs/../tracked.txt tracked.txt/"
    );
    let script =
        format!("for name in {names}; do if cat $name 2> /dev/null; then echo readable: $name; fi; done; echo end");
    let outcome = run(bench, &script)?;
    assert_eq!(outcome.stdout_of_success(), "end");
    assert_eq!(withheld(&outcome), ["docs", "tracked.txt"]);
    // A new hard link to a withheld file cannot be created. An existing hard link of it that matches a pattern is an
    // input.
    fs::hard_link(bench.repo.join("tracked.txt"), bench.repo.join("src/other-name.rs"))?;
    let hard = run(bench, "ln tracked.txt src/new.rs 2> /dev/null || cat src/other-name.rs")?;
    assert_eq!(hard.stdout_of_success(), "as it was");
    Ok(())
}

pub(crate) fn step_can_create_files_with_withheld_names(bench: &SandboxTestEnv) -> Result<(), Failed> {
    create_files(bench)?;
    let script = "
        echo mine > tracked.txt && mkdir docs && echo mine > docs/a.md && cat tracked.txt docs/a.md && ls docs
        rm tracked.txt && test ! -e tracked.txt
    ";
    let outcome = run(bench, script)?;
    assert_eq!(outcome.stdout_of_success(), "mine\nmine\na.md");
    assert_eq!(
        environment::names(outcome.layer.upper())?,
        ["docs"],
        "a removed file leaves no deletion of the withheld one"
    );
    assert_eq!(fs::read_to_string(bench.repo.join("tracked.txt"))?, "as it was\n");
    assert_eq!(withheld(&outcome), ["docs", "tracked.txt"]);
    Ok(())
}

pub(crate) fn files_of_earlier_steps_are_shown(bench: &SandboxTestEnv) -> Result<(), Failed> {
    create_files(bench)?;
    let earlier = bench.run(&TestCommand::shell("echo built > out.txt; echo edited > docs/a.md"))?;
    earlier.stdout_of_success();
    let policy = with_inputs(bench, "cat out.txt docs/a.md; test ! -e docs/deep && ls docs", &["src/*.rs"])?;
    let later = bench.run_policy(&policy, &[&earlier.layer])?;
    assert_eq!(later.stdout_of_success(), "built\nedited\na.md");
    Ok(())
}

/// A second mount of a directory, which is removed at the end.
struct SecondMount(PathBuf);

impl SecondMount {
    fn create(source: &Path, point: PathBuf) -> Result<Self, Failed> {
        fs::create_dir(&point)?;
        let status = Command::new("mount").arg("--bind").args([source, &point]).status()?;
        assert!(status.success(), "mount --bind");
        Ok(Self(point))
    }
}

impl Drop for SecondMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

pub(crate) fn second_mount_of_the_tree_is_withheld(bench: &SandboxTestEnv) -> Result<(), Failed> {
    create_files(bench)?;
    // A directory that no sandbox hides.
    let dir = tempfile::Builder::new().prefix("proctor-mounts").tempdir_in("/var")?;
    let whole = SecondMount::create(&bench.repo, dir.path().join("whole"))?;
    let part = SecondMount::create(&bench.repo.join("docs"), dir.path().join("part"))?;
    let above = SecondMount::create(&bench.root, dir.path().join("above"))?;
    let at = dir.path().display();
    let script = format!("cat {at}/whole/tracked.txt {at}/part/a.md {at}/above/repo/tracked.txt 2> /dev/null; ls {at}");
    let seen = bench.run(&TestCommand::shell(&script))?;
    assert!(seen.stdout_of_success().starts_with("as it was\ndoc\nas it was\n"), "the mounts are visible: {seen:?}");
    let outcome = run(bench, &script)?;
    assert_eq!(outcome.stdout_of_success(), "above");
    let aliases = ["above/repo", "part", "whole"].map(|name| format!("{at}/{name}"));
    assert_eq!(withheld(&outcome), aliases);
    drop((whole, part, above));
    Ok(())
}

pub(crate) fn withheld_paths_are_bounded(bench: &SandboxTestEnv) -> Result<(), Failed> {
    fs::create_dir(bench.repo.join("many"))?;
    for number in 0..300 {
        fs::write(bench.repo.join(format!("many/{number:03}")), "")?;
    }
    if bench.role.is_foreign() {
        environment::chown_to_user(&bench.repo)?;
    }
    let script = "for name in $(seq -w 0 299); do test ! -e many/$name || exit 1; done";
    let outcome = bench.run_policy(&with_inputs(bench, script, &["many/*/*"])?, &[])?;
    outcome.stdout_of_success();
    let paths = outcome.withheld.ok_or("no report")?;
    assert_eq!((paths.count, paths.listed.len(), paths.listed[49].as_str()), (300, 50, "many/049"));
    Ok(())
}

pub(crate) fn inputs_have_no_effect_without_a_view(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let policy = Policy { view: false, ..with_inputs(bench, "cat tracked.txt", &["src/*.rs"])? };
    let outcome = bench.run_policy(&policy, &[])?;
    assert_eq!(outcome.stdout_of_success(), "as it was");
    assert!(outcome.withheld.is_none() && outcome.trace.is_none());
    Ok(())
}
