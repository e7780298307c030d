//! Provides safe access to DuckDB's C API. The library is loaded at run time, and is neither built nor linked. This
//! crate makes no decisions about the results; `proctor-sql` does that. A C++ exception that leaves the library
//! aborts the process: use this crate only in a process that may be aborted.

mod ffi;
mod found;
pub mod words;

pub use ffi::{Chunk, Connection, Database, Extracted, Interrupter, Library, Prepared, Rows};
pub use found::{find, places};
