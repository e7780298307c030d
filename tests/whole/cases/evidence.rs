//! Tests the record: its content, its reproducibility, and that it cannot be redirected to another place.

use std::path::Path;

use proctor_core::text::digest::Sha256Hex;

use super::missing_controls::wrapper_without;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{CaseDefinition, NEEDS_GIT, Needs, case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};
use crate::{documents, machine, schemas};

pub(super) const CASES: &[CaseDefinition] = &[
    case("evidence::two_runs_give_the_same_stable_bytes", two_runs_same_stable_bytes).daemon_sample(),
    case("evidence::two_clones_give_the_same_stable_bytes", two_clones_same_stable_bytes).needs(NEEDS_GIT),
    case("evidence::output_of_a_d1_skill_is_not_in_the_stable_part", d1_output_is_not_stable),
    case("evidence::git_confirms_the_recorded_tree", git_confirms_recorded_tree).needs(NEEDS_GIT).daemon_sample(),
    case("evidence::documented_recipes_reproduce_every_hash", hashes_verifiable_by_hand).needs(NEEDS_RECIPE_PROGRAMS),
    case("evidence::spec_hash_covers_the_bytes_that_were_read", spec_hash_of_read_bytes),
    case("evidence::snapshot_depends_only_on_the_covered_files", snapshot_depends_on_tree_only),
    case("evidence::rerun_overwrites_earlier_evidence", rerun_overwrites_evidence),
    case("evidence::skill_name_is_mapped_to_a_file_name", skill_name_maps_to_file_name),
    case(
        "evidence::without_a_changeset_nothing_is_written_into_the_repository",
        repository_untouched_without_changeset,
    )
    .daemon_sample(),
    case("evidence::foreign_fields_of_the_status_are_kept", foreign_status_fields_are_kept).daemon_sample(),
    case("evidence::a_broken_status_is_not_overwritten", broken_status_is_kept),
    case("evidence::status_file_that_is_a_link_is_refused", refuses_status_link),
    case("evidence::verify_directory_that_is_a_link_is_refused", refuses_verify_link),
    case("evidence::changeset_that_is_a_link_is_refused", refuses_changeset_link).daemon_sample(),
    case("evidence::evidence_file_that_is_a_link_is_not_followed", does_not_follow_artifact_link),
    case("evidence::no_temporary_file_is_left", leaves_no_temporary_files),
    case("evidence::two_parallel_runs_leave_the_complete_record_of_one", parallel_runs_leave_one_record)
        .daemon_sample(),
    case("evidence::kill_while_writing_leaves_complete_documents", kill_while_writing).daemon_sample(),
    case("evidence::enforcement_records_every_control", enforcement_is_complete).daemon_sample(),
];

/// Requires the programs of the recipes in docs/evidence.md, and Python to remove a control.
const NEEDS_RECIPE_PROGRAMS: &[Needs] = &[
    Needs::Sandbox,
    Needs::Program("python3"),
    Needs::Program("jq"),
    Needs::Program("sha256sum"),
    Needs::Program("zstd"),
];

fn two_runs_same_stable_bytes(env: &TestEnvironment) {
    let script = "echo out; echo err >&2; mkdir -p target; date +%N > target/stamp; sort src/lib.rs";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(0);
    let artifact = repo.changeset().join("verify/verify.it.json");
    let (first, first_document) = (documents::read_stable_bytes(&artifact), documents::read_json(&artifact));
    repo.run().exits(0);
    let (second, second_document) = (documents::read_stable_bytes(&artifact), documents::read_json(&artifact));
    assert!(first == second, "\n{}\n{}", String::from_utf8_lossy(&first), String::from_utf8_lossy(&second));
    assert_eq!(first_document["sha256"], second_document["sha256"]);
    assert_ne!(first_document["measured"]["run_id"], second_document["measured"]["run_id"]);
}

fn two_clones_same_stable_bytes(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_script("mkdir -p target && echo x > target/out; sort src/lib.rs; git rev-parse HEAD"));
    let path = env.root().join("another place/clone");
    repo.git(&["clone", "--quiet", "--no-hardlinks", ".", path.to_str().expect("UTF-8")]);
    let clone = Repo::at(env, path);
    let stable = |repo: &Repo<'_>| {
        repo.run().exits(0);
        String::from_utf8(documents::read_stable_bytes(&repo.changeset().join("verify/verify.it.json"))).expect("UTF-8")
    };
    assert_eq!(stable(&repo), stable(&clone));
}

