//! Reads the report files of a step, if the step itself wrote them, and determines which of them are not part of
//! the tree.
//!
//! A step controls these files and may try to mislead the reader, so no link is followed and only regular files are
//! opened.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use proctor_core::model::plan::RelPath;
use proctor_core::record::evidence::ReportFault;
use proctor_git::files::file_stat::FileStat;
use proctor_git::files::{paths, read_beneath};
use rustix::fs::{FileType, OFlags, Stat, fstat};
use rustix::io::Errno;

use crate::layer::layer_scan::{LayerEntry, LayerScan};
use crate::tree_view::TreeView;

/// The layer in which a step may have written report files.
#[derive(Debug, Clone, Copy)]
pub struct LayerReports<'a> {
    /// The upper directory of the step's layer.
    pub upper: BorrowedFd<'a>,
    /// The directories below the layer: the upper directories of earlier layers, newest first, and the tree.
    pub below: &'a [BorrowedFd<'a>],
}

impl LayerReports<'_> {
    /// Returns the bytes of the file at `path`, at most `limit`, or `None` if the step wrote no file.
    ///
    /// # Errors
    /// The entry at the path is not a readable regular file.
    pub fn read(&self, path: &RelPath, limit: u64) -> Result<Option<Vec<u8>>, ReportFault> {
        let path = report_path(path)?;
        let Some((bytes, stat)) = read_report(self.upper, path, limit)? else { return Ok(None) };
        Ok(Some(bytes).filter(|bytes| !self.is_copy(path, bytes, &stat)))
    }

    /// Checks whether the file is only a copy of the lower file that the kernel made when the file was opened or
    /// its mode was changed. The kernel copies the modification time, and a write changes it.
    fn is_copy(&self, path: &[u8], bytes: &[u8], copy: &Stat) -> bool {
        let time = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
        let found = |place| Some((place, read_beneath::open_entry(place, path).ok().flatten()?.1));
        let Some((place, original)) = self.below.iter().copied().find_map(found) else { return false };
        let is_file = FileType::from_raw_mode(original.st_mode) == FileType::RegularFile;
        is_file
            && time(&original) == time(copy)
            && read_report(place, path, bytes.len() as u64)
                .is_ok_and(|read| read.is_some_and(|(below, _)| below == bytes))
    }
}

/// The stat data of a path before the step, in a directory that exists longer than one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportBaseline(Option<FileStat>);

impl ReportBaseline {
    /// Records the stat data of `path` below `dir`. A path that cannot be examined counts as missing.
    pub fn record(dir: BorrowedFd<'_>, path: &RelPath) -> Self {
        let look = report_path(path).ok().and_then(|path| read_beneath::open_entry(dir, path).ok().flatten());
        Self(look.map(|(_, stat)| FileStat::from_stat(&stat)))
    }

    /// Returns the bytes of the file at `path` below `dir`, at most `limit`. Returns `None` if no file exists, or
    /// if it was not written since the mark.
    ///
    /// # Errors
    /// The entry at the path is not a readable regular file.
    pub fn read_since(&self, dir: BorrowedFd<'_>, path: &RelPath, limit: u64) -> Result<Option<Vec<u8>>, ReportFault> {
        let Some((bytes, stat)) = read_report(dir, report_path(path)?, limit)? else { return Ok(None) };
        Ok(Some(bytes).filter(|_| self.0 != Some(FileStat::from_stat(&stat))))
    }
}

/// Returns the path as bytes; a report inside `.git` is refused.
fn report_path(path: &RelPath) -> Result<&[u8], ReportFault> {
    let path = path.as_str().as_bytes();
    if paths::is_in_git_dir(path) { Err(ReportFault::InGit) } else { Ok(path) }
}

fn read_report(root: BorrowedFd<'_>, path: &[u8], limit: u64) -> Result<Option<(Vec<u8>, Stat)>, ReportFault> {
    let found = match read_beneath::open(root, path, OFlags::PATH) {
        Ok(found) => found,
        Err(error) => return missing_or_fault(&error),
    };
    let stat = fstat(&found).map_err(|errno| unreadable(&errno.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(ReportFault::SymbolicLink),
        // A whiteout: the step deleted the lower file.
        FileType::CharacterDevice if stat.st_rdev == 0 => return Ok(None),
        _ => return Err(ReportFault::NoRegularFile),
    }
    match read_beneath::open(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
        Ok(file) => read_unchanged(&file.into(), &stat, limit).map(Some),
        Err(error) => missing_or_fault(&error),
    }
}

/// Maps the error of opening a report: returns `Ok(None)` if the file does not exist, or the fault of the entry.
fn missing_or_fault<T>(error: &io::Error) -> Result<Option<T>, ReportFault> {
    if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        return Err(ReportFault::SymbolicLink);
    }
    if read_beneath::is_missing_error(error) { Ok(None) } else { Err(unreadable(error)) }
}

/// Returns the whole content of a file. Fails if the file is not the one that was examined before, or changes
/// during the read.
fn read_unchanged(file: &std::fs::File, looked_at: &Stat, limit: u64) -> Result<(Vec<u8>, Stat), ReportFault> {
    let stat = || fstat(file.as_fd()).map_err(|errno| unreadable(&errno.into()));
    let before = stat()?;
    if FileStat::from_stat(&before) != FileStat::from_stat(looked_at) {
        return Err(ReportFault::Changing);
    }
    if read_beneath::size_of(&before) > limit {
        return Err(ReportFault::TooLarge);
    }
    let mut bytes = read_beneath::content_buffer(&before, limit);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 != read_beneath::size_of(&before)
        || FileStat::from_stat(&stat()?) != FileStat::from_stat(&before)
    {
        return Err(ReportFault::Changing);
    }
    Ok((bytes, before))
}

fn unreadable(error: &io::Error) -> ReportFault {
    tracing::warn!(%error, "a report of a step cannot be read");
    ReportFault::Unreadable
}

impl LayerScan {
    /// Determines which report files of the step are not part of the tree, so that writing them does not count as a
    /// change: those that git does not track and that are files, or were deleted. `view` is the tree before the
    /// step.
    pub fn exclude_reports<'a>(&mut self, declared: impl IntoIterator<Item = &'a RelPath>, view: &TreeView) {
        let paths = declared.into_iter().filter_map(|path| report_path(path).ok());
        let is_aside = |path: &&[u8]| {
            let is_file =
                matches!(self.entries.get(*path), None | Some(LayerEntry::File { .. } | LayerEntry::Whiteout));
            is_file && !view.is_tracked(path)
        };
        self.reports = paths.filter(is_aside).map(<[u8]>::to_vec).collect();
    }
}
