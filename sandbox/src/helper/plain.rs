//! Runs one sandbox without namespaces in the helper, on a kernel that refuses them: a copy of the tree replaces the
//! overlay, Landlock replaces mounts, and two supervisors replace the PID namespace.
//!
//! The helper and the first process of the step both adopt orphaned processes, and watch each other: when one ends,
//! the other kills every process of the step. So neither of them may die with its parent as PID 1 of a namespace
//! does. The control socket shows whether the daemon has ended.

mod command;
mod init;
mod limits;
mod place;
mod wall;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::plan::Network;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags};

use self::place::Place;
use super::attempt::{self, GO, Prepared, Words};
use super::failure::{Failure, internal};
use super::{command as shared, init as pid_one, kin};
use crate::sys::Fork;
use crate::wire::{self, Go, Message, PlainRequest, Tree};

pub(super) fn serve(control: &mut OwnedFd, request: &PlainRequest, fds: &[OwnedFd]) -> Result<(), Failure> {
    take_charge().map_err(internal("become the one that ends the step"))?;
    let user = request.sandbox.user;
    if user.steps_down() {
        shared::own_streams(user).map_err(internal("give the step its streams"))?;
        rustix::thread::set_thread_groups(&[]).map_err(internal("leave the groups of root"))?;
    }
    pid_one::block_signals().map_err(internal("block signals"))?;
    let (ours, channel) = wire::pair().map_err(internal("make a socket pair"))?;
    let (forked, unborn) = attempt::fork(&request.sandbox.entry, fds).map_err(internal("start the first process"))?;
    match forked {
        Fork::Child => {
            drop(ours);
            let tasks = fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>();
            let tasks = tasks.map_err(internal("take the control group"))?;
            let (sandbox, enforcement) = (&request.sandbox, Enforcement::default());
            let null = attempt::open_null().map_err(internal("open /dev/null"))?;
            // Without namespaces, the first process itself receives the command.
            let orders = channel.try_clone().map_err(internal("double a descriptor"))?;
            let prepared = Prepared {
                request: sandbox,
                enforcement,
                tasks,
                memory: Rc::default(),
                unborn,
                null,
                wall: None,
                orders,
                channel,
                daemon: None,
            };
            init::run(prepared, request, control)
        }
        Fork::Parent(pid) => {
            drop(channel);
            supervise(control.as_fd(), ours, pid, request).map_err(internal("watch over the step"))
        }
    }
}

/// Prepares this process as a supervisor. The step runs as the same user: it must not read the supervisor's memory,
/// and none of its processes may escape adoption.
fn take_charge() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(None)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    kin::adopt()
}

fn supervise(control: BorrowedFd<'_>, channel: OwnedFd, pid: i32, request: &PlainRequest) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
    let first = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // The order matters to `Running::kill`.
    wire::send(control, &Message::Init, &[first.as_fd()])?;
    let mut words = Words { channel: Some(channel), exited: None, spoken: false, sealing: true };
    if attempt::is_alone(control)? {
        attempt::end(&first);
    } else if let Some(channel) = &words.channel {
        // It may have died already, which is noticed below.
        drop(wire::forward(channel.as_fd(), GO));
    }
    let waited = wait(control, &first, &mut words, request);
    let status = attempt::reap(pid);
    if kin::end_all().is_err() {
        // Exits without a final report, which would claim that all processes have ended.
        std::process::exit(1);
    }
    let (place, status) = (waited?, status?);
    words.hear_all(control)?;
    if let Some(message) = words.last(status)? {
        // If the daemon has ended, the answer is not needed.
        let message = match place {
            Some(place) => place.concluded(message),
            None => message,
        };
        drop(wire::send(control, &message, &[]));
    }
    Ok(())
}

