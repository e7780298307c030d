//! Tests the needed paths of steps that run on the workers of a cluster.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::remote_executor::{Cluster, NO_NAMESPACES, TRUSTED, USER, is_remote, remote_case};
use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::CaseDefinition;
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    remote_case("remote_needed_paths::worker_gets_the_path_of_the_worktree", worker_gets_path),
    remote_case("", worker_gets_path).unprivileged("remote_needed_paths::worker_gets_the_path_for_a_user"),
    remote_case("remote_needed_paths::worker_gets_a_prepared_path", worker_gets_prepared_path),
    remote_case("remote_needed_paths::step_is_cached_while_the_path_is_the_same", step_is_cached),
    remote_case("remote_needed_paths::writes_stay_in_the_skill", writes_stay_in_skill),
    remote_case("", writes_stay_in_skill).unprivileged("remote_needed_paths::writes_stay_in_the_skill_for_a_user"),
    remote_case("remote_needed_paths::writes_of_an_untrusted_worker_do_not_count", untrusted_writes_do_not_count),
    remote_case("remote_needed_paths::worker_without_namespaces_gets_the_path", worker_without_namespaces),
    remote_case("remote_needed_paths::toolchain_check_sees_the_path", check_sees_path),
    remote_case("remote_needed_paths::unsendable_path_is_named", unsendable_path_is_named),
    remote_case("remote_needed_paths::program_that_the_worker_lacks_is_named", missing_program_is_named),
    remote_case("remote_needed_paths::strict_step_that_changes_a_path_does_not_pass", strict_step_must_not_change),
];

const NO_CHECKS: &str = "[reuse]\nrecheck_percent = 0\n";
const UNPINNED: &str = "unpinned_max_age_ms = 3600000\n";
const USUAL: [&str; 4] = [USER, TRUSTED, UNPINNED, NO_CHECKS];

/// Starts a cluster for a skill that needs `paths`. The worktree has the ignored directory `web/deps`.
fn cluster<'e>(env: &'e TestEnvironment, paths: &str, steps: impl IntoIterator<Item = TestStep>) -> Cluster<'e> {
    let skill = TestSkill::new("verify.it", steps).determinism("D1").with_field(&format!("needs_paths: [{paths}]"));
    cluster_with_spec(env, &TestSpec::new([skill]))
}

fn cluster_with_spec<'e>(env: &'e TestEnvironment, spec: &TestSpec) -> Cluster<'e> {
    let cluster = Cluster::with_spec(env, spec);
    cluster.configure("remote", &USUAL);
    let repo = &cluster.repo;
    repo.write(".gitignore", "deps\n");
    repo.write("web/uv.lock", "1\n");
    repo.write("web/source/text", "source\n");
    repo.commit();
    repo.write("web/deps/bin/tool", "#!/bin/sh\necho tool 1\n");
    machine::make_executable(&repo.file("web/deps/bin/tool"));
    std::fs::create_dir(repo.file("web/deps/empty")).expect("a directory");
    for (name, target) in [("bin/alias", "tool"), ("bin/python", "/usr/bin/env"), ("package", "../source")] {
        symlink(target, repo.file("web/deps").join(name)).expect("a link");
    }
    env.give_to_actor(&repo.file("web/deps"));
    cluster
}

fn run_commit(cluster: &Cluster<'_>) -> FinishedProcess {
    cluster.repo.run_with(&["--no-daemon", "--verbose", "--max-tier", "2", "--rev", "HEAD"])
}

fn mounted(cluster: &Cluster<'_>) -> Value {
    let inputs = cluster.repo.last_run()["unverified_inputs"]["entries"].clone();
    inputs.as_array().into_iter().flatten().find(|input| input["shown"] == "mounted").cloned().unwrap_or_default()
}

fn step_of(cluster: &Cluster<'_>, skill: &str, name: &str) -> Value {
    let document = cluster.repo.evidence(skill);
    let steps = document["steps"].as_array().expect("steps");
    steps.iter().find(|step| step["name"] == name).cloned().unwrap_or_else(|| panic!("{document:#}"))
}

fn explain(cluster: &Cluster<'_>, step: &str) -> String {
    let state = cluster.env.state_dir();
    let words = ["explain", "cache", step, "--state-dir", state.to_str().expect("UTF-8")];
    cluster.repo.proctor(&words).exits(0).all_output()
}

/// Uses everything in the path.
const USE: &str = "cd web/deps && bin/tool && bin/alias && bin/python true && cat package/text && ls -F empty ../deps && \
    test ! -x package/text";

