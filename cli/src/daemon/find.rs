//! Selects a daemon. The candidate sockets are tried in order; the first daemon that responds, accepts work and has a
//! compatible version is used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proctor_core::api::{Health, HealthStatus, Problem, ProblemType};
use proctor_core::spec::Operator;
use proctor_daemon::client::{Client, ClientError, Compatibility, Link, Place, Trust, compatibility};
use proctor_daemon::installation::{SYSTEM_SOCKET, show, sockets};

use super::{BE_ADMITTED, Daemon, not_allowed, repo_text, unreachable};
use crate::args::{StateArgs, WayArgs};
use crate::caller::Caller;
use crate::engine;
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;
use crate::style;

/// The version of this program, to compare with the daemon's.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Largest environment that is sent to a daemon, in bytes of JSON. It is a fraction of the daemon's limit for a
/// request.
const MAX_ENV: usize = 256 << 10;
const TOO_LARGE: &str = "the environment is too large to be sent to the daemon";

/// A socket to try, and the origin of its path, which decides how a failure there is handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    place: Place,
    whose: Whose,
}

/// The origin of a socket path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Named by the caller with `--socket`.
    Named,
    /// Set in the operator's config, or the default path of this user's daemon.
    Own,
    /// The default path of the system's daemon, which may not serve every user.
    Systems,
}

/// The parameters that decide which daemon, if any, does the work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The options of the command line.
    pub way: &'a WayArgs,
    /// The operator's config.
    pub operator: &'a Operator,
    /// The repository.
    pub repo: &'a Path,
}

impl Wanted<'_> {
    /// Returns the sockets at which a suitable daemon may listen.
    fn candidates(&self, caller: &Caller) -> Vec<Candidate> {
        let WayArgs { state, operator: config, daemon } = self.way;
        let mut candidates = places(daemon.socket.as_deref(), self.operator, caller);
        // A daemon has its own state directory and config, so it must not be used if the caller names others. An
        // exception is a config that sets the daemon's socket: that daemon has read the same config.
        if state.state_dir.is_some() {
            candidates.clear();
        }
        if config.config.is_some() {
            candidates.retain(|candidate| candidate.place.trust == Trust::Named);
        }
        candidates
    }
}

/// The purpose of finding a daemon; it decides which requirements the daemon must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New work: the daemon must accept work, and its version must be compatible.
    Work,
    /// Reading existing runs: its version must be compatible.
    Look,
    /// The daemon itself, in any state and version.
    Itself,
}

/// Finds the daemon that does the work; returns `None` if this process does it.
///
/// # Errors
/// A daemon is required and none responds, or the repository path cannot be sent to it.
pub(crate) async fn who_does_it(
    wanted: Wanted<'_>,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<Daemon>, CliError> {
    let Wanted { way: WayArgs { daemon, .. }, repo, .. } = wanted;
    let sayable = repo_text(repo);
    if daemon.no_daemon || sayable.is_err() && !daemon.daemon {
        return Ok(None);
    }
    sayable?;
    let candidates = wanted.candidates(caller);
    if daemon.daemon {
        let daemon = demanded(&candidates, Purpose::Work).await?;
        warn_of_version(&daemon, screen);
        return Ok(Some(daemon));
    }
    for candidate in &candidates {
        match usable(&candidate.place, Purpose::Work).await {
            Ok(daemon) => {
                warn_of_version(&daemon, screen);
                return Ok(Some(daemon));
            }
            Err(refusal) if candidate.is_expected(&refusal) => {}
            Err(refusal) => {
                let message = format!("{refusal}; this is done without a daemon");
                screen.err(&style::warning_with(&message, &refusal.hints()));
            }
        }
    }
    Ok(None)
}

/// A daemon with a pending health request, on a connection that can carry one more request.
pub(crate) struct Greeted(Link);

/// Sends a health request to the daemon that would run work with the caller's environment; [`Greeted::link`] reads
/// the answer. Returns `None` for the cases that only [`who_does_it_with_env`] handles.
pub(crate) fn greet(wanted: Wanted<'_>, caller: &Caller) -> Option<Greeted> {
    if wanted.way.daemon.no_daemon || repo_text(wanted.repo).is_err() || !is_small(&caller.env) {
        return None;
    }
    for candidate in wanted.candidates(caller) {
        match Link::open(&candidate.place).map_err(Refusal::Client) {
            Ok(mut link) => return link.ask_health().ok().map(|()| Greeted(link)),
            // [`who_does_it_with_env`] would also skip this candidate silently.
            Err(refusal) if candidate.is_expected(&refusal) && candidate.is_without(&refusal) => {}
            Err(_) => return None,
        }
    }
    None
}

