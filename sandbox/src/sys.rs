//! Wraps the system calls that no safe wrapper covers. All `unsafe` code of this crate is in this module.
#![expect(
    unsafe_code,
    reason = "mount_setattr, fork, close_range, signal dispositions and interface flags have no safe wrapper"
)]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The mounts that a call affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountScope {
    /// The one mount.
    Single,
    /// The mount and all mounts below it.
    Recursive,
}

/// Changes attributes of the mount that `fd` names: sets `attributes`, makes the mount private if `private` is set,
/// and maps its owners by the user namespace `owners`. `mount_setattr(2)`.
pub(crate) fn mount_setattr(
    fd: BorrowedFd<'_>,
    reach: MountScope,
    attributes: u64,
    private: bool,
    owners: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // SAFETY: an all-zero mount_attr is a valid value of the plain C struct.
    let mut attr: libc::mount_attr = unsafe { zeroed() };
    attr.attr_set = attributes;
    if private {
        attr.propagation = libc::MS_PRIVATE;
    }
    if let Some(owners) = owners {
        attr.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = owners.as_raw_fd().cast_unsigned().into();
    }
    let recursive = if reach == MountScope::Recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string, the struct lives through the call and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check_result(result)
}

/// Clears the read-only attribute of the one mount that `fd` names. `mount_setattr(2)`.
pub(crate) fn make_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an all-zero mount_attr is a valid value of the plain C struct.
    let mut attr: libc::mount_attr = unsafe { zeroed() };
    attr.attr_clr = libc::MOUNT_ATTR_RDONLY;
    // SAFETY: the path is a C string, the struct lives through the call and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check_result(result)
}

/// The side of a [`fork`].
#[derive(Debug)]
pub(crate) enum ForkResult {
    /// The new process.
    Child,
    /// The parent, with the child's id in the parent's PID namespace.
    Parent(i32),
}

