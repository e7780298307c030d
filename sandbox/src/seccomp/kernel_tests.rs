//! Tests the active filter with real calls. A filter applies to the thread that installs it and to the children of
//! that thread, so each test uses a separate thread.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, OFlags, ResolveFlags};
use rustix::process::{Pid, Resource, Rlimit};

use super::decision::SyscallDecision;
use super::filter;
use super::syscall_table::{COMMON_CALLS, LEGACY};
use crate::sys::raw_call;

/// Runs a test in a thread under the filter.
fn run_filtered<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            filter().install().unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// An argument that is neither a valid pointer nor a valid descriptor. The kernel itself refuses it.
const INVALID_ARGUMENT: u64 = u64::MAX;

#[test]
fn detects_missing_filter() {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    // Inside one of proctor's sandboxes, the tests run under the filter from the start.
    if status.contains("Seccomp:\t0") {
        assert!(filter().verify_active().is_err());
    }
}

#[test]
fn refused_calls_return_listed_error() {
    run_filtered(|| {
        for (decision, calls) in COMMON_CALLS.iter().chain(LEGACY) {
            let SyscallDecision::Refuse(errno) = decision else { continue };
            for call in *calls {
                assert_eq!(raw_call(call.number.into(), [INVALID_ARGUMENT; 6]), Err(*errno), "{}", call.name);
            }
        }
    });
}

#[test]
fn unknown_numbers_return_enosys() {
    run_filtered(|| {
        for number in [600, 0x3fff_fffe, 0x4000_0000, 0x4000_0000 + libc::SYS_getpid] {
            assert_eq!(raw_call(number, [0; 6]), Err(Errno::ENOSYS), "{number:#x}");
        }
    });
}

#[test]
fn refuses_new_namespaces() {
    use nix::sched::{CloneFlags, unshare};
    run_filtered(|| {
        for flag in [CloneFlags::CLONE_NEWUSER, CloneFlags::CLONE_NEWNS, CloneFlags::CLONE_NEWNET] {
            assert_eq!(unshare(flag), Err(Errno::EPERM));
            let flags = u64::from(flag.bits().cast_unsigned()) | 0xdead_0000_0000;
            assert_eq!(raw_call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]), Err(Errno::EPERM));
        }
        assert_eq!(unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_FILES), Ok(()));
    });
}

#[test]
fn allows_listed_sockets_only() {
    let socket = |family, kind, protocol| {
        raw_call(libc::SYS_socket, [family, kind, protocol, 0, 0, 0].map(i32::cast_unsigned).map(u64::from))
    };
    run_filtered(|| {
        for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_XDP, libc::AF_TIPC, 255, -1] {
            assert_eq!(socket(family, libc::SOCK_STREAM, 0), Err(Errno::EAFNOSUPPORT), "family {family}");
        }
        assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP), Err(Errno::EPROTONOSUPPORT));
        assert_eq!(socket(libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_SCTP), Err(Errno::EPROTONOSUPPORT));
        assert_eq!(socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_ICMP), Err(Errno::EPERM));
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT), Err(Errno::EPROTONOSUPPORT));
        assert!(nix::ifaddrs::getifaddrs().is_ok(), "getifaddrs asks NETLINK_ROUTE");
    });
}

#[test]
fn refuses_terminal_input_requests() {
    let controller = std::fs::File::open("/dev/ptmx").unwrap();
    let descriptor = u64::from(controller.as_raw_fd().cast_unsigned());
    let ioctl = |request| raw_call(libc::SYS_ioctl, [descriptor, request, INVALID_ARGUMENT, 0, 0, 0]);
    run_filtered(|| {
        for request in [libc::TIOCSTI, libc::TIOCSETD, libc::TIOCCONS, 0xffff_0000_0000 | libc::TIOCLINUX] {
            assert_eq!(ioctl(request), Err(Errno::EPERM), "{request:#x}");
        }
        assert_eq!(ioctl(libc::TIOCGWINSZ), Err(Errno::EFAULT), "the kernel itself answers to the rest");
    });
}