impl Greeted {
    /// Returns the connection if the daemon accepts work and has exactly our version.
    pub(crate) fn link(self) -> Option<Link> {
        let Self(mut link) = self;
        let health = link.health().ok()?;
        let is_usual =
            health.status == HealthStatus::Ok && compatibility(VERSION, &health.version) == Compatibility::Same;
        is_usual.then_some(link)
    }
}

/// Checks, without serialising it, that an environment can be sent: JSON takes at most six bytes for each byte and
/// six more for each variable.
fn is_small(env: &BTreeMap<String, String>) -> bool {
    env.iter().map(|(name, value)| (name.len() + value.len() + 1) * 6).sum::<usize>() < MAX_ENV
}

/// Finds the daemon for work that needs the caller's environment, which is sent to the daemon.
///
/// # Errors
/// Same as [`who_does_it`]; also if a daemon is required and the environment is too large.
pub(crate) async fn who_does_it_with_env(
    wanted: Wanted<'_>,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<Daemon>, CliError> {
    let Some(daemon) = who_does_it(wanted, caller, screen).await? else { return Ok(None) };
    if is_sendable(&caller.env) {
        engine::warn_of_unreadable(caller, screen);
        return Ok(Some(daemon));
    }
    if wanted.way.daemon.daemon {
        let hint = "unset some of it, or omit `--daemon`".to_owned();
        return Err(CliError::Usage { message: TOO_LARGE.to_owned(), hint });
    }
    screen.err(&style::warning(&format!("{TOO_LARGE}; this is done without a daemon")));
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
pub(crate) async fn demanded(candidates: &[Candidate], purpose: Purpose) -> Result<Daemon, CliError> {
    if candidates.is_empty() {
        return Err(unreachable("the config that was named has no `daemon.socket`".to_owned()));
    }
    first(candidates, purpose).await.map_err(|refusals| none_of(&refusals))
}

/// Returns the running daemon in any state, or `None` if none listens that could serve this user.
///
/// # Errors
/// Something listens but does not respond as a daemon for this user: exit code 6.
pub(crate) async fn running(candidates: &[Candidate]) -> Result<Option<Daemon>, CliError> {
    match first(candidates, Purpose::Itself).await {
        Ok(daemon) => Ok(Some(daemon)),
        Err(refusals) => none_runs(candidates, &refusals).map(|()| None),
    }
}

/// Returns an error unless all refusals mean that no daemon is running.
fn none_runs(candidates: &[Candidate], refusals: &[Refusal]) -> Result<(), CliError> {
    let mut found = candidates.iter().zip(refusals);
    if found.all(|(candidate, refusal)| candidate.is_without(refusal)) { Ok(()) } else { Err(none_of(refusals)) }
}

/// Returns the first usable daemon, or the reason for each candidate why it is not usable.
async fn first(candidates: &[Candidate], purpose: Purpose) -> Result<Daemon, Vec<Refusal>> {
    let mut refusals = Vec::new();
    for candidate in candidates {
        match usable(&candidate.place, purpose).await {
            Ok(daemon) => return Ok(daemon),
            Err(refusal) => refusals.push(refusal),
        }
    }
    Err(refusals)
}

fn none_of(refusals: &[Refusal]) -> CliError {
    let message = refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ");
    if refusals.iter().any(Refusal::is_of_rights) { not_allowed(message) } else { unreachable(message) }
}

/// Returns the candidates: the named socket, else the operator's, else the default sockets of this user and of the
/// system.
pub(crate) fn places(named: Option<&Path>, operator: &Operator, caller: &Caller) -> Vec<Candidate> {
    let of = |socket: PathBuf, trust, whose| Candidate { place: Place { socket, trust }, whose };
    if let Some(named) = named {
        return vec![of(caller.cwd.join(named), Trust::Named, Whose::Named)];
    }
    if let Some(socket) = &operator.daemon.socket {
        return vec![of(socket.into(), Trust::Named, Whose::Own)];
    }
    let trust = Trust::OwnOrRoot(caller.uid);
    let state = installation::state_dir(&StateArgs { state_dir: None }, caller).ok();
    let own = state.map(|state| sockets(caller, &state)).unwrap_or_default();
    let own = own.into_iter().map(|socket| of(socket, trust, Whose::Own));
    let systems = (!caller.is_root()).then(|| of(SYSTEM_SOCKET.into(), trust, Whose::Systems));
    own.chain(systems).collect()
}

/// Returns the first candidate socket whose lock is held by a daemon of this user or of root, and the daemon's
/// process id.
pub(crate) fn lock_holder(candidates: &[Candidate]) -> Option<(PathBuf, u32)> {
    let holder = |socket: &Path| proctor_daemon::life::lock_holder(socket).map(|pid| (socket.to_owned(), pid));
    candidates.iter().find_map(|candidate| holder(&candidate.place.socket))
}

/// The reason why a daemon is not usable.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Client(ClientError),
    #[error("the daemon at `{}` refused the request: {}", show(socket), problem.detail)]
    Problem { socket: PathBuf, problem: Box<Problem> },
    #[error("the daemon at `{}` is shutting down", show(.0))]
    Draining(PathBuf),
    #[error("the daemon at `{}` is Proctor {theirs}, which is incompatible with this Proctor {VERSION}", show(socket))]
    OtherVersion { socket: PathBuf, theirs: String },
}

