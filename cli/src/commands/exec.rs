//! Implements `proctor exec`, which runs one command exactly as a step would run. The command's output goes to the
//! corresponding streams, or with `--format json` its record goes to standard output. The outcome goes to standard
//! error.

mod daemon_exec;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proctor_client::exec_handover::{self, HandedOverDescriptors, take_over};
use proctor_core::api::ExecSubmission;
use proctor_core::decision::verdict::InconclusiveDetail;
use proctor_core::model::exec::ExecRecord;
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::Argv;
use proctor_core::record::evidence::{StepEvidence, StreamEvidence, escape_output};
use proctor_core::report::failure_hints::failure_hints;
use proctor_core::report::stream_texts::StreamTexts;
use proctor_core::spec::OperatorConfig;
use proctor_daemon::client::{Client, RemoteExecution};
use proctor_runner::{BlockedSignals, ExecOutput, ExecRequest};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::{ExecArgs, OutputFormat};
use crate::caller::Caller;
use crate::daemon::{self, BackendCriteria, ReachableDaemon, problem_error};
use crate::engine;
use crate::error::CliError;
use crate::human_report::{
    drift_block, inconclusive_block, leak_hint, limit_hints, limits_hit_phrase, missing_controls, outcome_label,
    outcome_reason, stream_block,
};
use crate::installation;
use crate::interrupt::{self, Interrupts, SignalEffect};
use crate::log::start_log;
use crate::progress::{HEARTBEAT, ProgressDisplay};
use crate::runtime::{block_on, block_on_one_thread};
use crate::screen::{Screen, TextLayout};
use crate::style::{self, paint};
use crate::text::{escape_line, escape_text, size};

