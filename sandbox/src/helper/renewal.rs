//! Checks whether a sandbox is in the state that it had before its command, so that it can serve another one. PID 1
//! checks when it is alone in its namespace, so no process is left that could change anything.
//!
//! Everything that outlives the processes of a command, and that the next command could observe, is in one of four
//! groups: files that a step may write (`traces`), tables of the network and IPC namespaces ([`TABLES`]), ids that
//! the kernel increments in the IPC namespace ([`IpcIds`]), and names ([`Names`]). A command cannot change anything
//! else: the system call filter refuses changes of limits, priorities, keys, mounts and POSIX queues; Landlock
//! refuses signals to PID 1; `/proc/sys` and the mounts of devices are read-only. `docs/sandbox.md` lists each kind
//! of object.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use proctor_core::enforcement::{Control, Enforcement};

use super::traces::Traces;
use crate::sys;

/// The tables in which the kernel shows the state of the namespaces.
const TABLES: [&str; 11] = [
    // Traffic.
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/snmp6",
    // Waiting sockets and their names.
    SOCKETS,
    "/proc/net/sockstat6",
    "/proc/net/unix",
    // Memberships in multicast groups.
    "/proc/net/igmp",
    "/proc/net/igmp6",
    // Objects of System V.
    "/proc/sysvipc/shm",
    "/proc/sysvipc/sem",
    "/proc/sysvipc/msg",
];
/// The table of sockets, which also contains figures of the whole host.
const SOCKETS: &str = "/proc/net/sockstat";
/// The figures in [`SOCKETS`] that are totals over all network namespaces.
const OF_THE_HOST: [&str; 3] = ["orphan", "alloc", "mem"];
/// The longest table to read, in bytes. Tables of a fresh namespace are shorter.
const LONGEST: usize = 8 << 10;
/// The controls on which the checks of this module depend. Landlock is needed too; the command reports it to the
/// daemon.
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
pub(super) struct Fresh {
    tables: Vec<Table>,
    names: Names,
    ids: IpcIds,
}

impl Fresh {
    /// Reads the current state of the namespaces.
    pub(super) fn look() -> io::Result<Self> {
        // A kernel without IPv6 or multicast lacks the table, and cannot have such sockets either.
        let is_there = |path: &&&str| std::path::Path::new(path).exists();
        let tables = TABLES.iter().filter(is_there).map(|path| Table::open(path)).collect::<io::Result<_>>()?;
        Ok(Self { tables, names: Names::read(), ids: IpcIds::default() })
    }

    /// Returns whether a command left nothing behind, neither in the namespaces nor in the directories.
    pub(super) fn is_so_still(&mut self, traces: &Traces) -> bool {
        self.tables.iter().all(Table::is_so_still)
            && self.names == Names::read()
            && traces.are_all()
            // Last, since the check increments the ids.
            && self.ids.are_next()
    }
}

/// A table of the kernel, with its text in a fresh namespace.
struct Table {
    file: File,
    is_of_sockets: bool,
    text: Vec<u8>,
}

impl Table {
    fn open(path: &str) -> io::Result<Self> {
        let mut table = Self { file: File::open(path)?, is_of_sockets: path == SOCKETS, text: Vec::new() };
        table.text = table.read()?;
        Ok(table)
    }

    fn is_so_still(&self) -> bool {
        self.read().is_ok_and(|now| now == self.text)
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let text = read(&self.file)?;
        Ok(if self.is_of_sockets { without_the_host(&text) } else { text })
    }
}

/// Removes the figures that other network namespaces change.
fn without_the_host(sockets: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(sockets);
    let own = |line: &str| {
        // `TCP: inuse 0 orphan 0 …`: each name is followed by its value.
        let (family, figures) = line.split_once(':').unwrap_or((line, ""));
        let words: Vec<&str> = figures.split_whitespace().collect();
        let own = words.chunks(2).filter(|pair| pair.first().is_none_or(|name| !OF_THE_HOST.contains(name)));
        format!("{family}:{}", own.flatten().copied().collect::<Vec<_>>().join(" "))
    };
    text.lines().map(own).collect::<Vec<_>>().join("\n").into_bytes()
}

