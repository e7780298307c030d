//! Stores the content of a mirror: a record, and a journal of the updates since the record was written.
//!
//! An update first appends the paths that it is about to change, and afterwards their new entries. If a journal
//! ends between the two, the content at these paths is unknown. The files are not synced to the disk. Instead, both
//! contain the boot id of the machine and are ignored after a reboot.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use proctor_git::files::file_stat::{FileStat, FileTime};
use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};
use proctor_git::wire::listing_encoding::{read_paths, write_paths};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, renameat, unlinkat};

use crate::cache_file::{self, JournalFrame, JournalReader, NextFrame};
use crate::entries::{EntryTree, ScannedEntry, read_found, write_found};
use crate::private_copy::known_records::{self, KnownRecord, RecordStamps};
use crate::private_copy::mirror_files::{MirrorError, open_file};

/// The file names of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordFileNames {
    record: &'static str,
    journal: &'static str,
    /// Temporary name of the record while it is written.
    unfinished: &'static str,
}

/// The record of the covered files.
pub(super) const COVERED_FILES: RecordFileNames =
    RecordFileNames { record: crate::private_copy::mirror_files::RECORD, journal: "journal", unfinished: "record.new" };
/// The record of the ignored files. It contains the stat data of the work tree's files.
pub(super) const IGNORED_FILES: RecordFileNames =
    RecordFileNames { record: "ignored-record", journal: "ignored-journal", unfinished: "ignored-record.new" };
/// Magic bytes of both files, including the version number.
const MAGIC: &[u8; 16] = b"proctor-mirror2\n";
/// Maximum size of the journal, in bytes; a longer one is folded into the record.
const MAX_JOURNAL: u64 = 1 << 20;
/// The checksum that the first frame of a journal continues. It is the same for each record, since a journal may be
/// replayed on a record that contains it already.
const JOURNAL_START: u32 = 0;
/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// The largest boot id that is read, in bytes.
const MAX_BOOT_ID_BYTES: u64 = 256;

const BEGIN_FRAME: u8 = 1;
const FINISH_FRAME: u8 = 2;

/// The recorded content of a mirror.
#[derive(Debug)]
pub(crate) struct CopyRecord {
    directory: OwnedFd,
    names: RecordFileNames,
    journal: File,
    /// The stat data of the record's file; `None` while it is not valid.
    record_stat: Option<FileStat>,
    /// Size of the journal, in bytes.
    length: u64,
    /// The checksum that the next frame of the journal continues.
    sum: u32,
    entries: EntryTree,
    /// The newest modification time of all files that the mirror has written.
    pub(super) newest_mtime: FileTime,
    /// The paths of an update that did not finish.
    unfinished: Option<Vec<Vec<u8>>>,
}

impl CopyRecord {
    /// Reads the record in `directory`. Returns `None` if it does not exist or is not valid.
    pub(super) fn load(directory: BorrowedFd<'_>, names: RecordFileNames) -> Option<Self> {
        let file = open_file(directory, names.record)?;
        let record_stat = stat(&file)?;
        if let Some(known) = Self::known(directory, names, record_stat) {
            return Some(known);
        }
        let bytes = read_file(&file)?;
        let mut reader = BinaryDecoder::new(verify_checksum(&bytes)?);
        if reader.array() != Some(*MAGIC) || reader.bytes()? != boot_id()?.as_slice() {
            return None;
        }
        let newest = (reader.i64()?, reader.u32()?);
        let held = EntryTree::decode(&mut reader).filter(|_| reader.is_at_end())?;
        let journal = read_file(&open_file(directory, names.journal)?)?;
        let (file, directory) = (open_journal(directory, names).ok()?, directory.try_clone_to_owned().ok()?);
        let mut record = Self {
            directory,
            names,
            journal: file,
            record_stat: Some(record_stat),
            length: journal.len() as u64,
            sum: JOURNAL_START,
            entries: held,
            newest_mtime: newest,
            unfinished: None,
        };
        if record.replay(&journal)? == JournalTail::Torn {
            // A frame that is appended after a torn one could not be read.
            record.compact().ok()?;
        }
        Some(record)
    }

    /// Returns a record that this process has read or written before and that has not changed since.
    fn known(directory: BorrowedFd<'_>, names: RecordFileNames, record_stat: FileStat) -> Option<Self> {
        let journal = open_journal(directory, names).ok()?;
        let stamps = RecordStamps { record: record_stat, journal: stat(&journal)? };
        let directory = directory.try_clone_to_owned().ok()?;
        let KnownRecord { entries, newest_mtime, sum } = known_records::take(&stamps)?;
        let (record_stat, length) = (Some(record_stat), stamps.journal.size);
        Some(Self { directory, names, journal, record_stat, length, sum, entries, newest_mtime, unfinished: None })
    }

