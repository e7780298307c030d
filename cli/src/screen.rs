//! Our two streams: results on standard output, everything else on standard error. Decides
//! about colour, and turns a closed or full output into a value where `println!` would panic.

use std::io::{self, ErrorKind, Write};

use anstream::{AutoStream, ColorChoice};
use proctor_core::canonical;
use proctor_core::safe_text::{escape_format_controls, inert_json};
use serde::Serialize;

use crate::args::ColorWhen;
use crate::caller::Caller;
use crate::error::CliError;

/// The two streams of this process.
pub(crate) struct Screen {
    stdout: AutoStream<io::Stdout>,
    stderr: AutoStream<io::Stderr>,
    /// The first error of standard output that was not its reader's going away.
    lost: Option<io::Error>,
    /// Whether the reader of standard output has gone away.
    is_unread: bool,
    is_colored: bool,
    /// Whether standard error gets live progress.
    pub live: bool,
    /// Of which characters it is made.
    pub glyphs: Glyphs,
    room: Room,
}

/// Which characters a terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glyphs {
    /// Those of Unicode, blocks among them.
    Unicode,
    /// ASCII: the locale is another, or the font has nothing else.
    Ascii,
}

/// The room that results have on their way to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// How many columns a line has.
    pub columns: usize,
    /// Whether text of others is brought into so many columns: on a terminal. Elsewhere programs look for it.
    pub wraps: bool,
}

impl Room {
    /// The room of a log: nothing in it is brought into rows.
    pub(crate) const LOG: Self = Self { columns: WIDTH, wraps: false };
}

/// How wide a screen is taken to be that does not say it: a log, a pipe.
const WIDTH: usize = 80;
/// No screen is taken to be narrower; what is wider than it is wrapped by the terminal.
const NARROWEST: usize = 40;
/// No line is longer, however wide the screen is: eyes get lost in it.
const WIDEST: usize = 140;

impl Screen {
    /// The streams, with colour as `when` and the caller's environment want it.
    pub(crate) fn new(when: ColorWhen, caller: &Caller) -> Self {
        let colored = wants_color(when, caller, caller.stdout_is_terminal);
        let stderr = wants_color(when, caller, caller.stderr_is_terminal);
        Self {
            stdout: AutoStream::new(io::stdout(), choice(colored)),
            stderr: AutoStream::new(io::stderr(), choice(stderr)),
            lost: None,
            is_unread: false,
            is_colored: colored,
            room: Room { columns: width_of(caller), wraps: caller.stdout_is_terminal },
            live: caller.stderr_is_terminal && caller.var("TERM") != Some("dumb"),
            glyphs: glyphs_of(caller),
        }
    }

    /// Writes a result to standard output. Bidirectional and other format controls are escaped here, whatever the
    /// text's source; control characters are the caller's to escape, because colours are made of them.
    pub(crate) fn out(&mut self, text: &str) {
        self.out_bytes(escape_format_controls(text).as_bytes());
    }

    /// Writes a value as one line of JSON to standard output.
    ///
    /// # Errors
    /// The value does not serialise, which would be our bug.
    pub(crate) fn out_json<T: Serialize>(&mut self, value: &T) -> Result<(), CliError> {
        self.out(&(inert_json(&json(value)?) + "\n"));
        Ok(())
    }

    /// Writes a document of ours as one line of canonical JSON to standard output.
    pub(crate) fn out_canonical<T: Serialize>(&mut self, document: &T) {
        let line = String::from_utf8_lossy(&canonical::to_vec(document)).into_owned();
        self.out(&(inert_json(&line) + "\n"));
    }

    /// Writes bytes to standard output.
    pub(crate) fn out_bytes(&mut self, bytes: &[u8]) {
        let written = self.stdout.write_all(bytes).and_then(|()| self.stdout.flush());
        self.note(written);
    }

    /// Writes a message to standard error. Nobody can be told where that fails.
    pub(crate) fn err(&mut self, text: &str) {
        let _ = self.stderr.write_all(escape_format_controls(text).as_bytes()).and_then(|()| self.stderr.flush());
    }

    /// Writes bytes as they are to standard output, past the filter that removes colour.
    pub(crate) fn out_raw(&mut self, bytes: &[u8]) {
        let mut stdout = io::stdout();
        let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
        self.note(written);
    }

    /// Writes bytes as they are to standard error.
    pub(crate) fn err_raw(&mut self, bytes: &[u8]) {
        let _ = io::stderr().write_all(bytes);
    }

    /// The error that kept a result from being written, where there was one. A reader that
    /// has gone away wanted no more, and is none.
    pub(crate) fn lost(&mut self) -> Option<io::Error> {
        self.lost.take()
    }

    /// How many columns a line of a result may have.
    pub(crate) fn width(&self) -> usize {
        self.room.columns
    }

    /// The room that results have.
    pub(crate) fn room(&self) -> Room {
        self.room
    }

    /// Whether standard output gets colour.
    pub(crate) fn is_colored(&self) -> bool {
        self.is_colored
    }

    /// Whether nobody reads results any more.
    pub(crate) fn reader_is_gone(&self) -> bool {
        self.is_unread || self.lost.is_some()
    }

    fn note(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.is_unread = true,
            Err(error) => {
                self.lost.get_or_insert(error);
            }
        }
    }
}

/// A value as one line of JSON.
///
/// # Errors
/// The value does not serialise, which would be our bug.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string(value).map_err(|error| CliError::Internal(error.to_string()))
}

/// The columns of the terminal that results go to; `COLUMNS` of the caller stands above it, as POSIX has it.
fn width_of(caller: &Caller) -> usize {
    let named = caller.var("COLUMNS").and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    let terminal = || caller.stdout_is_terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
    let found = named.or_else(|| terminal().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0));
    found.map_or(WIDTH, |columns| columns.clamp(NARROWEST, WIDEST))
}

/// Unicode where the locale says UTF-8 (locale(7): `LC_ALL`, else `LC_CTYPE`, else `LANG`), but not on the console of
/// the kernel, whose fonts have a few hundred characters.
fn glyphs_of(caller: &Caller) -> Glyphs {
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| caller.var(name).filter(|value| !value.is_empty()));
    let charset = locale.unwrap_or_default().to_ascii_lowercase();
    let is_utf8 = ["utf-8", "utf8"].iter().any(|name| charset.contains(name));
    let is_console = matches!(caller.var("TERM"), Some("linux" | "dumb"));
    if is_utf8 && !is_console { Glyphs::Unicode } else { Glyphs::Ascii }
}

fn choice(colored: bool) -> ColorChoice {
    if colored { ColorChoice::AlwaysAnsi } else { ColorChoice::Never }
}

/// Colour, in this order: what was said aloud, `NO_COLOR` (no-color.org), `CLICOLOR_FORCE`,
/// and otherwise a terminal that is not dumb.
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
    fn blocks_are_for_terminals_that_have_them() {
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
            assert_eq!(glyphs_of(&Caller::for_tests(env)), *expected, "{env:?}");
        }
    }

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        type Case<'a> = (ColorWhen, &'a [(&'a str, &'a str)], bool, bool);
        let cases: &[Case<'_>] = &[
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
