//! A worker: engines with their schemas, kept warm, asked over one socket. It runs in a sandbox; what kills it costs an
//! answer and nothing else.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use proctor_core::canonical;
use proctor_core::digest::Sha256Hex;
use proctor_core::sql::{Dialect, Judgement, Policy, Request, SqlCode};

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
    warm: Vec<(Sha256Hex, Box<dyn Engine>)>,
}

impl Engines {
    /// None yet. `duckdb` is its shared library, or why there is none.
    pub fn new(duckdb: Result<PathBuf, String>) -> Self {
        Self { duckdb, warm: Vec::new() }
    }

    /// Judges a text by an engine that is warm where one is.
    pub fn judge(&mut self, request: &Request) -> Judgement {
        let key = key(request);
        let at = self.warm.iter().position(|(of, _)| *of == key);
        let mut engine = match at.map(|at| self.warm.remove(at).1) {
            Some(engine) => engine,
            None => match open(request, &self.duckdb) {
                Ok(engine) => engine,
                Err(refusal) => {
                    return chain::unjudged(request, request.dialect.title(), refusal.code, refusal.message);
                }
            },
        };
        let judgement = chain::judge(request, engine.as_mut());
        // An engine that could not judge may be broken, and one that made tables holds more than its schema.
        if judgement.verdict != proctor_core::sql::Verdict::Error && request.policy != Policy::Migrate {
            if self.warm.len() >= MOST {
                self.warm.remove(0);
            }
            self.warm.push((key, engine));
        }
        judgement
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

/// What an engine is opened for.
fn key(request: &Request) -> Sha256Hex {
    let file = request.database.as_deref().map(|file| {
        use std::os::unix::fs::MetadataExt as _;
        let meta = std::fs::metadata(file).ok();
        (file, meta.map(|meta| (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())))
    });
    let is_read = request.policy == Policy::Read;
    Sha256Hex::of(&canonical::to_vec(&(request.dialect, &request.schema, file, request.limits, is_read)))
}

/// Answers requests until the other side is done.
///
/// # Errors
/// The other side sends what is no request, or is gone.
pub fn serve(socket: &UnixStream, duckdb: Result<PathBuf, String>) -> io::Result<()> {
    let mut engines = Engines::new(duckdb);
    wire::write(socket, &wire::HELLO)?;
    while let Some(request) = wire::read::<Request>(socket)? {
        let judgement = engines.judge(&request);
        wire::write(socket, &judgement)?;
    }
    Ok(())
}