/// The result of a command, from a daemon or from this process.
struct CompletedExec {
    record: ExecRecord,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Runs the command. The exit code is that of a run with this one step.
///
/// # Errors
/// The command could not be run, or the spec that provides the defaults is wrong.
pub(crate) fn exec(args: &ExecArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    if let Some(descriptors) = args.handed_over {
        let ended = finish_handed_over(args, descriptors, caller, screen)?;
        return print_result(ended, args, screen);
    }
    start_log(caller);
    let repo = installation::repository(&args.repo, caller)?;
    let operator = installation::operator(&args.backend.operator, caller)?;
    let submission = submission(args, &repo)?;
    let ended = match block_on_one_thread(run_in_daemon(args, &operator, (&repo, &submission), caller, screen))? {
        Some(ended) => ended,
        None => block_on(run_in_process(args, operator, &submission, repo, (caller, screen)))?,
    };
    print_result(ended, args, screen)
}

/// Finishes a command that `proctor` has sent to a daemon.
fn finish_handed_over(
    args: &ExecArgs,
    descriptors: HandedOverDescriptors,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<CompletedExec, CliError> {
    let blocked = proctor_runner::keep_termination_signals_blocked();
    let blocked = blocked.map_err(|error| CliError::Internal(error.to_string()))?;
    let taken = proctor_runner::take_inherited_descriptor(descriptors.connection)
        .and_then(|connection| take_over(connection, proctor_runner::take_inherited_descriptor(descriptors.received)?));
    let mut response = taken.map_err(|error| CliError::Usage {
        message: format!("the value of `{}` does not name a command in progress: {error}", exec_handover::OPTION),
        hint: "omit it: only `proctor` itself uses the option".to_owned(),
    })?;
    let (client, cancel) = (Client::new(response.address().clone()), CancellationToken::new());
    let is_complete = response.wait(Duration::ZERO, &mut Vec::new(), 0);
    let mut execution = RemoteExecution::new(response);
    let request = async move { execution.head().await.map(|()| execution) };
    let work = daemon_exec::follow_request(client, request, cancel.clone());
    if is_complete {
        let incomplete = || Err(CliError::Internal("the answer is not complete".to_owned()));
        return poll_once(work).unwrap_or_else(incomplete);
    }
    start_log(caller);
    block_on_one_thread(show_progress(work, (program(args), None), (cancel, Some(blocked)), screen))
}

/// Polls the future once. Returns `None` if it would have to wait.
fn poll_once<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(work).poll(&mut context) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

/// Runs the command in a daemon; returns `None` if this process must do it.
async fn run_in_daemon(
    args: &ExecArgs,
    operator: &OperatorConfig,
    (repo, submission): (&Path, &ExecSubmission),
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<CompletedExec>, CliError> {
    let wanted = BackendCriteria { options: &args.backend, operator, repo };
    let Some(ReachableDaemon { client, .. }) = daemon::select_backend_with_env(wanted, caller, screen).await? else {
        return Ok(None);
    };
    let (repo, env) = (daemon::repo_utf8(repo)?, Some(caller.env.clone()));
    let submission = ExecSubmission { repo, env, ..submission.clone() };
    let (cancel, timeout_ms) = (CancellationToken::new(), args.timeout_ms);
    let request_client = client.clone();
    let request = async move { request_client.exec(&submission).await };
    let work = daemon_exec::follow_request(client, request, cancel.clone());
    show_progress(work, (program(args), timeout_ms), (cancel, None), screen).await.map(Some)
}

async fn run_in_process(
    args: &ExecArgs,
    operator: OperatorConfig,
    submission: &ExecSubmission,
    repo: PathBuf,
    (caller, screen): (&Caller, &mut Screen),
) -> Result<CompletedExec, CliError> {
    let engine = engine::open(&args.backend.state, operator, caller, screen)?;
    let planned = engine.adhoc_step(&repo, &submission.to_adhoc(), args.no_spec);
    let step = planned.map_err(|error| problem_error(engine.problem(&error)).with_path_relative_to(&caller.cwd))?;
    let (sandbox, timeout_ms) = (args.sandbox.sandbox, Some(step.timeout_ms));
    let cancel = CancellationToken::new();
    let (request, cancelled) = (ExecRequest { repo, step, sandbox }, cancel.clone());
    let work = async move {
        let ended = engine.exec(request, cancelled).await;
        let ExecOutput { step, stdout, stderr } = ended.map_err(|error| problem_error(engine.problem(&error)))?;
        Ok(CompletedExec { record: step.into_record(sandbox), stdout, stderr })
    };
    show_progress(work, (program(args), timeout_ms), (cancel, None), screen).await
}

fn program(args: &ExecArgs) -> &str {
    args.cmd.first().map_or("", String::as_str)
}

/// Prints the command's output and outcome, and returns the exit code.
fn print_result(ended: CompletedExec, args: &ExecArgs, screen: &mut Screen) -> Result<u8, CliError> {
    match args.format {
        OutputFormat::Human => {
            streams(&ended).into_iter().for_each(|(s, bytes, to)| print_stream(s, bytes, to, args.raw, screen));
        }
        OutputFormat::Json => screen.err(&excerpts(&ended.record.step)),
    }
    let record = ended.record;
    screen.err(&outcome_text(&record.step, &record.doubts));
    if args.format == OutputFormat::Json {
        screen.out_json(&record)?;
    }
    Ok(record.exit_code)
}

/// Renders excerpts of both streams for a human reader while a program reads the record.
fn excerpts(step: &StepEvidence) -> String {
    stream_block("stdout", &step.stdout, TextLayout::LOG) + &stream_block("stderr", &step.stderr, TextLayout::LOG)
}

/// Builds the request, which is the same for a daemon and for this process.
///
/// # Errors
/// The command is not valid.
pub(crate) fn submission(args: &ExecArgs, repo: &Path) -> Result<ExecSubmission, CliError> {
    let cmd = Argv::new(args.cmd.clone()).map_err(|bad| CliError::Usage {
        message: bad.to_string(),
        hint: "write the command after `--`, such as `proctor exec -- ls -l`".to_owned(),
    })?;
    Ok(ExecSubmission {
        // Only a daemon uses this field, and it takes paths as text.
        repo: repo.display().to_string(),
        cmd,
        workdir: args.workdir.clone(),
        timeout_ms: args.timeout_ms.and_then(NonZeroU64::new),
        grace_ms: args.grace_ms,
        network: args.network,
        read_only: args.read_only,
        leaks: args.leaks,
        set_env: args.env.iter().cloned().collect(),
        limits: args.limits.0,
        no_spec: args.no_spec,
        sandbox: args.sandbox.sandbox,
        env: None,
    })
}

/// Shows the progress of the running command. `timeout_ms` is known only if this process runs the command.
async fn show_progress(
    work: impl Future<Output = Result<CompletedExec, CliError>> + Send + 'static,
    (program, timeout_ms): (&str, Option<u64>),
    (cancel, held): (CancellationToken, Option<BlockedSignals>),
    screen: &mut Screen,
) -> Result<CompletedExec, CliError> {
    let mut interrupts = Interrupts::listen(cancel).map_err(|error| CliError::Internal(error.to_string()))?;
    // From this point on, `interrupts` receives the signals that arrived while they were blocked.
    drop(held);
    let mut progress = ProgressDisplay::for_screen(screen);
    let start = Instant::now();
    progress.begin(program, timeout_ms, Duration::ZERO);
    let mut heartbeat = tokio::time::interval_at(start + HEARTBEAT, HEARTBEAT);
    let mut task = tokio::spawn(work);
    let joined = loop {
        tokio::select! {
            joined = &mut task => break joined,
            effect = interrupts.next() => match effect {
                SignalEffect::Cancel(signal) => {
                    let line = format!("{signal}: ending the command; press Ctrl-C again to exit at once\n");
                    progress.print_above_rows(&line, |line| screen.err(line));
                }
                SignalEffect::Repeated => {}
                SignalEffect::ExitNow => {
                    progress.clear();
                    interrupt::exit_interrupted()
                }
            },
            _ = heartbeat.tick() => {
                if let Some(text) = progress.heartbeat(start.elapsed()) {
                    screen.err(&text);
                }
            }
        }
    };
    progress.clear();
    match joined {
        Ok(result) => result,
        Err(_) => Err(CliError::Internal("the engine stopped".to_owned())),
    }
}

/// The destination of a stream of the command.
#[derive(Clone, Copy)]
enum StreamDestination {
    Stdout,
    Stderr,
}

fn streams(ended: &CompletedExec) -> [(&StreamEvidence, &[u8], StreamDestination); 2] {
    let step = &ended.record.step;
    [
        (&step.stdout, ended.stdout.as_slice(), StreamDestination::Stdout),
        (&step.stderr, ended.stderr.as_slice(), StreamDestination::Stderr),
    ]
}

fn print_stream(stream: &StreamEvidence, bytes: &[u8], to: StreamDestination, raw: bool, screen: &mut Screen) {
    match (raw, to) {
        (true, StreamDestination::Stdout) => screen.out_raw(bytes),
        (true, StreamDestination::Stderr) => screen.err_raw(bytes),
        (false, StreamDestination::Stdout) => screen.out(&escape_text(&escape_output(bytes))),
        (false, StreamDestination::Stderr) => screen.err(&escape_text(&escape_output(bytes))),
    }
    if stream.kept_bytes < stream.bytes {
        let lost = size(stream.bytes - stream.kept_bytes);
        let note = "more of its output were hashed and not kept (`limits.output`, `--output`)";
        screen.err(&style::warning(&format!("{lost} {note}")));
    }
}

/// Renders the outcome of the command; empty if it passed without remarks.
fn outcome_text(step: &StepEvidence, doubts: &[InconclusiveDetail]) -> String {
    let mut text: String =
        doubts.iter().map(|InconclusiveDetail { doubt, message }| inconclusive_block(*doubt, message)).collect();
    if step.outcome != Outcome::Passed {
        let word = paint(style::outcome_style(step.outcome), outcome_label(step.outcome));
        text.push_str(&format!("{word}: {}\n", outcome_reason(step)));
        let hints = limit_hints(step).into_iter().chain(leak_hint(step));
        let hints: Vec<String> = hints.chain(failure_hints(step, &StreamTexts::default())).collect();
        text.push_str(&style::hint_lines(&hints));
    }
    if let Some(warning) = step.leak_warning() {
        text.push_str(&style::warning(&escape_line(&format!("the command {warning}"))));
    }
    if let Some(met) = limits_hit_phrase(step) {
        text.push_str(&style::warning(&format!("the command {met}")));
    }
    let missing = missing_controls([step]);
    if !missing.is_empty() {
        text.push_str(&style::warning(&format!("tier 2, not enforced: {} (see `proctor doctor`)", missing.join(", "))));
    }
    text + &drift_block(step, TextLayout::LOG)
}
