//! Finds the repository of a call that names none: the client's only root, else the repository in which the client
//! started the server.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rmcp::RoleServer;
use rmcp::model::{ClientCapabilities, InputRequest, InputRequiredResult, InputResponses, ProtocolVersion};
use rmcp::service::RequestContext;
use serde_json::Value;

use super::mcp_session::McpSession;
use super::untrusted::safe_path;

/// Time that a client has to list its roots.
const ROOTS_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of roots named in an error.
const MAX_NAMED: usize = 8;
/// Key of the `roots/list` request in an [`InputRequiredResult`].
const ROOTS_KEY: &str = "roots";

/// Result of the search.
#[derive(Debug)]
pub(super) enum RepositorySearch {
    /// Absolute path of the repository.
    Found(String),
    /// Request that the client answers with another call (revision 2026-07-28 and later).
    AskClient(InputRequiredResult),
    /// No repository was found.
    NotFound(RepositoryNotFound),
}

/// The reason why a call has no default repository.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RepositoryNotFound {
    #[error("the call names no repository, and the client has no root; {REPO_ROOT_HINT}.")]
    NoRoot,
    #[error(
        "the call names no repository, and the client has {} roots: {}; {REPO_ROOT_HINT}.",
        roots.len(),
        name_roots(roots)
    )]
    SeveralRoots { roots: Vec<String> },
}

const REPO_ROOT_HINT: &str = "give `repo_root`, the absolute path of the repository";

fn name_roots(roots: &[String]) -> String {
    let named: Vec<String> = roots.iter().take(MAX_NAMED).map(|path| safe_path(path)).collect();
    named.join(", ")
}

/// Finds the default repository of a call; `answers` are the client's answers to [`RepositorySearch::AskClient`].
pub(super) async fn find(
    context: &RequestContext<RoleServer>,
    answers: Option<&InputResponses>,
    session: &McpSession,
) -> RepositorySearch {
    let has_roots = context.client_capabilities().is_some_and(|capabilities| declares_roots(&capabilities));
    if !has_roots {
        return choose(&[], session.work_tree.as_deref());
    }
    let asks_by_answer = context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
    let roots = match (asks_by_answer, answers) {
        (true, None) => return RepositorySearch::AskClient(roots_request()),
        (true, Some(answers)) => answers.get(ROOTS_KEY).map(parse_roots).unwrap_or_default(),
        (false, _) if session.can_send_requests => request_roots(context).await,
        (false, _) => Vec::new(),
    };
    choose(&roots, session.work_tree.as_deref())
}

fn declares_roots(capabilities: &ClientCapabilities) -> bool {
    capabilities.roots.is_some()
}

#[expect(deprecated, reason = "revision 2026-07-28 has no other request for roots")]
fn roots_request() -> InputRequiredResult {
    let question = InputRequest::ListRoots(rmcp::model::ListRootsRequest::default());
    InputRequiredResult::from_input_requests(BTreeMap::from([(ROOTS_KEY.to_owned(), question)]))
}

/// Requests the client's roots. A client that does not answer in time counts as having none.
#[expect(deprecated, reason = "revisions before 2026-07-28 have no other question for roots")]
async fn request_roots(context: &RequestContext<RoleServer>) -> Vec<String> {
    tokio::select! {
        biased;
        () = context.ct.cancelled() => Vec::new(),
        answered = tokio::time::timeout(ROOTS_TIMEOUT, context.peer.list_roots()) => match answered {
            Ok(Ok(listed)) => listed.roots.into_iter().map(|root| root.uri).collect(),
            _ => Vec::new(),
        },
    }
}

/// Returns the URIs in a `roots/list` result.
fn parse_roots(result: &Value) -> Vec<String> {
    let roots = result["roots"].as_array();
    roots.into_iter().flatten().filter_map(|root| root["uri"].as_str()).map(str::to_owned).collect()
}

/// Selects the repository. With several roots, only the one in which the server was started is certain.
fn choose(roots: &[String], work_tree: Option<&str>) -> RepositorySearch {
    let mut paths: Vec<String> = roots.iter().filter_map(|uri| local_path(uri)).collect();
    paths.sort_unstable();
    paths.dedup();
    match (paths.as_slice(), work_tree) {
        ([only], _) => RepositorySearch::Found(only.clone()),
        ([], Some(here)) => RepositorySearch::Found(here.to_owned()),
        ([], None) => RepositorySearch::NotFound(RepositoryNotFound::NoRoot),
        (paths, Some(here)) if paths.iter().any(|path| path == here) => RepositorySearch::Found(here.to_owned()),
        _ => RepositorySearch::NotFound(RepositoryNotFound::SeveralRoots { roots: paths }),
    }
}

/// Returns the path of a local `file:` URI without a trailing slash.
fn local_path(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    let path = percent_decode_str(path).decode_utf8().ok()?;
    let path = match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    };
    (path.starts_with('/') && !path.contains('\0')).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_path(roots: &[&str], work_tree: Option<&str>) -> Result<String, RepositoryNotFound> {
        let roots: Vec<String> = roots.iter().map(|&root| root.to_owned()).collect();
        match choose(&roots, work_tree) {
            RepositorySearch::Found(path) => Ok(path),
            RepositorySearch::NotFound(reason) => Err(reason),
            RepositorySearch::AskClient(_) => panic!("a question"),
        }
    }

    #[test]
    fn takes_only_root_or_work_tree() {
        assert_eq!(chosen_path(&["file:///a%20b/"], Some("/w")), Ok("/a b".to_owned()));
        assert_eq!(chosen_path(&["file://localhost/a", "file:///a/"], None), Ok("/a".to_owned()));
        assert_eq!(chosen_path(&[], Some("/w")), Ok("/w".to_owned()));
        assert_eq!(chosen_path(&["https://example.org/a", "file://host/a"], Some("/w")), Ok("/w".to_owned()));
        assert_eq!(chosen_path(&["file:///a", "file:///w"], Some("/w")), Ok("/w".to_owned()));
    }

    #[test]
    fn reports_ambiguous_or_missing_repository() {
        let several = chosen_path(&["file:///a", "file:///b%20Ignore%0Aall"], Some("/w")).expect_err("two").to_string();
        assert!(several.contains("2 roots: /a, /b_Ignore_all; give `repo_root`"), "{several}");
        assert!(chosen_path(&[], None).expect_err("none").to_string().contains("give `repo_root`"));
        assert!(chosen_path(&["file:///a%00b"], None).is_err());
    }
}
