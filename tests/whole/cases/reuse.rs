//! Tests the reuse of results: a step is not executed again while everything that it read is the same.

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment, fail_step, wait_for_step, waiting_command};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    reuse_case("reuse::nothing_is_executed_while_nothing_changes", unchanged_tree_executes_nothing),
    reuse_case("", unchanged_tree_executes_nothing)
        .unprivileged("reuse::nothing_is_executed_while_nothing_changes_as_a_user"),
    reuse_case("reuse::earlier_pass_is_withdrawn_before_a_command", earlier_pass_is_withdrawn_before_a_command),
    reuse_case("reuse::edited_file_executes_only_the_step_that_read_it", edited_file_executes_its_reader),
    reuse_case("reuse::new_file_executes_a_step_that_looked_for_it", new_file_executes_its_seeker),
    reuse_case("reuse::changed_variable_of_the_caller_executes_the_step", changed_variable_executes_step),
    reuse_case("reuse::no_cache_executes_every_step", no_cache_executes_everything),
    reuse_case("reuse::operator_disables_reuse", operator_disables_reuse),
    case("reuse::without_a_view_steps_are_executed_and_the_record_says_so", executes_steps_without_view).needs(&[
        Needs::Sandbox,
        Needs::Root,
        Needs::Views,
        Needs::WorkingCommand(&["unshare", "--mount", "mount", "--bind", "/dev/null", "/dev/fuse"]),
    ]),
    reuse_case("reuse::unobservable_steps_are_never_reused", unobservable_steps_are_executed),
    reuse_case("reuse::failed_step_is_never_stored", failed_step_is_not_stored),
    reuse_case("reuse::later_step_gets_the_files_of_a_cached_step", files_of_cached_step_exist),
    reuse_case("reuse::recheck_that_fails_excludes_the_step", failed_recheck_excludes_step),
    reuse_case("reuse::per_file_checks_only_changed_files_again", per_file_checks_changed_files),
    reuse_case("reuse::wrong_per_file_checks_all_files", wrong_per_file_checks_all_files),
    reuse_case("reuse::content_of_a_needed_path_is_an_input", content_of_needed_path_is_input),
    reuse_case("", content_of_needed_path_is_input)
        .unprivileged("reuse::content_of_a_needed_path_is_an_input_as_a_user"),
    reuse_case("reuse::step_that_changes_a_needed_path_is_not_stored", changed_needed_path_is_not_stored),
    reuse_case("reuse::path_is_not_prepared_for_an_explanation", explanation_prepares_nothing),
    reuse_case("reuse::transparent_cache_allows_reuse", transparent_cache_allows_reuse),
    reuse_case("", transparent_cache_allows_reuse).unprivileged("reuse::transparent_cache_allows_reuse_as_a_user"),
    reuse_case("reuse::recheck_sees_empty_caches", recheck_sees_empty_caches),
    reuse_case("reuse::recheck_that_takes_too_long_is_repeated_with_the_caches", slow_recheck_is_repeated),
    reuse_case("reuse::source_of_a_derived_file_is_an_input", source_of_derived_file_is_input),
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

    pub(super) fn with_spec(env: &'e TestEnvironment, spec: &TestSpec) -> Self {
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
    pub(super) fn proctor(&self, words: &[&str]) -> FinishedProcess {
        let state = self.env.state_dir();
        self.repo.proctor(&[words, &["--state-dir", state.to_str().expect("UTF-8")]].concat())
    }
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

pub(super) fn print_file(step: &str, file: &str) -> TestStep {
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
    // The age of the run is that of the executions, which are older than the run.
    let oldest = reuse.steps().iter().map(|step| text(&step["reused"]["executed_at"])).min();
    assert_eq!(answer["run"]["oldest_execution"], oldest.expect("two steps").as_str(), "{answer:#}");
    let ages = ["age_ms", "oldest_execution_age_ms"].map(|age| answer["run"][age].as_u64().expect("in the past"));
    assert!(ages[0] < ages[1], "{answer:#}");
    let verbose = reuse.repo.run_with(&["--verbose"]).exits(0);
    assert!(verbose.stdout.contains(&format!("cached from run {first}, executed ")), "{verbose}");
    let logs = reuse.proctor(&["logs", &text(&reuse.repo.last_run()["run_id"]), "verify.it/one"]).exits(0);
    assert_eq!(logs.stdout, printed);
    assert!(logs.stderr.contains(&format!("note: verify.it/one is cached from run {first}\n")), "{logs}");
    let explained = reuse.explain("verify.it/one");
    assert!(explained.contains(&format!("would be cached\n  cached from run {first}, executed ")), "{explained}");
}

fn earlier_pass_is_withdrawn_before_a_command(env: &TestEnvironment) {
    let [shell, option, script, marker] = waiting_command(env);
    let script = format!("test -e switch || exit 0; {script}");
    let reuse = ReuseRepo::new(env, [TestStep::argv("it", &[&shell, &option, &script, &marker])]);
    reuse.repo.write(".gitignore", "switch\n");
    reuse.pass();
    reuse.pass();
    assert_eq!((reuse.executed(), &reuse.repo.last_run()["outcome"]), (vec![], &"passed".into()));
    // The ignored file is an input of the step, but not a part of the tree that has passed.
    reuse.repo.write("switch", "");
    let mut running = reuse.repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    assert_eq!(reuse.repo.last_run()["outcome"], "inconclusive", "a kill now must not leave the pass");
    fail_step(&step);
    env.finish(running).exits(1);
}

fn edited_file_executes_its_reader(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    reuse.pass();
    reuse.repo.write("src/lib.rs", "// edited\n");
    let explained = reuse.explain("verify.it/two");
    assert!(explained.contains("would be executed: `src/lib.rs` has different content"), "{explained}");
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

/// Replaces the device of views for one command.
pub(super) const WITHOUT_FUSE: [&str; 5] =
    ["unshare", "--mount", "sh", "-c", "mount --bind /dev/null /dev/fuse && exec \"$0\" \"$@\""];

fn executes_steps_without_view(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md")]);
    reuse.pass();
    reuse.pass();
    let mode = || {
        let recorded = &reuse.repo.last_run()["reuse"];
        (text(&recorded["mode"]), recorded["cached_steps"].as_u64())
    };
    assert_eq!(mode(), ("observed".to_owned(), Some(1)));
    let hidden = |words: &[&str]| env.finish(env.start_through(reuse.repo.path(), &WITHOUT_FUSE, words)).exits(0);
    let words = ["run", "--profile", "pr", "--changeset", crate::environment::CHANGESET, "--verbose", "--no-daemon"];
    reuse.repo.write("README.md", "edited\n");
    let run = hidden(&words);
    assert!(run.stdout.contains("reuse: whole_tree; the inputs of steps cannot be observed: "), "{run}");
    assert_eq!((mode(), reuse.executed()), (("whole_tree".to_owned(), Some(0)), vec!["one".to_owned()]));
    let doctor = hidden(&["doctor"]).stdout;
    assert!(doctor.lines().any(|line| line.starts_with("reuse ") && line.contains(" whole_tree; ")), "{doctor}");
    let state = env.state_dir();
    let explained = hidden(&["explain", "cache", "--state-dir", state.to_str().expect("UTF-8")]).stdout;
    assert!(explained.starts_with("reuse: whole_tree; "), "{explained}");
    assert!(explained.contains("the last execution was not stored: its inputs were not observed: "), "{explained}");
    reuse.repo.run_with(&["--no-cache"]).exits(0);
    assert_eq!(mode(), ("off".to_owned(), Some(0)));
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
        (
            "verify.caches",
            skill("verify.caches", print()).with_field("caches: [{ path: out, transparent: true }, target]"),
            "write `{ path: target, transparent: true }` in `caches`",
        ),
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
    // Different files of the earlier step are a changed input of the later step.
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
    assert!(checked["reused_executed_at"].as_str() < reuse.repo.last_run()["timestamp"].as_str(), "{checked:#}");
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    // A failure of one file fails the step, and is not stored.
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
    let wrong = "`per_file` is wrong: the check of `src/b.py` read `src/a.py`";
    let noticed = reuse.pass();
    assert_eq!(reuse.stdout("each"), "a.py\nb.py\nc.py\n", "all files are checked in the same run");
    assert!(noticed.all_output().contains(wrong), "{noticed}");
    // From now on, the step is reused like a step without `per_file`.
    let cached = reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    assert!(cached.all_output().contains(wrong), "{cached}");
    let dependence = &reuse.repo.step("each")["checked_files"]["dependence"];
    assert_eq!((&dependence["checked"], &dependence["read"]), (&["src/b.py"][..].into(), &"src/a.py".into()));
    let explained = reuse.explain("verify.it/each");
    assert!(explained.contains("would be cached") && explained.contains(wrong), "{explained}");
    reuse.repo.write("src/c.py", "fine too\n");
    reuse.pass();
    assert_eq!(reuse.stdout("each"), "a.py\nb.py\nc.py\n");
    reuse.repo.write("src/d.py", "fine too\n");
    reuse.pass();
    assert_eq!(reuse.stdout("each"), "a.py\nb.py\nc.py\nd.py\n", "the list of files is a part of the key");
    reuse.repo.write("src/a.py", "bad\n");
    reuse.repo.run().exits(1);
}

/// Creates a repository with the ignored directory `deps`, which `verify.it` needs. A run of a commit mounts a copy.
fn repo_with_deps<'e>(env: &'e TestEnvironment, steps: impl IntoIterator<Item = TestStep>) -> ReuseRepo<'e> {
    let skill = TestSkill::new("verify.it", steps).determinism("D1").with_field("needs_paths: [deps]");
    let reuse = ReuseRepo::with_spec(env, &TestSpec::new([skill]));
    reuse.repo.write(".gitignore", "deps\n");
    reuse.repo.write("uv.lock", "1\n");
    reuse.repo.commit();
    reuse.repo.write("deps/value", "one\n");
    env.give_to_actor(&reuse.repo.file("deps"));
    reuse
}

