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
use proctor_core::names::RunId;
use proctor_core::plan::ReportFormat;
use proctor_core::spec::quoted;
use proctor_runner::{LiveStream, StreamState};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::answer::{self, Answer};
use super::asked::Asked;
use super::handlers::nothing;
use super::metered::SLICE;
use super::query::{invalid, number};
use super::range::Range;
use super::routes::App;
use crate::caller::Caller;
use crate::service::{MAX_PART, OutputOf, OutputSource, ReportOf, Service, Stdio, Unit, read_live};

/// Size of the first part, and of each part while no permit for a large part is available. A client that does not
/// read never gets more than this into memory.
const SMALL_PART: usize = 256 << 10;
/// Permits for parts larger than [`SMALL_PART`] in memory.
static LARGE_PARTS: Semaphore = Semaphore::const_new(16);

/// Content type of text.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Content type of bytes that may not be text.
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Response header with the state of an output: `running` while its step runs, then `ended`.
pub(crate) const OUTPUT_STATE: HeaderName = HeaderName::from_static("proctor-output-state");
/// Response header with the number of the attempt that produces the output, from 1.
pub(crate) const ATTEMPT: HeaderName = HeaderName::from_static("proctor-attempt");
const RUNNING: HeaderValue = HeaderValue::from_static("running");
const ENDED: HeaderValue = HeaderValue::from_static("ended");

/// Requested bytes.
#[derive(Clone, Copy)]
pub(super) enum Of {
    Output(OutputOf),
    Report(ReportOf),
}

/// Source of the parts.
enum Source {
    Output(OutputSource),
    Report(ReportOf),
}

/// Responds with the requested range.
///
/// # Errors
/// The output or report does not exist.
pub(super) async fn read(app: &App, asked: &Asked, of: Of) -> Answer {
    let (run, range) = (asked.run()?, Range::of(asked)?);
    let source = match of {
        Of::Report(of) => Source::Report(of),
        Of::Output(of) if follows(asked)? => match followed(app, asked, &run, of).await? {
            OutputSource::Live { attempt, stream } => return Ok(follow(app, attempt, stream, range.probable_start())),
            recorded @ OutputSource::Recorded { .. } => Source::Output(recorded),
        },
        Of::Output(of) => Source::Output(app.service.output_source(asked.caller, &run, of).await?),
    };
    let output = Output { service: Arc::clone(&app.service), caller: asked.caller, run, source };
    // Every part comes with the length of the whole.
    let (mut first, length) = output.part(range.probable_start(), SMALL_PART).await?;
    let Some(wanted) = range.within(length) else { return Ok(unsatisfiable(length)) };
    if wanted.start != range.probable_start().min(length) {
        first = output.part(wanted.start, SMALL_PART).await?.0;
    }
    first.truncate(to_usize(wanted.end - wanted.start));
    Ok(respond(output, wanted, length, first))
}

/// Returns whether the request follows the output until the attempt ends.
///
/// # Errors
/// `follow` is neither `true` nor `false`, or the request also has a range with an end.
fn follows(asked: &Asked) -> Result<bool, Problem> {
    let follow = asked.query.read("follow", "`true` or `false`", |text| match text {
        // `?follow` without a value.
        "" => Some(true),
        text => text.parse::<bool>().ok(),
    })?;
    let follow = follow.unwrap_or(false);
    let has_end = asked.query.text("limit").is_some() || asked.headers.contains_key(http::header::RANGE);
    if follow && has_end {
        return Err(invalid(
            "`follow` reads to the end of the output, so it can be combined only with `offset`".to_owned(),
        ));
    }
    Ok(follow)
}

async fn followed(app: &App, asked: &Asked, run: &RunId, of: OutputOf) -> Result<OutputSource, Problem> {
    tokio::select! {
        biased;
        found = app.service.followed_output(asked.caller, run, of) => found,
        () = app.stop.cancelled() => app.service.output_source(asked.caller, run, of).await,
    }
}

