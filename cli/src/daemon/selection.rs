//! Selects a daemon. The candidate sockets are tried in order; the first daemon that responds, accepts work and has a
//! compatible version is used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proctor_client::daemon_address::{Compatibility, DaemonAddress, DaemonTrust, compatibility};
use proctor_client::error::ClientError;
use proctor_client::installation::show;
use proctor_client::socket_candidates::{MAX_ENV, SocketCandidate, SocketOrigin, VERSION, all_candidates};
use proctor_core::api::{Health, HealthStatus, Problem, ProblemType};
use proctor_core::spec::OperatorConfig;
use proctor_daemon::client::Client;

use super::{ADMISSION_HINT, ReachableDaemon, not_admitted_error, repo_utf8, unreachable_error};
use crate::args::BackendArgs;
use crate::caller::Caller;
use crate::engine;
use crate::error::CliError;
use crate::screen::Screen;
use crate::style;

const TOO_LARGE: &str = "the environment is too large to be sent to the daemon";

/// The parameters that decide which daemon, if any, does the work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackendCriteria<'a> {
    /// The options of the command line.
    pub options: &'a BackendArgs,
    /// The operator's config.
    pub operator: &'a OperatorConfig,
    /// The repository.
    pub repo: &'a Path,
}

impl BackendCriteria<'_> {
    /// Returns the sockets at which a suitable daemon may listen.
    fn socket_candidates(&self, caller: &Caller) -> Vec<SocketCandidate> {
        let BackendArgs { state, operator: config, daemon } = self.options;
        let mut candidates = all_candidates(daemon.socket.as_deref(), self.operator, caller);
        // A daemon has its own state directory and config, so it must not be used if the caller names others. An
        // exception is a config that sets the daemon's socket: that daemon has read the same config.
        if state.state_dir.is_some() {
            candidates.clear();
        }
        if config.config.is_some() {
            candidates.retain(|candidate| candidate.address.trust == DaemonTrust::AnyUser);
        }
        candidates
    }
}

/// The purpose for which a daemon is needed; it decides which requirements the daemon must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New work: the daemon must accept work, and its version must be compatible.
    NewWork,
    /// Reading existing runs: its version must be compatible.
    ReadRuns,
    /// The daemon itself, in any state and version.
    Manage,
}

/// Finds the daemon that does the work; returns `None` if this process does it.
///
/// # Errors
/// A daemon is required and none responds, or the repository path cannot be sent to it.
pub(crate) async fn select_backend(
    wanted: BackendCriteria<'_>,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<ReachableDaemon>, CliError> {
    let BackendCriteria { options: BackendArgs { daemon, .. }, repo, .. } = wanted;
    let utf8_repo = repo_utf8(repo);
    if daemon.no_daemon || utf8_repo.is_err() && !daemon.daemon {
        return Ok(None);
    }
    utf8_repo?;
    let candidates = wanted.socket_candidates(caller);
    if daemon.daemon {
        let daemon = require_daemon(&candidates, Purpose::NewWork).await?;
        warn_about_version(&daemon, screen);
        return Ok(Some(daemon));
    }
    for candidate in &candidates {
        match check_candidate(&candidate.address, Purpose::NewWork).await {
            Ok(daemon) => {
                warn_about_version(&daemon, screen);
                return Ok(Some(daemon));
            }
            Err(refusal) if is_expected_failure(candidate, &refusal) => {}
            Err(refusal) => {
                let message = format!("{refusal}; continuing without a daemon");
                screen.err(&style::warning_with_hints(&message, &refusal.hints()));
            }
        }
    }
    Ok(None)
}

/// Finds the daemon for work that needs the caller's environment, which is sent to the daemon.
///
/// # Errors
/// Same as [`select_backend`]; also if a daemon is required and the environment is too large.
pub(crate) async fn select_backend_with_env(
    wanted: BackendCriteria<'_>,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<ReachableDaemon>, CliError> {
    let Some(daemon) = select_backend(wanted, caller, screen).await? else { return Ok(None) };
    if is_sendable(&caller.env) {
        engine::warn_about_unreadable_env(caller, screen);
        return Ok(Some(daemon));
    }
    if wanted.options.daemon.daemon {
        let hint = "unset some variables, or omit `--daemon`".to_owned();
        return Err(CliError::Usage { message: TOO_LARGE.to_owned(), hint });
    }
    screen.err(&style::warning(&format!("{TOO_LARGE}; continuing without a daemon")));
    Ok(None)
}

/// Checks that the JSON of an environment, in which one byte may take six, is small enough to be sent.
fn is_sendable(env: &BTreeMap<String, String>) -> bool {
    serde_json::to_string(env).is_ok_and(|json| json.len() <= MAX_ENV)
}

/// Returns the first daemon that responds and is usable.
///
/// # Errors
/// No candidate is usable: exit code 6.
pub(crate) async fn require_daemon(
    candidates: &[SocketCandidate],
    purpose: Purpose,
) -> Result<ReachableDaemon, CliError> {
    if candidates.is_empty() {
        return Err(unreachable_error("the given config has no `daemon.socket`".to_owned()));
    }
    first_usable_daemon(candidates, purpose).await.map_err(|refusals| no_usable_daemon_error(&refusals))
}

