//! Tests unusual caller processes: ignored or blocked signals, and closed or full streams.

use std::os::unix::fs::PermissionsExt;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case};
use crate::process::FinishedProcess;
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    case("caller_process::ignored_and_blocked_signals_are_not_inherited", signals_not_inherited)
        .needs(NEEDS_PYTHON)
        .daemon_sample(),
    case("caller_process::step_has_no_access_to_the_callers_terminal", controlling_terminal_not_inherited)
        .needs(NEEDS_PYTHON),
    case("caller_process::closed_standard_streams_are_not_reused_for_files", closed_streams_not_reused),
    case("caller_process::result_that_cannot_be_written_is_inconclusive", unwritable_result),
    case("caller_process::open_files_are_not_inherited", open_files_not_inherited),
    case("caller_process::private_umask_does_not_affect_a_step", private_umask_is_reset).daemon_sample(),
    case("", unwritable_changeset)
        .unprivileged("caller_process::changeset_that_cannot_be_written_is_inconclusive")
        .daemon_sample(),
];

fn run_through(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str]) -> FinishedProcess {
    env.finish(env.start_through(repo.path(), wrapper, &["run", "--changeset", CHANGESET]))
}

/// The caller has a controlling terminal, which the helper leaves by starting a new session. Another process holds
/// the master side, because a daemon closes inherited descriptors and would otherwise hang up its own terminal.
fn controlling_terminal_not_inherited(env: &TestEnvironment) {
    let program = "import fcntl, os, select, sys, termios\n\
                   os.setsid()\n\
                   main, terminal = os.openpty()\n\
                   fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)\n\
                   program = os.pidfd_open(os.getpid())\n\
                   if os.fork() == 0:\n    select.select([program], [], [])\n    os._exit(0)\n\
                   os.execvp(sys.argv[1], sys.argv[1:])";
    let script = "cut -d' ' -f7 /proc/1/stat /proc/self/stat; if true < /dev/tty; then echo 'a terminal'; fi";
    let repo = env.repo(&TestSpec::from_script(script));
    run_through(env, &repo, &["python3", "-c", program]).exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "0\n0\n");
}

fn signals_not_inherited(env: &TestEnvironment) {
    let program = "import os, signal, sys\n\
                   for s in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP):\n    signal.signal(s, signal.SIG_IGN)\n\
                   signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                   os.execvp(sys.argv[1], sys.argv[1:])";
    let repo = env.repo(&TestSpec::from_script("exec grep -E '^Sig(Blk|Ign):' /proc/self/status"));
    run_through(env, &repo, &["python3", "-c", program]).exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

fn closed_streams_not_reused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo out; echo err >&2; exit 1"));
    run_through(env, &repo, &["sh", "-c", "exec \"$@\" <&- 2>&-", "sh"]).exits(1).prints(&["failed"]);
    let step = repo.step("it");
    assert_eq!((&step["stdout_preview"], &step["stderr_preview"]), (&"out\n".into(), &"err\n".into()));
}

fn unwritable_result(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let run = run_through(env, &repo, &["sh", "-c", "exec \"$@\" > /dev/full", "sh"]).exits(5);
    assert!(run.stderr.contains("could not be written"), "{run}");
}

fn open_files_not_inherited(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("ls /proc/self/fd; cat <&7"));
    let script = "exec 7< ../home/secret.txt 8> ../leak; exec \"$@\"";
    run_through(env, &repo, &["sh", "-c", script, "sh"]).exits(1);
    let text = repo.step("it")["stdout_preview"].as_str().expect("text").to_owned();
    assert!(!text.contains('7') && !text.contains("secret"), "{text}");
}

fn private_umask_is_reset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("mkdir -p target && echo x > target/x && cat target/x && umask"));
    run_through(env, &repo, &["sh", "-c", "umask 077; exec \"$@\"", "sh"]).exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "x\n0022\n");
}

fn unwritable_changeset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    std::fs::set_permissions(repo.changeset(), PermissionsExt::from_mode(0o555)).expect("a mode");
    let run = repo.run().exits(5);
    assert!(run.all_output().contains(CHANGESET), "{run}");
    assert!(repo.has_no_documents());
}
