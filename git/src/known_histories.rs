//! Remembers the refs and ignore rules of repositories, as long as the files that they were read from are unchanged.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::GitError;
use crate::files::file_stat::{self, FileTime, RacyWindow};
use crate::helper::GitHelper;
use crate::protocol::{GitHistory, GitSourceFile};
use crate::repository::source_files;

/// Maximum number of repositories.
const MAX_KNOWN: usize = 8;

/// The histories of repositories that this process has read, without those of repositories inside them.
#[derive(Debug, Default)]
pub struct KnownHistories(Mutex<Vec<KnownHistory>>);

#[derive(Debug)]
struct KnownHistory {
    repo: PathBuf,
    history: Arc<GitHistory>,
    sources: Arc<HistorySources>,
}

/// The files that a history was read from.
#[derive(Debug)]
struct HistorySources {
    files: Vec<GitSourceFile>,
    /// The owners of the directories that contain these files.
    owners: Vec<u32>,
    /// The time before the files were read.
    read_at: FileTime,
}

impl KnownHistories {
    /// Returns the history of the repository whose work tree is `repo`; `None` if it must be read.
    pub fn get(&self, repo: &Path) -> Option<Arc<GitHistory>> {
        let (history, sources) = {
            let known = self.lock();
            let found = known.iter().find(|known| known.repo == repo)?;
            (Arc::clone(&found.history), Arc::clone(&found.sources))
        };
        sources.are_unchanged(repo).then_some(history)
    }

    /// Reads the history of the repository whose work tree is `repo`, and remembers it if all changes of its files will
    /// change their stat data: none of them changed within `window` before.
    ///
    /// # Errors
    /// The errors of [`GitHelper::history`].
    pub fn read(&self, helper: &GitHelper, repo: &Path, window: RacyWindow) -> Result<Arc<GitHistory>, GitError> {
        let read_at = file_stat::now();
        let (history, files) = helper.history_with_sources(repo, &[])?;
        let history = Arc::new(history);
        let is_settled = |files: &Vec<GitSourceFile>| {
            files.iter().filter_map(|file| file.stamp).all(|stamp| !stamp.is_in_racy_window(read_at, window))
        };
        let sources = files.filter(is_settled).and_then(|files| {
            let owners = source_files::directory_owners(repo, &files)?;
            Some(HistorySources { files, owners, read_at })
        });
        let mut known = self.lock();
        known.retain(|known| known.repo != repo);
        if let Some(sources) = sources {
            if known.len() >= MAX_KNOWN {
                known.remove(0);
            }
            let (repo, sources) = (repo.to_owned(), Arc::new(sources));
            known.push(KnownHistory { repo, history: Arc::clone(&history), sources });
        }
        Ok(history)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<KnownHistory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistorySources {
    fn are_unchanged(&self, repo: &Path) -> bool {
        source_files::are_unchanged(&self.files, self.read_at)
            && source_files::directory_owners(repo, &self.files).is_some_and(|owners| owners == self.owners)
    }
}
