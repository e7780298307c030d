//! Writes records to the journal with its native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): one
//! datagram per record and one line per field. Values contain no line breaks here, so the binary form of fields is
//! not needed.

use std::io;
use std::os::unix::net::UnixDatagram;

use tracing::Level;

use super::record::Record;

const SOCKET: &str = "/run/systemd/journal/socket";
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
        Self::at(SOCKET).ok()
    }

    fn at(path: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        // A hanging journal must not block the daemon.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sends a record. Returns whether it was sent.
    pub(super) fn send(&self, record: &Record) -> bool {
        let bytes = encoded(record);
        // Reconnect after a restart of the journal.
        self.0.send(bytes.as_bytes()).is_ok() || self.0.connect(SOCKET).is_ok() && self.0.send(bytes.as_bytes()).is_ok()
    }
}

fn encoded(record: &Record) -> String {
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
    fn a_record_is_a_datagram_of_lines() {
        let record = Record::for_tests("it happened", vec![("run.id", "7=x".to_owned())]);
        let text = "PRIORITY=4\nSYSLOG_IDENTIFIER=proctord\nPROCTOR_TARGET=proctor::x\nMESSAGE=it happened\nPROCTOR_RUN_ID=7=x\n";
        assert_eq!(encoded(&record), text);
    }

    #[test]
    fn it_is_sent_where_the_journal_listens() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listening = UnixDatagram::bind(&path).expect("bound");
        let journal = Journal::at(path.to_str().expect("UTF-8")).expect("connected");
        assert!(journal.send(&Record::for_tests("m", Vec::new())));
        let mut bytes = [0; 512];
        let count = listening.recv(&mut bytes).expect("a datagram");
        assert!(bytes[..count].windows(9).any(|window| window == b"MESSAGE=m"));
        Journal::at("/proc/absent").expect_err("no journal");
    }
}
