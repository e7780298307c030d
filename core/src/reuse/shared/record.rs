//! The record of an execution that other machines can use, as an in-toto statement.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::cache::TransparentCache;
use crate::model::names::{RunId, SkillName};
use crate::record::evidence::{StepEvidence, step_path};
use crate::reuse::obstacle::{ReuseObstacle, result_obstacle};
use crate::reuse::stored_result::PassedFile;
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Maximum size of the statement of a record, in bytes. A larger one is neither stored nor used.
pub const MAX_RECORD_BYTES: usize = 2 << 20;
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "https://github.com/proctor-verify/proctor/step-result/v1";
/// Largest accepted difference between the clocks of two machines, in milliseconds.
const MAX_CLOCK_DIFFERENCE_MS: u64 = 5 * 60 * 1_000;

/// The record of an execution that passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedRecord {
    /// The skill of the step.
    pub skill: SkillName,
    /// The weak fingerprint of the step.
    pub weak: Sha256Hex,
    /// The sha256 of the encoded path set.
    pub path_set: Sha256Hex,
    /// The strong fingerprint.
    pub strong: Sha256Hex,
    /// The name of the machine that executed the step.
    pub host: String,
    /// The run that executed the step.
    pub run_id: RunId,
    /// The end of the execution, in UTC, RFC 3339.
    pub executed_at: String,
    /// The end time of the execution, in milliseconds since 1970.
    pub executed_ms: u64,
    /// The evidence of the execution.
    pub evidence: StepEvidence,
    /// The caches of the execution, whose content does not change the result as the spec declares.
    pub transparent_caches: Vec<TransparentCache>,
    /// The files that the execution checked, for a step with `per_file`; empty for other steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PassedFile>,
}

/// The fingerprints and the age that a record must have.
#[derive(Debug, Clone)]
pub struct ExpectedRecord<'a> {
    /// The weak fingerprint.
    pub weak: &'a Sha256Hex,
    /// The sha256 of the encoded path set.
    pub path_set: &'a Sha256Hex,
    /// The strong fingerprint.
    pub strong: &'a Sha256Hex,
    /// The present time, in milliseconds since 1970.
    pub now_ms: u64,
    /// The maximum age, in milliseconds.
    pub max_age_ms: u64,
    /// True if the pass of each file is valid independently of the other files.
    pub is_per_file: bool,
}

/// The reason why a signed record is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordRefusal {
    /// The record is not a statement of this version.
    NotReadable,
    /// The record is about another step, or other inputs.
    OtherExecution,
    /// The record repeats another record.
    NotExecuted,
    /// The record is too old.
    TooOld,
    /// The time of the record is in the future.
    FromTheFuture,
    /// The execution cannot be reused.
    Obstacle(ReuseObstacle),
}

impl fmt::Display for RecordRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReadable => f.write_str("it is not a record of this version"),
            Self::OtherExecution => f.write_str("it describes another step or other inputs"),
            Self::NotExecuted => f.write_str("it repeats the result of another execution"),
            Self::TooOld => f.write_str("it is too old"),
            Self::FromTheFuture => f.write_str("its time is in the future"),
            Self::Obstacle(obstacle) => write!(f, "its execution cannot be reused: {obstacle}"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: SharedRecord,
}

#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Subject {
    name: String,
    digest: SubjectDigest,
}

#[derive(Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct SubjectDigest {
    sha256: Sha256Hex,
}

impl SharedRecord {
    /// Returns the record as an in-toto statement about the strong fingerprint, in canonical JSON.
    pub fn to_statement(&self) -> Vec<u8> {
        canonical::to_vec(&Statement {
            kind: STATEMENT_TYPE.to_owned(),
            subject: vec![self.subject()],
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: self.clone(),
        })
    }

