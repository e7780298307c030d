//! The settings of a program of the operator that runs in a sandbox.

use super::super::quoted;
use crate::model::plan::Network;

/// A program of the operator: it calls a model, or verifies SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSettings {
    /// The program and its arguments; the program is an absolute path.
    pub argv: Vec<String>,
    /// The network that the program sees.
    pub network: Network,
    /// Paths that the program can read although they are hidden from sandboxes.
    pub mounts: Vec<String>,
}

impl CommandSettings {
    pub(super) fn problem(&self) -> Option<String> {
        let Some(program) = self.argv.first() else { return Some("`command` is missing".to_owned()) };
        if !program.starts_with('/') {
            return Some(format!("the program {} of `command` is not an absolute path", quoted(program)));
        }
        let relative = self.mounts.iter().find(|path| !path.starts_with('/'))?;
        Some(format!("{} of `mounts` is not an absolute path", quoted(relative)))
    }
}
