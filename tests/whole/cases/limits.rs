//! Tests the limits of a step: enforced according to the record, or reported as not enforced.

use serde_json::{Value, json};

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("limits::open_files", open_files_limit),
    case("limits::records_a_lower_open_files_limit_of_the_host", lower_host_limit_is_recorded),
    case("limits::cpu_seconds", cpu_limit),
    case("limits::disk", disk_limit),
    case("limits::full_layer_is_reported", full_layer_is_reported),
    case("limits::full_scratch_directory_is_reported", full_scratch_is_reported),
    case("limits::file_count_limit_is_reported", file_count_limit_is_reported),
    case("limits::limit_hit_by_a_passing_step_is_reported", passing_step_reports_hit_limit),
    case("limits::exec_reports_limits_with_a_hint", exec_reports_limits_with_hint),
    case("limits::reports_processes_that_a_step_leaves_behind", leftover_processes_are_reported),
    case("limits::fails_a_step_that_must_not_leave_processes", leftover_processes_fail_step),
    case("limits::reports_leftover_processes_over_http", leftover_processes_over_http),
    case("limits::file_count_limit_of_the_layer_is_reported", file_count_limit_of_layer_is_reported)
        .needs(NEEDS_PYTHON),
    case("limits::memory", memory_limit).needs(NEEDS_PYTHON),
    case("limits::total_memory_of_all_processes", total_memory_limit).needs(NEEDS_PYTHON),
    case("limits::processes", process_limit).needs(NEEDS_PYTHON),
];

/// Returns whether the record of the step `it` has a control as enforced. If it is not enforced, the tier must
/// reflect that.
fn is_enforced(repo: &Repo<'_>, control: &str) -> bool {
    let state = repo.step("it")["enforcement"][control]["state"].clone();
    if state == "not_enforced" {
        assert_eq!(repo.evidence("verify.it")["tier_reasons"], json!(["control_not_enforced"]));
        return false;
    }
    assert_eq!(state, "enforced", "{control} was asked for");
    true
}

fn open_files_limit(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([
        TestStep::sh("it", "ulimit -n; ulimit -Hn").with_field("limits: { open_files: 64 }")
    ]));
    repo.run().exits(0);
    assert!(is_enforced(&repo, "open_files_limit"));
    assert_eq!(repo.step("it")["stdout_preview"], "64\n64\n");
}

fn lower_host_limit_is_recorded(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "ulimit -n; ulimit -Hn")]));
    let words = ["run", "--profile", "pr", "--changeset", CHANGESET];
    env.finish(env.start_through(repo.path(), &["prlimit", "--nofile=2000:2000"], &words)).exits(0);
    let step = repo.step("it");
    assert_eq!(step["limits"]["open_files"], json!({ "max": 65_536 }), "the default");
    assert_eq!(step["stdout_preview"], "2000\n2000\n");
    let mechanism = "RLIMIT_NOFILE of each process, 2000: the hard limit of the host, below the 65536 of the plan";
    assert_eq!(step["enforcement"]["open_files_limit"], json!({ "state": "enforced", "mechanism": mechanism }));
}

fn cpu_limit(env: &TestEnvironment) {
    let step = TestStep::sh("it", "while :; do :; done")
        .with_field("limits: { cpu_seconds: 1 }")
        .with_field("timeout_ms: 60000");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(1);
    assert!(is_enforced(&repo, "cpu_limit"));
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["termination"]["kind"]), (&"failed".into(), &"limit_hit".into()));
    assert_eq!(step["termination"]["limit"], "cpu_seconds");
}

fn disk_limit(env: &TestEnvironment) {
    let script = "mkdir target; head -c 64000000 /dev/zero > target/big && exit 0; echo full; exit 8";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("limits: { disk: 16MiB }")]));
    repo.run();
    let enforced = is_enforced(&repo, "disk_limit");
    let step = repo.step("it");
    assert_eq!(step["outcome"] == "failed", enforced, "{step:#}");
}

