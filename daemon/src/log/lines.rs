//! Writes lines to standard error on a separate thread, so that logging never waits for a slow or stopped reader.
//! Lines that exceed the buffer are lost and counted.

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::file::LogFile;

/// Maximum number of buffered bytes.
const WAITING: usize = 1 << 20;

/// Writer to standard error of this process.
pub(super) static STDERR: LazyLock<Lines> = LazyLock::new(|| Lines::to(std::io::stderr()));

/// Buffer in front of a writer that may block.
#[derive(Debug)]
pub(super) struct Lines {
    queue: Sender<Said>,
    waiting: Arc<AtomicUsize>,
    lost: AtomicU64,
}

enum Said {
    Line(String),
    /// Request for a reply after everything before it is written.
    Flush(Sender<()>),
    /// Enables rotation for the lines that follow.
    Bound(LogFile),
}

impl Lines {
    /// Creates a buffer whose own thread writes to `writer`.
    pub(super) fn to(writer: impl Write + Send + 'static) -> Self {
        let (queue, lines) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        // If the thread cannot be started, the queue is closed and all lines are lost; nothing else depends on the
        // thread.
        let _ = std::thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&lines, writer, &counted));
        Self { queue, waiting, lost: AtomicU64::new(0) }
    }

    /// Queues a line. Returns `false` if it is lost because the buffer is full.
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

    /// Returns the number of lines lost since the last call, once there is space to report it.
    pub(super) fn lost(&self) -> Option<u64> {
        let has_room = self.waiting.load(Ordering::Relaxed) < WAITING / 2;
        has_room.then(|| self.lost.swap(0, Ordering::Relaxed)).filter(|lost| *lost > 0)
    }

    /// Enables rotation of the file that the lines are written to.
    pub(super) fn bound(&self, file: LogFile) {
        // Without the thread, nothing is written.
        let _ = self.queue.send(Said::Bound(file));
    }

    /// Waits until all queued lines are written, at most `within`.
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
                // Ignore a closed standard error.
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
        // The accepted lines are not always the first ones: the writer thread may start late and free space for later
        // ones.
        let said: Vec<usize> = (0..40_000).filter(|number| lines.say(line(number))).collect();
        assert!(said.len() < 40_000 && said.len() > WAITING / 40, "{}", said.len());
        lines.flush(Duration::from_millis(10));
        assert_eq!(lines.lost(), None, "there is no room to say it");
        // Accepted lines arrive completely and in order; afterwards, the number of lost lines is reported.
        let read = BufReader::new(reader).lines().take(said.len()).map(|line| line.expect("text") + "\n");
        assert!(read.eq(said.iter().map(line)));
        lines.flush(Duration::from_secs(60));
        assert_eq!(lines.lost(), Some(40_000 - said.len() as u64));
        assert_eq!(lines.lost(), None);
    }
}
