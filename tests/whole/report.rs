//! Converts a panic into a failed trial with its message and location.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};

use libtest_mimic::Failed;

use crate::environment::TestEnvironment;
use crate::needs::Case;

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    static IN_A_CASE: Cell<bool> = const { Cell::new(false) };
}

/// Installs a panic hook that stores the message and location for [`run`] if a case panics, instead of printing them
/// between the lines of other trials.
pub(crate) fn keep_panic_locations() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| match IN_A_CASE.get() {
        true => PANIC.with(|slot| *slot.borrow_mut() = info.to_string()),
        false => print(info),
    }));
}

/// Runs one case in its own environment.
pub(crate) fn run(case: &Case, env: impl FnOnce() -> TestEnvironment) -> Result<(), Failed> {
    IN_A_CASE.set(true);
    let held = panic::catch_unwind(AssertUnwindSafe(|| (case.run)(&env())));
    IN_A_CASE.set(false);
    held.map_err(|_| PANIC.with(|slot| Failed::from(slot.take())))
}
