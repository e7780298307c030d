//! Implements the protocol handler: identifies the caller, lists tools and resources, and dispatches calls.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Extensions, Implementation, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, Tool as Listed,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use super::backend::Backend;
use super::cancellation::{ActiveCall, ActiveCalls};
use super::default_repository::{self, RepositorySearch};
use super::mcp_session::McpSession;
use super::resources;
use super::tool_answer::error_result;
use super::tool_calls::ToolCall;
use super::tools::{self, McpTool};
use crate::caller::Caller;
use crate::caller_limits::CallerShares;
use crate::service::Service;

/// Maximum number of concurrent tool calls and resource reads of one caller.
pub(super) const MAX_CALLS: usize = 256;

/// Instructions that agents get when they connect.
const INSTRUCTIONS: &str = include_str!("instructions.txt");

/// Access to the server: identifies the caller of a request and provides its backend.
pub(super) trait ServerAccess: Send + Sync + 'static {
    /// Backend of a caller.
    type Backend: Backend;

    /// Returns the caller of a request.
    fn caller(&self, extensions: &Extensions) -> Result<Caller, ErrorData>;

    /// Returns the backend of a caller.
    fn backend(&self, caller: Caller) -> Self::Backend;

    /// Returns the session of the server: the program that runs the checks, and the default repository.
    fn session(&self) -> &McpSession;

    /// Registers a call, so that a cancellation message finds it while the returned value exists. If a connection is
    /// a session, the SDK handles cancellation itself.
    fn register_call(&self, context: &RequestContext<RoleServer>) -> Option<ActiveCall> {
        let _ = context;
        None
    }
}

/// Access for a single caller, the user of this process, over stdio.
pub(super) struct StdioAccess<B> {
    pub(super) backend: B,
    pub(super) session: McpSession,
}

impl<B: Backend> ServerAccess for StdioAccess<B> {
    type Backend = B;

    fn caller(&self, _: &Extensions) -> Result<Caller, ErrorData> {
        Ok(Caller { uid: rustix::process::geteuid().as_raw() })
    }

    fn backend(&self, _: Caller) -> B {
        self.backend.clone()
    }

    fn session(&self) -> &McpSession {
        &self.session
    }
}

/// Access over a socket. The caller is identified for each request, because a connection is not a session.
pub(super) struct SocketAccess {
    pub(super) service: Arc<Service>,
    pub(super) calls: ActiveCalls,
    pub(super) session: McpSession,
}

impl ServerAccess for SocketAccess {
    type Backend = (Arc<Service>, Caller);

    fn caller(&self, extensions: &Extensions) -> Result<Caller, ErrorData> {
        let parts = extensions.get::<http::request::Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        caller.copied().ok_or_else(|| ErrorData::internal_error("the caller is unknown", None))
    }

    fn backend(&self, caller: Caller) -> Self::Backend {
        (Arc::clone(&self.service), caller)
    }

    fn session(&self) -> &McpSession {
        &self.session
    }

    fn register_call(&self, context: &RequestContext<RoleServer>) -> Option<ActiveCall> {
        self.calls.register(context)
    }
}

/// The MCP server.
pub(super) struct McpServer<D> {
    access: Arc<D>,
    calls: Arc<CallerShares>,
}

impl<D> Clone for McpServer<D> {
    fn clone(&self) -> Self {
        Self { access: Arc::clone(&self.access), calls: Arc::clone(&self.calls) }
    }
}

impl<D: ServerAccess> McpServer<D> {
    /// Creates a server for the callers of `access`.
    pub(super) fn new(access: D) -> Self {
        Self { access: Arc::new(access), calls: Arc::new(CallerShares::new(MAX_CALLS)) }
    }
}

impl<D: ServerAccess> ServerHandler for McpServer<D> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let title = Implementation::new("proctor", env!("CARGO_PKG_VERSION")).with_title("Proctor");
        let runs_by = self.access.session().runs_by.as_ref().map(|by| format!("\n- {by}")).unwrap_or_default();
        let instructions = format!("{}{runs_by}", INSTRUCTIONS.trim_end());
        ServerConfig::new(capabilities).with_server_info(title).with_instructions(instructions)
    }

    fn get_tool(&self, name: &str) -> Option<Listed> {
        tools::find_listed(name).cloned()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::listed_tools().to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let unknown = || ErrorData::invalid_params("there is no such tool; tools/list lists the tools", None);
        let tool = McpTool::from_name(&request.name).ok_or_else(unknown)?;
        let caller = self.access.caller(&context.extensions)?;
        let Some(_permit) = self.calls.try_acquire(caller, 1) else { return Ok(too_many_calls().into()) };
        let backend = self.access.backend(caller);
        let _under_way = self.access.register_call(&context);
        let mut arguments = request.arguments.unwrap_or_default();
        if tool.lacks_repository(&arguments) {
            let answers = request.input_responses.as_ref();
            match default_repository::find(&context, answers, self.access.session()).await {
                RepositorySearch::Found(path) => drop(arguments.insert("repo_root".to_owned(), path.into())),
                RepositorySearch::AskClient(question) => return Ok(question.into()),
                RepositorySearch::NotFound(reason) => return Ok(error_result(format!("NOT VERIFIED: {reason}")).into()),
            }
        }
        let call = ToolCall { backend: &backend, context: &context };
        // Without this, a panic would leave the client waiting forever.
        let called = AssertUnwindSafe(call.execute(tool, Some(arguments))).catch_unwind().await;
        Ok(called.unwrap_or_else(|_| internal_error()).into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let backend = self.access.backend(self.access.caller(&context.extensions)?);
        resources::list_resources(&backend, request.and_then(|request| request.cursor)).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let caller = self.access.caller(&context.extensions)?;
        let Some(_permit) = self.calls.try_acquire(caller, 1) else {
            return Err(ErrorData::internal_error("too many of your calls are in progress; try again later", None));
        };
        resources::read_resource(&self.access.backend(caller), &request.uri).await.map(Into::into)
    }
}

fn too_many_calls() -> CallToolResult {
    error_result(format!("NOT VERIFIED: {MAX_CALLS} of your calls are already in progress; try again later."))
}

fn internal_error() -> CallToolResult {
    error_result("NOT VERIFIED: an internal operation failed. The log of Proctor has the details.".to_owned())
}
