//! Lines on their way to standard error, whose reader may be slow, stopped, or gone: whoever says
//! something never waits for that. What there is no room for is lost, and counted.

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::file::LogFile;

/// How many bytes of lines wait at most.
const WAITING: usize = 1 << 20;

/// Those of this process.
pub(super) static STDERR: LazyLock<Lines> = LazyLock::new(|| Lines::to(std::io::stderr()));

/// A way to a writer that may block.
#[derive(Debug)]
pub(super) struct Lines {
    queue: Sender<Said>,
    waiting: Arc<AtomicUsize>,
    lost: AtomicU64,
}

enum Said {
    Line(String),
    /// Answered when everything before it was written.
    Flush(Sender<()>),
    /// What follows is counted.
    Bound(LogFile),
}

impl Lines {
    /// A way to `writer`, by a thread of its own.
    pub(super) fn to(writer: impl Write + Send + 'static) -> Self {
        let (queue, lines) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        // Without the thread the queue is closed, and every line is lost: nothing else depends on it.
        let _ = std::thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&lines, writer, &counted));
        Self { queue, waiting, lost: AtomicU64::new(0) }
    }

    /// Says a line, where there is room for it; whether there is.
    pub(super) fn say(&self, line: String) -> bool {
        let length = line.len();
        let is_taken =
            self.waiting.fetch_add(length, Ordering::Relaxed) < WAITING && self.queue.send(Said::Line(line)).is_ok();
        if !is_taken {
            self.waiting.fetch_sub(length, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    /// How many lines were lost since this was asked last, where there is room again to say so.
    pub(super) fn lost(&self) -> Option<u64> {
        let has_room = self.waiting.load(Ordering::Relaxed) < WAITING / 2;
        has_room.then(|| self.lost.swap(0, Ordering::Relaxed)).filter(|lost| *lost > 0)
    }

    /// From now on the file that the lines go to is put aside when it is full.
    pub(super) fn bound(&self, file: LogFile) {
        // Without the thread nothing is written.
        let _ = self.queue.send(Said::Bound(file));
    }

    /// Waits until everything that was said is written, but no longer than that.
    pub(super) fn flush(&self, within: Duration) {
        let (written, flushed) = channel();
        if self.queue.send(Said::Flush(written)).is_ok() {
            let _ = flushed.recv_timeout(within);
        }
    }
}

fn write_all(lines: &Receiver<Said>, mut writer: impl Write, waiting: &AtomicUsize) {
    let mut bounded: Option<LogFile> = None;
    for said in lines {
        match said {
            Said::Line(line) => {
                // Whoever closed it does not want to know.
                let _ = writer.write_all(line.as_bytes());
                waiting.fetch_sub(line.len(), Ordering::Relaxed);
                if let Some(file) = &mut bounded {
                    file.wrote(line.len());
                }
            }
            Said::Bound(file) => bounded = Some(file),
            Said::Flush(written) => drop(written.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let lines = Lines::to(writer);
        let line = |number: &usize| format!("a line of the log, number {number:06}\n");
        // Not always the first ones: the thread that writes may begin late, and make room for later ones.
        let said: Vec<usize> = (0..40_000).filter(|number| lines.say(line(number))).collect();
        assert!(said.len() < 40_000 && said.len() > WAITING / 40, "{}", said.len());
        lines.flush(Duration::from_millis(10));
        assert_eq!(lines.lost(), None, "there is no room to say it");
        // What was taken comes, whole and in order; then it is told how much did not.
        let read = BufReader::new(reader).lines().take(said.len()).map(|line| line.expect("text") + "\n");
        assert!(read.eq(said.iter().map(line)));
        lines.flush(Duration::from_secs(60));
        assert_eq!(lines.lost(), Some(40_000 - said.len() as u64));
        assert_eq!(lines.lost(), None);
    }
}
