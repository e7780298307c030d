//! Tests the verification of private copies by `proctor doctor --deep` and their removal by `proctor gc`, also during
//! runs.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    DAMAGED_COPY,
    case("", damaged_copy_is_replaced).unprivileged("maintenance::damaged_copy_of_a_user_is_found_and_replaced"),
    case("maintenance::damage_of_an_ignored_file_is_found", damage_of_ignored_file_is_found),
    case("maintenance::copy_in_use_is_kept", copy_in_use_is_kept),
    case("", copy_in_use_is_kept).unprivileged("maintenance::copy_in_use_by_a_user_is_kept"),
    case("maintenance::gc_removes_copies_and_caches_and_a_run_recreates_them", gc_removes_copies_and_caches),
    case("maintenance::gc_refuses_a_directory_that_is_not_a_state_directory", gc_refuses_other_directories),
    case("maintenance::many_trees_keep_one_copy", many_trees_keep_one_copy),
];

/// Cases that also run through a daemon.
pub(super) const DAEMON_CASES: &[CaseDefinition] = &[DAMAGED_COPY];

const DAMAGED_COPY: CaseDefinition =
    case("maintenance::damaged_copy_is_found_and_replaced", damaged_copy_is_replaced).daemon_sample();
/// Maximum number of attempts while a daemon still holds a copy after its answer.
const MAX_ATTEMPTS: usize = 100;

/// Returns the directories of all private copies.
fn private_copies(env: &TestEnvironment) -> Vec<PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(env.state_dir().join("mirrors")).flat_map(entries).filter(|path| path.is_dir()).collect()
}

/// Flips a byte in a file of the only copy, and restores its times.
fn corrupt_file(env: &TestEnvironment, path: &str) {
    let file = private_copies(env)[0].join("own/tree").join(path);
    let modified = fs::metadata(&file).and_then(|found| found.modified()).expect("a file of the copy");
    let opened = fs::File::options().read(true).write(true).open(&file).expect("opens");
    let mut byte = [0];
    opened.read_exact_at(&mut byte, 0).expect("reads");
    opened.write_all_at(&[byte[0] ^ 1], 0).expect("writes");
    opened.set_modified(modified).expect("dates");
}

/// Verifies the copies of a repository without an active run.
fn verify_copies(repo: &Repo<'_>) -> FinishedProcess {
    let verified = || repo.proctor(&["doctor", "--deep", "--format", "json"]);
    let is_held = |finished: &FinishedProcess| parse_json(finished)["copies"][0]["state"] == "held";
    (0..MAX_ATTEMPTS).map(|_| verified()).find(|finished| !is_held(finished)).expect("the copy is released")
}

fn parse_json(finished: &FinishedProcess) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// Runs `proctor gc` over the state directory of the case.
fn run_gc(env: &TestEnvironment, repo: &Repo<'_>, options: &[&str]) -> Value {
    let state = env.state_dir();
    let words = [&["gc", "--format", "json", "--state-dir", state.to_str().expect("UTF-8")], options].concat();
    parse_json(&repo.start_proctor(&words).wait().exits(0))
}

fn damaged_copy_is_replaced(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("cat README.md src/lib.rs"));
    repo.run().exits(0);
    let sound = parse_json(&verify_copies(&repo).exits(0));
    assert_eq!(sound["copies"][0]["state"], "sound", "{sound:#}");
    corrupt_file(env, "src/lib.rs");
    let found = parse_json(&verify_copies(&repo).exits(1));
    let copy = &found["copies"][0];
    assert_eq!((&copy["state"], &copy["removed"]), (&"damaged".into(), &true.into()), "{found:#}");
    // Missing controls of the machine come first.
    let finding = found["findings"].as_array().and_then(|findings| findings.last()).expect("a finding");
    assert_eq!((&found["ready"], &finding["refuses"]), (&true.into(), &false.into()), "{found:#}");
    assert!(finding["message"].as_str().expect("text").contains("src/lib.rs"), "{found:#}");
    assert_eq!(private_copies(env), [] as [PathBuf; 0]);
    repo.run().exits(0);
    repo.proctor(&["doctor", "--deep"]).exits(0).prints(&["private copy", "mirrors/"]);
}

