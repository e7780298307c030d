//! Implements `proctor sql`, which has SQL judged by the actual database engine in a sandboxed worker. It uses the
//! warm workers of a daemon if one responds, otherwise workers of this process.

mod ask;
mod audit;
mod human_judgement;
mod judged_text;
mod request_input;
mod sarif_log;
mod worker_start;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::spec::OperatorConfig;
use proctor_core::sql::{DUCKDB_VARIABLE, Dialect, Judgement, SqlAllow, SqlRequest, SqlVerdict};
use proctor_sql::worker_pool::WorkerPool;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{OutputFormat, SqlAdviceArgs, SqlCommand, SqlEnginesArgs, SqlFormat, SqlVerifyArgs};
use crate::caller::Caller;
use crate::daemon::{BackendCriteria, ReachableDaemon, client_error, select_backend};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style;
use judged_text::Judged;
use request_input::{database_path, limits, read_text};
use worker_start::start_workers;

/// The judgements of several files.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Judgements {
    /// The version of this document.
    version: u32,
    /// The worst of the verdicts.
    verdict: SqlVerdict,
    /// The files, in order.
    files: Vec<Judged>,
}

/// Runs the subcommand.
///
/// # Errors
/// A file cannot be read, a limit is not valid, or no sandbox can be set up.
pub(crate) async fn sql(command: &SqlCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        SqlCommand::Verify(args) => verify(args, caller, screen).await,
        SqlCommand::Ask(args) => ask::ask(args, caller, screen).await,
        SqlCommand::Audit(args) => audit::audit(&args.command, caller, screen),
        SqlCommand::Advice(args) => advice(args, screen),
        SqlCommand::Engines(args) => engines(args, caller, screen).await,
    }
}

async fn verify(args: &SqlVerifyArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let template = request(args, caller)?;
    let stdin = [PathBuf::from("-")];
    let files: &[PathBuf] = if args.files.is_empty() { &stdin } else { &args.files };
    let texts: Vec<(String, String)> =
        files.iter().map(|file| Ok((show(file), read_text(file, caller)?))).collect::<Result<_, CliError>>()?;
    let mut judge = JudgeBackend::new(args, caller, screen).await?;
    let mut judged = Vec::new();
    for (file, text) in texts {
        let judgement = judge.judge(&SqlRequest { sql: text.clone(), ..template.clone() }, screen).await?;
        judged.push(Judged { file, judgement, text });
    }
    let verdict = worst_verdict(&judged);
    match args.format {
        SqlFormat::Human => screen.out(&human_judgement::render(&judged)),
        SqlFormat::Sarif => screen.out_json(&sarif_log::to_sarif_log(&judged))?,
        SqlFormat::Json => match <[Judged; 1]>::try_from(judged) {
            Ok([only]) => screen.out_canonical(&only.judgement),
            Err(files) => {
                screen.out_canonical(&Judgements { version: proctor_core::sql::VERSION, verdict, files });
            }
        },
    }
    Ok(verdict.exit_code())
}

/// The judging side: a daemon, or workers of this process, which start on first use.
struct JudgeBackend<'a> {
    args: &'a SqlVerifyArgs,
    caller: &'a Caller,
    operator: OperatorConfig,
    daemon: Option<ReachableDaemon>,
    workers: Option<Arc<WorkerPool>>,
}

impl<'a> JudgeBackend<'a> {
    /// Finds a daemon that judges as this process would.
    ///
    /// # Errors
    /// The operator's config is wrong, or a daemon is required and none can judge.
    async fn new(args: &'a SqlVerifyArgs, caller: &'a Caller, screen: &mut Screen) -> Result<Self, CliError> {
        let operator = installation::operator(&args.backend.operator, caller)?;
        // A daemon only loads the library that its own user has chosen.
        let is_library_named =
            args.dialect == Dialect::Duckdb && (args.duckdb.is_some() || caller.var(DUCKDB_VARIABLE).is_some());
        if is_library_named && args.backend.daemon.daemon {
            return Err(CliError::Usage {
                message: "a daemon does not load the DuckDB library that a caller names".to_owned(),
                hint: "omit `--daemon`, or `--duckdb` and `$PROCTOR_DUCKDB`".to_owned(),
            });
        }
        let wanted = BackendCriteria { options: &args.backend, operator: &operator, repo: Path::new("/") };
        let daemon = if is_library_named { None } else { select_backend(wanted, caller, screen).await? };
        // A daemon opens databases for its own user only.
        let may_open =
            |daemon: &ReachableDaemon| args.db.is_none() || daemon.health.uid == rustix::process::geteuid().as_raw();
        let daemon = daemon.filter(|daemon| args.backend.daemon.daemon || may_open(daemon));
        Ok(Self { args, caller, operator, daemon, workers: None })
    }

