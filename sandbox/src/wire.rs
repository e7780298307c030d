//! Defines the messages between daemon and helper and their transport. Each message is one JSON packet with its
//! descriptors over a `SOCK_SEQPACKET` pair. A document that is too long for a packet is sent in a memory file.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use proctor_core::decision::input_filter::InputRules;
use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::{LimitKind, StartFault};
use proctor_core::model::trace::NoTrace;
use proctor_core::model::withheld::WithheldPaths;
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::helper::scratch_fingerprint::ScratchFingerprint;
use crate::host::StepUser;
use crate::policy::{CommandPolicy, Frame};
use crate::resource_report::{ExhaustedSpace, WaitStatus};
use crate::setup::SetupOp;

/// The longest packet, in bytes. Longer texts are truncated before they are sent.
const MAX_PACKET: usize = 64 << 10;
/// The largest number of descriptors in one packet.
const MAX_FDS: usize = 16;
/// The largest request, in bytes. The kernel allows 6 MiB for an argument list and environment.
const MAX_REQUEST: u64 = 32 << 20;

/// A request to the helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HelperRequest {
    /// Make the run space, which holds the layers of a run, return its descriptors, and exit.
    Space(RunSpaceRequest),
    /// Prepare a sandbox and wait for its command.
    Sandbox(Box<SandboxRequest>),
    /// Prepare a sandbox without namespaces, on a kernel that refuses them.
    Plain(Box<HostDirSandboxRequest>),
}

/// A sandbox without namespaces. Its descriptors are those of its [`CgroupEntry`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HostDirSandboxRequest {
    /// The sandbox's requirements. Its run space is a directory of the host, and its list of operations is empty.
    pub(crate) sandbox: SandboxRequest,
    /// The kernel's answer when namespaces were tried.
    pub(crate) refusal: String,
    /// How to make namespaces available.
    pub(crate) hint: String,
    /// Paths that a step must not read. Paths without any Landlock rule are unreadable as well.
    pub(crate) hidden: Vec<std::path::PathBuf>,
    /// The resolver configuration, if a hidden directory holds it.
    pub(crate) resolver: Option<std::path::PathBuf>,
}

/// The run space, which holds the layers of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunSpaceRequest {
    /// The empty directory on which the run space is mounted.
    pub(crate) at: std::path::PathBuf,
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The maximum number of files on the file system.
    pub(crate) inodes: u64,
    /// The daemon's user and group for the user namespace, unless the daemon is root.
    pub(crate) user: Option<(u32, u32)>,
    /// The namespaces to test before the run space is made.
    pub(crate) beforehand: NamespaceCheck,
    /// The directory in which cache overlays will be made, if the helper must test whether the kernel supports them
    /// there.
    pub(crate) caches: Option<std::path::PathBuf>,
}

/// The namespaces to test before the run space is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NamespaceCheck {
    /// No replacement. An attempt that cannot get its namespaces is refused.
    Nothing,
    /// The namespaces of an attempt. A run that may do without them must know at this point.
    Namespaces,
}

/// A sandbox whose command is not known yet. Its descriptors, in order: the mount namespace of the run's layers, the
/// user namespace, the namespace that maps the owner of caches if there is one, both ends of the command process's
/// socket (the process's end first), and those of its [`CgroupEntry`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SandboxRequest {
    /// The part of the policy that does not depend on the command.
    pub(crate) frame: Frame,
    /// The user of the step.
    pub(crate) user: StepUser,
    /// `true` if the owner of caches is mapped to the step's user.
    pub(crate) maps_caches: bool,
    /// Path of the run's layers after the helper has joined their namespace.
    pub(crate) space: std::path::PathBuf,
    /// How PID 1 gets into its control group.
    pub(crate) entry: CgroupEntry,
    /// The layers that the command is expected to use.
    pub(crate) layers: LayerIds,
    /// The operations, in order.
    pub(crate) ops: Vec<SetupOp>,
    /// `true` if the sandbox may serve another command after one that left nothing in it.
    pub(crate) serves_on: bool,
}

/// The layers of one attempt, by number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerIds {
    /// The layers below, newest first.
    pub(crate) lowers: Vec<u32>,
    /// The layer of this attempt.
    pub(crate) upper: u32,
}

