//! Output formats that several commands share, and the use of colour.

use clap::ValueEnum;

/// The conditions for coloured output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal that supports it.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The formats of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Human-readable text.
    Human,
    /// One JSON document.
    Json,
}

/// The formats of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunFormat {
    /// Human-readable text.
    Human,
    /// One JSON document at the end.
    Json,
    /// One event per line, live.
    Jsonl,
    /// JUnit XML.
    Junit,
    /// SARIF 2.1.0.
    Sarif,
    /// Workflow commands of GitHub Actions.
    Github,
    /// Markdown, for a comment.
    Markdown,
    /// A self-contained page.
    Html,
}
