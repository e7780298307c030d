//! What steps and checks printed and reported, in ranges. A long output is sent as it is read: what is kept in
//! memory for one reader is one part, and large parts are for few readers at a time.

use std::io;
use std::ops::Range as Bounds;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use futures_util::stream;
use http::StatusCode;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue};
use proctor_core::api::{Problem, ProblemType};
use proctor_core::names::RunId;
use proctor_core::plan::ReportFormat;
use proctor_core::spec::quoted;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::answer::{self, Answer};
use super::asked::Asked;
use super::handlers::nothing;
use super::metered::SLICE;
use super::query::number;
use super::range::Range;
use super::routes::App;
use crate::caller::Caller;
use crate::service::{MAX_PART, OutputOf, ReportOf, Service, Stdio, Unit};

/// The first part, and every part of a reader for whom there is no room. Whoever does not read never
/// gets beyond it.
const SMALL_PART: usize = 256 << 10;
/// The readers that have a larger part in memory at the same time.
static LARGE_PARTS: Semaphore = Semaphore::const_new(16);

/// Text, for whoever shows it.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// What is no text, or not known to be.
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// What is read.
#[derive(Clone, Copy)]
pub(super) enum Of {
    Output(OutputOf),
    Report(ReportOf),
}

/// Answers with the range that was asked for.
///
/// # Errors
/// There is no such output or report.
pub(super) async fn read(app: &App, asked: &Asked, of: Of) -> Answer {
    let (run, range) = (asked.run()?, Range::of(asked)?);
    let output = Output { service: Arc::clone(&app.service), caller: asked.caller, run, of };
    // Any part tells how long the whole is.
    let (mut first, length) = output.part(range.probable_start(), SMALL_PART).await?;
    let Some(wanted) = range.within(length) else { return Ok(unsatisfiable(length)) };
    if wanted.start != range.probable_start().min(length) {
        first = output.part(wanted.start, SMALL_PART).await?.0;
    }
    first.truncate(to_usize(wanted.end - wanted.start));
    Ok(respond(output, wanted, length, first))
}

/// The output that a path names.
///
/// # Errors
/// It names none.
pub(super) fn output_of(asked: &Asked) -> Result<Of, Problem> {
    let (unit, stream) = (asked.segment("unit"), asked.segment("stream"));
    let no_unit = || nothing(format!("a run has `steps` and `checks`, and no {}", quoted(unit)));
    let no_stream = || nothing(format!("a step has `stdout` and `stderr`, and no {}", quoted(stream)));
    let (unit, stream) = (Unit::of_plural(unit).ok_or_else(no_unit)?, Stdio::of(stream).ok_or_else(no_stream)?);
    Ok(Of::Output(OutputOf { unit, n: step_number(asked)?, stream }))
}

/// The report that a path names.
///
/// # Errors
/// It names none.
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
    // Digits, and nothing that a header could not hold.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("bytes */*"))
}

fn unsatisfiable(length: u64) -> Response {
    let detail = format!("the output has {length} bytes, and none in that range");
    let mut response = answer::problem(&Problem::new(ProblemType::RangeNotSatisfiable, detail));
    response.headers_mut().insert(CONTENT_RANGE, content_range(&(0..0), length));
    response
}

/// One output or report of a run.
struct Output {
    service: Arc<Service>,
    caller: Caller,
    run: RunId,
    of: Of,
}

impl Output {
    async fn part(&self, offset: u64, limit: usize) -> Result<(Bytes, u64), Problem> {
        let (part, length) = match self.of {
            Of::Output(of) => self.service.output(self.caller, &self.run, of, offset, limit).await?,
            Of::Report(of) => self.service.report(self.caller, &self.run, of, offset, limit).await?,
        };
        Ok((part.bytes.into(), length))
    }
}

/// An output on its way.
struct Sending {
    output: Output,
    /// Where the part begins that is read next.
    next: u64,
    end: u64,
    /// What was read and not handed on.
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

    /// What is handed on next; `None` at the end.
    async fn slice(&mut self) -> io::Result<Option<Bytes>> {
        if self.ready.is_empty() && self.next < self.end {
            self.read().await?;
        }
        if self.ready.is_empty() {
            return Ok(None);
        }
        // A copy, so that a slice that waits to be taken does not keep the whole part in memory.
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
            return Err(io::Error::other("the output is kept no longer"));
        }
        self.ready = part.0;
        self.next += self.ready.len() as u64;
        Ok(())
    }
}
