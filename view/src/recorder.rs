//! Collects the accesses of a view, and decides whether they form a trace.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use proctor_core::model::trace::{
    AccessTrace, AccessedPath, FileStamp, ListingDigest, MAX_TRACE_ENTRIES, MAX_TRACE_PATH_BYTES, MAX_TRACE_TEXT_BYTES,
    NoTrace, PathState,
};

/// The position of a path in the collected accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordId(usize);

/// A path that was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The number of the export through which it was looked up first.
    pub(crate) export: usize,
    pub(crate) path: Rc<[u8]>,
    pub(crate) state: PathState,
    pub(crate) stamp: Option<FileStamp>,
    pub(crate) read: bool,
    pub(crate) listing: Option<ListingDigest>,
}

/// The accesses so far.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    records: Vec<Record>,
    ids: HashMap<Rc<[u8]>, RecordId>,
    text_bytes: usize,
    /// The reason why there will be no trace.
    no_trace: Option<NoTrace>,
}

impl Recorder {
    /// Records the answer to a lookup; `None` if there will be no trace.
    pub(crate) fn record_lookup(
        &mut self,
        export: usize,
        path: &Rc<[u8]>,
        state: PathState,
        stamp: Option<FileStamp>,
    ) -> Option<RecordId> {
        if self.no_trace.is_some() {
            return None;
        }
        let next = RecordId(self.records.len());
        match self.ids.entry(Rc::clone(path)) {
            Entry::Occupied(known) => {
                let id = *known.get();
                let known = &self.records[id.0];
                if !is_unchanged(known, &state, stamp.as_ref()) {
                    self.doubt(NoTrace::changed(path));
                }
                Some(id)
            }
            Entry::Vacant(vacant) => {
                let target = if let PathState::Link { target, .. } = &state { target.len() } else { 0 };
                self.text_bytes += path.len() + target;
                let too_long = path.len() > MAX_TRACE_PATH_BYTES || self.text_bytes > MAX_TRACE_TEXT_BYTES;
                if self.records.len() >= MAX_TRACE_ENTRIES || too_long {
                    self.doubt(NoTrace::TooManyPaths);
                    return None;
                }
                vacant.insert(next);
                self.records.push(Record { export, path: Rc::clone(path), state, stamp, read: false, listing: None });
                Some(next)
            }
        }
    }

    /// Records that the content of a file was read.
    pub(crate) fn record_read(&mut self, id: Option<RecordId>) {
        if let Some(record) = id.and_then(|id| self.records.get_mut(id.0)) {
            record.read = true;
        }
    }

    /// Records the entries of a directory that was listed.
    pub(crate) fn record_listing(&mut self, id: Option<RecordId>, digest: ListingDigest) {
        let Some(record) = id.and_then(|id| self.records.get_mut(id.0)) else { return };
        if *record.listing.get_or_insert(digest) != digest {
            let changed = NoTrace::changed(&record.path);
            self.doubt(changed);
        }
    }

    /// Records a reason why there is no trace. The first reason counts, unless a later one invalidates the result.
    pub(crate) fn doubt(&mut self, reason: NoTrace) {
        let is_worse = self.no_trace.as_ref().is_none_or(|known| !known.invalidates_result());
        if self.no_trace.is_none() || (reason.invalidates_result() && is_worse) {
            self.no_trace = Some(reason);
        }
        // The records are of no use, and a command must not make the server use more memory.
        (self.records, self.ids) = (Vec::new(), HashMap::new());
    }

    pub(crate) fn no_trace(&self) -> Option<&NoTrace> {
        self.no_trace.as_ref()
    }

    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the trace.
    ///
    /// # Errors
    /// The reason why there is no trace.
    pub(crate) fn into_trace(self) -> Result<AccessTrace, NoTrace> {
        if let Some(reason) = self.no_trace {
            return Err(reason);
        }
        let entries = self.records.into_iter().map(|Record { path, state, stamp, read, listing, .. }| AccessedPath {
            path: path.to_vec(),
            state,
            stamp,
            read,
            listing,
        });
        AccessTrace::new(entries.collect()).map_err(|error| NoTrace::NotDescribable { message: error.to_string() })
    }
}

/// Returns whether a path has the recorded state. The times of a directory do not count: they change with its entries,
/// and the lookup of an entry has a separate record.
pub(crate) fn is_unchanged(record: &Record, state: &PathState, stamp: Option<&FileStamp>) -> bool {
    let same_stamp = match (&record.stamp, stamp, state) {
        (Some(old), Some(new), PathState::Directory { .. }) => (old.dev, old.ino) == (new.dev, new.ino),
        (old, new, _) => old.as_ref() == new,
    };
    record.state == *state && same_stamp
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(ino: u64, mtime_ns: i64) -> FileStamp {
        FileStamp { dev: 1, ino, size: 0, mtime_ns, ctime_ns: mtime_ns }
    }

    fn directory() -> PathState {
        PathState::Directory { mode: 0o755, uid: 0, gid: 0 }
    }

    fn path(text: &str) -> Rc<[u8]> {
        text.as_bytes().into()
    }

    #[test]
    fn second_lookup_must_have_the_same_answer() {
        let mut recorder = Recorder::default();
        recorder.record_lookup(0, &path("/d"), directory(), Some(stamp(1, 1)));
        recorder.record_lookup(1, &path("/d"), directory(), Some(stamp(1, 2)));
        assert_eq!(recorder.no_trace(), None, "a new entry is no change of the directory itself");
        recorder.record_lookup(0, &path("/d"), directory(), Some(stamp(2, 2)));
        assert_eq!(recorder.into_trace(), Err(NoTrace::Changed { path: "/d".to_owned() }));
    }

    #[test]
    fn failure_outweighs_other_reasons() {
        let mut recorder = Recorder::default();
        let failed = |message: &str| NoTrace::Failed { message: message.to_owned() };
        recorder.doubt(NoTrace::changed(b"/a"));
        recorder.doubt(failed("first"));
        recorder.doubt(failed("second"));
        recorder.doubt(NoTrace::TooManyPaths);
        assert_eq!(recorder.into_trace(), Err(failed("first")));
    }

    #[test]
    fn stops_at_the_bound_and_frees_memory() {
        let mut recorder = Recorder::default();
        for number in 0..=MAX_TRACE_ENTRIES {
            recorder.record_lookup(0, &path(&format!("/{number}")), PathState::Absent, None);
        }
        assert!(recorder.records().is_empty());
        assert_eq!(recorder.record_lookup(0, &path("/more"), PathState::Absent, None), None);
        assert_eq!(recorder.into_trace(), Err(NoTrace::TooManyPaths));
    }
}
