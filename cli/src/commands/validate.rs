//! Implements `proctor validate`, which reports all problems of a spec at once.

use std::path::{Path, PathBuf};

use proctor_core::spec::Diagnostic;
use proctor_core::verdict::EXIT_USAGE;

use crate::args::{Format, ValidateArgs};
use crate::caller::Caller;
use crate::diagnostics::{self, Problems};
use crate::error::{self, CliError};
use crate::installation;
use crate::screen::Screen;
use crate::specfile::Specification;
use crate::style::{GOOD, paint};
use crate::text::{count, shown_line};

/// Reads the spec, and resolves each of its profiles under the operator's config.
///
/// # Errors
/// The spec does not exist or cannot be read.
pub(crate) fn validate(args: &ValidateArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let found = match check(args, caller) {
        Ok(found) => found,
        Err(CliError::Invalid { file, text, diagnostics }) => Found { file, text, diagnostics, praise: None },
        Err(error) => return Err(error),
    };
    let problems = Problems { file: &found.file, source: &found.text, diagnostics: &found.diagnostics };
    match args.format {
        Format::Human => screen.out(&(diagnostics::render(problems) + found.praise.as_deref().unwrap_or_default())),
        Format::Json => screen.out_json(&diagnostics::records(problems))?,
    }
    Ok(if found.praise.is_some() { 0 } else { EXIT_USAGE })
}

/// The result of checking a spec.
struct Found {
    file: PathBuf,
    text: String,
    diagnostics: Vec<Diagnostic>,
    /// Summary of a valid spec; `None` if it is not valid.
    praise: Option<String>,
}

fn check(args: &ValidateArgs, caller: &Caller) -> Result<Found, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let spec = match &args.file {
        Some(path) => Specification::at(path, caller)?,
        None => Specification::of_repository(&installation::repository(&args.repo, caller)?, caller)?,
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
    let file = error::seen_from(&spec.file.path, &caller.cwd);
    let praise = (!refused).then(|| praise(&spec, &file));
    Ok(Found { text: spec.text(), file, diagnostics, praise })
}

fn praise(file: &Specification, path: &Path) -> String {
    let profiles: Vec<&str> = file.spec.profiles.names().collect();
    let steps: usize = file.spec.skills.iter().map(|(_, skill)| skill.steps.value.len()).sum();
    format!(
        "{} {}: {} in {}, profiles {}\n",
        paint(GOOD, "valid"),
        installation::show(path),
        count(steps, "step"),
        count(file.spec.skills.names().count(), "skill"),
        shown_line(&profiles.join(", "))
    )
}
