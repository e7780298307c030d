//! The temporary databases of `proctor sql verify`: the service that checks statements too, and databases that are kept
//! for the caller.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proctor_core::sql::{Dialect, Judgement, SchemaRequest, SqlAllow, SqlRequest};
use proctor_runner::Clock;
use proctor_sql::external::tidb_zero::{KeptDatabase, TidbChecker};
use proctor_sql::worker_pool::{KeptServer, WorkerPool};

use super::worker_start::start_workers;
use crate::args::{SqlProvisioner, SqlVerifyArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation;
use crate::interrupt::unless_interrupted;
use crate::screen::Screen;

/// The name of the file with the instance of TiDB Cloud Zero, in the state directory.
const INSTANCE_FILE: &str = "tidb-zero.json";
/// The longest time for which a server is kept.
const MAX_KEEP_ALIVE: Duration = Duration::from_secs(24 * 60 * 60);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(Clock::system().now_ms())
}

/// The temporary databases of one command.
pub(super) struct KeptDatabases {
    checker: Option<TidbChecker>,
    keep_alive: Option<Duration>,
    /// The last database on an instance of the service.
    remote: Option<KeptDatabase>,
    /// The workers whose server is kept, and the schema of its database.
    local: Option<(Arc<WorkerPool>, SchemaRequest)>,
}

impl KeptDatabases {
    /// Checks the options. Nothing is started yet.
    ///
    /// # Errors
    /// The options need another dialect, or the config cannot be read.
    pub(super) fn new(args: &SqlVerifyArgs, template: &SqlRequest, caller: &Caller) -> Result<Self, CliError> {
        let none = Self { checker: None, keep_alive: args.keep_alive, remote: None, local: None };
        if args.provisioner.is_none() && args.keep_alive.is_none() {
            return Ok(none);
        }
        let usage = |message: String, hint: &str| CliError::Usage { message, hint: hint.to_owned() };
        if args.keep_alive.is_some_and(|time| time.is_zero() || time > MAX_KEEP_ALIVE) {
            return Err(usage("`--keep-alive` is not between 1 s and 24 h".to_owned(), "write it like `10m`"));
        }
        let operator = installation::operator(&args.backend.backend.operator, caller)?;
        let dialect = template.dialect;
        match args.provisioner {
            Some(SqlProvisioner::TidbZero) if dialect != Dialect::Mysql => Err(usage(
                format!("`--provisioner tidb-zero` does not check statements of `{}`", dialect.as_str()),
                "add `--dialect mysql`",
            )),
            Some(SqlProvisioner::TidbZero) => {
                let state_dir = installation::state_dir(&args.backend.backend.state, caller)?;
                proctor_client::installation::secure_state_dir(&state_dir)?;
                let program = installation::helpers(caller)?.sql;
                let checker = TidbChecker::new(operator.sql.tidb_zero, state_dir.join(INSTANCE_FILE), program, now);
                Ok(Self { checker: Some(checker), ..none })
            }
            None if !matches!(dialect, Dialect::Postgres | Dialect::Mysql) => Err(usage(
                format!("`--keep-alive` keeps a server, and `{}` has none", dialect.as_str()),
                "add `--dialect postgres` or `--dialect mysql`",
            )),
            None => {
                let workers =
                    start_workers(args.backend.duckdb.as_deref(), &args.backend.backend.state, &operator, caller)?;
                let request = SchemaRequest {
                    dialect,
                    schema: template.schema.clone(),
                    database: None,
                    allow: SqlAllow::default(),
                    samples: 0,
                    limits: template.limits,
                };
                Ok(Self { local: Some((workers, request)), ..none })
            }
        }
    }

    /// Returns a judgement with the answer of the service, if one checks statements too.
    ///
    /// # Errors
    /// A part of Proctor broke.
    pub(super) async fn extend(&mut self, request: SqlRequest, judgement: Judgement) -> Result<Judgement, CliError> {
        let Some(mut checker) = self.checker.take() else { return Ok(judgement) };
        let keeps = self.keep_alive.is_some();
        let checked = tokio::task::spawn_blocking(move || {
            let extended = checker.extend(&request, judgement, keeps);
            (checker, extended)
        });
        let (checker, (judgement, kept)) = checked.await.map_err(|error| CliError::Internal(error.to_string()))?;
        self.checker = Some(checker);
        self.remote = kept.or_else(|| self.remote.take());
        Ok(judgement)
    }

    /// Prints the URL of the database that is kept, and waits until its server ends or the user interrupts.
    ///
    /// # Errors
    /// The server cannot be started.
    pub(super) async fn wait(self, screen: &mut Screen) -> Result<(), CliError> {
        let Some(time) = self.keep_alive else { return Ok(()) };
        if let Some(kept) = &self.remote {
            screen.err(&format!("database until {}: {}\n", kept.expires_at, kept.url));
        } else if self.checker.is_some() {
            screen.err("no database is kept, because no statement was checked by the service\n");
        }
        let Some((workers, request)) = &self.local else { return Ok(()) };
        let server: KeptServer = workers.keep_database(request).await.map_err(|reason| CliError::Environment {
            message: format!("no database can be kept: {reason}"),
            hint: "check `--schema`".to_owned(),
        })?;
        let end = humantime::format_rfc3339_seconds(now() + time);
        screen.err(&format!("database until {end} or Ctrl-C: {}\n", server.url()));
        // An interruption ends the wait early.
        let _ = unless_interrupted(tokio::time::sleep(time)).await;
        drop(server);
        Ok(())
    }
}
