//! The libraries that programs use instead of `git status`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

/// Opens a repository with libgit2 and lists modified and untracked files.
///
/// # Errors
/// The repository cannot be read, or it is not clean.
pub(super) fn git2_status(at: &Path) -> Result<()> {
    let repository = git2::Repository::open(at)?;
    let mut options = git2::StatusOptions::new();
    options.include_untracked(true).no_refresh(true);
    let statuses = repository.statuses(Some(&mut options))?;
    ensure!(statuses.is_empty(), "libgit2 finds {} changes in a clean tree", statuses.len());
    Ok(())
}

/// Measures the same with gitoxide; `None` if it is not compiled in.
///
/// # Errors
/// The repository cannot be read, or it is not clean.
#[cfg(feature = "gix")]
pub(super) fn gix_status(at: &Path) -> Result<Option<Duration>> {
    crate::samples::measure_time(|| {
        let repository = gix::open(at)?;
        let changes = repository.status(gix::progress::Discard)?.into_iter(None)?.count();
        ensure!(changes == 0, "gitoxide finds {changes} changes in a clean tree");
        Ok(())
    })
    .map(Some)
}

#[cfg(not(feature = "gix"))]
#[expect(clippy::unnecessary_wraps, reason = "same signature as with gitoxide")]
pub(super) fn gix_status(_at: &Path) -> Result<Option<Duration>> {
    Ok(None)
}
