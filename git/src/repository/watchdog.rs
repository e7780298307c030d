//! Ends `proctor-git` if the thread that reads a repository blocks on opening a special file.
//!
//! libgit2 opens many files below `.git`, and opening a FIFO blocks until its other end is opened. Each of these
//! paths can change at any time, so checking them in advance does not help; the watchdog detects the blocking call
//! itself.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::bounded_read::not_regular_error;
use crate::protocol::GitAnswer;
use crate::wire::answer_frames;

/// Interval between two checks of the thread. A system call that lasts from one check to the next is examined.
const CHECK_INTERVAL: Duration = Duration::from_millis(300);
/// Maximum length of a path.
const MAX_PATH: usize = 4096;

/// Starts to watch the first thread of this process, which answers a request on standard output.
///
/// # Errors
/// The watchdog thread cannot be started.
#[expect(clippy::disallowed_methods, reason = "the wait of another thread is not an event")]
pub fn start_watchdog() -> io::Result<()> {
    let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let name = format!("/proc/self/task/{}/syscall", std::process::id());
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        let mut last = String::new();
        // If the kernel hides this file, only the deadline of the parent process applies.
        while let Ok(call) = std::fs::read_to_string(&name) {
            if call == last
                && let Some(path) = opened_special_file(&call)
            {
                refuse_and_exit(&out, &path);
            }
            last = call;
            std::thread::sleep(CHECK_INTERVAL);
        }
    })?;
    Ok(())
}

/// Writes a refusal on behalf of the blocked thread, and ends the process.
fn refuse_and_exit(mut out: &File, path: &Path) -> ! {
    let answer = GitAnswer::Refused { why: not_regular_error(path) };
    std::process::exit(i32::from(answer_frames::write_answer(&mut out, &answer).is_err()))
}

/// Returns the path that a system call opens, if it is a special file that can block.
fn opened_special_file(call: &str) -> Option<PathBuf> {
    let path = opened_path(call)?;
    let kind = path.metadata().ok()?.file_type();
    (kind.is_fifo() || kind.is_char_device() || kind.is_block_device() || kind.is_socket()).then_some(path)
}

/// Returns the path that a system call opens, from the kernel's description: a number, then the arguments in hex.
fn opened_path(call: &str) -> Option<PathBuf> {
    let mut words = call.split_ascii_whitespace();
    let number = words.next()?.parse::<u32>().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (first, second) = (argument()?, argument()?);
    let (directory, address) = match number {
        number if Some(number) == OPEN_SYSCALL => (None, first),
        number if OPENAT_SYSCALLS.contains(&number) => (Some(first), second),
        _ => return None,
    };
    let path = read_string_at(address)?;
    // The low half is the descriptor; it is negative (AT_FDCWD) if the call has none.
    let descriptor = directory.and_then(|at| i32::try_from(at & 0xffff_ffff).ok());
    let directory = descriptor.and_then(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok());
    Some(directory.unwrap_or_default().join(path))
}

/// Returns the text at an address of this process.
fn read_string_at(address: u64) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = vec![0; MAX_PATH];
    let count = File::open("/proc/self/mem").ok()?.read_at(&mut bytes, address).ok()?;
    bytes.truncate(count);
    let end = bytes.iter().position(|byte| *byte == 0)?;
    bytes.truncate(end);
    Some(std::ffi::OsString::from_vec(bytes).into())
}

/// The number of open(2), on architectures that have this call.
const OPEN_SYSCALL: Option<u32> = if cfg!(target_arch = "x86_64") { Some(2) } else { None };
/// The numbers of openat(2) and openat2(2).
const OPENAT_SYSCALLS: [u32; 2] = if cfg!(target_arch = "x86_64") { [257, 437] } else { [56, 437] };