fn damage_of_ignored_file_is_found(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep built target/out"));
    repo.write(".gitignore", "/target/\n");
    repo.write("target/out", "built\n");
    repo.run().exits(0);
    corrupt_file(env, "target/out");
    repo.proctor(&["doctor", "--deep"]).exits(1).prints(&[
        "damaged",
        "`target/out` differs from the copied content",
        "hint: ",
    ]);
    repo.run().exits(0);
}

fn copy_in_use_is_kept(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    let doctor = ["doctor", "--deep", "--format", "json"];
    let found = parse_json(&repo.start_proctor(&doctor).wait().exits(0));
    assert_eq!(found["copies"][0]["state"], "held", "{found:#}");
    let kept = run_gc(env, &repo, &["--all"]);
    assert_eq!((&kept["freed"]["copies"]["number"], &kept["freed"]["copies"]["in_use"]), (&0.into(), &1.into()));
    assert_eq!(private_copies(env).len(), 1);
    release_step(&step);
    env.finish(running).exits(0);
    assert_eq!(run_gc(env, &repo, &["--all"])["freed"]["copies"]["number"], 1);
    assert_eq!(private_copies(env).len(), 0);
}

fn gc_removes_copies_and_caches(env: &TestEnvironment) {
    let build = "[ -e target/out ] && echo kept; echo built > target/out; cat src/lib.rs";
    let skill = TestSkill::new("verify.it", [TestStep::sh("it", build)]).with_field("caches: [target]");
    let repo = env.repo(&TestSpec::new([skill]));
    repo.write(".gitignore", "target/\n");
    repo.run().exits(0);
    let cache_base = || repo.evidence("verify.it")["measured"]["caches"][0]["base"].clone();
    assert!(cache_base().is_null());
    repo.run().exits(0);
    assert!(!cache_base().is_null());
    let without_all = run_gc(env, &repo, &[]);
    assert_eq!((&without_all["bytes"], &without_all["all"]), (&0.into(), &false.into()), "{without_all:#}");
    // The operator's bound for the size removes even the only copy.
    let config = env.root().join("small.toml");
    machine::write(&config, "[daemon.retention]\nmax_copy_bytes = 4096\n");
    let config = ["--config", config.to_str().expect("UTF-8")];
    let state = env.state_dir();
    let usage = [&["du", "--state-dir", state.to_str().expect("UTF-8")], &config[..]].concat();
    repo.start_proctor(&usage).wait().exits(0).prints(&["private copies, at most 4 KiB"]);
    let small = run_gc(env, &repo, &config);
    assert_eq!((&small["freed"]["copies"]["number"], &small["freed"]["caches"]["number"]), (&1.into(), &0.into()));
    assert_eq!(private_copies(env).len(), 0);
    repo.run().exits(0);
    let all = run_gc(env, &repo, &["--all"]);
    for kind in ["copies", "caches"] {
        let freed = &all["freed"][kind];
        assert!(freed["number"] == 1 && freed["bytes"].as_u64() > Some(0), "{all:#}");
    }
    assert_eq!(private_copies(env).len(), 0);
    repo.run().exits(0);
    assert!(cache_base().is_null() && private_copies(env).len() == 1);
}

fn gc_refuses_other_directories(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("caches/mine", "mine\n");
    let path = repo.path().to_str().expect("UTF-8").to_owned();
    env.proctor(["gc", "--all", "--state-dir", &path])
        .exits(2)
        .prints_to_stderr(&["is not a state directory", "hint: "]);
    assert_eq!(repo.read("caches/mine"), "mine\n");
}

/// The disk never contains more copies than the one that a run verifies.
fn many_trees_keep_one_copy(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("cat src/lib.rs"));
    for number in 0..10 {
        repo.write("src/lib.rs", format!("{number}\n"));
        repo.write(&format!("src/new{number}.rs"), "new\n");
        repo.run().exits(0);
        assert_eq!(private_copies(env).len(), 1, "after the run {number}");
    }
    let freed = run_gc(env, &repo, &[]);
    assert_eq!(freed["freed"]["copies"]["number"], 0, "{freed:#}");
}
