//! Restricts the step by Landlock, a second layer of defence behind mounts, namespaces and modes. The process that
//! becomes the command enforces the ruleset last, and all of its children inherit it. landlock(7).
//!
//! There are no network rules: they cover TCP only, and would close the loopback device too.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, CreateRulesetError, LandlockStatus, PathBeneath, PathFd,
    RestrictSelfAttr, RestrictSelfError, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

/// The result of enforcing the ruleset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LandlockResult {
    /// The ruleset is enforced: the kernel refused the probe as it should.
    Enforced {
        /// Human-readable list of the Landlock features in use.
        mechanism: String,
    },
    /// This kernel cannot enforce the ruleset.
    Unavailable {
        /// Human-readable reason.
        reason: String,
    },
}

/// The permitted operations on files below a directory.
pub(super) type FileRights = BitFlags<AccessFs>;

/// A ruleset that exists in the kernel but is not enforced on any process yet.
#[derive(Debug)]
pub(super) struct LandlockRuleset {
    rules: RulesetCreated,
    scopes: BitFlags<Scope>,
    probe_dir: PathBuf,
}

impl LandlockRuleset {
    /// Creates a ruleset from these rules alone: all other paths can be neither read nor written. A rule for a file
    /// uses those of its rights that apply to files; a rule for an absent path is skipped.
    ///
    /// # Errors
    /// The kernel refuses a rule.
    pub(super) fn from_rules(rules: &[(PathBuf, FileRights)], probe_dir: &Path) -> io::Result<Self> {
        let rules: Vec<(&Path, FileRights)> = rules.iter().map(|(path, rights)| (path.as_path(), *rights)).collect();
        Self::create(&rules, probe_dir)
    }

    /// Creates the ruleset of a sandbox, after the last mount. Below `scratch`, which exists, and below the
    /// directories `others`, everything may be changed. That includes mounts inside them. An absent directory is
    /// skipped.
    ///
    /// # Errors
    /// The kernel refuses a rule.
    pub(super) fn new(scratch: &Path, others: &[&Path]) -> io::Result<Self> {
        let fixed = [("/", read_rights()), ("/dev", device_rights()), ("/proc", proc_rights())]
            .map(|(path, rights)| (Path::new(path), rights));
        let writable = [scratch].into_iter().chain(others.iter().copied()).map(|path| (path, write_rights()));
        Self::create(&fixed.into_iter().chain(writable).collect::<Vec<_>>(), scratch)
    }

    /// Allows changes below one more directory.
    ///
    /// # Errors
    /// The kernel refuses the rule.
    pub(super) fn allow_changes_below(self, directory: &Path) -> io::Result<Self> {
        let rules = add_rules(self.rules, &[(directory, write_rights())]).map_err(io::Error::other)?;
        Ok(Self { rules, ..self })
    }

    fn create(wanted: &[(&Path, FileRights)], probe_dir: &Path) -> io::Result<Self> {
        let scopes = Scope::from_all(NEWEST_ABI);
        let (created, scopes) = match create_empty_ruleset(scopes) {
            // Some vendors' kernels report an ABI whose scopes they lack.
            Err(RulesetError::CreateRuleset(CreateRulesetError::CreateRulesetCall { .. })) => {
                (create_empty_ruleset(BitFlags::EMPTY), BitFlags::EMPTY)
            }
            other => (other, scopes),
        };
        let rules = created.and_then(|rules| add_rules(rules, wanted)).map_err(io::Error::other)?;
        Ok(Self { rules, scopes, probe_dir: probe_dir.to_owned() })
    }

