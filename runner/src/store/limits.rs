//! Tests writes on a full disk, with the space ending at each byte: every file is either the old or the new
//! version, the caller gets an error, and no other file remains.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proctor_core::model::names::{ChangesetId, RunId};
use proctor_core::record::status::LastRun;
use proctor_core::text::digest::Sha256Hex;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use super::StoreError;
use super::directory::Directory;
use super::documents::{RunDocumentDir, STATUS_FILE};
use super::objects::{Objects, StoredForm};
use crate::host::repository::Repository;
use crate::test_support::last_run;

/// Set in the child process in which file sizes are limited. The limit applies to a whole process, and this one
/// runs other tests.
const CHILD_ENV: &str = "PROCTOR_TEST_OF_LIMITS";
const TEST_NAME: &str = "store::limits::reports_full_disk_at_each_byte";
/// Executes its arguments with SIGXFSZ ignored, so that a write beyond the limit fails instead.
const IGNORE_SIGXFSZ: &str = "trap '' XFSZ; exec \"$@\"";

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts itself, and finds out which of both it is")]
fn reports_full_disk_at_each_byte() {
    if std::env::var_os(CHILD_ENV).is_some() {
        return run_in_child();
    }
    let itself = std::env::current_exe().expect("a program");
    let mut child = std::process::Command::new("sh");
    child
        .args(["-c", IGNORE_SIGXFSZ, "sh"])
        .arg(itself)
        .args(["--exact", TEST_NAME, "--nocapture"])
        .env(CHILD_ENV, "1");
    let output = child.output().expect("runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("tried: "), "{}\n{stderr}", output.status);
}

fn run_in_child() {
    let tried = [documents(), objects()].concat();
    eprintln!("tried: {tried:#?}");
}

fn documents() -> Vec<String> {
    let evidence = |name: &'static str, letter: &str| {
        let bytes = format!("{{\"output\":\"{}\"}}", letter.repeat(900)).into_bytes();
        let evidence = [(name.to_owned(), bytes)];
        move |place: &StoreFixture| {
            let cited = |evidence| LastRun { evidence, ..last_run() };
            place.documents.stage(&evidence, cited)?.publish_evidence().map(drop)
        }
    };
    let status = |id: &str, evidence: &str| {
        let last_run = run_citing(id, evidence);
        move |place: &StoreFixture| place.documents.write_status(&last_run)
    };
    let record = |id: &str, evidence: &str| {
        let last_run = run_citing(id, evidence);
        move |place: &StoreFixture| {
            let (_, conclusion) = place.documents.stage(&[], |_| last_run.clone())?.publish_evidence()?;
            conclusion.publish()
        }
    };
    let nothing = |_: &StoreFixture| Ok(());
    vec![
        fail_at_every_byte("evidence that is new", nothing, evidence("a.json", "n"), 1),
        fail_at_every_byte("evidence over older", evidence("a.json", "old"), evidence("a.json", "n"), 1),
        fail_at_every_byte("evidence beside other", evidence("b.json", "o"), evidence("a.json", "n"), 1),
        fail_at_every_byte("a status that is new", nothing, status("r1", "verify/a.json"), 1),
        fail_at_every_byte("a status over an older", status("r1", "verify/a.json"), status("r2", "verify/b.json"), 1),
        // The record is written first and is larger than the status.
        fail_at_every_byte("a record over an older", record("r1", "verify/a.json"), record("r2", "verify/b.json"), 1),
        fail_at_every_byte("a record beside much", foreign_status, record("r1", "verify/a.json"), 1),
    ]
}

fn objects() -> Vec<String> {
    let object = |seed: u64, length: usize, kept: StoredForm| {
        let output = noise(seed, length);
        move |place: &StoreFixture| {
            let mut writer = place.objects.writer()?;
            let path = || "the object".to_owned();
            writer.write(&output).map_err(|source| StoreError::Io { action: "write", path: path(), source })?;
            writer.finish(&Sha256Hex::digest(&output), kept)
        }
    };
    let nothing = |_: &StoreFixture| Ok(());
    vec![
        fail_at_every_byte("an object that is new", nothing, object(1, 700, StoredForm::Whole), 1),
        fail_at_every_byte(
            "an object next to another",
            object(2, 900, StoredForm::Whole),
            object(1, 700, StoredForm::Cut),
            1,
        ),
        fail_at_every_byte(
            "the same object in another form",
            object(1, 700, StoredForm::Whole),
            object(1, 700, StoredForm::Redacted),
            1,
        ),
        // Larger than the compressor's buffer, so that a part is already written when a later write fails.
        fail_at_every_byte(
            "a large object",
            object(2, 900, StoredForm::Whole),
            object(1, 300_000, StoredForm::Whole),
            1_009,
        ),
    ]
}

