//! Tests `proctor gate` with real runs and with manipulated records: it must pass exactly for the tree that a run
//! verified.

use std::collections::BTreeMap;
use std::path::Path;

use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::{SkillEvidence, seal, to_bytes};
use proctor_core::outcome::{Outcome, Termination};
use proctor_core::status::{self, LastRun};
use proctor_core::verdict::Verdict;
use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::needs::{Case, NEEDS_GIT, case, dry_case};
use crate::serving::passed_and_broke;
use crate::spec::{Skill, Spec, Step};
use crate::{machine, schemas};

pub(super) const CASES: &[Case] = &[
    case("gate::an_unchanged_tree_passes_and_nothing_is_written", unchanged),
    case("gate::without_a_changeset_the_newest_run_on_this_tree_counts", without_changeset),
    case("gate::as_an_ordinary_user", unchanged).unprivileged("gate::as_an_ordinary_user"),
    case("gate::every_change_of_the_tree_is_noticed", tree_changed),
    case("gate::another_spec_profile_or_plan_is_not_what_ran", other_inputs),
    case("gate::a_failed_or_inconclusive_run_is_no_pass", not_passed),
    case("gate::the_tier_and_the_age_are_bounded", tier_and_age),
    case("gate::evidence_that_was_touched_is_no_evidence", evidence_touched),
    case("gate::a_status_file_that_was_touched_is_no_status", status_touched),
    case("gate::a_forger_who_fixes_every_hash_does_not_pass", forged),
    case("gate::what_is_made_by_hand_is_told_for_what_it_is", made_by_hand),
    case("gate::an_older_pass_does_not_stand_for_a_newer_failure", replayed),
    case("gate::a_pass_that_was_taken_back_does_not_come_back_with_its_status", taken_back),
    case("gate::a_changeset_that_was_copied_does_not_pass", copied_changeset),
    case("gate::a_run_that_the_state_does_not_know_needs_somebody_to_vouch_for_it", unattested),
    case("gate::a_run_under_way_is_waited_for", under_way),
    case("gate::a_tree_that_the_run_changed_is_not_verified", changed_by_run),
    case("gate::a_commit_that_was_verified_serves_the_worktree_that_is_equal_to_it", of_a_commit).needs(NEEDS_GIT),
    case("gate::a_state_directory_in_the_tree_vouches_for_nothing", state_in_the_tree),
    case("gate::a_repository_that_only_git_reads", only_git_reads_it).needs(NEEDS_GIT),
    case("gate::ignore_rules_outside_of_the_tree_are_those_of_the_run", ignore_rules).needs(NEEDS_GIT),
    case("gate::strict_inputs_accept_a_commit_and_no_ignored_files", strict_inputs).needs(NEEDS_GIT),
    case("gate::strict_inputs_refuse_a_run_over_the_worktree_itself", strict_inputs_of_a_shared_tree),
    case("gate::what_was_changed_is_named_each_time", paths_are_named),
    dry_case("gate::nothing_on_record_is_no_pass", nothing_recorded),
];

/// The result of the gate.
struct Answer {
    code: i32,
    codes: Vec<String>,
    json: Value,
}

/// Evaluates the gate for the usual changeset. Its documents are not checked, because a case may have manipulated
/// them.
fn ask(repo: &Repo<'_>, arguments: &[&str]) -> Answer {
    ask_bare(repo, &[&["--changeset", CHANGESET], arguments].concat())
}

fn ask_bare(repo: &Repo<'_>, arguments: &[&str]) -> Answer {
    let words = [&["gate", "--format", "json"], arguments].concat();
    let finished = repo.start_other(&words).wait();
    let json: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"));
    schemas::demand("gate", &json, &finished);
    let findings = json["findings"].as_array().expect("the schema says so");
    let codes = findings.iter().map(|finding| finding["name"].as_str().expect("a word").to_owned()).collect();
    let code = finished.code.expect("it ended by itself");
    assert_eq!(json["exit_code"], code, "{finished}");
    assert_eq!(json["pass"], code == 0, "{finished}");
    Answer { code, codes, json }
}

