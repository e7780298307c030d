//! Tests the reports that a step declares: which files count as written by the step, and their effect on the tree.

use proctor_core::digest::Sha256Hex;
use serde_json::{Value, json};

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{Case, NEEDS_PYTHON, Needs, case, dry_case};
use crate::spec::{Skill, Spec, Step};

use super::degrading::lacking;

pub(super) const CASES: &[Case] = &[
    case("reports::what_a_step_wrote_is_kept_and_is_no_drift", kept),
    case("", kept).unprivileged("reports::what_a_step_wrote_is_kept_as_a_user"),
    case("reports::of_a_step_that_failed_too", failed),
    case("reports::one_that_was_there_before_does_not_count", stale),
    case("reports::the_last_attempt_counts", retried),
    case("reports::one_that_git_tracks_is_part_of_the_tree", tracked),
    case("reports::what_is_no_plain_file_is_refused_and_drifts", hostile),
    case("reports::a_linked_or_hidden_file_tells_no_more_than_the_step_knows", linked),
    case("reports::one_that_is_too_large_is_refused", too_large),
    case("reports::in_a_cache_one_that_this_step_wrote_counts", cached),
    case("reports::in_a_changeset", in_changeset),
    case("reports::a_step_that_declares_none_drifts_on_anothers", undeclared),
    case("reports::under_strict_and_off_they_stay_in_the_layer", other_modes),
    case("reports::a_directory_that_is_made_anew_for_them", made_anew),
    case("reports::a_secret_of_the_caller_is_not_kept", secret),
    case("reports::of_a_commit", of_commit).needs(&[Needs::Sandbox, Needs::Program("git")]),
    case("reports::without_overlays", without_overlays).needs(NEEDS_PYTHON),
    dry_case("reports::a_path_that_can_be_none_is_an_error_of_the_spec", bad_paths),
];

/// Report that a step of the tests writes.
const JUNIT: &str = "<testsuite name=\"a\" tests=\"1\"/>";

fn writing(script: &str) -> Step {
    Step::sh("it", script).with("reports: { junit: junit.xml }")
}

fn wrote(path: &str) -> String {
    format!("printf '%s' '{JUNIT}' > {path}")
}

/// Returns the recorded state of a step's first report, and the reason if it was refused.
fn found(repo: &Repo<'_>, step: &str) -> (String, Option<String>) {
    let report = repo.step(step)["found_reports"][0].clone();
    let word = |key: &str| report[key].as_str().map(str::to_owned);
    (word("state").unwrap_or_else(|| panic!("no report of {step}: {report}")), word("reason"))
}

fn state(word: &str) -> (String, Option<String>) {
    (word.to_owned(), None)
}

fn refused(reason: &str) -> (String, Option<String>) {
    ("refused".to_owned(), Some(reason.to_owned()))
}

fn changed(repo: &Repo<'_>, step: &str) -> Vec<String> {
    let step = repo.step(step);
    let changes = step["drift"]["changes"].as_array().expect("a list").iter();
    changes.map(|change| change["path"].as_str().expect("a path").to_owned()).collect()
}

fn object(env: &TestEnvironment, text: &str, suffix: &str) -> bool {
    let sha256 = Sha256Hex::of(text.as_bytes());
    let (shard, rest) = sha256.as_str().split_at(2);
    env.state().join("objects").join(shard).join(format!("{rest}.{suffix}")).exists()
}

fn kept(env: &TestEnvironment) {
    let script = format!("mkdir -p out; {}; echo '{{}}' > out/r.sarif", wrote("junit.xml"));
    let step = Step::sh("it", &script).with("reports: { junit: ./junit.xml, sarif: out/r.sarif }");
    let repo = env.repo(&Spec::of_steps([step]));
    repo.run().exits(0);
    let sarif = "{}\n";
    let report = |format: &str, path: &str, text: &str| {
        let sha256 = Sha256Hex::of(text.as_bytes());
        json!({ "format": format, "path": path, "state": "read", "sha256": sha256.as_str(), "bytes": text.len(), "redacted": 0 })
    };
    let expected = json!([report("junit", "junit.xml", JUNIT), report("sarif", "out/r.sarif", sarif)]);
    assert_eq!(repo.step("it")["found_reports"], expected);
    assert!(object(env, JUNIT, "zst") && object(env, sarif, "zst"));
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"]);
    assert_eq!((changed(&repo, "it"), repo.changes_seen_by_git()), (vec![], vec![]));
}

