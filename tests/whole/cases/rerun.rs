//! Tests `proctor run --last-failed`: skills that had not passed run again, the others are left out, and such a
//! partial run never counts as a run of the whole profile.

use std::path::PathBuf;

use proctor_core::api::{How, ProblemType, Reuse, RunSubmission, SkillsAsked};
use proctor_core::verdict::Verdict;
use rustix::process::Signal;
use serde_json::Value;

use crate::documents;
use crate::environment::{CHANGESET, Repo, TestEnvironment, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, NEEDS_GIT, case, dry_case};
use crate::process::Finished;
use crate::serving::{Served, asks};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("rerun::red_then_mended_then_whole", red_to_green),
    case("rerun::as_an_ordinary_user", red_to_green).unprivileged("rerun::as_an_ordinary_user"),
    case("rerun::a_partial_run_takes_the_place_of_no_whole_one", no_whole_one),
    case("rerun::what_a_partial_run_left_out_stays_as_it_was", carried_on),
    case("rerun::what_it_needs_runs_with_it_and_what_is_gone_is_named", needs_and_gone),
    case("rerun::what_passed_on_another_commit_is_not_mended_here", commit_between).needs(NEEDS_GIT),
    case("rerun::what_was_interrupted_has_not_passed", interrupted),
    case("rerun::every_form_of_the_result_says_so", formats),
    dry_case("rerun::a_part_is_refused_where_the_whole_is_wanted", refused),
];

/// Cases that test a service in the test process.
pub(super) const OF_A_SERVICE: &[Case] = &[
    case("rerun::a_partial_run_answers_no_other_request", requests),
    case("rerun::which_skills_it_is_is_decided_when_it_begins", decided_late),
];

/// Returns a spec with three skills, of which `b` and `c` each need a file.
fn spec() -> Spec {
    Spec::new([
        Skill::new("a", [Step::sh("it", "true")]),
        Skill::new("b", [Step::sh("it", "test -e src/b")]),
        Skill::new("c", [Step::sh("it", "test -e src/c")]),
    ])
}

fn last_failed(repo: &Repo<'_>, more: &[&str]) -> Finished {
    repo.run_bare(&[&["--last-failed"], more].concat())
}

/// Runs with `--last-failed`, and returns the record.
#[track_caller]
fn told(repo: &Repo<'_>, code: i32) -> Value {
    let finished = last_failed(repo, &["--format", "json"]).exits(code);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"))
}

/// Returns the skills that a run executed, and those that it left out.
fn split(record: &Value) -> [Vec<String>; 2] {
    let names = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|name| name.as_str().expect("a name").to_owned()).collect()
    };
    let ran = record["skills"].as_array().expect("skills").iter().map(|skill| skill["skill"].clone()).collect();
    [names(&Value::Array(ran)), names(&record["started"]["rerun"]["left_out"])]
}

#[track_caller]
fn runs_only(repo: &Repo<'_>, code: i32, ran: &[&str], left_out: &[&str]) -> Value {
    let record = told(repo, code);
    assert_eq!(
        split(&record),
        [ran, left_out].map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    );
    record
}

fn directory(record: &Value) -> PathBuf {
    record["finished"]["evidence_dir"].as_str().expect("a directory").into()
}

/// Returns the exit code of the gate and the names of its findings.
fn gate(repo: &Repo<'_>) -> (i64, Vec<String>) {
    let finished = repo.start_other(&["gate", "--format", "json"]).wait();
    let answer: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"));
    let findings = answer["findings"].as_array().expect("findings").iter();
    let names = findings.map(|finding| finding["name"].as_str().expect("a word").to_owned()).collect();
    (answer["exit_code"].as_i64().expect("a code"), names)
}

fn red_to_green(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    repo.write("src/c", "");
    repo.run_bare(&[]).exits(1);
    assert_eq!(gate(&repo), (1, vec!["run_failed".to_owned()]));
    let red = last_failed(&repo, &[]).exits(1);
    let last = red.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("partial run failed: 1 failed of 1 step, only 1 of 3 skills, tier"), "{red}");
    repo.write("src/b", "");
    let green = runs_only(&repo, 0, &["b"], &["a", "c"]);
    let evidence: Vec<_> = green["evidence"].as_object().expect("files").keys().cloned().collect();
    assert_eq!(evidence, ["verify/_toolchain.json", "verify/b.json"]);
    assert_eq!(documents::skill(&directory(&green), "b")["left_out"], serde_json::json!(["a", "c"]));
    assert_eq!(gate(&repo), (1, vec!["run_partial".to_owned()]), "only a part of it ran on this tree");
    let whole = runs_only(&repo, 0, &["a", "b", "c"], &[]);
    assert_eq!(gate(&repo).0, 0, "nothing had failed, and so all of it ran");
    assert_ne!(green["started"]["plan_sha256"], whole["started"]["plan_sha256"]);
    let text = last_failed(&repo, &[]).exits(0);
    assert!(text.stdout.contains("nothing had failed by run") && !text.stdout.contains("partial"), "{text}");
}

