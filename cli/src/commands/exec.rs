//! `proctor exec`: one command, exactly as a step would run it. Its output goes where it would
//! have gone, or its record to standard output; what became of it goes to standard error.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use proctor_core::enforcement::SandboxMode;
use proctor_core::evidence::{StepEvidence, StreamEvidence, VERSION, escape_output};
use proctor_core::exec::{DoubtRecord, ExecRecord};
use proctor_core::names::StepName;
use proctor_core::outcome::Outcome;
use proctor_core::plan::{Argv, PlannedStep};
use proctor_core::spec::{self, Adhoc, LimitSettings, Operator, Spec};
use proctor_core::verdict::Doubt;
use proctor_runner::{Engine, ExecReport, ExecRequest};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::{ExecArgs, Format, LimitArgs};
use crate::caller::Caller;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::interrupt::{self, Asked, Interrupts};
use crate::progress::{HEARTBEAT, Progress};
use crate::report::{
    doubt_block, drift_block, leak_hint, limit_hint, limits_met, missing_controls, outcome_words, stream_block, why,
};
use crate::screen::{Room, Screen};
use crate::specfile::Specification;
use crate::style::{self, paint};
use crate::text::{shown, shown_line, size};

/// What the step is called that the command becomes.
const NAME: &str = "exec";

/// Runs the command. The exit code is that of a run with this one step.
///
/// # Errors
/// It could not be run at all, or the spec whose defaults it takes is wrong.
pub(crate) async fn exec(args: &ExecArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller)?;
    let operator = installation::operator(&args.operator, caller)?;
    let spec = if args.no_spec { None } else { spec_of(&repo, caller)? };
    let step = planned(args, spec.as_ref(), &operator)?;
    // What is given to the command by name may be as secret as what the caller has.
    let given = step.env.iter().map(|(name, value)| (name.as_str().to_owned(), value.clone()));
    let engine = engine::open(&args.state, operator, caller, screen)?.hiding(&given.collect());
    let report = follow(engine, ExecRequest { repo, step, sandbox: args.sandbox.sandbox }, screen).await?;
    match args.format {
        Format::Human => streams(&report).into_iter().for_each(|(s, bytes, to)| show(s, bytes, to, args.raw, screen)),
        Format::Json => screen.err(&excerpts(&report.evidence)),
    }
    screen.err(&remarks(&report.evidence, &report.doubts));
    let exit_code = report.exit_code;
    if args.format == Format::Json {
        screen.out_json(&record(report, args.sandbox.sandbox))?;
    }
    Ok(exit_code)
}

fn record(report: ExecReport, sandbox: SandboxMode) -> ExecRecord {
    let doubts = report.doubts.into_iter().map(|(doubt, message)| DoubtRecord { doubt, message });
    ExecRecord {
        version: VERSION,
        sandbox,
        step: report.evidence,
        verdict: report.verdict,
        exit_code: report.exit_code,
        tier: report.tier,
        tier_reasons: report.tier_reasons,
        doubts: doubts.collect(),
    }
}

/// The ends of both streams, for who watches while a program reads the record.
fn excerpts(step: &StepEvidence) -> String {
    stream_block("stdout", &step.stdout, Room::LOG) + &stream_block("stderr", &step.stderr, Room::LOG)
}

/// The spec of the repository; a command may run without one.
fn spec_of(repo: &Path, caller: &Caller) -> Result<Option<Spec>, CliError> {
    match repo.join(spec::PATH).symlink_metadata() {
        Ok(_) => Ok(Some(Specification::of_repository(repo, caller)?.spec)),
        Err(_) => Ok(None),
    }
}

fn planned(args: &ExecArgs, spec: Option<&Spec>, operator: &Operator) -> Result<PlannedStep, CliError> {
    let cmd = Argv::new(args.cmd.clone()).map_err(|bad| CliError::Usage {
        message: bad.to_string(),
        hint: "write the command behind `--`, such as `proctor exec -- ls -l`".to_owned(),
    })?;
    let adhoc = Adhoc {
        cmd,
        workdir: args.workdir.clone(),
        timeout_ms: args.timeout_ms,
        grace_ms: args.grace_ms,
        network: args.network,
        read_only: args.read_only,
        leaks: args.leaks,
        env_allowlist: None,
        env: args.env.iter().cloned().collect::<BTreeMap<_, _>>(),
        limits: limits(&args.limits),
    };
    let name = StepName::new(NAME).map_err(|bad| CliError::Internal(bad.to_string()))?;
    spec::adhoc_step(&adhoc, name, spec, operator).map_err(|diagnostics| {
        let refused: Vec<String> = diagnostics.iter().map(|diagnostic| diagnostic.message.clone()).collect();
        CliError::Usage {
            message: refused.join("; "),
            hint: "ask for less, or have the operator raise the ceiling in `proctord.toml`".to_owned(),
        }
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

async fn follow(engine: Engine, request: ExecRequest, screen: &mut Screen) -> Result<ExecReport, CliError> {
    let cancel = CancellationToken::new();
    let mut interrupts = Interrupts::listen(cancel.clone()).map_err(|error| CliError::Internal(error.to_string()))?;
    let mut progress = Progress::on(screen);
    let start = Instant::now();
    progress.begin(request.step.cmd.program(), request.step.timeout_ms, Duration::ZERO);
    let mut heartbeat = tokio::time::interval_at(start + HEARTBEAT, HEARTBEAT);
    let mut task = tokio::spawn(async move { engine.exec(request, cancel).await });
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
        Ok(result) => result.map_err(engine_error),
        Err(_) => Err(CliError::Internal("the engine stopped".to_owned())),
    }
}

/// Where a stream of the command goes.
#[derive(Clone, Copy)]
enum To {
    Stdout,
    Stderr,
}

fn streams(report: &ExecReport) -> [(&StreamEvidence, &[u8], To); 2] {
    let evidence = &report.evidence;
    [(&evidence.stdout, report.stdout.as_slice(), To::Stdout), (&evidence.stderr, report.stderr.as_slice(), To::Stderr)]
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

/// What became of the command; nothing where it passed and nothing is to be said.
fn remarks(step: &StepEvidence, doubts: &[(Doubt, String)]) -> String {
    let mut text: String = doubts.iter().map(|(doubt, message)| doubt_block(*doubt, message)).collect();
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
