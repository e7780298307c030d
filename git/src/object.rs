//! Computes, parses and checks the objects of git.

pub mod attributes;
pub mod blob_id;
pub(crate) mod name_rules;
pub(crate) mod object_error;
pub mod object_id;
pub mod object_pack;
pub(crate) mod object_parser;
pub mod tree_check;
pub mod tree_identity;
