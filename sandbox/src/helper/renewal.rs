//! Whether a sandbox is as it was before its command, so that it can serve another one. PID 1 looks when it is alone
//! in its namespace: then nobody is left who could change anything.
//!
//! What outlives the processes of a command, and could be seen by the next one, is: what lies in the scratch
//! directories and the layer, what the kernel keeps by network namespace (sockets that wait, counters, names) and by IPC
//! namespace (segments, semaphores, queues). PID 1's limits, priority and processors cannot be changed by a command under
//! the filter of system calls; a signal for PID 1, and a queue of POSIX (which no table shows), are refused by Landlock;
//! host name, mounts and keys need a capability.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use proctor_core::enforcement::{Control, Enforcement};

use super::traces::Traces;

/// What the kernel tells of the namespaces' state.
const TABLES: [&str; 7] = [
    "/proc/net/dev",
    "/proc/net/sockstat",
    "/proc/net/sockstat6",
    "/proc/net/unix",
    "/proc/sysvipc/shm",
    "/proc/sysvipc/sem",
    "/proc/sysvipc/msg",
];
/// How much of a table is read: one that is longer is none of a fresh namespace.
const LONGEST: usize = 4 << 10;
/// The controls without which more than this module looks at would have to be as new; with Landlock, which the command
/// has put on record with the daemon.
const NEEDED: [Control; 9] = [
    Control::PidNamespace,
    Control::NetworkNamespace,
    Control::IpcNamespace,
    Control::UtsNamespace,
    Control::PrivateProc,
    Control::NoCapabilities,
    Control::SyscallFilter,
    Control::Keyring,
    Control::Layer,
];

/// The namespaces of a sandbox before its first command.
pub(super) struct Fresh(Vec<(File, Vec<u8>)>);

impl Fresh {
    /// As they are now.
    pub(super) fn look() -> io::Result<Self> {
        let table = |path: &&str| {
            let file = File::open(path)?;
            let text = read(&file)?;
            Ok::<_, io::Error>((file, text))
        };
        // A kernel without IPv6 has no table of it, and no sockets either.
        let is_there = |path: &&&str| std::path::Path::new(path).exists();
        Ok(Self(TABLES.iter().filter(is_there).map(table).collect::<io::Result<_>>()?))
    }

    /// Whether a command has left nothing: neither in the namespaces, nor in the directories.
    pub(super) fn is_so_still(&self, traces: &Traces) -> bool {
        let is_same = |(file, text): &(File, Vec<u8>)| read(file).is_ok_and(|now| now == *text);
        self.0.iter().all(is_same) && traces.are_all()
    }
}

/// Whether so much holds that what this module looks at is all that there is.
pub(super) fn is_sound(enforcement: &Enforcement) -> bool {
    NEEDED.iter().all(|control| enforcement.holds(*control))
}

/// From its beginning, whatever was read before: the kernel makes the table anew.
fn read(table: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; LONGEST];
    let mut length = 0;
    while length < text.len() {
        match table.read_at(&mut text[length..], length as u64)? {
            0 => {
                text.truncate(length);
                return Ok(text);
            }
            count => length += count,
        }
    }
    Err(io::Error::other("a table is longer than a fresh one"))
}
