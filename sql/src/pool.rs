//! Keeps workers in sandboxes ready. One worker judges each request; the caller bounds the number of concurrent
//! requests. A worker that does not answer in time is killed, with every process of its sandbox.
//!
//! The sandbox contains the program, the engine's library and the requested database, all read-only, and an empty
//! directory. It has no network, a disk of one mebibyte, and the memory that the requests of the worker may use.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proctor_core::enforcement::Tolerated;
use proctor_core::outcome::LimitKind;
use proctor_core::plan::{Argv, Leaks, Limit, Limits, Network, RelPath};
use proctor_core::sql::{Dialect, Judgement, Request, SqlCode};
use proctor_sandbox::{
    GitDirs, Launcher, Layer, Open, Policy, Received, RepoFacts, Report, Rights, RunSpace, RunSpaceConfig, Running,
    SandboxError, Sandboxes, ToolKind, ToolMount,
};

use crate::ask::{self, AsyncLine, Line, Silence};
use crate::chain;

/// The memory that a worker needs in addition to its engine, in bytes.
const OVERHEAD: u64 = 192 << 20;
/// The message about a worker that exceeded its memory limit.
const MEMORY: &str = "it hit its limit of memory";
/// The maximum size of the stderr output of a dead worker that is shown, in bytes.
const LAST_WORDS: usize = 2_000;

/// The configuration of a pool of workers.
#[derive(Debug, Clone)]
pub struct WorkersConfig {
    /// The path of the program `proctor-sql`.
    pub program: PathBuf,
    /// The path of DuckDB's shared library as configured; `None` searches the usual directories.
    pub duckdb: Option<PathBuf>,
    /// The maximum number of idle workers.
    pub most: usize,
    /// The sandbox controls that may be missing.
    pub tolerated: Tolerated,
}

/// A pool of workers.
pub struct Workers {
    config: WorkersConfig,
    launcher: Arc<Launcher>,
    facts: RepoFacts,
    idle: Mutex<Vec<(Key, Box<Worker>)>>,
}

/// The properties of a request that a worker must match.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    dialect: Dialect,
    library: Option<Shown>,
    database: Option<Shown>,
    /// The memory limit in bytes. An engine can only lower it, so workers are not shared between limits.
    memory: u64,
}

/// A file that is mounted into a sandbox. The sandbox keeps showing this file if another one takes its name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    /// The canonical path. A symbolic link cannot be a mount point.
    file: PathBuf,
    /// The device and the inode.
    is: (u64, u64),
}

impl Shown {
    fn of(file: &Path) -> io::Result<Self> {
        let file = file.canonicalize()?;
        let meta = file.metadata()?;
        Ok(Self { file, is: (meta.dev(), meta.ino()) })
    }

    fn mount(&self) -> ToolMount {
        let (source, at) = (self.file.clone(), self.file.clone());
        ToolMount { source, at, kind: ToolKind::ReadOnly, rights: Rights::Ours }
    }
}

/// One worker.
struct Worker {
    line: AsyncLine,
    running: Running,
    _layer: Layer<Open>,
    _space: RunSpace,
}

/// The reason why a worker gave no answer.
enum NoAnswer {
    /// The answer did not arrive in time. The value is the time that the pool waited.
    Late(Duration),
    /// The sandbox killed the worker because of its memory, after this time.
    TooLarge(Duration),
    /// The worker died. The value is the last message of the worker or its sandbox.
    Died(String),
}

impl Workers {
    /// Prepares a pool without starting a worker.
    ///
    /// # Errors
    /// The state directory is not writable.
    pub fn new(launcher: Arc<Launcher>, config: WorkersConfig) -> Result<Self, SandboxError> {
        let directory = launcher.host().state_dir().join("sql");
        let made = std::fs::create_dir_all(&directory);
        made.map_err(|source| SandboxError::System { what: "cannot make the directory for SQL workers", source })?;
        let facts = RepoFacts::read(&directory)?;
        Ok(Self { config, launcher, facts, idle: Mutex::default() })
    }

    /// Judges a text in a worker without blocking a thread. If the future is dropped, the worker is killed.
    pub async fn judge(self: &Arc<Self>, request: &Request) -> Judgement {
        let key = match self.key_apart(request).await {
            Ok(key) => key,
            Err((code, why)) => return chain::unjudged(request, request.dialect.title(), code, why),
        };
        // The worker sees the file only at its canonical path.
        let database = key.database.as_ref().map(|shown| shown.file.to_string_lossy().into_owned());
        let elsewhere = database.is_some().then(|| Request { database, ..request.clone() });
        let request = elsewhere.as_ref().unwrap_or(request);
        if let Some(worker) = self.take(&key) {
            match self.asked(&key, worker, request).await {
                Ok(judgement) => return judgement,
                // An idle worker that has died says nothing about this request, so a new worker gets it, once.
                Err(NoAnswer::Died(_)) => {}
                Err(none) => return none.judgement(request),
            }
        }
        let (pool, wanted) = (Arc::clone(self), key.clone());
        let worker = match apart(move || pool.start(&wanted)).await.and_then(|started| started) {
            Ok(worker) => worker,
            Err(why) => return failed(request, &format!("no sandbox for the SQL worker: {why}")),
        };
        self.asked(&key, worker, request).await.unwrap_or_else(|none| none.judgement(request))
    }

