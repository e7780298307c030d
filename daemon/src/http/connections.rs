//! The accept loop: who is let in, how many there are at once, and who makes room where there are too
//! many. The one owner of all connections.

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

/// How long until it is tried again to accept a connection, where that failed: nothing tells when the system
/// has what it lacked, and without a pause the attempts would keep a CPU busy.
const PAUSE: Duration = Duration::from_millis(20);
/// How many users who may not ask are told so at the same time. Others are cut off without a word.
const FAREWELLS: usize = 16;
/// How often that is logged of one user.
const TURNED_AWAY_LOGGED: Duration = Duration::from_secs(60);
/// How long that takes at most: enough for a client on this machine to send its request and read.
const LINGER: Duration = Duration::from_secs(1);

/// All connections.
pub(super) struct Connections {
    router: Router,
    settings: watch::Receiver<Arc<Settings>>,
    stop: CancellationToken,
    metrics: Metrics,
    rooms: Rooms,
    tasks: JoinSet<()>,
    seats: HashMap<Id, Arc<Seat>>,
    /// Those who are told no.
    farewells: JoinSet<()>,
    /// Bounds the log of users who are turned away.
    turned_away: Throttle<u32>,
    /// Whether the last attempt to accept one failed, which is said once.
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

    /// Accepts connections until the transport is told to end, and waits for their last answers.
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
        // Each ends by itself within that time; a bug that keeps one does not keep us.
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
            // It has gone again.
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

    /// Says no before a byte is read, apart from the connections that are served: who may not ask
    /// takes no place of theirs.
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

    /// Closes a connection, and waits until it is gone: it ends as soon as it is told to. Where all of them have
    /// only just come, waits until one ends or may be closed.
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

    /// The connection that makes room first: of the user who has the most, one that is idle or has not
    /// said what it wants, and the oldest of those.
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
        // Whoever waits has a connection already, or gets one of those that are idle. The system wants a
        // descriptor before it looks whether somebody waits: nobody makes room for nobody.
        let exhausted = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        if exhausted.contains(&error.raw_os_error()) && !self.tasks.is_empty() && is_waited_at(listener) {
            let _ = timeout(PAUSE, self.make_room()).await;
        } else {
            sleep(PAUSE).await;
        }
    }
}

/// Returns the listener that holds now, registered with this runtime.
fn listener_of(current: &mut watch::Receiver<Arc<StdListener>>) -> io::Result<UnixListener> {
    UnixListener::from_std(current.borrow_and_update().try_clone()?)
}

/// Whether somebody waits to be let in.
fn is_waited_at(listener: &UnixListener) -> bool {
    let at_once = Timespec::default();
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Tells a user no. The request is discarded unread, within bounds: a client that still sends it when the connection
/// is closed may not get the answer.
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
    // Who does not listen is not waited for.
    let _ = timeout(LINGER, said).await;
}

/// How many connections there are at most: half of the descriptors that we can have are for runs.
fn most(settings: &Settings) -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    let files = usize::try_from(files).unwrap_or(usize::MAX).max(1);
    files.min(usize::try_from(settings.operator.daemon.max_connections).unwrap_or(usize::MAX))
}
