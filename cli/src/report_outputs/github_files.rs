//! Writes the files that GitHub Actions reads after a workflow step: its summary and its outputs.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::report::{ReportInput, render_summary, workflow_outputs};
use rustix::fs::{Mode, OFlags};

use crate::caller::Caller;
use crate::installation::show;

/// The files that the GitHub runner names in the environment.
pub(super) struct GithubFiles {
    summary: Option<PathBuf>,
    outputs: Option<PathBuf>,
}

impl GithubFiles {
    /// Reads the file names from the caller's environment.
    pub(super) fn from_env(caller: &Caller) -> Self {
        let named = |name: &str| caller.var(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self { summary: named("GITHUB_STEP_SUMMARY"), outputs: named("GITHUB_OUTPUT") }
    }

    /// Appends to the files. Returns a phrase for each file that could not be written.
    pub(super) fn write(&self, input: &ReportInput<'_>) -> Vec<String> {
        let text_of_outputs = |_| workflow_outputs(input).iter().map(|output| output.to_line(input.token)).collect();
        let summary =
            self.summary.as_deref().map(|path| (path, append_to_file(path, |taken| render_summary(input, taken))));
        let outputs = self.outputs.as_deref().map(|path| (path, append_to_file(path, text_of_outputs)));
        let failed = |(path, written): (&Path, io::Result<()>)| Some(format!("`{}`: {}", show(path), written.err()?));
        [summary, outputs].into_iter().flatten().filter_map(failed).collect()
    }
}

/// Appends to a file; `text` receives its current size. The file must be a regular file that the runner has created.
fn append_to_file(path: &Path, text: impl FnOnce(u64) -> String) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    file.write_all(text(found.size()).as_bytes())
}

/// Returns the path of the repository below the workflow's checkout; empty if it is the checkout itself or outside of
/// it.
pub(super) fn repo_path_in_workspace(repo: &Path, caller: &Caller) -> String {
    let workspace = caller.var("GITHUB_WORKSPACE").and_then(|path| Path::new(path).canonicalize().ok());
    let below = workspace.and_then(|workspace| repo.strip_prefix(workspace).ok().map(Path::to_owned));
    below.and_then(|below| below.to_str().map(str::to_owned)).unwrap_or_default()
}
