//! Writes lines to standard error on a separate thread, so that logging never waits for a slow or stopped reader.
//! Lines that exceed the buffer are lost and counted.

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::log_file::RotatingLogFile;

/// Maximum number of buffered bytes.
const MAX_BUFFERED: usize = 1 << 20;

/// Writer to standard error of this process.
pub(super) static STDERR: LazyLock<LogWriter> = LazyLock::new(|| LogWriter::spawn(std::io::stderr()));

/// Buffer in front of a writer that may block.
#[derive(Debug)]
pub(super) struct LogWriter {
    queue: Sender<LogWriterMessage>,
    buffered_bytes: Arc<AtomicUsize>,
    lost: AtomicU64,
}

enum LogWriterMessage {
    Line(String),
    /// Request for a reply after everything before it is written.
    Flush(Sender<()>),
    /// Enables rotation for the lines that follow.
    LimitFile(RotatingLogFile),
}

impl LogWriter {
    /// Creates a buffer whose own thread writes to `writer`.
    pub(super) fn spawn(writer: impl Write + Send + 'static) -> Self {
        let (queue, lines) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        // If the thread cannot be started, the queue is closed and all lines are lost; nothing else depends on the
        // thread.
        let _ = std::thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&lines, writer, &counted));
        Self { queue, buffered_bytes: waiting, lost: AtomicU64::new(0) }
    }

    /// Queues a line. Returns `false` if it is lost because the buffer is full.
    pub(super) fn write_line(&self, line: String) -> bool {
        let length = line.len();
        let is_taken = self.buffered_bytes.fetch_add(length, Ordering::Relaxed) < MAX_BUFFERED
            && self.queue.send(LogWriterMessage::Line(line)).is_ok();
        if !is_taken {
            self.buffered_bytes.fetch_sub(length, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    /// Returns the number of lines lost since the last call, once there is space to report it.
    pub(super) fn take_lost(&self) -> Option<u64> {
        let has_space = self.buffered_bytes.load(Ordering::Relaxed) < MAX_BUFFERED / 2;
        has_space.then(|| self.lost.swap(0, Ordering::Relaxed)).filter(|lost| *lost > 0)
    }

    /// Enables rotation of the file that the lines are written to.
    pub(super) fn limit_file(&self, file: RotatingLogFile) {
        // Without the thread, nothing is written.
        let _ = self.queue.send(LogWriterMessage::LimitFile(file));
    }

    /// Waits until all queued lines are written, at most `within`.
    pub(super) fn flush(&self, time_limit: Duration) {
        let (written, flushed) = channel();
        if self.queue.send(LogWriterMessage::Flush(written)).is_ok() {
            let _ = flushed.recv_timeout(time_limit);
        }
    }
}

fn write_all(lines: &Receiver<LogWriterMessage>, mut writer: impl Write, waiting: &AtomicUsize) {
    let mut bounded: Option<RotatingLogFile> = None;
    for message in lines {
        match message {
            LogWriterMessage::Line(line) => {
                // Ignore a closed standard error.
                let _ = writer.write_all(line.as_bytes());
                waiting.fetch_sub(line.len(), Ordering::Relaxed);
                if let Some(file) = &mut bounded {
                    file.add_written(line.len());
                }
            }
            LogWriterMessage::LimitFile(file) => bounded = Some(file),
            LogWriterMessage::Flush(written) => drop(written.send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    #[test]
    fn logging_does_not_wait_for_a_stalled_reader() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let lines = LogWriter::spawn(writer);
        let line = |number: &usize| format!("a line of the log, number {number:06}\n");
        // The accepted lines are not always the first ones: the writer thread may start late and free space for later
        // ones.
        let accepted: Vec<usize> = (0..40_000).filter(|number| lines.write_line(line(number))).collect();
        assert!(accepted.len() < 40_000 && accepted.len() > MAX_BUFFERED / 40, "{}", accepted.len());
        lines.flush(Duration::from_millis(10));
        assert_eq!(lines.take_lost(), None, "there is no room to say it");
        // Accepted lines arrive completely and in order; afterwards, the number of lost lines is reported.
        let read = BufReader::new(reader).lines().take(accepted.len()).map(|line| line.expect("text") + "\n");
        assert!(read.eq(accepted.iter().map(line)));
        lines.flush(Duration::from_secs(60));
        assert_eq!(lines.take_lost(), Some(40_000 - accepted.len() as u64));
        assert_eq!(lines.take_lost(), None);
    }
}
