//! Keeps a database on a server of a worker for other programs of the user.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Instant;

use proctor_core::sql::{Dialect, SchemaAnswer, SchemaRequest};
use tempfile::TempDir;

use super::failure::{WorkerFailure, WorkerStartError};
use super::{PooledWorker, WorkerPool, run_blocking};
use crate::worker_files::WorkerKey;
use crate::worker_request::Unanswered;
use crate::{mysql, postgres};

/// A server with a database that other programs of the user reach. It ends when the value is dropped.
pub struct KeptServer {
    // The server; it must end before the directory is removed.
    _worker: Box<PooledWorker>,
    _directory: TempDir,
    url: String,
}

impl KeptServer {
    /// Returns the URL of the database.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl WorkerPool {
    /// Starts a server with a database that has the schema of a request, for other programs of the user.
    ///
    /// # Errors
    /// The dialect has no server, or the schema cannot be set up.
    pub async fn keep_database(self: &Arc<Self>, request: &SchemaRequest) -> Result<KeptServer, String> {
        if !matches!(request.dialect, Dialect::Postgres | Dialect::Mysql) {
            return Err(format!("`{}` has no server", request.dialect.as_str()));
        }
        // The server accepts every user who reaches its socket.
        let private = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("proctor-db-").permissions(private).tempdir();
        let directory = directory.map_err(|error| format!("the directory of the socket cannot be created: {error}"))?;
        let key = self.worker_key_async(request).await.map_err(|(_, why)| why)?;
        let key = WorkerKey { sockets: Some(directory.path().to_owned()), ..key };
        let pool = Arc::clone(self);
        let started = run_blocking(move || pool.start_worker(&key)).await;
        let mut worker = started.map_err(WorkerStartError::from).flatten().map_err(|error| error.to_string())?;
        let begun = Instant::now();
        match worker.connection.send_request(request).await {
            Ok(SchemaAnswer { error: None, .. }) => {}
            Ok(SchemaAnswer { error: Some(error), .. }) => return Err(error),
            Err(silence) => {
                let failure = run_blocking(move || worker.kill_and_diagnose(silence, begun)).await;
                let failure = failure.unwrap_or_else(|broken| WorkerFailure::Died(broken.to_string()));
                let (Unanswered::Failed(_, why) | Unanswered::Limit(_, why, _)) = failure.into_unanswered(request);
                return Err(why);
            }
        }
        let url = match request.dialect {
            Dialect::Postgres => postgres::first_database_url(directory.path()),
            _ => mysql::first_database_url(directory.path()),
        };
        Ok(KeptServer { _worker: worker, _directory: directory, url })
    }
}
