//! Tests `inputs`: a step sees no other file of the tree, and the record names those that it looked for.

use serde_json::{Value, json};

use crate::cases::reuse::{ReuseRepo, WITHOUT_FUSE};
use crate::environment::{CHANGESET, TestEnvironment};
use crate::needs::{CaseDefinition, Needs, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    inputs_case("inputs::step_sees_only_its_inputs", step_sees_only_its_inputs),
    inputs_case("", step_sees_only_its_inputs).unprivileged("inputs::step_sees_only_its_inputs_as_a_user"),
    inputs_case("inputs::every_step_with_inputs_is_restricted", every_step_is_restricted),
    inputs_case("inputs::file_that_is_not_an_input_does_not_execute_the_step", other_files_do_not_matter),
    inputs_case("inputs::changed_list_of_inputs_executes_the_step", changed_list_executes_the_step),
    inputs_case("inputs::ignored_files_are_no_inputs_and_mounted_paths_are_shown", mounted_paths_are_shown),
    inputs_case("inputs::written_file_with_a_withheld_name_is_judged", written_files_are_judged),
    inputs_case("inputs::removed_directory_with_withheld_files_is_refused", removed_directory_is_refused),
    inputs_case("inputs::later_step_sees_files_that_were_withheld_before", later_step_sees_all_files),
    inputs_case("inputs::file_to_check_must_be_an_input", file_to_check_must_be_an_input),
    inputs_case("inputs::program_that_is_no_input_is_explained", withheld_program_is_explained),
    case("inputs::best_effort_does_not_enforce_inputs", best_effort_enforces_nothing).needs(&[Needs::Sandbox]),
    case("inputs::without_a_view_the_record_gives_the_reason", record_gives_the_reason).needs(&[
        Needs::Sandbox,
        Needs::Root,
        Needs::Views,
        Needs::WorkingCommand(&["unshare", "--mount", "mount", "--bind", "/dev/null", "/dev/fuse"]),
    ]),
];

const fn inputs_case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case(name, run).needs(&[Needs::Sandbox, Needs::Views])
}

/// Returns a step that sees only files in `src`.
fn step(name: &str, script: &str) -> TestStep {
    TestStep::sh(name, script).with_field("inputs: ['src/**']")
}

/// Creates a repository whose only skill has these steps.
fn repo<'e>(env: &'e TestEnvironment, steps: impl IntoIterator<Item = TestStep>) -> ReuseRepo<'e> {
    let reuse = ReuseRepo::new(env, steps);
    reuse.repo.write("docs/a.md", "doc\n");
    reuse.repo.commit();
    reuse
}

fn enforcement(reuse: &ReuseRepo<'_>, step: &str) -> Value {
    reuse.repo.step(step)["input_enforcement"].clone()
}

fn enforced(withheld: &[&str]) -> Value {
    json!({ "state": "enforced", "withheld": withheld, "withheld_count": withheld.len() })
}

fn step_sees_only_its_inputs(env: &TestEnvironment) {
    let script = "test ! -e README.md && test ! -e docs/a.md && test ! -e absent; ls . src; git rev-parse --git-dir";
    let reuse = repo(env, [step("it", script)]);
    let run = reuse.pass();
    assert_eq!(reuse.stdout("it"), ".:\nsrc\n\nsrc:\nlib.rs\n.git\n");
    assert_eq!(enforcement(&reuse, "it"), enforced(&["README.md", "docs"]));
    let note = "looked for 2 paths that are not inputs: README.md, docs";
    run.prints(&[&format!("note: verify.it/it {note}")]);
    assert!(reuse.explain("verify.it/it").contains(&format!("  it {note}\n")), "{}", reuse.explain("verify.it/it"));
    for (format, expected) in [
        ("junit", format!("<property name=\"it.inputs\" value=\"{note}\"/>")),
        ("markdown", "looked for 2 paths that are not inputs".to_owned()),
        ("sarif", format!("verify.it/it {note}")),
    ] {
        let report = reuse.repo.run_with(&["--format", format]).exits(0);
        assert!(report.stdout.contains(&expected), "{format}: {report}");
        assert_eq!(reuse.executed(), [""; 0]);
        assert_eq!(enforcement(&reuse, "it"), enforced(&["README.md", "docs"]), "as in the execution");
    }
}

