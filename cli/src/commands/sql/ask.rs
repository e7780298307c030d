//! Implements `proctor sql ask`: answers a question with workers and a provider of this process.

mod human_answer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proctor_ask::ask_loop::{AskProgress, Asker, ExplainedPrompt, explain};
use proctor_ask::audit::{AuditError, AuditTrail};
use proctor_ask::backend::SqlBackend;
use proctor_ask::provider::{self, BoxFuture, NamedProvider, ProviderContext, ProviderError};
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::spec::{AskSettings, OperatorConfig, ProviderSettings};
use proctor_core::sql::{
    AskBounds, AskRequest, DUCKDB_VARIABLE, Judgement, SchemaAnswer, SchemaRequest, SqlAllow, SqlRequest, SqlRunAnswer,
    SqlRunRequest, SqlVerdict,
};
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::Clock;
use proctor_sandbox::Launcher;
use proctor_sql::external::ExternalDatabase;
use proctor_sql::worker_pool::WorkerPool;
use serde::Serialize;

use super::request_input::{self, SqlSource, limits};
use super::result_table;
use super::run_statement::external_run;
use super::worker_start::{start_launcher, start_workers_with};
use crate::args::{OutputFormat, SqlAskArgs, StateArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;
use crate::style::{DIM, paint};

/// The directory of the audit trail, in the state directory.
const AUDIT_DIRECTORY: &str = "ask";

/// The output of `--explain --format json`.
#[derive(Serialize)]
struct Explanation<'a> {
    version: u32,
    system: &'a str,
    user: &'a str,
    prompt_sha256: Sha256Hex,
    estimated_tokens: u64,
    shown_tables: usize,
    tables: usize,
}

/// Runs the subcommand.
///
/// # Errors
/// A file or the config cannot be read, the provider is unknown, or no sandbox can be set up.
pub(super) async fn ask(args: &SqlAskArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let source = request_input::source(&args.source, caller).await?;
    request_input::refuse_samples(args.samples, &source)?;
    let request = request(args, &source)?;
    let launcher = start_launcher(&args.state, caller)?;
    let duckdb: Option<PathBuf> = args.duckdb.clone().or_else(|| caller.var(DUCKDB_VARIABLE).map(PathBuf::from));
    let workers = start_workers_with(Arc::clone(&launcher), duckdb.as_deref(), &operator, caller)?;
    if args.explain {
        return match explain(&workers, &request).await {
            Ok(explained) => Ok(print_explanation(args.format, &explained, screen)),
            Err(reason) => Err(CliError::Environment {
                message: format!("the schema cannot be described: {reason}"),
                hint: "check `--db`, `--dsn`, `--schema` and `--dialect`".to_owned(),
            }),
        };
    }
    let provider = open_provider(args, &operator, launcher, caller)?;
    let trail = open_trail(&args.state, &operator.ask, caller)?;
    let backend = AskBackend { workers, external: source.external };
    let asker = Asker {
        backend: &backend,
        provider: &provider,
        audit: Arc::new(Mutex::new(trail)),
        settings: &operator.ask,
        clock: Clock::system(),
        caller: format!("uid {}", caller.uid),
    };
    let mut progress = |step: AskProgress| screen.err(&(paint(DIM, step) + "\n"));
    let answer = asker.ask(&request, &mut progress).await;
    match args.format {
        OutputFormat::Json => screen.out_canonical(&answer),
        OutputFormat::Human => {
            screen.err(&human_answer::render(&answer));
            if let Some(result) = &answer.result {
                screen.out(&result_table::render(result));
            }
        }
    }
    Ok(answer.verdict.exit_code())
}

/// The databases of a question: workers describe and judge, and an external server runs statements if there is one.
struct AskBackend {
    workers: Arc<WorkerPool>,
    external: Option<ExternalDatabase>,
}

impl SqlBackend for AskBackend {
    fn describe<'a>(&'a self, request: &'a SchemaRequest) -> BoxFuture<'a, SchemaAnswer> {
        SqlBackend::describe(&self.workers, request)
    }

    fn judge<'a>(&'a self, request: &'a SqlRequest) -> BoxFuture<'a, Judgement> {
        SqlBackend::judge(&self.workers, request)
    }

    fn run<'a>(&'a self, request: &'a SqlRunRequest) -> BoxFuture<'a, SqlRunAnswer> {
        let Some(external) = &self.external else { return SqlBackend::run(&self.workers, request) };
        Box::pin(async move {
            let judgement = WorkerPool::judge(&self.workers, &request.request).await;
            external_run(external.clone(), request.clone(), judgement).await
        })
    }
}

