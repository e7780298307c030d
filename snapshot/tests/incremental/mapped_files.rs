//! Tests files that a process has mapped while snapshots are taken.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::*;

pub(crate) const CASES: &[SnapshotTestCase] =
    &[("incremental: finds writes through mapping", Requirement::Python, finds_writes_through_mapping)];

/// The second write causes no page fault, so the kernel does not notice it and the timestamps stay the same.
fn finds_writes_through_mapping() {
    const SCRIPT: &str = "import mmap, sys
file = open('README.md', 'r+b')
pages = mmap.mmap(file.fileno(), 0)
for line in sys.stdin:
    pages[0:1] = line[:1].encode()
    print('done', flush=True)";
    let watched = WatchedRepo { store: SnapshotStore::new(helper(), None), repo: FixtureRepo::small() };
    #[expect(clippy::disallowed_methods, reason = "the writer runs while the test takes snapshots")]
    let mut writer = Command::new("python3")
        .args(["-c", SCRIPT])
        .current_dir(&watched.repo.top)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let (mut stdin, stdout) = (writer.stdin.take().expect("piped"), writer.stdout.take().expect("piped"));
    let mut answers = BufReader::new(stdout).lines();
    let mut poke = |byte: &str| {
        writeln!(stdin, "{byte}").expect("asks");
        assert_eq!(answers.next().expect("answers").expect("answers"), "done");
        watched.take()
    };
    let first = poke("A");
    // The time is longer than any tick of the clock.
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        assert_eq!(watched.take().id, first.id);
    }
    let second = poke("B");
    assert_ne!(first.id, second.id);
    assert_same_snapshot(&second, &watched.repo.snapshot(), "written through a mapping");
    drop(stdin);
    writer.wait().expect("ends");
}
