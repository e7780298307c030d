//! Runs a command once for each batch of files, one after the other or several at once.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;

use super::exec_command::ExecCommand;
use super::setup_failure::{SetupFailure, internal};
use crate::file_batches::FileBatches;
use crate::sys::{self, ForkResult};

/// The exit code of a process that could not execute the command. Nothing reads it.
const EXEC_FAILED: i32 = 127;
/// Number added to a signal to get the exit code of a shell.
const SIGNAL_BASE: i32 = 128;

/// A batch that runs.
struct RunningBatch {
    pid: i32,
    index: usize,
}

/// The output of a batch, kept until the batches before it have ended.
struct BatchOutput {
    stdout: File,
    stderr: File,
}

/// The batches that ended, and the output that waits.
#[derive(Default)]
struct BatchResults {
    /// The highest of the exit codes with which a batch fails, if one failed.
    failure: Option<i32>,
    /// The highest of the exit codes with which a batch passes.
    success: i32,
    /// The signal that ended a batch, if there was one.
    signal: Option<i32>,
    /// The outputs by batch: those of ended batches, until they are written.
    ended: Vec<Option<BatchOutput>>,
    /// The number of batches whose output is written.
    written: usize,
}

/// Runs the commands, at most `parallel` of `files` at once, and ends this process like the batch that ended worst. A signal
/// is worse than an exit code, and an exit code with which a batch fails is worse than one with which it passes. Returns
/// only if a command cannot be executed.
pub(super) fn run(commands: &[ExecCommand], files: &FileBatches) -> SetupFailure {
    match run_all(commands, files) {
        Ok(results) => exit_like(&results),
        Err(failure) => failure,
    }
}

fn run_all(commands: &[ExecCommand], files: &FileBatches) -> Result<BatchResults, SetupFailure> {
    let parallel = usize::try_from(files.parallel.max(1)).unwrap_or(usize::MAX);
    let mut results = BatchResults::default();
    results.ended.resize_with(commands.len(), || None);
    let mut outputs: Vec<Option<BatchOutput>> = commands.iter().map(|_| None).collect();
    let mut running: Vec<RunningBatch> = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        while running.len() >= parallel {
            wait_for_one(&mut running, &mut outputs, &mut results, &files.passing_codes)?;
        }
        // A single process at a time writes directly to the streams of the step.
        let output = if parallel > 1 { Some(BatchOutput::create()?) } else { None };
        running.push(RunningBatch { pid: start(command, output.as_ref())?, index });
        outputs[index] = output;
    }
    while !running.is_empty() {
        wait_for_one(&mut running, &mut outputs, &mut results, &files.passing_codes)?;
    }
    Ok(results)
}

/// Starts a command in a child process and waits until it is executed.
fn start(command: &ExecCommand, output: Option<&BatchOutput>) -> Result<i32, SetupFailure> {
    let (reader, writer) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(internal("create a pipe for a batch of files"))?;
    match sys::fork().map_err(internal("start a batch of files"))? {
        ForkResult::Child => {
            drop(reader);
            become_command(command, output, writer)
        }
        ForkResult::Parent(pid) => {
            drop(writer);
            let mut message = Vec::new();
            // The pipe closes when the command is executed.
            File::from(reader).read_to_end(&mut message).map_err(internal("read the state of a batch of files"))?;
            if message.is_empty() { Ok(pid) } else { Err(SetupFailure::from_pipe_bytes(&message)) }
        }
    }
}

/// Becomes the command, or reports the failure through the pipe.
fn become_command(command: &ExecCommand, output: Option<&BatchOutput>, writer: OwnedFd) -> ! {
    let failure = match output.map_or(Ok(()), BatchOutput::install) {
        Ok(()) => command.execute(),
        Err(error) => internal("connect the streams of a batch of files")(error),
    };
    // If the parent process has ended, nothing reads the report.
    drop(File::from(writer).write_all(&failure.into_pipe_bytes()));
    std::process::exit(EXEC_FAILED)
}

