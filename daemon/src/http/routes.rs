//! Builds the routes from the table of operations. Every error is a problem.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use http::{HeaderValue, Method as HttpMethod};
use proctor_core::api::operation::{Method, Operation, OperationDescription};
use proctor_core::api::{Problem, ProblemType};
use proctor_core::spec::quoted;
use tower::ServiceExt;

use super::app_state::AppState;
use super::query_parameters::invalid_request;
use super::request_head::RequestHead;
use super::{handlers, response};
use crate::mcp;

/// All methods of all operations, for `OPTIONS *`.
const ALL_METHODS: HeaderValue = HeaderValue::from_static("GET,HEAD,POST,DELETE,OPTIONS");

/// Path of the MCP endpoint.
const MCP_PATH: &str = "/mcp";

/// Pattern of the matched route, for metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatchedRoute(pub(super) &'static str);

/// Builds the router.
pub(super) fn router(app: AppState) -> Router {
    let routes = OperationDescription::ALL.iter().fold(Router::new(), |router, outline| {
        let router = router.route(outline.path, route(outline));
        match alias(outline) {
            Some(path) => router.route(&path, route(outline)),
            None => router,
        }
    });
    let mcp = mcp::http_service(Arc::clone(&app.service), app.stop.clone());
    let mcp = ServiceExt::<Request>::map_response(mcp, |mut response: Response| {
        response.extensions_mut().insert(MatchedRoute(MCP_PATH));
        response
    });
    let routes = routes.method_not_allowed_fallback(method_not_allowed).fallback(path_not_found);
    routes.with_state(Arc::new(app)).route_service(MCP_PATH, mcp)
}

/// Returns the second path of an operation: the key of a document (`verify/NAME`) without an escaped slash.
fn alias(outline: &OperationDescription) -> Option<String> {
    (outline.operation == Operation::ReadEvidence).then(|| outline.path.replace("{file}", "verify/{file}"))
}

fn route(outline: &'static OperationDescription) -> MethodRouter<Arc<AppState>> {
    let filter = match outline.method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    };
    on(filter, move |State(app): State<Arc<AppState>>, path: PathParams, request: Request| async move {
        respond(&app, outline, path, request).await
    })
}

type PathParams = Result<RawPathParams, RawPathParamsRejection>;

async fn respond(
    app: &AppState,
    outline: &'static OperationDescription,
    path: PathParams,
    request: Request,
) -> Response {
    let head = path
        .map_err(|error| invalid_request(format!("the path cannot be read: {error}")))
        .and_then(|path| RequestHead::from_request(outline, path, request));
    let answered = match head {
        // The future is on the heap: it is as large as the largest of all operations, and the router moves the future
        // of a route.
        Ok((head, body)) => Box::pin(handlers::handle(app, outline.operation, &head, body)).await,
        Err(problem) => Err(problem),
    };
    let mut response = answered.unwrap_or_else(|problem| response::problem_response(&problem));
    response.extensions_mut().insert(MatchedRoute(outline.path));
    response
}

/// Responds to a method that the path does not support. The router adds `Allow` with the supported ones.
async fn method_not_allowed(request: Request) -> Response {
    if request.method() == HttpMethod::OPTIONS {
        return response::allowed_methods(None);
    }
    let (method, path) = (quoted(request.method().as_str()), quoted(request.uri().path()));
    response::problem_response(&Problem::new(
        ProblemType::MethodNotAllowed,
        format!("{path} does not support {method}"),
    ))
}

async fn path_not_found(request: Request) -> Response {
    if request.method() == HttpMethod::OPTIONS && request.uri().path() == "*" {
        return response::allowed_methods(Some(ALL_METHODS));
    }
    let problem = Problem::new(ProblemType::NotFound, format!("there is nothing at {}", quoted(request.uri().path())));
    response::problem_response(&problem.with_hint("`GET /openapi.json` describes all paths"))
}
