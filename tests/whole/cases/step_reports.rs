//! Tests the reports that a step declares: which files count as written by the step, and their effect on the tree.

use proctor_core::text::digest::Sha256Hex;
use serde_json::{Value, json};

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{CaseDefinition, NEEDS_PYTHON, Needs, case, dry_case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

use super::missing_controls::wrapper_without;

pub(super) const CASES: &[CaseDefinition] = &[
    case("step_reports::report_of_a_step_is_stored_and_is_no_drift", report_is_stored_without_drift),
    case("", report_is_stored_without_drift).unprivileged("step_reports::report_of_a_step_is_stored_as_a_user"),
    case("step_reports::report_of_a_failed_step_is_read", report_of_failed_step_is_read).daemon_sample(),
    case("step_reports::stale_report_does_not_count", stale_report_does_not_count),
    case("step_reports::report_of_the_last_attempt_counts", report_of_last_attempt_counts),
    case("step_reports::change_of_a_tracked_report_is_drift", tracked_report_is_drift),
    case("step_reports::irregular_file_is_refused_and_is_drift", irregular_file_is_refused),
    case("step_reports::linked_or_unreadable_file_reveals_nothing_new", linked_or_unreadable_file),
    case("step_reports::too_large_report_is_refused", too_large_report_is_refused),
    case("step_reports::report_in_a_cache_counts_if_this_run_wrote_it", cached_report_counts_if_rewritten),
    case("step_reports::report_in_a_changeset_is_read", report_in_changeset_is_read),
    case("step_reports::change_of_another_steps_report_is_drift", change_of_other_steps_report_is_drift),
    case("step_reports::reports_stay_in_the_layer_under_strict_and_off", reports_stay_in_layer_in_other_modes),
    case("step_reports::recreated_report_directory_is_no_drift", recreated_directory_is_not_drift),
    case("step_reports::secret_of_the_caller_is_redacted", secret_in_report_is_redacted).daemon_sample(),
    case("step_reports::report_is_read_in_a_run_of_a_commit", report_in_run_of_commit)
        .needs(&[Needs::Sandbox, Needs::Program("git")]),
    case("step_reports::report_is_read_without_overlays", reports_without_overlays).needs(NEEDS_PYTHON),
    dry_case("step_reports::invalid_report_path_is_a_spec_error", invalid_report_path_is_spec_error).daemon_sample(),
];

/// Report that a step of the tests writes.
const JUNIT_XML: &str = "<testsuite name=\"a\" tests=\"1\"/>";

fn step_with_junit_report(script: &str) -> TestStep {
    TestStep::sh("it", script).with_field("reports: { junit: junit.xml }")
}

fn write_junit_script(path: &str) -> String {
    format!("printf '%s' '{JUNIT_XML}' > {path}")
}

/// Returns the recorded state of a step's first report, and the reason if it was refused.
fn recorded_report(repo: &Repo<'_>, step: &str) -> (String, Option<String>) {
    let report = repo.step(step)["found_reports"][0].clone();
    let word = |key: &str| report[key].as_str().map(str::to_owned);
    (word("state").unwrap_or_else(|| panic!("no report of {step}: {report}")), word("reason"))
}

fn report_state(word: &str) -> (String, Option<String>) {
    (word.to_owned(), None)
}

fn refused_report(reason: &str) -> (String, Option<String>) {
    ("refused".to_owned(), Some(reason.to_owned()))
}

fn drifted_paths(repo: &Repo<'_>, step: &str) -> Vec<String> {
    let step = repo.step(step);
    let changes = step["drift"]["changes"].as_array().expect("a list").iter();
    changes.map(|change| change["path"].as_str().expect("a path").to_owned()).collect()
}

fn object_exists(env: &TestEnvironment, text: &str, suffix: &str) -> bool {
    let sha256 = Sha256Hex::digest(text.as_bytes());
    let digits = sha256.to_string();
    let (shard, rest) = digits.split_at(2);
    env.state_dir().join("objects").join(shard).join(format!("{rest}.{suffix}")).exists()
}

fn report_is_stored_without_drift(env: &TestEnvironment) {
    let script = format!("mkdir -p out; {}; echo '{{}}' > out/r.sarif", write_junit_script("junit.xml"));
    let step = TestStep::sh("it", &script).with_field("reports: { junit: ./junit.xml, sarif: out/r.sarif }");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(0);
    let sarif = "{}\n";
    let report = |format: &str, path: &str, text: &str| {
        let sha256 = Sha256Hex::digest(text.as_bytes());
        json!({ "format": format, "path": path, "state": "read", "sha256": sha256.to_string(), "bytes": text.len(), "redacted": 0 })
    };
    let expected = json!([report("junit", "junit.xml", JUNIT_XML), report("sarif", "out/r.sarif", sarif)]);
    assert_eq!(repo.step("it")["found_reports"], expected);
    assert!(object_exists(env, JUNIT_XML, "zst") && object_exists(env, sarif, "zst"));
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"]);
    assert_eq!((drifted_paths(&repo, "it"), repo.changes_seen_by_git()), (vec![], vec![]));
}

fn report_of_failed_step_is_read(env: &TestEnvironment) {
    let repo = env
        .repo(&TestSpec::from_steps([step_with_junit_report(&format!("{}; exit 1", write_junit_script("junit.xml")))]));
    repo.run().exits(1);
    assert_eq!(
        (repo.step("it")["outcome"].clone(), recorded_report(&repo, "it")),
        ("failed".into(), report_state("read"))
    );
    let repo = env.repo_at(
        "timed_out",
        &TestSpec::from_steps([step_with_junit_report(&format!("{}; sleep 300", write_junit_script("junit.xml")))
            .with_field("timeout_ms: 300")
            .with_field("grace_ms: 100")]),
    );
    repo.run().exits(4);
    assert_eq!(recorded_report(&repo, "it"), report_state("read"));
}

fn stale_report_does_not_count(env: &TestEnvironment) {
    for (name, script) in [
        ("left", "true"),
        ("read", "cat junit.xml"),
        ("chmod", "chmod 600 junit.xml"),
        ("opened", "exec 3<>junit.xml"),
        ("removed", "rm junit.xml"),
    ] {
        let repo = env.repo_at(name, &TestSpec::from_steps([step_with_junit_report(script)]));
        repo.write("junit.xml", JUNIT_XML);
        let run = repo.run().exits(0);
        assert_eq!(
            (recorded_report(&repo, "it"), drifted_paths(&repo, "it")),
            (report_state("missing"), vec![]),
            "{name}"
        );
        assert!(run.stdout.contains("did not write its report `junit.xml`"), "{run}");
        assert_eq!(repo.read("junit.xml"), JUNIT_XML, "{name}");
    }
    let repo =
        env.repo_at("rewritten", &TestSpec::from_steps([step_with_junit_report(&write_junit_script("junit.xml"))]));
    repo.write("junit.xml", JUNIT_XML);
    repo.run().exits(0);
    assert_eq!(recorded_report(&repo, "it"), report_state("read"), "the same bytes, written again");
    let earlier = TestStep::sh("earlier", &write_junit_script("junit.xml")).with_field("reports: { junit: junit.xml }");
    let repo = env.repo_at("steps", &TestSpec::from_steps([earlier, step_with_junit_report("cat junit.xml")]));
    repo.run().exits(0);
    assert_eq!(
        (recorded_report(&repo, "earlier"), recorded_report(&repo, "it")),
        (report_state("read"), report_state("missing"))
    );
}

fn report_of_last_attempt_counts(env: &TestEnvironment) {
    // The cache distinguishes the attempts.
    let script = "if [ -e seen/once ]; then [ -n \"$AGAIN\" ] || true; else mkdir -p seen; touch seen/once; echo 1 > junit.xml; exit 1; fi";
    let spec = |more: &str| {
        let step = step_with_junit_report(&format!("{script}{more}")).with_field("retries: 1");
        TestSpec::new([TestSkill::new("verify.it", [step]).with_field("caches: [seen]")])
    };
    let repo = env.repo(&spec(""));
    repo.run().exits(0);
    assert_eq!(
        (repo.step("it")["flaky"].clone(), recorded_report(&repo, "it")),
        (true.into(), report_state("missing"))
    );
    let repo = env.repo_at("both", &spec("; echo 2 > junit.xml"));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["found_reports"][0]["sha256"], Sha256Hex::digest(b"2\n").to_string());
}

