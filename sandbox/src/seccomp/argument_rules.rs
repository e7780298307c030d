//! Contains the decisions that depend on arguments. The module `syscall_table` assigns them to calls.
//!
//! A filter sees registers and no memory. If the kernel reads an argument as `int` or `unsigned int`, it ignores the
//! high half of the register, and so does the rule.

use nix::errno::Errno;

use super::assembler::SeccompWord;
use super::decision::{ALL_BITS, SyscallDecision};

use SeccompWord::{High, Low};
use SyscallDecision::{Allow, AnyBit, OneOf, Refuse};

const EPERM: &SyscallDecision = &Refuse(Errno::EPERM);

/// Refuses a call with `errno` if an argument has any bit of `mask`.
const fn refuse_bits(of: SeccompWord, mask: u32, errno: &'static SyscallDecision) -> SyscallDecision {
    AnyBit { word: of, mask, then: errno, otherwise: &Allow }
}

/// Refuses a call with `errno` if an argument is one of `values`.
const fn refuse_values(of: SeccompWord, values: &'static [u32], errno: &'static SyscallDecision) -> SyscallDecision {
    OneOf { word: of, mask: ALL_BITS, values, then: errno, otherwise: &Allow }
}

/// All namespaces that `clone(2)` creates: mnt, cgroup, uts, ipc, user, pid, net. In `clone`, the bit of time
/// namespaces belongs to the exit signal.
const NEW_NAMESPACE: u32 = 0x7e02_0000;

/// `CLONE_NEWTIME`, which `unshare(2)` supports.
const NEW_TIME: u32 = 0x80;

/// Allows new processes and threads, but no new namespaces.
pub(super) const CLONE: SyscallDecision = refuse_bits(Low(0), NEW_NAMESPACE, EPERM);

/// Allows a process to stop sharing descriptors, work directory and semaphores, but no new namespaces.
pub(super) const UNSHARE: SyscallDecision = refuse_bits(Low(0), NEW_NAMESPACE | NEW_TIME, EPERM);

const UNIX: u32 = 1;
const INET: u32 = 2;
const INET6: u32 = 10;
const NETLINK: u32 = 16;

const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
const RAW: u32 = 3;
const PACKET: u32 = 10;

/// The kernel's `SOCK_TYPE_MASK`; the bits above it are flags.
const SOCKET_TYPE_MASK: u32 = 0xf;

const ANY_PROTOCOL: u32 = 0;
const TCP: u32 = 6;
const UDP: u32 = 17;
const ICMP: u32 = 1;
const ICMP6: u32 = 58;
const NETLINK_ROUTE: u32 = 0;

const NO_FAMILY: &SyscallDecision = &Refuse(Errno::EAFNOSUPPORT);
const NO_TYPE: &SyscallDecision = &Refuse(Errno::ESOCKTNOSUPPORT);
const NO_PROTOCOL: &SyscallDecision = &Refuse(Errno::EPROTONOSUPPORT);

const fn allow_protocols(values: &'static [u32]) -> SyscallDecision {
    OneOf { word: Low(2), mask: ALL_BITS, values, then: &Allow, otherwise: NO_PROTOCOL }
}

/// Allows TCP and UDP, and ICMP datagrams, which the kernel restricts to the groups of `net.ipv4.ping_group_range`.
/// MPTCP, SCTP, SMC, L2TP and other protocols get the answer of a kernel without them, on which Go falls back to TCP;
/// raw sockets get the answer for a process without `CAP_NET_RAW`.
const INTERNET: SyscallDecision = OneOf {
    word: Low(1),
    mask: SOCKET_TYPE_MASK,
    values: &[STREAM],
    then: &allow_protocols(&[ANY_PROTOCOL, TCP]),
    otherwise: &OneOf {
        word: Low(1),
        mask: SOCKET_TYPE_MASK,
        values: &[DATAGRAM],
        then: &allow_protocols(&[ANY_PROTOCOL, UDP, ICMP, ICMP6]),
        otherwise: &OneOf {
            word: Low(1),
            mask: SOCKET_TYPE_MASK,
            values: &[RAW, PACKET],
            then: EPERM,
            otherwise: NO_TYPE,
        },
    },
};

