//! Defines the requests that a worker answers: to judge a text, to run it, and to describe a schema.

use std::time::Duration;

use proctor_core::sql::{
    Dialect, Judgement, SchemaAnswer, SchemaRequest, SqlCode, SqlRequest, SqlResourceLimits, SqlRunAnswer,
    SqlRunRequest, VERSION,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::chain;
use crate::wire::RequestKind;

/// The time beyond its limit that a request may take. A worker that can enforce the limit answers within this time.
/// Some operations of an engine, such as constant folding, cannot be interrupted.
const ANSWER_GRACE: Duration = Duration::from_millis(500);
/// The time beyond its limit that a request may take if it keeps its effects. A worker that is killed at the end of a
/// transaction leaves it unknown whether the effects were kept.
const COMMIT_GRACE: Duration = Duration::from_secs(30);

/// The reason why no engine answered a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The engine or the worker could not be used.
    Failed(SqlCode, String),
    /// The request exceeded a limit; the time is how long that took.
    Limit(SqlCode, String, Duration),
}

/// A request that a worker answers.
pub(crate) trait WorkerRequest: Serialize + Clone + Send + Sync + 'static {
    /// The kind of the request in a frame.
    const KIND: RequestKind;
    /// The answer of the worker.
    type Answer: DeserializeOwned + Send;

    /// Returns the dialect.
    fn dialect(&self) -> Dialect;

    /// Returns the database file.
    fn database(&self) -> Option<&str>;

    /// Returns the same request for a database file with another path.
    fn with_database(&self, database: String) -> Self;

    /// Returns the limits.
    fn limits(&self) -> &SqlResourceLimits;

    /// Reports whether the request keeps its effects on the database file.
    fn is_committing(&self) -> bool {
        false
    }

    /// Returns the longest time until the answer.
    fn answer_time(&self) -> Duration {
        let grace = if self.is_committing() { COMMIT_GRACE } else { ANSWER_GRACE };
        self.limits().wall_time() + grace
    }

    /// Returns the answer of a request that no engine answered.
    fn unanswered(&self, why: Unanswered) -> Self::Answer;

    /// Reports whether the answer was not damaged during transmission.
    fn is_intact(answer: &Self::Answer) -> bool;
}

impl WorkerRequest for SqlRequest {
    const KIND: RequestKind = RequestKind::Judge;
    type Answer = Judgement;

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    fn with_database(&self, database: String) -> Self {
        Self { database: Some(database), ..self.clone() }
    }

    fn limits(&self) -> &SqlResourceLimits {
        &self.limits
    }

    fn unanswered(&self, why: Unanswered) -> Judgement {
        match why {
            Unanswered::Failed(code, message) => {
                chain::error_judgement(self, self.dialect.display_name(), code, message)
            }
            Unanswered::Limit(code, message, took) => chain::limit_judgement(self, code, message, took),
        }
    }

    fn is_intact(answer: &Judgement) -> bool {
        answer.is_intact()
    }
}

impl WorkerRequest for SqlRunRequest {
    const KIND: RequestKind = RequestKind::Run;
    type Answer = SqlRunAnswer;

    fn dialect(&self) -> Dialect {
        self.request.dialect
    }

    fn database(&self) -> Option<&str> {
        self.request.database.as_deref()
    }

    fn with_database(&self, database: String) -> Self {
        Self { request: self.request.with_database(database), commit: self.commit }
    }

    fn limits(&self) -> &SqlResourceLimits {
        &self.request.limits
    }

    fn is_committing(&self) -> bool {
        self.commit
    }

    fn unanswered(&self, why: Unanswered) -> SqlRunAnswer {
        SqlRunAnswer { version: VERSION, judgement: self.request.unanswered(why), result: None, error: None }
    }

    fn is_intact(answer: &SqlRunAnswer) -> bool {
        answer.judgement.is_intact()
    }
}

impl WorkerRequest for SchemaRequest {
    const KIND: RequestKind = RequestKind::Describe;
    type Answer = SchemaAnswer;

    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn database(&self) -> Option<&str> {
        self.database.as_deref()
    }

    fn with_database(&self, database: String) -> Self {
        Self { database: Some(database), ..self.clone() }
    }

    fn limits(&self) -> &SqlResourceLimits {
        &self.limits
    }

    fn unanswered(&self, why: Unanswered) -> SchemaAnswer {
        let (Unanswered::Failed(_, message) | Unanswered::Limit(_, message, _)) = why;
        let engine = self.dialect.display_name().to_owned();
        SchemaAnswer { version: VERSION, dialect: self.dialect, engine, schema: None, error: Some(message) }
    }

    fn is_intact(_: &SchemaAnswer) -> bool {
        true
    }
}