impl Refusal {
    /// Checks whether nothing listens at the socket.
    fn is_absence(&self) -> bool {
        matches!(self, Self::Client(ClientError::NotThere { .. }))
    }

    /// Checks whether the socket exists but this user may not connect.
    fn is_of_rights(&self) -> bool {
        matches!(self, Self::Client(ClientError::NotAllowed { .. }))
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Client(ClientError::NotAllowed { .. }) => vec![BE_ADMITTED.to_owned()],
            Self::OtherVersion { .. } => vec!["restart it: `proctor daemon stop`, `proctor daemon start`".to_owned()],
            Self::Problem { problem, .. } => problem.hint.iter().cloned().collect(),
            Self::Client(_) | Self::Draining(_) => Vec::new(),
        }
    }
}

impl Candidate {
    /// Checks whether this refusal means that there is no daemon for this user. The system's daemon serves only users
    /// whom its operator admits, so a denied connection there counts as absence.
    fn is_without(&self, refusal: &Refusal) -> bool {
        refusal.is_absence() || self.whose == Whose::Systems && refusal.is_of_rights()
    }

    /// Checks whether this refusal is normal, so that this process does the work without a warning.
    fn is_expected(&self, refusal: &Refusal) -> bool {
        match (self.whose, refusal) {
            (Whose::Named, _) => false,
            (Whose::Systems, Refusal::Client(_) | Refusal::Problem { .. } | Refusal::Draining(_)) => true,
            (Whose::Own, Refusal::Problem { problem, .. }) => problem.kind == ProblemType::Forbidden,
            (Whose::Own, refusal) => refusal.is_absence(),
            (Whose::Systems, Refusal::OtherVersion { .. }) => false,
        }
    }
}

async fn usable(place: &Place, purpose: Purpose) -> Result<Daemon, Refusal> {
    let client = Client::new(place.clone());
    let health = client.health().await.map_err(|error| match error {
        ClientError::Problem(problem) => Refusal::Problem { socket: place.socket.clone(), problem },
        error => Refusal::Client(error),
    })?;
    judged(client, health, purpose)
}

fn judged(client: Client, health: Health, purpose: Purpose) -> Result<Daemon, Refusal> {
    let socket = client.place().socket.clone();
    let is_strange = compatibility(VERSION, &health.version) == Compatibility::Incompatible;
    if is_strange && purpose != Purpose::Itself {
        return Err(Refusal::OtherVersion { socket, theirs: health.version });
    }
    if health.status == HealthStatus::Draining && purpose == Purpose::Work {
        return Err(Refusal::Draining(socket));
    }
    Ok(Daemon { client, health })
}

