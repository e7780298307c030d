//! The files that say what a mirror holds: a record, and a journal of the updates since it was written.
//!
//! An update appends the paths that it is going to change, and then what it left there. A journal that ends between
//! the two names the paths whose content is not known. The files are not synchronised with the disk: both name the
//! boot of the machine, and after another boot neither is believed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

use super::{MirrorError, open_file};
use crate::codec::{Reader, Writer};
use crate::entries::{Entries, Found, KINDS};
use crate::git::bulk::{read_paths, read_stamp, write_paths, write_stamp};
use crate::stamp::Moment;

/// The names of the files of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    record: &'static str,
    journal: &'static str,
    /// The record while it is written.
    unfinished: &'static str,
}

/// The record of the covered files.
pub(super) const COVERED: Names = Names { record: super::RECORD, journal: "journal", unfinished: "record.new" };
/// The record of the ignored files. The stat data in it are those of the work tree.
pub(super) const IGNORED: Names =
    Names { record: "ignored-record", journal: "ignored-journal", unfinished: "ignored-record.new" };
/// The first bytes of both files. The number is that of the version.
const MAGIC: &[u8; 16] = b"proctor-mirror1\n";
/// A journal that is longer than this number of bytes is folded into the record.
const MAX_JOURNAL: u64 = 1 << 20;
/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 30;

const BEGUN: u8 = 1;
const FINISHED: u8 = 2;

/// What a mirror holds.
#[derive(Debug)]
pub(super) struct Record {
    directory: OwnedFd,
    names: Names,
    journal: File,
    /// The length of the journal in bytes.
    length: u64,
    held: Entries,
    /// The newest modification time that the mirror gave to a file.
    pub(super) newest: Moment,
    /// The paths of an update that did not finish.
    unfinished: Option<Vec<Vec<u8>>>,
}

impl Record {
    /// Reads the record in `directory`; `None` where there is none, or none that can be believed.
    pub(super) fn load(directory: BorrowedFd<'_>, names: Names) -> Option<Self> {
        let bytes = read(open_file(directory, names.record)?)?;
        let mut reader = Reader::new(checked(&bytes)?);
        if reader.array() != Some(*MAGIC) || reader.bytes()? != boot()?.as_slice() {
            return None;
        }
        let newest = (reader.i64()?, reader.u32()?);
        let held = Entries::read(&mut reader).filter(|_| reader.is_at_end())?;
        let journal = read(open_file(directory, names.journal)?)?;
        let (file, directory) = (open_journal(directory, names).ok()?, directory.try_clone_to_owned().ok()?);
        let mut record =
            Self { directory, names, journal: file, length: journal.len() as u64, held, newest, unfinished: None };
        if record.replay(&journal)? == Tail::Torn {
            // What is appended behind a torn frame could not be read again.
            record.fold().ok()?;
        }
        Some(record)
    }

    /// Writes the record of a mirror that holds `held`.
    pub(super) fn create(directory: BorrowedFd<'_>, names: Names, held: Entries) -> Result<Self, MirrorError> {
        let failed = |error: std::io::Error| MirrorError::io(names.record.as_bytes(), error);
        let newest = held.newest_mtime();
        let journal = open_journal(directory, names).map_err(failed)?;
        let directory = directory.try_clone_to_owned().map_err(failed)?;
        let mut record = Self { directory, names, journal, length: 0, held, newest, unfinished: None };
        record.fold()?;
        Ok(record)
    }

    /// Returns what the mirror holds.
    pub(super) fn held(&self) -> &Entries {
        &self.held
    }

    /// Returns the paths of an update that did not finish, if there is one.
    pub(super) fn unfinished(&self) -> Option<&Vec<Vec<u8>>> {
        self.unfinished.as_ref()
    }

    /// Returns the modification time of the files that the next update writes: later than each before it, in whole
    /// seconds too, since some tools compare no finer.
    pub(super) fn next_mtime(&self, now: Moment) -> Moment {
        now.max((self.newest.0.saturating_add(1), 0))
    }

    /// Notes that an update is going to change `paths`.
    pub(super) fn begin(&mut self, paths: &[Vec<u8>]) -> Result<(), MirrorError> {
        let mut writer = Writer::default();
        writer.u8(BEGUN);
        write_paths(&mut writer, paths.iter().map(Vec::as_slice));
        self.append(&writer.into_bytes())?;
        self.unfinished.get_or_insert_default().extend_from_slice(paths);
        Ok(())
    }

    /// Notes what the mirror holds at the paths of an update.
    pub(super) fn finish(&mut self, newest: Moment, found: Vec<(Vec<u8>, Found)>) -> Result<(), MirrorError> {
        let mut writer = Writer::default();
        writer.u8(FINISHED);
        writer.i64(newest.0);
        writer.u32(newest.1);
        writer.count(found.len());
        for (path, found) in &found {
            writer.short(path);
            let kind = KINDS.iter().position(|kind| *kind == found.kind).unwrap_or_default();
            writer.u8(u8::try_from(kind).unwrap_or_default());
            writer.raw(&found.sha256);
            write_stamp(&mut writer, &found.stamp);
        }
        let bytes = writer.into_bytes();
        let is_long = self.length.saturating_add(bytes.len() as u64) > MAX_JOURNAL;
        self.newest = newest.max(self.newest);
        self.take(found);
        if is_long {
            self.fold()?;
        } else {
            self.append(&bytes)?;
        }
        self.unfinished = None;
        Ok(())
    }

