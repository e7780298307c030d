//! Tests attempts to obtain a pass from outdated results.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::environment::{TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

use super::hooks::{add_remote, push_to_origin, start_git, start_with_input};
use super::reuse::ReuseRepo;

pub(super) const CASES: &[CaseDefinition] = &[
    case("stale_results::later_step_sees_the_files_of_all_checked_files", files_of_all_are_seen)
        .needs(&[Needs::Sandbox, Needs::Views]),
    case("stale_results::run_whose_tools_changed_answers_no_push", changed_tools_answer_no_push)
        .needs(&[Needs::Sandbox]),
    case("stale_results::run_that_read_the_index_answers_no_push", read_index_answers_no_push)
        .needs(&[Needs::Sandbox, Needs::Views]),
    case("stale_results::run_that_read_a_changed_host_answers_no_push", changed_host_answers_no_push)
        .needs(&[Needs::Sandbox, Needs::Views]),
    case("stale_results::times_in_a_needed_path_are_inputs", times_in_needed_path_are_inputs)
        .needs(&[Needs::Sandbox, Needs::Views]),
    case("stale_results::replaced_image_is_another_input", replaced_image_is_another_input).needs(&[
        Needs::Sandbox,
        Needs::Views,
        Needs::Root,
        Needs::WorkingCommand(&["mksquashfs", "-version"]),
    ]),
];

/// Returns a step that copies each file with its mode, and a step that judges the copies.
fn copy_and_judge(judge: &str) -> [TestStep; 2] {
    let copy = "mkdir -p out && cp -p \"$@\" out";
    let copy = TestStep::argv("copy", &["sh", "-c", copy, "sh", "{files}"])
        .with_field("files: { include: ['*.txt'] }")
        .with_field("per_file: true");
    [copy, TestStep::sh("judge", judge)]
}

fn files_of_all_are_seen(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, copy_and_judge("! grep -q BAD out/* && test ! -x out/b.txt && test -e out/b.txt"));
    let repo = &reuse.repo;
    repo.write(".gitignore", "/out\n");
    repo.write("a.txt", "BAD\n");
    repo.write("b.txt", "1\n");
    repo.run().exits(1);
    // The copy of `a.txt` is judged again, although only `b.txt` has to be copied.
    repo.write("b.txt", "2\n");
    repo.run().exits(1);
    assert_eq!(repo.step("copy")["checked_files"]["reused"], 1);
    repo.write("a.txt", "fine\n");
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    machine::make_executable(&repo.file("b.txt"));
    repo.run().exits(1);
    repo.write("b.txt", "2\n");
    std::fs::set_permissions(repo.file("b.txt"), std::fs::Permissions::from_mode(0o644)).expect("sets");
    reuse.pass();
    // All other files have passed, so no file is copied.
    std::fs::remove_file(repo.file("b.txt")).expect("removes");
    repo.run().exits(1);
}

/// Exchanges two directories of the host.
fn exchange(one: &Path, other: &Path) {
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags).expect("exchanges");
}

/// Creates a directory of the host that steps see.
fn host_directory(env: &TestEnvironment) -> PathBuf {
    let host = env.root().join("host");
    std::fs::create_dir(&host).expect("makes");
    machine::make_dir_public(&host);
    env.configure_operator(&format!("tool_mounts = ['{}']\n[reuse]\nrecheck_percent = 0\n", host.display()));
    host
}

fn changed_tools_answer_no_push(env: &TestEnvironment) {
    let host = host_directory(env);
    let [strict, lenient] = ["strict", "lenient"].map(|name| host.join(name));
    for (directory, script) in [(&strict, "#!/bin/sh\ntest ! -e bad\n"), (&lenient, "#!/bin/sh\ntrue\n")] {
        machine::write(&directory.join("lint"), script);
        machine::make_executable(&directory.join("lint"));
        env.give_to_actor(directory);
    }
    let lint = TestStep::argv("lint", &[strict.join("lint").to_str().expect("UTF-8")]);
    let skills = [TestSkill::new("verify.it", [waiting_step(env, "wait"), lint]).determinism("D1")];
    let repo = env.repo(&TestSpec::new(skills));
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    repo.write("bad", "");
    repo.commit();
    let mut running = start_with_input(env, &repo, &["run", "--no-daemon"], "");
    let step = wait_for_step(env, &mut running);
    exchange(&strict, &lenient);
    release_step(&step);
    env.finish(running).exits(0);
    exchange(&strict, &lenient);
    let mut pushing = start_git(&repo, env, &["push", "origin", "main"]);
    release_step(&wait_for_step(env, &mut pushing));
    let pushed = env.finish(pushing).exits(1);
    assert!(!pushed.all_output().contains("verified already:"), "{pushed}");
}

