//! The databases behind the loop: describes a schema, judges a statement, and runs it.

use std::sync::Arc;

use proctor_core::sql::{Judgement, SchemaAnswer, SchemaRequest, SqlRequest, SqlRunAnswer, SqlRunRequest};
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
