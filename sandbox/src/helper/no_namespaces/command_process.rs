//! Implements the process that becomes the command of a step without namespaces.

use proctor_core::model::enforcement::Enforcement;

use super::attempt_dirs::AttemptPaths;
use super::{landlock_rules, resource_limits};
use crate::helper::abstract_socket_probe::AbstractSocketProbe;
use crate::helper::command_process;
use crate::helper::init_state::{InitState, check_enforcement, tolerate};
use crate::helper::setup_failure::SetupFailure;
use crate::setup::SetupOp;
use crate::wire::{HostDirSandboxRequest, InitInstructions};

/// Executes the command, or reports why that failed and exits.
pub(super) fn run(prepared: &InitState<'_>, request: &HostDirSandboxRequest, go: &InitInstructions) -> ! {
    let mut enforcement = prepared.enforcement.clone();
    let failure = match set_up_command(request, go, &mut enforcement) {
        Ok(()) => command_process::execute(prepared, &go.claim.command, &mut enforcement),
        Err(failure) => failure,
    };
    prepared.report_failure(failure)
}

fn set_up_command(
    request: &HostDirSandboxRequest,
    go: &InitInstructions,
    enforcement: &mut Enforcement,
) -> Result<(), SetupFailure> {
    let paths = AttemptPaths::for_layer(request, go.claim.layers.upper);
    command_process::new_session(enforcement)?;
    resource_limits::set_limits(request.sandbox.user, go, enforcement)?;
    command_process::close_fds(enforcement)?;
    command_process::enter_workdir(&paths.tree.join(go.claim.command.workdir.as_str()), &paths.tree)?;
    // Must come after the last file is opened.
    let outside = AbstractSocketProbe::create()?;
    let wall = landlock_rules::enforce(request, &paths, enforcement);
    outside.check(enforcement)?;
    tolerate(enforcement, &request.sandbox, &SetupOp::Landlock { repo: paths.tree.clone() }, wall)?;
    check_enforcement(enforcement, &request.sandbox)
}
