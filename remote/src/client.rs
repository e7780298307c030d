//! Sends requests to a server, with deadlines, repetitions and credentials.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::Uri;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::{Code, Extensions, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::capabilities::Capabilities;
use crate::connection::{
    Channel, CredentialCache, Credentials, Endpoint, RequestHeaders, TlsFiles, client_config, connect,
};
use crate::error::RemoteError;
use crate::retry::{RetryPolicy, RetryState};
use crate::upload_progress::{UploadLimits, UploadProgress};

/// Maximum size of a message of a server, in bytes. Servers send at most 4 MiB by default.
const MAX_MESSAGE: usize = 8 << 20;

/// The server and how it is reached.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The address.
    pub endpoint: Endpoint,
    /// The name of the instance; empty for the default one.
    pub instance: String,
    /// The files of a TLS connection.
    pub tls: TlsFiles,
    /// The source of credentials.
    pub credentials: Credentials,
    /// How failed requests are repeated.
    pub retry: RetryPolicy,
    /// The deadlines.
    pub timeouts: Timeouts,
}

impl ClientConfig {
    /// Returns a configuration without an instance name and credentials.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            instance: String::new(),
            tls: TlsFiles::default(),
            credentials: Credentials::None,
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// The deadlines of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For one attempt of a request with a single answer. The transfer of a blob gets more time, depending on its size.
    pub call: Duration,
    /// For the next message of a stream.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), call: Duration::from_secs(15), idle: Duration::from_secs(15) }
    }
}

