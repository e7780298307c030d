//! Checks whether a sandbox is in the state that it had before its command, so it can serve another one. PID 1 checks
//! when it is alone in its namespace, so no process is left that could change anything.
//!
//! Everything that outlives the processes of a command, and that the next command could observe, is in one of four
//! groups: files that a step may write (`scratch_fingerprint`), tables of the network and IPC namespaces ([`TABLES`]),
//! ids that the kernel increments in the IPC namespace ([`IpcIdCheck`]), and names ([`UtsNames`]). A command cannot
//! change anything else: the system call filter refuses changes of limits, priorities, keys, mounts and POSIX queues;
//! Landlock refuses signals to PID 1; `/proc/sys` and the mounts of devices are read-only. `docs/sandbox.md` lists each
//! kind of object.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use proctor_core::model::enforcement::{Control, Enforcement};

use super::scratch_fingerprint::ScratchFingerprint;
use crate::sys;

/// The tables in which the kernel shows the state of the namespaces.
const TABLES: [&str; 13] = [
    // Traffic.
    "/proc/net/dev",
    "/proc/net/snmp",
    "/proc/net/snmp6",
    // Waiting sockets and their names.
    SOCKSTAT,
    "/proc/net/sockstat6",
    "/proc/net/unix",
    // Memberships in multicast groups.
    "/proc/net/igmp",
    "/proc/net/igmp6",
    // Flow labels of IPv6, which outlive the socket that requested them.
    "/proc/net/ip6_flowlabel",
    // The map of project ids, which every process of a user namespace may write once.
    "/proc/self/projid_map",
    // Objects of System V.
    "/proc/sysvipc/shm",
    "/proc/sysvipc/sem",
    "/proc/sysvipc/msg",
];
/// The table of sockets, which also contains figures of the whole host.
const SOCKSTAT: &str = "/proc/net/sockstat";
/// The figures in [`SOCKSTAT`] that are totals over all network namespaces.
const HOST_WIDE_FIGURES: [&str; 3] = ["orphan", "alloc", "mem"];
/// The longest table to read, in bytes. Tables of a fresh namespace are shorter.
const MAX_TABLE: usize = 8 << 10;
/// The controls on which the checks of this module depend. Landlock is needed too; the command reports it to the
/// daemon.
const NEEDED_CONTROLS: [Control; 9] = [
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
pub(super) struct NamespaceBaseline {
    tables: Vec<KernelTable>,
    names: UtsNames,
    ids: IpcIdCheck,
}

impl NamespaceBaseline {
    /// Reads the current state of the namespaces.
    pub(super) fn capture() -> io::Result<Self> {
        // A kernel without IPv6 or multicast lacks the table, and cannot have such sockets either.
        let is_there = |path: &&&str| std::path::Path::new(path).exists();
        let tables = TABLES.iter().filter(is_there).map(|path| KernelTable::open(path)).collect::<io::Result<_>>()?;
        Ok(Self { tables, names: UtsNames::read(), ids: IpcIdCheck::default() })
    }

    /// Returns whether a command left nothing behind, neither in the namespaces nor in the directories.
    pub(super) fn is_unchanged(&mut self, traces: &ScratchFingerprint) -> bool {
        self.tables.iter().all(KernelTable::is_unchanged)
            && self.names == UtsNames::read()
            && traces.is_unchanged()
            // Must come last, since the check increments the ids.
            && self.ids.is_unchanged()
    }
}

/// A table of the kernel, with its text in a fresh namespace.
struct KernelTable {
    file: File,
    is_socket_table: bool,
    text: Vec<u8>,
}

impl KernelTable {
    fn open(path: &str) -> io::Result<Self> {
        let mut table = Self { file: File::open(path)?, is_socket_table: path == SOCKSTAT, text: Vec::new() };
        table.text = table.read()?;
        Ok(table)
    }

    fn is_unchanged(&self) -> bool {
        self.read().is_ok_and(|now| now == self.text)
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let text = read_table(&self.file)?;
        Ok(if self.is_socket_table { without_host_figures(&text) } else { text })
    }
}

/// Removes the figures that other network namespaces change.
fn without_host_figures(sockets: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(sockets);
    let own = |line: &str| {
        // `TCP: inuse 0 orphan 0 …`: each name is followed by its value.
        let (family, figures) = line.split_once(':').unwrap_or((line, ""));
        let words: Vec<&str> = figures.split_whitespace().collect();
        let own = words.chunks(2).filter(|pair| pair.first().is_none_or(|name| !HOST_WIDE_FIGURES.contains(name)));
        format!("{family}:{}", own.flatten().copied().collect::<Vec<_>>().join(" "))
    };
    text.lines().map(own).collect::<Vec<_>>().join("\n").into_bytes()
}

/// The host and domain names of the UTS namespace.
#[derive(Debug, PartialEq, Eq)]
struct UtsNames(Vec<u8>);

impl UtsNames {
    fn read() -> Self {
        let uname = rustix::system::uname();
        Self([uname.nodename().to_bytes(), uname.domainname().to_bytes()].join(&b'\n'))
    }
}

/// The ids of the next System V segment, semaphore set and queue. The kernel increments them, which reveals objects
/// that were created and removed and are in no table. To read them, one object of each kind is created and removed.
#[derive(Debug, Default)]
struct IpcIdCheck {
    /// The number of objects of each kind that the checks have created.
    created: i32,
    numbering: Option<IpcNumbering>,
}

/// How the kernel numbers objects that are removed before the next one is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IpcNumbering {
    /// Always in the first slot, with the next sequence number: before Linux 5.2.
    BySequence,
    /// In the next of [`SLOTS`] slots; after the last one in the first slot again, with the next sequence number.
    BySlot,
}

