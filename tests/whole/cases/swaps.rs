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

use super::abuse::meanwhile;
use super::crash::is_on_record;
use super::http::{demand, id_of, submission};
use crate::daemon::{Daemon, LISTENS};
use crate::documents;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, case};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("swaps::what_stands_in_the_place_of_a_record_is_not_followed", in_place),
    case("swaps::ten_thousand_writes_are_led_nowhere_by_exchanges", many_writes),
    case("swaps::a_run_that_passes_under_exchanges_is_on_record", passing),
];

/// Number of documents that are written while paths are exchanged.
const WRITES: usize = 10_000;
/// Number of documents of one run.
const SKILLS: usize = 250;
/// Maximum number of runs needed to write that many documents.
const MOST_RUNS: usize = 2_000;
/// Number of runs with a real step.
const PASSING_RUNS: usize = 24;

/// A directory that does not belong to the daemon, with its initial state.
struct Outside {
    path: PathBuf,
    before: Vec<Seen>,
}

/// Path, inode number, change time and content of a file.
type Seen = (PathBuf, u64, (i64, i64), Option<Vec<u8>>);

impl Outside {
    /// Creates a directory below `dir` that resembles a changeset.
    fn within(dir: &Path) -> Self {
        let path = dir.join("outside");
        machine::write(&path.join("00-meta.json"), "{}");
        machine::write(&path.join("05-status.json"), "{\"state\":\"elsewhere\"}");
        machine::write(&path.join("document"), "{}");
        machine::write(&path.join("verify/keep"), "kept");
        let before = seen(&path);
        Self { path, before }
    }

    #[track_caller]
    fn is_untouched(&self, what: &str) {
        assert_eq!(seen(&self.path), self.before, "{what}: something outside was written");
    }
}

fn seen(dir: &Path) -> Vec<Seen> {
    let one = |path: PathBuf| {
        let stat = path.symlink_metadata().expect("the walk found it");
        let bytes = if stat.is_file() { std::fs::read(&path).ok() } else { None };
        (path, stat.ino(), (stat.mtime(), stat.mtime_nsec()), bytes)
    };
    machine::walk(dir).into_iter().map(one).collect()
}

/// A file that replaces a real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    /// A symbolic link to an outside file of the same kind.
    Link,
    /// A dangling link, through which a file would be created outside.
    Dangling,
    Fifo,
    /// A hard link to an outside file.
    HardLink,
    /// A file in place of a directory, or the reverse.
    WrongKind,
}

/// A path below the changeset, with its counterpart outside.
#[derive(Debug, Clone, Copy)]
struct Place {
    path: &'static str,
    outside: &'static str,
    is_directory: bool,
}

const PLACES: [Place; 5] = [
    Place { path: "", outside: "", is_directory: true },
    Place { path: "verify", outside: "verify", is_directory: true },
    Place { path: "05-status.json", outside: "05-status.json", is_directory: false },
    Place { path: "verify/_toolchain.json", outside: "document", is_directory: false },
    Place { path: "verify/verify.it.json", outside: "document", is_directory: false },
];
const THINGS: [Thing; 5] = [Thing::Link, Thing::Dangling, Thing::Fifo, Thing::HardLink, Thing::WrongKind];

impl Thing {
    fn put(self, at: &Path, place: Place, outside: &Path) {
        let like_it = outside.join(place.outside);
        match self {
            Self::Link => symlink(like_it, at).expect("a link of the test"),
            Self::Dangling => symlink(outside.join("new"), at).expect("a link of the test"),
            Self::Fifo => mknodat(CWD, at, FileType::Fifo, 0o644.into(), 0).expect("a FIFO of the test"),
            Self::HardLink => std::fs::hard_link(like_it, at).expect("a link of the test"),
            Self::WrongKind if place.is_directory => drop(File::create_new(at).expect("a file of the test")),
            Self::WrongKind => std::fs::create_dir(at).expect("a directory of the test"),
        }
    }

