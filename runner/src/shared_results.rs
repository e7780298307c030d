//! Exchanges results of steps with other machines, through a server of the Remote Execution API.
//!
//! The server is not trusted: path sets and records count only with the signature of a trusted key. A server that is
//! unreachable, slow or malicious delays a run by at most one deadline; the steps are then executed on this machine.

mod content_hashes;
mod envelope;
mod exchange;
mod keys;
mod shared_run;

pub(crate) use content_hashes::{ContentHashes, stamp_of};
pub(crate) use exchange::{SharedDraft, SharedResults, SharedResultsError, create_client};
pub(crate) use keys::TrustedKeys;
pub(crate) use shared_run::{PortableIdentity, SharedRun};
