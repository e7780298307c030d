//! Inspects and replaces a hook file. A replacement is atomic: at any moment either the old or the new hook exists.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::script::{self, BEFORE, Whose};
use crate::args::HookName;
use crate::error::CliError;
use crate::installation::show;

/// Suffixes that hook managers give to an existing hook, which they then run: pre-commit and prek, lefthook, husky.
const RENAMED: [&str; 3] = [".legacy", ".old", ".bak"];

/// The kind of file at a hook's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// No file.
    Nothing,
    /// A file, or a link to one.
    Hook(Hook),
    /// A dangling link, which git ignores.
    DeadLink,
    /// Another kind of file, or an unreadable one; the text is a phrase that describes it.
    Other(String),
}

/// An existing hook file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hook {
    /// Owner of the hook.
    pub whose: Whose,
    /// True if the file is executable, so that git runs it.
    pub is_executable: bool,
    /// True if the path is a symbolic link.
    pub is_link: bool,
    /// The first bytes of the file.
    pub bytes: Vec<u8>,
}

/// The path of a hook.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// The kind of hook.
    pub hook: HookName,
    /// The hook directory.
    pub directory: PathBuf,
}

impl Slot {
    /// Returns the path at which git looks for the hook.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(self.hook.as_str())
    }

    /// Returns the path at which a previous hook is kept.
    pub(super) fn before(&self) -> PathBuf {
        self.directory.join(format!("{}{BEFORE}", self.hook.as_str()))
    }

    /// Inspects the file at the hook's path.
    pub(super) fn standing(&self) -> Standing {
        standing(&self.path())
    }

    /// Returns our hooks, unedited or edited, that another hook manager renamed and runs from its own hook.
    pub(super) fn chained(&self) -> Vec<(PathBuf, Whose)> {
        let renamed = RENAMED.iter().map(|ending| self.directory.join(format!("{}{ending}", self.hook.as_str())));
        let of_ours = renamed.filter_map(|path| match standing(&path) {
            Standing::Hook(Hook { whose: whose @ (Whose::Ours(_) | Whose::Edited), .. }) => Some((path, whose)),
            _ => None,
        });
        of_ours.collect()
    }

    /// Removes one of our hooks that another hook manager renamed to `path`. If our hook keeps a previous hook, that
    /// one is renamed to `path`, so that the other manager runs it from now on. Returns whether there was one.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn take_away_chained(&self, path: &Path) -> Result<bool, CliError> {
        // Our script looks for the previous hook next to itself, so it may be stored under the new or under the old
        // name.
        let mut beside = path.as_os_str().to_owned();
        beside.push(BEFORE);
        let kept = [PathBuf::from(beside), self.before()].into_iter().find(|kept| kept.symlink_metadata().is_ok());
        let done = match &kept {
            Some(kept) => std::fs::rename(kept, path),
            None => std::fs::remove_file(path),
        };
        done.map_err(|error| CliError::Environment {
            message: format!("cannot remove the hook `{}`: {error}", show(path)),
            hint: format!("check the permissions of `{}`", show(&self.directory)),
        })?;
        Ok(kept.is_some())
    }

    /// Writes one of our hooks. With `keep`, the existing file is kept as [`Slot::before`]; otherwise it is replaced.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn put(&self, text: &str, keep: bool) -> Result<(), CliError> {
        self.put_file(text.as_bytes(), keep).map_err(|error| self.refused("written", &error))
    }

    fn put_file(&self, bytes: &[u8], keep: bool) -> io::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let beside = self.directory.join(format!(".proctor-{}.new", random.map(|byte| format!("{byte:02x}")).concat()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&beside, flags, Mode::from_raw_mode(0o700))?);
        let put = file
            .write_all(bytes)
            // Make the hook executable for all users, independent of the umask.
            .and_then(|()| Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o755))?))
            .and_then(|()| file.sync_all())
            // Close the file first: a file that is open for writing cannot be executed.
            .map(|()| drop(file))
            .and_then(|()| if keep { self.keep() } else { Ok(()) })
            .and_then(|()| std::fs::rename(&beside, self.path()));
        if put.is_err() {
            // Ignore the result: the first error is the one to report.
            let _ = std::fs::remove_file(&beside);
        }
        put.and_then(|()| Ok(rustix::fs::fsync(File::open(&self.directory)?)?))
    }

    /// Creates a second name for the existing file. On a file system without hard links the file is moved instead,
    /// and for a moment no hook exists.
    fn keep(&self) -> io::Result<()> {
        match rustix::fs::linkat(CWD, self.path(), CWD, self.before(), AtFlags::empty()) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) => {
                Ok(rustix::fs::renameat_with(CWD, self.path(), CWD, self.before(), RenameFlags::NOREPLACE)?)
            }
            other => Ok(other?),
        }
    }

    /// Removes our hook and restores the previous one; returns whether there was one.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn take_away(&self) -> Result<bool, CliError> {
        let had_one = self.before().symlink_metadata().is_ok();
        let done =
            if had_one { std::fs::rename(self.before(), self.path()) } else { std::fs::remove_file(self.path()) };
        done.map_err(|error| self.refused("taken away", &error))?;
        Ok(had_one)
    }

    fn refused(&self, what: &str, error: &io::Error) -> CliError {
        CliError::Environment {
            message: format!("the hook `{}` cannot be {what}: {error}", show(&self.path())),
            hint: format!("fix the permissions of `{}`", show(&self.directory)),
        }
    }
}

