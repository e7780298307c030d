//! Tests the reuse of results of workers of a cluster.

use rustix::process::Signal;

use super::hooks::{add_remote, push_to_origin, start_with_input};
use super::remote_executor::{
    Cluster, NO_NAMESPACES, TRUSTED, USER, WORKER_TOOLS, is_remote, machine_tools, remote_case,
};
use crate::environment::{CHANGESET, TestEnvironment};
use crate::machine;
use crate::needs::CaseDefinition;
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    remote_case("remote_reuse::unchanged_step_is_cached", unchanged_step_is_cached),
    remote_case("", unchanged_step_is_cached).unprivileged("remote_reuse::unchanged_step_is_cached_for_a_user"),
    remote_case("remote_reuse::every_change_of_the_inputs_executes_the_step", every_change_executes),
    remote_case("remote_reuse::withdrawn_trust_executes_the_step", withdrawn_trust_executes),
    remote_case("remote_reuse::worker_without_a_pinned_image_is_reused_only_on_request", unpinned_worker),
    remote_case("remote_reuse::results_of_workers_and_of_this_machine_are_separate", results_are_separate),
    remote_case("remote_reuse::wrong_result_of_a_worker_is_found", wrong_result_is_found),
    remote_case("remote_reuse::changed_toolchain_of_a_worker_executes_the_step", changed_toolchain_executes),
    remote_case("remote_reuse::files_of_a_cached_step_are_recreated_on_a_worker", files_are_recreated),
    remote_case("remote_reuse::failure_is_not_stored", failure_is_not_stored),
    remote_case("remote_reuse::pass_of_a_worker_without_namespaces_is_not_stored", pass_without_namespaces),
    remote_case("remote_reuse::hook_uses_a_pass_on_workers", hook_uses_pass),
];

/// Results of workers whose tools are not pinned are valid for an hour.
const UNPINNED: &str = "unpinned_max_age_ms = 3600000\n";
/// No result is checked by an execution.
const NO_CHECKS: &str = "[reuse]\nrecheck_percent = 0\n";
const USUAL: [&str; 4] = [USER, TRUSTED, UNPINNED, NO_CHECKS];

fn cluster<'e>(env: &'e TestEnvironment, steps: impl IntoIterator<Item = TestStep>) -> Cluster<'e> {
    let cluster = Cluster::new(env, steps);
    cluster.configure("remote", &USUAL);
    cluster
}

/// Runs the profile, and returns whether the step was cached.
fn is_cached(cluster: &Cluster<'_>) -> bool {
    cluster.run().exits(0);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step), "{step:#}");
    step.get("reused").is_some_and(|source| source["whole_tree"] == true)
}

fn explain(cluster: &Cluster<'_>) -> String {
    explain_step(cluster, "verify.it/it")
}

fn explain_step(cluster: &Cluster<'_>, step: &str) -> String {
    proctor(cluster, &["explain", "cache", step])
}

/// Runs a command that needs the state directory as an option.
fn proctor(cluster: &Cluster<'_>, words: &[&str]) -> String {
    let state = cluster.env.state_dir();
    cluster.repo.proctor(&[words, &["--state-dir", state.to_str().expect("UTF-8")]].concat()).exits(0).all_output()
}

fn gate(cluster: &Cluster<'_>, more: &[&str]) -> FinishedProcess {
    let gate = ["gate", "--profile", "pr", "--changeset", CHANGESET, "--no-daemon"];
    cluster.repo.proctor(&[&gate[..], more].concat())
}

