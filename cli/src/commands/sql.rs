//! Implements `proctor sql`, which has SQL judged by the actual database engine in a sandboxed worker. It uses the
//! warm workers of a daemon if one responds, otherwise workers of this process.

mod ask;
mod audit;
mod human_judgement;
mod judged_text;
mod kept_databases;
mod request_input;
mod result_table;
mod run_statement;
mod sarif_log;
mod schema_output;
mod sql_backend;
mod worker_start;

use std::path::PathBuf;

use proctor_core::sql::{Dialect, SqlRequest, SqlVerdict};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{OutputFormat, SqlAdviceArgs, SqlCommand, SqlEnginesArgs, SqlFormat, SqlVerifyArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use judged_text::Judged;
use kept_databases::KeptDatabases;
use sql_backend::SqlBackend;
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
        SqlCommand::Run(args) => run_statement::run(args, caller, screen).await,
        SqlCommand::Schema(args) => schema_output::schema(args, caller, screen).await,
        SqlCommand::Ask(args) => ask::ask(args, caller, screen).await,
        SqlCommand::Audit(args) => audit::audit(&args.command, caller, screen),
        SqlCommand::Advice(args) => advice(args, screen),
        SqlCommand::Engines(args) => engines(args, caller, screen).await,
    }
}

async fn verify(args: &SqlVerifyArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let source = request_input::source(&args.request.source, caller).await?;
    let template = request_input::request(&args.request, &source)?;
    let stdin = [PathBuf::from("-")];
    let files: &[PathBuf] = if args.files.is_empty() { &stdin } else { &args.files };
    let texts: Vec<(String, String)> = files
        .iter()
        .map(|file| Ok((show(file), request_input::read_text(file, caller)?)))
        .collect::<Result<_, CliError>>()?;
    let mut judge = SqlBackend::new(&source, &args.backend, caller, screen).await?;
    let mut kept = KeptDatabases::new(args, &template, caller)?;
    let mut judged = Vec::new();
    for (file, text) in texts {
        let request = SqlRequest { sql: text.clone(), ..template.clone() };
        let judgement = judge.judge(&request, screen).await?;
        let judgement = kept.extend(request, judgement).await?;
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
    kept.wait(screen).await?;
    Ok(verdict.exit_code())
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
