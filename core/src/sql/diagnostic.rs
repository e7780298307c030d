//! One finding about a statement: what, where, how sure, and what would mend it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Percent, StageName};
use crate::code::{Code, Coded as _};

/// Every kind of finding. Each has its code and its explanation; see [`crate::code`].
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
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlSeverity")]
pub enum Severity {
    /// Said and passed over.
    Note,
    /// Likely wrong.
    Warning,
    /// Certain: the text is rejected.
    Error,
}

impl Severity {
    /// The word of the documents.
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
pub struct Span {
    /// Its first byte.
    pub start: usize,
    /// The byte behind its last.
    pub end: usize,
    /// The line of its first byte, from 1.
    pub line: usize,
    /// The column of its first byte there, in characters from 1.
    pub column: usize,
}

/// Where the lines of a text begin, so that a place in it is found without reading it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lines(Vec<usize>);

impl Lines {
    /// The lines of a text.
    pub fn of(text: &str) -> Self {
        let behind = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(behind).collect())
    }

    /// The part of the same `text` between two bytes; both are moved to borders of characters, and into the text.
    pub fn span(&self, text: &str, start: usize, end: usize) -> Span {
        let start = text.floor_char_boundary(start);
        let end = text.ceil_char_boundary(end.max(start));
        let line = self.0.partition_point(|begin| *begin <= start);
        let begin = self.0[line - 1];
        Span { start, end, line, column: text[begin..start].chars().count() + 1 }
    }
}

/// Whether a fix can be taken without a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Applicability {
    /// It means what the text meant.
    Safe,
    /// It is likely what was meant.
    Likely,
}

/// A change of the text that mends a finding.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlFix")]
pub struct Fix {
    /// The first byte that is replaced.
    pub start: usize,
    /// The byte behind the last that is.
    pub end: usize,
    /// What stands there then.
    pub replacement: String,
    /// Whether it can be taken without a look.
    pub applicability: Applicability,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlDiagnostic")]
pub struct Diagnostic {
    /// What kind of finding it is.
    pub code: SqlCode,
    /// Its number, for `proctor explain`.
    pub id: Code,
    /// How bad it is.
    pub severity: Severity,
    /// Which stage found it.
    pub stage: StageName,
    /// What is wrong, in one sentence.
    pub message: String,
    /// What the engine calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_code: Option<String>,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
    /// The name that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What may have been meant, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    /// What to do, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// A change that mends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
    /// How sure that is, in percent. What an engine says is certain.
    #[schemars(range(max = 100))]
    pub confidence: u8,
}

impl Diagnostic {
    /// A finding that is certain.
    pub fn error(stage: StageName, code: SqlCode, message: impl Into<String>) -> Self {
        Self {
            code,
            id: code.code(),
            severity: Severity::Error,
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

    /// A finding that is likely, in percent.
    pub fn warning(stage: StageName, code: SqlCode, message: impl Into<String>, confidence: u8) -> Self {
        Self { severity: Severity::Warning, confidence, ..Self::error(stage, code, message) }
    }

    /// Something to know.
    pub fn note(stage: StageName, code: SqlCode, message: impl Into<String>) -> Self {
        Self { severity: Severity::Note, ..Self::error(stage, code, message) }
    }

    /// Returns the finding as an error where it is a warning of at least this confidence. P0663 stays a warning: it says
    /// which stages the caller left out, and nothing about the statement.
    #[must_use]
    pub fn rejecting_at(mut self, confidence: Option<Percent>) -> Self {
        let is_from = confidence.is_some_and(|least| self.confidence >= least.get());
        if self.severity == Severity::Warning && is_from && self.code != SqlCode::SafetyUnchecked {
            self.severity = Severity::Error;
        }
        self
    }

    /// It is there.
    #[must_use]
    pub fn at(mut self, span: Option<Span>) -> Self {
        self.span = span;
        self
    }

    /// It is about that name.
    #[must_use]
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// One of those may have been meant.
    #[must_use]
    pub fn candidates(mut self, candidates: Vec<String>) -> Self {
        self.candidates = candidates;
        self
    }

    /// That is what to do.
    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// That would mend it.
    #[must_use]
    pub fn fix(mut self, fix: Option<Fix>) -> Self {
        self.fix = fix;
        self
    }

    /// The engine calls it that.
    #[must_use]
    pub fn engine_code(mut self, code: impl Into<String>) -> Self {
        self.engine_code = Some(code.into());
        self
    }
}
