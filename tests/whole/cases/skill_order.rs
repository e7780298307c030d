//! Tests which changes skills see of each other: in sequence, and ordered by `needs`.

use std::time::Duration;

use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

/// More time for a run of hundreds of steps on a busy machine.
const MANY_STEPS: Duration = Duration::from_secs(600);

pub(super) const CASES: &[CaseDefinition] = &[
    case("skill_order::in_sequence_a_later_skill_sees_ignored_output", later_skill_sees_ignored_output),
    case("skill_order::later_step_sees_the_output_of_an_earlier_one", later_step_sees_earlier_output),
    case("skill_order::independent_skills_do_not_see_each_other", independent_skills_are_isolated),
    case("skill_order::skill_beside_applied_changes_is_inconclusive", applied_changes_make_others_inconclusive),
    case("skill_order::dependent_skill_sees_the_output_of_needed_skills", dependent_skill_sees_needed_output),
    case("skill_order::file_written_by_two_needed_skills_is_a_conflict", file_of_two_needed_skills_conflicts),
    case("skill_order::directory_built_by_two_needed_skills_is_a_conflict", build_of_two_needed_skills_conflicts),
    case("skill_order::skill_is_skipped_if_a_needed_skill_failed", failed_need_skips_skill).daemon_sample(),
    case("skill_order::needs_determines_the_order_and_include_does_not", needs_determine_order),
    case("skill_order::parallel_skills_run_concurrently", parallel_skills_run_concurrently).daemon_sample(),
    case("skill_order::changes_of_parallel_skills_are_recorded_separately", parallel_changes_are_attributed),
    case("skill_order::many_steps_stack_their_layers", many_steps_stack_layers),
    case("skill_order::too_many_layers_are_refused_with_the_limit", too_many_layers_are_refused).long(),
];

fn make_file_script(path: &str) -> String {
    format!("mkdir -p target && echo made > target/{path}")
}

fn skill_with_script(name: &str, script: &str) -> TestSkill {
    TestSkill::new(name, [TestStep::sh("it", script)])
}

fn skill_outcome(repo: &crate::environment::Repo<'_>, skill: &str) -> String {
    repo.evidence(skill)["summary"]["outcome"].as_str().expect("text").to_owned()
}

fn later_skill_sees_ignored_output(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([
        skill_with_script("build", &make_file_script("out")),
        skill_with_script("test", "cat target/out"),
    ]));
    repo.run().exits(0);
    assert_eq!(repo.evidence("test")["steps"][0]["stdout_preview"], "made\n");
    assert!(!repo.file("target").exists());
}

fn later_step_sees_earlier_output(env: &TestEnvironment) {
    let delete = TestStep::sh("delete", "rm target/a; ! ls target/a 2>/dev/null");
    let steps = [
        TestStep::sh("make", &format!("{}; echo b > target/b", make_file_script("a"))),
        delete,
        TestStep::sh("look", "[ ! -e target/a ] && cat target/b"),
    ];
    let repo = env.repo(&TestSpec::from_steps(steps));
    repo.run().exits(0);
}

fn independent_skills_are_isolated(env: &TestEnvironment) {
    let look = "[ ! -e target/a ]";
    let skills = [
        skill_with_script("a", &make_file_script("a")),
        skill_with_script("b", look),
        skill_with_script("c", "true").with_field("needs: [b]"),
    ];
    let repo = env.repo(&TestSpec::new(skills));
    repo.run().exits(0);
}

