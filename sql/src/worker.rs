//! A worker: engines with their schemas, kept warm, asked over one socket. It runs in a sandbox; what kills it costs an
//! answer and nothing else.

use std::fs::Metadata;
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use proctor_core::digest::Sha256Hex;
use proctor_core::sql::{Dialect, Judgement, Limits, Policy, Request, SqlCode, Verdict};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::chain;
use crate::duckdb::DuckDb;
use crate::engine::{Engine, Refusal};
use crate::sqlite::Sqlite;
use crate::wire;

/// How many engines are kept.
const MOST: usize = 8;

/// Engines by what they were opened for, the last used last.
pub struct Engines {
    duckdb: Result<PathBuf, String>,
    warm: Vec<Warm>,
}

/// An engine that waits.
struct Warm {
    key: Key,
    engine: Box<dyn Engine>,
}

/// What an engine is opened for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    of: Opened,
    /// Each part of its schema.
    schema: Vec<Sha256Hex>,
}

/// What an engine is opened for, beside its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Opened {
    dialect: Dialect,
    /// The database file, and its state if it can be read.
    file: Option<(String, Option<FileState>)>,
    limits: Limits,
    is_read: bool,
}

/// Tells whether a file is another one or was written since.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    inode: u64,
    bytes: u64,
    /// When it was written last: seconds and nanoseconds.
    written: (i64, i64),
}

impl Engines {
    /// None yet. `duckdb` is its shared library, or why there is none.
    pub fn new(duckdb: Result<PathBuf, String>) -> Self {
        Self { duckdb, warm: Vec::new() }
    }

    /// Judges a text by an engine that is warm where one is. Its time is that of the engine too.
    pub fn judge(&mut self, request: &Request) -> Judgement {
        let begun = Instant::now();
        let key = Key::of(request);
        let warm = self.take(&key, request, begun + request.limits.time());
        let mut engine = match warm.map_or_else(|| open(request, &self.duckdb), Ok) {
            Ok(engine) => engine,
            Err(refusal) => {
                return chain::unjudged(request, request.dialect.title(), refusal.code, refusal.message);
            }
        };
        let judgement = chain::judge_since(begun, request, engine.as_mut());
        // An engine that could not judge may be broken, and one that was full may leave too little to the next.
        let was_full = judgement.diagnostics.iter().any(|found| found.code == SqlCode::MemoryLimit);
        let is_sound = judgement.verdict != Verdict::Error && !was_full;
        if is_sound && (request.policy != Policy::Migrate || engine.is_restored()) {
            if self.warm.len() >= MOST {
                self.warm.remove(0);
            }
            self.warm.push(Warm { key, engine });
        }
        judgement
    }

    /// The engine that was opened for the same; for a migration also one that stands a few steps before it, and makes
    /// them now.
    fn take(&mut self, key: &Key, request: &Request, deadline: Instant) -> Option<Box<dyn Engine>> {
        if let Some(at) = self.warm.iter().position(|warm| warm.key == *key) {
            return Some(self.warm.remove(at).engine);
        }
        let is_before = |warm: &Warm| warm.key.of == key.of && key.schema.starts_with(&warm.key.schema);
        let at = self.warm.iter().rposition(is_before).filter(|_| request.policy == Policy::Migrate)?;
        let Warm { key: before, mut engine } = self.warm.remove(at);
        // What goes wrong is told by one that is opened anew.
        engine.extend(&request.schema[before.schema.len()..], deadline).is_ok().then_some(engine)
    }
}

impl Key {
    fn of(request: &Request) -> Self {
        let state = |meta: Metadata| FileState {
            inode: meta.ino(),
            bytes: meta.len(),
            written: (meta.mtime(), meta.mtime_nsec()),
        };
        let file = request.database.clone().map(|file| {
            let meta = std::fs::metadata(&file).ok();
            (file, meta.map(state))
        });
        let (dialect, limits, is_read) = (request.dialect, request.limits, request.policy == Policy::Read);
        let of = Opened { dialect, file, limits, is_read };
        Self { of, schema: request.schema.iter().map(|part| Sha256Hex::of(part.as_bytes())).collect() }
    }
}

/// Opens the engine of a request, with its schema.
///
/// # Errors
/// There is none, or the schema cannot be set up.
pub fn open(request: &Request, duckdb: &Result<PathBuf, String>) -> Result<Box<dyn Engine>, Refusal> {
    match request.dialect {
        Dialect::Sqlite => Ok(Box::new(Sqlite::open(request)?)),
        Dialect::Duckdb => match duckdb {
            Ok(library) => Ok(Box::new(DuckDb::open(library, request)?)),
            Err(missing) => Err(Refusal::new(SqlCode::EngineMissing, missing.clone())),
        },
    }
}

/// A socket that is read only when it is readable.
///
/// A thread that sleeps in a read of a Unix socket wakes each time that the other side reads, since the kernel then
/// reports room to write to every sleeper. Such a wake costs both sides a change of context. A poll for input sleeps on.
struct Awaited<'a>(&'a UnixStream);

impl io::Read for Awaited<'_> {
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

/// Answers requests until the other side is done.
///
/// # Errors
/// The other side sends what is no request, or is gone.
pub fn serve(socket: &UnixStream, duckdb: Result<PathBuf, String>) -> io::Result<()> {
    // Loaded before anybody waits, and kept as long as the worker is. What is wrong with it is told to who asks.
    let _library = duckdb.as_ref().ok().map(|file| proctor_duckdb::Library::load(file));
    let mut engines = Engines::new(duckdb);
    wire::write(socket, &wire::HELLO)?;
    let mut requests = BufReader::new(Awaited(socket));
    let (mut answers, mut frame) = (socket, Vec::new());
    while let Some(request) = wire::read::<Request>(&mut requests)? {
        let judgement = engines.judge(&request);
        wire::frame_into(&mut frame, &judgement)?;
        answers.write_all(&frame)?;
    }
    Ok(())
}