/// Returns the running daemon in any state, or `None` if none listens that could serve this user.
///
/// # Errors
/// Something listens but does not respond as a daemon for this user: exit code 6.
pub(crate) async fn find_running_daemon(candidates: &[SocketCandidate]) -> Result<Option<ReachableDaemon>, CliError> {
    match first_usable_daemon(candidates, Purpose::Manage).await {
        Ok(daemon) => Ok(Some(daemon)),
        Err(refusals) => check_none_running(candidates, &refusals).map(|()| None),
    }
}

/// Returns an error unless all refusals mean that no daemon is running.
fn check_none_running(candidates: &[SocketCandidate], refusals: &[UnusableDaemonError]) -> Result<(), CliError> {
    let mut found = candidates.iter().zip(refusals);
    if found.all(|(candidate, refusal)| is_treated_as_absent(candidate, refusal)) {
        Ok(())
    } else {
        Err(no_usable_daemon_error(refusals))
    }
}

/// Returns the first usable daemon, or the reason for each candidate why it is not usable.
async fn first_usable_daemon(
    candidates: &[SocketCandidate],
    purpose: Purpose,
) -> Result<ReachableDaemon, Vec<UnusableDaemonError>> {
    let mut refusals = Vec::new();
    for candidate in candidates {
        match check_candidate(&candidate.address, purpose).await {
            Ok(daemon) => return Ok(daemon),
            Err(refusal) => refusals.push(refusal),
        }
    }
    Err(refusals)
}

fn no_usable_daemon_error(refusals: &[UnusableDaemonError]) -> CliError {
    let message = refusals.iter().map(UnusableDaemonError::to_string).collect::<Vec<_>>().join("; ");
    if refusals.iter().any(UnusableDaemonError::is_access_denied) {
        not_admitted_error(message)
    } else {
        unreachable_error(message)
    }
}

/// Returns the first candidate socket whose lock is held by a daemon of this user or of root, and the daemon's
/// process id.
pub(crate) fn lock_holder(candidates: &[SocketCandidate]) -> Option<(PathBuf, u32)> {
    let holder = |socket: &Path| proctor_daemon::lifecycle::lock_holder(socket).map(|pid| (socket.to_owned(), pid));
    candidates.iter().find_map(|candidate| holder(&candidate.address.socket))
}

/// The reason why a daemon is not usable.
#[derive(Debug, thiserror::Error)]
enum UnusableDaemonError {
    #[error(transparent)]
    Client(ClientError),
    #[error("the daemon at `{}` refused the request: {}", show(socket), problem.detail)]
    Problem { socket: PathBuf, problem: Box<Problem> },
    #[error("the daemon at `{}` is shutting down", show(.0))]
    Draining(PathBuf),
    #[error("the daemon at `{}` is Proctor {theirs}, which is incompatible with this Proctor {VERSION}", show(socket))]
    OtherVersion { socket: PathBuf, theirs: String },
}

impl UnusableDaemonError {
    /// Checks whether nothing listens at the socket.
    fn is_not_listening(&self) -> bool {
        matches!(self, Self::Client(ClientError::NotListening { .. }))
    }

    /// Checks whether the socket exists but this user may not connect.
    fn is_access_denied(&self) -> bool {
        matches!(self, Self::Client(ClientError::PermissionDenied { .. }))
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Client(ClientError::PermissionDenied { .. }) => vec![ADMISSION_HINT.to_owned()],
            Self::OtherVersion { .. } => vec!["restart it: `proctor daemon stop`, `proctor daemon start`".to_owned()],
            Self::Problem { problem, .. } => problem.hint.iter().cloned().collect(),
            Self::Client(_) | Self::Draining(_) => Vec::new(),
        }
    }
}

/// Checks whether this refusal means that there is no daemon for this user.
fn is_treated_as_absent(candidate: &SocketCandidate, refusal: &UnusableDaemonError) -> bool {
    matches!(refusal, UnusableDaemonError::Client(error) if candidate.is_absent(error))
}

/// Checks whether this refusal is normal, so this process does the work without a warning.
fn is_expected_failure(candidate: &SocketCandidate, refusal: &UnusableDaemonError) -> bool {
    match (candidate.origin, refusal) {
        (SocketOrigin::Named, _) => false,
        (
            SocketOrigin::System,
            UnusableDaemonError::Client(_) | UnusableDaemonError::Problem { .. } | UnusableDaemonError::Draining(_),
        ) => true,
        (SocketOrigin::User, UnusableDaemonError::Problem { problem, .. }) => problem.kind == ProblemType::Forbidden,
        (SocketOrigin::User, refusal) => refusal.is_not_listening(),
        (SocketOrigin::System, UnusableDaemonError::OtherVersion { .. }) => false,
    }
}

async fn check_candidate(address: &DaemonAddress, purpose: Purpose) -> Result<ReachableDaemon, UnusableDaemonError> {
    let client = Client::new(address.clone());
    let health = client.health().await.map_err(|error| match error {
        ClientError::Problem(problem) => UnusableDaemonError::Problem { socket: address.socket.clone(), problem },
        error => UnusableDaemonError::Client(error),
    })?;
    check_health(client, health, purpose)
}

