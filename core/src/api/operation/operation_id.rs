//! Lists the operations.

/// An operation of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Submits a run.
    SubmitRun,
    /// Lists runs.
    ListRuns,
    /// Returns a run, optionally waiting for changes.
    GetRun,
    /// Cancels a run.
    CancelRun,
    /// Streams the events of a run.
    StreamEvents,
    /// Reads the output of a step or a check.
    ReadOutput,
    /// Reads a report file of a step.
    ReadReport,
    /// Reads the changes of a run's steps as a patch.
    ReadPatch,
    /// Reads an evidence document of a run.
    ReadEvidence,
    /// Runs a single command.
    Exec,
    /// Cancels a single command.
    CancelExec,
    /// Resolves a plan without running it.
    ResolvePlan,
    /// Checks whether a tree is verified.
    AskGate,
    /// Checks SQL statements.
    VerifySql,
    /// Checks SQL statements, and runs them if the verdict is `ok`.
    RunSql,
    /// Describes the schema of a database.
    DescribeSql,
    /// Answers a question with a statement of a language model.
    AskSql,
    /// Reports which sandbox controls the machine can enforce.
    AskDoctor,
    /// Reports the health of the daemon.
    GetHealth,
    /// Reports whether the daemon accepts new runs.
    GetReadiness,
    /// Returns the metrics.
    GetMetrics,
    /// Returns the OpenAPI document.
    GetOpenApi,
}
