//! Tests human-readable output: failures shown from their first error, quiet and verbose reports, logs and
//! comparisons of runs that no daemon knows, and explanations of message codes.

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{Case, case, dry_case};
use crate::process::Finished;
use crate::schemas;
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("terminal::a_long_output_is_opened_at_its_first_error", first_error),
    case("terminal::quiet_says_nothing_but_the_verdict", quiet),
    case("terminal::verbose_has_every_step", verbose),
    case("terminal::logs_are_there_without_a_daemon", logs),
    case("terminal::two_runs_of_the_same_are_the_same", same),
    case("terminal::what_differs_between_two_runs_is_named", different),
    dry_case("terminal::what_is_no_run_cannot_be_compared", no_run),
    dry_case("terminal::each_error_has_a_code_that_is_explained", codes),
];

/// Prints 8,000 lines with an error in the middle.
const NOISY: &str = "seq 1 4000; echo 'src/main.c:6:20: error: nothing is right'; seq 4001 8000; exit 2";

fn first_error(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script(NOISY));
    let run = repo.run().exits(1);
    let at = run
        .stdout
        .find("| src/main.c:6:20: error: nothing is right")
        .unwrap_or_else(|| panic!("the error is shown: {run}"));
    assert!(run.stdout[..at].contains("(… 3996 lines before the first error)"), "{run}");
    assert!(run.stdout[at..].contains("more lines)") && !run.stdout.contains("| 7000"), "{run}");
    assert!(run.stdout.lines().count() < 60, "{run}");
}

fn quiet(env: &TestEnvironment) {
    let passing = env.repo_at("passing", &Spec::of_script("echo fine"));
    let run = passing.run_with(&["--quiet"]).exits(0);
    assert_eq!((run.stderr.as_str(), run.stdout.lines().count()), ("", 1), "{run}");
    assert!(run.stdout.starts_with("passed: 1 step in 1 skill, tier "), "{run}");
    let failing = env.repo_at("failing", &Spec::of_script("echo 'error: x' >&2; false"));
    let run = failing.run_with(&["-q"]).exits(1);
    assert_eq!(run.stderr, "", "{run}");
    assert!(run.stdout.contains("| error: x") && !run.stdout.contains("skills:"), "{run}");
    assert!(run.stdout.lines().last().is_some_and(|line| line.starts_with("failed: ")), "{run}");
}

fn verbose(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo fine"));
    let run = repo.run_with(&["--verbose"]).exits(0);
    for expected in ["$ sh -c 'echo fine'", "| fine", "controls enforced", "cpu "] {
        assert!(run.stdout.contains(expected), "{expected}: {run}");
    }
}

/// Returns the id of the last run of the usual changeset.
fn last_id(repo: &Repo<'_>) -> String {
    repo.last_run()["run_id"].as_str().expect("the schema says so").to_owned()
}

/// Runs a command on recorded runs, which no daemon knows.
fn on_record(repo: &Repo<'_>, env: &TestEnvironment, words: &[&str]) -> Finished {
    let state = env.state();
    let place = ["--state-dir", state.to_str().expect("UTF-8")];
    repo.proctor(&[words, &place].concat())
}

fn logs(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("noisy", "seq 1 5000; echo wrong >&2")]));
    repo.run().exits(0);
    let id = last_id(&repo);
    let run = on_record(&repo, env, &["logs", &id, "verify.it/noisy"]).exits(0);
    assert_eq!((run.stdout.lines().count(), run.stdout.lines().last()), (5000, Some("5000")), "{run}");
    let run = on_record(&repo, env, &["logs", &id, "verify.it/noisy", "--stderr"]).exits(0);
    assert_eq!(run.stdout, "wrong\n", "{run}");
    on_record(&repo, env, &["logs", &id]).exits(0).says(&["--- verify.it/noisy stdout", "--- verify.it/noisy stderr"]);
    let run = on_record(&repo, env, &["logs", &id, "verify.it/nosy"]).exits(2);
    assert!(run.stderr.contains("did you mean `verify.it/noisy`?"), "{run}");
}

fn same(env: &TestEnvironment) {
    let skill = Skill::new("verify.it", [Step::argv("echo", &["echo", "x"])]).determinism("D0");
    let repo = env.repo(&Spec::new([skill]));
    let id = |repo: &Repo<'_>| {
        let run = repo.run_bare(&["--format", "json"]).exits(0);
        let record: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
        record["started"]["run_id"].as_str().expect("a run").to_owned()
    };
    let (before, after) = (id(&repo), id(&repo));
    let run = on_record(&repo, env, &["compare", &before, &after]).exits(0);
    assert!(run.stdout.ends_with(&format!("the same: {before} and {after}\n")), "{run}");
    let run = on_record(&repo, env, &["compare", &before, &after, "--format", "json"]).exits(0);
    let comparison: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::demand("comparison", &comparison, &run);
    assert_eq!(comparison["same"], true);
}

fn different(env: &TestEnvironment) {
    let text = |script: &str| Spec::new([Skill::new("verify.it", [Step::sh("say", script)]).determinism("D0")]);
    let (one, two) = (env.repo_at("one", &text("cat README.md")), env.repo_at("two", &text("cat README.md")));
    two.write("README.md", "another text\n");
    one.run().exits(0);
    two.run().exits(0);
    let dirs = [one.changeset(), two.changeset()].map(|dir| dir.to_str().expect("UTF-8").to_owned());
    let run = on_record(&one, env, &["compare", &dirs[0], &dirs[1]]).exits(1);
    for expected in
        ["tree\n", "output verify.it/say stdout\n", "stable part verify.it steps[0].stdout_sha256\n", "different: "]
    {
        assert!(run.stdout.contains(expected), "{expected}: {run}");
    }
    let run = on_record(&one, env, &["compare", &dirs[0], &dirs[1], "--format", "json"]).exits(1);
    let comparison: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::demand("comparison", &comparison, &run);
    // A document without the hash that its status cites proves nothing.
    let forged = two.changeset().join("verify/verify.it.json");
    crate::machine::write(&forged, "{}");
    let run = one.start_other(&["compare", &dirs[0], &dirs[1]]).wait();
    assert_eq!(run.code, Some(2), "{run}");
    assert!(run.stderr.contains("is not what the run wrote"), "{run}");
}

fn no_run(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    for named in ["../nowhere", "no such", "./", "20260102T030405Z-1"] {
        let run = repo.proctor(&["compare", named, named]).exits(2);
        assert!(run.stderr.starts_with("error[P0001]: ") && run.stderr.contains("hint: "), "{named}: {run}");
    }
}

fn codes(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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
        let said = repo.proctor(&["explain", code]).exits(0);
        assert!(said.stdout.starts_with(code) && said.stdout.contains("to do"), "{said}");
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
