//! The HTTP/2 connection to a server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::TryFutureExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::body::Body;

use super::endpoint::Endpoint;

/// The bytes that a server may send on a stream before the client has read them.
const STREAM_WINDOW: u32 = 1 << 20;
/// The bytes that a server may send on all streams of a connection before the client has read them.
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Maximum size of the headers of an answer, in bytes.
const MAX_HEADERS: u32 = 64 << 10;

/// A connection. Several requests can use it at the same time.
#[derive(Debug, Clone)]
pub(crate) struct Channel(SendRequest<Body>);

impl Channel {
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl tower::Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Connects to a server. The connection ends when all of its channels are dropped.
///
/// # Errors
/// The server cannot be reached, or its certificate is not trusted.
pub(crate) async fn connect(endpoint: &Endpoint, tls: Option<&Arc<rustls::ClientConfig>>) -> Result<Channel, String> {
    match endpoint {
        Endpoint::Unix(path) => handshake(UnixStream::connect(path).map_err(|error| error.to_string()).await?).await,
        Endpoint::Tcp { host, port, .. } => {
            let stream = TcpStream::connect((host.as_str(), *port)).map_err(|error| error.to_string()).await?;
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            let Some(tls) = tls else { return handshake(stream).await };
            let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
            let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).map_err(|error| error.to_string());
            handshake(stream.await?).await
        }
    }
}

async fn handshake<S>(stream: S) -> Result<Channel, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADERS)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|error| displayed_chain(&error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = displayed_chain(&error), "a connection to a remote server ended");
        }
    });
    Ok(Channel(sender))
}

/// Returns an error with its causes.
pub(crate) fn displayed_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
