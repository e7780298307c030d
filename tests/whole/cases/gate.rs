//! Tests `proctor gate` with real runs and with manipulated records: it must pass exactly for the tree that a run
//! verified.

use std::collections::BTreeMap;
use std::path::Path;

use proctor_core::decision::verdict::Verdict;
use proctor_core::model::outcome::{Outcome, Termination};
use proctor_core::record::evidence::{SkillEvidence, seal, to_bytes};
use proctor_core::record::status::{self, LastRun};
use proctor_core::text::digest::Sha256Hex;
use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::in_process_service::pass_from_aborted_run;
use crate::needs::{CaseDefinition, NEEDS_GIT, case, dry_case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};
use crate::{machine, schemas};

pub(super) const CASES: &[CaseDefinition] = &[
    case("gate::unchanged_tree_passes_and_writes_nothing", unchanged_tree_passes).daemon_sample(),
    case("gate::newest_run_of_the_tree_counts_without_a_changeset", newest_run_counts_without_changeset)
        .daemon_sample(),
    case("gate::as_an_ordinary_user", unchanged_tree_passes).unprivileged("gate::as_an_ordinary_user").daemon_sample(),
    case("gate::every_change_of_the_tree_is_detected", tree_changes_are_detected).daemon_sample(),
    case("gate::other_spec_profile_or_plan_is_refused", refuses_other_inputs),
    case("gate::failed_or_inconclusive_run_is_refused", refuses_failed_runs).daemon_sample(),
    case("gate::maximum_tier_and_age_are_enforced", limits_tier_and_age),
    case("gate::edited_evidence_is_refused", refuses_edited_evidence),
    case("gate::edited_status_file_is_refused", refuses_edited_status),
    case("gate::forged_pass_with_correct_hashes_is_refused", refuses_forged_pass).daemon_sample(),
    case("gate::each_manipulation_has_its_own_finding", names_each_forgery).daemon_sample(),
    case("gate::restored_older_pass_is_superseded_by_a_newer_failure", refuses_replayed_pass).daemon_sample(),
    case("gate::revoked_pass_is_refused_with_its_restored_status_file", refuses_revoked_pass).daemon_sample(),
    case("gate::evidence_copied_from_another_changeset_is_refused", refuses_copied_changeset),
    case("gate::unattested_run_is_refused_unless_accepted", refuses_unattested_run).daemon_sample(),
    case("gate::gate_is_inconclusive_during_a_run", refuses_during_run).daemon_sample(),
    case("gate::tree_changed_by_its_run_is_refused", refuses_tree_changed_by_run),
    case("gate::change_that_a_later_step_undid_is_refused", refuses_change_that_later_step_undid),
    case("gate::run_of_a_commit_verifies_an_equal_worktree", run_of_equal_commit_counts).needs(NEEDS_GIT),
    case("gate::state_directory_in_the_repository_is_refused", refuses_state_in_tree),
    case("gate::repository_with_a_split_index_is_supported", split_index_is_supported).needs(NEEDS_GIT),
    case("gate::changed_ignore_rules_outside_the_tree_are_refused", refuses_changed_ignore_rules)
        .needs(NEEDS_GIT)
        .daemon_sample(),
    case("gate::strict_inputs_accept_a_commit_but_not_ignored_files", strict_inputs_accept_commit)
        .needs(NEEDS_GIT)
        .daemon_sample(),
    case("gate::strict_inputs_refuse_a_run_on_a_shared_worktree", strict_inputs_refuse_shared_tree),
    case("gate::changed_paths_are_named_on_every_request", changed_paths_are_named),
    dry_case("gate::tree_without_a_recorded_run_is_refused", refuses_without_record),
];

/// The result of the gate.
struct GateResult {
    code: i32,
    finding_names: Vec<String>,
    json: Value,
}

/// Evaluates the gate for the usual changeset. Its documents are not checked, because a case may have manipulated
/// them.
fn ask_gate(repo: &Repo<'_>, arguments: &[&str]) -> GateResult {
    ask_gate_without_changeset(repo, &[&["--changeset", CHANGESET], arguments].concat())
}