fn check_health(client: Client, health: Health, purpose: Purpose) -> Result<ReachableDaemon, UnusableDaemonError> {
    let socket = client.address().socket.clone();
    let is_incompatible = compatibility(VERSION, &health.version) == Compatibility::Incompatible;
    if is_incompatible && purpose != Purpose::Manage {
        return Err(UnusableDaemonError::OtherVersion { socket, theirs: health.version });
    }
    if health.status == HealthStatus::Draining && purpose == Purpose::NewWork {
        return Err(UnusableDaemonError::Draining(socket));
    }
    Ok(ReachableDaemon { client, health })
}

fn warn_about_version(daemon: &ReachableDaemon, screen: &mut Screen) {
    if compatibility(VERSION, &daemon.health.version) == Compatibility::Compatible {
        let theirs = &daemon.health.version;
        let text = format!("the daemon at `{}` is proctor {theirs}, and this is {VERSION}", show(daemon.socket()));
        screen.err(&style::warning(&crate::text::escape_line(&text)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::api::RunCounts;

    fn health(version: &str, status: HealthStatus) -> Health {
        let runs = RunCounts::default();
        Health { status, version: version.to_owned(), pid: 1, uid: 7, uptime_ms: 0, runs }
    }

    #[test]
    fn draining_or_incompatible_daemon_gets_no_work() {
        let address = DaemonAddress { socket: "/s".into(), trust: DaemonTrust::AnyUser };
        let judge =
            |version, status, purpose| check_health(Client::new(address.clone()), health(version, status), purpose);
        judge(VERSION, HealthStatus::Ok, Purpose::NewWork).expect("ours");
        let ending = judge(VERSION, HealthStatus::Draining, Purpose::NewWork).expect_err("it ends");
        assert!(ending.to_string().contains("is shutting down"), "{ending}");
        judge(VERSION, HealthStatus::Draining, Purpose::ReadRuns).expect("it still answers");
        for purpose in [Purpose::NewWork, Purpose::ReadRuns] {
            let other = judge("99.0.0", HealthStatus::Ok, purpose).expect_err("another one");
            assert!(other.to_string().contains("99.0.0") && other.hints().len() == 1, "{other}");
        }
        judge("99.0.0", HealthStatus::Ok, Purpose::Manage).expect("it can be stopped");
    }

    #[test]
    fn sends_environment_only_below_the_json_limit() {
        let env = |value: &str, count: usize| BTreeMap::from([("A".to_owned(), value.repeat(count))]);
        assert!(is_sendable(&env("x", 200 << 10)));
        assert!(!is_sendable(&env("x", 257 << 10)));
        assert!(!is_sendable(&env("\u{1b}", 200 << 10)), "each of them is six bytes");
    }

    #[test]
    fn denied_system_daemon_counts_as_absent() {
        let candidate = |whose| SocketCandidate {
            address: DaemonAddress { socket: "/s".into(), trust: DaemonTrust::AnyUser },
            origin: whose,
        };
        let absent =
            || UnusableDaemonError::Client(ClientError::NotListening { socket: "/s".into(), reason: "no".to_owned() });
        let closed = || {
            UnusableDaemonError::Client(ClientError::PermissionDenied { socket: "/s".into(), reason: "no".to_owned() })
        };
        let usual = [candidate(SocketOrigin::User), candidate(SocketOrigin::System)];
        check_none_running(&usual, &[absent(), absent()]).expect("none at all");
        check_none_running(&usual, &[absent(), closed()]).expect("none of this user's");
        let own = check_none_running(&usual, &[closed(), absent()]).expect_err("this user's own");
        assert_eq!((own.exit_code(), own.hints()), (6, vec![ADMISSION_HINT.to_owned()]));
        check_none_running(&[candidate(SocketOrigin::Named)], &[closed()]).expect_err("the one that was named");
    }

    #[test]
    fn failure_of_a_named_socket_is_always_reported() {
        let problem = Problem::new(ProblemType::Forbidden, "this user is not served");
        let forbidden = UnusableDaemonError::Problem { socket: "/s".into(), problem: Box::new(problem) };
        let absent =
            UnusableDaemonError::Client(ClientError::NotListening { socket: "/s".into(), reason: "no".to_owned() });
        let closed =
            UnusableDaemonError::Client(ClientError::PermissionDenied { socket: "/s".into(), reason: "no".to_owned() });
        let expected = |whose| {
            let candidate = SocketCandidate {
                address: DaemonAddress { socket: "/s".into(), trust: DaemonTrust::AnyUser },
                origin: whose,
            };
            [&forbidden, &absent, &closed].map(|refusal| is_expected_failure(&candidate, refusal))
        };
        assert_eq!(expected(SocketOrigin::Named), [false, false, false]);
        assert_eq!(expected(SocketOrigin::User), [true, true, false]);
        assert_eq!(expected(SocketOrigin::System), [true, true, true]);
    }
}
