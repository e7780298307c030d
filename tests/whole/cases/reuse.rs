//! Tests the reuse of results: a step is not executed again while everything that it read is the same.

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    reuse_case("reuse::nothing_is_executed_while_nothing_changes", unchanged_tree_executes_nothing),
    reuse_case("", unchanged_tree_executes_nothing)
        .unprivileged("reuse::nothing_is_executed_while_nothing_changes_as_a_user"),
    reuse_case("reuse::edited_file_executes_only_the_step_that_read_it", edited_file_executes_its_reader),
    reuse_case("reuse::new_file_executes_a_step_that_looked_for_it", new_file_executes_its_seeker),
    reuse_case("reuse::changed_variable_of_the_caller_executes_the_step", changed_variable_executes_step),
    reuse_case("reuse::no_cache_executes_every_step", no_cache_executes_everything),
    reuse_case("reuse::operator_disables_reuse", operator_disables_reuse),
    reuse_case("reuse::unobservable_steps_are_never_reused", unobservable_steps_are_executed),
    reuse_case("reuse::failed_step_is_never_stored", failed_step_is_not_stored),
    reuse_case("reuse::later_step_gets_the_files_of_a_cached_step", files_of_cached_step_exist),
    reuse_case("reuse::recheck_that_fails_excludes_the_step", failed_recheck_excludes_step),
    reuse_case("reuse::per_file_checks_only_changed_files_again", per_file_checks_changed_files),
    reuse_case("reuse::wrong_per_file_checks_all_files", wrong_per_file_checks_all_files),
    reuse_case("reuse::damaged_results_are_found_and_all_can_be_removed", results_are_verified_and_pruned),
];

const fn reuse_case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case(name, run).needs(&[Needs::Sandbox, Needs::Views])
}

/// A repository whose results are reused.
pub(super) struct ReuseRepo<'e> {
    env: &'e TestEnvironment,
    pub(super) repo: Repo<'e>,
}

impl<'e> ReuseRepo<'e> {
    /// Creates a repository whose skill `verify.it` has these steps and is deterministic.
    pub(super) fn new(env: &'e TestEnvironment, steps: impl IntoIterator<Item = TestStep>) -> Self {
        Self::with_spec(env, &TestSpec::new([TestSkill::new("verify.it", steps).determinism("D1")]))
    }

    fn with_spec(env: &'e TestEnvironment, spec: &TestSpec) -> Self {
        Self { env, repo: env.repo(spec) }
    }

    /// Writes the operator's settings of the reuse.
    fn configure(&self, settings: &str) {
        self.env.configure_operator(&format!("[reuse]\n{settings}\n"));
    }

    pub(super) fn pass(&self) -> FinishedProcess {
        self.repo.run().exits(0)
    }

    /// Returns the names of the steps that the last run executed.
    pub(super) fn executed(&self) -> Vec<String> {
        self.steps().iter().filter(|step| step.get("reused").is_none()).map(|step| text(&step["name"])).collect()
    }

    fn steps(&self) -> Vec<Value> {
        self.repo.evidence("verify.it")["steps"].as_array().expect("the schema says so").clone()
    }

    pub(super) fn stdout(&self, step: &str) -> String {
        text(&self.repo.step(step)["stdout_preview"])
    }

    /// Returns the answer of `proctor explain cache` for a step.
    pub(super) fn explain(&self, step: &str) -> String {
        self.proctor(&["explain", "cache", step]).exits(0).stdout
    }

