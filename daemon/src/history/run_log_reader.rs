//! Reads a log event by event, with only one event in memory.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};

use proctor_core::api::{LoggedEvent, LoggedRun, RunState};
use proctor_core::model::names::RunId;

use super::history_files::MAX_EVENT;
use super::log_lines::{FirstLineKey, IdempotencyHashes, SEQ_PREFIX};

/// Reader of a log.
pub(super) struct RunLogReader {
    file: BufReader<File>,
    line: Vec<u8>,
    /// Offset of the next event.
    pub(super) offset: u64,
    seq: u64,
}

/// Result of reading the next line of a log.
pub(super) enum LogLine {
    /// An event.
    Event(Box<LoggedEvent>),
    /// The end of the log.
    End,
    /// A line without a line feed at the end of the log.
    Torn,
    /// Bytes that are not an event, or an event with a wrong number.
    Damaged(String),
}

impl RunLogReader {
    pub(super) fn new(file: File) -> Self {
        Self { file: BufReader::new(file), line: Vec::new(), offset: 0, seq: 0 }
    }

    /// Reads the next event.
    pub(super) fn next(&mut self) -> io::Result<LogLine> {
        self.next_after(0)
    }

    /// Reads the next event with a number above `after`. Earlier events are skipped without parsing.
    pub(super) fn next_after(&mut self, after: u64) -> io::Result<LogLine> {
        loop {
            self.line.clear();
            let read = self.file.by_ref().take(MAX_EVENT + 1).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(LogLine::End);
            }
            if self.line.last() != Some(&b'\n') {
                let large = read as u64 > MAX_EVENT;
                return Ok(if large { self.damage("a line is larger than any event") } else { LogLine::Torn });
            }
            if event_number(&self.line) != Some(self.seq + 1) {
                return Ok(self.damage("the number of a line does not follow the previous number"));
            }
            if self.seq + 1 > after {
                break;
            }
            self.advance();
        }
        match serde_json::from_slice(&self.line) {
            Ok(logged) => {
                self.advance();
                Ok(LogLine::Event(Box::new(logged)))
            }
            Err(error) => Ok(self.damage(&format!("a line is not an event: {error}"))),
        }
    }

    fn advance(&mut self) {
        self.seq += 1;
        self.offset += self.line.len() as u64;
    }

    fn damage(&self, what: &str) -> LogLine {
        LogLine::Damaged(format!("after event {}, {what}", self.seq))
    }

    /// Returns the size of the last event in bytes.
    pub(super) fn last_bytes(&self) -> usize {
        self.line.len()
    }
}

/// Returns the number of the event in a line.
fn event_number(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(SEQ_PREFIX)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Contents of a log.
pub(super) struct FoldedLog {
    /// The run; `None` if the log has no first event or belongs to another run.
    pub(super) run: Option<LoggedRun>,
    /// Idempotency key of the request.
    pub(super) key: Option<IdempotencyHashes>,
    /// Number of bytes of the log that were folded.
    pub(super) folded_bytes: u64,
    /// Bytes after the folded ones.
    pub(super) tail: LogTail,
}

/// Bytes after the last event of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogTail {
    /// No bytes follow.
    Empty,
    /// A line without a line feed follows.
    Torn,
    /// Unexpected data follows; the text describes it.
    Damaged(String),
}

impl FoldedLog {
    /// Returns whether the run has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.state() == RunState::Finished)
    }
}

/// Folds the log of `run` up to its end or to the first damage.
pub(super) fn fold_log(run: &RunId, file: File) -> io::Result<FoldedLog> {
    let mut reader = RunLogReader::new(file);
    let mut folded = FoldedLog { run: None, key: None, folded_bytes: 0, tail: LogTail::Empty };
    loop {
        folded.tail = match reader.next()? {
            LogLine::End => LogTail::Empty,
            LogLine::Torn => LogTail::Torn,
            LogLine::Damaged(reason) => LogTail::Damaged(reason),
            LogLine::Event(_) if folded.is_finished() => {
                LogTail::Damaged("events follow the end of the run".to_owned())
            }
            LogLine::Event(logged) => {
                match &mut folded.run {
                    Some(run) => run.apply(&logged),
                    None => {
                        folded.run = LoggedRun::from_log([&*logged]).filter(|logged| logged.id() == run);
                        let key = serde_json::from_slice::<FirstLineKey>(&reader.line).ok();
                        folded.key = key.and_then(|key| key.idempotency);
                    }
                }
                if folded.run.is_none() {
                    folded.tail = LogTail::Damaged("it does not begin with the request".to_owned());
                    return Ok(folded);
                }
                folded.folded_bytes = reader.offset;
                continue;
            }
        };
        return Ok(folded);
    }
}