#[track_caller]
fn passes(repo: &Repo<'_>, arguments: &[&str]) -> Answer {
    let answer = ask(repo, arguments);
    assert_eq!((answer.code, answer.codes.len()), (0, 0), "{:#}", answer.json);
    answer
}

#[track_caller]
fn refuses(repo: &Repo<'_>, arguments: &[&str], code: i32, codes: &[&str]) -> Answer {
    let answer = ask(repo, arguments);
    assert_eq!(
        (answer.code, &*answer.codes),
        (code, &*codes.iter().map(|code| (*code).to_owned()).collect::<Vec<_>>()),
        "{:#}",
        answer.json
    );
    answer
}

fn unchanged(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    let before = machine::walk(env.root());
    let answer = passes(&repo, &[]);
    assert_eq!(answer.json["run"]["run_id"], repo.last_run()["run_id"]);
    assert_eq!(answer.json["run"]["attested"], true);
    assert_eq!(answer.json["snapshot"], repo.last_run()["snapshot"]);
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(0).says(&["verified: profile pr"]);
    assert_eq!(machine::walk(env.root()), before, "a gate writes nothing");
}

fn without_changeset(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("test -e src/good"));
    assert_eq!(ask_bare(&repo, &[]).codes, ["nothing_recorded"]);
    repo.run_bare(&[]).exits(1);
    assert_eq!(ask_bare(&repo, &[]).codes, ["run_failed"]);
    repo.write("src/good", "");
    assert_eq!(ask_bare(&repo, &[]).codes, ["tree_changed", "run_failed"]);
    repo.run_bare(&[]).exits(0);
    assert_eq!(ask_bare(&repo, &[]).code, 0);
    repo.write("src/more", "");
    repo.run_bare(&[]).exits(0);
    std::fs::remove_file(repo.file("src/more")).expect("it is there");
    assert_eq!(ask_bare(&repo, &[]).code, 0, "an older run on this very tree");
    assert_eq!(ask(&repo, &[]).codes, ["nothing_recorded"], "a changeset has separate evidence");
    let runs = env.state().join("runs");
    std::fs::remove_dir_all(runs).expect("they are there");
    assert_eq!(ask_bare(&repo, &[]).codes, ["evidence_missing"]);
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
}

fn tree_changed(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    let original = repo.read("src/lib.rs");
    let changes: [(&str, &dyn Fn()); 4] = [
        ("an edit", &|| repo.write("src/lib.rs", original.replace('1', "2"))),
        ("a file more", &|| repo.write("src/new.rs", "")),
        ("a file less", &|| std::fs::remove_file(repo.file("README.md")).expect("it is there")),
        ("a mode", &|| make_executable(&repo.file("src/lib.rs"))),
    ];
    for (what, change) in changes {
        change();
        let answer = ask(&repo, &[]);
        assert_eq!((answer.code, &*answer.codes), (1, &["tree_changed".to_owned()][..]), "{what}");
        repo.git(&["stash", "--include-untracked", "--quiet"]);
        repo.git(&["stash", "drop", "--quiet"]);
        repo.run().exits(0);
    }
    repo.write("target/out", "ignored");
    passes(&repo, &[]);
    repo.git(&["commit", "--quiet", "--allow-empty", "--message=m"]);
    passes(&repo, &[]);
}

fn other_inputs(env: &TestEnvironment) {
    let spec = Spec::new([Skill::new("verify.it", [Step::sh("it", "true")])]);
    let repo = env.repo(&spec);
    let text = repo.read("spec/verification.yaml").replace("profiles:", "profiles:\n  full: { include: [verify.it] }");
    repo.write("spec/verification.yaml", &text);
    repo.run().exits(0);
    refuses(&repo, &["--profile", "full"], 1, &["other_profile"]);
    let config = env.root().join("stricter.toml");
    machine::write(&config, "[defaults]\ntimeout_ms = 1234\n");
    machine::open_file_to_all(&config);
    refuses(&repo, &["--config", config.to_str().expect("UTF-8")], 1, &["other_plan"]);
    repo.write("spec/verification.yaml", format!("{text}\n# a comment\n"));
    refuses(&repo, &[], 1, &["other_spec", "tree_changed"]);
    repo.write("spec/verification.yaml", text);
    passes(&repo, &[]);
}

