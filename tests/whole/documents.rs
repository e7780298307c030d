//! Checks the documents of a run before a case reads them: schema, canonical bytes, the hash of the stable part, and
//! that the files cited by the status have the cited hashes.

use std::path::{Path, PathBuf};

use proctor_core::record::evidence::{self, Document, SkillEvidence, ToolchainEvidence};
use proctor_core::text::canonical::Json;
use proctor_core::text::digest::Sha256Hex;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{machine, schemas};

/// Checks all documents of Proctor below `dir`, which is a repository or a state directory.
pub(crate) fn check_all_documents(dir: &Path) {
    for path in machine::walk_without(dir, Some(".git")) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name {
            "_toolchain.json" => check_document::<ToolchainEvidence>("toolchain-evidence", &path),
            "05-status.json" => check_status(&path),
            _ if is_skill_evidence(&path) => check_document::<SkillEvidence>("skill-evidence", &path),
            _ => {}
        }
    }
}

fn is_skill_evidence(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name);
    path.symlink_metadata().is_ok_and(|meta| meta.is_file())
        && parent.is_some_and(|name| name == "verify")
        && path.extension().is_some_and(|ext| ext == "json")
}

/// Reads a JSON file.
pub(crate) fn read_json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn check_document<D: Document + DeserializeOwned>(schema: &str, path: &Path) {
    let bytes = std::fs::read(path).expect("the walk found it");
    assert_canonical(path, &bytes);
    schemas::assert_valid(schema, &read_json(path), &path.display());
    let document: D = serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(evidence::to_bytes(&document) == bytes, "{}: the type does not carry all of the document", path.display());
    let sealed = evidence::to_bytes(&evidence::seal(document));
    assert!(sealed == bytes, "{}: `sha256` is not that of the stable part", path.display());
}

fn assert_canonical(path: &Path, bytes: &[u8]) {
    let json = Json::parse(bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(json.to_vec() == bytes, "{}: not canonical: {}", path.display(), String::from_utf8_lossy(bytes));
}

/// Checks a status file that Proctor has written; skips all other files.
fn check_status(path: &Path) {
    // A case may create a broken file on purpose.
    let Ok(bytes) = std::fs::read(path) else { return };
    let Ok(status) = serde_json::from_slice::<Value>(&bytes) else { return };
    let Some(cited) = status.pointer("/verification/last_run/evidence") else { return };
    schemas::assert_valid("status", &status, &path.display());
    for (file, sha256) in cited.as_object().expect("the schema says so") {
        let cited_path = path.with_file_name(file);
        let found =
            std::fs::read(&cited_path).unwrap_or_else(|error| panic!("cited {}: {error}", cited_path.display()));
        assert_eq!(
            Some(Sha256Hex::digest(&found).to_string()),
            sha256.as_str().map(str::to_owned),
            "{file} is not what the status cites"
        );
    }
}

/// Checks a stream of events, line by line, and returns them. The first line names the schema, and the last event is
/// the end of a run.
pub(crate) fn check_events(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let mut lines = text.lines().map(parse);
    let first = lines.next().unwrap_or_else(|| panic!("there is no line"));
    assert_eq!(first["schema"], schemas::read_schema("event")["$id"]);
    let events: Vec<Value> = lines.filter(|line| line.get("error").is_none()).collect();
    for event in &events {
        schemas::assert_valid("event", event, event);
    }
    assert_eq!(events.last().map(|event| &event["event"]), Some(&"run_finished".into()), "{text}");
    events
}

/// Reads the evidence of a skill in a directory that contains `verify/`.
pub(crate) fn read_skill_evidence(dir: &Path, skill: &str) -> Value {
    read_json(&dir.join("verify").join(format!("{skill}.json")))
}

/// Returns the only run directory below a state directory, which is the one that contains `verify/`.
pub(crate) fn only_run_dir(state: &Path) -> PathBuf {
    let runs: Vec<PathBuf> = machine::walk(state)
        .into_iter()
        .filter(|path| path.is_dir() && path.file_name().is_some_and(|name| name == "verify"))
        .filter_map(|path| path.parent().map(Path::to_owned))
        .collect();
    let [run] = runs.as_slice() else { panic!("one run was expected below {}: {runs:?}", state.display()) };
    run.clone()
}

/// Returns the bytes of the stable part of a document.
pub(crate) fn read_stable_bytes(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let document: SkillEvidence = serde_json::from_slice(&bytes).expect("skill evidence");
    evidence::stable_part(&document).to_vec()
}