fn unchanged_step_is_cached(env: &TestEnvironment) {
    let cluster = cluster(env, [TestStep::sh("it", "cat README.md; git status --porcelain; date +%N")]);
    let explained = explain(&cluster);
    assert!(explained.contains("no result is stored"), "{explained}");
    cluster.run().exits(0);
    let executed = cluster.repo.step("it");
    assert!(is_remote(&executed) && executed.get("reused").is_none(), "{executed:#}");
    let explained = explain(&cluster);
    assert!(explained.contains("would be cached") && explained.contains("the whole tree unchanged"), "{explained}");
    let run = cluster.run().exits(0);
    let (cached, document) = (cluster.repo.step("it"), cluster.repo.evidence("verify.it"));
    assert_eq!(cached["stdout_sha256"], executed["stdout_sha256"], "{cached:#}");
    assert_eq!(cached["executor"], executed["executor"], "the execution was on that worker");
    assert_eq!((&cached["reused"]["whole_tree"], &cached["duration_ms"]), (&true.into(), &0.into()));
    assert_eq!(document["cached_from"], cached["reused"]["run_id"]);
    let output = run.all_output();
    assert!(output.contains("was executed on a worker of `unix:") && output.contains("cached"), "{output}");
    assert!(output.contains("whole_tree") && output.contains("workers do not report"), "{output}");
    let verified = gate(&cluster, &[]).exits(0).all_output();
    assert!(
        verified.contains("steps ran on workers of `unix:") && verified.contains("1 of 1 step cached"),
        "{verified}"
    );
    let refused = gate(&cluster, &["--this-machine"]).exits(1).all_output();
    assert!(refused.contains("other machines executed steps"), "{refused}");
    // The result needs no cluster.
    cluster.server.signal(Signal::KILL);
    assert!(is_cached(&cluster));
    let all = proctor(&cluster, &["cache", "verify"]);
    assert!(all.contains("1 intact result, 0 damaged"), "{all}");
}

fn every_change_executes(env: &TestEnvironment) {
    let cluster = cluster(env, [TestStep::sh("it", "true")]);
    assert!(!is_cached(&cluster) && is_cached(&cluster));
    cluster.repo.run_with(&["--no-daemon", "--no-cache", "--max-tier", "2"]).exits(0);
    assert!(cluster.repo.step("it").get("reused").is_none());
    let before = cluster.repo.read("README.md");
    cluster.repo.write("README.md", "no step reads it\n");
    let explained = explain(&cluster);
    assert!(explained.contains("the tree has changed: `README.md` differs; a worker"), "{explained}");
    assert!(!is_cached(&cluster) && is_cached(&cluster));
    cluster.repo.write("README.md", &before);
    assert!(is_cached(&cluster), "the result for the earlier tree is still stored");
    cluster.repo.git(&["commit", "--quiet", "--allow-empty", "--message=other"]);
    let explained = explain(&cluster);
    assert!(explained.contains("the git directory has changed: `packed-refs` differs"), "{explained}");
    assert!(!is_cached(&cluster) && is_cached(&cluster));
    for (change, expected) in [
        ("platform = { unixUID = '1000', unixGID = '1000' }\n", "the properties of the worker"),
        ("platform = { unixUID = '1000' }\ninstance = 'other'\n", "the cluster is a different one"),
        ("platform = { unixUID = '1000' }\npath = '/usr/bin'\n", "the request to the worker"),
    ] {
        cluster.configure("remote", &[change, TRUSTED, UNPINNED, NO_CHECKS]);
        let explained = explain(&cluster);
        assert!(explained.contains(expected), "{change}: {explained}");
    }
    cluster.configure("remote", &USUAL);
    assert!(is_cached(&cluster));
}

fn withdrawn_trust_executes(env: &TestEnvironment) {
    let cluster = cluster(env, [TestStep::sh("it", "true")]);
    assert!(!is_cached(&cluster) && is_cached(&cluster));
    let untrusted = TRUSTED.replace("trust_workers = true", "trust_workers = false");
    for mode in ["remote", "hybrid"] {
        cluster.configure(mode, &[USER, &untrusted, UNPINNED, NO_CHECKS]);
        let explained = explain(&cluster);
        assert!(explained.contains("which the operator does not trust"), "{explained}");
        gate(&cluster, &[]).exits(1);
        cluster.run().exits(5);
        cluster.configure("remote", &USUAL);
        assert!(is_cached(&cluster));
    }
    let stricter = TRUSTED.replace(", 'private_proc'", "");
    cluster.configure("remote", &[USER, &stricter, UNPINNED, NO_CHECKS]);
    cluster.run().exits(5);
    cluster.configure("local", &USUAL);
    cluster.run().exits(0);
    let step = cluster.repo.step("it");
    assert!(step.get("executor").is_none() && step.get("reused").is_none(), "{step:#}");
    env.configure_operator(NO_CHECKS);
    cluster.run().exits(0);
    assert!(cluster.repo.step("it").get("executor").is_none());
}

