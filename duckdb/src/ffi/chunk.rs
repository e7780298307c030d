//! Reads rows in DuckDB's format: one vector for each column, which is read in place.

use std::sync::Arc;

use super::{Api, OpaquePtr, OpenConnection};

/// `duckdb_string_t`: a length, followed by up to twelve bytes, or by the first four bytes and a pointer to all of
/// them.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawString {
    length: u32,
    bytes: [u8; 12],
}

/// The longest string, in bytes, that is stored in the value itself.
const MAX_INLINE_LENGTH: usize = 12;
/// The deepest level of nested values that [`Chunk::byte_size`] examines.
const MAX_DEPTH: u32 = 32;

/// Consecutive rows of a result.
pub struct Chunk {
    connection: Arc<OpenConnection>,
    raw: OpaquePtr,
}

impl Chunk {
    /// Takes ownership of a chunk that a connection has just returned.
    pub(super) fn from_raw(connection: &Arc<OpenConnection>, raw: OpaquePtr) -> Self {
        Self { connection: Arc::clone(connection), raw }
    }

    /// Returns the number of rows.
    pub fn row_count(&self) -> u64 {
        // SAFETY: the chunk is alive.
        unsafe { (self.connection.api().data_chunk_get_size)(self.raw) }
    }

    /// Returns the size of all values in bytes: the length of each text, and eight bytes for other values.
    pub fn byte_size(&self) -> u64 {
        let columns = self.column_count();
        (0..columns).filter_map(|column| self.vector(column)).map(|vector| vector.byte_size(self.row_count(), 0)).sum()
    }

    /// Returns the text in a cell; `None` for NULL, or if the column has another type.
    pub fn text(&self, column: u64, row: u64) -> Option<String> {
        let vector = self.vector(column).filter(|vector| vector.type_id() == types::VARCHAR)?;
        vector.string_bytes(self.checked_row(row)?).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the integer in a cell; `None` for NULL, or if the column does not consist of 64-bit integers.
    pub fn number(&self, column: u64, row: u64) -> Option<i64> {
        let vector = self.vector(column).filter(|vector| vector.type_id() == types::BIGINT)?;
        vector.i64_at(self.checked_row(row)?)
    }

    fn checked_row(&self, row: u64) -> Option<usize> {
        (row < self.row_count()).then(|| usize::try_from(row).ok()).flatten()
    }

    fn column_count(&self) -> u64 {
        // SAFETY: the chunk is alive.
        unsafe { (self.connection.api().data_chunk_get_column_count)(self.raw) }
    }

    fn vector(&self, column: u64) -> Option<Vector<'_>> {
        let api = self.connection.api();
        if column >= self.column_count() {
            return None;
        }
        // SAFETY: the chunk is alive and has this column.
        let raw = unsafe { (api.data_chunk_get_vector)(self.raw, column) };
        Some(Vector { api, raw })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.connection.api().destroy_data_chunk)(&raw mut self.raw) };
    }
}

/// A column of a chunk, or a vector nested in one. Its chunk is alive.
struct Vector<'a> {
    api: &'a Api,
    raw: OpaquePtr,
}

