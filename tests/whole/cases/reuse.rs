//! Whether the daemon answers a request for a run with an earlier run.

use proctor_core::api::{How, Reuse, RunSubmission};
use proctor_core::tier::Tier;
use proctor_core::verdict::Verdict;

use crate::environment::{TestEnvironment, waiting_step};
use crate::machine;
use crate::needs::{Case, case};
use crate::serving::{Served, asks};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("reuse::a_tree_that_is_verified_is_not_run_again", reused),
    case("reuse::an_edited_ignored_file_makes_another_run", ignored_edited),
    case("reuse::an_edited_ignored_file_makes_another_run_beside_one_under_way", ignored_edited_under_way),
    case("reuse::an_edited_ignored_file_makes_another_run_of_a_commit", ignored_edited_of_commit),
    case("reuse::steps_that_see_the_worktree_itself_run_again", shared_not_reused),
    case("reuse::what_may_vary_is_run_again", not_reused),
];

/// The same request, which an earlier run can answer.
pub(super) fn verified(asked: RunSubmission) -> RunSubmission {
    RunSubmission { reuse: Reuse::Verified, ..asked }
}

fn reused(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep -q first README.md"));
    let served = Served::open(env);
    let runs_again = |asked: RunSubmission, verdict: Verdict| {
        let submitted = served.submit(asked);
        assert_eq!(submitted.how, How::Queued);
        assert_eq!(served.end_of(&submitted.run.id).verdict, Some(verdict));
        submitted.run.id
    };
    let id = runs_again(verified(asks(&repo)), Verdict::Passed);
    let again = served.submit(verified(asks(&repo)));
    assert_eq!((again.how, &again.run.id), (How::Verified, &id));
    runs_again(asks(&repo), Verdict::Passed);
    // Another request is another run.
    runs_again(RunSubmission { max_tier: Tier::THREE, ..verified(asks(&repo)) }, Verdict::Passed);
    repo.write("README.md", "nothing of it\n");
    runs_again(verified(asks(&repo)), Verdict::Failed);
    // A failure is no answer.
    runs_again(verified(asks(&repo)), Verdict::Failed);
}

fn ignored_edited(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep -q good .env && grep -q good target/deep/x"));
    repo.write(".gitignore", "target/\n.env\n");
    repo.write(".env", "good\n");
    repo.write("target/deep/x", "good\n");
    let served = Served::open(env);
    let runs_again = |verdict: Verdict, why: &str| {
        let submitted = served.submit(verified(asks(&repo)));
        assert_eq!(submitted.how, How::Queued, "{why}");
        assert_eq!(served.end_of(&submitted.run.id).verdict, Some(verdict), "{why}");
    };
    let is_verified = |why: &str| assert_eq!(served.submit(verified(asks(&repo))).how, How::Verified, "{why}");
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
    repo.write("target/new", "new\n");
    runs_again(Verdict::Passed, "a new ignored file");
    std::fs::remove_file(repo.file(".env")).expect("removes");
    runs_again(Verdict::Failed, "one that is gone");
}

fn ignored_edited_under_way(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    repo.write(".gitignore", ".env\n");
    repo.write(".env", "good\n");
    let served = Served::open(env);
    let first = served.submit(asks(&repo)).run.id;
    let step = served.wait_for_step(&first, 0);
    assert_eq!(served.submit(asks(&repo)).how, How::Joined, "nothing has changed");
    repo.write(".env", "evil\n");
    let other = served.submit(asks(&repo));
    assert_eq!(other.how, How::Queued, "the ignored file is another one now");
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Passed));
    let step = served.wait_for_step(&other.run.id, step);
    machine::signal(step, rustix::process::Signal::USR1);
    assert_eq!(served.end_of(&other.run.id).verdict, Some(Verdict::Passed));
}

fn ignored_edited_of_commit(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.write(".gitignore", ".env\n");
    repo.write(".env", "good\n");
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--message=all"]);
    let served = Served::open(env);
    let of_commit = || verified(RunSubmission { rev: Some("HEAD".into()), ..asks(&repo) });
    let first = served.submit(verified(asks(&repo))).run.id;
    assert_eq!(served.end_of(&first).verdict, Some(Verdict::Passed));
    let met = served.submit(of_commit());
    assert_eq!((met.how, &met.run.id), (How::Verified, &first));
    repo.write(".env", "evil\n");
    let submitted = served.submit(of_commit());
    assert_eq!(submitted.how, How::Queued, "the ignored file is another one now");
    assert_eq!(served.end_of(&submitted.run.id).verdict, Some(Verdict::Passed));
    repo.write(".env", "other\n");
    assert_eq!(served.submit(of_commit()).how, How::Verified, "a run of a commit sees no ignored file");
}

/// No record says which ignored files such steps saw.
fn shared_not_reused(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep -q good .env"));
    repo.write(".gitignore", ".env\n");
    let served = Served::under(env, "[tree]\nmode = \"shared\"\n");
    for (content, verdict) in [("good\n", Verdict::Passed), ("evil\n", Verdict::Failed)] {
        repo.write(".env", content);
        let submitted = served.submit(verified(asks(&repo)));
        assert_eq!(submitted.how, How::Queued, "{content}");
        assert_eq!(served.end_of(&submitted.run.id).verdict, Some(verdict), "{content}");
    }
}

fn not_reused(env: &TestEnvironment) {
    let varies = Skill::new("verify.it", [Step::sh("it", "true")]).determinism("D2");
    let repo = env.repo(&Spec::new([varies]));
    let served = Served::open(env);
    for _ in 0..2 {
        let submitted = served.submit(verified(asks(&repo)));
        assert_eq!(submitted.how, How::Queued);
        assert_eq!(served.end_of(&submitted.run.id).verdict, Some(Verdict::Passed));
    }
}
