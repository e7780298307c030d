//! Inspects and replaces a hook file. A replacement is atomic: at any moment either the old or the new hook exists.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::hook_script::{self, BEFORE, HookOwner};
use crate::args::HookName;
use crate::error::CliError;
use crate::installation::show;

/// Suffixes that hook managers give to an existing hook, which they then run: pre-commit and prek, lefthook, husky.
const MANAGER_SUFFIXES: [&str; 3] = [".legacy", ".old", ".bak"];

/// The kind of file at a hook's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookFileState {
    /// No file.
    Missing,
    /// A file, or a link to one.
    File(ExistingHook),
    /// A dangling link, which git ignores.
    DanglingLink,
    /// Another kind of file, or an unreadable one; the text is a phrase that describes it.
    Unusable(String),
}

/// An existing hook file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExistingHook {
    /// Owner of the hook.
    pub owner: HookOwner,
    /// True if the file is executable, so git runs it.
    pub is_executable: bool,
    /// True if the path is a symbolic link.
    pub is_link: bool,
    /// The first bytes of the file.
    pub bytes: Vec<u8>,
}

/// The path of a hook.
#[derive(Debug, Clone)]
pub(super) struct HookFile {
    /// The kind of hook.
    pub hook: HookName,
    /// The hook directory.
    pub directory: PathBuf,
}

impl HookFile {
    /// Returns the path at which git looks for the hook.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(self.hook.as_str())
    }

    /// Returns the path at which a previous hook is kept.
    pub(super) fn kept_path(&self) -> PathBuf {
        self.directory.join(format!("{}{BEFORE}", self.hook.as_str()))
    }

    /// Inspects the file at the hook's path.
    pub(super) fn inspect(&self) -> HookFileState {
        inspect_path(&self.path())
    }

    /// Returns Proctor's hooks, unedited or edited, that another hook manager renamed and runs from its own hook.
    pub(super) fn chained_hooks(&self) -> Vec<(PathBuf, HookOwner)> {
        let renamed =
            MANAGER_SUFFIXES.iter().map(|ending| self.directory.join(format!("{}{ending}", self.hook.as_str())));
        let proctor_hooks = renamed.filter_map(|path| match inspect_path(&path) {
            HookFileState::File(ExistingHook {
                owner: whose @ (HookOwner::Proctor(_) | HookOwner::EditedProctor),
                ..
            }) => Some((path, whose)),
            _ => None,
        });
        proctor_hooks.collect()
    }

    /// Removes one of Proctor's hooks that another hook manager renamed to `path`. If Proctor's hook keeps a previous
    /// hook, that one is renamed to `path`, so that the other manager runs it from now on. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// A system call fails.
    pub(super) fn remove_chained(&self, path: &Path) -> Result<bool, CliError> {
        // Our script looks for the previous hook next to itself, so it may be stored under the new or under the old
        // name.
        let mut kept_beside = path.as_os_str().to_owned();
        kept_beside.push(BEFORE);
        let kept =
            [PathBuf::from(kept_beside), self.kept_path()].into_iter().find(|kept| kept.symlink_metadata().is_ok());
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

    /// Writes one of Proctor's hooks. With `keep`, the existing file is kept as [`HookFile::kept_path`]; otherwise it
    /// is replaced.
    ///
    /// # Errors
    /// A system call fails.
    pub(super) fn write(&self, text: &str, keep: bool) -> Result<(), CliError> {
        self.write_file(text.as_bytes(), keep).map_err(|error| self.access_error("written", &error))
    }

    fn write_file(&self, bytes: &[u8], keep: bool) -> io::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let temporary =
            self.directory.join(format!(".proctor-{}.new", random.map(|byte| format!("{byte:02x}")).concat()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o700))?);
        let put = file
            .write_all(bytes)
            // Make the hook executable for all users, independent of the umask.
            .and_then(|()| Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o755))?))
            .and_then(|()| file.sync_all())
            // Close the file first: a file that is open for writing cannot be executed.
            .map(|()| drop(file))
            .and_then(|()| if keep { self.keep_existing() } else { Ok(()) })
            .and_then(|()| std::fs::rename(&temporary, self.path()));
        if put.is_err() {
            // Ignore the result: the first error is the one to report.
            let _ = std::fs::remove_file(&temporary);
        }
        put.and_then(|()| Ok(rustix::fs::fsync(File::open(&self.directory)?)?))
    }

    /// Creates a second name for the existing file. On a file system without hard links the file is moved instead,
    /// and for a moment no hook exists.
    fn keep_existing(&self) -> io::Result<()> {
        match rustix::fs::linkat(CWD, self.path(), CWD, self.kept_path(), AtFlags::empty()) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) => {
                Ok(rustix::fs::renameat_with(CWD, self.path(), CWD, self.kept_path(), RenameFlags::NOREPLACE)?)
            }
            other => Ok(other?),
        }
    }

    /// Removes our hook and restores the previous one; returns whether there was one.
    ///
    /// # Errors
    /// A system call fails.
    pub(super) fn remove(&self) -> Result<bool, CliError> {
        let has_previous = self.kept_path().symlink_metadata().is_ok();
        let done = if has_previous {
            std::fs::rename(self.kept_path(), self.path())
        } else {
            std::fs::remove_file(self.path())
        };
        done.map_err(|error| self.access_error("taken away", &error))?;
        Ok(has_previous)
    }

    fn access_error(&self, what: &str, error: &io::Error) -> CliError {
        CliError::Environment {
            message: format!("the hook `{}` cannot be {what}: {error}", show(&self.path())),
            hint: format!("fix the permissions of `{}`", show(&self.directory)),
        }
    }
}

