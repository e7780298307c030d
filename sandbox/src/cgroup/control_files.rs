//! Reads and writes the control files of a group.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::cgroup::membership::Controllers;

/// Writes `text` in one call, as the kernel requires. An absent file is an error and is not created.
pub(super) fn write(dir: &Path, file: &str, text: &str) -> io::Result<()> {
    let path = dir.join(file);
    let written = OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        io::Error::new(error.kind(), format!("writing `{}` to `{}`: {error}", text.trim(), path.display()))
    })
}

/// Writes to a file like [`write`], but the kernel may lack the file. Returns whether it exists.
pub(super) fn write_if_exists(dir: &Path, file: &str, text: &str) -> io::Result<bool> {
    match write(dir, file, text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the content of a file; `None` if it cannot be read.
pub(super) fn read(dir: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(file)).ok()
}

/// Returns the number in a file that contains nothing else.
pub(super) fn read_number(dir: &Path, file: &str) -> Option<u64> {
    read(dir, file)?.trim().parse().ok()
}

/// Returns the number in an open file that contains nothing else, read from its start.
pub(super) fn read_number_from(file: &File) -> Option<u64> {
    read_from_start(file)?.trim().parse().ok()
}

/// Returns the number after `key` in an open file of `key number` lines, from its start.
pub(super) fn read_keyed_from(file: &File, key: &str) -> Option<u64> {
    parse_keyed(&read_from_start(file)?, key)
}

/// Reads an open file from its start. The files that are read repeatedly are short enough for one call.
fn read_from_start(file: &File) -> Option<String> {
    let mut text = [0; 1024];
    let length = file.read_at(&mut text, 0).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

fn parse_keyed(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// Returns the number after `key` in a file of `key number` lines.
pub(super) fn read_keyed(dir: &Path, file: &str, key: &str) -> Option<u64> {
    parse_keyed(&read(dir, file)?, key)
}

/// Returns the processes of a group by their ids in this PID namespace: 0 for an invisible one.
pub(super) fn processes(dir: &Path) -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string(dir.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Returns whether the group may limit memory and processes.
pub(super) fn has_limit_controllers(dir: &Path) -> bool {
    file_has_limit_controllers(dir, "cgroup.controllers")
}

pub(super) fn file_has_limit_controllers(dir: &Path, file: &str) -> bool {
    let names = read(dir, file).unwrap_or_default();
    let holds = Controllers::from_names(names.split_whitespace());
    holds.memory && holds.pids
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write plain files")]
mod tests {
    use super::*;

    #[test]
    fn matches_whole_keys() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::write(dir.path().join("memory.events"), "oom 3\noom_kill 2\noom_group_kill 1\n").expect("write");
        assert_eq!(read_keyed(dir.path(), "memory.events", "oom"), Some(3));
        assert_eq!(read_keyed(dir.path(), "memory.events", "oom_kill"), Some(2));
        assert_eq!(read_keyed(dir.path(), "memory.events", "kill"), None);
        assert_eq!(read_keyed(dir.path(), "absent", "oom"), None);
    }

    #[test]
    fn does_not_create_missing_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let error = write(dir.path(), "memory.max", "1").expect_err("it is not there");
        assert!(error.to_string().contains("memory.max"), "{error}");
        assert!(!write_if_exists(dir.path(), "memory.max", "1").expect("no error"));
        assert!(!dir.path().join("memory.max").exists());
    }
}