    /// Judges a text. If the daemon's request fails, this process judges, unless a daemon is required.
    ///
    /// # Errors
    /// No sandbox can be set up, or the required daemon does not respond.
    async fn judge(&mut self, request: &SqlRequest, screen: &mut Screen) -> Result<Judgement, CliError> {
        if let Some(daemon) = &self.daemon {
            match daemon.client.judge_sql(request).await {
                Ok(judgement) if judgement.is_intact() => return Ok(judgement),
                Ok(_) => return Err(CliError::Internal("the daemon's judgement contradicts its digest".to_owned())),
                Err(error) if self.args.backend.daemon.daemon => return Err(client_error(error)),
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
        Ok(self.workers.insert(workers).judge(request).await)
    }
}

/// Returns the worst verdict: an error is worse than a rejection, and a rejection worse than `ok`.
fn worst_verdict(judged: &[Judged]) -> SqlVerdict {
    let has_verdict = |verdict| judged.iter().any(|judged| judged.judgement.verdict == verdict);
    if judged.is_empty() || has_verdict(SqlVerdict::Error) {
        SqlVerdict::Error
    } else if has_verdict(SqlVerdict::Reject) {
        SqlVerdict::Reject
    } else {
        SqlVerdict::Ok
    }
}

fn request(args: &SqlVerifyArgs, caller: &Caller) -> Result<SqlRequest, CliError> {
    let schema = args.schema.iter().map(|file| read_text(file, caller)).collect::<Result<_, _>>()?;
    let database = args.db.as_ref().map(|file| database_path(file, caller)).transpose()?;
    Ok(SqlRequest {
        schema,
        database,
        policy: args.policy,
        allow: SqlAllow {
            tables: args.tables.clone(),
            columns: args.columns.clone(),
            functions: args.functions.clone(),
        },
        limits: limits(&args.limit)?,
        batch: args.batch,
        question: args.question.clone(),
        stages: (!args.stages.is_empty()).then(|| args.stages.clone()),
        reject_at: args.reject_at,
        ..SqlRequest::new(args.dialect, "")
    })
}

fn advice(args: &SqlAdviceArgs, screen: &mut Screen) -> Result<u8, CliError> {
    let error = args.error.join(" ");
    let advice =
        proctor_sql::advice::advise_without_statement(args.dialect, &error).map_err(|none| CliError::Usage {
            message: format!("no advice about `{error}`: {none}"),
            hint: "give the whole message of the engine, such as `no such column: nmae`".to_owned(),
        })?;
    match args.format {
        OutputFormat::Json => screen.out_canonical(&advice),
        OutputFormat::Human => screen.out(&human_judgement::render_advice(&advice)),
    }
    Ok(0)
}

/// Shows which engines are available, by sending each a trivial query.
async fn engines(args: &SqlEnginesArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let workers = start_workers(args.duckdb.as_deref(), &args.state, &operator, caller)?;
    let mut text = String::new();
    let mut is_any = false;
    for dialect in Dialect::ALL {
        let judgement = workers.judge(&SqlRequest::new(dialect, "SELECT 1")).await;
        is_any |= judgement.verdict == SqlVerdict::Ok;
        text += &human_judgement::engine_line(dialect, &judgement);
    }
    screen.out(&text);
    Ok(if is_any { 0 } else { SqlVerdict::Error.exit_code() })
}