    fn take(&mut self, found: Vec<(Vec<u8>, Found)>) {
        self.held.put(found);
    }

    /// Writes the record anew and empties the journal.
    fn fold(&mut self) -> Result<(), MirrorError> {
        let names = self.names;
        let failed = |error: std::io::Error| MirrorError::io(names.record.as_bytes(), error);
        let boot = boot().ok_or_else(|| failed(std::io::Error::other("the boot of the machine has no id")))?;
        let mut writer = Writer::default();
        writer.raw(MAGIC);
        writer.bytes(&boot);
        writer.i64(self.newest.0);
        writer.u32(self.newest.1);
        self.held.write(&mut writer);
        let bytes = sealed(&writer.into_bytes());
        let written = || {
            create_file(self.directory.as_fd(), names.unfinished)?.write_all(&bytes)?;
            // A journal that is replayed over the new record leaves the same: its last word on each path counts.
            renameat(&self.directory, names.unfinished, &self.directory, names.record)?;
            self.journal.set_len(0)
        };
        written().map_err(failed)?;
        self.length = 0;
        Ok(())
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), MirrorError> {
        let frame = sealed(payload);
        let mut framed = Writer::default();
        framed.bytes(&frame);
        let bytes = framed.into_bytes();
        if let Err(error) = self.journal.write_all(&bytes) {
            // A part of a frame must not stay before the next one. Without a record the mirror is hashed anew.
            if self.journal.set_len(self.length).is_err() {
                let _ = unlinkat(&self.directory, self.names.record, AtFlags::empty());
            }
            return Err(MirrorError::io(self.names.journal.as_bytes(), error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Applies a journal; `None` where a frame is damaged.
    ///
    /// A frame that is cut short at the end was being written when the process ended. It is the start of an update that
    /// had changed nothing, or the end of an update whose paths the frame before names.
    fn replay(&mut self, journal: &[u8]) -> Option<Tail> {
        let (mut reader, mut tail) = (Reader::new(journal), Tail::Whole);
        // The last word on each path counts: a tree of many files is changed once, not once for each frame.
        let mut found = HashMap::new();
        while !reader.is_at_end() {
            let Some(frame) = reader.bytes() else {
                tail = Tail::Torn;
                break;
            };
            self.replay_frame(&mut Reader::new(checked(frame)?), &mut found)?;
        }
        self.take(found.into_iter().collect());
        Some(tail)
    }

    fn replay_frame(&mut self, frame: &mut Reader<'_>, all: &mut HashMap<Vec<u8>, Found>) -> Option<()> {
        match frame.u8()? {
            BEGUN => {
                let paths = read_paths(frame)?.into_iter().map(|path| path.0);
                self.unfinished.get_or_insert_default().extend(paths);
            }
            FINISHED => {
                self.newest = self.newest.max((frame.i64()?, frame.u32()?));
                let count = frame.count(4 + 1 + 32)?;
                for _ in 0..count {
                    let (path, found) = read_found(frame)?;
                    all.insert(path, found);
                }
                self.unfinished = None;
            }
            _ => return None,
        }
        frame.is_at_end().then_some(())
    }
}

/// The end of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    Whole,
    Torn,
}

fn read_found(frame: &mut Reader<'_>) -> Option<(Vec<u8>, Found)> {
    let path = frame.short()?.to_vec();
    let kind = *KINDS.get(usize::from(frame.u8()?))?;
    let (sha256, stamp) = (frame.array()?, read_stamp(frame)?);
    Some((path, Found { kind, racy: false, sha256, stamp }))
}

/// Puts a checksum before some bytes.
pub(super) fn sealed(bytes: &[u8]) -> Vec<u8> {
    [&crc32fast::hash(bytes).to_le_bytes()[..], bytes].concat()
}

/// Returns the bytes behind their checksum; `None` where that is wrong.
pub(super) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = bytes.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*sum) == crc32fast::hash(rest)).then_some(rest)
}

/// Opens a file for writing, and empties it.
pub(super) fn create_file(directory: BorrowedFd<'_>, name: &str) -> std::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, name, flags, Mode::from_raw_mode(0o600))?.into())
}

fn open_journal(directory: BorrowedFd<'_>, names: Names) -> std::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(directory, names.journal, flags, Mode::from_raw_mode(0o600))?.into())
}

pub(super) fn read(file: File) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns what tells this boot of the machine from each other one.
fn boot() -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/sys/kernel/random/boot_id", flags, Mode::empty()).ok()?;
    read(file.into()).filter(|bytes| !bytes.is_empty())
}
