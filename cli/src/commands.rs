//! What each command does: the caller's words in, text on the screen and an exit code out.

pub(crate) mod plan;
pub(crate) mod tools;
pub(crate) mod validate;
