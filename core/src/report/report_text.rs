//! Phrases that the formats share, and functions that neutralize untrusted text for each kind of reader. Names,
//! paths and outputs come from the repository and are untrusted.

use crate::model::drift::{Change, ChangeKind};
use crate::model::outcome::{Outcome, Termination};
use crate::record::evidence::{ReuseSource, StepEvidence, StreamEvidence};
use crate::text::escape::escape_output;
use crate::text::humanize::duration;
use crate::text::safe_text::strip_colours;

/// Number of digits that are shown of a hash or of a commit's id.
const SHORT_ID_DIGITS: usize = 12;
/// Maximum number of changed paths that a sentence names.
const MAX_NAMED_PATHS: usize = 3;

/// Returns the first digits of an id.
pub(super) fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID_DIGITS).unwrap_or(id)
}

/// Formats untrusted text on one line; escapes control and bidirectional characters.
pub(super) fn single_line(text: &str) -> String {
    escape_output(text.as_bytes()).replace('\n', "\\n").replace('\t', "\\t")
}

/// Truncates a text to a number of characters.
pub(super) fn truncate_chars(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns an outcome in words.
pub(super) fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::TimedOut => "timed out",
        other => other.as_str(),
    }
}

/// Returns the reason for a step's outcome, on one line.
pub(super) fn outcome_reason(step: &StepEvidence) -> String {
    let one_line = |note: String| neutralize_lines(&single_line(&note));
    let end = [termination_text(step)].into_iter().chain(step.notes().map(one_line)).collect::<Vec<_>>().join("; ");
    match step.outcome {
        Outcome::Drifted => format!("changed files that it must not change: {}; {end}", changed_paths(step)),
        Outcome::Passed if step.flaky => {
            format!("{end}, on attempt {} only", step.earlier_attempts.len() + 1)
        }
        Outcome::Passed if step.is_cached() => {
            let source = step.reused.as_ref().map(ReuseSource::phrase);
            source.into_iter().chain(step.inputs_note().map(one_line)).collect::<Vec<_>>().join("; ")
        }
        _ => match step.forbidden_leak() {
            Some(leaked) => {
                format!(
                    "{}, which `leaks: fail` forbids; {end}",
                    neutralize_lines(&single_line(&leaked.phrase_without_ids()))
                )
            }
            None => end,
        },
    }
}

/// Returns a warning if a step passed and left processes behind, on one line.
pub(super) fn leak_warning(step: &StepEvidence) -> Option<String> {
    let leaked = step.leaked.as_ref().filter(|_| step.outcome == Outcome::Passed)?;
    Some(format!("passed and {}", neutralize_lines(&single_line(&leaked.phrase_without_ids()))))
}

fn changed_paths(step: &StepEvidence) -> String {
    let found = &step.drift.found;
    let names: Vec<String> =
        found.changes_for_display().take(MAX_NAMED_PATHS).map(|change| single_line(&change.path)).collect();
    let more = (found.changes.len() - names.len()) as u64 + found.omitted;
    let names = names.join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

fn termination_text(step: &StepEvidence) -> String {
    match &step.termination {
        Termination::Exited { code } if !step.planned.expect_exit.contains(code) => {
            let expected: Vec<String> = step.planned.expect_exit.iter().map(u8::to_string).collect();
            format!("exited with code {code}, expected {}", expected.join(" or "))
        }
        Termination::TimedOut { .. } => format!("did not end within {}", duration(step.planned.timeout_ms)),
        Termination::NotStarted { reason, .. } => format!("did not run: {}", single_line(reason)),
        other => other.phrase(),
    }
}

/// Returns the kind of a change in words.
pub(super) fn change_kind_text(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "created",
        ChangeKind::Modified => "modified",
        ChangeKind::Deleted => "deleted",
        ChangeKind::ModeChanged => "mode changed",
        ChangeKind::TypeChanged => "changed its type",
    }
}

