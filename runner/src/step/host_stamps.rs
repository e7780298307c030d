//! Decides whether the stamp of a file of the host shows every change of its content.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::model::drift::stamp_detects_settled_changes;
use proctor_core::model::trace::AccessedPath;
use proctor_core::record::evidence::escape_output;

/// A file of the host that changed within this time may have changed since without other stat data: a write through a
/// shared mapping sets no time until the kernel has written the page.
const UNSETTLED_NS: i64 = 40_000_000_000;

/// Refuses a file of the host that changed a moment ago.
pub(crate) fn require_settled(entry: &AccessedPath, now_ns: i64) -> Result<(), String> {
    let Some(stamp) = entry.stamp.filter(|_| entry.read) else { return Ok(()) };
    if stamp.ctime_ns.saturating_add(UNSETTLED_NS) < now_ns {
        return Ok(());
    }
    Err(format!("`{}` changed less than {} s ago", escape_output(&entry.path), UNSETTLED_NS / 1_000_000_000))
}

/// Refuses a file of the host if its file system does not show every change in the stamp. `devices` are the file systems
/// that are known already.
pub(crate) fn require_reliable_stamp(entry: &AccessedPath, devices: &mut BTreeMap<u64, bool>) -> Result<(), String> {
    let Some(stamp) = entry.stamp.filter(|_| entry.read) else { return Ok(()) };
    let path = Path::new(OsStr::from_bytes(&entry.path));
    let is_reliable = match devices.get(&stamp.dev) {
        Some(known) => *known,
        None => {
            let found = rustix::fs::statfs(path);
            let found =
                found.map_err(|error| format!("`{}` cannot be examined: {error}", escape_output(&entry.path)))?;
            let is_reliable = u64::try_from(found.f_type).is_ok_and(stamp_detects_settled_changes);
            devices.insert(stamp.dev, is_reliable);
            is_reliable
        }
    };
    if is_reliable {
        return Ok(());
    }
    Err(format!("`{}` is on a file system whose times do not show every change", escape_output(&entry.path)))
}
