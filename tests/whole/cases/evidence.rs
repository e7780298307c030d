//! Tests the record: its content, its reproducibility, and that it cannot be redirected to another place.

use std::path::Path;

use proctor_core::digest::Sha256Hex;

use super::degrading::lacking;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{Case, NEEDS_GIT, Needs, case};
use crate::process::Running;
use crate::spec::{Skill, Spec, Step};
use crate::{documents, machine, schemas};

pub(super) const CASES: &[Case] = &[
    case("evidence::two_runs_give_the_same_stable_bytes", two_runs),
    case("evidence::two_clones_give_the_same_stable_bytes", two_clones).needs(NEEDS_GIT),
    case("evidence::output_of_d1_is_outside_the_stable_part", class_d1),
    case("evidence::git_alone_finds_the_tree_again", git_names).needs(NEEDS_GIT),
    case("evidence::whoever_has_jq_finds_every_hash_again", by_hand).needs(BY_HAND),
    case("evidence::the_spec_hash_is_of_the_bytes_that_were_read", spec_hash),
    case("evidence::the_snapshot_follows_the_tree_and_nothing_else", snapshot_follows_tree),
    case("evidence::a_rerun_overwrites_what_was_there", rerun),
    case("evidence::a_skill_name_becomes_a_file_name", artifact_name),
    case("evidence::without_a_changeset_nothing_is_written_into_the_repository", without_changeset),
    case("evidence::foreign_fields_of_the_status_stay", foreign_fields),
    case("evidence::a_broken_status_is_not_overwritten", broken_status),
    case("evidence::the_status_as_a_link_is_refused", status_link),
    case("evidence::the_verify_directory_as_a_link_is_refused", verify_link),
    case("evidence::the_changeset_as_a_link_is_refused", changeset_link),
    case("evidence::an_artifact_as_a_link_is_not_followed", artifact_link),
    case("evidence::no_temporary_file_stays", no_temporary_files),
    case("evidence::two_runs_at_once_leave_a_whole_record", two_runs_at_once),
    case("evidence::a_kill_while_writing_leaves_whole_documents", killed_while_writing),
    case("evidence::every_control_is_accounted_for", enforcement_is_whole),
];

/// Requires the programs of the recipes in docs/evidence.md, and Python to remove a control.
const BY_HAND: &[Needs] = &[
    Needs::Sandbox,
    Needs::Program("python3"),
    Needs::Program("jq"),
    Needs::Program("sha256sum"),
    Needs::Program("zstd"),
];

fn two_runs(env: &TestEnvironment) {
    let script = "echo out; echo err >&2; mkdir -p target; date +%N > target/stamp; sort src/lib.rs";
    let repo = env.repo(&Spec::of_script(script));
    repo.run().exits(0);
    let artifact = repo.changeset().join("verify/verify.it.json");
    let (first, first_document) = (documents::stable_bytes(&artifact), documents::read(&artifact));
    repo.run().exits(0);
    let (second, second_document) = (documents::stable_bytes(&artifact), documents::read(&artifact));
    assert!(first == second, "\n{}\n{}", String::from_utf8_lossy(&first), String::from_utf8_lossy(&second));
    assert_eq!(first_document["sha256"], second_document["sha256"]);
    assert_ne!(first_document["measured"]["run_id"], second_document["measured"]["run_id"]);
}

fn two_clones(env: &TestEnvironment) {
    let repo =
        env.repo(&Spec::of_script("mkdir -p target && echo x > target/out; sort src/lib.rs; git rev-parse HEAD"));
    let path = env.root().join("another place/clone");
    repo.git(&["clone", "--quiet", "--no-hardlinks", ".", path.to_str().expect("UTF-8")]);
    let clone = Repo::at(env, path);
    let stable = |repo: &Repo<'_>| {
        repo.run().exits(0);
        String::from_utf8(documents::stable_bytes(&repo.changeset().join("verify/verify.it.json"))).expect("UTF-8")
    };
    assert_eq!(stable(&repo), stable(&clone));
}

fn class_d1(env: &TestEnvironment) {
    let script = "od -An -N8 -tx1 /dev/urandom";
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [Step::sh("it", script)]).determinism("D1")]));
    repo.run().exits(0);
    let first = repo.evidence("verify.it");
    repo.run().exits(0);
    let second = repo.evidence("verify.it");
    assert_ne!(first["steps"][0]["stdout_sha256"], second["steps"][0]["stdout_sha256"]);
    assert_eq!(first["sha256"], second["sha256"]);
}