fn not_passed(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("exit 7"));
    repo.run().exits(1);
    let answer = refuses(&repo, &[], 1, &["run_failed"]);
    let message = answer.json["findings"][0]["message"].as_str().expect("text").to_owned();
    assert!(message.contains("`verify.it/it` failed"), "{message}");
    let inconclusive = env.repo_at("other", &Spec::of_steps([Step::argv("it", &["no-such-program-anywhere"])]));
    inconclusive.run().exits(5);
    refuses(&inconclusive, &[], 5, &["run_inconclusive"]);
}

fn tier_and_age(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [Step::sh("it", "true")]).tier(2)]));
    repo.run().exits(0);
    passes(&repo, &["--max-age", "1h"]);
    passes(&repo, &["--max-age", "unlimited"]);
    refuses(&repo, &["--max-tier", "1"], 1, &["tier_too_high"]);
    refuses(&repo, &["--max-age", "0s"], 1, &["stale"]);
    let config = env.root().join("operator.toml");
    machine::write(&config, "max_tier = 1\n");
    machine::open_file_to_all(&config);
    let codes = ask(&repo, &["--max-tier", "3", "--config", config.to_str().expect("UTF-8")]).codes;
    assert!(codes.contains(&"tier_too_high".to_owned()), "{codes:?}");
}

/// Manipulates the record of a passed run with `act`, checks that the gate refuses it, and restores the record.
fn spoilt(repo: &Repo<'_>, act: impl FnOnce(&Path), codes: &[&str]) {
    let dir = repo.changeset();
    let kept: BTreeMap<_, _> = machine::walk(&dir)
        .into_iter()
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(&path).expect("a file")))
        .collect();
    act(&dir);
    let answer = ask(repo, &[]);
    assert_eq!(
        (answer.code, answer.codes.iter().map(String::as_str).collect::<Vec<_>>()),
        (1, codes.to_vec()),
        "{:#}",
        answer.json
    );
    std::fs::remove_dir_all(&dir).expect("it is there");
    for (path, bytes) in kept {
        machine::write(&path, bytes);
    }
    passes(repo, &[]);
}

fn evidence_touched(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    let document = "verify/verify.it.json";
    let append = |path: &Path| {
        let mut bytes = std::fs::read(path).expect("a file");
        bytes.push(b'\n');
        machine::write(path, bytes);
    };
    spoilt(&repo, |dir| append(&dir.join(document)), &["evidence_edited"]);
    spoilt(&repo, |dir| append(&dir.join("verify/_toolchain.json")), &["evidence_edited"]);
    spoilt(&repo, |dir| std::fs::remove_file(dir.join(document)).expect("it is there"), &["evidence_missing"]);
    spoilt(&repo, |dir| machine::write(&dir.join("verify/more.json"), "{}"), &["evidence_extra"]);
    spoilt(
        &repo,
        |dir| {
            std::fs::rename(dir.join(document), env.root().join("aside.json")).expect("it is there");
            std::os::unix::fs::symlink(env.root().join("aside.json"), dir.join(document)).expect("a link");
        },
        &["evidence_unreadable"],
    );
    spoilt(
        &repo,
        |dir| {
            std::fs::rename(dir.join("verify"), env.root().join("aside")).expect("it is there");
            std::os::unix::fs::symlink(env.root().join("aside"), dir.join("verify")).expect("a link");
        },
        &["tree_changed", "evidence_missing", "evidence_missing", "evidence_extra"],
    );
}

/// Returns a manipulation that changes the recorded end time.
fn dated(timestamp: &'static str) -> impl FnOnce(&Path) {
    move |dir| {
        let path = dir.join("05-status.json");
        let mut status = crate::documents::read(&path);
        status["verification"]["last_run"]["timestamp"] = timestamp.into();
        machine::write(&path, status.to_string());
    }
}

