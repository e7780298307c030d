//! Limits of requests and connections.

use std::time::Duration;

/// Maximum size of a request body in bytes.
pub(crate) const MAX_BODY: usize = 1 << 20;
/// Maximum size of a request body for SQL: the default `input` of 1 MiB and a schema, escaped as JSON.
pub(super) const MAX_SQL_BODY: usize = 4 << 20;
/// Maximum size of a request head in bytes, and of the response bytes buffered for a slow reader.
pub(super) const MAX_HEAD: usize = 64 << 10;
/// Maximum number of bytes discarded from a request that was answered before it was completely read. Most clients
/// send the whole request before they read the response, and fail if the connection is closed earlier.
pub(super) const MAX_DISCARDED: usize = 8 << 20;
/// Maximum pause of a client while the rest of its request is discarded.
pub(super) const DISCARD_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of header fields in a request: the default of `hyper`.
pub(super) const MAX_FIELDS: usize = 100;
/// Time for active responses to end when the transport is stopped. It is shorter than the time for which the daemon
/// waits for the transport.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_secs(4);
