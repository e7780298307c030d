//! Keeps workers in sandboxes ready. One worker judges each request; the caller bounds the number of concurrent
//! requests. A worker that does not answer in time is killed, with every process of its sandbox.
//!
//! The sandbox contains the program, the engine's library and the requested database, all read-only, and an empty
//! directory. Only a request that keeps its effects gets a separate worker that may write the directory of the
//! database. It has no network, a small disk, and the memory that the requests of the worker may use. A worker with a
//! server has the server's processes in its sandbox too. The server starts from a template that the pool creates once,
//! also in a sandbox.

mod failure;
mod kept_server;

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Argv, Leaks, Limit, Limits, Network, RelPath};
use proctor_core::spec::VerifierSettings;
use proctor_core::sql::{
    Dialect, Judgement, SchemaAnswer, SchemaRequest, SqlCode, SqlRequest, SqlRunAnswer, SqlRunRequest, SqlVerdict,
    VERSION,
};
use proctor_sandbox::{
    GitDirs, Launcher, Layer, Policy, RepoFacts, RunSpace, RunSpaceConfig, RunningSandbox, SandboxError, SandboxReuse,
    ToolMount, Unsealed,
};

use crate::custom_verifiers::CustomVerifiers;
use crate::mysql::MariadbPrograms;
use crate::postgres::PostgresPrograms;
use crate::server_files::ARCHIVE_END;
use crate::statement_run;
use crate::worker::WorkerOptions;
use crate::worker_client::{AsyncWorkerConnection, WorkerConnection};
use crate::worker_files::{MountedDatabase, MountedFile, WorkerKey};
use crate::worker_request::{Unanswered, WorkerRequest};

use failure::{BrokenTask, WorkerFailure, WorkerStartError, failure_message};

pub use kept_server::KeptServer;

/// The memory that a worker needs in addition to its engine, in bytes.
const MEMORY_OVERHEAD: u64 = 192 << 20;
/// The memory for the creation of a template, in bytes.
const TEMPLATE_MEMORY: u64 = 512 << 20;
/// The longest pause in the output while a template is created.
const TEMPLATE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of a template, in bytes.
const MAX_TEMPLATE_BYTES: u64 = 256 << 20;

/// The files and resources that the sandbox of a worker may use.
#[derive(Debug, Clone, Copy)]
struct WorkerSize {
    disk_bytes: u64,
    inodes: u64,
    pids: u64,
    open_files: u64,
}

/// The size of a worker whose engine is a library.
const LIBRARY_SIZE: WorkerSize = WorkerSize { disk_bytes: 1 << 20, inodes: 256, pids: 16, open_files: 64 };
/// The size of a worker with a server: its data directory, and a process for each of its tasks.
const SERVER_SIZE: WorkerSize = WorkerSize { disk_bytes: 256 << 20, inodes: 16_384, pids: 48, open_files: 1024 };

/// The smallest limit for the size of each file of a worker that changes a database, in bytes.
const MIN_WRITABLE_BYTES: u64 = 4 << 30;

fn worker_size(key: &WorkerKey) -> WorkerSize {
    match key.dialect {
        Dialect::Sqlite | Dialect::Duckdb => match &key.database {
            Some(database) if database.writable_mount().is_some() => {
                let disk_bytes = database.bytes().saturating_mul(2).max(MIN_WRITABLE_BYTES);
                WorkerSize { disk_bytes, ..LIBRARY_SIZE }
            }
            _ => LIBRARY_SIZE,
        },
        Dialect::Postgres | Dialect::Mysql => SERVER_SIZE,
    }
}

fn has_server(key: &WorkerKey) -> bool {
    matches!(key.dialect, Dialect::Postgres | Dialect::Mysql)
}

/// The configuration of a pool of workers.
#[derive(Debug, Clone)]
pub struct WorkerPoolConfig {
    /// The path of the program `proctor-sql`.
    pub program: PathBuf,
    /// The path of DuckDB's shared library as configured; `None` searches the usual directories.
    pub duckdb: Option<PathBuf>,
    /// The maximum number of idle workers.
    pub max_idle: usize,
    /// The sandbox controls that may be missing.
    pub tolerated: Tolerated,
    /// The verifiers of the operator.
    pub verifiers: Vec<VerifierSettings>,
}