/// Returns the line of the new file at which a change begins, according to its diff; 1 if there is no diff.
pub(super) fn first_changed_line(change: &Change) -> u64 {
    use crate::model::drift::Diff::{Truncated, Whole};
    let (Whole { text } | Truncated { text, .. }) = &change.diff else { return 1 };
    let Some(hunk) = text.lines().find(|line| line.starts_with("@@ ")) else { return 1 };
    let unchanged = text.lines().skip_while(|line| !line.starts_with("@@ ")).skip(1);
    let unchanged = unchanged.take_while(|line| line.starts_with(' ')).count() as u64;
    let start = hunk.split(" +").nth(1).and_then(|side| side.split([',', ' ']).next());
    let start: Option<u64> = start.and_then(|start| start.parse().ok());
    start.map_or(1, |start| start.saturating_add(unchanged).max(1))
}

/// Returns the kept text of a stream without colour sequences: its beginning and, if a part between was dropped,
/// the size of the stream and its end.
pub(super) fn stream_text(stream: &StreamEvidence) -> String {
    let shown = (stream.preview.len() + stream.tail.len()) as u64;
    let text = match stream.tail.is_empty() {
        true => stream.preview.clone(),
        // Escapes only make the text longer, so a text that is as long as the stream contains all of it.
        false if shown >= stream.bytes => format!("{}{}", stream.preview, stream.tail),
        false => format!("{}\n[… of {} bytes …]\n{}", stream.preview, stream.bytes, stream.tail),
    };
    strip_colours(&text)
}

/// Decodes a path with escapes, as in our documents, to bytes.
fn unescape_path(shown: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(shown.len());
    let mut rest = shown;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let hex = escape.strip_prefix('x').and_then(|hex| u8::from_str_radix(hex.get(..2)?, 16).ok());
        rest = match hex {
            Some(byte) => {
                bytes.push(byte);
                &escape[3..]
            }
            None => {
                bytes.push(b'\\');
                escape.strip_prefix('\\').unwrap_or(escape)
            }
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// Converts such a path to a relative URI reference (RFC 3986).
pub(super) fn path_to_uri(shown: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    unescape_path(shown).into_iter().map(one).collect()
}

/// Formats untrusted lines: escapes them like [`escape_output`], and breaks up commands of CI systems. GitHub
/// interprets `::command` at the start of a line and `##[command]` anywhere, Azure `##vso[`, TeamCity `##teamcity[`.
/// The arrow `:::` of compilers is not a command.
pub(super) fn neutralize_lines(text: &str) -> String {
    let escaped = escape_output(text.as_bytes());
    let one = |line: &str| {
        let blank = line.len() - line.trim_start().len();
        match line[blank..].strip_prefix("::") {
            Some(rest) if !rest.starts_with(':') => format!("{}:\\x3a{rest}", &line[..blank]),
            _ => line.to_owned(),
        }
    };
    let text: String = escaped.split_inclusive('\n').map(one).collect();
    ["[", "vso[", "teamcity["]
        .iter()
        .fold(text, |text, word| text.replace(&format!("##{word}"), &format!("#\\x23{word}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::drift::{Diff, display_path};
    use proptest::prelude::*;

    #[test]
    fn finds_first_changed_line() {
        let of = |text: &str| {
            let diff = Diff::Whole { text: text.into() };
            first_changed_line(&Change {
                path: "a".into(),
                kind: ChangeKind::Modified,
                before: None,
                after: None,
                diff,
            })
        };
        assert_eq!(of("--- a/x\n+++ b/x\n@@ -2,3 +2,4 @@\n same\n same\n+new\n"), 4);
        assert_eq!(of("--- a/x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n"), 1);
        assert_eq!(of("@@ nonsense @@"), 1);
        assert_eq!(of(""), 1);
    }

    #[test]
    fn converts_path_bytes_to_uri() {
        assert_eq!(path_to_uri("src/a b.rs"), "src/a%20b.rs");
        assert_eq!(path_to_uri(&display_path(b"a\xff\\\n%")), "a%FF%5C%0A%25");
        assert_eq!(path_to_uri("\\xzz\\"), "%5Cxzz%5C");
    }

    proptest! {
        #[test]
        fn displayed_path_round_trips(path in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(unescape_path(&display_path(&path)), path);
        }
    }
}
