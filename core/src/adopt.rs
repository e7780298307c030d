//! Writes a first spec: from the configuration of another tool, or from what a repository contains.

pub mod import;
pub mod init;
