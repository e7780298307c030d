//! Tests `read_only: off`, which writes to the worktree: it must not overwrite a user's work, and not write
//! elsewhere.

use crate::environment::{CHANGESET, Repo, TestEnvironment, release_step, wait_for_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("apply_changes::edit_during_the_run_is_not_overwritten", keeps_concurrent_edit).daemon_sample(),
    case("apply_changes::file_created_during_the_run_is_not_overwritten", keeps_concurrently_created_file),
    case("apply_changes::directory_replaced_by_a_link_is_not_followed", refuses_directory_replaced_by_link),
    case("apply_changes::links_and_deletions_are_applied", applies_links_and_deletions),
    case("apply_changes::link_created_by_the_step_is_not_followed", does_not_follow_link_of_step),
    case("apply_changes::full_disk_for_evidence_prevents_a_pass", full_disk_for_evidence)
        .needs(&[Needs::Sandbox, Needs::Root, Needs::Program("unshare")])
        .daemon_sample(),
];

/// Returns a step that writes immediately, then waits, and passes when it is released.
fn writing_step(env: &TestEnvironment, script: &str) -> TestStep {
    let marker = env.marker();
    let script = format!("{script}; trap 'exit 0' USR1; sh -c 'sleep 300; :' {marker}-ready & wait");
    TestStep::argv("it", &["sh", "-c", &script, &format!("{marker}-main")]).with_field("read_only: off")
}

/// Runs a writing step, and calls `act` before the changes are applied to the worktree.
fn run_and_edit<'e>(
    env: &'e TestEnvironment,
    script: &str,
    edit: impl FnOnce(&Repo<'_>),
) -> (Repo<'e>, FinishedProcess) {
    let repo = env.repo(&TestSpec::from_steps([writing_step(env, script)]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    edit(&repo);
    release_step(&step);
    let run = env.finish(running);
    (repo, run)
}

fn keeps_concurrent_edit(env: &TestEnvironment) {
    let (repo, run) =
        run_and_edit(env, "echo formatted > src/lib.rs", |repo| repo.write("src/lib.rs", "my own work\n"));
    let run = run.exits(5);
    assert_eq!(repo.read("src/lib.rs"), "my own work\n", "a user's work is lost");
    assert!(run.all_output().contains("src/lib.rs"), "{run}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn keeps_concurrently_created_file(env: &TestEnvironment) {
    let (repo, run) = run_and_edit(env, "echo made > src/new.rs", |repo| repo.write("src/new.rs", "my own work\n"));
    run.exits(5);
    assert_eq!(repo.read("src/new.rs"), "my own work\n", "a user's work is lost");
}

fn refuses_directory_replaced_by_link(env: &TestEnvironment) {
    let outside = env.root().join("sibling");
    let (_, run) = run_and_edit(env, "echo made > src/new.rs; rm src/lib.rs", |repo| {
        std::fs::rename(repo.file("src"), repo.file("src.old")).expect("it was there");
        repo.link("src", &outside);
        machine::write(&outside.join("lib.rs"), "outside\n");
    });
    run.exits(5);
    assert!(!outside.join("new.rs").exists() && outside.join("lib.rs").exists(), "a write went through a link");
}

fn applies_links_and_deletions(env: &TestEnvironment) {
    let script = "ln -s README.md link; rm src/lib.rs; rm .gitignore; ln -s src .gitignore; chmod +x README.md";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("read_only: off")]));
    repo.run().exits(0);
    assert_eq!(std::fs::read_link(repo.file("link")).expect("a link"), std::path::Path::new("README.md"));
    assert_eq!(std::fs::read_link(repo.file(".gitignore")).expect("a link"), std::path::Path::new("src"));
    assert!(!repo.file("src/lib.rs").exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(&repo.file("README.md").metadata().expect("it").permissions());
    assert_ne!(mode & 0o100, 0);
}

/// The target is hidden in the sandbox, but on the host the link would lead to it.
fn does_not_follow_link_of_step(env: &TestEnvironment) {
    let outside = env.root().join("sibling");
    let link =
        TestStep::sh("link", &format!("rm -r src && ln -s {} src", outside.display())).with_field("read_only: off");
    let write = TestStep::sh("it", "rm src; mkdir src; echo x > src/secret.txt").with_field("read_only: off");
    let repo = env.repo(&TestSpec::from_steps([link, write]));
    let before = std::fs::read(outside.join("secret.txt")).expect("it is there");
    repo.run();
    assert_eq!(std::fs::read(outside.join("secret.txt")).expect("it is there"), before);
    assert!(!outside.join("lib.rs").exists());
}

fn full_disk_for_evidence(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo x"));
    let script = "mount -t tmpfs -o size=4k none \"$0\" && printf '{}' > \"$0/00-meta.json\" && exec \"$@\"";
    let changeset = repo.changeset();
    let wrapper = ["unshare", "--mount", "sh", "-c", script, changeset.to_str().expect("UTF-8")];
    let run = env.finish(env.start_through(repo.path(), &wrapper, &["run", "--changeset", CHANGESET]));
    let run = run.exits(5);
    assert!(run.all_output().contains("evidence") || run.all_output().contains("status"), "{run}");
    assert!(!run.stdout.lines().last().is_some_and(|line| line.starts_with("passed")), "{run}");
}