fn tracked_report_is_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([step_with_junit_report(&write_junit_script("junit.xml"))]));
    repo.write("junit.xml", "old\n");
    repo.commit();
    repo.run().exits(3);
    assert_eq!(
        (drifted_paths(&repo, "it"), recorded_report(&repo, "it")),
        (vec!["junit.xml".to_owned()], report_state("read"))
    );
}

fn irregular_file_is_refused(env: &TestEnvironment) {
    for (name, script, reason) in [
        ("link", "ln -s /etc/passwd junit.xml", "symbolic_link"),
        ("loop", "ln -s junit.xml junit.xml", "symbolic_link"),
        ("directory", "mkdir junit.xml; echo x > junit.xml/x", "no_regular_file"),
        ("fifo", "mkfifo junit.xml", "no_regular_file"),
    ] {
        let repo = env.repo_at(name, &TestSpec::from_steps([step_with_junit_report(script)]));
        repo.run().exits(3);
        assert_eq!(recorded_report(&repo, "it"), refused_report(reason), "{name}");
    }
    let step = TestStep::sh("it", "ln -s /etc reports").with_field("reports: { junit: reports/passwd }");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(3);
    assert_eq!(recorded_report(&repo, "it"), refused_report("symbolic_link"));
}

fn linked_or_unreadable_file(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([step_with_junit_report("ln README.md junit.xml")]));
    repo.run().exits(0);
    let text = repo.read("README.md");
    assert_eq!(repo.step("it")["found_reports"][0]["sha256"], Sha256Hex::digest(text.as_bytes()).to_string());
    let hidden = env.repo_at(
        "hidden",
        &TestSpec::from_steps([step_with_junit_report(&format!(
            "{}; chmod 0 junit.xml",
            write_junit_script("junit.xml")
        ))]),
    );
    hidden.run().exits(0);
    let (word, reason) = recorded_report(&hidden, "it");
    assert!(word == "read" || reason.as_deref() == Some("unreadable"), "{word} {reason:?}");
}

