//! Counts test results from the output of several test programs. Parses the format of libtest and libtest-mimic;
//! starts no programs.

use std::fmt;

/// The counts of all programs together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TestCounts {
    /// Passed tests.
    pub(crate) passed: u64,
    /// Failed tests, and test programs that ended without a result.
    pub(crate) failed: u64,
    /// Tests that the programs skipped.
    pub(crate) skipped: u64,
    /// The names of the skipped tests, with the reason if one was given.
    pub(crate) ignored: Vec<String>,
    /// True if a program announced its tests and has not reported their result yet.
    awaits_result: bool,
}

impl TestCounts {
    /// Processes one line of output.
    pub(crate) fn process_line(&mut self, line: &str) {
        let line = strip_colours(line);
        let line = line.trim_end();
        if announces_tests(line) {
            self.end();
            self.awaits_result = true;
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.awaits_result = false;
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
            self.skipped += number_before(rest, " ignored");
        } else if let Some((name, reason)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ignored"))
        {
            self.ignored.push(format!("{name}{}", reason.replacen(", ", ": ", 1)));
        }
    }

    /// Counts a test that was left out.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        self.ignored.push(format!("{name}: {reason}"));
    }

    /// Marks the end of the output; a program without a result counts as failed.
    pub(crate) fn end(&mut self) {
        self.failed += u64::from(std::mem::take(&mut self.awaits_result));
    }

    /// Returns the counts with cargo's exit status included: if cargo failed, at least one failure is counted.
    pub(crate) fn with_cargo_status(&self, succeeded: bool) -> Self {
        let mut counts = self.clone();
        if !succeeded && counts.failed == 0 {
            counts.failed = 1;
        }
        counts
    }

    /// Returns whether at least one test ran, and none failed.
    pub(crate) fn is_success(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Matches `running 3 tests`.
fn announces_tests(line: &str) -> bool {
    let count =
        line.strip_prefix("running ").and_then(|rest| rest.strip_suffix(" tests").or(rest.strip_suffix(" test")));
    count.is_some_and(|count| count.parse::<u64>().is_ok())
}

/// Returns the number directly before `word`, or 0.
fn number_before(text: &str, word: &str) -> u64 {
    let before = text.find(word).map_or("", |at| &text[..at]);
    before.rsplit([' ', ';']).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Removes colour sequences (`ESC [ … m`) from a line.
fn strip_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_output(output: &str) -> TestCounts {
        let mut counts = TestCounts::default();
        output.lines().for_each(|line| counts.process_line(line));
        counts.end();
        counts
    }

    #[test]
    fn sums_programs_and_names_skipped_tests() {
        let counts = count_output(
            "running 3 tests\ntest a ... ok\ntest b::c ... ignored, needs root\ntest d ... FAILED\n\n\
             test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             running 1 test\ntest x ... ignored\n\
             test result: \x1b[32mok\x1b[0m. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(counts.ignored, ["b::c: needs root", "x"]);
        assert!(!counts.is_success());
    }

    #[test]
    fn program_without_result_counts_as_failed() {
        let done = "running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert!(count_output(done).is_success());
        assert_eq!(count_output(&format!("running 9 tests\ntest a ... ok\n{done}")).failed, 1);
        assert_eq!(count_output(&format!("{done}running 9 tests\n")).failed, 1);
    }

    #[test]
    fn counts_failure_that_only_cargo_reports() {
        let done = count_output("test result: ok. 1 passed; 0 failed; 0 ignored");
        assert_eq!(done.with_cargo_status(false).to_string(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(done.with_cargo_status(true), done);
    }

    #[test]
    fn run_without_tests_is_not_a_success() {
        assert!(!count_output("").is_success());
        assert!(!count_output("running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored").is_success());
        assert!(!count_output("test result: ok. 0 passed; 0 failed; 3 ignored").is_success());
    }
}