fn failed(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([writing(&format!("{}; exit 1", wrote("junit.xml")))]));
    repo.run().exits(1);
    assert_eq!((repo.step("it")["outcome"].clone(), found(&repo, "it")), ("failed".into(), state("read")));
    let repo = env.repo_at(
        "timed_out",
        &Spec::of_steps([writing(&format!("{}; sleep 300", wrote("junit.xml")))
            .with("timeout_ms: 300")
            .with("grace_ms: 100")]),
    );
    repo.run().exits(4);
    assert_eq!(found(&repo, "it"), state("read"));
}

fn stale(env: &TestEnvironment) {
    for (name, script) in [
        ("left", "true"),
        ("read", "cat junit.xml"),
        ("chmod", "chmod 600 junit.xml"),
        ("opened", "exec 3<>junit.xml"),
        ("removed", "rm junit.xml"),
    ] {
        let repo = env.repo_at(name, &Spec::of_steps([writing(script)]));
        repo.write("junit.xml", JUNIT);
        let run = repo.run().exits(0);
        assert_eq!((found(&repo, "it"), changed(&repo, "it")), (state("missing"), vec![]), "{name}");
        assert!(run.stdout.contains("did not write its report `junit.xml`"), "{run}");
        assert_eq!(repo.read("junit.xml"), JUNIT, "{name}");
    }
    let repo = env.repo_at("rewritten", &Spec::of_steps([writing(&wrote("junit.xml"))]));
    repo.write("junit.xml", JUNIT);
    repo.run().exits(0);
    assert_eq!(found(&repo, "it"), state("read"), "the same bytes, written again");
    let earlier = Step::sh("earlier", &wrote("junit.xml")).with("reports: { junit: junit.xml }");
    let repo = env.repo_at("steps", &Spec::of_steps([earlier, writing("cat junit.xml")]));
    repo.run().exits(0);
    assert_eq!((found(&repo, "earlier"), found(&repo, "it")), (state("read"), state("missing")));
}

fn retried(env: &TestEnvironment) {
    // The cache distinguishes the attempts.
    let script = "if [ -e seen/once ]; then [ -n \"$AGAIN\" ] || true; else mkdir -p seen; touch seen/once; echo 1 > junit.xml; exit 1; fi";
    let spec = |more: &str| {
        let step = writing(&format!("{script}{more}")).with("retries: 1");
        Spec::new([Skill::new("verify.it", [step]).with("caches: [seen]")])
    };
    let repo = env.repo(&spec(""));
    repo.run().exits(0);
    assert_eq!((repo.step("it")["flaky"].clone(), found(&repo, "it")), (true.into(), state("missing")));
    let repo = env.repo_at("both", &spec("; echo 2 > junit.xml"));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["found_reports"][0]["sha256"], Sha256Hex::of(b"2\n").as_str());
}

fn tracked(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([writing(&wrote("junit.xml"))]));
    repo.write("junit.xml", "old\n");
    repo.commit();
    repo.run().exits(3);
    assert_eq!((changed(&repo, "it"), found(&repo, "it")), (vec!["junit.xml".to_owned()], state("read")));
}

fn hostile(env: &TestEnvironment) {
    for (name, script, reason) in [
        ("link", "ln -s /etc/passwd junit.xml", "symbolic_link"),
        ("loop", "ln -s junit.xml junit.xml", "symbolic_link"),
        ("directory", "mkdir junit.xml; echo x > junit.xml/x", "no_regular_file"),
        ("fifo", "mkfifo junit.xml", "no_regular_file"),
    ] {
        let repo = env.repo_at(name, &Spec::of_steps([writing(script)]));
        repo.run().exits(3);
        assert_eq!(found(&repo, "it"), refused(reason), "{name}");
    }
    let step = Step::sh("it", "ln -s /etc reports").with("reports: { junit: reports/passwd }");
    let repo = env.repo(&Spec::of_steps([step]));
    repo.run().exits(3);
    assert_eq!(found(&repo, "it"), refused("symbolic_link"));
}

