//! DuckDB, as its C API has it: a library that is loaded at run time, never built and never linked. Here is what is safe
//! to call and nothing that judges; `proctor-sql` does that. A C++ exception that leaves the library ends the process:
//! call it where that may happen.

mod ffi;
mod found;
pub mod words;

pub use ffi::{Chunk, Connection, Database, Extracted, Interrupter, Library, Prepared, Rows};
pub use found::{find, places};