fn unpinned_worker(env: &TestEnvironment) {
    let cluster = cluster(env, [TestStep::sh("it", "true")]);
    assert!(!is_cached(&cluster));
    cluster.configure("remote", &[USER, TRUSTED, NO_CHECKS]);
    let explained = explain(&cluster);
    assert!(explained.contains("`container-image` names no container image with a digest"), "{explained}");
    assert!(!is_cached(&cluster));
    cluster.configure("remote", &[USER, TRUSTED, "unpinned_max_age_ms = 1\n", NO_CHECKS]);
    let explained = explain(&cluster);
    assert!(explained.contains("`unpinned_max_age_ms`"), "{explained}");
    assert!(!is_cached(&cluster));
    cluster.configure("remote", &USUAL);
    assert!(is_cached(&cluster));
}

fn results_are_separate(env: &TestEnvironment) {
    let cluster = cluster(env, [TestStep::sh("it", "cat README.md")]);
    assert!(!is_cached(&cluster));
    cluster.configure("hybrid", &USUAL);
    cluster.server.signal(Signal::KILL);
    assert!(is_cached(&cluster));
    cluster.repo.write("README.md", "for this machine\n");
    cluster.run().exits(0);
    assert_eq!(cluster.repo.step("it")["executor"]["kind"], "local_fallback");
    cluster.run().exits(0);
    let cached = cluster.repo.step("it");
    assert!(cached.get("reused").is_some() && cached.get("executor").is_none(), "{cached:#}");
    gate(&cluster, &["--this-machine"]).exits(0);
    // In `remote` mode, steps run only on workers, and results of this machine are not used.
    cluster.configure("remote", &USUAL);
    cluster.run().exits(5);
}

fn wrong_result_is_found(env: &TestEnvironment) {
    let tool = machine_tools(env).join("tool");
    machine::write(&tool, "good\n");
    let cluster = cluster(env, [TestStep::sh("it", &format!("grep good {WORKER_TOOLS}/tool"))]);
    assert!(!is_cached(&cluster));
    let checked = [USER, TRUSTED, UNPINNED, "[reuse]\nrecheck_percent = 100\n"];
    cluster.configure("remote", &checked);
    assert!(!is_cached(&cluster), "it was executed to check the result");
    // The tool of the worker changes, so the recheck on the worker fails. A failure on this machine would not refute a
    // result of a worker.
    machine::write(&tool, "bad\n");
    let run = cluster.run().exits(1).all_output();
    assert!(run.contains("according to a stored result, `it` passes") && run.contains("on a worker"), "{run}");
    machine::write(&tool, "good\n");
    cluster.configure("remote", &USUAL);
    let explained = explain(&cluster);
    assert!(explained.contains("it is excluded from reuse"), "{explained}");
    assert!(!is_cached(&cluster));
}