    /// Runs a command that needs the state directory as an option.
    fn proctor(&self, words: &[&str]) -> FinishedProcess {
        let state = self.env.state_dir();
        self.repo.proctor(&[words, &["--state-dir", state.to_str().expect("UTF-8")]].concat())
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn print_file(step: &str, file: &str) -> TestStep {
    TestStep::sh(step, &format!("cat {file}"))
}

fn unchanged_tree_executes_nothing(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    reuse.pass();
    assert_eq!(reuse.executed(), ["one", "two"]);
    let (first, printed) = (text(&reuse.repo.last_run()["run_id"]), reuse.stdout("one"));
    let second = reuse.pass();
    assert!(second.stdout.contains("cached") && second.stdout.contains("2 steps in 1 skill, 2 cached, "), "{second}");
    assert!(second.stderr.contains("PASS verify.it (cached)"), "{second}");
    assert_eq!(reuse.executed(), [""; 0]);
    assert_eq!(reuse.repo.evidence("verify.it")["cached_from"], first.as_str());
    for step in reuse.steps() {
        assert_eq!((&step["reused"]["run_id"], &step["duration_ms"]), (&first.as_str().into(), &0.into()));
        assert!(step["reused"]["inputs"].as_u64() > Some(0) && step["outcome"] == "passed", "{step:#}");
    }
    assert_eq!(reuse.stdout("one"), printed);
    let gate = |words: &[&str]| {
        let gate = ["gate", "--profile", "pr", "--changeset", crate::environment::CHANGESET];
        reuse.repo.proctor(&[&gate[..], words].concat()).exits(0).stdout
    };
    assert!(gate(&[]).contains("2 of 2 steps cached"), "{}", gate(&[]));
    let answer: Value = serde_json::from_str(&gate(&["--format", "json"])).expect("JSON");
    assert_eq!((&answer["run"]["steps"], &answer["run"]["cached_steps"]), (&2.into(), &2.into()), "{answer:#}");
    let verbose = reuse.repo.run_with(&["--verbose"]).exits(0);
    assert!(verbose.stdout.contains(&format!("cached from run {first}, executed ")), "{verbose}");
    let logs = reuse.proctor(&["logs", &text(&reuse.repo.last_run()["run_id"]), "verify.it/one"]).exits(0);
    assert_eq!(logs.stdout, printed);
    assert!(logs.stderr.contains(&format!("note: verify.it/one is cached from run {first}\n")), "{logs}");
    let explained = reuse.explain("verify.it/one");
    assert!(explained.contains(&format!("would be cached\n  cached from run {first}, executed ")), "{explained}");
}

fn edited_file_executes_its_reader(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    reuse.pass();
    reuse.repo.write("src/lib.rs", "// edited\n");
    let explained = reuse.explain("verify.it/two");
    assert!(explained.contains("would be executed: `src/lib.rs` has other content"), "{explained}");
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("two")), (vec!["two".to_owned()], "// edited\n".to_owned()));
    // A file that no step read does not matter.
    reuse.repo.write("src/other.rs", "// new\n");
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
}

fn new_file_executes_its_seeker(env: &TestEnvironment) {
    let seek = TestStep::sh("seek", "if test -e flag; then echo yes; else echo no; fi");
    let reuse = ReuseRepo::new(env, [seek, TestStep::sh("list", "ls src")]);
    reuse.pass();
    assert_eq!((reuse.stdout("seek"), reuse.stdout("list")), ("no\n".to_owned(), "lib.rs\n".to_owned()));
    reuse.repo.write("flag", "");
    assert!(reuse.explain("verify.it/seek").contains("`flag` now exists"));
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("seek")), (vec!["seek".to_owned()], "yes\n".to_owned()));
    reuse.repo.write("src/new.rs", "");
    assert!(reuse.explain("verify.it/list").contains("`src` has other entries"));
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("list")), (vec!["list".to_owned()], "lib.rs\nnew.rs\n".to_owned()));
}

fn changed_variable_executes_step(env: &TestEnvironment) {
    let passes_on = TestStep::sh("it", "echo $PROBE").with_field("env_allowlist: [PROBE]");
    let reuse = ReuseRepo::new(env, [passes_on]);
    env.set_caller_var("PROBE", "first");
    env.set_caller_var("OTHER", "first");
    reuse.pass();
    env.set_caller_var("OTHER", "second");
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0], "the step does not get this variable");
    env.set_caller_var("PROBE", "second");
    let explained = reuse.explain("verify.it/it");
    assert!(explained.contains("no result is stored") && explained.contains("the complete environment"), "{explained}");
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("it")), (vec!["it".to_owned()], "second\n".to_owned()));
}

