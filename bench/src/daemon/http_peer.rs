//! The connection of a caller, and the comparison program: a responder on a Unix socket, based on hyper, that only
//! sends a fixed answer.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};

use super::daemon_fixture::{DaemonFixture, wait_for_listener};
use crate::program;

/// A persistent connection.
pub(super) struct BenchConnection(SendRequest<Full<Bytes>>);

impl BenchConnection {
    pub(super) async fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).await.with_context(|| format!("cannot connect to {socket:?}"))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Returns the body of an answer.
    pub(super) async fn bytes(&mut self, path: &str) -> Result<Bytes> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    pub(super) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T> {
        serde_json::from_slice(&self.bytes(path).await?).with_context(|| format!("unexpected response of {path}"))
    }

    pub(super) async fn post<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T> {
        let answer = self.send(Method::POST, path, serde_json::to_vec(body)?.into()).await?;
        serde_json::from_slice(&answer).with_context(|| format!("unexpected response of {path}"))
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("content-type", "application/json").body(Full::new(body))?;
        self.0.ready().await?;
        let answer = self.0.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{path} answers {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}

/// A bare responder in a separate process.
pub(super) struct BareResponder {
    pub(super) socket: PathBuf,
    process: Child,
}

impl BareResponder {
    /// Starts a responder that answers with `bytes` bytes.
    pub(super) async fn start(fixture: &DaemonFixture, bytes: usize) -> Result<Self> {
        let socket = fixture.path("bare.sock");
        let own = std::env::current_exe()?.display().to_string();
        let arguments = ["respond", &socket.display().to_string(), &bytes.to_string()];
        let process = program::silent_command(&own, &arguments).spawn().context("cannot start the responder")?;
        let peer = Self { socket, process };
        wait_for_listener(&peer.socket).await?;
        Ok(peer)
    }
}

impl Drop for BareResponder {
    fn drop(&mut self) {
        // The process may have exited already, and it has no state to lose.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the responder: `proctor-bench respond SOCKET BYTES`. It runs until it is killed.
///
/// # Errors
/// The socket cannot be opened.
pub(crate) fn run_responder(arguments: &[String]) -> Result<()> {
    let [socket, bytes] = arguments else { anyhow::bail!("respond SOCKET BYTES") };
    let body = Bytes::from(vec![b'x'; bytes.parse()?]);
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = UnixListener::bind(socket)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let body = body.clone();
            let answer = hyper::service::service_fn(move |_| {
                let answer = Response::new(Full::new(body.clone()));
                async { Ok::<_, Infallible>(answer) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    })
}