fn content_of_needed_path_is_input(env: &TestEnvironment) {
    let reuse = repo_with_deps(env, [TestStep::sh("it", "cat deps/value; stat -c %a deps/value")]);
    // A run of a commit sees a copy of the path, and a run of the worktree sees the path itself.
    for arguments in [&["--rev", "HEAD"][..], &[]] {
        let run = || {
            reuse.repo.run_with(arguments).exits(0);
            (reuse.executed().len(), reuse.stdout("it"))
        };
        // A file that was copied within 20 ms of its change is copied again, and the step then executed again.
        let assert_is_cached = |printed: &str| {
            let cached = (0..3).map(|_| run()).find(|(executed, _)| *executed == 0);
            assert_eq!(cached, Some((0, printed.to_owned())), "{}", reuse.explain("verify.it/it"));
        };
        reuse.repo.write("deps/value", "one\n");
        assert_eq!(run(), (1, "one\n644\n".to_owned()), "{arguments:?}");
        assert_is_cached("one\n644\n");
        // The lock file and the size are the same.
        reuse.repo.write("deps/value", "two\n");
        assert_eq!(run(), (1, "two\n644\n".to_owned()));
        machine::make_executable(&reuse.repo.file("deps/value"));
        assert_eq!(run(), (1, "two\n755\n".to_owned()));
        assert_is_cached("two\n755\n");
        std::fs::remove_file(reuse.repo.file("deps/value")).expect("removes");
    }
}