/// Sends the output of an attempt from `offset` on as it is produced. The body ends with the output. If the rest of
/// the output cannot be sent, the body is aborted instead.
fn follow(app: &App, attempt: u32, stream: LiveStream, offset: u64) -> Response {
    let following = Following { stream, next: offset, stop: app.stop.clone() };
    let body = stream::try_unfold(following, async |mut following| {
        let slice = following.slice().await?;
        Ok::<_, io::Error>(slice.map(|slice| (slice, following)))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, OCTETS);
    headers.insert(OUTPUT_STATE, RUNNING);
    headers.insert(ATTEMPT, attempt.into());
    response
}

/// State of a response that follows an output.
struct Following {
    stream: LiveStream,
    next: u64,
    stop: CancellationToken,
}

impl Following {
    /// Waits for and returns the next bytes, or `None` at the end.
    async fn slice(&mut self) -> io::Result<Option<Bytes>> {
        let extent = tokio::select! {
            extent = self.stream.beyond(self.next) => extent,
            () = self.stop.cancelled() => return Err(io::Error::other("the daemon ends")),
        };
        if extent.length > self.next {
            let bytes = read_live(&self.stream, self.next, SLICE).await?;
            self.next += bytes.len() as u64;
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
pub(super) fn output_of(asked: &Asked) -> Result<Of, Problem> {
    let (unit, stream) = (asked.segment("unit"), asked.segment("stream"));
    let no_unit = || nothing(format!("a run has `steps` and `checks`, and no {}", quoted(unit)));
    let no_stream = || nothing(format!("a step has `stdout` and `stderr`, and no {}", quoted(stream)));
    let (unit, stream) = (Unit::of_plural(unit).ok_or_else(no_unit)?, Stdio::of(stream).ok_or_else(no_stream)?);
    Ok(Of::Output(OutputOf { unit, n: step_number(asked)?, stream }))
}

/// Returns the report that the path names.
///
/// # Errors
/// The path names no report.
pub(super) fn report_of(asked: &Asked) -> Result<Of, Problem> {
    let word = asked.segment("format");
    let no_format = || nothing(format!("a step has reports `junit` and `sarif`, and no {}", quoted(word)));
    let format = ReportFormat::of(word).ok_or_else(no_format)?;
    Ok(Of::Report(ReportOf { n: step_number(asked)?, format }))
}

fn step_number(asked: &Asked) -> Result<u32, Problem> {
    let named = asked.segment("n");
    let n = number(named).and_then(|n| u32::try_from(n).ok());
    n.ok_or_else(|| nothing(format!("{} is the number of no step", quoted(named))))
}

fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn respond(output: Output, wanted: Bounds<u64>, length: u64, first: Bytes) -> Response {
    let count = wanted.end - wanted.start;
    let is_text = first.len() as u64 == count && std::str::from_utf8(&first).is_ok();
    let next = wanted.start + first.len() as u64;
    let state = output.source.state();
    let body = match next == wanted.end {
        true => Body::from(first),
        false => Sending { output, next, end: wanted.end, ready: first, size: SMALL_PART, room: None }.into_body(),
    };
    let mut response = Response::new(body);
    if count > 0 && count < length {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, if is_text { TEXT } else { OCTETS });
    headers.insert(CONTENT_LENGTH, count.into());
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some((state, attempt)) = state {
        headers.insert(OUTPUT_STATE, state);
        headers.extend(attempt.map(|attempt| (ATTEMPT, attempt.into())));
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
    let detail = format!("the output has {length} bytes, and none in that range");
    let mut response = answer::problem(&Problem::new(ProblemType::RangeNotSatisfiable, detail));
    response.headers_mut().insert(CONTENT_RANGE, content_range(&(0..0), length));
    response
}

/// An output or report of a run.
struct Output {
    service: Arc<Service>,
    caller: Caller,
    run: RunId,
    source: Source,
}

impl Source {
    /// Returns the state of an output and, while the step runs, the number of the attempt.
    fn state(&self) -> Option<(HeaderValue, Option<u32>)> {
        match self {
            Self::Report(_) => None,
            Self::Output(OutputSource::Recorded { .. }) => Some((ENDED, None)),
            Self::Output(OutputSource::Live { attempt, .. }) => Some((RUNNING, Some(*attempt))),
        }
    }
}

impl Output {
    async fn part(&self, offset: u64, limit: usize) -> Result<(Bytes, u64), Problem> {
        let (part, length) = match &self.source {
            Source::Output(source) => self.service.output_part(source, offset, limit).await?,
            Source::Report(of) => self.service.report(self.caller, &self.run, *of, offset, limit).await?,
        };
        Ok((part.bytes.into(), length))
    }
}

/// State of a response that sends an output.
struct Sending {
    output: Output,
    /// Offset of the next part to read.
    next: u64,
    end: u64,
    /// Bytes that were read but not sent.
    ready: Bytes,
    size: usize,
    room: Option<SemaphorePermit<'static>>,
}

impl Sending {
    fn into_body(self) -> Body {
        Body::from_stream(stream::try_unfold(self, async |mut sending| {
            let slice = sending.slice().await?;
            Ok::<_, io::Error>(slice.map(|slice| (slice, sending)))
        }))
    }

    /// Returns the next bytes to send, or `None` at the end.
    async fn slice(&mut self) -> io::Result<Option<Bytes>> {
        if self.ready.is_empty() && self.next < self.end {
            self.read().await?;
        }
        if self.ready.is_empty() {
            return Ok(None);
        }
        // Copies the slice, so that a slow client does not keep the whole part in memory.
        let slice = Bytes::copy_from_slice(&self.ready[..self.ready.len().min(SLICE)]);
        self.ready.advance(slice.len());
        Ok(Some(slice))
    }

    async fn read(&mut self) -> io::Result<()> {
        (self.ready, self.room) = (Bytes::new(), None);
        self.size = (self.size * 2).min(MAX_PART);
        self.room = LARGE_PARTS.try_acquire().ok();
        let size = if self.room.is_some() { self.size } else { SMALL_PART };
        let limit = size.min(to_usize(self.end - self.next));
        let part = self.output.part(self.next, limit).await.map_err(|problem| io::Error::other(problem.detail))?;
        if part.0.is_empty() {
            return Err(io::Error::other("the output is no longer stored"));
        }
        self.ready = part.0;
        self.next += self.ready.len() as u64;
        Ok(())
    }
}
