//! Reading the config again: all of it holds, or none.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_runner::Clock;
use tracing::{error, info, warn};

use super::{Life, notify};
use crate::installation::{self, InstallationError, Surroundings, show};
use crate::log::Log;
use crate::settings::{self, Settings};

/// Reads the config again.
pub(super) struct Reloader {
    named: Option<PathBuf>,
    around: Surroundings,
    log: Log,
}

impl Reloader {
    /// `named` is the file that was named when the daemon began.
    pub(super) fn new(named: Option<PathBuf>, around: Surroundings, log: Log) -> Self {
        Self { named, around, log }
    }

    /// Reads the config again. A new one holds for what is asked from now on; where it is not valid,
    /// the old one stays.
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
            // Nobody widens what is allowed by losing a file.
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
