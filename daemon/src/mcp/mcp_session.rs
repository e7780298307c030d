//! Properties of a server over stdio that do not change between requests.

/// Properties of a server over stdio besides its backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct McpSession {
    /// Repository around the working directory in which the client started the server. It is the default for calls
    /// without a repository if the client has no roots.
    pub work_tree: Option<String>,
    /// Sentence for the server's instructions that names the program that runs the checks.
    pub runs_by: Option<String>,
    /// `true` if the server can send requests to the client, which needs a session.
    pub can_send_requests: bool,
}
