//! Implements `proctor sql audit`: shows, verifies and exports the audit trail.

use std::fmt::Write as _;

use proctor_ask::audit::{AuditTrail, StoredRecord};
use proctor_core::decision::verdict::EXIT_FAILED;
use serde_json::Value;

use super::ask::audit_directory;
use crate::args::{SqlAuditCommand, SqlAuditShowArgs, StateArgs};
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;
use crate::style::{BAD, DIM, GOOD, STRONG, paint};
use crate::text::{count, escape_line, escape_text};

/// Runs the subcommand.
///
/// # Errors
/// There is no audit trail, or it cannot be read.
pub(super) fn audit(command: &SqlAuditCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        SqlAuditCommand::Show(args) => show(args, caller, screen),
        SqlAuditCommand::Verify(args) => verify(&open(&args.state, caller)?, screen),
        SqlAuditCommand::Export(args) => export(&open(&args.state, caller)?, caller, screen),
    }
}

fn open(state: &StateArgs, caller: &Caller) -> Result<AuditTrail, CliError> {
    let directory = audit_directory(&installation::state_dir(state, caller)?);
    Ok(AuditTrail::open_existing(&directory)?)
}

fn show(args: &SqlAuditShowArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let trail = open(&args.state, caller)?;
    let Some(id) = &args.id else {
        for ask in trail.latest(args.last)? {
            let verdict = ask.verdict.as_deref().unwrap_or("no end");
            let question = ask.question.as_deref().unwrap_or("(removed)");
            screen.out(&format!("{}  {}  {:<8}  {}\n", ask.id, ask.at, escape_line(verdict), escape_line(question)));
        }
        return Ok(0);
    };
    let mut text = String::new();
    trail.for_each(Some(id), |stored| text += &render_record(stored))?;
    if text.is_empty() {
        return Err(CliError::Usage {
            message: format!("the audit trail has no question `{id}`"),
            hint: "`proctor sql audit show` lists the latest questions".to_owned(),
        });
    }
    screen.out(&text);
    Ok(0)
}

fn render_record(stored: &StoredRecord) -> String {
    let Some((kind, at, content)) = stored.parts() else {
        return format!("{} {}\n", paint(STRONG, stored.seq), paint(BAD, "damaged record"));
    };
    let kind = serde_json::to_value(kind).unwrap_or_default();
    let kind = kind.as_str().unwrap_or_default();
    let mut text = format!("{} {} {}\n", paint(STRONG, format!("{} {kind}", stored.seq)), at, paint(DIM, &stored.hash));
    for (key, value) in content.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        text += &render_member(key, value);
    }
    text
}

fn render_member(key: &str, value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::String(lines) if lines.contains('\n') => {
            let _ = writeln!(text, "  {key}:");
            for line in lines.trim_end().lines() {
                let _ = writeln!(text, "    {}", escape_text(line));
            }
        }
        Value::String(line) => {
            let _ = writeln!(text, "  {key}: {}", escape_line(line));
        }
        other => {
            let _ = writeln!(text, "  {key}: {}", escape_line(&other.to_string()));
        }
    }
    text
}

/// Verifies the trail. The exit code is 1 if it is damaged.
fn verify(trail: &AuditTrail, screen: &mut Screen) -> Result<u8, CliError> {
    let report = trail.verify()?;
    let mut text = String::new();
    for problem in &report.problems {
        let _ = writeln!(text, "{}: {problem}", paint(BAD, "damaged"));
    }
    for seq in &report.recovered {
        let _ = writeln!(text, "record {seq}: an append was interrupted before it");
    }
    let word = if report.is_intact() { paint(GOOD, "intact") } else { paint(BAD, "damaged") };
    let _ = write!(text, "{word}: {}", count(usize::try_from(report.records).unwrap_or(usize::MAX), "record"));
    if report.records > 0 {
        let _ = write!(text, " ({} to {}), last hash {}", report.first, report.last, report.hash);
    }
    if report.removed > 0 {
        let _ = write!(text, "; records up to {} were removed", report.removed);
    }
    screen.out(&(text + "\n"));
    Ok(if report.is_intact() { 0 } else { EXIT_FAILED })
}

/// Prints each record with its hash. Except on a terminal, the bytes are unchanged, so that a reader can check the
/// hashes.
fn export(trail: &AuditTrail, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let print = |stored: &StoredRecord| {
        let line = stored.to_export_line() + "\n";
        match caller.stdout_is_terminal {
            true => screen.out(&line),
            false => screen.out_raw(line.as_bytes()),
        }
    };
    trail.for_each(None, print)?;
    Ok(0)
}