/// Allows sockets of the families Unix, IPv4 and IPv6, and the one netlink protocol that `getifaddrs(3)` needs.
/// Vsock, packet, alg, xdp, tipc, bluetooth and all other families get the answer of a kernel without them: some
/// reach beyond the network namespace, and each is attack surface that no step needs.
pub(super) const SOCKET: SyscallDecision = OneOf {
    word: Low(0),
    mask: ALL_BITS,
    values: &[UNIX],
    then: &Allow,
    otherwise: &OneOf {
        word: Low(0),
        mask: ALL_BITS,
        values: &[INET, INET6],
        then: &INTERNET,
        otherwise: &OneOf {
            word: Low(0),
            mask: ALL_BITS,
            values: &[NETLINK],
            then: &allow_protocols(&[NETLINK_ROUTE]),
            otherwise: NO_FAMILY,
        },
    },
};

/// Allows Unix sockets only, for a step that is in the host's network namespace and must not use the network.
pub(super) const UNIX_SOCKET: SyscallDecision =
    OneOf { word: Low(0), mask: ALL_BITS, values: &[UNIX], then: &Allow, otherwise: NO_FAMILY };

/// Allows pairs of Unix sockets, which are the only pairs that the kernel makes for the families above.
pub(super) const SOCKET_PAIR: SyscallDecision = OneOf {
    word: Low(0),
    mask: ALL_BITS,
    values: &[UNIX],
    then: &Allow,
    otherwise: &OneOf {
        word: Low(0),
        mask: ALL_BITS,
        values: &[INET, INET6],
        then: &Refuse(Errno::EOPNOTSUPP),
        otherwise: NO_FAMILY,
    },
};

/// Requests that put input into a terminal, change its line discipline, or redirect the console: TIOCSTI, TIOCLINUX,
/// TIOCCONS, TIOCSETD.
const TERMINAL: &[u32] = &[0x5412, 0x541c, 0x541d, 0x5423];

/// Requests that leave something in a host's file system that file modes do not restrict:
/// FS_IOC_SET_ENCRYPTION_POLICY, FS_IOC_ADD_ENCRYPTION_KEY and FS_IOC_REMOVE_ENCRYPTION_KEY (by any descriptor of the
/// file system, even on read-only mounts), FS_IOC_ENABLE_VERITY. Also requests that exchange a file's blocks without
/// changing its times, by which a step in a copy of the tree could change a file unnoticed (ext4 leaves zeros):
/// EXT4_IOC_MOVE_EXT, XFS_IOC_SWAPEXT, F2FS_IOC_MOVE_RANGE.
const FILE_SYSTEM: &[u32] =
    &[0x800c_6613, 0xc050_6617, 0xc040_6618, 0x4080_6685, 0xc028_660f, 0xc0c0_586d, 0xc020_f509];

/// The type byte of btrfs requests. They can make subvolumes, which `rm -r` does not always remove.
const BTRFS: u32 = 0x9400;

/// The requests with this type byte that apply to every file system: FICLONE, FICLONERANGE, FIDEDUPERANGE,
/// FS_IOC_GETFSLABEL.
const SHARE_BLOCKS: &[u32] = &[0x4004_9409, 0x4020_940d, 0xc018_9436, 0x8100_9431];

const NO_REQUEST: &SyscallDecision = &Refuse(Errno::ENOTTY);

/// Allows requests to devices and files except those above. The filter answers ENOTTY, like a file system without the
/// request.
pub(super) const IOCTL: SyscallDecision = OneOf {
    word: Low(1),
    mask: ALL_BITS,
    values: TERMINAL,
    then: EPERM,
    otherwise: &OneOf {
        word: Low(1),
        mask: 0xff00,
        values: &[BTRFS],
        then: &OneOf { word: Low(1), mask: ALL_BITS, values: SHARE_BLOCKS, then: &Allow, otherwise: NO_REQUEST },
        otherwise: &refuse_values(Low(1), FILE_SYSTEM, NO_REQUEST),
    },
};

