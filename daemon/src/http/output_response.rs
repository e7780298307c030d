//! Serves outputs and reports of steps and checks as byte ranges. A long output is sent while it is read: each reader
//! has one part in memory, and only a few readers at a time have large parts.

use std::io;
use std::ops::Range as Bounds;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use futures_util::stream;
use http::StatusCode;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue};
use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::names::RunId;
use proctor_core::model::plan::ReportFormat;
use proctor_core::spec::quoted;
use proctor_runner::{LiveStream, StreamState};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::app_state::AppState;
use super::byte_range::RequestedRange;
use super::metered_body::MAX_SLICE_BYTES;
use super::query_parameters::{invalid_request, parse_number};
use super::request_head::RequestHead;
use super::response::{self, HandlerResult, not_found};
use crate::caller::Caller;
use crate::service::{MAX_PART, OutputId, OutputSource, OutputUnit, ReportId, Service, StdStream, read_live};

/// Size of the first part, and of each part while no permit for a large part is available. A client that does not
/// read never gets more than this into memory.
const SMALL_PART_BYTES: usize = 256 << 10;
/// Permits for parts larger than [`SMALL_PART_BYTES`] in memory.
static LARGE_PARTS: Semaphore = Semaphore::const_new(16);

/// Content type of text.
const TEXT_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Content type of bytes that may not be text.
const BINARY_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Response header with the state of an output: `running` while its step runs, then `ended`.
pub(crate) const OUTPUT_STATE_HEADER: HeaderName = HeaderName::from_static("proctor-output-state");
/// Response header with the number of the attempt that produces the output, from 1.
pub(crate) const ATTEMPT_HEADER: HeaderName = HeaderName::from_static("proctor-attempt");
const RUNNING: HeaderValue = HeaderValue::from_static("running");
const ENDED: HeaderValue = HeaderValue::from_static("ended");

/// Requested bytes.
#[derive(Clone, Copy)]
pub(super) enum RequestedOutput {
    Output(OutputId),
    Report(ReportId),
}

/// Source of the parts.
enum OutputBodySource {
    Output(OutputSource),
    Report(ReportId),
}

/// Responds with the requested range.
///
/// # Errors
/// The output or report does not exist.
pub(super) async fn read_output(app: &AppState, head: &RequestHead, requested: RequestedOutput) -> HandlerResult {
    let (run, range) = (head.run_id()?, RequestedRange::from_request(head)?);
    let source = match requested {
        RequestedOutput::Report(report) => OutputBodySource::Report(report),
        RequestedOutput::Output(output) if wants_follow(head)? => match followed_source(app, head, &run, output).await?
        {
            OutputSource::Live { attempt, stream } => {
                return Ok(follow_response(app, attempt, stream, range.probable_start()));
            }
            recorded @ OutputSource::Recorded { .. } => OutputBodySource::Output(recorded),
        },
        RequestedOutput::Output(output) => {
            OutputBodySource::Output(app.service.output_source(head.caller, &run, output).await?)
        }
    };
    let output = ServedOutput { service: Arc::clone(&app.service), caller: head.caller, run, source };
    // Every part includes the total length of the output.
    let (mut first, length) = output.read_part(range.probable_start(), SMALL_PART_BYTES).await?;
    let Some(wanted) = range.resolve(length) else { return Ok(unsatisfiable(length)) };
    if wanted.start != range.probable_start().min(length) {
        first = output.read_part(wanted.start, SMALL_PART_BYTES).await?.0;
    }
    first.truncate(to_usize(wanted.end - wanted.start));
    Ok(range_response(output, wanted, length, first))
}

/// Returns whether the request follows the output until the attempt ends.
///
/// # Errors
/// `follow` is neither `true` nor `false`, or the request also has a range with an end.
fn wants_follow(head: &RequestHead) -> Result<bool, Problem> {
    let follow = head.query.parse_with("follow", "`true` or `false`", |text| match text {
        // `?follow` without a value.
        "" => Some(true),
        text => text.parse::<bool>().ok(),
    })?;
    let follow = follow.unwrap_or(false);
    let has_end = head.query.text("limit").is_some() || head.headers.contains_key(http::header::RANGE);
    if follow && has_end {
        return Err(invalid_request(
            "`follow` reads to the end of the output, so it can be combined only with `offset`".to_owned(),
        ));
    }
    Ok(follow)
}