    /// Checks whether a run replaces the entry with its own file, which is safe because a rename does not follow
    /// links.
    fn is_replaced_at(self, place: Place) -> bool {
        let is_evidence = place.path.starts_with("verify/");
        self == Self::HardLink || (self == Self::Fifo && is_evidence)
    }
}

/// Removes any file or directory.
fn clear(path: &Path) {
    let is_directory = path.symlink_metadata().expect("something stands there").is_dir();
    let removed = if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    removed.expect("removed");
}

fn run(daemon: &Daemon<'_>, repo: &Repo<'_>, more: &Value) -> Value {
    let mut asked = submission(repo.path(), &json!({ "changeset_id": CHANGESET }));
    for (name, value) in more.as_object().expect("an object") {
        asked[name] = value.clone();
    }
    let answer = daemon.ask("POST", "/v1/runs", Some(&asked));
    match answer.code {
        202 => daemon.finished(&id_of(&answer.json())),
        _ => {
            demand("Problem", &answer.json());
            assert_eq!(answer.code, 422, "{answer:?}");
            json!({ "verdict": "inconclusive", "problem": answer.json() })
        }
    }
}

#[track_caller]
fn passes(daemon: &Daemon<'_>, repo: &Repo<'_>) {
    let run = run(daemon, repo, &json!({}));
    assert_eq!(run["verdict"], "passed", "the place is real again: {run:#}");
    is_on_record(repo, &run);
}

fn in_place(env: &TestEnvironment) {
    let outside = Outside::within(env.root());
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    passes(&daemon, &repo);
    for place in PLACES {
        for thing in THINGS.into_iter().filter(|thing| *thing != Thing::HardLink || !place.is_directory) {
            let what = format!("{thing:?} at {:?}", place.path);
            let (at, aside) = (repo.changeset().join(place.path), env.root().join("aside"));
            let at = PathBuf::from(at.to_str().expect("UTF-8").trim_end_matches('/'));
            std::fs::rename(&at, &aside).expect("moved");
            thing.put(&at, place, &outside.path);
            let linked = (thing == Thing::HardLink).then(|| seen(&outside.path));
            let run = meanwhile(env, || run(&daemon, &repo, &json!({})));
            match linked {
                // Creating the hard link has itself changed the file's status.
                Some(before) => assert_eq!(seen(&outside.path), before, "{what}"),
                None => outside.is_untouched(&what),
            }
            if thing.is_replaced_at(place) {
                assert_eq!(run["verdict"], "passed", "{what}: {run:#}");
                is_on_record(&repo, &run);
            } else {
                is_refused(&run, &at, &what);
            }
            clear(&at);
            std::fs::rename(&aside, &at).expect("moved back");
            passes(&daemon, &repo);
        }
    }
    outside.is_untouched("at the end");
    daemon.end().exits(0);
}

/// Asserts that a run is inconclusive, names the obstacle, and says what to do.
#[track_caller]
fn is_refused(run: &Value, at: &Path, what: &str) {
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
fn exchanging<T>(
    link: &Path,
    real: impl Fn(usize) -> (PathBuf, PathBuf) + Sync,
    work: impl FnOnce() -> T,
) -> (T, usize) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let (mut count, mut chance) = (0_usize, 42_u64);
            while !over.load(Ordering::Relaxed) {
                let (real, target) = real(count);
                let _ = std::fs::remove_file(link);
                symlink(target, link).expect("a link of the test");
                let exchange = || renameat_with(CWD, &real, CWD, link, RenameFlags::EXCHANGE).is_ok();
                if exchange() {
                    count += 1;
                    while !exchange() {}
                }
                // The pause comes from a Lehmer generator: from none to the time of several documents.
                chance = chance * 48_271 % 0x7fff_ffff;
                for _ in 0..chance % PAUSE {
                    let _ = real.symlink_metadata();
                }
            }
            count
        });
        let done = {
            let _over = Over(&over);
            work()
        };
        (done, swapper.join().expect("exchanges"))
    })
}