/// Refuses leases and delegations (F_SETLEASE, F_SETDELEG): a host process that opens the file for writing would wait
/// for the step. EINVAL is the answer of file systems without leases.
pub(super) const FCNTL: SyscallDecision = refuse_values(Low(1), &[1024, 1040], &Refuse(Errno::EINVAL));

/// Refuses core scheduling (PR_SCHED_CORE): its cookies keep other processes off the sibling of the step's CPU.
/// EINVAL is the answer of a kernel without it.
pub(super) const PRCTL: SyscallDecision = refuse_values(Low(0), &[62], &Refuse(Errno::EINVAL));

/// Allows the query, PER_LINUX, and its harmless flags: PER_LINUX32, UNAME26, ADDR_NO_RANDOMIZE (for debuggers and
/// sanitizers), ADDR_COMPAT_LAYOUT. It refuses flags that make readable memory executable or allow a mapping at
/// address 0, and personalities of other systems.
pub(super) const PERSONALITY: SyscallDecision = OneOf {
    word: Low(0),
    mask: ALL_BITS,
    values: &[u32::MAX],
    then: &Allow,
    otherwise: &refuse_bits(Low(0), !0x0026_0008, EPERM),
};

/// `RLIMIT_CORE`. It stays at 1, whatever a step requests: with 0, a crash would start the host's core dump handler,
/// if there is one, outside of every namespace (core(5)). Many programs set the limit to 0, and some exit if that
/// fails, so the filter reports success.
const CORE: &[u32] = &[4];

/// Reports success without executing the call: the filter returns error number 0.
const PRETEND_SUCCESS: &SyscallDecision = &Refuse(Errno::UnknownErrno);

/// Allows `setrlimit`, and ignores it for core dumps.
pub(super) const SETRLIMIT: SyscallDecision = refuse_values(Low(0), CORE, PRETEND_SUCCESS);

/// Ignores a new limit for core dumps. Refuses a call that also requests the old limit, since the filter cannot
/// return it.
const CORE_LIMIT: &SyscallDecision = &AnyBit {
    word: Low(3),
    mask: ALL_BITS,
    then: EPERM,
    otherwise: &AnyBit { word: High(3), mask: ALL_BITS, then: EPERM, otherwise: PRETEND_SUCCESS },
};

const NEW_OWN_LIMIT: &SyscallDecision = &refuse_values(Low(1), CORE, CORE_LIMIT);

/// Allows reading the limits of other processes and refuses setting them, since PID 1 of the step runs as the same
/// user. Of the process's own limits, a new one for core dumps is ignored.
pub(super) const PRLIMIT: SyscallDecision = AnyBit {
    word: Low(0),
    mask: ALL_BITS,
    then: &AnyBit {
        word: Low(2),
        mask: ALL_BITS,
        then: EPERM,
        otherwise: &AnyBit { word: High(2), mask: ALL_BITS, then: EPERM, otherwise: &Allow },
    },
    otherwise: &AnyBit {
        word: Low(2),
        mask: ALL_BITS,
        then: NEW_OWN_LIMIT,
        otherwise: &AnyBit { word: High(2), mask: ALL_BITS, then: NEW_OWN_LIMIT, otherwise: &Allow },
    },
};

const INIT: &[u32] = &[1];

/// Allows scheduling changes except for PID 1, which must get CPU time when it is asked to end the step.
pub(super) const SCHEDULING: SyscallDecision = refuse_values(Low(0), INIT, EPERM);

/// The same for `setpriority(2)`: refuses PID 1 (PRIO_PROCESS) and all processes of the user (PRIO_USER).
pub(super) const PRIORITY: SyscallDecision = OneOf {
    word: Low(0),
    mask: ALL_BITS,
    values: &[2],
    then: EPERM,
    otherwise: &AnyBit { word: Low(0), mask: ALL_BITS, then: &Allow, otherwise: &refuse_values(Low(1), INIT, EPERM) },
};

