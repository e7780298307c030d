//! Implements a worker: it keeps engines open with their schemas and answers requests over one socket. It runs in a
//! sandbox; if it is killed, only one answer is lost.

use std::fs::Metadata;
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use proctor_core::sql::{
    Dialect, Judgement, SchemaAnswer, SchemaRequest, SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits, SqlRunAnswer,
    SqlRunRequest, SqlVerdict, VERSION,
};
use proctor_core::text::digest::Sha256Hex;
use proctor_duckdb::LibraryNotFound;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::chain;
use crate::engine::{EngineRefusal, SqlEngine};
pub use crate::engine_sources::{EngineSources, ServerTemplates, open_engine};
use crate::wire::{self, RequestKind};
use crate::worker_request::{Unanswered, WorkerRequest as _};
use crate::{schema_description, statement_run, worker_files};

/// The maximum number of engines that are kept open.
const MAX_ENGINES: usize = 8;

/// A cache of open engines, the most recently used last.
pub struct EngineCache {
    // Ends before the server on which some of the engines are.
    idle: Vec<IdleEngine>,
    sources: EngineSources,
}

/// An idle engine.
struct IdleEngine {
    key: EngineKey,
    engine: Box<dyn SqlEngine>,
}

/// The parameters that an engine was opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EngineKey {
    parameters: EngineParameters,
    /// The digest of each part of the schema.
    schema: Vec<Sha256Hex>,
}

/// The parameters of an engine other than its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EngineParameters {
    dialect: Dialect,
    /// The database file, and the states of the files that exist of it and the files next to it.
    file: Option<(String, Vec<Option<FileState>>)>,
    limits: SqlResourceLimits,
    is_read_only: bool,
}

/// The state of a file, to detect that it was replaced or written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    inode: u64,
    bytes: u64,
    /// The modification time: seconds and nanoseconds.
    modified: (i64, i64),
}

impl EngineCache {
    /// Creates an empty cache. `duckdb` is the path of the shared library, or the reason why it is missing.
    pub fn new(duckdb: Result<PathBuf, LibraryNotFound>) -> Self {
        Self { sources: EngineSources::new(duckdb, ServerTemplates::default()), idle: Vec::new() }
    }

    /// Judges a text with an open engine if one matches. The time limit includes opening an engine.
    pub fn judge(&mut self, request: &SqlRequest) -> Judgement {
        let begun = Instant::now();
        let (key, mut engine) = match self.engine(request, begun) {
            Ok(found) => found,
            Err(refusal) => return request.unanswered(Unanswered::Failed(refusal.code, refusal.message)),
        };
        let judgement = chain::judge_since(begun, request, engine.as_mut());
        self.keep(key, engine, request, &judgement);
        judgement
    }

    /// Judges a text, and runs it if the verdict is `ok`. Its effects are undone, unless the request keeps them.
    pub fn run(&mut self, run: &SqlRunRequest) -> SqlRunAnswer {
        let begun = Instant::now();
        let request = &run.request;
        if let Err(message) = statement_run::check_request(run) {
            return run.unanswered(Unanswered::Failed(SqlCode::EngineFailed, message));
        }
        if run.commit {
            return statement_run::judge_and_commit(begun, run, &mut self.sources);
        }
        let (key, mut engine) = match self.engine(request, begun) {
            Ok(found) => found,
            Err(refusal) => return run.unanswered(Unanswered::Failed(refusal.code, refusal.message)),
        };
        let (answer, is_sound) = statement_run::judge_and_run(begun, request, engine.as_mut());
        if is_sound {
            self.keep(key, engine, request, &answer.judgement);
        }
        answer
    }

    /// Describes a schema with an open engine if one matches.
    pub fn describe(&mut self, request: &SchemaRequest) -> SchemaAnswer {
        let begun = Instant::now();
        let opened = SqlRequest {
            schema: request.schema.clone(),
            database: request.database.clone(),
            allow: request.allow.clone(),
            limits: request.limits,
            ..SqlRequest::new(request.dialect, "")
        };
        let (key, mut engine) = match self.engine(&opened, begun) {
            Ok(found) => found,
            Err(refusal) => return request.unanswered(Unanswered::Failed(refusal.code, refusal.message)),
        };
        let version = engine.version();
        match schema_description::describe(request, engine.as_mut(), begun + request.limits.wall_time()) {
            Ok(schema) => {
                self.push_idle(key, engine);
                let dialect = request.dialect;
                SchemaAnswer { version: VERSION, dialect, engine: version, schema: Some(schema), error: None }
            }
            Err(refusal) => request.unanswered(Unanswered::Failed(refusal.code, refusal.message)),
        }
    }

