//! Fetches the outputs of failed steps that are longer than the excerpts in the record, bounded and escaped for the
//! screen.

use std::collections::BTreeMap;
use std::pin::Pin;

use proctor_core::model::outcome::Outcome;
use proctor_core::record::evidence::{PREVIEW_BYTES, StepEvidence, StreamEvidence};
use proctor_core::record::run_record::RunRecord;
use proctor_core::text::digest::Sha256Hex;
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

/// Fetched outputs by hash.
#[derive(Debug, Default)]
pub(crate) struct FailedOutputs {
    texts: BTreeMap<Sha256Hex, String>,
}

impl FailedOutputs {
    /// Fetches the outputs that the report on this run needs. For an output that is not available, the report uses
    /// the excerpt in the record.
    pub(crate) async fn fetch<'a>(record: &RunRecord, fetch: impl Fn(FailedStream) -> FetchFuture<'a>) -> Self {
        let mut texts = BTreeMap::new();
        for wanted in streams_to_fetch(record) {
            let sha256 = wanted.stream.sha256.clone();
            let is_all =
                wanted.stream.bytes <= MAX_STREAM_BYTES as u64 && wanted.stream.kept_bytes == wanted.stream.bytes;
            if let (Some(bytes), true) = (fetch(wanted).await, is_all) {
                texts.insert(sha256, escape_bytes(&bytes));
            }
        }
        Self { texts }
    }

    /// Returns the whole text of a stream if it was fetched.
    pub(crate) fn get(&self, stream: &StreamEvidence) -> Option<&str> {
        self.texts.get(&stream.sha256).map(String::as_str)
    }
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
