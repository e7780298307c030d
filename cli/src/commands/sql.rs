//! Implements `proctor sql`, which has SQL judged by the actual database engine in a sandboxed worker. It uses the
//! warm workers of a daemon if one responds, otherwise workers of this process.

mod human;
mod sarif;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::enforcement::SandboxMode;
use proctor_core::spec::Operator;
use proctor_core::sql::{Allow, DUCKDB, Dialect, Judgement, Limits, Request, Verdict};
use proctor_sandbox::{Host, HostConfig, Launcher};
use proctor_sql::pool::{Workers, WorkersConfig};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{Format, SqlAdviceArgs, SqlCommand, SqlEnginesArgs, SqlFormat, SqlVerifyArgs, StateArgs};
use crate::caller::Caller;
use crate::daemon::{Daemon, Wanted, client_error, who_does_it};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style;

/// Largest text that is read, in bytes, whatever the requested limit.
const MOST: u64 = 64 << 20;

/// The judgements of several files.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Judgements {
    /// The version of this document.
    version: u32,
    /// The worst of the verdicts.
    verdict: Verdict,
    /// The files, in order.
    files: Vec<Judged>,
}

/// A text that was judged.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Judged {
    /// The file name; `-` is standard input.
    pub(crate) file: String,
    /// The judgement.
    pub(crate) judgement: Judgement,
    /// The text.
    #[serde(skip)]
    pub(crate) text: String,
}

/// Runs the subcommand.
///
/// # Errors
/// A file cannot be read, a limit is not valid, or no sandbox can be set up.
pub(crate) async fn sql(command: &SqlCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        SqlCommand::Verify(args) => verify(args, caller, screen).await,
        SqlCommand::Advice(args) => advice(args, screen),
        SqlCommand::Engines(args) => engines(args, caller, screen).await,
    }
}