/// A method of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
}

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    config: ClientConfig,
    /// The address for messages.
    endpoint: String,
    origin: Uri,
    tls: Option<Arc<rustls::ClientConfig>>,
    channel: tokio::sync::Mutex<Option<Channel>>,
    credentials: tokio::sync::Mutex<CredentialCache>,
    retry: Mutex<RetryState>,
    /// The functions of the server, unless the connection was lost since: a server can restart with other settings.
    capabilities: Mutex<Option<Capabilities>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.inner.endpoint).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client. It connects with its first request.
    ///
    /// # Errors
    /// A file of the TLS configuration cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self, RemoteError> {
        let uses_tls = config.endpoint.uses_tls();
        let tls = if uses_tls { Some(Arc::new(client_config(&config.tls)?)) } else { None };
        let scheme = if uses_tls { "https" } else { "http" };
        let origin = format!("{scheme}://{}", config.endpoint.authority());
        let endpoint = config.endpoint.to_string();
        let origin = origin.parse().map_err(|error: http::uri::InvalidUri| RemoteError::Unreachable {
            endpoint: endpoint.clone(),
            problem: error.to_string(),
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                endpoint,
                origin,
                tls,
                channel: tokio::sync::Mutex::default(),
                credentials: tokio::sync::Mutex::default(),
                retry: Mutex::new(RetryState::new(config.retry)),
                capabilities: Mutex::default(),
                config,
            }),
        })
    }

    /// Returns the address of the server, for messages.
    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    pub(crate) fn instance(&self) -> &str {
        &self.inner.config.instance
    }

    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        self.inner.config.retry
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.inner.config.timeouts
    }

    /// Returns the functions of the server, if they are known for the present connection.
    pub(crate) fn known_capabilities(&self) -> Option<Capabilities> {
        *self.inner.capabilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or forgets the functions of the server.
    pub(crate) fn set_capabilities(&self, capabilities: Option<Capabilities>) {
        *self.inner.capabilities.lock().unwrap_or_else(PoisonError::into_inner) = capabilities;
    }

    /// Sends a request with a single answer, and retries it as long as the policy permits.
    pub(crate) async fn unary<M, R>(&self, method: Method, message: &M) -> Result<R, RemoteError>
    where
        M: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let mut attempts = Attempts::default();
        loop {
            match self.unary_once(method, message.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.pause_or_fail(&mut attempts, error).await?,
            }
        }
    }

    /// Sends a request with one answer once.
    pub(crate) async fn unary_once<M, R>(&self, method: Method, message: M) -> Result<R, RemoteError>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let limit = self.timeouts().call;
        let attempt = async {
            let (mut grpc, mut request, headers) = self.prepare(message).await?;
            request.set_timeout(limit);
            let codec = ProstCodec::<M, R>::default();
            let answer = grpc.unary(request, PathAndQuery::from_static(method.path), codec).await;
            Ok(answer.map_err(|status| self.status_error(method, &status, &headers))?.into_inner())
        };
        self.observed(method, limit, attempt).await
    }

    /// Sends a request whose answer is a stream of messages. Does not repeat it.
    pub(crate) async fn stream_once<M, R>(&self, method: Method, message: M) -> Result<AnswerStream<R>, RemoteError>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let limit = self.timeouts().idle;
        let attempt = async {
            let (mut grpc, request, headers) = self.prepare(message).await?;
            let codec = ProstCodec::<M, R>::default();
            let answer = grpc.server_streaming(request, PathAndQuery::from_static(method.path), codec).await;
            let stream = answer.map_err(|status| self.status_error(method, &status, &headers))?.into_inner();
            Ok(AnswerStream { client: self.clone(), method, headers, stream })
        };
        self.observed(method, limit, attempt).await
    }

    /// Sends messages with one answer, within the limits. Does not repeat them.
    pub(crate) async fn upload_once<M, R>(
        &self,
        method: Method,
        messages: impl Iterator<Item = M> + Send + 'static,
        limits: UploadLimits,
    ) -> Result<R, RemoteError>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let progress = Arc::new(UploadProgress::default());
        let taken = Arc::clone(&progress);
        let messages = messages.inspect(move |_| taken.note_message());
        let ended = Arc::clone(&progress);
        let end = std::iter::from_fn(move || {
            ended.note_end();
            None
        });
        let upload = async {
            let (mut grpc, request, headers) = self.prepare(futures_util::stream::iter(messages.chain(end))).await?;
            let codec = ProstCodec::<M, R>::default();
            let answer = grpc.client_streaming(request, PathAndQuery::from_static(method.path), codec).await;
            Ok(answer.map_err(|status| self.status_error(method, &status, &headers))?.into_inner())
        };
        let attempt = async {
            tokio::select! {
                answer = upload => answer,
                limit = progress.wait_for_stall(limits) => Err(self.deadline_error(method.name, limit)),
            }
        };
        self.observed(method, limits.total, attempt).await
    }

    /// Waits for an attempt up to its deadline, and records its result for later decisions.
    async fn observed<T>(
        &self,
        method: Method,
        limit: Duration,
        attempt: impl Future<Output = Result<T, RemoteError>>,
    ) -> Result<T, RemoteError> {
        let now = Instant::now();
        let permit = self.retry_state(|state| state.permit(now));
        permit.map_err(|failures| RemoteError::CircuitOpen { endpoint: self.inner.endpoint.clone(), failures })?;
        let result = timeout(limit, attempt).await.unwrap_or_else(|_| Err(self.deadline_error(method.name, limit)));
        let result = match result {
            Err(RemoteError::Unreachable { problem, .. }) => Err(self.unreachable(self.cause_of(problem).await)),
            other => other,
        };
        match &result {
            Err(error) if error.counts_for_circuit() => self.record_failure(error).await,
            _ => self.retry_state(RetryState::record_success),
        }
        result
    }

    /// Returns the reason why the connection has ended, if it is known, and otherwise `problem`, the error of a
    /// request.
    async fn cause_of(&self, problem: String) -> String {
        let channel = self.inner.channel.lock().await.clone();
        match channel {
            Some(channel) => channel.end().await.unwrap_or(problem),
            None => problem,
        }
    }

    async fn record_failure(&self, error: &RemoteError) {
        self.retry_state(|state| state.record_failure(Instant::now()));
        if matches!(error, RemoteError::Deadline { .. } | RemoteError::Unreachable { .. }) {
            self.set_capabilities(None);
            // A connection on which nothing arrives does not recover.
            *self.inner.channel.lock().await = None;
        }
    }

    /// Pauses before another attempt.
    ///
    /// # Errors
    /// `error`, if another attempt cannot help or is not permitted.
    pub(crate) async fn pause_or_fail(&self, attempts: &mut Attempts, error: RemoteError) -> Result<(), RemoteError> {
        attempts.made += 1;
        if error.has_code(Code::Unauthenticated) && !attempts.renewed_credentials {
            attempts.renewed_credentials = true;
            return if self.inner.credentials.lock().await.forget() { Ok(()) } else { Err(error) };
        }
        if !error.is_transient() {
            return Err(error);
        }
        let random = random_u64();
        match self.retry_state(|state| state.pause(attempts.made, random)) {
            Some(pause) => {
                tracing::debug!(%error, ?pause, "a request to a remote server is repeated");
                tokio::time::sleep(pause).await;
                Ok(())
            }
            None => Err(error),
        }
    }

    /// Returns a ready connection, and the request with its credentials.
    async fn prepare<T>(&self, message: T) -> Result<(Grpc<Channel>, Request<T>, RequestHeaders), RemoteError> {
        let config = &self.inner.config;
        let headers = self.inner.credentials.lock().await.get(&config.credentials, &config.endpoint).await?;
        let mut grpc =
            Grpc::with_origin(self.channel().await?, self.inner.origin.clone()).max_decoding_message_size(MAX_MESSAGE);
        grpc.ready().await.map_err(|error| self.unreachable(error.to_string()))?;
        let mut map = http::HeaderMap::new();
        headers.apply(&mut map);
        let request = Request::from_parts(tonic::metadata::MetadataMap::from_headers(map), Extensions::new(), message);
        Ok((grpc, request, headers))
    }

    async fn channel(&self) -> Result<Channel, RemoteError> {
        let mut known = self.inner.channel.lock().await;
        if let Some(channel) = known.as_ref().filter(|channel| !channel.is_closed()) {
            return Ok(channel.clone());
        }
        *known = None;
        let limit = self.timeouts().connect;
        let connected = timeout(limit, connect(&self.inner.config.endpoint, self.inner.tls.as_ref())).await;
        let connected = connected.map_err(|_| self.deadline_error("the connection", limit))?;
        let channel = connected.map_err(|problem| self.unreachable(problem))?;
        self.set_capabilities(None);
        *known = Some(channel.clone());
        Ok(channel)
    }

    /// Returns whether the server accepts a connection, or there is one.
    pub(crate) async fn can_connect(&self) -> bool {
        self.channel().await.is_ok()
    }

    fn retry_state<T>(&self, use_state: impl FnOnce(&mut RetryState) -> T) -> T {
        use_state(&mut self.inner.retry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn unreachable(&self, problem: String) -> RemoteError {
        RemoteError::Unreachable { endpoint: self.inner.endpoint.clone(), problem }
    }

    fn status_error(&self, method: Method, status: &Status, headers: &RequestHeaders) -> RemoteError {
        RemoteError::from_status(&self.inner.endpoint, method.name, status, &headers.secrets())
    }

    pub(crate) fn deadline_error(&self, what: &'static str, after: Duration) -> RemoteError {
        RemoteError::Deadline { endpoint: self.inner.endpoint.clone(), what, after }
    }

    pub(crate) fn violation(&self, method: Method, problem: impl Into<String>) -> RemoteError {
        let endpoint = self.inner.endpoint.clone();
        RemoteError::Violation { endpoint, method: method.name, problem: problem.into() }
    }
}

/// The attempts of one request so far.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    made: u32,
    renewed_credentials: bool,
}

/// A stream of messages from the server.
pub(crate) struct AnswerStream<R> {
    client: Client,
    method: Method,
    headers: RequestHeaders,
    stream: Streaming<R>,
}

impl<R> AnswerStream<R> {
    /// Waits for the next message; `None` at the end.
    pub(crate) async fn next(&mut self, limit: Duration) -> Result<Option<R>, RemoteError> {
        let next = match timeout(limit, self.stream.message()).await {
            Ok(next) => next.map_err(|status| self.client.status_error(self.method, &status, &self.headers)),
            Err(_) => Err(self.client.deadline_error(self.method.name, limit)),
        };
        if let Err(error) = &next
            && error.counts_for_circuit()
        {
            self.client.record_failure(error).await;
        }
        next
    }
}

/// Returns a random number; a fixed one if the kernel has none, because only the spread of pauses depends on it.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(_) => u64::from_le_bytes(bytes),
        Err(_) => u64::from(std::process::id()),
    }
}
