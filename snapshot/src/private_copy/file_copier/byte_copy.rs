//! Copies and hashes the bytes of one file.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use proctor_git::files::read_beneath;
use rustix::fs::fstat;
use rustix::io::{Errno, pread, write};
use sha2::{Digest as _, Sha256};

/// The byte budget for the copy of a file.
pub(super) struct FileByteBudget<'a> {
    pub(super) bytes: u64,
    pub(super) spare: &'a SpareBytes,
    /// Number of bytes that were taken from `spare`.
    pub(super) reserved: u64,
}

impl FileByteBudget<'_> {
    /// Returns whether a copy of `size` bytes is within the budget. Takes spare bytes if necessary.
    pub(super) fn reserve_up_to(&mut self, size: u64) -> bool {
        let more = size.saturating_sub(self.bytes);
        if !self.spare.reserve(more) {
            return false;
        }
        self.bytes += more;
        self.reserved += more;
        true
    }
}

/// Copies a file completely and returns the sha256 of the copied bytes, or `None` if the budget is exhausted.
pub(super) fn copy_to_end(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    budget: &mut FileByteBudget<'_>,
    buffer: &mut [u8],
) -> Result<Option<[u8; 32]>, Errno> {
    let (mut hasher, mut at) = (Sha256::new(), 0);
    loop {
        match pread(from, &mut *buffer, at) {
            Ok(0) => return Ok(Some(hasher.finalize().into())),
            Ok(count) => {
                at += count as u64;
                if !budget.reserve_up_to(at) {
                    return Ok(None);
                }
                hasher.update(&buffer[..count]);
                write_all(to, &buffer[..count])?;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Copies `size` bytes and returns their sha256, or `None` if the file is longer or shorter.
pub(super) fn copy_exactly(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size: u64,
    buffer: &mut [u8],
) -> Result<Option<[u8; 32]>, Errno> {
    let mut hasher = Sha256::new();
    let mut at = 0;
    // Reading one byte past the size detects a file that grows.
    while at <= size {
        let count = match pread(from, &mut *buffer, at) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            // A directory replaced the file.
            Err(Errno::ISDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        at += count as u64;
        if at > size {
            return Ok(None);
        }
        hasher.update(&buffer[..count]);
        write_all(to, &buffer[..count])?;
        if at == size && count < buffer.len() {
            break;
        }
    }
    Ok((at == size).then(|| hasher.finalize().into()))
}

pub(in crate::private_copy) fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Returns the sha256 of a file that only we can write, or `None` if its size is not `size`.
pub(super) fn hash_file(file: BorrowedFd<'_>, size: u64, buffer: &mut [u8]) -> Result<Option<[u8; 32]>, Errno> {
    if read_beneath::size_of(&fstat(file)?) != size {
        return Ok(None);
    }
    let (mut hasher, mut at) = (Sha256::new(), 0);
    loop {
        match pread(file, &mut *buffer, at) {
            Ok(0) => return Ok((at == size).then(|| hasher.finalize().into())),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Number of bytes by which all ignored files together may grow beyond the sizes found by the survey.
pub(crate) struct SpareBytes(AtomicU64);

impl SpareBytes {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes `bytes` from the budget. Returns whether that many bytes were left.
    fn reserve(&self, bytes: u64) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}
