//! Reads the files in which this crate keeps data between two runs, and the journals that continue them.
//!
//! A journal is a sequence of frames: the length of a payload, the checksum of the length, the checksum of the payload,
//! and the payload. Each checksum also covers the checksum before it, in the first frame a number that the file
//! prescribes. A frame is therefore valid only after the frames that it was written after.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::panic::resume_unwind;

use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};

/// Number of bytes from which two threads are faster than one.
const PARALLEL_BYTES: usize = 1 << 20;
/// Size of the length and the checksums before a payload, in bytes.
const FRAME_HEADER_BYTES: usize = 8 + 4 + 4;

/// Reads the first `length` bytes of a file; fewer if the file is shorter.
pub(crate) fn read_start(file: &File, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let (first, second) = bytes.split_at_mut(split_point(length));
    let offset = first.len();
    let (first, second) = on_two_threads(
        !second.is_empty(),
        || read_until_end(file, first, 0),
        || read_until_end(file, second, offset as u64),
    );
    let (first, second) = (first?, second?);
    bytes.truncate(if first == offset { first + second } else { first });
    Ok(bytes)
}

/// Returns the CRC-32 of bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let (first, second) = bytes.split_at(split_point(bytes.len()));
    let hash = |part| {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(part);
        hasher
    };
    let (mut all, rest) = on_two_threads(!second.is_empty(), || hash(first), || hash(second));
    all.combine(&rest);
    all.finalize()
}

/// Returns the length of the part for the first thread.
fn split_point(length: usize) -> usize {
    if length < PARALLEL_BYTES { length } else { length / 2 }
}

fn on_two_threads<T: Send>(is_large: bool, first: impl FnOnce() -> T, second: impl FnOnce() -> T + Send) -> (T, T) {
    if !is_large {
        return (first(), second());
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(second);
        (first(), second.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn read_until_end(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut taken = 0;
    while taken < buffer.len() {
        match file.read_at(&mut buffer[taken..], offset + taken as u64) {
            Ok(0) => break,
            Ok(count) => taken += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// A frame of a journal, ready to be appended.
#[derive(Debug)]
pub(crate) struct JournalFrame {
    pub(crate) bytes: Vec<u8>,
    /// The checksum that the next frame continues.
    pub(crate) sum: u32,
}

impl JournalFrame {
    /// Makes a frame that follows a frame with the checksum `previous`.
    pub(crate) fn new(previous: u32, payload: &[u8]) -> Self {
        let mut writer = BinaryEncoder::default();
        writer.reserve(FRAME_HEADER_BYTES + payload.len());
        writer.count(payload.len());
        let sum_of_length = length_checksum(previous, payload.len() as u64);
        let sum = chained_checksum(sum_of_length, payload);
        writer.u32(sum_of_length);
        writer.u32(sum);
        writer.raw(payload);
        Self { bytes: writer.into_bytes(), sum }
    }
}

/// Reads the frames of a journal.
#[derive(Debug)]
pub(crate) struct JournalReader<'a> {
    rest: BinaryDecoder<'a>,
    sum: u32,
}

/// The next part of a journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextFrame<'a> {
    Payload(&'a [u8]),
    /// The journal ends with a complete frame.
    End,
    /// The journal ends within a frame.
    Torn,
    /// The frame is damaged, or was written after another frame.
    Foreign,
}

impl<'a> JournalReader<'a> {
    /// Starts to read a journal whose first frame continues the checksum `first`.
    pub(crate) fn new(journal: &'a [u8], first: u32) -> Self {
        Self { rest: BinaryDecoder::new(journal), sum: first }
    }

    /// Returns the checksum that the frame after the last valid one continues.
    pub(crate) fn sum(&self) -> u32 {
        self.sum
    }

    /// Returns the number of bytes that were not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.remaining()
    }

    /// Reads the next frame. After a frame that is not valid, the reader must not be used.
    pub(crate) fn next_frame(&mut self) -> NextFrame<'a> {
        if self.rest.is_at_end() {
            return NextFrame::End;
        }
        let (Some(length), Some(sum_of_length), Some(sum)) = (self.rest.u64(), self.rest.u32(), self.rest.u32()) else {
            return NextFrame::Torn;
        };
        if length_checksum(self.sum, length) != sum_of_length {
            return NextFrame::Foreign;
        }
        let Some(payload) = usize::try_from(length).ok().and_then(|length| self.rest.raw(length)) else {
            return NextFrame::Torn;
        };
        if chained_checksum(sum_of_length, payload) != sum {
            return NextFrame::Foreign;
        }
        self.sum = sum;
        NextFrame::Payload(payload)
    }
}

fn length_checksum(previous: u32, length: u64) -> u32 {
    chained_checksum(previous, &length.to_le_bytes())
}

fn chained_checksum(previous: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&previous.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn large_files_are_read_and_summed_like_small_ones() {
        for length in [0, 1, PARALLEL_BYTES - 1, PARALLEL_BYTES, 3 * PARALLEL_BYTES + 1] {
            let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&content).expect("writes");
            assert!(read_start(&file, length).expect("reads") == content, "{length}");
            assert_eq!(checksum(&content), crc32fast::hash(&content), "{length}");
            for shorter in [length / 3, length / 2, length.saturating_sub(1)] {
                assert!(read_start(&file, shorter).expect("reads") == content[..shorter], "{length}, {shorter}");
                file.set_len(shorter as u64).expect("truncates");
                assert!(read_start(&file, length).expect("reads") == content[..shorter], "{length}, {shorter}");
                file.set_len(0).expect("truncates");
                std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).expect("writes");
            }
        }
    }

    #[test]
    fn frames_are_valid_only_in_their_order() {
        let first = JournalFrame::new(7, b"first");
        let second = JournalFrame::new(first.sum, b"second");
        let journal = [&first.bytes[..], &second.bytes].concat();
        let mut reader = JournalReader::new(&journal, 7);
        assert_eq!(reader.next_frame(), NextFrame::Payload(b"first"));
        assert_eq!((reader.next_frame(), reader.sum()), (NextFrame::Payload(b"second"), second.sum));
        assert_eq!(reader.next_frame(), NextFrame::End);
        for (journal, start) in
            [(&journal[..], 8), (&second.bytes, 7), (&[&second.bytes[..], &first.bytes].concat(), 7)]
        {
            assert_eq!(JournalReader::new(journal, start).next_frame(), NextFrame::Foreign);
        }
        let repeated = [&first.bytes[..], &first.bytes].concat();
        let mut reader = JournalReader::new(&repeated, 7);
        assert_eq!(reader.next_frame(), NextFrame::Payload(b"first"));
        assert_eq!(reader.next_frame(), NextFrame::Foreign);
    }

    #[test]
    fn every_truncation_and_bit_flip_ends_the_journal() {
        let frame = JournalFrame::new(7, b"payload");
        for length in 1..frame.bytes.len() {
            assert_eq!(JournalReader::new(&frame.bytes[..length], 7).next_frame(), NextFrame::Torn, "{length}");
        }
        for at in 0..frame.bytes.len() * 8 {
            let mut damaged = frame.bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert_eq!(JournalReader::new(&damaged, 7).next_frame(), NextFrame::Foreign, "{at}");
        }
    }
}
