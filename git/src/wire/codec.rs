//! Reads and writes numbers and byte strings in sequence, for data that are too large for JSON. Numbers are
//! little-endian; byte strings and lists are prefixed with their length.

/// Appends encoded values to a buffer.
#[derive(Debug, Default)]
pub struct BinaryEncoder {
    bytes: Vec<u8>,
}

impl BinaryEncoder {
    /// Writes a byte.
    #[inline]
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Writes a number of four bytes.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a number of eight bytes.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a signed number of eight bytes.
    #[inline]
    pub fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes bytes without their length, which the reader must know.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the number of values that follow.
    #[inline]
    pub fn count(&mut self, count: usize) {
        self.u64(count as u64);
    }

    /// Writes a byte string with its length.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// Writes a byte string of less than 4 GiB with a four-byte length.
    #[inline]
    pub fn short_bytes(&mut self, bytes: &[u8]) {
        // No path is that long; the reader would reject a truncated length.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.raw(bytes);
    }

    /// Makes room for more bytes, so that writing them allocates no memory.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Returns the encoded bytes.
    #[inline]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads the output of a [`BinaryEncoder`]. The methods return `None` if the bytes do not match.
#[derive(Debug, Clone, Copy)]
pub struct BinaryDecoder<'a> {
    rest: &'a [u8],
}

impl<'a> BinaryDecoder<'a> {
    /// Creates a decoder of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads `count` bytes.
    #[inline]
    pub fn raw(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// Reads as many bytes as the array holds.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    /// Reads a byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads a number of four bytes.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a number of eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a signed number of eight bytes.
    #[inline]
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    /// Reads the number of values that follow, each of which takes at least `least` bytes. Rejects a number that
    /// the remaining bytes cannot hold, so that the caller never allocates too much memory.
    #[inline]
    pub fn count(&mut self, min_size: usize) -> Option<usize> {
        let count = usize::try_from(self.u64()?).ok()?;
        (count.checked_mul(min_size.max(1))? <= self.rest.len()).then_some(count)
    }

    /// Reads a byte string with its length.
    #[inline]
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.count(1)?;
        self.raw(count)
    }

    /// Reads a byte string with a four-byte length.
    #[inline]
    pub fn short_bytes(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.u32()?).ok()?;
        self.raw(count)
    }

    /// Returns the number of bytes that were not read yet.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns whether all bytes were read.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_all_value_kinds() {
        let mut writer = BinaryEncoder::default();
        writer.u8(1);
        writer.u32(2);
        writer.u64(3);
        writer.i64(-4);
        writer.bytes(b"five");
        writer.short_bytes(b"six");
        writer.count(2);
        writer.raw(b"ab");
        let bytes = writer.into_bytes();
        let mut reader = BinaryDecoder::new(&bytes);
        assert_eq!((reader.u8(), reader.u32(), reader.u64(), reader.i64()), (Some(1), Some(2), Some(3), Some(-4)));
        assert_eq!((reader.bytes(), reader.short_bytes()), (Some(&b"five"[..]), Some(&b"six"[..])));
        assert_eq!((reader.count(1), reader.raw(2), reader.is_at_end()), (Some(2), Some(&b"ab"[..]), true));
        assert_eq!((reader.u8(), reader.bytes()), (None, None));
    }

    #[test]
    fn rejects_count_beyond_remaining_bytes() {
        let mut writer = BinaryEncoder::default();
        writer.u64(u64::MAX);
        assert_eq!(BinaryDecoder::new(&writer.into_bytes()).count(8), None);
    }
}
