//! Implements `proctor import`, which converts the hooks of another hook runner to a spec. The core converts the
//! hooks; this module reads and writes the files and reports the result.

mod hook_runner_config;
mod imported_spec_file;

use std::path::Path;

use proctor_core::adopt::import::{
    self, ImportError, ImportRequest, ImportResult, ImportedHook, MergeError, RepeatedSkill, Setting, SkippedHook, Tool,
};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_USAGE;
use proctor_core::spec::{self, Code};
use proctor_runner::Directory;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{ImportArgs, OutputFormat};
use crate::caller::Caller;
use crate::error::{CliError, relative_to};
use crate::installation;
use crate::screen::Screen;
use crate::style::{DIM, GOOD, STRONG, UNSURE, paint, warning_with_hints};
use crate::text::{count, escape_line};
use hook_runner_config::HookRunnerConfig;

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
    pub imported: ImportResult,
}

/// Reads the configuration, and writes the resulting spec or prints it.
///
/// # Errors
/// The configuration does not exist or cannot be read, the repository already has a spec, or the spec cannot be
/// written.
pub(crate) fn import(args: &ImportArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller)?;
    let directory = Directory::open(&repo).map_err(|error| imported_spec_file::store_error(&error))?;
    let config = HookRunnerConfig::find(args, &directory, caller)?;
    let file = relative_to(&config.path, &caller.cwd);
    let name = installation::show(&file);
    // The spec names the configuration relative to the repository, independent of the current directory.
    let below = config.path.strip_prefix(&repo).ok().or(config.path.file_name().map(Path::new));
    let source_name = below.map_or_else(|| name.clone(), installation::show);
    let request = ImportRequest { source: config.source, file: &source_name, profile: &args.profile };
    let mut imported =
        import::import(&config.bytes, &request).map_err(|error| command_error(error, &config, caller))?;
    let existing = if args.into { imported_spec_file::read(&directory)? } else { None };
    if let (Some(existing), Some(text)) = (&existing, &mut imported.spec) {
        let merged = import::merge(existing, text, &args.profile).map_err(|error| merge_error(&error))?;
        *text = merged.text;
        for RepeatedSkill { imported: name, skill, step } in merged.repeated {
            for hook in imported.imported.iter_mut().filter(|hook| hook.skill == name) {
                (hook.skill, hook.step) = (skill.clone(), step.clone());
                hook.notes.push("the spec makes this check already, so it is not added".to_owned());
            }
        }
    }
    let written = match &imported.spec {
        Some(text) if !args.dry_run => {
            imported_spec_file::write(&directory, text, args.force || existing.is_some())?;
            Some(spec::PATH.to_owned())
        }
        _ => None,
    };
    let missing = imported
        .tools
        .iter()
        .filter(|tool| !hook_runner_config::is_installed(tool, caller))
        .map(|tool| tool.name.clone());
    let mut missing: Vec<String> = missing.collect();
    missing.sort_unstable();
    missing.dedup();
    let record = ImportRecord { file: name, written, missing, imported };
    match args.format {
        OutputFormat::Json => screen.out_json(&record)?,
        OutputFormat::Human => print_result(&record, args, screen),
    }
    Ok(if record.imported.spec.is_some() { 0 } else { EXIT_USAGE })
}

/// Converts an import error to an error of the command.
fn command_error(error: ImportError, config: &HookRunnerConfig, caller: &Caller) -> CliError {
    match error {
        ImportError::InvalidConfig(diagnostics) => {
            let text = String::from_utf8_lossy(&config.bytes).into_owned();
            CliError::Invalid { file: config.path.clone(), text, diagnostics }.with_path_relative_to(&caller.cwd)
        }
        ImportError::InvalidSpec { diagnostics, .. } => {
            let large = |code: &Code| matches!(code, Code::TooLarge | Code::TooManyValues);
            let first = diagnostics.first();
            match first.filter(|first| large(&first.code)) {
                Some(first) => CliError::Usage {
                    message: format!("the hooks exceed the limits of a spec: {}", first.message),
                    hint: "split the configuration, and import its parts into separate specs".to_owned(),
                },
                None => CliError::Internal(format!(
                    "the import of a configuration resulted in an invalid spec: {}",
                    first.map_or("", |first| first.message.as_str())
                )),
            }
        }
    }
}

/// Converts an error of a merge to an error of the command.
fn merge_error(error: &MergeError) -> CliError {
    let hint = match error {
        MergeError::InvalidSpec(_) => "`proctor validate` lists its problems",
        MergeError::SkillExists(_) => "rename or remove that skill, and import again",
        MergeError::Layout(_) | MergeError::Different => {
            "rename the spec, import into a new one, and copy its toolchains and skills by hand"
        }
    };
    CliError::Usage {
        message: format!("the hooks cannot be added to `{}`: {error}", spec::PATH),
        hint: hint.to_owned(),
    }
}

/// Prints the human-readable result. If the spec is not written to a file, it goes to standard output and the rest to
/// standard error.
fn print_result(record: &ImportRecord, args: &ImportArgs, screen: &mut Screen) {
    let ImportResult { imported, skipped, settings, spec, .. } = &record.imported;
    let mut text = format!(
        "{}: {}, {} imported, {} not\n",
        paint(STRONG, escape_line(&record.file)),
        count(imported.len() + skipped.len(), "hook"),
        imported.len(),
        skipped.len()
    );
    text.extend(imported.iter().map(imported_lines));
    text.extend(skipped.iter().map(skipped_lines));
    text.extend(settings.iter().map(setting_lines));
    if let Some(path) = &record.written {
        let profile = escape_line(args.profile.as_str());
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
        let names = escape_line(&record.missing.join(", "));
        let hint = "install them; every run is inconclusive without them".to_owned();
        screen.err(&warning_with_hints(&format!("not on this machine: {names}"), &[hint]));
    }
    if spec.is_none() {
        let hint = "`proctor init` inspects the repository itself".to_owned();
        screen.err(&crate::style::error(
            CommandCode::NothingCarriedOver.code(),
            "no hook could be imported, so there is no spec",
            &[hint],
        ));
    }
}

fn imported_lines(hook: &ImportedHook) -> String {
    let mut text = format!("  {} {}\n", paint(GOOD, "✓"), step_label(hook));
    text.extend(hook.notes.iter().map(|note| format!("      {}\n", paint(DIM, escape_line(note)))));
    text
}

/// Formats `black → pre-commit.black`, with the step if its name differs.
fn step_label(hook: &ImportedHook) -> String {
    let name = escape_line(&hook.name);
    let alone = hook.skill.ends_with(&format!(".{}", hook.step));
    let step = if alone { String::new() } else { format!("/{}", hook.step) };
    format!("{name} {}", paint(DIM, format!("→ {}{step}", hook.skill)))
}

fn skipped_lines(hook: &SkippedHook) -> String {
    let line_note = paint(DIM, format!("(line {})", hook.line));
    format!("  {} {} {line_note}\n      {}\n", paint(UNSURE, "–"), escape_line(&hook.name), escape_line(&hook.reason))
}

fn setting_lines(setting: &Setting) -> String {
    let key = escape_line(&setting.key);
    format!("  {} {key} {}\n      {}\n", paint(DIM, "·"), paint(DIM, "(setting)"), escape_line(&setting.note))
}
