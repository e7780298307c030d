//! Directories of a repository that outlive a run.

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{Case, case};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("caches::they_outlive_a_run_and_stay_out_of_the_tree", outlive),
    case("", outlive).unprivileged("caches::they_outlive_a_run_as_a_user"),
    case("caches::each_repository_has_its_own", own),
    case("caches::one_that_would_hide_part_of_the_tree_is_refused", hides_tree),
    case("caches::one_that_leads_through_a_link_is_refused", through_link),
    case("caches::one_that_is_a_link_is_refused", is_link),
    case("caches::one_that_an_earlier_skill_made_a_link_is_refused", made_link),
    case("", made_link).unprivileged("caches::one_that_an_earlier_skill_made_a_link_is_refused_as_a_user"),
];

/// Shows what an earlier run left, and leaves something.
const SCRIPT: &str =
    "cat target/deep/left 2>/dev/null || echo nothing; mkdir -p target/deep; echo left > target/deep/left";

fn spec(caches: &str) -> Spec {
    Spec::new([Skill::new("verify.it", [Step::sh("it", SCRIPT)]).with(&format!("caches: [{caches}]"))])
}

fn outlive(env: &TestEnvironment) {
    let repo = env.repo(&spec("target"));
    for expected in ["nothing\n", "left\n"] {
        repo.run().exits(0);
        assert_eq!(repo.step("it")["stdout_preview"], expected);
    }
    assert!(!repo.file("target").exists(), "a cache was written into the repository");
}

fn own(env: &TestEnvironment) {
    for name in ["one", "two"] {
        let repo = env.repo_at(name, &spec("target"));
        repo.run().exits(0);
        assert_eq!(repo.step("it")["stdout_preview"], "nothing\n", "{name}");
    }
}

fn hides_tree(env: &TestEnvironment) {
    let repo = env.repo(&spec("src"));
    let run = repo.run().exits(2);
    for named in ["`src`", "`src/lib.rs`", "`verify.it`"] {
        assert!(run.stderr.contains(named), "{run}");
    }
    assert!(repo.is_untouched());
}

fn through_link(env: &TestEnvironment) {
    let repo = env.repo(&spec("linked/deep"));
    repo.link("linked", env.home().as_path());
    repo.commit();
    let run = repo.run();
    assert_ne!(run.code, Some(0), "{run}");
    assert!(!env.home().join("deep").exists(), "a mount point was made through a link");
}

fn is_link(env: &TestEnvironment) {
    let repo = env.repo(&spec("a.log"));
    repo.link("a.log", env.home().as_path());
    demand_refused(env, &repo);
}

/// Ignored, so that the first skill passes and the second begins on its layer.
fn made_link(env: &TestEnvironment) {
    let link = Step::sh("it", &format!("ln -s {} a.log", env.home().display()));
    let cached = Skill::new("verify.it", [Step::sh("it", SCRIPT)]).with("caches: [a.log/deep]");
    let repo = env.repo(&Spec::new([Skill::new("verify.first", [link]), cached]));
    demand_refused(env, &repo);
    assert_eq!(repo.evidence("verify.first")["summary"]["outcome"], "passed");
}

fn demand_refused(env: &TestEnvironment, repo: &Repo<'_>) {
    let run = repo.run();
    assert!(matches!(run.code, Some(2 | 5)), "{run}");
    assert!(run.everything().contains("a.log"), "{run}");
    assert!(!env.home().join("deep").exists(), "a mount point was made through a link");
}
