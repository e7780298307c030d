//! Measures memory that the kernel holds for a step and charges to none of its processes: socket buffers.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::group_cpu_time::GroupCpuTime;
use crate::wire::CgroupEntry;

/// The sources of PID 1 in addition to the processes.
#[derive(Debug, Default)]
pub(super) struct MemorySources {
    /// The control group, if the kernel counts socket buffers separately from its memory limit.
    pub(super) group: Option<MemoryGroup>,
    /// The sockets of the network namespace, if no control group counts them.
    pub(super) sockets: Option<SocketMemory>,
    /// The CPU time of the control group, if the plan limits it.
    pub(super) cpu_time: Option<GroupCpuTime>,
}

/// A control group of version 1, which limits memory and network socket buffers separately.
#[derive(Debug)]
pub(super) struct MemoryGroup {
    limit: File,
    sockets: File,
}

impl MemoryGroup {
    /// Takes its two files from the end of the descriptors of a request.
    pub(super) fn from_fds(entry: &CgroupEntry, fds: &mut Vec<OwnedFd>) -> Option<Self> {
        let CgroupEntry::Group { takes_off_sockets: true, .. } = entry else { return None };
        let sockets = fds.pop()?;
        let limit = fds.pop()?;
        Some(Self { limit: limit.into(), sockets: sockets.into() })
    }

    /// Returns the number of bytes in the buffers of its network sockets; 0 if the file cannot be read.
    fn socket_bytes(&self) -> u64 {
        let mut text = [0; 32];
        let length = self.sockets.read_at(&mut text, 0).unwrap_or_default();
        String::from_utf8_lossy(&text[..length]).trim().parse().unwrap_or_default()
    }
}

/// A control group's memory limit, from which PID 1 subtracts socket buffers.
#[derive(Debug)]
pub(super) struct SharedMemoryLimit {
    bytes: u64,
    subtracted_bytes: u64,
}

impl SharedMemoryLimit {
    /// Creates a common limit for memory and socket buffers, in bytes.
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, subtracted_bytes: 0 }
    }

    /// Lowers the memory limit by the current size of the socket buffers. Returns whether the step exceeds the common
    /// limit, because the kernel cannot reclaim as much memory as the new limit demands.
    pub(super) fn is_exceeded(&mut self, group: &MemoryGroup) -> bool {
        let held = group.socket_bytes();
        if held >= self.bytes {
            return true;
        }
        if held.abs_diff(self.subtracted_bytes) < MIN_LIMIT_CHANGE {
            return false;
        }
        match group.limit.write_at((self.bytes - held).to_string().as_bytes(), 0) {
            Ok(_) => {
                self.subtracted_bytes = held;
                false
            }
            Err(error) => error.kind() != io::ErrorKind::Interrupted,
        }
    }
}

/// The smallest change of socket buffers for which the limit is adjusted, in bytes.
const MIN_LIMIT_CHANGE: u64 = 1 << 20;

/// The sockets of a network namespace, as listed by the kernel. `sock_diag(7)`.
#[derive(Debug)]
pub(super) struct SocketMemory(OwnedFd);

/// The protocols whose sockets have their own buffers.
const FAMILIES: [(u16, u8); 4] = [
    (libc::AF_INET as u16, libc::IPPROTO_TCP as u8),
    (libc::AF_INET6 as u16, libc::IPPROTO_TCP as u8),
    (libc::AF_INET as u16, libc::IPPROTO_UDP as u8),
    (libc::AF_INET6 as u16, libc::IPPROTO_UDP as u8),
];

