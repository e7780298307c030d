//! Escapes the output of a step for the screen as it arrives, in any chunks. The result is the same as that of
//! [`shown`](crate::text::shown) for the whole text, except that a line above the maximum length may contain more
//! escapes.

use crate::text::shown_bytes;

/// Length up to which an incomplete line is held back, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Text inside a line that a CI system may run as a command; see [`shown_bytes`].
const COMMANDS: [&[u8]; 3] = [b"##[", b"##vso[", b"##teamcity["];
/// Bytes of a cut line that are held back: more than the longest such command or character.
const KEPT: usize = 16;

/// Incremental escaping of bytes to safe text.
#[derive(Default)]
pub(super) struct Escaping {
    pending: Vec<u8>,
}

impl Escaping {
    /// Adds bytes, and returns the text that can be shown now. With `is_last` that is all of the remaining text.
    pub(super) fn take(&mut self, bytes: &[u8], is_last: bool) -> String {
        self.pending.extend_from_slice(bytes);
        let end = if is_last { self.pending.len() } else { self.safe_end() };
        let rest = self.pending.split_off(end);
        let ready = std::mem::replace(&mut self.pending, rest);
        shown_bytes(&ready)
    }

    /// Returns how many pending bytes can be shown: whole lines, or a part of a line that is too long.
    fn safe_end(&self) -> usize {
        if let Some(newline) = self.pending.iter().rposition(|byte| *byte == b'\n') {
            return newline + 1;
        }
        if self.pending.len() <= MAX_LINE {
            return 0;
        }
        let mut end = self.pending.len() - KEPT;
        // Do not cut inside a character (RFC 3629, section 3).
        while end > 0 && self.pending[end] & 0b1100_0000 == 0b1000_0000 {
            end -= 1;
        }
        COMMANDS.iter().filter_map(|command| self.straddles(end, command)).max().unwrap_or(end)
    }

    /// Returns the end of a command that starts before `end` and ends after it.
    fn straddles(&self, end: usize, command: &[u8]) -> Option<usize> {
        let first = end.saturating_sub(command.len() - 1);
        (first..end).find(|at| self.pending[*at..].starts_with(command)).map(|at| at + command.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::shown;

    fn in_parts(parts: &[&[u8]]) -> String {
        let mut escaping = Escaping::default();
        let mut text: String = parts.iter().map(|part| escaping.take(part, false)).collect();
        text += &escaping.take(&[], true);
        text
    }

    #[test]
    fn however_it_is_cut_it_is_the_same() {
        let text = "ü first\n::set-output x\n\u{1b}[2J ##vso[x]\nlast ##teamcity[y]";
        for at in 0..text.len() {
            let (a, b) = text.as_bytes().split_at(at);
            assert_eq!(in_parts(&[a, b]), shown(text), "cut at {at}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_bounded_and_as_safe() {
        for command in ["##vso[x]", "##teamcity[x]", "##[x]", "ü"] {
            for shift in 0..40 {
                let line = format!("{}{command}{}", "x".repeat(MAX_LINE - shift), "y".repeat(20));
                let mut escaping = Escaping::default();
                let mut text = String::new();
                for part in line.as_bytes().chunks(MAX_LINE / 2 + 11) {
                    text += &escaping.take(part, false);
                    assert!(escaping.pending.len() <= MAX_LINE);
                }
                text += &escaping.take(&[], true);
                assert_eq!(text, shown(&line), "{command} {shift}");
            }
        }
    }
}
