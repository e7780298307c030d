//! Reads files below an open directory, and compares their paths and stat data.

pub mod file_stat;
pub mod path_resolution;
pub mod paths;
pub mod read_beneath;
pub mod repo_path;
