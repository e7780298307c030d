//! Sends one request over one connection: HTTP/1.1 over a Unix socket, with a deadline for each wait.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
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

/// Sends a request. The head of the response must arrive `within` the given time.
pub(super) async fn send_request(
    address: &DaemonAddress,
    mut request: HttpRequest,
    within: Duration,
) -> Result<Response<Incoming>, ClientError> {
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let broken = |error: hyper::Error| connection_broken(address, &error);
    let stream = connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The task ends with the response, because nothing else uses the connection.
    tokio::spawn(connection);
    match timeout(within, sender.send_request(request)).await {
        Ok(answer) => answer.map_err(broken),
        Err(_) => Err(no_response(address, format!("no data arrived within {} s", within.as_secs()))),
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
