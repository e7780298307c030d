//! Tests runs that are cancelled, killed, or overtaken by an edit.

use std::time::Duration;

use rustix::process::Signal;

use crate::environment::{CHANGESET, Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, NEEDS_PYTHON, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("interruption::sigint_ends_everything_and_says_so", sigint),
    case("interruption::sigterm_ends_everything_and_says_so", sigterm),
    case("interruption::a_signal_that_the_caller_blocked_is_heard", blocked_signal).needs(NEEDS_PYTHON),
    case("interruption::a_step_that_ignores_term_cannot_hold_up_the_end", stubborn_step).needs(NEEDS_PYTHON),
    case("interruption::a_second_sigint_leaves_at_once", second_sigint),
    case("interruption::sigkill_leaves_no_process_and_a_whole_status", sigkill),
    case("interruption::sigkill_ends_what_asked_to_outlive_its_parent", outliving_step).needs(NEEDS_PYTHON),
    case("interruption::sigint_during_a_toolchain_check", during_check),
    case("interruption::an_edit_during_the_run_is_inconclusive", tree_edited),
    case("interruption::a_new_file_during_the_run_is_inconclusive", file_added),
    case("interruption::an_edit_that_is_undone_before_the_end_is_none", edit_undone),
    case("interruption::an_edit_of_an_ignored_file_is_none", ignored_edited),
    case("interruption::a_closed_screen_does_not_change_the_verdict", closed_screen),
];

const OLD_STATUS: &str = "{\"state\":\"proposed\",\"mine\":[1,2,3]}";

fn waiting_repo(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it"), Step::sh("later", "true")]));
    repo.write(&format!("changes/{CHANGESET}/05-status.json"), OLD_STATUS);
    repo.commit();
    repo
}

/// Asserts that the status is `inconclusive` or the complete old one, never a pass.
fn demand_honest_status(repo: &Repo<'_>) {
    let text = repo.read(&format!("changes/{CHANGESET}/05-status.json"));
    if text != OLD_STATUS {
        assert_eq!(repo.last_run()["outcome"], "inconclusive", "{text}");
        assert!(text.contains("\"mine\":[1,2,3]"), "{text}");
    }
}

pub(crate) fn sigint(env: &TestEnvironment) {
    interrupted_by(env, Signal::INT);
}

fn sigterm(env: &TestEnvironment) {
    interrupted_by(env, Signal::TERM);
}

fn interrupted_by(env: &TestEnvironment, signal: Signal) {
    let repo = waiting_repo(env);
    let mut running = repo.start(&[]);
    wait_for_step(env, &mut running);
    running.signal(signal);
    let run = env.finish(running).exits(130);
    assert!(run.everything().to_lowercase().contains("interrupted"), "{run}");
    demand_honest_status(&repo);
    if repo.changeset().join("verify/verify.it.json").exists() {
        assert_ne!(repo.step("it")["outcome"], "passed");
        assert_ne!(repo.step("later")["outcome"], "passed");
    }
}

fn blocked_signal(env: &TestEnvironment) {
    let repo = waiting_repo(env);
    let program = "import os, signal, sys\n\
                   signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                   os.execvp(sys.argv[1], sys.argv[1:])";
    let mut running = env.start_through(repo.path(), &["python3", "-c", program], &["run", "--changeset", CHANGESET]);
    wait_for_step(env, &mut running);
    running.signal(Signal::TERM);
    env.finish(running).exits(130);
}

fn stubborn_step(env: &TestEnvironment) {
    let program = format!(
        "import subprocess\n{}",
        super::timeout::STUBBORN.replacen(
            "if os.fork() == 0:",
            "subprocess.Popen(['sh', '-c', 'sleep 300; :', sys.argv[1] + '-ready'])\nif os.fork() == 0:",
            1
        )
    );
    let ready = format!("{}-ready", env.marker());
    let step = Step::argv("it", &["python3", "-c", &program, env.marker()]).with("grace_ms: 300");
    let repo = env.repo(&Spec::of_steps([step]));
    let mut running = repo.start(&[]);
    running.wait_for_process(&ready);
    running.signal(Signal::INT);
    let run = env.finish(running).exits(130);
    assert!(run.elapsed < Duration::from_secs(60), "{run}");
}

