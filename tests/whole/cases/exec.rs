//! Tests `proctor exec`, in this process and through a daemon.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{LISTENS, ask};
use crate::documents;
use crate::environment::{Repo, TestEnvironment, waiting_command};
use crate::machine;
use crate::needs::{Case, case};
use crate::process::{Finished, Running};
use crate::schemas;
use crate::spec::Spec;

/// Cases that apply to this process and to a daemon.
pub(super) const CASES: &[Case] = &[
    case("exec::passes_the_end_of_its_command_on", passes_on),
    case("exec::shows_drift", drift),
    case("exec::runs_like_a_step", is_a_step),
    case("exec::ends_at_its_deadline", timeout),
    case("exec::prints_its_record", json),
    case("exec::has_limits_below_the_ceiling", limits),
    case("exec::does_without_a_broken_spec", no_spec),
    case("exec::hides_what_it_was_given", secret),
    case("exec::sees_the_tree_as_it_is", sees_the_tree),
    case("exec::finds_nothing_of_an_earlier_command", finds_nothing),
    case("exec::gets_allowed_variables_alone", allowed_variables),
    case("exec::keeps_as_much_output_as_it_may", bounded_output),
    case("exec::prints_bytes_as_they_are_with_raw", raw),
    case("exec::sigint_ends_the_command", sigint),
    case("exec::sees_a_repository_that_was_made_anew", made_anew),
];

/// Cases that only apply to a daemon.
pub(super) const OF_A_DAEMON: &[Case] = &[
    case("exec::a_daemon_answers_the_same_document", same_document),
    case("exec::a_client_that_disconnects_ends_the_command", disconnects),
    case("exec::gets_nothing_of_the_daemons_environment", daemons_environment),
    case("exec::goes_on_with_the_next_daemon", next_daemon),
    case("exec::a_daemon_that_ends_lets_commands_end", draining),
    case("exec::a_daemon_that_is_demanded_runs_it", demanded),
    case("exec::a_request_that_is_none_is_refused", refused),
];

