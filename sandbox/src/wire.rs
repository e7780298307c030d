//! What daemon and helper say to each other, and how it travels: one JSON packet each over a
//! `SOCK_SEQPACKET` pair, with its descriptors; what is too long for a packet lies in a memory file.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::leak::LeakedProcesses;
use proctor_core::outcome::{LimitKind, StartFault};
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::helper::traces::Traces;
use crate::host::StepUser;
use crate::policy::{Command, Frame};
use crate::running::WaitStatus;
use crate::setup::SetupOp;
use crate::space::Spent;

/// The longest answer, in bytes. Longer texts are cut before they are sent.
const MAX_PACKET: usize = 64 << 10;
/// How many descriptors travel with one packet at most.
const MAX_FDS: usize = 16;
/// The largest request, in bytes: the kernel allows an argument list and environment of 6 MiB.
const MAX_REQUEST: u64 = 32 << 20;

/// What the helper is asked to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Make the place for the layers of a run, hand it out as descriptors, and end.
    Space(SpaceRequest),
    /// Prepare a sandbox, and wait for its command.
    Sandbox(Box<SandboxRequest>),
    /// The same without namespaces, on a kernel that refuses them.
    Plain(Box<PlainRequest>),
}

/// A sandbox without namespaces. Its descriptors: what [`Entry`] says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PlainRequest {
    /// What must hold; its place for layers is a directory of the host, and it has no operations.
    pub(crate) sandbox: SandboxRequest,
    /// What the kernel answered when namespaces were tried.
    pub(crate) refusal: String,
    /// How namespaces could be had.
    pub(crate) hint: String,
    /// What a step must not read, besides what no rule names.
    pub(crate) hidden: Vec<std::path::PathBuf>,
    /// The file in which names of machines are looked up, where it lies in a hidden directory.
    pub(crate) resolver: Option<std::path::PathBuf>,
}

/// The place for the layers of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SpaceRequest {
    /// The empty directory that it is mounted on.
    pub(crate) at: std::path::PathBuf,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// How many files it holds.
    pub(crate) inodes: u64,
    /// Ourselves where we are not root: the user of the namespace.
    pub(crate) user: Option<(u32, u32)>,
    /// What else is tried first.
    pub(crate) beforehand: Beforehand,
    /// The directory in which overlays of caches are going to be, where it is to be tried whether the kernel makes
    /// them there.
    pub(crate) caches: Option<std::path::PathBuf>,
}

/// What is tried before the place for layers is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Beforehand {
    /// Nothing: an attempt that cannot have its namespaces is refused.
    Nothing,
    /// The namespaces of an attempt: a run that may do without them has to know now.
    Namespaces,
}

/// A sandbox whose command is not known yet. Its descriptors: the mount namespace of the run's
/// layers, the user namespace, the one that maps the owner of caches where there is one, both ends of the socket of
/// the command's process (its own first), and what [`Entry`] says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SandboxRequest {
    /// What must hold.
    pub(crate) frame: Frame,
    /// Who the step is.
    pub(crate) user: StepUser,
    /// Whether the owner of caches is mapped to the step's user.
    pub(crate) maps_caches: bool,
    /// Where the layers of the run appear once the helper has joined its namespace.
    pub(crate) space: std::path::PathBuf,
    /// How PID 1 gets into its control group.
    pub(crate) entry: Entry,
    /// The layers that the command is going to have, as far as can be told.
    pub(crate) layers: Layers,
    /// What is done, in order.
    pub(crate) ops: Vec<SetupOp>,
    /// Whether the sandbox may serve another command, where nothing of one is left in it.
    pub(crate) serves_on: bool,
}

/// The layers of one attempt, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layers {
    /// The layers below, newest first.
    pub(crate) lowers: Vec<u32>,
    /// The layer of this attempt.
    pub(crate) upper: u32,
}

/// How PID 1 gets into its control group.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    /// There is none.
    None {
        /// Why not.
        reason: String,
        /// How to mend that.
        hint: String,
    },
    /// There is one.
    Group {
        /// What it is.
        group: String,
        /// Whether PID 1 is born in the group whose directory the first descriptor is (version 2). It
        /// writes itself into each other one, which are `tasks` files (version 1).
        born: bool,
        /// Whether the last two descriptors are the file that bounds its memory, and the one that tells the buffers of
        /// sockets, which the kernel counts apart: PID 1 takes those off the bound.
        takes_off_sockets: bool,
    },
}