    /// Sends a request to a worker. A worker that answers returns to the pool; a worker that does not is killed.
    async fn asked(&self, key: &Key, mut worker: Box<Worker>, request: &Request) -> Result<Judgement, NoAnswer> {
        let begun = Instant::now();
        match worker.line.ask(request).await {
            Ok(judgement) => {
                self.give_back(key.clone(), worker);
                Ok(judgement)
            }
            Err(silence) => {
                let ended = apart(move || worker.ended(silence, begun)).await;
                Err(ended.unwrap_or_else(NoAnswer::Died))
            }
        }
    }

    /// Returns the number of idle workers.
    pub fn idle(&self) -> usize {
        self.idle_workers().len()
    }

    /// Ends the idle workers.
    pub fn release(&self) {
        let idle = std::mem::take(&mut *self.idle_workers());
        drop(idle);
    }

    fn idle_workers(&self) -> MutexGuard<'_, Vec<(Key, Box<Worker>)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &Key) -> Option<Box<Worker>> {
        let mut idle = self.idle_workers();
        let at = idle.iter().rposition(|(of, _)| of == key)?;
        Some(idle.swap_remove(at).1)
    }

    fn give_back(&self, key: Key, worker: Box<Worker>) {
        let mut idle = self.idle_workers();
        let surplus = (idle.len() >= self.config.most).then(|| idle.remove(0));
        idle.push((key, worker));
        drop(idle);
        if let Some(surplus) = surplus {
            // Ending a sandbox may block.
            drop(tokio::task::spawn_blocking(move || drop(surplus)));
        }
    }

    /// Returns the result of [`Workers::key`], on a blocking thread if computing it reads the disk.
    ///
    /// # Errors
    /// The same as for [`Workers::key`].
    async fn key_apart(self: &Arc<Self>, request: &Request) -> Result<Key, (SqlCode, String)> {
        if request.dialect == Dialect::Sqlite && request.database.is_none() {
            return self.key(request);
        }
        let (pool, request) = (Arc::clone(self), request.clone());
        let key = apart(move || pool.key(&request)).await;
        key.unwrap_or_else(|broken| Err((SqlCode::EngineFailed, broken)))
    }

    /// Returns the key of the workers that can answer a request.
    ///
    /// # Errors
    /// The engine of the dialect is missing, or the database cannot be read.
    fn key(&self, request: &Request) -> Result<Key, (SqlCode, String)> {
        let library = match request.dialect {
            Dialect::Sqlite => None,
            Dialect::Duckdb => {
                let home = self.launcher.host().home();
                let found = proctor_duckdb::find(self.config.duckdb.as_deref(), Some(home));
                let found = found.map_err(|missing| (SqlCode::EngineMissing, missing))?;
                let unread = |error| (SqlCode::EngineMissing, format!("`{}`: {error}", found.display()));
                Some(Shown::of(&found).map_err(unread)?)
            }
        };
        let database = request.database.as_deref().map(|file| {
            let unread = |error| (SqlCode::EngineFailed, format!("the database `{file}` cannot be read: {error}"));
            Shown::of(Path::new(file)).map_err(unread)
        });
        let (dialect, memory) = (request.dialect, request.limits.memory);
        Ok(Key { dialect, library, database: database.transpose()?, memory })
    }

    fn start(&self, key: &Key) -> Result<Box<Worker>, String> {
        let say = |error: SandboxError| error.to_string();
        let config = RunSpaceConfig {
            disk_bytes: 1 << 20,
            inodes: 256,
            tolerated: self.config.tolerated.clone(),
            sandboxes: Sandboxes::ForOne,
            caches: None,
        };
        let space = RunSpace::create(&self.launcher, config).map_err(say)?;
        let policy = self.policy(key)?;
        let (running, layer) = self.launcher.talk(&space, &self.facts, &policy).map_err(say)?;
        let socket = running.stdout.try_clone().map(UnixStream::from).map_err(|error| error.to_string())?;
        let line = Line::new(socket);
        if let Err(error) = line.hello() {
            let words = last_words(&running, &error);
            drop(running.kill());
            return Err(words);
        }
        let line = AsyncLine::of(line).map_err(|error| error.to_string())?;
        Ok(Box::new(Worker { line, running, _layer: layer, _space: space }))
    }

    fn policy(&self, key: &Key) -> Result<Policy, String> {
        let named = &self.config.program;
        let program = Shown::of(named).map_err(|error| format!("`{}`: {error}", named.display()))?;
        let library = key.library.as_ref().map(|shown| shown.file.to_string_lossy().into_owned());
        let argv = [program.file.to_string_lossy().into_owned(), "worker".to_owned()].into_iter().chain(library);
        let argv = Argv::new(argv.collect()).map_err(|error| error.to_string())?;
        let tools = std::iter::once(&program).chain(&key.library).chain(&key.database).map(Shown::mount).collect();
        Ok(Policy {
            repo: self.facts.path.clone(),
            checkout: None,
            git: GitDirs::default(),
            workdir: RelPath::new(".").map_err(|error| error.to_string())?,
            argv,
            env: BTreeMap::new(),
            network: Network::Deny,
            leaks: Leaks::Ignore,
            limits: Limits {
                memory: Limit::Max(key.memory.saturating_add(OVERHEAD)),
                pids: Limit::Max(16),
                disk: Limit::Max(1 << 20),
                output: Limit::Max(1 << 20),
                cpu_seconds: Limit::Unlimited,
                open_files: Limit::Max(64),
            },
            home: self.launcher.host().home().to_owned(),
            hide: Vec::new(),
            tools,
            caches: Vec::new(),
            tolerated: self.config.tolerated.clone(),
        })
    }
}