fn status_touched(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    let replace = |from: &'static str, to: &'static str| {
        move |dir: &Path| {
            let path = dir.join("05-status.json");
            let text = std::fs::read_to_string(&path).expect("a status");
            assert!(text.contains(from), "{text}");
            machine::write(&path, text.replace(from, to));
        }
    };
    spoilt(&repo, replace("{", "["), &["status_unreadable"]);
    spoilt(&repo, replace("\"tier\": ", "\"more\": 1, \"tier\": "), &["status_unreadable"]);
    spoilt(&repo, dated("2001-02-03T04:05:06.789Z"), &["stale", "record_differs"]);
    spoilt(&repo, dated("2901-02-03T04:05:06.789Z"), &["from_the_future", "record_differs"]);
    spoilt(&repo, dated("yesterday"), &["time_unreadable", "record_differs"]);
    spoilt(&repo, |dir| std::fs::remove_file(dir.join("05-status.json")).expect("it is there"), &["evidence_missing"]);
    let status = repo.changeset().join("05-status.json");
    let text = std::fs::read_to_string(&status).expect("a status");
    let newer = text.replace("\"version\": 1", "\"version\": 2");
    assert_ne!(newer, text);
    machine::write(&status, newer);
    refuses(&repo, &[], 5, &["version_unknown"]);
    // Foreign fields may have any content and formatting.
    machine::write(&status, text.replacen('{', "{ \"owner\":\"someone\",\n", 1));
    passes(&repo, &[]);
}

/// Makes a failed run look like a passed one, with correct hashes.
fn forge(repo: &Repo<'_>) {
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
    run.evidence.insert(file.to_owned(), Sha256Hex::of(&bytes));
    machine::write(&dir.join(file), bytes);
    machine::write(&path, status::update(Some(&old), &run).expect("updates"));
}

fn forged(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("exit 1"));
    repo.run().exits(1);
    forge(&repo);
    refuses(&repo, &[], 1, &["record_differs"]);
    refuses(&repo, &["--accept-unattested"], 1, &["record_differs"]);
}

/// Rewrites the evidence of the skill, and the status with its new hash.
fn rewrite(repo: &Repo<'_>, document: impl FnOnce(String) -> String, run: impl FnOnce(&mut LastRun)) {
    let (path, file) = (repo.changeset().join("05-status.json"), "verify/verify.it.json");
    let text = document(std::fs::read_to_string(repo.changeset().join(file)).expect("evidence"));
    let old = std::fs::read(&path).expect("a status");
    let mut last_run = status::last_run(&old).expect("reads").expect("one");
    last_run.evidence.insert(file.to_owned(), Sha256Hex::of(text.as_bytes()));
    run(&mut last_run);
    machine::write(&repo.changeset().join(file), text);
    machine::write(&path, status::update(Some(&old), &last_run).expect("updates"));
}

fn made_by_hand(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("test ! -e target/weather"));
    repo.run().exits(0);
    let older = std::fs::read_to_string(repo.changeset().join("verify/verify.it.json")).expect("evidence");
    repo.run().exits(0);
    rewrite(&repo, |text| text.replace("\"exit_code\":0,", "\"exit_code\":3,"), |_| ());
    refuses(&repo, &[], 1, &["evidence_seal_broken", "record_differs"]);
    rewrite(&repo, |_| older, |_| ());
    refuses(&repo, &[], 1, &["evidence_foreign", "record_differs"]);
    repo.write("target/weather", "rain");
    repo.run().exits(1);
    rewrite(&repo, |text| text, |run| run.outcome = Verdict::Passed);
    refuses(&repo, &[], 1, &["evidence_contradicts", "record_differs"]);
    rewrite(&repo, |text| text, |run| run.evidence.clear());
    refuses(&repo, &[], 5, &["cites_nothing"]);
    repo.run().exits(1);
    let records = machine::walk(&env.state().join("attestations"));
    for record in records.iter().filter(|path| path.is_file()) {
        machine::write(record, "{}");
    }
    assert!(ask(&repo, &[]).codes.contains(&"record_unreadable".to_owned()));
}

fn replayed(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("test -e target/weather"));
    repo.write("target/weather", "fine");
    repo.run().exits(0);
    let aside = env.root().join("aside");
    machine_copy(&repo.changeset(), &aside);
    std::fs::remove_file(repo.file("target/weather")).expect("it is there");
    repo.run().exits(1);
    std::fs::remove_dir_all(repo.changeset()).expect("it is there");
    machine_copy(&aside, &repo.changeset());
    refuses(&repo, &["--accept-unattested"], 1, &["superseded"]);
}

