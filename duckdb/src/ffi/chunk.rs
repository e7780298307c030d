//! Reads rows in DuckDB's format: one vector for each column, which is read in place.

use std::ffi::c_char;
use std::sync::Arc;

use super::{Api, OpaquePtr, OpenConnection, copy_c_string};
use crate::cell::Cell;
use crate::cell_layout::{ColumnLayout, NumberKind};

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
/// The deepest level of nested values that is examined.
const MAX_DEPTH: u32 = 32;

/// `duckdb_list_entry`: the rows of the child vector that a list consists of.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawListEntry {
    offset: u64,
    length: u64,
}

/// `duckdb_interval`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawInterval {
    months: i32,
    days: i32,
    micros: i64,
}

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

    /// Returns the text in a cell; `None` for NULL, or if the column has a different type.
    pub fn text(&self, column: u64, row: u64) -> Option<String> {
        let vector = self.vector(column).filter(|vector| vector.type_id() == types::VARCHAR)?;
        vector.string_bytes(self.checked_row(row)?).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the integer in a cell; `None` for NULL, or if the column does not consist of 64-bit integers.
    pub fn number(&self, column: u64, row: u64) -> Option<i64> {
        let vector = self.vector(column).filter(|vector| vector.type_id() == types::BIGINT)?;
        vector.i64_at(self.checked_row(row)?)
    }

    /// Returns a reader for each column.
    pub fn columns(&self) -> Vec<ColumnCells<'_>> {
        let rows = usize::try_from(self.row_count()).unwrap_or(0);
        let vectors = (0..self.column_count()).filter_map(|column| self.vector(column));
        vectors.map(|vector| ColumnCells { reader: vector.reader(0), rows }).collect()
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

/// The cells of a column.
pub struct ColumnCells<'a> {
    reader: CellReader<'a>,
    rows: usize,
}

impl ColumnCells<'_> {
    /// Returns the value of a row; NULL if there is no such row.
    pub fn cell(&self, row: u64) -> Cell {
        let row = usize::try_from(row).ok().filter(|row| *row < self.rows);
        row.map_or(Cell::Null, |row| self.reader.cell(row))
    }
}

/// A vector with its type, which is determined once.
struct CellReader<'a> {
    vector: Vector<'a>,
    layout: ColumnLayout,
    /// The vectors of nested values.
    children: Vec<CellReader<'a>>,
}

