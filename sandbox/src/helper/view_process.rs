//! Runs the server of a view in a separate process: outside of the step's namespaces, with the rights of the step's user,
//! and with no descriptor of the helper except one socket. The process ends with its helper.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::trace::{AccessTrace, NoTrace};
use proctor_core::model::withheld::WithheldPaths;
use proctor_view::{IdRange, OwnerMap, ViewEnd, ViewExport, ViewServer};
use rustix::fs::MemfdFlags;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::mounts;
use crate::host::{MAPPED_BASE, MAPPED_COUNT, StepUser};
use crate::sys::{self, ForkResult};
use crate::wait::{self, EXIT_TIMEOUT};
use crate::wire::{self, MAX_EXPORTS, ViewExportSpec, ViewMessage, ViewMessageReport};

/// Timeout for the trace after the command has ended. The server examines each path of the trace once more.
const REPORT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// The number of descriptors that the server may use. It keeps at most 512 files and directories of the host open.
const MAX_DESCRIPTORS: u64 = 1024;

/// The process that serves a view. Dropping it in the helper kills the process and waits for its end.
pub(super) struct ViewProcess {
    pid: Pid,
    pidfd: OwnedFd,
    socket: OwnedFd,
    /// The process that started the server. PID 1 is forked from it, and drops its copy of this value.
    parent: Pid,
    /// The table of mounts of the namespace in which the server runs.
    host_mounts: Vec<u8>,
}

impl ViewProcess {
    /// Starts the process. `inherited` are all descriptors of the helper except the standard streams; the process
    /// closes its copies. `host_mounts` is the table of mounts, if it will be needed.
    pub(super) fn start(
        user: StepUser,
        null: &OwnedFd,
        inherited: Vec<&mut OwnedFd>,
        host_mounts: Vec<u8>,
    ) -> io::Result<Self> {
        let (ours, theirs) = wire::socket_pair()?;
        match sys::fork()? {
            ForkResult::Child => {
                drop(ours);
                // The helper sees the end of the socket and reports it.
                let closed = close_inherited(null, inherited);
                let report = closed.and_then(|()| restrict_to_step(user)).map(|()| serve(&theirs));
                let failed = |error| Some((Err(unavailable("start the server", &error)), None));
                if let Some((trace, withheld)) = report.unwrap_or_else(failed) {
                    drop(send_report(&theirs, trace, withheld));
                }
                std::process::exit(0)
            }
            ForkResult::Parent(pid) => {
                let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
                let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
                Ok(Self { pid, pidfd, socket: ours, parent: rustix::process::getpid(), host_mounts })
            }
        }
    }

    /// Returns the table of mounts of the namespace in which the server runs, in the format of `/proc/self/mountinfo`.
    pub(super) fn host_mounts(&self) -> &[u8] {
        &self.host_mounts
    }

