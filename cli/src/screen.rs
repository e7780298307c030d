//! Writes to the two output streams: results to standard output, everything else to standard error. Decides on
//! colour, and records a closed or full output where `println!` would panic.

use std::io::{self, ErrorKind, Write};

use anstream::{AutoStream, ColorChoice};
use proctor_core::text::canonical;
use proctor_core::text::safe_text::{escape_format_controls, escape_json_for_display};
use serde::Serialize;

use crate::args::ColorWhen;
use crate::caller::Caller;
use crate::error::CliError;
use crate::text::{display_width, wrap};

/// The output streams of this process.
pub(crate) struct Screen {
    stdout: AutoStream<io::Stdout>,
    stderr: AutoStream<io::Stderr>,
    /// First error of standard output, other than a broken pipe.
    write_error: Option<io::Error>,
    /// True if the reader of standard output has closed the pipe.
    is_pipe_closed: bool,
    is_colored: bool,
    /// True if standard error gets live progress.
    pub has_live_progress: bool,
    /// Character set for progress output.
    pub glyphs: Glyphs,
    layout: TextLayout,
}

/// The character set of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glyphs {
    /// Unicode, including block elements.
    Unicode,
    /// ASCII, for other locales and for fonts with few characters.
    Ascii,
}

/// The layout limits of results on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextLayout {
    /// Number of columns in a line.
    pub columns: usize,
    /// True if untrusted text is wrapped to `columns`. Text is only wrapped on a terminal: elsewhere programs may
    /// search it.
    pub wraps: bool,
}

impl TextLayout {
    /// The layout for a log: lines are not wrapped.
    pub(crate) const LOG: Self = Self { columns: DEFAULT_WIDTH, wraps: false };

    /// Wraps each line of a text that Proctor wrote. A line with colours may be wrapped earlier than necessary.
    pub(crate) fn fit_lines(self, text: &str) -> String {
        text.lines().map(|line| self.fit_line(line) + "\n").collect()
    }

    /// Wraps a line that Proctor wrote, without colour, to the width of a terminal, with indented further lines.
    /// Elsewhere the line stays whole, because programs may search it.
    pub(crate) fn fit_line(self, line: &str) -> String {
        match self.wraps && display_width(line) > self.columns {
            true => wrap(line, self.columns.saturating_sub(2)).join("\n  "),
            false => line.to_owned(),
        }
    }
}

/// Assumed width if the output does not report one, such as a log or a pipe.
const DEFAULT_WIDTH: usize = 80;
/// Minimum width for layout; on a narrower terminal, the terminal itself wraps the lines.
const MIN_WIDTH: usize = 40;
/// Maximum width for layout, because longer lines are hard to read.
const MAX_WIDTH: usize = 140;

impl Screen {
    /// Opens the streams, with colour according to `when` and the caller's environment.
    pub(crate) fn new(when: ColorWhen, caller: &Caller) -> Self {
        let colored = wants_color(when, caller, caller.stdout_is_terminal);
        let stderr = wants_color(when, caller, caller.stderr_is_terminal);
        Self {
            stdout: AutoStream::new(io::stdout(), color_choice(colored)),
            stderr: AutoStream::new(io::stderr(), color_choice(stderr)),
            write_error: None,
            is_pipe_closed: false,
            is_colored: colored,
            layout: TextLayout { columns: detect_width(caller), wraps: caller.stdout_is_terminal },
            has_live_progress: caller.stderr_is_terminal && caller.var("TERM") != Some("dumb"),
            glyphs: detect_glyphs(caller),
        }
    }

    /// Writes a result to standard output. Bidirectional and other format controls are escaped here, whatever the
    /// source of the text. The caller must escape control characters, because colour sequences consist of them.
    pub(crate) fn out(&mut self, text: &str) {
        self.out_bytes(escape_format_controls(text).as_bytes());
    }

    /// Writes a value as one line of JSON to standard output.
    ///
    /// # Errors
    /// The value cannot be serialised, which would be a bug in proctor.
    pub(crate) fn out_json<T: Serialize>(&mut self, value: &T) -> Result<(), CliError> {
        self.out(&(escape_json_for_display(&to_json_line(value)?) + "\n"));
        Ok(())
    }

    /// Writes a document as one line of canonical JSON to standard output.
    pub(crate) fn out_canonical<T: Serialize>(&mut self, document: &T) {
        let line = String::from_utf8_lossy(&canonical::to_vec(document)).into_owned();
        self.out(&(escape_json_for_display(&line) + "\n"));
    }

    /// Writes bytes to standard output.
    pub(crate) fn out_bytes(&mut self, bytes: &[u8]) {
        let written = self.stdout.write_all(bytes).and_then(|()| self.stdout.flush());
        self.record_write(written);
    }

    /// Writes a message to standard error. Errors are ignored, because there is no other stream to report them on.
    pub(crate) fn err(&mut self, text: &str) {
        let _ = self.stderr.write_all(escape_format_controls(text).as_bytes()).and_then(|()| self.stderr.flush());
    }

    /// Writes unmodified bytes to standard output, bypassing the filter that removes colour.
    pub(crate) fn out_raw(&mut self, bytes: &[u8]) {
        let mut stdout = io::stdout();
        let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
        self.record_write(written);
    }

