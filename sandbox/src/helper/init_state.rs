//! Holds the state of the init of a sandbox, and the rules for controls that cannot be enforced.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use proctor_core::model::enforcement::{Control, Enforcement};

use crate::error::with_best_effort_hint;
use crate::helper::landlock::LandlockRuleset;
use crate::helper::memory_sources::MemorySources;
use crate::helper::setup_failure::{SetupFailure, refused};
use crate::setup::SetupOp;
use crate::wire::{self, ClaimRequest, EnforcedLimits, HelperMessage, SandboxRequest};

/// The state that the later stages, PID 1 and the command's process, need.
pub(super) struct InitState<'a> {
    pub(super) request: &'a SandboxRequest,
    /// The controls enforced so far.
    pub(super) enforcement: Enforcement,
    /// The files through which PID 1 enters its control groups.
    pub(super) tasks: Vec<OwnedFd>,
    /// Sources for memory that the limits of processes do not count.
    pub(super) memory: Rc<MemorySources>,
    /// The error that kept PID 1 from being created inside its control group, if it should have been.
    pub(super) cgroup_fork_error: Option<io::Error>,
    /// `/dev/null`, opened early because it is not available while `/dev` is made.
    pub(super) null: OwnedFd,
    /// The Landlock ruleset to enforce.
    pub(super) ruleset: Option<LandlockRuleset>,
    /// The socket from which the command is received. Closed on exec.
    pub(super) command_socket: OwnedFd,
    /// The socket to the helper. Closed on exec.
    pub(super) helper_socket: OwnedFd,
    /// The socket to the daemon, for messages that the helper need not forward. Closed on exec.
    pub(super) daemon_socket: Option<BorrowedFd<'a>>,
}

impl InitState<'_> {
    /// Continues after a failed operation if it may be left out and its control may be missing.
    pub(super) fn tolerate(&mut self, op: &SetupOp, result: Result<(), SetupFailure>) -> Result<(), SetupFailure> {
        tolerate(&mut self.enforcement, self.request, op, result)
    }

    /// Sends a message to the daemon, directly if possible.
    pub(super) fn send(&self, message: &HelperMessage) -> io::Result<()> {
        wire::send(self.daemon_socket.unwrap_or(self.helper_socket.as_fd()), message, &[])
    }

    /// Sends the final report of this attempt, while the helper still works for it, and exits.
    pub(super) fn report_failure(&self, failure: SetupFailure) -> ! {
        // If the helper has ended, the daemon cannot be reached either.
        drop(wire::send(self.helper_socket.as_fd(), &failure.into_message(), &[]));
        std::process::exit(1)
    }
}

/// Records a control as missing if the step can continue without the operation and the policy tolerates that.
pub(super) fn tolerate(
    enforcement: &mut Enforcement,
    request: &SandboxRequest,
    op: &SetupOp,
    result: Result<(), SetupFailure>,
) -> Result<(), SetupFailure> {
    match result {
        Err(SetupFailure::Refused { control, message, hint }) if op.is_optional() => {
            if !request.frame.tolerated.contains(control) {
                return Err(refused(control, message, with_best_effort_hint(&hint)));
            }
            enforcement.record_not_enforced_with_hint(control, message, hint);
            Ok(())
        }
        other => other,
    }
}

/// Refuses the step if a requested control is not enforced and may not be missing. A failed operation can disable
/// another operation's control without stopping the set-up; this check stops it before anything runs.
pub(super) fn check_enforcement(enforcement: &Enforcement, request: &SandboxRequest) -> Result<(), SetupFailure> {
    match enforcement.missing().find(|(control, _)| !request.frame.tolerated.contains(*control)) {
        None => Ok(()),
        Some((control, reason)) => {
            Err(refused(control, reason, with_best_effort_hint(enforcement.hint(control).unwrap_or(DOCTOR_HINT))))
        }
    }
}

pub(super) const DOCTOR_HINT: &str = "run `proctor doctor`";

/// Lets PID 1 continue: with its operations, and later with its mounts.
pub(super) const GO_MESSAGE: &[u8] = b"go";

/// Notifies the helper that `/proc` and `/sys` are mounted.
pub(super) const MOUNTED_MESSAGE: &[u8] = b"mounted";

pub(super) type InitOpResult = Result<(), SetupFailure>;

/// The position of a command in its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandTurn {
    /// The first command.
    First,
    /// A later command.
    Later,
}

/// Discards the limits that the daemon set on a group if PID 1 did not enter that group.
pub(super) fn drop_unenforced_limits(enforcement: &Enforcement, claim: &mut ClaimRequest) {
    if !enforcement.is_enforced(Control::Cgroup) {
        claim.held = EnforcedLimits::default();
    }
}
