//! Answers questions about a database: describes the database, asks a language model for a statement, has the statement
//! judged, sends the findings back, and runs a statement only after it was judged `ok`. Every step is stored in an
//! audit trail.
//!
//! Text of a model, of a database and of its comments is untrusted. Only a judgement decides about a statement.

pub mod answer_reader;
pub mod ask_loop;
pub mod audit;
pub mod backend;
pub mod provider;
pub mod secret;

mod attempt_log;
mod prompt;
mod ranking;
mod statement_key;
