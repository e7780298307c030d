//! Formats the parts of outputs that the text formats show.

use super::report_text::truncate_chars;
use crate::record::evidence::{StepEvidence, StreamEvidence};
use crate::report::report_input::ReportedRun;
use crate::text::excerpt::{Excerpt, ExcerptLimits, ExcerptPart};
use crate::text::humanize::count;
use crate::text::safe_text::strip_colours;

/// Maximum number of characters that are shown of a line of output.
const MAX_LINE_CHARS: usize = 1_000;

/// A part of an output stream.
pub(super) struct OutputExcerpt {
    /// The name of the stream.
    pub stream: &'static str,
    /// The size of the whole stream, in bytes.
    pub bytes: u64,
    /// The lines to show, without colours.
    pub text: String,
}

/// Returns excerpts of the streams of a step that are not empty, the stream with errors first. `name` is
/// `skill/step`.
pub(super) fn output_excerpts(
    run: &ReportedRun,
    name: &str,
    step: &StepEvidence,
    limits: ExcerptLimits,
) -> Vec<OutputExcerpt> {
    let streams = run.outputs.streams_by_errors(step).into_iter().filter(|(_, output)| output.bytes > 0);
    let run_id = run.record().and_then(|record| record.started.as_ref()).map(|started| &started.run_id);
    let command = run_id.map(|id| format!("proctor logs {id} {name}")).unwrap_or_default();
    let shown = |(stream, output): (_, &StreamEvidence)| {
        let whole = strip_colours(&run.outputs.text(output));
        OutputExcerpt { stream, bytes: output.bytes, text: excerpt_text(&whole, limits, &command) }
    };
    streams.map(shown).collect()
}

/// Returns the lines of an excerpt, with notes about those that are left out.
fn excerpt_text(text: &str, limits: ExcerptLimits, command: &str) -> String {
    let text: String = text.lines().map(|line| truncate_chars(line, MAX_LINE_CHARS) + "\n").collect();
    let lines: Vec<&str> = text.lines().collect();
    let chosen = Excerpt::select(&lines, limits);
    let mut shown = String::new();
    for part in chosen.parts(&lines) {
        match part {
            ExcerptPart::Line(line) | ExcerptPart::ErrorLine(line) => shown.push_str(line),
            ExcerptPart::Omitted(number) => shown.push_str(&format!("(… {})", count(number, "line"))),
        }
        shown.push('\n');
    }
    if chosen.hidden_errors > 0 {
        shown.push_str(&format!("({}: {command})\n", count(chosen.hidden_errors, "more error")));
    }
    shown
}
