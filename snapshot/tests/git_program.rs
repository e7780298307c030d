//! Runs the `git` program without a sandbox, which is safe for the tests' own repositories.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use proctor_git::program::{ENVIRONMENT as GIT_ENVIRONMENT, GitOutput, GitProgram, GitProgramError, GitTask};
use proctor_git::repository_paths::RepositoryPaths;
use tempfile::TempDir;

/// Runs `git` as the current user, in the work tree itself.
#[derive(Debug)]
pub(crate) struct UnsandboxedGit;

impl GitProgram for UnsandboxedGit {
    fn run(&self, places: &RepositoryPaths, task: &GitTask) -> Result<GitOutput, GitProgramError> {
        let not_run = |error: std::io::Error| GitProgramError::NotRun(error.into());
        let room = TempDir::new().map_err(not_run)?;
        for (name, bytes) in &task.input {
            crate::repository::write_file(&room.path().join(name), bytes);
        }
        fs::create_dir(room.path().join("scratch")).map_err(not_run)?;
        #[expect(clippy::disallowed_methods, reason = "tests run git without a sandbox")]
        let mut command = Command::new("/bin/sh");
        command.args(["-c", task.script]).stdin(Stdio::null());
        command.current_dir(places.worktree.join(std::ffi::OsStr::from_bytes(&task.directory.0)));
        command.env_clear().envs(GIT_ENVIRONMENT.iter().copied());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/nonexistent");
        command.env("INPUT", room.path()).env("TMPDIR", room.path().join("scratch"));
        let output = command.output().map_err(not_run)?;
        Ok(GitOutput { success: output.status.success(), stdout: output.stdout, stderr: output.stderr })
    }
}
