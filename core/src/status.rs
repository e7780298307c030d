//! `changes/<id>/05-status.json`: others own it, we keep one object in it.
//!
//! Every field that is not ours stays as it was; `state` is never touched. What we own is
//! `verification.last_run`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::{Json, JsonError};
use crate::digest::{Sha256Hex, SnapshotId};
use crate::evidence::{EvidenceIndex, TreeSource};
use crate::names::{ProfileName, RunId};
use crate::rerun::Rerun;
use crate::tier::Tier;
use crate::verdict::Verdict;

/// The version of [`LastRun`]'s format.
pub const VERSION: u32 = 1;

/// `verification.last_run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LastRun {
    /// The version of this object's format: [`VERSION`]. Where it is absent, it is 1.
    #[serde(default = "first_version")]
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The profile that was run.
    pub profile: ProfileName,
    /// What the run means.
    pub outcome: Verdict,
    /// When it ended, RFC 3339 in UTC with milliseconds.
    pub timestamp: String,
    /// The run.
    pub run_id: RunId,
    /// The highest effective tier of its skills and checks.
    pub tier: Tier,
    /// The tree that was verified.
    pub snapshot: SnapshotId,
    /// The tree that the run left: another one where a `read_only: off` step was applied; `null`
    /// where the tree could not be looked at once more.
    #[serde(default)]
    pub snapshot_after: Option<SnapshotId>,
    /// Which tree that is; where it is absent, the worktree.
    #[serde(default)]
    pub source: TreeSource,
    /// The spec.
    pub spec_sha256: Sha256Hex,
    /// File below the changeset → sha256 of its bytes.
    pub evidence: EvidenceIndex,
    /// What the run left out, where it was a partial one; absent where it was whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun: Option<Rerun>,
}

fn first_version() -> u32 {
    1
}

impl LastRun {
    /// Whether the run changed the tree that it verified, by a `read_only: off` step.
    pub fn left_another_tree(&self) -> bool {
        self.snapshot_after.as_ref().is_some_and(|after| *after != self.snapshot)
    }
}

/// Why `verification.last_run` of a status file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LastRunError {
    /// The file is no status file.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// It was written in a format that this program does not know.
    #[error("its `verification.last_run` has version {0}, and this program knows {VERSION}")]
    Version(String),
    /// It is no object of ours.
    #[error("its `verification.last_run` is not as we write it: {0}")]
    Shape(String),
}

/// Why a status file cannot be updated without losing something of it.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// It cannot be read.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Its top level, or its `verification`, is something else than an object.
    #[error("{0} is not a JSON object")]
    NotAnObject(&'static str),
}

/// The largest status file that is read, in bytes.
pub const MAX_BYTES: u64 = 8 << 20;

/// The new bytes of the status file: `old` (`None` where there is no file yet) with
/// `verification.last_run` set.
///
/// # Errors
/// `old` is no JSON object, has a key twice, or its `verification` is no object.
pub fn update(old: Option<&[u8]>, last_run: &LastRun) -> Result<Vec<u8>, StatusError> {
    let mut document = read(old)?;
    verification(&mut document)?.insert("last_run".to_owned(), Json::of(last_run));
    Ok(document.to_vec())
}

/// Whether [`update`] would take `old`: asked before a run starts, so that no run is wasted.
///
/// # Errors
/// As [`update`].
pub fn check(old: Option<&[u8]>) -> Result<(), StatusError> {
    verification(&mut read(old)?).map(drop)
}

/// `verification.last_run` of a status file; `None` where it has none.
///
/// # Errors
/// The file is no status file, or what stands there is not ours.
pub fn last_run(status: &[u8]) -> Result<Option<LastRun>, LastRunError> {
    let mut document = read(Some(status))?;
    let Some(value) = verification(&mut document)?.remove("last_run") else { return Ok(None) };
    match value.get("version") {
        None => {}
        Some(Json::Number(version)) if *version == VERSION.to_string() => {}
        Some(Json::Number(version)) => return Err(LastRunError::Version(version.clone())),
        Some(_) => return Err(LastRunError::Shape("its `version` is no number".to_owned())),
    }
    serde_json::from_slice(&value.to_vec()).map(Some).map_err(|error| LastRunError::Shape(error.to_string()))
}

