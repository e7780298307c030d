//! Rows as DuckDB hands them over: vectors, a column each, which are looked into where they lie.

use std::sync::Arc;

use super::{Api, Connected, Raw};

/// `duckdb_string_t`: a length, and up to twelve bytes or four and where all of them are.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawString {
    length: u32,
    bytes: [u8; 12],
}

/// How many bytes stand in the value itself.
const INLINED: usize = 12;
/// How deep values may nest for [`Chunk::bytes`] to look into them.
const DEPTH: u32 = 32;

/// Some rows of a result.
pub struct Chunk {
    connection: Arc<Connected>,
    raw: Raw,
}

impl Chunk {
    /// The chunk that a connection has just given.
    pub(super) fn of(connection: &Arc<Connected>, raw: Raw) -> Self {
        Self { connection: Arc::clone(connection), raw }
    }

    /// How many rows.
    pub fn rows(&self) -> u64 {
        // SAFETY: the chunk is alive.
        unsafe { (self.connection.api().data_chunk_get_size)(self.raw) }
    }

    /// How many bytes its values have: texts as long as they are, others as a word each.
    pub fn bytes(&self) -> u64 {
        let columns = self.columns();
        (0..columns).filter_map(|column| self.vector(column)).map(|vector| vector.bytes(self.rows(), 0)).sum()
    }

    /// The text at a place; none where there is NULL, or no text.
    pub fn text(&self, column: u64, row: u64) -> Option<String> {
        let vector = self.vector(column).filter(|vector| vector.type_id() == types::VARCHAR)?;
        vector.string(self.checked(row)?).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The whole number at a place; none where there is NULL, or no number of 64 bits.
    pub fn number(&self, column: u64, row: u64) -> Option<i64> {
        let vector = self.vector(column).filter(|vector| vector.type_id() == types::BIGINT)?;
        vector.word(self.checked(row)?)
    }

    fn checked(&self, row: u64) -> Option<usize> {
        (row < self.rows()).then(|| usize::try_from(row).ok()).flatten()
    }

    fn columns(&self) -> u64 {
        // SAFETY: the chunk is alive.
        unsafe { (self.connection.api().data_chunk_get_column_count)(self.raw) }
    }

    fn vector(&self, column: u64) -> Option<Vector<'_>> {
        let api = self.connection.api();
        // SAFETY: the chunk is alive and has that column.
        (column < self.columns()).then(|| Vector { api, raw: unsafe { (api.data_chunk_get_vector)(self.raw, column) } })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once.
        unsafe { (self.connection.api().destroy_data_chunk)(&raw mut self.raw) };
    }
}

/// One column of a chunk, or what is within one. Its chunk is alive.
struct Vector<'a> {
    api: &'a Api,
    raw: Raw,
}

impl Vector<'_> {
    fn type_id(&self) -> u32 {
        self.with_type(|kind| {
            // SAFETY: the type is alive.
            unsafe { (self.api.get_type_id)(kind) }
        })
    }

    fn with_type<T>(&self, look: impl FnOnce(Raw) -> T) -> T {
        // SAFETY: the vector is alive; the type is ours until it is destroyed below.
        let mut kind = unsafe { (self.api.vector_get_column_type)(self.raw) };
        let found = look(kind);
        // SAFETY: made above, destroyed once.
        unsafe { (self.api.destroy_logical_type)(&raw mut kind) };
        found
    }

    fn is_null(&self, row: usize) -> bool {
        // SAFETY: the vector is alive; a null pointer says that nothing is NULL, and otherwise there is a bit for
        // each row.
        unsafe {
            let validity = (self.api.vector_get_validity)(self.raw);
            !validity.is_null() && *validity.add(row / 64) & (1 << (row % 64)) == 0
        }
    }

    /// Callers know that the vector holds words and has that row.
    fn word(&self, row: usize) -> Option<i64> {
        // SAFETY: the vector is alive and holds a word for each row.
        (!self.is_null(row)).then(|| unsafe { *(self.api.vector_get_data)(self.raw).cast::<i64>().add(row) })
    }

    /// Callers know that the vector holds strings and has that row.
    fn raw_string(&self, row: usize) -> Option<*const RawString> {
        // SAFETY: the vector is alive and holds a string for each row.
        (!self.is_null(row))
            .then(|| unsafe { (self.api.vector_get_data)(self.raw).cast::<RawString>().add(row).cast_const() })
    }

    fn string(&self, row: usize) -> Option<Vec<u8>> {
        let at = self.raw_string(row)?;
        // SAFETY: the string is valid and lives with its chunk; a short one has its bytes in itself, a long one a
        // pointer behind its first four bytes.
        unsafe {
            let value = *at;
            let length = value.length as usize;
            if length <= INLINED {
                return Some(value.bytes[..length].to_vec());
            }
            let pointer = at.cast::<u8>().add(8).cast::<*const u8>().read();
            Some(std::slice::from_raw_parts(pointer, length).to_vec())
        }
    }

    fn bytes(&self, rows: u64, depth: u32) -> u64 {
        let words = rows.saturating_mul(8);
        if depth == DEPTH || rows == 0 {
            return words;
        }
        let within = |raw: Raw, rows: u64| Vector { api: self.api, raw }.bytes(rows, depth + 1);
        match self.type_id() {
            types::VARCHAR | types::BLOB | types::BIT | types::BIGNUM => {
                let rows = usize::try_from(rows).unwrap_or(0);
                // SAFETY: only strings that are there are looked at.
                let length = |row| self.raw_string(row).map_or(0, |at| u64::from(unsafe { (*at).length }));
                words.saturating_add((0..rows).map(length).sum())
            }
            types::LIST | types::MAP => {
                // SAFETY: the vector is alive and one of lists, as maps are.
                let (child, size) =
                    unsafe { ((self.api.list_vector_get_child)(self.raw), (self.api.list_vector_get_size)(self.raw)) };
                words.saturating_add(within(child, size))
            }
            types::ARRAY => {
                // SAFETY: the type and the vector are alive and of arrays.
                let size = self.with_type(|kind| unsafe { (self.api.array_type_array_size)(kind) });
                // SAFETY: as above.
                within(unsafe { (self.api.array_vector_get_child)(self.raw) }, rows.saturating_mul(size))
            }
            types::STRUCT => {
                // SAFETY: the type is alive and one of structs.
                let count = self.with_type(|kind| unsafe { (self.api.struct_type_child_count)(kind) });
                // SAFETY: the vector is alive, one of structs, and has that many children.
                (0..count)
                    .map(|child| within(unsafe { (self.api.struct_vector_get_child)(self.raw, child) }, rows))
                    .sum()
            }
            _ => words,
        }
    }
}

/// The numbers of `duckdb_type` that this file tells apart.
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