fn second_sigint(env: &TestEnvironment) {
    let ready = format!("{}-ready", env.marker());
    let script = "trap '' TERM; sh -c 'sleep 300; :' $0-ready; sleep 300";
    let step = Step::argv("it", &["sh", "-c", script, env.marker()]).with("grace_ms: 100000");
    let repo = env.repo(&Spec::of_steps([step]));
    let mut running = repo.start(&[]);
    running.wait_for_process(&ready);
    running.signal(Signal::INT);
    running.wait_for_message("SIGINT");
    running.signal(Signal::INT);
    let run = running.wait().exits(130);
    assert!(run.elapsed < Duration::from_secs(60), "{run}");
    let gone = machine::wait_until_gone(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived a run that was left");
}

fn sigkill(env: &TestEnvironment) {
    let repo = waiting_repo(env);
    let mut running = repo.start(&[]);
    wait_for_step(env, &mut running);
    running.signal(Signal::KILL);
    let run = running.wait();
    assert_eq!(run.code, None, "{run}");
    let gone = machine::wait_until_gone(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived the run that was killed");
    assert_eq!(repo.read(&format!("changes/{CHANGESET}/05-status.json")), OLD_STATUS);
    assert!(!repo.changeset().join("verify/verify.it.json").exists());
    let again = repo.start(&[]);
    drop(again);
    let gone = machine::wait_until_gone(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived the run that was killed");
}

fn outliving_step(env: &TestEnvironment) {
    let program = r#"
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(sig, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    subprocess.Popen(['sh', '-c', 'sleep 300; :', sys.argv[1] + '-ready'])
time.sleep(300)
"#;
    let ready = format!("{}-ready", env.marker());
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["python3", "-c", program, env.marker()])]));
    let mut running = repo.start(&[]);
    running.wait_for_process(&ready);
    running.signal(Signal::KILL);
    running.wait();
    let gone = machine::wait_until_gone(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived the run that was killed");
    assert!(repo.is_untouched());
}

fn during_check(env: &TestEnvironment) {
    let marker = env.marker();
    let check = format!(
        "toolchains: {{ t: {{ required: [ {{ cmd: [\"sh\", \"-c\", \"sleep 300; :\", \"{marker}-ready\"] }} ] }} }}"
    );
    let repo = env.repo(&Spec::of_script("true").top(&check));
    let mut running = repo.start(&[]);
    running.wait_for_process(&format!("{marker}-ready"));
    running.signal(Signal::INT);
    env.finish(running).exits(130);
    assert_ne!(
        repo.changeset().join("05-status.json").exists().then(|| repo.last_run()["outcome"].clone()),
        Some("passed".into())
    );
}

/// Runs the waiting repository, and calls `act` while its step waits.
fn overtaken<'e>(env: &'e TestEnvironment, act: impl FnOnce(&Repo<'_>)) -> (Repo<'e>, crate::process::Finished) {
    env.share_worktrees();
    let repo = waiting_repo(env);
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    act(&repo);
    release(&step);
    let run = env.finish(running);
    (repo, run)
}

pub(crate) fn tree_edited(env: &TestEnvironment) {
    let (repo, run) = overtaken(env, |repo| repo.write("src/lib.rs", "edited meanwhile\n"));
    let run = run.exits(5);
    assert!(run.everything().contains("src/lib.rs"), "the path is not named\n{run}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    assert_eq!(repo.read("src/lib.rs"), "edited meanwhile\n");
}

fn file_added(env: &TestEnvironment) {
    let (repo, run) = overtaken(env, |repo| repo.write("src/meanwhile.rs", "new\n"));
    let run = run.exits(5);
    assert!(run.everything().contains("src/meanwhile.rs"), "the path is not named\n{run}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

/// At the end no compared file differs, but a step may have read the temporary content, so inconclusive is correct
/// too. A failure or a crash is not.
fn edit_undone(env: &TestEnvironment) {
    let (_, run) = overtaken(env, |repo| {
        let before = repo.read("src/lib.rs");
        repo.write("src/lib.rs", "for a moment\n");
        repo.write("src/lib.rs", before);
    });
    assert!(matches!(run.code, Some(0 | 5)), "{run}");
}

fn ignored_edited(env: &TestEnvironment) {
    let (_, run) = overtaken(env, |repo| repo.write("target/x", "ignored\n"));
    run.exits(0);
}

/// The reader closes its end, as in `proctor run | head -1`.
fn closed_screen(env: &TestEnvironment) {
    let script = "seq 1 20000; exit 1";
    let repo = env.repo(&Spec::of_script(script));
    let mut command = env.command(repo.path());
    command.args(["run", "--changeset", CHANGESET, "--state-dir"]).arg(env.state());
    let run = env.finish(crate::process::Running::start_unread(command));
    assert_eq!(run.code, Some(1), "{run}");
    assert_eq!(repo.last_run()["outcome"], "failed");
}
