//! Exchanges results of steps with other machines, through a server of the Remote Execution API.
//!
//! The server is not trusted: path sets and records count only with the signature of a trusted key. A server that is away,
//! slow or lying costs a run at most one deadline; its steps are then executed here.

mod content_hashes;
mod envelope;
mod exchange;
mod keys;
mod shared_run;

pub(crate) use content_hashes::{ContentHashes, stamp_of};
pub(crate) use exchange::{SharedDraft, SharedResults, SharedResultsError, create_client};
pub(crate) use shared_run::{PortableIdentity, SharedRun};