    /// Writes the record of a mirror with the content `held`.
    pub(super) fn create(
        directory: BorrowedFd<'_>,
        names: RecordFileNames,
        held: EntryTree,
    ) -> Result<Self, MirrorError> {
        let failed = |error: std::io::Error| MirrorError::io(names.record.as_bytes(), error);
        let newest = held.newest_mtime();
        let journal = open_journal(directory, names).map_err(failed)?;
        let directory = directory.try_clone_to_owned().map_err(failed)?;
        let mut record = Self {
            directory,
            names,
            journal,
            record_stat: None,
            length: 0,
            sum: JOURNAL_START,
            entries: held,
            newest_mtime: newest,
            unfinished: None,
        };
        record.compact()?;
        Ok(record)
    }

    /// Returns the content of the mirror.
    pub(super) fn entries(&self) -> &EntryTree {
        &self.entries
    }

    /// Returns the paths of an update that did not finish, if there is one.
    pub(super) fn unfinished(&self) -> Option<&Vec<Vec<u8>>> {
        self.unfinished.as_ref()
    }

    /// Returns the modification time for the files of the next update. It is at least one second later than all
    /// earlier times, since some tools compare whole seconds.
    pub(super) fn next_mtime(&self, now: FileTime) -> FileTime {
        now.max((self.newest_mtime.0.saturating_add(1), 0))
    }

    /// Records that an update is about to change `paths`.
    pub(super) fn begin(&mut self, paths: &[Vec<u8>]) -> Result<(), MirrorError> {
        let mut writer = BinaryEncoder::default();
        writer.u8(BEGIN_FRAME);
        write_paths(&mut writer, paths.iter().map(Vec::as_slice));
        self.append(&writer.into_bytes())?;
        self.unfinished.get_or_insert_default().extend_from_slice(paths);
        Ok(())
    }

    /// Records the new entries at the paths of an update.
    pub(super) fn finish(&mut self, newest: FileTime, found: Vec<(Vec<u8>, ScannedEntry)>) -> Result<(), MirrorError> {
        let mut writer = BinaryEncoder::default();
        writer.u8(FINISH_FRAME);
        writer.i64(newest.0);
        writer.u32(newest.1);
        writer.count(found.len());
        for (path, found) in &found {
            writer.short_bytes(path);
            write_found(&mut writer, found, 0);
        }
        let bytes = writer.into_bytes();
        let is_long = self.length.saturating_add(bytes.len() as u64) > MAX_JOURNAL;
        self.newest_mtime = newest.max(self.newest_mtime);
        self.apply(found);
        if is_long {
            self.compact()?;
        } else {
            self.append(&bytes)?;
        }
        self.unfinished = None;
        Ok(())
    }

    fn apply(&mut self, found: Vec<(Vec<u8>, ScannedEntry)>) {
        self.entries.replace_leaves(found);
    }

    /// Rewrites the record and empties the journal.
    fn compact(&mut self) -> Result<(), MirrorError> {
        let names = self.names;
        let failed = |error: std::io::Error| MirrorError::io(names.record.as_bytes(), error);
        let boot = boot_id().ok_or_else(|| failed(std::io::Error::other("the boot of the machine has no id")))?;
        let mut writer = BinaryEncoder::default();
        writer.raw(MAGIC);
        writer.bytes(&boot);
        writer.i64(self.newest_mtime.0);
        writer.u32(self.newest_mtime.1);
        self.entries.encode(&mut writer);
        let bytes = with_checksum(&writer.into_bytes());
        self.record_stat = None;
        let written = || {
            let mut file = create_file(self.directory.as_fd(), names.unfinished)?;
            file.write_all(&bytes)?;
            // If the process ends here, replaying the old journal on the new record has no effect, since the last
            // entry of each path applies.
            renameat(&self.directory, names.unfinished, &self.directory, names.record)?;
            self.journal.set_len(0)?;
            Ok(stat(&file))
        };
        self.record_stat = written().map_err(failed)?;
        (self.length, self.sum) = (0, JOURNAL_START);
        Ok(())
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), MirrorError> {
        let JournalFrame { bytes, sum } = JournalFrame::new(self.sum, payload);
        if let Err(error) = self.journal.write_all(&bytes) {
            // A partial frame must not precede the next one. If it cannot be removed, the record is deleted, and
            // the mirror is hashed again later.
            if self.journal.set_len(self.length).is_err() {
                let _ = unlinkat(&self.directory, self.names.record, AtFlags::empty());
            }
            return Err(MirrorError::io(self.names.journal.as_bytes(), error));
        }
        (self.length, self.sum) = (self.length + bytes.len() as u64, sum);
        Ok(())
    }