fn no_whole_one(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    repo.write("src/b", "");
    repo.write("src/c", "");
    repo.run_bare(&[]).exits(0);
    std::fs::remove_file(repo.file("src/c")).expect("it is there");
    repo.run_bare(&[]).exits(1);
    repo.write("src/c", "");
    assert_eq!(gate(&repo).0, 0, "this very tree passed as a whole");
    let part = runs_only(&repo, 0, &["c"], &["a", "b"]);
    // The newest run of this tree is partial, and an older complete run does not count any more.
    assert_eq!(gate(&repo), (1, vec!["run_partial".to_owned()]));
    let status = documents::read(&directory(&part).join("05-status.json"));
    let rerun = &status["verification"]["last_run"]["rerun"];
    assert_eq!((&rerun["left_out"], &rerun["not_passed"]), (&serde_json::json!(["a", "b"]), &serde_json::json!(["c"])));
    repo.run_bare(&[]).exits(0);
    assert_eq!(gate(&repo).0, 0);
}

fn carried_on(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    repo.run_bare(&[]).exits(1);
    repo.write("src/c", "");
    runs_only(&repo, 1, &["b", "c"], &["a"]);
    runs_only(&repo, 1, &["b"], &["a", "c"]);
    // A failed skill is selected until it has passed, whatever else ran in the meantime.
    repo.write("src/b", "");
    std::fs::remove_file(repo.file("src/c")).expect("it is there");
    runs_only(&repo, 0, &["b"], &["a", "c"]);
    runs_only(&repo, 1, &["a", "b", "c"], &[]);
    runs_only(&repo, 1, &["c"], &["a", "b"]);
}

/// A hook could start such a run for a pushed branch in the meantime.
fn commit_between(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    repo.write("src/b", "");
    repo.commit();
    std::fs::remove_file(repo.file("src/b")).expect("it is there");
    repo.write("src/c", "");
    repo.run_bare(&[]).exits(1);
    repo.run_bare(&["--rev", "HEAD"]).exits(1);
    runs_only(&repo, 1, &["b", "c"], &["a"]);
    runs_only(&repo, 1, &["b"], &["a", "c"]);
}

fn needs_and_gone(env: &TestEnvironment) {
    let graph = |last: &str| {
        Spec::new([
            Skill::new("base", [Step::sh("it", "mkdir -p target && echo x > target/made")]),
            Skill::new("upon", [Step::sh("it", "test -e target/made && test -e src/good")]).with("needs: [base]"),
            Skill::new("aside", [Step::sh("it", "true")]),
            Skill::new(last, [Step::sh("it", "test -e src/good")]),
        ])
    };
    let repo = env.repo(&graph("old"));
    repo.run_bare(&[]).exits(1);
    repo.write("spec/verification.yaml", graph("new").text(env.marker()));
    repo.write("src/good", "");
    let state = env.state();
    let place = ["--state-dir", state.to_str().expect("UTF-8")];
    let planned = repo.proctor(&[&["plan", "--last-failed", "--format", "json"], &place[..]].concat()).exits(0);
    let planned: Value = serde_json::from_str(&planned.stdout).expect("a plan");
    assert_eq!(planned["left_out"], serde_json::json!(["aside"]));
    let finished = last_failed(&repo, &[]).exits(0);
    finished.says(&["partial run passed: 3 steps in 3 of 4 skills", "`aside`", "the profile has no `old` any more"]);
    repo.write("src/more", "");
    runs_only(&repo, 0, &["base", "upon", "aside", "new"], &[]);
}

fn interrupted(env: &TestEnvironment) {
    let skills = |second: Step| {
        Spec::new([
            Skill::new("a", [Step::sh("it", "true")]),
            Skill::new("b", [second]),
            Skill::new("c", [Step::sh("it", "true")]),
        ])
    };
    let repo = env.repo(&skills(waiting_step(env, "it")));
    let mut running = repo.start_other(&["run"]);
    wait_for_step(env, &mut running);
    running.signal(Signal::INT);
    env.finish(running).exits(130);
    repo.write("spec/verification.yaml", skills(Step::sh("it", "true")).text(env.marker()));
    runs_only(&repo, 0, &["b", "c"], &["a"]);
}

