//! Implements the commands: each one takes the parsed arguments, prints text and returns an exit code.

pub(crate) mod cache;
pub(crate) mod cancel;
pub(crate) mod codes;
pub(crate) mod compare;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod du;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod gate;
pub(crate) mod gc;
pub(crate) mod generated_texts;
pub(crate) mod hook;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod sql;
pub(crate) mod status;
pub(crate) mod validate;
pub(crate) mod watch;
