//! Escapes the output of a step for the screen as it arrives, in any chunks. The result is the same as that of
//! [`escape_text`](crate::text::escape_text) for the whole text, except that a line above the maximum length may
//! contain more escapes.

use crate::text::escape_bytes;

/// Length up to which an incomplete line is held back, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Text inside a line that a CI system may run as a command; see [`escape_bytes`].
const CI_COMMANDS: [&[u8]; 3] = [b"##[", b"##vso[", b"##teamcity["];
/// Bytes of a cut line that are held back: more than the longest such command or character.
const HELD_BACK_BYTES: usize = 16;

/// Incremental escaping of bytes to safe text.
#[derive(Default)]
pub(super) struct StreamEscaper {
    pending: Vec<u8>,
}

impl StreamEscaper {
    /// Adds bytes, and returns the text that can be shown now. With `is_last` that is all of the remaining text.
    pub(super) fn push(&mut self, bytes: &[u8], is_last: bool) -> String {
        self.pending.extend_from_slice(bytes);
        let end = if is_last { self.pending.len() } else { self.safe_end() };
        let rest = self.pending.split_off(end);
        let ready = std::mem::replace(&mut self.pending, rest);
        escape_bytes(&ready)
    }

    /// Returns how many pending bytes can be shown: whole lines, or a part of a line that is too long.
    fn safe_end(&self) -> usize {
        if let Some(newline) = self.pending.iter().rposition(|byte| *byte == b'\n') {
            return newline + 1;
        }
        if self.pending.len() <= MAX_LINE {
            return 0;
        }
        let mut end = self.pending.len() - HELD_BACK_BYTES;
        // Do not cut inside a character (RFC 3629, section 3).
        while end > 0 && self.pending[end] & 0b1100_0000 == 0b1000_0000 {
            end -= 1;
        }
        CI_COMMANDS.iter().filter_map(|command| self.command_end_across(end, command)).max().unwrap_or(end)
    }

    /// Returns the end of a command that starts before `end` and ends after it.
    fn command_end_across(&self, end: usize, command: &[u8]) -> Option<usize> {
        let first = end.saturating_sub(command.len() - 1);
        (first..end).find(|at| self.pending[*at..].starts_with(command)).map(|at| at + command.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::escape_text;

    fn escape_in_parts(parts: &[&[u8]]) -> String {
        let mut escaping = StreamEscaper::default();
        let mut text: String = parts.iter().map(|part| escaping.push(part, false)).collect();
        text += &escaping.push(&[], true);
        text
    }

    #[test]
    fn result_is_independent_of_chunks() {
        let text = "ü first\n::set-output x\n\u{1b}[2J ##vso[x]\nlast ##teamcity[y]";
        for at in 0..text.len() {
            let (a, b) = text.as_bytes().split_at(at);
            assert_eq!(escape_in_parts(&[a, b]), escape_text(text), "cut at {at}");
        }
    }

    #[test]
    fn unterminated_line_is_bounded_and_escaped() {
        for command in ["##vso[x]", "##teamcity[x]", "##[x]", "ü"] {
            for shift in 0..40 {
                let line = format!("{}{command}{}", "x".repeat(MAX_LINE - shift), "y".repeat(20));
                let mut escaping = StreamEscaper::default();
                let mut text = String::new();
                for part in line.as_bytes().chunks(MAX_LINE / 2 + 11) {
                    text += &escaping.push(part, false);
                    assert!(escaping.pending.len() <= MAX_LINE);
                }
                text += &escaping.push(&[], true);
                assert_eq!(text, escape_text(&line), "{command} {shift}");
            }
        }
    }
}
