//! Tests specs in subdirectories of a repository: `svc/a/spec/verification.yaml` applies inside `svc/a`.

use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{CaseDefinition, NEEDS_GIT, case, dry_case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("spec_directories::nearest_spec_applies_to_the_whole_tree", nearest_spec_applies).daemon_sample(),
    case("spec_directories::specs_do_not_answer_for_each_other", specs_do_not_answer_for_each_other).daemon_sample(),
    case("spec_directories::commit_is_verified_by_the_spec_in_its_tree", commit_is_verified).needs(NEEDS_GIT),
    case("spec_directories::included_files_belong_to_the_spec", included_files_belong_to_spec)
        .needs(NEEDS_GIT)
        .daemon_sample(),
    dry_case("spec_directories::errors_name_the_included_file", errors_name_included_file),
    dry_case("spec_directories::changesets_exist_only_at_the_top", changesets_exist_only_at_top),
    dry_case("spec_directories::commands_without_a_run_use_the_nearest_spec", dry_commands_use_nearest_spec),
];

/// Passes in the directory of the spec, in the whole tree of the repository.
const SCRIPT: &str = "pwd -P; test -e own.txt && test -e ../../README.md && test ! -e out/stale";

/// Returns a repository with a spec in `svc/a` and in `svc/b`, but not at the top.
fn repo_with_two_specs<'e>(env: &'e TestEnvironment, script: &str) -> (Repo<'e>, [Repo<'e>; 2]) {
    let repo = env.empty_repo_at("repo");
    repo.write("README.md", "# A repository\n");
    let own = TestStep::sh("own", "cat own.txt").with_field("inputs: ['*.txt']");
    let skill = TestSkill::new("verify.it", [TestStep::sh("it", script), own]);
    let spec = TestSpec::new([skill.with_field("caches: [out]")]);
    for directory in ["svc/a", "svc/b"] {
        repo.write(&format!("{directory}/own.txt"), directory);
        repo.write(&format!("{directory}/spec/verification.yaml"), spec.to_yaml(env.marker()));
    }
    repo.write(".gitignore", "out/\n");
    repo.commit();
    let inside = ["svc/a", "svc/b"].map(|directory| Repo::at(env, repo.file(directory)));
    (repo, inside)
}

fn json(finished: &FinishedProcess) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"))
}

fn run(repo: &Repo<'_>, more: &[&str]) -> FinishedProcess {
    repo.run_with_only(&[&["--profile", "pr"], more].concat())
}

fn gate(repo: &Repo<'_>) -> i32 {
    let finished = repo.start_proctor(&["gate", "--profile", "pr", "--format", "json"]).wait();
    finished.code.unwrap_or_else(|| panic!("{finished}"))
}

fn nearest_spec_applies(env: &TestEnvironment) {
    let (repo, [a, _]) = repo_with_two_specs(env, SCRIPT);
    repo.write("svc/a/src/deep/x", "x");
    let deep = Repo::at(env, repo.file("svc/a/src/deep"));
    let record = json(&run(&deep, &["--format", "json"]).exits(0));
    let step = &record["skills"][0]["steps"][0];
    assert_eq!(step["workdir"], "svc/a");
    assert_eq!(record["skills"][0]["steps"][1]["inputs"]["globs"][0], "svc/a/*.txt");
    let directory = record["finished"]["evidence_dir"].as_str().expect("a directory");
    let evidence = std::fs::read_to_string(format!("{directory}/verify/verify.it.json")).expect("evidence");
    let evidence: Value = serde_json::from_str(&evidence).expect("JSON");
    assert_eq!(evidence["spec_dir"], "svc/a");
    assert!(
        evidence["steps"][0]["stdout_preview"].as_str().is_some_and(|text| text.ends_with("/svc/a\n")),
        "{evidence}"
    );
    // The top has no spec.
    run(&repo, &[]).exits(2).prints_to_stderr(&["there is no spec at"]);
    // Changes outside of the directory of the spec belong to the tree.
    assert_eq!(gate(&a), 0);
    repo.write("README.md", "edited\n");
    assert_eq!(gate(&a), 1);
}

fn specs_do_not_answer_for_each_other(env: &TestEnvironment) {
    let (repo, [a, b]) = repo_with_two_specs(env, "test -e pass");
    repo.write("svc/a/pass", "");
    run(&a, &[]).exits(0);
    assert_eq!((gate(&a), gate(&b)), (0, 2), "the specs have the same bytes");
    run(&b, &["--last-failed"]).exits(2).prints_to_stderr(&["error[P0220]:"]);
    run(&b, &[]).exits(1);
    assert_eq!((gate(&a), gate(&b)), (0, 1));
    run(&b, &["--last-failed"]).exits(1);
    assert_eq!(gate(&a), 0);
    // Each spec has its own caches.
    let list = |repo: &Repo<'_>| repo.proctor(&["plan", "--format", "json", "--profile", "pr"]).exits(0).stdout;
    assert!(list(&a).contains("\"caches\":[\"svc/a/out\"]") && list(&b).contains("\"caches\":[\"svc/b/out\"]"));
}

