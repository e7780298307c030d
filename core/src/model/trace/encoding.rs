//! Encodes traces in a compact binary form, and decodes it with bounds.
//!
//! ```text
//! trace := "PRTRACE" version(1 byte)  count  entry*  crc32 of all bytes before it (4 bytes, little-endian)
//! entry := shared  len  suffix        the path: `shared` bytes of the previous path, then `suffix`
//!          flags(1 byte)              bits 0-2 the kind, bit 3 read, bit 4 listing
//!          fields of the kind, stamp unless absent, listing (32 bytes) if bit 4
//! ```
//!
//! Numbers are in LEB128; times are zigzag-encoded first. Each trace has exactly one encoding.

use super::{
    AccessTrace, AccessedPath, FileStamp, ListingDigest, MAX_TRACE_ENTRIES, MAX_TRACE_PATH_BYTES, MAX_TRACE_TEXT_BYTES,
    PathState,
};

/// Maximum number of bytes of an encoded trace.
pub const MAX_ENCODED_BYTES: usize = 64 << 20;

const MAGIC: &[u8] = b"PRTRACE";
const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;
const KIND_BITS: u8 = 0b111;
const READ_BIT: u8 = 1 << 3;
const LISTING_BIT: u8 = 1 << 4;

/// The error for bytes that are not a trace of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the trace is damaged or of another version: {0}")]
pub struct DamagedTrace(pub(super) &'static str);

impl DamagedTrace {
    /// The contents of a tree do not match its paths.
    pub(crate) const CONTENTS: Self = Self("its contents do not match its paths");
    /// Two executions saw a path in different states.
    pub(crate) const CONTRADICTION: Self = Self("two executions saw a path in different states");
}

const TRUNCATED: DamagedTrace = DamagedTrace("it is truncated");

impl AccessTrace {
    /// Encodes the trace. The result has at most [`MAX_ENCODED_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.entries.len() * 48);
        bytes.extend_from_slice(MAGIC);
        bytes.push(VERSION);
        put_number(&mut bytes, self.entries.len() as u64);
        let mut previous: &[u8] = b"";
        for entry in &self.entries {
            put_entry(&mut bytes, previous, entry);
            previous = &entry.path;
        }
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a trace. Memory is bounded by the constants of this module, whatever the bytes are.
    ///
    /// # Errors
    /// The bytes are no trace of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedTrace> {
        if bytes.len() > MAX_ENCODED_BYTES {
            return Err(DamagedTrace("it is too long"));
        }
        let (content, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(TRUNCATED)?;
        if crc32fast::hash(content) != u32::from_le_bytes(*crc) {
            return Err(DamagedTrace("its checksum is wrong"));
        }
        let rest = content.strip_prefix(MAGIC).ok_or(DamagedTrace("it is not a trace"))?;
        let rest = rest.strip_prefix(&[VERSION]).ok_or(DamagedTrace("its version is unknown"))?;
        Decoder { rest }.read_trace()
    }
}

fn put_entry(bytes: &mut Vec<u8>, previous: &[u8], entry: &AccessedPath) {
    let shared = entry.path.iter().zip(previous).take_while(|(a, b)| a == b).count();
    put_number(bytes, shared as u64);
    put_bytes(bytes, &entry.path[shared..]);
    let read = if entry.read { READ_BIT } else { 0 };
    let listed = if entry.listing.is_some() { LISTING_BIT } else { 0 };
    bytes.push(kind_number(&entry.state) | read | listed);
    put_state(bytes, &entry.state);
    if let Some(stamp) = &entry.stamp {
        put_stamp(bytes, stamp);
    }
    if let Some(listing) = &entry.listing {
        bytes.extend_from_slice(&listing.0);
    }
}

fn kind_number(state: &PathState) -> u8 {
    match state {
        PathState::Absent => 0,
        PathState::File { .. } => 1,
        PathState::Directory { .. } => 2,
        PathState::Link { .. } => 3,
        PathState::Other { .. } => 4,
    }
}

fn put_state(bytes: &mut Vec<u8>, state: &PathState) {
    let mut put = |number: u64| put_number(bytes, number);
    match state {
        PathState::Absent => {}
        PathState::File { mode, size, uid, gid } => {
            [(*mode).into(), *size, (*uid).into(), (*gid).into()].into_iter().for_each(put);
        }
        PathState::Directory { mode, uid, gid } | PathState::Other { mode, uid, gid } => {
            [*mode, *uid, *gid].into_iter().map(u64::from).for_each(put);
        }
        PathState::Link { target, uid, gid } => {
            put((*uid).into());
            put((*gid).into());
            put_bytes(bytes, target);
        }
    }
}

fn put_stamp(bytes: &mut Vec<u8>, stamp: &FileStamp) {
    let FileStamp { dev, ino, size, mtime_ns, ctime_ns } = *stamp;
    for number in [dev, ino, size, zigzag(mtime_ns), zigzag(ctime_ns)] {
        put_number(bytes, number);
    }
}

fn put_bytes(bytes: &mut Vec<u8>, text: &[u8]) {
    put_number(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    fn read_trace(mut self) -> Result<AccessTrace, DamagedTrace> {
        let count = self.read_length(MAX_TRACE_ENTRIES)?;
        // Entries have different lengths, so the count alone must not reserve memory.
        let mut entries: Vec<AccessedPath> = Vec::with_capacity(count.min(self.rest.len() / 4));
        let mut text_bytes = 0;
        for _ in 0..count {
            let previous = entries.last().map_or(&b""[..], |entry| &entry.path);
            let entry = self.read_entry(previous)?;
            text_bytes += entry.text_bytes();
            if text_bytes > MAX_TRACE_TEXT_BYTES {
                return Err(DamagedTrace("its paths are too long"));
            }
            entries.push(entry);
        }
        match self.rest {
            [] => AccessTrace::from_sorted(entries),
            _ => Err(DamagedTrace("it has bytes after its end")),
        }
    }

    fn read_entry(&mut self, previous: &[u8]) -> Result<AccessedPath, DamagedTrace> {
        let path = self.read_path(previous)?;
        let [flags] = self.read_array()?;
        if flags & !(KIND_BITS | READ_BIT | LISTING_BIT) != 0 {
            return Err(DamagedTrace("an entry has unknown flags"));
        }
        let state = self.read_state(flags & KIND_BITS)?;
        let stamp = (state != PathState::Absent).then(|| self.read_stamp()).transpose()?;
        let listing = (flags & LISTING_BIT != 0).then(|| self.read_array()).transpose()?.map(ListingDigest);
        Ok(AccessedPath { path, state, stamp, read: flags & READ_BIT != 0, listing })
    }

    fn read_path(&mut self, previous: &[u8]) -> Result<Vec<u8>, DamagedTrace> {
        let shared = self.read_length(previous.len())?;
        let suffix = self.read_text()?;
        // Otherwise the same path would have several encodings.
        if suffix.first().is_some_and(|first| previous.get(shared) == Some(first)) {
            return Err(DamagedTrace("a path is not in its shortest form"));
        }
        Ok([&previous[..shared], suffix].concat())
    }

    fn read_state(&mut self, kind: u8) -> Result<PathState, DamagedTrace> {
        Ok(match kind {
            0 => PathState::Absent,
            1 => PathState::File {
                mode: self.read_u32()?,
                size: self.read_number()?,
                uid: self.read_u32()?,
                gid: self.read_u32()?,
            },
            2 => PathState::Directory { mode: self.read_u32()?, uid: self.read_u32()?, gid: self.read_u32()? },
            3 => {
                let (uid, gid) = (self.read_u32()?, self.read_u32()?);
                PathState::Link { target: self.read_text()?.to_vec(), uid, gid }
            }
            4 => PathState::Other { mode: self.read_u32()?, uid: self.read_u32()?, gid: self.read_u32()? },
            _ => return Err(DamagedTrace("an entry has an unknown kind")),
        })
    }

    fn read_stamp(&mut self) -> Result<FileStamp, DamagedTrace> {
        Ok(FileStamp {
            dev: self.read_number()?,
            ino: self.read_number()?,
            size: self.read_number()?,
            mtime_ns: unzigzag(self.read_number()?),
            ctime_ns: unzigzag(self.read_number()?),
        })
    }

    fn read_text(&mut self) -> Result<&'a [u8], DamagedTrace> {
        let length = self.read_length(MAX_TRACE_PATH_BYTES)?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(text)
    }

    fn read_length(&mut self, max: usize) -> Result<usize, DamagedTrace> {
        let number = usize::try_from(self.read_number()?).unwrap_or(usize::MAX);
        if number <= max { Ok(number) } else { Err(DamagedTrace("a length is too large")) }
    }

    fn read_u32(&mut self) -> Result<u32, DamagedTrace> {
        u32::try_from(self.read_number()?).map_err(|_| DamagedTrace("a number is too large"))
    }

    fn read_number(&mut self) -> Result<u64, DamagedTrace> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.read_array()?;
            let bits = u64::from(byte & 0x7f);
            // The last byte of ten holds one bit, and no number ends with an empty byte.
            if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
                return Err(DamagedTrace("a number is not in its shortest form"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DamagedTrace("a number is too large"))
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], DamagedTrace> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(*array)
    }
}