fn formats(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    repo.write("src/c", "");
    repo.run_bare(&[]).exits(1);
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
        repo.run_bare(&[]).exits(1);
        repo.write("src/b", "");
        last_failed(&repo, &["--format", format]).exits(0).says(&[words]);
    }
    last_failed(&repo, &["--quiet"]).exits(0);
}

fn refused(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    let none = last_failed(&repo, &[]).exits(2);
    none.complains(&["error[P0220]", "no run of the profile `pr`", "hint: run the whole profile once"]);
    let changeset = last_failed(&repo, &["--changeset", CHANGESET]).exits(2);
    changeset.complains(&["error[P0221]", "not evidence for the changeset"]);
    assert!(repo.is_untouched());
    for rev in ["HEAD", "HEAD..HEAD"] {
        last_failed(&repo, &["--rev", rev]).exits(2).complains(&["error[P0222]"]);
    }
}

fn not_passed(asked: RunSubmission) -> RunSubmission {
    RunSubmission { skills: SkillsAsked::NotPassed, ..asked }
}

fn verified(asked: RunSubmission) -> RunSubmission {
    RunSubmission { reuse: Reuse::Verified, ..asked }
}

fn requests(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([
        Skill::new("a", [Step::sh("it", "true")]),
        Skill::new("b", [Step::sh("fast", "test -e src/good"), waiting_step(env, "it")]),
    ]));
    let served = Served::open(env);
    let problem = served.try_submit(not_passed(asks(&repo)), None).expect_err("nothing is recorded");
    assert_eq!((problem.kind, problem.code().to_string()), (ProblemType::Unprocessable, "P0220".to_owned()));
    let first = served.submit(asks(&repo)).run.id;
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Failed));
    repo.write("src/good", "");
    for (asked, code) in [
        (crate::serving::asks_for_changeset(&repo), "P0221"),
        (RunSubmission { rev: Some("HEAD".into()), ..asks(&repo) }, "P0222"),
    ] {
        let problem = served.try_submit(not_passed(asked), None).expect_err("refused");
        assert_eq!(problem.code().to_string(), code);
    }
    let part = served.submit(not_passed(asks(&repo))).run.id;
    let step = served.wait_for_step(&part, 0);
    let same = served.submit(verified(not_passed(asks(&repo))));
    assert_eq!((same.how, &same.run.id), (How::Joined, &part));
    let whole = served.submit(verified(asks(&repo)));
    assert_eq!(whole.how, How::Queued, "who wants the whole does not join a part of it");
    machine::signal(step, Signal::USR1);
    let run = served.end_of(&part);
    assert_eq!((run.verdict, run.steps.len()), (Some(Verdict::Passed), 2));
    assert_eq!(run.reason, "all 2 steps passed; 1 skill of the profile left out");
    let step = served.wait_for_step(&whole.run.id, step);
    machine::signal(step, Signal::USR2);
    assert_eq!(served.end_of(&whole.run.id).verdict, Some(Verdict::Failed));
    let part = served.submit(verified(not_passed(asks(&repo))));
    assert_eq!(part.how, How::Queued);
    let step = served.wait_for_step(&part.run.id, step);
    machine::signal(step, Signal::USR1);
    assert_eq!(served.end_of(&part.run.id).verdict, Some(Verdict::Passed));
    let again = served.submit(verified(asks(&repo)));
    assert_eq!(again.how, How::Queued, "the pass of a part is no answer");
    let step = served.wait_for_step(&again.run.id, step);
    machine::signal(step, Signal::USR1);
    assert_eq!(served.end_of(&again.run.id).verdict, Some(Verdict::Passed));
    assert_eq!(served.submit(verified(asks(&repo))).how, How::Verified);
}

fn decided_late(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([
        Skill::new("a", [Step::sh("it", "test -e src/good")]),
        Skill::new("b", [waiting_step(env, "it")]),
    ]));
    let served = Served::under(env, "[daemon]\nmax_runs = 1\n");
    let first = served.submit(asks(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    machine::signal(step, Signal::USR1);
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Failed));
    // A complete run is active. A `--last-failed` run waits behind it, which at this point would select `a`.
    let second = served.submit(asks(&repo)).run.id;
    let step = served.wait_for_step(&second, step);
    let part = served.submit(not_passed(asks(&repo))).run.id;
    machine::signal(step, Signal::USR2);
    assert_eq!(served.end_of(&second).verdict, Some(Verdict::Failed));
    // In the meantime `b` has failed.
    let step = served.wait_for_step(&part, step);
    machine::signal(step, Signal::USR1);
    let run = served.end_of(&part);
    assert_eq!((run.steps.len(), run.verdict), (2, Some(Verdict::Failed)));
    assert_eq!(run.rerun.map(|rerun| rerun.after), Some(second));
}