fn read_index_answers_no_push(env: &TestEnvironment) {
    let lint = TestStep::sh("it", "! grep BAD $(git ls-files '*.txt')");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [lint]).determinism("D1")]));
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    repo.write("a.txt", "fine\n");
    repo.commit();
    // The tree contains the file, but the step does not look at it before `git add`.
    repo.write("b.txt", "BAD\n");
    env.finish(start_with_input(env, &repo, &["run", "--no-daemon"], "")).exits(0);
    repo.commit();
    let pushed = push_to_origin(&repo, env, &["main"]).exits(1);
    assert!(!pushed.all_output().contains("verified already:"), "{pushed}");
}

fn changed_host_answers_no_push(env: &TestEnvironment) {
    let strict = host_directory(env).join("strict");
    let lint = TestStep::sh("it", &format!("test ! -e {} || test ! -e bad", strict.display()));
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [lint]).determinism("D1")]));
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    repo.write("bad", "");
    repo.commit();
    env.finish(start_with_input(env, &repo, &["run", "--no-daemon"], "")).exits(0);
    machine::write(&strict, "");
    let pushed = push_to_origin(&repo, env, &["main"]).exits(1);
    assert!(!pushed.all_output().contains("verified already:"), "{pushed}");
    std::fs::remove_file(&strict).expect("removes");
    env.finish(start_with_input(env, &repo, &["run", "--no-daemon"], "")).exits(0);
    let pushed = push_to_origin(&repo, env, &["main"]).exits(0);
    assert!(pushed.all_output().contains("verified already:"), "{pushed}");
}

fn times_in_needed_path_are_inputs(env: &TestEnvironment) {
    let step = TestStep::sh("it", "test deps/object -nt deps/source");
    let skill =
        TestSkill::new("verify.it", [step]).determinism("D1").with_field("needs_paths: [{ path: deps, key: [lock] }]");
    let reuse = ReuseRepo::with_spec(env, &TestSpec::new([skill]));
    let repo = &reuse.repo;
    repo.write(".gitignore", "/deps\n");
    repo.write("lock", "1\n");
    repo.write("deps/source", "1\n");
    repo.write("deps/object", "1\n");
    repo.commit();
    let set_time = |name: &str, seconds: u64| {
        let file = std::fs::File::options().write(true).open(repo.file(name)).expect("opens");
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).expect("sets");
    };
    set_time("deps/source", 1_000);
    set_time("deps/object", 2_000);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    set_time("deps/source", 3_000);
    repo.run_with(&["--rev", "HEAD"]).exits(1);
}

fn replaced_image_is_another_input(env: &TestEnvironment) {
    let (content, mounted) = (env.root().join("content"), host_directory(env).join("mounted"));
    std::fs::create_dir(&mounted).expect("makes");
    let run = |words: &[&str]| {
        let output = machine::command(words[0]).args(&words[1..]).current_dir(env.root()).output().expect("runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    for (image, word) in [("lenient.img", "lenient"), ("strict.img", "strict!")] {
        machine::write(&content.join("rule"), word);
        let times = ["-all-time", "1000", "-mkfs-time", "1000", "-quiet", "-no-progress"];
        run(&[&["mksquashfs", "content", image, "-noappend"][..], &times].concat());
    }
    let mount = |image: &str| run(&["mount", "-o", "loop,ro", image, "host/mounted"]);
    mount("lenient.img");
    let script = format!("grep -q lenient {}", mounted.join("rule").display());
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", &script)]);
    reuse.pass();
    reuse.pass();
    let is_cached = reuse.executed().is_empty();
    run(&["umount", "host/mounted"]);
    mount("strict.img");
    let judged = reuse.repo.run();
    run(&["umount", "host/mounted"]);
    judged.exits(1);
    assert!(is_cached, "an image that stays mounted is the same input");
}
