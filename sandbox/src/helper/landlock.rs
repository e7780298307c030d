//! Landlock: a second wall around what mounts, namespaces and modes already deny. The process that
//! becomes the command builds it last, and it holds for whatever that starts. landlock(7).
//!
//! Nothing is said about the network: its rules know TCP alone, and would close the loopback device
//! too.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, CreateRulesetError, LandlockStatus, PathBeneath, PathFd,
    RestrictSelfAttr, RestrictSelfError, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope,
};
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

/// What became of the wall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Walled {
    /// It stands: the kernel refused to us what it has to refuse.
    By {
        /// Of how much of Landlock, as a phrase for people.
        mechanism: String,
    },
    /// This kernel cannot build it.
    Absent {
        /// Why not, as a phrase for people.
        reason: String,
    },
}

/// What may be done with files below a directory.
pub(super) type Rights = BitFlags<AccessFs>;

/// A wall that is drawn and not yet built: its rules are with the kernel, and hold for nobody.
#[derive(Debug)]
pub(super) struct Wall {
    rules: RulesetCreated,
    scopes: BitFlags<Scope>,
    tried_in: PathBuf,
}

impl Wall {
    /// Draws the wall by its rules alone: what none of them names can be neither read nor written.
    /// A rule for a file takes what of its rights files have; one for what is absent is passed over.
    ///
    /// # Errors
    /// The kernel refuses a rule.
    pub(super) fn by_rules(rules: &[(PathBuf, Rights)], tried_in: &Path) -> io::Result<Self> {
        let rules: Vec<(&Path, Rights)> = rules.iter().map(|(path, rights)| (path.as_path(), *rights)).collect();
        Self::draw(&rules, tried_in)
    }

    /// Draws the wall, after the last mount. Below `scratch`, which exists, and below the
    /// directories `others` everything may be changed; what is mounted in them comes with them, and
    /// one that is absent is passed over.
    ///
    /// # Errors
    /// The kernel refuses a rule.
    pub(super) fn new(scratch: &Path, others: &[&Path]) -> io::Result<Self> {
        let fixed =
            [("/", seen()), ("/dev", used()), ("/proc", told())].map(|(path, rights)| (Path::new(path), rights));
        let writable = [scratch].into_iter().chain(others.iter().copied()).map(|path| (path, changed()));
        Self::draw(&fixed.into_iter().chain(writable).collect::<Vec<_>>(), scratch)
    }

    /// Lets everything be changed below one directory more.
    ///
    /// # Errors
    /// The kernel refuses the rule.
    pub(super) fn with(self, directory: &Path) -> io::Result<Self> {
        let rules = allow(self.rules, &[(directory, changed())]).map_err(io::Error::other)?;
        Ok(Self { rules, ..self })
    }

    fn draw(wanted: &[(&Path, Rights)], tried_in: &Path) -> io::Result<Self> {
        let scopes = Scope::from_all(NEWEST);
        let (created, scopes) = match create(scopes) {
            // Some vendors' kernels count an ABI whose scopes they lack.
            Err(RulesetError::CreateRuleset(CreateRulesetError::CreateRulesetCall { .. })) => {
                (create(BitFlags::EMPTY), BitFlags::EMPTY)
            }
            other => (other, scopes),
        };
        let rules = created.and_then(|rules| allow(rules, wanted)).map_err(io::Error::other)?;
        Ok(Self { rules, scopes, tried_in: tried_in.to_owned() })
    }

    /// Builds it around this process and all that it is going to start, and tries it. For a process
    /// without capabilities that has set `no_new_privs`.
    ///
    /// # Errors
    /// The kernel refuses, or the wall does not hold.
    pub(super) fn build(self) -> io::Result<Walled> {
        let status = match self.rules.restrict_self() {
            Ok(status) => status,
            Err(error) => return unless_full(error),
        };
        match (status.ruleset, status.landlock) {
            (RulesetStatus::NotEnforced, kernel) => Ok(Walled::Absent { reason: absence(kernel) }),
            (_, LandlockStatus::Available { effective_abi, .. }) => {
                try_in(&self.tried_in)?;
                Ok(Walled::By { mechanism: mechanism(effective_abi, self.scopes) })
            }
            (_, kernel) => Err(io::Error::other(format!("rules are in force without Landlock: {kernel:?}"))),
        }
    }
}

/// The newest ABI whose rights were looked at. What a kernel does not know of it is left out.
const NEWEST: ABI = ABI::V9;

fn create(scopes: BitFlags<Scope>) -> Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        // Without this right (ABI 1) every rename between two directories fails: no wall is better
        // than a step that fails for it.
        .set_compatibility(CompatLevel::SoftRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?;
    if !scopes.is_empty() {
        rules = rules.scope(scopes)?;
    }
    // A step must not fill the host's audit log, neither with what it is denied nor through walls
    // of its own making. What follows the exec is logged on demand only.
    rules.create()?.no_new_privs(false).log_same_exec(false)?.log_subdomains(false)
}

