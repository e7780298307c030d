//! Fetches the outputs of failed steps that are longer than the excerpts in the record, bounded and escaped.

use std::pin::Pin;

use proctor_core::model::outcome::Outcome;
use proctor_core::record::evidence::{PREVIEW_BYTES, StepEvidence, StreamEvidence};
use proctor_core::record::run_record::RunRecord;
use proctor_core::report::stream_texts::StreamTexts;
use proctor_daemon::service::StdStream;

use crate::text::escape_bytes;

/// Number of streams that are fetched.
const MAX_STREAMS: usize = 20;
/// Number of bytes of a stream that are searched for its first error.
pub(crate) const MAX_STREAM_BYTES: usize = 4 << 20;

/// A stream to fetch.
#[derive(Debug, Clone)]
pub(crate) struct FailedStream {
    /// Index of the step in the plan.
    pub n: u32,
    /// Standard output or standard error.
    pub stdio: StdStream,
    /// Evidence of the stream.
    pub stream: StreamEvidence,
}

/// The first [`MAX_STREAM_BYTES`] of a stream; `None` if they are not available.
pub(crate) type FetchFuture<'a> = Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send + 'a>>;

/// Fetches the outputs that reports on this run need. For an output that is not available, a report uses the excerpt
/// in the record.
pub(crate) async fn fetch_outputs<'a>(
    record: &RunRecord,
    fetch: impl Fn(FailedStream) -> FetchFuture<'a>,
) -> StreamTexts {
    let mut texts = StreamTexts::default();
    for wanted in streams_to_fetch(record) {
        let sha256 = wanted.stream.sha256.clone();
        let is_all = wanted.stream.bytes <= MAX_STREAM_BYTES as u64 && wanted.stream.kept_bytes == wanted.stream.bytes;
        if let (Some(bytes), true) = (fetch(wanted).await, is_all) {
            texts.insert(sha256, escape_bytes(&bytes));
        }
    }
    texts
}

/// Returns the long streams of the failed steps.
fn streams_to_fetch(record: &RunRecord) -> Vec<FailedStream> {
    let mut wanted = Vec::new();
    let mut before = 0;
    for skill in &record.skills {
        for (index, step) in skill.steps.iter().enumerate() {
            let n = u32::try_from(before + index).unwrap_or(u32::MAX);
            wanted.extend(long_streams(step).map(|(stdio, stream)| FailedStream { n, stdio, stream: stream.clone() }));
        }
        before += skill.planned.len();
    }
    wanted.truncate(MAX_STREAMS);
    wanted
}

fn long_streams(step: &StepEvidence) -> impl Iterator<Item = (StdStream, &StreamEvidence)> {
    let both = [(StdStream::Stderr, &step.stderr), (StdStream::Stdout, &step.stdout)];
    let is_failed = step.outcome == Outcome::Failed;
    both.into_iter().filter(move |(_, stream)| is_failed && stream.bytes > 2 * PREVIEW_BYTES as u64)
}
