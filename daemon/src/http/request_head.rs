//! A request as handlers see it, without the body. Its parts are parsed on demand.

use axum::body::Body;
use axum::extract::{RawPathParams, Request};
use http::{HeaderMap, HeaderName};
use proctor_core::api::operation::OperationDescription;
use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::names::RunId;
use proctor_core::spec::quoted;
use serde::de::DeserializeOwned;

use super::limits::MAX_BODY;
use super::query_parameters::{QueryParameters, invalid_request};
use super::request_body;
use crate::caller::Caller;

/// A request without its body.
pub(super) struct RequestHead {
    pub(super) caller: Caller,
    pub(super) query: QueryParameters,
    pub(super) headers: HeaderMap,
    path: RawPathParams,
}

impl RequestHead {
    /// Splits a request into its head and body.
    ///
    /// # Errors
    /// The query contains a parameter that the operation does not have.
    pub(super) fn from_request(
        outline: &'static OperationDescription,
        path: RawPathParams,
        request: Request,
    ) -> Result<(Self, Body), Problem> {
        let (parts, body) = request.into_parts();
        let Some(caller) = parts.extensions.get::<Caller>().copied() else {
            return Err(Problem::new(ProblemType::Internal, "the caller of a request is not known"));
        };
        let head = Self {
            caller,
            query: QueryParameters::from_uri(&parts.uri, outline.query_parameter_names())?,
            headers: parts.headers,
            path,
        };
        Ok((head, body))
    }

    /// Returns a segment of the path.
    pub(super) fn segment(&self, name: &str) -> &str {
        self.path.iter().find(|(found, _)| *found == name).map_or("", |(_, value)| value)
    }

    /// Returns the run that the path names.
    ///
    /// # Errors
    /// The segment is not a valid run id.
    pub(super) fn run_id(&self) -> Result<RunId, Problem> {
        let id = self.segment("id");
        RunId::new(id).map_err(|_| Problem::new(ProblemType::NotFound, format!("there is no run {}", quoted(id))))
    }

    /// Returns the single value of a header.
    ///
    /// # Errors
    /// The header occurs several times or is not text.
    pub(super) fn header(&self, name: &HeaderName) -> Result<Option<&str>, Problem> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next();
        if values.next().is_some() {
            return Err(invalid_request(format!("the header `{name}` occurs twice")));
        }
        let text =
            value.map(|value| value.to_str().map_err(|_| invalid_request(format!("the header `{name}` is not text"))));
        text.transpose()
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// The body is late, incomplete or invalid, or does not match the type.
    pub(super) async fn read_json<T: DeserializeOwned>(&self, body: Body) -> Result<T, Problem> {
        self.read_json_limited(body, MAX_BODY).await
    }

    /// Reads a body of at most `most` bytes as JSON.
    ///
    /// # Errors
    /// As [`RequestHead::read_json`].
    pub(super) async fn read_json_limited<T: DeserializeOwned>(
        &self,
        body: Body,
        max_bytes: usize,
    ) -> Result<T, Problem> {
        request_body::read_json(&self.headers, body, max_bytes).await
    }
}
