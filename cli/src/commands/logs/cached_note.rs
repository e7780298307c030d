//! Formats the note for a step that was not executed.

use proctor_core::model::names::RunId;
use proctor_core::record::evidence::CACHED;

use crate::style::{DIM, paint};
use crate::text::escape_line;

/// Returns the note for a step whose output is that of an earlier run; empty for other steps.
pub(super) fn cached_note(name: &str, cached_from: Option<&RunId>) -> String {
    let note = |run| format!("{} {} is {CACHED} from run {run}\n", paint(DIM, "note:"), escape_line(name));
    cached_from.map(note).unwrap_or_default()
}
