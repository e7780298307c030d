//! Reloads the config atomically: either all settings change, or none.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_runner::Clock;
use tracing::{error, info, warn};

use super::{Life, notify};
use crate::installation::{self, InstallationError, Surroundings, show};
use crate::log::Log;
use crate::settings::{self, Settings};

/// Reloader of the config.
pub(super) struct Reloader {
    named: Option<PathBuf>,
    around: Surroundings,
    log: Log,
}

impl Reloader {
    /// Creates a reloader; `named` is the config file given at the start.
    pub(super) fn new(named: Option<PathBuf>, around: Surroundings, log: Log) -> Self {
        Self { named, around, log }
    }

    /// Reloads the config. A valid one applies to new requests; after an error, the old one stays in effect.
    pub(super) fn reload(&self, life: &Life) {
        notify::reloading();
        let old = Arc::clone(&life.settings.borrow());
        let (is_valid, status) = match self.read(&old) {
            Ok(new) => {
                self.apply(life, &old, new);
                (true, "the new config holds")
            }
            Err(error) => {
                refuse(&error);
                (false, "the new config is not valid; the old one holds")
            }
        };
        life.metrics.reloaded(is_valid, Clock::system().now_ms());
        notify::ready(status);
    }

    fn read(&self, old: &Settings) -> Result<Settings, InstallationError> {
        let found = installation::operator(self.named.as_deref(), &self.around)?;
        match &old.config {
            // A missing file must not lift the operator's restrictions.
            Some(path) if found.file.is_none() => Err(InstallationError::Usage {
                message: format!("the operator's config `{}` is gone", show(path)),
                hint: "restore it, or restart the daemon without it".to_owned(),
            }),
            _ => Settings::of(found, self.around.uid, settings::uid_of),
        }
    }

    fn apply(&self, life: &Life, old: &Settings, new: Settings) {
        if new.operator.daemon.socket != old.operator.daemon.socket {
            warn!("`daemon.socket` has changed; the daemon listens there once it is started again");
        }
        self.log.reload(&new.operator.daemon.log);
        life.listening.borrow().admit(&new.admitted);
        life.service.reload(new.operator.clone());
        life.service.export_to(super::exported_to(&new, &self.around));
        let config = new.config.as_deref().map_or_else(|| "none".to_owned(), show);
        life.settings.send_replace(Arc::new(new));
        info!(config, "the config was read again, and holds from now on");
    }
}

fn refuse(error: &InstallationError) {
    for line in error.lines() {
        error!("{line}");
    }
    match error.hint() {
        Some(hint) => error!("the new config is not valid and the old one stays in use; hint: {hint}"),
        None => error!("the new config is not valid and the old one stays in use"),
    }
}
