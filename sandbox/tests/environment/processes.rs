//! Finds processes of sandboxes, and waits for their end.

use std::fs;

use libtest_mimic::Failed;

use super::{DEADLINE, SUBPROCESS_FLAG};

/// Returns the processes of the host whose command line contains `marker`, with their `status` files, without the
/// processes of this program.
fn processes_of(marker: &str) -> Result<Vec<(i32, String)>, Failed> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        // A process that has ended in the meantime has neither file.
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let is_ours = pid == std::process::id().cast_signed()
            || line.split(|b| *b == 0).any(|word| word == SUBPROCESS_FLAG.as_bytes());
        if !is_ours && String::from_utf8_lossy(&line).contains(marker) {
            found.push((pid, status));
        }
    }
    Ok(found)
}

/// Returns the `status` files of the processes.
pub(crate) fn process_statuses(marker: &str) -> Result<Vec<String>, Failed> {
    Ok(processes_of(marker)?.into_iter().map(|(_, status)| status).collect())
}

/// Returns descriptors that become readable when the processes end.
pub(crate) fn process_pidfds(marker: &str) -> Result<Vec<std::os::fd::OwnedFd>, Failed> {
    let pids = processes_of(marker)?.into_iter().filter_map(|(pid, _)| rustix::process::Pid::from_raw(pid));
    pids.map(|pid| Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)).collect()
}

/// Returns the children of this process.
pub(crate) fn children() -> Result<Vec<String>, Failed> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        let listed = fs::read_to_string(task?.path().join("children"))?;
        children.extend(listed.split_whitespace().map(str::to_owned));
    }
    Ok(children)
}

/// Waits until this process has no children. Helpers are reaped some time after their attempts have ended.
pub(crate) fn wait_for_no_children() -> Result<(), Failed> {
    let began = std::time::Instant::now();
    while !children()?.is_empty() {
        if began.elapsed() > DEADLINE {
            return Err(format!("children are left: {:?}", children()?).into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
