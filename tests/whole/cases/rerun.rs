//! Tests `proctor run --last-failed`: skills that had not passed run again, the others are left out, and such a
//! partial run never counts as a run of the whole profile.

use std::path::PathBuf;

use proctor_core::api::{ProblemType, Reuse, RunSubmission, SkillFilter, SubmissionOutcome};
use proctor_core::decision::verdict::Verdict;
use rustix::process::Signal;
use serde_json::Value;

use crate::documents;
use crate::environment::{CHANGESET, Repo, TestEnvironment, wait_for_step, waiting_step};
use crate::in_process_service::{InProcessService, run_submission};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_GIT, case, dry_case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("rerun::fixed_skill_passes_in_a_partial_and_a_full_run", fixed_skill_passes_in_partial_and_full_run)
        .daemon_sample(),
    case("rerun::as_an_ordinary_user", fixed_skill_passes_in_partial_and_full_run)
        .unprivileged("rerun::as_an_ordinary_user"),
    case("rerun::partial_run_does_not_replace_a_full_run", partial_run_replaces_no_full_run).daemon_sample(),
    case("rerun::left_out_skills_keep_their_state", left_out_skills_keep_their_state).daemon_sample(),
    case("rerun::needed_skills_run_and_removed_skills_are_reported", needed_skills_run_and_removed_are_reported),
    case("rerun::pass_on_another_commit_does_not_count", pass_on_other_commit_does_not_count).needs(NEEDS_GIT),
    case("rerun::interrupted_skills_have_not_passed", interrupted_skills_have_not_passed).daemon_sample(),
    case("rerun::every_format_reports_a_partial_run", every_format_reports_partial_run).daemon_sample(),
    dry_case("rerun::partial_run_is_refused_if_a_full_run_is_needed", partial_run_is_refused_if_full_run_is_needed)
        .daemon_sample(),
];

/// Cases that test a service in the test process.
pub(super) const SERVICE_CASES: &[CaseDefinition] = &[
    case("rerun::partial_run_answers_no_request_for_a_full_run", partial_run_answers_no_other_request),
    case("rerun::skills_are_selected_when_the_run_starts", skills_are_selected_at_start),
];

/// Returns a spec with three skills, of which `b` and `c` each need a file.
fn spec_with_three_skills() -> TestSpec {
    TestSpec::new([
        TestSkill::new("a", [TestStep::sh("it", "true")]),
        TestSkill::new("b", [TestStep::sh("it", "test -e src/b")]),
        TestSkill::new("c", [TestStep::sh("it", "test -e src/c")]),
    ])
}

fn run_last_failed(repo: &Repo<'_>, more: &[&str]) -> FinishedProcess {
    repo.run_with_only(&[&["--last-failed"], more].concat())
}

/// Runs with `--last-failed`, and returns the record.
#[track_caller]
fn last_failed_record(repo: &Repo<'_>, code: i32) -> Value {
    let finished = run_last_failed(repo, &["--format", "json"]).exits(code);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"))
}

/// Returns the skills that a run executed, and those that it left out.
fn executed_and_left_out(record: &Value) -> [Vec<String>; 2] {
    let names = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|name| name.as_str().expect("a name").to_owned()).collect()
    };
    let ran = record["skills"].as_array().expect("skills").iter().map(|skill| skill["skill"].clone()).collect();
    [names(&Value::Array(ran)), names(&record["started"]["rerun"]["left_out"])]
}

#[track_caller]
fn assert_runs_only(repo: &Repo<'_>, code: i32, ran: &[&str], left_out: &[&str]) -> Value {
    let record = last_failed_record(repo, code);
    assert_eq!(
        executed_and_left_out(&record),
        [ran, left_out].map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    );
    record
}

fn evidence_dir(record: &Value) -> PathBuf {
    record["finished"]["evidence_dir"].as_str().expect("a directory").into()
}

/// Returns the exit code of the gate and the names of its findings.
fn gate_result(repo: &Repo<'_>) -> (i64, Vec<String>) {
    let finished = repo.start_proctor(&["gate", "--format", "json"]).wait();
    let answer: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"));
    let findings = answer["findings"].as_array().expect("findings").iter();
    let names = findings.map(|finding| finding["name"].as_str().expect("a word").to_owned()).collect();
    (answer["exit_code"].as_i64().expect("a code"), names)
}

