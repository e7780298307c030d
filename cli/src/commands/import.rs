//! Implements `proctor import`, which converts the hooks of another hook runner to a spec. The core converts the
//! hooks; this module reads and writes the files and reports the result.

mod config;
mod place;

use std::path::Path;

use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::import::{self, Carried, ImportError, ImportRequest, Imported, Left, Setting, Tool};
use proctor_core::spec::{self, Code};
use proctor_core::verdict::EXIT_USAGE;
use proctor_runner::Directory;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{Format, ImportArgs};
use crate::caller::Caller;
use crate::error::{CliError, seen_from};
use crate::installation;
use crate::screen::Screen;
use crate::style::{DIM, GOOD, STRONG, UNSURE, paint, warning_with};
use crate::text::{count, shown_line};
use config::Config;

/// The output of `proctor import --format json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ImportRecord {
    /// The path of the configuration, relative to the current directory.
    pub file: String,
    /// The path of the written spec, relative to the repository; `null` if it was not written.
    pub written: Option<String>,
    /// The tools that the spec needs and that are missing from the caller's `PATH`.
    pub missing: Vec<String>,
    /// The result for each hook, and the spec.
    #[serde(flatten)]
    pub imported: Imported,
}

/// Reads the configuration, and writes the resulting spec or prints it.
///
/// # Errors
/// The configuration does not exist or cannot be read, the repository already has a spec, or the spec cannot be
/// written.
pub(crate) fn import(args: &ImportArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller)?;
    let directory = Directory::open(&repo).map_err(|error| place::refused(&error))?;
    let config = Config::find(args, &directory, caller)?;
    let file = seen_from(&config.path, &caller.cwd);
    let name = installation::show(&file);
    // The spec names the configuration relative to the repository, independent of the current directory.
    let below = config.path.strip_prefix(&repo).ok().or(config.path.file_name().map(Path::new));
    let called = below.map_or_else(|| name.clone(), installation::show);
    let request = ImportRequest { source: config.source, file: &called, profile: &args.profile };
    let imported = import::import(&config.bytes, &request).map_err(|error| problem(error, &config, caller))?;
    let written = match &imported.spec {
        Some(text) if !args.dry_run => {
            place::write(&directory, text, args.force)?;
            Some(spec::PATH.to_owned())
        }
        _ => None,
    };
    let missing = imported.tools.iter().filter(|tool| !config::is_there(tool, caller)).map(|tool| tool.name.clone());
    let mut missing: Vec<String> = missing.collect();
    missing.sort_unstable();
    missing.dedup();
    let record = ImportRecord { file: name, written, missing, imported };
    match args.format {
        Format::Json => screen.out_json(&record)?,
        Format::Human => tell(&record, args, screen),
    }
    Ok(if record.imported.spec.is_some() { 0 } else { EXIT_USAGE })
}

/// Converts an import error to an error of the command.
fn problem(error: ImportError, config: &Config, caller: &Caller) -> CliError {
    match error {
        ImportError::Invalid(diagnostics) => {
            let text = String::from_utf8_lossy(&config.bytes).into_owned();
            CliError::Invalid { file: config.path.clone(), text, diagnostics }.with_paths_from(&caller.cwd)
        }
        ImportError::Unusable { diagnostics, .. } => {
            let large = |code: &Code| matches!(code, Code::TooLarge | Code::TooManyValues);
            let first = diagnostics.first();
            match first.filter(|first| large(&first.code)) {
                Some(first) => CliError::Usage {
                    message: format!("the hooks exceed the limits of a spec: {}", first.message),
                    hint: "split the configuration, and import its parts into separate specs".to_owned(),
                },
                None => CliError::Internal(format!(
                    "a configuration was made into a spec that is not valid: {}",
                    first.map_or("", |first| first.message.as_str())
                )),
            }
        }
    }
}

/// Prints the human-readable result. If the spec is not written to a file, it goes to standard output and the rest to
/// standard error.
fn tell(record: &ImportRecord, args: &ImportArgs, screen: &mut Screen) {
    let Imported { carried, left, settings, spec, .. } = &record.imported;
    let mut text = format!(
        "{}: {}, {} carried over, {} not\n",
        paint(STRONG, shown_line(&record.file)),
        count(carried.len() + left.len(), "hook"),
        carried.len(),
        left.len()
    );
    text.extend(carried.iter().map(carried_lines));
    text.extend(left.iter().map(left_lines));
    text.extend(settings.iter().map(setting_lines));
    if let Some(path) = &record.written {
        let profile = shown_line(args.profile.as_str());
        text.push_str(&format!("{} {}\n", paint(GOOD, "wrote"), paint(STRONG, path)));
        text.push_str(&format!("next: proctor validate, then proctor run --profile {profile}\n"));
    }
    match (args.dry_run, spec) {
        (true, Some(spec)) => {
            screen.err(&text);
            screen.out(spec);
        }
        _ => screen.out(&text),
    }
    if !record.missing.is_empty() {
        let names = shown_line(&record.missing.join(", "));
        let hint = "install them; every run is inconclusive without them".to_owned();
        screen.err(&warning_with(&format!("not on this machine: {names}"), &[hint]));
    }
    if spec.is_none() {
        let hint = "`proctor init` inspects the repository itself".to_owned();
        screen.err(&crate::style::error(
            CommandCode::NothingCarriedOver.code(),
            "no hook could be carried over, so there is no spec",
            &[hint],
        ));
    }
}

fn carried_lines(carried: &Carried) -> String {
    let mut text = format!("  {} {}\n", paint(GOOD, "✓"), step_of(carried));
    text.extend(carried.notes.iter().map(|note| format!("      {}\n", paint(DIM, shown_line(note)))));
    text
}

/// Formats `black → pre-commit.black`, with the step if it has another name.
fn step_of(carried: &Carried) -> String {
    let name = shown_line(&carried.name);
    let alone = carried.skill.ends_with(&format!(".{}", carried.step));
    let step = if alone { String::new() } else { format!("/{}", carried.step) };
    format!("{name} {}", paint(DIM, format!("→ {}{step}", carried.skill)))
}

fn left_lines(left: &Left) -> String {
    let place = paint(DIM, format!("(line {})", left.line));
    format!("  {} {} {place}\n      {}\n", paint(UNSURE, "–"), shown_line(&left.name), shown_line(&left.reason))
}

fn setting_lines(setting: &Setting) -> String {
    let key = shown_line(&setting.key);
    format!("  {} {key} {}\n      {}\n", paint(DIM, "·"), paint(DIM, "(setting)"), shown_line(&setting.note))
}