fn taken_back(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let pass = passed_and_broke(env, &repo);
    let status = repo.changeset().join("05-status.json");
    let said = std::fs::read(&status).expect("a status");
    pass.withdraw().expect("it is taken back");
    // The pass locks the changeset until it is dropped.
    drop(pass);
    refuses(&repo, &[], 5, &["cites_nothing"]);
    machine::write(&status, said);
    refuses(&repo, &[], 1, &["record_differs"]);
    repo.run().exits(0);
    passes(&repo, &[]);
}

/// Copies the files below a directory.
fn machine_copy(from: &Path, to: &Path) {
    for path in machine::walk(from).into_iter().filter(|path| path.is_file()) {
        let below = path.strip_prefix(from).expect("the walk began there");
        machine::write(&to.join(below), std::fs::read(&path).expect("a file"));
    }
}

fn copied_changeset(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.write("changes/010_y/00-meta.json", "{\"title\":\"a change\"}\n");
    repo.run().exits(0);
    machine_copy(&repo.changeset().join("verify"), &repo.file("changes/010_y/verify"));
    machine_copy(&repo.changeset(), &repo.file("changes/010_y"));
    let answer = ask_bare(&repo, &["--changeset", "010_y"]);
    assert_eq!(answer.codes, ["other_changeset", "other_changeset", "unattested"], "{:#}", answer.json);
}

fn unattested(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    std::fs::remove_dir_all(env.state()).expect("the state is there");
    refuses(&repo, &[], 1, &["unattested"]);
    let accepted = ask(&repo, &["--accept-unattested"]);
    assert_eq!((accepted.code, &*accepted.codes), (0, &["unattested".to_owned()][..]));
    assert_eq!(accepted.json["run"]["attested"], false);
    machine::write(&repo.changeset().join("verify/verify.it.json"), "{}");
    refuses(&repo, &["--accept-unattested"], 1, &["evidence_edited", "unattested"]);
}

fn under_way(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let first = |repo: &Repo<'_>| {
        let mut running = repo.start(&[]);
        let step = wait_for_step(env, &mut running);
        (running, step)
    };
    let (running, step) = first(&repo);
    refuses(&repo, &[], 5, &["run_under_way"]);
    release(&step);
    env.finish(running).exits(0);
    passes(&repo, &[]);
    let (running, step) = first(&repo);
    refuses(&repo, &[], 5, &["run_under_way"]);
    release(&step);
    env.finish(running).exits(0);
    passes(&repo, &[]);
}

fn changed_by_run(env: &TestEnvironment) {
    let format = Step::sh("format", "sed -i 's/ 1/ 2/' src/lib.rs").with("read_only: off");
    let repo = env.repo(&Spec::of_steps([Step::sh("check", "true"), format]));
    let original = repo.read("src/lib.rs");
    repo.run().exits(0);
    assert_ne!(repo.read("src/lib.rs"), original);
    refuses(&repo, &[], 1, &["changed_by_run"]);
    repo.write("src/lib.rs", &original);
    refuses(&repo, &[], 1, &["changed_by_run"]);
    repo.run().exits(0);
    repo.run().exits(0);
    passes(&repo, &[]);
}

fn of_a_commit(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.write("src/lib.rs", "not committed\n");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    refuses(&repo, &[], 1, &["tree_changed"]);
    repo.git(&["checkout", "--quiet", "--", "src/lib.rs"]);
    passes(&repo, &[]);
}

fn only_git_reads_it(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.git(&["update-index", "--split-index"]);
    repo.run().exits(0);
    passes(&repo, &[]);
    repo.write("src/new.rs", "");
    refuses(&repo, &[], 1, &["tree_changed"]);
}

