//! Hands a running command over to another program: `proctor` does so with every result that it does not print itself.
//! The connection and a file with the bytes received so far stay open across the execution of `proctord`.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};

use crate::daemon_address::{DaemonAddress, DaemonTrust};
use crate::exec_response::ExecResponse;

/// The option of `proctor exec` that takes a command over. Only `proctor` itself uses it.
pub const OPTION: &str = "--handed-over";

/// The numbers of the descriptors of a command that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedOverDescriptors {
    /// The connection to the daemon.
    pub connection: RawFd,
    /// The file with the location of the daemon and the bytes received so far.
    pub received: RawFd,
}

impl FromStr for HandedOverDescriptors {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse().ok().filter(|number| *number > 2);
        let numbers = text.split_once(',').and_then(|(first, second)| Some((number(first)?, number(second)?)));
        let (connection, received) = numbers
            .filter(|(first, second)| first != second)
            .ok_or("it is not two different descriptor numbers above 2, separated by a comma")?;
        Ok(Self { connection, received })
    }
}

/// The first line of the file; the received bytes follow.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandoverHead {
    socket: PathBuf,
    /// The user whose daemon is trusted besides root's; absent if every daemon is.
    own_uid: Option<u32>,
}

/// The descriptors of a command that is to be handed over. They are inherited by the next program.
#[derive(Debug)]
pub struct ExecHandover {
    connection: OwnedFd,
    received: File,
}

impl ExecHandover {
    /// Prepares the handover of a response of which `received` was read.
    ///
    /// # Errors
    /// A system call fails.
    pub fn new(response: &ExecResponse, received: &[u8]) -> io::Result<Self> {
        let DaemonAddress { socket, trust } = response.address();
        let own_uid = match trust {
            DaemonTrust::AnyUser => None,
            DaemonTrust::OwnOrRoot(uid) => Some(*uid),
        };
        let head = serde_json::to_string(&HandoverHead { socket: socket.clone(), own_uid })?;
        let mut file = File::from(rustix::fs::memfd_create("proctor-exec", MemfdFlags::CLOEXEC)?);
        file.write_all(head.as_bytes())?;
        file.write_all(b"\n")?;
        file.write_all(received)?;
        file.rewind()?;
        let connection = rustix::io::fcntl_dupfd_cloexec(response.stream(), 3)?;
        let handover = Self { connection, received: file };
        for descriptor in handover.descriptors() {
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
        }
        Ok(handover)
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.connection.as_fd(), self.received.as_fd()]
    }

    /// Returns the value of [`OPTION`] for the next program.
    pub fn option_value(&self) -> String {
        let [connection, received] = self.descriptors().map(|descriptor| descriptor.as_raw_fd());
        format!("{connection},{received}")
    }
}

/// Takes over a command with the descriptors that [`ExecHandover`] prepared.
///
/// # Errors
/// The file was not written by [`ExecHandover`], or the connection is not a socket.
pub fn take_over(connection: OwnedFd, received: OwnedFd) -> io::Result<ExecResponse> {
    let mut bytes = Vec::new();
    File::from(received).read_to_end(&mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(io::ErrorKind::UnexpectedEof)?;
    let HandoverHead { socket, own_uid } = serde_json::from_slice(&bytes[..end])?;
    let trust = own_uid.map_or(DaemonTrust::AnyUser, DaemonTrust::OwnOrRoot);
    let stream = UnixStream::from(connection);
    stream.peer_addr()?;
    Ok(ExecResponse::resume(DaemonAddress { socket, trust }, stream, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(trust: DaemonTrust) -> (ExecResponse, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (ExecResponse::resume(DaemonAddress { socket: "/run/s".into(), trust }, ours, b""), theirs)
    }

    #[test]
    fn handed_over_response_continues_where_it_was() {
        for trust in [DaemonTrust::AnyUser, DaemonTrust::OwnOrRoot(7)] {
            let (before, mut daemon) = response(trust);
            let handover = ExecHandover::new(
                &before,
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n12\r\n{\"event\":\"al",
            )
            .expect("handed over");
            drop(before);
            assert!(handover.option_value().parse::<HandedOverDescriptors>().is_ok());
            let ExecHandover { connection, received } = handover;
            let mut after = take_over(connection, received.into()).expect("taken over");
            assert_eq!(after.address().trust, trust);
            assert!(!after.parse().expect("valid so far"));
            assert!(after.is_accepted());
            assert_eq!(after.next_event(), None);
            daemon.write_all(b"ive\"}\n\r\n").expect("sent");
            let mut rest = [0; 64];
            let count = rustix::io::read(after.stream(), &mut rest).expect("read");
            after.push_bytes(&rest[..count]);
            assert!(!after.parse().expect("valid"));
            assert_eq!(after.next_event(), Some(proctor_core::api::ExecEvent::Alive));
        }
    }

    #[test]
    fn rejects_other_files_and_descriptors() {
        let (before, _daemon) = response(DaemonTrust::AnyUser);
        let handover = ExecHandover::new(&before, b"x").expect("handed over");
        let null = || OwnedFd::from(File::open("/dev/null").expect("there"));
        take_over(handover.connection.try_clone().expect("a copy"), null()).expect_err("an empty file");
        take_over(null(), handover.received.into()).expect_err("no socket");
        for wrong in ["", "5", "5,5", "2,5", "5,2", "5,x", "5,6,7", "-1,5"] {
            wrong.parse::<HandedOverDescriptors>().expect_err(wrong);
        }
    }
}
