//! A tracer that runs a program and kills it at the n-th system call that writes below a directory, or half-way
//! through that call. It can also answer such calls instead of the kernel, like a disk that fails or is full. It
//! counts the calls of all threads, but not of child processes, which must detect themselves that the program is
//! gone. It uses ptrace(2) directly, because strace only counts calls for each thread.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// First argument that makes this binary a tracer.
const ROLE: &str = "--as-tracer";
/// Exit code of a tracer that has killed its program.
pub(crate) const KILLED: i32 = 9;
/// Exit code of a tracer that cannot trace.
const CANNOT: u8 = 8;

/// The parameters of a tracer.
pub(crate) struct Trace<'a> {
    /// Index of the call at which the program is killed; 0 for never.
    pub(crate) at: usize,
    /// True if half of the data of that call is written.
    pub(crate) torn: bool,
    /// File that lists the calls, one per line, after a line with the process id.
    pub(crate) report: &'a Path,
    /// The directory.
    pub(crate) below: &'a Path,
}

impl Trace<'_> {
    /// Returns the arguments that come before those of the program.
    pub(crate) fn words(&self) -> Vec<String> {
        let this = std::env::current_exe().expect("the path of this test binary");
        let path = |path: &Path| path.to_str().expect("a UTF-8 path").to_owned();
        let torn = if self.torn { "torn" } else { "whole" };
        vec![path(&this), ROLE.into(), self.at.to_string(), torn.into(), path(self.report), path(self.below)]
    }
}

/// A tracer that answers calls instead of the kernel while a [`Fault`] is set.
pub(crate) struct Faults<'a> {
    /// File that lists the calls that match a fault, one per line: `+`, or `!` for a call that the fault affected,
    /// then the kind, the number of bytes to write, and the path.
    pub(crate) report: &'a Path,
    /// The directory in which faults occur.
    pub(crate) below: &'a Path,
}

/// A fault that affects calls of a kind at a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault<'a> {
    /// The error that the calls return, such as `EIO`.
    pub(crate) errno: &'a str,
    /// The kind of call: `open`, `write`, `fsync`, `rename`, `unlink`, `allocate`, `truncate`, `read`, or `*` for all
    /// except `read`.
    pub(crate) kind: &'a str,
    /// Substring of the affected paths.
    pub(crate) place: &'a str,
    /// Number of the first matching call that is affected, counted from 1.
    pub(crate) from: usize,
    /// Number of affected calls.
    pub(crate) count: usize,
    /// Number of bytes that can be written before the fault.
    pub(crate) room: u64,
}

impl Faults<'_> {
    /// Returns the arguments that come before those of the program.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Trace { at: 0, torn: false, report: self.report, below: self.below }.words();
        words[3] = FAULTY.to_owned();
        words
    }

    /// Sets the fault, which replaces any other one, and clears the list of calls.
    pub(crate) fn set(&self, fault: Fault<'_>) {
        let (switch, new) = (switch_of(self.report), self.report.with_extension("new"));
        crate::machine::write(&new, fault.to_string());
        std::fs::rename(new, switch).expect("a file of the test");
    }

    /// Clears the fault, and returns the calls that matched it.
    pub(crate) fn clear(&self) -> Vec<Listed> {
        std::fs::remove_file(switch_of(self.report)).expect("a file of the test");
        let text = std::fs::read_to_string(self.report).unwrap_or_default();
        text.lines().filter_map(Listed::read).collect()
    }
}

/// A call that matched a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// True if the call was refused or shortened.
    pub(crate) met: bool,
    pub(crate) kind: String,
    pub(crate) bytes: u64,
    pub(crate) path: String,
}

impl Listed {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let (met, kind) = (words.next()? == "!", words.next()?.to_owned());
        Some(Self { met, kind, bytes: words.next()?.parse().ok()?, path: words.next()?.to_owned() })
    }
}

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, kind, place, from, count, room } = self;
        write!(f, "{errno} {kind} {place} {from} {count} {room}")
    }
}

impl<'a> Fault<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [errno, kind, place, from, count, room] = words.as_slice() else { return None };
        let (from, count, room) = (from.parse().ok()?, count.parse().ok()?, room.parse().ok()?);
        Some(Self { errno, kind, place, from, count, room })
    }
}

/// Argument that makes a tracer answer calls itself.
const FAULTY: &str = "faulty";

/// Returns the path of the file that contains the current fault.
fn switch_of(report: &Path) -> PathBuf {
    report.with_extension("fault")
}

