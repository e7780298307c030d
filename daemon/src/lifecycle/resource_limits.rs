//! Raises resource limits of the daemon.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit of open files to the maximum, because each connection needs a descriptor and may stay open for
/// long.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("the limit of open files cannot be raised: {error}");
    }
}
