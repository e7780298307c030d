//! The one thread that starts processes. The kernel ends a helper when the *thread* that
//! started it ends (`PR_SET_PDEATHSIG`), so that thread must live as long as the daemon: it is
//! never one of an asynchronous runtime's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

use rustix::pipe::PipeFlags;

use crate::error::SandboxError;
use crate::host::Host;
use crate::policy::Policy;
use crate::running::Running;
use crate::setup::{self, setup_ops};
use crate::space::{Layer, Open, RunSpace, Sealed};
use crate::wait::Helper;
use crate::wire::{self, AttemptRequest, Request};

/// Starts helpers. When it is dropped, everything that it started ends.
#[derive(Debug)]
pub struct Launcher {
    host: Host,
    jobs: Sender<Job>,
}

/// The three descriptors that a helper starts with, and where its handle goes.
struct Job {
    stdin: OwnedFd,
    stdout: Stdio,
    stderr: Stdio,
    reply: SyncSender<io::Result<Child>>,
}

impl Launcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(host: Host) -> Result<Self, SandboxError> {
        let (jobs, inbox) = channel::<Job>();
        let helper = host.helper.clone();
        thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || {
                for job in inbox {
                    let spawned = helper_command(&helper)
                        .stdin(Stdio::from(job.stdin))
                        .stdout(job.stdout)
                        .stderr(job.stderr)
                        .spawn();
                    // A caller that no longer waits has dropped its end of the control socket:
                    // the helper sees that and ends by itself.
                    drop(job.reply.send(spawned));
                }
            })
            .map_err(|source| SandboxError::System { what: "cannot start the launcher's thread", source })?;
        Ok(Self { host, jobs })
    }

    /// The machine that it starts them on.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Starts one attempt: `upper` takes its writes, `lowers` (newest first) lie between it and
    /// the repository. Returns as soon as the helper has its request; the set-up goes on there.
    ///
    /// # Errors
    /// The helper cannot be started, or the policy cannot hold in this arrangement of paths.
    pub fn spawn(
        &self,
        space: &RunSpace,
        lowers: &[&Layer<Sealed>],
        upper: &Layer<Open>,
        policy: &Policy,
    ) -> Result<Running, SandboxError> {
        setup::check(policy, &self.host)?;
        let foreign = |layer_space: &RunSpace| !layer_space.is_same(space);
        if foreign(upper.space()) || lowers.iter().any(|layer| foreign(layer.space())) {
            return Err(SandboxError::Protocol("a layer of another run was given".to_owned()));
        }
        let request = Request::Attempt(Box::new(AttemptRequest {
            policy: policy.clone(),
            user: upper.user(),
            space: self.host.space_dir(),
            lowers: lowers.iter().map(|layer| layer.id()).collect(),
            upper: upper.id(),
            ops: setup_ops(policy, &self.host, upper.user()),
        }));
        let (stdout, their_stdout) = pipe()?;
        let (stderr, their_stderr) = pipe()?;
        let (helper, control) =
            self.start_helper(&request, &space.fds(), Stdio::from(their_stdout), Stdio::from(their_stderr))?;
        Running::new(helper, control, stdout, stderr)
    }

    /// Starts a helper and hands it its request. The socket that is returned blocks.
    pub(crate) fn start_helper(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        stdout: Stdio,
        stderr: Stdio,
    ) -> Result<(Helper, OwnedFd), SandboxError> {
        let system = |what| move |source| SandboxError::System { what, source };
        let (control, stdin) = wire::pair().map_err(system("cannot make the control socket"))?;
        let (reply, answer) = sync_channel(1);
        self.jobs.send(Job { stdin, stdout, stderr, reply }).map_err(|_| SandboxError::LauncherGone)?;
        let child = answer
            .recv()
            .map_err(|_| SandboxError::LauncherGone)?
            .map_err(|source| SandboxError::Helper { helper: self.host.helper.clone(), source })?;
        let mut helper = Helper::new(child).map_err(system("cannot watch the sandbox helper"))?;
        if let Err(source) = wire::send_request(control.as_fd(), request, fds) {
            // It waits for nothing else; what it says to that helps nobody.
            drop(helper.kill());
            drop(helper.end());
            return Err(SandboxError::System { what: "cannot send the helper its request", source });
        }
        Ok((helper, control))
    }
}

/// The helper, with nothing of our environment: what stands there at its start stays readable
/// in `/proc/1/environ` of the step.
#[expect(clippy::disallowed_methods, reason = "this is the sandbox launcher")]
fn helper_command(helper: &std::path::Path) -> Command {
    let mut command = Command::new(helper);
    command.env_clear();
    command
}

fn pipe() -> Result<(OwnedFd, OwnedFd), SandboxError> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(SandboxError::system("cannot make a pipe"))
}