fn changed_needed_path_is_not_stored(env: &TestEnvironment) {
    let write = TestStep::sh("write", "if test -e flag; then echo left > deps/left; fi");
    let reuse = repo_with_deps(env, [write, TestStep::sh("list", "ls deps")]);
    let run = |revision: &str| {
        reuse.repo.run_with(&["--rev", revision]).exits(0);
        (reuse.executed(), reuse.stdout("list"))
    };
    let both = vec!["write".to_owned(), "list".to_owned()];
    assert_eq!(run("HEAD"), (both.clone(), "value\n".to_owned()));
    assert_eq!(run("HEAD"), (Vec::new(), "value\n".to_owned()));
    reuse.repo.write("flag", "");
    reuse.repo.commit();
    // All that the second step reads of the tree is the same, but the first step has changed the path.
    for _ in 0..2 {
        assert_eq!(run("HEAD"), (both.clone(), "left\nvalue\n".to_owned()));
    }
    assert_eq!(run("HEAD~1"), (Vec::new(), "value\n".to_owned()), "the path itself is unchanged");
}

fn explanation_prepares_nothing(env: &TestEnvironment) {
    let prepare = "needs_paths: [{ path: deps, prepare: { cmd: [cp, README.md, deps/copy], key: [README.md] } }]";
    let skill =
        TestSkill::new("verify.it", [TestStep::sh("it", "cat deps/copy")]).determinism("D1").with_field(prepare);
    let reuse = ReuseRepo::with_spec(env, &TestSpec::new([skill]));
    reuse.repo.write("README.md", "one\n");
    let explained = reuse.explain("verify.it/it");
    assert!(explained.contains("a run would prepare `deps` first, by `cp README.md deps/copy`"), "{explained}");
    reuse.pass();
    assert!(reuse.explain("verify.it/it").contains("would be cached"), "{}", reuse.explain("verify.it/it"));
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    // The step reads this file only as a part of the prepared path.
    reuse.repo.write("README.md", "two\n");
    reuse.pass();
    assert_eq!((reuse.executed(), reuse.stdout("it")), (vec!["it".to_owned()], "two\n".to_owned()));
}