    /// Returns a descriptor that becomes readable when the process ends.
    pub(super) fn exit_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Tells the server what to serve, and lets it begin.
    pub(super) fn send_exports(
        &self,
        exports: Vec<(ViewExportSpec, BorrowedFd<'_>)>,
        device: BorrowedFd<'_>,
        aliases: Vec<PathBuf>,
    ) -> io::Result<()> {
        let (mut specs, fds): (Vec<_>, Vec<_>) = exports.into_iter().unzip();
        for fds in fds.chunks(MAX_EXPORTS) {
            let part = specs.drain(..fds.len()).collect();
            wire::send_document(self.socket.as_fd(), &ViewMessage::Exports(part), fds)?;
        }
        wire::send_document(self.socket.as_fd(), &ViewMessage::Serve { aliases }, &[device])
    }

    /// Returns the reason for which the process has ended by itself, if it reported one.
    pub(super) fn failure(&self) -> Option<NoTrace> {
        wait::wait_readable(self.socket.as_fd(), EXIT_TIMEOUT).ok()?;
        match wire::recv_document(self.socket.as_fd()) {
            Ok(Some((ViewMessageReport { no_trace, .. }, _))) => no_trace,
            _ => None,
        }
    }

    /// Requests the trace, and waits for it. All processes of the step must have ended.
    pub(super) fn finish(self) -> (ViewMessageReport, Option<OwnedFd>) {
        // A server that has failed has sent its report already, and closed its side.
        drop(wire::send_document(self.socket.as_fd(), &ViewMessage::Finish, &[]));
        let untraced = |reason| (ViewMessageReport::missing(reason), None);
        if wait::wait_readable(self.socket.as_fd(), REPORT_TIMEOUT).is_err() {
            let seconds = REPORT_TIMEOUT.as_secs();
            return untraced(NoTrace::NotDescribable { message: format!("no trace within {seconds} s") });
        }
        match wire::recv_document::<ViewMessageReport>(self.socket.as_fd()) {
            Ok(Some((report, fds))) => (report, fds.into_iter().next()),
            Ok(None) => untraced(failed("its server was killed")),
            Err(error) => untraced(failed(format!("its server sent no report: {error}"))),
        }
    }
}

impl Drop for ViewProcess {
    fn drop(&mut self) {
        if rustix::process::getpid() != self.parent {
            return;
        }
        // The process may have ended already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        // A process that hangs in the kernel is left to it, and must not block the helper.
        if wait::wait_readable(self.pidfd.as_fd(), EXIT_TIMEOUT).is_ok() {
            let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

fn failed(message: impl Into<String>) -> NoTrace {
    NoTrace::Failed { message: message.into() }
}

fn unavailable(what: &str, error: &io::Error) -> NoTrace {
    NoTrace::Unavailable { message: format!("cannot {what}: {error}") }
}

/// Replaces the helper's descriptors. They cannot be closed, since their owners still exist.
fn close_inherited(null: &OwnedFd, inherited: Vec<&mut OwnedFd>) -> io::Result<()> {
    for fd in inherited {
        rustix::io::dup3(null, fd, rustix::io::DupFlags::CLOEXEC)?;
    }
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    Ok(rustix::stdio::dup2_stderr(null)?)
}

/// Gives up every right that the step's user does not have.
fn restrict_to_step(user: StepUser) -> io::Result<()> {
    if user.is_set_up_by_root() {
        let (uid, gid) = (rustix::thread::Uid::from_raw(user.uid()), rustix::thread::Gid::from_raw(user.gid()));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(None, none)?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // A change of the user has cleared it. If the helper has ended since the fork, its socket is closed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    raise_descriptor_limit()
}

fn raise_descriptor_limit() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(MAX_DESCRIPTORS, |hard| hard.min(MAX_DESCRIPTORS));
    if limit.current.is_none_or(|soft| soft >= wanted) {
        return Ok(());
    }
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })?)
}

/// The trace of a view, and the paths that it withheld.
type ServerReport = (Result<AccessTrace, NoTrace>, Option<WithheldPaths>);

/// Serves the view until the command has ended; returns `None` if the helper needs no report.
fn serve(socket: &OwnedFd) -> Option<ServerReport> {
    let mut server = match receive_exports(socket) {
        Ok(received) => received?,
        Err(error) => return Some((Err(unavailable("open the directories that the view shows", &error)), None)),
    };
    let end = server.serve(socket.as_fd());
    let withheld = Some(server.withheld());
    match end {
        // The helper and all processes of the step have ended.
        Ok(ViewEnd::Unmounted) => None,
        Ok(ViewEnd::Stopped) => match wire::recv_document(socket.as_fd()) {
            Ok(Some((ViewMessage::Finish, _))) => Some((server.into_trace(), withheld)),
            _ => None,
        },
        Err(errno) => match server.into_trace() {
            Err(reason @ NoTrace::Failed { .. }) => Some((Err(reason), withheld)),
            _ => Some((Err(failed(errno.to_string())), withheld)),
        },
    }
}

/// Creates the server of what is received; `None` if the helper has ended.
fn receive_exports(socket: &OwnedFd) -> io::Result<Option<ViewServer>> {
    let (base, owners) = (mounts::open_root()?, OwnerMap::default());
    let root = ViewExport { host_path: b"/".to_vec(), base, owners, inputs: None };
    let mut exports = vec![root];
    loop {
        match wire::recv_document(socket.as_fd())? {
            Some((ViewMessage::Exports(specs), fds)) => {
                if specs.len() != fds.len() {
                    return Err(io::Error::other("an export was received without its descriptor"));
                }
                for (spec, base) in specs.into_iter().zip(fds) {
                    exports.push(export(&spec, base)?);
                }
            }
            Some((ViewMessage::Serve { aliases }, fds)) => {
                let device = fds.into_iter().next().ok_or_else(|| io::Error::other("no device"))?;
                let aliases = aliases.into_iter().map(|path| path.into_os_string().into_vec()).collect();
                return Ok(Some(ViewServer::new(device, exports, aliases)));
            }
            Some((ViewMessage::Finish, _)) | None => return Ok(None),
        }
    }
}

fn export(spec: &ViewExportSpec, base: OwnedFd) -> io::Result<ViewExport> {
    let ranges = |shown| {
        let root = IdRange { on_disk: 0, shown, count: 1 };
        vec![root, IdRange { on_disk: 1, shown: MAPPED_BASE + 1, count: MAPPED_COUNT - 1 }]
    };
    let host_path: &Path = &spec.host_path;
    let inputs = spec.inputs.as_ref().map(InputFilter::new).transpose();
    Ok(ViewExport {
        host_path: host_path.as_os_str().as_bytes().to_vec(),
        base,
        owners: OwnerMap(spec.root_as.map(ranges).unwrap_or_default()),
        inputs: inputs.map_err(|error| io::Error::other(format!("a pattern of `inputs` is not a glob: {error}")))?,
    })
}

fn send_report(
    socket: &OwnedFd,
    trace: Result<AccessTrace, NoTrace>,
    withheld: Option<WithheldPaths>,
) -> io::Result<()> {
    match trace {
        Ok(trace) => {
            let mut memory = File::from(rustix::fs::memfd_create("proctor-trace", MemfdFlags::CLOEXEC)?);
            memory.write_all(&trace.encode())?;
            let report = ViewMessageReport { no_trace: None, withheld };
            wire::send_document(socket.as_fd(), &report, &[memory.as_fd()])
        }
        Err(reason) => {
            let report = ViewMessageReport { no_trace: Some(reason), withheld };
            wire::send_document(socket.as_fd(), &report, &[])
        }
    }
}
