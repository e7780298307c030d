//! Reads a log event by event, with only one event in memory.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};

use proctor_core::api::{LoggedEvent, RunState, RunView};
use proctor_core::digest::Sha256Hex;
use proctor_core::names::RunId;
use serde::{Deserialize, Serialize};

use super::files::MAX_EVENT;

/// The part of an idempotency key that is stored in the first line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptKey {
    /// SHA-256 of the key.
    pub(super) key_sha256: Sha256Hex,
    /// SHA-256 of the request.
    pub(super) request_sha256: Sha256Hex,
}

/// First line of a log: the event plus fields that only the first line has.
#[derive(Serialize)]
pub(super) struct Beginning<'a> {
    #[serde(flatten)]
    pub(super) logged: &'a LoggedEvent,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idempotency: Option<&'a KeptKey>,
}

#[derive(Deserialize)]
struct KeyOnly {
    #[serde(default)]
    idempotency: Option<KeptKey>,
}

/// Prefix of each line, sufficient to find the number of its event.
const SEQ: &[u8] = b"{\"seq\":";

/// Reader of a log.
pub(super) struct Reader {
    file: BufReader<File>,
    line: Vec<u8>,
    /// Offset of the next event.
    pub(super) offset: u64,
    seq: u64,
}

/// Result of reading the next line of a log.
pub(super) enum Next {
    /// An event.
    Event(Box<LoggedEvent>),
    /// The end of the log.
    End,
    /// A line without a line feed at the end of the log.
    Torn,
    /// Bytes that are not an event, or an event with a wrong number.
    Damaged(String),
}

impl Reader {
    pub(super) fn new(file: File) -> Self {
        Self { file: BufReader::new(file), line: Vec::new(), offset: 0, seq: 0 }
    }

    /// Reads the next event.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        self.next_after(0)
    }

    /// Reads the next event with a number above `after`. Earlier events are skipped without parsing.
    pub(super) fn next_after(&mut self, after: u64) -> io::Result<Next> {
        loop {
            self.line.clear();
            let read = self.file.by_ref().take(MAX_EVENT + 1).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(Next::End);
            }
            if self.line.last() != Some(&b'\n') {
                let large = read as u64 > MAX_EVENT;
                return Ok(if large { self.damaged("a line is larger than any event") } else { Next::Torn });
            }
            if number(&self.line) != Some(self.seq + 1) {
                return Ok(self.damaged("a line does not have the number that follows"));
            }
            if self.seq + 1 > after {
                break;
            }
            self.passed();
        }
        match serde_json::from_slice(&self.line) {
            Ok(logged) => {
                self.passed();
                Ok(Next::Event(Box::new(logged)))
            }
            Err(error) => Ok(self.damaged(&format!("a line is not an event: {error}"))),
        }
    }

    fn passed(&mut self) {
        self.seq += 1;
        self.offset += self.line.len() as u64;
    }

    fn damaged(&self, what: &str) -> Next {
        Next::Damaged(format!("after event {}, {what}", self.seq))
    }

    /// Returns the size of the last event in bytes.
    pub(super) fn last_bytes(&self) -> usize {
        self.line.len()
    }
}

/// Returns the number of the event in a line.
fn number(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(SEQ)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Contents of a log.
pub(super) struct Told {
    /// The run; `None` if the log has no first event or belongs to another run.
    pub(super) view: Option<RunView>,
    /// Idempotency key of the request.
    pub(super) key: Option<KeptKey>,
    /// Number of bytes of the log that were folded.
    pub(super) bytes: u64,
    /// Bytes after the folded ones.
    pub(super) rest: Rest,
    /// Time of the last event.
    pub(super) last_at: Option<String>,
}

/// Bytes after the last event of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// No bytes follow.
    Nothing,
    /// A line without a line feed follows.
    Torn,
    /// Something else follows; the text describes it.
    Damaged(String),
}

impl Told {
    /// Returns whether the run has ended.
    pub(super) fn finished(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.state == RunState::Finished)
    }
}

/// Folds the log of `run` up to its end or to the first damage.
pub(super) fn fold(run: &RunId, file: File) -> io::Result<Told> {
    let mut reader = Reader::new(file);
    let mut told = Told { view: None, key: None, bytes: 0, rest: Rest::Nothing, last_at: None };
    loop {
        told.rest = match reader.next()? {
            Next::End => Rest::Nothing,
            Next::Torn => Rest::Torn,
            Next::Damaged(reason) => Rest::Damaged(reason),
            Next::Event(_) if told.finished() => Rest::Damaged("after its end, there are more events".to_owned()),
            Next::Event(logged) => {
                match &mut told.view {
                    Some(view) => view.apply(&logged),
                    None => {
                        told.view = RunView::fold([&*logged]).filter(|view| view.id == *run);
                        let key = serde_json::from_slice::<KeyOnly>(&reader.line).ok();
                        told.key = key.and_then(|key| key.idempotency);
                    }
                }
                if told.view.is_none() {
                    told.rest = Rest::Damaged("it does not begin with what was asked for".to_owned());
                    return Ok(told);
                }
                (told.bytes, told.last_at) = (reader.offset, Some(logged.logged_at));
                continue;
            }
        };
        return Ok(told);
    }
}
