//! Files that are removed unless they are published.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{self, AtFlags};

use super::Directory;
use crate::store::StoreError;

/// A file that is not published yet.
#[derive(Debug)]
pub struct TemporaryFile {
    pub(super) entry: TemporaryEntry,
    /// The open file, for writing its content.
    pub file: File,
}

/// The name of a temporary file, which is removed on drop unless the file is published.
#[derive(Debug)]
pub(super) struct TemporaryEntry {
    pub(super) directory: Directory,
    pub(super) name: String,
    pub(super) published: bool,
}

impl TemporaryFile {
    /// Renames the file to `name` and makes the name durable. The caller must have synced its content.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub fn publish(self, name: &str) -> Result<(), StoreError> {
        let directory = self.entry.directory.clone();
        self.publish_in(&directory, name)
    }

    /// Publishes the file like [`TemporaryFile::publish`], but in another directory of the same file system.
    ///
    /// # Errors
    /// Same as [`TemporaryFile::publish`].
    pub fn publish_in(self, directory: &Directory, name: &str) -> Result<(), StoreError> {
        self.entry.move_to(directory, name)?;
        directory.sync()
    }

    /// Renames the file to `name`, durably, unless `name` exists; returns whether it did. The caller must have
    /// synced the content.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub fn publish_new(mut self, name: &str) -> Result<bool, StoreError> {
        let fd = &self.entry.directory.fd;
        let moved = match fs::renameat_with(fd, &self.entry.name, fd, name, fs::RenameFlags::NOREPLACE) {
            // File systems without `RENAME_NOREPLACE`, such as NFS, still refuse a hard link to a name that exists.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                fs::linkat(fd, &self.entry.name, fd, name, AtFlags::empty())
            }
            moved => {
                self.entry.published = moved.is_ok();
                moved
            }
        };
        match moved {
            Ok(()) => self.entry.directory.sync().map(|()| true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(errno) => Err(StoreError::io("write", self.entry.directory.path_of(name))(errno)),
        }
    }
}

impl TemporaryEntry {
    pub(super) fn move_to(mut self, directory: &Directory, name: &str) -> Result<(), StoreError> {
        if self.is_at(directory, name) {
            self.published = true;
            return Ok(());
        }
        fs::renameat(&self.directory.fd, &self.name, &directory.fd, name)
            .map_err(StoreError::io("write", directory.path_of(name)))?;
        self.published = true;
        Ok(())
    }

    /// Returns whether the file was created with this name.
    pub(super) fn is_at(&self, directory: &Directory, name: &str) -> bool {
        self.name == name && Arc::ptr_eq(&self.directory.fd, &directory.fd)
    }
}

impl Drop for TemporaryEntry {
    fn drop(&mut self) {
        if !self.published
            && let Err(errno) = fs::unlinkat(&self.directory.fd, &self.name, AtFlags::empty())
        {
            tracing::warn!(name = self.name, %errno, "a temporary file could not be removed");
        }
    }
}