/// The command for a prepared sandbox. To the command's process two descriptors come along where the sandbox
/// has served before: its standard output and its standard error.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// The command.
    pub(crate) command: Command,
    /// Its layers.
    pub(crate) layers: Layers,
    /// What of the limits the control group holds.
    pub(crate) held: HeldLimits,
    /// What is done, in order.
    pub(crate) ops: Vec<SetupOp>,
    /// Whether the sandbox is to serve another command, where nothing of this one is left.
    pub(crate) serves_on: bool,
}

/// What of the limits a control group holds, as phrases for the record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldLimits {
    /// Memory.
    pub(crate) memory: Option<String>,
    /// Processes and threads.
    pub(crate) pids: Option<String>,
    /// Whether it bounds memory, be it by the plan's bound or by a share of the machine's.
    pub(crate) bounds_memory: bool,
}

/// What the command's process is told. Its socket is the daemon's and the helper's: in what order
/// their words come is not settled.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// By the helper: the directories are there around which it draws its wall.
    Go,
    /// By the daemon: the command. The helper is told the same.
    Claim(Box<Claim>),
    /// By the helper: the tree is in place, for these layers.
    Tree(Box<Tree>),
}

/// The command with what the helper did for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    /// The command.
    pub(crate) claim: Claim,
    /// What was done.
    pub(crate) tree: Tree,
    /// Whether nothing is to be done behind the end: then PID 1 tells the daemon of it by itself.
    pub(crate) tells_the_end: bool,
    /// What its directories look like before the first command; `None` where no other is to be served.
    pub(crate) traces: Option<Traces>,
}

/// What the helper did for a command: the tree is in place.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tree {
    /// What it is made of.
    pub(crate) layers: Layers,
    /// What holds because of it.
    pub(crate) enforcement: Enforcement,
    /// The size of the tmpfs that all layers of the run share, in bytes.
    pub(crate) layers_bytes: u64,
}

/// What the helper says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// The place for the layers stands; directory, mount namespace, and then (root) the user
    /// namespace that maps owners or (else) the one that owns the mount namespace.
    Space {
        /// The user id of the host that steps over root's repository have in this run alone. The user namespace that
        /// maps the owner of caches to it is the last descriptor.
        own_id: Option<u32>,
        /// Why the kernel makes no overlay of caches; `None` where it does, or was not asked.
        no_cache_overlay: Option<String>,
    },
    /// PID 1 of the step exists; its pidfd. It waits until the helper has sent this.
    Init,
    /// The sandbox waits for its command.
    Prepared,
    /// The set-up is done, control by control.
    Ready(Enforcement),
    /// A control cannot be had.
    Refused { control: Control, message: String, hint: String },
    /// The command could not be started.
    NotStarted { fault: StartFault, message: String },
    /// To the helper alone: PID 1 has told the daemon of the end.
    Told,
    /// To the helper alone: PID 1 has told the daemon of the end of a command, and waits for another.
    ServesOn,
    /// The command has ended, and so has every other process of the attempt.
    Exited {
        /// How.
        status: WaitStatus,
        /// The limit for which PID 1 ended it.
        limit: Option<LimitKind>,
        /// Whether PID 1 itself is all that is left.
        alone: bool,
        /// Whether nothing of it is left, and PID 1 waits for another command.
        serves_on: bool,
        /// Processes that it left behind, and that are killed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leaked: Option<LeakedProcesses>,
        /// What the bounded scratch directories had no more of.
        scratch: Spent,
        user_ms: u64,
        system_ms: u64,
        max_rss_kib: u64,
    },
}

/// A pair of connected packet sockets, closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Stands for a document that lies in the first descriptor of its packet.
const IN_MEMORY: &[u8] = b"m";

/// Sends a document with the descriptors that belong to it.
pub(crate) fn send_document<T: Serialize>(
    socket: BorrowedFd<'_>,
    document: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    Packed::new(document)?.send(socket, fds)
}

/// A document that is ready to be sent, also to several.
#[derive(Debug)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    /// What is too long for a packet.
    memory: Option<File>,
}

impl Packed {
    pub(crate) fn new<T: Serialize>(document: &T) -> io::Result<Self> {
        let bytes = serde_json::to_vec(document)?;
        if bytes.len() <= MAX_PACKET {
            return Ok(Self { bytes, memory: None });
        }
        let mut memory = File::from(rustix::fs::memfd_create("proctor-request", MemfdFlags::CLOEXEC)?);
        memory.write_all(&bytes)?;
        Ok(Self { bytes: IN_MEMORY.to_vec(), memory: Some(memory) })
    }

    /// Sends it with the descriptors that belong to it.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let all: Vec<_> = self.memory.iter().map(AsFd::as_fd).chain(fds.iter().copied()).collect();
        send_packet(socket, &self.bytes, &all)
    }
}

/// Receives a document and the descriptors that belong to it; `None` where the other side has
/// closed.
pub(crate) fn recv_document<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    recv_packet(socket)?.map(read_document).transpose()
}

