//! Finds the report files of stored results. A result refers to the objects of the execution, which can have been removed.

use proctor_core::record::evidence::{ReportState, StepEvidence, escape_output};

use crate::store::StoreError;
use crate::store::directory::Directory;
use crate::store::objects::{Objects, StoredForm};

/// The stored report files of a state directory.
#[derive(Debug)]
pub(crate) struct StoredReports(Objects);

impl StoredReports {
    /// Opens the report files of a state directory.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn open(state: &Directory) -> Result<Self, StoreError> {
        Ok(Self(Objects::open(state)?))
    }

    /// Returns the path of the first report of a step that is not stored as the evidence states; `None` if all are.
    pub(crate) fn first_missing(&self, evidence: &StepEvidence) -> Option<String> {
        let lost = evidence.found_reports.iter().find(|report| !self.is_stored(&report.state));
        lost.map(|report| escape_output(report.path.as_str().as_bytes()))
    }

    fn is_stored(&self, report: &ReportState) -> bool {
        let ReportState::Read { sha256, bytes, redacted } = report else { return true };
        let form = stored_form(*redacted);
        // For a redacted report, only the hash of the original is known.
        let is_expected = |length| form == StoredForm::Redacted || length == *bytes;
        matches!(self.0.length(sha256, form), Ok(Some(length)) if is_expected(length))
    }

    /// Sets the times of the reports of a step to now, so that retention removes them later.
    ///
    /// # Errors
    /// A time cannot be set.
    pub(crate) fn mark_used(&self, evidence: &StepEvidence) -> Result<(), StoreError> {
        for report in &evidence.found_reports {
            if let ReportState::Read { sha256, redacted, .. } = &report.state {
                self.0.touch(sha256, stored_form(*redacted))?;
            }
        }
        Ok(())
    }
}

fn stored_form(redacted: u64) -> StoredForm {
    if redacted > 0 { StoredForm::Redacted } else { StoredForm::Whole }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proctor_core::model::plan::{RelPath, ReportFormat};
    use proctor_core::record::evidence::{ReportEvidence, ReportFault};
    use proctor_core::text::digest::Sha256Hex;

    use super::*;

    fn evidence(states: impl IntoIterator<Item = ReportState>) -> StepEvidence {
        let path = RelPath::new("out/junit.xml").expect("a path");
        let report = |state| ReportEvidence { format: ReportFormat::Junit, path: path.clone(), state };
        StepEvidence {
            found_reports: states.into_iter().map(report).collect(),
            ..crate::test_support::step_evidence("s")
        }
    }

    fn read(content: &[u8], bytes: u64, redacted: u64) -> ReportState {
        ReportState::Read { sha256: Sha256Hex::digest(content), bytes, redacted }
    }

    #[test]
    fn report_must_be_stored_as_recorded() {
        let temp = tempfile::tempdir().expect("temp");
        let state = Directory::open(temp.path()).expect("opens");
        let reports = StoredReports::open(&state).expect("opens");
        let store = |content: &[u8], form| {
            let mut writer = reports.0.writer().expect("a writer");
            writer.write(content).expect("writes");
            writer.finish(&Sha256Hex::digest(content), form).expect("finishes");
        };
        store(b"whole", StoredForm::Whole);
        store(b"secret", StoredForm::Redacted);
        let first_missing = |state| reports.first_missing(&evidence([state]));
        let lost = Some("out/junit.xml".to_owned());
        assert_eq!(first_missing(read(b"whole", 5, 0)), None);
        assert_eq!(first_missing(read(b"secret", 99, 1)), None);
        assert_eq!(first_missing(ReportState::Missing), None);
        assert_eq!(first_missing(ReportState::Refused { reason: ReportFault::TooLarge }), None);
        assert_eq!(first_missing(read(b"whole", 6, 0)), lost, "another length");
        assert_eq!(first_missing(read(b"whole", 5, 1)), lost, "another form");
        assert_eq!(first_missing(read(b"gone", 4, 0)), lost);
    }

    #[test]
    fn use_extends_the_life_of_a_report() {
        let temp = tempfile::tempdir().expect("temp");
        let reports = StoredReports::open(&Directory::open(temp.path()).expect("opens")).expect("opens");
        let sha256 = Sha256Hex::digest(b"x");
        let mut writer = reports.0.writer().expect("a writer");
        writer.write(b"x").expect("writes");
        writer.finish(&sha256, StoredForm::Whole).expect("finishes");
        let digits = sha256.to_string();
        let (shard, rest) = digits.split_at(2);
        let file = temp.path().join("objects").join(shard).join(format!("{rest}.zst"));
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(3_600);
        std::fs::File::options().write(true).open(&file).and_then(|file| file.set_modified(old)).expect("an old file");
        reports.mark_used(&evidence([read(b"x", 1, 0), read(b"gone", 1, 0)])).expect("marks");
        assert!(std::fs::metadata(&file).and_then(|meta| meta.modified()).expect("a time") > old);
    }
}