fn d1_output_is_not_stable(env: &TestEnvironment) {
    let script = "od -An -N8 -tx1 /dev/urandom";
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("it", script)]).determinism("D1")]));
    repo.run().exits(0);
    let first = repo.evidence("verify.it");
    repo.run_with(&["--no-cache"]).exits(0);
    let second = repo.evidence("verify.it");
    assert_ne!(first["steps"][0]["stdout_sha256"], second["steps"][0]["stdout_sha256"]);
    assert_eq!(first["sha256"], second["sha256"]);
}

fn git_confirms_recorded_tree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    for document in ["verify.it", "_toolchain"] {
        let recorded = repo.evidence(document)["repo_git"].clone();
        let git_output = |arguments: &[&str]| repo.git(arguments).trim().to_owned();
        assert_eq!(recorded["head_commit"], git_output(&["rev-parse", "HEAD"]), "{document}");
        assert_eq!(recorded["tree"], git_output(&["write-tree"]), "{document}");
        assert_eq!(recorded["branch"], git_output(&["branch", "--show-current"]), "{document}");
    }
}

/// Runs the recipes of docs/evidence.md as printed, for a strict run and for a run with a missing control. The record
/// of the latter has a reason and a hint, which are not in the stable part.
fn hashes_verifiable_by_hand(env: &TestEnvironment) {
    let steps = [
        TestStep::sh("printed", "echo printed; echo \"w\u{e4}r \\\"ich\\\"\" >&2"),
        TestStep::sh("again", "date +%N; exit 1").with_field("retries: 1"),
    ];
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("verify.it", [steps[0].clone()]),
        TestSkill::new("verify.d1", steps).determinism("D1"),
    ]));
    repo.run().exits(1);
    assert_recipes_find_hashes(env, &repo);
    let missing = wrapper_without(&["landlock_create_ruleset=ENOSYS"]);
    let best_effort_run = ["run", "--changeset", CHANGESET, "--sandbox", "best-effort"];
    env.finish(env.start_through(repo.path(), &missing, &best_effort_run)).exits(1);
    let landlock = repo.step("printed")["enforcement"]["landlock"].clone();
    assert!(landlock["reason"].is_string() && landlock["hint"].is_string(), "{landlock:#}");
    assert_recipes_find_hashes(env, &repo);
}

fn assert_recipes_find_hashes(env: &TestEnvironment, repo: &Repo<'_>) {
    let recipes =
        std::fs::read_to_string(schemas::workspace_root().join("docs/evidence.md")).expect("the documentation");
    let (_, recipes) = recipes.split_once("## Verifying by hand").expect("its section");
    let blocks: Vec<&str> = recipes.split("```").skip(1).step_by(2).filter_map(|b| b.strip_prefix("sh\n")).collect();
    let [cited, stable] = blocks[..] else { panic!("two recipes were expected: {blocks:#?}") };
    let run_recipe = |dir: &Path, recipe: &str| {
        let mut shell = env.system_command_as_actor("sh");
        shell.current_dir(dir).env("LANG", "C.UTF-8").args(["-ec", recipe]);
        RunningProcess::start(shell).wait().exits(0).stdout
    };
    let hash =
        |dir: &Path, recipe: &str| run_recipe(dir, recipe).split_whitespace().next().unwrap_or_default().to_owned();
    let check_output = run_recipe(repo.path(), &cited.replace("changes/ID", &format!("changes/{CHANGESET}")));
    let documents = ["verify/_toolchain.json: OK", "verify/verify.d1.json: OK", "verify/verify.it.json: OK"];
    assert_eq!(check_output.lines().collect::<Vec<_>>(), documents);
    assert!(recipes.contains("`sha256sum spec/verification.yaml` is `spec_sha256`"));
    let spec = hash(repo.path(), "sha256sum spec/verification.yaml");
    for skill in ["verify.it", "verify.d1"] {
        let evidence = repo.evidence(skill);
        assert_eq!(evidence["spec_sha256"], *spec);
        let found = hash(&repo.changeset(), &stable.replace("SKILL", skill));
        assert_eq!(evidence["sha256"], *found, "{skill}: the recipe finds another hash\n{stable}\n{evidence:#}");
    }
    let plan = "proctor plan --profile PROFILE --format json";
    assert!(recipes.contains(&format!("`{plan} | sha256sum` is `plan_sha256`")));
    let plan: Vec<&str> = plan.split(' ').skip(1).map(|word| if word == "PROFILE" { "pr" } else { word }).collect();
    let plan = Sha256Hex::digest(repo.proctor(&plan).exits(0).stdout.as_bytes());
    assert_eq!(repo.evidence("verify.it")["plan_sha256"], plan.to_string());
    assert!(recipes.contains("`zstd -dc objects/AB/CDEF….zst | sha256sum` gives the name"));
    let output = repo.step("printed")["stdout_sha256"].as_str().expect("a hash").to_owned();
    let (shard, rest) = output.split_at(2);
    assert_eq!(hash(&env.state_dir(), &format!("zstd -dc objects/{shard}/{rest}.zst | sha256sum")), output);
}

