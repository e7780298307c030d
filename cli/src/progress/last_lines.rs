//! Tracks the last line that each running step has printed, for a row on a terminal. The lines are escaped and contain
//! no colours and no secrets of the caller. Lines may be missed; nothing depends on them.

use std::collections::BTreeMap;
use std::time::Duration;

use proctor_core::api::OutputEvent;
use proctor_core::model::names::RunId;
use proctor_daemon::client::Client;
use proctor_runner::{LiveOutputs, LiveStep, StreamState, last_line};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::text::escape_line;

/// Last line of each step, by `skill/step`.
pub(crate) type LastLines = BTreeMap<String, String>;
/// The sending end of the channel.
pub(crate) type LastLinesSender = watch::Sender<LastLines>;
/// The receiving end of the channel.
pub(crate) type LastLinesReceiver = watch::Receiver<LastLines>;

/// Minimum time for which one line is shown.
const MIN_DISPLAY_TIME: Duration = Duration::from_millis(100);
/// Number of bytes at the end of an output that are searched for its last line.
const TAIL_BYTES: usize = 1 << 10;

/// Creates the channel for the lines of one run, which starts empty.
pub(crate) fn channel() -> (LastLinesSender, LastLinesReceiver) {
    watch::channel(LastLines::new())
}

/// Starts a task that sends the last lines of a run in this process until the receiver is dropped. Returns the
/// outputs that the run must write to.
pub(crate) fn track_process(lines: LastLinesSender) -> LiveOutputs {
    let outputs = LiveOutputs::default();
    tokio::spawn(watch_outputs(outputs.clone(), lines));
    outputs
}

async fn watch_outputs(outputs: LiveOutputs, lines: LastLinesSender) {
    let mut changes = outputs.changes();
    let mut known = BTreeMap::new();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = lines.closed() => return,
        }
        let steps = outputs.clone();
        // Reading may access the disk.
        let read = tokio::task::spawn_blocking(move || {
            update_states(&mut known, &steps);
            known
        });
        let Ok(read) = read.await else { return };
        known = read;
        let shown = known.iter().filter_map(|(name, step)| Some((name.clone(), step.line.clone()?))).collect();
        send_if_changed(&lines, shown);
        sleep(MIN_DISPLAY_TIME).await;
    }
}

/// The state of the outputs of a step.
#[derive(Default)]
struct StepOutputState {
    attempt: u32,
    /// Lengths of standard output and standard error at the last read.
    lengths: [u64; 2],
    line: Option<String>,
}

fn update_states(known: &mut BTreeMap<String, StepOutputState>, outputs: &LiveOutputs) {
    let all = outputs.all();
    known.retain(|name, _| all.iter().any(|(skill, step, _)| *name == format!("{skill}/{step}")));
    for (skill, step, live) in all {
        if has_ended(&live) {
            // In this process, this task is the only reader of the output.
            outputs.remove(&skill, &step);
            continue;
        }
        let entry = known.entry(format!("{skill}/{step}")).or_default();
        if entry.attempt != live.attempt {
            *entry = StepOutputState { attempt: live.attempt, ..StepOutputState::default() };
        }
        for (stream, length) in [&live.stdout, &live.stderr].into_iter().zip(&mut entry.lengths) {
            let now = stream.extent().length;
            if std::mem::replace(length, now) != now
                && let Ok(Some(line)) = stream.last_line(TAIL_BYTES)
            {
                entry.line = Some(format_line(&String::from_utf8_lossy(&line)));
            }
        }
    }
}

fn has_ended(live: &LiveStep) -> bool {
    [&live.stdout, &live.stderr].iter().all(|stream| stream.extent().state != StreamState::Open)
}