fn ask_gate_without_changeset(repo: &Repo<'_>, arguments: &[&str]) -> GateResult {
    let words = [&["gate", "--format", "json"], arguments].concat();
    let finished = repo.start_proctor(&words).wait();
    let json: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"));
    schemas::assert_valid("gate", &json, &finished);
    let findings = json["findings"].as_array().expect("the schema says so");
    let codes = findings.iter().map(|finding| finding["name"].as_str().expect("a word").to_owned()).collect();
    let code = finished.code.expect("it ended by itself");
    assert_eq!(json["exit_code"], code, "{finished}");
    assert_eq!(json["pass"], code == 0, "{finished}");
    GateResult { code, finding_names: codes, json }
}

#[track_caller]
fn assert_gate_passes(repo: &Repo<'_>, arguments: &[&str]) -> GateResult {
    let answer = ask_gate(repo, arguments);
    assert_eq!((answer.code, answer.finding_names.len()), (0, 0), "{:#}", answer.json);
    answer
}

#[track_caller]
fn assert_gate_refuses(repo: &Repo<'_>, arguments: &[&str], code: i32, codes: &[&str]) -> GateResult {
    let answer = ask_gate(repo, arguments);
    assert_eq!(
        (answer.code, &*answer.finding_names),
        (code, &*codes.iter().map(|code| (*code).to_owned()).collect::<Vec<_>>()),
        "{:#}",
        answer.json
    );
    answer
}

fn unchanged_tree_passes(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let before = machine::walk(env.root());
    let answer = assert_gate_passes(&repo, &[]);
    assert_eq!(answer.json["run"]["run_id"], repo.last_run()["run_id"]);
    assert_eq!(answer.json["run"]["attested"], true);
    assert_eq!(answer.json["snapshot"], repo.last_run()["snapshot"]);
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(0).prints(&["verified: profile pr"]);
    assert_eq!(machine::walk(env.root()), before, "a gate writes nothing");
}

fn newest_run_counts_without_changeset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("test -e src/good"));
    assert_eq!(ask_gate_without_changeset(&repo, &[]).finding_names, ["nothing_recorded"]);
    repo.run_with_only(&[]).exits(1);
    assert_eq!(ask_gate_without_changeset(&repo, &[]).finding_names, ["run_failed"]);
    repo.write("src/good", "");
    assert_eq!(ask_gate_without_changeset(&repo, &[]).finding_names, ["tree_changed", "run_failed"]);
    repo.run_with_only(&[]).exits(0);
    assert_eq!(ask_gate_without_changeset(&repo, &[]).code, 0);
    repo.write("src/more", "");
    repo.run_with_only(&[]).exits(0);
    std::fs::remove_file(repo.file("src/more")).expect("it is there");
    assert_eq!(ask_gate_without_changeset(&repo, &[]).code, 0, "an older run on this very tree");
    assert_eq!(ask_gate(&repo, &[]).finding_names, ["nothing_recorded"], "a changeset has separate evidence");
    let runs = env.state_dir().join("runs");
    std::fs::remove_dir_all(runs).expect("they are there");
    assert_eq!(ask_gate_without_changeset(&repo, &[]).finding_names, ["evidence_missing"]);
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
}

fn tree_changes_are_detected(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let original = repo.read("src/lib.rs");
    let changes: [(&str, &dyn Fn()); 4] = [
        ("an edit", &|| repo.write("src/lib.rs", original.replace('1', "2"))),
        ("a file more", &|| repo.write("src/new.rs", "")),
        ("a file less", &|| std::fs::remove_file(repo.file("README.md")).expect("it is there")),
        ("a mode", &|| make_executable(&repo.file("src/lib.rs"))),
    ];
    for (change_name, change) in changes {
        change();
        let answer = ask_gate(&repo, &[]);
        assert_eq!((answer.code, &*answer.finding_names), (1, &["tree_changed".to_owned()][..]), "{change_name}");
        repo.git(&["stash", "--include-untracked", "--quiet"]);
        repo.git(&["stash", "drop", "--quiet"]);
        repo.run().exits(0);
    }
    repo.write("target/out", "ignored");
    assert_gate_passes(&repo, &[]);
    repo.git(&["commit", "--quiet", "--allow-empty", "--message=m"]);
    assert_gate_passes(&repo, &[]);
}