    /// Reads a statement whose signature was verified.
    ///
    /// # Errors
    /// The statement is not the expected record, or must not be used.
    pub fn from_statement(bytes: &[u8], expected: &ExpectedRecord<'_>) -> Result<Self, RecordRefusal> {
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(RecordRefusal::NotReadable);
        }
        let statement: Statement = serde_json::from_slice(bytes).map_err(|_| RecordRefusal::NotReadable)?;
        let record = statement.predicate;
        if statement.kind != STATEMENT_TYPE || statement.predicate_type != PREDICATE_TYPE {
            return Err(RecordRefusal::NotReadable);
        }
        let fingerprints =
            [(&record.weak, expected.weak), (&record.path_set, expected.path_set), (&record.strong, expected.strong)];
        let is_per_file = !record.files.is_empty();
        let is_other = fingerprints.iter().any(|(is, should)| is != should) || is_per_file != expected.is_per_file;
        if is_other || statement.subject != [record.subject()] {
            return Err(RecordRefusal::OtherExecution);
        }
        if record.executed_ms > expected.now_ms.saturating_add(MAX_CLOCK_DIFFERENCE_MS) {
            return Err(RecordRefusal::FromTheFuture);
        }
        if expected.now_ms.saturating_sub(record.executed_ms) > expected.max_age_ms {
            return Err(RecordRefusal::TooOld);
        }
        if record.evidence.reused.is_some() {
            return Err(RecordRefusal::NotExecuted);
        }
        match result_obstacle(&record.evidence) {
            Some(obstacle) => Err(RecordRefusal::Obstacle(obstacle)),
            None => Ok(record),
        }
    }

    fn subject(&self) -> Subject {
        Subject {
            name: step_path(&self.skill, &self.evidence.planned.name),
            digest: SubjectDigest { sha256: self.strong.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::enforcement::Control;
    use crate::model::event::RunEvent;
    use crate::model::outcome::Outcome;
    use crate::record::evidence::ReuseSource;
    use crate::record::run_record::RunRecord;

    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

    fn record() -> SharedRecord {
        let mut run = RunRecord::default();
        for line in include_str!("../../../../fixtures/logs/passed.jsonl").lines() {
            let event: RunEvent = serde_json::from_str(line).expect("an event");
            run.apply(event, Duration::ZERO);
        }
        let mut evidence = run.steps().next().expect("a step").1.clone();
        Control::ALL.iter().for_each(|control| evidence.enforcement.record_enforced(*control, "test"));
        (evidence.drift.found, evidence.drift.applied) = Default::default();
        assert_eq!(result_obstacle(&evidence), None);
        SharedRecord {
            skill: SkillName::new("lint").expect("a name"),
            weak: Sha256Hex::digest(b"weak"),
            path_set: Sha256Hex::digest(b"paths"),
            strong: Sha256Hex::digest(b"strong"),
            host: "builder".to_owned(),
            run_id: RunId::new("r1").expect("an id"),
            executed_at: "1970-01-02T00:00:00.000Z".to_owned(),
            executed_ms: DAY_MS,
            evidence,
            transparent_caches: Vec::new(),
            files: Vec::new(),
        }
    }

    fn read(statement: &[u8], change: impl FnOnce(&mut ExpectedRecord<'_>)) -> Result<SharedRecord, RecordRefusal> {
        let known = record();
        let mut expected = ExpectedRecord {
            weak: &known.weak,
            path_set: &known.path_set,
            strong: &known.strong,
            now_ms: 2 * DAY_MS,
            max_age_ms: 7 * DAY_MS,
            is_per_file: false,
        };
        change(&mut expected);
        SharedRecord::from_statement(statement, &expected)
    }

    #[test]
    fn statement_contains_the_whole_record() {
        assert_eq!(read(&record().to_statement(), |_| {}), Ok(record()));
    }

    #[test]
    fn refuses_records_of_other_executions() {
        let (statement, other) = (record().to_statement(), Sha256Hex::digest(b"other"));
        let refused = Err(RecordRefusal::OtherExecution);
        assert_eq!(
            SharedRecord::from_statement(
                &statement,
                &ExpectedRecord {
                    weak: &other,
                    path_set: &record().path_set,
                    strong: &record().strong,
                    now_ms: 0,
                    max_age_ms: u64::MAX,
                    is_per_file: false,
                }
            ),
            refused
        );
        let file = PassedFile { path: "a".to_owned(), sha256: other.clone(), executable: false };
        let of_files = SharedRecord { files: vec![file], ..record() };
        assert_eq!(read(&of_files.to_statement(), |_| {}), refused, "it passed for some files only");
        assert_eq!(read(&of_files.to_statement(), |expected| expected.is_per_file = true), Ok(of_files));
        assert_eq!(read(&statement, |expected| expected.is_per_file = true), refused);
        let moved = SharedRecord { strong: Sha256Hex::digest(b"moved"), ..record() }.to_statement();
        assert_eq!(read(&moved, |_| {}), refused);
        let subject = String::from_utf8(statement).expect("text").replacen("\"name\":\"lint/", "\"name\":\"test/", 1);
        assert_eq!(read(subject.as_bytes(), |_| {}), refused);
    }

    #[test]
    fn refuses_records_of_other_times() {
        let statement = record().to_statement();
        assert_eq!(read(&statement, |expected| expected.now_ms = 9 * DAY_MS), Err(RecordRefusal::TooOld));
        assert_eq!(read(&statement, |expected| expected.now_ms = DAY_MS / 2), Err(RecordRefusal::FromTheFuture));
    }

    #[test]
    fn refuses_results_that_are_not_reused() {
        let mut failed = record();
        failed.evidence.outcome = Outcome::Failed;
        let refused = read(&failed.to_statement(), |_| {});
        assert_eq!(refused, Err(RecordRefusal::Obstacle(ReuseObstacle::NotPassed)));
        let mut repeated = record();
        repeated.evidence.reused = Some(ReuseSource {
            run_id: RunId::new("r0").expect("an id"),
            executed_at: String::new(),
            inputs_sha256: Sha256Hex::digest(b""),
            inputs: 0,
            whole_tree: false,
            transparent_caches: Vec::new(),
            origin: None,
        });
        assert_eq!(read(&repeated.to_statement(), |_| {}), Err(RecordRefusal::NotExecuted));
    }

    #[test]
    fn refuses_damaged_and_oversized_bytes() {
        let statement = record().to_statement();
        for bytes in [&b""[..], b"{}", &statement[..statement.len() / 2], &vec![b' '; MAX_RECORD_BYTES + 1]] {
            assert_eq!(read(bytes, |_| {}), Err(RecordRefusal::NotReadable));
        }
        let unknown = String::from_utf8(statement).expect("text").replacen("\"host\"", "\"hots\"", 1);
        assert_eq!(read(unknown.as_bytes(), |_| {}), Err(RecordRefusal::NotReadable));
    }
}