    /// Applies a journal. Returns `None` if a frame is damaged.
    ///
    /// A truncated frame at the end was being written when the process ended. It is either the start of an update
    /// that had not changed anything yet, or the end of an update whose paths are in the preceding frame.
    fn replay(&mut self, journal: &[u8]) -> Option<JournalTail> {
        let mut reader = JournalReader::new(journal, JOURNAL_START);
        // The last entry of each path applies. Collecting the entries first avoids rebuilding a large tree for each
        // frame.
        let mut found = HashMap::new();
        let tail = loop {
            match reader.next_frame() {
                NextFrame::Payload(frame) => self.replay_frame(&mut BinaryDecoder::new(frame), &mut found)?,
                NextFrame::End => break JournalTail::Whole,
                NextFrame::Torn => break JournalTail::Torn,
                NextFrame::Foreign => return None,
            }
        };
        self.sum = reader.sum();
        self.apply(found.into_iter().collect());
        Some(tail)
    }

    fn replay_frame(&mut self, frame: &mut BinaryDecoder<'_>, all: &mut HashMap<Vec<u8>, ScannedEntry>) -> Option<()> {
        match frame.u8()? {
            BEGIN_FRAME => {
                let paths = read_paths(frame)?.into_iter().map(|path| path.0);
                self.unfinished.get_or_insert_default().extend(paths);
            }
            FINISH_FRAME => {
                self.newest_mtime = self.newest_mtime.max((frame.i64()?, frame.u32()?));
                let count = frame.count(4 + 1 + 1 + 32)?;
                for _ in 0..count {
                    let (path, found) = read_entry(frame)?;
                    all.insert(path, found);
                }
                self.unfinished = None;
            }
            _ => return None,
        }
        frame.is_at_end().then_some(())
    }
}

impl Drop for CopyRecord {
    fn drop(&mut self) {
        let (Some(record), None, Some(journal)) = (self.record_stat, &self.unfinished, stat(&self.journal)) else {
            return;
        };
        // Another process may have appended to the journal.
        if journal.size == self.length {
            let entries = std::mem::take(&mut self.entries);
            let known = KnownRecord { entries, newest_mtime: self.newest_mtime, sum: self.sum };
            known_records::keep(RecordStamps { record, journal }, known);
        }
    }
}

/// The state of a journal's last frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JournalTail {
    Whole,
    Torn,
}

fn read_entry(frame: &mut BinaryDecoder<'_>) -> Option<(Vec<u8>, ScannedEntry)> {
    let path = frame.short_bytes()?.to_vec();
    Some((path, read_found(frame)?.0))
}

/// Prefixes bytes with a checksum.
pub(super) fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    [&cache_file::checksum(bytes).to_le_bytes()[..], bytes].concat()
}

/// Returns the bytes after their checksum, or `None` if the checksum is wrong.
pub(super) fn verify_checksum(bytes: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = bytes.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*sum) == cache_file::checksum(rest)).then_some(rest)
}

/// Creates a file, or empties an existing one, and opens it for writing.
pub(super) fn create_file(directory: BorrowedFd<'_>, name: &str) -> std::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::from_raw_mode(0o600))?.into())
}

fn stat(file: &File) -> Option<FileStat> {
    fstat(file).ok().map(|stat| FileStat::from_stat(&stat))
}

fn open_journal(directory: BorrowedFd<'_>, names: RecordFileNames) -> std::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, names.journal, flags, Mode::from_raw_mode(0o600))?.into())
}

pub(super) fn read_file(file: &File) -> Option<Vec<u8>> {
    let length = file.metadata().ok()?.len().min(MAX_BYTES);
    cache_file::read_start(file, usize::try_from(length).ok()?).ok()
}

/// Returns the id of the machine's current boot.
fn boot_id() -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/sys/kernel/random/boot_id", flags, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(file).take(MAX_BOOT_ID_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes).filter(|bytes| !bytes.is_empty())
}