fn refuses_other_inputs(env: &TestEnvironment) {
    let spec = TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("it", "true")])]);
    let repo = env.repo(&spec);
    let text = repo.read("spec/verification.yaml").replace("profiles:", "profiles:\n  full: { include: [verify.it] }");
    repo.write("spec/verification.yaml", &text);
    repo.run().exits(0);
    assert_gate_refuses(&repo, &["--profile", "full"], 1, &["other_profile"]);
    let config = env.root().join("stricter.toml");
    machine::write(&config, "[defaults]\ntimeout_ms = 1234\n");
    machine::make_file_public(&config);
    assert_gate_refuses(&repo, &["--config", config.to_str().expect("UTF-8")], 1, &["other_plan"]);
    repo.write("spec/verification.yaml", format!("{text}\n# a comment\n"));
    assert_gate_refuses(&repo, &[], 1, &["other_spec", "tree_changed"]);
    repo.write("spec/verification.yaml", text);
    assert_gate_passes(&repo, &[]);
}

fn refuses_failed_runs(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("exit 7"));
    repo.run().exits(1);
    let answer = assert_gate_refuses(&repo, &[], 1, &["run_failed"]);
    let message = answer.json["findings"][0]["message"].as_str().expect("text").to_owned();
    assert!(message.contains("`verify.it/it` failed"), "{message}");
    let inconclusive =
        env.repo_at("other", &TestSpec::from_steps([TestStep::argv("it", &["no-such-program-anywhere"])]));
    inconclusive.run().exits(5);
    assert_gate_refuses(&inconclusive, &[], 5, &["run_inconclusive"]);
}

fn limits_tier_and_age(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("it", "true")]).tier(2)]));
    repo.run().exits(0);
    assert_gate_passes(&repo, &["--max-age", "1h"]);
    assert_gate_passes(&repo, &["--max-age", "unlimited"]);
    assert_gate_refuses(&repo, &["--max-tier", "1"], 1, &["tier_too_high"]);
    assert_gate_refuses(&repo, &["--max-age", "0s"], 1, &["stale"]);
    let config = env.root().join("operator.toml");
    machine::write(&config, "max_tier = 1\n");
    machine::make_file_public(&config);
    let codes = ask_gate(&repo, &["--max-tier", "3", "--config", config.to_str().expect("UTF-8")]).finding_names;
    assert!(codes.contains(&"tier_too_high".to_owned()), "{codes:?}");
}

/// Manipulates the record of a passed run with `act`, checks that the gate refuses it, and restores the record.
fn assert_edited_record_is_refused(repo: &Repo<'_>, edit: impl FnOnce(&Path), codes: &[&str]) {
    let dir = repo.changeset();
    let saved_files: BTreeMap<_, _> = machine::walk(&dir)
        .into_iter()
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(&path).expect("a file")))
        .collect();
    edit(&dir);
    let answer = ask_gate(repo, &[]);
    assert_eq!(
        (answer.code, answer.finding_names.iter().map(String::as_str).collect::<Vec<_>>()),
        (1, codes.to_vec()),
        "{:#}",
        answer.json
    );
    std::fs::remove_dir_all(&dir).expect("it is there");
    for (path, bytes) in saved_files {
        machine::write(&path, bytes);
    }
    assert_gate_passes(repo, &[]);
}

fn refuses_edited_evidence(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let document = "verify/verify.it.json";
    let append = |path: &Path| {
        let mut bytes = std::fs::read(path).expect("a file");
        bytes.push(b'\n');
        machine::write(path, bytes);
    };
    assert_edited_record_is_refused(&repo, |dir| append(&dir.join(document)), &["evidence_edited"]);
    assert_edited_record_is_refused(&repo, |dir| append(&dir.join("verify/_toolchain.json")), &["evidence_edited"]);
    assert_edited_record_is_refused(
        &repo,
        |dir| std::fs::remove_file(dir.join(document)).expect("it is there"),
        &["evidence_missing"],
    );
    assert_edited_record_is_refused(
        &repo,
        |dir| machine::write(&dir.join("verify/more.json"), "{}"),
        &["evidence_extra"],
    );
    assert_edited_record_is_refused(
        &repo,
        |dir| {
            std::fs::rename(dir.join(document), env.root().join("aside.json")).expect("it is there");
            std::os::unix::fs::symlink(env.root().join("aside.json"), dir.join(document)).expect("a link");
        },
        &["evidence_unreadable"],
    );
    assert_edited_record_is_refused(
        &repo,
        |dir| {
            std::fs::rename(dir.join("verify"), env.root().join("aside")).expect("it is there");
            std::os::unix::fs::symlink(env.root().join("aside"), dir.join("verify")).expect("a link");
        },
        &["tree_changed", "evidence_missing", "evidence_missing", "evidence_extra"],
    );
}

