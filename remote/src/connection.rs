//! Connects to a server: address, TLS, credentials, and the HTTP/2 connection.

mod credentials;
mod endpoint;
mod http2;
mod tls;

pub use credentials::Credentials;
pub(crate) use credentials::{CredentialCache, RequestHeaders};
pub use endpoint::{BadEndpoint, Endpoint};
pub(crate) use http2::{Channel, connect};
pub use tls::TlsFiles;
pub(crate) use tls::client_config;
