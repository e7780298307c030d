//! Tests `read_only: off`, which writes to the worktree: it must not overwrite a user's work, and not write
//! elsewhere.

use crate::environment::{CHANGESET, Repo, TestEnvironment, release, wait_for_step};
use crate::machine;
use crate::needs::{Case, Needs, case};
use crate::process::Finished;
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("applying::an_edit_made_meanwhile_is_not_overwritten", edited_meanwhile),
    case("applying::a_file_made_meanwhile_is_not_overwritten", created_meanwhile),
    case("applying::a_directory_that_became_a_link_is_not_followed", linked_meanwhile),
    case("applying::links_and_deletions_are_applied_as_such", links),
    case("applying::a_link_that_the_step_made_is_not_followed", own_link),
    case("applying::without_room_for_evidence_nothing_passes", no_room).needs(&[
        Needs::Sandbox,
        Needs::Root,
        Needs::Program("unshare"),
    ]),
];

/// Returns a step that writes immediately, then waits, and passes when it is released.
fn writing_step(env: &TestEnvironment, script: &str) -> Step {
    let marker = env.marker();
    let script = format!("{script}; trap 'exit 0' USR1; sh -c 'sleep 300; :' {marker}-ready & wait");
    Step::argv("it", &["sh", "-c", &script, &format!("{marker}-main")]).with("read_only: off")
}

/// Runs a writing step, and calls `act` before the changes are applied to the worktree.
fn meanwhile<'e>(env: &'e TestEnvironment, script: &str, act: impl FnOnce(&Repo<'_>)) -> (Repo<'e>, Finished) {
    let repo = env.repo(&Spec::of_steps([writing_step(env, script)]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    act(&repo);
    release(&step);
    let run = env.finish(running);
    (repo, run)
}

fn edited_meanwhile(env: &TestEnvironment) {
    let (repo, run) = meanwhile(env, "echo formatted > src/lib.rs", |repo| repo.write("src/lib.rs", "my own work\n"));
    let run = run.exits(5);
    assert_eq!(repo.read("src/lib.rs"), "my own work\n", "a user's work is lost");
    assert!(run.everything().contains("src/lib.rs"), "{run}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn created_meanwhile(env: &TestEnvironment) {
    let (repo, run) = meanwhile(env, "echo made > src/new.rs", |repo| repo.write("src/new.rs", "my own work\n"));
    run.exits(5);
    assert_eq!(repo.read("src/new.rs"), "my own work\n", "a user's work is lost");
}

fn linked_meanwhile(env: &TestEnvironment) {
    let outside = env.root().join("sibling");
    let (_, run) = meanwhile(env, "echo made > src/new.rs; rm src/lib.rs", |repo| {
        std::fs::rename(repo.file("src"), repo.file("src.old")).expect("it was there");
        repo.link("src", &outside);
        machine::write(&outside.join("lib.rs"), "outside\n");
    });
    run.exits(5);
    assert!(!outside.join("new.rs").exists() && outside.join("lib.rs").exists(), "a write went through a link");
}

fn links(env: &TestEnvironment) {
    let script = "ln -s README.md link; rm src/lib.rs; rm .gitignore; ln -s src .gitignore; chmod +x README.md";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script).with("read_only: off")]));
    repo.run().exits(0);
    assert_eq!(std::fs::read_link(repo.file("link")).expect("a link"), std::path::Path::new("README.md"));
    assert_eq!(std::fs::read_link(repo.file(".gitignore")).expect("a link"), std::path::Path::new("src"));
    assert!(!repo.file("src/lib.rs").exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(&repo.file("README.md").metadata().expect("it").permissions());
    assert_ne!(mode & 0o100, 0);
}

/// The target is hidden in the sandbox, but on the host the link would lead to it.
fn own_link(env: &TestEnvironment) {
    let outside = env.root().join("sibling");
    let link = Step::sh("link", &format!("rm -r src && ln -s {} src", outside.display())).with("read_only: off");
    let write = Step::sh("it", "rm src; mkdir src; echo x > src/secret.txt").with("read_only: off");
    let repo = env.repo(&Spec::of_steps([link, write]));
    let before = std::fs::read(outside.join("secret.txt")).expect("it is there");
    repo.run();
    assert_eq!(std::fs::read(outside.join("secret.txt")).expect("it is there"), before);
    assert!(!outside.join("lib.rs").exists());
}

fn no_room(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo x"));
    let script = "mount -t tmpfs -o size=4k none \"$0\" && printf '{}' > \"$0/00-meta.json\" && exec \"$@\"";
    let changeset = repo.changeset();
    let wrapper = ["unshare", "--mount", "sh", "-c", script, changeset.to_str().expect("UTF-8")];
    let run = env.finish(env.start_through(repo.path(), &wrapper, &["run", "--changeset", CHANGESET]));
    let run = run.exits(5);
    assert!(run.everything().contains("evidence") || run.everything().contains("status"), "{run}");
    assert!(!run.stdout.lines().last().is_some_and(|line| line.starts_with("passed")), "{run}");
}
