//! Tests links, FIFOs and other files in place of a changeset or of files that a daemon writes there, placed before a
//! run or exchanged while it writes. Nothing outside may change, no run may pass without a complete record, and the
//! next run passes when the real files are back.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, RenameFlags, mknodat, renameat_with};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::crash::assert_on_record;
use super::hostile_clients::with_health_probe;
use super::http::{assert_matches_schema, run_request, submitted_run_id};
use crate::daemon::{READY_MESSAGE, TestDaemon};
use crate::documents;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, case};
use crate::test_level::campaign_size;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("path_swaps::files_in_place_of_a_record_are_not_followed", files_in_place_of_record),
    case("path_swaps::swaps_never_redirect_thousands_of_writes", swaps_never_redirect_writes),
    case("path_swaps::run_that_passes_during_swaps_is_recorded", passing_run_during_swaps),
];

/// Number of documents that are written while paths are exchanged, in `make test` and in `make test-long`.
const MIN_WRITES: [usize; 2] = [1_500, 10_000];
/// Number of documents of one run.
const SKILLS_PER_RUN: usize = 250;
/// Maximum number of runs needed to write that many documents.
const MAX_RUNS: usize = 2_000;
/// Number of runs with a real step, in `make test` and in `make test-long`.
const PASSING_RUNS: [usize; 2] = [8, 24];

/// A directory that does not belong to the daemon, with its initial state.
struct OutsideDir {
    path: PathBuf,
    initial: Vec<OutsideFile>,
}

/// Path, inode number, change time and content of a file.
type OutsideFile = (PathBuf, u64, (i64, i64), Option<Vec<u8>>);

impl OutsideDir {
    /// Creates a directory below `dir` that resembles a changeset.
    fn create_below(dir: &Path) -> Self {
        let path = dir.join("outside");
        machine::write(&path.join("00-meta.json"), "{}");
        machine::write(&path.join("05-status.json"), "{\"state\":\"elsewhere\"}");
        machine::write(&path.join("document"), "{}");
        machine::write(&path.join("verify/keep"), "kept");
        let before = file_states(&path);
        Self { path, initial: before }
    }

    #[track_caller]
    fn assert_untouched(&self, what: &str) {
        assert_eq!(file_states(&self.path), self.initial, "{what}: something outside was written");
    }
}

fn file_states(dir: &Path) -> Vec<OutsideFile> {
    let one = |path: PathBuf| {
        let stat = path.symlink_metadata().expect("the walk found it");
        let bytes = if stat.is_file() { std::fs::read(&path).ok() } else { None };
        (path, stat.ino(), (stat.mtime(), stat.mtime_nsec()), bytes)
    };
    machine::walk(dir).into_iter().map(one).collect()
}

/// A file that replaces a real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replacement {
    /// A symbolic link to an outside file of the same kind.
    Symlink,
    /// A dangling link, through which a file would be created outside.
    DanglingSymlink,
    Fifo,
    /// A hard link to an outside file.
    HardLink,
    /// A file in place of a directory, or the reverse.
    WrongKind,
}

/// A path below the changeset, with its counterpart outside.
#[derive(Debug, Clone, Copy)]
struct ChangesetPath {
    path: &'static str,
    outside_path: &'static str,
    is_directory: bool,
}

const CHANGESET_PATHS: [ChangesetPath; 5] = [
    ChangesetPath { path: "", outside_path: "", is_directory: true },
    ChangesetPath { path: "verify", outside_path: "verify", is_directory: true },
    ChangesetPath { path: "05-status.json", outside_path: "05-status.json", is_directory: false },
    ChangesetPath { path: "verify/_toolchain.json", outside_path: "document", is_directory: false },
    ChangesetPath { path: "verify/verify.it.json", outside_path: "document", is_directory: false },
];
const REPLACEMENTS: [Replacement; 5] = [
    Replacement::Symlink,
    Replacement::DanglingSymlink,
    Replacement::Fifo,
    Replacement::HardLink,
    Replacement::WrongKind,
];

impl Replacement {
    fn create_at(self, at: &Path, changeset_path: ChangesetPath, outside: &Path) {
        let counterpart = outside.join(changeset_path.outside_path);
        match self {
            Self::Symlink => symlink(counterpart, at).expect("a link of the test"),
            Self::DanglingSymlink => symlink(outside.join("new"), at).expect("a link of the test"),
            Self::Fifo => mknodat(CWD, at, FileType::Fifo, 0o644.into(), 0).expect("a FIFO of the test"),
            Self::HardLink => std::fs::hard_link(counterpart, at).expect("a link of the test"),
            Self::WrongKind if changeset_path.is_directory => drop(File::create_new(at).expect("a file of the test")),
            Self::WrongKind => std::fs::create_dir(at).expect("a directory of the test"),
        }
    }

    /// Checks whether a run replaces the entry with its own file, which is safe because a rename does not follow
    /// links.
    fn is_replaced_at(self, changeset_path: ChangesetPath) -> bool {
        let is_evidence = changeset_path.path.starts_with("verify/");
        self == Self::HardLink || (self == Self::Fifo && is_evidence)
    }
}