/// How PID 1 gets into its control group.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CgroupEntry {
    /// There is no control group.
    None {
        /// The reason.
        reason: String,
        /// How to fix the problem.
        hint: String,
    },
    /// There is a control group.
    Group {
        /// Description of the group.
        group: String,
        /// `true` if PID 1 is created inside the group whose directory is the first descriptor (version 2). PID 1
        /// writes itself into the other groups, whose descriptors are `tasks` files (version 1).
        born: bool,
        /// `true` if two further descriptors are the file that limits the group's memory and the file that counts
        /// socket buffers, which the kernel counts separately. PID 1 subtracts the socket buffers from the limit.
        takes_off_sockets: bool,
        /// `true` if the last descriptor is the file that counts the group's CPU time.
        counts_cpu: bool,
    },
}

/// The command for a prepared sandbox. If the sandbox has served a command before, the message to the command's
/// process carries two descriptors: its standard output and its standard error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClaimRequest {
    /// The command.
    pub(crate) command: CommandPolicy,
    /// Its layers.
    pub(crate) layers: LayerIds,
    /// The limits that the control group enforces.
    pub(crate) held: EnforcedLimits,
    /// The operations, in order.
    pub(crate) ops: Vec<SetupOp>,
    /// `true` if the sandbox may serve another command after this one left nothing in it.
    pub(crate) serves_on: bool,
}

/// The limits that a control group enforces, as phrases for the evidence record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnforcedLimits {
    /// Memory limit.
    pub(crate) memory: Option<String>,
    /// Limit on processes and threads.
    pub(crate) pids: Option<String>,
    /// `true` if the group limits memory, to the plan's limit or to a share of the machine's memory.
    pub(crate) bounds_memory: bool,
}

/// A message to the command's process. The daemon and the helper send to the same socket, so their messages
/// arrive in no fixed order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CommandMessage {
    /// From the helper: the directories that the Landlock rules need exist.
    Go,
    /// From the daemon: the command. The helper receives the same message.
    Claim(Box<ClaimRequest>),
    /// From the helper: the tree is mounted, over these layers.
    Tree(Box<MountedTree>),
}

/// The command, and the work that the helper does for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InitInstructions {
    /// The command.
    pub(crate) claim: ClaimRequest,
    /// The mounted tree.
    pub(crate) tree: MountedTree,
    /// `true` if the helper has nothing to do after the exit. PID 1 then reports the exit to the daemon itself.
    pub(crate) reports_exit: bool,
    /// The fingerprint of the scratch directories before the first command; `None` if the sandbox serves one command
    /// only.
    pub(crate) traces: Option<ScratchFingerprint>,
}

/// The helper's work for a command: the mounted tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MountedTree {
    /// The layers of which the tree consists.
    pub(crate) layers: LayerIds,
    /// The controls that the mounts enforce.
    pub(crate) enforcement: Enforcement,
    /// The size of the tmpfs that all layers of the run share, in bytes.
    pub(crate) layers_bytes: u64,
}

/// A message from the helper, or from PID 1.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HelperMessage {
    /// The run space exists. Its descriptors: directory, mount namespace, and, for root, the user namespace that maps
    /// owners, or else the one that owns the mount namespace.
    Space {
        /// The host user id that only this run's steps over root's repository have. The last descriptor is then the
        /// user namespace that maps the owner of caches to it.
        own_id: Option<u32>,
        /// The reason why the kernel makes no cache overlay; `None` if it does, or if the request did not ask.
        no_cache_overlay: Option<String>,
    },
    /// The server of the view exists; carries its pidfd. Sent before `Init`.
    View,
    /// PID 1 of the step exists; carries its pidfd. PID 1 waits until the helper has sent this message.
    Init,
    /// The sandbox waits for its command.
    Prepared,
    /// The set-up is complete, with the state of each control.
    Ready(Enforcement),
    /// A control is not available.
    Refused { control: Control, message: String, hint: String },
    /// The command could not be started.
    NotStarted { fault: StartFault, message: String },
    /// To the helper only: PID 1 has reported the exit to the daemon.
    ExitReported,
    /// To the helper only: PID 1 has reported the exit of a command to the daemon, and waits for another command.
    ReadyForReuse,
    /// The command and every other process of the attempt have ended.
    Exited {
        /// How the command ended.
        status: WaitStatus,
        /// The limit for which PID 1 ended the command.
        limit: Option<LimitKind>,
        /// `true` if PID 1 is the only process left.
        alone: bool,
        /// `true` if the command left nothing behind and PID 1 waits for another command.
        serves_on: bool,
        /// Processes that the command left behind. They have been killed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leaked: Option<LeakedProcesses>,
        /// The limits that the scratch directories have reached.
        scratch: ExhaustedSpace,
        /// The result of the view, if the command was to run on one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        view: Option<ViewMessageReport>,
        user_ms: u64,
        system_ms: u64,
        max_rss_kib: u64,
    },
}

