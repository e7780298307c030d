//! A log, read event by event: never more than one of them is in memory.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};

use proctor_core::api::{LoggedEvent, RunState, RunView};
use proctor_core::digest::Sha256Hex;
use proctor_core::names::RunId;
use serde::{Deserialize, Serialize};

use super::files::MAX_EVENT;

/// What of an idempotency key stands in the first line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptKey {
    /// The sha256 of the key.
    pub(super) key_sha256: Sha256Hex,
    /// The sha256 of the request.
    pub(super) request_sha256: Sha256Hex,
}

/// The first line of a log: the event, and what no later line has.
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

/// How each line begins: enough to tell which event it is.
const SEQ: &[u8] = b"{\"seq\":";

/// A log that is read.
pub(super) struct Reader {
    file: BufReader<File>,
    line: Vec<u8>,
    /// Where the next event begins.
    pub(super) offset: u64,
    seq: u64,
}

/// What comes next in a log.
pub(super) enum Next {
    /// An event.
    Event(Box<LoggedEvent>),
    /// Nothing.
    End,
    /// A line without its end.
    Torn,
    /// Something that is no event, or not the next one.
    Damaged(String),
}

impl Reader {
    pub(super) fn new(file: File) -> Self {
        Self { file: BufReader::new(file), line: Vec::new(), offset: 0, seq: 0 }
    }

    /// The next event.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        self.next_after(0)
    }

    /// The next event that has a number above `after`. Those before it are skipped unread.
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

    /// How many bytes the last event has.
    pub(super) fn last_bytes(&self) -> usize {
        self.line.len()
    }
}

/// The number of the event that a line holds.
fn number(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(SEQ)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// What a log tells.
pub(super) struct Told {
    /// The run; `None` where the log has no beginning, or is another run's.
    pub(super) view: Option<RunView>,
    /// The key that its request came with.
    pub(super) key: Option<KeptKey>,
    /// How many bytes of the log tell it.
    pub(super) bytes: u64,
    /// What stands behind them.
    pub(super) rest: Rest,
    /// When the last event was logged.
    pub(super) last_at: Option<String>,
}

/// What stands behind the last event of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing.
    Nothing,
    /// A line without its end.
    Torn,
    /// Something else.
    Damaged(String),
}

impl Told {
    /// Whether the run has ended.
    pub(super) fn finished(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.state == RunState::Finished)
    }
}

/// Folds a log of `run` up to its end, or to where it is damaged.
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
