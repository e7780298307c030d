//! Judges SQL before it runs, with the engine that would run it.
//!
//! ```text
//! Request ──> Chain: extract → tokenize → parse → bind → safety → run → semantic ──> Judgement
//!                              (sqlparser)   └──────── Engine ───────┘
//! ```
//!
//! The engine is authoritative: it decides whether a statement is valid, which names exist and what the statement does.
//! The parser is used for form only: for spans, for filters, and for the tree that a question is compared with. Each
//! stage is a file in [`stages`] that implements the trait [`SqlStage`]; each engine implements the trait
//! [`SqlEngine`].

pub mod advice;
mod allow_lists;
pub mod catalog;
pub mod chain;
pub mod check;
pub mod child_worker;
mod custom_verifiers;
pub mod duckdb;
pub mod engine;
mod engine_sources;
pub mod external;
mod hidden_names;
mod lexer;
mod literals;
pub mod mysql;
pub mod name_suggestions;
mod personal_data;
pub mod postgres;
pub mod provisioner;
pub mod quiet_stream;
pub mod row_buffer;
mod row_values;
pub mod sandboxed_command;
mod schema_description;
pub mod scratch_rows;
pub mod scratch_value;
pub mod server_files;
pub mod sqlite;
pub mod stage;
pub mod stages;
mod statement_run;
pub mod wire;
pub mod worker;
mod worker_client;
mod worker_files;
pub mod worker_pool;
mod worker_request;

pub use allow_lists::NameLists;
pub use chain::{Chain, judge};
pub use engine::{Action, BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine, StatementKind, StatementOutcome};
pub use proctor_duckdb::{find as find_duckdb, library_candidates as duckdb_places};
pub use stage::{ChainContext, SqlStage, Statement};