/// A message of the helper to the server of a view.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ViewMessage {
    /// Serve these files and directories too, in this order. Carries an `O_PATH` descriptor of each.
    Exports(Vec<ViewExportSpec>),
    /// Serve the view of this device, which the message carries.
    Serve {
        /// Paths that show the repository, or a part of it, besides its export. They are withheld.
        aliases: Vec<std::path::PathBuf>,
    },
    /// The command has ended: report the trace.
    Finish,
}

/// A file or directory that a view shows, in addition to the host's root.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ViewExportSpec {
    /// The path on the host.
    pub(crate) host_path: std::path::PathBuf,
    /// The user id as which the mount shows files of root, if it maps owners.
    pub(crate) root_as: Option<u32>,
    /// The files that are shown, if this is the tree of a command with inputs.
    pub(crate) inputs: Option<InputRules>,
}

/// The number of exports whose descriptors fit into one message.
pub(crate) const MAX_EXPORTS: usize = MAX_FDS;

/// The report of the server of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViewMessageReport {
    /// Why there is no trace; `None` if there is one. The message then carries a memory file with it.
    pub(crate) no_trace: Option<NoTrace>,
    /// The withheld paths; `None` if the server could not report them.
    pub(crate) withheld: Option<WithheldPaths>,
}

impl ViewMessageReport {
    /// Creates the report of a server from which no report arrived.
    pub(crate) fn missing(reason: NoTrace) -> Self {
        Self { no_trace: Some(reason), withheld: None }
    }
}

/// Returns a pair of connected packet sockets, closed on exec.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Payload of a packet whose document is in its first descriptor.
const MEMFD_MARKER: &[u8] = b"m";

/// Sends a document with its descriptors.
pub(crate) fn send_document<T: Serialize>(
    socket: BorrowedFd<'_>,
    document: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    EncodedDocument::new(document)?.send(socket, fds)
}

/// A serialized document, which can be sent several times.
#[derive(Debug)]
pub(crate) struct EncodedDocument {
    bytes: Vec<u8>,
    /// The document, if it is too long for a packet.
    memfd: Option<File>,
}

impl EncodedDocument {
    pub(crate) fn new<T: Serialize>(document: &T) -> io::Result<Self> {
        let bytes = serde_json::to_vec(document)?;
        if bytes.len() <= MAX_PACKET {
            return Ok(Self { bytes, memfd: None });
        }
        let mut memory = File::from(rustix::fs::memfd_create("proctor-request", MemfdFlags::CLOEXEC)?);
        memory.write_all(&bytes)?;
        Ok(Self { bytes: MEMFD_MARKER.to_vec(), memfd: Some(memory) })
    }

    /// Sends the document with its descriptors.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let all: Vec<_> = self.memfd.iter().map(AsFd::as_fd).chain(fds.iter().copied()).collect();
        send_packet(socket, &self.bytes, &all)
    }
}

/// Receives a document and its descriptors; `None` if the other side has closed the socket.
pub(crate) fn recv_document<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    recv_packet(socket)?.map(decode_document).transpose()
}

/// Receives the command; `None` if the other side has closed the socket.
pub(crate) fn receive_claim(socket: BorrowedFd<'_>) -> io::Result<Option<ClaimRequest>> {
    match recv_document(socket)? {
        Some((CommandMessage::Claim(claim), _)) => Ok(Some(*claim)),
        Some(_) => Err(io::Error::other("the received message is not a command")),
        None => Ok(None),
    }
}

fn decode_document<T: DeserializeOwned>((bytes, mut fds): (Vec<u8>, Vec<OwnedFd>)) -> io::Result<(T, Vec<OwnedFd>)> {
    if bytes != MEMFD_MARKER {
        return Ok((decode(&bytes)?, fds));
    }
    if fds.is_empty() {
        return Err(io::Error::other("a document was received without its memory file"));
    }
    let memory = File::from(fds.remove(0));
    let length = usize::try_from(memory.metadata()?.len().min(MAX_REQUEST)).map_err(io::Error::other)?;
    // The read names its position: the file offset is where the writer left it, and other processes may read the file
    // too.
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, 0)?;
    Ok((decode(&bytes)?, fds))
}

