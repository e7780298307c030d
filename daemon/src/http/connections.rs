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

use super::answer::last_words;
use super::connection::{self, Serving};
use super::repoll::Repolled;
use super::room::Rooms;
use super::seat::Seat;
use super::{LAST_ANSWERS, MAX_DISCARDED};
use crate::metrics::{ConnectionRefused, Metrics};
use crate::settings::Settings;
use crate::throttle::Throttle;

/// Delay before the next attempt after `accept` failed. The system does not report when resources are available
/// again, and without a delay the loop would keep a CPU busy.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of refused users that are sent an error at the same time. The others are disconnected without one.
const FAREWELLS: usize = 16;
/// Minimum interval between log records about one refused user.
const TURNED_AWAY_LOGGED: Duration = Duration::from_secs(60);
/// Time limit for sending the error: enough for a local client to send its request and read.
const LINGER: Duration = Duration::from_secs(1);

/// All connections of the transport.
pub(super) struct Connections {
    router: Router,
    settings: watch::Receiver<Arc<Settings>>,
    stop: CancellationToken,
    metrics: Metrics,
    rooms: Rooms,
    tasks: JoinSet<()>,
    seats: HashMap<Id, Arc<Seat>>,
    /// Tasks that send errors to refused users.
    farewells: JoinSet<()>,
    /// Limits the log records about refused users.
    turned_away: Throttle<u32>,
    /// `true` if the last `accept` failed; a series of failures is logged once.
    is_failing: bool,
}

impl Connections {
    pub(super) fn new(
        router: Router,
        settings: watch::Receiver<Arc<Settings>>,
        stop: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        Self {
            router,
            settings,
            stop,
            metrics,
            rooms: Rooms::default(),
            tasks: JoinSet::new(),
            seats: HashMap::new(),
            farewells: JoinSet::new(),
            turned_away: Throttle::new(TURNED_AWAY_LOGGED),
            is_failing: false,
        }
    }

    /// Accepts connections until the transport is stopped, and then waits for the last responses.
    ///
    /// # Errors
    /// A listener cannot be used.
    pub(super) async fn accept(mut self, mut current: watch::Receiver<Arc<StdListener>>) -> io::Result<()> {
        let stop = self.stop.clone();
        let mut listener = listener_of(&mut current)?;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = self.tasks.join_next_with_id() => self.forget(ended),
                Ok(()) = current.changed() => listener = listener_of(&mut current)?,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.take(stream).await,
                    Err(error) => self.failed(&error, &listener).await,
                },
            }
        }
        drop(listener);
        // Connections end within this time; the timeout guards against bugs.
        let _ = timeout(LAST_ANSWERS + PAUSE, async { while self.tasks.join_next().await.is_some() {} }).await;
        Ok(())
    }

    fn forget(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => error.id(),
        };
        self.seats.remove(&id);
    }

    async fn take(&mut self, stream: UnixStream) {
        self.is_failing = false;
        let settings = Arc::clone(&self.settings.borrow());
        let uid = match stream.peer_cred() {
            Ok(peer) if settings.admitted.admits(peer.uid()) => peer.uid(),
            Ok(peer) => return self.refuse(stream, peer.uid()),
            // The client has disconnected.
            Err(_) => return,
        };
        while self.tasks.len() >= most(&settings) {
            self.make_room().await;
        }
        let daemon = &settings.operator.daemon;
        let serving = Serving {
            router: self.router.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
            rooms: self.rooms.clone(),
            patience: daemon.request_timeout,
        };
        let seat = Seat::new(uid);
        let connected = self.metrics.connected();
        let task = self.tasks.spawn(Repolled::new(connection::serve(serving, stream, Arc::clone(&seat), connected)));
        self.seats.insert(task.id(), seat);
    }

    /// Sends an error before reading a byte. Refused users do not count towards the limit of connections.
    fn refuse(&mut self, stream: UnixStream, uid: u32) {
        self.metrics.refused(ConnectionRefused::Foreign);
        if let Some(suppressed) = self.turned_away.admit(uid) {
            warn!(uid, suppressed, "a user who may not ask this daemon was turned away");
        }
        while self.farewells.try_join_next().is_some() {}
        if self.farewells.len() < FAREWELLS {
            self.farewells.spawn(farewell(stream, uid));
        }
    }

    /// Evicts a connection and waits until it has ended. If all connections are in their grace period, waits until
    /// one ends or may be evicted.
    async fn make_room(&mut self) {
        let settles = self.least().and_then(|seat| {
            let settles = seat.settles();
            if settles.is_none() {
                self.metrics.refused(ConnectionRefused::Evicted);
                debug!(uid = seat.uid(), "a connection makes room for another");
                seat.evict();
            }
            settles
        });
        let ended = self.tasks.join_next_with_id();
        let ended = match settles {
            Some(settles) => timeout_at(settles, ended).await.ok().flatten(),
            None => ended.await,
        };
        if let Some(ended) = ended {
            self.forget(ended);
        }
    }

    /// Returns the connection to evict first: of the user with the most connections, the one with the lowest rank.
    fn least(&self) -> Option<&Arc<Seat>> {
        let staying = || self.seats.values().filter(|seat| !seat.leaves());
        let mut counts: HashMap<u32, usize> = HashMap::new();
        staying().for_each(|seat| *counts.entry(seat.uid()).or_default() += 1);
        let (uid, _) = counts.into_iter().max_by_key(|(uid, count)| (*count, *uid))?;
        staying().filter(|seat| seat.uid() == uid).min_by_key(|seat| seat.rank())
    }

    async fn failed(&mut self, error: &io::Error, listener: &UnixListener) {
        self.metrics.refused(ConnectionRefused::Failed);
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!("a connection cannot be accepted: {error}");
        }
        // A waiting client gets the descriptor of an idle connection. `accept` reports a lack of descriptors even if
        // no client waits, because the kernel allocates a descriptor before it checks the queue. So check first that
        // a client waits: otherwise a connection would be evicted for nothing.
        let exhausted = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        if exhausted.contains(&error.raw_os_error()) && !self.tasks.is_empty() && is_waited_at(listener) {
            let _ = timeout(PAUSE, self.make_room()).await;
        } else {
            sleep(PAUSE).await;
        }
    }
}

/// Returns the current listener, registered with this runtime.
fn listener_of(current: &mut watch::Receiver<Arc<StdListener>>) -> io::Result<UnixListener> {
    UnixListener::from_std(current.borrow_and_update().try_clone()?)
}

/// Returns whether a client waits to be accepted.
fn is_waited_at(listener: &UnixListener) -> bool {
    let at_once = Timespec::default();
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Sends an error to a user who may not connect. The request is discarded, within bounds: a client that still sends
/// it when the connection is closed might lose the error.
async fn farewell(mut stream: UnixStream, uid: u32) {
    let problem = Problem::new(ProblemType::Forbidden, format!("user {uid} may not ask this daemon"))
        .with_hint("start your own daemon, or ask the operator to list you in `daemon.allow_users`");
    let said = async {
        stream.write_all(&last_words(&problem)).await?;
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
    let _ = timeout(LINGER, said).await;
}

/// Returns the maximum number of connections. Half of the available descriptors are reserved for runs.
fn most(settings: &Settings) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    let files = usize::try_from(files).unwrap_or(usize::MAX).max(1);
    files.min(usize::try_from(settings.operator.daemon.max_connections).unwrap_or(usize::MAX))
}
