//! A client of the Remote Execution API v2: content store, action cache and execution.
//!
//! The server is not trusted. Each blob that it returns is compared with the requested digest, each answer has a bound,
//! and each wait has a deadline. A [`Client`] is cheap to clone, and connects when it is first used.
//!
//! [`messages`] describes the messages of the API as Rust structs, so that the build needs no compiler of protocol
//! buffers.

mod blob;
mod capabilities;
mod client;
mod connection;
mod error;
mod execution;
mod merkle;
pub mod messages;
mod retry;
mod store;
mod upload_progress;

pub use bytes::Bytes;

pub use blob::{BadDigest, BlobDigest, BlobSource};
pub use capabilities::Capabilities;
pub use client::{Client, ClientConfig, Timeouts};
pub use connection::{BadEndpoint, Credentials, Endpoint, TlsFiles};
pub use error::RemoteError;
pub use execution::{ExecutionLimits, ExecutionRequest};
pub use merkle::{MAX_ENTRIES, MerkleError, MerkleTree, TreeBuilder, TreeEntry};
pub use retry::RetryPolicy;