const DISK_SIZE_LIMIT: [&str; 2] = ["disk", "8 MiB disk"];
/// The limit on the number of files that results from a disk limit of 8 MiB.
const FILE_COUNT_LIMIT: [&str; 2] = ["inodes", "4096 files"];

/// Asserts that a step that hit the limit and exited with 7 is recorded and displayed as failed due to the limit.
fn assert_limit_fails_step(env: &TestEnvironment, [limit, words]: [&str; 2], step: TestStep) {
    let repo = env.repo(&TestSpec::from_steps([step.with_field("limits: { disk: 8MiB }")]));
    let run = repo.run();
    if !is_enforced(&repo, "disk_limit") {
        return;
    }
    let step = repo.step("it");
    assert_eq!(step["termination"], json!({ "kind": "limit_hit", "limit": limit, "exit_code": 7 }));
    assert_eq!(step["resources"]["limits_hit"], json!([limit]));
    assert_eq!(step["outcome"], "failed", "{step:#}");
    run.exits(1).prints(&[&format!("hit its limit of {words}"), "raise `limits.disk`"]);
}

/// Writes several files, each smaller than the limit.
fn full_layer_is_reported(env: &TestEnvironment) {
    let script = "mkdir target; for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > target/$i || exit 7; done";
    assert_limit_fails_step(env, DISK_SIZE_LIMIT, TestStep::sh("it", script));
}

fn full_scratch_is_reported(env: &TestEnvironment) {
    let script = "for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > /dev/shm/$i || exit 7; done";
    assert_limit_fails_step(env, DISK_SIZE_LIMIT, TestStep::sh("it", script));
}

fn file_count_limit_is_reported(env: &TestEnvironment) {
    assert_limit_fails_step(
        env,
        FILE_COUNT_LIMIT,
        TestStep::sh("it", "i=0; while (: > /tmp/$i) 2>/dev/null; do i=$((i+1)); done; exit 7"),
    );
}

/// The layers of a run have their own limit on the number of files.
fn file_count_limit_of_layer_is_reported(env: &TestEnvironment) {
    let program = r"
import os, sys
os.mkdir('target')
for number in range(10_000):
    try:
        open(f'target/{number}', 'x').close()
    except OSError:
        sys.exit(7)
";
    assert_limit_fails_step(env, FILE_COUNT_LIMIT, TestStep::python("it", program));
}

fn passing_step_reports_hit_limit(env: &TestEnvironment) {
    let script = "for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > /tmp/$i; done 2>/dev/null; exit 0";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("limits: { disk: 8MiB }")]));
    let run = repo.run().exits(0);
    if is_enforced(&repo, "disk_limit") {
        assert_eq!(repo.step("it")["resources"]["limits_hit"], json!(["disk"]));
        run.prints(&["verify.it/it passed although it reached its limit of 8 MiB disk"]);
    }
}

fn exec_reports_limits_with_hint(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let endless = repo.proctor(&["exec", "--cpu-seconds", "1", "--", "sh", "-c", "while :; do :; done"]);
    endless
        .exits(1)
        .prints_to_stderr(&["hit its limit of 1 s CPU time", "raise `limits.cpu_seconds` (`--cpu-seconds` of"]);
    let loud = repo.proctor(&["exec", "--output", "1KiB", "--", "seq", "1", "10000"]);
    loud.exits(0).prints_to_stderr(&["were hashed and not kept (`limits.output`, `--output`)"]);
}

/// Leaves two processes behind, one of them in its own session.
const LEAVE_PROCESSES_SCRIPT: &str =
    "sleep 1000 </dev/null >/dev/null 2>&1 & setsid sleep 1000 </dev/null >/dev/null 2>&1 & exit 0";