    /// Writes unmodified bytes to standard error.
    pub(crate) fn err_raw(&mut self, bytes: &[u8]) {
        let _ = io::stderr().write_all(bytes);
    }

    /// Takes the error that prevented a result from being written, if any. A reader that closed the pipe is not an
    /// error.
    pub(crate) fn take_write_error(&mut self) -> Option<io::Error> {
        self.write_error.take()
    }

    /// Returns the maximum width of a line of a result, in columns.
    pub(crate) fn width(&self) -> usize {
        self.layout.columns
    }

    /// Returns the layout limits of results.
    pub(crate) fn layout(&self) -> TextLayout {
        self.layout
    }

    /// Checks whether standard output gets colour.
    pub(crate) fn is_colored(&self) -> bool {
        self.is_colored
    }

    /// Checks whether results no longer reach a reader.
    pub(crate) fn is_output_closed(&self) -> bool {
        self.is_pipe_closed || self.write_error.is_some()
    }

    fn record_write(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.is_pipe_closed = true,
            Err(error) => {
                self.write_error.get_or_insert(error);
            }
        }
    }
}

/// Serialises a value as one line of JSON.
///
/// # Errors
/// The value cannot be serialised, which would be a bug in proctor.
pub(crate) fn to_json_line<T: Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string(value).map_err(|error| CliError::Internal(error.to_string()))
}

/// Returns the width of results in columns: `COLUMNS` of the caller, as POSIX specifies, else the width of the
/// terminal.
fn detect_width(caller: &Caller) -> usize {
    let named = caller.var("COLUMNS").and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    let terminal = || caller.stdout_is_terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
    let found = named.or_else(|| terminal().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0));
    found.map_or(DEFAULT_WIDTH, |columns| columns.clamp(MIN_WIDTH, MAX_WIDTH))
}

/// Returns Unicode if the locale has UTF-8 (locale(7): `LC_ALL`, else `LC_CTYPE`, else `LANG`), except on the Linux
/// console, whose fonts have only a few hundred characters.
fn detect_glyphs(caller: &Caller) -> Glyphs {
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| caller.var(name).filter(|value| !value.is_empty()));
    let charset = locale.unwrap_or_default().to_ascii_lowercase();
    let is_utf8 = ["utf-8", "utf8"].iter().any(|name| charset.contains(name));
    let is_console = matches!(caller.var("TERM"), Some("linux" | "dumb"));
    if is_utf8 && !is_console { Glyphs::Unicode } else { Glyphs::Ascii }
}

fn color_choice(colored: bool) -> ColorChoice {
    if colored { ColorChoice::AlwaysAnsi } else { ColorChoice::Never }
}

/// Decides on colour, in this order: the explicit option, `NO_COLOR` (no-color.org), `CLICOLOR_FORCE`, and then
/// whether the output is a terminal that is not dumb.
fn wants_color(when: ColorWhen, caller: &Caller, is_terminal: bool) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto if caller.var("NO_COLOR").is_some() => false,
        ColorWhen::Auto if caller.var("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        ColorWhen::Auto => is_terminal && caller.var("TERM").is_some_and(|term| term != "dumb"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_unicode_only_if_the_terminal_supports_it() {
        let cases: &[(&[(&str, &str)], Glyphs)] = &[
            (&[], Glyphs::Ascii),
            (&[("LANG", "C")], Glyphs::Ascii),
            (&[("LANG", "C.UTF-8")], Glyphs::Unicode),
            (&[("LANG", "de_DE.utf8"), ("TERM", "xterm-256color")], Glyphs::Unicode),
            (&[("LANG", "de_DE.utf8"), ("TERM", "linux")], Glyphs::Ascii),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "")], Glyphs::Unicode),
            (&[("LANG", "C.UTF-8"), ("LC_CTYPE", "de_DE.ISO-8859-1")], Glyphs::Ascii),
            (&[("LANG", "C"), ("LC_CTYPE", "C"), ("LC_ALL", "en_US.UTF-8")], Glyphs::Unicode),
        ];
        for (env, expected) in cases {
            assert_eq!(detect_glyphs(&Caller::for_tests(env)), *expected, "{env:?}");
        }
    }

    #[test]
    fn decides_on_colour() {
        type ColorCase<'a> = (ColorWhen, &'a [(&'a str, &'a str)], bool, bool);
        let cases: &[ColorCase<'_>] = &[
            (ColorWhen::Auto, &[("TERM", "xterm")], true, true),
            (ColorWhen::Auto, &[("TERM", "xterm")], false, false),
            (ColorWhen::Auto, &[("TERM", "dumb")], true, false),
            (ColorWhen::Auto, &[], true, false),
            (ColorWhen::Auto, &[("TERM", "xterm"), ("NO_COLOR", "1")], true, false),
            (ColorWhen::Auto, &[("TERM", "xterm"), ("NO_COLOR", "")], true, true),
            (ColorWhen::Auto, &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], false, false),
            (ColorWhen::Auto, &[("CLICOLOR_FORCE", "1")], false, true),
            (ColorWhen::Always, &[("NO_COLOR", "1")], false, true),
            (ColorWhen::Never, &[("TERM", "xterm")], true, false),
        ];
        for (when, env, is_terminal, expected) in cases {
            let caller = Caller::for_tests(env);
            assert_eq!(wants_color(*when, &caller, *is_terminal), *expected, "{when:?} {env:?} {is_terminal}");
        }
    }
}