fn changed_toolchain_executes(env: &TestEnvironment) {
    let tool = machine_tools(env).join("tool");
    let install = |comment: &str| {
        machine::write(&tool, format!("#!/bin/sh\necho 1.2.3 # {comment}\n"));
        machine::make_executable(&tool);
    };
    install("first build");
    let program = format!("{WORKER_TOOLS}/tool");
    let skill = TestSkill::new("verify.it", [TestStep::argv("it", &[&program])]).determinism("D1");
    let checks = format!("toolchains:\n  tool: {{ required: [{{ cmd: [{program}], version: '>=1' }}] }}");
    let cluster = Cluster::with_spec(env, &TestSpec::new([skill]).with_top_level(&checks));
    cluster.configure("remote", &USUAL);
    assert!(!is_cached(&cluster) && is_cached(&cluster));
    // The toolchain check runs on a worker in each run, and reports the program.
    install("second build of the same version");
    assert!(!is_cached(&cluster) && is_cached(&cluster));
}

fn files_are_recreated(env: &TestEnvironment) {
    let one = TestStep::sh("one", "mkdir -p out && echo built > out/file").with_field("inputs: [src/**]");
    let two = TestStep::sh("it", "cat out/file");
    let cluster = cluster(env, [one, two]);
    cluster.repo.write(".gitignore", "out/\n");
    cluster.repo.commit();
    let is_reused = |name: &str| cluster.repo.step(name).get("reused").is_some();
    assert!(!is_cached(&cluster) && is_cached(&cluster));
    cluster.repo.write("README.md", "only the second step sees it\n");
    cluster.run().exits(0);
    assert!(is_reused("one") && !is_reused("it"), "{}", explain_step(&cluster, "verify.it/one"));
    assert_eq!(cluster.repo.step("it")["stdout_preview"], "built\n");
    assert!(is_cached(&cluster));
    // If this machine recreates the files of the first step, they may differ from those of the worker, so the second
    // step is executed.
    cluster.server.signal(Signal::KILL);
    cluster.configure("hybrid", &USUAL);
    cluster.repo.write("README.md", "the cluster is unavailable\n");
    for _ in 0..2 {
        cluster.run().exits(0);
        assert!(is_reused("one") && !is_reused("it"), "{:#}", cluster.repo.step("it"));
    }
}

fn failure_is_not_stored(env: &TestEnvironment) {
    let cluster = cluster(env, [TestStep::sh("it", "exit 7")]);
    for _ in 0..2 {
        cluster.run().exits(1);
        let step = cluster.repo.step("it");
        assert!(is_remote(&step) && step["outcome"] == "failed" && step.get("reused").is_none(), "{step:#}");
    }
    let explained = explain(&cluster);
    assert!(explained.contains("the last execution was not stored: it did not pass"), "{explained}");
}

fn pass_without_namespaces(env: &TestEnvironment) {
    let cluster = cluster(env, [TestStep::sh("it", "true")]);
    cluster.configure("remote", &[NO_NAMESPACES, UNPINNED, NO_CHECKS]);
    assert!(!is_cached(&cluster) && !is_cached(&cluster));
    let explained = explain(&cluster);
    assert!(explained.contains("not stored: a control of the sandbox was not enforced"), "{explained}");
}

fn hook_uses_pass(env: &TestEnvironment) {
    let skill = TestSkill::new("verify.it", [TestStep::sh("it", "true")]).determinism("D1");
    let cluster = Cluster::with_spec(env, &TestSpec::new([skill]));
    // Also without stored results of steps.
    cluster.configure("remote", &[USER, TRUSTED, NO_CHECKS]);
    add_remote(env, &cluster.repo);
    cluster.repo.proctor(&["hook", "install"]).exits(0);
    cluster.repo.write("new", "text\n");
    cluster.repo.commit();
    env.finish(start_with_input(env, &cluster.repo, &["run", "--no-daemon", "--max-tier", "2"], "")).exits(0);
    let pushed = |branch: &str, code| {
        let pushed = push_to_origin(&cluster.repo, env, &[&format!("main:refs/heads/{branch}")]).exits(code);
        pushed.all_output().contains("verified already:")
    };
    assert!(pushed("same", 0));
    let untrusted = TRUSTED.replace("trust_workers = true", "trust_workers = false");
    cluster.configure("remote", &[USER, &untrusted, NO_CHECKS]);
    assert!(!pushed("untrusted", 1));
}