    /// Returns an open engine that matches a request, or opens one.
    fn engine(
        &mut self,
        request: &SqlRequest,
        begun: Instant,
    ) -> Result<(EngineKey, Box<dyn SqlEngine>), EngineRefusal> {
        let key = EngineKey::from_request(request);
        let warm = self.take_engine(&key, request, begun + request.limits.wall_time());
        let engine = warm.map_or_else(|| open_engine(request, &mut self.sources), Ok)?;
        Ok((key, engine))
    }

    /// Keeps an engine for later requests, unless the judgement shows that it may be broken.
    fn keep(&mut self, key: EngineKey, engine: Box<dyn SqlEngine>, request: &SqlRequest, judgement: &Judgement) {
        // An engine that could not judge may be broken. An engine that ran out of memory may leave too little for the
        // next request.
        let was_full = judgement.diagnostics.iter().any(|found| found.code == SqlCode::MemoryLimit);
        let is_sound = judgement.verdict != SqlVerdict::Error && !was_full;
        if is_sound && (request.policy != SqlPolicy::Migrate || engine.is_restored()) {
            self.push_idle(key, engine);
        }
    }

    fn push_idle(&mut self, key: EngineKey, engine: Box<dyn SqlEngine>) {
        if self.idle.len() >= MAX_ENGINES {
            self.idle.remove(0);
        }
        self.idle.push(IdleEngine { key, engine });
    }

    /// Returns the engine that was opened with the same key. A migration may also take an engine whose schema is a
    /// prefix of the requested one; the missing parts are applied first.
    fn take_engine(&mut self, key: &EngineKey, request: &SqlRequest, deadline: Instant) -> Option<Box<dyn SqlEngine>> {
        if let Some(at) = self.idle.iter().position(|warm| warm.key == *key) {
            return Some(self.idle.remove(at).engine);
        }
        let is_before =
            |warm: &IdleEngine| warm.key.parameters == key.parameters && key.schema.starts_with(&warm.key.schema);
        let at = self.idle.iter().rposition(is_before).filter(|_| request.policy == SqlPolicy::Migrate)?;
        let IdleEngine { key: before, mut engine } = self.idle.remove(at);
        // If this fails, a new engine is opened, which reports the error.
        engine.extend_schema(&request.schema[before.schema.len()..], deadline).is_ok().then_some(engine)
    }
}

impl EngineKey {
    fn from_request(request: &SqlRequest) -> Self {
        let state = |meta: Metadata| FileState {
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        };
        let file = request.database.clone().map(|file| {
            let suffixes = std::iter::once(&"").chain(worker_files::change_file_suffixes(request.dialect));
            let paths = suffixes.map(|suffix| worker_files::beside(Path::new(&file), suffix));
            let states = paths.map(|path| std::fs::metadata(path).ok().map(state)).collect();
            (file, states)
        });
        let (dialect, limits, is_read) = (request.dialect, request.limits, request.policy == SqlPolicy::Read);
        let of = EngineParameters { dialect, file, limits, is_read_only: is_read };
        Self { parameters: of, schema: request.schema.iter().map(|part| Sha256Hex::digest(part.as_bytes())).collect() }
    }
}

/// The engines that a worker prepares before it is ready.
pub struct WorkerOptions {
    /// The path of DuckDB's shared library, or the reason why it is missing.
    pub duckdb: Result<PathBuf, LibraryNotFound>,
    /// True if the worker starts a PostgreSQL server.
    pub starts_postgres: bool,
    /// True if the worker starts a MariaDB server.
    pub starts_mariadb: bool,
    /// Archives of data directories for the servers.
    pub templates: ServerTemplates,
    /// A directory for the socket of a server that other programs of the user reach.
    pub socket_directory: Option<PathBuf>,
    /// The memory that each process of a server may use, in bytes.
    pub process_memory: Option<u64>,
}

/// The options of a worker on its command line.
const DUCKDB_OPTION: &str = "--duckdb=";
const POSTGRES_OPTION: &str = "--postgres";
const POSTGRES_TEMPLATE_OPTION: &str = "--postgres-template=";
const MARIADB_OPTION: &str = "--mariadb";
const MARIADB_TEMPLATE_OPTION: &str = "--mariadb-template=";
const SOCKET_DIRECTORY_OPTION: &str = "--socket-directory=";
const PROCESS_MEMORY_OPTION: &str = "--process-memory=";