/// Inspects the file at `path`.
pub(super) fn standing(path: &Path) -> Standing {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Standing::Nothing,
        Err(error) => return Standing::Other(format!("an inaccessible file ({error})")),
        Ok(found) => found,
    };
    let target = match path.metadata() {
        Err(_) if found.is_symlink() => return Standing::DeadLink,
        Err(error) => return Standing::Other(format!("an inaccessible file ({error})")),
        Ok(target) if target.is_dir() => return Standing::Other("a directory".to_owned()),
        Ok(target) if !target.is_file() => return Standing::Other("a special file".to_owned()),
        Ok(target) => target,
    };
    match beginning(path, (target.dev(), target.ino())) {
        Err(error) => Standing::Other(format!("an unreadable file ({error})")),
        Ok(bytes) => Standing::Hook(Hook {
            whose: script::whose(&bytes),
            is_executable: rustix::fs::access(path, Access::EXEC_OK).is_ok(),
            is_link: found.is_symlink(),
            bytes,
        }),
    }
}

/// Reads the beginning of a regular file, and checks that it is still the inspected one.
fn beginning(path: &Path, identity: (u64, u64)) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != identity {
        return Err(io::Error::other("it is another file by now"));
    }
    let mut bytes = Vec::new();
    file.take(script::MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn slot(directory: &Path) -> Slot {
        Slot { hook: HookName::PrePush, directory: directory.to_owned() }
    }

    fn theirs(at: &Path, text: &str) {
        let mut file = File::options().write(true).create_new(true).open(at).expect("made");
        file.write_all(text.as_bytes()).expect("written");
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).expect("set");
    }

    #[test]
    fn what_stood_there_is_kept_and_comes_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = slot(&dir.path().join("hooks"));
        slot.put("ours", false).expect("put");
        assert_eq!(std::fs::metadata(slot.path()).expect("there").permissions().mode() & 0o777, 0o755);
        assert!(!slot.take_away().expect("taken"));
        theirs(&slot.path(), "theirs");
        slot.put("ours", true).expect("put");
        let read = |path: PathBuf| std::fs::read_to_string(path).expect("there");
        assert_eq!((read(slot.path()), read(slot.before())), ("ours".to_owned(), "theirs".to_owned()));
        slot.put("newer", false).expect("put");
        assert_eq!((read(slot.path()), read(slot.before())), ("newer".to_owned(), "theirs".to_owned()));
        slot.put("newest", true).expect_err("something is kept already");
        assert_eq!(std::fs::read_dir(&slot.directory).expect("lists").count(), 2, "nothing lies around");
        assert!(slot.take_away().expect("taken"));
        assert_eq!((read(slot.path()), slot.before().exists()), ("theirs".to_owned(), false));
    }

    #[test]
    fn a_hook_that_another_manager_renamed_is_found_and_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = slot(&dir.path().join("hooks"));
        let options = crate::args::HookOptions {
            profile: proctor_core::names::ProfileName::new("pr").expect("a name"),
            each_commit: false,
            fresh: false,
        };
        let text = script::Script { hook: slot.hook, options: &options, program: "/usr/bin/proctor", shared: false };
        for ending in RENAMED {
            slot.put(&text.text(), false).expect("put");
            let renamed = slot.directory.join(format!("pre-push{ending}"));
            std::fs::rename(slot.path(), &renamed).expect("renamed");
            theirs(&slot.path(), "theirs");
            let [(found, Whose::Ours(_))] = &slot.chained()[..] else { panic!("{:?}", slot.chained()) };
            assert_eq!(*found, renamed);
            theirs(&slot.before(), "first");
            assert!(slot.take_away_chained(&renamed).expect("removed"));
            assert_eq!(std::fs::read_to_string(&renamed).expect("there"), "first");
            assert!(slot.chained().is_empty() && !slot.before().exists());
            std::fs::remove_file(&renamed).expect("removed");
            std::fs::remove_file(slot.path()).expect("removed");
        }
    }

    #[test]
    fn a_link_is_kept_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = slot(dir.path());
        theirs(&dir.path().join("target"), "theirs");
        symlink("target", slot.path()).expect("linked");
        slot.put("ours", true).expect("put");
        assert_eq!(std::fs::read_link(slot.before()).expect("a link"), Path::new("target"));
        assert_eq!(std::fs::read_to_string(dir.path().join("target")).expect("there"), "theirs");
    }

    #[test]
    fn whatever_stands_there_has_a_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = slot(dir.path());
        assert_eq!(slot.standing(), Standing::Nothing);
        symlink("nowhere", slot.path()).expect("linked");
        assert_eq!(slot.standing(), Standing::DeadLink);
        std::fs::remove_file(slot.path()).expect("removed");
        std::fs::create_dir(slot.path()).expect("made");
        assert!(matches!(slot.standing(), Standing::Other(what) if what.contains("directory")));
        std::fs::remove_dir(slot.path()).expect("removed");
        rustix::fs::mknodat(CWD, slot.path(), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("made");
        assert!(matches!(slot.standing(), Standing::Other(what) if what.contains("a special file")));
    }
}
