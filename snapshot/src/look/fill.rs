//! Scans a tree of which only the names are known, and stores each result in its leaf.

use std::os::fd::AsFd as _;
use std::sync::{Mutex, PoisonError};

use super::read::Eye;
use super::{Before, Counts, Look, by_readers};
use crate::entries::{Blank, Blanks, DirectoryLook, Filled, State};
use crate::paths;
use crate::snapshot::SnapshotError;

impl Look<'_> {
    /// Scans every blank.
    ///
    /// # Errors
    /// The same as those of [`Look::everywhere`].
    pub(crate) fn fill(&self, blanks: Blanks<'_>) -> Result<(Vec<Filled>, Counts), SnapshotError> {
        let about = blanks.about();
        // Becomes `None` when a thread fails, so that the other threads stop.
        let blanks = Mutex::new(Some(blanks));
        let next = || blanks.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Iterator::next);
        let read = by_readers(about, || {
            let (mut filled, mut counts, mut eye) = (Vec::new(), Counts::default(), Eye::new(self));
            while let Some(blank) = next().filter(|_| !self.is_stopped()) {
                match self.blank(blank, &mut eye, &mut counts) {
                    Ok(known) => filled.push(known),
                    Err(error) => {
                        *blanks.lock().unwrap_or_else(PoisonError::into_inner) = None;
                        return Err(error);
                    }
                }
            }
            Ok((filled, counts))
        })?;
        let mut all = (Vec::new(), Counts::default());
        for (filled, counts) in read {
            all.0.extend(filled);
            all.1.add(counts);
        }
        Ok(all)
    }

    fn blank(&self, mut blank: Blank<'_>, eye: &mut Eye<'_>, counts: &mut Counts) -> Result<Filled, SnapshotError> {
        let path = self.known.directory_path(blank.directory);
        let Some((opened, stamp)) = self.open(path)? else { return Ok(blank.filled(DirectoryLook::default())) };
        let other = match self.before {
            Before::Other(Some(other)) => other.find(path).map(|at| (other, at)),
            Before::Other(None) | Before::Known => None,
        };
        for (name, found) in blank.leaves() {
            let before = other.and_then(|(other, at)| Some(other.leaf_at(other.leaf_in(at, name)?).found));
            let now = eye.look(opened.as_fd(), name, *found, before);
            *found = now.map_err(|failed| failed.at(&paths::join(path, name)))?;
            counts.looked += 1;
            counts.hashed += usize::from(eye.has_read());
        }
        // `Ignored` is a placeholder: git reports later which directories the rules ignore.
        Ok(blank.filled(DirectoryLook { stamp, racy: self.is_racy(&stamp), state: State::Ignored }))
    }
}
