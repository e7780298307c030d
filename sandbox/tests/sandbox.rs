//! Real sandboxes, with programs that misbehave on purpose: once as we are, and, where we are
//! root, once more as an ordinary user.
//!
//! Which trials can run is decided at start, by trying. On a machine (or in a sandbox) that
//! refuses namespaces they are ignored, and their names say why.

mod bench;

use std::process::ExitCode;

use bench::{Bench, Ran, Step};
use libtest_mimic::{Arguments, Failed, Trial};
use proctor_core::enforcement::ControlState;
use proctor_core::outcome::StartFault;
use proctor_core::plan::{Limit, Network};
use proctor_sandbox::{CacheMount, Report, ToolKind, ToolMount, WaitStatus};

type Check = fn(&Bench) -> Result<(), Failed>;

const CHECKS: &[(&str, Check)] = &[("exit_code_passes_through", exit_code_passes_through)];

fn main() -> ExitCode {
    if let Some(code) = bench::play_a_part(CHECKS) {
        return code;
    }
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (role, missing) in bench::roles() {
        trials.extend(CHECKS.iter().map(|(name, _)| role.trial(name, missing.as_deref())));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn exit_code_passes_through(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh("exit 7"))?;
    assert_eq!(ran.status(), Some(WaitStatus::Code(7)), "{ran:?}");
    Ok(())
}
