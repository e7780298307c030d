//! Becomes the command, or reports why it cannot be executed.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use proctor_core::model::outcome::StartFault;

use super::setup_failure::SetupFailure;
use crate::file_batches::{FileBatch, words_with_files};
use crate::policy;

/// The command as C strings for the kernel.
pub(super) struct ExecCommand {
    program: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
    path: Vec<u8>,
}

impl ExecCommand {
    /// Returns the command with each batch of files; one command if there are no batches.
    pub(super) fn for_policy(policy: &policy::CommandPolicy) -> Result<Vec<Self>, std::ffi::NulError> {
        match policy.files.is_empty() {
            true => Ok(vec![Self::new(policy, None)?]),
            false => policy.files.batches.iter().map(|batch| Self::new(policy, Some(batch))).collect(),
        }
    }

    fn new(policy: &policy::CommandPolicy, batch: Option<&FileBatch>) -> Result<Self, std::ffi::NulError> {
        let words = words_with_files(policy.argv.words(), batch);
        let argv = words.into_iter().map(CString::new).collect::<Result<_, _>>()?;
        let pairs = policy.env.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        let path = policy.env.get("PATH").map_or(DEFAULT_PATH, String::as_str).as_bytes().to_vec();
        Ok(Self { program: CString::new(policy.argv.program())?, argv, env: pairs.collect::<Result<_, _>>()?, path })
    }

    /// Becomes the command; returns only on failure. Tries the same paths as `execvp(3)`, in the same order.
    pub(super) fn execute(&self) -> SetupFailure {
        let name = self.program.to_bytes();
        if name.contains(&b'/') {
            let errno = self.exec_file(&self.program);
            return self.start_failure(errno, "");
        }
        let mut answer = Errno::ENOENT;
        for dir in self.path.split(|byte| *byte == b':') {
            let dir = if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) };
            let Ok(file) = CString::new(dir.join(OsStr::from_bytes(name)).as_os_str().as_bytes()) else { continue };
            match self.exec_file(&file) {
                Errno::ENOENT | Errno::ENOTDIR => {}
                // Another directory may contain an executable file of this name.
                Errno::EACCES => answer = Errno::EACCES,
                errno => return self.start_failure(errno, ""),
            }
        }
        self.start_failure(answer, &format!(" in PATH ({})", String::from_utf8_lossy(&self.path)))
    }

    fn exec_file(&self, file: &CString) -> Errno {
        match nix::unistd::execve(file, &self.argv, &self.env) {
            Err(errno) => errno,
            Ok(never) => match never {},
        }
    }

    fn start_failure(&self, errno: Errno, whereabouts: &str) -> SetupFailure {
        let program = self.program.to_string_lossy();
        let message = match errno {
            Errno::ENOENT if whereabouts.is_empty() => {
                format!("the program `{program}`, or its interpreter, does not exist")
            }
            Errno::ENOENT => format!("the program `{program}` is not{whereabouts}"),
            Errno::EACCES => format!("the program `{program}` may not be executed{whereabouts}"),
            Errno::ENOEXEC => format!("`{program}` is not a program: it has neither a known format nor a `#!` line"),
            errno => format!("the program `{program}` cannot be executed: {errno:?} ({})", errno.desc()),
        };
        let fault = match errno {
            Errno::ENOENT | Errno::EACCES | Errno::ENOEXEC | Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP => {
                StartFault::ProgramMissing
            }
            _ => StartFault::Internal,
        };
        SetupFailure::NotStarted { fault, message }
    }
}

/// The search path for programs if the policy's environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