/// Executes `write` after `old` with a size limit from 0 up to the size of the largest new file, in increments of
/// `step`. Returns a description of the attempts.
fn fail_at_every_byte(
    what: &'static str,
    old: impl Fn(&StoreFixture) -> Result<(), StoreError>,
    write: impl Fn(&StoreFixture) -> Result<(), StoreError>,
    step: usize,
) -> String {
    let fixture = StoreFixture::after(old);
    let before = fixture.files();
    write(&fixture).expect("there is room");
    let after = fixture.files();
    let written = after.iter().filter(|(path, bytes)| before.get(*path) != Some(*bytes));
    let all = written.map(|(_, bytes)| bytes.len()).max().expect("it writes");
    fixture.restore(&before);
    let mut refused = 0;
    for room in (0..all).step_by(step) {
        let result = with_size_limit(room, || write(&fixture));
        let files = fixture.files();
        assert_whole(&files, &before, &after, &format!("{what}, room for {room} of {all} bytes"));
        let error = result.expect_err("there is no room for it");
        assert!(is_out_of_space(&error), "{what}, {room}: {error}");
        assert_ne!(files, after, "{what}, {room}: the error reports that nothing was written");
        refused += 1;
    }
    with_size_limit(all, || write(&fixture)).unwrap_or_else(|error| panic!("{what}, there is room for all: {error}"));
    assert_eq!(fixture.files(), after, "{what}, with room for all");
    format!("{what}: {refused} times without room")
}

/// Asserts that each file is the old or the new version, and that no new status file lacks its record.
fn assert_whole(files: &FileContents, before: &FileContents, after: &FileContents, what: &str) {
    for (path, bytes) in files {
        let is_whole = [before, after].iter().any(|side| side.get(path) == Some(bytes));
        assert!(is_whole, "{what}: `{}` is neither old nor new: {} bytes", path.display(), bytes.len());
    }
    let gone: Vec<_> = before.keys().filter(|path| !files.contains_key(*path)).collect();
    assert!(gone.is_empty(), "{what}: {gone:?} is gone");
    let is_new = |path: &Path| files.get(path).is_some_and(|bytes| before.get(path) != Some(bytes));
    let status_is_new = files.keys().any(|path| path.ends_with(STATUS_FILE) && is_new(path));
    let record = after.keys().find(|path| path.starts_with("state/attestations"));
    assert!(!status_is_new || record.is_none_or(|record| is_new(record)), "{what}: a status that nothing vouches for");
}

fn is_out_of_space(error: &StoreError) -> bool {
    let is_io = |source: &std::io::Error| source.raw_os_error() == Some(Errno::FBIG.raw_os_error());
    matches!(error, StoreError::Io { source, .. } if is_io(source)) && error.hint().is_some()
}

/// Calls `act` while no file can grow beyond `bytes`.
fn with_size_limit<T>(bytes: usize, act: impl FnOnce() -> T) -> T {
    let all = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(bytes as u64), ..all }).expect("less than before");
    let done = act();
    setrlimit(Resource::Fsize, all).expect("as before");
    done
}

/// The content of files, by path.
type FileContents = BTreeMap<PathBuf, Vec<u8>>;

/// A changeset and a state directory.
struct StoreFixture {
    temp: TempDir,
    documents: RunDocumentDir,
    objects: Objects,
}

impl StoreFixture {
    fn after(old: impl Fn(&Self) -> Result<(), StoreError>) -> Self {
        let room = tempfile::tempdir().expect("temp");
        let (repo, state) = (room.path().join("repo"), room.path().join("state"));
        let id = ChangesetId::new("009_x").expect("an id");
        for dir in [&repo.join("changes").join(id.as_str()), &state] {
            std::fs::create_dir_all(dir).expect("makes");
        }
        let state = Directory::open(&state).expect("opens");
        let repository = Repository::open(&repo).expect("opens");
        let documents = RunDocumentDir::for_changeset(&state, &repository, &id).expect("opens");
        let fixture = Self { temp: room, documents, objects: Objects::open(&state).expect("opens") };
        old(&fixture).expect("there is room");
        fixture
    }

    /// Restores the files to this content.
    #[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
    fn restore(&self, files: &FileContents) {
        for path in self.files().into_keys().filter(|path| !files.contains_key(path)) {
            std::fs::remove_file(self.temp.path().join(path)).expect("removes");
        }
        for (path, bytes) in files {
            std::fs::write(self.temp.path().join(path), bytes).expect("writes");
        }
    }

    /// Returns every file, including temporary ones.
    fn files(&self) -> FileContents {
        let mut files = FileContents::new();
        let mut directories = vec![self.temp.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("lists") {
                let path = entry.expect("lists").path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    let below = path.strip_prefix(self.temp.path()).expect("it lies there").to_owned();
                    files.insert(below, std::fs::read(&path).expect("reads"));
                }
            }
        }
        files
    }
}

fn run_citing(id: &str, evidence: &str) -> LastRun {
    let cited = [(evidence.to_owned(), Sha256Hex::digest(id.as_bytes()))];
    LastRun { run_id: RunId::new(id).expect("an id"), evidence: cited.into(), ..last_run() }
}

/// A status file that mostly contains the user's data.
fn foreign_status(fixture: &StoreFixture) -> Result<(), StoreError> {
    let status = format!("{{\"note\":\"{}\",\"state\":\"executed\"}}", "n".repeat(1_200));
    Directory::open(fixture.documents.path())?.write(STATUS_FILE, status.as_bytes())
}

/// Returns incompressible bytes from a Lehmer generator.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed * 42 + 1;
    let mut next = || {
        state = state * 48_271 % 0x7fff_ffff;
        state.to_le_bytes()[1]
    };
    (0..length).map(|_| next()).collect()
}
