//! Implements `proctor sql`, which has SQL judged by the actual database engine in a sandboxed worker. It uses the
//! warm workers of a daemon if one responds, otherwise workers of this process.

mod ask;
mod audit;
mod human_judgement;
mod judged_text;
mod sarif_log;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::enforcement::SandboxMode;
use proctor_core::spec::OperatorConfig;
use proctor_core::sql::{DUCKDB_VARIABLE, Dialect, Judgement, SqlAllow, SqlRequest, SqlResourceLimits, SqlVerdict};
use proctor_sandbox::{Host, HostConfig, Launcher, SandboxError};
use proctor_sql::worker_pool::{WorkerPool, WorkerPoolConfig};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{OutputFormat, SqlAdviceArgs, SqlCommand, SqlEnginesArgs, SqlFormat, SqlVerifyArgs, StateArgs};
use crate::caller::Caller;
use crate::daemon::{BackendCriteria, ReachableDaemon, client_error, select_backend};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style;
use judged_text::Judged;

/// Largest text that is read, in bytes, whatever the requested limit.
const MAX_TEXT_BYTES: u64 = 64 << 20;

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

fn database_path(file: &Path, caller: &Caller) -> Result<String, CliError> {
    let path = caller.cwd.join(file).canonicalize().map_err(|error| unreadable_error(file, &error))?;
    path.into_os_string().into_string().map_err(|path| CliError::Usage {
        message: format!("the path of the database, `{}`, is not UTF-8", show(Path::new(&path))),
        hint: "move it, or use a link to it".to_owned(),
    })
}

fn unreadable_error(file: &Path, error: &std::io::Error) -> CliError {
    CliError::Usage {
        message: format!("`{}` cannot be read: {error}", show(file)),
        hint: "name an existing file; `-` is standard input".to_owned(),
    }
}

fn read_text(file: &Path, caller: &Caller) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let done = if file == Path::new("-") {
        std::io::stdin().lock().take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(caller.cwd.join(file))
            .and_then(|open| open.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes))
    };
    done.map_err(|error| unreadable_error(file, &error))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(CliError::Usage {
            message: format!("`{}` is larger than {} MiB", show(file), MAX_TEXT_BYTES >> 20),
            hint: "split it".to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|error| CliError::Usage {
        message: format!("`{}` is not UTF-8 at byte {}", show(file), error.utf8_error().valid_up_to()),
        hint: "convert it, for instance with `iconv -t UTF-8`".to_owned(),
    })
}

fn limits(given: &[String]) -> Result<SqlResourceLimits, CliError> {
    let mut limits = SqlResourceLimits::default();
    for one in given {
        limits.set(one).map_err(|wrong| CliError::Usage {
            message: format!("`--limit {one}`: {wrong}"),
            hint: "write limits such as `--limit time=10s,memory=1GiB,rows=100`".to_owned(),
        })?;
    }
    Ok(limits)
}

fn start_workers(
    duckdb: Option<&Path>,
    state: &StateArgs,
    operator: &OperatorConfig,
    caller: &Caller,
) -> Result<Arc<WorkerPool>, CliError> {
    start_workers_with(start_launcher(state, caller)?, duckdb, operator, caller)
}

fn start_launcher(state: &StateArgs, caller: &Caller) -> Result<Arc<Launcher>, CliError> {
    let config = HostConfig {
        helper: installation::helpers(caller)?.sandbox,
        state_dir: installation::state_dir(state, caller)?,
        home: installation::home(caller)?,
    };
    Host::new(config).and_then(Launcher::start).map(Arc::new).map_err(|error| no_sandbox(&error))
}

fn no_sandbox(error: &SandboxError) -> CliError {
    CliError::Environment {
        message: format!("no sandbox for SQL engines: {error}"),
        hint: "`proctor doctor` shows what this machine can enforce".to_owned(),
    }
}

fn start_workers_with(
    launcher: Arc<Launcher>,
    duckdb: Option<&Path>,
    operator: &OperatorConfig,
    caller: &Caller,
) -> Result<Arc<WorkerPool>, CliError> {
    let helpers = installation::helpers(caller)?;
    let config = WorkerPoolConfig {
        program: helpers.sql,
        duckdb: duckdb.map(|file| caller.cwd.join(file)).or_else(|| caller.var(DUCKDB_VARIABLE).map(PathBuf::from)),
        max_idle: 1,
        tolerated: operator.tolerated(SandboxMode::Strict).unwrap_or_default(),
    };
    WorkerPool::new(launcher, config).map(Arc::new).map_err(|error| no_sandbox(&error))
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
