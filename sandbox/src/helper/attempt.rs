//! One attempt as the helper sees it: set-up, PID 1, and then waiting: for PID 1 to end, or for
//! the daemon to be gone. The helper ends last.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use proctor_core::enforcement::Enforcement;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::command;
use super::failure::{Failure, internal};
use super::init;
use super::outer::Outer;
use crate::running::WaitStatus;
use crate::setup::{SetupOp, Stage};
use crate::sys::{self, Fork};
use crate::wire::{self, AttemptRequest, Message};

/// What the stages after the helper's own need to know.
pub(super) struct Prepared<'a> {
    pub(super) request: &'a AttemptRequest,
    /// What holds so far.
    pub(super) enforcement: Enforcement,
    /// The size of the tmpfs that all layers of the run share, in bytes.
    pub(super) layers_bytes: u64,
    /// To the helper. Closed on exec.
    pub(super) channel: OwnedFd,
}

impl Prepared<'_> {
    pub(super) fn ops(&self, stage: Stage) -> impl Iterator<Item = &SetupOp> {
        self.request.ops.iter().filter(move |op| op.stage() == stage)
    }

    /// Says the last word of this attempt.
    pub(super) fn fail(&self, failure: Failure) -> ! {
        // If the helper is gone, so is everybody who could be told.
        drop(wire::send(self.channel.as_fd(), &failure.into_message(), &[]));
        std::process::exit(1)
    }
}

/// Lets PID 1 go on.
pub(super) const GO: &[u8] = b"go";

pub(super) fn serve(control: &mut OwnedFd, request: &AttemptRequest, fds: Vec<OwnedFd>) -> Result<(), Failure> {
    let mut outer = Outer::new(request, fds)?;
    for op in request.ops.iter().filter(|op| op.stage() == Stage::Outer) {
        outer.apply(op)?;
    }
    let (enforcement, layers_bytes) = outer.finish();

    if request.user.steps_down() {
        command::own_streams(request.user).map_err(internal("give the step its streams"))?;
    }
    init::block_signals().map_err(internal("block signals"))?;
    let (ours, channel) = wire::pair().map_err(internal("make a socket pair"))?;
    match sys::fork().map_err(internal("start PID 1"))? {
        Fork::Child => {
            drop(ours);
            init::run(Prepared { request, enforcement, layers_bytes, channel }, control)
        }
        Fork::Parent(pid) => {
            drop(channel);
            supervise(control.as_fd(), ours, pid).map_err(internal("watch over PID 1"))
        }
    }
}

fn supervise(control: BorrowedFd<'_>, channel: OwnedFd, pid: i32) -> io::Result<()> {
    // The namespaces that we joined may have cleared it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // The step's streams belong to it and to the daemon: our copies would keep them open.
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // First the pidfd, then a look whether the daemon is still there, then the word to go on:
    // `Running::kill` relies on this order.
    wire::send(control, &Message::Init, &[pidfd.as_fd()])?;
    let mut words = Words { channel: Some(channel), exited: None, spoken: false };
    if is_alone(control)? {
        end(&pidfd);
    } else if let Some(channel) = &words.channel {
        // PID 1 may have died already; its end is seen below.
        drop(wire::forward(channel.as_fd(), GO));
    }
    wait(control, &pidfd, &mut words)?;
    let status = reap(pid)?;
    words.hear_all(control)?;
    if let Some(message) = words.last(status)? {
        // The daemon may be gone; then nobody needs the answer.
        drop(wire::send(control, &message, &[]));
    }
    Ok(())
}

/// What PID 1 and the command's process have said.
struct Words {
    channel: Option<OwnedFd>,
    exited: Option<WaitStatus>,
    /// Whether a last word was passed on already.
    spoken: bool,
}

impl Words {
    /// Passes one message on; `Exited` is kept back until everything is gone.
    fn hear(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let Some((bytes, _)) = wire::recv_packet(channel.as_fd())? else {
            self.channel = None;
            return Ok(());
        };
        match serde_json::from_slice(&bytes)? {
            Message::Exited { status, .. } => {
                self.exited = Some(status);
                return Ok(());
            }
            Message::Refused { .. } | Message::NotStarted { .. } => self.spoken = true,
            Message::Ready(_) | Message::Init | Message::Space => {}
        }
        // The daemon may be gone: the poll sees it.
        drop(wire::forward(control, &bytes));
        Ok(())
    }

    fn hear_all(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        while self.channel.is_some() {
            self.hear(control)?;
        }
        Ok(())
    }

    /// What is left to be said once PID 1 has ended so.
    fn last(&self, init: WaitStatus) -> io::Result<Option<Message>> {
        let status = match (self.exited, self.spoken, init) {
            // PID 1 reports the end of a process that never became the command.
            (_, true, _) => return Ok(None),
            (Some(status), ..) => status,
            // Killed, by the daemon or by the kernel for want of memory: the command with it.
            (None, false, WaitStatus::Signal(_)) => init,
            (None, false, WaitStatus::Code(code)) => {
                let failure = Failure::internal(format_args!("PID 1 of the step ended with {code} and without a word"));
                return Ok(Some(failure.into_message()));
            }
        };
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok(Some(Message::Exited {
            status,
            user_ms: usage.user_time().num_milliseconds().unsigned_abs(),
            system_ms: usage.system_time().num_milliseconds().unsigned_abs(),
            max_rss_kib: usage.max_rss().unsigned_abs(),
        }))
    }
}

/// Waits until PID 1 has ended. The daemon's end of the control socket closes when the daemon
/// dies, or when it wants the end: then PID 1 is killed.
fn wait(control: BorrowedFd<'_>, init: &OwnedFd, words: &mut Words) -> io::Result<()> {
    let mut alone = false;
    loop {
        let mut fds = vec![PollFd::new(init, PollFlags::IN)];
        fds.extend(words.channel.as_ref().map(|channel| PollFd::new(channel, PollFlags::IN)));
        if !alone {
            fds.push(PollFd::from_borrowed_fd(control, PollFlags::IN | PollFlags::RDHUP));
        }
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        let init_ended = !fds[0].revents().is_empty();
        let said = words.channel.is_some() && !fds[1].revents().is_empty();
        if said {
            words.hear(control)?;
        }
        if init_ended {
            return Ok(());
        }
        if !alone && is_alone(control)? {
            alone = true;
            end(init);
        }
    }
}

/// Whether the daemon has closed its side. It never sends a second packet.
fn is_alone(control: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(control, PollFlags::IN | PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)))? > 0)
}

fn end(init: &OwnedFd) {
    // It may have ended by itself.
    let _ = rustix::process::pidfd_send_signal(init, Signal::KILL);
}

fn reap(pid: Pid) -> io::Result<WaitStatus> {
    let waited = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()))?;
    let (_, status) = waited.ok_or_else(|| io::Error::other("PID 1 cannot be waited for"))?;
    Ok(init::wait_status(status))
}