async fn followed_source(
    app: &AppState,
    head: &RequestHead,
    run: &RunId,
    output: OutputId,
) -> Result<OutputSource, Problem> {
    tokio::select! {
        biased;
        found = app.service.followed_output(head.caller, run, output) => found,
        () = app.stop.cancelled() => app.service.output_source(head.caller, run, output).await,
    }
}

/// Sends the output of an attempt from `offset` on as it is produced. The body ends with the output. If the rest of
/// the output cannot be sent, the body is aborted instead.
fn follow_response(app: &AppState, attempt: u32, stream: LiveStream, offset: u64) -> Response {
    let following = LiveOutputBody { stream, next_offset: offset, stop: app.stop.clone() };
    let body = stream::try_unfold(following, async |mut following| {
        let slice = following.next_slice().await?;
        Ok::<_, io::Error>(slice.map(|slice| (slice, following)))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, BINARY_CONTENT_TYPE);
    headers.insert(OUTPUT_STATE_HEADER, RUNNING);
    headers.insert(ATTEMPT_HEADER, attempt.into());
    response
}

/// State of a response that follows an output.
struct LiveOutputBody {
    stream: LiveStream,
    next_offset: u64,
    stop: CancellationToken,
}

impl LiveOutputBody {
    /// Waits for and returns the next bytes, or `None` at the end.
    async fn next_slice(&mut self) -> io::Result<Option<Bytes>> {
        let extent = tokio::select! {
            extent = self.stream.wait_beyond(self.next_offset) => extent,
            () = self.stop.cancelled() => return Err(io::Error::other("the daemon ends")),
        };
        if extent.length > self.next_offset {
            let bytes = read_live(&self.stream, self.next_offset, MAX_SLICE_BYTES).await?;
            self.next_offset += bytes.len() as u64;
            return Ok(Some(bytes.into()));
        }
        match extent.state {
            StreamState::Ended => Ok(None),
            StreamState::Open | StreamState::Broken => Err(io::Error::other("the rest of the output is lost")),
        }
    }
}

/// Returns the output that the path names.
///
/// # Errors
/// The path names no output.
pub(super) fn output_from_path(head: &RequestHead) -> Result<RequestedOutput, Problem> {
    let (unit, stream) = (head.segment("unit"), head.segment("stream"));
    let no_unit = || not_found(format!("a run has `steps` and `checks`, but no {}", quoted(unit)));
    let no_stream = || not_found(format!("a step has `stdout` and `stderr`, but no {}", quoted(stream)));
    let (unit, stream) =
        (OutputUnit::from_plural(unit).ok_or_else(no_unit)?, StdStream::from_name(stream).ok_or_else(no_stream)?);
    Ok(RequestedOutput::Output(OutputId { unit, n: step_number(head)?, stream }))
}

/// Returns the report that the path names.
///
/// # Errors
/// The path names no report.
pub(super) fn report_from_path(head: &RequestHead) -> Result<RequestedOutput, Problem> {
    let word = head.segment("format");
    let no_format = || not_found(format!("a step has reports `junit` and `sarif`, but no {}", quoted(word)));
    let format = ReportFormat::from_name(word).ok_or_else(no_format)?;
    Ok(RequestedOutput::Report(ReportId { n: step_number(head)?, format }))
}

fn step_number(head: &RequestHead) -> Result<u32, Problem> {
    let named = head.segment("n");
    let n = parse_number(named).and_then(|n| u32::try_from(n).ok());
    n.ok_or_else(|| not_found(format!("no step has the number {}", quoted(named))))
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn range_response(output: ServedOutput, wanted: Bounds<u64>, length: u64, first: Bytes) -> Response {
    let count = wanted.end - wanted.start;
    let is_text = first.len() as u64 == count && std::str::from_utf8(&first).is_ok();
    let next = wanted.start + first.len() as u64;
    let state = output.source.state();
    let body = match next == wanted.end {
        true => Body::from(first),
        false => OutputBody {
            output,
            next_offset: next,
            end: wanted.end,
            unsent: first,
            size: SMALL_PART_BYTES,
            large_permit: None,
        }
        .into_body(),
    };
    let mut response = Response::new(body);
    if count > 0 && count < length {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, if is_text { TEXT_CONTENT_TYPE } else { BINARY_CONTENT_TYPE });
    headers.insert(CONTENT_LENGTH, count.into());
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some((state, attempt)) = state {
        headers.insert(OUTPUT_STATE_HEADER, state);
        headers.extend(attempt.map(|attempt| (ATTEMPT_HEADER, attempt.into())));
    }
    if count < length {
        headers.insert(CONTENT_RANGE, content_range(&wanted, length));
    }
    response
}

fn content_range(part: &Bounds<u64>, length: u64) -> HeaderValue {
    let text = match part.is_empty() {
        true => format!("bytes */{length}"),
        false => format!("bytes {}-{}/{length}", part.start, part.end - 1),
    };
    // The text consists of digits and fixed characters, so it is a valid header value.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("bytes */*"))
}

fn unsatisfiable(length: u64) -> Response {
    let detail = format!("the output has {length} bytes, but none in that range");
    let mut response = response::problem_response(&Problem::new(ProblemType::RangeNotSatisfiable, detail));
    response.headers_mut().insert(CONTENT_RANGE, content_range(&(0..0), length));
    response
}

/// An output or report of a run.
struct ServedOutput {
    service: Arc<Service>,
    caller: Caller,
    run: RunId,
    source: OutputBodySource,
}

impl OutputBodySource {
    /// Returns the state of an output and, while the step runs, the number of the attempt.
    fn state(&self) -> Option<(HeaderValue, Option<u32>)> {
        match self {
            Self::Report(_) => None,
            Self::Output(OutputSource::Recorded { .. }) => Some((ENDED, None)),
            Self::Output(OutputSource::Live { attempt, .. }) => Some((RUNNING, Some(*attempt))),
        }
    }
}

impl ServedOutput {
    async fn read_part(&self, offset: u64, limit: usize) -> Result<(Bytes, u64), Problem> {
        let (part, length) = match &self.source {
            OutputBodySource::Output(source) => self.service.output_part(source, offset, limit).await?,
            OutputBodySource::Report(of) => self.service.report(self.caller, &self.run, *of, offset, limit).await?,
        };
        Ok((part.bytes.into(), length))
    }
}

/// State of a response that sends an output.
struct OutputBody {
    output: ServedOutput,
    /// Offset of the next part to read.
    next_offset: u64,
    end: u64,
    /// Bytes that were read but not sent.
    unsent: Bytes,
    size: usize,
    large_permit: Option<SemaphorePermit<'static>>,
}

impl OutputBody {
    fn into_body(self) -> Body {
        Body::from_stream(stream::try_unfold(self, async |mut sending| {
            let slice = sending.next_slice().await?;
            Ok::<_, io::Error>(slice.map(|slice| (slice, sending)))
        }))
    }

    /// Returns the next bytes to send, or `None` at the end.
    async fn next_slice(&mut self) -> io::Result<Option<Bytes>> {
        if self.unsent.is_empty() && self.next_offset < self.end {
            self.read_next().await?;
        }
        if self.unsent.is_empty() {
            return Ok(None);
        }
        // Copies the slice, so that a slow client does not keep the whole part in memory.
        let slice = Bytes::copy_from_slice(&self.unsent[..self.unsent.len().min(MAX_SLICE_BYTES)]);
        self.unsent.advance(slice.len());
        Ok(Some(slice))
    }

    async fn read_next(&mut self) -> io::Result<()> {
        (self.unsent, self.large_permit) = (Bytes::new(), None);
        self.size = (self.size * 2).min(MAX_PART);
        self.large_permit = LARGE_PARTS.try_acquire().ok();
        let size = if self.large_permit.is_some() { self.size } else { SMALL_PART_BYTES };
        let limit = size.min(to_usize(self.end - self.next_offset));
        let part =
            self.output.read_part(self.next_offset, limit).await.map_err(|problem| io::Error::other(problem.detail))?;
        if part.0.is_empty() {
            return Err(io::Error::other("the output is no longer stored"));
        }
        self.unsent = part.0;
        self.next_offset += self.unsent.len() as u64;
        Ok(())
    }
}
