//! What is said to a worker and back: frames of JSON over one socket, a length of four bytes (little-endian) before each.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// How large a frame may be, in bytes.
pub const MOST: usize = 64 << 20;

/// What a worker says when it is ready.
pub const HELLO: &str = "proctor-sql 1";

/// Writes one frame.
///
/// # Errors
/// It is too large, or the other side is gone.
pub fn write<T: Serialize>(mut to: impl Write, value: &T) -> io::Result<()> {
    // One write: two of them wake the other side twice.
    let mut frame = vec![0; size_of::<u32>()];
    serde_json::to_writer(&mut frame, value)?;
    let length = frame.len() - size_of::<u32>();
    let header = u32::try_from(length).ok().filter(|_| length <= MOST);
    let header = header.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"))?;
    frame[..size_of::<u32>()].copy_from_slice(&header.to_le_bytes());
    to.write_all(&frame)?;
    to.flush()
}

/// Reads one frame; `None` where the other side is done.
///
/// # Errors
/// The other side is gone in the middle of a frame, or it is none.
pub fn read<T: DeserializeOwned>(mut from: impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read(&mut length)? {
        0 => return Ok(None),
        read => from.read_exact(&mut length[read..])?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too large"));
    }
    let mut json = vec![0; length];
    from.read_exact(&mut json)?;
    Ok(Some(serde_json::from_slice(&json)?))
}
