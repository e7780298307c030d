//! One request as handlers get it, without its body: who asks, and each part of it read on demand.

use axum::body::Body;
use axum::extract::{RawPathParams, Request};
use http::{HeaderMap, HeaderName};
use proctor_core::api::operation::Outline;
use proctor_core::api::{Problem, ProblemType};
use proctor_core::names::RunId;
use proctor_core::spec::quoted;
use serde::de::DeserializeOwned;

use super::query::{Parameters, invalid};
use super::{MAX_BODY, body};
use crate::caller::Caller;

/// One request.
pub(super) struct Asked {
    pub(super) caller: Caller,
    pub(super) query: Parameters,
    pub(super) headers: HeaderMap,
    path: RawPathParams,
}

impl Asked {
    /// What of a request can be read without its body; and that, as it comes.
    ///
    /// # Errors
    /// Its query has what this operation does not know.
    pub(super) fn of(
        outline: &'static Outline,
        path: RawPathParams,
        request: Request,
    ) -> Result<(Self, Body), Problem> {
        let (parts, body) = request.into_parts();
        let Some(caller) = parts.extensions.get::<Caller>().copied() else {
            return Err(Problem::new(ProblemType::Internal, "the caller of a request is not known"));
        };
        let asked = Self { caller, query: Parameters::of(&parts.uri, outline.query())?, headers: parts.headers, path };
        Ok((asked, body))
    }

    /// A part of the path.
    pub(super) fn segment(&self, name: &str) -> &str {
        self.path.iter().find(|(found, _)| *found == name).map_or("", |(_, value)| value)
    }

    /// The run that the path names.
    ///
    /// # Errors
    /// What stands there is the id of no run.
    pub(super) fn run(&self) -> Result<RunId, Problem> {
        let id = self.segment("id");
        RunId::new(id).map_err(|_| Problem::new(ProblemType::NotFound, format!("there is no run {}", quoted(id))))
    }

    /// The only value of a header.
    ///
    /// # Errors
    /// There are several, or it is no text.
    pub(super) fn header(&self, name: &HeaderName) -> Result<Option<&str>, Problem> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next();
        if values.next().is_some() {
            return Err(invalid(format!("the header `{name}` occurs twice")));
        }
        let text = value.map(|value| value.to_str().map_err(|_| invalid(format!("the header `{name}` is no text"))));
        text.transpose()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// It is not there in time, not whole, or not what was asked for.
    pub(super) async fn json<T: DeserializeOwned>(&self, body: Body) -> Result<T, Problem> {
        self.json_within(body, MAX_BODY).await
    }

    /// Reads the body as JSON, of `most` bytes at most.
    ///
    /// # Errors
    /// As [`Asked::json`].
    pub(super) async fn json_within<T: DeserializeOwned>(&self, body: Body, most: usize) -> Result<T, Problem> {
        body::json(&self.headers, body, most).await
    }
}
