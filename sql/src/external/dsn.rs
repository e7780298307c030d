//! Parses the URL of a database server, such as `postgres://app@db.example.org/shop`.
//!
//! A connection over TCP to another machine uses TLS, and the certificate of the server is always verified.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str};
use proctor_core::sql::Dialect;
use serde::{Deserialize, Serialize};
use url::Url;

/// The variables with a password for URLs that contain none.
const PASSWORD_VARIABLES: &[(Dialect, &str)] = &[(Dialect::Postgres, "PGPASSWORD"), (Dialect::Mysql, "MYSQL_PWD")];
/// The minimum length of a password that is removed from messages, in bytes.
const MIN_REDACTED_BYTES: usize = 4;
/// The names of the TLS mode, in the words of both families of servers.
const TLS_MODE: &[&str] = &["sslmode", "ssl-mode"];
/// The names of the file with trusted certificates.
const TLS_ROOTS: &[&str] = &["sslrootcert", "ssl-ca"];
/// The names of the socket: a directory for PostgreSQL, a file for MySQL.
const SOCKET: &[&str] = &["host", "socket"];

/// The address of a database on a server, with the data to log in.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dsn {
    pub(crate) dialect: Dialect,
    pub(crate) address: ServerAddress,
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) database: String,
    pub(crate) tls: TlsMode,
}

/// The place where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ServerAddress {
    /// A host with a port.
    Tcp { host: String, port: u16 },
    /// The directory of the socket of PostgreSQL, or the socket of MySQL.
    Socket(PathBuf),
}

/// The protection of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TlsMode {
    /// The connection is not encrypted.
    Off,
    /// The connection is encrypted. The certificate of the server is verified with the certificates of this file, or
    /// with those that the system trusts.
    Verified { roots: Option<PathBuf> },
}

/// The reason why a URL names no database. The message contains no part of a password.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DsnError {
    /// The text is not a URL.
    #[error("it is not a URL such as `postgres://USER@HOST/DATABASE`: {0}")]
    NotAUrl(url::ParseError),
    /// The scheme belongs to no supported server.
    #[error("`{0}` is not one of the schemes `postgres`, `postgresql`, `mysql` and `mariadb`")]
    Scheme(String),
    /// The URL names no database.
    #[error("it names no database; append `/DATABASE`")]
    NoDatabase,
    /// The URL names no user.
    #[error("it names no user; write `USER@` before the host")]
    NoUser,
    /// A part of the URL is not UTF-8.
    #[error("its {0} is not UTF-8")]
    NotUtf8(&'static str),
    /// The URL has an unknown parameter.
    #[error(
        "it has an unknown parameter `{0}`; known are `sslmode`, `sslrootcert`, and `host` or `socket` for a socket"
    )]
    UnknownParameter(String),
    /// A socket is not an absolute path.
    #[error("the socket `{0}` is not an absolute path")]
    RelativeSocket(String),
    /// The TLS mode would not verify the server, or is unknown.
    #[error("the TLS mode `{0}` is not one of `verify-full` and `disable`")]
    TlsMode(String),
}

impl fmt::Display for Dsn {
    /// Writes the URL without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.dialect == Dialect::Postgres { "postgres" } else { "mysql" };
        match &self.address {
            ServerAddress::Tcp { host, port } if host.contains(':') => {
                write!(f, "{scheme}://{}@[{host}]:{port}/{}", self.user, self.database)
            }
            ServerAddress::Tcp { host, port } => {
                write!(f, "{scheme}://{}@{host}:{port}/{}", self.user, self.database)
            }
            ServerAddress::Socket(path) => {
                let name = if self.dialect == Dialect::Postgres { "host" } else { "socket" };
                write!(f, "{scheme}://{}@/{}?{name}={}", self.user, self.database, path.display())
            }
        }
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dsn({self})")
    }
}

