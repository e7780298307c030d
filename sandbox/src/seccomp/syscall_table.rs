//! Lists every system call known to proctor with its decision. The module `argument_rules` contains the decisions that
//! depend on arguments. A call that is not in the table does not exist for a step.
//!
//! The table is based on the calls that Docker's default profile allows without a capability
//! (github.com/moby/profiles, seccomp). `docs/sandbox.md` lists the differences and their reasons.

use nix::errno::Errno;

use super::decision::{DecisionRange, SyscallDecision};
use super::{argument_rules, numbers};

/// A system call of this architecture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Syscall {
    /// The name in libc, including the prefix.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests print the names of failing calls"))]
    pub(super) name: &'static str,
    /// Its number.
    pub(super) number: u32,
}

/// Lists calls by their names.
macro_rules! calls {
    ($($name:ident)*) => { &[$(Syscall { name: stringify!($name), number: numbers::$name as u32 }),*] };
}

/// Calls that get the same decision.
type SyscallGroup = (SyscallDecision, &'static [Syscall]);

/// `AUDIT_ARCH_X86_64`.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCH: u32 = 0xc000_003e;

/// `AUDIT_ARCH_AARCH64`.
#[cfg(target_arch = "aarch64")]
pub(super) const ARCH: u32 = 0xc000_00b7;

/// A number that no kernel implements, below the numbers of x32; see `filter`.
pub(super) const PROBE_NUMBER: u32 = 0x3fff_ffff;

/// The filter's answer to [`PROBE_NUMBER`]. No kernel returns this error for an unknown call, and no other filter has a
/// reason to return it.
pub(super) const PROBE_ERROR: Errno = Errno::ENOTNAM;

/// The number that a tracer writes to skip a call: the kernel then does nothing, and leaves the result to the tracer
/// (ptrace(2), seccomp(2)).
const TRACER_SKIP_NUMBER: u32 = u32::MAX;

/// The answer of a kernel without the call, on which programs fall back to an alternative. It is used for calls newer
/// than this table, for the numbers of x32, and for calls through the 32-bit entry points.
pub(super) const UNKNOWN_CALL: SyscallDecision = SyscallDecision::Refuse(Errno::ENOSYS);

/// Returns the decisions in the order of call numbers, from 0 to the last possible number.
pub(super) fn decisions() -> Vec<DecisionRange> {
    decisions_with(argument_rules::SOCKET)
}

/// Returns the same decisions, except that no internet sockets can be made.
pub(super) fn decisions_without_internet() -> Vec<DecisionRange> {
    decisions_with(argument_rules::UNIX_SOCKET)
}

fn decisions_with(socket: SyscallDecision) -> Vec<DecisionRange> {
    let mut known: Vec<DecisionRange> =
        COMMON_CALLS.iter().flat_map(with_numbers).chain(LEGACY.iter().flat_map(with_numbers)).collect();
    for (_, decision) in &mut known {
        if *decision == argument_rules::SOCKET {
            *decision = socket;
        }
    }
    known.push((PROBE_NUMBER, SyscallDecision::Refuse(PROBE_ERROR)));
    known.push((TRACER_SKIP_NUMBER, SyscallDecision::Allow));
    known.sort_unstable_by_key(|(number, _)| *number);
    let mut steps = Vec::with_capacity(known.len());
    let mut next = 0;
    for (number, decision) in known {
        if next < number {
            extend(&mut steps, (next, UNKNOWN_CALL));
        }
        extend(&mut steps, (number, decision));
        next = number.saturating_add(1);
    }
    steps
}

fn with_numbers((decision, calls): &SyscallGroup) -> impl Iterator<Item = DecisionRange> {
    calls.iter().map(|call| (call.number, *decision))
}

/// Appends a step unless it has the same decision as the last one.
fn extend(steps: &mut Vec<DecisionRange>, step: DecisionRange) {
    if steps.last().is_none_or(|(_, decision)| *decision != step.1) {
        steps.push(step);
    }
}

/// The calls that both architectures have.
pub(super) const COMMON_CALLS: &[SyscallGroup] = &[
    (SyscallDecision::Allow, FILES),
    (SyscallDecision::Allow, MEMORY),
    (SyscallDecision::Allow, PROCESSES),
    (SyscallDecision::Allow, WAITING),
    (SyscallDecision::Allow, SOCKETS_AND_IPC),
    (argument_rules::MMAP, calls! { SYS_mmap }),
    (argument_rules::MEMORY_FILE, calls! { SYS_memfd_create }),
    (argument_rules::SHARED_MEMORY, calls! { SYS_shmget }),
    (argument_rules::CLONE, calls! { SYS_clone }),
    (argument_rules::UNSHARE, calls! { SYS_unshare }),
    (argument_rules::SOCKET, calls! { SYS_socket }),
    (argument_rules::SOCKET_PAIR, calls! { SYS_socketpair }),
    (argument_rules::IOCTL, calls! { SYS_ioctl }),
    (argument_rules::FCNTL, calls! { SYS_fcntl }),
    (argument_rules::PRCTL, calls! { SYS_prctl }),
    (argument_rules::PERSONALITY, calls! { SYS_personality }),
    (argument_rules::PRLIMIT, calls! { SYS_prlimit64 }),
    (argument_rules::SETRLIMIT, calls! { SYS_setrlimit }),
    (
        argument_rules::SCHEDULING,
        calls! { SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setparam SYS_sched_setscheduler },
    ),
    (argument_rules::PRIORITY, calls! { SYS_setpriority }),
    (argument_rules::IO_PRIORITY, calls! { SYS_ioprio_set }),
    (argument_rules::MODE_IN_SECOND_ARGUMENT, calls! { SYS_fchmod }),
    (argument_rules::MODE_IN_THIRD_ARGUMENT, calls! { SYS_fchmodat SYS_fchmodat2 }),
    (argument_rules::OPENAT, calls! { SYS_openat }),
    (argument_rules::MKNODAT, calls! { SYS_mknodat }),
    (SyscallDecision::Refuse(Errno::EPERM), REFUSED),
    (SyscallDecision::Refuse(Errno::ENOSYS), ABSENT),
    // An overlay returns this error anyway. Without `open_by_handle_at` a handle is useless.
    (SyscallDecision::Refuse(Errno::EOPNOTSUPP), calls! { SYS_name_to_handle_at }),
];

/// File operations by path and by descriptor. `statmount` and `listmount` return the information of
/// `/proc/self/mountinfo`.
const FILES: &[Syscall] = calls! {
    SYS_cachestat SYS_chdir SYS_close SYS_close_range SYS_copy_file_range SYS_dup SYS_dup3 SYS_faccessat SYS_faccessat2
    SYS_fadvise64 SYS_fallocate SYS_fchdir SYS_fchown SYS_fchownat SYS_fdatasync SYS_fgetxattr SYS_flistxattr SYS_flock
    SYS_fremovexattr SYS_fsetxattr SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_getcwd SYS_getdents64 SYS_getxattr
    SYS_getxattrat SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_lgetxattr SYS_linkat SYS_listmount
    SYS_listxattr SYS_listxattrat SYS_llistxattr SYS_lremovexattr SYS_lseek SYS_lsetxattr SYS_mkdirat SYS_newfstatat
    SYS_pipe2 SYS_pread64 SYS_preadv SYS_preadv2 SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readahead
    SYS_readlinkat SYS_readv SYS_removexattr SYS_removexattrat SYS_renameat SYS_renameat2 SYS_sendfile SYS_setxattr
    SYS_setxattrat SYS_splice SYS_statfs SYS_statmount SYS_statx SYS_symlinkat SYS_sync SYS_sync_file_range SYS_syncfs
    SYS_tee SYS_truncate SYS_umask SYS_unlinkat SYS_utimensat SYS_vmsplice SYS_write SYS_writev
};

/// A process's own memory, including its NUMA placement.
const MEMORY: &[Syscall] = calls! {
    SYS_brk SYS_get_mempolicy SYS_madvise SYS_map_shadow_stack SYS_mbind SYS_mincore SYS_mlock SYS_mlock2 SYS_mlockall
    SYS_mprotect SYS_mremap SYS_mseal SYS_msync SYS_munlock SYS_munlockall SYS_munmap SYS_pkey_alloc SYS_pkey_free
    SYS_pkey_mprotect SYS_remap_file_pages SYS_set_mempolicy SYS_set_mempolicy_home_node
};

/// Processes, credentials, signals and scheduling. The PID and user namespaces limit the processes that these calls
/// reach. `ptrace` serves debuggers and leak checkers on the step's own processes. `seccomp` and Landlock can only
/// add restrictions: of two filters the stricter answer applies, and an error is stricter than the answer of a
/// listener.
const PROCESSES: &[Syscall] = calls! {
    SYS_capget SYS_capset SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_get_robust_list SYS_getcpu SYS_getegid
    SYS_geteuid SYS_getgid SYS_getgroups SYS_getpgid SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getresgid
    SYS_getresuid SYS_getrlimit SYS_getrusage SYS_getsid SYS_gettid SYS_getuid SYS_ioprio_get SYS_kill
    SYS_landlock_add_rule SYS_landlock_create_ruleset SYS_landlock_restrict_self SYS_membarrier SYS_pidfd_open
    SYS_pidfd_send_signal SYS_process_mrelease SYS_ptrace SYS_restart_syscall SYS_rseq SYS_rt_sigaction
    SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait
    SYS_rt_tgsigqueueinfo SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_getaffinity
    SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler SYS_sched_rr_get_interval SYS_sched_yield SYS_seccomp
    SYS_set_robust_list SYS_set_tid_address SYS_setfsgid SYS_setfsuid SYS_setgid SYS_setgroups SYS_setpgid SYS_setregid
    SYS_setresgid SYS_setresuid SYS_setreuid SYS_setsid SYS_setuid SYS_sigaltstack SYS_sysinfo SYS_tgkill
    SYS_times SYS_tkill SYS_uname SYS_wait4 SYS_waitid
};

/// Clocks, timers, and waiting for several events.
const WAITING: &[Syscall] = calls! {
    SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
    SYS_epoll_pwait2 SYS_eventfd2 SYS_futex SYS_futex_requeue SYS_futex_wait SYS_futex_waitv SYS_futex_wake
    SYS_getitimer SYS_gettimeofday SYS_nanosleep SYS_ppoll SYS_pselect6 SYS_setitimer SYS_signalfd4 SYS_timer_create
    SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create SYS_timerfd_gettime
    SYS_timerfd_settime
};

/// Operations on existing sockets, and objects of the IPC namespace.
const SOCKETS_AND_IPC: &[Syscall] = calls! {
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt SYS_listen
    SYS_msgctl SYS_msgget SYS_msgrcv SYS_msgsnd SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_semctl SYS_semget SYS_semop
    SYS_semtimedop SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_setsockopt SYS_shmat SYS_shmctl SYS_shmdt SYS_shutdown
};

/// Calls that a step does not need, or that require a capability: mounts and namespaces, the kernel itself with its
/// keys, probes and clocks, and other processes' memory.
const REFUSED: &[Syscall] = calls! {
    SYS_acct SYS_add_key SYS_adjtimex SYS_bpf SYS_chroot SYS_clock_adjtime SYS_clock_settime SYS_delete_module
    SYS_fanotify_init SYS_fanotify_mark SYS_finit_module SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_init_module
    SYS_kexec_file_load SYS_kexec_load SYS_keyctl SYS_migrate_pages SYS_mount SYS_mount_setattr SYS_move_mount
    SYS_move_pages SYS_open_by_handle_at SYS_open_tree SYS_open_tree_attr SYS_perf_event_open SYS_pidfd_getfd
    SYS_pivot_root SYS_quotactl SYS_quotactl_fd SYS_reboot SYS_request_key SYS_setdomainname SYS_sethostname SYS_setns
    SYS_settimeofday SYS_swapoff SYS_swapon SYS_syslog SYS_umount2 SYS_userfaultfd SYS_vhangup
};

/// Calls without which programs have a fallback.
///
/// - `clone3` and `openat2` pass their flags in memory, where no filter can see them.
/// - `io_uring` performs the operations that the filter controls, without passing the filter.
/// - Requests for asynchronous input and output are counted for the whole host.
/// - A debugger falls back from `process_vm_readv` to `ptrace` or `/proc/<pid>/mem`.
/// - `memfd_secret` memory cannot be inspected, and disables hibernation.
/// - `mq_open` creates the queue before Landlock refuses to open it, and no file in `/proc` lists the queues of an
///   IPC namespace: the next command in the sandbox would find them.
const ABSENT: &[Syscall] = calls! {
    SYS_clone3 SYS_io_cancel SYS_io_destroy SYS_io_getevents SYS_io_pgetevents SYS_io_setup SYS_io_submit
    SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup SYS_kcmp SYS_lookup_dcookie SYS_lsm_get_self_attr
    SYS_lsm_list_modules SYS_lsm_set_self_attr SYS_memfd_secret SYS_mq_getsetattr SYS_mq_notify SYS_mq_open
    SYS_mq_timedreceive SYS_mq_timedsend SYS_mq_unlink SYS_nfsservctl SYS_openat2 SYS_process_madvise
    SYS_process_vm_readv SYS_process_vm_writev
};

/// The calls that only x86_64 has, most of them older forms of others. The kernel itself inserts the calls of
/// user-space probes (`uprobe`, `uretprobe`) into a traced program.
#[cfg(target_arch = "x86_64")]
pub(super) const LEGACY: &[SyscallGroup] = &[
    (
        SyscallDecision::Allow,
        calls! {
            SYS_access SYS_alarm SYS_arch_prctl SYS_chown SYS_dup2 SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_fork
            SYS_futimesat SYS_getdents SYS_getpgrp SYS_inotify_init SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_pause
            SYS_pipe SYS_poll SYS_readlink SYS_rename SYS_rmdir SYS_select SYS_signalfd SYS_stat SYS_symlink SYS_time
            SYS_unlink SYS_uprobe SYS_uretprobe SYS_utime SYS_utimes SYS_vfork
        },
    ),
    (argument_rules::MODE_IN_SECOND_ARGUMENT, calls! { SYS_chmod SYS_creat }),
    (argument_rules::OPEN, calls! { SYS_open }),
    (argument_rules::MKNOD, calls! { SYS_mknod }),
    (SyscallDecision::Refuse(Errno::EPERM), calls! { SYS_ioperm SYS_iopl }),
    // Segments of 16-bit programs; many kernels are built without the call.
    (SyscallDecision::Refuse(Errno::ENOSYS), calls! { SYS_modify_ldt SYS_uselib SYS_sysfs SYS_ustat SYS__sysctl }),
];

/// The calls that only aarch64 has: none.
#[cfg(target_arch = "aarch64")]
pub(super) const LEGACY: &[SyscallGroup] = &[];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the table of system calls is written for x86_64 and aarch64");

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::seccomp::assembler::SeccompWord;
    use crate::seccomp::bpf_simulator::{SimulatedCall, check_program, run_program};
    use crate::seccomp::decision::{compile, errno_answer};

    fn program() -> Vec<libc::sock_filter> {
        compile(ARCH, UNKNOWN_CALL, &decisions())
    }

    fn all_calls() -> impl Iterator<Item = (&'static Syscall, SyscallDecision)> {
        COMMON_CALLS.iter().chain(LEGACY).flat_map(|(decision, calls)| calls.iter().map(|call| (call, *decision)))
    }

    fn with_word(call: SimulatedCall, word: SeccompWord, value: u32) -> SimulatedCall {
        let mut arguments = call.arguments;
        match word {
            SeccompWord::Low(at) => arguments[at as usize] = arguments[at as usize] >> 32 << 32 | u64::from(value),
            SeccompWord::High(at) => {
                arguments[at as usize] = arguments[at as usize] & 0xffff_ffff | u64::from(value) << 32;
            }
            SeccompWord::Number | SeccompWord::Arch => {}
        }
        SimulatedCall { arguments, ..call }
    }

    #[test]
    fn lists_each_call_once() {
        let mut names = BTreeMap::new();
        for (call, _) in all_calls() {
            let before = names.insert(call.number, call.name);
            assert_eq!(before, None, "{} again", call.name);
        }
        assert!(names.len() > 250);
    }

    #[test]
    fn filter_passes_kernel_checks() {
        let program = program();
        check_program(&program);
        assert!(program.len() < 512, "{} instructions: the search is balanced, and checks are shared", program.len());
    }

    #[test]
    fn decides_every_number_by_table() {
        let program = program();
        let table: BTreeMap<u32, SyscallDecision> =
            all_calls().map(|(call, decision)| (call.number, decision)).collect();
        for number in (0..4096).chain(0x4000_0000..0x4000_0400).chain([
            PROBE_NUMBER - 1,
            PROBE_NUMBER + 1,
            TRACER_SKIP_NUMBER - 1,
        ]) {
            let decision = table.get(&number).unwrap_or(&UNKNOWN_CALL);
            let call = SimulatedCall::new(number);
            assert_eq!(run_program(&program, &call), decision.expected_answer(&call), "call {number:#x}");
        }
        assert_eq!(run_program(&program, &SimulatedCall::new(PROBE_NUMBER)), errno_answer(PROBE_ERROR));
        assert_eq!(run_program(&program, &SimulatedCall::new(TRACER_SKIP_NUMBER)), libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn decides_boundary_values_by_rule() {
        let program = program();
        for (known, decision) in all_calls() {
            let turns = decision.boundary_values();
            for (word, value) in &turns {
                for (other, beside) in &turns {
                    let call = with_word(with_word(SimulatedCall::new(known.number), *other, *beside), *word, *value);
                    assert_eq!(
                        run_program(&program, &call),
                        decision.expected_answer(&call),
                        "{}: {call:x?}",
                        known.name
                    );
                }
            }
        }
    }

    #[test]
    fn refuses_other_calling_conventions() {
        let program = program();
        // AUDIT_ARCH_I386, AUDIT_ARCH_ARM, AUDIT_ARCH_X86_64 with inverted bits, and an invalid value.
        for arch in [0x4000_0003, 0x4000_0028, !ARCH, 0] {
            for number in (0..1024).chain([PROBE_NUMBER, TRACER_SKIP_NUMBER]) {
                let call = SimulatedCall { arch, ..SimulatedCall::new(number) };
                assert_eq!(run_program(&program, &call), errno_answer(Errno::ENOSYS), "{call:x?}");
            }
        }
    }

    #[test]
    fn allows_usual_calls_by_number() {
        // The kernel caches such answers and does not run the program for them (Linux 5.11).
        let program = program();
        for number in [libc::SYS_read, libc::SYS_write, libc::SYS_futex, libc::SYS_newfstatat, libc::SYS_munmap] {
            let call = SimulatedCall { arguments: [u64::MAX; 6], ..SimulatedCall::new(u32::try_from(number).unwrap()) };
            assert_eq!(run_program(&program, &call), libc::SECCOMP_RET_ALLOW);
        }
    }
}