fn git_names(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    for document in ["verify.it", "_toolchain"] {
        let recorded = repo.evidence(document)["repo_git"].clone();
        let said = |arguments: &[&str]| repo.git(arguments).trim().to_owned();
        assert_eq!(recorded["head_commit"], said(&["rev-parse", "HEAD"]), "{document}");
        assert_eq!(recorded["tree"], said(&["write-tree"]), "{document}");
        assert_eq!(recorded["branch"], said(&["branch", "--show-current"]), "{document}");
    }
}

/// Runs the recipes of docs/evidence.md as printed, for a strict run and for a run with a missing control. The record
/// of the latter has a reason and a hint, which are not in the stable part.
fn by_hand(env: &TestEnvironment) {
    let steps = [
        Step::sh("told", "echo told; echo \"w\u{e4}r \\\"ich\\\"\" >&2"),
        Step::sh("again", "date +%N; exit 1").with("retries: 1"),
    ];
    let repo = env.repo(&Spec::new([
        Skill::new("verify.it", [steps[0].clone()]),
        Skill::new("verify.d1", steps).determinism("D1"),
    ]));
    repo.run().exits(1);
    hashes_are_found_by_hand(env, &repo);
    let missing = lacking(&["landlock_create_ruleset=ENOSYS"]);
    let less = ["run", "--changeset", CHANGESET, "--sandbox", "best-effort"];
    env.finish(env.start_through(repo.path(), &missing, &less)).exits(1);
    let landlock = repo.step("told")["enforcement"]["landlock"].clone();
    assert!(landlock["reason"].is_string() && landlock["hint"].is_string(), "{landlock:#}");
    hashes_are_found_by_hand(env, &repo);
}

fn hashes_are_found_by_hand(env: &TestEnvironment, repo: &Repo<'_>) {
    let recipes = std::fs::read_to_string(schemas::project().join("docs/evidence.md")).expect("the documentation");
    let (_, recipes) = recipes.split_once("## Verifying by hand").expect("its section");
    let blocks: Vec<&str> = recipes.split("```").skip(1).step_by(2).filter_map(|b| b.strip_prefix("sh\n")).collect();
    let [cited, stable] = blocks[..] else { panic!("two recipes were expected: {blocks:#?}") };
    let said = |dir: &Path, recipe: &str| {
        let mut shell = env.program_of_actor("sh");
        shell.current_dir(dir).env("LANG", "C.UTF-8").args(["-ec", recipe]);
        Running::start(shell).wait().exits(0).stdout
    };
    let hash = |dir: &Path, recipe: &str| said(dir, recipe).split_whitespace().next().unwrap_or_default().to_owned();
    let checked = said(repo.path(), &cited.replace("changes/ID", &format!("changes/{CHANGESET}")));
    let documents = ["verify/_toolchain.json: OK", "verify/verify.d1.json: OK", "verify/verify.it.json: OK"];
    assert_eq!(checked.lines().collect::<Vec<_>>(), documents);
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
    let plan = Sha256Hex::of(repo.proctor(&plan).exits(0).stdout.as_bytes());
    assert_eq!(repo.evidence("verify.it")["plan_sha256"], plan.as_str());
    assert!(recipes.contains("`zstd -dc objects/AB/CDEF….zst | sha256sum` gives the name"));
    let output = repo.step("told")["stdout_sha256"].as_str().expect("a hash").to_owned();
    let (shard, rest) = output.split_at(2);
    assert_eq!(hash(&env.state(), &format!("zstd -dc objects/{shard}/{rest}.zst | sha256sum")), output);
}

fn spec_hash(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    let expected = Sha256Hex::of(repo.read("spec/verification.yaml").as_bytes());
    assert_eq!(repo.evidence("verify.it")["spec_sha256"], expected.as_str());
    assert_eq!(repo.last_run()["spec_sha256"], expected.as_str());
}

fn snapshot_follows_tree(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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

fn rerun(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("test -e src/good"));
    repo.run().exits(1);
    repo.write("src/good", "");
    repo.run().exits(0);
    assert_eq!(repo.evidence("verify.it")["summary"]["outcome"], "passed");
    assert_eq!(repo.last_run()["outcome"], "passed");
    let files = machine::walk(&repo.changeset().join("verify")).len();
    assert_eq!(files, 1 + repo.last_run()["evidence"].as_object().map_or(0, serde_json::Map::len));
}

fn artifact_name(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([Skill::new("\"verify/lint: all\"", [Step::sh("it", "true")])]));
    repo.run().exits(0);
    assert_eq!(repo.evidence("verify_lint__all")["skill"], "verify/lint: all");
}

