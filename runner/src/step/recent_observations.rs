//! Keeps the states of host paths that a run has just looked up. Most steps of a run read the same libraries and tools,
//! and their inputs are compared in quick succession.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proctor_core::model::drift::Entry;
use proctor_core::model::trace::ListingDigest;
use proctor_core::reuse::{CurrentInputs, InputArea, PathNow};
use tokio::time::Instant;

/// Maximum age of an observation that is used for other steps of the run.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The observations of one run.
#[derive(Debug, Default)]
pub(super) struct RecentObservations(Mutex<Observations>);

#[derive(Debug, Default)]
struct Observations {
    /// The time of the first observation; `None` if there are none.
    since: Option<Instant>,
    states: HashMap<Vec<u8>, Option<PathNow>>,
    listings: HashMap<Vec<u8>, Option<ListingDigest>>,
}

impl RecentObservations {
    fn current(&self) -> MutexGuard<'_, Observations> {
        let mut observations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if observations.since.is_none_or(|since| since.elapsed() > MAX_AGE) {
            *observations = Observations { since: Some(Instant::now()), ..Observations::default() };
        }
        observations
    }
}

/// Looks up current inputs. Looks up each path of the host only once for all steps of a run.
pub(super) struct RecentInputs<'a, I> {
    pub(super) inputs: &'a I,
    pub(super) recent: &'a RecentObservations,
}

impl<I: CurrentInputs> CurrentInputs for RecentInputs<'_, I> {
    fn covered(&self, path: &[u8]) -> Option<Entry> {
        self.inputs.covered(path)
    }

    fn state(&self, area: InputArea, path: &[u8]) -> Option<PathNow> {
        if area == InputArea::Tree {
            return self.inputs.state(area, path);
        }
        if let Some(known) = self.recent.current().states.get(path) {
            return known.clone();
        }
        let state = self.inputs.state(area, path);
        self.recent.current().states.insert(path.to_owned(), state.clone());
        state
    }

    fn listing(&self, area: InputArea, path: &[u8]) -> Option<ListingDigest> {
        if area == InputArea::Tree {
            return self.inputs.listing(area, path);
        }
        if let Some(known) = self.recent.current().listings.get(path) {
            return *known;
        }
        let listing = self.inputs.listing(area, path);
        self.recent.current().listings.insert(path.to_owned(), listing);
        listing
    }

    fn git_content(&self, path: &[u8]) -> Option<[u8; 32]> {
        self.inputs.git_content(path)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proctor_core::model::trace::{EntryKind, PathState};

    use super::*;

    /// Counts the lookups of each path.
    #[derive(Default)]
    struct CountingInputs(RefCell<Vec<(InputArea, Vec<u8>)>>);

    impl CurrentInputs for CountingInputs {
        fn covered(&self, _: &[u8]) -> Option<Entry> {
            None
        }

        fn state(&self, area: InputArea, path: &[u8]) -> Option<PathNow> {
            self.0.borrow_mut().push((area, path.to_owned()));
            Some((PathState::Absent, None))
        }

        fn listing(&self, area: InputArea, path: &[u8]) -> Option<ListingDigest> {
            self.0.borrow_mut().push((area, path.to_owned()));
            Some(ListingDigest::from_entries(vec![("a", EntryKind::File)]))
        }

        fn git_content(&self, _: &[u8]) -> Option<[u8; 32]> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_of_the_host_is_looked_up_once_a_second_and_a_path_of_the_tree_each_time() {
        let (counted, recent) = (CountingInputs::default(), RecentObservations::default());
        let inputs = RecentInputs { inputs: &counted, recent: &recent };
        let lookups = |area| {
            for _ in 0..2 {
                assert_eq!(inputs.state(area, b"/x"), Some((PathState::Absent, None)));
                assert!(inputs.listing(area, b"/x").is_some());
            }
            counted.0.take().len()
        };
        assert_eq!(lookups(InputArea::Host), 2);
        assert_eq!(lookups(InputArea::Tree), 4);
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(lookups(InputArea::Host), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(lookups(InputArea::Host), 2);
    }
}
