//! The sockets at which a daemon for the caller may listen, and the first one with a healthy daemon of our version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proctor_core::api::HealthStatus;
use proctor_core::spec::OperatorConfig;

use crate::blocking_connection::BlockingConnection;
use crate::daemon_address::{Compatibility, DaemonAddress, DaemonTrust, compatibility};
use crate::error::ClientError;
use crate::installation::{ProcessEnvironment, SYSTEM_SOCKET, candidate_sockets, state_dir};

/// The version of this program, to compare with the daemon's.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Largest environment that is sent to a daemon, in bytes of JSON. It is a fraction of the daemon's limit for a
/// request.
pub const MAX_ENV: usize = 256 << 10;

/// A socket to try, and the origin of its path, which decides how a failure there is handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketCandidate {
    /// The socket, and whose daemon is trusted there.
    pub address: DaemonAddress,
    /// The origin of the path.
    pub origin: SocketOrigin,
}

/// The origin of a socket path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketOrigin {
    /// Named by the caller with `--socket`.
    Named,
    /// Set in the operator's config, or the default path of this user's daemon.
    User,
    /// The default path of the system's daemon, which may not serve every user.
    System,
}

/// Returns the candidates: the named socket, else the operator's, else the default sockets of this user and of the
/// system.
pub fn all_candidates(
    named: Option<&Path>,
    operator: &OperatorConfig,
    environment: &ProcessEnvironment,
) -> Vec<SocketCandidate> {
    let new_candidate =
        |socket: PathBuf, trust, origin| SocketCandidate { address: DaemonAddress { socket, trust }, origin };
    if let Some(named) = named {
        return vec![new_candidate(environment.cwd.join(named), DaemonTrust::AnyUser, SocketOrigin::Named)];
    }
    if let Some(socket) = &operator.daemon.socket {
        return vec![new_candidate(socket.into(), DaemonTrust::AnyUser, SocketOrigin::User)];
    }
    let trust = DaemonTrust::OwnOrRoot(environment.uid);
    let state = state_dir(None, environment).ok();
    let own = state.map(|state| candidate_sockets(environment, &state)).unwrap_or_default();
    let own = own.into_iter().map(|socket| new_candidate(socket, trust, SocketOrigin::User));
    let systems = (!environment.is_root()).then(|| new_candidate(SYSTEM_SOCKET.into(), trust, SocketOrigin::System));
    own.chain(systems).collect()
}

impl SocketCandidate {
    /// Returns whether a failed connection means that there is no daemon for this user. The system's daemon serves only
    /// users whom its operator admits, so a denied connection there counts as absence.
    pub fn is_absent(&self, error: &ClientError) -> bool {
        match error {
            ClientError::NotListening { .. } => true,
            ClientError::PermissionDenied { .. } => self.origin == SocketOrigin::System,
            _ => false,
        }
    }
}

/// A daemon with a pending health request, on a connection that can carry one more request.
#[derive(Debug)]
pub struct PendingHealthCheck(BlockingConnection);

/// Sends a health request to the first daemon that listens at one of the sockets. Returns `None` if there is none, and
/// for every failure that must be reported: the caller then searches again and reports it.
pub fn start_health_check(candidates: &[SocketCandidate]) -> Option<PendingHealthCheck> {
    for candidate in candidates {
        match BlockingConnection::open(&candidate.address) {
            Ok(mut connection) => {
                return connection.request_health().ok().map(|()| PendingHealthCheck(connection));
            }
            Err(error) if candidate.origin != SocketOrigin::Named && candidate.is_absent(&error) => {}
            Err(_) => return None,
        }
    }
    None
}

impl PendingHealthCheck {
    /// Waits for the response. Returns the connection if the daemon accepts work and has exactly our version.
    pub fn into_ready_connection(self) -> Option<BlockingConnection> {
        let Self(mut connection) = self;
        let health = connection.health().ok()?;
        let is_ready =
            health.status == HealthStatus::Ok && compatibility(VERSION, &health.version) == Compatibility::Same;
        is_ready.then_some(connection)
    }
}

/// Returns whether an environment can be sent, without serializing it: JSON takes at most six bytes for each byte and
/// six more for each variable.
pub fn is_env_surely_sendable(env: &BTreeMap<String, String>) -> bool {
    env.iter().map(|(name, value)| (name.len() + value.len() + 1) * 6).sum::<usize>() < MAX_ENV
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate_addresses(
        named: Option<&str>,
        config: &str,
        env: &[(&str, &str)],
        uid: u32,
    ) -> Vec<(PathBuf, DaemonTrust)> {
        let environment = ProcessEnvironment { uid, ..ProcessEnvironment::for_tests(env) };
        let operator = OperatorConfig::parse(config).expect("a config");
        let found = all_candidates(named.map(Path::new), &operator, &environment);
        found.into_iter().map(|candidate| (candidate.address.socket, candidate.address.trust)).collect()
    }

    #[test]
    fn orders_socket_candidates() {
        let config = "[daemon]\nsocket = '/c'\n";
        let session = [("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(candidate_addresses(Some("s"), config, &session, 7), [("/s".into(), DaemonTrust::AnyUser)]);
        assert_eq!(candidate_addresses(None, config, &session, 7), [("/c".into(), DaemonTrust::AnyUser)]);
        let own = "/run/user/7/proctor/proctord.sock";
        let in_state = "/home/a/.local/state/proctor/run/proctord.sock";
        let trust = DaemonTrust::OwnOrRoot(7);
        let expected = [own, in_state, SYSTEM_SOCKET].map(|socket| (socket.into(), trust));
        assert_eq!(candidate_addresses(None, "", &session, 7), expected);
        assert_eq!(candidate_addresses(None, "", &session, 0), [(SYSTEM_SOCKET.into(), DaemonTrust::OwnOrRoot(0))]);
        assert_eq!(candidate_addresses(None, "", &[], 7)[0].0, Path::new(in_state));
    }

    #[test]
    fn only_default_sockets_are_skipped_silently() {
        let dir = tempfile::tempdir().expect("a directory");
        let candidate = |name: &str, origin| SocketCandidate {
            address: DaemonAddress { socket: dir.path().join(name), trust: DaemonTrust::AnyUser },
            origin,
        };
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("s")).expect("a socket");
        let absent = |origin| [candidate("absent", origin), candidate("s", SocketOrigin::User)];
        assert!(start_health_check(&absent(SocketOrigin::Named)).is_none());
        assert!(start_health_check(&absent(SocketOrigin::User)).is_some());
        drop(listener);
    }

    #[test]
    fn large_environment_is_not_surely_sendable() {
        let env = |length: usize| BTreeMap::from([("A".to_owned(), "x".repeat(length))]);
        assert!(is_env_surely_sendable(&env(40 << 10)));
        assert!(!is_env_surely_sendable(&env(44 << 10)));
    }
}
