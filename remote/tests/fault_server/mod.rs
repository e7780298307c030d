//! A server of a few lines that answers each method as a test says.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proctor_remote::Endpoint;
use prost::Message;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tonic::Code;

/// Bytes before each message: a flag and the length.
const PREFIX: usize = 5;

/// The answer to a request.
pub(crate) enum Reply {
    /// Messages and the status OK.
    Messages(Vec<Bytes>),
    /// Messages, then a lost stream.
    Broken(Vec<Bytes>),
    /// Messages, then nothing.
    Stalled(Vec<Bytes>),
    /// Only a status.
    Status(Code, String),
    /// Nothing.
    Stall,
}

fn frame(message: &impl Message) -> Bytes {
    let content = message.encode_to_vec();
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(content.len()).expect("a small message"));
    bytes.put_slice(&content);
    bytes.freeze()
}

impl Reply {
    pub(crate) fn message(message: &impl Message) -> Self {
        Self::Messages(vec![frame(message)])
    }

    pub(crate) fn messages(messages: &[impl Message]) -> Self {
        Self::Messages(messages.iter().map(frame).collect())
    }

    pub(crate) fn broken(messages: &[impl Message]) -> Self {
        Self::Broken(messages.iter().map(frame).collect())
    }

    pub(crate) fn stalled(messages: &[impl Message]) -> Self {
        Self::Stalled(messages.iter().map(frame).collect())
    }
}

type Headers = http::HeaderMap;
type Handler = dyn Fn(&str, &[u8], &Headers) -> Reply + Send + Sync;
type ReplyBody = BoxBody<Bytes, Infallible>;

/// A running server. It ends with the runtime.
pub(crate) struct FaultServer {
    address: std::net::SocketAddr,
    scheme: &'static str,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl FaultServer {
    pub(crate) async fn start(answer: impl Fn(&str, &[u8]) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with_headers(move |method, body, _| answer(method, body)).await
    }

    pub(crate) async fn start_with_headers(
        answer: impl Fn(&str, &[u8], &Headers) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Arc::new(answer), None, None).await
    }

    /// Starts a server that does not read the requests of one method.
    pub(crate) async fn start_without_reading(
        method: &'static str,
        answer: impl Fn(&str, &[u8]) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Arc::new(move |method: &str, body: &[u8], _: &Headers| answer(method, body)), None, Some(method))
            .await
    }

    /// Starts a server that requires a client certificate.
    pub(crate) async fn start_with_tls(
        answer: impl Fn(&str, &[u8], &Headers) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Arc::new(answer), Some(TlsAcceptor::from(Arc::new(server_tls()))), None).await
    }

    async fn listen(answer: Arc<Handler>, tls: Option<TlsAcceptor>, unread: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let counts = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let counted = Arc::clone(&counts);
        let scheme = if tls.is_some() { "grpcs" } else { "grpc" };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, counts, tls) = (Arc::clone(&answer), Arc::clone(&counted), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, answer, counts, unread).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, answer, counts, unread).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, scheme, counts }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        format!("{}://{}", self.scheme, self.address).parse().expect("an address")
    }

    /// Returns how often a method was called.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.counts.lock().expect("no panic").get(method).copied().unwrap_or_default()
    }
}

fn server_tls() -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let authority = CertificateDer::from_pem_slice(include_bytes!("../tls/authority.pem")).expect("a certificate");
    let certificate = CertificateDer::from_pem_slice(include_bytes!("../tls/server.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../tls/server-key.pem")).expect("a key");
    let mut roots = RootCertStore::empty();
    roots.add(authority).expect("a certificate");
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
    let config = config.with_client_cert_verifier(verifier.build().expect("a verifier"));
    let mut config = config.with_single_cert(vec![certificate], key).expect("a certificate with its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answer: Arc<Handler>,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
    unread: Option<&'static str>,
) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (answer, counts) = (Arc::clone(&answer), Arc::clone(&counts));
        async move {
            if unread.is_some_and(|method| request.uri().path().ends_with(method)) {
                std::future::pending::<()>().await;
            }
            respond(request, &*answer, &counts).await
        }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(
    request: http::Request<Incoming>,
    answer: &Handler,
    counts: &Mutex<BTreeMap<String, usize>>,
) -> Result<http::Response<ReplyBody>, Infallible> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    *counts.lock().expect("no panic").entry(method.clone()).or_default() += 1;
    let headers = request.headers().clone();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    // Only the first message of a stream matters to the tests.
    let first = body.get(1..PREFIX).map_or(0, |length| u32::from_be_bytes(length.try_into().expect("four bytes")));
    let message = body.get(PREFIX..PREFIX + first as usize).unwrap_or_default();
    let (frames, end) = match answer(&method, message, &headers) {
        Reply::Messages(frames) => (frames, End::Status(Code::Ok, String::new())),
        Reply::Broken(frames) => (frames, End::Status(Code::Unavailable, "the connection is lost".to_owned())),
        Reply::Stalled(frames) => (frames, End::Never),
        Reply::Status(code, message) => (Vec::new(), End::OnlyStatus(code, message)),
        Reply::Stall => std::future::pending().await,
    };
    let data = stream::iter(frames).map(|bytes| Ok(Frame::data(bytes)));
    let mut headers = Headers::new();
    let body = match end {
        End::Never => BodyExt::boxed(StreamBody::new(data.chain(stream::pending()))),
        End::Status(code, message) => {
            let trailers = Frame::trailers(status_headers(code, &message));
            BodyExt::boxed(StreamBody::new(data.chain(stream::iter([Ok(trailers)]))))
        }
        // A server that refuses a request at once sends the status in the headers.
        End::OnlyStatus(code, message) => {
            headers = status_headers(code, &message);
            BodyExt::boxed(http_body_util::Empty::new())
        }
    };
    let mut response = http::Response::new(body);
    headers.insert("content-type", "application/grpc".parse().expect("a header"));
    *response.headers_mut() = headers;
    Ok(response)
}

fn status_headers(code: Code, message: &str) -> Headers {
    let mut headers = Headers::new();
    headers.insert("grpc-status", (code as i32).into());
    let message = message.replace('%', "%25").replace(['\n', '"'], " ");
    headers.insert("grpc-message", message.parse().expect("a header"));
    headers
}

enum End {
    Status(Code, String),
    OnlyStatus(Code, String),
    Never,
}
