//! Tests which changes skills see of each other: in sequence, and ordered by `needs`.

use crate::environment::TestEnvironment;
use crate::needs::{Case, case};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("order::in_sequence_a_later_skill_sees_ignored_output", sequence_sees_output),
    case("order::a_later_step_sees_an_earlier_one", steps_share),
    case("order::independent_skills_do_not_see_each_other", independent),
    case("order::what_a_skill_applies_speaks_for_no_skill_beside_it", applied_beside),
    case("order::a_dependent_skill_sees_what_it_needs", dependent),
    case("order::what_two_needed_skills_both_touched_is_a_conflict", conflict),
    case("order::what_two_needed_skills_both_built_is_a_conflict", conflict_of_builds),
    case("order::a_skill_whose_need_failed_does_not_run", needed_failed),
    case("order::needs_decide_the_order_and_not_include", needs_before_include),
    case("order::parallel_skills_run_beside_each_other", beside_each_other),
    case("order::what_parallel_skills_change_is_told_apart", told_apart),
    case("order::many_steps_stand_on_each_other", many_steps),
    case("order::too_many_layers_are_refused_by_name", too_many_layers),
];

fn make(path: &str) -> String {
    format!("mkdir -p target && echo made > target/{path}")
}

fn skill(name: &str, script: &str) -> Skill {
    Skill::new(name, [Step::sh("it", script)])
}

fn outcome(repo: &crate::environment::Repo<'_>, skill: &str) -> String {
    repo.evidence(skill)["summary"]["outcome"].as_str().expect("text").to_owned()
}

fn sequence_sees_output(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([skill("build", &make("out")), skill("test", "cat target/out")]));
    repo.run().exits(0);
    assert_eq!(repo.evidence("test")["steps"][0]["stdout_preview"], "made\n");
    assert!(!repo.file("target").exists());
}

fn steps_share(env: &TestEnvironment) {
    let delete = Step::sh("delete", "rm target/a; ! ls target/a 2>/dev/null");
    let steps = [
        Step::sh("make", &format!("{}; echo b > target/b", make("a"))),
        delete,
        Step::sh("look", "[ ! -e target/a ] && cat target/b"),
    ];
    let repo = env.repo(&Spec::of_steps(steps));
    repo.run().exits(0);
}

fn independent(env: &TestEnvironment) {
    let look = "[ ! -e target/a ]";
    let skills = [skill("a", &make("a")), skill("b", look), skill("c", "true").with("needs: [b]")];
    let repo = env.repo(&Spec::new(skills));
    repo.run().exits(0);
}

