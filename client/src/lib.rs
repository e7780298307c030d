//! Finds a daemon and sends it one command, without an async runtime. The program `proctor` uses only this crate for a
//! short `exec`; the full command line and the daemon share the locations of files and the rules of trust.

pub mod blocking_connection;
pub mod daemon_address;
pub mod error;
pub mod exec_handover;
pub mod exec_options;
pub mod exec_response;
pub mod installation;
pub mod repository;
mod response_parser;
pub mod socket_candidates;
