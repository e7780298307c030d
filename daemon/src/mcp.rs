//! The Model Context Protocol: tools for agents, over the same service. At `/mcp` of the socket
//! ([`http_service`]) and over stdio ([`serve_stdio`]), in every revision that the SDK knows.
//!
//! A failed check is an answer, the reason first; an error means that it could not be verified. What
//! programs of the repository wrote stands between marks (`untrusted`), and no answer of a tool has
//! more than 8 KiB (`answer::MAX_RESULT`). What runs, and who may ask, is decided by a
//! [`Backend`].

mod answer;
mod backend;
mod called_off;
mod calls;
mod explain;
mod hints;
mod input;
mod last_line;
mod local;
mod message;
mod present;
mod progress;
mod remote;
mod repository;
mod resources;
mod server;
mod sql;
mod stdio;
#[cfg(test)]
mod tests;
mod tools;
mod untrusted;
mod uri;
mod waiting;
mod words;

use std::sync::Arc;

use rmcp::service::{QuitReason, ServerInitializeError, ServiceExt as _};
use rmcp::transport::io::stdio_pipes;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

pub use backend::Backend;
use called_off::{Calls, Cancellable};
pub use local::Local;
pub use remote::Remote;
pub use server::Session;
use server::{Own, Socket, Tools};
use stdio::Lines;

use crate::http::MAX_BODY;
use crate::service::Service;

/// The largest message that is read, in bytes, wherever it comes from.
const MAX_MESSAGE: usize = MAX_BODY;

/// The protocol over HTTP, to be nested at `/mcp`: a tower service, cheap to clone. Each request
/// must carry the [`crate::caller::Caller`] in its extensions; who asks is looked at for each request.
///
/// There are no sessions: nothing is kept between requests, so that a daemon that ended and began
/// again is the same to its clients. A call whose connection is closed counts as cancelled, and so does
/// one that a message calls off (`called_off`). `stop` ends what is under way.
pub fn http_service(
    service: Arc<Service>,
    stop: CancellationToken,
) -> Cancellable<StreamableHttpService<impl rmcp::ServerHandler, NeverSessionManager>> {
    let calls = Calls::default();
    let tools = Tools::new(Socket { service, calls: calls.clone(), session: Session::default() });
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .enforce_origin_validation()
        .with_max_request_body_bytes(MAX_MESSAGE)
        .with_cancellation_token(stop);
    let server =
        StreamableHttpService::new(move || Ok(tools.clone()), Arc::new(NeverSessionManager::default()), config);
    Cancellable::new(server, calls)
}

/// Why the protocol over stdio ended before its client did.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The client does not speak the protocol.
    #[error("the client did not start the session as the Model Context Protocol requires: {0}")]
    NoHandshake(String),
    /// Something of ours failed.
    #[error("the server stopped: {0}")]
    Internal(String),
}

/// Speaks the protocol on standard input and output until the client closes its side or `stop` is
/// cancelled. Nothing else may write to standard output meanwhile.
///
/// # Errors
/// The client does not speak the protocol.
pub async fn serve_stdio<B: Backend>(backend: B, session: Session, stop: CancellationToken) -> Result<(), StdioError> {
    let (input, output) = stdio_pipes();
    let transport = Lines::new(input, output, MAX_MESSAGE);
    let running = match Tools::new(Own { backend, session }).serve_with_ct(transport, stop.clone()).await {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(StdioError::NoHandshake(error.to_string())),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(StdioError::Internal(error.to_string())),
        Ok(_) => Ok(()),
    }
}
