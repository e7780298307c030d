//! Parses the address of a server.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// The name or address of the host; an IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
        /// True for TLS.
        tls: bool,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// The error for a text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address of a server: write `grpcs://HOST:PORT`, `grpc://HOST:PORT` or `unix:/PATH`")]
pub struct BadEndpoint(String);

const TLS_PORT: u16 = 443;
const PLAIN_PORT: u16 = 80;

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(bad()) };
        }
        let (authority, tls) = match (text.strip_prefix("grpcs://"), text.strip_prefix("grpc://")) {
            (Some(rest), _) => (rest, true),
            (None, Some(rest)) => (rest, false),
            (None, None) => return Err(bad()),
        };
        // A user or path has no meaning here, and a user could be a secret.
        let authority: http::uri::Authority =
            authority.strip_suffix('/').unwrap_or(authority).parse().map_err(|_| bad())?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(bad());
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str() == authority.host() => {
                if tls {
                    TLS_PORT
                } else {
                    PLAIN_PORT
                }
            }
            None => return Err(bad()),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self::Tcp { host, port, tls })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { tls, .. } => write!(f, "{}://{}", if *tls { "grpcs" } else { "grpc" }, self.authority()),
        }
    }
}

impl Endpoint {
    /// Returns host and port, as in a URL.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
        }
    }

    pub(crate) fn uses_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }

    /// Returns whether another machine can read what is sent.
    pub(crate) fn is_readable_on_the_way(&self) -> bool {
        match self {
            Self::Unix(_) | Self::Tcp { tls: true, .. } => false,
            Self::Tcp { host, .. } => {
                host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses() {
        let tcp = |host: &str, port, tls| Ok(Endpoint::Tcp { host: host.to_owned(), port, tls });
        for (text, expected) in [
            ("grpc://cache:8980", tcp("cache", 8980, false)),
            ("grpcs://cache.example.com", tcp("cache.example.com", 443, true)),
            ("grpcs://[::1]:8980/", tcp("::1", 8980, true)),
            ("unix:/run/casd.sock", Ok(Endpoint::Unix("/run/casd.sock".into()))),
            ("unix:///run/casd.sock", Ok(Endpoint::Unix("/run/casd.sock".into()))),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
        for wrong in [
            "",
            "cache:8980",
            "http://cache",
            "grpc://",
            "grpc://u:p@cache",
            "grpc://cache:x",
            "grpc://a/b",
            "unix:run",
        ] {
            assert_eq!(wrong.parse::<Endpoint>(), Err(BadEndpoint(wrong.to_owned())), "{wrong}");
        }
        assert_eq!("grpcs://[::1]:1".parse::<Endpoint>().expect("an address").to_string(), "grpcs://[::1]:1");
    }

    #[test]
    fn knows_which_connections_others_can_read() {
        let is_readable = |text: &str| text.parse::<Endpoint>().expect("an address").is_readable_on_the_way();
        assert!(is_readable("grpc://cache:1") && is_readable("grpc://10.0.0.1:1"));
        for safe in ["grpcs://cache:1", "grpc://127.0.0.1:1", "grpc://[::1]:1", "grpc://localhost:1", "unix:/s"] {
            assert!(!is_readable(safe), "{safe}");
        }
    }
}
