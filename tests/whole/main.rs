//! The whole system, driven as its users drive it: the built binaries, repositories made by
//! real git, steps that misbehave on purpose. One binary, so that one build and one probe of the
//! machine serve every case; a case that is not in a `CASES` list is dead code and does not build
//! without a warning. Not here: what a pure function decides, which its own crate tests.

mod binaries;
mod cases;
mod documents;
mod environment;
mod machine;
mod needs;
mod process;
mod report;
mod schemas;
mod spec;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::needs::Case;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    report::keep_panic_locations();
    let trials = cases::all().into_iter().map(trial).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    binaries::clean_up();
    conclusion.exit_code()
}

/// The trial of a case. One whose needs are not met is ignored, and its name says why.
fn trial(case: &'static Case) -> Trial {
    match case.unmet() {
        Some(reason) => {
            Trial::test(format!("{} (skipped: needs {reason})", case.name), || Ok(())).with_ignored_flag(true)
        }
        None => Trial::test(case.name, move || report::run(case)),
    }
}