fn linked(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([writing("ln README.md junit.xml")]));
    repo.run().exits(0);
    let text = repo.read("README.md");
    assert_eq!(repo.step("it")["found_reports"][0]["sha256"], Sha256Hex::of(text.as_bytes()).as_str());
    let hidden =
        env.repo_at("hidden", &Spec::of_steps([writing(&format!("{}; chmod 0 junit.xml", wrote("junit.xml")))]));
    hidden.run().exits(0);
    let (word, reason) = found(&hidden, "it");
    assert!(word == "read" || reason.as_deref() == Some("unreadable"), "{word} {reason:?}");
}

fn too_large(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([writing("head -c 16777217 /dev/zero > junit.xml")]));
    let run = repo.run().exits(0);
    assert_eq!(found(&repo, "it"), refused("too_large"));
    assert!(run.stdout.contains("has more than 16 MiB"), "{run}");
    let repo = env.repo_at("enough", &Spec::of_steps([writing("head -c 16777216 /dev/zero > junit.xml")]));
    repo.run().exits(0);
    assert_eq!(found(&repo, "it"), state("read"));
}

fn cached(env: &TestEnvironment) {
    let step = Step::sh("it", "[ -e target/junit.xml ] || printf x > target/junit.xml");
    let link = Step::sh("link", "ln -s /etc/passwd target/link.xml").with("reports: { junit: target/link.xml }");
    let step = step.with("reports: { junit: target/junit.xml }");
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [step, link]).with("caches: [target]")]));
    repo.run().exits(0);
    assert_eq!((found(&repo, "it"), found(&repo, "link")), (state("read"), refused("symbolic_link")));
    repo.run();
    assert_eq!(found(&repo, "it"), state("missing"), "it is of an earlier run");
}

fn in_changeset(env: &TestEnvironment) {
    for (path, script) in [
        (format!("changes/{CHANGESET}/verify/junit.xml"), "mkdir -p changes/009_x/verify; "),
        (format!("changes/{CHANGESET}/junit.xml"), ""),
        (format!("changes/{CHANGESET}/APPROVED"), ""),
    ] {
        let step = Step::sh("it", &format!("{script}{}", wrote(&path))).with(&format!("reports: {{ junit: {path} }}"));
        let repo = env.repo_at(&path.replace('/', "_"), &Spec::of_steps([step]));
        repo.run().exits(0);
        assert_eq!((found(&repo, "it"), changed(&repo, "it")), (state("read"), vec![]), "{path}");
        assert!(!repo.file(&path).exists(), "{path} reached the tree");
    }
}

fn undeclared(env: &TestEnvironment) {
    let later = Step::sh("later", "grep -q testsuite junit.xml && echo x >> junit.xml");
    let repo = env.repo(&Spec::of_steps([writing(&wrote("junit.xml")), later]));
    repo.run().exits(3);
    assert_eq!((changed(&repo, "it"), changed(&repo, "later")), (vec![], vec!["junit.xml".to_owned()]));
    let repo =
        env.repo_at("beside", &Spec::of_steps([writing(&format!("{}; echo x > other.xml", wrote("junit.xml")))]));
    repo.run().exits(3);
    assert_eq!(changed(&repo, "it"), ["other.xml"]);
}

fn other_modes(env: &TestEnvironment) {
    let script = format!("mkdir -p target out; {}; {}", wrote("target/junit.xml"), wrote("out/r.sarif"));
    let step = |mode: &str| {
        let step = Step::sh("it", &script).with("reports: { junit: target/junit.xml, sarif: out/r.sarif }");
        step.with(&format!("read_only: {mode}"))
    };
    for mode in ["strict", "off"] {
        let repo = env.repo_at(mode, &Spec::of_steps([step(mode)]));
        repo.run().exits(0);
        let states: Vec<Value> = [0, 1].map(|n| repo.step("it")["found_reports"][n]["state"].clone()).into();
        assert_eq!(states, ["read", "read"], "{mode}");
        assert!(!repo.file("target").exists() && !repo.file("out").exists(), "{mode}: a report reached the tree");
        assert_eq!(repo.step("it")["drift"]["applied"], json!([]), "{mode}");
    }
}

