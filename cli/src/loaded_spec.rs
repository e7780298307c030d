//! Reads and resolves specs for the commands that run no steps.

use std::path::Path;

use proctor_core::model::names::ProfileName;
use proctor_core::spec::{Diagnostic, OperatorConfig, ResolvedPlan, Spec};
use proctor_runner::SpecFile;

use crate::caller::Caller;
use crate::engine::engine_error;
use crate::error::CliError;

/// A valid spec and the file that it was read from.
pub(crate) struct LoadedSpec {
    /// The file.
    pub file: SpecFile,
    /// The parsed spec.
    pub spec: Spec,
    /// Warnings about parts that are valid but probably a mistake.
    pub warnings: Vec<Diagnostic>,
}

impl LoadedSpec {
    /// Reads the spec of a repository.
    ///
    /// # Errors
    /// The spec does not exist, cannot be read, or is wrong.
    pub(crate) fn from_repository(repo: &Path, caller: &Caller) -> Result<Self, CliError> {
        Self::parse(SpecFile::read_repository(repo).map_err(engine_error)?, caller)
    }

    /// Reads the spec at any path.
    ///
    /// # Errors
    /// The spec does not exist, cannot be read, or is wrong.
    pub(crate) fn from_path(path: &Path, caller: &Caller) -> Result<Self, CliError> {
        Self::parse(SpecFile::read_at(&caller.cwd.join(path)).map_err(engine_error)?, caller)
    }

    fn parse(file: SpecFile, caller: &Caller) -> Result<Self, CliError> {
        match file.parse() {
            Ok(reading) => Ok(Self { file, spec: reading.spec, warnings: reading.warnings }),
            Err(error) => Err(engine_error(error).with_path_relative_to(&caller.cwd)),
        }
    }

    /// Returns the text of the file.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.file.bytes).into_owned()
    }

    /// Resolves a profile of the spec.
    ///
    /// # Errors
    /// The profile does not exist, or asks for more than the operator allows.
    pub(crate) fn resolve(
        &self,
        profile: &ProfileName,
        operator: &OperatorConfig,
        caller: &Caller,
    ) -> Result<ResolvedPlan, CliError> {
        let resolved = self.file.resolve(&self.spec, profile, operator);
        resolved.map_err(|error| engine_error(error).with_path_relative_to(&caller.cwd))
    }
}
