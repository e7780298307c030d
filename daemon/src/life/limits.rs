//! The limits that the daemon raises for itself.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Lets us have as many open files as the system allows: a connection is one, and each waits for
/// long.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("the limit of open files stays as it is: {error}");
    }
}