/// Many tools delete the directory of their reports first.
fn made_anew(env: &TestEnvironment) {
    let script = format!("rm -rf out; mkdir out; {}", wrote("out/junit.xml"));
    let step = |mode: &str| {
        let step = Step::sh("it", &script).with("reports: { junit: out/junit.xml }");
        step.with(&format!("read_only: {mode}"))
    };
    for mode in ["tracked", "off"] {
        let repo = env.repo_at(mode, &Spec::of_steps([step(mode)]));
        repo.write("out/junit.xml", "somebody's own, of yesterday\n");
        repo.run().exits(0);
        assert_eq!((found(&repo, "it"), changed(&repo, "it")), (state("read"), vec![]), "{mode}");
        let evidence = repo.evidence("verify.it");
        assert_eq!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"], "{mode}");
        assert_eq!(repo.read("out/junit.xml"), "somebody's own, of yesterday\n", "{mode}");
        repo.write("out/kept.txt", "tracked\n");
        repo.git(&["add", "out/kept.txt"]);
        if mode == "tracked" {
            repo.run().exits(3);
            assert_eq!(changed(&repo, "it"), ["out/kept.txt"]);
        }
    }
}

const SECRET: &str = "tok<0123456789&abcdef";

fn secret(env: &TestEnvironment) {
    env.caller_has("DEPLOY_TOKEN", SECRET);
    let script = "printf '%s tok&lt;0123456789&amp;abcdef' \"$DEPLOY_TOKEN\" > junit.xml";
    let repo = env.repo(&Spec::of_steps([writing(script).with("env_allowlist: [DEPLOY_TOKEN]")]));
    repo.run().exits(0);
    let report = repo.step("it")["found_reports"][0].clone();
    let text = format!("{SECRET} tok&lt;0123456789&amp;abcdef");
    assert_eq!((&report["redacted"], &report["sha256"]), (&2.into(), &Sha256Hex::of(text.as_bytes()).as_str().into()));
    assert_eq!((object(env, &text, "zst"), object(env, &text, "redacted.zst")), (false, true));
}

fn of_commit(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([writing(&wrote("junit.xml"))]));
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!((found(&repo, "it"), changed(&repo, "it")), (state("read"), vec![]));
}

fn without_overlays(env: &TestEnvironment) {
    let step = Step::sh("written", &wrote("junit.xml")).with("reports: { junit: junit.xml }");
    let old = Step::sh("old", "cat old.xml").with("reports: { junit: old.xml }");
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [step, old]).determinism("D2")]));
    repo.write("old.xml", JUNIT);
    let arguments = ["run", "--changeset", CHANGESET, "--sandbox", "best-effort"];
    let run = env.start_through(repo.path(), &lacking(&["fsconfig:1@0=EINVAL"]), &arguments);
    env.finish(run).exits(0);
    assert_eq!((found(&repo, "written"), found(&repo, "old")), (state("read"), state("missing")));
    assert_ne!(repo.step("written")["drift"]["method"], "layer");
    assert_eq!((changed(&repo, "written"), changed(&repo, "old")), (vec![], vec![]));
}

fn bad_paths(env: &TestEnvironment) {
    for path in ["../x", "/tmp/x", ".", ".git/x", "sub/.git/x"] {
        let step = Step::sh("it", "true").with(&format!("reports: {{ junit: {path} }}"));
        let repo = env.repo_at(&format!("r{}", path.replace(['/', '.'], "_")), &Spec::of_steps([step]));
        let run = repo.proctor(&["validate"]).exits(2);
        assert!(run.everything().contains("P0121"), "{path}: {run}");
    }
}