fn too_large_report_is_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([step_with_junit_report("head -c 16777217 /dev/zero > junit.xml")]));
    let run = repo.run().exits(0);
    assert_eq!(recorded_report(&repo, "it"), refused_report("too_large"));
    assert!(run.stdout.contains("has more than 16 MiB"), "{run}");
    let repo = env
        .repo_at("enough", &TestSpec::from_steps([step_with_junit_report("head -c 16777216 /dev/zero > junit.xml")]));
    repo.run().exits(0);
    assert_eq!(recorded_report(&repo, "it"), report_state("read"));
}

fn cached_report_counts_if_rewritten(env: &TestEnvironment) {
    let step = TestStep::sh("it", "[ -e target/junit.xml ] || printf x > target/junit.xml");
    let link =
        TestStep::sh("link", "ln -s /etc/passwd target/link.xml").with_field("reports: { junit: target/link.xml }");
    let step = step.with_field("reports: { junit: target/junit.xml }");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [step, link]).with_field("caches: [target]")]));
    repo.run().exits(0);
    assert_eq!(
        (recorded_report(&repo, "it"), recorded_report(&repo, "link")),
        (report_state("read"), refused_report("symbolic_link"))
    );
    repo.run();
    assert_eq!(recorded_report(&repo, "it"), report_state("missing"), "it is of an earlier run");
}

fn report_in_changeset_is_read(env: &TestEnvironment) {
    for (path, script) in [
        (format!("changes/{CHANGESET}/verify/junit.xml"), "mkdir -p changes/009_x/verify; "),
        (format!("changes/{CHANGESET}/junit.xml"), ""),
        (format!("changes/{CHANGESET}/APPROVED"), ""),
    ] {
        let step = TestStep::sh("it", &format!("{script}{}", write_junit_script(&path)))
            .with_field(&format!("reports: {{ junit: {path} }}"));
        let repo = env.repo_at(&path.replace('/', "_"), &TestSpec::from_steps([step]));
        repo.run().exits(0);
        assert_eq!(
            (recorded_report(&repo, "it"), drifted_paths(&repo, "it")),
            (report_state("read"), vec![]),
            "{path}"
        );
        assert!(!repo.file(&path).exists(), "{path} reached the tree");
    }
}

fn change_of_other_steps_report_is_drift(env: &TestEnvironment) {
    let later = TestStep::sh("later", "grep -q testsuite junit.xml && echo x >> junit.xml");
    let repo = env.repo(&TestSpec::from_steps([step_with_junit_report(&write_junit_script("junit.xml")), later]));
    repo.run().exits(3);
    assert_eq!((drifted_paths(&repo, "it"), drifted_paths(&repo, "later")), (vec![], vec!["junit.xml".to_owned()]));
    let repo = env.repo_at(
        "beside",
        &TestSpec::from_steps([step_with_junit_report(&format!(
            "{}; echo x > other.xml",
            write_junit_script("junit.xml")
        ))]),
    );
    repo.run().exits(3);
    assert_eq!(drifted_paths(&repo, "it"), ["other.xml"]);
}

