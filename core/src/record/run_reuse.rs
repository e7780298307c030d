//! Records how far a run reused the results of earlier executions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::evidence::{StepEvidence, cached_of_steps};

/// The reuse of results in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunReuse {
    /// Number of steps of the run.
    pub steps: u64,
    /// Number of these steps that have the result of an earlier execution.
    pub cached_steps: u64,
}

impl RunReuse {
    /// Counts the steps of a run.
    pub fn from_steps<'a>(steps: impl IntoIterator<Item = &'a StepEvidence>) -> Self {
        let mut reuse = Self { steps: 0, cached_steps: 0 };
        for step in steps {
            reuse.steps += 1;
            reuse.cached_steps += u64::from(step.is_cached());
        }
        reuse
    }

    /// Returns the number of cached steps, as a phrase; `None` if every step was executed.
    pub fn cached_phrase(&self) -> Option<String> {
        cached_of_steps(as_usize(self.cached_steps), as_usize(self.steps))
    }
}

fn as_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrase_counts_cached_steps() {
        let phrase = |steps, cached_steps| RunReuse { steps, cached_steps }.cached_phrase();
        assert_eq!((phrase(0, 0), phrase(2, 0)), (None, None));
        assert_eq!(phrase(3, 1).as_deref(), Some("1 of 3 steps cached"));
    }
}