/// The same for `ioprio_set(2)`, whose IOPRIO_WHO_USER reached beyond the PID namespace before Linux 5.16.
pub(super) const IO_PRIORITY: SyscallDecision = OneOf {
    word: Low(0),
    mask: ALL_BITS,
    values: &[3],
    then: EPERM,
    otherwise: &OneOf {
        word: Low(0),
        mask: ALL_BITS,
        values: &[1],
        then: &refuse_values(Low(1), INIT, EPERM),
        otherwise: &Allow,
    },
};

/// `S_ISUID`. A file that a step leaves in a cache must not pass on its owner's rights, and outside of the sandbox no
/// mount option prevents that. An unprivileged `tar x`, `cp -p`, git, cargo and npm do not set the bit; `tar xp` of
/// an archive that contains it and `install -m 4755` do, and get EPERM.
///
/// The set-group-id bit is allowed: it is common on directories (shared checkouts, `cp -a`), which a filter cannot
/// distinguish from files, and it grants a group to which the step's user belongs anyway.
const SET_USER_ID: u32 = 0o4000;

/// Refuses the set-user-id bit in a mode that is passed in the argument with this number.
const fn no_set_user_id(argument: u32) -> SyscallDecision {
    refuse_bits(Low(argument), SET_USER_ID, EPERM)
}

/// `chmod`, `fchmod`, `creat`: no set-user-id bit.
pub(super) const MODE_IN_SECOND_ARGUMENT: SyscallDecision = no_set_user_id(1);

/// `fchmodat`, `fchmodat2`: no set-user-id bit.
pub(super) const MODE_IN_THIRD_ARGUMENT: SyscallDecision = no_set_user_id(2);

/// `O_CREAT` and the specific bit of `O_TMPFILE`. Without them the kernel ignores the mode, which may have any value.
const CREATE_FLAGS: u32 = 0x0040_0040;

/// Checks the mode first, which decides the most common case.
const fn check_mode_of_created(mode: SeccompWord, flags: &'static SyscallDecision) -> SyscallDecision {
    AnyBit { word: mode, mask: SET_USER_ID, then: flags, otherwise: &Allow }
}

/// `open`: refuses to create a file with the set-user-id bit.
#[cfg(target_arch = "x86_64")]
pub(super) const OPEN: SyscallDecision = check_mode_of_created(Low(2), &refuse_bits(Low(1), CREATE_FLAGS, EPERM));

/// `openat`: refuses to create a file with the set-user-id bit.
pub(super) const OPENAT: SyscallDecision = check_mode_of_created(Low(3), &refuse_bits(Low(2), CREATE_FLAGS, EPERM));

const FILE_TYPE: u32 = 0xf000;

/// Regular files (also as type 0), FIFOs, sockets and block devices. The kernel itself refuses block devices to a
/// process without capabilities, and its answer shows whether Landlock is active.
const ALLOWED_NODE_TYPES: &[u32] = &[0, 0x8000, 0x1000, 0xc000, 0x6000];

const fn check_node_type(mode: SeccompWord, then: &'static SyscallDecision) -> SyscallDecision {
    OneOf { word: mode, mask: FILE_TYPE, values: ALLOWED_NODE_TYPES, then, otherwise: EPERM }
}

/// `mknod`: refuses character devices, including overlay whiteouts, and the set-user-id bit.
#[cfg(target_arch = "x86_64")]
pub(super) const MKNOD: SyscallDecision = check_node_type(Low(1), &MODE_IN_SECOND_ARGUMENT);

/// `mknodat`: refuses character devices, including overlay whiteouts, and the set-user-id bit.
pub(super) const MKNODAT: SyscallDecision = check_node_type(Low(2), &MODE_IN_THIRD_ARGUMENT);

const NO_HUGE_PAGE: &SyscallDecision = &Refuse(Errno::ENOMEM);

