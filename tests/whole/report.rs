//! A panic becomes a failed trial that says where and why.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};

use libtest_mimic::Failed;

use crate::environment::TestEnvironment;
use crate::needs::Case;

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Makes every later panic leave its message and place for [`run`] instead of printing them
/// between the lines of other trials.
pub(crate) fn keep_panic_locations() {
    panic::set_hook(Box::new(|info| PANIC.with(|slot| *slot.borrow_mut() = info.to_string())));
}

/// Runs one case in an environment of its own.
pub(crate) fn run(case: &Case, env: impl FnOnce() -> TestEnvironment) -> Result<(), Failed> {
    let held = panic::catch_unwind(AssertUnwindSafe(|| (case.run)(&env())));
    held.map_err(|_| PANIC.with(|slot| Failed::from(slot.take())))
}