fn fixed_skill_passes_in_partial_and_full_run(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_three_skills());
    repo.write("src/c", "");
    repo.run_with_only(&[]).exits(1);
    assert_eq!(gate_result(&repo), (1, vec!["run_failed".to_owned()]));
    let red = run_last_failed(&repo, &[]).exits(1);
    let last = red.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("partial run failed: 1 failed of 1 step, only 1 of 3 skills, tier"), "{red}");
    repo.write("src/b", "");
    let green = assert_runs_only(&repo, 0, &["b"], &["a", "c"]);
    let evidence: Vec<_> = green["evidence"].as_object().expect("files").keys().cloned().collect();
    assert_eq!(evidence, ["verify/_toolchain.json", "verify/b.json"]);
    assert_eq!(documents::read_skill_evidence(&evidence_dir(&green), "b")["left_out"], serde_json::json!(["a", "c"]));
    assert_eq!(gate_result(&repo), (1, vec!["run_partial".to_owned()]), "only a part of it ran on this tree");
    let whole = assert_runs_only(&repo, 0, &["a", "b", "c"], &[]);
    assert_eq!(gate_result(&repo).0, 0, "nothing had failed, and so all of it ran");
    assert_ne!(green["started"]["plan_sha256"], whole["started"]["plan_sha256"]);
    let text = run_last_failed(&repo, &[]).exits(0);
    assert!(text.stdout.contains("nothing had failed by run") && !text.stdout.contains("partial"), "{text}");
}

fn partial_run_replaces_no_full_run(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_three_skills());
    repo.write("src/b", "");
    repo.write("src/c", "");
    repo.run_with_only(&[]).exits(0);
    std::fs::remove_file(repo.file("src/c")).expect("it is there");
    repo.run_with_only(&[]).exits(1);
    repo.write("src/c", "");
    assert_eq!(gate_result(&repo).0, 0, "this very tree passed as a whole");
    let part = assert_runs_only(&repo, 0, &["c"], &["a", "b"]);
    // The newest run of this tree is partial, and an older complete run does not count any more.
    assert_eq!(gate_result(&repo), (1, vec!["run_partial".to_owned()]));
    let status = documents::read_json(&evidence_dir(&part).join("05-status.json"));
    let rerun = &status["verification"]["last_run"]["rerun"];
    assert_eq!((&rerun["left_out"], &rerun["not_passed"]), (&serde_json::json!(["a", "b"]), &serde_json::json!(["c"])));
    repo.run_with_only(&[]).exits(0);
    assert_eq!(gate_result(&repo).0, 0);
}

fn left_out_skills_keep_their_state(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_three_skills());
    repo.run_with_only(&[]).exits(1);
    repo.write("src/c", "");
    assert_runs_only(&repo, 1, &["b", "c"], &["a"]);
    assert_runs_only(&repo, 1, &["b"], &["a", "c"]);
    // A failed skill is selected until it has passed, even if other skills ran in the meantime.
    repo.write("src/b", "");
    std::fs::remove_file(repo.file("src/c")).expect("it is there");
    assert_runs_only(&repo, 0, &["b"], &["a", "c"]);
    assert_runs_only(&repo, 1, &["a", "b", "c"], &[]);
    assert_runs_only(&repo, 1, &["c"], &["a", "b"]);
}

/// A hook could start such a run for a pushed branch in the meantime.
fn pass_on_other_commit_does_not_count(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_three_skills());
    repo.write("src/b", "");
    repo.commit();
    std::fs::remove_file(repo.file("src/b")).expect("it is there");
    repo.write("src/c", "");
    repo.run_with_only(&[]).exits(1);
    repo.run_with_only(&["--rev", "HEAD"]).exits(1);
    assert_runs_only(&repo, 1, &["b", "c"], &["a"]);
    assert_runs_only(&repo, 1, &["b"], &["a", "c"]);
}

