//! `proctor validate`: everything that is wrong with a spec, all at once.

use proctor_core::verdict::EXIT_USAGE;

use crate::args::{Format, ValidateArgs};
use crate::caller::Caller;
use crate::diagnostics::{self, DiagnosticRecord, Problems};
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;
use crate::specfile::{self, SpecFile};
use crate::style::{GOOD, paint};
use crate::text::{count, shown_line};

/// Reads the spec, and resolves every profile of it under the operator's config.
///
/// # Errors
/// There is no spec to read.
pub(crate) fn validate(args: &ValidateArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match (check(args, caller), args.format) {
        (Ok(file), Format::Human) => screen.out(&praise(&file)),
        (Ok(file), Format::Json) => screen.out_json(&diagnostics::records(warnings(&file)))?,
        (Err(CliError::Invalid { file, text, diagnostics }), format) => {
            let problems = Problems { file: &file, source: &text, diagnostics: &diagnostics };
            match format {
                Format::Human => screen.out(&diagnostics::render(problems)),
                Format::Json => screen.out_json::<Vec<DiagnosticRecord>>(&diagnostics::records(problems))?,
            }
            return Ok(EXIT_USAGE);
        }
        (Err(error), _) => return Err(error),
    }
    Ok(0)
}

fn check(args: &ValidateArgs, caller: &Caller) -> Result<SpecFile, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let file = match &args.file {
        Some(path) => specfile::of_path(&caller.cwd.join(path)).map_err(|error| renamed(error, path))?,
        None => specfile::of_repository(&installation::repository(&args.repo, caller)?)?,
    };
    let mut found = file.reading.warnings.clone();
    let mut refused = false;
    for (profile, _) in file.reading.spec.profiles.iter() {
        if let Err(CliError::Invalid { diagnostics, .. }) = specfile::resolve(&file, &profile.value, &operator) {
            refused = true;
            let new = diagnostics.into_iter().filter(|diagnostic| !found.contains(diagnostic));
            found.extend(new.collect::<Vec<_>>());
        }
    }
    if refused {
        return Err(CliError::Invalid { file: file.file, text: file.text, diagnostics: found });
    }
    Ok(file)
}

/// Messages name the file as the caller did.
fn renamed(error: CliError, path: &std::path::Path) -> CliError {
    match error {
        CliError::Invalid { text, diagnostics, .. } => CliError::Invalid { file: path.to_owned(), text, diagnostics },
        other => other,
    }
}

fn warnings(file: &SpecFile) -> Problems<'_> {
    Problems { file: &file.file, source: &file.text, diagnostics: &file.reading.warnings }
}

fn praise(file: &SpecFile) -> String {
    let spec = &file.reading.spec;
    let profiles: Vec<&str> = spec.profiles.names().collect();
    let steps: usize = spec.skills.iter().map(|(_, skill)| skill.steps.value.len()).sum();
    let skills = spec.skills.names().count();
    let said = format!(
        "{} {}: {} in {}, profiles {}\n",
        paint(GOOD, "valid"),
        installation::show(&file.file),
        count(steps, "step"),
        count(skills, "skill"),
        shown_line(&profiles.join(", "))
    );
    diagnostics::render(warnings(file)) + &said
}