fn no_cache_executes_everything(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    reuse.pass();
    let second = reuse.repo.run_with(&["--no-cache"]).exits(0);
    assert_eq!(reuse.executed(), ["one", "two"]);
    assert!(!second.all_output().contains("cached"), "{second}");
    let executed_by = text(&reuse.repo.last_run()["run_id"]);
    // The results of this run are stored.
    reuse.pass();
    assert_eq!(reuse.repo.evidence("verify.it")["cached_from"], executed_by.as_str());
}

fn operator_disables_reuse(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md")]);
    reuse.pass();
    reuse.configure("enabled = false");
    reuse.pass();
    assert_eq!(reuse.executed(), ["one"]);
    let explained = reuse.explain("verify.it/one");
    assert!(explained.contains("the operator's config disables the reuse of results"), "{explained}");
}

fn unobservable_steps_are_executed(env: &TestEnvironment) {
    let print = || print_file("it", "README.md");
    let skill = |name: &str, step| TestSkill::new(name, [step]).determinism("D1");
    let skills = [
        ("verify.d2", skill("verify.d2", print()).determinism("D2"), "`determinism: D2`"),
        ("verify.net", skill("verify.net", print().with_field("network: allow")).tier(2), "`network: allow`"),
        ("verify.caches", skill("verify.caches", print()).with_field("caches: [target]"), "`caches`"),
        ("verify.off", skill("verify.off", print().with_field("read_only: off")), "`read_only: off` or `fix`"),
    ];
    let reuse = ReuseRepo::with_spec(env, &TestSpec::new(skills.iter().map(|(_, skill, _)| skill.clone())));
    for _ in 0..2 {
        reuse.repo.run_with(&["--max-tier", "2"]).exits(0);
        for (name, _, _) in &skills {
            let evidence = reuse.repo.evidence(name);
            assert!(evidence["cached_from"].is_null() && evidence["steps"][0].get("reused").is_none(), "{evidence:#}");
        }
    }
    for (name, _, rule) in &skills {
        let explained = reuse.explain(&format!("{name}/it"));
        assert!(explained.contains("would be executed: its results are not reused: "), "{explained}");
        assert!(explained.contains(rule), "{explained}");
    }
}

fn failed_step_is_not_stored(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", "grep -q fixed README.md")]);
    for _ in 0..2 {
        reuse.repo.run().exits(1);
        assert_eq!(reuse.executed(), ["it"]);
    }
    let explained = reuse.explain("verify.it/it");
    assert!(explained.contains("would be executed: no result is stored"), "{explained}");
    assert!(explained.contains("the last execution was not stored: it did not pass"), "{explained}");
    reuse.repo.write("README.md", "fixed\n");
    reuse.pass();
    assert_eq!(reuse.executed(), ["it"]);
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    assert!(!reuse.explain("verify.it/it").contains("not stored"));
}

fn files_of_cached_step_exist(env: &TestEnvironment) {
    let build = TestStep::sh("build", "mkdir target && cp src/lib.rs target/built");
    let reuse = ReuseRepo::new(env, [build, TestStep::sh("use", "cat target/built README.md")]);
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    reuse.repo.write("README.md", "edited\n");
    reuse.pass();
    let built = reuse.repo.read("src/lib.rs");
    assert_eq!((reuse.executed(), reuse.stdout("use")), (vec!["use".to_owned()], format!("{built}edited\n")));
    // Other files of the earlier step are another input of the later one.
    reuse.repo.write("src/lib.rs", "// edited\n");
    reuse.pass();
    let executed = vec!["build".to_owned(), "use".to_owned()];
    assert_eq!((reuse.executed(), reuse.stdout("use")), (executed, "// edited\nedited\n".to_owned()));
}

/// Returns a step that gets the Python files of `src`, and prints the names of those that it gets.
fn per_file_step(script: &str) -> TestStep {
    TestStep::argv("each", &["sh", "-c", &format!("{script} && basename -a \"$@\""), "sh", "{files}"])
        .with_field("files: { include: ['src/*.py'] }")
        .with_field("per_file: true")
}

