//! Builds the routes from the table of operations. Every error is a problem.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use http::{HeaderValue, Method as HttpMethod};
use proctor_core::api::operation::{Method, Operation, Outline};
use proctor_core::api::{Problem, ProblemType};
use proctor_core::spec::quoted;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::asked::Asked;
use super::documents::Documents;
use super::query::invalid;
use super::{answer, handlers};
use crate::mcp;
use crate::metrics::Metrics;
use crate::service::Service;

/// All methods of all operations, for `OPTIONS *`.
const METHODS: HeaderValue = HeaderValue::from_static("GET,HEAD,POST,DELETE,OPTIONS");

/// Path of the MCP endpoint.
const MCP: &str = "/mcp";

/// State that handlers use.
pub(super) struct App {
    pub(super) service: Arc<Service>,
    pub(super) metrics: Metrics,
    pub(super) stop: CancellationToken,
    pub(super) documents: Documents,
}

/// Pattern of the matched route, for metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Routed(pub(super) &'static str);

/// Builds the router.
pub(super) fn router(app: App) -> Router {
    let routes = Outline::ALL.iter().fold(Router::new(), |router, outline| {
        let router = router.route(outline.path, route(outline));
        match alias(outline) {
            Some(path) => router.route(&path, route(outline)),
            None => router,
        }
    });
    let mcp = mcp::http_service(Arc::clone(&app.service), app.stop.clone());
    let mcp = ServiceExt::<Request>::map_response(mcp, |mut response: Response| {
        response.extensions_mut().insert(Routed(MCP));
        response
    });
    let routes = routes.method_not_allowed_fallback(other_method).fallback(other_path);
    routes.with_state(Arc::new(app)).route_service(MCP, mcp)
}

/// Returns the second path of an operation: the key of a document (`verify/NAME`) without an escaped slash.
fn alias(outline: &Outline) -> Option<String> {
    (outline.operation == Operation::ReadEvidence).then(|| outline.path.replace("{file}", "verify/{file}"))
}

fn route(outline: &'static Outline) -> MethodRouter<Arc<App>> {
    let filter = match outline.method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    };
    on(filter, move |State(app): State<Arc<App>>, path: PathParams, request: Request| async move {
        respond(&app, outline, path, request).await
    })
}

type PathParams = Result<RawPathParams, RawPathParamsRejection>;

async fn respond(app: &App, outline: &'static Outline, path: PathParams, request: Request) -> Response {
    let asked = path
        .map_err(|error| invalid(format!("the path cannot be read: {error}")))
        .and_then(|path| Asked::of(outline, path, request));
    let answered = match asked {
        // On the heap: it is as large as the largest of all operations, and the router moves the future of a route.
        Ok((asked, body)) => Box::pin(handlers::answer(app, outline.operation, &asked, body)).await,
        Err(problem) => Err(problem),
    };
    let mut response = answered.unwrap_or_else(|problem| answer::problem(&problem));
    response.extensions_mut().insert(Routed(outline.path));
    response
}

/// Responds to a method that the path does not support. The router adds `Allow` with the supported ones.
async fn other_method(request: Request) -> Response {
    if request.method() == HttpMethod::OPTIONS {
        return answer::nothing_but_methods(None);
    }
    let (method, path) = (quoted(request.method().as_str()), quoted(request.uri().path()));
    answer::problem(&Problem::new(ProblemType::MethodNotAllowed, format!("{path} is not for {method}")))
}

async fn other_path(request: Request) -> Response {
    if request.method() == HttpMethod::OPTIONS && request.uri().path() == "*" {
        return answer::nothing_but_methods(Some(METHODS));
    }
    let problem = Problem::new(ProblemType::NotFound, format!("there is nothing at {}", quoted(request.uri().path())));
    answer::problem(&problem.with_hint("`GET /openapi.json` describes all paths"))
}
