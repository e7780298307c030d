//! Tests `proctor exec`, in this process and through a daemon.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{READY_MESSAGE, send_request};
use crate::documents;
use crate::environment::{Repo, TestEnvironment, waiting_command};
use crate::machine;
use crate::needs::{CaseDefinition, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::schemas;
use crate::test_spec::TestSpec;

/// Cases that apply to this process and to a daemon.
pub(super) const CASES: &[CaseDefinition] = &[
    case("exec::reports_the_exit_and_output_of_its_command", reports_exit_and_output).daemon_sample(),
    case("exec::shows_drift", reports_drift).daemon_sample(),
    case("exec::is_sandboxed_like_a_step", sandboxed_like_a_step).daemon_sample(),
    case("exec::is_killed_at_its_deadline", ends_at_deadline).daemon_sample(),
    case("exec::prints_its_record_as_json", prints_json_record).daemon_sample(),
    case("exec::has_limits_below_the_ceiling", limits_below_ceiling),
    case("exec::can_ignore_a_broken_spec", ignores_broken_spec),
    case("exec::redacts_secrets_given_with_env", redacts_secrets).daemon_sample(),
    case("exec::sees_the_current_tree", sees_current_tree).daemon_sample(),
    case("exec::sees_no_files_of_an_earlier_command", sees_no_earlier_files).daemon_sample(),
    case("exec::gets_only_allowed_variables", passes_allowed_variables).daemon_sample(),
    case("exec::keeps_output_up_to_its_limit", bounds_output).daemon_sample(),
    case("exec::prints_unescaped_bytes_with_raw", prints_raw_output).daemon_sample(),
    case("exec::sigint_ends_the_command", signal_ends_command).daemon_sample(),
    case("exec::sees_a_recreated_repository", sees_recreated_repository).daemon_sample(),
];

/// Cases that only apply to a daemon.
pub(super) const DAEMON_CASES: &[CaseDefinition] = &[
    case("exec::daemon_returns_the_same_document", daemon_returns_same_record),
    case("exec::disconnect_of_the_client_ends_the_command", disconnect_ends_command),
    case("exec::does_not_get_the_daemons_environment", daemons_environment_is_hidden),
    case("exec::works_with_the_next_daemon", works_with_next_daemon),
    case("exec::daemon_interrupts_commands_after_its_drain_time", drain_ends_commands),
    case("exec::requires_a_daemon_with_the_daemon_option", requires_daemon),
    case("exec::invalid_requests_are_refused", invalid_requests_refused),
];

fn reports_exit_and_output(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.proctor(&["exec", "--", "echo", "hello", "there"]).exits(0).prints(&["hello there\n"]);
    let run = repo.proctor(&["exec", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).exits(1);
    assert!(run.all_output().contains("out\n") && run.all_output().contains("err\n"), "{run}");
    repo.proctor(&["exec", "sh", "-c", "exit 0"]).exits(0);
    for option in ["--no-such-option", "-z"] {
        let run =
            repo.proctor(&["exec", option, "--", "true"]).exits(2).prints_to_stderr(&["unexpected argument", option]);
        assert!(!run.stderr.contains("use '-- "), "a tip that makes the option a program: {run}");
    }
    let run = repo.proctor(&["exec", "--", "no-such-program-anywhere"]).exits(5);
    assert!(run.stderr.contains("no-such-program-anywhere"), "{run}");
    let run = repo.proctor(&["exec", "--", "printf", "\\033[2J"]).exits(0);
    assert!(!run.all_output().contains('\u{1b}'), "{run:?}");
    assert!(repo.has_no_documents(), "`exec` wrote evidence into the repository");
}

fn reports_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let edit = ["sh", "-c", "echo an added line >> README.md"];
    let before = repo.read("README.md");
    let run = repo.proctor(&[&["exec", "--"], &edit[..]].concat()).exits(3);
    assert!(run.all_output().contains("+an added line"), "{run}");
    assert_eq!(repo.read("README.md"), before);
    repo.proctor(&[&["exec", "--read-only", "off", "--"], &edit[..]].concat()).exits(0);
    assert_eq!(repo.read("README.md"), format!("{before}an added line\n"));
}

fn sandboxed_like_a_step(env: &TestEnvironment) {
    env.set_caller_var("MY_TOKEN", "the-value-of-a-token");
    let repo = env.repo(&TestSpec::from_script("true"));
    let script = "env; ls -A \"$HOME\"; cat ../sibling/secret.txt; cut -d: -f1 /proc/net/dev; echo x > .git/x; true";
    let run =
        repo.proctor(&["exec", "--env", "FROM=flag", "--", "sh", "-c", script]).exits(0).prints(&["FROM=flag", "lo"]);
    let text = run.all_output();
    assert!(
        !text.contains("the-value-of-a-token") && !text.contains("a secret beside") && !text.contains("eth0"),
        "{run}"
    );
    assert!(!repo.file(".git/x").exists());
}

fn ends_at_deadline(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let run = repo.proctor(&["exec", "--timeout-ms", "400", "--", "sh", "-c", "echo began; sleep 300"]).exits(4);
    assert!(run.all_output().contains("began"), "{run}");
}

fn exec_record(repo: &Repo<'_>, arguments: &[&str], code: i32) -> Value {
    let run = repo.proctor(&[&["exec", "--format", "json"], arguments].concat()).exits(code);
    let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::assert_valid("exec", &record, &run);
    record
}

fn prints_json_record(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let script = ["--", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let record = exec_record(&repo, &script, 1);
    assert_eq!(
        (&record["verdict"], &record["exit_code"], &record["tier"]),
        (&"failed".into(), &1.into(), &env.lowest_tier().into())
    );
    let step = &record["step"];
    assert_eq!((&step["exit_code"], &step["stdout_preview"]), (&7.into(), &"out\n".into()));
    let drifted = exec_record(&repo, &["--", "sh", "-c", "echo x >> README.md"], 3);
    assert_eq!((&drifted["tier"], &drifted["tier_reasons"][0]), (&3.into(), &"drift".into()));
    assert_eq!(drifted["step"]["drift"]["changes"][0]["path"], "README.md");
    let run = repo.proctor(&["exec", "--format", "json", "--", "no-such-program-anywhere"]).exits(5);
    assert!(run.stderr.contains("no-such-program-anywhere"), "{run}");
    let run = repo.proctor(&["exec", "--format", "json", "--repo", "nowhere", "--", "true"]).exits(2);
    let error: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(error["error"]["exit_code"], 2);
}

fn limits_below_ceiling(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    machine::write(&env.root().join("proctord.toml"), "max_grace_ms = 900\n[ceiling]\nmemory = '1GiB'\n");
    let config = env.root().join("proctord.toml");
    let limit_arguments = |limits: &[&str]| -> Vec<String> {
        let words = [&["--config", config.to_str().expect("UTF-8"), "--grace-ms", "800"], limits, &["--", "true"]];
        words.concat().into_iter().map(str::to_owned).collect()
    };
    let words = limit_arguments(&[
        "--memory",
        "512MiB",
        "--pids",
        "64",
        "--disk",
        "64MiB",
        "--output",
        "1kB",
        "--open-files",
        "99",
    ]);
    let record = exec_record(&repo, &words.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    let step = &record["step"];
    let max = |name: &str| step["limits"][name]["max"].as_u64();
    let found = ["memory", "pids", "disk", "output", "open_files"].map(max);
    assert_eq!(found, [512 << 20, 64, 64 << 20, 1000, 99].map(Some), "{step:#}");
    assert_eq!((&step["grace_ms"], &step["limits"]["cpu_seconds"]), (&800.into(), &"unlimited".into()));
    for (limits, named) in [(["--memory", "2GiB"], "limits.memory"), (["--memory", "unlimited"], "limits.memory")] {
        let words = [vec!["exec".to_owned()], limit_arguments(&limits)].concat();
        let run = repo.proctor(&words.iter().map(String::as_str).collect::<Vec<_>>()).exits(2);
        assert!(run.stderr.contains(named) && run.stderr.contains("1GiB at most"), "{run}");
    }
}

fn ignores_broken_spec(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true").with_default("timeout_ms: 4321"));
    assert_eq!(exec_record(&repo, &["--", "true"], 0)["step"]["timeout_ms"], 4321);
    assert_ne!(exec_record(&repo, &["--no-spec", "--", "true"], 0)["step"]["timeout_ms"], 4321);
    repo.write("spec/verification.yaml", "version: 1\nskils: {}\n");
    repo.proctor(&["exec", "--", "true"]).exits(2);
    repo.proctor(&["exec", "--no-spec", "--", "true"]).exits(0);
}

fn redacts_secrets(env: &TestEnvironment) {
    let value = "tok-0123456789abcdef";
    let repo = env.repo(&TestSpec::from_script("true"));
    let secret_variable = format!("DEPLOY_TOKEN={value}");
    for output_options in [&["--format", "json"][..], &["--raw"], &[]] {
        let words =
            [&["exec", "--env", &secret_variable], output_options, &["--", "sh", "-c", "echo \"<$DEPLOY_TOKEN>\""]]
                .concat();
        let run = repo.proctor(&words).exits(0);
        assert!(!run.all_output().contains(value) && run.all_output().contains("<[redacted]>"), "{run}");
    }
    let run = repo.proctor(&["exec", "--env", &secret_variable, "--", value]).exits(5);
    assert!(!run.all_output().contains(value), "{run}");
}

fn sees_current_tree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for text in ["one\n", "two\n", "three\n"] {
        repo.write("src/state.txt", text);
        // Run it twice, because a sandbox may wait for the second command.
        for _ in 0..2 {
            let run = repo.proctor(&["exec", "--", "cat", "src/state.txt"]).exits(0);
            assert_eq!(run.stdout, text, "{run}");
        }
        let rewrite_unchanged = ["exec", "--", "sh", "-c", &format!("printf '{text}' > src/state.txt")];
        repo.proctor(&rewrite_unchanged).exits(0);
        repo.proctor(&["exec", "--", "sh", "-c", "echo other > src/state.txt"]).exits(3);
    }
    repo.write("src/new.txt", "new\n");
    repo.proctor(&["exec", "--", "rm", "src/new.txt"]).exits(3);
    assert!(repo.file("src/new.txt").exists());
}

fn sees_no_earlier_files(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let script = "ls -A /tmp /var/tmp /dev/shm \"$HOME\"; ls target 2>&1; cat /proc/sysvipc/shm | wc -l; \
                  mkdir -p target; touch /tmp/x /var/tmp/x /dev/shm/x \"$HOME/x\" target/x";
    let words = ["exec", "--", "sh", "-c", script];
    let first = repo.proctor(&words).exits(0).stdout;
    for _ in 0..3 {
        assert_eq!(repo.proctor(&words).exits(0).stdout, first);
    }
}

fn passes_allowed_variables(env: &TestEnvironment) {
    env.set_caller_var("RUST_LOG", "debug");
    env.set_caller_var("OTHER", "hidden");
    let repo = env.repo(&TestSpec::from_script("true").with_default("env_allowlist: [RUST_LOG]"));
    for _ in 0..2 {
        let run = repo.proctor(&["exec", "--", "env"]).exits(0).prints(&["RUST_LOG=debug"]);
        assert!(!run.stdout.contains("OTHER"), "{run}");
    }
}

fn bounds_output(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let print = "yes 0123456 | head -c 1000000";
    let run = repo.proctor(&["exec", "--", "sh", "-c", print]).exits(0);
    assert_eq!(run.stdout.len(), 1_000_000);
    let run = repo.proctor(&["exec", "--output", "100kB", "--", "sh", "-c", print]).exits(0);
    assert_eq!(run.stdout.len(), 100_000);
    assert!(run.stderr.contains("more of its output were hashed and not kept"), "{}", run.stderr);
}

fn prints_raw_output(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let script = ["--", "printf", "a\\033[2Jb\\377\\200c"];
    let run = repo.proctor(&[&["exec", "--raw"], &script[..]].concat()).exits(0);
    assert_eq!(run.stdout, "a\u{1b}[2Jb\u{fffd}\u{fffd}c");
    let run = repo.proctor(&[&["exec"], &script[..]].concat()).exits(0);
    assert!(!run.stdout.contains('\u{1b}'), "{run}");
}

fn waiting_arguments(env: &TestEnvironment) -> Vec<String> {
    let marker_arguments =
        ["exec".to_owned(), "--env".to_owned(), format!("TEST_MARKER={}", env.marker()), "--".to_owned()];
    marker_arguments.into_iter().chain(waiting_command(env)).collect()
}

fn start_waiting_command(env: &TestEnvironment, repo: &Repo<'_>) -> RunningProcess {
    let words = waiting_arguments(env);
    let mut running = repo.start_proctor(&words.iter().map(String::as_str).collect::<Vec<_>>());
    running.wait_for_process(&format!("{}-ready", env.marker()));
    running
}

fn signal_ends_command(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for signal in [Signal::INT, Signal::TERM] {
        let running = start_waiting_command(env, &repo);
        running.signal(signal);
        let run = env.finish(running).exits(130);
        assert!(run.all_output().to_lowercase().contains("interrupted"), "{run}");
    }
}

fn sees_recreated_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let head = ["exec", "--no-spec", "--", "git", "log", "-1", "--format=%s"];
    for _ in 0..2 {
        repo.proctor(&head).exits(0).prints(&["a commit of a test"]);
    }
    // The old directory still exists under another name.
    std::fs::rename(repo.file(".git"), env.root().join("old-git")).expect("moved");
    env.git(repo.path(), &["init", "--quiet", "--initial-branch=main"]);
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--message=another history"]);
    repo.proctor(&head).exits(0).prints(&["another history"]);
    // The same for the whole repository.
    repo.proctor(&head).exits(0);
    std::fs::rename(repo.path(), env.root().join("old-repo")).expect("moved");
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("src/only-here.txt", "x");
    repo.proctor(&head).exits(0).prints(&["a commit of a test"]);
    repo.proctor(&["exec", "--", "cat", "src/only-here.txt"]).exits(0);
}

fn start_through_daemon(env: &TestEnvironment, repo: &Repo<'_>, words: &[&str]) -> RunningProcess {
    let mut command = env.command(repo.path());
    command.args(["exec", "--daemon", "--socket"]).arg(env.socket_path()).args(words);
    RunningProcess::start(command)
}

/// Resets the values that differ between commands.
fn reset_varying_values(record: &mut Value) {
    let step = record["step"].as_object_mut().expect("an object");
    step.insert("duration_ms".to_owned(), 0.into());
    step.insert("resources".to_owned(), json!({}));
}

fn daemon_returns_same_record(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true").with_default("timeout_ms: 54321"));
    let daemon = env.start_ready_daemon();
    let passes = ["--format", "json", "--", "true"];
    let fails = ["--format", "json", "--", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let drifts = ["--format", "json", "--", "sh", "-c", "echo x >> README.md"];
    let missing = ["--format", "json", "--", "no-such-program-anywhere"];
    let refused = ["--format", "json", "--workdir", "nowhere", "--", "true"];
    for words in [&passes[..], &fails, &drifts, &missing, &refused] {
        let without_daemon = repo.proctor(&[&["exec"], words].concat());
        // The second and third command may use a waiting sandbox.
        for _ in 0..3 {
            let with_daemon = env.finish(start_through_daemon(env, &repo, words));
            assert_eq!(
                (with_daemon.code, stderr_without_durations(&with_daemon)),
                (without_daemon.code, stderr_without_durations(&without_daemon)),
                "{with_daemon}\n{without_daemon}"
            );
            let [mut own_record, mut daemon_record] = [&without_daemon, &with_daemon].map(parse_record);
            reset_varying_values(&mut own_record);
            reset_varying_values(&mut daemon_record);
            assert_eq!(own_record, daemon_record);
        }
    }
    daemon.stop().exits(0);
}

/// Returns standard error without durations.
fn stderr_without_durations(run: &FinishedProcess) -> String {
    let words = run.stderr.split(' ').map(|word| if word.parse::<f64>().is_ok() { "N" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn parse_record(run: &FinishedProcess) -> Value {
    let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::assert_valid("exec", &record, run);
    record
}

fn disconnect_ends_command(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let words = waiting_arguments(env);
    let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    for signal in [Signal::KILL, Signal::INT] {
        let mut running = start_through_daemon(env, &repo, &words);
        running.wait_for_process(&format!("{}-ready", env.marker()));
        running.signal(signal);
        let _ = running.wait();
        let exit_result = machine::wait_for_processes_to_exit(env.marker(), std::time::Duration::from_secs(10));
        assert_eq!(exit_result, Ok(()), "the command outlived its client");
    }
    daemon.stop().exits(0);
}

fn daemons_environment_is_hidden(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true").with_default("env_allowlist: [RUST_LOG]"));
    let wrapper = ["env", "RUST_LOG=of-the-daemon", "OTHER=of-the-daemon"];
    let mut daemon = RunningProcess::start(env.daemon_command_through(&wrapper, &env.socket_path(), &env.state_dir()));
    daemon.wait_for_stderr(READY_MESSAGE);
    for _ in 0..2 {
        let run = env.finish(start_through_daemon(env, &repo, &["--", "env"])).exits(0);
        assert!(!run.all_output().contains("of-the-daemon"), "{run}");
    }
    daemon.signal(Signal::TERM);
    env.finish(daemon).exits(0);
}

fn works_with_next_daemon(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for text in ["one", "two"] {
        repo.write("src/state.txt", text);
        let daemon = env.start_ready_daemon();
        for _ in 0..2 {
            let run = env.finish(start_through_daemon(env, &repo, &["--", "cat", "src/state.txt"])).exits(0);
            assert_eq!(run.stdout, text);
        }
        daemon.stop().exits(0);
        let run = env.finish(start_through_daemon(env, &repo, &["--", "true"]));
        assert_eq!(run.code, Some(6), "{run}");
    }
    documents::check_all_documents(env.root());
}

fn drain_ends_commands(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    env.write_operator_config("[daemon]\ndrain_ms = 100\n");
    let daemon = env.start_ready_daemon();
    let words = waiting_arguments(env);
    let mut running = start_through_daemon(env, &repo, &words.iter().skip(1).map(String::as_str).collect::<Vec<_>>());
    running.wait_for_process(&format!("{}-ready", env.marker()));
    daemon.stop().exits(0);
    let run = env.finish(running).exits(130);
    assert!(run.all_output().to_lowercase().contains("interrupted"), "{run}");
}

fn requires_daemon(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    env.finish(start_through_daemon(env, &repo, &["--", "true"])).exits(6);
    let daemon = env.start_ready_daemon();
    env.finish(start_through_daemon(env, &repo, &["--", "true"])).exits(0);
    daemon.stop().exits(0);
}

fn invalid_requests_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let post_exec = |body: Value| send_request(&env.socket_path(), "POST", "/v1/exec", Some(&body)).expect("an answer");
    let path: &Path = repo.path();
    for (body, code) in [
        (json!({ "repo": path, "cmd": [] }), 400),
        (json!({ "repo": path, "cmd": ["true"], "command": "x" }), 400),
        (json!({ "repo": path, "cmd": ["true"], "limits": { "memory": 1 } }), 400),
        (json!({ "repo": "relative", "cmd": ["true"] }), 400),
        (json!({ "repo": "/nowhere/at/all", "cmd": ["true"] }), 422),
        (json!({ "repo": env.state_dir(), "cmd": ["true"] }), 422),
    ] {
        let answer = post_exec(body.clone());
        assert_eq!(answer.status, code, "{body}: {answer:?}");
    }
    let id = "0".repeat(32);
    assert_eq!(daemon.request("DELETE", &format!("/v1/exec/{id}"), None).status, 404);
    assert_eq!(daemon.request("DELETE", "/v1/exec/..", None).status, 404);
    let answer = post_exec(json!({ "repo": path, "cmd": ["printf", "a\\377"], "set_env": { "A": "b" } }));
    let events: Vec<Value> = answer.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["started", "output_bytes", "finished"], "{answer:?}");
    assert_eq!(events[1]["hex"], "61ff");
    daemon.stop().exits(0);
}