async fn verify(args: &SqlVerifyArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let template = request(args, caller)?;
    let stdin = [PathBuf::from("-")];
    let files: &[PathBuf] = if args.files.is_empty() { &stdin } else { &args.files };
    let texts: Vec<(String, String)> =
        files.iter().map(|file| Ok((show(file), read(file, caller)?))).collect::<Result<_, CliError>>()?;
    let mut judge = Judge::new(args, caller, screen).await?;
    let mut judged = Vec::new();
    for (file, text) in texts {
        let judgement = judge.judge(&Request { sql: text.clone(), ..template.clone() }, screen).await?;
        judged.push(Judged { file, judgement, text });
    }
    let verdict = worst(&judged);
    match args.format {
        SqlFormat::Human => screen.out(&human::render(&judged)),
        SqlFormat::Sarif => screen.out_json(&sarif::log(&judged))?,
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
struct Judge<'a> {
    args: &'a SqlVerifyArgs,
    caller: &'a Caller,
    operator: Operator,
    daemon: Option<Daemon>,
    workers: Option<Arc<Workers>>,
}

impl<'a> Judge<'a> {
    /// Finds a daemon that judges as this process would.
    ///
    /// # Errors
    /// The operator's config is wrong, or a daemon is required and none can judge.
    async fn new(args: &'a SqlVerifyArgs, caller: &'a Caller, screen: &mut Screen) -> Result<Self, CliError> {
        let operator = installation::operator(&args.way.operator, caller)?;
        // A daemon only loads the library that its own user has chosen.
        let is_library_named =
            args.dialect == Dialect::Duckdb && (args.duckdb.is_some() || caller.var(DUCKDB).is_some());
        if is_library_named && args.way.daemon.daemon {
            return Err(CliError::Usage {
                message: "a daemon does not load the DuckDB library that a caller names".to_owned(),
                hint: "omit `--daemon`, or `--duckdb` and `$PROCTOR_DUCKDB`".to_owned(),
            });
        }
        let wanted = Wanted { way: &args.way, operator: &operator, repo: Path::new("/") };
        let daemon = if is_library_named { None } else { who_does_it(wanted, caller, screen).await? };
        // A daemon opens databases for its own user only.
        let may_open = |daemon: &Daemon| args.db.is_none() || daemon.health.uid == rustix::process::geteuid().as_raw();
        let daemon = daemon.filter(|daemon| args.way.daemon.daemon || may_open(daemon));
        Ok(Self { args, caller, operator, daemon, workers: None })
    }

    /// Judges a text. If the daemon's request fails, this process judges, unless a daemon is required.
    ///
    /// # Errors
    /// No sandbox can be set up, or the required daemon does not respond.
    async fn judge(&mut self, request: &Request, screen: &mut Screen) -> Result<Judgement, CliError> {
        if let Some(daemon) = &self.daemon {
            match daemon.client.judge_sql(request).await {
                Ok(judgement) if judgement.is_intact() => return Ok(judgement),
                Ok(_) => return Err(CliError::Internal("the daemon's judgement contradicts its digest".to_owned())),
                Err(error) if self.args.way.daemon.daemon => return Err(client_error(error)),
                Err(error) => {
                    let message = format!("{error}; this is done without a daemon");
                    screen.err(&style::warning(&message));
                    self.daemon = None;
                }
            }
        }
        let workers = match self.workers.take() {
            Some(workers) => workers,
            None => workers(self.args.duckdb.as_deref(), &self.args.way.state, &self.operator, self.caller)?,
        };
        Ok(self.workers.insert(workers).judge(request).await)
    }
}

/// Returns the worst verdict: an error is worse than a rejection, and a rejection worse than `ok`.
fn worst(judged: &[Judged]) -> Verdict {
    let is = |verdict| judged.iter().any(|judged| judged.judgement.verdict == verdict);
    if judged.is_empty() || is(Verdict::Error) {
        Verdict::Error
    } else if is(Verdict::Reject) {
        Verdict::Reject
    } else {
        Verdict::Ok
    }
}

fn request(args: &SqlVerifyArgs, caller: &Caller) -> Result<Request, CliError> {
    let schema = args.schema.iter().map(|file| read(file, caller)).collect::<Result<_, _>>()?;
    let database = args.db.as_ref().map(|file| database(file, caller)).transpose()?;
    Ok(Request {
        schema,
        database,
        policy: args.policy,
        allow: Allow { tables: args.tables.clone(), columns: args.columns.clone(), functions: args.functions.clone() },
        limits: limits(&args.limit)?,
        batch: args.batch,
        question: args.question.clone(),
        stages: (!args.stages.is_empty()).then(|| args.stages.clone()),
        reject_at: args.reject_at,
        ..Request::new(args.dialect, "")
    })
}

fn database(file: &Path, caller: &Caller) -> Result<String, CliError> {
    let path = caller.cwd.join(file).canonicalize().map_err(|error| unreadable(file, &error))?;
    path.into_os_string().into_string().map_err(|path| CliError::Usage {
        message: format!("the path of the database, `{}`, is not UTF-8", show(Path::new(&path))),
        hint: "move it, or use a link to it".to_owned(),
    })
}

fn unreadable(file: &Path, error: &std::io::Error) -> CliError {
    CliError::Usage {
        message: format!("`{}` cannot be read: {error}", show(file)),
        hint: "name an existing file; `-` is standard input".to_owned(),
    }
}

fn read(file: &Path, caller: &Caller) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let done = if file == Path::new("-") {
        std::io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(caller.cwd.join(file)).and_then(|open| open.take(MOST + 1).read_to_end(&mut bytes))
    };
    done.map_err(|error| unreadable(file, &error))?;
    if bytes.len() as u64 > MOST {
        return Err(CliError::Usage {
            message: format!("`{}` is larger than {} MiB", show(file), MOST >> 20),
            hint: "split it".to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|error| CliError::Usage {
        message: format!("`{}` is not UTF-8 at byte {}", show(file), error.utf8_error().valid_up_to()),
        hint: "convert it, for instance with `iconv -t UTF-8`".to_owned(),
    })
}

fn limits(given: &[String]) -> Result<Limits, CliError> {
    let mut limits = Limits::default();
    for one in given {
        limits.set(one).map_err(|wrong| CliError::Usage {
            message: format!("`--limit {one}`: {wrong}"),
            hint: "write limits such as `--limit time=10s,memory=1GiB,rows=100`".to_owned(),
        })?;
    }
    Ok(limits)
}

fn workers(
    duckdb: Option<&Path>,
    state: &StateArgs,
    operator: &Operator,
    caller: &Caller,
) -> Result<Arc<Workers>, CliError> {
    let helpers = installation::helpers(caller)?;
    let config = HostConfig {
        helper: helpers.sandbox,
        state_dir: installation::state_dir(state, caller)?,
        home: installation::home(caller)?,
    };
    let refused = |error: proctor_sandbox::SandboxError| CliError::Environment {
        message: format!("no sandbox for SQL engines: {error}"),
        hint: "`proctor doctor` shows what this machine can enforce".to_owned(),
    };
    let launcher = Arc::new(Host::new(config).and_then(Launcher::start).map_err(refused)?);
    let config = WorkersConfig {
        program: helpers.sql,
        duckdb: duckdb.map(|file| caller.cwd.join(file)).or_else(|| caller.var(DUCKDB).map(PathBuf::from)),
        most: 1,
        tolerated: operator.tolerated(SandboxMode::Strict).unwrap_or_default(),
    };
    Workers::new(launcher, config).map(Arc::new).map_err(refused)
}

fn advice(args: &SqlAdviceArgs, screen: &mut Screen) -> Result<u8, CliError> {
    let error = args.error.join(" ");
    let advice = proctor_sql::advice::advise_alone(args.dialect, &error).map_err(|none| CliError::Usage {
        message: format!("no advice about `{error}`: {none}"),
        hint: "give the whole message of SQLite or DuckDB, such as `no such column: nmae`".to_owned(),
    })?;
    match args.format {
        Format::Json => screen.out_canonical(&advice),
        Format::Human => screen.out(&human::advice(&advice)),
    }
    Ok(0)
}

/// Shows which engines are available, by sending each a trivial query.
async fn engines(args: &SqlEnginesArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let workers = workers(args.duckdb.as_deref(), &args.state, &operator, caller)?;
    let mut text = String::new();
    let mut is_any = false;
    for dialect in Dialect::ALL {
        let judgement = workers.judge(&Request::new(dialect, "SELECT 1")).await;
        is_any |= judgement.verdict == Verdict::Ok;
        text += &human::engine(dialect, &judgement);
    }
    screen.out(&text);
    Ok(if is_any { 0 } else { Verdict::Error.exit_code() })
}
