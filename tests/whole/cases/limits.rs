//! Tests the limits of a step: enforced according to the record, or reported as not enforced.

use serde_json::{Value, json};

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{Case, NEEDS_PYTHON, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("limits::open_files", open_files),
    case("limits::records_a_lower_limit_of_open_files_of_the_host", open_files_of_the_host),
    case("limits::cpu_seconds", cpu_seconds),
    case("limits::disk", disk),
    case("limits::a_full_layer_is_named", full_layer),
    case("limits::full_scratch_is_named", full_scratch),
    case("limits::no_room_for_files_is_named", no_inodes),
    case("limits::what_a_pass_met_is_said", met_and_passed),
    case("limits::exec_says_what_to_do", exec_says),
    case("limits::reports_processes_that_a_step_leaves_behind", leaves_processes),
    case("limits::fails_a_step_that_must_not_leave_processes", must_not_leave),
    case("limits::reports_processes_that_are_left_over_http", leaves_processes_over_http),
    case("limits::no_room_for_files_in_the_layer_is_named", no_inodes_in_layer).needs(NEEDS_PYTHON),
    case("limits::memory", memory).needs(NEEDS_PYTHON),
    case("limits::memory_of_all_together", memory_of_all).needs(NEEDS_PYTHON),
    case("limits::processes", processes).needs(NEEDS_PYTHON),
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

fn open_files(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "ulimit -n; ulimit -Hn").with("limits: { open_files: 64 }")]));
    repo.run().exits(0);
    assert!(is_enforced(&repo, "open_files_limit"));
    assert_eq!(repo.step("it")["stdout_preview"], "64\n64\n");
}

fn open_files_of_the_host(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "ulimit -n; ulimit -Hn")]));
    let words = ["run", "--profile", "pr", "--changeset", CHANGESET];
    env.finish(env.start_through(repo.path(), &["prlimit", "--nofile=2000:2000"], &words)).exits(0);
    let step = repo.step("it");
    assert_eq!(step["limits"]["open_files"], json!({ "max": 65_536 }), "the default");
    assert_eq!(step["stdout_preview"], "2000\n2000\n");
    let mechanism = "RLIMIT_NOFILE of each process, 2000: the hard limit of the host, below the 65536 of the plan";
    assert_eq!(step["enforcement"]["open_files_limit"], json!({ "state": "enforced", "mechanism": mechanism }));
}

fn cpu_seconds(env: &TestEnvironment) {
    let step = Step::sh("it", "while :; do :; done").with("limits: { cpu_seconds: 1 }").with("timeout_ms: 60000");
    let repo = env.repo(&Spec::of_steps([step]));
    repo.run().exits(1);
    assert!(is_enforced(&repo, "cpu_limit"));
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["termination"]["kind"]), (&"failed".into(), &"limit_hit".into()));
    assert_eq!(step["termination"]["limit"], "cpu_seconds");
}

fn disk(env: &TestEnvironment) {
    let script = "mkdir target; head -c 64000000 /dev/zero > target/big && exit 0; echo full; exit 8";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script).with("limits: { disk: 16MiB }")]));
    repo.run();
    let held = is_enforced(&repo, "disk_limit");
    let step = repo.step("it");
    assert_eq!(step["outcome"] == "failed", held, "{step:#}");
}

const BYTES: [&str; 2] = ["disk", "8 MiB disk"];
/// The number of files that belongs to a limit of 8 MiB.
const FILES: [&str; 2] = ["inodes", "4096 files"];

/// Asserts that a step that hit the limit and exited with 7 is recorded and displayed as failed due to the limit.
fn ran_out(env: &TestEnvironment, [limit, words]: [&str; 2], step: Step) {
    let repo = env.repo(&Spec::of_steps([step.with("limits: { disk: 8MiB }")]));
    let run = repo.run();
    if !is_enforced(&repo, "disk_limit") {
        return;
    }
    let step = repo.step("it");
    assert_eq!(step["termination"], json!({ "kind": "limit_hit", "limit": limit, "exit_code": 7 }));
    assert_eq!(step["resources"]["limits_hit"], json!([limit]));
    assert_eq!(step["outcome"], "failed", "{step:#}");
    run.exits(1).says(&[&format!("hit its limit of {words}"), "raise `limits.disk`"]);
}

/// Writes several files, each smaller than the limit.
fn full_layer(env: &TestEnvironment) {
    let script = "mkdir target; for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > target/$i || exit 7; done";
    ran_out(env, BYTES, Step::sh("it", script));
}

