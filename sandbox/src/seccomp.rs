//! Filters the system calls of a step: decides which exist, which are refused, and with what error. The filter is a
//! classic BPF program that the kernel runs over the number and the registers of each call (seccomp(2)). It sees no
//! memory, so a call whose flags are in memory cannot be filtered and is refused altogether.
//!
//! The filter is one of several layers of defence. It does not decide which files, processes or hosts are reachable,
//! but removes the calls that build, change or circumvent the other layers.
//!
//! ```text
//! calls (the table) ── rules (arguments) ──> decision ──> assembler ──> program
//! ```

mod argument_rules;
mod assembler;
#[cfg(test)]
mod bpf_simulator;
mod decision;
#[cfg(test)]
mod kernel_tests;
mod numbers;
mod syscall_table;

use std::io;

use libc::sock_filter;
use nix::errno::Errno;

use crate::sys;

/// A BPF program for the kernel. Made by [`filter`].
#[derive(Debug, Clone)]
pub(crate) struct SeccompFilter {
    program: Vec<sock_filter>,
}

/// Returns the filter of every step, whether its network is denied or allowed: an allowed network adds other
/// machines, not other kinds of sockets.
///
/// Calls through the CPU's 32-bit entry point, x32 numbers, and numbers that the table does not contain get ENOSYS.
pub(crate) fn filter() -> SeccompFilter {
    SeccompFilter {
        program: decision::compile(syscall_table::ARCH, syscall_table::UNKNOWN_CALL, &syscall_table::decisions()),
    }
}

/// Returns the filter for a step that shares the host's network although its policy denies the network. It can make
/// Unix sockets and no others, so not even the loopback device is usable.
pub(crate) fn filter_without_internet() -> SeccompFilter {
    SeccompFilter {
        program: decision::compile(
            syscall_table::ARCH,
            syscall_table::UNKNOWN_CALL,
            &syscall_table::decisions_without_internet(),
        ),
    }
}

impl SeccompFilter {
    /// Puts the calling thread and all its future children under the filter permanently, and verifies that the filter
    /// is active. The caller has set `no_new_privs` and started no other thread.
    ///
    /// # Errors
    /// The kernel rejects the filter (ENOSYS or EINVAL: it is built without seccomp; EACCES: `no_new_privs` is off;
    /// ENOMEM: too many filters already), or accepts it and lets a forbidden call through.
    pub(crate) fn install(&self) -> io::Result<()> {
        sys::seccomp_filter(&self.program)?;
        self.verify_active()
    }

    /// Returns the number of instructions of the program.
    pub(crate) fn len(&self) -> usize {
        self.program.len()
    }

    /// Makes one call that only this filter answers in this way, and one that must be refused: `setns` with a
    /// descriptor of a pipe, which without a filter fails with EINVAL and changes nothing.
    fn verify_active(&self) -> io::Result<()> {
        expect_error("the witness", sys::unknown_call(syscall_table::PROBE_NUMBER), syscall_table::PROBE_ERROR)?;
        let pipe = nix::unistd::pipe()?;
        expect_error("`setns`", nix::sched::setns(&pipe.0, nix::sched::CloneFlags::empty()), Errno::EPERM)
    }
}

fn expect_error(what: &str, answer: Result<(), Errno>, wanted: Errno) -> io::Result<()> {
    match answer {
        Err(errno) if errno == wanted => Ok(()),
        Err(errno) => {
            Err(io::Error::other(format!("under the filter, {what} returned {errno:?} instead of {wanted:?}")))
        }
        Ok(()) => Err(io::Error::other(format!("under the filter, {what} was allowed"))),
    }
}
