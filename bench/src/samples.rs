//! Samples, their medians, and the limits that they are compared with.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

/// The durations of one measurement.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sample(Vec<Duration>);

impl Sample {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// Returns the median (the lower one of two middle values), or zero for an empty sample.
    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// Returns the 90th percentile.
    pub(crate) fn percentile_90(&self) -> Duration {
        self.percentile(90)
    }

    pub(crate) fn max(&self) -> Duration {
        self.percentile(100)
    }

    /// Returns the smallest value that is not below `percent` of all values.
    fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }
}

/// Prints milliseconds: median, minimum, 90th percentile, maximum.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for percent in [50, 0, 90, 100] {
            write!(f, " {:>9.2}", millis(self.percentile(percent)))?;
        }
        Ok(())
    }
}

/// Returns the heading for rows that end in a [`Sample`].
pub(crate) fn heading(what: &str) -> String {
    format!("{what:<28} {:>9} {:>9} {:>9} {:>9}", "median", "least", "90 %", "greatest")
}

/// Returns a row below a [`heading`].
pub(crate) fn row(name: &str, sample: &Sample) -> String {
    format!("{name:<28}{sample}")
}

/// Returns the duration of `work`.
///
/// # Errors
/// `work` fails.
pub(crate) fn measure_time(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

pub(crate) fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

/// Returns `of` divided by `by`; infinite if `by` is zero, which means that the other program was not measured.
pub(crate) fn ratio(dividend: Duration, divisor: Duration) -> f64 {
    if divisor.is_zero() { f64::INFINITY } else { dividend.as_secs_f64() / divisor.as_secs_f64() }
}

/// The results of all comparisons with limits.
#[derive(Debug, Default)]
pub(crate) struct LimitChecks {
    exceeded: Vec<String>,
}

impl LimitChecks {
    /// Compares `value` with a maximum and prints the result.
    pub(crate) fn at_most(&mut self, what: &str, value: f64, limit: f64) {
        self.record(what, value <= limit, &format!("{value:.3}, at most {limit}"));
    }

    /// Compares `value` with a minimum and prints the result.
    pub(crate) fn at_least(&mut self, what: &str, value: f64, limit: f64) {
        self.record(what, value >= limit, &format!("{value:.3}, at least {limit}"));
    }

    /// Prints the result of a check that has no number.
    pub(crate) fn record(&mut self, what: &str, passed: bool, figure: &str) {
        println!("{} {what}: {figure}", if passed { "ok  " } else { "OVER" });
        if !passed {
            self.exceeded.push(what.to_owned());
        }
    }

    /// Returns the exit code of the program.
    pub(crate) fn exit_code(self) -> ExitCode {
        if self.exceeded.is_empty() {
            return ExitCode::SUCCESS;
        }
        eprintln!("error: outside the limits: {}", self.exceeded.join("; "));
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_percentiles() {
        let sample = |all: &[u64]| Sample(all.iter().copied().map(Duration::from_millis).collect());
        assert_eq!(sample(&[]).median(), Duration::ZERO);
        assert_eq!(sample(&[3, 1, 2]).median(), Duration::from_millis(2));
        assert_eq!(sample(&[4, 3, 1, 2]).median(), Duration::from_millis(2));
        assert_eq!(sample(&[9, 1, 8, 2, 7, 3, 6, 4, 5, 10]).percentile_90(), Duration::from_millis(9));
        assert_eq!(
            sample(&[1, 2, 3, 4, 9]).percentile_90(),
            Duration::from_millis(9),
            "few samples: the 90th percentile is the maximum"
        );
        assert_eq!(
            (sample(&[5, 9]).percentile(0), sample(&[5, 9]).max()),
            (Duration::from_millis(5), Duration::from_millis(9))
        );
    }

    #[test]
    fn fails_if_peer_was_not_measured() {
        let mut bars = LimitChecks::default();
        bars.at_most("a", ratio(Duration::from_millis(1), Duration::ZERO), 0.7);
        assert_eq!(bars.exceeded, ["a"]);
    }
}
