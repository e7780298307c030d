//! The Model Context Protocol: tools for agents over the same service, at `/mcp` of the socket ([`http_service`]) and
//! over stdio ([`serve_stdio`]). All protocol revisions that the SDK supports are served.
//!
//! A failed check is a normal answer with the reason first; an error means that the tree could not be verified. Text
//! from the repository and its programs is enclosed in marks (`untrusted`), and no tool answer exceeds 8 KiB
//! (`answer::MAX_RESULT`). A [`Backend`] decides what runs and who may ask.

mod ask_tool;
mod backend;
mod cancellation;
mod default_repository;
mod descriptions;
mod explain;
mod hints;
mod last_line;
mod local_backend;
mod mcp_session;
mod progress;
mod remote_backend;
mod resource_uri;
mod resources;
mod rpc_message;
mod run_answer;
mod run_wait;
mod server;
mod sql_answer;
mod sql_data_answer;
mod stdio;
#[cfg(test)]
mod tests;
mod tool_answer;
mod tool_calls;
mod tool_input;
mod tools;
mod untrusted;

use std::sync::Arc;

use rmcp::service::{QuitReason, ServerInitializeError, ServiceExt as _};
use rmcp::transport::io::stdio_pipes;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

pub use backend::Backend;
use cancellation::{ActiveCalls, CancellableService};
pub use local_backend::LocalBackend;
pub use mcp_session::McpSession;
pub use remote_backend::RemoteBackend;
use server::{McpServer, SocketAccess, StdioAccess};
use stdio::LineTransport;

use crate::http::MAX_BODY;
use crate::service::Service;

/// Maximum size of a message in bytes, over any transport.
const MAX_MESSAGE: usize = MAX_BODY;

/// Returns the protocol over HTTP as a tower service to nest at `/mcp`. Cloning it is cheap. Each request must carry
/// the [`crate::caller::Caller`] in its extensions.
///
/// There are no sessions: no state is kept between requests, so clients do not notice a restart of the daemon. A call
/// is cancelled when its connection is closed, or by a cancellation message (`called_off`). `stop` ends active calls.
pub fn http_service(
    service: Arc<Service>,
    stop: CancellationToken,
) -> CancellableService<StreamableHttpService<impl rmcp::ServerHandler, NeverSessionManager>> {
    let calls = ActiveCalls::default();
    let tools = McpServer::new(SocketAccess { service, calls: calls.clone(), session: McpSession::default() });
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .enforce_origin_validation()
        .with_max_request_body_bytes(MAX_MESSAGE)
        .with_cancellation_token(stop);
    let server =
        StreamableHttpService::new(move || Ok(tools.clone()), Arc::new(NeverSessionManager::default()), config);
    CancellableService::new(server, calls)
}

/// Reason why the protocol over stdio ended before its client did.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    /// The client does not speak the protocol.
    #[error("the client did not start the session as the Model Context Protocol requires: {0}")]
    NoHandshake(String),
    /// An internal error.
    #[error("the server stopped: {0}")]
    Internal(String),
}

/// Serves the protocol on standard input and output until the client closes its side or `stop` is cancelled. Nothing
/// else may write to standard output during that time.
///
/// # Errors
/// The client does not speak the protocol, or the server failed.
pub async fn serve_stdio<B: Backend>(
    backend: B,
    session: McpSession,
    stop: CancellationToken,
) -> Result<(), StdioError> {
    let (input, output) = stdio_pipes();
    let transport = LineTransport::new(input, output, MAX_MESSAGE);
    let running = match McpServer::new(StdioAccess { backend, session }).serve_with_ct(transport, stop.clone()).await {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(StdioError::NoHandshake(error.to_string())),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(StdioError::Internal(error.to_string())),
        Ok(_) => Ok(()),
    }
}
