//! Limits the log file that `proctor daemon start` opens as standard error.
//!
//! A full file is renamed, replacing the previous one, and a new file is created. A kill in between leaves one file
//! fewer but loses no line. If standard error is anything else (a terminal, the journal, a file with its own
//! rotation), it is left alone.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, open, openat, renameat, statat};
use rustix::stdio::{dup2_stderr, stderr};
use tracing::warn;

/// Name of the log file in the state directory.
pub const NAME: &str = "proctord.log";
/// Name of the rotated log file.
pub const ASIDE: &str = "proctord.log.1";
/// Size in bytes at which the file is rotated. The last line may exceed it.
pub const MAX_FILE: u64 = 8 << 20;

/// The file behind standard error. It belongs to the thread that writes to it.
#[derive(Debug)]
pub(super) struct LogFile {
    dir: OwnedFd,
    most: u64,
    size: u64,
}

impl LogFile {
    /// Returns the log file of a state directory if standard error is that file.
    pub(super) fn of(state_dir: &Path, most: u64) -> Option<Self> {
        let dir = open(state_dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let file = Self { dir, most, size: fstat(stderr()).ok()?.st_size.cast_unsigned() };
        file.is_in_place().then_some(file)
    }

    /// Adds to the size, and rotates a full file. If rotation fails, the old file is used for the same number of
    /// bytes again.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.size = self.size.saturating_add(bytes as u64);
        if self.size < self.most {
            return;
        }
        self.size = 0;
        if let Err(error) = self.begin_anew() {
            warn!("the file of the log is full and cannot be put aside: {error}");
        }
    }

    fn begin_anew(&self) -> io::Result<()> {
        // If another file is at the path, the log file was already moved.
        if self.is_in_place() {
            renameat(&self.dir, NAME, &self.dir, ASIDE)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(&self.dir, NAME, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(dup2_stderr(&file)?)
    }

    /// Returns whether the file at the path is the one behind standard error.
    fn is_in_place(&self) -> bool {
        let found = statat(&self.dir, NAME, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| fstat(stderr()).is_ok_and(|ours| identity(&found) == identity(&ours)))
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::lines::Lines;
    use super::*;

    /// Restores standard error of the process.
    struct Before(OwnedFd);

    impl Drop for Before {
        fn drop(&mut self) {
            let _ = dup2_stderr(&self.0);
        }
    }

    /// The only test that replaces standard error, of which the process has only one.
    #[test]
    fn a_full_file_is_put_aside_and_what_follows_is_in_a_new_one() {
        const ROOM: u64 = 100;
        let state = tempfile::tempdir().expect("a directory");
        let (path, aside) = (state.path().join(NAME), state.path().join(ASIDE));
        let appending = || fs::OpenOptions::new().create(true).append(true).open(&path).expect("a file");
        assert!(LogFile::of(state.path(), ROOM).is_none(), "there is no such file");
        drop(appending());
        assert!(LogFile::of(state.path(), ROOM).is_none(), "standard error is another");

        let _before = Before(rustix::io::fcntl_dupfd_cloexec(stderr(), 3).expect("a descriptor"));
        dup2_stderr(appending()).expect("redirected");
        let lines = Lines::to(io::stderr());
        lines.bound(LogFile::of(state.path(), ROOM).expect("it is standard error"));
        let say = |text: &str| {
            assert!(lines.say(format!("{text:-<60}\n")));
            lines.flush(Duration::from_secs(60));
        };
        let has = |path: &Path, text: &str| fs::read_to_string(path).expect("a file").contains(text);
        say("one");
        assert!(has(&path, "one") && !aside.exists());
        say("two");
        assert!(has(&aside, "one") && has(&aside, "two") && !has(&path, "two"));
        say("three");
        say("four");
        assert!(has(&aside, "four") && !has(&aside, "two"), "two files are kept");

        // After a kill during rotation or an external rename, the next rotation still works.
        say("five");
        fs::rename(&path, state.path().join("moved")).expect("moved");
        say("six");
        assert!(has(&state.path().join("moved"), "six") && has(&aside, "four"), "what others moved stays");
        say("seven");
        assert!(has(&path, "seven"));

        // If no new file can be created, the old one stays in use, and existing files are not touched.
        fs::rename(&path, state.path().join("moved")).expect("moved");
        std::os::unix::fs::symlink("elsewhere", &path).expect("made");
        say("eight");
        say("nine");
        assert!(has(&state.path().join("moved"), "nine") && !state.path().join("elsewhere").exists());
        fs::remove_file(&path).expect("removed");
        say("ten");
        say("eleven");
        assert!(has(&path, "eleven"));
    }
}
