//! The pure part of Proctor: the types of the domain, and every decision that needs no I/O.
//!
//! Data flows one way: bytes → [`spec::Spec`] → [`plan::Plan`] → [`event::RunEvent`]s → [`verdict::Verdict`] →
//! [`evidence`] → [`status`]. Nothing here reads a file, a clock, a process or an environment variable. Callers
//! pass facts as arguments and get warnings as return values.

pub mod api;
pub mod attestation;
pub mod cache;
pub mod canonical;
pub mod code;
pub mod compare;
pub mod digest;
pub mod drift;
pub mod enforcement;
pub mod event;
pub mod evidence;
pub mod exec;
pub mod first_error;
pub mod gate;
pub mod gc;
pub mod import;
pub mod init;
pub mod leak;
pub mod names;
pub mod outcome;
pub mod plan;
pub mod reason;
pub mod record;
pub mod redact;
pub mod report;
pub mod rerun;
pub mod safe_text;
pub mod spec;
pub mod sql;
pub mod status;
pub mod strict;
pub mod telemetry;
pub mod tier;
pub mod unverified;
pub mod verdict;
pub mod words;