fn every_step_is_restricted(env: &TestEnvironment) {
    let look = "test ! -e README.md && test -f src/lib.rs";
    let retried = "if test -e README.md; then exit 0; fi; exit 1";
    let skill = |name: &str, step| TestSkill::new(name, [step]).determinism("D2");
    let skills = [
        skill("verify.d2", step("it", look)),
        skill("verify.net", step("it", look).with_field("network: allow")),
        skill("verify.off", step("it", look).with_field("read_only: off")),
        skill("verify.retried", step("it", retried).with_field("retries: 1").with_field("expect: { exit: [0] }")),
    ];
    let reuse = ReuseRepo::with_spec(env, &TestSpec::new(skills));
    reuse.repo.run_with(&["--max-tier", "3"]).exits(1);
    for skill in ["verify.d2", "verify.net", "verify.off", "verify.retried"] {
        let step = reuse.repo.evidence(skill)["steps"][0].clone();
        assert_eq!(step["input_enforcement"], enforced(&["README.md"]), "{step:#}");
        assert_eq!(step["outcome"] == "passed", skill != "verify.retried", "{step:#}");
    }
    let retried = &reuse.repo.evidence("verify.retried")["steps"][0];
    assert_eq!(retried["earlier_attempts"].as_array().map(Vec::len), Some(1), "{retried:#}");
}

fn other_files_do_not_matter(env: &TestEnvironment) {
    let reuse = repo(env, [step("it", "ls .; cat README.md 2> /dev/null; cat src/*")]);
    reuse.pass();
    reuse.repo.write("README.md", "edited\n");
    reuse.repo.write("new.md", "new\n");
    std::fs::remove_dir_all(reuse.repo.file("docs")).expect("removes");
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0], "neither a withheld file nor an entry that a listing lacks counts");
    reuse.repo.write("src/new.rs", "// new\n");
    reuse.pass();
    assert_eq!(reuse.executed(), ["it"]);
}

fn changed_list_executes_the_step(env: &TestEnvironment) {
    let spec = |globs: &str| {
        let step = TestStep::sh("it", "cat README.md || true").with_field(&format!("inputs: [{globs}]"));
        TestSpec::new([TestSkill::new("verify.it", [step]).determinism("D1")]).to_yaml(env.marker())
    };
    let reuse = ReuseRepo::new(env, [step("it", "cat README.md || true")]);
    reuse.pass();
    for globs in ["'src/**', docs", "'src/**', README.md"] {
        reuse.repo.write("spec/verification.yaml", spec(globs));
        reuse.pass();
        assert_eq!(reuse.executed(), ["it"], "{globs}");
    }
    assert_eq!(reuse.stdout("it"), reuse.repo.read("README.md"));
}

fn mounted_paths_are_shown(env: &TestEnvironment) {
    let script = "cat deps/value; ls; echo x > cache/x; test ! -e secret.env";
    let skill = TestSkill::new("verify.it", [step("it", script)]).determinism("D1");
    let skill = skill
        .with_field("needs_paths: [{ path: deps, key: [src/lib.rs] }]")
        .with_field("caches: [{ path: cache, transparent: true }]");
    let reuse = ReuseRepo::with_spec(env, &TestSpec::new([skill]));
    reuse.repo.write(".gitignore", "deps\ncache\n*.env\n");
    reuse.repo.commit();
    reuse.repo.write("deps/value", "needed\n");
    reuse.repo.write("secret.env", "ignored\n");
    env.give_to_actor(&reuse.repo.file("deps"));
    // The path is in the tree of the worktree, and is mounted for a commit.
    for (arguments, withheld) in [(&[][..], &["secret.env"][..]), (&["--rev", "HEAD"], &[])] {
        reuse.repo.run_with(arguments).exits(0);
        assert_eq!(reuse.stdout("it"), "needed\ncache\ndeps\nsrc\n", "{arguments:?}");
        assert_eq!(enforcement(&reuse, "it"), enforced(withheld));
    }
}