fn leftover_processes_are_reported(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([
        TestStep::sh("it", LEAVE_PROCESSES_SCRIPT),
        TestStep::sh("clean", "(sleep 0.02) & exit 0"),
    ]));
    repo.run().exits(0).prints(&["verify.it/it passed and left 2 processes behind: `sleep` (pid "]);
    let leaked = repo.step("it")["leaked"].clone();
    assert_eq!((&leaked["processes"], &leaked["at_least"]), (&json!(2), &json!(false)), "{leaked}");
    assert_eq!(
        (&leaked["first"][0]["name"], &leaked["first"][1]["name"]),
        (&json!("sleep"), &json!("sleep")),
        "{leaked}"
    );
    assert_eq!(repo.step("clean").get("leaked"), None);
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(0);
    let github = repo.run_with(&["--format", "github"]).exits(0);
    github.prints(&["::warning title=verify.it/it::verify.it/it passed and left 2 processes behind: `sleep`, `sleep`"]);
    let ignored = env.repo_at(
        "ignored",
        &TestSpec::from_steps([TestStep::sh("it", LEAVE_PROCESSES_SCRIPT).with_field("leaks: ignore")]),
    );
    let run = ignored.run().exits(0);
    assert!(!run.all_output().contains("behind"), "{}", run.all_output());
    assert_eq!(ignored.step("it").get("leaked"), None);
}

fn leftover_processes_fail_step(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::sh("it", LEAVE_PROCESSES_SCRIPT)]).with_default("leaks: fail"));
    let run = repo.run().exits(1);
    let run = run.prints(&["left 2 processes behind: `sleep` (pid ", "(leaks: fail; exit 0, ", "wait for them"]);
    run.prints_to_stderr(&["FAIL verify.it/it"]);
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["exit_code"]), (&json!("failed"), &json!(0)), "{step:#}");
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(1);
    let command = ["--", "sh", "-c", LEAVE_PROCESSES_SCRIPT];
    let strict = repo.proctor(&[&["exec", "--no-spec", "--leaks", "fail"][..], &command].concat());
    strict.exits(1).prints_to_stderr(&["left 2 processes behind", "wait for them"]);
    let lenient = repo.proctor(&[&["exec", "--no-spec"][..], &command].concat());
    lenient.exits(0).prints_to_stderr(&["the command passed and left 2 processes behind"]);
    let again = env.repo_at(
        "again",
        &TestSpec::from_steps([TestStep::sh("it", LEAVE_PROCESSES_SCRIPT)
            .with_field("leaks: fail")
            .with_field("retries: 1")]),
    );
    again.run().exits(1);
    assert_eq!(again.step("it")["earlier_attempts"][0]["leaked"]["processes"], 2);
    let check = format!("toolchains: {{ tool: {{ required: [{{ cmd: [sh, -c, {LEAVE_PROCESSES_SCRIPT:?}] }}] }} }}");
    let checked =
        env.repo_at("checked", &TestSpec::from_script("true").with_top_level(&check).with_default("leaks: fail"));
    checked.run().exits(5).prints(&["left 2 processes behind", "a toolchain check failed"]);
}

fn leftover_processes_over_http(env: &TestEnvironment) {
    let warned = env.repo(&TestSpec::from_steps([TestStep::sh("it", LEAVE_PROCESSES_SCRIPT)]));
    let failed = env.repo_at(
        "failed",
        &TestSpec::from_steps([TestStep::sh("it", LEAVE_PROCESSES_SCRIPT).with_field("leaks: fail")]),
    );
    let daemon = env.start_ready_daemon();
    for (repo, verdict, outcome) in [(&warned, "passed", "passed"), (&failed, "failed", "failed")] {
        let run = daemon.wait_for_run(&daemon.submit(repo.path()));
        assert_eq!((&run["verdict"], &run["steps"][0]["outcome"]), (&json!(verdict), &json!(outcome)), "{run:#}");
        assert_eq!(run["steps"][0]["leaked"]["processes"], 2, "{run:#}");
    }
    daemon.stop().exits(0);
}

/// Returns the limit that ended the step `it`, and the limits that it hit, from the record.
fn limits_in_record(repo: &Repo<'_>) -> (Value, Value) {
    let step = repo.step("it");
    (step["termination"]["limit"].clone(), step["resources"]["limits_hit"].clone())
}