fn read(old: Option<&[u8]>) -> Result<Json, StatusError> {
    Ok(old.map_or(Ok(Json::Object(BTreeMap::new())), Json::parse)?)
}

/// The members of `verification`, made where there is none.
fn verification(document: &mut Json) -> Result<&mut BTreeMap<String, Json>, StatusError> {
    let top = document.as_object_mut().ok_or(StatusError::NotAnObject("the status file"))?;
    top.entry("verification".to_owned())
        .or_insert_with(|| Json::Object(BTreeMap::new()))
        .as_object_mut()
        .ok_or(StatusError::NotAnObject("its `verification`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_run() -> LastRun {
        LastRun {
            version: VERSION,
            profile: ProfileName::new("pr").expect("name"),
            outcome: Verdict::Passed,
            timestamp: "2026-01-02T03:04:05.678Z".into(),
            run_id: RunId::new("r1").expect("name"),
            tier: Tier::ONE,
            snapshot: SnapshotId::from_root(&Sha256Hex::of(b"tree")),
            snapshot_after: None,
            source: TreeSource::Worktree,
            spec_sha256: Sha256Hex::of(b"spec"),
            evidence: EvidenceIndex::new(),
            rerun: None,
        }
    }

    #[test]
    fn foreign_fields_stay() {
        let old =
            br#"{"schema_version":"v1","state":"executed","validation":{"n":1.10,"big":123456789012345678901234567890},
            "execution":[1,null],"verification":{"note":"mine","last_run":{"old":true}}}"#;
        let new = Json::parse(&update(Some(old), &last_run()).expect("updates")).expect("json");
        let before = Json::parse(old).expect("json");
        for key in ["schema_version", "state", "validation", "execution"] {
            assert_eq!(new.get(key), before.get(key), "{key}");
        }
        let verification = new.get("verification").expect("there");
        assert_eq!(verification.get("note"), Some(&Json::String("mine".into())));
        assert_eq!(verification.get("last_run"), Some(&Json::of(&last_run())));
    }

    #[test]
    fn a_missing_file_gets_our_object_alone() {
        let new = Json::parse(&update(None, &last_run()).expect("updates")).expect("json");
        assert!(new.get("state").is_none());
        assert!(new.get("verification").is_some());
    }

    #[test]
    fn what_would_lose_something_is_refused() {
        for bad in [&b"[]"[..], b"{\"a\":1,\"a\":2}", b"", b"{\"verification\":3}", b"{} x"] {
            assert!(update(Some(bad), &last_run()).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let written = update(None, &last_run()).expect("updates");
        assert_eq!(super::last_run(&written).expect("reads"), Some(last_run()));
        assert_eq!(super::last_run(b"{\"verification\":{}}").expect("reads"), None);
    }

    #[test]
    fn an_object_without_a_version_is_of_the_first() {
        let text = String::from_utf8(update(None, &last_run()).expect("updates")).expect("utf-8");
        let old = text.replace(",\"version\":1", "").replace("\"snapshot_after\":null,", "");
        assert_ne!(old, text);
        assert_eq!(super::last_run(old.as_bytes()).expect("reads"), Some(last_run()));
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let text = String::from_utf8(update(None, &last_run()).expect("updates")).expect("utf-8");
        let newer = text.replace("\"version\":1", "\"version\":2,\"more\":true");
        assert!(matches!(super::last_run(newer.as_bytes()), Err(LastRunError::Version(v)) if v == "2"));
        let foreign = text.replace("\"tier\":1", "\"tier\":1,\"more\":true");
        assert!(matches!(super::last_run(foreign.as_bytes()), Err(LastRunError::Shape(_))));
        assert!(matches!(super::last_run(b"{"), Err(LastRunError::Status(_))));
    }
}