fn reports_stay_in_layer_in_other_modes(env: &TestEnvironment) {
    let script = format!(
        "mkdir -p target out; {}; {}",
        write_junit_script("target/junit.xml"),
        write_junit_script("out/r.sarif")
    );
    let step = |mode: &str| {
        let step = TestStep::sh("it", &script).with_field("reports: { junit: target/junit.xml, sarif: out/r.sarif }");
        step.with_field(&format!("read_only: {mode}"))
    };
    for mode in ["strict", "off"] {
        let repo = env.repo_at(mode, &TestSpec::from_steps([step(mode)]));
        repo.run().exits(0);
        let states: Vec<Value> = [0, 1].map(|n| repo.step("it")["found_reports"][n]["state"].clone()).into();
        assert_eq!(states, ["read", "read"], "{mode}");
        assert!(!repo.file("target").exists() && !repo.file("out").exists(), "{mode}: a report reached the tree");
        assert_eq!(repo.step("it")["drift"]["applied"], json!([]), "{mode}");
    }
}

/// Many tools delete the directory of their reports first.
fn recreated_directory_is_not_drift(env: &TestEnvironment) {
    let script = format!("rm -rf out; mkdir out; {}", write_junit_script("out/junit.xml"));
    let step = |mode: &str| {
        let step = TestStep::sh("it", &script).with_field("reports: { junit: out/junit.xml }");
        step.with_field(&format!("read_only: {mode}"))
    };
    for mode in ["tracked", "off"] {
        let repo = env.repo_at(mode, &TestSpec::from_steps([step(mode)]));
        repo.write("out/junit.xml", "somebody's own, of yesterday\n");
        repo.run().exits(0);
        assert_eq!(
            (recorded_report(&repo, "it"), drifted_paths(&repo, "it")),
            (report_state("read"), vec![]),
            "{mode}"
        );
        let evidence = repo.evidence("verify.it");
        assert_eq!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"], "{mode}");
        assert_eq!(repo.read("out/junit.xml"), "somebody's own, of yesterday\n", "{mode}");
        repo.write("out/kept.txt", "tracked\n");
        repo.git(&["add", "out/kept.txt"]);
        if mode == "tracked" {
            repo.run().exits(3);
            assert_eq!(drifted_paths(&repo, "it"), ["out/kept.txt"]);
        }
    }
}

const SECRET: &str = "tok<0123456789&abcdef";

fn secret_in_report_is_redacted(env: &TestEnvironment) {
    env.set_caller_var("DEPLOY_TOKEN", SECRET);
    let script = "printf '%s tok&lt;0123456789&amp;abcdef' \"$DEPLOY_TOKEN\" > junit.xml";
    let repo =
        env.repo(&TestSpec::from_steps([step_with_junit_report(script).with_field("env_allowlist: [DEPLOY_TOKEN]")]));
    repo.run().exits(0);
    let report = repo.step("it")["found_reports"][0].clone();
    let text = format!("{SECRET} tok&lt;0123456789&amp;abcdef");
    assert_eq!(
        (&report["redacted"], &report["sha256"]),
        (&2.into(), &Sha256Hex::digest(text.as_bytes()).to_string().into())
    );
    assert_eq!((object_exists(env, &text, "zst"), object_exists(env, &text, "redacted.zst")), (false, true));
}

fn report_in_run_of_commit(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([step_with_junit_report(&write_junit_script("junit.xml"))]));
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!((recorded_report(&repo, "it"), drifted_paths(&repo, "it")), (report_state("read"), vec![]));
}

fn reports_without_overlays(env: &TestEnvironment) {
    let step = TestStep::sh("written", &write_junit_script("junit.xml")).with_field("reports: { junit: junit.xml }");
    let old = TestStep::sh("old", "cat old.xml").with_field("reports: { junit: old.xml }");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [step, old]).determinism("D2")]));
    repo.write("old.xml", JUNIT_XML);
    let arguments = ["run", "--changeset", CHANGESET, "--sandbox", "best-effort"];
    let run = env.start_through(repo.path(), &wrapper_without(&["fsconfig:1@0=EINVAL"]), &arguments);
    env.finish(run).exits(0);
    assert_eq!(
        (recorded_report(&repo, "written"), recorded_report(&repo, "old")),
        (report_state("read"), report_state("missing"))
    );
    assert_ne!(repo.step("written")["drift"]["method"], "layer");
    assert_eq!((drifted_paths(&repo, "written"), drifted_paths(&repo, "old")), (vec![], vec![]));
}

fn invalid_report_path_is_spec_error(env: &TestEnvironment) {
    for path in ["../x", "/tmp/x", ".", ".git/x", "sub/.git/x"] {
        let step = TestStep::sh("it", "true").with_field(&format!("reports: {{ junit: {path} }}"));
        let repo = env.repo_at(&format!("r{}", path.replace(['/', '.'], "_")), &TestSpec::from_steps([step]));
        let run = repo.proctor(&["validate"]).exits(2);
        assert!(run.all_output().contains("P0121"), "{path}: {run}");
    }
}
