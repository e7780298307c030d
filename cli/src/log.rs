//! The log of this process.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::caller::Caller;

/// Starts the log of this process on standard error. It shows warnings, or whatever the filter in `PROCTOR_LOG`
/// selects (the syntax is that of `tracing-subscriber`).
pub(crate) fn start_log(caller: &Caller) {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let filter = filter.parse_lossy(caller.var("PROCTOR_LOG").unwrap_or_default());
    // The MCP library logs every cancelled call; these messages are noise.
    let filter = "rmcp::service=off".parse().map_or(filter.clone(), |quiet| filter.add_directive(quiet));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(false).without_time().init();
}