/// All sandboxes use the worktree as their lower layer, so `check` would only pass if `fix` was faster.
fn applied_changes_make_others_inconclusive(env: &TestEnvironment) {
    let fix = TestSkill::new("fix", [TestStep::sh("it", "echo fixed > src/lib.rs").with_field("read_only: off")]);
    let check = skill_with_script("check", "grep -q fixed src/lib.rs || true");
    let repo =
        env.repo(&TestSpec::new([fix, check, skill_with_script("last", "true").with_field("needs: [fix, check]")]));
    let run = repo.run().exits(5);
    assert!(run.all_output().contains("skill `check` may have seen the changes that `fix` applied"), "{run}");
    assert_eq!(skill_outcome(&repo, "check"), "inconclusive");
    assert_eq!((skill_outcome(&repo, "fix"), skill_outcome(&repo, "last")), ("passed".to_owned(), "passed".to_owned()));
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn dependent_skill_sees_needed_output(env: &TestEnvironment) {
    let c = skill_with_script("c", "cat target/a target/b && [ ! -e target/d ]").with_field("needs: [a, b]");
    let repo = env.repo(&TestSpec::new([
        skill_with_script("a", &make_file_script("a")),
        skill_with_script("b", &make_file_script("b")),
        skill_with_script("d", &make_file_script("d")),
        c,
    ]));
    repo.run().exits(0);
    assert_eq!(repo.evidence("c")["steps"][0]["stdout_preview"], "made\nmade\n");
}

fn file_of_two_needed_skills_conflicts(env: &TestEnvironment) {
    let c = skill_with_script("c", "echo ran").with_field("needs: [a, b]");
    let repo = env.repo(&TestSpec::new([
        skill_with_script("a", &make_file_script("same")),
        skill_with_script("b", "mkdir -p target; echo other > target/same"),
        c,
    ]));
    let run = repo.run().exits(5);
    let text = run.all_output();
    assert!(text.contains("target/same") && text.contains("`a`") && text.contains("`b`"), "{run}");
    assert_eq!(repo.evidence("c")["steps"][0]["termination"]["kind"], "not_started");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

/// The skills write so many files that Proctor does not read them, but it still compares their names.
fn build_of_two_needed_skills_conflicts(env: &TestEnvironment) {
    let build = |dir: &str| format!("mkdir -p target/{dir}; for n in $(seq 1 400); do : > target/{dir}/$n; done");
    let skills = |two: &str| {
        let c = skill_with_script("c", "ls target/one target/two 2>/dev/null | wc -l").with_field("needs: [a, b]");
        TestSpec::new([skill_with_script("a", &build("one")), skill_with_script("b", &build(two)), c])
    };
    let run = env.repo(&skills("one")).run().exits(5);
    assert!(run.all_output().contains("`target/one/1`"), "{run}");
    let repo = env.repo_at("apart", &skills("two"));
    repo.run().exits(0);
    assert_eq!(repo.evidence("c")["steps"][0]["stdout_preview"], "803\n");
}

fn failed_need_skips_skill(env: &TestEnvironment) {
    let skills = [
        skill_with_script("a", "exit 1"),
        skill_with_script("b", "echo ran").with_field("needs: [a]"),
        skill_with_script("c", "true"),
    ];
    let repo = env.repo(&TestSpec::new(skills));
    repo.run().exits(1);
    assert_eq!((skill_outcome(&repo, "b").as_str(), skill_outcome(&repo, "c").as_str()), ("skipped", "passed"));
}

fn needs_determine_order(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([
        skill_with_script("last", "cat target/x").with_field("needs: [first]"),
        skill_with_script("first", &make_file_script("x")),
    ]));
    repo.run().exits(0);
}

/// Each skill waits until the host has seen the other's process; in sequence, the first one would wait forever.
fn parallel_skills_run_concurrently(env: &TestEnvironment) {
    use crate::machine;
    let waiting = |name: &str| {
        let script = "trap 'exit 0' USR1; sh -c 'sleep 300; :' $0-ready & wait";
        let step = TestStep::argv("it", &["sh", "-c", script, &format!("{}-{name}", env.marker())]);
        TestSkill::new(name, [step.with_field("timeout_ms: 60000")])
    };
    let spec = TestSpec::new([waiting("a"), waiting("b"), skill_with_script("c", "true").with_field("needs: [a, b]")]);
    let text = spec.to_yaml(env.marker()).replace("include: [a, b, c]", "include: [a, b, c], parallel: 2");
    let repo = env.repo(&spec);
    repo.write("spec/verification.yaml", text);
    let mut running = repo.start(&[]);
    for name in ["a", "b"] {
        running.wait_for_process(&format!("{}-{name}-ready", env.marker()));
    }
    for name in ["a", "b"] {
        let step = running.wait_for_process(&format!("{}-{name}", env.marker()));
        machine::send_signal(step, rustix::process::Signal::USR1);
    }
    env.finish(running).exits(0);
}

/// Each skill changes files that the others read. No skill sees another's changes, and each record has only its own.
fn parallel_changes_are_attributed(env: &TestEnvironment) {
    let look = "grep -q 'first line' README.md && [ -e src/lib.rs ] && [ ! -e src/a.rs ] && [ ! -e target/same ]";
    let edit = |own: &str| format!("{look} && {{ mkdir -p target; echo {own} > target/same; {own}; }}");
    let skills = [
        skill_with_script("a", &edit("echo a > README.md; echo a > src/a.rs")),
        skill_with_script("b", &edit("rm README.md; echo b > src/a.rs; chmod +x src/lib.rs")),
        skill_with_script("c", &edit("rm -r src; mkdir src; echo c > src/c.rs")),
        skill_with_script("clean", look),
        skill_with_script("last", look).with_field("needs: [clean]"),
    ];
    let spec = TestSpec::new(skills);
    let repo = env.repo(&spec);
    let include = "include: [a, b, c, clean, last]";
    repo.write(
        "spec/verification.yaml",
        spec.to_yaml(env.marker()).replace(include, &format!("{include}, parallel: 4")),
    );
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
        assert_eq!(skill_outcome(&repo, clean), "passed");
    }
    let after: std::collections::BTreeSet<String> =
        ["a", "b", "c", "clean"].map(|skill| repo.evidence(skill)["repo_snapshot_after"].to_string()).into();
    assert_eq!(after.len(), 4, "{after:?}");
}

/// Returns steps that each leave a layer and check the files of all earlier layers.
fn writing_steps(count: usize) -> impl Iterator<Item = TestStep> {
    (1..=count).map(|n| {
        let script = format!(
            "mkdir -p target && echo {n} > target/last && : > target/{n} && [ $(ls target | wc -l) = {} ]",
            n + 1
        );
        TestStep::sh(&format!("s{n}"), &script)
    })
}

fn many_steps_stack_layers(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps(writing_steps(96)));
    repo.run().exits(0);
    let steps = repo.evidence("verify.it")["steps"].as_array().expect("a list").clone();
    assert!(steps.iter().all(|step| step["drift"]["method"] == "layer" && step["outcome"] == "passed"));
}

/// The kernel stacks at most 500 directories, including the repository.
fn too_many_layers_are_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps(writing_steps(502)));
    let run = env.finish(repo.start(&[]).with_extended_timeout(MANY_STEPS)).exits(5);
    assert!(run.all_output().contains("499 layers"), "{run}");
    assert_eq!(
        (&repo.step("s500")["outcome"], &repo.step("s501")["outcome"]),
        (&"passed".into(), &"inconclusive".into())
    );
    assert_eq!(repo.step("s501")["termination"]["kind"], "not_started");
}
