//! Runs two parts of the tests at the same time, because each of them leaves processors idle. Prints their output one
//! after the other. Which tests belong to which part is decided in `test_run`.

use std::io::Write as _;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context as _, Result, anyhow};

use super::for_each_line;
use super::test_counts::TestCounts;

/// A message from a part of the tests: a line of its output, or `None` at its end.
type Output = (Part, Option<Vec<u8>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Second,
}

/// Runs both commands, and counts their results. The output of `second` appears after that of `first`. Returns the exit
/// status of the first one that failed.
pub(super) fn run_concurrently(first: Command, second: Command, counts: &mut TestCounts) -> Result<ExitStatus> {
    let (sender, outputs) = channel::<Output>();
    let (from_first, from_second) = (sender.clone(), sender);
    let first = thread::spawn(move || run_part(first, Part::First, &from_first));
    let second = thread::spawn(move || run_part(second, Part::Second, &from_second));
    let mut postponed = Postponed::default();
    for output in outputs {
        for line in postponed.lines_to_print(output) {
            std::io::stdout().write_all(&line).context("the output of the tests cannot be printed")?;
            counts.process_line(&String::from_utf8_lossy(&line));
        }
    }
    let ended = |part: thread::JoinHandle<Result<ExitStatus>>| part.join().map_err(|_| anyhow!("a thread panicked"))?;
    let (first, second) = (ended(first)?, ended(second)?);
    Ok(if first.success() { second } else { first })
}

fn run_part(mut command: Command, part: Part, output: &Sender<Output>) -> Result<ExitStatus> {
    let send = |line| output.send((part, line)).context("the output of the tests cannot be printed");
    let ended = for_each_line(&mut command, |line| send(Some(line.to_owned())));
    send(None)?;
    ended
}

/// The output of the second part until the first one has ended.
#[derive(Default)]
struct Postponed {
    is_first_done: bool,
    lines: Vec<Vec<u8>>,
}

impl Postponed {
    /// Returns the lines that can be printed after this output.
    fn lines_to_print(&mut self, output: Output) -> Vec<Vec<u8>> {
        match output {
            (Part::First, Some(line)) => vec![line],
            (Part::First, None) => {
                self.is_first_done = true;
                std::mem::take(&mut self.lines)
            }
            (Part::Second, Some(line)) if self.is_first_done => vec![line],
            (Part::Second, Some(line)) => {
                self.lines.push(line);
                Vec::new()
            }
            (Part::Second, None) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_second_part_follows_that_of_the_first() {
        let mut postponed = Postponed::default();
        let mut printed = Vec::new();
        for (part, line) in [
            (Part::Second, Some("c")),
            (Part::First, Some("a")),
            (Part::Second, Some("d")),
            (Part::First, Some("b")),
            (Part::First, None),
            (Part::Second, Some("e")),
            (Part::Second, None),
        ] {
            printed.extend(postponed.lines_to_print((part, line.map(|line| line.as_bytes().to_vec()))));
        }
        assert_eq!(printed.concat(), b"abcde");
    }

    #[test]
    fn output_of_a_second_part_that_ends_first_is_printed() {
        let mut postponed = Postponed::default();
        let second = postponed.lines_to_print((Part::Second, Some(b"b".to_vec())));
        assert!(second.is_empty() && postponed.lines_to_print((Part::Second, None)).is_empty());
        assert_eq!(postponed.lines_to_print((Part::First, None)).concat(), b"b");
    }
}
