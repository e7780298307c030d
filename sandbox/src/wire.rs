//! What daemon and helper say to each other, and how it travels: a request as JSON in a memory
//! file, sent with its descriptors over a `SOCK_SEQPACKET` pair; answers as one JSON packet each.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::outcome::StartFault;
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::host::StepUser;
use crate::policy::Policy;
use crate::running::WaitStatus;
use crate::setup::SetupOp;

/// The longest answer, in bytes. Longer texts are cut before they are sent.
const MAX_PACKET: usize = 64 << 10;
/// How many descriptors travel with one packet at most.
const MAX_FDS: usize = 4;
/// The largest request, in bytes: the kernel allows an argument list and environment of 6 MiB.
const MAX_REQUEST: u64 = 32 << 20;

/// What the helper is asked to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Make the place for the layers of a run, hand it out as descriptors, and end.
    Space(SpaceRequest),
    /// Run one attempt.
    Attempt(Box<AttemptRequest>),
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
}

/// One attempt.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AttemptRequest {
    /// What must hold.
    pub(crate) policy: Policy,
    /// Who the step is.
    pub(crate) user: StepUser,
    /// Where the layers of the run appear once the helper has joined its namespace.
    pub(crate) space: std::path::PathBuf,
    /// The layers below, newest first.
    pub(crate) lowers: Vec<u32>,
    /// The layer of this attempt.
    pub(crate) upper: u32,
    /// What is done, in order.
    pub(crate) ops: Vec<SetupOp>,
}

/// What the helper says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// The place for the layers stands; directory, mount namespace, and then (root) the user
    /// namespace that maps owners or (else) the one that owns the mount namespace.
    Space,
    /// PID 1 of the step exists; its pidfd. It waits until the helper has sent this.
    Init,
    /// The set-up is done, control by control.
    Ready(Enforcement),
    /// A control cannot be had.
    Refused { control: Control, message: String, hint: String },
    /// The command could not be started.
    NotStarted { fault: StartFault, message: String },
    /// The command has ended, and so has every other process of the attempt.
    Exited { status: WaitStatus, user_ms: u64, system_ms: u64, max_rss_kib: u64 },
}

/// A pair of connected packet sockets, closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a request with the descriptors that belong to it.
pub(crate) fn send_request(socket: BorrowedFd<'_>, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut memory = File::from(rustix::fs::memfd_create("proctor-request", MemfdFlags::CLOEXEC)?);
    memory.write_all(&serde_json::to_vec(request)?)?;
    let mut all = vec![memory.as_fd()];
    all.extend_from_slice(fds);
    send_packet(socket, b"request", &all)
}

/// Receives a request and the descriptors that belong to it.
pub(crate) fn recv_request(socket: BorrowedFd<'_>) -> io::Result<(Request, Vec<OwnedFd>)> {
    let (_, mut fds) = recv_packet(socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if fds.is_empty() {
        return Err(io::Error::other("the request came without its memory file"));
    }
    let mut memory = File::from(fds.remove(0));
    memory.rewind()?;
    let mut bytes = Vec::new();
    memory.take(MAX_REQUEST).read_to_end(&mut bytes)?;
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
    let mut bytes = vec![0; MAX_PACKET];
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

/// Passes a packet on as it came.
pub(crate) fn forward(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    send_packet(socket, bytes, &[])
}

#[cfg(test)]
mod tests {
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
}