fn needed_skills_run_and_removed_are_reported(env: &TestEnvironment) {
    let graph = |last: &str| {
        TestSpec::new([
            TestSkill::new("base", [TestStep::sh("it", "mkdir -p target && echo x > target/made")]),
            TestSkill::new("upon", [TestStep::sh("it", "test -e target/made && test -e src/good")])
                .with_field("needs: [base]"),
            TestSkill::new("aside", [TestStep::sh("it", "true")]),
            TestSkill::new(last, [TestStep::sh("it", "test -e src/good")]),
        ])
    };
    let repo = env.repo(&graph("old"));
    repo.run_with_only(&[]).exits(1);
    repo.write("spec/verification.yaml", graph("new").to_yaml(env.marker()));
    repo.write("src/good", "");
    let state = env.state_dir();
    let state_option = ["--state-dir", state.to_str().expect("UTF-8")];
    let planned = repo.proctor(&[&["plan", "--last-failed", "--format", "json"], &state_option[..]].concat()).exits(0);
    let planned: Value = serde_json::from_str(&planned.stdout).expect("a plan");
    assert_eq!(planned["left_out"], serde_json::json!(["aside"]));
    let finished = run_last_failed(&repo, &[]).exits(0);
    finished.prints(&[
        "partial run passed: 3 steps in 3 of 4 skills",
        "`aside`",
        "the profile no longer contains `old`",
    ]);
    repo.write("src/more", "");
    assert_runs_only(&repo, 0, &["base", "upon", "aside", "new"], &[]);
}

fn interrupted_skills_have_not_passed(env: &TestEnvironment) {
    let skills = |second: TestStep| {
        TestSpec::new([
            TestSkill::new("a", [TestStep::sh("it", "true")]),
            TestSkill::new("b", [second]),
            TestSkill::new("c", [TestStep::sh("it", "true")]),
        ])
    };
    let repo = env.repo(&skills(waiting_step(env, "it")));
    let mut running = repo.start_proctor(&["run"]);
    wait_for_step(env, &mut running);
    running.signal(Signal::INT);
    env.finish(running).exits(130);
    repo.write("spec/verification.yaml", skills(TestStep::sh("it", "true")).to_yaml(env.marker()));
    assert_runs_only(&repo, 0, &["b", "c"], &["a"]);
}

fn every_format_reports_partial_run(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_three_skills());
    repo.write("src/c", "");
    repo.run_with_only(&[]).exits(1);
    repo.write("src/b", "");
    let says = [
        ("junit", "name=\"left_out\" value=\"a c\""),
        ("sarif", "\"leftOut\":[\"a\",\"c\"]"),
        ("github", "proctor: partial run passed"),
        ("markdown", "Proctor: partial run passed"),
        ("html", "only 1 of 3 skills ran"),
        ("jsonl", "\"left_out\":[\"a\",\"c\"]"),
    ];
    for (format, words) in says {
        // The skill fails again, so that there is something to run.
        std::fs::remove_file(repo.file("src/b")).expect("it is there");
        repo.run_with_only(&[]).exits(1);
        repo.write("src/b", "");
        run_last_failed(&repo, &["--format", format]).exits(0).prints(&[words]);
    }
    run_last_failed(&repo, &["--quiet"]).exits(0);
}

fn partial_run_is_refused_if_full_run_is_needed(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_three_skills());
    let none = run_last_failed(&repo, &[]).exits(2);
    none.prints_to_stderr(&["error[P0220]", "no run of the profile `pr`", "hint: run the whole profile once"]);
    let changeset = run_last_failed(&repo, &["--changeset", CHANGESET]).exits(2);
    changeset.prints_to_stderr(&["error[P0221]", "not evidence for the changeset"]);
    assert!(repo.has_no_documents());
    for rev in ["HEAD", "HEAD..HEAD"] {
        run_last_failed(&repo, &["--rev", rev]).exits(2).prints_to_stderr(&["error[P0222]"]);
    }
}

fn with_not_passed_skills(submission: RunSubmission) -> RunSubmission {
    RunSubmission { skills: SkillFilter::NotPassed, ..submission }
}