/// Forks this process, which must have a single thread. The helper never starts another.
pub(crate) fn fork() -> io::Result<ForkResult> {
    // SAFETY: the helper has a single thread, so no lock can be held by a thread that the child
    // lacks, and the child may allocate.
    match unsafe { libc::fork() } {
        0 => Ok(ForkResult::Child),
        pid if pid > 0 => Ok(ForkResult::Parent(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forks this process like [`fork`], and creates the child inside the control group (version 2) whose directory
/// `group` names. `clone3(2)`, `CLONE_INTO_CGROUP`. Moving a process later makes the kernel wait for all processors.
pub(crate) fn fork_into(group: BorrowedFd<'_>) -> io::Result<ForkResult> {
    // SAFETY: an all-zero clone_args is a valid value of the plain C struct.
    let mut args: libc::clone_args = unsafe { zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    args.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
    // SAFETY: no memory is shared and no stack given, so this is a fork; the helper has a single thread and uses
    // nothing of the C library that caches the thread's id.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) } {
        0 => Ok(ForkResult::Child),
        pid if pid > 0 => Ok(ForkResult::Parent(i32::try_from(pid).map_err(io::Error::other)?)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `CLONE_INTO_CGROUP` of linux/sched.h. It does not fit the type of the C library's constant.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A child that has ended.
#[derive(Debug)]
pub(crate) struct ReapedChild {
    /// Its id.
    pub(crate) pid: i32,
    /// The wait status, as returned by the kernel.
    pub(crate) status: i32,
    /// The resource usage of the child and of the processes that it has reaped.
    pub(crate) usage: ProcessUsage,
}

/// The resource usage of processes.
#[derive(Debug)]
pub(crate) struct ProcessUsage {
    /// CPU time in user mode.
    pub(crate) user: Duration,
    /// CPU time in the kernel.
    pub(crate) system: Duration,
    /// The largest resident set size of any single process, in KiB.
    pub(crate) max_rss_kib: u64,
}

/// Reaps a child that has ended; `None` if all children are still running. `wait4(2)` is the only call that reports
/// the resource usage of a single child.
///
/// # Errors
/// `ECHILD`: there is no child.
pub(crate) fn reap_any(options: i32) -> io::Result<Option<ReapedChild>> {
    // SAFETY: an all-zero rusage is a valid value of the plain C struct.
    let (mut status, mut usage): (i32, libc::rusage) = (0, unsafe { zeroed() });
    // SAFETY: both values live through the call.
    let pid = unsafe { libc::wait4(-1, &raw mut status, options, &raw mut usage) };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    match pid {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(ReapedChild {
            pid,
            status,
            usage: ProcessUsage {
                user: time(usage.ru_utime),
                system: time(usage.ru_stime),
                max_rss_kib: usage.ru_maxrss.unsigned_abs(),
            },
        })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives this process a new, empty session keyring. `keyctl(2)`, `KEYCTL_JOIN_SESSION_KEYRING`.
pub(crate) fn new_session_keyring() -> io::Result<()> {
    // SAFETY: the name is null, with which the call reads no memory and makes an unnamed keyring.
    let result =
        unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns freed memory of this process to the system, which the C library otherwise keeps for later allocations.
/// `malloc_trim(3)`; does nothing without glibc.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointer, and may be made from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Detaches this process, which must not be a session leader, from its controlling terminal. `ioctl_tty(2)`,
/// `TIOCNOTTY`.
pub(crate) fn detach_terminal(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    check_result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) }.into())
}

/// The time at which the descriptors above the standard streams are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseTime {
    /// At once.
    Now,
    /// On exec.
    OnExec,
}

/// Closes every descriptor except 0, 1 and 2. `close_range(2)`.
pub(crate) fn close_others(when: CloseTime) -> io::Result<()> {
    let flags = if when == CloseTime::OnExec { libc::CLOSE_RANGE_CLOEXEC } else { 0 };
    // SAFETY: with `Now` it is called before the helper has opened anything, so no descriptor has an owner; with
    // `OnExec` nothing is closed before the program is replaced.
    check_result(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, flags) })
}

/// Closes the descriptors that this program inherited: every descriptor from 3 on except those in `kept`, which the
/// caller passed deliberately. Otherwise a process that waits for the end of one of the caller's pipes would also
/// wait for this process. `close_range(2)`. Call it once, at the start of a program, before it has opened anything or
/// started a second thread: a later call would close descriptors that have owners in this process.
///
/// # Errors
/// A system call fails; or the function was called before, in which case nothing is closed.
pub fn close_inherited(kept: std::ops::Range<u32>) -> io::Result<()> {
    static CALLED: AtomicBool = AtomicBool::new(false);
    if CALLED.swap(true, Ordering::Relaxed) {
        return Err(io::Error::other(
            "inherited descriptors were already closed, and all open descriptors have owners",
        ));
    }
    let all = [(3, kept.start.saturating_sub(1)), (kept.end.max(3), u32::MAX)];
    for (first, last) in all.into_iter().filter(|(first, last)| first <= last) {
        // SAFETY: this runs at the start of a program, at most once, before anything was opened, so no
        // descriptor has an owner. The descriptors in `kept` stay open.
        check_result(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
    }
    Ok(())
}

/// Takes over descriptor 0, through which the daemon passed this process's end of the control socket.
pub(crate) fn take_stdin() -> io::Result<OwnedFd> {
    // SAFETY: descriptor 0 is open for as long as the process lives: std never closes it.
    let stdin = unsafe { BorrowedFd::borrow_raw(0) };
    let control = rustix::io::fcntl_dupfd_cloexec(stdin, 3)?;
    Ok(control)
}

/// Resets every signal to its default action: signals that the daemon ignores must not stay ignored in a step, and
/// Rust itself ignores SIGPIPE. Uses the raw system call, since the C library reserves two signals for itself.
pub(crate) fn reset_signals() {
    /// `struct sigaction` of the kernel: handler, flags, restorer, mask.
    static DEFAULT: [u64; 4] = [0; 4];
    for signal in 1..=SIGNAL_COUNT {
        // SAFETY: the kernel reads the 32 bytes of its own sigaction, in which all zeros mean SIG_DFL without flags:
        // no code is installed. SIGKILL and SIGSTOP are refused.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const DEFAULT,
                std::ptr::null_mut::<u64>(),
                SIGNAL_COUNT / 8,
            );
        }
    }
}

/// Makes children waitable and signals deliverable in this process, whatever it inherited from its caller: with
/// SIGCHLD ignored, the kernel reaps children itself (wait(2), NOTES), and a blocked SIGINT or SIGTERM is never
/// delivered. Call it at the start of a program, before its first thread and its first child.
///
/// # Errors
/// A system call fails.
pub fn restore_signal_handling() -> io::Result<()> {
    let default = nix::sys::signal::SigHandler::SigDfl;
    // SAFETY: the default action runs no code of this program, so there is no handler that could be unsafe in a
    // signal's context.
    unsafe { nix::sys::signal::signal(nix::sys::signal::Signal::SIGCHLD, default) }?;
    nix::sys::signal::SigSet::all().thread_unblock()?;
    Ok(())
}

/// A guard that blocks SIGINT, SIGTERM and SIGHUP. Pending signals are delivered when it is dropped.
#[derive(Debug)]
pub struct BlockedSignals(nix::sys::signal::SigSet);

/// Blocks the signals that ask a program to end, for a short time in which nothing listens for them. For a program
/// with a single thread.
///
/// # Errors
/// A system call fails.
pub fn block_termination_signals() -> io::Result<BlockedSignals> {
    Ok(BlockedSignals(termination_signals().thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?))
}

fn termination_signals() -> nix::sys::signal::SigSet {
    use nix::sys::signal::Signal;
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect()
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // The system has no reason to refuse this thread's own former mask.
        let _ = self.0.thread_set_mask();
    }
}

/// Keeps the termination signals blocked that the previous program of this process blocked before it executed this one,
/// and unblocks all others. For a program with a single thread.
///
/// # Errors
/// A system call fails.
pub fn keep_termination_signals_blocked() -> io::Result<BlockedSignals> {
    termination_signals().thread_set_mask()?;
    Ok(BlockedSignals(nix::sys::signal::SigSet::empty()))
}

/// Takes ownership of a descriptor that this process inherited when it was executed. Such a descriptor has no
/// close-on-exec flag, in contrast to every descriptor that this process opened itself; it gets the flag here.
///
/// # Errors
/// The descriptor is not open, is a standard stream, or was not inherited.
pub fn take_inherited_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the call passes no pointers; it fails if the descriptor is not open.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    check_result(flags.into())?;
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a plain call without pointers.
    check_result(unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) }.into())?;
    // SAFETY: the descriptor is open, and it was inherited, so no code of this process owns it yet: the standard library
    // opens every descriptor with the flag, and a second call finds the flag and fails.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The number of signals on Linux, on all machines except MIPS.