/// The command line of a tracer.
struct Asked {
    at: usize,
    torn: bool,
    faulty: bool,
    report: PathBuf,
    below: PathBuf,
    program: Command,
}

/// Runs the tracer if this binary was started as one.
pub(crate) fn role() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != ROLE {
        return None;
    }
    let number = words.next()?.to_str()?.parse().ok()?;
    let way = words.next()?;
    let (torn, faulty) = (way == "torn", way == FAULTY);
    let (report, below) = (words.next()?.into(), words.next()?.into());
    let mut program = crate::machine::command("sh");
    // The shell waits until it is traced.
    program.args(["-c", "read -r go && exec \"$@\" < /dev/null", "sh"]).args(words).envs(own_environment());
    let code = traced::run(Asked { at: number, torn, faulty, report, below, program });
    Some(code.unwrap_or_else(|error| {
        eprintln!("tracer: {error}");
        ExitCode::from(CANNOT)
    }))
}

#[expect(clippy::disallowed_methods, reason = "what a tracer starts has its environment")]
fn own_environment() -> std::env::VarsOs {
    std::env::vars_os()
}

#[cfg(target_arch = "x86_64")]
mod traced {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
    use std::path::{Path, PathBuf};
    use std::process::{ExitCode, Stdio};

    use nix::libc;
    use nix::sys::ptrace::{self, Options};
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::{Asked, Fault, KILLED, switch_of};

    /// Longest path that is read.
    const MAX_PATH: usize = 4096;

    /// The arguments that identify the file of a call.
    #[derive(Clone, Copy)]
    enum At {
        /// An open file.
        Fd(usize),
        /// A name relative to an open directory.
        Name(usize, usize),
        /// A path.
        Path(usize),
        /// No argument; the call always counts.
        Any,
    }

    /// Returns the name and file arguments of calls that change persistent data.
    fn meant(nr: i64, arguments: [u64; 4]) -> Option<(&'static str, At)> {
        Some(match nr {
            libc::SYS_openat if writes(arguments[2]) => ("openat", At::Name(0, 1)),
            libc::SYS_open if writes(arguments[1]) => ("open", At::Path(0)),
            libc::SYS_openat2 => ("openat2", At::Name(0, 1)),
            libc::SYS_mkdirat => ("mkdirat", At::Name(0, 1)),
            libc::SYS_mkdir => ("mkdir", At::Path(0)),
            libc::SYS_rmdir => ("rmdir", At::Path(0)),
            libc::SYS_write => ("write", At::Fd(0)),
            libc::SYS_pwrite64 => ("pwrite64", At::Fd(0)),
            libc::SYS_writev => ("writev", At::Fd(0)),
            libc::SYS_pwritev => ("pwritev", At::Fd(0)),
            libc::SYS_copy_file_range => ("copy_file_range", At::Fd(2)),
            libc::SYS_sendfile => ("sendfile", At::Fd(0)),
            libc::SYS_fsync => ("fsync", At::Fd(0)),
            libc::SYS_fdatasync => ("fdatasync", At::Fd(0)),
            libc::SYS_ftruncate => ("ftruncate", At::Fd(0)),
            libc::SYS_fallocate => ("fallocate", At::Fd(0)),
            libc::SYS_flock => ("flock", At::Fd(0)),
            libc::SYS_fchmod => ("fchmod", At::Fd(0)),
            libc::SYS_fchown => ("fchown", At::Fd(0)),
            libc::SYS_chmod => ("chmod", At::Path(0)),
            libc::SYS_fchmodat => ("fchmodat", At::Name(0, 1)),
            libc::SYS_fchownat => ("fchownat", At::Name(0, 1)),
            libc::SYS_utimensat => ("utimensat", At::Fd(0)),
            libc::SYS_rename => ("rename", At::Path(1)),
            libc::SYS_renameat => ("renameat", At::Name(2, 3)),
            libc::SYS_renameat2 => ("renameat2", At::Name(2, 3)),
            libc::SYS_link => ("link", At::Path(1)),
            libc::SYS_linkat => ("linkat", At::Name(2, 3)),
            libc::SYS_symlinkat => ("symlinkat", At::Name(1, 2)),
            libc::SYS_unlink => ("unlink", At::Path(0)),
            libc::SYS_unlinkat => ("unlinkat", At::Name(0, 1)),
            libc::SYS_bind => ("bind", At::Any),
            libc::SYS_listen => ("listen", At::Any),
            _ => return None,
        })
    }