fn allow(rules: RulesetCreated, wanted: &[(&Path, Rights)]) -> Result<RulesetCreated, RulesetError> {
    wanted.iter().try_fold(rules, |rules, (path, rights)| match PathFd::new(path) {
        Ok(fd) => rules.add_rule(PathBeneath::new(fd, *rights)),
        // Whoever cannot reach it cannot write it.
        Err(_) => Ok(rules),
    })
}

/// Below `/`: what mounts and modes show may be read and executed. A socket that another process
/// listens on may not be connected to (ABI 9); those of the step itself need no right.
pub(super) fn seen() -> Rights {
    AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir
}

/// Below `/dev`: devices and terminals.
pub(super) fn used() -> Rights {
    AccessFs::WriteFile | AccessFs::IoctlDev
}

/// Below `/proc`: a process's own files, `echo 500 >/proc/self/oom_score_adj` among them.
fn told() -> Rights {
    AccessFs::WriteFile | AccessFs::Truncate
}

/// Below what is writable: everything but devices.
pub(super) fn changed() -> Rights {
    let never = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev | AccessFs::ResolveUnix;
    AccessFs::from_all(NEWEST) & !never
}

/// Asks for a block device. The kernel asks Landlock first, whose answer is EACCES; without it the
/// answer is EPERM, since we have no capability.
fn try_in(dir: &Path) -> io::Result<()> {
    match rustix::fs::mknodat(CWD, dir.join(PROBE), FileType::BlockDevice, Mode::empty(), 0) {
        Err(Errno::ACCESS) => Ok(()),
        answer => {
            let dir = dir.display();
            Err(io::Error::other(format!("a device in {dir} is answered with {answer:?} and not with EACCES")))
        }
    }
}

const PROBE: &str = ".proctor-landlock";

/// A process can have 16 walls, one in the other; whoever started us may have built them all.
fn unless_full(error: RulesetError) -> io::Result<Walled> {
    match error {
        RulesetError::RestrictSelf(RestrictSelfError::RestrictSelfCall { source, .. })
            if source.raw_os_error() == Some(libc::E2BIG) =>
        {
            Ok(Walled::Absent {
                reason: "E2BIG: proctor itself runs inside as many Landlock domains as there can be".to_owned(),
            })
        }
        error => Err(io::Error::other(error)),
    }
}

fn absence(kernel: LandlockStatus) -> String {
    match kernel {
        LandlockStatus::NotEnabled => {
            "EOPNOTSUPP: Landlock is switched off (`lsm=` of the kernel's command line)".to_owned()
        }
        LandlockStatus::NotImplemented => {
            "this kernel has no Landlock, or a filter around proctor refuses it".to_owned()
        }
        LandlockStatus::Available { effective_abi, .. } => {
            format!(
                "Landlock's ABI {effective_abi} would deny every rename between directories; 2 (Linux 5.19) is needed"
            )
        }
    }
}

/// What each ABI added, as far as it serves here.
const ADDED: [(ABI, &str); 5] = [
    (ABI::V1, "reading, executing, writing, making and removing files"),
    (ABI::V2, "renaming"),
    (ABI::V3, "truncating"),
    (ABI::V5, "ioctl of devices"),
    (ABI::V9, "sockets with a path"),
];

fn mechanism(abi: ABI, scopes: BitFlags<Scope>) -> String {
    let mut rights: Vec<&str> = ADDED.into_iter().filter(|(since, _)| *since <= abi).map(|(_, right)| right).collect();
    if abi >= ABI::V6 && !scopes.is_empty() {
        rights.push("abstract sockets and signals of others");
    }
    format!("ABI {abi}: {}; a device was refused", rights.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_names_what_the_kernel_has() {
        let all = Scope::from_all(NEWEST);
        assert!(!mechanism(ABI::V2, all).contains("truncating") && mechanism(ABI::V3, all).contains("truncating"));
        assert!(!mechanism(ABI::V5, all).contains("signals") && mechanism(ABI::V6, all).contains("signals"));
        assert!(!mechanism(ABI::V6, BitFlags::EMPTY).contains("signals"));
        assert!(!mechanism(ABI::V8, all).contains("with a path") && mechanism(ABI::V9, all).contains("with a path"));
    }

    #[test]
    fn nothing_but_devices_may_be_used_as_one_or_made() {
        let allowed = seen() | used() | told() | changed();
        let never = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::ResolveUnix;
        assert_eq!(AccessFs::from_all(NEWEST) & !allowed, never);
        assert!(changed().contains(AccessFs::Refer) && !changed().contains(AccessFs::IoctlDev));
        assert!(!seen().contains(AccessFs::WriteFile) && !used().contains(AccessFs::MakeReg));
    }
}
