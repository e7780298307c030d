//! Implements `proctor exec`, which runs one command exactly as a step would run. The command's output goes to the
//! corresponding streams, or with `--format json` its record goes to standard output. The outcome goes to standard
//! error.

mod remote;

use std::path::{Path, PathBuf};
use std::time::Duration;

use proctor_core::api::ExecSubmission;
use proctor_core::evidence::{StepEvidence, StreamEvidence, escape_output};
use proctor_core::exec::{DoubtRecord, ExecRecord};
use proctor_core::outcome::Outcome;
use proctor_core::plan::Argv;
use proctor_core::spec::{LimitSettings, Operator};
use proctor_daemon::client::Client;
use proctor_runner::{ExecReport, ExecRequest, HeldSignals};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::app::{block_on, block_on_one_thread, start_log};
use crate::args::{ExecArgs, Format, LimitArgs};
use crate::caller::Caller;
use crate::daemon::{self, Daemon, Greeted, Wanted, client_error};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::interrupt::{self, Asked, Interrupts};
use crate::progress::{HEARTBEAT, Progress};
use crate::report::{
    doubt_block, drift_block, leak_hint, limit_hint, limits_met, missing_controls, outcome_words, stream_block, why,
};
use crate::screen::{Room, Screen};
use crate::style::{self, paint};
use crate::text::{shown, shown_line, size};

/// Time to wait for a daemon's command before starting a runtime, which takes longer than a short command. Signals
/// are blocked during this time.
const SHORT: Duration = Duration::from_millis(100);

/// The result of a command, from a daemon or from this process.
struct Ended {
    record: ExecRecord,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Runs the command. The exit code is that of a run with this one step.
///
/// # Errors
/// The command could not be run, or the spec that provides the defaults is wrong.
pub(crate) fn exec(args: &ExecArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller)?;
    let operator = installation::operator(&args.way.operator, caller)?;
    // Contact the daemon first, so that it responds while the request is built.
    let greeted = daemon::greet(Wanted { way: &args.way, operator: &operator, repo: &repo }, caller);
    let submission = submission(args, &repo)?;
    let asked = at_once(args, greeted, &submission, (caller, screen))?;
    let ended = asked.map_or_else(|| at_length(args, operator, (repo, &submission), caller, screen), Ok)?;
    tell(ended, args, screen)
}