/// Refuses `MAP_HUGETLB`: the pool of huge pages belongs to the whole host, and pages from it count towards no memory
/// limit. ENOMEM is the answer of an empty pool.
pub(super) const MMAP: SyscallDecision = refuse_bits(Low(3), 0x0004_0000, NO_HUGE_PAGE);

/// Refuses `MFD_HUGETLB` for the same reason. EINVAL is the answer of a kernel without the flag. Chromium passes
/// every flag to find out whether the call exists, and fails on any other error.
pub(super) const MEMORY_FILE: SyscallDecision = refuse_bits(Low(1), 0x4, &Refuse(Errno::EINVAL));

/// Refuses `SHM_HUGETLB` for the same reason.
pub(super) const SHARED_MEMORY: SyscallDecision = refuse_bits(Low(2), 0x0800, NO_HUGE_PAGE);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::bpf_simulator::SimulatedCall;
    use crate::seccomp::decision::errno_answer;

    /// Returns the rule's answer to a call with these first arguments; `None` means allowed.
    fn answer<const N: usize>(rule: &SyscallDecision, arguments: [u64; N]) -> Option<Errno> {
        let call = arguments
            .iter()
            .enumerate()
            .fold(SimulatedCall::new(0), |call, (at, value)| call.with_argument(at, *value));
        let answer = rule.expected_answer(&call);
        let errno = Errno::from_raw((answer & libc::SECCOMP_RET_DATA).cast_signed());
        if answer == libc::SECCOMP_RET_ALLOW {
            return None;
        }
        assert_eq!(answer, errno_answer(errno));
        Some(errno)
    }

    const HIGH_BITS: u64 = 0xdead_beef_0000_0000;

    #[test]
    fn refuses_namespace_bits_only() {
        for bit in 0..64 {
            let flag = 1_u64 << bit;
            let namespace = [17, 25, 26, 27, 28, 29, 30].contains(&bit);
            assert_eq!(answer(&CLONE, [flag]), namespace.then_some(Errno::EPERM), "clone, bit {bit}");
            assert_eq!(answer(&UNSHARE, [flag]), (namespace || bit == 7).then_some(Errno::EPERM), "unshare, bit {bit}");
        }
        let thread = 0x003d_0f00;
        assert_eq!(answer(&CLONE, [thread]), None);
        assert_eq!(answer(&CLONE, [thread | 1 << 28]), Some(Errno::EPERM));
    }

    #[test]
    fn allows_listed_sockets_only() {
        let socket = |family, kind, protocol| answer(&SOCKET, [family, kind, protocol]);
        for family in (0..64).filter(|family| ![1, 2, 10, 16].contains(family)) {
            assert_eq!(socket(family, 1, 0), Some(Errno::EAFNOSUPPORT), "family {family}");
        }
        let flags = 0o2_004_000;
        for family in [2, 10, HIGH_BITS | 2] {
            for (kind, protocol) in [(1, 0), (1, 6), (2, 0), (2, 17), (2, 1), (2, 58), (HIGH_BITS | 1, HIGH_BITS)] {
                assert_eq!(socket(family, kind | flags, protocol), None, "{kind} {protocol}");
            }
            for (kind, protocol) in [(1, 262), (1, 132), (1, 17), (1, 256), (2, 115), (2, 136), (2, 6)] {
                assert_eq!(socket(family, kind | flags, protocol), Some(Errno::EPROTONOSUPPORT), "{kind} {protocol}");
            }
            for kind in [3, 10] {
                assert_eq!(socket(family, kind | flags, 6), Some(Errno::EPERM));
            }
            for kind in [0, 4, 5, 6, 15] {
                assert_eq!(socket(family, kind, 0), Some(Errno::ESOCKTNOSUPPORT));
            }
        }
        assert_eq!(socket(16, 3, 0), None);
        assert!((1..32).all(|protocol| socket(16, 3, protocol) == Some(Errno::EPROTONOSUPPORT)));
        for family in (0..64).filter(|family| *family != 1) {
            assert_eq!(answer(&UNIX_SOCKET, [HIGH_BITS | family, 1, 0]), Some(Errno::EAFNOSUPPORT), "family {family}");
        }
        assert_eq!(answer(&UNIX_SOCKET, [1, 1, 0]), None);
        assert_eq!(answer(&SOCKET_PAIR, [1, 1, 0]), None);
        assert_eq!(answer(&SOCKET_PAIR, [2, 1, 0]), Some(Errno::EOPNOTSUPP));
        assert_eq!(answer(&SOCKET_PAIR, [30, 1, 0]), Some(Errno::EAFNOSUPPORT));
    }

    #[test]
    fn refuses_dangerous_ioctls() {
        let ioctl = |request| answer(&IOCTL, [0, request]);
        for request in [0x5412, 0x541c, 0x541d, 0x5423, HIGH_BITS | 0x5412] {
            assert_eq!(ioctl(request), Some(Errno::EPERM), "{request:#x}");
        }
        for request in [0x5000_940e, 0x5000_9417, 0xc050_6617, 0x4080_6685, HIGH_BITS | 0xc050_6617] {
            assert_eq!(ioctl(request), Some(Errno::ENOTTY), "{request:#x}");
        }
        for request in [0xc028_660f, 0xc0c0_586d, 0xc020_f509] {
            assert_eq!(ioctl(request), Some(Errno::ENOTTY), "{request:#x} changes a file and not its times");
        }
        // TCGETS, TIOCSCTTY, TIOCGWINSZ, FIONREAD, FIOCLEX, FS_IOC_GETFLAGS, FIEMAP, FICLONE.
        for request in [0x5401, 0x540e, 0x5413, 0x541b, 0x5451, 0x8008_6601, 0xc020_660b, 0x4004_9409] {
            assert_eq!(ioctl(request), None, "{request:#x}");
        }
    }

    #[test]
    fn refuses_setting_limits_of_others() {
        assert_eq!(answer(&PRLIMIT, [0, 7, 0x1000]), None);
        assert_eq!(answer(&PRLIMIT, [HIGH_BITS, 7, 0x1000]), None);
        for new in [0x1000, 0x7fff_0000_0000] {
            assert_eq!(answer(&PRLIMIT, [0, 4, new, 0]), Some(Errno::UnknownErrno), "said to be done");
            assert_eq!(answer(&PRLIMIT, [0, 4, new, 0x1000]), Some(Errno::EPERM));
            assert_eq!(answer(&PRLIMIT, [0, 4, new, 0x7fff_0000_0000]), Some(Errno::EPERM));
        }
        assert_eq!(answer(&PRLIMIT, [0, 4, 0, 0x1000]), None, "to read it is no harm");
        assert_eq!(answer(&SETRLIMIT, [4, 0x1000]), Some(Errno::UnknownErrno));
        assert_eq!(answer(&SETRLIMIT, [7, 0x1000]), None);
        assert_eq!(answer(&PRLIMIT, [1, 7, 0]), None);
        assert_eq!(answer(&PRLIMIT, [1, 7, 0x1000]), Some(Errno::EPERM));
        assert_eq!(answer(&PRLIMIT, [1, 7, 0x7fff_0000_0000]), Some(Errno::EPERM));
    }

    #[test]
    fn refuses_scheduling_of_pid_1() {
        assert_eq!(answer(&SCHEDULING, [0]), None);
        assert_eq!(answer(&SCHEDULING, [2]), None);
        assert_eq!(answer(&SCHEDULING, [HIGH_BITS | 1]), Some(Errno::EPERM));
        assert_eq!(answer(&PRIORITY, [0, 0, 5]), None);
        assert_eq!(answer(&PRIORITY, [1, 1, 5]), None);
        assert_eq!(answer(&PRIORITY, [0, 1, 5]), Some(Errno::EPERM));
        assert_eq!(answer(&PRIORITY, [2, 1000, 5]), Some(Errno::EPERM));
        assert_eq!(answer(&IO_PRIORITY, [1, 0, 5]), None);
        assert_eq!(answer(&IO_PRIORITY, [1, 1, 5]), Some(Errno::EPERM));
        assert_eq!(answer(&IO_PRIORITY, [3, 0, 5]), Some(Errno::EPERM));
    }

    #[test]
    fn allows_harmless_personalities_only() {
        for persona in [0, 8, 0x0002_0000, 0x0004_0000, 0x0026_0008, 0xffff_ffff, HIGH_BITS] {
            assert_eq!(answer(&PERSONALITY, [persona]), None, "{persona:#x}");
        }
        for persona in [1, 0x0010_0000, 0x0040_0000, 0x0044_0000, 0x0080_0000, 0xffff_fffe] {
            assert_eq!(answer(&PERSONALITY, [persona]), Some(Errno::EPERM), "{persona:#x}");
        }
    }

    #[test]
    fn refuses_set_user_id_bit() {
        for mode in [0o644, 0o2755, 0o1777, 0o100_644] {
            assert_eq!(answer(&MODE_IN_SECOND_ARGUMENT, [0, mode]), None);
            assert_eq!(answer(&MODE_IN_THIRD_ARGUMENT, [0, 0, mode]), None);
            assert_eq!(answer(&MODE_IN_SECOND_ARGUMENT, [0, mode | 0o4000]), Some(Errno::EPERM));
            assert_eq!(answer(&MODE_IN_THIRD_ARGUMENT, [0, 0, mode | 0o4000]), Some(Errno::EPERM));
        }
        let (create, temporary) = (0o100, 0o20_200_000);
        assert_eq!(answer(&OPENAT, [0, 0, create, 0o644]), None);
        assert_eq!(answer(&OPENAT, [0, 0, create | 1, 0o4644]), Some(Errno::EPERM));
        assert_eq!(answer(&OPENAT, [0, 0, temporary | 1, 0o4644]), Some(Errno::EPERM));
        assert_eq!(answer(&OPENAT, [0, 0, 1, u64::MAX]), None, "no file is created, and the mode is chance");
        assert_eq!(answer(&OPENAT, [0, 0, 0o200_000, u64::MAX]), None, "O_DIRECTORY is no O_TMPFILE");
    }

    #[test]
    fn allows_harmless_node_types_only() {
        for kind in [0, 0o100_000, 0o10_000, 0o140_000, 0o60_000] {
            assert_eq!(answer(&MKNODAT, [0, 0, kind | 0o644]), None);
            assert_eq!(answer(&MKNODAT, [0, 0, kind | 0o4644]), Some(Errno::EPERM));
        }
        for kind in [0o20_000, 0o40_000, 0o120_000] {
            assert_eq!(answer(&MKNODAT, [0, 0, kind | 0o644]), Some(Errno::EPERM));
        }
    }

    #[test]
    fn refuses_huge_pages() {
        assert_eq!(answer(&MMAP, [0, 4096, 3, 0x22]), None);
        assert_eq!(answer(&MMAP, [0, 4096, 3, 0x4_0022]), Some(Errno::ENOMEM));
        assert_eq!(answer(&MEMORY_FILE, [0, 3]), None);
        assert_eq!(answer(&MEMORY_FILE, [0, 7]), Some(Errno::EINVAL));
        assert_eq!(answer(&SHARED_MEMORY, [0, 1, 0o1600]), None);
        assert_eq!(answer(&SHARED_MEMORY, [0, 1, 0o5600]), Some(Errno::ENOMEM));
    }

    #[test]
    fn refuses_leases_and_core_scheduling() {
        assert_eq!([0, 1, 2, 1031, 1033].map(|command| answer(&FCNTL, [0, command])), [None; 5]);
        assert_eq!([1024, 1040].map(|command| answer(&FCNTL, [0, command])), [Some(Errno::EINVAL); 2]);
        assert_eq!(answer(&PRCTL, [62]), Some(Errno::EINVAL));
        assert_eq!(answer(&PRCTL, [38]), None);
    }
}
