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

use super::answer::refusal;
use super::backend::Backend;
use super::called_off::{Calls, UnderWay};
use super::calls::Call;
use super::repository::{self, Found};
use super::resources;
use super::tools::{self, Tool};
use crate::caller::Caller;
use crate::service::Service;
use crate::shares::Shares;

/// Maximum number of concurrent tool calls and resource reads of one caller.
pub(super) const MAX_CALLS: usize = 256;

/// Instructions that agents get when they connect.
const INSTRUCTIONS: &str = include_str!("instructions.txt");

/// Access to the server: identifies the caller of a request and provides its backend.
pub(super) trait Door: Send + Sync + 'static {
    /// Backend of a caller.
    type Backend: Backend;

    /// Returns the caller of a request.
    fn caller(&self, extensions: &Extensions) -> Result<Caller, ErrorData>;

    /// Returns the backend of a caller.
    fn backend(&self, caller: Caller) -> Self::Backend;

    /// Returns the session of the server: the program that runs the checks, and the default repository.
    fn session(&self) -> &Session;

    /// Registers a call, so that a cancellation message finds it while the returned value exists. If a connection is
    /// a session, the SDK handles cancellation itself.
    fn follow(&self, context: &RequestContext<RoleServer>) -> Option<UnderWay> {
        let _ = context;
        None
    }
}

/// Properties of a server over stdio besides its backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// Repository around the working directory in which the client started the server. It is the default for calls
    /// without a repository if the client has no roots.
    pub work_tree: Option<String>,
    /// Sentence for the server's instructions that names the program that runs the checks.
    pub runs_by: Option<String>,
    /// `true` if the server can send requests to the client, which needs a session.
    pub can_ask: bool,
}

/// Access for a single caller, the user of this process, over stdio.
pub(super) struct Own<B> {
    pub(super) backend: B,
    pub(super) session: Session,
}

impl<B: Backend> Door for Own<B> {
    type Backend = B;

    fn caller(&self, _: &Extensions) -> Result<Caller, ErrorData> {
        Ok(Caller { uid: rustix::process::geteuid().as_raw() })
    }

    fn backend(&self, _: Caller) -> B {
        self.backend.clone()
    }

    fn session(&self) -> &Session {
        &self.session
    }
}

/// Access over a socket. The caller is identified for each request, because a connection is not a session.
pub(super) struct Socket {
    pub(super) service: Arc<Service>,
    pub(super) calls: Calls,
    pub(super) session: Session,
}

impl Door for Socket {
    type Backend = (Arc<Service>, Caller);

    fn caller(&self, extensions: &Extensions) -> Result<Caller, ErrorData> {
        let parts = extensions.get::<http::request::Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        caller.copied().ok_or_else(|| ErrorData::internal_error("it is not known who asks", None))
    }

    fn backend(&self, caller: Caller) -> Self::Backend {
        (Arc::clone(&self.service), caller)
    }

    fn session(&self) -> &Session {
        &self.session
    }

    fn follow(&self, context: &RequestContext<RoleServer>) -> Option<UnderWay> {
        self.calls.begin(context)
    }
}

/// The MCP server.
pub(super) struct Tools<D> {
    door: Arc<D>,
    calls: Arc<Shares>,
}

impl<D> Clone for Tools<D> {
    fn clone(&self) -> Self {
        Self { door: Arc::clone(&self.door), calls: Arc::clone(&self.calls) }
    }
}

impl<D: Door> Tools<D> {
    /// Creates a server for the callers of `door`.
    pub(super) fn new(door: D) -> Self {
        Self { door: Arc::new(door), calls: Arc::new(Shares::of(MAX_CALLS)) }
    }
}

impl<D: Door> ServerHandler for Tools<D> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let title = Implementation::new("proctor", env!("CARGO_PKG_VERSION")).with_title("Proctor");
        let runs_by = self.door.session().runs_by.as_ref().map(|by| format!("\n- {by}")).unwrap_or_default();
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
        Ok(ListToolsResult::with_all_items(tools::listed().to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let unknown = || ErrorData::invalid_params("there is no such tool; tools/list names them", None);
        let tool = Tool::named(&request.name).ok_or_else(unknown)?;
        let caller = self.door.caller(&context.extensions)?;
        let Some(_place) = self.calls.take(caller, 1) else { return Ok(overloaded().into()) };
        let backend = self.door.backend(caller);
        let _under_way = self.door.follow(&context);
        let mut arguments = request.arguments.unwrap_or_default();
        if tool.lacks_repository(&arguments) {
            let answers = request.input_responses.as_ref();
            match repository::find(&context, answers, self.door.session()).await {
                Found::At(path) => drop(arguments.insert("repo_root".to_owned(), path.into())),
                Found::Ask(question) => return Ok(question.into()),
                Found::Unknown(reason) => return Ok(refusal(format!("NOT VERIFIED: {reason}")).into()),
            }
        }
        let call = Call { backend: &backend, context: &context };
        // Without this, a panic would leave the client waiting forever.
        let called = AssertUnwindSafe(call.of(tool, Some(arguments))).catch_unwind().await;
        Ok(called.unwrap_or_else(|_| broken()).into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let backend = self.door.backend(self.door.caller(&context.extensions)?);
        resources::list(&backend, request.and_then(|request| request.cursor)).await
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
        let caller = self.door.caller(&context.extensions)?;
        let Some(_place) = self.calls.take(caller, 1) else {
            return Err(ErrorData::internal_error("too many calls of yours are under way; try again later", None));
        };
        resources::read(&self.door.backend(caller), &request.uri).await.map(Into::into)
    }
}

fn overloaded() -> CallToolResult {
    refusal(format!("NOT VERIFIED: {MAX_CALLS} calls of yours are under way already; try again later."))
}

fn broken() -> CallToolResult {
    refusal("NOT VERIFIED: an internal operation failed. The log of Proctor has the details.".to_owned())
}
