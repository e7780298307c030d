//! Tests whether the daemon answers a request for a run with an earlier run.

use proctor_core::api::{Reuse, RunSubmission, SubmissionOutcome};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::tier::Tier;

use crate::environment::{TestEnvironment, waiting_step};
use crate::in_process_service::{InProcessService, run_submission};
use crate::machine;
use crate::needs::{CaseDefinition, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("prior_results::verified_tree_is_not_run_again", verified_tree_is_not_run_again),
    case("prior_results::edited_ignored_file_prevents_reuse", edited_ignored_file_prevents_reuse),
    case("prior_results::edited_ignored_file_prevents_joining_an_active_run", edited_ignored_file_prevents_joining),
    case(
        "prior_results::edited_ignored_file_prevents_reuse_for_a_commit",
        edited_ignored_file_prevents_reuse_for_commit,
    ),
    case("prior_results::runs_over_the_shared_worktree_are_not_reused", runs_over_shared_worktree_are_not_reused),
    case("prior_results::nondeterministic_skills_are_run_again", nondeterministic_skills_run_again),
];

/// The same request, which an earlier run can answer.
pub(super) fn with_reuse(submission: RunSubmission) -> RunSubmission {
    RunSubmission { reuse: Reuse::Verified, ..submission }
}

fn verified_tree_is_not_run_again(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep -q first README.md"));
    let served = InProcessService::open(env);
    let runs_again = |submission: RunSubmission, verdict: Verdict| {
        let submitted = served.submit(submission);
        assert_eq!(submitted.how, SubmissionOutcome::Queued);
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(verdict));
        submitted.run.id
    };
    let id = runs_again(with_reuse(run_submission(&repo)), Verdict::Passed);
    let again = served.submit(with_reuse(run_submission(&repo)));
    assert_eq!((again.how, &again.run.id), (SubmissionOutcome::Verified, &id));
    runs_again(run_submission(&repo), Verdict::Passed);
    // Another request is another run.
    runs_again(RunSubmission { max_tier: Tier::THREE, ..with_reuse(run_submission(&repo)) }, Verdict::Passed);
    repo.write("README.md", "nothing of it\n");
    runs_again(with_reuse(run_submission(&repo)), Verdict::Failed);
    // A failed run does not answer a request.
    runs_again(with_reuse(run_submission(&repo)), Verdict::Failed);
}

fn edited_ignored_file_prevents_reuse(env: &TestEnvironment) {
    let check = "grep -q good .env && grep -q good target/deep/x && test -d empty && test ! -x .env";
    let repo = env.repo(&TestSpec::from_script(check));
    repo.write(".gitignore", "target/\n.env\n");
    repo.write(".env", "good\n");
    std::fs::create_dir(repo.file("empty")).expect("made");
    repo.write("target/deep/x", "good\n");
    let served = InProcessService::open(env);
    let runs_again = |verdict: Verdict, why: &str| {
        let submitted = served.submit(with_reuse(run_submission(&repo)));
        assert_eq!(submitted.how, SubmissionOutcome::Queued, "{why}");
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(verdict), "{why}");
    };
    let is_verified = |why: &str| {
        assert_eq!(served.submit(with_reuse(run_submission(&repo))).how, SubmissionOutcome::Verified, "{why}");
    };
    runs_again(Verdict::Passed, "the first");
    is_verified("nothing since");
    repo.write("target/deep/x", "good\n");
    is_verified("the content is the same");
    for path in [".env", "target/deep/x"] {
        repo.write(path, "evil\n");
        runs_again(Verdict::Failed, path);
        repo.write(path, "good\n");
        runs_again(Verdict::Passed, path);
        is_verified(path);
    }
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(repo.file(".env"), mode).expect("a mode");
    };
    set_mode(0o755);
    runs_again(Verdict::Failed, "the file has become a program");
    set_mode(0o644);
    runs_again(Verdict::Passed, "it is none any more");
    std::fs::remove_dir(repo.file("empty")).expect("removed");
    runs_again(Verdict::Failed, "an empty directory is gone");
    std::fs::create_dir(repo.file("empty")).expect("made");
    repo.write("target/new", "new\n");
    runs_again(Verdict::Passed, "a new ignored file");
    std::fs::remove_file(repo.file(".env")).expect("removes");
    runs_again(Verdict::Failed, "one that is gone");
}

fn edited_ignored_file_prevents_joining(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    repo.write(".gitignore", ".env\n");
    repo.write(".env", "good\n");
    let served = InProcessService::open(env);
    let first = served.submit(run_submission(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    assert_eq!(served.submit(run_submission(&repo)).how, SubmissionOutcome::Joined, "nothing has changed");
    repo.write(".env", "evil\n");
    let other = served.submit(run_submission(&repo));
    assert_eq!(other.how, SubmissionOutcome::Queued, "the ignored file has changed");
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&other.run.id, step);
    machine::send_signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.wait_for_end(&other.run.id).verdict, Some(Verdict::Passed));
}

fn edited_ignored_file_prevents_reuse_for_commit(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write(".gitignore", ".env\n");
    repo.write(".env", "good\n");
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--message=all"]);
    let served = InProcessService::open(env);
    let of_commit = || with_reuse(RunSubmission { rev: Some("HEAD".into()), ..run_submission(&repo) });
    let first = served.submit(with_reuse(run_submission(&repo))).run.id;
    assert_eq!(served.wait_for_end(&first).verdict, Some(Verdict::Passed));
    let answer = served.submit(of_commit());
    assert_eq!((answer.how, &answer.run.id), (SubmissionOutcome::Verified, &first));
    repo.write(".env", "evil\n");
    let submitted = served.submit(of_commit());
    assert_eq!(submitted.how, SubmissionOutcome::Queued, "the ignored file has changed");
    assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(Verdict::Passed));
    repo.write(".env", "other\n");
    assert_eq!(served.submit(of_commit()).how, SubmissionOutcome::Verified, "a run of a commit sees no ignored file");
}

/// No record lists the ignored files that such steps saw.
fn runs_over_shared_worktree_are_not_reused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep -q good .env"));
    repo.write(".gitignore", ".env\n");
    let served = InProcessService::open_with_config(env, "[tree]\nmode = \"shared\"\n");
    for (content, verdict) in [("good\n", Verdict::Passed), ("evil\n", Verdict::Failed)] {
        repo.write(".env", content);
        let submitted = served.submit(with_reuse(run_submission(&repo)));
        assert_eq!(submitted.how, SubmissionOutcome::Queued, "{content}");
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(verdict), "{content}");
    }
}

fn nondeterministic_skills_run_again(env: &TestEnvironment) {
    let varies = TestSkill::new("verify.it", [TestStep::sh("it", "true")]).determinism("D2");
    let repo = env.repo(&TestSpec::new([varies]));
    let served = InProcessService::open(env);
    for _ in 0..2 {
        let submitted = served.submit(with_reuse(run_submission(&repo)));
        assert_eq!(submitted.how, SubmissionOutcome::Queued);
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(Verdict::Passed));
    }
}