impl Dsn {
    /// Parses a URL. A password that it does not contain is read with `variable`.
    ///
    /// # Errors
    /// The text is not the URL of a database.
    pub fn parse(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, DsnError> {
        // `postgresql://user@/db?host=/run` has an empty host, which a URL with a user may not have.
        let (scheme, rest) = text.trim().split_once("://").unwrap_or(("", text));
        let has_no_host = rest.split(['/', '?']).next().is_some_and(|authority| authority.ends_with('@'));
        let url = match has_no_host {
            true => Url::parse(&format!("{scheme}://{}", rest.replacen("@/", "@localhost/", 1))),
            false => Url::parse(text.trim()),
        };
        let url = url.map_err(DsnError::NotAUrl)?;
        let dialect = match url.scheme() {
            "postgres" | "postgresql" => Dialect::Postgres,
            "mysql" | "mariadb" => Dialect::Mysql,
            other => return Err(DsnError::Scheme(other.to_owned())),
        };
        let decode = |part: &str, what| {
            let decoded = percent_decode_str(part).decode_utf8();
            decoded.map(|text| text.into_owned()).map_err(|_| DsnError::NotUtf8(what))
        };
        let parameters = Parameters::read(&url)?;
        let user = decode(url.username(), "user")?;
        let database = decode(url.path().trim_start_matches('/'), "database")?;
        if user.is_empty() {
            return Err(DsnError::NoUser);
        }
        if database.is_empty() {
            return Err(DsnError::NoDatabase);
        }
        let default_port = if dialect == Dialect::Postgres { 5432 } else { 3306 };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let address = match parameters.socket {
            Some(path) => ServerAddress::Socket(path),
            None if host.is_empty() => return Err(DsnError::NotAUrl(url::ParseError::EmptyHost)),
            None => ServerAddress::Tcp { host, port: url.port().unwrap_or(default_port) },
        };
        let is_encrypted = parameters.tls.unwrap_or(!address.is_local());
        let tls = if is_encrypted { TlsMode::Verified { roots: parameters.roots } } else { TlsMode::Off };
        let password = url.password().map(|password| decode(password, "password")).transpose()?;
        let from_variable =
            || PASSWORD_VARIABLES.iter().find(|(of, _)| *of == dialect).and_then(|(_, name)| variable(name));
        Ok(Self { dialect, address, user, password: password.or_else(from_variable), database, tls })
    }

    /// Returns the dialect of the server.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the URL of a database on the same server, with the password.
    pub(crate) fn url_with_password(&self, database: &str) -> String {
        let encode = |text: &str| percent_encoding::utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let url = Self { user: encode(&self.user), database: encode(database), ..self.clone() }.to_string();
        match &self.password {
            Some(password) => url.replacen('@', &format!(":{}@", encode(password)), 1),
            None => url,
        }
    }

    /// Removes the password from a text. A very short one would also occur in other words.
    pub(crate) fn redact(&self, text: &str) -> String {
        match &self.password {
            Some(password) if password.len() >= MIN_REDACTED_BYTES => text.replace(password, "[redacted]"),
            _ => text.to_owned(),
        }
    }
}

impl ServerAddress {
    /// Reports whether no other machine can listen to the connection.
    fn is_local(&self) -> bool {
        match self {
            Self::Socket(_) => true,
            Self::Tcp { host, .. } => is_loopback(host),
        }
    }
}

/// Reports whether a host is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// The parameters of a URL.
#[derive(Default)]
struct Parameters {
    tls: Option<bool>,
    roots: Option<PathBuf>,
    socket: Option<PathBuf>,
}

impl Parameters {
    fn read(url: &Url) -> Result<Self, DsnError> {
        let mut read = Self::default();
        for (name, value) in url.query_pairs() {
            let name = name.to_lowercase();
            if TLS_MODE.contains(&name.as_str()) {
                read.tls = Some(is_encrypted(&value)?);
            } else if TLS_ROOTS.contains(&name.as_str()) {
                read.roots = Some(PathBuf::from(value.as_ref()));
            } else if SOCKET.contains(&name.as_str()) {
                let path = PathBuf::from(value.as_ref());
                if !path.is_absolute() {
                    return Err(DsnError::RelativeSocket(value.into_owned()));
                }
                read.socket = Some(path);
            } else {
                return Err(DsnError::UnknownParameter(name));
            }
        }
        Ok(read)
    }
}

/// Returns whether a TLS mode encrypts the connection. Every encrypted connection verifies the host, even with
/// `require` and `verify-ca`. Modes that may continue without TLS are refused.
fn is_encrypted(mode: &str) -> Result<bool, DsnError> {
    match mode.to_lowercase().replace('_', "-").as_str() {
        "disable" | "disabled" => Ok(false),
        "verify-full" | "verify-identity" | "verify-ca" | "require" | "required" => Ok(true),
        _ => Err(DsnError::TlsMode(mode.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Dsn, DsnError> {
        Dsn::parse(text, |_| None)
    }

    #[test]
    fn reads_all_parts() {
        let dsn = parse("postgresql://app%40x:p%2Fw@db.example.org:6543/my%20shop?sslrootcert=/ca.pem").expect("a URL");
        assert_eq!(dsn.address, ServerAddress::Tcp { host: "db.example.org".to_owned(), port: 6543 });
        assert_eq!((dsn.user.as_str(), dsn.password.as_deref()), ("app@x", Some("p/w")));
        assert_eq!(dsn.database, "my shop");
        assert_eq!(dsn.tls, TlsMode::Verified { roots: Some("/ca.pem".into()) });
        assert_eq!(parse("mariadb://u@h/d").map(|dsn| dsn.dialect()), Ok(Dialect::Mysql));
    }

    #[test]
    fn only_local_connections_are_not_encrypted() {
        let tls = |text| parse(text).expect("a URL").tls;
        let verified = TlsMode::Verified { roots: None };
        for local in [
            "postgres://u@localhost/d",
            "mysql://u@127.0.0.1/d",
            "mysql://u@[::1]:3307/d",
            "postgres://u@/d?host=/run/postgresql",
            "mysql://u@localhost/d?socket=/run/mysqld/mysqld.sock",
        ] {
            assert_eq!(tls(local), TlsMode::Off, "{local}");
        }
        for remote in ["postgres://u@10.0.0.1/d", "mysql://u@localhost.example.org/d", "mysql://u@[fe80::1]/d"] {
            assert_eq!(tls(remote), verified, "{remote}");
        }
        assert_eq!(tls("postgres://u@10.0.0.1/d?sslmode=disable"), TlsMode::Off);
        assert_eq!(tls("mysql://u@localhost/d?ssl-mode=REQUIRED"), verified);
        for mode in ["prefer", "allow", "PREFERRED", "no-verify", ""] {
            assert_eq!(parse(&format!("mysql://u@h/d?sslmode={mode}")), Err(DsnError::TlsMode(mode.to_owned())));
        }
    }

    #[test]
    fn reports_what_is_missing() {
        assert!(matches!(parse("shop.db"), Err(DsnError::NotAUrl(_))));
        assert_eq!(parse("sqlite://u@h/d"), Err(DsnError::Scheme("sqlite".to_owned())));
        assert_eq!(parse("mysql://h/d"), Err(DsnError::NoUser));
        assert_eq!(parse("mysql://u@h"), Err(DsnError::NoDatabase));
        assert_eq!(parse("mysql://u@h/d?x=1"), Err(DsnError::UnknownParameter("x".to_owned())));
        assert_eq!(parse("mysql://u@h/d?socket=s"), Err(DsnError::RelativeSocket("s".to_owned())));
        assert_eq!(parse("mysql://u@h/%ff"), Err(DsnError::NotUtf8("database")));
    }

    #[test]
    fn passwords_are_not_shown() {
        let dsn =
            Dsn::parse("mysql://u@h/d", |name| (name == "MYSQL_PWD").then(|| "hunter22".to_owned())).expect("a URL");
        assert_eq!(dsn.password.as_deref(), Some("hunter22"));
        assert_eq!(format!("{dsn:?}"), "Dsn(mysql://u@h:3306/d)");
        assert_eq!(dsn.redact("access denied for hunter22"), "access denied for [redacted]");
        let of_url = parse("postgres://u:secret@/d?host=/run").expect("a URL");
        assert_eq!(of_url.to_string(), "postgres://u@/d?host=/run");
        let other = parse("mysql://x.root:p%40s@h/d").expect("a URL").url_with_password("e");
        assert_eq!(parse(&other).expect("a URL").password.as_deref(), Some("p@s"), "{other}");
    }
}
