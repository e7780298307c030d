//! The pure part of Proctor: the types of the domain, and every decision that needs no I/O.
//!
//! Data flows one way: bytes → [`spec::Spec`] → [`model::plan::Plan`] → [`model::event::RunEvent`]s →
//! [`decision::verdict::Verdict`] → [`record::evidence`] → [`record::status`]. Nothing here reads a file, a clock, a
//! process or an environment variable. Callers pass facts as arguments and get warnings as return values.

pub mod adopt;
pub mod api;
pub mod code;
pub mod decision;
pub mod model;
pub mod record;
pub mod report;
pub mod reuse;
pub mod spec;
pub mod sql;
pub mod telemetry;
pub mod text;
