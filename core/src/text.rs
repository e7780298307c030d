//! Encodes, hashes, redacts and formats text and JSON.

pub mod canonical;
pub mod digest;
pub(crate) mod escape;
pub mod excerpt;
pub mod humanize;
pub mod redact;
pub mod safe_text;
pub mod strict_deserialize;
pub mod tool_errors;
