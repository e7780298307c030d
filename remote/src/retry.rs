//! Decides whether a failed request is sent again, and when.

use std::time::{Duration, Instant};

/// How failed requests are repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of attempts of one request.
    pub max_attempts: u32,
    /// Maximum number of repetitions of all requests together. Successful requests restore a part of this budget.
    pub budget: u32,
    /// The pause before the first repetition. Each further pause is twice as long.
    pub first_pause: Duration,
    /// The longest pause.
    pub max_pause: Duration,
    /// Number of consecutive failures after which no request is sent for the duration `cooldown`.
    pub max_failures: u32,
    /// The pause without requests.
    pub cooldown: Duration,
    /// Time for which an action is sent again to a server that temporarily cannot execute it.
    pub max_busy: Duration,
}

impl RetryPolicy {
    /// Returns the pause before another attempt. `attempt` is the number of attempts so far, and `random` a random number.
    pub(crate) fn pause(&self, attempt: u32, random: u64) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << attempt.saturating_sub(1).min(16));
        let longest = doubled.min(self.max_pause);
        // Waits between half and all of the pause, so that clients do not repeat their requests at the same time.
        let half = longest / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_nanos(random % nanos)
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 4,
            budget: 20,
            first_pause: Duration::from_millis(50),
            max_pause: Duration::from_secs(2),
            max_failures: 5,
            cooldown: Duration::from_secs(30),
            max_busy: Duration::from_secs(10),
        }
    }
}

/// Number of successful requests that restore one repetition of the budget.
const SUCCESSES_PER_REPETITION: u32 = 10;

/// The failures of a server so far.
#[derive(Debug)]
pub(crate) struct RetryState {
    policy: RetryPolicy,
    /// The remaining budget, in parts of [`SUCCESSES_PER_REPETITION`].
    remaining: u32,
    failures: u32,
    cooldown_end: Option<Instant>,
}

impl RetryState {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self { policy, remaining: policy.budget * SUCCESSES_PER_REPETITION, failures: 0, cooldown_end: None }
    }

    /// Returns whether a request may be sent; otherwise the number of failures in a row. When the pause is over, one
    /// request is sent as a trial.
    pub(crate) fn permit(&mut self, now: Instant) -> Result<(), u32> {
        match self.cooldown_end {
            Some(end) if now < end => Err(self.failures),
            Some(_) => {
                self.cooldown_end = Some(now + self.policy.cooldown);
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn record_success(&mut self) {
        self.failures = 0;
        self.cooldown_end = None;
        self.remaining = (self.remaining + 1).min(self.policy.budget * SUCCESSES_PER_REPETITION);
    }

    pub(crate) fn record_failure(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.policy.max_failures {
            self.cooldown_end = Some(now + self.policy.cooldown);
        }
    }

    /// Returns the pause before another attempt; `None` if no attempt is permitted. `attempt` is the number of attempts
    /// so far, and `random` a random number.
    pub(crate) fn pause(&mut self, attempt: u32, random: u64) -> Option<Duration> {
        if attempt >= self.policy.max_attempts
            || self.remaining < SUCCESSES_PER_REPETITION
            || self.cooldown_end.is_some()
        {
            return None;
        }
        self.remaining -= SUCCESSES_PER_REPETITION;
        Some(self.policy.pause(attempt, random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 3,
        budget: 4,
        first_pause: Duration::from_millis(100),
        max_pause: Duration::from_millis(150),
        max_failures: 2,
        cooldown: Duration::from_secs(10),
        max_busy: Duration::from_secs(1),
    };

    #[test]
    fn pauses_grow_up_to_a_bound_and_are_random() {
        let mut state = RetryState::new(POLICY);
        let pauses =
            [(1, 0), (1, u64::MAX), (2, 0)].map(|(attempt, random)| state.pause(attempt, random).expect("a pause"));
        assert_eq!(pauses[0], Duration::from_millis(50));
        assert!(pauses[1] > pauses[0] && pauses[1] < Duration::from_millis(100), "{pauses:?}");
        assert_eq!(pauses[2], Duration::from_millis(75), "half of the longest pause");
        assert_eq!(state.pause(3, 0), None, "no attempt beyond the maximum");
    }

    #[test]
    fn budget_ends_repetitions_until_requests_succeed() {
        let mut state = RetryState::new(POLICY);
        for _ in 0..4 {
            assert!(state.pause(1, 0).is_some());
        }
        assert_eq!(state.pause(1, 0), None);
        (0..SUCCESSES_PER_REPETITION).for_each(|_| state.record_success());
        assert!(state.pause(1, 0).is_some());
        assert_eq!(state.pause(1, 0), None);
    }

    #[test]
    fn server_is_not_asked_after_repeated_failures() {
        let (mut state, start) = (RetryState::new(POLICY), Instant::now());
        state.record_failure(start);
        state.record_success();
        state.record_failure(start);
        assert_eq!(state.permit(start), Ok(()), "a success between two failures");
        state.record_failure(start);
        assert_eq!(state.permit(start), Err(2));
        assert_eq!(state.pause(1, 0), None, "no repetition during the cooldown");
        let later = start + POLICY.cooldown;
        assert_eq!(state.permit(later), Ok(()), "a trial");
        assert_eq!(state.permit(later), Err(2), "only one trial");
        state.record_success();
        assert_eq!(state.permit(later), Ok(()));
    }
}
