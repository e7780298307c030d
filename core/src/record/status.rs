//! Reads and updates `changes/<id>/05-status.json`.
//!
//! Other tools own the file. Proctor only writes the object `verification.last_run`; it keeps all other fields and
//! never changes `state`.

mod document_text;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::rerun::Rerun;
use crate::decision::verdict::Verdict;
use crate::model::names::{ProfileName, RunId};
use crate::model::run_scope::RunScope;
use crate::model::tier::Tier;
use crate::record::evidence::{EvidenceIndex, TreeSource};
use crate::record::run_reuse::RunReuse;
use crate::record::unverified_inputs::UnverifiedInputs;
use crate::text::canonical::{Json, JsonError};
use crate::text::digest::{Sha256Hex, SnapshotId};
use crate::text::strict_deserialize;

/// Version of the format of [`LastRun`].
pub const VERSION: u32 = 1;

/// The object `verification.last_run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LastRun {
    /// Version of the format of this object; 1 if absent.
    #[serde(default = "first_version")]
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The profile of the run.
    pub profile: ProfileName,
    /// The verdict of the run.
    pub outcome: Verdict,
    /// End time of the run, RFC 3339 in UTC with milliseconds.
    pub timestamp: String,
    /// ID of the run.
    pub run_id: RunId,
    /// The highest effective tier of the skills and checks.
    pub tier: Tier,
    /// The verified tree.
    pub snapshot: SnapshotId,
    /// The tree after the run: it differs from `snapshot` if changes of a `read_only: off` step were applied. `null` if
    /// the tree could not be scanned after the run.
    #[serde(default)]
    pub snapshot_after: Option<SnapshotId>,
    /// The kind of the verified tree; the worktree if absent.
    #[serde(default)]
    pub source: TreeSource,
    /// The sha256 of the spec file.
    pub spec_sha256: Sha256Hex,
    /// Evidence files: path relative to the changeset → sha256 of the file.
    pub evidence: EvidenceIndex,
    /// The ignore rules outside the tree that determined which files belong to it. The keys are `info/exclude`,
    /// `core.excludesFile` and `core.ignoreCase`; for a nested repository, prefixed with its path and a colon. Each
    /// value is the sha256 of the rules. Sources without rules are not listed. Absent if the run does not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_ignores: Option<ExternalIgnores>,
    /// The ignored files of the worktree that the run showed to its steps. Absent if it showed none, because they are
    /// hidden or the tree is that of a commit. They are not recorded if `source` is the worktree itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified_inputs: Option<UnverifiedInputs>,
    /// The selection of skills in a partial run; absent for a complete run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun: Option<Rerun>,
    /// The part of the profile that the run covers; absent if it covers all steps over all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RunScope>,
    /// The reuse of results. Absent if the run cites no evidence, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<RunReuse>,
}

/// Sources of ignore rules outside a tree → sha256 of the rules. The hash covers each line that contains a rule, with a
/// line feed.
pub type ExternalIgnores = BTreeMap<String, Sha256Hex>;

fn first_version() -> u32 {
    1
}

impl LastRun {
    /// Returns whether the run changed the verified tree because of a `read_only: off` step.
    pub fn changed_tree(&self) -> bool {
        self.snapshot_after.as_ref().is_some_and(|after| *after != self.snapshot)
    }
}

/// The reason why `verification.last_run` of a status file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LastRunError {
    /// The file is not a valid status file.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The version of the object is unknown.
    #[error("its `verification.last_run` has version {0}, but this program supports {VERSION}")]
    Version(String),
    /// The object does not have the expected structure.
    #[error("its `verification.last_run` is malformed: {0}")]
    Malformed(String),
}

/// The reason why a status file cannot be updated without losing content.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The file cannot be parsed.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The top level, or `verification`, is not an object.
    #[error("{0} is not a JSON object")]
    NotAnObject(&'static str),
}

/// Maximum size of a status file, in bytes.
pub const MAX_STATUS_BYTES: u64 = 8 << 20;

/// Returns the new content of the status file: `old` with `verification.last_run` set. `None` means that there is no
/// file yet. Every other byte of `old` is kept, and the new part has its layout: its indentation, or that it is a single
/// line.
///
/// # Errors
/// Returns an error if `old` is not a JSON object, contains a duplicate key, or its `verification` is not an object.
pub fn set_last_run(old: Option<&[u8]>, last_run: &LastRun) -> Result<Vec<u8>, StatusError> {
    let mut document = parse_document(old)?;
    let value = Json::from_serializable(last_run);
    let layout = StatusFileLayout::detect(old);
    verification_mut(&mut document)?.insert("last_run".to_owned(), value.clone());
    let text = old.and_then(|old| std::str::from_utf8(old).ok());
    let edited = text.and_then(|text| {
        let indent = document_text::TextLayout { indent: layout.indent.as_deref() };
        let value = String::from_utf8_lossy(&layout.render_value(&value)).into_owned();
        document_text::set_member(text, &["verification", "last_run"], &indent, &value)
    });
    // The edited text must be the same document.
    let edited = edited.map(String::into_bytes).filter(|new| Json::parse(new).is_ok_and(|new| new == document));
    Ok(edited.unwrap_or_else(|| layout.render(&document)))
}