impl SocketMemory {
    /// Opens the list of the current network namespace.
    ///
    /// # Errors
    /// The kernel provides no such list.
    pub(super) fn open() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        Ok(Self(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?))
    }

    /// Returns the number of bytes in the buffers of all sockets. A protocol whose list the kernel refuses counts as
    /// 0.
    pub(super) fn bytes(&self) -> u64 {
        let unix = self.sum_buffers(&unix_request(), UNIX_HEADER, unix_bytes).unwrap_or_default();
        let inet = FAMILIES.iter().filter(|_| has_network_sockets());
        let inet =
            inet.map(|family| self.sum_buffers(&inet_request(*family), INET_HEADER, inet_bytes).unwrap_or_default());
        unix + inet.sum::<u64>()
    }

    fn sum_buffers(&self, request: &[u8], header: usize, bytes_of: fn(&[NetlinkRecord<'_>]) -> u64) -> io::Result<u64> {
        rustix::net::send(&self.0, request, SendFlags::NOSIGNAL)?;
        let (mut sum, mut answer) = (0, vec![0; MAX_ANSWER]);
        loop {
            let (length, _) = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::DONTWAIT)?;
            for (kind, body) in messages(&answer[..length]) {
                match kind {
                    SOCKET => sum += bytes_of(&attributes(body.get(header..).unwrap_or_default())),
                    _ => return Ok(sum),
                }
            }
        }
    }
}

/// Returns whether the network namespace has any network sockets. A walk of the socket table is expensive, since all
/// namespaces share it.
fn has_network_sockets() -> bool {
    let used = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| {
            let figures = line.split_once(": inuse ").map(|(_, rest)| rest);
            figures.and_then(|rest| rest.split_whitespace().next()).is_some_and(|count| count != "0")
        })
    };
    used("/proc/net/sockstat") || used("/proc/net/sockstat6")
}

/// A message or an attribute: its kind and its body.
type NetlinkRecord<'a> = (u16, &'a [u8]);

/// The longest part of an answer, in bytes.
const MAX_ANSWER: usize = 32 << 10;
/// `SOCK_DIAG_BY_FAMILY`: the kind of the request, and of each answer about one socket.
const SOCKET: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const LIST: u16 = 0x301;
/// Size of a netlink message header, in bytes.
const MESSAGE_HEADER: usize = 16;
/// Size of `unix_diag_msg`, in bytes.
const UNIX_HEADER: usize = 16;
/// Size of `inet_diag_msg`, in bytes.
const INET_HEADER: usize = 72;
/// `UDIAG_SHOW_RQLEN | UDIAG_SHOW_MEMINFO`.
const UNIX_SHOWN: u32 = 0x10 | 0x20;
/// `UNIX_DIAG_RQLEN`: the bytes waiting to be read.
const UNIX_WAITING: u16 = 4;
/// `UNIX_DIAG_MEMINFO`.
const UNIX_MEMORY: u16 = 5;
/// `INET_DIAG_SKMEMINFO`.
const INET_MEMORY: u16 = 7;
/// `SK_MEMINFO_RMEM_ALLOC`, `…_WMEM_ALLOC`, `…_WMEM_QUEUED` and `…_BACKLOG`: indices into a socket's memory figures.
const RECEIVED: usize = 0;
const SENT: usize = 2;
const QUEUED: usize = 5;
const BACKLOG: usize = 7;

fn build_request(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(MESSAGE_HEADER + body.len()).unwrap_or_default();
    let header = [&length.to_ne_bytes()[..], &SOCKET.to_ne_bytes(), &LIST.to_ne_bytes(), &[0; 8]];
    [&header.concat()[..], body].concat()
}

/// Builds a `unix_diag_req` for all states.
fn unix_request() -> Vec<u8> {
    let family = [libc::AF_UNIX as u8, 0, 0, 0];
    build_request(&[&family[..], &u32::MAX.to_ne_bytes(), &[0; 4], &UNIX_SHOWN.to_ne_bytes(), &[0; 8]].concat())
}

/// Builds an `inet_diag_req_v2` for all states and all addresses.
fn inet_request((family, protocol): (u16, u8)) -> Vec<u8> {
    let family = [family as u8, protocol, 1 << (INET_MEMORY - 1), 0];
    build_request(&[&family[..], &u32::MAX.to_ne_bytes(), &[0; 48]].concat())
}

/// Splits an answer into messages with their kinds.
fn messages(answer: &[u8]) -> impl Iterator<Item = NetlinkRecord<'_>> {
    records(answer, MESSAGE_HEADER, |header| {
        let length = u32::from_ne_bytes(header.get(..4)?.try_into().ok()?);
        Some((usize::try_from(length).ok()?, u16::from_ne_bytes(header.get(4..6)?.try_into().ok()?)))
    })
}

