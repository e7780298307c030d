//! Reads the config again for a reload.

use std::path::PathBuf;

use tracing::error;

use crate::log::Log;
use crate::settings::{self, ResolvedSettings};
use proctor_client::installation::{self, InstallationError, ProcessEnvironment, show};

/// Reloader of the config.
pub(super) struct Reloader {
    config_path: Option<PathBuf>,
    environment: ProcessEnvironment,
    log: Log,
}

impl Reloader {
    /// Creates a reloader; `named` is the config file given at the start.
    pub(super) fn new(named: Option<PathBuf>, around: ProcessEnvironment, log: Log) -> Self {
        Self { config_path: named, environment: around, log }
    }

    /// Reads the config again.
    ///
    /// # Errors
    /// The config is invalid, or the file of the `old` one no longer exists.
    pub(super) fn read_config(&self, old: &ResolvedSettings) -> Result<ResolvedSettings, InstallationError> {
        let found = installation::load_operator_config(self.config_path.as_deref(), &self.environment)?;
        match &old.config {
            // A missing file must not lift the operator's restrictions.
            Some(path) if found.file.is_none() => Err(InstallationError::Usage {
                message: format!("the operator's config `{}` no longer exists", show(path)),
                hint: "restore it, or restart the daemon without it".to_owned(),
            }),
            _ => ResolvedSettings::resolve(found, self.environment.uid, settings::uid_of),
        }
    }

    /// Applies the log settings.
    pub(super) fn reload_log(&self, settings: &ResolvedSettings) {
        self.log.reload(&settings.operator.daemon.log);
    }
}

/// Logs why a new config is invalid.
pub(super) fn report_invalid_config(error: &InstallationError) {
    for line in error.lines() {
        error!("{line}");
    }
    match error.hint() {
        Some(hint) => error!("the new config is not valid and the old one remains in use; hint: {hint}"),
        None => error!("the new config is not valid and the old one remains in use"),
    }
}
