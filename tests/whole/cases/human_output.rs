//! Tests human-readable output: failures shown from their first error, quiet and verbose reports, logs and
//! comparisons of runs that no daemon knows, and explanations of message codes.

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, case, dry_case};
use crate::process::FinishedProcess;
use crate::schemas;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("human_output::long_output_starts_at_its_first_error", long_output_starts_at_first_error),
    case("human_output::quiet_prints_only_failures_and_the_verdict", quiet_prints_failures_and_verdict),
    case("human_output::verbose_prints_every_step", verbose_prints_every_step),
    case("human_output::logs_work_without_a_daemon", logs_work_without_daemon),
    case("human_output::equal_runs_compare_as_the_same", equal_runs_compare_as_same),
    case("human_output::compare_names_the_differences", compare_names_differences),
    dry_case("human_output::compare_refuses_unknown_runs", compare_refuses_unknown_runs),
    case("human_output::each_error_has_an_explained_code", each_error_has_explained_code),
    case("human_output::failure_without_network_has_a_hint", failure_without_network_has_hint),
    case("human_output::missing_tool_is_named_once", missing_tool_is_named_once),
    case("human_output::changed_files_precede_new_ones", changed_files_precede_new_ones),
];

/// Prints 8,000 lines with an error in the middle.
const NOISY_SCRIPT: &str = "seq 1 4000; echo 'src/main.c:6:20: error: nothing is right'; seq 4001 8000; exit 2";

fn long_output_starts_at_first_error(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(NOISY_SCRIPT));
    let run = repo.run().exits(1);
    let at = run
        .stdout
        .find("| src/main.c:6:20: error: nothing is right")
        .unwrap_or_else(|| panic!("the error is shown: {run}"));
    assert!(run.stdout[..at].contains("(… 3996 lines)"), "{run}");
    assert!(run.stdout[at..].contains(" lines)") && !run.stdout.contains("| 7000"), "{run}");
    assert!(run.stdout[at..].contains("| 7989\n") && run.stdout.contains("| 8000\n"), "its end is shown: {run}");
    assert!(run.stdout.lines().count() < 60, "{run}");
}

fn failure_without_network_has_hint(env: &TestEnvironment) {
    let script = "echo 'curl: (6) Could not resolve host: example.org' >&2; exit 6";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(1).prints(&["FAIL verify.it/it (exit 6, ", "hint: ", "`network: deny`"]);
    let allowed = TestStep::sh("it", script).with_field("network: allow");
    let run = env.repo_at("allowed", &TestSpec::from_steps([allowed])).run().exits(1);
    assert!(!run.stdout.contains("`network: deny`"), "{run}");
}

fn missing_tool_is_named_once(env: &TestEnvironment) {
    let check = "toolchains:\n  no-such-tool:\n    required:\n      - { cmd: [sh, -c, command -v no-such-tool] }";
    let run = env.repo(&TestSpec::from_script("true").with_top_level(check)).run().exits(5).prints(&[
        "missing tool: no-such-tool\nhint: install it, or remove its check from the spec\n",
        "inconclusive: ",
    ]);
    assert_eq!(run.all_output().matches("no-such-tool").count(), 1, "{run}");
}

fn changed_files_precede_new_ones(env: &TestEnvironment) {
    let script = "for n in $(seq 13); do echo > a$n; done; echo more >> src/lib.rs";
    let run = env.repo(&TestSpec::from_script(script)).run().exits(3);
    run.prints(&[
        "DRIFT verify.it/it: modified 1 file, created 13 (exit 0, ",
        "  modified src/lib.rs\n",
        "4 more paths",
    ]);
}

fn quiet_prints_failures_and_verdict(env: &TestEnvironment) {
    let passing = env.repo_at("passing", &TestSpec::from_script("echo fine"));
    let run = passing.run_with(&["--quiet"]).exits(0);
    assert_eq!((run.stderr.as_str(), run.stdout.lines().count()), ("", 1), "{run}");
    assert!(run.stdout.starts_with("passed: 1 step in 1 skill, tier "), "{run}");
    let failing = env.repo_at("failing", &TestSpec::from_script("echo 'error: x' >&2; false"));
    let run = failing.run_with(&["-q"]).exits(1);
    assert_eq!(run.stderr, "", "{run}");
    assert!(run.stdout.contains("| error: x") && !run.stdout.contains("skills:"), "{run}");
    assert!(run.stdout.lines().last().is_some_and(|line| line.starts_with("failed: ")), "{run}");
}

fn verbose_prints_every_step(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo fine"));
    let run = repo.run_with(&["--verbose"]).exits(0);
    for expected in ["$ sh -c 'echo fine'", "| fine", "controls enforced", "cpu "] {
        assert!(run.stdout.contains(expected), "{expected}: {run}");
    }
}

/// Returns the id of the last run of the usual changeset.
fn last_run_id(repo: &Repo<'_>) -> String {
    repo.last_run()["run_id"].as_str().expect("the schema says so").to_owned()
}

/// Runs a command on recorded runs, which no daemon knows.
fn proctor_with_state_dir(repo: &Repo<'_>, env: &TestEnvironment, words: &[&str]) -> FinishedProcess {
    let state = env.state_dir();
    let state_option = ["--state-dir", state.to_str().expect("UTF-8")];
    repo.proctor(&[words, &state_option].concat())
}