/// Removes any file or directory.
fn remove_any(path: &Path) {
    let is_directory = path.symlink_metadata().expect("something stands there").is_dir();
    let removed = if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    removed.expect("removed");
}

fn run_changeset(daemon: &TestDaemon<'_>, repo: &Repo<'_>, more: &Value) -> Value {
    let mut body = run_request(repo.path(), &json!({ "changeset_id": CHANGESET }));
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let answer = daemon.request("POST", "/v1/runs", Some(&body));
    match answer.status {
        202 => daemon.wait_for_run(&submitted_run_id(&answer.parse_json_body())),
        _ => {
            assert_matches_schema("Problem", &answer.parse_json_body());
            assert_eq!(answer.status, 422, "{answer:?}");
            json!({ "verdict": "inconclusive", "problem": answer.parse_json_body() })
        }
    }
}

#[track_caller]
fn assert_passes(daemon: &TestDaemon<'_>, repo: &Repo<'_>) {
    let run = run_changeset(daemon, repo, &json!({}));
    assert_eq!(run["verdict"], "passed", "the place is real again: {run:#}");
    assert_on_record(repo, &run);
}

fn files_in_place_of_record(env: &TestEnvironment) {
    let outside = OutsideDir::create_below(env.root());
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    assert_passes(&daemon, &repo);
    for changeset_path in CHANGESET_PATHS {
        for replacement in
            REPLACEMENTS.into_iter().filter(|thing| *thing != Replacement::HardLink || !changeset_path.is_directory)
        {
            let what = format!("{replacement:?} at {:?}", changeset_path.path);
            let (at, moved) = (repo.changeset().join(changeset_path.path), env.root().join("aside"));
            let at = PathBuf::from(at.to_str().expect("UTF-8").trim_end_matches('/'));
            std::fs::rename(&at, &moved).expect("moved");
            replacement.create_at(&at, changeset_path, &outside.path);
            let linked = (replacement == Replacement::HardLink).then(|| file_states(&outside.path));
            let run = with_health_probe(env, || run_changeset(&daemon, &repo, &json!({})));
            match linked {
                // Creating the hard link has itself changed the file's status.
                Some(before) => assert_eq!(file_states(&outside.path), before, "{what}"),
                None => outside.assert_untouched(&what),
            }
            if replacement.is_replaced_at(changeset_path) {
                assert_eq!(run["verdict"], "passed", "{what}: {run:#}");
                assert_on_record(&repo, &run);
            } else {
                assert_refused(&run, &at, &what);
            }
            remove_any(&at);
            std::fs::rename(&moved, &at).expect("moved back");
            assert_passes(&daemon, &repo);
        }
    }
    outside.assert_untouched("at the end");
    daemon.stop().exits(0);
}

/// Asserts that a run is inconclusive, names the obstacle, and suggests a fix.
#[track_caller]
fn assert_refused(run: &Value, at: &Path, what: &str) {
    assert_eq!(run["verdict"], "inconclusive", "{what}: {run:#}");
    let name = at.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    let problem = &run["problem"];
    let (why, hint) = match problem.is_object() {
        true => (&problem["detail"], &problem["hint"]),
        false => (&run["reason"], &run["reason"]),
    };
    assert!(why.as_str().is_some_and(|why| why.contains(name)), "{what}: {run:#}");
    assert!(hint.as_str().is_some_and(|hint| hint.contains("replace")), "{what}: {run:#}");
}

/// Runs `work` while the entry at the real path is repeatedly exchanged with a link to the target and back; `real`
/// returns both paths for each exchange. Returns the result and the number of exchanges.
fn while_swapping<T>(
    link: &Path,
    real: impl Fn(usize) -> (PathBuf, PathBuf) + Sync,
    work: impl FnOnce() -> T,
) -> (T, usize) {
    struct StopSwapperOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopSwapperOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let (mut count, mut random) = (0_usize, 42_u64);
            while !stop.load(Ordering::Relaxed) {
                let (real, target) = real(count);
                let _ = std::fs::remove_file(link);
                symlink(target, link).expect("a link of the test");
                let exchange = || renameat_with(CWD, &real, CWD, link, RenameFlags::EXCHANGE).is_ok();
                let stat_real = |times: u64| (0..times).for_each(|_| drop(real.symlink_metadata()));
                if exchange() {
                    count += 1;
                    // Some links stay long enough that a writer meets them even if no thread is preempted here.
                    stat_real(if count.is_multiple_of(LONG_LINK_INTERVAL) { random % MAX_LINK_HOLD } else { 0 });
                    while !exchange() {}
                }
                // The pause comes from a Lehmer generator: from none to the time of several documents.
                random = random * 48_271 % 0x7fff_ffff;
                stat_real(random % MAX_PAUSE);
            }
            count
        });
        let done = {
            let _over = StopSwapperOnDrop(&stop);
            work()
        };
        (done, swapper.join().expect("exchanges"))
    })
}