/// Returns a manipulation that changes the recorded end time.
fn set_end_time(timestamp: &'static str) -> impl FnOnce(&Path) {
    move |dir| {
        let path = dir.join("05-status.json");
        let mut status = crate::documents::read_json(&path);
        status["verification"]["last_run"]["timestamp"] = timestamp.into();
        machine::write(&path, status.to_string());
    }
}

fn refuses_edited_status(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let replace = |from: &'static str, to: &'static str| {
        move |dir: &Path| {
            let path = dir.join("05-status.json");
            let text = std::fs::read_to_string(&path).expect("a status");
            assert!(text.contains(from), "{text}");
            machine::write(&path, text.replace(from, to));
        }
    };
    assert_edited_record_is_refused(&repo, replace("{", "["), &["status_unreadable"]);
    assert_edited_record_is_refused(&repo, replace("\"tier\": ", "\"more\": 1, \"tier\": "), &["status_unreadable"]);
    assert_edited_record_is_refused(&repo, set_end_time("2001-02-03T04:05:06.789Z"), &["stale", "record_differs"]);
    assert_edited_record_is_refused(
        &repo,
        set_end_time("2901-02-03T04:05:06.789Z"),
        &["from_the_future", "record_differs"],
    );
    assert_edited_record_is_refused(&repo, set_end_time("yesterday"), &["time_unreadable", "record_differs"]);
    assert_edited_record_is_refused(
        &repo,
        |dir| std::fs::remove_file(dir.join("05-status.json")).expect("it is there"),
        &["evidence_missing"],
    );
    let status = repo.changeset().join("05-status.json");
    let text = std::fs::read_to_string(&status).expect("a status");
    let newer = text.replace("\"version\": 1", "\"version\": 2");
    assert_ne!(newer, text);
    machine::write(&status, newer);
    assert_gate_refuses(&repo, &[], 5, &["version_unknown"]);
    // Foreign fields may have any content and formatting.
    machine::write(&status, text.replacen('{', "{ \"owner\":\"someone\",\n", 1));
    assert_gate_passes(&repo, &[]);
}

/// Makes a failed run look like a passed one, with correct hashes.
fn forge_pass(repo: &Repo<'_>) {
    let (dir, file) = (repo.changeset(), "verify/verify.it.json");
    let mut skill: SkillEvidence =
        serde_json::from_slice(&std::fs::read(dir.join(file)).expect("evidence")).expect("ours");
    for step in &mut skill.steps {
        (step.outcome, step.exit_code) = (Outcome::Passed, Some(0));
        step.termination = Termination::Exited { code: 0 };
    }
    (skill.summary.outcome, skill.summary.overall_exit_code) = (Outcome::Passed, 0);
    let bytes = to_bytes(&seal(skill));
    let path = dir.join("05-status.json");
    let old = std::fs::read(&path).expect("a status");
    let mut run = status::last_run(&old).expect("reads").expect("one");
    run.outcome = Verdict::Passed;
    run.evidence.insert(file.to_owned(), Sha256Hex::digest(&bytes));
    machine::write(&dir.join(file), bytes);
    machine::write(&path, status::set_last_run(Some(&old), &run).expect("updates"));
}

fn refuses_forged_pass(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("exit 1"));
    repo.run().exits(1);
    forge_pass(&repo);
    assert_gate_refuses(&repo, &[], 1, &["record_differs"]);
    assert_gate_refuses(&repo, &["--accept-unattested"], 1, &["record_differs"]);
}

