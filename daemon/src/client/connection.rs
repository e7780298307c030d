//! Sends one request over one connection: HTTP/1.1 over a Unix socket, with a deadline for each wait.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::error::ClientError;
use super::place::Place;

/// Time limit for connecting; a daemon that does not accept within it hangs.
const CONNECT: Duration = Duration::from_secs(5);
/// Delay before connecting again when the socket's queue is full. The kernel reports `EAGAIN` for Unix sockets
/// (connect(2)) and offers no way to wait.
const FULL: Duration = Duration::from_millis(20);
/// Maximum pause within the body of a response. At that point, the daemon has the whole response or reads it from the
/// disk.
const STALL: Duration = Duration::from_secs(30);

/// A request.
pub(super) type Asked = Request<Full<Bytes>>;

/// Sends a request. The head of the response must arrive `within` the given time.
pub(super) async fn ask(
    place: &Place,
    mut request: Asked,
    within: Duration,
) -> Result<Response<Incoming>, ClientError> {
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let broken = |error: hyper::Error| broken(place, &error);
    let stream = connect(place).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The task ends with the response, because nothing else uses the connection.
    tokio::spawn(connection);
    match timeout(within, sender.send_request(request)).await {
        Ok(answer) => answer.map_err(broken),
        Err(_) => Err(silent(place, format!("nothing came within {} s", within.as_secs()))),
    }
}

pub(super) fn silent(place: &Place, reason: String) -> ClientError {
    ClientError::NotAnswering { socket: place.socket.clone(), reason }
}

fn broken(place: &Place, error: &hyper::Error) -> ClientError {
    ClientError::Broken { socket: place.socket.clone(), reason: error.to_string() }
}

/// Connects and checks whose daemon it is before sending anything.
pub(super) async fn connect(place: &Place) -> Result<UnixStream, ClientError> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(&place.socket).await {
            Ok(stream) => return believed(stream, place),
            // The queue of the socket is full (unix(7), connect(2)).
            Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < CONNECT => sleep(FULL).await,
            Err(error) => return Err(not_there(place, &error)),
        }
    }
}

/// Returns the error for a failed connection.
pub(super) fn not_there(place: &Place, error: &std::io::Error) -> ClientError {
    let (socket, reason) = (place.socket.clone(), error.to_string());
    match error.kind() {
        ErrorKind::WouldBlock => silent(place, reason),
        // No permission to write to the socket or to search a directory of its path (unix(7)).
        ErrorKind::PermissionDenied => ClientError::NotAllowed { socket, reason },
        _ => ClientError::NotThere { socket, reason },
    }
}

fn believed(stream: UnixStream, place: &Place) -> Result<UnixStream, ClientError> {
    let peer = stream.peer_cred().map_err(|error| silent(place, error.to_string()))?;
    if place.trust.covers(peer.uid()) {
        return Ok(stream);
    }
    Err(ClientError::Foreign { socket: place.socket.clone(), uid: peer.uid() })
}

/// The body of a response.
pub(super) struct Body<'a> {
    body: Incoming,
    place: &'a Place,
}

impl<'a> Body<'a> {
    pub(super) fn new(body: Incoming, place: &'a Place) -> Self {
        Self { body, place }
    }

    /// Reads the whole body, of at most `most` bytes.
    pub(super) async fn all(mut self, most: usize) -> Result<Bytes, ClientError> {
        let mut whole = Vec::new();
        while let Some(part) = next_part(&mut self.body, self.place, STALL).await? {
            if whole.len() + part.len() > most {
                let reason = format!("it is longer than {most} bytes");
                return Err(ClientError::NotUnderstood { socket: self.place.socket.clone(), reason });
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole.into())
    }
}

/// Reads the next part of a body, or returns `None` at its end. Cancellation is safe: no part is lost.
pub(super) async fn next_part(
    body: &mut Incoming,
    place: &Place,
    within: Duration,
) -> Result<Option<Bytes>, ClientError> {
    loop {
        let frame = timeout(within, body.frame()).await;
        match frame.map_err(|_| silent(place, format!("nothing more came within {} s", within.as_secs())))? {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                // Trailers are ignored.
                Err(_) => continue,
            },
            Some(Err(error)) => return Err(broken(place, &error)),
        }
    }
}
