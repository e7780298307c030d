//! Fetches the outputs of failed steps that are longer than the excerpts in the record, bounded and escaped for the
//! screen.

use std::collections::BTreeMap;
use std::pin::Pin;

use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::{PREVIEW_BYTES, StepEvidence, StreamEvidence};
use proctor_core::outcome::Outcome;
use proctor_core::record::RunRecord;
use proctor_daemon::service::Stdio;

use crate::text::shown_bytes;

/// Number of streams that are fetched.
const MAX_STREAMS: usize = 20;
/// Number of bytes of a stream that are searched for its first error.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// A stream to fetch.
#[derive(Debug, Clone)]
pub(crate) struct WantedStream {
    /// Index of the step in the plan.
    pub n: u32,
    /// Standard output or standard error.
    pub stdio: Stdio,
    /// Evidence of the stream.
    pub stream: StreamEvidence,
}

/// The first [`MAX_BYTES`] of a stream; `None` if they are not available.
pub(crate) type Fetched<'a> = Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send + 'a>>;

/// Fetched outputs by hash.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    texts: BTreeMap<Sha256Hex, String>,
}

impl Outputs {
    /// Fetches the outputs that the report on this run needs. For an output that is not available, the report uses
    /// the excerpt in the record.
    pub(crate) async fn fetch<'a>(record: &RunRecord, fetch: impl Fn(WantedStream) -> Fetched<'a>) -> Self {
        let mut texts = BTreeMap::new();
        for wanted in wanted(record) {
            let sha256 = wanted.stream.sha256.clone();
            let is_all = wanted.stream.bytes <= MAX_BYTES as u64 && wanted.stream.kept_bytes == wanted.stream.bytes;
            if let (Some(bytes), true) = (fetch(wanted).await, is_all) {
                texts.insert(sha256, shown_bytes(&bytes));
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
fn wanted(record: &RunRecord) -> Vec<WantedStream> {
    let mut wanted = Vec::new();
    let mut before = 0;
    for skill in &record.skills {
        for (index, step) in skill.steps.iter().enumerate() {
            let n = u32::try_from(before + index).unwrap_or(u32::MAX);
            wanted.extend(long_streams(step).map(|(stdio, stream)| WantedStream { n, stdio, stream: stream.clone() }));
        }
        before += skill.planned.len();
    }
    wanted.truncate(MAX_STREAMS);
    wanted
}

fn long_streams(step: &StepEvidence) -> impl Iterator<Item = (Stdio, &StreamEvidence)> {
    let both = [(Stdio::Stderr, &step.stderr), (Stdio::Stdout, &step.stdout)];
    let is_failed = step.outcome == Outcome::Failed;
    both.into_iter().filter(move |(_, stream)| is_failed && stream.bytes > 2 * PREVIEW_BYTES as u64)
}