fn full_scratch(env: &TestEnvironment) {
    let script = "for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > /dev/shm/$i || exit 7; done";
    ran_out(env, BYTES, Step::sh("it", script));
}

fn no_inodes(env: &TestEnvironment) {
    ran_out(env, FILES, Step::sh("it", "i=0; while (: > /tmp/$i) 2>/dev/null; do i=$((i+1)); done; exit 7"));
}

/// The layers of a run have their own limit on the number of files.
fn no_inodes_in_layer(env: &TestEnvironment) {
    let program = r"
import os, sys
os.mkdir('target')
for number in range(10_000):
    try:
        open(f'target/{number}', 'x').close()
    except OSError:
        sys.exit(7)
";
    ran_out(env, FILES, Step::python("it", program));
}

fn met_and_passed(env: &TestEnvironment) {
    let script = "for i in 1 2 3 4 5; do head -c 3000000 /dev/zero > /tmp/$i; done 2>/dev/null; exit 0";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script).with("limits: { disk: 8MiB }")]));
    let run = repo.run().exits(0);
    if is_enforced(&repo, "disk_limit") {
        assert_eq!(repo.step("it")["resources"]["limits_hit"], json!(["disk"]));
        run.says(&["verify.it/it passed although it ran into its limit of 8 MiB disk"]);
    }
}

fn exec_says(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let endless = repo.proctor(&["exec", "--cpu-seconds", "1", "--", "sh", "-c", "while :; do :; done"]);
    endless.exits(1).complains(&["hit its limit of 1 s CPU time", "raise `limits.cpu_seconds` (`--cpu-seconds` of"]);
    let loud = repo.proctor(&["exec", "--output", "1KiB", "--", "seq", "1", "10000"]);
    loud.exits(0).complains(&["were hashed and not kept (`limits.output`, `--output`)"]);
}

/// Leaves two processes behind, one of them in its own session.
const LEAVING: &str = "sleep 1000 </dev/null >/dev/null 2>&1 & setsid sleep 1000 </dev/null >/dev/null 2>&1 & exit 0";

fn leaves_processes(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", LEAVING), Step::sh("clean", "(sleep 0.02) & exit 0")]));
    repo.run().exits(0).says(&["verify.it/it passed and left 2 processes behind: `sleep` (pid "]);
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
    github.says(&["::warning title=verify.it/it::verify.it/it passed and left 2 processes behind: `sleep`, `sleep`"]);
    let ignored = env.repo_at("ignored", &Spec::of_steps([Step::sh("it", LEAVING).with("leaks: ignore")]));
    let run = ignored.run().exits(0);
    assert!(!run.everything().contains("behind"), "{}", run.everything());
    assert_eq!(ignored.step("it").get("leaked"), None);
}

fn must_not_leave(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", LEAVING)]).with_default("leaks: fail"));
    let run = repo.run().exits(1);
    let run = run.says(&["left 2 processes behind: `sleep` (pid ", "(leaks: fail); exit code 0", "wait for it"]);
    run.complains(&["failed verify.it/it: it left 2 processes behind"]);
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["exit_code"]), (&json!("failed"), &json!(0)), "{step:#}");
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(1);
    let command = ["--", "sh", "-c", LEAVING];
    let strict = repo.proctor(&[&["exec", "--no-spec", "--leaks", "fail"][..], &command].concat());
    strict.exits(1).complains(&["left 2 processes behind", "wait for it"]);
    let lenient = repo.proctor(&[&["exec", "--no-spec"][..], &command].concat());
    lenient.exits(0).complains(&["the command passed and left 2 processes behind"]);
    let again = env.repo_at("again", &Spec::of_steps([Step::sh("it", LEAVING).with("leaks: fail").with("retries: 1")]));
    again.run().exits(1);
    assert_eq!(again.step("it")["earlier_attempts"][0]["leaked"]["processes"], 2);
    let check = format!("toolchains: {{ tool: {{ required: [{{ cmd: [sh, -c, {LEAVING:?}] }}] }} }}");
    let checked = env.repo_at("checked", &Spec::of_script("true").top(&check).with_default("leaks: fail"));
    checked.run().exits(5).says(&["left 2 processes behind", "no skill was started"]);
}