fn spec_hash_of_read_bytes(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let expected = Sha256Hex::digest(repo.read("spec/verification.yaml").as_bytes());
    assert_eq!(repo.evidence("verify.it")["spec_sha256"], expected.to_string());
    assert_eq!(repo.last_run()["spec_sha256"], expected.to_string());
}

fn snapshot_depends_on_tree_only(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let snapshot = || {
        repo.run().exits(0);
        repo.last_run()["snapshot"].as_str().expect("text").to_owned()
    };
    let first = snapshot();
    assert_eq!(snapshot(), first, "our own documents count");
    repo.write("target/out", "ignored");
    assert_eq!(snapshot(), first, "an ignored file counts");
    repo.write("src/draft.rs", "new");
    let with_draft = snapshot();
    assert_ne!(with_draft, first, "a new file does not count");
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--message=m"]);
    assert_eq!(snapshot(), with_draft, "a commit that changes no file counts");
    repo.write("src/draft.rs", "NEW");
    assert_ne!(snapshot(), with_draft, "an edit of the same size does not count");
}

fn rerun_overwrites_evidence(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("test -e src/good"));
    repo.run().exits(1);
    repo.write("src/good", "");
    repo.run().exits(0);
    assert_eq!(repo.evidence("verify.it")["summary"]["outcome"], "passed");
    assert_eq!(repo.last_run()["outcome"], "passed");
    let files = machine::walk(&repo.changeset().join("verify")).len();
    assert_eq!(files, 1 + repo.last_run()["evidence"].as_object().map_or(0, serde_json::Map::len));
}

fn skill_name_maps_to_file_name(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([TestSkill::new("\"verify/lint: all\"", [TestStep::sh("it", "true")])]));
    repo.run().exits(0);
    assert_eq!(repo.evidence("verify_lint__all")["skill"], "verify/lint: all");
}

fn repository_untouched_without_changeset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo well"));
    let before = machine::walk(repo.path());
    repo.run_with_only(&[]).exits(0).prints(&["passed"]);
    assert_eq!(machine::walk(repo.path()), before, "a file appeared in the repository");
    let run = documents::only_run_dir(&env.state_dir());
    let evidence = documents::read_skill_evidence(&run, "verify.it");
    assert_eq!(evidence["changeset_id"], serde_json::Value::Null);
    assert_eq!(evidence["steps"][0]["stdout_preview"], "well\n");
}

fn foreign_status_fields_are_kept(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let old = r#"{ "state": "executed", "n": 1.50, "big": 123456789012345678901234567890, "deep": [{"a": null}], "ä": "\u00e4",
                  "verification": { "note": "by hand", "last_run": { "old": true } } }"#;
    repo.write(&format!("changes/{CHANGESET}/05-status.json"), old);
    repo.run().exits(0);
    let new = repo.read(&format!("changes/{CHANGESET}/05-status.json"));
    for kept in [
        r#""state": "executed""#,
        r#""n": 1.50"#,
        "123456789012345678901234567890",
        r#""a": null"#,
        r#""ä": "\u00e4""#,
        "by hand",
    ] {
        assert!(new.contains(kept), "{kept} is lost: {new}");
    }
    assert_eq!(repo.last_run()["outcome"], "passed");
    assert!(!new.contains("\"old\""), "{new}");
}

fn broken_status_is_kept(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for broken in ["{\"state\": ", "[]", "{\"a\":1,\"a\":2}", "{\"verification\":7}", ""] {
        let path = format!("changes/{CHANGESET}/05-status.json");
        repo.write(&path, broken);
        let run = repo.run();
        assert!(!matches!(run.code, Some(0) | None), "{broken:?} passed\n{run}");
        assert!(run.stderr.contains("05-status.json"), "{run}");
        assert_eq!(repo.read(&path), broken);
    }
}

/// Asserts that a run neither passes nor writes below `target`, and that the message contains `named`.
fn assert_link_is_refused(repo: &Repo<'_>, target: &Path, expected_message: &str) {
    let before: Vec<_> = machine::walk(target).into_iter().map(|path| (std::fs::read(&path).ok(), path)).collect();
    let run = repo.run();
    assert!(matches!(run.code, Some(2 | 5)), "a run through a link ended with {:?}\n{run}", run.code);
    assert!(run.all_output().contains(expected_message), "{expected_message} is not named\n{run}");
    let after: Vec<_> = machine::walk(target).into_iter().map(|path| (std::fs::read(&path).ok(), path)).collect();
    assert_eq!(before, after, "something outside was written");
}

