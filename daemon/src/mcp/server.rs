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
use tokio::sync::Semaphore;

use super::answer::refusal;
use super::backend::Backend;
use super::called_off::{Calls, UnderWay};
use super::calls::Call;
use super::resources;
use super::tools::{self, Tool};
use crate::caller::Caller;
use crate::service::Service;

/// How many calls of tools and readings of resources are under way at once.
pub(super) const MAX_CALLS: usize = 256;

/// What agents are told when they connect.
const INSTRUCTIONS: &str = include_str!("instructions.txt");

/// Who asks, told by a request.
pub(super) trait Door: Send + Sync + 'static {
    /// Who runs things for that caller.
    type Backend: Backend;

    /// The backend of whoever sent a request.
    fn enter(&self, extensions: &Extensions) -> Result<Self::Backend, ErrorData>;

    /// Has a call found by a message that calls it off, as long as what is answered is held. Where a
    /// connection is a session, the SDK does that.
    fn follow(&self, context: &RequestContext<RoleServer>) -> Option<UnderWay> {
        let _ = context;
        None
    }
}

/// One caller, whoever started us: for stdio.
pub(super) struct Own<B>(pub(super) B);

impl<B: Backend> Door for Own<B> {
    type Backend = B;

    fn enter(&self, _: &Extensions) -> Result<B, ErrorData> {
        Ok(self.0.clone())
    }
}

/// Whoever is at the other end of a connection. Asked for each request: a connection is not a session.
pub(super) struct Socket {
    pub(super) service: Arc<Service>,
    pub(super) calls: Calls,
}

impl Door for Socket {
    type Backend = (Arc<Service>, Caller);

    fn enter(&self, extensions: &Extensions) -> Result<Self::Backend, ErrorData> {
        let parts = extensions.get::<http::request::Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        let caller = caller.ok_or_else(|| ErrorData::internal_error("it is not known who asks", None))?;
        Ok((Arc::clone(&self.service), *caller))
    }

    fn follow(&self, context: &RequestContext<RoleServer>) -> Option<UnderWay> {
        self.calls.begin(context)
    }
}

/// The server.
pub(super) struct Tools<D> {
    door: Arc<D>,
    calls: Arc<Semaphore>,
}

impl<D> Clone for Tools<D> {
    fn clone(&self) -> Self {
        Self { door: Arc::clone(&self.door), calls: Arc::clone(&self.calls) }
    }
}

impl<D: Door> Tools<D> {
    /// A server for whoever comes through `door`.
    pub(super) fn new(door: D) -> Self {
        Self { door: Arc::new(door), calls: Arc::new(Semaphore::new(MAX_CALLS)) }
    }
}

impl<D: Door> ServerHandler for Tools<D> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let title = Implementation::new("proctor", env!("CARGO_PKG_VERSION")).with_title("Proctor");
        ServerConfig::new(capabilities).with_server_info(title).with_instructions(INSTRUCTIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Listed> {
        tools::listed().iter().find(|tool| tool.name == name).cloned()
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
        let backend = self.door.enter(&context.extensions)?;
        let Ok(_place) = self.calls.try_acquire() else { return Ok(overloaded().into()) };
        let _under_way = self.door.follow(&context);
        let call = Call { backend: &backend, context: &context };
        // A call whose panic nobody hears would leave its client waiting for ever.
        let called = AssertUnwindSafe(call.of(tool, request.arguments)).catch_unwind().await;
        Ok(called.unwrap_or_else(|_| broken()).into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let backend = self.door.enter(&context.extensions)?;
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
        let backend = self.door.enter(&context.extensions)?;
        let Ok(_place) = self.calls.try_acquire() else {
            return Err(ErrorData::internal_error("too many calls are under way; try again later", None));
        };
        resources::read(&backend, &request.uri).await.map(Into::into)
    }
}

fn overloaded() -> CallToolResult {
    refusal(format!("NOT VERIFIED: {MAX_CALLS} calls are under way already; try again later."))
}

fn broken() -> CallToolResult {
    refusal("NOT VERIFIED: something of proctor's own failed. Its log says what.".to_owned())
}