fn leaves_processes_over_http(env: &TestEnvironment) {
    let warned = env.repo(&Spec::of_steps([Step::sh("it", LEAVING)]));
    let failed = env.repo_at("failed", &Spec::of_steps([Step::sh("it", LEAVING).with("leaks: fail")]));
    let daemon = env.daemon();
    for (repo, verdict, outcome) in [(&warned, "passed", "passed"), (&failed, "failed", "failed")] {
        let run = daemon.finished(&daemon.submit(repo.path()));
        assert_eq!((&run["verdict"], &run["steps"][0]["outcome"]), (&json!(verdict), &json!(outcome)), "{run:#}");
        assert_eq!(run["steps"][0]["leaked"]["processes"], 2, "{run:#}");
    }
    daemon.end().exits(0);
}

/// Returns the limit that ended the step `it`, and the limits that it hit, from the record.
fn met(repo: &Repo<'_>) -> (Value, Value) {
    let step = repo.step("it");
    (step["termination"]["limit"].clone(), step["resources"]["limits_hit"].clone())
}

/// Checks whether a control group enforces this control; only then does the kernel count how often the limit was hit.
fn is_counted(repo: &Repo<'_>, control: &str) -> bool {
    let step = repo.step("it");
    let counted = step["enforcement"][control]["mechanism"].as_str().is_some_and(|how| how.starts_with("cgroup v"));
    assert!(!counted || step["enforcement"]["cgroup"]["state"] == "enforced", "{step:#}");
    counted
}

fn memory(env: &TestEnvironment) {
    let program = "b = bytearray(400_000_000)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('had it')";
    let repo = env.repo(&Spec::of_steps([Step::python("it", program).with("limits: { memory: 100MiB }")]));
    let run = repo.run();
    let held = is_enforced(&repo, "memory_limit");
    let had_it = repo.step("it")["stdout_preview"] == "had it\n";
    assert_eq!(had_it, !held);
    assert_eq!(repo.step("it")["outcome"] == "passed", !held);
    if is_counted(&repo, "memory_limit") {
        assert_eq!(met(&repo), (json!("memory"), json!(["memory"])));
        assert!(repo.step("it")["resources"]["memory_peak_kib"].is_u64());
        run.exits(1).says(&["hit its limit of 100 MiB memory", "raise `limits.memory`"]);
    } else if held {
        // A refusal that affects one process is only visible to the program.
        assert_eq!(met(&repo), (Value::Null, json!([])));
        assert!(repo.step("it")["stderr_preview"].to_string().contains("MemoryError"), "{:#}", repo.step("it"));
    }
}

/// Each process alone stays below the limit. Enforced by the kernel or by PID 1, the limit ends the step.
fn memory_of_all(env: &TestEnvironment) {
    let program = r"
import os, signal, sys
for _ in range(4):
    if os.fork() == 0:
        held = b'x' * (60 << 20)
        signal.pause()
os.wait()
sys.exit('one of them is gone')
";
    let repo = env.repo(&Spec::of_steps([Step::python("it", program).with("limits: { memory: 100MiB }")]));
    let run = repo.run().exits(1);
    assert!(is_enforced(&repo, "memory_limit"));
    assert_eq!(met(&repo), (json!("memory"), json!(["memory"])));
    run.says(&["hit its limit of 100 MiB memory", "raise `limits.memory`"]);
}

/// If the kernel counts refusals, a step that hit the limit may pass if it exits with 0, and otherwise fails due to
/// the limit.
fn processes(env: &TestEnvironment) {
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
        let step = Step::argv("it", &["python3", "-c", program, &code.to_string()]).with("limits: { pids: 40 }");
        let repo = env.repo_at(&format!("repo{code}"), &Spec::of_steps([step]));
        let run = repo.run().exits(i32::from(code != 0));
        let held = is_enforced(&repo, "pids_limit");
        assert_eq!(repo.step("it")["stdout_preview"], if held { "bounded\n" } else { "all\n" });
        match (is_counted(&repo, "pids_limit"), code) {
            (true, 0) => {
                assert_eq!(met(&repo), (Value::Null, json!(["pids"])));
                run.says(&["verify.it/it passed although it ran into its limit of 40 processes"]);
            }
            (true, _) => {
                assert_eq!(met(&repo), (json!("pids"), json!(["pids"])));
                run.says(&["hit its limit of 40 processes", "raise `limits.pids`"]);
            }
            // In this case refused forks are not counted.
            (false, _) => assert_eq!(met(&repo), (Value::Null, json!([]))),
        }
    }
}
