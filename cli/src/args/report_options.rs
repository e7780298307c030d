//! Options that select report formats and files.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum as _};

use super::output_format::RunFormat;

/// The report formats of a result, and the files to write them to.
#[derive(Debug, Args)]
pub(crate) struct ReportsArgs {
    /// The format of the result on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: RunFormat,
    /// Also write the result to a file, in any format except `human`; can be repeated
    #[arg(long, value_name = "FORMAT=FILE")]
    pub report: Vec<ReportFileOption>,
}

/// A report that is written to a file: `--report FORMAT=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportFileOption {
    /// The format.
    pub format: RunFormat,
    /// The file.
    pub file: PathBuf,
}

/// Reason why the value of `--report` is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReportFileOptionError {
    /// There is no `=`.
    #[error("`FORMAT=FILE` is expected")]
    NoSeparator,
    /// The format does not exist, or is not for files.
    #[error("the format is one of {}", file_format_names())]
    UnknownFormat,
    /// The file name is empty.
    #[error("the file has no name")]
    NoFileName,
}

impl FromStr for ReportFileOption {
    type Err = ReportFileOptionError;
    fn from_str(text: &str) -> Result<Self, ReportFileOptionError> {
        let (format, file) = text.split_once('=').ok_or(ReportFileOptionError::NoSeparator)?;
        let format = RunFormat::from_str(format, false).ok().filter(is_file_format);
        let format = format.ok_or(ReportFileOptionError::UnknownFormat)?;
        match file.is_empty() {
            true => Err(ReportFileOptionError::NoFileName),
            false => Ok(Self { format, file: file.into() }),
        }
    }
}

fn is_file_format(format: &RunFormat) -> bool {
    *format != RunFormat::Human
}

fn file_format_names() -> String {
    let formats = RunFormat::value_variants().iter().filter(|format| is_file_format(format));
    let names = formats.filter_map(|format| Some(format!("`{}`", format.to_possible_value()?.get_name())));
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_human_format_for_files() {
        let parsed: ReportFileOption = "junit=a=b.xml".parse().expect("a report");
        assert_eq!(parsed, ReportFileOption { format: RunFormat::Junit, file: "a=b.xml".into() });
        for (bad, expected) in
            [("junit", "FORMAT=FILE"), ("human=x", "`json`, `jsonl`"), ("xml=x", "one of"), ("json=", "no name")]
        {
            let problem = bad.parse::<ReportFileOption>().expect_err(bad).to_string();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
