//! The records of mirrors that this process has read or written, which need not be decoded again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use proctor_git::files::file_stat::{FileStat, FileTime};

use crate::entries::EntryTree;

/// Maximum number of records.
const MAX_RECORDS: usize = 8;
/// Maximum number of entries in all records together.
const MAX_ENTRIES: usize = 400_000;

static KNOWN_RECORDS: Mutex<VecDeque<(RecordStamps, KnownRecord)>> = Mutex::new(VecDeque::new());

/// The stat data of the two files of a record. Each change of a record gives one of them another size or inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordStamps {
    pub(super) record: FileStat,
    pub(super) journal: FileStat,
}

/// The content of a record without an unfinished update.
#[derive(Debug)]
pub(super) struct KnownRecord {
    pub(super) entries: EntryTree,
    pub(super) newest_mtime: FileTime,
    /// The checksum that the next frame of the journal continues.
    pub(super) sum: u32,
}

/// Removes and returns the content of the record with these stamps.
pub(super) fn take(stamps: &RecordStamps) -> Option<KnownRecord> {
    let mut known = lock();
    let at = known.iter().position(|(other, _)| other == stamps)?;
    known.remove(at).map(|(_, record)| record)
}

/// Keeps the content of a record until it is taken, or until newer records need its place.
pub(super) fn keep(stamps: RecordStamps, record: KnownRecord) {
    let mut known = lock();
    known.retain(|(other, _)| *other != stamps);
    known.push_back((stamps, record));
    let mut entries: usize = known.iter().map(|(_, record)| record.entries.leaf_count()).sum();
    while known.len() > MAX_RECORDS || entries > MAX_ENTRIES {
        let Some((_, removed)) = known.pop_front() else { break };
        entries -= removed.entries.leaf_count();
    }
}

/// Removes all records.
#[cfg(test)]
pub(super) fn clear() {
    lock().clear();
}

fn lock() -> MutexGuard<'static, VecDeque<(RecordStamps, KnownRecord)>> {
    KNOWN_RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}
