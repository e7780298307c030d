//! One connection, one request, one answer: HTTP/1.1 over a Unix socket, each wait with a deadline.

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

/// How long it may take until a connection stands: a daemon that accepts none for so long hangs.
const CONNECT: Duration = Duration::from_secs(5);
/// How long until a socket is tried again whose queue was full: no event tells that there is room (connect(2)
/// has EAGAIN for sockets of Unix, and nothing to wait for).
const FULL: Duration = Duration::from_millis(20);
/// How long the next part of an answer may take once it has begun: the daemon has all of it by then, or reads it
/// from a disk.
const STALL: Duration = Duration::from_secs(30);

/// A request.
pub(super) type Asked = Request<Full<Bytes>>;

/// Asks; the answer's head must come `within` that time.
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
    // It ends with the answer: nothing else holds the connection.
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

/// Connects, and looks whose daemon it is before a word is said.
pub(super) async fn connect(place: &Place) -> Result<UnixStream, ClientError> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(&place.socket).await {
            Ok(stream) => return believed(stream, place),
            // unix(7) and connect(2): the queue of the socket is full at this moment.
            Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < CONNECT => sleep(FULL).await,
            Err(error) => return Err(not_there(place, &error)),
        }
    }
}

/// Why nobody can be asked at a socket.
pub(super) fn not_there(place: &Place, error: &std::io::Error) -> ClientError {
    let (socket, reason) = (place.socket.clone(), error.to_string());
    match error.kind() {
        ErrorKind::WouldBlock => silent(place, reason),
        // unix(7): for want of leave to write to the socket, or to search a directory on the way.
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

/// The body of an answer as it comes.
pub(super) struct Body<'a> {
    body: Incoming,
    place: &'a Place,
}

impl<'a> Body<'a> {
    pub(super) fn new(body: Incoming, place: &'a Place) -> Self {
        Self { body, place }
    }

    /// All of it, up to `most` bytes.
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

/// The next part of a body, `None` at its end. Can be dropped and called again without losing one.
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
                // Trailers say nothing that we asked for.
                Err(_) => continue,
            },
            Some(Err(error)) => return Err(broken(place, &error)),
        }
    }
}
