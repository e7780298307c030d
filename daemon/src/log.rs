//! Writes the log, as text, JSON or journal records, without secrets and control characters.
//!
//! Values are sanitized here, once, before formatting: secrets of the environment are redacted, and characters that
//! could control a terminal, end a line or hide text are escaped. Logging never waits for the reader of the log.

mod journal;
mod json_format;
mod line_writer;
mod log_file;
mod log_record;
mod sanitize;
mod text_format;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use proctor_core::spec::{LogFormat, LogSettings};
use proctor_core::text::redact::Redactor;
use proctor_runner::Clock;
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use journal::Journal;
use line_writer::STDERR;
use log_file::RotatingLogFile;
use log_record::{LogFields, LogRecord};

pub use log_file::{LOG_FILE_NAME, MAX_LOG_FILE_BYTES, ROTATED_LOG_FILE_NAME};

/// Filter for a library that logs disconnected clients as errors.
const NOISY_DIRECTIVES: [&str; 1] = ["rmcp::service=off"];

/// Time limit for the last lines, so that a reader that does not read cannot delay the exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The log of this process.
#[derive(Debug, Clone)]
pub struct Log {
    sink: Arc<RwLock<LogSink>>,
    filter: reload::Handle<EnvFilter, Registry>,
    journal_stream: Option<String>,
    level: Option<String>,
}

/// Properties of the process that affect the log.
#[derive(Debug, Clone, Default)]
pub struct LogEnvironment {
    /// `JOURNAL_STREAM`: the stream that is connected to the journal, if any (systemd.exec(5)).
    pub journal_stream: Option<String>,
    /// `PROCTOR_LOG`: overrides the level of the config.
    pub level: Option<String>,
}

/// Destination and format of records.
#[derive(Debug)]
enum LogSink {
    Text,
    Json,
    Journal(Journal),
}

/// Converts events to records.
struct LogLayer {
    sink: Arc<RwLock<LogSink>>,
    redactor: Redactor,
    clock: Clock,
}

impl Log {
    /// Starts the log of this process. Only the first call has an effect.
    pub fn start(settings: &LogSettings, environment: LogEnvironment, redactor: Redactor, clock: Clock) -> Self {
        let LogEnvironment { journal_stream, level } = environment;
        let sink = Arc::new(RwLock::new(LogSink::new(settings.format, journal_stream.as_deref())));
        let (filter, handle) = reload::Layer::new(parse_filter(level.as_deref().unwrap_or(&settings.level)));
        let recorder = LogLayer { sink: Arc::clone(&sink), redactor, clock };
        // Fails if a log was started already, for example in a test.
        let _ = tracing_subscriber::registry().with(filter).with(recorder).try_init();
        Self { sink, filter: handle, journal_stream, level }
    }

    /// Applies new settings.
    pub fn reload(&self, settings: &LogSettings) {
        let sink = LogSink::new(settings.format, self.journal_stream.as_deref());
        *self.sink.write().unwrap_or_else(PoisonError::into_inner) = sink;
        let level = self.level.as_deref().unwrap_or(&settings.level);
        // Fails only if the subscriber was dropped. In that case, nothing is logged.
        let _ = self.filter.reload(parse_filter(level));
    }
}

/// Limits the size of the log file in this state directory if it is standard error, as `proctor daemon start` sets it
/// up. Only the process that owns the state directory may call this.
pub fn limit_log_file(state_dir: &Path) {
    if let Some(file) = RotatingLogFile::for_stderr(state_dir, MAX_LOG_FILE_BYTES) {
        STDERR.limit_file(file);
    }
}

/// Waits until queued lines are written, within a time limit. Called before the process exits.
pub fn flush() {
    STDERR.flush(FLUSH_TIMEOUT);
}

/// Parses the level. Invalid parts are ignored, because an invalid level was already refused with the config.
fn parse_filter(level: &str) -> EnvFilter {
    let quiet = NOISY_DIRECTIVES.into_iter().filter_map(|directive| directive.parse().ok());
    quiet.fold(EnvFilter::builder().parse_lossy(level), EnvFilter::add_directive)
}

impl LogSink {
    fn new(format: LogFormat, journal_stream: Option<&str>) -> Self {
        let stderr = std::io::stderr();
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
            LogFormat::Auto if !is_named_stream(stderr.as_fd(), journal_stream) => Self::Text,
            LogFormat::Auto | LogFormat::Journald => Journal::open().map_or(Self::Text, Self::Journal),
        }
    }

    fn write(&self, record: &LogRecord, clock: Clock) {
        let line = match self {
            Self::Journal(journal) if journal.send(record) => return,
            // If the journal does not accept records, write text instead.
            Self::Journal(_) | Self::Text => text_format::format_line(record, &clock.now_text()),
            Self::Json => json_format::format_line(record, &clock.now_text()),
        };
        if let Some(lost) = STDERR.take_lost() {
            STDERR.write_line(self.format_loss(lost, clock));
        }
        STDERR.write_line(line);
    }

    /// Formats a record about lost lines in the current format.
    fn format_loss(&self, lost: u64, clock: Clock) -> String {
        let record = LogRecord::for_lost_records(lost);
        match self {
            Self::Json => json_format::format_line(&record, &clock.now_text()),
            Self::Journal(_) | Self::Text => text_format::format_line(&record, &clock.now_text()),
        }
    }
}

/// Returns whether a descriptor is the stream that `JOURNAL_STREAM` names, as `device:inode`.
fn is_named_stream(fd: impl AsFd, named: Option<&str>) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    named.is_some_and(|named| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = LogFields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = LogFields::default();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(span_fields) = span.extensions().get::<LogFields>() {
                fields.extend(span_fields);
            }
        }
        event.record(&mut fields);
        let record = LogRecord::from_event(event.metadata(), fields, &self.redactor);
        self.sink.read().unwrap_or_else(PoisonError::into_inner).write(&record, self.clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_stream_is_the_journal() {
        let file = tempfile::tempfile().expect("a file");
        let stat = rustix::fs::fstat(&file).expect("stat");
        assert!(is_named_stream(&file, Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
        assert!(!is_named_stream(&file, Some("1:2")) && !is_named_stream(&file, None));
    }
}
