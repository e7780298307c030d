//! Provides the text of the outputs of steps: the whole output if it was fetched, else its kept beginning and end.

use std::collections::BTreeMap;

use crate::record::evidence::{PREVIEW_BYTES, StepEvidence, StreamEvidence};
use crate::text::digest::Sha256Hex;
use crate::text::humanize::size;
use crate::text::tool_errors::{ErrorKind, find_errors};

/// Start of the line that reports the omitted middle of a stream.
const MIDDLE_NOTE_START: &str = "(… ";
/// Offset of the end of the line.
const MIDDLE_NOTE_END: &str = " in total, the middle is omitted …)";

/// The whole text of outputs that are longer than the excerpts in the record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamTexts(BTreeMap<Sha256Hex, String>);

impl StreamTexts {
    /// Adds the escaped text of the stream with this hash.
    pub fn insert(&mut self, sha256: Sha256Hex, text: String) {
        self.0.insert(sha256, text);
    }

    /// Returns whether the whole text of a stream is available.
    pub fn is_whole(&self, stream: &StreamEvidence) -> bool {
        is_kept_whole(stream) || self.0.contains_key(&stream.sha256)
    }

    /// Returns the text of a stream. If only its beginning and its end are available, a line between them reports the
    /// omitted middle.
    pub fn text(&self, stream: &StreamEvidence) -> String {
        match self.0.get(&stream.sha256) {
            Some(whole) => whole.clone(),
            None if is_kept_whole(stream) => format!("{}{}", stream.preview, stream.tail),
            None => {
                let note = format!("{MIDDLE_NOTE_START}{}{MIDDLE_NOTE_END}", size(stream.bytes));
                format!("{}\n{note}\n{}", stream.preview, stream.tail)
            }
        }
    }

    /// Returns both streams of a step with their names: the one with more certain errors first, standard error first if
    /// they are equal.
    pub fn streams_by_errors<'s>(&self, step: &'s StepEvidence) -> [(&'static str, &'s StreamEvidence); 2] {
        let (stderr, stdout) = (("stderr", &step.stderr), ("stdout", &step.stdout));
        match error_rank(&self.text(&step.stdout)) < error_rank(&self.text(&step.stderr)) {
            true => [stdout, stderr],
            false => [stderr, stdout],
        }
    }
}

/// Returns whether a line of such a text reports the omitted middle.
pub fn is_middle_note(line: &str) -> bool {
    line.starts_with(MIDDLE_NOTE_START) && line.ends_with(MIDDLE_NOTE_END)
}

/// Returns whether the evidence contains the whole text of a stream.
pub fn is_kept_whole(stream: &StreamEvidence) -> bool {
    stream.bytes <= 2 * PREVIEW_BYTES as u64
}

/// Returns the rank of an output in the order of display; outputs with more certain errors precede others.
fn error_rank(text: &str) -> u8 {
    match find_errors(&text.lines().collect::<Vec<_>>()).first().map(|error| error.kind) {
        Some(ErrorKind::Detail) => 0,
        Some(ErrorKind::Summary) => 1,
        Some(ErrorKind::Keyword) => 2,
        None => 3,
    }
}