impl CellReader<'_> {
    /// Returns a value. The caller ensures that the vector has this row.
    fn cell(&self, row: usize) -> Cell {
        let vector = &self.vector;
        if vector.is_null(row) {
            return Cell::Null;
        }
        match &self.layout {
            ColumnLayout::Boolean => Cell::Boolean(vector.read::<u8>(row) != 0),
            ColumnLayout::Number(kind) => Cell::Integer(vector.number(*kind, row)),
            ColumnLayout::Float => Cell::Real(f64::from(vector.read::<f32>(row))),
            ColumnLayout::Double => Cell::Real(vector.read(row)),
            ColumnLayout::UnsignedHuge => Cell::Unsigned(vector.read(row)),
            ColumnLayout::Decimal { storage, scale } => {
                Cell::Decimal { digits: vector.number(*storage, row), scale: *scale }
            }
            ColumnLayout::Enum(storage) => {
                let index = u64::try_from(vector.number(*storage, row)).unwrap_or(u64::MAX);
                Cell::Text(vector.enum_name(index).unwrap_or_default().into_bytes())
            }
            ColumnLayout::Text => Cell::Text(vector.string_bytes(row).unwrap_or_default()),
            ColumnLayout::Blob => Cell::Blob(vector.string_bytes(row).unwrap_or_default()),
            ColumnLayout::Bits => Cell::Bits(vector.string_bytes(row).unwrap_or_default()),
            ColumnLayout::BigNumber => Cell::BigNumber(vector.string_bytes(row).unwrap_or_default()),
            ColumnLayout::Date => Cell::Date(vector.read(row)),
            ColumnLayout::Time(unit) => Cell::Time(vector.read(row), *unit),
            ColumnLayout::TimeWithZone => Cell::TimeWithZone(vector.read(row)),
            ColumnLayout::Timestamp { unit, has_zone } => {
                Cell::Timestamp { ticks: vector.read(row), unit: *unit, has_zone: *has_zone }
            }
            ColumnLayout::Interval => {
                let RawInterval { months, days, micros } = vector.read(row);
                Cell::Interval { months, days, micros }
            }
            ColumnLayout::Uuid => Cell::Uuid(vector.read(row)),
            ColumnLayout::List => Cell::List(self.elements(self.list_rows(row))),
            ColumnLayout::Map => {
                let Some(entries) = self.children.first() else { return Cell::Map(Vec::new()) };
                Cell::Map(self.list_rows(row).filter_map(|at| entries.map_entry(at)).collect())
            }
            ColumnLayout::Array(size) => Cell::List(self.elements(row * size..(row + 1) * size)),
            ColumnLayout::Struct(names) => {
                let values = self.children.iter().map(|child| child.cell(row));
                Cell::Struct(names.iter().cloned().zip(values).collect())
            }
            ColumnLayout::Union => {
                let tag = self.children.first().map_or(0, |tags| usize::from(tags.vector.read::<u8>(row)));
                self.children.get(tag + 1).map_or(Cell::Null, |member| member.cell(row))
            }
            ColumnLayout::Null => Cell::Null,
            ColumnLayout::Unknown(kind) => Cell::Unknown(*kind),
        }
    }

    fn elements(&self, rows: std::ops::Range<usize>) -> Vec<Cell> {
        self.children.first().map(|child| rows.map(|row| child.cell(row)).collect()).unwrap_or_default()
    }

    /// Returns the rows of the child vector that belong to a list. The caller ensures that the vector holds lists.
    fn list_rows(&self, row: usize) -> std::ops::Range<usize> {
        let entry = self.vector.read::<RawListEntry>(row);
        let (from, length) = (usize::try_from(entry.offset), usize::try_from(entry.length));
        match (from, length) {
            (Ok(from), Ok(length)) => from..from + length,
            _ => 0..0,
        }
    }

    /// Returns the key and the value of an entry of a map, which is a struct.
    fn map_entry(&self, row: usize) -> Option<(Cell, Cell)> {
        let [key, value] = self.children.as_slice() else { return None };
        Some((key.cell(row), value.cell(row)))
    }
}

/// A column of a chunk, or a vector nested in one. Its chunk is alive.
struct Vector<'a> {
    api: &'a Api,
    raw: OpaquePtr,
}