impl IpcIdCheck {
    /// Returns whether only the checks have incremented the ids.
    fn is_unchanged(&mut self) -> bool {
        match self.numbering {
            Some(numbering) => self.next_id() == Some(numbering.id(self.created - 1)),
            // No other process exists, so two ids in succession reveal the numbering.
            None => {
                let (first, second) = (self.next_id(), self.next_id());
                let known = [IpcNumbering::BySequence, IpcNumbering::BySlot];
                self.numbering = known.into_iter().find(|numbering| second == Some(numbering.id(1)));
                first == Some(0) && self.numbering.is_some()
            }
        }
    }

    /// Returns the id of one object of each kind if all three are equal.
    fn next_id(&mut self) -> Option<i32> {
        let [segment, semaphore, queue] = sys::next_ipc_ids().ok()?;
        self.created = self.created.saturating_add(1);
        (segment == semaphore && semaphore == queue).then_some(segment)
    }
}

impl IpcNumbering {
    /// Returns the id of an object that is created after `others` other objects.
    fn id(self, others: i32) -> i32 {
        match self {
            Self::BySequence => others.saturating_mul(SEQUENCE),
            Self::BySlot => (others / SLOTS).saturating_mul(SEQUENCE) + others % SLOTS,
        }
    }
}

/// The difference between ids with successive sequence numbers (`IPCMNI_SHIFT`).
const SEQUENCE: i32 = 1 << 15;
/// The number of slots that the kernel cycles through if there are few objects (`ipc_min_cycle`).
const SLOTS: i32 = 64;

/// Returns whether all controls of [`NEEDED_CONTROLS`] are enforced.
pub(super) fn has_needed_controls(enforcement: &Enforcement) -> bool {
    NEEDED_CONTROLS.iter().all(|control| enforcement.is_enforced(*control))
}

/// Reads a table from its beginning, which makes the kernel generate it anew.
fn read_table(table: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; MAX_TABLE];
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
    Err(io::Error::other("a table is longer than in a fresh sandbox"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_kernel_numbering() {
        assert_eq!([0, 1, 63, 64, 65].map(|n| IpcNumbering::BySlot.id(n)), [0, 1, 63, 32_768, 32_769]);
        assert_eq!([0, 1, 2].map(|n| IpcNumbering::BySequence.id(n)), [0, 32_768, 65_536]);
    }

    #[test]
    fn ignores_figures_of_other_network_namespaces() {
        let sockstat = |alloc: u32, tw: u32| {
            format!(
                "sockets: used 9\nTCP: inuse 0 orphan 1 tw {tw} alloc {alloc} mem 2\nUDP: inuse 0 mem 7\nFRAG: inuse 0 memory 0\n"
            )
        };
        let shown = |text: String| without_host_figures(text.as_bytes());
        assert_eq!(shown(sockstat(1, 0)), shown(sockstat(2, 0)));
        assert_ne!(shown(sockstat(1, 0)), shown(sockstat(1, 1)));
        assert!(String::from_utf8_lossy(&shown(sockstat(1, 0))).contains("FRAG:inuse 0 memory 0"));
    }
}