fn worker_gets_path(env: &TestEnvironment) {
    let cluster = cluster(env, "web/deps", [TestStep::sh("it", USE)]);
    let mut outputs = Vec::new();
    for mode in ["remote", "local"] {
        cluster.configure(mode, &USUAL);
        for is_commit in [false, true] {
            let run = if is_commit { run_commit(&cluster) } else { cluster.run() };
            run.exits(0);
            let step = cluster.repo.step("it");
            assert_eq!(is_remote(&step), mode == "remote", "{step:#}");
            outputs.push(step["stdout_preview"].as_str().expect("text").to_owned());
            if mode == "remote" {
                let recorded = mounted(&cluster);
                assert_eq!((&recorded["path"], &recorded["files"]), (&json!("web/deps"), &json!(4)), "{recorded}");
            }
        }
    }
    assert!(outputs.iter().all(|output| *output == outputs[0]), "{outputs:?}");
    assert!(outputs[0].starts_with("tool 1\ntool 1\nsource\n../deps:\nbin/\nempty/\npackage@\n"), "{outputs:?}");
}

fn worker_gets_prepared_path(env: &TestEnvironment) {
    let script = "mkdir -p web/deps/bin && printf '#!/bin/sh\\necho prepared\\n' > web/deps/bin/tool && \
        chmod +x web/deps/bin/tool && ln -s tool web/deps/bin/alias";
    let path = format!(r#"{{ path: web/deps, prepare: {{ cmd: ["sh", "-c", {}] }} }}"#, json!(script));
    let cluster = cluster(env, &path, [TestStep::sh("it", "web/deps/bin/alias && ls web/deps")]);
    for is_commit in [false, true] {
        let run = if is_commit { run_commit(&cluster) } else { cluster.run() };
        run.exits(0);
        let step = cluster.repo.step("it");
        assert!(is_remote(&step) && step["stdout_preview"] == "prepared\nbin\n", "{step:#}");
        assert!(mounted(&cluster)["prepared"].is_object());
    }
}

fn step_is_cached(env: &TestEnvironment) {
    let cluster = cluster(env, "web/deps", [TestStep::sh("it", "web/deps/bin/tool")]);
    let is_cached = || {
        cluster.run().exits(0);
        let step = cluster.repo.step("it");
        assert!(is_remote(&step), "{step:#}");
        step.get("reused").is_some_and(|source| source["whole_tree"] == true)
    };
    assert!(!is_cached() && is_cached());
    let tool = cluster.repo.file("web/deps/bin/tool");
    let change = |text: &str| {
        machine::write(&tool, text);
        env.give_to_actor(&cluster.repo.file("web/deps"));
    };
    change("#!/bin/sh\necho tool 2\n");
    let explained = explain(&cluster, "verify.it/it");
    assert!(explained.contains("the content of the needed path `web/deps` has changed"), "{explained}");
    assert!(!is_cached());
    assert_eq!(cluster.repo.step("it")["stdout_preview"], "tool 2\n");
    assert!(is_cached());
    change("#!/bin/sh\necho tool 1\n");
    assert!(is_cached(), "the result for the earlier content is still stored");
    // Workers get the targets of links, so a changed target executes the step again.
    std::fs::remove_file(cluster.repo.file("web/deps/bin/python")).expect("removed");
    symlink("/usr/bin/true", cluster.repo.file("web/deps/bin/python")).expect("a link");
    env.give_to_actor(&cluster.repo.file("web/deps"));
    assert!(!is_cached());
}

/// Runs steps that change the path, alternating between workers and this machine. A step that uses a secret always runs
/// on this machine.
fn writes_stay_in_skill(env: &TestEnvironment) {
    env.set_caller_var("SERVICE_TOKEN", "very-secret-value");
    let local = |name: &str, script: &str| TestStep::sh(name, script).with_field("env_allowlist: [SERVICE_TOKEN]");
    let show = "find web/deps -type f | sort | tr '\\n' ' '";
    let writer = TestSkill::new(
        "verify.writer",
        [
            TestStep::sh("one", "echo one > web/deps/one && rm -r web/deps/empty && rm web/deps/bin/tool"),
            TestStep::sh("two", &format!("{show}; test ! -e web/deps/empty && echo two > web/deps/two")),
            local(
                "three",
                &format!("{show}; rm web/deps/one && mkdir web/deps/empty && echo three > web/deps/empty/a"),
            ),
            TestStep::sh("four", &format!("{show}; echo four > web/deps/two")),
            local("five", &format!("{show}; cat web/deps/two")),
        ],
    );
    let reader = TestSkill::new("verify.reader", [TestStep::sh("six", show)]).with_field("needs: [verify.writer]");
    let skills = [writer, reader].map(|skill| skill.determinism("D1").with_field("needs_paths: [web/deps]"));
    let cluster = cluster_with_spec(env, &TestSpec::new(skills));
    cluster.configure("hybrid", &USUAL);
    for _ in 0..2 {
        cluster.run().exits(0);
        let shown = |name: &str, is_of_worker| {
            let step = step_of(&cluster, if name == "six" { "verify.reader" } else { "verify.writer" }, name);
            assert_eq!(is_remote(&step), is_of_worker, "{step:#}");
            step["stdout_preview"].as_str().expect("text").replace("web/deps/", "")
        };
        assert_eq!(shown("two", true), "one ");
        assert_eq!(shown("three", false), "one two ");
        assert_eq!(shown("four", true), "empty/a two ");
        assert_eq!(shown("five", false), "empty/a two four\n");
        assert_eq!(shown("six", true), "bin/tool ", "another skill does not see the writes");
    }
    assert!(cluster.repo.file("web/deps/empty").is_dir() && !cluster.repo.file("web/deps/one").exists());
    let explained = explain(&cluster, "verify.writer/one");
    assert!(explained.contains("changed `web/deps`"), "{explained}");
    assert!(step_of(&cluster, "verify.reader", "six").get("reused").is_some());
}

/// If the writes of the first attempt were kept, the second attempt would pass, even on this machine.
fn untrusted_writes_do_not_count(env: &TestEnvironment) {
    let script = "test -e web/deps/left || { touch web/deps/left; exit 1; }";
    let step = TestStep::sh("it", script).with_field("retries: 1");
    let cluster = cluster(env, "web/deps", [step]);
    cluster.run().exits(0);
    let trusted = cluster.repo.step("it");
    assert!(trusted["outcome"] == "passed" && trusted["flaky"] == true, "as on this machine: {trusted:#}");
    let untrusted = TRUSTED.replace("trust_workers = true", "trust_workers = false");
    cluster.configure("remote", &[USER, &untrusted, NO_CHECKS]);
    cluster.run().exits(1);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step) && step["outcome"] == "failed", "{step:#}");
}

