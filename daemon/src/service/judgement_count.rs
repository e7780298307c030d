//! States whether a judgement counts, so that each one counts exactly once.

/// The decision whether the judgement in an answer counts in the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JudgementCount {
    /// It counts.
    Once,
    /// It repeats a judgement of the same statement that has been counted.
    Repeated,
}
