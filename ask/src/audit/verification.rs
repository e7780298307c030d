//! Verifies the chain of an audit trail. It reads no file.

use std::fmt;

use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use serde::Serialize;

use super::record::{AuditKind, AuditRecord, Head, StoredRecord, VERSION};

/// A defect of an audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "problem")]
pub enum AuditProblem {
    /// The hash of a record is not the hash of its text.
    #[error("record {seq} was changed")]
    Changed {
        /// The number of the record.
        seq: u64,
    },
    /// The text of a record is malformed, or contradicts its row.
    #[error("record {seq} is malformed")]
    Malformed {
        /// The number of the record.
        seq: u64,
    },
    /// A record does not follow the previous one.
    #[error("record {seq} does not follow record {after}: records were removed, inserted or changed")]
    Gap {
        /// The number of the record.
        seq: u64,
        /// The number of the preceding record.
        after: u64,
    },
    /// The first records are missing, and no checkpoint states that they were removed.
    #[error("the records before {seq} are missing")]
    MissingStart {
        /// The number of the first record.
        seq: u64,
    },
    /// The last records are missing or were changed.
    #[error("the last records are missing or were changed: the head is record {head}, and the last record is {last}")]
    MissingEnd {
        /// The number of the last record according to the head.
        head: u64,
        /// The number of the last record; 0 if there is none.
        last: u64,
    },
    /// Records follow the head.
    #[error(
        "records {} to {last} follow the head: an append was interrupted, or they were inserted", head + 1
    )]
    BeyondHead {
        /// The number of the last record according to the head.
        head: u64,
        /// The number of the last record.
        last: u64,
    },
    /// There is no head, although there are records.
    #[error("the file with the head is missing or malformed")]
    NoHead,
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// The number of records.
    pub records: u64,
    /// The number of the first record; 0 if there is none.
    pub first: u64,
    /// The number of the last record; 0 if there is none.
    pub last: u64,
    /// The hash of the last record.
    pub hash: Sha256Hex,
    /// The number of records that the latest checkpoint states as removed.
    pub removed: u64,
    /// The numbers of the records which state that an append was interrupted.
    pub recovered: Vec<u64>,
    /// The problems; empty if the trail is intact.
    pub problems: Vec<AuditProblem>,
}

impl AuditReport {
    /// Returns whether the trail is intact.
    pub fn is_intact(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for AuditReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.records {
            0 => f.write_str("no records"),
            count => write!(f, "{count} records, {} to {}", self.first, self.last),
        }
    }
}

/// Follows a chain record by record.
pub(super) struct ChainReader {
    report: AuditReport,
    /// The hash that the next record must contain; `None` before the first record.
    previous: Option<Sha256Hex>,
    /// The number and hash of the record before the first one, if it is not the first of the trail.
    start: Option<Head>,
    /// The last removal that a checkpoint states.
    checkpoint: Option<Head>,
    /// The hash of the record with the number of the head.
    hash_at_head: Option<Sha256Hex>,
    head: Option<Head>,
}

/// Maximum number of problems in a report.
const MAX_PROBLEMS: usize = 100;

impl ChainReader {
    /// Starts at the first record. `head` is the stored head; `None` if there is none.
    pub(super) fn new(head: Option<Head>) -> Self {
        let report = AuditReport {
            records: 0,
            first: 0,
            last: 0,
            hash: Head::empty().hash,
            removed: 0,
            recovered: Vec::new(),
            problems: Vec::new(),
        };
        Self { report, previous: None, start: None, checkpoint: None, hash_at_head: None, head }
    }

    fn add_problem(&mut self, problem: AuditProblem) {
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(problem);
        }
    }

    /// Checks the next record.
    pub(super) fn push(&mut self, stored: &StoredRecord) {
        let seq = stored.seq;
        let hash = Sha256Hex::digest(stored.record.as_bytes());
        if hash.to_string() != stored.hash {
            self.add_problem(AuditProblem::Changed { seq });
        }
        match read_record(stored) {
            Some(record) => self.follow(&record),
            None => self.add_problem(AuditProblem::Malformed { seq }),
        }
        if self.report.records == 0 {
            self.report.first = seq;
        }
        self.report.records += 1;
        self.report.last = seq;
        self.report.hash = hash.clone();
        if self.head.as_ref().is_some_and(|head| head.count == seq) {
            self.hash_at_head = Some(hash.clone());
        }
        self.previous = Some(hash);
    }

    fn follow(&mut self, record: &AuditRecord) {
        let (seq, after) = (record.seq, self.report.last);
        match &self.previous {
            Some(previous) if seq == after + 1 && record.previous == *previous => {}
            Some(_) => self.add_problem(AuditProblem::Gap { seq, after }),
            None if seq == 1 && record.previous == Head::empty().hash => {}
            None => self.start = Some(Head::new(seq.saturating_sub(1), record.previous.clone())),
        }
        match record.kind {
            AuditKind::Checkpoint => match serde_json::from_value(record.content.clone()) {
                Ok(CheckpointContent { through, hash }) => {
                    self.report.removed = through;
                    self.checkpoint = Some(Head::new(through, hash));
                }
                Err(_) => self.add_problem(AuditProblem::Malformed { seq }),
            },
            AuditKind::Recovered => self.report.recovered.push(seq),
            _ => {}
        }
    }

    /// Ends the chain, and compares it with the head.
    pub(super) fn finish(mut self) -> AuditReport {
        // The chain must start at the latest checkpoint. If it starts at an earlier one, records between the two were
        // removed without a checkpoint.
        if self.start != self.checkpoint {
            let seq = self.report.first;
            self.add_problem(AuditProblem::MissingStart { seq });
        }
        let last = self.report.last;
        match &self.head {
            None if last > 0 => self.add_problem(AuditProblem::NoHead),
            None => {}
            Some(head) => {
                let head_count = head.count;
                let is_reached = match head.count {
                    0 => head.hash == Head::empty().hash,
                    _ => self.hash_at_head.as_ref() == Some(&head.hash),
                };
                if !is_reached {
                    self.add_problem(AuditProblem::MissingEnd { head: head_count, last });
                } else if last > head_count {
                    self.add_problem(AuditProblem::BeyondHead { head: head_count, last });
                }
            }
        }
        self.report
    }
}

/// The content of a checkpoint: the last record that was removed.
#[derive(Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointContent {
    pub(super) through: u64,
    pub(super) hash: Sha256Hex,
}

/// Parses a record; `None` if it is not canonical JSON of a record, or contradicts its row.
fn read_record(stored: &StoredRecord) -> Option<AuditRecord> {
    let record: AuditRecord = serde_json::from_str(&stored.record).ok()?;
    let is_consistent = record.version == VERSION && record.seq == stored.seq && record.ask == stored.ask;
    let is_canonical =
        || canonical::Json::parse(stored.record.as_bytes()).is_ok_and(|json| json.to_vec() == stored.record.as_bytes());
    (is_consistent && is_canonical()).then_some(record)
}
