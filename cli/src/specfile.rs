//! Reads a spec for the commands that run nothing.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use proctor_core::digest::Sha256Hex;
use proctor_core::names::ProfileName;
use proctor_core::spec::{self, Operator, Reading, Resolved};

use crate::error::CliError;
use crate::installation::show;

/// A spec that can be used, with the text that it was read from.
pub(crate) struct SpecFile {
    /// The file, as messages name it.
    pub file: PathBuf,
    /// Its text.
    pub text: String,
    /// The sha256 of its bytes.
    pub sha256: Sha256Hex,
    /// What it says.
    pub reading: Reading,
}

/// Reads the spec of a repository.
///
/// # Errors
/// It is not there, cannot be read, or is wrong.
pub(crate) fn of_repository(repo: &Path) -> Result<SpecFile, CliError> {
    let bytes = bytes(&repo.join(spec::PATH)).map_err(|error| missing(repo, &error))?;
    read(PathBuf::from(spec::PATH), &bytes)
}

/// Reads a spec that stands anywhere.
///
/// # Errors
/// It is not there, cannot be read, or is wrong.
pub(crate) fn of_path(path: &Path) -> Result<SpecFile, CliError> {
    let bytes = bytes(path).map_err(|error| CliError::Usage {
        message: format!("`{}` cannot be read: {error}", show(path)),
        hint: "name a file that exists, or a repository with `--repo`".to_owned(),
    })?;
    read(path.to_owned(), &bytes)
}

fn read(file: PathBuf, bytes: &[u8]) -> Result<SpecFile, CliError> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    match spec::read(bytes) {
        Ok(reading) => Ok(SpecFile { file, text, sha256: Sha256Hex::of(bytes), reading }),
        Err(diagnostics) => Err(CliError::Invalid { file, text, diagnostics }),
    }
}

/// The bytes of a file, at most one more than a spec may have: the reader says the rest.
fn bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let most = u64::try_from(spec::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn missing(repo: &Path, error: &std::io::Error) -> CliError {
    let what = match error.kind() {
        std::io::ErrorKind::NotFound => "is not there".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    CliError::Usage {
        message: format!("`{}` {what}, in the repository `{}`", spec::PATH, show(repo)),
        hint: "a spec names the checks of a repository; its manual is `spec/README.md` of proctor, its schema `proctor schema spec`".to_owned(),
    }
}

/// Resolves a profile of a spec.
///
/// # Errors
/// There is no such profile, or the spec asks for more than the operator allows.
pub(crate) fn resolve(file: &SpecFile, profile: &ProfileName, operator: &Operator) -> Result<Resolved, CliError> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX));
    spec::resolve(&file.reading.spec, profile, operator, file.sha256.clone(), cpus).map_err(|diagnostics| {
        CliError::Invalid { file: file.file.clone(), text: file.text.clone(), diagnostics }
    })
}
