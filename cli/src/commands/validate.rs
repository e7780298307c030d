//! Implements `proctor validate`, which reports all problems of a spec at once.

use std::path::{Path, PathBuf};

use proctor_core::decision::verdict::EXIT_USAGE;
use proctor_core::spec::Diagnostic;

use crate::args::{OutputFormat, ValidateArgs};
use crate::caller::Caller;
use crate::diagnostics::{self, FileDiagnostics};
use crate::error::{self, CliError};
use crate::installation;
use crate::loaded_spec::LoadedSpec;
use crate::screen::Screen;
use crate::style::{GOOD, paint};
use crate::text::{count, escape_line};

/// Reads the spec, and resolves each of its profiles under the operator's config.
///
/// # Errors
/// The spec does not exist or cannot be read.
pub(crate) fn validate(args: &ValidateArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let found = match validate_spec(args, caller) {
        Ok(found) => found,
        Err(CliError::Invalid { file, text, diagnostics }) => SpecValidation { file, text, diagnostics, summary: None },
        Err(error) => return Err(error),
    };
    let problems = FileDiagnostics { file: &found.file, source: &found.text, diagnostics: &found.diagnostics };
    match args.format {
        OutputFormat::Human => {
            screen.out(&(diagnostics::render(problems) + found.summary.as_deref().unwrap_or_default()));
        }
        OutputFormat::Json => screen.out_json(&diagnostics::records(problems))?,
    }
    Ok(if found.summary.is_some() { 0 } else { EXIT_USAGE })
}

/// The result of checking a spec.
struct SpecValidation {
    file: PathBuf,
    text: String,
    diagnostics: Vec<Diagnostic>,
    /// Summary of a valid spec; `None` if it is not valid.
    summary: Option<String>,
}

fn validate_spec(args: &ValidateArgs, caller: &Caller) -> Result<SpecValidation, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let spec = match &args.file {
        Some(path) => LoadedSpec::from_path(path, caller)?,
        None => LoadedSpec::from_repository(&installation::repository(&args.repo, caller)?, caller)?,
    };
    let mut diagnostics = spec.warnings.clone();
    let mut refused = false;
    for (profile, _) in spec.spec.profiles.iter() {
        if let Err(CliError::Invalid { diagnostics: more, .. }) = spec.resolve(&profile.value, &operator, caller) {
            refused = true;
            // Two profiles that include the same skill report the same diagnostics.
            let new: Vec<Diagnostic> = more.into_iter().filter(|one| !diagnostics.contains(one)).collect();
            diagnostics.extend(new);
        }
    }
    let file = error::relative_to(&spec.file.path, &caller.cwd);
    let praise = (!refused).then(|| summary(&spec, &file));
    Ok(SpecValidation { text: spec.text(), file, diagnostics, summary: praise })
}

fn summary(file: &LoadedSpec, path: &Path) -> String {
    let profiles: Vec<&str> = file.spec.profiles.keys().collect();
    let steps: usize = file.spec.skills.iter().map(|(_, skill)| skill.steps.value.len()).sum();
    format!(
        "{} {}: {} in {}, profiles {}\n",
        paint(GOOD, "valid"),
        installation::show(path),
        count(steps, "step"),
        count(file.spec.skills.keys().count(), "skill"),
        escape_line(&profiles.join(", "))
    )
}