/// Starts a task that sends the last lines of a daemon's run until the run ends or the receiver is dropped.
pub(crate) fn track_daemon(client: Client, run: RunId, lines: LastLinesSender) {
    tokio::spawn(async move {
        let read = async {
            let mut output = client.live_output(&run).await.ok()?;
            let mut ends = BTreeMap::new();
            loop {
                let piece = output.next().await.ok()??;
                if let Some(line) = append_piece(&mut ends, &piece) {
                    let name = format!("{}/{}", piece.skill, piece.step);
                    let mut known = lines.borrow().clone();
                    known.insert(name, line);
                    send_if_changed(&lines, known);
                }
            }
        };
        let closed = async {
            lines.closed().await;
            None::<()>
        };
        tokio::select! {
            // If the stream has ended or cannot be read, later lines are not shown.
            ended = read => ended,
            ended = closed => ended,
        }
    });
}

/// Appends a piece to the current end of its output, and returns the last line of the result.
fn append_piece(ends: &mut BTreeMap<(String, String), String>, piece: &OutputEvent) -> Option<String> {
    let key = (format!("{}/{}/{}", piece.skill, piece.step, piece.attempt), piece.stream.clone());
    let end = ends.entry(key).or_default();
    if piece.skipped > 0 {
        end.clear();
    }
    end.push_str(&piece.text);
    let line = last_line(end.as_bytes()).map(|line| String::from_utf8_lossy(line).into_owned());
    // Keep only the text after the last line break. A line longer than the buffer starts again, because a row shows
    // only the beginning.
    let start = end.rfind('\n').map_or(0, |at| at + 1);
    end.drain(..start);
    if end.len() > TAIL_BYTES {
        end.clear();
    }
    line.map(|line| format_line(&line))
}

fn send_if_changed(lines: &watch::Sender<LastLines>, now: LastLines) {
    lines.send_if_modified(|known| {
        let is_news = *known != now;
        *known = now;
        is_news
    });
}

/// Formats a line for a row on a terminal: escaped, without colours.
fn format_line(line: &str) -> String {
    let escaped = escape_line(line);
    let mut parts = escaped.split("\\x1b[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_parameter = |c: char| c.is_ascii_digit() || c == ';' || c == ':';
        match part.trim_start_matches(is_parameter).strip_prefix(['m', 'K']) {
            Some(rest) => text.push_str(rest),
            None => text.extend(["\\x1b[", part]),
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, skipped: u64, attempt: u32) -> OutputEvent {
        let value = serde_json::json!({
            "skill": "a", "step": "b", "attempt": attempt, "stream": "stdout", "offset": 0, "skipped": skipped, "text": text,
        });
        serde_json::from_value(value).expect("a piece")
    }

    #[test]
    fn line_has_no_colours_or_control_characters() {
        assert_eq!(format_line("\u{1b}[1m\u{1b}[38;5;9merror\u{1b}[0m: x\u{1b}[K"), "error: x");
        assert_eq!(format_line("a\u{1b}[2Jb\u{7}\tc"), "a\\x1b[2Jb\\x07\\tc");
        assert_eq!(format_line("::error::mine"), ":\\x3aerror::mine");
        assert_eq!(format_line("\\x1b[32mok\\x1b[0m"), "ok", "as a daemon sends it");
    }

    #[test]
    fn joins_pieces_to_the_last_line() {
        let mut ends = BTreeMap::new();
        let mut append = |text: &str, skipped, attempt| append_piece(&mut ends, &piece(text, skipped, attempt));
        assert_eq!(append("one\ntw", 0, 1).as_deref(), Some("tw"));
        assert_eq!(append("o", 0, 1).as_deref(), Some("two"));
        assert_eq!(append("\n", 0, 1).as_deref(), Some("two"));
        assert_eq!(append("\n", 0, 1), None, "a blank line is no news");
        assert_eq!(append("x", 0, 1).as_deref(), Some("x"));
        assert_eq!(append("later", 7, 1).as_deref(), Some("later"));
        assert_eq!(append("again", 0, 2).as_deref(), Some("again"));
        append(&"y".repeat(TAIL_BYTES + 1), 0, 3);
        assert_eq!(append("z", 0, 3).as_deref(), Some("z"), "a line is bounded");
    }
}
