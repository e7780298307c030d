//! Prints the outputs of a run that no daemon knows, from the state directory, with the help of the run's documents.

use std::path::Path;

use proctor_core::api::StreamView;
use proctor_core::decision::compare::RunDocuments;
use proctor_core::model::names::RunId;
use proctor_core::record::evidence::{ResultOrigin, StepEvidence, StreamEvidence};
use proctor_runner::Engine;

use super::cached_note::cached_note;
use super::escaping::StreamEscaper;
use super::run_units::unknown_step_error;
use crate::args::LogsArgs;
use crate::caller::Caller;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::run_documents;
use crate::screen::Screen;
use crate::style::{self, DIM, paint};
use crate::text::{escape_line, size};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Prints the outputs of the run whose documents are in `dir`.
///
/// # Errors
/// The documents cannot be read, the step does not exist, or its output is no longer kept.
pub(super) async fn print_stored_logs(
    args: &LogsArgs,
    (run, dir): (&RunId, &Path),
    caller: &Caller,
    screen: &mut Screen,
) -> Result<u8, CliError> {
    let documents = run_documents::load(dir)?;
    let operator = installation::operator(&args.daemon.operator, caller)?;
    let engine = engine::open(&args.state, operator, caller, screen)?;
    let units = units(&documents);
    let Some(wanted) = &args.step else {
        for (name, step) in &units {
            screen.err(&cached_note(name, cached_from(step)));
            for (word, stream) in [("stdout", &step.stdout), ("stderr", &step.stderr)] {
                if stream.bytes > 0 {
                    let heading = format!("--- {} {word}, {}", escape_line(name), size(stream.bytes));
                    screen.out(&format!("{}\n", paint(DIM, heading)));
                    print_stream(&engine, (name, origin(step)), stream, args.raw, screen).await?;
                }
            }
        }
        return Ok(0);
    };
    let names: Vec<String> = units.iter().map(|(name, _)| name.clone()).collect();
    let found = units.iter().find(|(name, _)| name == wanted);
    let (name, step) = found.ok_or_else(|| unknown_step_error(run, wanted, &names))?;
    screen.err(&cached_note(name, cached_from(step)));
    let stream = if args.stderr { &step.stderr } else { &step.stdout };
    print_stream(&engine, (name, origin(step)), stream, args.raw, screen).await?;
    Ok(0)
}

/// Returns the other machine that executed a step.
fn origin(step: &StepEvidence) -> Option<&ResultOrigin> {
    step.reused.as_ref()?.origin.as_ref()
}

/// Returns the error for an output that is not in the state directory.
fn missing_output(name: &str, origin: Option<&ResultOrigin>) -> CliError {
    let name = escape_line(name);
    let (message, hint) = match origin {
        Some(origin) => (
            format!(
                "the output of `{name}` is on the machine `{}`, which executed the step",
                escape_line(&origin.host)
            ),
            "the evidence contains its beginning and end; `proctor run --no-cache` executes the step here",
        ),
        None => (
            format!("the output of `{name}` is no longer stored"),
            "the evidence contains its beginning and end; run the step again for all of it",
        ),
    };
    CliError::Environment { message, hint: hint.to_owned() }
}

fn cached_from(step: &StepEvidence) -> Option<&RunId> {
    step.reused.as_ref().map(|source| &source.run_id)
}

/// Returns all recorded checks and steps with their displayed names.
fn units(documents: &RunDocuments) -> Vec<(String, &StepEvidence)> {
    let checks = documents.toolchain.iter().flat_map(|toolchain| toolchain.checks.iter().enumerate());
    let checks = checks.map(|(n, check)| (format!("{}/{n}", check.toolchain), &check.step));
    let steps = documents
        .skills
        .iter()
        .flat_map(|skill| skill.steps.iter().map(move |step| (format!("{}/{}", skill.skill, step.planned.name), step)));
    checks.chain(steps).collect()
}

async fn print_stream(
    engine: &Engine,
    (name, origin): (&str, Option<&ResultOrigin>),
    stream: &StreamEvidence,
    raw: bool,
    screen: &mut Screen,
) -> Result<(), CliError> {
    let mut escaping = StreamEscaper::default();
    let mut offset = 0;
    loop {
        let part = engine.read_output(StreamView::from(stream), offset, CHUNK_BYTES).await.map_err(engine_error)?;
        let (part, length) = part.ok_or_else(|| missing_output(name, origin))?;
        offset += part.bytes.len() as u64;
        let is_last = part.bytes.is_empty() || offset >= length;
        match raw {
            true => screen.out_raw(&part.bytes),
            false => screen.out(&escaping.push(&part.bytes, is_last)),
        }
        if is_last || screen.is_output_closed() {
            break;
        }
    }
    if stream.kept_bytes < stream.bytes {
        let kept = format!("{} of {} are kept", size(stream.kept_bytes), size(stream.bytes));
        screen.err(&style::warning(&format!("{}: {kept}", escape_line(name))));
    }
    Ok(())
}