/// All sandboxes use the worktree as their lower layer, so `check` would only pass if `fix` was faster.
fn applied_beside(env: &TestEnvironment) {
    let fix = Skill::new("fix", [Step::sh("it", "echo fixed > src/lib.rs").with("read_only: off")]);
    let check = skill("check", "grep -q fixed src/lib.rs || true");
    let repo = env.repo(&Spec::new([fix, check, skill("last", "true").with("needs: [fix, check]")]));
    let run = repo.run().exits(5);
    assert!(run.everything().contains("skill `check` may have seen what `fix` applied"), "{run}");
    assert_eq!(outcome(&repo, "check"), "inconclusive");
    assert_eq!((outcome(&repo, "fix"), outcome(&repo, "last")), ("passed".to_owned(), "passed".to_owned()));
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn dependent(env: &TestEnvironment) {
    let c = skill("c", "cat target/a target/b && [ ! -e target/d ]").with("needs: [a, b]");
    let repo = env.repo(&Spec::new([skill("a", &make("a")), skill("b", &make("b")), skill("d", &make("d")), c]));
    repo.run().exits(0);
    assert_eq!(repo.evidence("c")["steps"][0]["stdout_preview"], "made\nmade\n");
}

fn conflict(env: &TestEnvironment) {
    let c = skill("c", "echo ran").with("needs: [a, b]");
    let repo =
        env.repo(&Spec::new([skill("a", &make("same")), skill("b", "mkdir -p target; echo other > target/same"), c]));
    let run = repo.run().exits(5);
    let text = run.everything();
    assert!(text.contains("target/same") && text.contains("`a`") && text.contains("`b`"), "{run}");
    assert_eq!(repo.evidence("c")["steps"][0]["termination"]["kind"], "not_started");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

/// The skills write so many files that Proctor does not read them, but it still compares their names.
fn conflict_of_builds(env: &TestEnvironment) {
    let build = |dir: &str| format!("mkdir -p target/{dir}; for n in $(seq 1 400); do : > target/{dir}/$n; done");
    let skills = |two: &str| {
        let c = skill("c", "ls target/one target/two 2>/dev/null | wc -l").with("needs: [a, b]");
        Spec::new([skill("a", &build("one")), skill("b", &build(two)), c])
    };
    let run = env.repo(&skills("one")).run().exits(5);
    assert!(run.everything().contains("`target/one/1`"), "{run}");
    let repo = env.repo_at("apart", &skills("two"));
    repo.run().exits(0);
    assert_eq!(repo.evidence("c")["steps"][0]["stdout_preview"], "803\n");
}

fn needed_failed(env: &TestEnvironment) {
    let skills = [skill("a", "exit 1"), skill("b", "echo ran").with("needs: [a]"), skill("c", "true")];
    let repo = env.repo(&Spec::new(skills));
    repo.run().exits(1);
    assert_eq!((outcome(&repo, "b").as_str(), outcome(&repo, "c").as_str()), ("skipped", "passed"));
}

fn needs_before_include(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([skill("last", "cat target/x").with("needs: [first]"), skill("first", &make("x"))]));
    repo.run().exits(0);
}

/// Each skill waits until the host has seen the other's process; in sequence, the first one would wait forever.
fn beside_each_other(env: &TestEnvironment) {
    use crate::machine;
    let waiting = |name: &str| {
        let script = "trap 'exit 0' USR1; sh -c 'sleep 300; :' $0-ready & wait";
        let step = Step::argv("it", &["sh", "-c", script, &format!("{}-{name}", env.marker())]);
        Skill::new(name, [step.with("timeout_ms: 60000")])
    };
    let spec = Spec::new([waiting("a"), waiting("b"), skill("c", "true").with("needs: [a, b]")]);
    let text = spec.text(env.marker()).replace("include: [a, b, c]", "include: [a, b, c], parallel: 2");
    let repo = env.repo(&spec);
    repo.write("spec/verification.yaml", text);
    let mut running = repo.start(&[]);
    for name in ["a", "b"] {
        running.wait_for_process(&format!("{}-{name}-ready", env.marker()));
    }
    for name in ["a", "b"] {
        let step = running.wait_for_process(&format!("{}-{name}", env.marker()));
        machine::signal(step, rustix::process::Signal::USR1);
    }
    env.finish(running).exits(0);
}

/// Each skill changes files that the others read. No skill sees another's changes, and each record has only its own.
fn told_apart(env: &TestEnvironment) {
    let look = "grep -q 'first line' README.md && [ -e src/lib.rs ] && [ ! -e src/a.rs ] && [ ! -e target/same ]";
    let edit = |own: &str| format!("{look} && {{ mkdir -p target; echo {own} > target/same; {own}; }}");
    let skills = [
        skill("a", &edit("echo a > README.md; echo a > src/a.rs")),
        skill("b", &edit("rm README.md; echo b > src/a.rs; chmod +x src/lib.rs")),
        skill("c", &edit("rm -r src; mkdir src; echo c > src/c.rs")),
        skill("clean", look),
        skill("last", look).with("needs: [clean]"),
    ];
    let spec = Spec::new(skills);
    let repo = env.repo(&spec);
    let include = "include: [a, b, c, clean, last]";
    repo.write("spec/verification.yaml", spec.text(env.marker()).replace(include, &format!("{include}, parallel: 4")));
    repo.run().exits(3);
    let changed = |skill: &str| repo.evidence(skill)["tracked_drift"]["changed_files"].clone();
    assert_eq!(changed("a"), serde_json::json!(["README.md", "src/a.rs"]));
    assert_eq!(changed("b"), serde_json::json!(["README.md", "src/a.rs", "src/lib.rs"]));
    assert_eq!(changed("c"), serde_json::json!(["src/c.rs", "src/lib.rs"]));
    let before = repo.evidence("a")["repo_snapshot_before"].clone();
    for clean in ["clean", "last"] {
        let evidence = repo.evidence(clean);
        assert_eq!(
            (&evidence["repo_snapshot_before"], &evidence["repo_snapshot_after"]),
            (&before, &before),
            "{clean}"
        );
        assert_eq!(outcome(&repo, clean), "passed");
    }
    let after: std::collections::BTreeSet<String> =
        ["a", "b", "c", "clean"].map(|skill| repo.evidence(skill)["repo_snapshot_after"].to_string()).into();
    assert_eq!(after.len(), 4, "{after:?}");
}

/// Returns steps that each leave a layer and check the files of all earlier layers.
fn writing_steps(count: usize) -> impl Iterator<Item = Step> {
    (1..=count).map(|n| {
        let script = format!(
            "mkdir -p target && echo {n} > target/last && : > target/{n} && [ $(ls target | wc -l) = {} ]",
            n + 1
        );
        Step::sh(&format!("s{n}"), &script)
    })
}

fn many_steps(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps(writing_steps(96)));
    repo.run().exits(0);
    let steps = repo.evidence("verify.it")["steps"].as_array().expect("a list").clone();
    assert!(steps.iter().all(|step| step["drift"]["method"] == "layer" && step["outcome"] == "passed"));
}

/// The kernel stacks at most 500 directories, including the repository.
fn too_many_layers(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps(writing_steps(502)));
    let run = repo.run().exits(5);
    assert!(run.everything().contains("499 layers"), "{run}");
    assert_eq!(
        (&repo.step("s500")["outcome"], &repo.step("s501")["outcome"]),
        (&"passed".into(), &"inconclusive".into())
    );
    assert_eq!(repo.step("s501")["termination"]["kind"], "not_started");
}