/// Receives the command; `None` where the other side has closed.
pub(crate) fn recv_claim(socket: BorrowedFd<'_>) -> io::Result<Option<Claim>> {
    match recv_document(socket)? {
        Some((Order::Claim(claim), _)) => Ok(Some(*claim)),
        Some(_) => Err(io::Error::other("something else came than a command")),
        None => Ok(None),
    }
}

fn read_document<T: DeserializeOwned>((bytes, mut fds): (Vec<u8>, Vec<OwnedFd>)) -> io::Result<(T, Vec<OwnedFd>)> {
    if bytes != IN_MEMORY {
        return Ok((decode(&bytes)?, fds));
    }
    if fds.is_empty() {
        return Err(io::Error::other("a document came without its memory file"));
    }
    let memory = File::from(fds.remove(0));
    let length = usize::try_from(memory.metadata()?.len().min(MAX_REQUEST)).map_err(io::Error::other)?;
    // By position: its offset is where the writer left it, and others may read it too.
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, 0)?;
    Ok((decode(&bytes)?, fds))
}

/// Sends one message; `fds` travel with it.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_packet(socket, &serde_json::to_vec(message)?, fds)
}

/// Receives one message; `None` where the other side has closed.
pub(crate) fn recv(socket: BorrowedFd<'_>) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
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

/// One packet and its descriptors; `None` at the end of the stream.
pub(crate) fn recv_packet(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let length = match next_length(socket)? {
        // The kernel looks for a packet first and for the end then, so that one which came between, with the
        // end behind it, is overlooked. Nothing comes after the end: the second answer is true.
        0 => next_length(socket)?,
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

/// The size of the next packet, which stays there; 0 at the end of the stream, and sometimes too early. Growing
/// by the largest one and shrinking again costs more than to ask.
fn next_length(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let ask = || rustix::net::recv(socket, &mut [] as &mut [u8], RecvFlags::PEEK | RecvFlags::TRUNC);
    Ok(rustix::io::retry_on_intr(ask).map(|(_, length)| length)?)
}

/// Passes a packet on as it came.
pub(crate) fn forward(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    send_packet(socket, bytes, &[])
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn messages_arrive_with_their_descriptors_and_then_the_end() {
        let (ours, theirs) = pair().expect("a pair");
        let null = File::open("/dev/null").expect("there");
        send(theirs.as_fd(), &Message::Init, &[null.as_fd()]).expect("sent");
        let (message, fds) = recv(ours.as_fd()).expect("received").expect("a message");
        assert!(matches!(message, Message::Init));
        assert_eq!(fds.len(), 1);
        drop(theirs);
        assert!(recv(ours.as_fd()).expect("received").is_none());
    }

    /// To one that asks all the time, the kernel says the end too early now and then: in one run of three or so.
    #[test]
    fn the_last_word_is_heard_though_the_end_comes_with_it() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let ends: Vec<_> = (0..ROUNDS).map(|_| Mutex::new(None)).collect();
        let (asked, mut heard) = (AtomicUsize::new(0), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (round, end) in ends.iter().enumerate() {
                    while asked.load(Ordering::Acquire) <= round {
                        std::thread::yield_now();
                    }
                    let theirs: OwnedFd = end.lock().expect("whole").take().expect("there");
                    forward(theirs.as_fd(), b"last").expect("sent");
                }
            });
            for (round, end) in ends.iter().enumerate() {
                let (ours, theirs) = pair().expect("a pair");
                rustix::io::ioctl_fionbio(&ours, true).expect("set");
                *end.lock().expect("whole") = Some(theirs);
                asked.store(round + 1, Ordering::Release);
                heard += usize::from(next(&ours).is_some_and(|word| word == b"last"));
            }
        });
        assert_eq!(heard, ROUNDS);
    }

    /// How often the end is met.
    const ROUNDS: usize = 2_000;

    fn next(ours: &OwnedFd) -> Option<Vec<u8>> {
        loop {
            match recv_packet(ours.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other.expect("received").map(|(bytes, _)| bytes),
            }
        }
    }

    #[test]
    fn a_document_of_any_length_arrives() {
        let (ours, theirs) = pair().expect("a pair");
        for length in [10, MAX_PACKET, 4 * MAX_PACKET] {
            let null = File::open("/dev/null").expect("there");
            let text = "x".repeat(length);
            send_document(theirs.as_fd(), &text, &[null.as_fd()]).expect("sent");
            let (came, fds) = recv_document::<String>(ours.as_fd()).expect("received").expect("a document");
            assert!(came == text && fds.len() == 1, "{length}");
        }
    }
}