#[test]
fn refuses_set_user_id_files_and_devices() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name| dir.path().join(name);
    let mode = |bits| Mode::from_raw_mode(bits);
    let node =
        |name, kind, bits| rustix::fs::mknodat(CWD, path(name), kind, mode(bits), 0).map_err(|e| e.raw_os_error());
    let open = |name, flags, bits| rustix::fs::open(path(name), flags, mode(bits)).map_err(|e| e.raw_os_error());
    run_filtered(|| {
        let create = OFlags::CREATE | OFlags::WRONLY;
        assert_eq!(open("suid", create, 0o4755).unwrap_err(), libc::EPERM);
        assert!(!path("suid").exists());
        let file = open("file", create, 0o2755).unwrap();
        assert!(open("file", OFlags::RDONLY, 0o4755).is_ok(), "a mode without O_CREAT means nothing");
        let set = |bits| std::fs::set_permissions(path("file"), std::fs::Permissions::from_mode(bits));
        assert!(set(0o2755).is_ok());
        assert_eq!(set(0o4755).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(rustix::fs::fchmod(file.as_fd(), mode(0o4000)), Err(rustix::io::Errno::PERM));
        assert_eq!(node("device", FileType::CharacterDevice, 0o644), Err(libc::EPERM));
        assert_eq!(node("suid", FileType::RegularFile, 0o4755), Err(libc::EPERM));
        assert_eq!(node("fifo", FileType::Fifo, 0o644), Ok(()));
        let openat2 = rustix::fs::openat2(CWD, path("suid"), create, mode(0o4755), ResolveFlags::empty());
        assert_eq!(openat2.unwrap_err(), rustix::io::Errno::NOSYS);
        assert_eq!(std::fs::metadata(path("file")).unwrap().permissions().mode() & 0o7777, 0o2755);
    });
}

#[test]
fn ignores_core_dump_limit() {
    run_filtered(|| {
        let before = rustix::process::getrlimit(Resource::Core);
        let zero = Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(Resource::Core, zero).unwrap();
        // An invalid address, which the kernel would refuse if the call reached it.
        assert_eq!(raw_call(libc::SYS_setrlimit, [4, INVALID_ARGUMENT, 0, 0, 0, 0]), Ok(0));
        assert_eq!(rustix::process::getrlimit(Resource::Core), before);
        assert_eq!(raw_call(libc::SYS_prlimit64, [0, 4, INVALID_ARGUMENT, INVALID_ARGUMENT, 0, 0]), Err(Errno::EPERM));
    });
}

#[test]
fn refuses_changing_limits_of_others() {
    let limit = || Rlimit { current: Some(7), maximum: Some(7) };
    run_filtered(|| {
        let own = rustix::process::getpid();
        for pid in [Pid::INIT, own] {
            let answer = rustix::process::prlimit(Some(pid), Resource::Core, limit());
            assert_eq!(answer.err(), Some(rustix::io::Errno::PERM));
        }
        let read = [own.as_raw_nonzero().get().cast_unsigned().into(), 0, 0, 0, 0, 0];
        assert_eq!(raw_call(libc::SYS_prlimit64, read), Ok(0), "to read them is no harm");
        assert_eq!(raw_call(libc::SYS_sched_setaffinity, [1, 8, 0, 0, 0, 0]), Err(Errno::EPERM));
        assert_eq!(raw_call(libc::SYS_setpriority, [0, 1, 19, 0, 0, 0]), Err(Errno::EPERM));
        assert_eq!(raw_call(libc::SYS_setpriority, [2, 0, 19, 0, 0, 0]), Err(Errno::EPERM));
        // The tests may run with a nice value above 0, and lowering it can require privilege.
        assert_eq!(raw_call(libc::SYS_setpriority, [0, 0, 19, 0, 0, 0]), Ok(0));
    });
}

#[test]
fn refuses_host_wide_resources() {
    run_filtered(|| {
        let huge = rustix::fs::memfd_create("huge", MemfdFlags::HUGETLB);
        assert_eq!(huge.unwrap_err(), rustix::io::Errno::INVAL);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        let map = [0, 4096, 0, flags.cast_unsigned().into(), INVALID_ARGUMENT, 0];
        assert_eq!(raw_call(libc::SYS_mmap, map), Err(Errno::ENOMEM));
        assert_eq!(raw_call(libc::SYS_fcntl, [0, 1024, 0, 0, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(raw_call(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0]), Err(Errno::EPERM));
        assert!(raw_call(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]).is_ok());
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the process that is started is the trial")]
fn ordinary_programs_work() {
    run_filtered(|| {
        assert!(std::process::Command::new("/bin/sh").args(["-c", "true | true"]).status().unwrap().success());
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
        assert!(rustix::fs::memfd_create("memory", MemfdFlags::CLOEXEC).is_ok());
        assert!(rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).is_ok());
    });
}

#[test]
fn ordinary_sockets_work() {
    run_filtered(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"word").unwrap();
        let mut word = [0; 4];
        listener.accept().unwrap().0.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
        assert!(UdpSocket::bind("127.0.0.1:0").is_ok());
        assert!(UnixStream::pair().is_ok());
    });
}

#[test]
fn nested_filter_lifts_no_restriction() {
    run_filtered(|| {
        filter().install().unwrap();
        let setns = raw_call(libc::SYS_setns, [INVALID_ARGUMENT; 6]);
        assert_eq!(setns, Err(Errno::EPERM));
    });
}