/// Maximum number of stat calls between two exchanges.
const MAX_PAUSE: u64 = 1_000;
/// Number of exchanges from one link that stays to the next, and the maximum number of stat calls that it stays for.
const LONG_LINK_INTERVAL: usize = 16;
const MAX_LINK_HOLD: u64 = 100;
/// Time limit for ten thousand documents on a busy machine.
const MANY_WRITES_TIMEOUT: Duration = Duration::from_secs(600);

/// Creates a directory in memory, where ten thousand documents are quickly durable, or else on disk.
fn fast_temp_dir(env: &TestEnvironment) -> TempDir {
    let within = |dir: &Path| tempfile::Builder::new().prefix("proctor-test-").tempdir_in(dir);
    let made = within(Path::new("/dev/shm")).or_else(|_| within(env.root()));
    made.expect("a directory for a case")
}

fn swaps_never_redirect_writes(env: &TestEnvironment) {
    let temp_dir = fast_temp_dir(env);
    let outside = OutsideDir::create_below(temp_dir.path());
    let skill = |n: usize| TestSkill::new(&format!("verify.skill{n}"), [TestStep::argv("it", &["true"])]).tier(2);
    // No step runs, so nearly all time is spent on writing.
    let repo = env
        .repo_at(temp_dir.path().join("repo").to_str().expect("UTF-8"), &TestSpec::new((0..SKILLS_PER_RUN).map(skill)));
    let without_steps = json!({ "max_tier": 1 });
    let mut running = env.spawn_daemon(&[]).with_extended_timeout(MANY_WRITES_TIMEOUT);
    running.wait_for_stderr(READY_MESSAGE);
    let daemon = TestDaemon::from_process(env, running);
    assert_eq!(
        run_changeset(&daemon, &repo, &without_steps)["evidence"].as_object().map(serde_json::Map::len),
        Some(SKILLS_PER_RUN + 1)
    );
    let changeset = repo.changeset();
    let document = |n: usize| changeset.join(format!("verify/verify.skill{}.json", n % SKILLS_PER_RUN));
    let real = |round: usize, n: usize| match round % 4 {
        0 => (changeset.clone(), outside.path.clone()),
        1 => (changeset.join("verify"), outside.path.join("verify")),
        2 => (changeset.join("05-status.json"), outside.path.join("05-status.json")),
        _ => (document(n), outside.path.join("document")),
    };
    let min_writes = campaign_size(MIN_WRITES[0], MIN_WRITES[1]);
    let (mut writes, mut exchanges, mut complete, mut incomplete) = (0, 0, 0, 0);
    with_health_probe(env, || {
        for round in 0..MAX_RUNS {
            let (run, count) = while_swapping(
                &temp_dir.path().join("link"),
                |n| real(round, n),
                || run_changeset(&daemon, &repo, &without_steps),
            );
            assert_eq!(run["verdict"], "inconclusive", "{run:#}");
            let written = run["evidence"].as_object().map_or(0, serde_json::Map::len);
            (writes, exchanges) = (writes + written, exchanges + count);
            (complete, incomplete) =
                (complete + usize::from(written > SKILLS_PER_RUN), incomplete + usize::from(written <= SKILLS_PER_RUN));
            if writes >= min_writes && incomplete > 0 {
                break;
            }
        }
    });
    println!("swaps: {writes} documents, {exchanges} exchanges, {complete} runs were whole, {incomplete} were not");
    assert!(writes >= min_writes && exchanges > min_writes / 10 && incomplete > 0, "{writes} {exchanges} {incomplete}");
    outside.assert_untouched("by exchanges");
    documents::check_all_documents(repo.path());
    repo.write("spec/verification.yaml", TestSpec::from_script("true").to_yaml(env.marker()));
    assert_passes(&daemon, &repo);
    daemon.stop().exits(0);
}

fn passing_run_during_swaps(env: &TestEnvironment) {
    let outside = OutsideDir::create_below(env.root());
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    assert_passes(&daemon, &repo);
    let changeset = repo.changeset();
    let real = |round: usize| match round % 2 {
        0 => (changeset.join("verify"), outside.path.join("verify")),
        _ => (changeset.clone(), outside.path.clone()),
    };
    let (mut passed, run_count) = (0, campaign_size(PASSING_RUNS[0], PASSING_RUNS[1]));
    for round in 0..run_count {
        let run_once = || with_health_probe(env, || run_changeset(&daemon, &repo, &json!({})));
        let (run, count) = while_swapping(&env.root().join("link"), |_| real(round), run_once);
        assert!(count > 0);
        match run["verdict"].as_str() {
            Some("passed") => {
                assert_on_record(&repo, &run);
                passed += 1;
            }
            Some("inconclusive") => {
                let last = repo.last_run();
                assert!(last["run_id"] != run["id"] || last["outcome"] != "passed", "{run:#}\n{last:#}");
            }
            _ => panic!("{run:#}"),
        }
        outside.assert_untouched("by exchanges");
    }
    println!("swaps: {passed} of {run_count} passed");
    assert_passes(&daemon, &repo);
    daemon.stop().exits(0);
}