fn refuses_status_link(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let target = env.root().join("sibling/status.json");
    machine::write(&target, "{\"state\":\"elsewhere\"}");
    repo.link(&format!("changes/{CHANGESET}/05-status.json"), &target);
    assert_link_is_refused(&repo, &env.root().join("sibling"), "05-status.json");
}

fn refuses_verify_link(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.link(&format!("changes/{CHANGESET}/verify"), &env.root().join("sibling"));
    assert_link_is_refused(&repo, &env.root().join("sibling"), "verify");
}

fn refuses_changeset_link(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    std::fs::remove_dir_all(repo.changeset()).expect("it was there");
    repo.link(&format!("changes/{CHANGESET}"), &env.root().join("sibling"));
    assert_link_is_refused(&repo, &env.root().join("sibling"), CHANGESET);
}

/// Replacing the link itself or refusing it is correct; only following it is wrong.
fn does_not_follow_artifact_link(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let target = env.root().join("sibling/secret.txt");
    let before = std::fs::read(&target).expect("it is there");
    std::fs::create_dir(repo.changeset().join("verify")).expect("a directory");
    repo.link(&format!("changes/{CHANGESET}/verify/verify.it.json"), &target);
    repo.run();
    assert_eq!(std::fs::read(&target).expect("it is there"), before);
}

fn leaves_no_temporary_files(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("it is there").flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&repo.changeset()), ["00-meta.json", "05-status.json", "verify"]);
    let mut cited: Vec<String> = repo.last_run()["evidence"].as_object().expect("an object").keys().cloned().collect();
    cited.sort();
    let written: Vec<String> =
        names(&repo.changeset().join("verify")).iter().map(|name| format!("verify/{name}")).collect();
    assert_eq!(written, cited);
}

/// With many documents and no step that runs, nearly all time is spent on writing.
fn parallel_runs_leave_one_record(env: &TestEnvironment) {
    let skill = |index| TestSkill::new(&format!("verify.skill{index}"), [TestStep::argv("it", &["true"])]).tier(2);
    let repo = env.repo(&TestSpec::new((0..60).map(skill)));
    let runs = [repo.start(&["--max-tier", "1"]), repo.start(&["--max-tier", "1"])];
    for run in runs.map(crate::process::RunningProcess::wait) {
        run.exits(5);
    }
    documents::check_all_documents(repo.path());
    let run_id = repo.last_run()["run_id"].clone();
    let foreign_documents =
        (0..60).filter(|index| repo.evidence(&format!("verify.skill{index}"))["measured"]["run_id"] != run_id);
    assert_eq!(foreign_documents.count(), 0, "the record mixes two runs");
}

/// Kills the run right after a document has been replaced: the first one, one in the middle, and the last one.
fn kill_while_writing(env: &TestEnvironment) {
    let skill = |index| TestSkill::new(&format!("verify.skill{index}"), [TestStep::argv("it", &["true"])]).tier(2);
    let repo = env.repo(&TestSpec::new((0..20).map(skill)));
    let tier_one = ["--max-tier", "1"];
    repo.run_with(&tier_one).exits(5);
    let files = [
        "05-status.json",
        "verify/_toolchain.json",
        "verify/verify.skill0.json",
        "verify/verify.skill10.json",
        "verify/verify.skill19.json",
    ];
    for file in files {
        let path = repo.changeset().join(file);
        let inode = || path.metadata().map(|meta| std::os::unix::fs::MetadataExt::ino(&meta)).ok();
        let before = inode();
        let mut running = repo.start(&tier_one);
        running.wait_until(|| inode() != before);
        running.signal_if_alive(rustix::process::Signal::KILL);
        running.wait();
        documents::check_all_documents(repo.path());
    }
    repo.run_with(&tier_one).exits(5);
}

fn enforcement_is_complete(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let step = repo.step("it");
    let controls = step["enforcement"].as_object().expect("an object");
    let expected = [
        "user_namespace",
        "mount_namespace",
        "pid_namespace",
        "network_namespace",
        "ipc_namespace",
        "uts_namespace",
        "read_only_root",
        "hidden_paths",
        "private_proc",
        "private_dev",
        "private_tmp",
        "layer",
        "git_read_only",
        "clean_environment",
        "close_fds",
        "no_new_privs",
        "no_capabilities",
        "new_session",
    ];
    for control in expected {
        assert_eq!(controls.get(control).map(|state| &state["state"]), Some(&"enforced".into()), "{control}");
    }
}