fn warn_of_version(daemon: &Daemon, screen: &mut Screen) {
    if compatibility(VERSION, &daemon.health.version) == Compatibility::Compatible {
        let theirs = &daemon.health.version;
        let text = format!("the daemon at `{}` is proctor {theirs}, and this is {VERSION}", show(daemon.socket()));
        screen.err(&style::warning(&crate::text::shown_line(&text)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::api::RunCounts;

    fn asked(named: Option<&str>, config: &str, env: &[(&str, &str)], uid: u32) -> Vec<(PathBuf, Trust)> {
        let mut caller = Caller::for_tests(env);
        caller.around.uid = uid;
        let operator = Operator::parse(config).expect("a config");
        let found = places(named.map(Path::new), &operator, &caller);
        found.into_iter().map(|candidate| (candidate.place.socket, candidate.place.trust)).collect()
    }

    #[test]
    fn who_is_asked_first() {
        let config = "[daemon]\nsocket = '/c'\n";
        let session = [("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(asked(Some("s"), config, &session, 7), [("/s".into(), Trust::Named)]);
        assert_eq!(asked(None, config, &session, 7), [("/c".into(), Trust::Named)]);
        let own = "/run/user/7/proctor/proctord.sock";
        let in_state = "/home/a/.local/state/proctor/run/proctord.sock";
        let trust = Trust::OwnOrRoot(7);
        let expected = [own, in_state, SYSTEM_SOCKET].map(|socket| (socket.into(), trust));
        assert_eq!(asked(None, "", &session, 7), expected);
        assert_eq!(asked(None, "", &session, 0), [(SYSTEM_SOCKET.into(), Trust::OwnOrRoot(0))]);
        assert_eq!(asked(None, "", &[], 7)[0].0, Path::new(in_state));
    }

    fn health(version: &str, status: HealthStatus) -> Health {
        let runs = RunCounts::default();
        Health { status, version: version.to_owned(), pid: 1, uid: 7, uptime_ms: 0, runs }
    }

    #[test]
    fn a_daemon_that_ends_or_that_we_do_not_understand_gets_no_work() {
        let place = Place { socket: "/s".into(), trust: Trust::Named };
        let judge = |version, status, purpose| judged(Client::new(place.clone()), health(version, status), purpose);
        judge(VERSION, HealthStatus::Ok, Purpose::Work).expect("ours");
        let ending = judge(VERSION, HealthStatus::Draining, Purpose::Work).expect_err("it ends");
        assert!(ending.to_string().contains("is shutting down"), "{ending}");
        judge(VERSION, HealthStatus::Draining, Purpose::Look).expect("it still answers");
        for purpose in [Purpose::Work, Purpose::Look] {
            let other = judge("99.0.0", HealthStatus::Ok, purpose).expect_err("another one");
            assert!(other.to_string().contains("99.0.0") && other.hints().len() == 1, "{other}");
        }
        judge("99.0.0", HealthStatus::Ok, Purpose::Itself).expect("it can be stopped");
    }

    #[test]
    fn an_environment_is_sent_where_its_json_is_small_enough() {
        let env = |value: &str, count: usize| BTreeMap::from([("A".to_owned(), value.repeat(count))]);
        assert!(is_sendable(&env("x", 200 << 10)));
        assert!(!is_sendable(&env("x", 257 << 10)));
        assert!(!is_sendable(&env("\u{1b}", 200 << 10)), "each of them is six bytes");
    }

    #[test]
    fn a_system_daemon_that_is_for_others_is_none_to_speak_of() {
        let candidate = |whose| Candidate { place: Place { socket: "/s".into(), trust: Trust::Named }, whose };
        let absent = || Refusal::Client(ClientError::NotThere { socket: "/s".into(), reason: "no".to_owned() });
        let closed = || Refusal::Client(ClientError::NotAllowed { socket: "/s".into(), reason: "no".to_owned() });
        let usual = [candidate(Whose::Own), candidate(Whose::Systems)];
        none_runs(&usual, &[absent(), absent()]).expect("none at all");
        none_runs(&usual, &[absent(), closed()]).expect("none of this user's");
        let own = none_runs(&usual, &[closed(), absent()]).expect_err("this user's own");
        assert_eq!((own.exit_code(), own.hints()), (6, vec![BE_ADMITTED.to_owned()]));
        none_runs(&[candidate(Whose::Named)], &[closed()]).expect_err("the one that was named");
    }

    #[test]
    fn who_named_a_daemon_is_told_why_it_is_not_used() {
        let problem = Problem::new(ProblemType::Forbidden, "this user is not served");
        let forbidden = Refusal::Problem { socket: "/s".into(), problem: Box::new(problem) };
        let absent = Refusal::Client(ClientError::NotThere { socket: "/s".into(), reason: "no".to_owned() });
        let closed = Refusal::Client(ClientError::NotAllowed { socket: "/s".into(), reason: "no".to_owned() });
        let expected = |whose| {
            let candidate = Candidate { place: Place { socket: "/s".into(), trust: Trust::Named }, whose };
            [&forbidden, &absent, &closed].map(|refusal| candidate.is_expected(refusal))
        };
        assert_eq!(expected(Whose::Named), [false, false, false]);
        assert_eq!(expected(Whose::Own), [true, true, false]);
        assert_eq!(expected(Whose::Systems), [true, true, true]);
    }
}
