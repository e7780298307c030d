//! Writes the patch of `--patch` to a file, atomically, or to standard output.

use std::path::Path;

use proctor_runner::Patch;

use crate::error::CliError;
use crate::screen::Screen;
use crate::target;

/// File name that means standard output.
const STDOUT: &str = "-";

/// Checks whether a patch goes to standard output.
pub(super) fn is_stdout(file: &Path) -> bool {
    file == Path::new(STDOUT)
}

/// Destination of a patch, which is checked before anything runs.
pub(super) enum Target {
    /// Standard output.
    Stdout,
    /// A file.
    File(target::Target),
}

impl Target {
    /// Checks the destination that the user named.
    ///
    /// # Errors
    /// Same as [`target::Target::find`].
    pub(super) fn find(file: &Path, cwd: &Path) -> Result<Self, CliError> {
        if is_stdout(file) {
            return Ok(Self::Stdout);
        }
        Ok(Self::File(target::Target::find("the patch", file, cwd)?))
    }

    /// Checks for standard output.
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Writes the patch.
    ///
    /// # Errors
    /// The run made no patch, or it cannot be written.
    pub(super) fn write(&self, patch: Option<&Patch>, screen: &mut Screen) -> Result<(), CliError> {
        let failed = |problem: String, hint: &str| CliError::Environment {
            message: format!("there is no patch: {problem}"),
            hint: hint.to_owned(),
        };
        let bytes = match patch {
            Some(Patch::Made(bytes)) => bytes,
            Some(Patch::Refused(problem)) => {
                return Err(failed(problem.clone(), "the evidence lists the changes"));
            }
            None => return Err(failed("the run made none".to_owned(), "the report says why")),
        };
        match self {
            Self::Stdout => screen.out_raw(bytes),
            Self::File(file) => file
                .put(bytes)
                .map_err(|error| failed(format!("`{}`: {error}", file.shown()), "fix this, or choose another file"))?,
        }
        Ok(())
    }
}
