//! Writes the patch of `--patch` to a file, atomically, or to standard output.

use std::path::Path;

use proctor_runner::PatchResult;

use crate::destination_file;
use crate::error::CliError;
use crate::screen::Screen;

/// File name that means standard output.
const STDOUT: &str = "-";

/// Checks whether a patch goes to standard output.
pub(super) fn is_stdout(file: &Path) -> bool {
    file == Path::new(STDOUT)
}

/// Destination of a patch, which is checked before anything runs.
pub(super) enum PatchDestination {
    /// Standard output.
    Stdout,
    /// A file.
    File(destination_file::DestinationFile),
}

impl PatchDestination {
    /// Checks the destination that the user named.
    ///
    /// # Errors
    /// Same as [`DestinationFile::prepare`](crate::destination_file::DestinationFile::prepare).
    pub(super) fn prepare(file: &Path, cwd: &Path) -> Result<Self, CliError> {
        if is_stdout(file) {
            return Ok(Self::Stdout);
        }
        Ok(Self::File(destination_file::DestinationFile::prepare("the patch", file, cwd)?))
    }

    /// Checks for standard output.
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Writes the patch.
    ///
    /// # Errors
    /// The run made no patch, or it cannot be written.
    pub(super) fn write(&self, patch: Option<&PatchResult>, screen: &mut Screen) -> Result<(), CliError> {
        let failed = |problem: String, hint: &str| CliError::Environment {
            message: format!("there is no patch: {problem}"),
            hint: hint.to_owned(),
        };
        let bytes = match patch {
            Some(PatchResult::Written(bytes)) => bytes,
            Some(PatchResult::Refused(problem)) => {
                return Err(failed(problem.clone(), "the evidence lists the changes"));
            }
            None => return Err(failed("the run made none".to_owned(), "the report states the reason")),
        };
        match self {
            Self::Stdout => screen.out_raw(bytes),
            Self::File(file) => file.write_atomically(bytes).map_err(|error| {
                failed(format!("`{}`: {error}", file.display_path()), "fix this, or choose another file")
            })?,
        }
        Ok(())
    }
}