fn without_changeset(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo well"));
    let before = machine::walk(repo.path());
    repo.run_bare(&[]).exits(0).says(&["passed"]);
    assert_eq!(machine::walk(repo.path()), before, "a file appeared in the repository");
    let run = documents::only_run(&env.state());
    let evidence = documents::skill(&run, "verify.it");
    assert_eq!(evidence["changeset_id"], serde_json::Value::Null);
    assert_eq!(evidence["steps"][0]["stdout_preview"], "well\n");
}

fn foreign_fields(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let old = r#"{ "state": "executed", "n": 1.50, "big": 123456789012345678901234567890, "deep": [{"a": null}], "ä": "\u00e4",
                  "verification": { "note": "by hand", "last_run": { "old": true } } }"#;
    repo.write(&format!("changes/{CHANGESET}/05-status.json"), old);
    repo.run().exits(0);
    let new = repo.read(&format!("changes/{CHANGESET}/05-status.json"));
    for kept in [
        r#""state": "executed""#,
        r#""n": 1.5"#,
        "123456789012345678901234567890",
        r#""a": null"#,
        r#""ä": "ä""#,
        "by hand",
    ] {
        assert!(new.contains(kept), "{kept} is lost: {new}");
    }
    assert_eq!(repo.last_run()["outcome"], "passed");
    assert!(!new.contains("\"old\""), "{new}");
}

fn broken_status(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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
fn demand_refused(repo: &Repo<'_>, target: &Path, named: &str) {
    let before: Vec<_> = machine::walk(target).into_iter().map(|path| (std::fs::read(&path).ok(), path)).collect();
    let run = repo.run();
    assert!(matches!(run.code, Some(2 | 5)), "a run through a link ended with {:?}\n{run}", run.code);
    assert!(run.everything().contains(named), "{named} is not named\n{run}");
    let after: Vec<_> = machine::walk(target).into_iter().map(|path| (std::fs::read(&path).ok(), path)).collect();
    assert_eq!(before, after, "something outside was written");
}

fn status_link(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let target = env.root().join("sibling/status.json");
    machine::write(&target, "{\"state\":\"elsewhere\"}");
    repo.link(&format!("changes/{CHANGESET}/05-status.json"), &target);
    demand_refused(&repo, &env.root().join("sibling"), "05-status.json");
}

fn verify_link(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.link(&format!("changes/{CHANGESET}/verify"), &env.root().join("sibling"));
    demand_refused(&repo, &env.root().join("sibling"), "verify");
}

fn changeset_link(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    std::fs::remove_dir_all(repo.changeset()).expect("it was there");
    repo.link(&format!("changes/{CHANGESET}"), &env.root().join("sibling"));
    demand_refused(&repo, &env.root().join("sibling"), CHANGESET);
}

/// Replacing the link itself or refusing it is correct; only following it is wrong.
fn artifact_link(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let target = env.root().join("sibling/secret.txt");
    let before = std::fs::read(&target).expect("it is there");
    std::fs::create_dir(repo.changeset().join("verify")).expect("a directory");
    repo.link(&format!("changes/{CHANGESET}/verify/verify.it.json"), &target);
    repo.run();
    assert_eq!(std::fs::read(&target).expect("it is there"), before);
}

fn no_temporary_files(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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
fn two_runs_at_once(env: &TestEnvironment) {
    let skill = |index| Skill::new(&format!("verify.skill{index}"), [Step::argv("it", &["true"])]).tier(2);
    let repo = env.repo(&Spec::new((0..60).map(skill)));
    let runs = [repo.start(&["--max-tier", "1"]), repo.start(&["--max-tier", "1"])];
    for run in runs.map(crate::process::Running::wait) {
        run.exits(5);
    }
    documents::check_all(repo.path());
    let run_id = repo.last_run()["run_id"].clone();
    let of_another =
        (0..60).filter(|index| repo.evidence(&format!("verify.skill{index}"))["measured"]["run_id"] != run_id);
    assert_eq!(of_another.count(), 0, "the record mixes two runs");
}

/// Kills the run right after a document has been replaced: the first one, one in the middle, and the last one.
fn killed_while_writing(env: &TestEnvironment) {
    let skill = |index| Skill::new(&format!("verify.skill{index}"), [Step::argv("it", &["true"])]).tier(2);
    let repo = env.repo(&Spec::new((0..20).map(skill)));
    let quick = ["--max-tier", "1"];
    repo.run_with(&quick).exits(5);
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
        let mut running = repo.start(&quick);
        running.wait_until(|| inode() != before);
        running.signal_if_there(rustix::process::Signal::KILL);
        running.wait();
        documents::check_all(repo.path());
    }
    repo.run_with(&quick).exits(5);
}

fn enforcement_is_whole(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
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