impl Vector<'_> {
    fn type_id(&self) -> u32 {
        self.with_type(|kind| {
            // SAFETY: the type is alive.
            unsafe { (self.api.get_type_id)(kind) }
        })
    }

    fn with_type<T>(&self, read: impl FnOnce(OpaquePtr) -> T) -> T {
        // SAFETY: the vector is alive; the caller owns the type until it is destroyed below.
        let mut kind = unsafe { (self.api.vector_get_column_type)(self.raw) };
        let result = read(kind);
        // SAFETY: the type was created above, and is destroyed once.
        unsafe { (self.api.destroy_logical_type)(&raw mut kind) };
        result
    }

    fn is_null(&self, row: usize) -> bool {
        // SAFETY: the vector is alive; a null pointer means that no value is NULL, and otherwise the mask has a bit
        // for each row.
        unsafe {
            let validity = (self.api.vector_get_validity)(self.raw);
            !validity.is_null() && *validity.add(row / 64) & (1 << (row % 64)) == 0
        }
    }

    /// Reads a word. The caller ensures that the vector holds words and has this row.
    fn i64_at(&self, row: usize) -> Option<i64> {
        // SAFETY: the vector is alive and holds a word for each row.
        (!self.is_null(row)).then(|| unsafe { *(self.api.vector_get_data)(self.raw).cast::<i64>().add(row) })
    }

    /// Returns a pointer to a string. The caller ensures that the vector holds strings and has this row.
    fn raw_string(&self, row: usize) -> Option<*const RawString> {
        // SAFETY: the vector is alive and holds a string for each row.
        (!self.is_null(row))
            .then(|| unsafe { (self.api.vector_get_data)(self.raw).cast::<RawString>().add(row).cast_const() })
    }

    fn string_bytes(&self, row: usize) -> Option<Vec<u8>> {
        let at = self.raw_string(row)?;
        // SAFETY: the string is valid and lives as long as its chunk; a short one contains its bytes, a long one a
        // pointer after its first four bytes.
        unsafe {
            let value = *at;
            let length = value.length as usize;
            if length <= MAX_INLINE_LENGTH {
                return Some(value.bytes[..length].to_vec());
            }
            let pointer = at.cast::<u8>().add(8).cast::<*const u8>().read();
            Some(std::slice::from_raw_parts(pointer, length).to_vec())
        }
    }

    fn byte_size(&self, rows: u64, depth: u32) -> u64 {
        let words = rows.saturating_mul(8);
        if depth == MAX_DEPTH || rows == 0 {
            return words;
        }
        let within = |raw: OpaquePtr, rows: u64| Vector { api: self.api, raw }.byte_size(rows, depth + 1);
        match self.type_id() {
            types::VARCHAR | types::BLOB | types::BIT | types::BIGNUM => {
                let rows = usize::try_from(rows).unwrap_or(0);
                // SAFETY: the vector holds strings, and only rows that exist and are not NULL are read.
                let length = |row| self.raw_string(row).map_or(0, |at| u64::from(unsafe { (*at).length }));
                words.saturating_add((0..rows).map(length).sum())
            }
            types::LIST | types::MAP => {
                // SAFETY: the vector is alive and holds lists; maps are lists too.
                let (child, size) =
                    unsafe { ((self.api.list_vector_get_child)(self.raw), (self.api.list_vector_get_size)(self.raw)) };
                words.saturating_add(within(child, size))
            }
            types::ARRAY => {
                // SAFETY: the type is alive and is an array type.
                let size = self.with_type(|kind| unsafe { (self.api.array_type_array_size)(kind) });
                // SAFETY: the vector is alive and holds arrays.
                within(unsafe { (self.api.array_vector_get_child)(self.raw) }, rows.saturating_mul(size))
            }
            types::STRUCT => {
                // SAFETY: the type is alive and is a struct type.
                let count = self.with_type(|kind| unsafe { (self.api.struct_type_child_count)(kind) });
                // SAFETY: the vector is alive, holds structs, and has that many children.
                (0..count)
                    .map(|child| within(unsafe { (self.api.struct_vector_get_child)(self.raw, child) }, rows))
                    .sum()
            }
            _ => words,
        }
    }
}

/// The values of `duckdb_type` that this module distinguishes.
mod types {
    pub(super) const BIGINT: u32 = 5;
    pub(super) const VARCHAR: u32 = 17;
    pub(super) const BLOB: u32 = 18;
    pub(super) const LIST: u32 = 24;
    pub(super) const STRUCT: u32 = 25;
    pub(super) const MAP: u32 = 26;
    pub(super) const BIT: u32 = 29;
    pub(super) const ARRAY: u32 = 33;
    pub(super) const BIGNUM: u32 = 35;
}