/// Maximum indentation of one level that is detected in an existing file, in characters.
const MAX_INDENT: usize = 8;

/// The layout of a status file.
struct StatusFileLayout {
    /// The indentation of one level; `None` for a file with a single line.
    indent: Option<String>,
    /// True if the file ends with a line feed.
    ends_line: bool,
}

impl StatusFileLayout {
    fn detect(old: Option<&[u8]>) -> Self {
        let Some(text) = old.and_then(|old| std::str::from_utf8(old).ok()) else {
            return Self { indent: Some("  ".to_owned()), ends_line: true };
        };
        let indent = text.trim().split_once('\n').map(|(first, rest)| {
            let length = rest.len() - rest.trim_start_matches([' ', '\t']).len();
            let is_indent = first.trim() == "{" && (1..=MAX_INDENT).contains(&length);
            rest.get(..length).filter(|_| is_indent).unwrap_or("  ").to_owned()
        });
        Self { indent, ends_line: text.ends_with('\n') }
    }

    fn render_value(&self, value: &Json) -> Vec<u8> {
        self.indent.as_ref().map_or_else(|| value.to_vec(), |indent| value.to_indented_vec(indent))
    }

    fn render(&self, document: &Json) -> Vec<u8> {
        let mut bytes = self.render_value(document);
        if self.ends_line {
            bytes.push(b'\n');
        }
        bytes
    }
}

/// Returns the content of a new status file: all fields that readers of the format require, with nothing validated and
/// nothing executed.
fn new_document() -> Json {
    Json::from_serializable(&serde_json::json!({
        "schema_version": "v1",
        "state": "pending_validation",
        "validation": { "state": "pending", "checks": [] },
        "execution": { "state": "pending", "steps_completed": 0, "error": null, "log": [] },
    }))
}

/// Checks whether [`set_last_run`] would accept `old`. Callers check this before a run starts, so that no run is
/// wasted.
///
/// # Errors
/// Returns an error in the same cases as [`set_last_run`].
pub fn check_updatable(old: Option<&[u8]>) -> Result<(), StatusError> {
    verification_mut(&mut parse_document(old)?).map(drop)
}

/// Returns `verification.last_run` of a status file; `None` if the file has none.
///
/// # Errors
/// Returns an error if the file is not a valid status file or the object does not have the expected format.
pub fn last_run(status: &[u8]) -> Result<Option<LastRun>, LastRunError> {
    let mut document = parse_document(Some(status))?;
    let Some(value) = verification_mut(&mut document)?.remove("last_run") else { return Ok(None) };
    match value.get("version") {
        None => {}
        Some(Json::Number(version)) if *version == VERSION.to_string() => {}
        Some(Json::Number(version)) => return Err(LastRunError::Version(version.clone())),
        Some(_) => return Err(LastRunError::Malformed("its `version` is not a number".to_owned())),
    }
    strict_deserialize::from_json(&value.to_vec()).map(Some).map_err(|error| LastRunError::Malformed(error.to_string()))
}

fn parse_document(old: Option<&[u8]>) -> Result<Json, StatusError> {
    Ok(old.map_or_else(|| Ok(new_document()), Json::parse)?)
}

