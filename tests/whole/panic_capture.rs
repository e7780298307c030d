//! Converts a panic into a failed trial with its message and location.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};

use libtest_mimic::Failed;

use crate::environment::TestEnvironment;
use crate::needs::CaseDefinition;

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    static IS_CASE_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Installs a panic hook that stores the message and location for [`run_case`] if a case panics, instead of printing
/// them between the lines of other trials.
pub(crate) fn install_panic_hook() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| match IS_CASE_RUNNING.get() {
        true => LAST_PANIC.with(|slot| *slot.borrow_mut() = info.to_string()),
        false => print(info),
    }));
}

/// Runs one case in its own environment.
pub(crate) fn run_case(case: &CaseDefinition, env: impl FnOnce() -> TestEnvironment) -> Result<(), Failed> {
    IS_CASE_RUNNING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (case.run)(&env())));
    IS_CASE_RUNNING.set(false);
    outcome.map_err(|_| LAST_PANIC.with(|slot| Failed::from(slot.take())))
}