fn written_files_are_judged(env: &TestEnvironment) {
    let write = "echo mine > README.md; mkdir docs; echo doc > docs/a.md";
    let skills = [
        TestSkill::new("verify.tracked", [step("it", write)]).with_field("needs: []"),
        TestSkill::new("verify.off", [step("it", write).with_field("read_only: off")]).with_field("needs: []"),
    ];
    let reuse = ReuseRepo::with_spec(env, &TestSpec::new(skills));
    reuse.repo.write("docs/a.md", "doc\n");
    reuse.repo.write("docs/b.md", "other\n");
    reuse.repo.commit();
    reuse.repo.run_with(&["--max-tier", "3"]).exits(3);
    let drifted = &reuse.repo.evidence("verify.tracked")["steps"][0];
    let changes: Vec<(&Value, &Value)> = drifted["drift"]["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|change| (&change["path"], &change["kind"]))
        .collect();
    assert_eq!(changes, [(&json!("README.md"), &json!("modified"))], "docs/a.md is the same, and nothing is deleted");
    assert_eq!(reuse.repo.read("README.md"), "mine\n");
    assert_eq!(reuse.repo.changes_seen_by_git(), ["README.md"]);
}

fn removed_directory_is_refused(env: &TestEnvironment) {
    let remove = TestStep::sh("it", "rmdir docs").with_field("inputs: ['**/*.rs']").with_field("read_only: off");
    let reuse = repo(env, [remove]);
    let run = reuse.repo.run().exits(5);
    run.prints(&["removed or replaced the directory `docs`, which contains `docs/a.md`"]);
    assert_eq!(reuse.repo.read("docs/a.md"), "doc\n");
}

fn later_step_sees_all_files(env: &TestEnvironment) {
    let first = step("first", "mkdir docs; echo built > docs/built.log");
    let reuse = repo(env, [first, TestStep::sh("second", "cat docs/a.md docs/built.log README.md")]);
    reuse.repo.write(".gitignore", "*.log\n");
    reuse.repo.commit();
    for _ in 0..2 {
        reuse.pass();
        assert!(reuse.stdout("second").starts_with("doc\nbuilt\n"), "{}", reuse.stdout("second"));
    }
    assert_eq!(reuse.executed(), [""; 0]);
}

fn file_to_check_must_be_an_input(env: &TestEnvironment) {
    let check = |files: &str| {
        TestStep::argv("it", &["cat", "{files}"])
            .with_field(&format!("files: {{ include: [{files}] }}"))
            .with_field("inputs: ['src/**']")
    };
    let reuse = repo(env, [check("'**/*.md'")]);
    let run = reuse.repo.run().exits(5);
    run.prints(&["it checks `README.md`, which is not one of its `inputs`; add the file to `inputs`"]);
    let step = reuse.repo.step("it");
    assert_eq!((&step["termination"]["fault"], &step["input_enforcement"]), (&json!("not_an_input"), &Value::Null));
    let spec = TestSpec::new([TestSkill::new("verify.it", [check("'src/**'")]).determinism("D1")]);
    reuse.repo.write("spec/verification.yaml", spec.to_yaml(env.marker()));
    reuse.pass();
    assert_eq!(enforcement(&reuse, "it"), enforced(&[]));
}

fn withheld_program_is_explained(env: &TestEnvironment) {
    let reuse = repo(env, [TestStep::argv("it", &["./check.sh"]).with_field("inputs: ['src/**']")]);
    reuse.repo.write("check.sh", "#!/bin/sh\n");
    crate::machine::make_executable(&reuse.repo.file("check.sh"));
    let run = reuse.repo.run().exits(5);
    run.prints(&["its program `check.sh` is not one of its `inputs`; add it to `inputs`"]);
}

fn best_effort_enforces_nothing(env: &TestEnvironment) {
    let reuse = repo(env, [step("it", "cat README.md > /dev/null")]);
    let run = reuse.repo.run_with(&["--sandbox=best-effort"]).exits(0);
    let reason = "controls of the sandbox may be missing (`--sandbox=best-effort`)";
    assert_eq!(enforcement(&reuse, "it"), json!({ "state": "not_enforced", "reason": reason }));
    run.prints(&[&format!("note: verify.it/it saw the whole tree, not only its `inputs`: {reason}")]);
}

fn record_gives_the_reason(env: &TestEnvironment) {
    let reuse = repo(env, [step("it", "cat README.md > /dev/null")]);
    let words = ["run", "--profile", "pr", "--changeset", CHANGESET, "--no-daemon"];
    let run = env.finish(env.start_through(reuse.repo.path(), &WITHOUT_FUSE, &words)).exits(0);
    run.prints(&["note: verify.it/it saw the whole tree, not only its `inputs`: cannot mount it: "]);
    let recorded = enforcement(&reuse, "it");
    assert_eq!(recorded["state"], "not_enforced", "{recorded:#}");
    reuse.repo.run().exits(1);
    assert_eq!(enforcement(&reuse, "it"), enforced(&["README.md"]));
}
