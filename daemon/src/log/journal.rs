//! Writes records to the journal with its native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): one
//! datagram per record and one line per field. Values contain no line breaks here, so the binary form of fields is
//! not needed.

use std::io;
use std::os::unix::net::UnixDatagram;

use tracing::Level;

use super::log_record::LogRecord;

const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
const IDENTIFIER: &str = "proctord";
/// Prefix of field names, which avoids conflicts with the journal's own fields.
const PREFIX: &str = "PROCTOR_";
/// Maximum length of a field name; journald refuses longer ones.
const MAX_NAME: usize = 64;

/// Connection to the journal.
#[derive(Debug)]
pub(super) struct Journal(UnixDatagram);

impl Journal {
    /// Connects to the journal; returns `None` if there is none.
    pub(super) fn open() -> Option<Self> {
        Self::connect_to(JOURNAL_SOCKET).ok()
    }

    fn connect_to(path: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A hanging journal must not block the daemon.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sends a record. Returns whether it was sent.
    pub(super) fn send(&self, record: &LogRecord) -> bool {
        let bytes = encode(record);
        // Reconnect after a restart of the journal.
        self.0.send(bytes.as_bytes()).is_ok()
            || self.0.connect(JOURNAL_SOCKET).is_ok() && self.0.send(bytes.as_bytes()).is_ok()
    }
}

fn encode(record: &LogRecord) -> String {
    let priority = match record.level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    };
    let own = [
        ("PRIORITY", priority),
        ("SYSLOG_IDENTIFIER", IDENTIFIER),
        ("PROCTOR_TARGET", &record.target),
        ("MESSAGE", &record.message),
    ];
    let own = own.into_iter().map(|(name, value)| format!("{name}={value}\n"));
    own.chain(record.fields.iter().map(|(name, value)| format!("{}={value}\n", journal_name(name)))).collect()
}

/// Converts a name to the characters that the journal permits: capitals, digits and underscores.
fn journal_name(name: &str) -> String {
    let own = name.chars().map(|char| if char.is_ascii_alphanumeric() { char.to_ascii_uppercase() } else { '_' });
    PREFIX.chars().chain(own).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_record_as_lines_of_one_datagram() {
        let record = LogRecord::for_tests("it happened", vec![("run.id", "7=x".to_owned())]);
        let text = "PRIORITY=4\nSYSLOG_IDENTIFIER=proctord\nPROCTOR_TARGET=proctor::x\nMESSAGE=it happened\nPROCTOR_RUN_ID=7=x\n";
        assert_eq!(encode(&record), text);
    }

    #[test]
    fn sends_record_to_journal_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listening = UnixDatagram::bind(&path).expect("bound");
        let journal = Journal::connect_to(path.to_str().expect("UTF-8")).expect("connected");
        assert!(journal.send(&LogRecord::for_tests("m", Vec::new())));
        let mut bytes = [0; 512];
        let count = listening.recv(&mut bytes).expect("a datagram");
        assert!(bytes[..count].windows(9).any(|window| window == b"MESSAGE=m"));
        Journal::connect_to("/proc/absent").expect_err("no journal");
    }
}