/// A build that copies `src/lib.rs` to the cache `target`, unless the copy is newer.
const BUILD: &str = "mkdir -p target && if test ! -e target/built || test src/lib.rs -nt target/built; then \
    cp src/lib.rs target/built; fi && cat target/built README.md";

fn caching_repo<'e>(env: &'e TestEnvironment, script: &str, fields: &[&str]) -> ReuseRepo<'e> {
    let step = fields.iter().fold(TestStep::sh("it", script), |step, field| step.with_field(field));
    let skill = TestSkill::new("verify.it", [step]).determinism("D1");
    let spec = TestSpec::new([skill.with_field("caches: [{ path: target, transparent: true }]")]);
    ReuseRepo::with_spec(env, &spec)
}

fn transparent_cache_allows_reuse(env: &TestEnvironment) {
    let reuse = caching_repo(env, BUILD, &[]);
    reuse.repo.write("src/lib.rs", "one\n");
    reuse.repo.write("README.md", "first\n");
    reuse.pass();
    let second = reuse.pass();
    assert_eq!((reuse.executed().len(), reuse.stdout("it")), (0, "one\nfirst\n".to_owned()));
    let caches = &reuse.repo.step("it")["reused"]["transparent_caches"];
    assert_eq!((&caches[0]["path"], &caches[0]["trust"]), (&"target".into(), &"none".into()), "{caches}");
    assert!(reuse.repo.evidence("verify.it")["measured"]["caches"].is_null(), "no cache was opened: {second}");
    let verbose = reuse.repo.run_with(&["--verbose"]).exits(0);
    assert!(verbose.stdout.contains("unchanged, with transparent caches: `target`"), "{verbose}");
    // The build does not read its source, because the cache has a newer copy.
    reuse.repo.write("README.md", "second\n");
    reuse.pass();
    assert_eq!((reuse.executed().len(), reuse.stdout("it")), (1, "one\nsecond\n".to_owned()));
    // The size is the same.
    reuse.repo.write("src/lib.rs", "two\n");
    reuse.pass();
    assert_eq!((reuse.executed().len(), reuse.stdout("it")), (1, "two\nsecond\n".to_owned()));
    reuse.pass();
    assert_eq!(reuse.executed().len(), 0);
    reuse.repo.run_with(&["--no-caches"]).exits(0);
    assert_eq!(reuse.executed().len(), 1, "an execution with empty caches was requested");
}