    /// Enforces the ruleset on this process and all of its future children, and verifies that it is active. The
    /// process must have no capabilities and must have set `no_new_privs`.
    ///
    /// # Errors
    /// The kernel refuses, or the ruleset is not effective.
    pub(super) fn enforce(self) -> io::Result<LandlockResult> {
        let status = match self.rules.restrict_self() {
            Ok(status) => status,
            Err(error) => return handle_restrict_error(error),
        };
        match (status.ruleset, status.landlock) {
            (RulesetStatus::NotEnforced, kernel) => Ok(LandlockResult::Unavailable { reason: absence_reason(kernel) }),
            (_, LandlockStatus::Available { effective_abi, .. }) => {
                verify_enforced(&self.probe_dir)?;
                Ok(LandlockResult::Enforced { mechanism: describe_mechanism(effective_abi, self.scopes) })
            }
            (_, kernel) => Err(io::Error::other(format!("rules are in force without Landlock: {kernel:?}"))),
        }
    }
}

/// Makes this process and all of its future children unable to send signals to any other process. Returns whether the
/// kernel enforces this (Linux 6.12). Sets `no_new_privs`.
///
/// `kill(-1)` then reaches exactly the descendants of this process, all at once.
pub(super) fn confine_signals() -> bool {
    // Without Landlock, or in too many nested domains, the signals are not confined.
    restrict_signals().is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced) && parent_is_unreachable()
}

fn restrict_signals() -> Result<landlock::RestrictionStatus, RulesetError> {
    let scoped = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).scope(Scope::Signal)?;
    // Every domain refuses links and renames between directories (EXDEV), unless one of its rules allows them.
    let handled = scoped.set_compatibility(CompatLevel::BestEffort).handle_access(AccessFs::Refer)?;
    // Denied signals must not fill the host's audit log. Linux 6.12 has no such option.
    let created = handled.create()?.log_same_exec(false)?.log_subdomains(false)?;
    add_rules(created, &[(Path::new("/"), AccessFs::Refer.into())])?.restrict_self()
}

/// Verifies that a signal to the parent of this process is refused. The parent is outside the domain.
fn parent_is_unreachable() -> bool {
    rustix::process::getppid().is_some_and(|parent| rustix::process::test_kill_process(parent) == Err(Errno::PERM))
}

/// The newest ABI whose rights are handled. Rights that the kernel does not support are left out.
const NEWEST_ABI: ABI = ABI::V9;

fn create_empty_ruleset(scopes: BitFlags<Scope>) -> Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        // ABI 1 lacks this right and denies every rename between two directories. Steps would fail under such a
        // ruleset, so none is used.
        .set_compatibility(CompatLevel::SoftRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST_ABI))?;
    if !scopes.is_empty() {
        rules = rules.scope(scopes)?;
    }
    // A step must not fill the host's audit log, neither by denied operations nor through its own Landlock domains.
    // Logging after the exec is opt-in, and is not enabled here.
    rules.create()?.no_new_privs(false).log_same_exec(false)?.log_subdomains(false)
}

fn add_rules(rules: RulesetCreated, wanted: &[(&Path, FileRights)]) -> Result<RulesetCreated, RulesetError> {
    wanted.iter().try_fold(rules, |rules, (path, rights)| match PathFd::new(path) {
        Ok(fd) => rules.add_rule(PathBeneath::new(fd, *rights)),
        // A path that cannot be opened cannot be written either.
        Err(_) => Ok(rules),
    })
}

/// Returns the rights below `/`: files may be read and executed as mounts and modes allow. A connection to another
/// process's pathname socket is denied (ABI 9); the step's own sockets need no right.
pub(super) fn read_rights() -> FileRights {
    AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir
}

/// Returns the rights below `/dev`, for devices and terminals.
pub(super) fn device_rights() -> FileRights {
    AccessFs::WriteFile | AccessFs::IoctlDev
}

/// Returns the rights below `/proc`, for a process's own files, such as `echo 500 >/proc/self/oom_score_adj`.
fn proc_rights() -> FileRights {
    AccessFs::WriteFile | AccessFs::Truncate
}

/// Returns the rights below writable directories: everything except devices.
pub(super) fn write_rights() -> FileRights {
    let never = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev | AccessFs::ResolveUnix;
    AccessFs::from_all(NEWEST_ABI) & !never
}

