//! Reloads the config atomically: either all settings change, or none.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_runner::Clock;
use tracing::{error, info, warn};

use super::{RunningDaemon, service_manager};
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

    /// Reloads the config. A valid one applies to new requests; after an error, the old one stays in effect.
    pub(super) fn reload(&self, daemon: &RunningDaemon) {
        service_manager::reloading();
        let old = Arc::clone(&daemon.settings.borrow());
        let (is_valid, status) = match self.read_config(&old) {
            Ok(new) => {
                self.apply(daemon, &old, new);
                (true, "the new config holds")
            }
            Err(error) => {
                report_invalid_config(&error);
                (false, "the new config is not valid; the old one holds")
            }
        };
        daemon.metrics.count_reload(is_valid, Clock::system().now_ms());
        service_manager::ready(status);
    }

    fn read_config(&self, old: &ResolvedSettings) -> Result<ResolvedSettings, InstallationError> {
        let found = installation::load_operator_config(self.config_path.as_deref(), &self.environment)?;
        match &old.config {
            // A missing file must not lift the operator's restrictions.
            Some(path) if found.file.is_none() => Err(InstallationError::Usage {
                message: format!("the operator's config `{}` is gone", show(path)),
                hint: "restore it, or restart the daemon without it".to_owned(),
            }),
            _ => ResolvedSettings::resolve(found, self.environment.uid, settings::uid_of),
        }
    }

    fn apply(&self, daemon: &RunningDaemon, old: &ResolvedSettings, new: ResolvedSettings) {
        if new.operator.daemon.socket != old.operator.daemon.socket {
            warn!("`daemon.socket` has changed; the daemon listens there once it is started again");
        }
        self.log.reload(&new.operator.daemon.log);
        daemon.listening.borrow().set_permissions(&new.allowed_users);
        daemon.service.reload(new.operator.clone());
        daemon.service.export_to(super::span_target(&new, &self.environment));
        let config = new.config.as_deref().map_or_else(|| "none".to_owned(), show);
        daemon.settings.send_replace(Arc::new(new));
        info!(config, "the config was read again, and holds from now on");
    }
}

fn report_invalid_config(error: &InstallationError) {
    for line in error.lines() {
        error!("{line}");
    }
    match error.hint() {
        Some(hint) => error!("the new config is not valid and the old one stays in use; hint: {hint}"),
        None => error!("the new config is not valid and the old one stays in use"),
    }
}