/// Maximum number of stat calls between two exchanges.
const PAUSE: u64 = 1_000;
/// Time limit for ten thousand documents on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// Creates a directory in memory, where ten thousand documents are quickly durable, or else on disk.
fn quick_place(env: &TestEnvironment) -> TempDir {
    let within = |dir: &Path| tempfile::Builder::new().prefix("proctor-test-").tempdir_in(dir);
    let made = within(Path::new("/dev/shm")).or_else(|_| within(env.root()));
    made.expect("a directory for a case")
}

fn many_writes(env: &TestEnvironment) {
    let place = quick_place(env);
    let outside = Outside::within(place.path());
    let skill = |n: usize| Skill::new(&format!("verify.skill{n}"), [Step::argv("it", &["true"])]).tier(2);
    // No step runs, so nearly all time is spent on writing.
    let repo = env.repo_at(place.path().join("repo").to_str().expect("UTF-8"), &Spec::new((0..SKILLS).map(skill)));
    let quick = json!({ "max_tier": 1 });
    let mut running = env.start_daemon(&[]).patient(LONG);
    running.wait_for_message(LISTENS);
    let daemon = Daemon::of(env, running);
    assert_eq!(run(&daemon, &repo, &quick)["evidence"].as_object().map(serde_json::Map::len), Some(SKILLS + 1));
    let changeset = repo.changeset();
    let document = |n: usize| changeset.join(format!("verify/verify.skill{}.json", n % SKILLS));
    let real = |way: usize, n: usize| match way % 4 {
        0 => (changeset.clone(), outside.path.clone()),
        1 => (changeset.join("verify"), outside.path.join("verify")),
        2 => (changeset.join("05-status.json"), outside.path.join("05-status.json")),
        _ => (document(n), outside.path.join("document")),
    };
    let (mut writes, mut exchanges, mut whole, mut stopped) = (0, 0, 0, 0);
    meanwhile(env, || {
        for way in 0..MOST_RUNS {
            let (run, count) = exchanging(&place.path().join("link"), |n| real(way, n), || run(&daemon, &repo, &quick));
            assert_eq!(run["verdict"], "inconclusive", "{run:#}");
            let written = run["evidence"].as_object().map_or(0, serde_json::Map::len);
            (writes, exchanges) = (writes + written, exchanges + count);
            (whole, stopped) = (whole + usize::from(written > SKILLS), stopped + usize::from(written <= SKILLS));
            if writes >= WRITES {
                break;
            }
        }
    });
    println!("swaps: {writes} documents, {exchanges} exchanges, {whole} runs were whole, {stopped} were not");
    assert!(writes >= WRITES && exchanges > WRITES / 10 && stopped > 0, "{writes} {exchanges} {stopped}");
    outside.is_untouched("by exchanges");
    documents::check_all(repo.path());
    repo.write("spec/verification.yaml", Spec::of_script("true").text(env.marker()));
    passes(&daemon, &repo);
    daemon.end().exits(0);
}

fn passing(env: &TestEnvironment) {
    let outside = Outside::within(env.root());
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    passes(&daemon, &repo);
    let changeset = repo.changeset();
    let real = |way: usize| match way % 2 {
        0 => (changeset.join("verify"), outside.path.join("verify")),
        _ => (changeset.clone(), outside.path.clone()),
    };
    let mut passed = 0;
    for way in 0..PASSING_RUNS {
        let under = || meanwhile(env, || run(&daemon, &repo, &json!({})));
        let (run, count) = exchanging(&env.root().join("link"), |_| real(way), under);
        assert!(count > 0);
        match run["verdict"].as_str() {
            Some("passed") => {
                is_on_record(&repo, &run);
                passed += 1;
            }
            Some("inconclusive") => {
                let last = repo.last_run();
                assert!(last["run_id"] != run["id"] || last["outcome"] != "passed", "{run:#}\n{last:#}");
            }
            _ => panic!("{run:#}"),
        }
        outside.is_untouched("by exchanges");
    }
    println!("swaps: {passed} of {PASSING_RUNS} passed");
    passes(&daemon, &repo);
    daemon.end().exits(0);
}