    /// Returns the kind of a call for faults.
    fn kind(name: &str) -> &'static str {
        match name {
            "openat" | "open" | "openat2" | "mkdirat" | "mkdir" => "open",
            "write" | "pwrite64" | "writev" | "pwritev" | "copy_file_range" | "sendfile" => "write",
            "fsync" | "fdatasync" => "fsync",
            "rename" | "renameat" | "renameat2" => "rename",
            "unlink" | "unlinkat" | "rmdir" => "unlink",
            "fallocate" => "allocate",
            "ftruncate" => "truncate",
            "read" | "pread64" => "read",
            _ => "other",
        }
    }

    /// Returns the name and file arguments of calls that read.
    fn reading(nr: i64) -> Option<(&'static str, At)> {
        match nr {
            libc::SYS_read => Some(("read", At::Fd(0))),
            libc::SYS_pread64 => Some(("pread64", At::Fd(0))),
            _ => None,
        }
    }

    /// Returns the number of an error.
    fn number(errno: &str) -> i64 {
        let errno = match errno {
            "ENOSPC" => libc::ENOSPC,
            "EROFS" => libc::EROFS,
            _ => libc::EIO,
        };
        i64::from(errno)
    }

    /// Checks whether opening a file with these flags can lead to a change of the file.
    fn writes(flags: u64) -> bool {
        flags & (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u64 != 0
    }

    /// A call that is about to start.
    struct Call {
        name: &'static str,
        path: PathBuf,
    }

    pub(super) fn run(mut asked: Asked) -> io::Result<ExitCode> {
        let mut child = asked.program.stdin(Stdio::piped()).spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
        ptrace::seize(pid, options)?;
        ptrace::interrupt(pid)?;
        #[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
        let mut report = File::create(&asked.report)?;
        writeln!(report, "{pid}")?;
        if let Some(mut go) = child.stdin.take() {
            writeln!(go)?;
        }
        let mut tracer =
            Tracer { asked, report, pid, seen: 0, half: None, said: String::new(), room: 0, refused: BTreeMap::new() };
        loop {
            match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Exited(ended, code)) if ended == pid => {
                    return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
                }
                Ok(WaitStatus::Signaled(ended, signal, _)) if ended == pid => return Ok(tracer.ended_by(signal)),
                Ok(status) => tracer.goes_on(status)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    struct Tracer {
        asked: Asked,
        report: File,
        pid: Pid,
        /// Number of calls so far.
        seen: usize,
        /// The thread that is half-way through the last call.
        half: Option<Pid>,
        /// The current fault, as text.
        said: String,
        /// Number of bytes that can still be written before the fault.
        room: u64,
        /// Threads whose call is refused, with the error number.
        refused: BTreeMap<Pid, i64>,
    }

    impl Tracer {
        fn ended_by(&self, signal: Signal) -> ExitCode {
            let by_us = signal == Signal::SIGKILL && self.asked.at != 0 && self.seen >= self.asked.at;
            ExitCode::from(if by_us { KILLED as u8 } else { 128 + signal as u8 })
        }

        fn goes_on(&mut self, status: WaitStatus) -> io::Result<()> {
            let (thread, signal) = match status {
                WaitStatus::PtraceSyscall(thread) => {
                    self.at_call(thread)?;
                    (thread, None)
                }
                WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
                WaitStatus::PtraceEvent(thread, ..) => (thread, None),
                _ => return Ok(()),
            };
            gone_or(ptrace::syscall(thread, signal))
        }

        /// Handles a thread that stops before or after a call.
        fn at_call(&mut self, thread: Pid) -> io::Result<()> {
            if self.half == Some(thread) {
                return self.kill();
            }
            let mut registers = match ptrace::getregs(thread) {
                Ok(registers) => registers,
                Err(error) => return gone_or(Err(error)),
            };
            if let Some(errno) = self.refused.remove(&thread) {
                registers.rax = (-errno).cast_unsigned();
                return gone_or(ptrace::setregs(thread, registers));
            }
            let begins = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
            let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
            if self.asked.faulty {
                return if begins { self.meet(thread, registers, arguments) } else { Ok(()) };
            }
            let Some(call) = begins.then(|| self.call(thread, registers.orig_rax, arguments)).flatten() else {
                return Ok(());
            };
            self.seen += 1;
            writeln!(self.report, "{} {}", call.name, call.path.display())?;
            if self.seen != self.asked.at {
                return Ok(());
            }
            if self.asked.torn && matches!(call.name, "write" | "pwrite64") && registers.rdx > 1 {
                registers.rdx /= 2;
                self.half = Some(thread);
                return gone_or(ptrace::setregs(thread, registers));
            }
            self.kill()
        }

        /// Applies the current fault to a call.
        fn meet(&mut self, thread: Pid, mut registers: libc::user_regs_struct, arguments: [u64; 4]) -> io::Result<()> {
            let said = std::fs::read_to_string(switch_of(&self.asked.report)).unwrap_or_default();
            let Some(fault) = Fault::read(&said) else {
                self.said.clear();
                return Ok(());
            };
            if said != self.said {
                self.report.set_len(0)?;
                self.report.rewind()?;
                (self.seen, self.room) = (0, fault.room);
                self.said.clone_from(&said);
            }
            let Some(call) = self.call(thread, registers.orig_rax, arguments) else { return Ok(()) };
            let (kind, path) = (kind(call.name), call.path.display().to_string());
            let is_meant = fault.kind == kind || (fault.kind == "*" && kind != "read");
            if !is_meant || !path.contains(fault.place) {
                return Ok(());
            }
            self.seen += 1;
            let bytes = if matches!(call.name, "write" | "pwrite64") { registers.rdx } else { 0 };
            let is_numbered = self.seen >= fault.from && self.seen - fault.from < fault.count;
            let is_met = is_numbered && (bytes == 0 || bytes > self.room);
            writeln!(self.report, "{} {kind} {bytes} {path}", if is_met { '!' } else { '+' })?;
            if !is_met {
                self.room -= if is_numbered { bytes } else { 0 };
                return Ok(());
            }
            match std::mem::take(&mut self.room) {
                room if room > 0 && bytes > 0 => registers.rdx = room,
                _ => {
                    // No call has this number; the result is set after the call returns.
                    registers.orig_rax = u64::MAX;
                    self.refused.insert(thread, number(fault.errno));
                }
            }
            gone_or(ptrace::setregs(thread, registers))
        }

        fn kill(&self) -> io::Result<()> {
            gone_or(kill(self.pid, Signal::SIGKILL))
        }

        fn call(&self, thread: Pid, nr: u64, arguments: [u64; 4]) -> Option<Call> {
            let nr = i64::try_from(nr).ok()?;
            let also = || if self.asked.faulty { reading(nr) } else { None };
            let (name, at) = meant(nr, arguments).or_else(also)?;
            let link = |what: String| std::fs::read_link(format!("/proc/{thread}/{what}")).ok();
            let open = |number: u64| match number as i32 {
                libc::AT_FDCWD => link("cwd".to_owned()),
                fd => link(format!("fd/{fd}")),
            };
            let path = match at {
                At::Fd(fd) => open(arguments[fd])?,
                At::Name(directory, path) => open(arguments[directory])?.join(text(thread, arguments[path])?),
                At::Path(path) => link("cwd".to_owned())?.join(text(thread, arguments[path])?),
                At::Any => self.asked.below.clone(),
            };
            (path.starts_with(&self.asked.below) && !is_read(name, arguments, thread)).then_some(Call { name, path })
        }
    }

    /// Checks whether an openat2(2) call only reads; its flags are in memory.
    fn is_read(name: &str, arguments: [u64; 4], thread: Pid) -> bool {
        let flags = || memory(thread, arguments[2], 8)?.try_into().ok().map(u64::from_ne_bytes);
        name == "openat2" && flags().is_some_and(|flags| !writes(flags))
    }

    /// Reads at most `most` bytes of a thread's memory.
    fn memory(thread: Pid, address: u64, most: usize) -> Option<Vec<u8>> {
        let mut memory = File::open(format!("/proc/{thread}/mem")).ok()?;
        memory.seek(SeekFrom::Start(address)).ok()?;
        let mut bytes = vec![0; most];
        let count = memory.read(&mut bytes).ok()?;
        bytes.truncate(count);
        Some(bytes)
    }

    /// Reads the text at an address of a thread.
    fn text(thread: Pid, address: u64) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStrExt as _;
        let bytes = memory(thread, address, MAX_PATH)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        Some(Path::new(std::ffi::OsStr::from_bytes(&bytes[..end])).to_owned())
    }

    /// Ignores the error that the thread has exited in the meantime.
    fn gone_or(done: nix::Result<()>) -> io::Result<()> {
        match done {
            Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod traced {
    use super::Asked;

    pub(super) fn run(_: Asked) -> std::io::Result<std::process::ExitCode> {
        Err(std::io::Error::other("system calls are followed on x86-64 alone"))
    }
}