/// Checks whether a control group enforces this control; only then does the kernel count how often the limit was hit.
fn is_counted_by_control_group(repo: &Repo<'_>, control: &str) -> bool {
    let step = repo.step("it");
    let counted = step["enforcement"][control]["mechanism"].as_str().is_some_and(|how| how.starts_with("cgroup v"));
    assert!(!counted || step["enforcement"]["cgroup"]["state"] == "enforced", "{step:#}");
    counted
}

fn memory_limit(env: &TestEnvironment) {
    let program = "b = bytearray(400_000_000)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('had it')";
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::python("it", program).with_field("limits: { memory: 100MiB }")]));
    let run = repo.run();
    let enforced = is_enforced(&repo, "memory_limit");
    let had_it = repo.step("it")["stdout_preview"] == "had it\n";
    assert_eq!(had_it, !enforced);
    assert_eq!(repo.step("it")["outcome"] == "passed", !enforced);
    if is_counted_by_control_group(&repo, "memory_limit") {
        assert_eq!(limits_in_record(&repo), (json!("memory"), json!(["memory"])));
        assert!(repo.step("it")["resources"]["memory_peak_kib"].is_u64());
        run.exits(1).prints(&["hit its limit of 100 MiB memory", "raise `limits.memory`"]);
    } else if enforced {
        // A refusal that affects one process is only visible to the program.
        assert_eq!(limits_in_record(&repo), (Value::Null, json!([])));
        assert!(repo.step("it")["stderr_preview"].to_string().contains("MemoryError"), "{:#}", repo.step("it"));
    }
}

/// Each process alone stays below the limit. Enforced by the kernel or by PID 1, the limit ends the step.
fn total_memory_limit(env: &TestEnvironment) {
    let program = r"
import os, signal, sys
for _ in range(4):
    if os.fork() == 0:
        held = b'x' * (60 << 20)
        signal.pause()
os.wait()
sys.exit('one of them is gone')
";
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::python("it", program).with_field("limits: { memory: 100MiB }")]));
    let run = repo.run().exits(1);
    assert!(is_enforced(&repo, "memory_limit"));
    assert_eq!(limits_in_record(&repo), (json!("memory"), json!(["memory"])));
    run.prints(&["hit its limit of 100 MiB memory", "raise `limits.memory`"]);
}

/// If the kernel counts refusals, a step that hit the limit may pass if it exits with 0, and otherwise fails due to
/// the limit.
fn process_limit(env: &TestEnvironment) {
    let program = r"
import os, signal, sys
count = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            signal.pause()
        count += 1
except OSError:
    pass
print('all' if count == 200 else 'bounded')
sys.exit(int(sys.argv[1]))
";
    for code in [0, 7] {
        let step =
            TestStep::argv("it", &["python3", "-c", program, &code.to_string()]).with_field("limits: { pids: 40 }");
        let repo = env.repo_at(&format!("repo{code}"), &TestSpec::from_steps([step]));
        let run = repo.run().exits(i32::from(code != 0));
        let enforced = is_enforced(&repo, "pids_limit");
        assert_eq!(repo.step("it")["stdout_preview"], if enforced { "bounded\n" } else { "all\n" });
        match (is_counted_by_control_group(&repo, "pids_limit"), code) {
            (true, 0) => {
                assert_eq!(limits_in_record(&repo), (Value::Null, json!(["pids"])));
                run.prints(&["verify.it/it passed although it reached its limit of 40 processes"]);
            }
            (true, _) => {
                assert_eq!(limits_in_record(&repo), (json!("pids"), json!(["pids"])));
                run.prints(&["hit its limit of 40 processes", "raise `limits.pids`"]);
            }
            // In this case refused forks are not counted.
            (false, _) => assert_eq!(limits_in_record(&repo), (Value::Null, json!([]))),
        }
    }
}