fn commit_is_verified(env: &TestEnvironment) {
    let (repo, [a, b]) = repo_with_two_specs(env, "test -e pass");
    repo.write("svc/a/pass", "");
    repo.commit();
    run(&a, &["--rev", "HEAD"]).exits(0);
    run(&b, &["--rev", "HEAD"]).exits(1);
    assert_eq!((gate(&a), gate(&b)), (0, 1));
    // The commit has no spec at its top; the message names no path of a private copy.
    let refused = run(&repo, &["--rev", "HEAD"]).exits(2).prints_to_stderr(&["error[P0202]: commit "]);
    assert!(refused.stderr.contains(" has no `spec/verification.yaml`"), "{refused}");
}

fn changesets_exist_only_at_top(env: &TestEnvironment) {
    let (repo, [a, _]) = repo_with_two_specs(env, SCRIPT);
    repo.write(&format!("svc/a/changes/{CHANGESET}/00-meta.json"), "{}\n");
    for command in ["run", "gate"] {
        a.proctor(&[command, "--profile", "pr", "--changeset", CHANGESET])
            .exits(2)
            .prints_to_stderr(&["error[P0231]:", "svc/a"]);
    }
    assert!(!repo.file(&format!("svc/a/changes/{CHANGESET}/verify")).exists());
}

fn dry_commands_use_nearest_spec(env: &TestEnvironment) {
    let (repo, [a, b]) = repo_with_two_specs(env, SCRIPT);
    a.proctor(&["validate"]).exits(0).prints(&["valid"]);
    repo.write("svc/b/spec/verification.yaml", "version: 9\n");
    b.proctor(&["validate"]).exits(2).prints(&["verification.yaml"]);
    a.proctor(&["explain", "verify.it/it", "--profile", "pr"]).exits(0);
    repo.proctor(&["validate", "--repo", "svc/a"]).exits(0);
}

/// The spec in `svc/a` and the file that it includes from the top.
const INCLUDING_SPEC: &str = "version: 1
include: [../../../common/checks.yaml]
profiles: { pr: { include: [verify.it, verify.shared] } }
skills: { verify.it: { steps: [{ name: it, cmd: [test, -e, own.txt] }] } }
";
const SHARED_CHECKS: &str = "skills:
  verify.shared: { determinism: D1, steps: [{ name: shared, cmd: [test, -e, ../a/own.txt] }] }
";

fn included_files_belong_to_spec(env: &TestEnvironment) {
    let (repo, [a, _]) = repo_with_two_specs(env, SCRIPT);
    repo.write("svc/a/spec/verification.yaml", INCLUDING_SPEC);
    repo.write("common/checks.yaml", SHARED_CHECKS);
    repo.commit();
    let record = json(&run(&a, &["--format", "json"]).exits(0));
    assert_eq!(record["skills"][1]["skill"], "verify.shared");
    let of_worktree = record["started"]["spec_sha256"].clone();
    let record = json(&run(&a, &["--rev", "HEAD", "--format", "json"]).exits(0));
    assert_eq!(record["started"]["spec_sha256"], of_worktree);
    assert_eq!(gate(&a), 0);
    repo.write("common/checks.yaml", SHARED_CHECKS.replace("../a/own.txt", "absent"));
    assert_eq!(gate(&a), 1);
    run(&a, &[]).exits(1);
}

fn errors_name_included_file(env: &TestEnvironment) {
    let (repo, [a, _]) = repo_with_two_specs(env, SCRIPT);
    repo.write("svc/a/spec/verification.yaml", INCLUDING_SPEC);
    a.proctor(&["validate"]).exits(2).prints(&["P0170", "verification.yaml:2:11"]);
    repo.write("common/checks.yaml", SHARED_CHECKS.replace("determinism", "determinsm"));
    a.proctor(&["validate"]).exits(2).prints(&["P0116", "common/checks.yaml:2:20"]);
    repo.write("common/checks.yaml", SHARED_CHECKS.replace("verify.shared", "verify.it"));
    a.proctor(&["validate"]).exits(2).prints(&["P0171", "common/checks.yaml", "first here: "]);
}
