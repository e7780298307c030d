//! A tracer that runs a program and kills it at the n-th system call that writes below a directory, or half-way
//! through that call. It can also answer such calls instead of the kernel, like a disk that fails or is full. It
//! counts the calls of all threads, but not of child processes, which must detect themselves that the program is
//! gone. It uses ptrace(2) directly, because strace only counts calls for each thread.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// First argument that makes this binary a tracer.
const TRACER_ARGUMENT: &str = "--as-tracer";
/// Exit code of a tracer that has killed its program.
pub(crate) const KILLED_EXIT_CODE: i32 = 9;
/// Exit code of a tracer that cannot trace.
const TRACING_FAILED_EXIT_CODE: u8 = 8;

/// The parameters of a tracer.
pub(crate) struct TraceOptions<'a> {
    /// Index of the call at which the program is killed; 0 for never.
    pub(crate) kill_at: usize,
    /// True if half of the data of that call is written.
    pub(crate) tear_write: bool,
    /// File that lists the calls, one per line, after a line with the process id.
    pub(crate) call_log: &'a Path,
    /// The directory.
    pub(crate) traced_dir: &'a Path,
}

impl TraceOptions<'_> {
    /// Returns the arguments that come before those of the program.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let this = std::env::current_exe().expect("the path of this test binary");
        let path = |path: &Path| path.to_str().expect("a UTF-8 path").to_owned();
        let torn = if self.tear_write { "torn" } else { "whole" };
        vec![
            path(&this),
            TRACER_ARGUMENT.into(),
            self.kill_at.to_string(),
            torn.into(),
            path(self.call_log),
            path(self.traced_dir),
        ]
    }
}

/// A tracer that answers calls instead of the kernel while an [`InjectedFault`] is set.
pub(crate) struct FaultInjector<'a> {
    /// File that lists the calls that match a fault, one per line: `+`, or `!` for a call that the fault affected,
    /// then the kind, the number of bytes to write, and the path.
    pub(crate) call_log: &'a Path,
    /// The directory in which faults occur.
    pub(crate) traced_dir: &'a Path,
}

/// A fault that affects calls of a kind at a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InjectedFault<'a> {
    /// The error that the calls return, such as `EIO`.
    pub(crate) errno: &'a str,
    /// The kind of call: `open`, `write`, `fsync`, `rename`, `unlink`, `allocate`, `truncate`, `read`, or `*` for all
    /// except `read`.
    pub(crate) kind: &'a str,
    /// Substring of the affected paths.
    pub(crate) path_part: &'a str,
    /// Number of the first matching call that is affected, counted from 1.
    pub(crate) first_call: usize,
    /// Number of affected calls.
    pub(crate) call_count: usize,
    /// Number of bytes that can be written before the fault.
    pub(crate) writable_bytes: u64,
}

impl FaultInjector<'_> {
    /// Returns the arguments that come before those of the program.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let mut words =
            TraceOptions { kill_at: 0, tear_write: false, call_log: self.call_log, traced_dir: self.traced_dir }
                .to_arguments();
        words[3] = FAULT_MODE.to_owned();
        words
    }

    /// Sets the fault, which replaces any other one, and clears the list of calls.
    pub(crate) fn set_fault(&self, fault: InjectedFault<'_>) {
        let (fault_path, new) = (fault_file(self.call_log), self.call_log.with_extension("new"));
        crate::machine::write(&new, fault.to_string());
        std::fs::rename(new, fault_path).expect("a file of the test");
    }

    /// Clears the fault, and returns the calls that matched it.
    pub(crate) fn clear_fault(&self) -> Vec<MatchedCall> {
        std::fs::remove_file(fault_file(self.call_log)).expect("a file of the test");
        let text = std::fs::read_to_string(self.call_log).unwrap_or_default();
        text.lines().filter_map(MatchedCall::parse).collect()
    }
}

