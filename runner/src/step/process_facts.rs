//! Reads the facts of the machine and of this process that a step can depend on, although it reads them from no file of
//! the view.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::OnceLock;

use proctor_core::reuse::{InheritedAttributes, MachineFacts, ResourceLimit, processor_model};
use rustix::process::Resource;

use crate::error::EngineError;

/// The program that this process executes. The link works after the file was replaced by an upgrade, too.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";
/// The part of `/proc/cpuinfo` that is read: more than the description of one processor.
const MAX_CPUINFO: u64 = 16 << 10;

/// The limits that a step inherits, unless its own settings replace them.
const RESOURCES: [(&str, Resource); 16] = [
    ("as", Resource::As),
    ("core", Resource::Core),
    ("cpu", Resource::Cpu),
    ("data", Resource::Data),
    ("fsize", Resource::Fsize),
    ("locks", Resource::Locks),
    ("memlock", Resource::Memlock),
    ("msgqueue", Resource::Msgqueue),
    ("nice", Resource::Nice),
    ("nofile", Resource::Nofile),
    ("nproc", Resource::Nproc),
    ("rss", Resource::Rss),
    ("rtprio", Resource::Rtprio),
    ("rttime", Resource::Rttime),
    ("sigpending", Resource::Sigpending),
    ("stack", Resource::Stack),
];

/// The model of the processor. Reading `/proc/cpuinfo` interrupts every processor, so it is read once.
static PROCESSOR_MODEL: OnceLock<String> = OnceLock::new();

fn read_processor_model() -> String {
    let mut description = Vec::new();
    let read = File::open("/proc/cpuinfo").and_then(|file| file.take(MAX_CPUINFO).read_to_end(&mut description));
    if let Err(error) = read {
        tracing::warn!(%error, "the model of the processor cannot be read");
    }
    processor_model(&String::from_utf8_lossy(&description))
}

/// Returns the facts of the machine.
pub(super) fn machine_facts() -> MachineFacts {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    MachineFacts {
        kernel: format!("{} {}", text(uname.release()), text(uname.version())),
        architecture: text(uname.machine()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        processor_model: PROCESSOR_MODEL.get_or_init(read_processor_model).clone(),
    }
}

/// Returns the attributes of this process that steps inherit.
pub(super) fn inherited_attributes() -> InheritedAttributes {
    // Root gives up its groups before a step starts. Another user cannot.
    let is_root = rustix::process::geteuid().is_root();
    let groups = if is_root { Vec::new() } else { rustix::process::getgroups().unwrap_or_default() };
    let mut groups: Vec<u32> = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    groups.sort_unstable();
    let limits = RESOURCES.map(|(name, resource)| {
        let limit = rustix::process::getrlimit(resource);
        ResourceLimit { name, soft: limit.current, hard: limit.maximum }
    });
    let personality = fs::read_to_string("/proc/thread-self/personality").unwrap_or_default();
    InheritedAttributes { groups, limits: limits.into(), personality: personality.trim().to_owned() }
}

/// Returns the identity of a program file, which differs if the file was replaced or written. It does not depend on the
/// path, so that the command line and a daemon that execute the same file have the same identity.
///
/// # Errors
/// The file cannot be examined.
pub(super) fn program_identity(program: &Path) -> Result<String, EngineError> {
    let file = fs::metadata(program)
        .map_err(|error| EngineError::Internal(format!("`{}` cannot be examined: {error}", program.display())))?;
    let modified = format!("{}.{:09}", file.mtime(), file.mtime_nsec());
    let changed = format!("{}.{:09}", file.ctime(), file.ctime_nsec());
    Ok(format!("{}:{}:{}:{modified}:{changed}", file.dev(), file.ino(), file.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_those_of_this_process() {
        let inherited = inherited_attributes();
        assert_eq!(inherited.limits.len(), RESOURCES.len());
        let status = fs::read_to_string("/proc/self/limits").expect("the limits of this process");
        let stack = status.lines().find_map(|line| line.strip_prefix("Max stack size")).expect("a limit");
        let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let found = inherited.limits.iter().find(|limit| limit.name == "stack").expect("a limit");
        let words: Vec<&str> = stack.split_whitespace().take(2).collect();
        assert_eq!(words, [shown(found.soft), shown(found.hard)]);
        assert_eq!(inherited, inherited_attributes(), "nothing in it changes by itself");
        let machine = machine_facts();
        assert!(!machine.processor_model.is_empty() && machine.processors > 0);
        assert_eq!(machine, machine_facts(), "nothing in it changes with the load");
    }
}