/// Inspects the file at `path`.
pub(super) fn inspect_path(path: &Path) -> HookFileState {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return HookFileState::Missing,
        Err(error) => return HookFileState::Unusable(format!("an inaccessible file ({error})")),
        Ok(found) => found,
    };
    let target = match path.metadata() {
        Err(_) if found.is_symlink() => return HookFileState::DanglingLink,
        Err(error) => return HookFileState::Unusable(format!("an inaccessible file ({error})")),
        Ok(target) if target.is_dir() => return HookFileState::Unusable("a directory".to_owned()),
        Ok(target) if !target.is_file() => return HookFileState::Unusable("a special file".to_owned()),
        Ok(target) => target,
    };
    match read_beginning(path, (target.dev(), target.ino())) {
        Err(error) => HookFileState::Unusable(format!("an unreadable file ({error})")),
        Ok(bytes) => HookFileState::File(ExistingHook {
            owner: hook_script::detect_owner(&bytes),
            is_executable: rustix::fs::access(path, Access::EXEC_OK).is_ok(),
            is_link: found.is_symlink(),
            bytes,
        }),
    }
}

/// Reads the beginning of a regular file, and checks that it is still the inspected one.
fn read_beginning(path: &Path, identity: (u64, u64)) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != identity {
        return Err(io::Error::other("another file is now at its path"));
    }
    let mut bytes = Vec::new();
    file.take(hook_script::MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn hook_file(directory: &Path) -> HookFile {
        HookFile { hook: HookName::PrePush, directory: directory.to_owned() }
    }

    fn write_foreign_hook(at: &Path, text: &str) {
        let mut file = File::options().write(true).create_new(true).open(at).expect("made");
        file.write_all(text.as_bytes()).expect("written");
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).expect("set");
    }

    #[test]
    fn existing_hook_is_kept_and_restored() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = hook_file(&dir.path().join("hooks"));
        slot.write("ours", false).expect("put");
        assert_eq!(std::fs::metadata(slot.path()).expect("there").permissions().mode() & 0o777, 0o755);
        assert!(!slot.remove().expect("taken"));
        write_foreign_hook(&slot.path(), "theirs");
        slot.write("ours", true).expect("put");
        let read = |path: PathBuf| std::fs::read_to_string(path).expect("there");
        assert_eq!((read(slot.path()), read(slot.kept_path())), ("ours".to_owned(), "theirs".to_owned()));
        slot.write("newer", false).expect("put");
        assert_eq!((read(slot.path()), read(slot.kept_path())), ("newer".to_owned(), "theirs".to_owned()));
        slot.write("newest", true).expect_err("something is kept already");
        assert_eq!(std::fs::read_dir(&slot.directory).expect("lists").count(), 2, "nothing lies around");
        assert!(slot.remove().expect("taken"));
        assert_eq!((read(slot.path()), slot.kept_path().exists()), ("theirs".to_owned(), false));
    }

    #[test]
    fn finds_and_removes_hook_renamed_by_a_manager() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = hook_file(&dir.path().join("hooks"));
        let options = crate::args::HookOptions {
            profile: proctor_core::model::names::ProfileName::new("pr").expect("a name"),
            each_commit: false,
            submodules: false,
            all_files: false,
            each_spec: false,
            affected_specs: false,
            fresh: false,
        };
        let text =
            hook_script::HookScript { hook: slot.hook, options: &options, program: "/usr/bin/proctor", shared: false };
        for ending in MANAGER_SUFFIXES {
            slot.write(&text.text(), false).expect("put");
            let renamed = slot.directory.join(format!("pre-push{ending}"));
            std::fs::rename(slot.path(), &renamed).expect("renamed");
            write_foreign_hook(&slot.path(), "theirs");
            let [(found, HookOwner::Proctor(_))] = &slot.chained_hooks()[..] else {
                panic!("{:?}", slot.chained_hooks())
            };
            assert_eq!(*found, renamed);
            write_foreign_hook(&slot.kept_path(), "first");
            assert!(slot.remove_chained(&renamed).expect("removed"));
            assert_eq!(std::fs::read_to_string(&renamed).expect("there"), "first");
            assert!(slot.chained_hooks().is_empty() && !slot.kept_path().exists());
            std::fs::remove_file(&renamed).expect("removed");
            std::fs::remove_file(slot.path()).expect("removed");
        }
    }

    #[test]
    fn keeps_symbolic_link_unchanged() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = hook_file(dir.path());
        write_foreign_hook(&dir.path().join("target"), "theirs");
        symlink("target", slot.path()).expect("linked");
        slot.write("ours", true).expect("put");
        assert_eq!(std::fs::read_link(slot.kept_path()).expect("a link"), Path::new("target"));
        assert_eq!(std::fs::read_to_string(dir.path().join("target")).expect("there"), "theirs");
    }

    #[test]
    fn reports_each_kind_of_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let slot = hook_file(dir.path());
        assert_eq!(slot.inspect(), HookFileState::Missing);
        symlink("nowhere", slot.path()).expect("linked");
        assert_eq!(slot.inspect(), HookFileState::DanglingLink);
        std::fs::remove_file(slot.path()).expect("removed");
        std::fs::create_dir(slot.path()).expect("made");
        assert!(matches!(slot.inspect(), HookFileState::Unusable(what) if what.contains("directory")));
        std::fs::remove_dir(slot.path()).expect("removed");
        rustix::fs::mknodat(CWD, slot.path(), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("made");
        assert!(matches!(slot.inspect(), HookFileState::Unusable(what) if what.contains("a special file")));
    }
}
