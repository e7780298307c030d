//! Stores the rows of a result within the limits of a request.

use std::io;

use proctor_core::sql::SqlResourceLimits;
use serde_json::Value;

/// The maximum size of the stored rows as JSON, in bytes, whatever the limits of a request. An answer must fit in a
/// frame.
pub const MAX_STORED_BYTES: u64 = 32 << 20;

/// The rows of a result. Rows beyond the limits are left out.
#[derive(Debug)]
pub struct RowBuffer {
    rows: Vec<Vec<Value>>,
    bytes: u64,
    max_rows: u64,
    max_bytes: u64,
    is_truncated: bool,
}

impl RowBuffer {
    /// Creates an empty buffer for a request.
    pub fn new(limits: &SqlResourceLimits) -> Self {
        let max_bytes = limits.result.min(MAX_STORED_BYTES);
        Self { rows: Vec::new(), bytes: 0, max_rows: limits.rows, max_bytes, is_truncated: false }
    }

    /// Reports whether every further row would be left out.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Reports whether the buffer has as many rows as the limits permit.
    pub fn is_full(&self) -> bool {
        self.is_truncated || self.rows.len() as u64 >= self.max_rows
    }

    /// Records that the result has a further row, which is left out. Callers need not convert its values.
    pub fn leave_out(&mut self) {
        self.is_truncated = true;
    }

    /// Stores a row, or leaves it out if the limits permit no more. All rows after one that was left out are left out
    /// too.
    pub fn push(&mut self, row: Vec<Value>) {
        if self.is_full() {
            self.leave_out();
            return;
        }
        let bytes = encoded_size(&row).saturating_add(1);
        if self.bytes.saturating_add(bytes) > self.max_bytes {
            self.leave_out();
            return;
        }
        self.bytes += bytes;
        self.rows.push(row);
    }

    /// Returns the rows.
    pub fn into_rows(self) -> Vec<Vec<Value>> {
        self.rows
    }
}

/// Returns the size of a row as JSON, in bytes.
fn encoded_size(row: &[Value]) -> u64 {
    let mut counted = ByteCount(0);
    // Writing to a counter does not fail, and values of JSON can always be written.
    let _ = serde_json::to_writer(&mut counted, row);
    counted.0
}

/// A writer that only counts bytes.
struct ByteCount(u64);

impl io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn buffer(rows: u64, result: u64) -> RowBuffer {
        RowBuffer::new(&SqlResourceLimits { rows, result, ..SqlResourceLimits::default() })
    }

    #[test]
    fn stores_rows_up_to_the_limit() {
        let mut rows = buffer(2, 1 << 20);
        rows.push(vec![json!(1)]);
        rows.push(vec![json!(2)]);
        assert!(rows.is_full() && !rows.is_truncated(), "two rows are the whole result so far");
        rows.push(vec![json!(3)]);
        assert!(rows.is_truncated());
        assert_eq!(rows.into_rows(), [[json!(1)], [json!(2)]]);
    }

    #[test]
    fn limits_the_bytes_of_encoded_rows() {
        // `["\u0001\u0001"]` is escaped to 16 bytes.
        let mut rows = buffer(100, 40);
        for _ in 0..3 {
            rows.push(vec![json!("\u{1}\u{1}")]);
        }
        assert!(rows.is_truncated());
        rows.push(vec![json!("")]);
        assert_eq!(rows.into_rows().len(), 2, "a short row after one that was left out is left out too");
    }
}