/// Prints whether the cache is empty, and leaves a file in it.
const SHOW_CACHE: &str = "ls target 2>/dev/null | grep -q left && echo full || echo empty; echo x > target/left";

fn recheck_sees_empty_caches(env: &TestEnvironment) {
    let reuse = caching_repo(env, &format!("{SHOW_CACHE}; test \"$(nice)\" != 19 || test -e target/more"), &[]);
    reuse.pass();
    reuse.repo.run_with(&["--no-cache"]).exits(0);
    assert_eq!(reuse.stdout("it"), "full\n");
    reuse.configure("recheck_percent = 100");
    reuse.pass();
    assert_eq!((reuse.executed().len(), reuse.stdout("it")), (1, "empty\n".to_owned()));
    let words = ["run", "--profile", "pr", "--changeset", crate::environment::CHANGESET];
    let refuted = env.finish(env.start_through(reuse.repo.path(), &["nice", "-n", "19"], &words));
    assert!(refuted.all_output().contains("failed with empty caches"), "{refuted}");
    assert!(refuted.all_output().contains("remove `transparent: true` from `target`"), "{refuted}");
    assert_ne!(refuted.code, Some(0));
    reuse.configure("recheck_percent = 0");
    reuse.pass();
    assert_eq!((reuse.executed().len(), reuse.stdout("it")), (1, "full\n".to_owned()), "the cache itself is kept");
}

fn slow_recheck_is_repeated(env: &TestEnvironment) {
    let script = format!("if test \"$(nice)\" = 19 && test ! -e target/left; then sleep 600; fi; {SHOW_CACHE}");
    let reuse = caching_repo(env, &script, &["timeout_ms: 3000"]);
    reuse.pass();
    reuse.configure("recheck_percent = 100");
    let words = ["run", "--profile", "pr", "--changeset", crate::environment::CHANGESET];
    env.finish(env.start_through(reuse.repo.path(), &["nice", "-n", "19"], &words)).exits(0);
    assert_eq!((reuse.executed().len(), reuse.stdout("it")), (1, "full\n".to_owned()));
    reuse.configure("recheck_percent = 0");
    reuse.pass();
    assert_eq!(reuse.executed().len(), 0, "the step is not excluded");
}

/// Uses the ignored file `derived` while it names the time of its source, as Python uses compiled code.
const USE_DERIVED: &str = "if test \"$(cat derived)\" = \"$(stat -c %y src/lib.rs)\"; then echo derived; else \
    stat -c %y src/lib.rs; cat src/lib.rs; fi";

fn source_of_derived_file_is_input(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [TestStep::sh("it", USE_DERIVED)]);
    reuse.repo.write(".gitignore", "derived\n");
    reuse.repo.write("derived", "none\n");
    reuse.repo.write("src/lib.rs", "one\n");
    reuse.pass();
    let printed = reuse.stdout("it");
    reuse.repo.write("derived", printed.lines().next().expect("a time"));
    reuse.pass();
    assert_eq!(reuse.stdout("it"), "derived\n", "the step looks at the source, but does not read it");
    reuse.pass();
    assert_eq!(reuse.executed().len(), 0);
    // The size is the same.
    reuse.repo.write("src/lib.rs", "two\n");
    reuse.pass();
    assert_eq!(reuse.executed().len(), 1);
    assert!(reuse.stdout("it").ends_with("\ntwo\n"), "{}", reuse.stdout("it"));
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
    assert!(refuted.all_output().contains("according to a stored result, `it` passes with these inputs"), "{refuted}");
    assert_ne!(refuted.code, Some(0));
    reuse.configure("recheck_percent = 0");
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), ["it"], "it is excluded");
    let explained = reuse.explain("verify.it/it");
    assert!(explained.contains("would be executed: it is excluded from reuse: according to a stored"), "{explained}");
    let stats = reuse.proctor(&["cache", "stats"]).exits(0);
    assert!(stats.stdout.contains("excluded from reuse: according to a stored result, `it` passes"), "{stats}");
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