/// Sends one message with its descriptors `fds`.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &HelperMessage, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_packet(socket, &serde_json::to_vec(message)?, fds)
}

/// Receives one message; `None` if the other side has closed the socket.
pub(crate) fn recv(socket: BorrowedFd<'_>) -> io::Result<Option<(HelperMessage, Vec<OwnedFd>)>> {
    let Some((bytes, fds)) = recv_packet(socket)? else { return Ok(None) };
    Ok(Some((decode(&bytes)?, fds)))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(bytes)?)
}

fn send_packet(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MAX_PACKET || fds.len() > MAX_FDS {
        return Err(io::Error::other("a message between daemon and helper is too large"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet and its descriptors; `None` at the end of the stream.
pub(crate) fn recv_packet(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let length = match peek_length(socket)? {
        // The kernel checks for a packet first and for the end afterwards. It misses a packet that arrives between
        // the two checks and reports the end. No packet follows the end, so the second answer is correct.
        0 => peek_length(socket)?,
        length => length,
    };
    let mut bytes = vec![0; length.clamp(1, MAX_PACKET)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    bytes.truncate(received.bytes);
    Ok(Some((bytes, fds)))
}

/// Returns the size of the next packet without removing it: 0 at the end of the stream, and occasionally too early.
/// This call costs less than growing a buffer to the largest size and shrinking it again.
fn peek_length(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let ask = || rustix::net::recv(socket, &mut [] as &mut [u8], RecvFlags::PEEK | RecvFlags::TRUNC);
    Ok(rustix::io::retry_on_intr(ask).map(|(_, length)| length)?)
}

/// Forwards a packet unchanged.
pub(crate) fn forward(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    send_packet(socket, bytes, &[])
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn transfers_descriptors_then_reports_close() {
        let (ours, theirs) = socket_pair().expect("a pair");
        let null = File::open("/dev/null").expect("there");
        send(theirs.as_fd(), &HelperMessage::Init, &[null.as_fd()]).expect("sent");
        let (message, fds) = recv(ours.as_fd()).expect("received").expect("a message");
        assert!(matches!(message, HelperMessage::Init));
        assert_eq!(fds.len(), 1);
        drop(theirs);
        assert!(recv(ours.as_fd()).expect("received").is_none());
    }

    /// The kernel occasionally reports the end too early to a caller that polls continuously: in about one run out of
    /// three.
    #[test]
    fn receives_last_message_before_close() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let ends: Vec<_> = (0..ROUNDS).map(|_| Mutex::new(None)).collect();
        let (requested, mut received_count) = (AtomicUsize::new(0), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (round, end) in ends.iter().enumerate() {
                    while requested.load(Ordering::Acquire) <= round {
                        std::thread::yield_now();
                    }
                    let theirs: OwnedFd = end.lock().expect("whole").take().expect("there");
                    forward(theirs.as_fd(), b"last").expect("sent");
                }
            });
            for (round, end) in ends.iter().enumerate() {
                let (ours, theirs) = socket_pair().expect("a pair");
                rustix::io::ioctl_fionbio(&ours, true).expect("set");
                *end.lock().expect("whole") = Some(theirs);
                requested.store(round + 1, Ordering::Release);
                received_count += usize::from(poll_next(&ours).is_some_and(|word| word == b"last"));
            }
        });
        assert_eq!(received_count, ROUNDS);
    }

    /// Number of rounds in which the end is read.
    const ROUNDS: usize = 2_000;

    fn poll_next(ours: &OwnedFd) -> Option<Vec<u8>> {
        loop {
            match recv_packet(ours.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other.expect("received").map(|(bytes, _)| bytes),
            }
        }
    }

    #[test]
    fn transfers_documents_of_any_length() {
        let (ours, theirs) = socket_pair().expect("a pair");
        for length in [10, MAX_PACKET, 4 * MAX_PACKET] {
            let null = File::open("/dev/null").expect("there");
            let text = "x".repeat(length);
            send_document(theirs.as_fd(), &text, &[null.as_fd()]).expect("sent");
            let (came, fds) = recv_document::<String>(ours.as_fd()).expect("received").expect("a document");
            assert!(came == text && fds.len() == 1, "{length}");
        }
    }
}