/// Rewrites the evidence of the skill, and the status with its new hash.
fn rewrite_evidence(repo: &Repo<'_>, document: impl FnOnce(String) -> String, run: impl FnOnce(&mut LastRun)) {
    let (path, file) = (repo.changeset().join("05-status.json"), "verify/verify.it.json");
    let text = document(std::fs::read_to_string(repo.changeset().join(file)).expect("evidence"));
    let old = std::fs::read(&path).expect("a status");
    let mut last_run = status::last_run(&old).expect("reads").expect("one");
    last_run.evidence.insert(file.to_owned(), Sha256Hex::digest(text.as_bytes()));
    run(&mut last_run);
    machine::write(&repo.changeset().join(file), text);
    machine::write(&path, status::set_last_run(Some(&old), &last_run).expect("updates"));
}

fn names_each_forgery(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("test ! -e target/weather"));
    repo.run().exits(0);
    let older = std::fs::read_to_string(repo.changeset().join("verify/verify.it.json")).expect("evidence");
    repo.run().exits(0);
    rewrite_evidence(&repo, |text| text.replace("\"exit_code\":0,", "\"exit_code\":3,"), |_| ());
    assert_gate_refuses(&repo, &[], 1, &["evidence_seal_broken", "record_differs"]);
    rewrite_evidence(&repo, |_| older, |_| ());
    assert_gate_refuses(&repo, &[], 1, &["evidence_foreign", "record_differs"]);
    repo.write("target/weather", "rain");
    repo.run().exits(1);
    rewrite_evidence(&repo, |text| text, |run| run.outcome = Verdict::Passed);
    assert_gate_refuses(&repo, &[], 1, &["evidence_contradicts", "record_differs"]);
    rewrite_evidence(&repo, |text| text, |run| run.evidence.clear());
    assert_gate_refuses(&repo, &[], 5, &["cites_nothing"]);
    repo.run().exits(1);
    let records = machine::walk(&env.state_dir().join("attestations"));
    for record in records.iter().filter(|path| path.is_file()) {
        machine::write(record, "{}");
    }
    assert!(ask_gate(&repo, &[]).finding_names.contains(&"record_unreadable".to_owned()));
}

fn refuses_replayed_pass(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("test -e target/weather"));
    repo.write("target/weather", "fine");
    repo.run().exits(0);
    let copy = env.root().join("aside");
    copy_files(&repo.changeset(), &copy);
    std::fs::remove_file(repo.file("target/weather")).expect("it is there");
    repo.run().exits(1);
    std::fs::remove_dir_all(repo.changeset()).expect("it is there");
    copy_files(&copy, &repo.changeset());
    assert_gate_refuses(&repo, &["--accept-unattested"], 1, &["superseded"]);
}

fn refuses_revoked_pass(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let pass = pass_from_aborted_run(env, &repo);
    let status = repo.changeset().join("05-status.json");
    let old_status = std::fs::read(&status).expect("a status");
    pass.withdraw().expect("it is taken back");
    // The pass locks the changeset until it is dropped.
    drop(pass);
    assert_gate_refuses(&repo, &[], 5, &["cites_nothing"]);
    machine::write(&status, old_status);
    assert_gate_refuses(&repo, &[], 1, &["record_differs"]);
    repo.run().exits(0);
    assert_gate_passes(&repo, &[]);
}

/// Copies the files below a directory.
fn copy_files(from: &Path, to: &Path) {
    for path in machine::walk(from).into_iter().filter(|path| path.is_file()) {
        let relative = path.strip_prefix(from).expect("the walk began there");
        machine::write(&to.join(relative), std::fs::read(&path).expect("a file"));
    }
}

fn refuses_copied_changeset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("changes/010_y/00-meta.json", "{\"title\":\"a change\"}\n");
    repo.run().exits(0);
    copy_files(&repo.changeset().join("verify"), &repo.file("changes/010_y/verify"));
    copy_files(&repo.changeset(), &repo.file("changes/010_y"));
    let answer = ask_gate_without_changeset(&repo, &["--changeset", "010_y"]);
    assert_eq!(answer.finding_names, ["other_changeset", "other_changeset", "unattested"], "{:#}", answer.json);
}

