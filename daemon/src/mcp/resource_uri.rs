//! Parses and formats the URIs of resources: runs, outputs and evidence.

use std::fmt;

use proctor_core::model::names::RunId;

use crate::service::{OutputId, OutputUnit, StdStream};

/// Prefix of all URIs.
const URI_PREFIX: &str = "proctor://runs/";
/// Directory of evidence documents, relative to the evidence directory.
pub(super) const VERIFY_PREFIX: &str = "verify/";
/// Maximum length of an accepted URI in bytes.
const MAX_URI: usize = 1024;

/// URI templates, each with a name and a description.
pub(super) const TEMPLATES: [(&str, &str, &str); 3] = [
    ("proctor://runs/{run_id}", "run", "A run: its verdict, its steps, and the URIs of their outputs and evidence."),
    (
        "proctor://runs/{run_id}/{unit}/{n}/{stream}{?offset}",
        "output",
        "The output of a step or toolchain check, from a byte offset on. `unit` is `steps` or `checks`, `n` its number \
         from 0, `stream` is `stdout` or `stderr`.",
    ),
    (
        "proctor://runs/{run_id}/evidence/{file}{?offset}",
        "evidence",
        "A document of a run's evidence, from a byte offset on, such as `verify.lint.json`.",
    ),
];

/// A parsed URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ResourceUri {
    /// A run.
    Run(RunId),
    /// An output, from an offset on.
    Output(RunId, OutputId, u64),
    /// An evidence document, from an offset on.
    Evidence(RunId, String, u64),
}

impl ResourceUri {
    /// Parses a URI.
    pub(super) fn parse(uri: &str) -> Option<Self> {
        let rest = (uri.len() <= MAX_URI).then_some(uri)?.strip_prefix(URI_PREFIX)?;
        let (path, offset) = match rest.split_once('?') {
            Some((path, query)) => (path, query.strip_prefix("offset=")?.parse().ok()?),
            None => (rest, 0),
        };
        let mut parts = path.split('/');
        let run = RunId::new(parts.next()?).ok()?;
        let parts: Vec<&str> = parts.collect();
        match parts.as_slice() {
            [] if offset == 0 => Some(Self::Run(run)),
            ["evidence", file] if is_file_name(file) => Some(Self::Evidence(run, (*file).to_owned(), offset)),
            [unit, n, stream] => Some(Self::Output(run, parse_output(unit, n, stream)?, offset)),
            _ => None,
        }
    }

    /// Returns the same resource with a different offset.
    pub(super) fn with_offset(self, offset: u64) -> Self {
        match self {
            Self::Run(run) => Self::Run(run),
            Self::Output(run, output, _) => Self::Output(run, output, offset),
            Self::Evidence(run, file, _) => Self::Evidence(run, file, offset),
        }
    }
}

impl fmt::Display for ResourceUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = match self {
            Self::Run(run) => return write!(f, "{URI_PREFIX}{run}"),
            Self::Output(run, output, offset) => {
                write!(f, "{URI_PREFIX}{run}/{}", output.path())?;
                offset
            }
            Self::Evidence(run, file, offset) => {
                write!(f, "{URI_PREFIX}{run}/evidence/{file}")?;
                offset
            }
        };
        if *offset > 0 { write!(f, "?offset={offset}") } else { Ok(()) }
    }
}

fn parse_output(unit: &str, n: &str, stream: &str) -> Option<OutputId> {
    Some(OutputId { unit: OutputUnit::from_plural(unit)?, n: n.parse().ok()?, stream: StdStream::from_name(stream)? })
}

/// Returns whether the text is a valid document name; see `SkillName::artifact`.
fn is_file_name(text: &str) -> bool {
    !text.starts_with('.') && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_round_trip() {
        for uri in [
            "proctor://runs/r1",
            "proctor://runs/r1/steps/0/stderr",
            "proctor://runs/r1/checks/12/stdout?offset=4096",
            "proctor://runs/r1/evidence/_toolchain.json",
            "proctor://runs/r1/evidence/verify.lint.json?offset=1",
        ] {
            assert_eq!(ResourceUri::parse(uri).map(|address| address.to_string()).as_deref(), Some(uri));
        }
    }

    #[test]
    fn rejects_other_uris() {
        for uri in [
            "",
            "proctor://runs/",
            "proctor://runs/..",
            "proctor://runs/r1/",
            "proctor://runs/r1?offset=1",
            "proctor://runs/r1/steps/-1/stdout",
            "proctor://runs/r1/steps/0/stdin",
            "proctor://runs/r1/steps/0/stdout?limit=1",
            "proctor://runs/r1/evidence/../../x",
            "proctor://runs/r1/evidence/..",
            "proctor://runs/r1/evidence/a%2fb",
            "file:///etc/passwd",
        ] {
            assert_eq!(ResourceUri::parse(uri), None, "{uri}");
        }
        assert_eq!(ResourceUri::parse(&format!("proctor://runs/r1/evidence/{}", "a".repeat(MAX_URI))), None);
    }
}
