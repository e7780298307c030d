//! Sets the resource limits of a step without namespaces. Limits per process work as usual; a limit that the kernel
//! counts per user includes all processes of this user on the host.

use std::os::unix::fs::MetadataExt;

use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::plan::{Limit, Limits};
use rustix::process::Resource;

use crate::helper::command_process::{self, DEFAULT_MEMORY_NOTE};
use crate::helper::setup_failure::{SetupFailure, internal, refuse};
use crate::host::StepUser;
use crate::wire::InitInstructions;

const UNBOUNDED: &str = "the plan sets no limit";

/// Sets the limits for this process and all of its future children.
pub(super) fn set_limits(
    user: StepUser,
    go: &InitInstructions,
    enforcement: &mut Enforcement,
) -> Result<(), SetupFailure> {
    let Limits { memory, pids, disk, cpu_seconds, open_files, output: _ } = go.claim.command.limits;
    limit_disk(disk, enforcement)?;
    limit_pids(user, pids, go, enforcement)?;
    let data = "RLIMIT_DATA of each process, and a supervisor ends the step when the sum is above (buffers of sockets, \
                data in pipes, locks and files in transit are not counted), bytes:";
    let cpu = "RLIMIT_CPU of each process, and a supervisor ends the step when the sum is above, seconds:";
    match (memory, &go.claim.held.memory) {
        (Limit::Max(_), Some(held)) => enforcement.record_enforced(Control::MemoryLimit, held),
        (Limit::Unlimited, _) => enforcement.record_not_requested(Control::MemoryLimit, DEFAULT_MEMORY_NOTE),
        _ => set_limit(Control::MemoryLimit, memory, Resource::Data, data, enforcement)?,
    }
    set_limit(Control::CpuLimit, cpu_seconds, Resource::Cpu, cpu, enforcement)?;
    set_limit(Control::OpenFilesLimit, open_files, Resource::Nofile, "RLIMIT_NOFILE of each process,", enforcement)
}

fn set_limit(
    control: Control,
    limit: Limit,
    resource: Resource,
    mechanism: &str,
    enforcement: &mut Enforcement,
) -> Result<(), SetupFailure> {
    match limit {
        Limit::Max(most) => {
            let set = command_process::set_rlimit(resource, most);
            let in_force = set.map_err(refuse(control, format_args!("set {mechanism}")))?;
            enforcement.record_enforced(control, command_process::describe_limit(mechanism, most, in_force));
        }
        Limit::Unlimited => enforcement.record_not_requested(control, UNBOUNDED),
    }
    Ok(())
}

fn limit_disk(disk: Limit, enforcement: &mut Enforcement) -> Result<(), SetupFailure> {
    let control = Control::DiskLimit;
    match disk {
        Limit::Max(bytes) => {
            command_process::set_rlimit(Resource::Fsize, bytes).map_err(refuse(control, "limit the size of files"))?;
            let how = format!(
                "only the size of each file is limited, to {bytes} bytes; all files are stored on a disk of the host"
            );
            enforcement.record_not_enforced(control, how);
        }
        Limit::Unlimited => enforcement.record_not_requested(control, UNBOUNDED),
    }
    Ok(())
}

fn limit_pids(
    user: StepUser,
    pids: Limit,
    go: &InitInstructions,
    enforcement: &mut Enforcement,
) -> Result<(), SetupFailure> {
    let control = Control::PidsLimit;
    match (pids, &go.claim.held.pids) {
        (Limit::Max(_), Some(held)) => enforcement.record_enforced(control, held),
        (Limit::Max(most), None) => {
            let others = count_threads(user.uid());
            let all = most.saturating_add(others);
            command_process::set_rlimit(Resource::Nproc, all).map_err(refuse(control, "set RLIMIT_NPROC"))?;
            let how = match command_process::is_nproc_enforced().map_err(internal("try RLIMIT_NPROC"))? {
                true => format!(
                    "RLIMIT_NPROC {all} limits all processes of user {} on the host, of which {others} were running",
                    user.uid()
                ),
                false => command_process::NPROC_EXEMPTION.to_owned(),
            };
            enforcement.record_not_enforced(control, how);
        }
        (Limit::Unlimited, _) => enforcement.record_not_requested(control, UNBOUNDED),
    }
    Ok(())
}

/// Returns the number of threads that the user currently has on the host.
fn count_threads(uid: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let own = entries.flatten().filter(|entry| {
        entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
            && entry.metadata().is_ok_and(|meta| meta.uid() == uid || is_owned_by(&entry.path(), uid))
    });
    // A process that has ended since has no status file.
    own.map(|entry| std::fs::read_dir(entry.path().join("task")).map_or(0, |tasks| tasks.count() as u64)).sum()
}

/// Returns whether a process belongs to the user. Root owns the directory of a process whose memory is unreadable.
fn is_owned_by(process: &std::path::Path, uid: u32) -> bool {
    // The file contains the name of the process, which may be any bytes.
    let status = std::fs::read(process.join("status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    ids.split_whitespace().next().and_then(|id| id.parse().ok()) == Some(uid)
}