const SIGNAL_COUNT: usize = 64;

/// Creates a segment, a semaphore set and a message queue of System V, removes each, and returns their ids.
pub(crate) fn next_ipc_ids() -> io::Result<[i32; 3]> {
    let made = |id: libc::c_int| if id < 0 { Err(io::Error::last_os_error()) } else { Ok(id) };
    let mode = libc::IPC_CREAT | 0o600;
    // SAFETY: a plain call without pointers; a negative result is an error and no id.
    let segment = made(unsafe { libc::shmget(libc::IPC_PRIVATE, 1, mode) })?;
    // SAFETY: removing uses no buffer, so the pointer may be null.
    check_result(unsafe { libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) }.into())?;
    // SAFETY: a plain call without pointers, as above.
    let semaphore = made(unsafe { libc::semget(libc::IPC_PRIVATE, 1, mode) })?;
    // SAFETY: removing takes no fourth argument.
    check_result(unsafe { libc::semctl(semaphore, 0, libc::IPC_RMID) }.into())?;
    // SAFETY: a plain call without pointers, as above.
    let queue = made(unsafe { libc::msgget(libc::IPC_PRIVATE, mode) })?;
    // SAFETY: removing uses no buffer, so the pointer may be null.
    check_result(unsafe { libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut()) }.into())?;
    Ok([segment, semaphore, queue])
}

