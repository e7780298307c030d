//! Probes whether the host's abstract Unix sockets are reachable from the sandbox. The probe is a socket that this
//! process creates before it enforces Landlock.

use std::io;
use std::os::fd::OwnedFd;

use proctor_core::model::enforcement::{Control, Enforcement};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::setup_failure::{SetupFailure, internal};

/// An abstract socket that any process in the host's network namespace could connect to.
pub(super) struct AbstractSocketProbe(OwnedFd);

impl AbstractSocketProbe {
    /// Makes the socket, under a free name that the kernel chooses.
    pub(super) fn create() -> Result<Self, SetupFailure> {
        let make = || {
            let listener = socket()?;
            rustix::net::bind(&listener, &SocketAddrUnix::new_unnamed())?;
            rustix::net::listen(&listener, 1)?;
            Ok::<_, io::Error>(Self(listener))
        };
        make().map_err(internal("create a socket that must be unreachable"))
    }

    /// Tries to connect to the socket, and records the answer. In the host's network namespace, only Landlock's
    /// scopes prevent the connection.
    pub(super) fn check(&self, enforcement: &mut Enforcement) -> Result<(), SetupFailure> {
        let control = Control::AbstractSockets;
        let reach = || Ok::<_, io::Error>(rustix::net::connect(&socket()?, &rustix::net::getsockname(&self.0)?));
        match reach().map_err(internal("try to connect to a socket outside of the sandbox"))? {
            Err(rustix::io::Errno::PERM) => {
                enforcement.record_enforced(control, "Landlock; a connection to an outside socket was refused");
            }
            answer => enforcement.record_not_enforced_with_hint(
                control,
                format!("it shares the host's network, and a connection to an outside socket resulted in {answer:?}"),
                "use a kernel with Landlock's scopes (ABI 6, Linux 6.12), or deny the network",
            ),
        }
        Ok(())
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}