/// Returns the members of `verification`; creates the object if it does not exist.
fn verification_mut(document: &mut Json) -> Result<&mut BTreeMap<String, Json>, StatusError> {
    let top = document.as_object_mut().ok_or(StatusError::NotAnObject("the status file"))?;
    top.entry("verification".to_owned())
        .or_insert_with(|| Json::Object(BTreeMap::new()))
        .as_object_mut()
        .ok_or(StatusError::NotAnObject("its `verification`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_last_run() -> LastRun {
        LastRun {
            version: VERSION,
            profile: ProfileName::new("pr").expect("name"),
            outcome: Verdict::Passed,
            timestamp: "2026-01-02T03:04:05.678Z".into(),
            run_id: RunId::new("r1").expect("name"),
            tier: Tier::ONE,
            snapshot: SnapshotId::from_root(&Sha256Hex::digest(b"tree")),
            snapshot_after: None,
            source: TreeSource::SHARED,
            spec_sha256: Sha256Hex::digest(b"spec"),
            evidence: EvidenceIndex::new(),
            external_ignores: None,
            unverified_inputs: None,
            rerun: None,
            scope: None,
            reuse: None,
        }
    }

    #[test]
    fn keeps_foreign_fields() {
        let old =
            br#"{"schema_version":"v1","state":"executed","validation":{"n":1.10,"big":123456789012345678901234567890},
            "execution":[1,null],"verification":{"note":"mine","last_run":{"old":true}}}"#;
        let new = Json::parse(&set_last_run(Some(old), &sample_last_run()).expect("updates")).expect("json");
        let before = Json::parse(old).expect("json");
        for key in ["schema_version", "state", "validation", "execution"] {
            assert_eq!(new.get(key), before.get(key), "{key}");
        }
        let verification = new.get("verification").expect("there");
        assert_eq!(verification.get("note"), Some(&Json::String("mine".into())));
        assert_eq!(verification.get("last_run"), Some(&Json::from_serializable(&sample_last_run())));
    }

    #[test]
    fn creates_file_with_all_required_fields() {
        let bytes = set_last_run(None, &sample_last_run()).expect("updates");
        let new = Json::parse(&bytes).expect("json");
        for key in ["schema_version", "state", "validation", "execution", "verification"] {
            assert!(new.get(key).is_some(), "{key}");
        }
        let text = String::from_utf8(bytes).expect("utf-8");
        assert!(text.starts_with("{\n  \"execution\": {\n    \"error\": null,\n    \"log\": [],"), "{text}");
        assert!(text.ends_with("\n}\n"), "{text}");
        assert_eq!(set_last_run(Some(text.as_bytes()), &sample_last_run()).expect("updates"), text.as_bytes());
    }

    #[test]
    fn keeps_the_layout_of_the_file() {
        for old in ["{\"a\":[1]}", "{\n\t\"a\": [\n\t\t1\n\t]\n}", "{\n    \"a\": [\n        1\n    ]\n}\n"] {
            let new = String::from_utf8(set_last_run(Some(old.as_bytes()), &sample_last_run()).expect("updates"))
                .expect("utf-8");
            let kept = old.trim_end().trim_end_matches('}').trim_end();
            assert!(new.starts_with(kept), "{new}");
            assert_eq!((new.contains('\n'), new.ends_with('\n')), (old.contains('\n'), old.ends_with('\n')), "{new}");
            let again = set_last_run(Some(new.as_bytes()), &sample_last_run()).expect("updates");
            assert_eq!(String::from_utf8(again).expect("utf-8"), new);
        }
    }

    #[test]
    fn keeps_the_order_of_keys() {
        let old = "{\n  \"state\": \"executed\",\n  \"execution\": [1.10],\n  \"a\": {}\n}\n";
        let new = set_last_run(Some(old.as_bytes()), &sample_last_run()).expect("updates");
        let new = String::from_utf8(new).expect("utf-8");
        let kept = old.trim_end().trim_end_matches('}').trim_end();
        let added = ",\n  \"verification\": {\n    \"last_run\": {\n      ";
        assert!(new.starts_with(&format!("{kept}{added}")), "{new}");
    }

    #[test]
    fn rejects_update_that_would_lose_content() {
        for bad in [&b"[]"[..], b"{\"a\":1,\"a\":2}", b"", b"{\"verification\":3}", b"{} x"] {
            assert!(set_last_run(Some(bad), &sample_last_run()).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn last_run_round_trips() {
        let written = set_last_run(None, &sample_last_run()).expect("updates");
        assert_eq!(super::last_run(&written).expect("reads"), Some(sample_last_run()));
        assert_eq!(super::last_run(b"{\"verification\":{}}").expect("reads"), None);
    }

    #[test]
    fn object_without_version_is_of_the_first_version() {
        let text = String::from_utf8(set_last_run(Some(b"{}"), &sample_last_run()).expect("updates")).expect("utf-8");
        let old = text.replace(",\"version\":1", "").replace("\"snapshot_after\":null,", "");
        assert_ne!(old, text);
        assert_eq!(super::last_run(old.as_bytes()).expect("reads"), Some(sample_last_run()));
    }

    #[test]
    fn rejects_unknown_version_and_fields() {
        let text = String::from_utf8(set_last_run(Some(b"{}"), &sample_last_run()).expect("updates")).expect("utf-8");
        let newer = text.replace("\"version\":1", "\"version\":2,\"more\":true");
        assert!(matches!(super::last_run(newer.as_bytes()), Err(LastRunError::Version(v)) if v == "2"));
        let foreign = text.replace("\"tier\":1", "\"tier\":1,\"more\":true");
        assert!(matches!(super::last_run(foreign.as_bytes()), Err(LastRunError::Malformed(_))));
        assert!(matches!(super::last_run(b"{"), Err(LastRunError::Status(_))));
    }
}