/// Ignore rules outside of the tree hide a new file from the snapshot, but not from the steps.
fn ignore_rules(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let exclude = repo.file(".git/info/exclude");
    machine::write(&exclude, "# mine\n*.tmp\n");
    repo.write("a.tmp", "x");
    repo.run().exits(0);
    let recorded = repo.last_run()["external_ignores"].clone();
    assert_eq!(recorded, serde_json::json!({ "info/exclude": Sha256Hex::of(b"*.tmp\n") }));
    passes(&repo, &[]);
    machine::write(&exclude, "*.tmp\n# a comment is no rule\n");
    passes(&repo, &[]);
    repo.write("evil.py", "x");
    refuses(&repo, &[], 1, &["tree_changed"]);
    machine::write(&exclude, "*.tmp\nevil.py\n");
    let answer = refuses(&repo, &[], 1, &["ignores_changed"]);
    let place = exclude.canonicalize().expect("there").display().to_string();
    assert_eq!(answer.json["findings"][0]["paths"], serde_json::json!([place]));
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(1).says(&[&place, "hide no file"]);
    repo.run().exits(0);
    passes(&repo, &[]);
    // Another rules file, then none.
    let rules = repo.file(".git/rules");
    machine::write(&rules, "*.other\n");
    repo.git(&["config", "core.excludesFile", rules.to_str().expect("UTF-8")]);
    refuses(&repo, &[], 1, &["ignores_changed"]);
    repo.git(&["config", "--unset", "core.excludesFile"]);
    passes(&repo, &[]);
    repo.git(&["config", "core.ignoreCase", "true"]);
    refuses(&repo, &[], 1, &["ignores_changed"]);
    repo.git(&["config", "--unset", "core.ignoreCase"]);
    std::fs::remove_file(repo.file("evil.py")).expect("removed");
    std::fs::remove_file(&exclude).expect("removed");
    refuses(&repo, &[], 1, &["tree_changed", "ignores_changed"]);
    // A run of a commit uses no external rules, whatever the worktree has.
    std::fs::remove_file(repo.file("a.tmp")).expect("removed");
    machine::write(&exclude, "*.tmp\n");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(repo.last_run()["external_ignores"], serde_json::json!({}));
    refuses(&repo, &[], 1, &["ignores_changed"]);
    machine::write(&exclude, "");
    passes(&repo, &[]);
}

fn strict_inputs(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.write("target/out", "ignored");
    repo.run().exits(0);
    passes(&repo, &[]);
    let answer = refuses(&repo, &["--strict-inputs"], 1, &["inputs_unverified"]);
    assert_eq!(answer.json["findings"][0]["code"], "P0334");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    passes(&repo, &["--strict-inputs"]);
}

fn strict_inputs_of_a_shared_tree(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let config = env.root().join("shared.toml");
    machine::write(&config, "[tree]\nmode = \"shared\"\n");
    machine::open_file_to_all(&config);
    repo.run_with(&["--config", config.to_str().expect("UTF-8")]).exits(0);
    passes(&repo, &[]);
    let gate = repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]);
    gate.exits(1).says(&["saw the worktree itself", "`ignored: hidden`", "--rev HEAD"]);
}

fn paths_are_named(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    repo.write("src/lib.rs", "edited\n");
    repo.write("src/new.rs", "");
    for _ in 0..2 {
        let answer = refuses(&repo, &[], 1, &["tree_changed"]);
        assert_eq!(answer.json["findings"][0]["paths"], serde_json::json!(["src/lib.rs", "src/new.rs"]));
    }
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(1).says(&["at 2 paths", "    src/new.rs\n"]);
}

fn state_in_the_tree(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run_bare(&[]).exits(0);
    machine_copy(&env.state().join("attestations"), &repo.file("state/attestations"));
    let mut command = env.command(repo.path());
    command.args(["gate", "--state-dir", "state"]);
    crate::process::Running::start(command).wait().exits(2).complains(&["is inside the repository"]);
}

fn nothing_recorded(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    refuses(&repo, &[], 2, &["nothing_recorded"]);
    assert!(!env.state().exists(), "asking makes nothing");
    let said = repo.start_other(&["gate"]).wait();
    assert_eq!(said.code, Some(2), "{said}");
    said.says(&["not verified", "proctor run --profile pr"]);
    repo.start_other(&["gate", "--changeset", "010_none"]).wait().exits(2).complains(&["no changeset directory"]);
    repo.start_other(&["gate", "--profile", "none"]).wait().exits(2).complains(&["none"]);
    repo.start_other(&["gate", "--max-age", "soon"]).wait().exits(2).complains(&["a duration such as"]);
}