impl<'a> Vector<'a> {
    /// Determines the type of the vector and of the vectors in it.
    fn reader(self, depth: u32) -> CellReader<'a> {
        let kind = self.type_id();
        let api = self.api;
        let within = |raw: OpaquePtr| Vector { api, raw }.reader(depth + 1);
        let (layout, children) = match kind {
            _ if depth == MAX_DEPTH => (ColumnLayout::Unknown(kind), Vec::new()),
            types::LIST | types::MAP => {
                let layout = if kind == types::LIST { ColumnLayout::List } else { ColumnLayout::Map };
                // SAFETY: the vector is alive and holds lists; maps are lists too.
                (layout, vec![within(unsafe { (api.list_vector_get_child)(self.raw) })])
            }
            types::ARRAY => {
                // SAFETY: the type is alive and is an array type.
                let size = self.with_type(|kind| unsafe { (api.array_type_array_size)(kind) });
                let size = usize::try_from(size).unwrap_or(0);
                // SAFETY: the vector is alive and holds arrays.
                (ColumnLayout::Array(size), vec![within(unsafe { (api.array_vector_get_child)(self.raw) })])
            }
            types::STRUCT | types::UNION => {
                // SAFETY: the type is alive, and a union is stored as a struct whose first child is the tag.
                let count = self.with_type(|kind| unsafe { (api.struct_type_child_count)(kind) });
                let child = |at| {
                    // SAFETY: the vector is alive, holds structs, and has this child.
                    within(unsafe { (api.struct_vector_get_child)(self.raw, at) })
                };
                if kind == types::UNION {
                    // SAFETY: the type is alive and is a union.
                    let members = self.with_type(|kind| unsafe { (api.union_type_member_count)(kind) });
                    (ColumnLayout::Union, (0..=members).map(child).collect())
                } else {
                    let names = (0..count).map(|at| self.struct_field_name(at).unwrap_or_default()).collect();
                    (ColumnLayout::Struct(names), (0..count).map(child).collect())
                }
            }
            types::DECIMAL => {
                // SAFETY: the type is alive and is a decimal type.
                let (scale, storage) =
                    self.with_type(|kind| unsafe { ((api.decimal_scale)(kind), (api.decimal_internal_type)(kind)) });
                (ColumnLayout::decimal(storage, scale), Vec::new())
            }
            types::ENUM => {
                // SAFETY: the type is alive and is an enum type.
                let storage = self.with_type(|kind| unsafe { (api.enum_internal_type)(kind) });
                (ColumnLayout::enumeration(storage), Vec::new())
            }
            other => (ColumnLayout::from_type(other), Vec::new()),
        };
        CellReader { vector: self, layout, children }
    }

    /// Reads a value of a fixed size. The caller ensures that the vector holds values of this type and has this row.
    fn read<T: Copy>(&self, row: usize) -> T {
        // SAFETY: the vector is alive and holds a value for each row; the type is one for which every bit pattern is
        // valid.
        unsafe { (self.api.vector_get_data)(self.raw).cast::<T>().add(row).read_unaligned() }
    }

    /// Reads an integer. The caller ensures that the vector holds integers of this kind and has this row.
    fn number(&self, kind: NumberKind, row: usize) -> i128 {
        match kind {
            NumberKind::I8 => i128::from(self.read::<i8>(row)),
            NumberKind::I16 => i128::from(self.read::<i16>(row)),
            NumberKind::I32 => i128::from(self.read::<i32>(row)),
            NumberKind::I64 => i128::from(self.read::<i64>(row)),
            NumberKind::I128 => self.read(row),
            NumberKind::U8 => i128::from(self.read::<u8>(row)),
            NumberKind::U16 => i128::from(self.read::<u16>(row)),
            NumberKind::U32 => i128::from(self.read::<u32>(row)),
            NumberKind::U64 => i128::from(self.read::<u64>(row)),
        }
    }

    fn enum_name(&self, index: u64) -> Option<String> {
        // SAFETY: the type is alive and is an enum type; an index of a stored value is in range.
        self.with_type(|kind| self.take_string(unsafe { (self.api.enum_dictionary_value)(kind, index) }))
    }

    fn struct_field_name(&self, index: u64) -> Option<String> {
        // SAFETY: the type is alive, is a struct type, and has this field.
        self.with_type(|kind| self.take_string(unsafe { (self.api.struct_type_child_name)(kind, index) }))
    }

    /// Copies a string that the library allocated for the caller, and frees it.
    fn take_string(&self, raw: *mut c_char) -> Option<String> {
        let copy = copy_c_string(raw);
        // SAFETY: the library allocated the string for the caller; it is freed once, and a null pointer is ignored.
        unsafe { (self.api.free)(raw.cast()) };
        copy
    }

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
    pub(super) const DECIMAL: u32 = 19;
    pub(super) const ENUM: u32 = 23;
    pub(super) const UNION: u32 = 28;
    pub(super) const VARCHAR: u32 = 17;
    pub(super) const BLOB: u32 = 18;
    pub(super) const LIST: u32 = 24;
    pub(super) const STRUCT: u32 = 25;
    pub(super) const MAP: u32 = 26;
    pub(super) const BIT: u32 = 29;
    pub(super) const ARRAY: u32 = 33;
    pub(super) const BIGNUM: u32 = 35;
}
