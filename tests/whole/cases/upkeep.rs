//! Tests the verification of private copies by `proctor doctor --deep` and their removal by `proctor gc`, also during
//! runs.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::environment::{Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::needs::{Case, case};
use crate::process::Finished;
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    DAMAGED,
    case("", damaged).unprivileged("upkeep::a_damaged_copy_of_a_user_is_found_and_made_anew"),
    case("upkeep::damage_of_an_ignored_file_is_found", damaged_ignored),
    case("upkeep::a_held_copy_is_left", held),
    case("", held).unprivileged("upkeep::a_held_copy_of_a_user_is_left"),
    case("upkeep::gc_removes_copies_and_caches_that_are_made_anew", collected),
    case("upkeep::gc_leaves_a_directory_that_is_no_state_directory", not_state),
    case("upkeep::many_trees_leave_one_copy", one_copy),
];

/// Cases that also run through a daemon.
pub(super) const SERVED: &[Case] = &[DAMAGED];

const DAMAGED: Case = case("upkeep::a_damaged_copy_is_found_and_made_anew", damaged);
/// Maximum number of attempts while a daemon still holds a copy after its answer.
const ATTEMPTS: usize = 100;

/// Returns the directories of all private copies.
fn copies(env: &TestEnvironment) -> Vec<PathBuf> {
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(env.state().join("mirrors")).flat_map(entries).filter(|path| path.is_dir()).collect()
}

/// Flips a byte in a file of the only copy, and restores its times.
fn flip(env: &TestEnvironment, path: &str) {
    let file = copies(env)[0].join("own/tree").join(path);
    let modified = fs::metadata(&file).and_then(|found| found.modified()).expect("a file of the copy");
    let opened = fs::File::options().read(true).write(true).open(&file).expect("opens");
    let mut byte = [0];
    opened.read_exact_at(&mut byte, 0).expect("reads");
    opened.write_all_at(&[byte[0] ^ 1], 0).expect("writes");
    opened.set_modified(modified).expect("dates");
}

/// Verifies the copies of a repository without an active run.
fn deep(repo: &Repo<'_>) -> Finished {
    let verified = || repo.proctor(&["doctor", "--deep", "--format", "json"]);
    let is_held = |finished: &Finished| document(finished)["copies"][0]["state"] == "held";
    (0..ATTEMPTS).map(|_| verified()).find(|finished| !is_held(finished)).expect("the copy is released")
}

fn document(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// Runs `proctor gc` over the state directory of the case.
fn gc(env: &TestEnvironment, repo: &Repo<'_>, options: &[&str]) -> Value {
    let state = env.state();
    let words = [&["gc", "--format", "json", "--state-dir", state.to_str().expect("UTF-8")], options].concat();
    document(&repo.start_other(&words).wait().exits(0))
}

fn damaged(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("cat README.md src/lib.rs"));
    repo.run().exits(0);
    let sound = document(&deep(&repo).exits(0));
    assert_eq!(sound["copies"][0]["state"], "sound", "{sound:#}");
    flip(env, "src/lib.rs");
    let found = document(&deep(&repo).exits(1));
    let copy = &found["copies"][0];
    assert_eq!((&copy["state"], &copy["removed"]), (&"damaged".into(), &true.into()), "{found:#}");
    // Missing controls of the machine come first.
    let finding = found["findings"].as_array().and_then(|findings| findings.last()).expect("a finding");
    assert_eq!((&found["ready"], &finding["refuses"]), (&true.into(), &false.into()), "{found:#}");
    assert!(finding["message"].as_str().expect("text").contains("src/lib.rs"), "{found:#}");
    assert_eq!(copies(env), [] as [PathBuf; 0]);
    repo.run().exits(0);
    repo.proctor(&["doctor", "--deep"]).exits(0).says(&["private copy", "mirrors/"]);
}

fn damaged_ignored(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep built target/out"));
    repo.write(".gitignore", "/target/\n");
    repo.write("target/out", "built\n");
    repo.run().exits(0);
    flip(env, "target/out");
    repo.proctor(&["doctor", "--deep"]).exits(1).says(&["damaged", "`target/out` is not what was copied", "hint: "]);
    repo.run().exits(0);
}

fn held(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    let doctor = ["doctor", "--deep", "--format", "json"];
    let found = document(&repo.start_other(&doctor).wait().exits(0));
    assert_eq!(found["copies"][0]["state"], "held", "{found:#}");
    let kept = gc(env, &repo, &["--all"]);
    assert_eq!((&kept["freed"]["copies"]["number"], &kept["freed"]["copies"]["in_use"]), (&0.into(), &1.into()));
    assert_eq!(copies(env).len(), 1);
    release(&step);
    env.finish(running).exits(0);
    assert_eq!(gc(env, &repo, &["--all"])["freed"]["copies"]["number"], 1);
    assert_eq!(copies(env).len(), 0);
}

fn collected(env: &TestEnvironment) {
    let build = "[ -e target/out ] && echo kept; echo built > target/out; cat src/lib.rs";
    let skill = Skill::new("verify.it", [Step::sh("it", build)]).with("caches: [target]");
    let repo = env.repo(&Spec::new([skill]));
    repo.write(".gitignore", "target/\n");
    repo.run().exits(0);
    let begins = || repo.evidence("verify.it")["measured"]["caches"][0]["base"].clone();
    assert!(begins().is_null());
    repo.run().exits(0);
    assert!(!begins().is_null());
    let excess = gc(env, &repo, &[]);
    assert_eq!((&excess["bytes"], &excess["all"]), (&0.into(), &false.into()), "{excess:#}");
    let all = gc(env, &repo, &["--all"]);
    for kind in ["copies", "caches"] {
        let freed = &all["freed"][kind];
        assert!(freed["number"] == 1 && freed["bytes"].as_u64() > Some(0), "{all:#}");
    }
    assert_eq!(copies(env).len(), 0);
    repo.run().exits(0);
    assert!(begins().is_null() && copies(env).len() == 1);
}

fn not_state(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.write("caches/mine", "mine\n");
    let path = repo.path().to_str().expect("UTF-8").to_owned();
    env.proctor(["gc", "--all", "--state-dir", &path]).exits(2).complains(&["is not a state directory", "hint: "]);
    assert_eq!(repo.read("caches/mine"), "mine\n");
}

/// The disk never contains more copies than the one that a run verifies.
fn one_copy(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("cat src/lib.rs"));
    for number in 0..10 {
        repo.write("src/lib.rs", format!("{number}\n"));
        repo.write(&format!("src/new{number}.rs"), "new\n");
        repo.run().exits(0);
        assert_eq!(copies(env).len(), 1, "after the run {number}");
    }
    let freed = gc(env, &repo, &[]);
    assert_eq!(freed["freed"]["copies"]["number"], 0, "{freed:#}");
}
