//! The databases behind the loop: describes a schema, judges a statement, and runs it.

use std::sync::Arc;

use proctor_core::sql::{
    Judgement, SchemaAnswer, SchemaRequest, SqlCode, SqlRequest, SqlRunAnswer, SqlRunRequest, VERSION,
};
use proctor_sql::chain::error_judgement;
use proctor_sql::worker_pool::WorkerPool;

use crate::provider::BoxFuture;

/// Describes, judges and runs.
pub trait SqlBackend: Send + Sync {
    /// Describes the schema of a database.
    fn describe<'a>(&'a self, request: &'a SchemaRequest) -> BoxFuture<'a, SchemaAnswer>;
    /// Judges a statement.
    fn judge<'a>(&'a self, request: &'a SqlRequest) -> BoxFuture<'a, Judgement>;
    /// Judges a statement, and runs it if the verdict is `ok`.
    fn run<'a>(&'a self, request: &'a SqlRunRequest) -> BoxFuture<'a, SqlRunAnswer>;
}

impl SqlBackend for Arc<WorkerPool> {
    fn describe<'a>(&'a self, request: &'a SchemaRequest) -> BoxFuture<'a, SchemaAnswer> {
        Box::pin(self.describe_schema(request))
    }

    fn judge<'a>(&'a self, request: &'a SqlRequest) -> BoxFuture<'a, Judgement> {
        Box::pin(WorkerPool::judge(self, request))
    }

    fn run<'a>(&'a self, request: &'a SqlRunRequest) -> BoxFuture<'a, SqlRunAnswer> {
        Box::pin(self.run_statement(request))
    }
}

/// Returns the answer of a request for a schema that no worker received.
pub fn unanswered_schema(request: &SchemaRequest, reason: String) -> SchemaAnswer {
    let engine = request.dialect.display_name().to_owned();
    SchemaAnswer { version: VERSION, dialect: request.dialect, engine, schema: None, error: Some(reason) }
}

/// Returns the judgement of a request that no worker received. Its verdict is `error`.
pub fn unanswered_judgement(request: &SqlRequest, reason: String) -> Judgement {
    error_judgement(request, request.dialect.display_name(), SqlCode::EngineFailed, reason)
}

/// Returns the answer of a request to run a statement that no worker received.
pub fn unanswered_run(request: &SqlRunRequest, reason: String) -> SqlRunAnswer {
    let judgement = unanswered_judgement(&request.request, reason);
    SqlRunAnswer { version: VERSION, judgement, result: None, error: None }
}