impl WorkerOptions {
    /// Returns the arguments of a worker for requests of one dialect. `file` is the library or the template.
    pub(crate) fn arguments(dialect: Dialect, file: Option<&str>) -> Vec<String> {
        match (dialect, file) {
            (Dialect::Duckdb, Some(file)) => vec![format!("{DUCKDB_OPTION}{file}")],
            (Dialect::Postgres, Some(file)) => vec![format!("{POSTGRES_TEMPLATE_OPTION}{file}")],
            (Dialect::Postgres, None) => vec![POSTGRES_OPTION.to_owned()],
            (Dialect::Mysql, Some(file)) => vec![format!("{MARIADB_TEMPLATE_OPTION}{file}")],
            (Dialect::Mysql, None) => vec![MARIADB_OPTION.to_owned()],
            (Dialect::Sqlite | Dialect::Duckdb, _) => Vec::new(),
        }
    }

    /// Returns the argument of a worker whose server other programs of the user reach.
    pub(crate) fn socket_directory_argument(directory: &Path) -> String {
        format!("{SOCKET_DIRECTORY_OPTION}{}", directory.display())
    }

    /// Returns the argument of a worker whose server's processes may use this memory.
    pub(crate) fn process_memory_argument(bytes: u64) -> String {
        format!("{PROCESS_MEMORY_OPTION}{bytes}")
    }

    /// Parses the arguments of a worker. Returns the first unknown one as an error.
    ///
    /// # Errors
    /// An argument is unknown.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            duckdb: Err(LibraryNotFound::NotPassed),
            starts_postgres: false,
            starts_mariadb: false,
            templates: ServerTemplates::default(),
            socket_directory: None,
            process_memory: None,
        };
        for argument in arguments {
            if let Some(file) = argument.strip_prefix(DUCKDB_OPTION) {
                options.duckdb = Ok(file.into());
            } else if let Some(file) = argument.strip_prefix(POSTGRES_TEMPLATE_OPTION) {
                options.starts_postgres = true;
                options.templates.postgres = Some(file.into());
            } else if let Some(file) = argument.strip_prefix(MARIADB_TEMPLATE_OPTION) {
                options.starts_mariadb = true;
                options.templates.mariadb = Some(file.into());
            } else if let Some(directory) = argument.strip_prefix(SOCKET_DIRECTORY_OPTION) {
                options.socket_directory = Some(directory.into());
            } else if let Some(bytes) = argument.strip_prefix(PROCESS_MEMORY_OPTION) {
                options.process_memory = Some(bytes.parse().map_err(|_| argument.clone())?);
            } else if argument == POSTGRES_OPTION {
                options.starts_postgres = true;
            } else if argument == MARIADB_OPTION {
                options.starts_mariadb = true;
            } else {
                return Err(argument);
            }
        }
        Ok(options)
    }
}

/// A socket that is read only when it is readable.
///
/// A thread that sleeps in a read of a Unix socket wakes up each time that the other side reads, since the kernel then
/// reports to every sleeper that the socket is writable. Each such wake-up costs both sides a context switch. A poll
/// for input does not wake up.
struct PolledReader<'a>(&'a UnixStream);

impl io::Read for PolledReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match poll(&mut [PollFd::new(self.0, PollFlags::IN)], None) {
                Ok(_) => return io::Read::read(&mut self.0, buffer),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Answers requests until the other side closes the connection.
///
/// # Errors
/// The other side sends an invalid request, or the connection breaks.
pub fn serve(socket: &UnixStream, options: WorkerOptions) -> io::Result<()> {
    // The library is loaded and the server is started before the first request arrives. If that fails, each request
    // that needs them gets the error.
    let _library = options.duckdb.as_ref().ok().map(|file| proctor_duckdb::Library::load(file));
    let sockets = options.socket_directory.as_deref();
    let mut sources =
        EngineSources::with_server_options(options.duckdb, options.templates, sockets, options.process_memory);
    if options.starts_postgres {
        let _ = sources.postgres.server();
    }
    if options.starts_mariadb {
        let _ = sources.mariadb.server();
    }
    let mut engines = EngineCache { sources, idle: Vec::new() };
    wire::write_frame(socket, &wire::READY_MESSAGE)?;
    let mut requests = BufReader::new(PolledReader(socket));
    let (mut answers, mut frame) = (socket, Vec::new());
    while let Some(request) = wire::read_request(&mut requests)? {
        match request.kind {
            RequestKind::Judge => wire::encode_frame_into(&mut frame, &engines.judge(&request.parse()?))?,
            RequestKind::Run => wire::encode_frame_into(&mut frame, &engines.run(&request.parse()?))?,
            RequestKind::Describe => wire::encode_frame_into(&mut frame, &engines.describe(&request.parse()?))?,
        }
        answers.write_all(&frame)?;
    }
    Ok(())
}