fn per_file_checks_changed_files(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [per_file_step("! grep -q BAD \"$@\"")]);
    for name in ["a", "b", "c"] {
        reuse.repo.write(&format!("src/{name}.py"), "fine\n");
    }
    reuse.pass();
    assert_eq!(reuse.stdout("each"), "a.py\nb.py\nc.py\n");
    reuse.repo.write("src/b.py", "also fine\n");
    reuse.repo.write("src/d.py", "new\n");
    reuse.pass();
    assert_eq!(reuse.stdout("each"), "b.py\nd.py\n");
    let checked = &reuse.repo.step("each")["checked_files"];
    assert_eq!((&checked["count"], &checked["reused"]), (&4.into(), &2.into()), "{checked:#}");
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    // A failure of one file is a failure, and is not stored.
    reuse.repo.write("src/a.py", "BAD\n");
    reuse.repo.run().exits(1);
    reuse.repo.run().exits(1);
    reuse.repo.write("src/a.py", "fine again\n");
    reuse.pass();
    assert_eq!(reuse.stdout("each"), "a.py\n");
}

fn wrong_per_file_checks_all_files(env: &TestEnvironment) {
    // The check of each file depends on `a.py`.
    let reuse = ReuseRepo::new(env, [per_file_step("grep -q fine src/a.py")]);
    for name in ["a", "b", "c"] {
        reuse.repo.write(&format!("src/{name}.py"), "fine\n");
    }
    reuse.pass();
    reuse.repo.write("src/b.py", "fine too\n");
    reuse.pass();
    assert_eq!(reuse.stdout("each"), "a.py\nb.py\nc.py\n", "all files are checked in the same run");
    let explained = reuse.explain("verify.it/each");
    assert!(explained.contains("`per_file` is wrong: the check of other files read `src/a.py`"), "{explained}");
}

/// The niceness of a process is not observed, since no file contains it.
fn failed_recheck_excludes_step(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", "test \"$(nice)\" != 19")]);
    reuse.pass();
    reuse.configure("recheck_percent = 100");
    reuse.pass();
    assert_eq!(reuse.executed(), ["it"], "the recheck executes it");
    let words = ["run", "--profile", "pr", "--changeset", crate::environment::CHANGESET];
    let refuted = env.finish(env.start_through(reuse.repo.path(), &["nice", "-n", "19"], &words));
    assert!(refuted.all_output().contains("a stored result said that `it` passes with these inputs"), "{refuted}");
    assert_ne!(refuted.code, Some(0));
    reuse.configure("recheck_percent = 0");
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), ["it"], "it is excluded");
    assert!(
        reuse.explain("verify.it/it").contains("would be executed: it is excluded from reuse: a stored result said")
    );
    let stats = reuse.proctor(&["cache", "stats"]).exits(0);
    assert!(stats.stdout.contains("excluded from reuse: a stored result said that `it` passes"), "{stats}");
    reuse.proctor(&["cache", "prune", "--all"]).exits(0);
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
}

fn results_are_verified_and_pruned(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    reuse.pass();
    let stats = || -> Value {
        let answer = reuse.proctor(&["cache", "stats", "--format", "json"]).exits(0);
        serde_json::from_str::<Value>(&answer.stdout).expect("JSON")["stats"].clone()
    };
    assert_eq!((&stats()["steps"], &stats()["results"]), (&2.into(), &2.into()));
    reuse.proctor(&["cache", "verify"]).exits(0).prints(&["2 intact results, 0 damaged and removed"]);
    let is_result = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "result");
    let files: Vec<_> = machine::walk(&env.state_dir().join("results")).into_iter().filter(is_result).collect();
    machine::write(&files[0], "damaged");
    reuse
        .proctor(&["cache", "verify"])
        .exits(1)
        .prints(&["removed results/", "1 intact result, 1 damaged and removed"]);
    reuse.pass();
    assert_eq!(reuse.executed().len(), 1);
    reuse.proctor(&["cache", "prune"]).exits(0).prints(&["removed 0 entries"]);
    reuse.proctor(&["cache", "prune", "--all"]).exits(0).prints(&["removed 2 entries"]);
    assert_eq!(stats()["results"], 0);
    reuse.pass();
    assert_eq!(reuse.executed(), ["one", "two"]);
}