/// A call that matched a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MatchedCall {
    /// True if the call was refused or shortened.
    pub(crate) is_affected: bool,
    pub(crate) kind: String,
    pub(crate) bytes: u64,
    pub(crate) path: String,
}

impl MatchedCall {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let (met, kind) = (words.next()? == "!", words.next()?.to_owned());
        Some(Self { is_affected: met, kind, bytes: words.next()?.parse().ok()?, path: words.next()?.to_owned() })
    }
}

impl fmt::Display for InjectedFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, kind, path_part: place, first_call: from, call_count: count, writable_bytes: room } = self;
        write!(f, "{errno} {kind} {place} {from} {count} {room}")
    }
}

impl<'a> InjectedFault<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [errno, kind, place, from, count, room] = words.as_slice() else { return None };
        let (from, count, room) = (from.parse().ok()?, count.parse().ok()?, room.parse().ok()?);
        Some(Self { errno, kind, path_part: place, first_call: from, call_count: count, writable_bytes: room })
    }
}

/// Argument that makes a tracer answer calls itself.
const FAULT_MODE: &str = "faulty";

/// Returns the path of the file that contains the current fault.
fn fault_file(report: &Path) -> PathBuf {
    report.with_extension("fault")
}

/// The command line of a tracer.
struct TracerArguments {
    kill_at: usize,
    tear_write: bool,
    injects_faults: bool,
    call_log: PathBuf,
    traced_dir: PathBuf,
    program: Command,
}

