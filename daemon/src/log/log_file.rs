//! Limits the log file that `proctor daemon start` opens as standard error.
//!
//! A full file is renamed, replacing the previous one, and a new file is created. A kill in between leaves one file
//! fewer but loses no line. If standard error is anything else (a terminal, the journal, a file with its own rotation),
//! it is not rotated.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, open, openat, renameat, statat};
use rustix::stdio::{dup2_stderr, stderr};
use tracing::warn;

/// Name of the log file in the state directory.
pub const LOG_FILE_NAME: &str = "proctord.log";
/// Name of the rotated log file.
pub const ROTATED_LOG_FILE_NAME: &str = "proctord.log.1";
/// Size in bytes at which the file is rotated. The last line may exceed it.
pub const MAX_LOG_FILE_BYTES: u64 = 8 << 20;

/// The file behind standard error. It belongs to the thread that writes to it.
#[derive(Debug)]
pub(super) struct RotatingLogFile {
    dir: OwnedFd,
    max_bytes: u64,
    size: u64,
}

impl RotatingLogFile {
    /// Returns the log file of a state directory if standard error is that file.
    pub(super) fn for_stderr(state_dir: &Path, most: u64) -> Option<Self> {
        let dir = open(state_dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let file = Self { dir, max_bytes: most, size: fstat(stderr()).ok()?.st_size.cast_unsigned() };
        file.is_at_path().then_some(file)
    }

    /// Adds to the size, and rotates a full file. If rotation fails, the old file is used for the same number of
    /// bytes again.
    pub(super) fn add_written(&mut self, bytes: usize) {
        self.size = self.size.saturating_add(bytes as u64);
        if self.size < self.max_bytes {
            return;
        }
        self.size = 0;
        if let Err(error) = self.rotate() {
            warn!("the log file is full and cannot be rotated: {error}");
        }
    }

    fn rotate(&self) -> io::Result<()> {
        // If another file is at the path, the log file was already moved.
        if self.is_at_path() {
            renameat(&self.dir, LOG_FILE_NAME, &self.dir, ROTATED_LOG_FILE_NAME)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(&self.dir, LOG_FILE_NAME, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(dup2_stderr(&file)?)
    }

    /// Returns whether the file at the path is the one behind standard error.
    fn is_at_path(&self) -> bool {
        let found = statat(&self.dir, LOG_FILE_NAME, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| fstat(stderr()).is_ok_and(|ours| device_and_inode(&found) == device_and_inode(&ours)))
    }
}

fn device_and_inode(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::super::line_writer::LogWriter;
    use super::*;

    /// Restores standard error of the process.
    struct SavedStderr(OwnedFd);

    impl Drop for SavedStderr {
        fn drop(&mut self) {
            let _ = dup2_stderr(&self.0);
        }
    }

    /// The only test that replaces standard error, of which the process has only one.
    #[test]
    fn rotates_full_log_file() {
        const LIMIT: u64 = 100;
        let state = tempfile::tempdir().expect("a directory");
        let (path, rotated) = (state.path().join(LOG_FILE_NAME), state.path().join(ROTATED_LOG_FILE_NAME));
        let appending = || fs::OpenOptions::new().create(true).append(true).open(&path).expect("a file");
        assert!(RotatingLogFile::for_stderr(state.path(), LIMIT).is_none(), "there is no such file");
        drop(appending());
        assert!(RotatingLogFile::for_stderr(state.path(), LIMIT).is_none(), "standard error is another");

        let _before = SavedStderr(rustix::io::fcntl_dupfd_cloexec(stderr(), 3).expect("a descriptor"));
        dup2_stderr(appending()).expect("redirected");
        let lines = LogWriter::spawn(io::stderr());
        lines.limit_file(RotatingLogFile::for_stderr(state.path(), LIMIT).expect("it is standard error"));
        let write_line = |text: &str| {
            assert!(lines.write_line(format!("{text:-<60}\n")));
            lines.flush(Duration::from_secs(60));
        };
        let has = |path: &Path, text: &str| fs::read_to_string(path).expect("a file").contains(text);
        write_line("one");
        assert!(has(&path, "one") && !rotated.exists());
        write_line("two");
        assert!(has(&rotated, "one") && has(&rotated, "two") && !has(&path, "two"));
        write_line("three");
        write_line("four");
        assert!(has(&rotated, "four") && !has(&rotated, "two"), "two files are kept");

        // After a kill during rotation or an external rename, the next rotation still works.
        write_line("five");
        fs::rename(&path, state.path().join("moved")).expect("moved");
        write_line("six");
        assert!(has(&state.path().join("moved"), "six") && has(&rotated, "four"), "what others moved stays");
        write_line("seven");
        assert!(has(&path, "seven"));

        // If no new file can be created, the old one stays in use, and existing files are not touched.
        fs::rename(&path, state.path().join("moved")).expect("moved");
        std::os::unix::fs::symlink("elsewhere", &path).expect("made");
        write_line("eight");
        write_line("nine");
        assert!(has(&state.path().join("moved"), "nine") && !state.path().join("elsewhere").exists());
        fs::remove_file(&path).expect("removed");
        write_line("ten");
        write_line("eleven");
        assert!(has(&path, "eleven"));
    }
}
