//! End-to-end tests of the built binaries, with repositories created by real git and steps that misbehave on purpose.
//! All cases are in one binary, so that they share one build and one probe of the machine. The compiler warns about a
//! case that is missing from the `CASES` lists, because it is dead code. Decisions of pure functions are tested in
//! their own crates.

mod binaries;
mod cases;
mod daemon;
mod documents;
mod environment;
mod machine;
mod needs;
mod process;
mod report;
mod schemas;
mod served;
mod serving;
mod spec;
mod tracer;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::environment::TestEnvironment;
use crate::needs::Case;

fn main() -> ExitCode {
    if let Some(code) = tracer::role() {
        return code;
    }
    let arguments = Arguments::from_args();
    report::keep_panic_locations();
    let trials = cases::all().into_iter().map(trial).chain(cases::served().into_iter().map(served_trial)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    binaries::clean_up();
    conclusion.exit_code()
}

/// Returns the trial of a case. If a need is not met, the trial is ignored and its name says why.
fn trial(case: &'static Case) -> Trial {
    trial_called(case.name.to_owned(), case, || TestEnvironment::with_git(case.actor, case.format))
}

/// Returns the trial of a case that runs through a daemon.
fn served_trial(case: &'static Case) -> Trial {
    let name = format!("{} (by the daemon)", case.name);
    trial_called(name, case, || TestEnvironment::with_git(case.actor, case.format).served())
}

fn trial_called(name: String, case: &'static Case, env: impl FnOnce() -> TestEnvironment + Send + 'static) -> Trial {
    match case.unmet() {
        Some(reason) => Trial::test(format!("{name} (skipped: needs {reason})"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name, move || report::run(case, env)),
    }
}
