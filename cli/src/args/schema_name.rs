//! Names of the documents that have a JSON Schema.

use clap::ValueEnum;

/// A document that has a JSON Schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaName {
    /// `spec/verification.yaml`.
    Spec,
    /// `proctord.toml`, as JSON.
    Operator,
    /// `proctor plan --format json`.
    Plan,
    /// One line of `proctor run --format jsonl`.
    Event,
    /// `proctor run --format json`.
    Run,
    /// `proctor run --rev A..B --format json`.
    Range,
    /// `proctor exec --format json`.
    Exec,
    /// `proctor gate --format json`.
    Gate,
    /// `proctor sql verify --format json`.
    SqlJudgement,
    /// `POST /v1/sql/verify`.
    SqlRequest,
    /// `proctor sql ask --format json`.
    SqlAskAnswer,
    /// `POST /v1/sql/ask`.
    SqlAskRequest,
    /// `verify/<skill>.json`.
    SkillEvidence,
    /// `verify/_toolchain.json`.
    ToolchainEvidence,
    /// `verification.last_run` of `05-status.json`.
    StatusLastRun,
    /// The fields of `05-status.json` that Proctor knows.
    Status,
    /// `proctor compare --format json`.
    Comparison,
    /// `proctor validate --format json`.
    Diagnostics,
    /// `proctor import --format json`.
    Import,
    /// `proctor doctor --format json`.
    Doctor,
    /// `proctor gc --format json`.
    Gc,
    /// `proctor du --format json`.
    DiskUsage,
    /// `proctor cache --format json`.
    Cache,
    /// `proctor runs --format json`.
    RecordedRuns,
    /// `proctor status RUN --format json`.
    RunView,
    /// `proctor status --format json`.
    RunList,
    /// `proctor daemon status --format json`.
    Daemon,
    /// The output of `--format json` if there is no result.
    Error,
}

impl SchemaName {
    /// Returns the name on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Operator => "operator",
            Self::Plan => "plan",
            Self::Event => "event",
            Self::Run => "run",
            Self::Range => "range",
            Self::Exec => "exec",
            Self::Gate => "gate",
            Self::SqlJudgement => "sql-judgement",
            Self::SqlRequest => "sql-request",
            Self::SqlAskAnswer => "sql-ask-answer",
            Self::SqlAskRequest => "sql-ask-request",
            Self::SkillEvidence => "skill-evidence",
            Self::ToolchainEvidence => "toolchain-evidence",
            Self::StatusLastRun => "status-last-run",
            Self::Status => "status",
            Self::Comparison => "comparison",
            Self::Diagnostics => "diagnostics",
            Self::Import => "import",
            Self::Doctor => "doctor",
            Self::Gc => "gc",
            Self::DiskUsage => "disk-usage",
            Self::Cache => "cache",
            Self::RecordedRuns => "recorded-runs",
            Self::RunView => "run-view",
            Self::RunList => "run-list",
            Self::Daemon => "daemon",
            Self::Error => "error",
        }
    }

    /// Returns a short description of the document.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Spec => "spec/verification.yaml, for editors too",
            Self::Operator => "proctord.toml, the operator's config",
            Self::Plan => "output of `plan --format json`",
            Self::Event => "one line of `run --format jsonl`",
            Self::Run => "output of `run --format json`",
            Self::Range => "output of `run --rev A..B --format json`",
            Self::Exec => "output of `exec --format json`",
            Self::Gate => "output of `gate --format json`",
            Self::SqlJudgement => "output of `sql verify --format json`",
            Self::SqlRequest => "request body of `POST /v1/sql/verify`",
            Self::SqlAskAnswer => "output of `sql ask --format json`",
            Self::SqlAskRequest => "request body of `POST /v1/sql/ask`",
            Self::SkillEvidence => "verify/<skill>.json",
            Self::ToolchainEvidence => "verify/_toolchain.json",
            Self::StatusLastRun => "`verification.last_run` in 05-status.json",
            Self::Status => "05-status.json: the fields that Proctor knows",
            Self::Comparison => "output of `compare --format json`",
            Self::Diagnostics => "output of `validate --format json`",
            Self::Import => "output of `import --format json`",
            Self::Doctor => "output of `doctor --format json`",
            Self::Gc => "output of `gc --format json`",
            Self::DiskUsage => "output of `du --format json`",
            Self::Cache => "output of `cache --format json`",
            Self::RecordedRuns => "output of `runs --format json`",
            Self::RunView => "output of `status RUN --format json`",
            Self::RunList => "output of `status --format json`",
            Self::Daemon => "output of `daemon status --format json`",
            Self::Error => "output of `--format json` if there is no result",
        }
    }
}
