//! Accept loop, the owner of all connections. It decides who may connect and, at the limit, which connection is
//! evicted.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use proctor_core::api::{Problem, ProblemType};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::connection::{self, ConnectionContext};
use super::connection_state::ConnectionState;
use super::limits::{MAX_DISCARDED, SHUTDOWN_GRACE};
use super::memory_budget::MemoryBudgets;
use super::repoll::RepollingFuture;
use super::response::raw_problem_response;
use crate::metrics::{ConnectionRefusal, Metrics};
use crate::settings::ResolvedSettings;
use crate::throttle::Throttle;

/// Delay before the next attempt after `accept` failed. The system does not report when resources are available
/// again, and without a delay the loop would keep a CPU busy.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Maximum number of refused users that are sent an error at the same time. The others are disconnected without one.
const MAX_CONCURRENT_REFUSALS: usize = 16;
/// Minimum interval between log records about one refused user.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit for sending the error: enough for a local client to send its request and read.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// All connections of the transport.
pub(super) struct AcceptLoop {
    router: Router,
    settings: watch::Receiver<Arc<ResolvedSettings>>,
    stop: CancellationToken,
    metrics: Metrics,
    memory_budgets: MemoryBudgets,
    tasks: JoinSet<()>,
    states: HashMap<Id, Arc<ConnectionState>>,
    /// Tasks that send errors to refused users.
    refusals: JoinSet<()>,
    /// Limits the log records about refused users.
    refusal_throttle: Throttle<u32>,
    /// `true` if the last `accept` failed; a series of failures is logged once.
    is_failing: bool,
}

impl AcceptLoop {
    pub(super) fn new(
        router: Router,
        settings: watch::Receiver<Arc<ResolvedSettings>>,
        stop: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        Self {
            router,
            settings,
            stop,
            metrics,
            memory_budgets: MemoryBudgets::default(),
            tasks: JoinSet::new(),
            states: HashMap::new(),
            refusals: JoinSet::new(),
            refusal_throttle: Throttle::new(REFUSAL_LOG_INTERVAL),
            is_failing: false,
        }
    }