/// Waits until the first process has ended, and serves the command when it arrives.
fn wait(
    control: BorrowedFd<'_>,
    first: &OwnedFd,
    words: &mut Words,
    request: &PlainRequest,
) -> io::Result<Option<Place>> {
    let (mut alone, mut claimed, mut place) = (false, false, None);
    loop {
        let mut fds = vec![PollFd::new(first, PollFlags::IN)];
        fds.extend(words.channel.as_ref().map(|channel| PollFd::new(channel, PollFlags::IN)));
        if !alone {
            let wanted = if claimed { PollFlags::RDHUP } else { PollFlags::IN | PollFlags::RDHUP };
            fds.push(PollFd::from_borrowed_fd(control, wanted));
        }
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        let has_ended = !fds[0].revents().is_empty();
        let said = words.channel.is_some() && !fds[1].revents().is_empty();
        let asked = !alone && fds.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        if said {
            words.hear(control)?;
        }
        if has_ended {
            return Ok(place);
        }
        if !alone && attempt::is_alone(control)? {
            alone = true;
            attempt::end(first);
        } else if asked && !claimed {
            claimed = true;
            place = serve_claim(control, first, words, request)?;
        }
    }
}

/// Makes the copy of the tree, and passes the command to the first process.
fn serve_claim(
    control: BorrowedFd<'_>,
    first: &OwnedFd,
    words: &mut Words,
    request: &PlainRequest,
) -> io::Result<Option<Place>> {
    // `None` means that the daemon has closed its side, which the next check notices.
    let Some(mut claim) = wire::recv_claim(control)? else { return Ok(None) };
    match Place::make(request, &claim) {
        Ok((place, enforcement)) => {
            place.lead(&mut claim.command.env, &request.sandbox.frame);
            let tree = Tree { layers: claim.layers.clone(), enforcement, layers_bytes: 0 };
            let go = Go { claim, tree, tells_the_end: false, traces: None };
            if let Some(channel) = &words.channel {
                // The process may have died after a refusal, which is received next.
                drop(wire::send_document(channel.as_fd(), &go, &[]));
            }
            return Ok(Some(place));
        }
        // If the first process has already refused the step, its report counts.
        Err(_) if words.spoken => {}
        Err(failure) => {
            words.spoken = true;
            wire::send(control, &failure.into_message(), &[])?;
        }
    }
    attempt::end(first);
    Ok(None)
}

/// Records the controls that such a sandbox lacks, and what replaces them.
fn confess(enforcement: &mut Enforcement, request: &PlainRequest) {
    let why = request.refusal.as_str();
    let user = request.sandbox.user.uid();
    let lacks = [
        (Control::UserNamespace, format!("it runs as user {user} of the host, without capabilities")),
        (Control::MountNamespace, "it sees the host's mounts".to_owned()),
        (
            Control::PidNamespace,
            "it sees the host's processes; Proctor's reaper finds its descendants and kills them".to_owned(),
        ),
        (Control::IpcNamespace, "it shares System V IPC and message queues with the host".to_owned()),
        (Control::UtsNamespace, "it sees the host's name".to_owned()),
        (Control::CgroupNamespace, "it sees the host's control groups".to_owned()),
        (Control::PrivateProc, "it sees the host's /proc, as modes and Landlock allow".to_owned()),
        (Control::KernelFiles, "it sees the host's /proc and /sys, as their modes allow".to_owned()),
        (
            Control::PrivateTmp,
            "`TMPDIR` and `HOME` are private directories on the host's disk, without a size limit".to_owned(),
        ),
    ];
    for (control, instead) in lacks {
        enforcement.not_enforced_unless(control, format!("{instead} ({why})"), &request.hint);
    }
}

/// Records to what extent a filter denies the network.
fn confess_network(enforcement: &mut Enforcement, request: &PlainRequest) {
    let control = Control::NetworkNamespace;
    let is_filtered = enforcement.missing().all(|(missing, _)| missing != Control::SyscallFilter);
    let instead = match (request.sandbox.frame.network, is_filtered) {
        (Network::Allow, _) => return enforcement.not_requested(control, "the plan allows the network"),
        (Network::Deny, true) => {
            "seccomp refuses sockets of the internet, the loopback device's too; Unix sockets of the host can be reached where \
             their modes allow"
        }
        (Network::Deny, false) => "nothing denies it the network",
    };
    enforcement.not_enforced_unless(control, format!("{instead} ({})", request.refusal), &request.hint);
}