/// Verifies the ruleset by an attempt to create a block device. The kernel checks Landlock first, which answers
/// EACCES; without it the answer is EPERM, since the process has no capability.
fn verify_enforced(dir: &Path) -> io::Result<()> {
    match rustix::fs::mknodat(CWD, dir.join(PROBE), FileType::BlockDevice, Mode::empty(), 0) {
        Err(Errno::ACCESS) => Ok(()),
        answer => {
            let dir = dir.display();
            Err(io::Error::other(format!("opening a device in {dir} returned {answer:?} instead of EACCES")))
        }
    }
}

const PROBE: &str = ".proctor-landlock";

/// Handles a failure to enforce the ruleset. A process can have 16 nested domains, and proctor itself may run inside
/// 16.
fn handle_restrict_error(error: RulesetError) -> io::Result<LandlockResult> {
    match error {
        RulesetError::RestrictSelf(RestrictSelfError::RestrictSelfCall { source, .. })
            if source.raw_os_error() == Some(libc::E2BIG) =>
        {
            Ok(LandlockResult::Unavailable {
                reason: "E2BIG: proctor itself runs inside the maximum number of Landlock domains".to_owned(),
            })
        }
        error => Err(io::Error::other(error)),
    }
}

fn absence_reason(kernel: LandlockStatus) -> String {
    match kernel {
        LandlockStatus::NotEnabled => {
            "EOPNOTSUPP: Landlock is disabled (`lsm=` of the kernel's command line)".to_owned()
        }
        LandlockStatus::NotImplemented => {
            "this kernel has no Landlock, or a seccomp filter of proctor's environment blocks it".to_owned()
        }
        LandlockStatus::Available { effective_abi, .. } => {
            format!(
                "Landlock's ABI {effective_abi} would deny every rename between directories; 2 (Linux 5.19) is needed"
            )
        }
    }
}

/// The rights that each ABI added, as far as the ruleset uses them.
const RIGHTS_BY_ABI: [(ABI, &str); 5] = [
    (ABI::V1, "reading, executing, writing, creating and removing files"),
    (ABI::V2, "renaming"),
    (ABI::V3, "truncating"),
    (ABI::V5, "ioctl of devices"),
    (ABI::V9, "sockets with a path"),
];

fn describe_mechanism(abi: ABI, scopes: BitFlags<Scope>) -> String {
    let mut rights: Vec<&str> =
        RIGHTS_BY_ABI.into_iter().filter(|(since, _)| *since <= abi).map(|(_, right)| right).collect();
    if abi >= ABI::V6 && !scopes.is_empty() {
        rights.push("abstract sockets and signals of other processes");
    }
    format!("ABI {abi}: {}; a device was refused", rights.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanism_lists_rights_of_abi() {
        let all = Scope::from_all(NEWEST_ABI);
        assert!(
            !describe_mechanism(ABI::V2, all).contains("truncating")
                && describe_mechanism(ABI::V3, all).contains("truncating")
        );
        assert!(
            !describe_mechanism(ABI::V5, all).contains("signals")
                && describe_mechanism(ABI::V6, all).contains("signals")
        );
        assert!(!describe_mechanism(ABI::V6, BitFlags::EMPTY).contains("signals"));
        assert!(
            !describe_mechanism(ABI::V8, all).contains("with a path")
                && describe_mechanism(ABI::V9, all).contains("with a path")
        );
    }

    #[test]
    fn grants_no_device_creation() {
        let allowed = read_rights() | device_rights() | proc_rights() | write_rights();
        let never = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::ResolveUnix;
        assert_eq!(AccessFs::from_all(NEWEST_ABI) & !allowed, never);
        assert!(write_rights().contains(AccessFs::Refer) && !write_rights().contains(AccessFs::IoctlDev));
        assert!(!read_rights().contains(AccessFs::WriteFile) && !device_rights().contains(AccessFs::MakeReg));
    }
}