fn with_reuse(submission: RunSubmission) -> RunSubmission {
    RunSubmission { reuse: Reuse::Verified, ..submission }
}

fn partial_run_answers_no_other_request(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("a", [TestStep::sh("it", "true")]),
        TestSkill::new("b", [TestStep::sh("fast", "test -e src/good"), waiting_step(env, "it")]),
    ]));
    let served = InProcessService::open(env);
    let problem =
        served.try_submit(with_not_passed_skills(run_submission(&repo)), None).expect_err("nothing is recorded");
    assert_eq!((problem.kind, problem.code().to_string()), (ProblemType::Unprocessable, "P0220".to_owned()));
    let first = served.submit(run_submission(&repo)).run.id;
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Failed));
    repo.write("src/good", "");
    for (submission, code) in [
        (crate::in_process_service::changeset_submission(&repo), "P0221"),
        (RunSubmission { rev: Some("HEAD".into()), ..run_submission(&repo) }, "P0222"),
    ] {
        let problem = served.try_submit(with_not_passed_skills(submission), None).expect_err("refused");
        assert_eq!(problem.code().to_string(), code);
    }
    let part = served.submit(with_not_passed_skills(run_submission(&repo))).run.id;
    let step = served.wait_for_step(&part, 0);
    let same = served.submit(with_reuse(with_not_passed_skills(run_submission(&repo))));
    assert_eq!((same.how, &same.run.id), (SubmissionOutcome::Joined, &part));
    let whole = served.submit(with_reuse(run_submission(&repo)));
    assert_eq!(whole.how, SubmissionOutcome::Queued, "who wants the whole does not join a part of it");
    machine::send_signal(step, Signal::USR1);
    let run = served.wait_for_end(&part);
    assert_eq!((run.verdict, run.steps.len()), (Some(Verdict::Passed), 2));
    assert_eq!(run.reason, "all 2 steps passed; 1 skill of the profile skipped");
    let step = served.wait_for_step(&whole.run.id, step);
    machine::send_signal(step, Signal::USR2);
    assert_eq!(served.wait_for_end(&whole.run.id).verdict, Some(Verdict::Failed));
    let part = served.submit(with_reuse(with_not_passed_skills(run_submission(&repo))));
    assert_eq!(part.how, SubmissionOutcome::Queued);
    let step = served.wait_for_step(&part.run.id, step);
    machine::send_signal(step, Signal::USR1);
    assert_eq!(served.wait_for_end(&part.run.id).verdict, Some(Verdict::Passed));
    let again = served.submit(with_reuse(run_submission(&repo)));
    assert_eq!(again.how, SubmissionOutcome::Queued, "the pass of a part is no answer");
    let step = served.wait_for_step(&again.run.id, step);
    machine::send_signal(step, Signal::USR1);
    assert_eq!(served.wait_for_end(&again.run.id).verdict, Some(Verdict::Passed));
    assert_eq!(served.submit(with_reuse(run_submission(&repo))).how, SubmissionOutcome::Verified);
}

fn skills_are_selected_at_start(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("a", [TestStep::sh("it", "test -e src/good")]),
        TestSkill::new("b", [waiting_step(env, "it")]),
    ]));
    let served = InProcessService::open_with_config(env, "[daemon]\nmax_runs = 1\n");
    let first = served.submit(run_submission(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    machine::send_signal(step, Signal::USR1);
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Failed));
    // A complete run is active. A `--last-failed` run waits behind it, which at this point would select `a`.
    let second = served.submit(run_submission(&repo)).run.id;
    let step = served.wait_for_step(&second, step);
    let part = served.submit(with_not_passed_skills(run_submission(&repo))).run.id;
    machine::send_signal(step, Signal::USR2);
    assert_eq!(served.wait_for_end(&second).verdict, Some(Verdict::Failed));
    // In the meantime `b` has failed.
    let step = served.wait_for_step(&part, step);
    machine::send_signal(step, Signal::USR1);
    let run = served.wait_for_end(&part);
    assert_eq!((run.steps.len(), run.verdict), (2, Some(Verdict::Failed)));
    assert_eq!(run.rerun.map(|rerun| rerun.after), Some(second));
}
