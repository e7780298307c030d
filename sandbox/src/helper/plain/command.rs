//! Implements the process that becomes the command of a step without namespaces.

use proctor_core::enforcement::Enforcement;

use super::place::Paths;
use super::{limits, wall};
use crate::helper::attempt::{Prepared, demand, tolerate};
use crate::helper::command;
use crate::helper::failure::Failure;
use crate::helper::outside::Outside;
use crate::setup::SetupOp;
use crate::wire::{Go, PlainRequest};

/// Executes the command, or reports why that failed and exits.
pub(super) fn run(prepared: &Prepared<'_>, request: &PlainRequest, go: &Go) -> ! {
    let mut enforcement = prepared.enforcement.clone();
    let failure = match set_up(request, go, &mut enforcement) {
        Ok(()) => command::execute(prepared, &go.claim.command, &mut enforcement),
        Err(failure) => failure,
    };
    prepared.fail(failure)
}

fn set_up(request: &PlainRequest, go: &Go, enforcement: &mut Enforcement) -> Result<(), Failure> {
    let paths = Paths::of(request, go.claim.layers.upper);
    command::new_session(enforcement)?;
    limits::set(request.sandbox.user, go, enforcement)?;
    command::close_fds(enforcement)?;
    command::change_to(&paths.tree.join(go.claim.command.workdir.as_str()), &paths.tree)?;
    // After the last file is opened.
    let outside = Outside::make()?;
    let wall = wall::build(request, &paths, enforcement);
    outside.look(enforcement)?;
    tolerate(enforcement, &request.sandbox, &SetupOp::Landlock { repo: paths.tree.clone() }, wall)?;
    demand(enforcement, &request.sandbox)
}
