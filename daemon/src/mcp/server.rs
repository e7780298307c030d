//! The protocol's side: who may call, what is listed, and what becomes of a call.

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

/// How many calls of tools and readings of resources of one caller are under way at once.
pub(super) const MAX_CALLS: usize = 256;

/// What agents are told when they connect.
const INSTRUCTIONS: &str = include_str!("instructions.txt");

/// Who asks, told by a request.
pub(super) trait Door: Send + Sync + 'static {
    /// Who runs things for that caller.
    type Backend: Backend;

    /// Whoever sent a request.
    fn caller(&self, extensions: &Extensions) -> Result<Caller, ErrorData>;

    /// That caller's backend.
    fn backend(&self, caller: Caller) -> Self::Backend;

    /// The session of the server: who runs the checks, and for which repository by default.
    fn session(&self) -> &Session;

    /// Has a call found by a message that calls it off, as long as what is answered is held. Where a
    /// connection is a session, the SDK does that.
    fn follow(&self, context: &RequestContext<RoleServer>) -> Option<UnderWay> {
        let _ = context;
        None
    }
}

/// What a server over stdio knows beyond its backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    /// The repository around the working directory in which the client started the server. A call that
    /// names no repository works on it where the client has no roots.
    pub work_tree: Option<String>,
    /// Names the program that runs the checks, as one sentence for the server's instructions.
    pub runs_by: Option<String>,
    /// Whether requests of the server's own reach the client: a session is needed for that.
    pub can_ask: bool,
}

/// One caller, whoever started us: for stdio.
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

/// Whoever is at the other end of a connection. Asked for each request: a connection is not a session.
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

/// The server.
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
    /// A server for whoever comes through `door`.
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
        // A call whose panic nobody hears would leave its client waiting for ever.
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