/// The host and domain names of the UTS namespace.
#[derive(Debug, PartialEq, Eq)]
struct Names(Vec<u8>);

impl Names {
    fn read() -> Self {
        let uname = rustix::system::uname();
        Self([uname.nodename().to_bytes(), uname.domainname().to_bytes()].join(&b'\n'))
    }
}

/// The ids of the next System V segment, semaphore set and queue. The kernel increments them, which reveals objects
/// that were created and removed and are in no table. To read them, one object of each kind is created and removed.
#[derive(Debug, Default)]
struct IpcIds {
    /// The number of objects of each kind that the checks have created.
    made: i32,
    numbering: Option<Numbering>,
}

/// How the kernel numbers objects that are removed before the next one is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbering {
    /// Always in the first slot, with the next sequence number: before Linux 5.2.
    BySequence,
    /// In the next of [`PLACES`] slots; after the last one in the first slot again, with the next sequence number.
    ByPlace,
}

impl IpcIds {
    /// Returns whether only the checks have incremented the ids.
    fn are_next(&mut self) -> bool {
        match self.numbering {
            Some(numbering) => self.next() == Some(numbering.id(self.made - 1)),
            // No other process exists, so two ids in succession reveal the numbering.
            None => {
                let (first, second) = (self.next(), self.next());
                let known = [Numbering::BySequence, Numbering::ByPlace];
                self.numbering = known.into_iter().find(|numbering| second == Some(numbering.id(1)));
                first == Some(0) && self.numbering.is_some()
            }
        }
    }

    /// Returns the id of one object of each kind if all three are equal.
    fn next(&mut self) -> Option<i32> {
        let [segment, semaphore, queue] = sys::next_ipc_ids().ok()?;
        self.made = self.made.saturating_add(1);
        (segment == semaphore && semaphore == queue).then_some(segment)
    }
}

impl Numbering {
    /// Returns the id of an object that is created after `others` other objects.
    fn id(self, others: i32) -> i32 {
        match self {
            Self::BySequence => others.saturating_mul(SEQUENCE),
            Self::ByPlace => (others / PLACES).saturating_mul(SEQUENCE) + others % PLACES,
        }
    }
}

/// The difference between ids with successive sequence numbers (`IPCMNI_SHIFT`).
const SEQUENCE: i32 = 1 << 15;
/// The number of slots that the kernel cycles through if there are few objects (`ipc_min_cycle`).
const PLACES: i32 = 64;

/// Returns whether all controls of [`NEEDED`] are enforced.
pub(super) fn is_sound(enforcement: &Enforcement) -> bool {
    NEEDED.iter().all(|control| enforcement.holds(*control))
}

/// Reads a table from its beginning, which makes the kernel generate it anew.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_objects_as_the_kernel_does() {
        assert_eq!([0, 1, 63, 64, 65].map(|n| Numbering::ByPlace.id(n)), [0, 1, 63, 32_768, 32_769]);
        assert_eq!([0, 1, 2].map(|n| Numbering::BySequence.id(n)), [0, 32_768, 65_536]);
    }

    #[test]
    fn ignores_the_figures_of_other_network_namespaces() {
        let of = |alloc: u32, tw: u32| {
            format!(
                "sockets: used 9\nTCP: inuse 0 orphan 1 tw {tw} alloc {alloc} mem 2\nUDP: inuse 0 mem 7\nFRAG: inuse 0 memory 0\n"
            )
        };
        let shown = |text: String| without_the_host(text.as_bytes());
        assert_eq!(shown(of(1, 0)), shown(of(2, 0)));
        assert_ne!(shown(of(1, 0)), shown(of(1, 1)));
        assert!(String::from_utf8_lossy(&shown(of(1, 0))).contains("FRAG:inuse 0 memory 0"));
    }
}
