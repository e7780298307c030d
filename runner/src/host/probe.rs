//! Stores the result of the last trial of the sandbox in the state directory. A run on a machine with all controls
//! then skips the trial. On a machine that lacks one, a run is refused at once with one message, not step by step.
//!
//! A stored result counts only if no required control was missing, because nothing reports when the machine is
//! fixed. It never appears in a record, which describes the controls of the step itself.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::model::enforcement::{Control, Enforcement, Tolerated};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use crate::host::repository::Repository;
use crate::store::StoreError;
use crate::store::directory::Directory;

/// Name of the file in the state directory.
const PROBE_FILE: &str = "probe.json";
/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// The result of a trial, and the conditions that it depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxProbe {
    circumstances: ProbeConditions,
    missing: BTreeSet<Control>,
}

/// The conditions that the result of a trial depends on. If one differs, the result does not apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeConditions {
    boot_id: String,
    kernel: String,
    helper: HelperProgramId,
    /// The user that sets up the sandbox.
    uid: u32,
    gid: u32,
    /// The owner of the tree, which determines the user of steps.
    owner: u32,
    /// Device of the tree's file system: not all file systems can be below an overlay.
    file_system: u64,
    /// True if control groups can be created.
    control_groups: bool,
}

/// Identifies a program file, so that a replacement is noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HelperProgramId {
    path: PathBuf,
    inode: u64,
    bytes: u64,
    /// `st_ctime` in nanoseconds since 1970.
    changed: i128,
}

impl ProbeConditions {
    /// Returns the current conditions for a trial over `repository`.
    ///
    /// # Errors
    /// Information about the kernel, the helper program or the repository cannot be read.
    pub(crate) fn current(helper: &Path, repository: &Repository, control_groups: bool) -> std::io::Result<Self> {
        let program = std::fs::metadata(helper)?;
        let changed = i128::from(program.ctime()) * 1_000_000_000 + i128::from(program.ctime_nsec());
        Ok(Self {
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            helper: HelperProgramId { path: helper.to_owned(), inode: program.ino(), bytes: program.size(), changed },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            owner: repository.facts.uid,
            file_system: std::fs::metadata(repository.path())?.dev(),
            control_groups,
        })
    }
}

impl SandboxProbe {
    /// Creates the result of a trial.
    pub(crate) fn new(circumstances: ProbeConditions, shown: &Enforcement) -> Self {
        Self { circumstances, missing: shown.missing().map(|(control, _)| control).collect() }
    }

    /// Returns the stored result of a trial under the same conditions; `None` if no usable result is stored.
    pub(crate) fn load(state: &Directory, circumstances: &ProbeConditions) -> Option<Self> {
        let bytes = state.read(PROBE_FILE, MAX_BYTES).ok()??;
        let kept: Self = serde_json::from_slice(&bytes).ok()?;
        (kept.circumstances == *circumstances).then_some(kept)
    }

    /// Stores the result, readable for us only.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn store(&self, state: &Directory) -> Result<(), StoreError> {
        let io = |source| StoreError::Io { action: "write", path: format!("{}/{PROBE_FILE}", state.name()), source };
        let bytes = serde_json::to_vec(self).map_err(|error| io(error.into()))?;
        let mut temporary = state.create_temporary(PROBE_FILE)?;
        rustix::fs::fchmod(&temporary.file, Mode::RUSR | Mode::WUSR).map_err(|errno| io(errno.into()))?;
        temporary.file.write_all(&bytes).and_then(|()| temporary.file.sync_all()).map_err(io)?;
        temporary.publish(PROBE_FILE)
    }

    /// Returns whether all missing controls are tolerated.
    pub(crate) fn is_sufficient(&self, tolerated: &Tolerated) -> bool {
        self.missing.iter().all(|control| tolerated.contains(*control))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions() -> ProbeConditions {
        ProbeConditions {
            boot_id: "b".to_owned(),
            kernel: "6.18".to_owned(),
            helper: HelperProgramId { path: "/h".into(), inode: 1, bytes: 2, changed: 3 },
            uid: 4,
            gid: 5,
            owner: 6,
            file_system: 7,
            control_groups: false,
        }
    }

    fn state() -> (tempfile::TempDir, Directory) {
        let temp = tempfile::tempdir().expect("a directory");
        let directory = Directory::open(temp.path()).expect("opens");
        (temp, directory)
    }

    #[test]
    fn discards_result_if_any_condition_differs() {
        type ConditionChange = fn(&mut ProbeConditions);
        let changes: [ConditionChange; 8] = [
            |c| c.boot_id.push('x'),
            |c| c.kernel.push('x'),
            |c| c.helper.changed += 1,
            |c| c.helper.bytes += 1,
            |c| c.uid += 1,
            |c| c.owner += 1,
            |c| c.file_system += 1,
            |c| c.control_groups = true,
        ];
        let (_temp, state) = state();
        assert_eq!(SandboxProbe::load(&state, &conditions()), None, "there is none");
        let probe = SandboxProbe::new(conditions(), &Enforcement::default());
        probe.store(&state).expect("stored");
        assert_eq!(SandboxProbe::load(&state, &conditions()), Some(probe));
        for (index, change) in changes.into_iter().enumerate() {
            let mut other = conditions();
            change(&mut other);
            assert_eq!(SandboxProbe::load(&state, &other), None, "{index}");
        }
    }

    #[test]
    fn stores_private_file_and_ignores_invalid_content() {
        use std::os::unix::fs::PermissionsExt as _;
        let (temp, state) = state();
        SandboxProbe::new(conditions(), &Enforcement::default()).store(&state).expect("stored");
        let mode = std::fs::metadata(temp.path().join(PROBE_FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        state.write(PROBE_FILE, b"{\"circumstances\":{}}").expect("written");
        assert_eq!(SandboxProbe::load(&state, &conditions()), None);
    }

    #[test]
    fn requires_tolerance_for_missing_controls() {
        let mut shown = Enforcement::default();
        shown.record_enforced(Control::Layer, "x");
        shown.record_not_enforced(Control::Cgroup, "no");
        let probe = SandboxProbe::new(conditions(), &shown);
        assert!(probe.is_sufficient(&Tolerated::default()));
        assert!(!probe.is_sufficient(&Tolerated::from_iter([])));
        shown.record_not_enforced(Control::Landlock, "no");
        assert!(!SandboxProbe::new(conditions(), &shown).is_sufficient(&Tolerated::default()));
    }
}
