//! Checks the config of a repository before libgit2 reads it.

pub(crate) mod bounded_read;
pub mod config_files;
pub(crate) mod config_includes;
