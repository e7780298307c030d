//! Limits how often the same event is logged.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of remembered keys; the oldest key is evicted.
const MAX_KEYS: usize = 64;

/// Rate limiter that admits each key once per interval.
#[derive(Debug)]
pub(crate) struct Throttle<K> {
    interval: Duration,
    entries: Mutex<VecDeque<ThrottledKey<K>>>,
}

#[derive(Debug)]
struct ThrottledKey<K> {
    key: K,
    since: Instant,
    suppressed: u64,
}

impl<K: PartialEq> Throttle<K> {
    /// Admits each key once per `every`.
    pub(crate) fn new(every: Duration) -> Self {
        Self { interval: every, entries: Mutex::default() }
    }

    /// Returns the number of suppressed events since `key` was last admitted, or `None` if it is suppressed now.
    pub(crate) fn admit(&self, key: K) -> Option<u64> {
        let now = Instant::now();
        let mut known = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let position = known.iter().position(|known| known.key == key);
        let suppressed = match position.and_then(|at| known.get_mut(at)) {
            Some(known) if now.duration_since(known.since) < self.interval => {
                known.suppressed = known.suppressed.saturating_add(1);
                return None;
            }
            Some(known) => known.suppressed,
            None => 0,
        };
        if let Some(at) = position {
            known.remove(at);
        } else if known.len() >= MAX_KEYS {
            known.pop_front();
        }
        known.push_back(ThrottledKey { key, since: now, suppressed: 0 });
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn admits_key_once_per_interval_and_counts_the_rest() {
        let throttle = Throttle::new(Duration::from_secs(60));
        assert_eq!([7, 7, 8, 7].map(|key| throttle.admit(key)), [Some(0), None, Some(0), None]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!([7, 8].map(|key| throttle.admit(key)), [Some(2), Some(0)]);
    }

    #[test]
    fn remembers_a_bounded_number_of_keys() {
        let throttle = Throttle::new(Duration::from_secs(60));
        assert!((0..10 * MAX_KEYS).all(|key| throttle.admit(key).is_some()));
        assert_eq!(throttle.entries.lock().expect("not poisoned").len(), MAX_KEYS);
    }
}
