//! Answers requests about SQL with the warm workers of a daemon if one responds, otherwise with workers of this process.

use std::path::Path;
use std::sync::Arc;

use proctor_client::error::ClientError;
use proctor_core::spec::OperatorConfig;
use proctor_core::sql::{
    DUCKDB_VARIABLE, Dialect, Judgement, SchemaAnswer, SchemaRequest, SqlRequest, SqlRunAnswer, SqlRunRequest,
};
use proctor_core::telemetry::take_context;
use proctor_daemon::client::Client;
use proctor_sql::worker_pool::WorkerPool;

use super::request_input::SqlSource;
use super::worker_start::start_workers;
use crate::args::SqlBackendArgs;
use crate::caller::Caller;
use crate::daemon::{BackendCriteria, ReachableDaemon, client_error, select_backend};
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;
use crate::style;

/// The answering side: a daemon, or workers of this process, which start on first use.
pub(super) struct SqlBackend<'a> {
    args: &'a SqlBackendArgs,
    caller: &'a Caller,
    operator: OperatorConfig,
    daemon: Option<ReachableDaemon>,
    workers: Option<Arc<WorkerPool>>,
}

/// The policy for repeating a request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repetition {
    /// The request changes nothing.
    Harmless,
    /// The effects of the request may already be permanent.
    Harmful,
}

impl<'a> SqlBackend<'a> {
    /// Finds a daemon that answers as this process would.
    ///
    /// # Errors
    /// The operator's config is wrong, or a daemon is required and none can answer.
    pub(super) async fn new(
        source: &SqlSource,
        args: &'a SqlBackendArgs,
        caller: &'a Caller,
        screen: &mut Screen,
    ) -> Result<Self, CliError> {
        let operator = installation::operator(&args.backend.operator, caller)?;
        // A daemon only loads the library that its own user has chosen.
        let is_library_named =
            source.dialect == Dialect::Duckdb && (args.duckdb.is_some() || caller.var(DUCKDB_VARIABLE).is_some());
        if is_library_named && args.backend.daemon.daemon {
            return Err(CliError::Usage {
                message: "a daemon does not load the DuckDB library that a caller names".to_owned(),
                hint: "omit `--daemon`, or `--duckdb` and `$PROCTOR_DUCKDB`".to_owned(),
            });
        }
        let wanted = BackendCriteria { options: &args.backend, operator: &operator, repo: Path::new("/") };
        let daemon = if is_library_named { None } else { select_backend(wanted, caller, screen).await? };
        // A daemon opens databases for its own user only.
        let may_open = |daemon: &ReachableDaemon| {
            source.database.is_none() || daemon.health.uid == rustix::process::geteuid().as_raw()
        };
        let daemon = daemon.filter(|daemon| args.backend.daemon.daemon || may_open(daemon));
        let trace = take_context(&mut caller.env.clone());
        let daemon = daemon.map(|found| ReachableDaemon { client: found.client.in_trace(trace), ..found });
        Ok(Self { args, caller, operator, daemon, workers: None })
    }

    /// Judges a text.
    ///
    /// # Errors
    /// No sandbox can be set up, or the required daemon does not respond.
    pub(super) async fn judge(&mut self, request: &SqlRequest, screen: &mut Screen) -> Result<Judgement, CliError> {
        let judgement = self
            .answer(
                Repetition::Harmless,
                screen,
                async |daemon| daemon.judge_sql(request).await,
                async |workers| workers.judge(request).await,
            )
            .await?;
        check_digest(&judgement).map(|()| judgement)
    }

    /// Judges a text, and runs it if the verdict is `ok`.
    ///
    /// # Errors
    /// As [`SqlBackend::judge`].
    pub(super) async fn run(&mut self, request: &SqlRunRequest, screen: &mut Screen) -> Result<SqlRunAnswer, CliError> {
        let repetition = if request.commit { Repetition::Harmful } else { Repetition::Harmless };
        let answer = self
            .answer(
                repetition,
                screen,
                async |daemon| daemon.run_sql(request).await,
                async |workers| workers.run_statement(request).await,
            )
            .await?;
        check_digest(&answer.judgement).map(|()| answer)
    }

    /// Describes a schema.
    ///
    /// # Errors
    /// As [`SqlBackend::judge`].
    pub(super) async fn describe(
        &mut self,
        request: &SchemaRequest,
        screen: &mut Screen,
    ) -> Result<SchemaAnswer, CliError> {
        self.answer(
            Repetition::Harmless,
            screen,
            async |daemon| daemon.describe_sql(request).await,
            async |workers| workers.describe_schema(request).await,
        )
        .await
    }

    /// Asks the daemon, if there is one. If its answer fails, this process answers, unless a daemon is required or the
    /// request must not be repeated.
    async fn answer<T>(
        &mut self,
        repetition: Repetition,
        screen: &mut Screen,
        remote: impl AsyncFnOnce(&Client) -> Result<T, ClientError>,
        local: impl AsyncFnOnce(&Arc<WorkerPool>) -> T,
    ) -> Result<T, CliError> {
        if let Some(daemon) = &self.daemon {
            match remote(&daemon.client).await {
                Ok(answer) => return Ok(answer),
                Err(error) if self.args.backend.daemon.daemon || repetition == Repetition::Harmful => {
                    return Err(client_error(error));
                }
                Err(error) => {
                    let message = format!("{error}; continuing without a daemon");
                    screen.err(&style::warning(&message));
                    self.daemon = None;
                }
            }
        }
        let workers = match self.workers.take() {
            Some(workers) => workers,
            None => start_workers(self.args.duckdb.as_deref(), &self.args.backend.state, &self.operator, self.caller)?,
        };
        Ok(local(self.workers.insert(workers)).await)
    }
}

/// Checks that a judgement matches its digest.
fn check_digest(judgement: &Judgement) -> Result<(), CliError> {
    match judgement.is_intact() {
        true => Ok(()),
        false => Err(CliError::Internal("the judgement does not match its digest".to_owned())),
    }
}