/// Brings the network device `lo` of the current network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: a plain socket call without pointers; a negative result is an error and no descriptor.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: an all-zero ifreq is a valid value of the plain C struct.
    let mut request: libc::ifreq = unsafe { zeroed() };
    copy_name(&mut request.ifr_name, c"lo");
    let (up, running) = (libc::IFF_UP, libc::IFF_RUNNING);
    request.ifr_ifru.ifru_flags = i16::try_from(up | running).map_err(io::Error::other)?;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which lives through the call.
    check_result(
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request) }.into(),
    )
}

fn copy_name(to: &mut [libc::c_char], name: &CStr) {
    for (to, from) in to.iter_mut().zip(name.to_bytes()) {
        *to = from.cast_signed();
    }
}

fn check_result(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts the calling thread under a seccomp filter permanently. `seccomp(2)`.
///
/// SECCOMP_FILTER_FLAG_SPEC_ALLOW avoids a cost to every test: before Linux 5.16, installing a filter also disabled
/// the CPU's speculative store bypass and indirect branch prediction for the thread. That mitigation protects secrets
/// from other code in the same address space, and a step has no such secrets. Later kernels do not do this, with or
/// without the flag.
pub(crate) fn seccomp_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the kernel copies `len` instructions, which live through the call, and writes none.
    check_result(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) })
}

/// Calls a system call number that no kernel implements, without arguments, to see what answers: the kernel with
/// ENOSYS, or a filter.
pub(crate) fn unknown_call(number: u32) -> Result<(), nix::errno::Errno> {
    // SAFETY: a call that does not exist does nothing; if a kernel ever assigned the number, the call would get no
    // pointer but null.
    let result = unsafe { libc::syscall(number.into(), 0, 0, 0, 0, 0, 0) };
    nix::errno::Errno::result(result).map(drop)
}

/// Makes any system call, to observe the kernel's answer. Tests pass numbers and null, no pointers.
#[cfg(test)]
pub(crate) fn raw_call(number: libc::c_long, a: [u64; 6]) -> Result<i64, nix::errno::Errno> {
    // SAFETY: no argument points to memory, so the kernel reads and writes none of this process.
    let result = unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
    nix::errno::Errno::result(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_inherited_descriptors_and_only_once() {
        use std::os::fd::IntoRawFd as _;
        let inherited = || {
            let file = std::fs::File::open("/dev/null").expect("there");
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).expect("inheritable");
            file.into_raw_fd()
        };
        let number = inherited();
        let taken = take_inherited_descriptor(number).expect("inherited");
        assert!(rustix::io::fcntl_getfd(&taken).expect("open").contains(rustix::io::FdFlags::CLOEXEC));
        take_inherited_descriptor(number).expect_err("it has an owner");
        let own = std::fs::File::open("/dev/null").expect("there");
        take_inherited_descriptor(own.as_raw_fd()).expect_err("not inherited");
        for number in [-1, 0, 1, 2, 1 << 20] {
            take_inherited_descriptor(number).expect_err("not open, or a standard stream");
        }
    }

    #[test]
    fn close_inherited_rejects_second_call() {
        // Keeps all of them, since concurrent tests own some.
        let all = 3..u32::MAX;
        close_inherited(all.clone()).expect("nothing to close");
        let again = close_inherited(all).expect_err("the second time");
        assert!(again.to_string().contains("owners"), "{again}");
    }
}
