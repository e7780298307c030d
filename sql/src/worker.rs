//! Implements a worker: it keeps engines open with their schemas and answers requests over one socket. It runs in a
//! sandbox; if it is killed, only one answer is lost.

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

/// The maximum number of engines that are kept open.
const MOST: usize = 8;

/// A cache of open engines, the most recently used last.
pub struct Engines {
    duckdb: Result<PathBuf, String>,
    warm: Vec<Warm>,
}

/// An idle engine.
struct Warm {
    key: Key,
    engine: Box<dyn Engine>,
}

/// The parameters that an engine was opened with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    of: Opened,
    /// The digest of each part of the schema.
    schema: Vec<Sha256Hex>,
}

/// The parameters of an engine other than its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Opened {
    dialect: Dialect,
    /// The database file, and its state if it can be read.
    file: Option<(String, Option<FileState>)>,
    limits: Limits,
    is_read: bool,
}

/// The state of a file, to detect that it was replaced or written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    inode: u64,
    bytes: u64,
    /// The modification time: seconds and nanoseconds.
    written: (i64, i64),
}

impl Engines {
    /// Creates an empty cache. `duckdb` is the path of the shared library, or the reason why it is missing.
    pub fn new(duckdb: Result<PathBuf, String>) -> Self {
        Self { duckdb, warm: Vec::new() }
    }

    /// Judges a text with an open engine if one matches. The time limit includes opening an engine.
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
        // An engine that could not judge may be broken. An engine that ran out of memory may leave too little for the
        // next request.
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

    /// Takes the engine that was opened with the same key. A migration may also take an engine whose schema is a prefix
    /// of the requested one; the missing parts are applied first.
    fn take(&mut self, key: &Key, request: &Request, deadline: Instant) -> Option<Box<dyn Engine>> {
        if let Some(at) = self.warm.iter().position(|warm| warm.key == *key) {
            return Some(self.warm.remove(at).engine);
        }
        let is_before = |warm: &Warm| warm.key.of == key.of && key.schema.starts_with(&warm.key.schema);
        let at = self.warm.iter().rposition(is_before).filter(|_| request.policy == Policy::Migrate)?;
        let Warm { key: before, mut engine } = self.warm.remove(at);
        // If this fails, a new engine is opened, which reports the error.
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
/// The engine is missing, or the schema cannot be set up.
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
/// A thread that sleeps in a read of a Unix socket wakes up each time that the other side reads, since the kernel then
/// reports to every sleeper that the socket is writable. Each such wake-up costs both sides a context switch. A poll
/// for input does not wake up.
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

/// Answers requests until the other side closes the connection.
///
/// # Errors
/// The other side sends an invalid request, or the connection breaks.
pub fn serve(socket: &UnixStream, duckdb: Result<PathBuf, String>) -> io::Result<()> {
    // The library is loaded before the first request arrives, and stays loaded. If it cannot be loaded, each request
    // that needs it gets the error.
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