/// Splits a message into attributes with their kinds.
fn attributes(body: &[u8]) -> Vec<NetlinkRecord<'_>> {
    let header = |header: &[u8]| {
        let length = u16::from_ne_bytes(header.get(..2)?.try_into().ok()?);
        Some((usize::from(length), u16::from_ne_bytes(header.get(2..4)?.try_into().ok()?)))
    };
    records(body, 4, header).collect()
}

/// Splits a sequence of records with a length and a kind, each aligned to four bytes.
fn records(
    bytes: &[u8],
    header: usize,
    read: impl Fn(&[u8]) -> Option<(usize, u16)>,
) -> impl Iterator<Item = NetlinkRecord<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, kind) = read(rest)?;
        let body = rest.get(header..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

fn read_figure(figures: &[u8], index: usize) -> u64 {
    let bytes = figures.chunks_exact(4).nth(index).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, |bytes| u32::from_ne_bytes(bytes).into())
}

/// Returns the bytes charged to a Unix socket. Sent data is charged to the sender until it is read. If the sender is
/// closed, the data is visible only at the receiver, which reports its length; for datagrams it reports the length of
/// the first one.
fn unix_bytes(attributes: &[NetlinkRecord<'_>]) -> u64 {
    let attribute =
        |wanted| attributes.iter().find(|(kind, _)| *kind == wanted).map(|(_, body)| *body).unwrap_or_default();
    read_figure(attribute(UNIX_MEMORY), SENT) + read_figure(attribute(UNIX_WAITING), 0)
}

fn inet_bytes(attributes: &[NetlinkRecord<'_>]) -> u64 {
    let memory = attributes.iter().filter(|(kind, _)| *kind == INET_MEMORY);
    memory
        .map(|(_, figures)| [RECEIVED, QUEUED, BACKLOG].map(|place| read_figure(figures, place)).iter().sum::<u64>())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_unread_unix_socket_data() {
        let memory = SocketMemory::open().expect("a list of sockets");
        let before = memory.sum_buffers(&unix_request(), UNIX_HEADER, unix_bytes).expect("a sum");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        let mut sent = 0;
        while let Ok(length) = std::io::Write::write(&mut &ours, &[0; 4096]) {
            sent += length as u64;
        }
        let with_both = memory.sum_buffers(&unix_request(), UNIX_HEADER, unix_bytes).expect("a sum");
        assert!(sent > 65_536 && with_both >= before.saturating_add(sent / 2), "{sent}: {before}, {with_both}");
        drop(ours);
        let with_one = memory.sum_buffers(&unix_request(), UNIX_HEADER, unix_bytes).expect("a sum");
        assert!(with_one >= before.saturating_add(sent / 2), "{sent}: {before}, {with_one}");
        drop(theirs);
    }

    #[test]
    fn ignores_truncated_records() {
        let mut message = build_request(&[7; 8]);
        assert_eq!(messages(&message).collect::<Vec<_>>(), [(SOCKET, &[7; 8][..])]);
        message.truncate(20);
        assert_eq!(messages(&message).count(), 0);
        assert_eq!(attributes(&[0, 0, 1, 0]), []);
    }

    #[test]
    fn lowers_limit_by_socket_buffers() {
        let (limit, sockets) = (tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file"));
        let group = MemoryGroup { limit, sockets };
        let set = |bytes: &str| group.sockets.write_all_at(bytes.as_bytes(), 0).expect("written");
        let mut bound = SharedMemoryLimit::new(100 << 20);
        set("1000000\n");
        assert!(!bound.is_exceeded(&group) && bound.subtracted_bytes == 0, "too little to change anything");
        set("41943040\n");
        assert!(!bound.is_exceeded(&group));
        let mut text = [0; 32];
        let length = group.limit.read_at(&mut text, 0).expect("read");
        assert_eq!(&text[..length], b"62914560");
        set("104857600\n");
        assert!(bound.is_exceeded(&group));
    }
}
