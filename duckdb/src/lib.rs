//! Provides safe access to DuckDB's C API. The library is loaded at run time, and is neither built nor linked. This
//! crate makes no decisions about the results; `proctor-sql` does that. A C++ exception that leaves the library
//! aborts the process: use this crate only in a process that may be aborted.

pub mod api_constants;
mod cell;
mod cell_layout;
mod error;
mod ffi;
mod library_path;

pub use cell::{Cell, TimeUnit};
pub use error::{DuckDbError, ErrorKind, LibraryNotFound};
pub use ffi::{
    Chunk, ColumnCells, Connection, Database, ExtractedStatements, Interrupter, Library, PreparedStatement, Rows,
};
pub use library_path::{find, library_candidates};