impl Worker {
    /// Kills a worker that gave no answer, and returns the reason. Blocks until the sandbox has reported it.
    fn ended(self, silence: Silence, begun: Instant) -> NoAnswer {
        match silence {
            Silence::Late(took) => NoAnswer::Late(took),
            Silence::Gone(error) => match last_words(&self.running, &error) {
                words if words == MEMORY => NoAnswer::TooLarge(begun.elapsed()),
                words => NoAnswer::Died(words),
            },
        }
    }
}

impl NoAnswer {
    /// Returns the judgement of a request that no worker answered.
    fn judgement(self, request: &Request) -> Judgement {
        match self {
            Self::Late(took) => ask::late(request, took),
            Self::TooLarge(took) => {
                let message = "it took more memory than it may, and its worker was ended".to_owned();
                chain::ended(request, SqlCode::MemoryLimit, message, took)
            }
            Self::Died(why) => ask::died(request, &why),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.running.kill());
    }
}

fn failed(request: &Request, message: &str) -> Judgement {
    chain::unjudged(request, request.dialect.title(), SqlCode::EngineFailed, message.to_owned())
}

/// Returns the last message of a worker or its sandbox.
fn last_words(running: &Running, error: &io::Error) -> String {
    let mut said = Vec::new();
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        match running.recv() {
            Ok(Received::Report(Report::Refused { message, hint, .. })) => return format!("{message}; {hint}"),
            Ok(Received::Report(Report::NotStarted { message, .. })) => return message,
            Ok(Received::Report(Report::Exited { status, limit, .. })) => {
                if limit == Some(LimitKind::Memory) {
                    return MEMORY.to_owned();
                }
                if let Some(limit) = limit {
                    return format!("it hit its limit of {}", limit.as_str());
                }
                said.push(format!("{status:?}"));
            }
            Ok(Received::Report(Report::Ready { .. })) => {}
            Ok(Received::Closed) | Err(_) => break,
            // The cause that closed the socket ends the worker too, slightly later.
            Ok(Received::WouldBlock) if !waits_until(running, until) => break,
            Ok(Received::WouldBlock) => {}
        }
    }
    let mut bytes = vec![0; LAST_WORDS];
    let is_set = rustix::io::ioctl_fionbio(&running.stderr, true).is_ok();
    if let (true, Ok(stderr)) = (is_set, running.stderr.try_clone()) {
        let length = std::fs::File::from(stderr).read(&mut bytes).unwrap_or(0);
        said.push(String::from_utf8_lossy(&bytes[..length]).trim().to_owned());
    }
    said.push(error.to_string());
    said.join("; ")
}

/// Waits until a sandbox sends a report; returns `false` if the time is over.
fn waits_until(running: &Running, until: Instant) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let left = until.saturating_duration_since(Instant::now());
    let Ok(left) = rustix::event::Timespec::try_from(left) else { return false };
    let mut fds = [PollFd::new(running, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&left)), Ok(ready) if ready > 0)
}

/// Runs blocking work on a thread of the runtime for blocking tasks.
///
/// # Errors
/// The work panicked.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| format!("a part of proctor broke: {error}"))
}
