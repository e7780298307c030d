//! The HTTP/2 connection to a server.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::TryFutureExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::body::Body;

use super::endpoint::Endpoint;

/// The bytes that a server may send on a stream before the client has read them.
const STREAM_WINDOW: u32 = 1 << 20;
/// The bytes that a server may send on all streams of a connection before the client has read them.
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Maximum size of the headers of an answer, in bytes.
const MAX_HEADERS: u32 = 64 << 10;

/// Time without traffic after which the kernel sends a keep-alive probe. Routers drop idle connections, and an
/// execution can be silent for a long time.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Time between two probes, and the number of unanswered probes after which the connection counts as lost.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 4;
/// Maximum wait for the reason why a connection ended.
const END_WAIT: Duration = Duration::from_millis(200);

/// A connection. Several requests can use it at the same time.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    sender: SendRequest<Body>,
    /// True if the server has answered a request.
    answered: Arc<AtomicBool>,
    /// The reason why the connection has ended, once it has ended with an error.
    end: watch::Receiver<Option<String>>,
}

impl Channel {
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns the reason why the connection ended, if it ends with an error within [`END_WAIT`].
    pub(crate) async fn end(mut self) -> Option<String> {
        let end = tokio::time::timeout(END_WAIT, self.end.wait_for(Option::is_some)).await;
        end.ok()?.ok()?.clone()
    }
}

impl tower::Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (answer, answered) = (self.sender.send_request(request), Arc::clone(&self.answered));
        Box::pin(answer.inspect_ok(move |_| answered.store(true, Ordering::Relaxed)))
    }
}

/// Connects to a server. The connection ends when all of its channels are dropped.
///
/// # Errors
/// The server cannot be reached, or its certificate is not trusted.
pub(crate) async fn connect(endpoint: &Endpoint, tls: Option<&Arc<rustls::ClientConfig>>) -> Result<Channel, String> {
    match endpoint {
        Endpoint::Unix(path) => {
            handshake(UnixStream::connect(path).map_err(|error| error.to_string()).await?, "").await
        }
        Endpoint::Tcp { host, port, .. } => {
            let stream = TcpStream::connect((host.as_str(), *port)).map_err(|error| error.to_string()).await?;
            stream.set_nodelay(true).and_then(|()| keep_alive(&stream)).map_err(|error| error.to_string())?;
            let Some(tls) = tls else { return handshake(stream, MAYBE_TLS).await };
            let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
            let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).map_err(|error| tls_problem(&error));
            handshake(stream.await?, MAYBE_CLIENT_CERTIFICATE).await
        }
    }
}

/// A hint for a connection without TLS on which the server has sent no answer.
const MAYBE_TLS: &str = "; if the server uses TLS on this port, its address begins with `grpcs://`";

/// A hint for a connection with TLS on which the server has sent no answer. A server refuses a client without a
/// certificate only after the handshake, and can close the connection before the reason arrives.
const MAYBE_CLIENT_CERTIFICATE: &str = "; if the server requires a client certificate, set `tls_client_certificate`";

fn tls_problem(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => {
            format!("{error}; if the server uses no TLS on this port, its address begins with `grpc://`")
        }
        _ => error.to_string(),
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_PROBES)?)
}

/// Starts HTTP/2. `hint` is added to an error if the server has sent no answer.
async fn handshake<S>(stream: S, hint: &'static str) -> Result<Channel, String>
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
    let (report, end) = watch::channel(None);
    let answered = Arc::<AtomicBool>::default();
    let has_answered = Arc::clone(&answered);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            let mut reason = displayed_chain(&error);
            tracing::debug!(reason, "a connection to a remote server ended");
            if !has_answered.load(Ordering::Relaxed) {
                reason.push_str(hint);
            }
            report.send_replace(Some(reason));
        }
    });
    Ok(Channel { sender, answered, end })
}

/// Returns an error with its causes.
pub(crate) fn displayed_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