fn passes_on(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.proctor(&["exec", "--", "echo", "hello", "there"]).exits(0).says(&["hello there\n"]);
    let run = repo.proctor(&["exec", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).exits(1);
    assert!(run.everything().contains("out\n") && run.everything().contains("err\n"), "{run}");
    repo.proctor(&["exec", "sh", "-c", "exit 0"]).exits(0);
    for option in ["--no-such-option", "-z"] {
        let run = repo.proctor(&["exec", option, "--", "true"]).exits(2).complains(&["unexpected argument", option]);
        assert!(!run.stderr.contains("use '-- "), "a tip that makes the option a program: {run}");
    }
    let run = repo.proctor(&["exec", "--", "no-such-program-anywhere"]).exits(5);
    assert!(run.stderr.contains("no-such-program-anywhere"), "{run}");
    let run = repo.proctor(&["exec", "--", "printf", "\\033[2J"]).exits(0);
    assert!(!run.everything().contains('\u{1b}'), "{run:?}");
    assert!(repo.is_untouched(), "`exec` wrote evidence into the repository");
}

fn drift(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let edit = ["sh", "-c", "echo an added line >> README.md"];
    let before = repo.read("README.md");
    let run = repo.proctor(&[&["exec", "--"], &edit[..]].concat()).exits(3);
    assert!(run.everything().contains("+an added line"), "{run}");
    assert_eq!(repo.read("README.md"), before);
    repo.proctor(&[&["exec", "--read-only", "off", "--"], &edit[..]].concat()).exits(0);
    assert_eq!(repo.read("README.md"), format!("{before}an added line\n"));
}

fn is_a_step(env: &TestEnvironment) {
    env.caller_has("MY_TOKEN", "the-value-of-a-token");
    let repo = env.repo(&Spec::of_script("true"));
    let script = "env; ls -A \"$HOME\"; cat ../sibling/secret.txt; cut -d: -f1 /proc/net/dev; echo x > .git/x; true";
    let run =
        repo.proctor(&["exec", "--env", "FROM=flag", "--", "sh", "-c", script]).exits(0).says(&["FROM=flag", "lo"]);
    let text = run.everything();
    assert!(
        !text.contains("the-value-of-a-token") && !text.contains("a secret beside") && !text.contains("eth0"),
        "{run}"
    );
    assert!(!repo.file(".git/x").exists());
}

fn timeout(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let run = repo.proctor(&["exec", "--timeout-ms", "400", "--", "sh", "-c", "echo began; sleep 300"]).exits(4);
    assert!(run.everything().contains("began"), "{run}");
}

fn record_of(repo: &Repo<'_>, arguments: &[&str], code: i32) -> Value {
    let run = repo.proctor(&[&["exec", "--format", "json"], arguments].concat()).exits(code);
    let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::demand("exec", &record, &run);
    record
}

fn json(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let script = ["--", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let record = record_of(&repo, &script, 1);
    assert_eq!(
        (&record["verdict"], &record["exit_code"], &record["tier"]),
        (&"failed".into(), &1.into(), &env.least_tier().into())
    );
    let step = &record["step"];
    assert_eq!((&step["exit_code"], &step["stdout_preview"]), (&7.into(), &"out\n".into()));
    let drifted = record_of(&repo, &["--", "sh", "-c", "echo x >> README.md"], 3);
    assert_eq!((&drifted["tier"], &drifted["tier_reasons"][0]), (&3.into(), &"drift".into()));
    assert_eq!(drifted["step"]["drift"]["changes"][0]["path"], "README.md");
    let run = repo.proctor(&["exec", "--format", "json", "--", "no-such-program-anywhere"]).exits(5);
    assert!(run.stderr.contains("no-such-program-anywhere"), "{run}");
    let run = repo.proctor(&["exec", "--format", "json", "--repo", "nowhere", "--", "true"]).exits(2);
    let error: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(error["error"]["exit_code"], 2);
}

fn limits(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    machine::write(&env.root().join("proctord.toml"), "max_grace_ms = 900\n[ceiling]\nmemory = '1GiB'\n");
    let config = env.root().join("proctord.toml");
    let under = |limits: &[&str]| -> Vec<String> {
        let words = [&["--config", config.to_str().expect("UTF-8"), "--grace-ms", "800"], limits, &["--", "true"]];
        words.concat().into_iter().map(str::to_owned).collect()
    };
    let words =
        under(&["--memory", "512MiB", "--pids", "64", "--disk", "64MiB", "--output", "1kB", "--open-files", "99"]);
    let record = record_of(&repo, &words.iter().map(String::as_str).collect::<Vec<_>>(), 0);
    let step = &record["step"];
    let max = |name: &str| step["limits"][name]["max"].as_u64();
    let found = ["memory", "pids", "disk", "output", "open_files"].map(max);
    assert_eq!(found, [512 << 20, 64, 64 << 20, 1000, 99].map(Some), "{step:#}");
    assert_eq!((&step["grace_ms"], &step["limits"]["cpu_seconds"]), (&800.into(), &"unlimited".into()));
    for (limits, named) in [(["--memory", "2GiB"], "limits.memory"), (["--memory", "unlimited"], "limits.memory")] {
        let words = [vec!["exec".to_owned()], under(&limits)].concat();
        let run = repo.proctor(&words.iter().map(String::as_str).collect::<Vec<_>>()).exits(2);
        assert!(run.stderr.contains(named) && run.stderr.contains("1GiB at most"), "{run}");
    }
}

fn no_spec(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true").with_default("timeout_ms: 4321"));
    assert_eq!(record_of(&repo, &["--", "true"], 0)["step"]["timeout_ms"], 4321);
    assert_ne!(record_of(&repo, &["--no-spec", "--", "true"], 0)["step"]["timeout_ms"], 4321);
    repo.write("spec/verification.yaml", "version: 1\nskils: {}\n");
    repo.proctor(&["exec", "--", "true"]).exits(2);
    repo.proctor(&["exec", "--no-spec", "--", "true"]).exits(0);
}

fn secret(env: &TestEnvironment) {
    let value = "tok-0123456789abcdef";
    let repo = env.repo(&Spec::of_script("true"));
    let given = format!("DEPLOY_TOKEN={value}");
    for form in [&["--format", "json"][..], &["--raw"], &[]] {
        let words = [&["exec", "--env", &given], form, &["--", "sh", "-c", "echo \"<$DEPLOY_TOKEN>\""]].concat();
        let run = repo.proctor(&words).exits(0);
        assert!(!run.everything().contains(value) && run.everything().contains("<[redacted]>"), "{run}");
    }
    let run = repo.proctor(&["exec", "--env", &given, "--", value]).exits(5);
    assert!(!run.everything().contains(value), "{run}");
}

fn sees_the_tree(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    for text in ["one\n", "two\n", "three\n"] {
        repo.write("src/state.txt", text);
        // Run it twice, because a sandbox may wait for the second command.
        for _ in 0..2 {
            let run = repo.proctor(&["exec", "--", "cat", "src/state.txt"]).exits(0);
            assert_eq!(run.stdout, text, "{run}");
        }
        let same = ["exec", "--", "sh", "-c", &format!("printf '{text}' > src/state.txt")];
        repo.proctor(&same).exits(0);
        repo.proctor(&["exec", "--", "sh", "-c", "echo other > src/state.txt"]).exits(3);
    }
    repo.write("src/new.txt", "new\n");
    repo.proctor(&["exec", "--", "rm", "src/new.txt"]).exits(3);
    assert!(repo.file("src/new.txt").exists());
}

fn finds_nothing(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let script = "ls -A /tmp /var/tmp /dev/shm \"$HOME\"; ls target 2>&1; cat /proc/sysvipc/shm | wc -l; \
                  mkdir -p target; touch /tmp/x /var/tmp/x /dev/shm/x \"$HOME/x\" target/x";
    let words = ["exec", "--", "sh", "-c", script];
    let first = repo.proctor(&words).exits(0).stdout;
    for _ in 0..3 {
        assert_eq!(repo.proctor(&words).exits(0).stdout, first);
    }
}

fn allowed_variables(env: &TestEnvironment) {
    env.caller_has("RUST_LOG", "debug");
    env.caller_has("OTHER", "hidden");
    let repo = env.repo(&Spec::of_script("true").with_default("env_allowlist: [RUST_LOG]"));
    for _ in 0..2 {
        let run = repo.proctor(&["exec", "--", "env"]).exits(0).says(&["RUST_LOG=debug"]);
        assert!(!run.stdout.contains("OTHER"), "{run}");
    }
}

fn bounded_output(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let print = "yes 0123456 | head -c 1000000";
    let run = repo.proctor(&["exec", "--", "sh", "-c", print]).exits(0);
    assert_eq!(run.stdout.len(), 1_000_000);
    let run = repo.proctor(&["exec", "--output", "100kB", "--", "sh", "-c", print]).exits(0);
    assert_eq!(run.stdout.len(), 100_000);
    assert!(run.stderr.contains("more of its output were hashed and not kept"), "{}", run.stderr);
}

fn raw(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let script = ["--", "printf", "a\\033[2Jb\\377\\200c"];
    let run = repo.proctor(&[&["exec", "--raw"], &script[..]].concat()).exits(0);
    assert_eq!(run.stdout, "a\u{1b}[2Jb\u{fffd}\u{fffd}c");
    let run = repo.proctor(&[&["exec"], &script[..]].concat()).exits(0);
    assert!(!run.stdout.contains('\u{1b}'), "{run}");
}

fn waiting(env: &TestEnvironment) -> Vec<String> {
    let marked = ["exec".to_owned(), "--env".to_owned(), format!("TEST_MARKER={}", env.marker()), "--".to_owned()];
    marked.into_iter().chain(waiting_command(env)).collect()
}

fn start_waiting(env: &TestEnvironment, repo: &Repo<'_>) -> Running {
    let words = waiting(env);
    let mut running = repo.start_other(&words.iter().map(String::as_str).collect::<Vec<_>>());
    running.wait_for_process(&format!("{}-ready", env.marker()));
    running
}

fn sigint(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    for signal in [Signal::INT, Signal::TERM] {
        let running = start_waiting(env, &repo);
        running.signal(signal);
        let run = env.finish(running).exits(130);
        assert!(run.everything().to_lowercase().contains("interrupted"), "{run}");
    }
}

fn made_anew(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let head = ["exec", "--no-spec", "--", "git", "log", "-1", "--format=%s"];
    for _ in 0..2 {
        repo.proctor(&head).exits(0).says(&["a commit of a test"]);
    }
    // The old directory still exists under another name.
    std::fs::rename(repo.file(".git"), env.root().join("old-git")).expect("moved");
    env.git(repo.path(), &["init", "--quiet", "--initial-branch=main"]);
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--message=another history"]);
    repo.proctor(&head).exits(0).says(&["another history"]);
    // The same for the whole repository.
    repo.proctor(&head).exits(0);
    std::fs::rename(repo.path(), env.root().join("old-repo")).expect("moved");
    let repo = env.repo(&Spec::of_script("true"));
    repo.write("src/only-here.txt", "x");
    repo.proctor(&head).exits(0).says(&["a commit of a test"]);
    repo.proctor(&["exec", "--", "cat", "src/only-here.txt"]).exits(0);
}

fn by_daemon(env: &TestEnvironment, repo: &Repo<'_>, words: &[&str]) -> Running {
    let mut command = env.command(repo.path());
    command.args(["exec", "--daemon", "--socket"]).arg(env.socket()).args(words);
    Running::start(command)
}

/// Resets the values that differ between commands.
fn steady(record: &mut Value) {
    let step = record["step"].as_object_mut().expect("an object");
    step.insert("duration_ms".to_owned(), 0.into());
    step.insert("resources".to_owned(), json!({}));
}

fn same_document(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true").with_default("timeout_ms: 54321"));
    let daemon = env.daemon();
    let passes = ["--format", "json", "--", "true"];
    let fails = ["--format", "json", "--", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let drifts = ["--format", "json", "--", "sh", "-c", "echo x >> README.md"];
    let missing = ["--format", "json", "--", "no-such-program-anywhere"];
    let refused = ["--format", "json", "--workdir", "nowhere", "--", "true"];
    for words in [&passes[..], &fails, &drifts, &missing, &refused] {
        let here = repo.proctor(&[&["exec"], words].concat());
        // The second and third command may use a waiting sandbox.
        for _ in 0..3 {
            let served = env.finish(by_daemon(env, &repo, words));
            assert_eq!((served.code, timeless(&served)), (here.code, timeless(&here)), "{served}\n{here}");
            let [mut ours, mut theirs] = [&here, &served].map(parsed);
            steady(&mut ours);
            steady(&mut theirs);
            assert_eq!(ours, theirs);
        }
    }
    daemon.end().exits(0);
}

/// Returns standard error without durations.
fn timeless(run: &Finished) -> String {
    let words = run.stderr.split(' ').map(|word| if word.parse::<f64>().is_ok() { "N" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn parsed(run: &Finished) -> Value {
    let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::demand("exec", &record, run);
    record
}

fn disconnects(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let words = waiting(env);
    let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    for signal in [Signal::KILL, Signal::INT] {
        let mut running = by_daemon(env, &repo, &words);
        running.wait_for_process(&format!("{}-ready", env.marker()));
        running.signal(signal);
        let _ = running.wait();
        let gone = machine::wait_until_gone(env.marker(), std::time::Duration::from_secs(10));
        assert_eq!(gone, Ok(()), "the command outlived its client");
    }
    daemon.end().exits(0);
}

fn daemons_environment(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true").with_default("env_allowlist: [RUST_LOG]"));
    let wrapper = ["env", "RUST_LOG=of-the-daemon", "OTHER=of-the-daemon"];
    let mut daemon = Running::start(env.daemon_through(&wrapper, &env.socket(), &env.state()));
    daemon.wait_for_message(LISTENS);
    for _ in 0..2 {
        let run = env.finish(by_daemon(env, &repo, &["--", "env"])).exits(0);
        assert!(!run.everything().contains("of-the-daemon"), "{run}");
    }
    daemon.signal(Signal::TERM);
    env.finish(daemon).exits(0);
}

fn next_daemon(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    for text in ["one", "two"] {
        repo.write("src/state.txt", text);
        let daemon = env.daemon();
        for _ in 0..2 {
            let run = env.finish(by_daemon(env, &repo, &["--", "cat", "src/state.txt"])).exits(0);
            assert_eq!(run.stdout, text);
        }
        daemon.end().exits(0);
        let run = env.finish(by_daemon(env, &repo, &["--", "true"]));
        assert_eq!(run.code, Some(6), "{run}");
    }
    documents::check_all(env.root());
}

fn draining(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    env.configure("[daemon]\ndrain_ms = 100\n");
    let daemon = env.daemon();
    let words = waiting(env);
    let mut running = by_daemon(env, &repo, &words.iter().skip(1).map(String::as_str).collect::<Vec<_>>());
    running.wait_for_process(&format!("{}-ready", env.marker()));
    daemon.end().exits(0);
    let run = env.finish(running).exits(130);
    assert!(run.everything().to_lowercase().contains("interrupted"), "{run}");
}

fn demanded(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    env.finish(by_daemon(env, &repo, &["--", "true"])).exits(6);
    let daemon = env.daemon();
    env.finish(by_daemon(env, &repo, &["--", "true"])).exits(0);
    daemon.end().exits(0);
}

fn refused(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let exec = |body: Value| ask(&env.socket(), "POST", "/v1/exec", Some(&body)).expect("an answer");
    let path: &Path = repo.path();
    for (body, code) in [
        (json!({ "repo": path, "cmd": [] }), 400),
        (json!({ "repo": path, "cmd": ["true"], "command": "x" }), 400),
        (json!({ "repo": path, "cmd": ["true"], "limits": { "memory": 1 } }), 400),
        (json!({ "repo": "relative", "cmd": ["true"] }), 400),
        (json!({ "repo": "/nowhere/at/all", "cmd": ["true"] }), 422),
        (json!({ "repo": env.state(), "cmd": ["true"] }), 422),
    ] {
        let answer = exec(body.clone());
        assert_eq!(answer.code, code, "{body}: {answer:?}");
    }
    let id = "0".repeat(32);
    assert_eq!(daemon.ask("DELETE", &format!("/v1/exec/{id}"), None).code, 404);
    assert_eq!(daemon.ask("DELETE", "/v1/exec/..", None).code, 404);
    let answer = exec(json!({ "repo": path, "cmd": ["printf", "a\\377"], "set_env": { "A": "b" } }));
    let events: Vec<Value> = answer.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["started", "output_bytes", "finished"], "{answer:?}");
    assert_eq!(events[1]["hex"], "61ff");
    daemon.end().exits(0);
}
