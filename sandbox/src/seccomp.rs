//! The system calls of a step: which exist for it, which are refused, and with what error. A
//! classic BPF program that the kernel runs over the number and the registers of each call
//! (seccomp(2)); it sees no memory, so that a call whose flags lie there is as good as unfiltered,
//! and is refused whole.
//!
//! The filter is one wall of several: it does not decide which files, processes or hosts can be
//! reached, but takes away the calls with which the other walls are built, moved or passed by.
//!
//! ```text
//! calls (the table) ── rules (arguments) ──> decision ──> assembler ──> program
//! ```

mod assembler;
mod calls;
mod decision;
#[cfg(test)]
mod machine;
mod numbers;
mod rules;
#[cfg(test)]
mod trials;

use std::io;

use libc::sock_filter;
use nix::errno::Errno;

use crate::sys;

/// A program that the kernel can be given. Made by [`filter`].
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    program: Vec<sock_filter>,
}

/// The filter of every step, whether its network is denied or allowed: what an allowed network
/// adds are other machines, not other kinds of sockets.
///
/// Calls by the 32-bit entry of the CPU, x32 numbers, and numbers that the table does not name
/// get ENOSYS.
pub(crate) fn filter() -> Filter {
    Filter { program: decision::compile(calls::ARCH, calls::UNKNOWN, &calls::steps()) }
}

/// The same for a step that shares the host's network although it is denied to it: it can make
/// Unix sockets and no others, so that not even the loopback device is there.
pub(crate) fn filter_without_internet() -> Filter {
    Filter { program: decision::compile(calls::ARCH, calls::UNKNOWN, &calls::steps_without_internet()) }
}

impl Filter {
    /// Puts the calling thread and all that it will start under the filter, for good, and looks
    /// whether it holds. The caller has set `no_new_privs` and started no other thread.
    ///
    /// # Errors
    /// The kernel does not take the filter (ENOSYS or EINVAL: it is built without seccomp; EACCES:
    /// `no_new_privs` is off; ENOMEM: too many filters already), or takes it and lets a call through.
    pub(crate) fn install(&self) -> io::Result<()> {
        sys::seccomp_filter(&self.program)?;
        self.look()
    }

    /// How many instructions the program has.
    pub(crate) fn len(&self) -> usize {
        self.program.len()
    }

    /// One call that only this filter answers so, and one that is really refused: `setns` of a
    /// descriptor that is no namespace, which without a filter is EINVAL and changes nothing.
    fn look(&self) -> io::Result<()> {
        expect("the witness", sys::unknown_call(calls::WITNESS), calls::WITNESSED)?;
        let pipe = nix::unistd::pipe()?;
        expect("`setns`", nix::sched::setns(&pipe.0, nix::sched::CloneFlags::empty()), Errno::EPERM)
    }
}

fn expect(what: &str, answer: Result<(), Errno>, wanted: Errno) -> io::Result<()> {
    match answer {
        Err(errno) if errno == wanted => Ok(()),
        Err(errno) => {
            Err(io::Error::other(format!("under the filter, {what} returned {errno:?} instead of {wanted:?}")))
        }
        Ok(()) => Err(io::Error::other(format!("under the filter, {what} was allowed"))),
    }
}