/// Runs the tracer if this binary was started as one.
pub(crate) fn run_if_tracer() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != TRACER_ARGUMENT {
        return None;
    }
    let number = words.next()?.to_str()?.parse().ok()?;
    let mode = words.next()?;
    let (torn, faulty) = (mode == "torn", mode == FAULT_MODE);
    let (report, below) = (words.next()?.into(), words.next()?.into());
    let mut program = crate::machine::command("sh");
    // The shell waits until it is traced.
    program.args(["-c", "read -r go && exec \"$@\" < /dev/null", "sh"]).args(words).envs(own_environment());
    let code = traced::run(TracerArguments {
        kill_at: number,
        tear_write: torn,
        injects_faults: faulty,
        call_log: report,
        traced_dir: below,
        program,
    });
    Some(code.unwrap_or_else(|error| {
        eprintln!("tracer: {error}");
        ExitCode::from(TRACING_FAILED_EXIT_CODE)
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

    use super::{InjectedFault, KILLED_EXIT_CODE, TracerArguments, fault_file};

    /// Longest path that is read.
    const MAX_PATH: usize = 4096;

    /// The arguments that identify the file of a call.
    #[derive(Clone, Copy)]
    enum FileArgument {
        /// An open file.
        Fd(usize),
        /// A name relative to an open directory.
        DirAndName(usize, usize),
        /// A path.
        Path(usize),
        /// No argument; the call always counts.
        Any,
    }

    /// Returns the name and file arguments of calls that change persistent data.
    fn writing_call(nr: i64, arguments: [u64; 4]) -> Option<(&'static str, FileArgument)> {
        Some(match nr {
            libc::SYS_openat if opens_for_writing(arguments[2]) => ("openat", FileArgument::DirAndName(0, 1)),
            libc::SYS_open if opens_for_writing(arguments[1]) => ("open", FileArgument::Path(0)),
            libc::SYS_openat2 => ("openat2", FileArgument::DirAndName(0, 1)),
            libc::SYS_mkdirat => ("mkdirat", FileArgument::DirAndName(0, 1)),
            libc::SYS_mkdir => ("mkdir", FileArgument::Path(0)),
            libc::SYS_rmdir => ("rmdir", FileArgument::Path(0)),
            libc::SYS_write => ("write", FileArgument::Fd(0)),
            libc::SYS_pwrite64 => ("pwrite64", FileArgument::Fd(0)),
            libc::SYS_writev => ("writev", FileArgument::Fd(0)),
            libc::SYS_pwritev => ("pwritev", FileArgument::Fd(0)),
            libc::SYS_copy_file_range => ("copy_file_range", FileArgument::Fd(2)),
            libc::SYS_sendfile => ("sendfile", FileArgument::Fd(0)),
            libc::SYS_fsync => ("fsync", FileArgument::Fd(0)),
            libc::SYS_fdatasync => ("fdatasync", FileArgument::Fd(0)),
            libc::SYS_ftruncate => ("ftruncate", FileArgument::Fd(0)),
            libc::SYS_fallocate => ("fallocate", FileArgument::Fd(0)),
            libc::SYS_flock => ("flock", FileArgument::Fd(0)),
            libc::SYS_fchmod => ("fchmod", FileArgument::Fd(0)),
            libc::SYS_fchown => ("fchown", FileArgument::Fd(0)),
            libc::SYS_chmod => ("chmod", FileArgument::Path(0)),
            libc::SYS_fchmodat => ("fchmodat", FileArgument::DirAndName(0, 1)),
            libc::SYS_fchownat => ("fchownat", FileArgument::DirAndName(0, 1)),
            libc::SYS_utimensat => ("utimensat", FileArgument::Fd(0)),
            libc::SYS_rename => ("rename", FileArgument::Path(1)),
            libc::SYS_renameat => ("renameat", FileArgument::DirAndName(2, 3)),
            libc::SYS_renameat2 => ("renameat2", FileArgument::DirAndName(2, 3)),
            libc::SYS_link => ("link", FileArgument::Path(1)),
            libc::SYS_linkat => ("linkat", FileArgument::DirAndName(2, 3)),
            libc::SYS_symlinkat => ("symlinkat", FileArgument::DirAndName(1, 2)),
            libc::SYS_unlink => ("unlink", FileArgument::Path(0)),
            libc::SYS_unlinkat => ("unlinkat", FileArgument::DirAndName(0, 1)),
            libc::SYS_bind => ("bind", FileArgument::Any),
            libc::SYS_listen => ("listen", FileArgument::Any),
            _ => return None,
        })
    }

    /// Returns the kind of a call for faults.
    fn fault_kind(name: &str) -> &'static str {
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
    fn reading_call(nr: i64) -> Option<(&'static str, FileArgument)> {
        match nr {
            libc::SYS_read => Some(("read", FileArgument::Fd(0))),
            libc::SYS_pread64 => Some(("pread64", FileArgument::Fd(0))),
            _ => None,
        }
    }

    /// Returns the number of an error.
    fn errno_number(errno: &str) -> i64 {
        let errno = match errno {
            "ENOSPC" => libc::ENOSPC,
            "EROFS" => libc::EROFS,
            _ => libc::EIO,
        };
        i64::from(errno)
    }

    /// Checks whether opening a file with these flags can lead to a change of the file.
    fn opens_for_writing(flags: u64) -> bool {
        flags & (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u64 != 0
    }

    /// A call that is about to start.
    struct TracedCall {
        name: &'static str,
        path: PathBuf,
    }

    pub(super) fn run(mut arguments: TracerArguments) -> io::Result<ExitCode> {
        let mut child = arguments.program.stdin(Stdio::piped()).spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
        ptrace::seize(pid, options)?;
        ptrace::interrupt(pid)?;
        #[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
        let mut report = File::create(&arguments.call_log)?;
        writeln!(report, "{pid}")?;
        if let Some(mut go) = child.stdin.take() {
            writeln!(go)?;
        }
        let mut tracer = Tracer {
            arguments,
            report,
            pid,
            calls_so_far: 0,
            half_written_thread: None,
            fault_text: String::new(),
            writable_bytes: 0,
            refused_calls: BTreeMap::new(),
        };
        loop {
            match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Exited(ended, code)) if ended == pid => {
                    return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
                }
                Ok(WaitStatus::Signaled(ended, signal, _)) if ended == pid => return Ok(tracer.exit_code_for(signal)),
                Ok(status) => tracer.resume(status)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    struct Tracer {
        arguments: TracerArguments,
        report: File,
        pid: Pid,
        /// Number of calls so far.
        calls_so_far: usize,
        /// The thread that is half-way through the last call.
        half_written_thread: Option<Pid>,
        /// The current fault, as text.
        fault_text: String,
        /// Number of bytes that can still be written before the fault.
        writable_bytes: u64,
        /// Threads whose call is refused, with the error number.
        refused_calls: BTreeMap<Pid, i64>,
    }

    impl Tracer {
        fn exit_code_for(&self, signal: Signal) -> ExitCode {
            let killed_by_tracer =
                signal == Signal::SIGKILL && self.arguments.kill_at != 0 && self.calls_so_far >= self.arguments.kill_at;
            ExitCode::from(if killed_by_tracer { KILLED_EXIT_CODE as u8 } else { 128 + signal as u8 })
        }

        fn resume(&mut self, status: WaitStatus) -> io::Result<()> {
            let (thread, signal) = match status {
                WaitStatus::PtraceSyscall(thread) => {
                    self.handle_call_stop(thread)?;
                    (thread, None)
                }
                WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
                WaitStatus::PtraceEvent(thread, ..) => (thread, None),
                _ => return Ok(()),
            };
            ignore_exited_thread(ptrace::syscall(thread, signal))
        }

        /// Handles a thread that stops before or after a call.
        fn handle_call_stop(&mut self, thread: Pid) -> io::Result<()> {
            if self.half_written_thread == Some(thread) {
                return self.kill();
            }
            let mut registers = match ptrace::getregs(thread) {
                Ok(registers) => registers,
                Err(error) => return ignore_exited_thread(Err(error)),
            };
            if let Some(errno) = self.refused_calls.remove(&thread) {
                registers.rax = (-errno).cast_unsigned();
                return ignore_exited_thread(ptrace::setregs(thread, registers));
            }
            let is_entry = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
            let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
            if self.arguments.injects_faults {
                return if is_entry { self.apply_fault(thread, registers, arguments) } else { Ok(()) };
            }
            let Some(call) = is_entry.then(|| self.traced_call(thread, registers.orig_rax, arguments)).flatten() else {
                return Ok(());
            };
            self.calls_so_far += 1;
            writeln!(self.report, "{} {}", call.name, call.path.display())?;
            if self.calls_so_far != self.arguments.kill_at {
                return Ok(());
            }
            if self.arguments.tear_write && matches!(call.name, "write" | "pwrite64") && registers.rdx > 1 {
                registers.rdx /= 2;
                self.half_written_thread = Some(thread);
                return ignore_exited_thread(ptrace::setregs(thread, registers));
            }
            self.kill()
        }

        /// Applies the current fault to a call.
        fn apply_fault(
            &mut self,
            thread: Pid,
            mut registers: libc::user_regs_struct,
            arguments: [u64; 4],
        ) -> io::Result<()> {
            let fault_text = std::fs::read_to_string(fault_file(&self.arguments.call_log)).unwrap_or_default();
            let Some(fault) = InjectedFault::parse(&fault_text) else {
                self.fault_text.clear();
                return Ok(());
            };
            if fault_text != self.fault_text {
                self.report.set_len(0)?;
                self.report.rewind()?;
                (self.calls_so_far, self.writable_bytes) = (0, fault.writable_bytes);
                self.fault_text.clone_from(&fault_text);
            }
            let Some(call) = self.traced_call(thread, registers.orig_rax, arguments) else { return Ok(()) };
            let (kind, path) = (fault_kind(call.name), call.path.display().to_string());
            let is_matching_kind = fault.kind == kind || (fault.kind == "*" && kind != "read");
            if !is_matching_kind || !path.contains(fault.path_part) {
                return Ok(());
            }
            self.calls_so_far += 1;
            let bytes = if matches!(call.name, "write" | "pwrite64") { registers.rdx } else { 0 };
            let is_in_range =
                self.calls_so_far >= fault.first_call && self.calls_so_far - fault.first_call < fault.call_count;
            let is_affected = is_in_range && (bytes == 0 || bytes > self.writable_bytes);
            writeln!(self.report, "{} {kind} {bytes} {path}", if is_affected { '!' } else { '+' })?;
            if !is_affected {
                self.writable_bytes -= if is_in_range { bytes } else { 0 };
                return Ok(());
            }
            match std::mem::take(&mut self.writable_bytes) {
                room if room > 0 && bytes > 0 => registers.rdx = room,
                _ => {
                    // No system call has this number; the result is set after the call returns.
                    registers.orig_rax = u64::MAX;
                    self.refused_calls.insert(thread, errno_number(fault.errno));
                }
            }
            ignore_exited_thread(ptrace::setregs(thread, registers))
        }

        fn kill(&self) -> io::Result<()> {
            ignore_exited_thread(kill(self.pid, Signal::SIGKILL))
        }

        fn traced_call(&self, thread: Pid, nr: u64, arguments: [u64; 4]) -> Option<TracedCall> {
            let nr = i64::try_from(nr).ok()?;
            let also = || if self.arguments.injects_faults { reading_call(nr) } else { None };
            let (name, at) = writing_call(nr, arguments).or_else(also)?;
            let link = |what: String| std::fs::read_link(format!("/proc/{thread}/{what}")).ok();
            let open = |number: u64| match number as i32 {
                libc::AT_FDCWD => link("cwd".to_owned()),
                fd => link(format!("fd/{fd}")),
            };
            let path = match at {
                FileArgument::Fd(fd) => open(arguments[fd])?,
                FileArgument::DirAndName(directory, path) => {
                    open(arguments[directory])?.join(read_path(thread, arguments[path])?)
                }
                FileArgument::Path(path) => link("cwd".to_owned())?.join(read_path(thread, arguments[path])?),
                FileArgument::Any => self.arguments.traced_dir.clone(),
            };
            (path.starts_with(&self.arguments.traced_dir) && !is_read_only_open(name, arguments, thread))
                .then_some(TracedCall { name, path })
        }
    }

    /// Checks whether an openat2(2) call only reads; its flags are in memory.
    fn is_read_only_open(name: &str, arguments: [u64; 4], thread: Pid) -> bool {
        let flags = || read_memory(thread, arguments[2], 8)?.try_into().ok().map(u64::from_ne_bytes);
        name == "openat2" && flags().is_some_and(|flags| !opens_for_writing(flags))
    }

    /// Reads at most `most` bytes of a thread's memory.
    fn read_memory(thread: Pid, address: u64, max_len: usize) -> Option<Vec<u8>> {
        let mut memory = File::open(format!("/proc/{thread}/mem")).ok()?;
        memory.seek(SeekFrom::Start(address)).ok()?;
        let mut bytes = vec![0; max_len];
        let count = memory.read(&mut bytes).ok()?;
        bytes.truncate(count);
        Some(bytes)
    }

    /// Reads the text at an address of a thread.
    fn read_path(thread: Pid, address: u64) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStrExt as _;
        let bytes = read_memory(thread, address, MAX_PATH)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        Some(Path::new(std::ffi::OsStr::from_bytes(&bytes[..end])).to_owned())
    }

    /// Ignores the error that the thread has exited in the meantime.
    fn ignore_exited_thread(done: nix::Result<()>) -> io::Result<()> {
        match done {
            Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod traced {
    use super::TracerArguments;

    pub(super) fn run(_: TracerArguments) -> std::io::Result<std::process::ExitCode> {
        Err(std::io::Error::other("system calls are followed on x86-64 alone"))
    }
}
