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

impl FromStr for ReportFileOption {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = text.split_once('=').ok_or("`FORMAT=FILE` is expected")?;
        let is_for_programs = |format: &RunFormat| *format != RunFormat::Human;
        let format = RunFormat::from_str(format, false).ok().filter(is_for_programs).ok_or_else(|| {
            let names = RunFormat::value_variants().iter().filter(|format| is_for_programs(format));
            let names = names.filter_map(|format| Some(format!("`{}`", format.to_possible_value()?.get_name())));
            format!("the format is one of {}", names.collect::<Vec<_>>().join(", "))
        })?;
        match file.is_empty() {
            true => Err("the file has no name".to_owned()),
            false => Ok(Self { format, file: file.into() }),
        }
    }
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
            let problem = bad.parse::<ReportFileOption>().expect_err(bad);
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