fn refuses_unattested_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    std::fs::remove_dir_all(env.state_dir()).expect("the state is there");
    assert_gate_refuses(&repo, &[], 1, &["unattested"]);
    let accepted = ask_gate(&repo, &["--accept-unattested"]);
    assert_eq!((accepted.code, &*accepted.finding_names), (0, &["unattested".to_owned()][..]));
    assert_eq!(accepted.json["run"]["attested"], false);
    machine::write(&repo.changeset().join("verify/verify.it.json"), "{}");
    assert_gate_refuses(&repo, &["--accept-unattested"], 1, &["evidence_edited", "unattested"]);
}

fn refuses_during_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let start_run = |repo: &Repo<'_>| {
        let mut running = repo.start(&[]);
        let step = wait_for_step(env, &mut running);
        (running, step)
    };
    let (running, step) = start_run(&repo);
    assert_gate_refuses(&repo, &[], 5, &["run_under_way"]);
    release_step(&step);
    env.finish(running).exits(0);
    assert_gate_passes(&repo, &[]);
    let (running, step) = start_run(&repo);
    assert_gate_refuses(&repo, &[], 5, &["run_under_way"]);
    release_step(&step);
    env.finish(running).exits(0);
    assert_gate_passes(&repo, &[]);
}

fn refuses_tree_changed_by_run(env: &TestEnvironment) {
    let format = TestStep::sh("format", "sed -i 's/ 1/ 2/' src/lib.rs").with_field("read_only: off");
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("check", "true"), format]));
    let original = repo.read("src/lib.rs");
    repo.run().exits(0);
    assert_ne!(repo.read("src/lib.rs"), original);
    assert_gate_refuses(&repo, &[], 1, &["changed_by_run"]);
    repo.write("src/lib.rs", &original);
    assert_gate_refuses(&repo, &[], 1, &["changed_by_run"]);
    repo.run().exits(0);
    repo.run().exits(0);
    assert_gate_passes(&repo, &[]);
}

fn refuses_change_that_later_step_undid(env: &TestEnvironment) {
    let step = |name, script| TestStep::sh(name, script).with_field("read_only: off");
    let [to, back] = [step("to", "sed -i 's/ 1/ 2/' src/lib.rs"), step("back", "sed -i 's/ 2/ 1/' src/lib.rs")];
    let repo = env.repo(&TestSpec::from_steps([to, TestStep::sh("it", "grep -q ' 2' src/lib.rs"), back]));
    repo.run().exits(0);
    assert_gate_refuses(&repo, &[], 1, &["changed_by_run"]);
    let patch = env.root().join("out.patch");
    repo.run_with(&["--patch", patch.to_str().expect("UTF-8")]).exits(0);
    assert_gate_refuses(&repo, &[], 1, &["changed_by_run"]);
    repo.run_with(&["--rev", "HEAD"]).exits(5).prints(&["verify.it/to: it changed files of the commit"]);
    assert_gate_refuses(&repo, &[], 5, &["run_inconclusive"]);
}

fn run_of_equal_commit_counts(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("src/lib.rs", "not committed\n");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_gate_refuses(&repo, &[], 1, &["tree_changed"]);
    repo.git(&["checkout", "--quiet", "--", "src/lib.rs"]);
    assert_gate_passes(&repo, &[]);
}

fn split_index_is_supported(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.git(&["update-index", "--split-index"]);
    repo.run().exits(0);
    assert_gate_passes(&repo, &[]);
    repo.write("src/new.rs", "");
    assert_gate_refuses(&repo, &[], 1, &["tree_changed"]);
}

