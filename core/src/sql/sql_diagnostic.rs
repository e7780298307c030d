//! A finding about a statement: its kind, location, confidence and fix.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Percent, StageName};
use crate::code::error_code::{Coded as _, ErrorCode};

/// The kind of a finding. Each has a code and an explanation; see [`crate::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each has its explanation in the table of codes")]
pub enum SqlCode {
    EmptyText,
    FencedText,
    ProseAroundSql,
    TextTooLong,
    NulByte,
    UnterminatedToken,
    SyntaxError,
    OtherDialect,
    TooDeep,
    ParserDisagrees,
    UnknownTable,
    UnknownColumn,
    UnknownFunction,
    AmbiguousColumn,
    WrongArguments,
    ColumnCount,
    MisspeltIdentifier,
    StringInDoubleQuotes,
    UngroupedColumn,
    MisusedFunction,
    WrongType,
    AlreadyThere,
    BindError,
    SchemaBroken,
    StackedStatements,
    WriteRefused,
    SchemaChangeRefused,
    UnboundedWrite,
    AlwaysTrueFilter,
    TransactionControl,
    DatabaseAttached,
    SettingRefused,
    FileAccess,
    FunctionRefused,
    TableRefused,
    ColumnRefused,
    StatementRefused,
    ExecutableComment,
    TimeLimit,
    StepLimit,
    MemoryLimit,
    ResultLimit,
    EndlessRecursion,
    RunFailed,
    ConstraintBroken,
    RowsLeftOut,
    AggregateExpected,
    OtherAggregate,
    OrderExpected,
    OrderReversed,
    LimitExpected,
    OtherLimit,
    GroupingExpected,
    FilterExpected,
    DistinctExpected,
    NegationExpected,
    UnjoinedTables,
    KeyAggregated,
    EntityExpected,
    EngineMissing,
    EngineDied,
    EngineFailed,
    SafetyUnchecked,
    MetadataRefused,
    QuestionUnread,
    NullComparison,
    StringAsCondition,
    ContradictoryFilter,
    AccidentalCorrelation,
    JoinAgainstForeignKey,
    CustomFinding,
    VerifierFailed,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlSeverity")]
pub enum SqlSeverity {
    /// Information only.
    Note,
    /// Probably wrong.
    Warning,
    /// Certainly wrong: the text is rejected.
    Error,
}

impl SqlSeverity {
    /// Returns the name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlSpan")]
pub struct SqlSpan {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset of the byte after the last one.
    pub end: usize,
    /// Line of the first byte, starting at 1.
    pub line: usize,
    /// Column of the first byte, in characters, starting at 1.
    pub column: usize,
}

/// An index of the lines of a text, to find the line of an offset quickly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlLineIndex(Vec<usize>);

impl SqlLineIndex {
    /// Indexes the lines of a text.
    pub fn new(text: &str) -> Self {
        let behind = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(behind).collect())
    }

    /// Returns the span between two offsets of the same `text`. Both are clamped to the text and moved to character
    /// boundaries.
    pub fn span(&self, text: &str, start: usize, end: usize) -> SqlSpan {
        let start = text.floor_char_boundary(start);
        let end = text.ceil_char_boundary(end.max(start));
        let line = self.0.partition_point(|begin| *begin <= start);
        let begin = self.0[line - 1];
        SqlSpan { start, end, line, column: text[begin..start].chars().count() + 1 }
    }
}

/// The safety of a fix: whether it can be applied without review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Applicability {
    /// The fix does not change the meaning of the text.
    Safe,
    /// The fix probably results in what the author meant.
    Likely,
}

/// A change of the text that fixes a finding.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlFix")]
pub struct SqlFix {
    /// Offset of the first byte to replace.
    pub start: usize,
    /// Offset of the byte after the last one to replace.
    pub end: usize,
    /// The replacement text.
    pub replacement: String,
    /// The safety of the fix.
    pub applicability: Applicability,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlDiagnostic")]
pub struct SqlDiagnostic {
    /// The kind of the finding.
    pub code: SqlCode,
    /// The code of the finding, for `proctor explain`.
    pub id: ErrorCode,
    /// The severity of the finding.
    pub severity: SqlSeverity,
    /// The stage that reported the finding.
    pub stage: StageName,
    /// The problem, in one sentence.
    pub message: String,
    /// The engine's own error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_code: Option<String>,
    /// The location of the problem in the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<SqlSpan>,
    /// The name that the finding is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Names that may have been meant, the most similar first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    /// Advice, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// A change that fixes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<SqlFix>,
    /// The confidence, in percent. Errors of the engine have 100.
    #[schemars(range(max = 100))]
    pub confidence: u8,
}

impl SqlDiagnostic {
    /// Creates an error, which has a confidence of 100 %.
    pub fn error(stage: StageName, code: SqlCode, message: impl Into<String>) -> Self {
        Self {
            code,
            id: code.code(),
            severity: SqlSeverity::Error,
            stage,
            message: message.into(),
            engine_code: None,
            span: None,
            subject: None,
            candidates: Vec::new(),
            advice: None,
            fix: None,
            confidence: 100,
        }
    }

    /// Creates a warning with a confidence in percent.
    pub fn warning(stage: StageName, code: SqlCode, message: impl Into<String>, confidence: u8) -> Self {
        Self { severity: SqlSeverity::Warning, confidence, ..Self::error(stage, code, message) }
    }

    /// Creates a note.
    pub fn note(stage: StageName, code: SqlCode, message: impl Into<String>) -> Self {
        Self { severity: SqlSeverity::Note, ..Self::error(stage, code, message) }
    }

    /// Returns the finding, with a warning of at least this confidence turned into an error. P0663 remains a warning:
    /// it lists the stages that the caller left out, and does not concern the statement.
    #[must_use]
    pub fn with_reject_threshold(mut self, confidence: Option<Percent>) -> Self {
        let reaches_threshold = confidence.is_some_and(|least| self.confidence >= least.get());
        if self.severity == SqlSeverity::Warning && reaches_threshold && self.code != SqlCode::SafetyUnchecked {
            self.severity = SqlSeverity::Error;
        }
        self
    }

    /// Sets the location.
    #[must_use]
    pub fn with_span(mut self, span: Option<SqlSpan>) -> Self {
        self.span = span;
        self
    }

    /// Sets the name that the finding is about.
    #[must_use]
    pub fn with_subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Sets the names that may have been meant.
    #[must_use]
    pub fn with_candidates(mut self, candidates: Vec<String>) -> Self {
        self.candidates = candidates;
        self
    }

    /// Sets the advice.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Sets the fix.
    #[must_use]
    pub fn with_fix(mut self, fix: Option<SqlFix>) -> Self {
        self.fix = fix;
        self
    }

    /// Sets the engine's error code.
    #[must_use]
    pub fn with_engine_code(mut self, code: impl Into<String>) -> Self {
        self.engine_code = Some(code.into());
        self
    }
}