/// Waits until a batch ends, and writes the output that no longer has to wait.
fn wait_for_one(
    running: &mut Vec<RunningBatch>,
    outputs: &mut [Option<BatchOutput>],
    results: &mut BatchResults,
    passing_codes: &[u8],
) -> Result<(), SetupFailure> {
    loop {
        let reaped = match sys::reap_any(0) {
            Ok(Some(reaped)) => reaped,
            Ok(None) => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(internal("wait for a batch of files")(error)),
        };
        // Other children of this process are not batches.
        let Some(at) = running.iter().position(|batch| batch.pid == reaped.pid) else { continue };
        let batch = running.swap_remove(at);
        results.add_status(reaped.status, passing_codes);
        results.ended[batch.index] = outputs[batch.index].take();
        if results.ended[batch.index].is_some() {
            results.write_ready(running).map_err(internal("write the output of a batch of files"))?;
        }
        return Ok(());
    }
}

impl BatchResults {
    fn add_status(&mut self, status: i32, passing_codes: &[u8]) {
        let code = libc::WEXITSTATUS(status);
        if libc::WIFSIGNALED(status) {
            self.signal.get_or_insert(libc::WTERMSIG(status));
        } else if u8::try_from(code).is_ok_and(|code| passing_codes.contains(&code)) {
            self.success = self.success.max(code);
        } else {
            self.failure = self.failure.max(Some(code));
        }
    }

    /// Writes the outputs of the batches that ended, in the order of the batches, up to the first one that runs.
    fn write_ready(&mut self, running: &[RunningBatch]) -> io::Result<()> {
        let until = running.iter().map(|batch| batch.index).min().unwrap_or(self.ended.len());
        for output in self.ended.iter_mut().take(until).skip(self.written) {
            if let Some(output) = output.take() {
                output.write()?;
            }
        }
        self.written = self.written.max(until);
        Ok(())
    }
}

impl BatchOutput {
    fn create() -> Result<Self, SetupFailure> {
        let file = || rustix::fs::memfd_create("batch-output", MemfdFlags::CLOEXEC).map(File::from);
        let create = || Ok::<_, rustix::io::Errno>(Self { stdout: file()?, stderr: file()? });
        create().map_err(internal("create the output of a batch of files"))
    }

    fn install(&self) -> io::Result<()> {
        rustix::stdio::dup2_stdout(self.stdout.as_fd())?;
        rustix::stdio::dup2_stderr(self.stderr.as_fd())?;
        Ok(())
    }

    fn write(mut self) -> io::Result<()> {
        for (kept, stream) in [(&mut self.stdout, rustix::stdio::stdout()), (&mut self.stderr, rustix::stdio::stderr())]
        {
            kept.rewind()?;
            let mut stream = File::from(stream.try_clone_to_owned()?);
            match io::copy(kept, &mut stream) {
                // The reader of the step's output has a limit.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                copied => drop(copied?),
            }
        }
        Ok(())
    }
}

/// Ends this process like the batch that ended worst.
fn exit_like(results: &BatchResults) -> ! {
    if let Some(signal) = results.signal {
        if let Ok(signal) = Signal::try_from(signal) {
            let _ = kill(Pid::this(), signal);
        }
        // A signal that this process ignores does not end it.
        std::process::exit(SIGNAL_BASE + signal)
    }
    std::process::exit(results.failure.unwrap_or(results.success))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_worse_than_a_higher_code_that_passes() {
        let worst = |codes: &[i32], passing: &[u8]| {
            let mut results = BatchResults::default();
            codes.iter().for_each(|code| results.add_status(code << 8, passing));
            results.failure.unwrap_or(results.success)
        };
        assert_eq!(worst(&[1, 5, 2], &[0, 5]), 2);
        assert_eq!(worst(&[5, 0], &[0, 5]), 5);
        assert_eq!(worst(&[0, 2], &[2]), 0, "a code that is not expected fails, also 0");
        assert_eq!(worst(&[3, 1], &[0]), 3);
    }
}
