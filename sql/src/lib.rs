//! Judges SQL before it runs, with the engine that would run it.
//!
//! ```text
//! Request ──> Chain: extract → tokenize → parse → bind → safety → run → semantic ──> Judgement
//!                              (sqlparser)   └──────── Engine ───────┘
//! ```
//!
//! The engine is authoritative: it decides whether a statement is valid, which names exist and what the statement does.
//! The parser is used for form only: for spans, for filters, and for the tree that a question is compared with. Each
//! stage is a file in [`stages`] that implements the trait [`Stage`]; each engine implements the trait [`Engine`].

pub mod advice;
mod ask;
pub mod catalog;
pub mod chain;
pub mod check;
pub mod child;
pub mod duckdb;
pub mod engine;
mod lists;
mod literals;
pub mod nearest;
pub mod pool;
mod redact;
pub mod scratch;
pub mod sqlite;
pub mod stage;
pub mod stages;
pub mod stream;
mod text;
pub mod wire;
pub mod worker;

pub use chain::{Chain, judge};
pub use engine::{Action, Bound, Engine, Kind, Ran, Refusal, RunOn};
pub use proctor_duckdb::{find as find_duckdb, places as duckdb_places};
pub use stage::{Case, Stage, Statement};
