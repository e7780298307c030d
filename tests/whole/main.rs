//! End-to-end tests of the built binaries, with repositories created by real git and steps that misbehave on purpose.
//! All cases are in one binary, so that they share one build and one probe of the machine. The compiler warns about a
//! case that is missing from the `CASES` lists, because it is dead code. Decisions of pure functions are tested in
//! their own crates.

mod binaries;
mod case_daemon;
mod case_times;
mod cases;
mod daemon;
mod database_server;
mod documents;
mod environment;
mod in_process_service;
mod machine;
mod needs;
mod panic_capture;
mod process;
mod schemas;
mod test_level;
mod test_spec;
mod tracer;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::case_times::CaseTimer;
use crate::environment::TestEnvironment;
use crate::needs::CaseDefinition;

fn main() -> ExitCode {
    if let Some(code) = tracer::run_if_tracer() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert_with(concurrent_cases);
    panic_capture::install_panic_hook();
    let is_requested = |name: &str| match &arguments.filter {
        Some(filter) if arguments.exact => name == filter,
        Some(filter) => name.contains(filter.as_str()),
        None => true,
    };
    let cases: Vec<_> = cases::selected_cases().into_iter().filter(|case| is_requested(case.name)).collect();
    let through_daemon = cases::selected_daemon_cases().into_iter();
    let through_daemon: Vec<_> = through_daemon.filter(|case| is_requested(&daemon_trial_name(case))).collect();
    needs::probe_concurrently(&[&cases[..], &through_daemon].concat());
    let trials = cases.into_iter().map(trial).chain(through_daemon.into_iter().map(daemon_trial)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    binaries::remove_copies();
    conclusion.exit_code()
}

/// Returns how many cases run at once: more than processors, because a case mostly waits for processes and the disk.
fn concurrent_cases() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the trial of a case. If a need is not met, the trial is ignored and its name says why.
fn trial(case: &'static CaseDefinition) -> Trial {
    named_trial(case.name.to_owned(), case, || TestEnvironment::with_git_format(case.actor, case.format))
}

/// Returns the trial of a case that runs through a daemon.
fn daemon_trial(case: &'static CaseDefinition) -> Trial {
    named_trial(daemon_trial_name(case), case, || {
        TestEnvironment::with_git_format(case.actor, case.format).with_daemon()
    })
}

fn daemon_trial_name(case: &CaseDefinition) -> String {
    format!("{} (by the daemon)", case.name)
}

fn named_trial(
    name: String,
    case: &'static CaseDefinition,
    env: impl FnOnce() -> TestEnvironment + Send + 'static,
) -> Trial {
    match case.unmet_need() {
        Some(reason) => Trial::test(format!("{name} (skipped: needs {reason})"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name.clone(), move || {
            let _timer = CaseTimer::start(&name);
            panic_capture::run_case(case, env)
        }),
    }
}
