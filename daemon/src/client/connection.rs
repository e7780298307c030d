//! Sends requests: HTTP/1.1 over a Unix socket, with a deadline for each wait.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use proctor_client::daemon_address::DaemonAddress;
use proctor_client::error::{ClientError, connect_error, no_response};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

/// Time limit for connecting; a daemon that does not accept within it hangs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before connecting again when the socket's queue is full. The kernel reports `EAGAIN` for Unix sockets
/// (connect(2)) and offers no way to wait.
const FULL_QUEUE_DELAY: Duration = Duration::from_millis(20);
/// Maximum time for which a connection is kept for the next request. If the daemon has many connections, it closes those that
/// idle for longer.
const MAX_IDLE: Duration = Duration::from_millis(200);
/// Maximum pause within the body of a response. At that point, the daemon has the whole response or reads it from the
/// disk.
const BODY_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A request.
pub(super) type HttpRequest = Request<Full<Bytes>>;

pub(super) fn empty_request(method: Method, path: &str) -> HttpRequest {
    let mut request = Request::new(Full::default());
    *request.method_mut() = method;
    // All paths are built from escaped parts, so parsing succeeds; an invalid one would become `/`.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}

/// Sends a request over a connection of its own. The head of the response must arrive `within` the given time.
pub(super) async fn send_request(
    address: &DaemonAddress,
    mut request: HttpRequest,
    within: Duration,
) -> Result<Response<Incoming>, ClientError> {
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    // The connection ends with the response, because nothing else uses it.
    send_request_over(&IdleConnection::default(), address, request, within).await.map(|(response, _)| response)
}

/// Sends a request over the idle connection, or over a new one if there is none. Returns the connection, too, which is
/// idle again when the whole response has been read.
pub(super) async fn send_request_over(
    idle: &IdleConnection,
    address: &DaemonAddress,
    mut request: HttpRequest,
    within: Duration,
) -> Result<(Response<Incoming>, UsedConnection), ClientError> {
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    if let Some(UsedConnection(mut sender)) = idle.take().await {
        match timeout(within, sender.try_send_request(request)).await {
            Ok(Ok(response)) => return Ok((response, UsedConnection(sender))),
            // The daemon closed the connection before it could have received the request.
            Ok(Err(mut failed)) => match failed.take_message() {
                Some(unsent) => request = unsent,
                None => return Err(connection_broken(address, &failed.into_error())),
            },
            Err(_) => return Err(silent(address, within)),
        }
    }
    let broken = |error: hyper::Error| connection_broken(address, &error);
    let stream = connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The task ends when the sender is dropped and the response has been read.
    tokio::spawn(connection);
    match timeout(within, sender.send_request(request)).await {
        Ok(response) => Ok((response.map_err(broken)?, UsedConnection(sender))),
        Err(_) => Err(silent(address, within)),
    }
}

fn silent(address: &DaemonAddress, within: Duration) -> ClientError {
    no_response(address, format!("no data arrived within {} s", within.as_secs()))
}

/// A connection over which a request was sent.
pub(super) struct UsedConnection(SendRequest<Full<Bytes>>);

/// A connection that is kept for the next request, if there is one. Clones share it.
#[derive(Clone, Default)]
pub(super) struct IdleConnection(Arc<Mutex<Option<(UsedConnection, Instant)>>>);

impl IdleConnection {
    /// Keeps a connection whose last response has been read.
    pub(super) fn keep(&self, connection: UsedConnection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((connection, Instant::now()));
    }

    /// Takes the connection if it is open and was used recently: the daemon closes connections that idle.
    async fn take(&self) -> Option<UsedConnection> {
        let (mut kept, since) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (since.elapsed() < MAX_IDLE && kept.0.ready().await.is_ok()).then_some(kept)
    }
}

impl std::fmt::Debug for IdleConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdleConnection").finish_non_exhaustive()
    }
}

fn connection_broken(address: &DaemonAddress, error: &hyper::Error) -> ClientError {
    ClientError::ConnectionBroken { socket: address.socket.clone(), reason: error.to_string() }
}

/// Connects and checks the owner of the daemon before sending anything.
pub(super) async fn connect(address: &DaemonAddress) -> Result<UnixStream, ClientError> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(&address.socket).await {
            Ok(stream) => return check_peer(stream, address),
            // The queue of the socket is full (unix(7), connect(2)).
            Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < CONNECT_TIMEOUT => {
                sleep(FULL_QUEUE_DELAY).await;
            }
            Err(error) => return Err(connect_error(address, &error)),
        }
    }
}

fn check_peer(stream: UnixStream, address: &DaemonAddress) -> Result<UnixStream, ClientError> {
    let peer = stream.peer_cred().map_err(|error| no_response(address, error.to_string()))?;
    if address.trust.trusts_user(peer.uid()) {
        return Ok(stream);
    }
    Err(ClientError::UntrustedDaemon { socket: address.socket.clone(), uid: peer.uid() })
}

/// The body of a response.
pub(super) struct ResponseBody<'a> {
    incoming: Incoming,
    address: &'a DaemonAddress,
}

impl<'a> ResponseBody<'a> {
    pub(super) fn new(body: Incoming, place: &'a DaemonAddress) -> Self {
        Self { incoming: body, address: place }
    }

    /// Reads the whole body, of at most `most` bytes.
    pub(super) async fn read_all(mut self, max_bytes: usize) -> Result<Bytes, ClientError> {
        let mut whole = Vec::new();
        while let Some(part) = next_body_part(&mut self.incoming, self.address, BODY_STALL_TIMEOUT).await? {
            if whole.len() + part.len() > max_bytes {
                let reason = format!("it is longer than {max_bytes} bytes");
                return Err(ClientError::InvalidResponse { socket: self.address.socket.clone(), reason });
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole.into())
    }
}

/// Reads the next part of a body, or returns `None` at its end. Cancellation is safe: no part is lost.
pub(super) async fn next_body_part(
    body: &mut Incoming,
    address: &DaemonAddress,
    within: Duration,
) -> Result<Option<Bytes>, ClientError> {
    loop {
        let frame = timeout(within, body.frame()).await;
        match frame.map_err(|_| no_response(address, format!("no more data arrived within {} s", within.as_secs())))? {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                // Trailers are ignored.
                Err(_) => continue,
            },
            Some(Err(error)) => return Err(connection_broken(address, &error)),
        }
    }
}