/// A pool of workers, as one user gets them. The users share its limits and templates, but no worker: the schema of a
/// request may have changed the worker or its server.
pub struct WorkerPool {
    shared: Arc<SharedWorkers>,
    /// The id of the user.
    user: u32,
}

/// The parts of a pool that all users share.
struct SharedWorkers {
    config: WorkerPoolConfig,
    launcher: Arc<Launcher>,
    verifiers: CustomVerifiers,
    facts: RepoFacts,
    /// The directory of the templates. Workers see only the one that they use.
    templates: PathBuf,
    idle: Mutex<Vec<(WorkerKey, Box<PooledWorker>)>>,
    /// Locked while a template is created.
    template_creation: Mutex<()>,
}

/// One worker.
struct PooledWorker {
    connection: AsyncWorkerConnection,
    running: RunningSandbox,
    _layer: Layer<Unsealed>,
    _space: RunSpace,
}

impl WorkerPool {
    /// Prepares a pool for the user of this process, without starting a worker.
    ///
    /// # Errors
    /// The state directory is not writable.
    pub fn new(launcher: Arc<Launcher>, config: WorkerPoolConfig) -> Result<Self, SandboxError> {
        let create = |name: &str| {
            let directory = launcher.host().state_dir().join(name);
            let created = std::fs::create_dir_all(&directory);
            created.map_err(|source| SandboxError::System {
                what: "cannot create the directory for SQL workers",
                source,
            })?;
            Ok::<_, SandboxError>(directory)
        };
        let facts = RepoFacts::read(&create("sql")?)?;
        let templates = create("sql-templates")?;
        let (verifiers, tolerated) = (config.verifiers.clone(), config.tolerated.clone());
        let shared = SharedWorkers {
            verifiers: CustomVerifiers::new(verifiers, Arc::clone(&launcher), tolerated),
            config,
            launcher,
            facts,
            templates,
            idle: Mutex::default(),
            template_creation: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), user: rustix::process::geteuid().as_raw() })
    }

    /// Returns the pool as another user gets it.
    #[must_use]
    pub fn for_user(&self, user: u32) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(&self.shared), user })
    }

    /// Judges a text in a worker without blocking a thread. If the future is dropped, the worker is killed.
    pub async fn judge(self: &Arc<Self>, request: &SqlRequest) -> Judgement {
        let judgement = self.answer(request).await;
        if self.shared.verifiers.has_any_for(request.dialect) {
            self.shared.verifiers.extend(request, judgement).await
        } else {
            judgement
        }
    }

    /// Judges a text in a worker, and runs it if the verdict is `ok`. If the future is dropped, the worker is killed.
    pub async fn run_statement(self: &Arc<Self>, request: &SqlRunRequest) -> SqlRunAnswer {
        // A worker that may write gets its sandbox only for a request that may keep its effects.
        if let Err(message) = statement_run::check_request(request) {
            return request.unanswered(Unanswered::Failed(SqlCode::EngineFailed, message));
        }
        if !self.shared.verifiers.has_any_for(request.request.dialect) {
            return self.answer(request).await;
        }
        // The worker knows nothing of the verifiers, so they judge the statement before it runs.
        let judgement = self.judge(&request.request).await;
        if judgement.verdict != SqlVerdict::Ok {
            return SqlRunAnswer { version: VERSION, judgement, result: None, error: None };
        }
        // The database may have changed since, so the answer has the judgement of the worker that ran the statement.
        let answer = self.answer(request).await;
        let last = self.shared.verifiers.carry_over(&request.request, &judgement, answer.judgement);
        SqlRunAnswer { judgement: last, ..answer }
    }

    /// Describes a schema in a worker. If the future is dropped, the worker is killed.
    pub async fn describe_schema(self: &Arc<Self>, request: &SchemaRequest) -> SchemaAnswer {
        self.answer(request).await
    }

    async fn answer<Q: WorkerRequest>(self: &Arc<Self>, request: &Q) -> Q::Answer {
        let key = match self.worker_key_async(request).await {
            Ok(key) => key,
            Err((code, why)) => return request.unanswered(Unanswered::Failed(code, why)),
        };
        // The worker sees the file at a different path from the caller.
        let database = key.database.as_ref().map(|shown| shown.path_in_sandbox(&self.shared.facts.path));
        let shown_request = database.map(|database| request.with_database(database.to_string_lossy().into_owned()));
        let request = shown_request.as_ref().unwrap_or(request);
        if request.is_committing() {
            self.release_database(&key).await;
        } else if let Some(worker) = self.take_idle(&key) {
            match self.ask_worker(&key, worker, request).await {
                Ok(answer) => return answer,
                // The death of an idle worker is unrelated to this request, so the request is sent to a new worker,
                // once.
                Err(WorkerFailure::Died(_)) => {}
                Err(none) => return request.unanswered(none.into_unanswered(request)),
            }
        }
        let (pool, wanted) = (Arc::clone(self), key.clone());
        let started = run_blocking(move || pool.start_worker(&wanted)).await;
        let worker = match started.map_err(WorkerStartError::from).flatten() {
            Ok(worker) => worker,
            Err(why) => {
                // A finding has its message on one line.
                let why = why.to_string().replace("\nhint: ", "; ");
                let message = format!("no sandbox for the SQL worker: {why}");
                return request.unanswered(Unanswered::Failed(SqlCode::EngineFailed, message));
            }
        };
        let answer = self.ask_worker(&key, worker, request).await;
        answer.unwrap_or_else(|none| request.unanswered(none.into_unanswered(request)))
    }

    /// Sends a request to a worker. A worker that answers returns to the pool; a worker that does not is killed.
    async fn ask_worker<Q: WorkerRequest>(
        &self,
        key: &WorkerKey,
        mut worker: Box<PooledWorker>,
        request: &Q,
    ) -> Result<Q::Answer, WorkerFailure> {
        let begun = Instant::now();
        match worker.connection.send_request(request).await {
            Ok(answer) if request.is_committing() => {
                // The end of the sandbox may block.
                drop(run_blocking(move || drop(worker)).await);
                Ok(answer)
            }
            Ok(answer) => {
                self.return_worker(key.clone(), worker);
                Ok(answer)
            }
            Err(silence) => {
                let ended = run_blocking(move || worker.kill_and_diagnose(silence, begun)).await;
                Err(ended.unwrap_or_else(|broken| WorkerFailure::Died(broken.to_string())))
            }
        }
    }

    /// Reports whether the pool was created with these verifiers and these controls that may be missing.
    pub fn has_settings(&self, verifiers: &[VerifierSettings], tolerated: Option<&Tolerated>) -> bool {
        self.shared.config.verifiers == verifiers && tolerated == Some(&self.shared.config.tolerated)
    }

    /// Returns the number of idle workers.
    pub fn idle_count(&self) -> usize {
        self.idle_workers().len()
    }

    /// Ends the idle workers.
    pub fn release(&self) {
        let idle = std::mem::take(&mut *self.idle_workers());
        drop(idle);
    }

    /// Ends the idle workers that have the database of a key open, since an engine may lock the file.
    async fn release_database(&self, key: &WorkerKey) {
        let Some(database) = &key.database else { return };
        let has_open =
            |(of, _): &mut (WorkerKey, _)| of.database.as_ref().is_some_and(|other| other.is_same_file(database));
        let ended: Vec<_> = self.idle_workers().extract_if(.., has_open).collect();
        drop(run_blocking(move || drop(ended)).await);
    }

    fn idle_workers(&self) -> MutexGuard<'_, Vec<(WorkerKey, Box<PooledWorker>)>> {
        self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self, key: &WorkerKey) -> Option<Box<PooledWorker>> {
        let mut idle = self.idle_workers();
        let at = idle.iter().rposition(|(of, _)| of == key)?;
        Some(idle.swap_remove(at).1)
    }

    fn return_worker(&self, key: WorkerKey, worker: Box<PooledWorker>) {
        let mut idle = self.idle_workers();
        let surplus = (idle.len() >= self.shared.config.max_idle).then(|| idle.remove(0));
        idle.push((key, worker));
        drop(idle);
        if let Some(surplus) = surplus {
            // Ending a sandbox may block.
            drop(tokio::task::spawn_blocking(move || drop(surplus)));
        }
    }

    /// Returns the result of [`WorkerPool::worker_key`], on a blocking thread if computing it reads the disk.
    ///
    /// # Errors
    /// The same as for [`WorkerPool::worker_key`].
    async fn worker_key_async<Q: WorkerRequest>(self: &Arc<Self>, request: &Q) -> Result<WorkerKey, (SqlCode, String)> {
        if request.dialect() == Dialect::Sqlite && request.database().is_none() {
            return self.worker_key(request);
        }
        let (pool, request) = (Arc::clone(self), request.clone());
        let key = run_blocking(move || pool.worker_key(&request)).await;
        key.unwrap_or_else(|broken| Err((SqlCode::EngineFailed, broken.to_string())))
    }

    /// Returns the key of the workers that can answer a request.
    ///
    /// # Errors
    /// The engine of the dialect is missing, or the database cannot be read.
    fn worker_key(&self, request: &impl WorkerRequest) -> Result<WorkerKey, (SqlCode, String)> {
        let library = match request.dialect() {
            Dialect::Sqlite => None,
            Dialect::Duckdb => {
                let home = self.shared.launcher.host().home();
                let found = proctor_duckdb::find(self.shared.config.duckdb.as_deref(), Some(home));
                let found = found.map_err(|missing| (SqlCode::EngineMissing, missing.to_string()))?;
                let unread = |error| (SqlCode::EngineMissing, format!("`{}`: {error}", found.display()));
                Some(MountedFile::from_path(&found).map_err(unread)?)
            }
            Dialect::Postgres => {
                let programs =
                    PostgresPrograms::find().map_err(|missing| (SqlCode::EngineMissing, missing.to_string()))?;
                Some(self.server_template(programs.template_name(), "postgres-template")?)
            }
            Dialect::Mysql => {
                let programs =
                    MariadbPrograms::find().map_err(|missing| (SqlCode::EngineMissing, missing.to_string()))?;
                Some(self.server_template(programs.template_name(), "mariadb-template")?)
            }
        };
        let database = request.database().map(|file| {
            let unread = |error| (SqlCode::EngineFailed, format!("the database `{file}` cannot be read: {error}"));
            MountedDatabase::from_path(Path::new(file), request.dialect(), request.is_committing()).map_err(unread)
        });
        let (dialect, memory) = (request.dialect(), request.limits().memory);
        Ok(WorkerKey { user: self.user, dialect, library, database: database.transpose()?, memory, sockets: None })
    }

    /// Returns the template with a name for servers of the installed version. The program creates it with `command` when
    /// it is first needed.
    ///
    /// # Errors
    /// The template cannot be created.
    fn server_template(&self, name: io::Result<String>, command: &str) -> Result<MountedFile, (SqlCode, String)> {
        let failed = |why: String| (SqlCode::EngineFailed, format!("the server cannot be prepared: {why}"));
        let name = name.map_err(|error| failed(error.to_string()))?;
        let file = self.shared.templates.join(name);
        let _creation = self.shared.template_creation.lock().unwrap_or_else(PoisonError::into_inner);
        if !file.is_file() {
            let archive = self.create_template(command).map_err(|error| failed(error.to_string()))?;
            let mut new =
                tempfile::NamedTempFile::new_in(&self.shared.templates).map_err(|error| failed(error.to_string()))?;
            new.write_all(&archive).map_err(|error| failed(error.to_string()))?;
            // A worker of another user reads the file in its sandbox.
            let mode = std::fs::Permissions::from_mode(0o644);
            new.as_file().set_permissions(mode).map_err(|error| failed(error.to_string()))?;
            // After a crash of the machine, the name must not stand for an incomplete file.
            new.as_file().sync_all().map_err(|error| failed(error.to_string()))?;
            new.persist(&file).map_err(|error| failed(error.to_string()))?;
        }
        MountedFile::from_path(&file).map_err(|error| failed(error.to_string()))
    }

    /// Creates the archive of a data directory in a sandbox.
    fn create_template(&self, command: &str) -> Result<Vec<u8>, WorkerStartError> {
        let program = self.program()?;
        let words = [program.file.to_string_lossy().into_owned(), command.to_owned()];
        let space = RunSpace::create(&self.shared.launcher, self.space_config(SERVER_SIZE))?;
        let policy = self.policy(Argv::new(words.to_vec())?, vec![program.to_mount()], TEMPLATE_MEMORY, SERVER_SIZE)?;
        let (running, _layer) = self.shared.launcher.spawn_with_socket(&space, &self.shared.facts, &policy)?;
        let mut archive = Vec::new();
        let socket = running.stdout.try_clone().map(UnixStream::from)?;
        socket.set_read_timeout(Some(TEMPLATE_TIMEOUT))?;
        let read = socket.take(MAX_TEMPLATE_BYTES).read_to_end(&mut archive);
        let is_complete = archive.ends_with(ARCHIVE_END);
        archive.truncate(archive.len().saturating_sub(ARCHIVE_END.len()));
        let result = match read {
            Ok(_) if is_complete => Ok(archive),
            Ok(_) => Err(WorkerStartError::NotReady(failure_message(&running, &io::ErrorKind::UnexpectedEof.into()))),
            Err(error) => Err(error.into()),
        };
        drop(running.kill());
        result
    }

    fn start_worker(&self, key: &WorkerKey) -> Result<Box<PooledWorker>, WorkerStartError> {
        let space = RunSpace::create(&self.shared.launcher, self.space_config(worker_size(key)))?;
        let policy = self.sandbox_policy(key)?;
        let (running, layer) = self.shared.launcher.spawn_with_socket(&space, &self.shared.facts, &policy)?;
        let socket = running.stdout.try_clone().map(UnixStream::from)?;
        let line = WorkerConnection::new(socket);
        if let Err(error) = line.wait_until_ready() {
            let words = failure_message(&running, &error);
            drop(running.kill());
            return Err(WorkerStartError::NotReady(words));
        }
        let line = AsyncWorkerConnection::from_blocking(line)?;
        Ok(Box::new(PooledWorker { connection: line, running, _layer: layer, _space: space }))
    }

    fn space_config(&self, size: WorkerSize) -> RunSpaceConfig {
        RunSpaceConfig {
            disk_bytes: size.disk_bytes,
            inodes: size.inodes,
            tolerated: self.shared.config.tolerated.clone(),
            reuse: SandboxReuse::Never,
            caches: None,
        }
    }

    fn program(&self) -> Result<MountedFile, WorkerStartError> {
        let named = &self.shared.config.program;
        MountedFile::from_path(named).map_err(|source| WorkerStartError::Program { file: named.clone(), source })
    }

    fn sandbox_policy(&self, key: &WorkerKey) -> Result<Policy, WorkerStartError> {
        let program = self.program()?;
        let library = key.library.as_ref().map(|shown| shown.file.to_string_lossy());
        let sockets = key.sockets_in_sandbox(&self.shared.facts.path);
        let options = WorkerOptions::arguments(key.dialect, library.as_deref())
            .into_iter()
            .chain(sockets.as_deref().map(WorkerOptions::socket_directory_argument))
            .chain(has_server(key).then(|| WorkerOptions::process_memory_argument(key.memory)));
        let words = [program.file.to_string_lossy().into_owned(), "worker".to_owned()].into_iter().chain(options);
        let files = std::iter::once(&program).chain(&key.library).map(MountedFile::to_mount);
        let tools = files.chain(key.database.iter().flat_map(MountedDatabase::read_only_mounts)).collect();
        let writable = key.database.iter().filter_map(MountedDatabase::writable_mount);
        let caches = writable.chain(key.sockets_mount()).collect();
        let policy = self.policy(Argv::new(words.collect())?, tools, key.memory, worker_size(key))?;
        Ok(Policy { caches, ..policy })
    }

    /// Returns the policy of a sandbox for `argv`, with this memory for the engine.
    fn policy(
        &self,
        argv: Argv,
        tools: Vec<ToolMount>,
        memory: u64,
        size: WorkerSize,
    ) -> Result<Policy, WorkerStartError> {
        Ok(Policy {
            repo: self.shared.facts.path.clone(),
            checkout: None,
            git: GitDirs::default(),
            workdir: RelPath::new(".")?,
            argv,
            files: proctor_sandbox::FileBatches::default(),
            env: BTreeMap::new(),
            network: Network::Deny,
            leaks: Leaks::Ignore,
            limits: Limits {
                memory: Limit::Max(memory.saturating_add(MEMORY_OVERHEAD)),
                pids: Limit::Max(size.pids),
                disk: Limit::Max(size.disk_bytes),
                output: Limit::Max(1 << 20),
                open_files: Limit::Max(size.open_files),
                ..Limits::UNLIMITED
            },
            home: self.shared.launcher.host().home().to_owned(),
            hide: Vec::new(),
            tools,
            caches: Vec::new(),
            tolerated: self.shared.config.tolerated.clone(),
            view: false,
            inputs: None,
        })
    }
}

impl Drop for PooledWorker {
    fn drop(&mut self) {
        drop(self.running.kill());
    }
}

/// Runs blocking work on a thread of the runtime for blocking tasks.
///
/// # Errors
/// The work panicked.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, BrokenTask> {
    Ok(tokio::task::spawn_blocking(work).await?)
}