/// Searches for a daemon with all checks and runs the command there, or else in this process.
fn at_length(
    args: &ExecArgs,
    operator: Operator,
    (repo, submission): (PathBuf, &ExecSubmission),
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Ended, CliError> {
    start_log(caller);
    match block_on_one_thread(by_daemon(args, &operator, (&repo, submission), caller, screen))? {
        Some(ended) => Ok(ended),
        None => block_on(here(args, operator, submission, repo, (caller, screen))),
    }
}

/// Runs the command in the daemon that [`daemon::greet`] contacted, without a runtime if the command is short.
/// Returns `None` if there is no such daemon; then no command was sent.
fn at_once(
    args: &ExecArgs,
    greeted: Option<Greeted>,
    submission: &ExecSubmission,
    (caller, screen): (&Caller, &mut Screen),
) -> Result<Option<Ended>, CliError> {
    let Some(link) = greeted.and_then(Greeted::link) else { return Ok(None) };
    engine::warn_of_unreadable(caller, screen);
    let client = Client::new(link.place().clone());
    let submission = ExecSubmission { env: Some(caller.env.clone()), ..submission.clone() };
    let held = proctor_runner::hold_signals().map_err(|error| CliError::Internal(error.to_string()))?;
    let mut execution = link.exec(&submission).map_err(client_error)?;
    let is_over = execution.wait(SHORT);
    let cancel = CancellationToken::new();
    let asking = async move { execution.head().await.map(|()| execution) };
    let work = remote::run(client, asking, cancel.clone());
    if is_over {
        return without_waiting(work)
            .unwrap_or_else(|| Err(CliError::Internal("the answer is not whole".to_owned())))
            .map(Some);
    }
    start_log(caller);
    block_on_one_thread(follow(work, (program(args), submission.timeout_ms), (cancel, Some(held)), screen)).map(Some)
}

/// Polls the future once. Returns `None` if it would have to wait.
fn without_waiting<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(work).poll(&mut context) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

/// Runs the command in a daemon; returns `None` if this process must do it.
async fn by_daemon(
    args: &ExecArgs,
    operator: &Operator,
    (repo, submission): (&Path, &ExecSubmission),
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<Ended>, CliError> {
    let wanted = Wanted { way: &args.way, operator, repo };
    let Some(Daemon { client, .. }) = daemon::who_does_it_with_env(wanted, caller, screen).await? else {
        return Ok(None);
    };
    let (repo, env) = (daemon::repo_text(repo)?, Some(caller.env.clone()));
    let submission = ExecSubmission { repo, env, ..submission.clone() };
    let (cancel, timeout_ms) = (CancellationToken::new(), submission.timeout_ms);
    let asked = client.clone();
    let asking = async move { asked.exec(&submission).await };
    let work = remote::run(client, asking, cancel.clone());
    follow(work, (program(args), timeout_ms), (cancel, None), screen).await.map(Some)
}

async fn here(
    args: &ExecArgs,
    operator: Operator,
    submission: &ExecSubmission,
    repo: PathBuf,
    (caller, screen): (&Caller, &mut Screen),
) -> Result<Ended, CliError> {
    let engine = engine::open(&args.way.state, operator, caller, screen)?;
    let planned = engine.adhoc_step(&repo, &submission.adhoc(), args.no_spec);
    let step = planned.map_err(|error| engine_error(error).with_paths_from(&caller.cwd))?;
    // Variables passed by name may be as secret as the caller's environment.
    let given = step.env.iter().map(|(name, value)| (name.as_str().to_owned(), value.clone()));
    let engine = engine.hiding(&given.collect());
    let (sandbox, timeout_ms) = (args.sandbox.sandbox, Some(step.timeout_ms));
    let cancel = CancellationToken::new();
    let (request, cancelled) = (ExecRequest { repo, step, sandbox }, cancel.clone());
    let work = async move {
        let ExecReport { step, stdout, stderr } = engine.exec(request, cancelled).await.map_err(engine_error)?;
        Ok(Ended { record: step.into_record(sandbox), stdout, stderr })
    };
    follow(work, (program(args), timeout_ms), (cancel, None), screen).await
}

fn program(args: &ExecArgs) -> &str {
    args.cmd.first().map_or("", String::as_str)
}

/// Prints the command's output and outcome, and returns the exit code.
fn tell(ended: Ended, args: &ExecArgs, screen: &mut Screen) -> Result<u8, CliError> {
    match args.format {
        Format::Human => streams(&ended).into_iter().for_each(|(s, bytes, to)| show(s, bytes, to, args.raw, screen)),
        Format::Json => screen.err(&excerpts(&ended.record.step)),
    }
    let record = ended.record;
    screen.err(&remarks(&record.step, &record.doubts));
    if args.format == Format::Json {
        screen.out_json(&record)?;
    }
    Ok(record.exit_code)
}

/// Renders excerpts of both streams for a human reader while a program reads the record.
fn excerpts(step: &StepEvidence) -> String {
    stream_block("stdout", &step.stdout, Room::LOG) + &stream_block("stderr", &step.stderr, Room::LOG)
}

/// Builds the request, which is the same for a daemon and for this process.
fn submission(args: &ExecArgs, repo: &Path) -> Result<ExecSubmission, CliError> {
    let cmd = Argv::new(args.cmd.clone()).map_err(|bad| CliError::Usage {
        message: bad.to_string(),
        hint: "write the command after `--`, such as `proctor exec -- ls -l`".to_owned(),
    })?;
    Ok(ExecSubmission {
        // Only a daemon uses this field, and it takes paths as text.
        repo: repo.display().to_string(),
        cmd,
        workdir: args.workdir.clone(),
        timeout_ms: args.timeout_ms,
        grace_ms: args.grace_ms,
        network: args.network,
        read_only: args.read_only,
        leaks: args.leaks,
        set_env: args.env.iter().cloned().collect(),
        limits: limits(&args.limits),
        no_spec: args.no_spec,
        sandbox: args.sandbox.sandbox,
        env: None,
    })
}

fn limits(args: &LimitArgs) -> LimitSettings {
    LimitSettings {
        memory: args.memory,
        pids: args.pids,
        disk: args.disk,
        output: args.output,
        cpu_seconds: args.cpu_seconds,
        open_files: args.open_files,
    }
}

/// Shows the progress of the running command. `timeout_ms` is known only if this process runs the command.
async fn follow(
    work: impl Future<Output = Result<Ended, CliError>> + Send + 'static,
    (program, timeout_ms): (&str, Option<u64>),
    (cancel, held): (CancellationToken, Option<HeldSignals>),
    screen: &mut Screen,
) -> Result<Ended, CliError> {
    let mut interrupts = Interrupts::listen(cancel).map_err(|error| CliError::Internal(error.to_string()))?;
    // From here on `interrupts` receives the signals that arrived while they were blocked.
    drop(held);
    let mut progress = Progress::on(screen);
    let start = Instant::now();
    progress.begin(program, timeout_ms, Duration::ZERO);
    let mut heartbeat = tokio::time::interval_at(start + HEARTBEAT, HEARTBEAT);
    let mut task = tokio::spawn(work);
    let joined = loop {
        tokio::select! {
            joined = &mut task => break joined,
            asked = interrupts.next() => match asked {
                Asked::ToEnd(signal) => {
                    let line = format!("{signal}: ending the command; press Ctrl-C again to leave at once\n");
                    progress.show(&line, |line| screen.err(line));
                }
                Asked::Again => {}
                Asked::ToLeave => {
                    progress.clear();
                    interrupt::leave()
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
enum To {
    Stdout,
    Stderr,
}

fn streams(ended: &Ended) -> [(&StreamEvidence, &[u8], To); 2] {
    let step = &ended.record.step;
    [(&step.stdout, ended.stdout.as_slice(), To::Stdout), (&step.stderr, ended.stderr.as_slice(), To::Stderr)]
}

fn show(stream: &StreamEvidence, bytes: &[u8], to: To, raw: bool, screen: &mut Screen) {
    match (raw, to) {
        (true, To::Stdout) => screen.out_raw(bytes),
        (true, To::Stderr) => screen.err_raw(bytes),
        (false, To::Stdout) => screen.out(&shown(&escape_output(bytes))),
        (false, To::Stderr) => screen.err(&shown(&escape_output(bytes))),
    }
    if stream.kept_bytes < stream.bytes {
        let lost = size(stream.bytes - stream.kept_bytes);
        let what = "more of its output were hashed and not kept (`limits.output`, `--output`)";
        screen.err(&style::warning(&format!("{lost} {what}")));
    }
}

/// Renders the outcome of the command; empty if it passed without remarks.
fn remarks(step: &StepEvidence, doubts: &[DoubtRecord]) -> String {
    let mut text: String = doubts.iter().map(|DoubtRecord { doubt, message }| doubt_block(*doubt, message)).collect();
    if step.outcome != Outcome::Passed {
        let word = paint(style::of_outcome(step.outcome), outcome_words(step.outcome));
        text.push_str(&format!("{word}: {}\n", why(step)));
        text.push_str(&limit_hint(step));
        text.push_str(&leak_hint(step));
    }
    if let Some(warning) = step.leak_warning() {
        text.push_str(&style::warning(&shown_line(&format!("the command {warning}"))));
    }
    if let Some(met) = limits_met(step) {
        text.push_str(&style::warning(&format!("the command {met}")));
    }
    text.push_str(&missing_controls([step]));
    text + &drift_block(step, Room::LOG)
}