    /// Accepts connections until the transport is stopped, and then waits for the last responses.
    ///
    /// # Errors
    /// A listener cannot be used.
    pub(super) async fn run(mut self, mut current: watch::Receiver<Arc<StdListener>>) -> io::Result<()> {
        let stop = self.stop.clone();
        let mut listener = current_listener(&mut current)?;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = self.tasks.join_next_with_id() => self.remove_task(ended),
                Ok(()) = current.changed() => listener = current_listener(&mut current)?,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.accept_stream(stream).await,
                    Err(error) => self.handle_accept_error(&error, &listener).await,
                },
            }
        }
        drop(listener);
        // Connections end within this time; the timeout guards against bugs.
        let _ = timeout(SHUTDOWN_GRACE + ACCEPT_RETRY_DELAY, async { while self.tasks.join_next().await.is_some() {} })
            .await;
        Ok(())
    }

    fn remove_task(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => error.id(),
        };
        self.states.remove(&id);
    }

    async fn accept_stream(&mut self, stream: UnixStream) {
        self.is_failing = false;
        let settings = Arc::clone(&self.settings.borrow());
        let uid = match stream.peer_cred() {
            Ok(peer) if settings.allowed_users.allows(peer.uid()) => peer.uid(),
            Ok(peer) => return self.refuse(stream, peer.uid()),
            // The client has disconnected.
            Err(_) => return,
        };
        while self.tasks.len() >= max_connections(&settings) {
            self.evict_one().await;
        }
        let daemon = &settings.operator.daemon;
        let context = ConnectionContext {
            router: self.router.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
            memory_budgets: self.memory_budgets.clone(),
            request_timeout: daemon.request_timeout,
        };
        let state = ConnectionState::new(uid);
        let connected = self.metrics.open_connection();
        let task =
            self.tasks.spawn(RepollingFuture::new(connection::serve(context, stream, Arc::clone(&state), connected)));
        self.states.insert(task.id(), state);
    }

    /// Sends an error before reading a byte. Refused users do not count towards the limit of connections.
    fn refuse(&mut self, stream: UnixStream, uid: u32) {
        self.metrics.count_refused_connection(ConnectionRefusal::UserNotAllowed);
        if let Some(suppressed) = self.refusal_throttle.admit(uid) {
            warn!(uid, suppressed, "a user without permission to use this daemon was rejected");
        }
        while self.refusals.try_join_next().is_some() {}
        if self.refusals.len() < MAX_CONCURRENT_REFUSALS {
            self.refusals.spawn(send_refusal(stream, uid));
        }
    }

    /// Evicts a connection and waits until it has ended. If all connections are in their grace period, waits until
    /// one ends or may be evicted.
    async fn evict_one(&mut self) {
        let grace_end = self.eviction_candidate().and_then(|state| {
            let grace_end = state.grace_end();
            if grace_end.is_none() {
                self.metrics.count_refused_connection(ConnectionRefusal::Evicted);
                debug!(uid = state.uid(), "an idle connection was closed to accept another one");
                state.evict();
            }
            grace_end
        });
        let ended = self.tasks.join_next_with_id();
        let ended = match grace_end {
            Some(settles) => timeout_at(settles, ended).await.ok().flatten(),
            None => ended.await,
        };
        if let Some(ended) = ended {
            self.remove_task(ended);
        }
    }

    /// Returns the connection to evict first: of the user with the most connections, the one with the lowest rank.
    fn eviction_candidate(&self) -> Option<&Arc<ConnectionState>> {
        let staying = || self.states.values().filter(|state| !state.is_evicted());
        let mut counts: HashMap<u32, usize> = HashMap::new();
        staying().for_each(|state| *counts.entry(state.uid()).or_default() += 1);
        let (uid, _) = counts.into_iter().max_by_key(|(uid, count)| (*count, *uid))?;
        staying().filter(|state| state.uid() == uid).min_by_key(|state| state.eviction_rank())
    }

    async fn handle_accept_error(&mut self, error: &io::Error, listener: &UnixListener) {
        self.metrics.count_refused_connection(ConnectionRefusal::Failed);
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!("a connection cannot be accepted: {error}");
        }
        // A waiting client gets the descriptor of an idle connection. `accept` reports a lack of descriptors even if
        // no client waits, because the kernel allocates a descriptor before it checks the queue. So check first that
        // a client waits: otherwise a connection would be evicted for nothing.
        let exhausted = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        if exhausted.contains(&error.raw_os_error()) && !self.tasks.is_empty() && has_waiting_client(listener) {
            let _ = timeout(ACCEPT_RETRY_DELAY, self.evict_one()).await;
        } else {
            sleep(ACCEPT_RETRY_DELAY).await;
        }
    }
}

/// Returns the current listener, registered with this runtime.
fn current_listener(current: &mut watch::Receiver<Arc<StdListener>>) -> io::Result<UnixListener> {
    UnixListener::from_std(current.borrow_and_update().try_clone()?)
}

/// Returns whether a client waits to be accepted.
fn has_waiting_client(listener: &UnixListener) -> bool {
    let no_wait = Timespec::default();
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&no_wait)).is_ok_and(|ready| ready > 0)
}

/// Sends an error to a user who may not connect. The request is discarded, within bounds: a client that still sends
/// it when the connection is closed might lose the error.
async fn send_refusal(mut stream: UnixStream, uid: u32) {
    let problem = Problem::new(ProblemType::Forbidden, format!("user {uid} has no permission to use this daemon"))
        .with_hint("start your own daemon, or ask the operator to list you in `daemon.allow_users`");
    let send = async {
        stream.write_all(&raw_problem_response(&problem)).await?;
        stream.shutdown().await?;
        let (mut discarded, mut buffer) = (0, [0_u8; 4096]);
        while discarded < MAX_DISCARDED {
            match stream.read(&mut buffer).await? {
                0 => break,
                count => discarded += count,
            }
        }
        io::Result::Ok(())
    };
    // The timeout limits the wait for a client that does not read.
    let _ = timeout(REFUSAL_TIMEOUT, send).await;
}

/// Returns the maximum number of connections. Half of the available descriptors are reserved for runs.
fn max_connections(settings: &ResolvedSettings) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    let files = usize::try_from(files).unwrap_or(usize::MAX).max(1);
    files.min(usize::try_from(settings.operator.daemon.max_connections).unwrap_or(usize::MAX))
}