fn logs_work_without_daemon(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("noisy", "seq 1 5000; echo wrong >&2")]));
    repo.run().exits(0);
    let id = last_run_id(&repo);
    let run = proctor_with_state_dir(&repo, env, &["logs", &id, "verify.it/noisy"]).exits(0);
    assert_eq!((run.stdout.lines().count(), run.stdout.lines().last()), (5000, Some("5000")), "{run}");
    let run = proctor_with_state_dir(&repo, env, &["logs", &id, "verify.it/noisy", "--stderr"]).exits(0);
    assert_eq!(run.stdout, "wrong\n", "{run}");
    proctor_with_state_dir(&repo, env, &["logs", &id])
        .exits(0)
        .prints(&["--- verify.it/noisy stdout", "--- verify.it/noisy stderr"]);
    let run = proctor_with_state_dir(&repo, env, &["logs", &id, "verify.it/nosy"]).exits(2);
    assert!(run.stderr.contains("did you mean `verify.it/noisy`?"), "{run}");
}

fn equal_runs_compare_as_same(env: &TestEnvironment) {
    let skill = TestSkill::new("verify.it", [TestStep::argv("echo", &["echo", "x"])]).determinism("D0");
    let repo = env.repo(&TestSpec::new([skill]));
    let id = |repo: &Repo<'_>| {
        let run = repo.run_with_only(&["--format", "json"]).exits(0);
        let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
        record["started"]["run_id"].as_str().expect("a run").to_owned()
    };
    let (before, after) = (id(&repo), id(&repo));
    let run = proctor_with_state_dir(&repo, env, &["compare", &before, &after]).exits(0);
    assert!(run.stdout.ends_with(&format!("the same: {before} and {after}\n")), "{run}");
    let run = proctor_with_state_dir(&repo, env, &["compare", &before, &after, "--format", "json"]).exits(0);
    let comparison: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::assert_valid("comparison", &comparison, &run);
    assert_eq!(comparison["same"], true);
}

fn compare_names_differences(env: &TestEnvironment) {
    let text =
        |script: &str| TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("say", script)]).determinism("D0")]);
    let (one, two) = (env.repo_at("one", &text("cat README.md")), env.repo_at("two", &text("cat README.md")));
    two.write("README.md", "another text\n");
    one.run().exits(0);
    two.run().exits(0);
    let dirs = [one.changeset(), two.changeset()].map(|dir| dir.to_str().expect("UTF-8").to_owned());
    let run = proctor_with_state_dir(&one, env, &["compare", &dirs[0], &dirs[1]]).exits(1);
    for expected in [
        "the changed paths are not known: ",
        "tree\n",
        "output verify.it/say stdout\n",
        "stable part verify.it steps[0].stdout_sha256\n",
        "different: ",
    ] {
        assert!(run.stdout.contains(expected), "{expected}: {run}");
    }
    let run = proctor_with_state_dir(&one, env, &["compare", &dirs[0], &dirs[1], "--format", "json"]).exits(1);
    let comparison: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::assert_valid("comparison", &comparison, &run);
    let repo = env.repo_at("three", &text("true"));
    repo.write("src/new.rs", "new\n");
    repo.write("README.md", "another text\n");
    repo.commit();
    let [before, after] = ["HEAD~1", "HEAD"].map(|rev| {
        let run = repo.run_with_only(&["--rev", rev, "--format", "json"]).exits(0);
        let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
        record["started"]["run_id"].as_str().expect("a run").to_owned()
    });
    let run = proctor_with_state_dir(&repo, env, &["compare", &before, &after]).exits(1);
    run.prints(&["modified README.md", "created src/new.rs"]);
    let run = proctor_with_state_dir(&repo, env, &["compare", &before, &after, "--format", "json"]).exits(1);
    let comparison: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::assert_valid("comparison", &comparison, &run);
    assert_eq!(comparison["tree"]["paths"].as_array().map(Vec::len), Some(2), "{comparison}");
    let run = proctor_with_state_dir(&one, env, &["compare", &before, &after]).exits(1);
    run.prints(&["this repository does not have the commits"]);
    // A document without the hash that its status cites proves nothing.
    let forged = two.changeset().join("verify/verify.it.json");
    crate::machine::write(&forged, "{}");
    let run = one.start_proctor(&["compare", &dirs[0], &dirs[1]]).wait();
    assert_eq!(run.code, Some(2), "{run}");
    assert!(run.stderr.contains("was changed after the run"), "{run}");
}

fn compare_refuses_unknown_runs(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for named in ["../nowhere", "no such", "./", "20260102T030405Z-1"] {
        let run = repo.proctor(&["compare", named, named]).exits(2);
        assert!(run.stderr.starts_with("error[P0001]: ") && run.stderr.contains("hint: "), "{named}: {run}");
    }
}

fn each_error_has_explained_code(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let failing: &[(&[&str], &str)] = &[
        (&["run", "--profile", "nope"], "P0147"),
        (&["run", "--profle", "x"], "P0001"),
        (&["run", "--repo", "/proc"], "P0202"),
        (&["run", "--rev", "no-such-revision", "--no-daemon"], "P0211"),
        (&["explain", "P9999"], "P0001"),
    ];
    for (words, code) in failing {
        let run = repo.proctor(words).exits(2);
        assert!(run.stderr.contains(&format!("error[{code}]: ")), "{words:?}: {run}");
        let explanation = repo.proctor(&["explain", code]).exits(0);
        assert!(explanation.stdout.starts_with(code) && explanation.stdout.contains("to do"), "{explanation}");
    }
    let run = repo.proctor(&["run", "--profile", "nope", "--format", "json"]).exits(2);
    let error: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(
        (&error["error"]["code"], &error["error"]["diagnostics"][0]["code"]),
        (&"P0201".into(), &"P0147".into())
    );
    let list = repo.proctor(&["explain", "--codes"]).exits(0);
    assert!(list.stdout.lines().count() > 100 && list.stdout.lines().all(|line| line.starts_with('P')), "{list}");
}