fn print_explanation(format: OutputFormat, explained: &ExplainedPrompt, screen: &mut Screen) -> u8 {
    let prompt = &explained.prompt;
    let document = Explanation {
        version: proctor_core::sql::VERSION,
        system: &prompt.system,
        user: &prompt.user,
        prompt_sha256: prompt.digest(),
        estimated_tokens: prompt.estimated_tokens(),
        shown_tables: explained.shown_tables,
        tables: explained.tables,
    };
    match format {
        OutputFormat::Json => screen.out_canonical(&document),
        OutputFormat::Human => {
            screen.out(&crate::text::escape_text(&format!("{}\n{}", prompt.system, prompt.user)));
            let summary = format!(
                "{} of {} tables, about {} tokens, prompt_sha256 {}\n",
                document.shown_tables, document.tables, document.estimated_tokens, document.prompt_sha256
            );
            screen.err(&paint(DIM, summary));
        }
    }
    SqlVerdict::Ok.exit_code()
}

fn request(args: &SqlAskArgs, source: &SqlSource) -> Result<AskRequest, CliError> {
    if args.question.trim().is_empty() {
        return Err(CliError::Usage {
            message: "the question is empty".to_owned(),
            hint: "write `proctor sql ask --db FILE \"top 5 customers by spending\"`".to_owned(),
        });
    }
    Ok(AskRequest {
        schema: source.schema.clone(),
        database: source.database.clone(),
        policy: args.policy,
        allow: SqlAllow {
            tables: args.tables.clone(),
            columns: args.columns.clone(),
            functions: args.functions.clone(),
        },
        limits: limits(&args.limit)?,
        reject_at: args.reject_at,
        samples: args.samples,
        provider: args.provider.clone(),
        bounds: AskBounds { attempts: args.max_attempts, tokens: args.max_tokens, seconds: args.max_seconds },
        ..AskRequest::new(source.dialect, &args.question)
    })
}

fn open_provider(
    args: &SqlAskArgs,
    operator: &OperatorConfig,
    launcher: Arc<Launcher>,
    caller: &Caller,
) -> Result<NamedProvider, CliError> {
    if let Some(file) = &args.answers {
        return Ok(provider::open_recorded(&caller.cwd.join(file))?);
    }
    let (name, settings) = configured_provider(args, &operator.ask)?;
    let model = args.model.clone().or_else(|| settings.model.clone());
    let settings = ProviderSettings { model, ..settings.clone() };
    let context = ProviderContext {
        env: caller.env.clone(),
        launcher: Some(launcher),
        tolerated: operator.tolerated(SandboxMode::Strict).unwrap_or_default(),
        allow_network: operator.allow_network,
        clock: Clock::system(),
    };
    Ok(provider::open(name, &settings, &context)?)
}

fn configured_provider<'a>(
    args: &'a SqlAskArgs,
    settings: &'a AskSettings,
) -> Result<(&'a str, &'a ProviderSettings), CliError> {
    settings.provider(args.provider.as_deref()).ok_or_else(|| {
        let known: Vec<String> = settings.providers.keys().map(|name| format!("`{name}`")).collect();
        let message = match (&args.provider, known.as_slice()) {
            (_, []) => "no provider of a language model is configured".to_owned(),
            (Some(name), known) => format!("there is no provider `{name}`; these are configured: {}", known.join(", ")),
            (None, known) => format!("several providers are configured: {}", known.join(", ")),
        };
        let hint =
            "configure `[ask.providers.NAME]` in proctord.toml and use `--provider NAME`, or use `--answers FILE`";
        CliError::Usage { message, hint: hint.to_owned() }
    })
}

impl From<ProviderError> for CliError {
    fn from(error: ProviderError) -> Self {
        Self::Usage {
            message: error.to_string(),
            hint: "check `ask.providers` of the operator's config, and the options `--provider` and `--answers`"
                .to_owned(),
        }
    }
}

fn open_trail(state: &StateArgs, settings: &AskSettings, caller: &Caller) -> Result<AuditTrail, CliError> {
    let state_dir = installation::state_dir(state, caller)?;
    proctor_client::installation::secure_state_dir(&state_dir)?;
    Ok(AuditTrail::open(&audit_directory(&state_dir), settings.audit, Clock::system())?)
}

/// Returns the directory of the audit trail.
pub(super) fn audit_directory(state_dir: &Path) -> PathBuf {
    state_dir.join(AUDIT_DIRECTORY)
}

impl From<AuditError> for CliError {
    fn from(error: AuditError) -> Self {
        Self::Environment {
            message: error.to_string(),
            hint: "`--state-dir` names the directory of the audit trail".to_owned(),
        }
    }
}