fn worker_without_namespaces(env: &TestEnvironment) {
    let steps = [
        TestStep::sh("it", USE),
        TestStep::sh("two", "echo x > web/deps/new"),
        TestStep::sh("three", "cat web/deps/new"),
        TestStep::sh("four", "rm -r web/deps"),
    ];
    let cluster = cluster(env, "web/deps", steps);
    cluster.configure("remote", &[NO_NAMESPACES]);
    let run = cluster.run().exits(5).all_output();
    for name in ["it", "two", "three"] {
        let step = cluster.repo.step(name);
        assert!(is_remote(&step) && step["outcome"] == "passed", "{step:#}");
    }
    assert_eq!(cluster.repo.step("three")["stdout_preview"], "x\n");
    // On this machine, the path is a mount point, which no step can remove.
    assert!(run.contains("a step replaced `web/deps`"), "{run}");
}

fn check_sees_path(env: &TestEnvironment) {
    let skills = [
        TestSkill::new("verify.it", [TestStep::sh("it", "web/deps/bin/tool")]).with_field("needs_paths: [web/deps]"),
        TestSkill::new("verify.other", [TestStep::sh("other", "test ! -e web/deps")]),
    ];
    let check = "toolchains:\n  tool: { required: [{ cmd: [web/deps/bin/tool], version: '>=1' }] }";
    let cluster = cluster_with_spec(env, &TestSpec::new(skills).with_top_level(check));
    machine::write(&cluster.repo.file("web/deps/bin/tool"), "#!/bin/sh\necho tool 1.0.0\n");
    for mode in ["remote", "hybrid"] {
        cluster.configure(mode, &USUAL);
        cluster.run().exits(0);
        for (skill, name) in [("verify.it", "it"), ("verify.other", "other")] {
            let step = step_of(&cluster, skill, name);
            assert!(is_remote(&step), "{step:#}");
            assert_eq!(step["executor"]["worker"]["toolchains"]["tool"], "1.0.0", "{step:#}");
        }
    }
}

fn unsendable_path_is_named(env: &TestEnvironment) {
    let script = "echo x > web/deps/one && ln web/deps/one web/deps/two";
    let path = format!(r#"{{ path: web/deps, prepare: {{ cmd: ["sh", "-c", {}] }} }}"#, json!(script));
    let cluster = cluster(env, &path, [TestStep::sh("it", "cat web/deps/two")]);
    let run = cluster.run().exits(5).all_output();
    let reason = "the needed path `web/deps` contains `one`, which has more than one hard link";
    assert!(run.contains(reason), "{run}");
    cluster.configure("hybrid", &USUAL);
    cluster.run().exits(0);
    let step = cluster.repo.step("it");
    assert_eq!(step["executor"]["kind"], "local_fallback", "{step:#}");
    assert_eq!(step["executor"]["reason"], reason, "{step:#}");
}

fn missing_program_is_named(env: &TestEnvironment) {
    let cluster = cluster(env, "web/deps", [TestStep::argv("it", &["web/deps/bin/interpreter"])]);
    // This resembles a virtual environment whose Python is in the home directory of this machine's user.
    symlink("/opt/absent/python", cluster.repo.file("web/deps/bin/interpreter")).expect("a link");
    env.give_to_actor(&cluster.repo.file("web/deps"));
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("the worker could not start the step: ") && run.contains("web/deps/bin/interpreter"), "{run}");
}

fn strict_step_must_not_change(env: &TestEnvironment) {
    let step = TestStep::sh("it", "echo x > web/deps/new").with_field("read_only: strict");
    let cluster = cluster(env, "web/deps", [step]);
    let run = cluster.run().exits(5).all_output();
    assert!(is_remote(&cluster.repo.step("it")));
    assert!(run.contains("changed `web/deps`, which `read_only: strict` protects"), "{run}");
}
