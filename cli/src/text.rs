//! Words for people: text of others made safe for a screen, durations, sizes, counts.

use proctor_core::evidence::escape_output;

/// Text that is not ours, safe for a terminal and for the log of a CI system: control and
/// bidirectional characters escaped, and no line that such a system takes for a command.
/// Text that went through it once comes out of a second time unchanged.
pub(crate) fn shown(text: &str) -> String {
    shown_bytes(text.as_bytes())
}

/// As [`shown`], for what may not be text: a byte that is none shows as an escape.
pub(crate) fn shown_bytes(bytes: &[u8]) -> String {
    let escaped = escape_output(bytes);
    escaped.split_inclusive('\n').map(without_ci_command).collect()
}

/// As [`shown`], on one line.
pub(crate) fn shown_line(text: &str) -> String {
    shown(&text.replace('\n', "\\n").replace('\t', "\\t"))
}

/// GitHub takes `::command` at the start of a line and `##[command]` anywhere in it, Azure
/// `##vso[`, TeamCity `##teamcity[`; each is shown with its second character as an escape.
fn without_ci_command(line: &str) -> String {
    let trimmed = line.trim_start();
    let line = match trimmed.strip_prefix("::") {
        Some(rest) => format!("{}:\\x3a{rest}", &line[..line.len() - trimmed.len()]),
        None => line.to_owned(),
    };
    ["[", "vso[", "teamcity["]
        .iter()
        .fold(line, |line, word| line.replace(&format!("##{word}"), &format!("#\\x23{word}")))
}

/// How many columns of a screen a text takes: wide characters two, combining ones none. Control
/// characters are not in it; see [`shown`].
pub(crate) fn columns(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

/// A text without colour in so many columns, its end as `…` where it is longer.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let room = left.checked_sub(unicode_width::UnicodeWidthChar::width(*c).unwrap_or(0));
        left = room.unwrap_or(0);
        room.is_some()
    };
    let kept: String = text.chars().take_while(fits).collect();
    kept + "…"
}

/// A text without colour, filled up to so many columns.
pub(crate) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

/// A sentence in lines of so many columns; a word that is longer stands in a line of its own.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A line cut into rows of so many columns.
pub(crate) fn chunks(line: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut taken = 0;
    for c in line.chars() {
        let needs = unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if taken + needs > width.max(2) {
            rows.push(String::new());
            taken = 0;
        }
        taken += needs;
        if let Some(row) = rows.last_mut() {
            row.push(c);
        }
    }
    rows
}

/// A text without its colours.
#[cfg(test)]
pub(crate) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// A duration as people say it: `12 ms`, `4.2 s`, `12 s`, `1m30s`, `2h05m`.
pub(crate) fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        10_000..60_000 => format!("{} s", ms / 1000),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// A bound in milliseconds as people say it: whole units where it is made of them.
pub(crate) fn bound(ms: u64) -> String {
    match ms {
        _ if ms > 0 && ms.is_multiple_of(60_000) => format!("{} min", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
        _ => format!("{ms} ms"),
    }
}

/// A size as people say it, exact where it is made of whole units.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = UNITS.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    let rough = UNITS.iter().find(|(_, shift)| bytes >= 1 << shift);
    match (whole, rough) {
        (Some((unit, shift)), _) => format!("{} {unit}", bytes >> shift),
        (None, Some((unit, shift))) => format!("{}.{} {unit}", bytes >> shift, ((bytes % (1 << shift)) * 10) >> shift),
        (None, None) => format!("{bytes} B"),
    }
}

/// A number with its noun: `1 step`, `2 steps`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// A signal with its Linux name, such as `9 (SIGKILL)`; signal(7).
pub(crate) fn signal_name(signal: u8) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match NAMES.get(usize::from(signal).wrapping_sub(1)) {
        Some(name) => format!("{signal} (SIG{name})"),
        None => signal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_cannot_speak_to_the_terminal_or_to_ci() {
        let evil = "\x1b[2J\n  ::set-output name=a::b\nx ##[add-mask]a\n##vso[task]\n##teamcity[a]\n\u{202e}";
        let shown = shown(evil);
        assert_eq!(
            shown,
            "\\x1b[2J\n  :\\x3aset-output name=a::b\nx #\\x23[add-mask]a\n#\\x23vso[task]\n#\\x23teamcity[a]\n\\u{202e}"
        );
        assert_eq!(super::shown(&shown), shown, "twice is once");
    }

    #[test]
    fn one_line_stays_one_line() {
        assert_eq!(shown_line("a\nb\tc\r"), "a\\nb\\tc\\x0d");
    }

    #[test]
    fn texts_are_measured_in_columns() {
        assert_eq!(["abc", "日本", "e\u{301}"].map(columns), [3, 4, 1]);
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 1), "…");
        assert_eq!(padded("日", 4), "日  ");
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a-very-long-word x", 4), ["a-very-long-word", "x"]);
    }

    #[test]
    fn quantities_read_well() {
        let durations = [0, 449, 9_999, 10_000, 59_999, 90_000, 3_600_000 + 5 * 60_000].map(duration);
        assert_eq!(durations, ["0 ms", "449 ms", "9.9 s", "10 s", "59 s", "1m30s", "1h05m"]);
        assert_eq!([600_000, 1_000, 1_500, 0].map(bound), ["10 min", "1 s", "1500 ms", "0 s"]);
        assert_eq!(
            [0, 512, 4096, 5000, 8 << 30, (1 << 20) + 1].map(size),
            ["0 B", "512 B", "4 KiB", "4.8 KiB", "8 GiB", "1.0 MiB"]
        );
        assert_eq!([0, 9, 31, 64].map(signal_name), ["0", "9 (SIGKILL)", "31 (SIGSYS)", "64"]);
        assert_eq!(count(1, "step") + &count(0, "step"), "1 step0 steps");
    }
}