/// Ignore rules outside of the tree hide a new file from the snapshot, but not from the steps.
fn refuses_changed_ignore_rules(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let exclude = repo.file(".git/info/exclude");
    machine::write(&exclude, "# mine\n*.tmp\n");
    repo.write("a.tmp", "x");
    repo.run().exits(0);
    let recorded = repo.last_run()["external_ignores"].clone();
    assert_eq!(recorded, serde_json::json!({ "info/exclude": Sha256Hex::digest(b"*.tmp\n") }));
    assert_gate_passes(&repo, &[]);
    machine::write(&exclude, "*.tmp\n# a comment is no rule\n");
    assert_gate_passes(&repo, &[]);
    repo.write("evil.py", "x");
    assert_gate_refuses(&repo, &[], 1, &["tree_changed"]);
    machine::write(&exclude, "*.tmp\nevil.py\n");
    let answer = assert_gate_refuses(&repo, &[], 1, &["ignores_changed"]);
    let exclude_path = exclude.canonicalize().expect("there").display().to_string();
    assert_eq!(answer.json["findings"][0]["paths"], serde_json::json!([exclude_path]));
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(1).prints(&[&exclude_path, "hide no file"]);
    repo.run().exits(0);
    assert_gate_passes(&repo, &[]);
    // First another rules file, then no rules file.
    let rules = repo.file(".git/rules");
    machine::write(&rules, "*.other\n");
    repo.git(&["config", "core.excludesFile", rules.to_str().expect("UTF-8")]);
    assert_gate_refuses(&repo, &[], 1, &["ignores_changed"]);
    repo.git(&["config", "--unset", "core.excludesFile"]);
    assert_gate_passes(&repo, &[]);
    repo.git(&["config", "core.ignoreCase", "true"]);
    assert_gate_refuses(&repo, &[], 1, &["ignores_changed"]);
    repo.git(&["config", "--unset", "core.ignoreCase"]);
    std::fs::remove_file(repo.file("evil.py")).expect("removed");
    std::fs::remove_file(&exclude).expect("removed");
    assert_gate_refuses(&repo, &[], 1, &["tree_changed", "ignores_changed"]);
    // A run of a commit uses no external rules, whatever the worktree has.
    std::fs::remove_file(repo.file("a.tmp")).expect("removed");
    machine::write(&exclude, "*.tmp\n");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(repo.last_run()["external_ignores"], serde_json::json!({}));
    assert_gate_refuses(&repo, &[], 1, &["ignores_changed"]);
    machine::write(&exclude, "");
    assert_gate_passes(&repo, &[]);
}

fn strict_inputs_accept_commit(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("target/out", "ignored");
    repo.run().exits(0);
    assert_gate_passes(&repo, &[]);
    let answer = assert_gate_refuses(&repo, &["--strict-inputs"], 1, &["inputs_unverified"]);
    assert_eq!(answer.json["findings"][0]["code"], "P0334");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_gate_passes(&repo, &["--strict-inputs"]);
}

fn strict_inputs_refuse_shared_tree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let config = env.root().join("shared.toml");
    machine::write(&config, "[tree]\nmode = \"shared\"\n");
    machine::make_file_public(&config);
    repo.run_with(&["--config", config.to_str().expect("UTF-8")]).exits(0);
    assert_gate_passes(&repo, &[]);
    let gate = repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]);
    gate.exits(1).prints(&["saw the worktree itself", "`ignored: hidden`", "--rev HEAD"]);
}

fn changed_paths_are_named(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    repo.write("src/lib.rs", "edited\n");
    repo.write("src/new.rs", "");
    for _ in 0..2 {
        let answer = assert_gate_refuses(&repo, &[], 1, &["tree_changed"]);
        assert_eq!(answer.json["findings"][0]["paths"], serde_json::json!(["src/lib.rs", "src/new.rs"]));
    }
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(1).prints(&["at 2 paths", "    src/new.rs\n"]);
}

fn refuses_state_in_tree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run_with_only(&[]).exits(0);
    copy_files(&env.state_dir().join("attestations"), &repo.file("state/attestations"));
    let mut command = env.command(repo.path());
    command.args(["gate", "--state-dir", "state"]);
    crate::process::RunningProcess::start(command).wait().exits(2).prints_to_stderr(&["is inside the repository"]);
}

fn refuses_without_record(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    assert_gate_refuses(&repo, &[], 2, &["nothing_recorded"]);
    assert!(!env.state_dir().exists(), "asking makes nothing");
    let refused = repo.start_proctor(&["gate"]).wait();
    assert_eq!(refused.code, Some(2), "{refused}");
    refused.prints(&["not verified", "proctor run --profile pr"]);
    repo.start_proctor(&["gate", "--changeset", "010_none"])
        .wait()
        .exits(2)
        .prints_to_stderr(&["no changeset directory"]);
    repo.start_proctor(&["gate", "--profile", "none"]).wait().exits(2).prints_to_stderr(&["none"]);
    repo.start_proctor(&["gate", "--max-age", "soon"]).wait().exits(2).prints_to_stderr(&["a duration such as"]);
}
