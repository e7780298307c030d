//! Reads and checks the request.

use std::io::Read as _;
use std::path::{Component, Path};

use serde::Deserialize;

use super::agent_error::AgentError;
use super::input_root::InputRoot;
use crate::agent::{AGENT_PROTOCOL, AgentNeededPath, AgentRequest, REQUEST_FILE};

/// Maximum size of a request, in bytes. Most of a large one are the layers of earlier steps.
const MAX_REQUEST_BYTES: u64 = 256 << 20;
/// Maximum number of checks.
const MAX_CHECKS: usize = 256;
/// Maximum number of caches.
const MAX_CACHES: usize = 256;
/// Maximum number of needed paths.
const MAX_NEEDED_PATHS: usize = 256;
/// Maximum number of earlier layers.
const MAX_LAYERS: usize = 500;

/// The part of a request that every version has.
#[derive(Deserialize)]
struct RequestVersion {
    version: u32,
}

/// Reads the request of this action.
///
/// # Errors
/// The file does not exist or is not a valid request.
pub(super) fn read(root: &InputRoot) -> Result<AgentRequest, AgentError> {
    let bad = |error: &dyn std::fmt::Display| AgentError::BadRequest(format!("`{REQUEST_FILE}`: {error}"));
    let mut text = Vec::new();
    let file = root.open_input(REQUEST_FILE).map_err(|error| bad(&error))?;
    file.take(MAX_REQUEST_BYTES + 1).read_to_end(&mut text).map_err(|error| bad(&error))?;
    parse(&text).map_err(|problem| bad(&problem))
}

fn parse(text: &[u8]) -> Result<AgentRequest, String> {
    if text.len() as u64 > MAX_REQUEST_BYTES {
        return Err(format!("it has more than {MAX_REQUEST_BYTES} bytes"));
    }
    let RequestVersion { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != AGENT_PROTOCOL {
        return Err(format!("it has version {version} instead of {AGENT_PROTOCOL}"));
    }
    let request: AgentRequest = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    for (what, count, max) in [
        ("checks", request.checks.len(), MAX_CHECKS),
        ("caches", request.caches.len(), MAX_CACHES),
        ("needed paths", request.needed_paths.len(), MAX_NEEDED_PATHS),
        ("layers", request.layers.len(), MAX_LAYERS),
    ] {
        if count > max {
            return Err(format!("it has more than {max} {what}"));
        }
    }
    for path in [&request.repo, &request.home] {
        if !is_plain(path) {
            return Err(format!("`{}` is not an absolute path without `..`", path.display()));
        }
    }
    // A mount of the tree's own directory, or of its git directory, would hide both.
    let hides = |path: &&AgentNeededPath| matches!(path.at.as_str().split('/').next(), Some("." | ".git"));
    if let Some(bad) = request.needed_paths.iter().find(hides) {
        return Err(format!("`{}` cannot be a needed path", bad.at));
    }
    Ok(request)
}

/// Returns whether a path is absolute, is not `/`, and has no `.` or `..`.
fn is_plain(path: &Path) -> bool {
    let is_known = |part| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.parent().is_some() && path.components().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(change: impl FnOnce(&mut serde_json::Value)) -> Result<AgentRequest, String> {
        let limits = serde_json::to_value(proctor_core::model::plan::Limits::UNLIMITED).expect("a value");
        let mut request = serde_json::json!({
            "version": AGENT_PROTOCOL, "nonce": "n", "repo": "/r", "home": "/h",
            "step": {
                "name": "s", "workdir": ".", "argv": ["true"], "files": { "batches": [], "parallel": 0, "passing_codes": [0] },
                "env": {},
                "network": "deny", "limits": limits, "leaks": "warn", "timeout_ms": 1, "grace_ms": 1,
                "max_output_bytes": 1,
            },
            "checks": [], "layers": [], "caches": [], "needed_paths": [], "has_git": false, "tolerated": [], "max_changes_bytes": 1,
        });
        change(&mut request);
        parse(request.to_string().as_bytes())
    }

    #[test]
    fn accepts_valid_request() {
        assert_eq!(request(|_| ()).expect("valid").nonce, "n");
    }

    #[test]
    fn refuses_other_versions_before_other_problems() {
        let error = request(|request| {
            request["version"] = 99.into();
            request["new"] = true.into();
        });
        assert!(error.expect_err("refused").contains("version 99"));
    }

    #[test]
    fn refuses_unknown_fields_and_values() {
        assert!(request(|request| request["new"] = true.into()).expect_err("refused").contains("new"));
        assert!(request(|request| request["step"]["new"] = true.into()).expect_err("refused").contains("new"));
        for path in ["/", "r", "/r/../x", ""] {
            assert!(request(|request| request["repo"] = path.into()).expect_err("refused").contains("absolute"));
            assert!(request(|request| request["home"] = path.into()).expect_err("refused").contains("absolute"));
        }
        for path in [".", ".git", ".git/hooks"] {
            let needed = serde_json::json!([{ "at": path, "is_for_checks_only": false }]);
            assert!(request(|request| request["needed_paths"] = needed).expect_err("refused").contains("needed path"));
        }
        let many = vec!["c"; MAX_CACHES + 1];
        assert!(request(|request| request["caches"] = many.into()).expect_err("refused").contains("caches"));
        parse(b"{").expect_err("not JSON");
    }
}
