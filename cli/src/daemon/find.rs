//! Which daemon is asked, and whether one is: the places are tried in their order, and the first
//! that answers, takes work on and speaks as we do is the one.

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

/// Our version; a daemon says its own.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How many bytes of JSON the caller's environment may have to be sent: a part of what a daemon takes in
/// one request.
const MAX_ENV: usize = 256 << 10;
const TOO_LARGE: &str = "the environment is too large to be sent to the daemon";

/// A place to ask at, and how much is made of it where nobody answers there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    place: Place,
    whose: Whose,
}

/// Who says that a daemon is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The caller, by `--socket`.
    Named,
    /// The operator, or nobody: it is where this user's daemon would be.
    Own,
    /// Nobody: it is where the system's daemon would be, which may not serve everybody.
    Systems,
}

/// What the caller said about who does the work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// As it was said.
    pub way: &'a WayArgs,
    /// The operator's config.
    pub operator: &'a Operator,
    /// The repository.
    pub repo: &'a Path,
}

impl Wanted<'_> {
    /// Where the daemon may be that does the work.
    fn candidates(&self, caller: &Caller) -> Vec<Candidate> {
        let WayArgs { state, operator: config, daemon } = self.way;
        let mut candidates = places(daemon.socket.as_deref(), self.operator, caller);
        // A daemon has its own state directory and its own config, and must not be asked where the caller
        // names another; but the daemon that a config speaks of has read that config.
        if state.state_dir.is_some() {
            candidates.clear();
        }
        if config.config.is_some() {
            candidates.retain(|candidate| candidate.place.trust == Trust::Named);
        }
        candidates
    }
}

/// What a daemon is wanted for, and so what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New work: it must take that on, and speak as we do.
    Work,
    /// A look at the work that it has: it must speak as we do.
    Look,
    /// The daemon itself, whatever it is.
    Itself,
}

/// Finds the daemon that does the work; `None` where this process does.
///
/// # Errors
/// A daemon is demanded and none answers, or it cannot be told of the repository.
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

/// A daemon that was asked how it is, on a connection that has room for one more request.
pub(crate) struct Greeted(Link);

/// Asks the daemon how it is that would do work with the caller's environment; [`Greeted::link`] takes the answer.
/// `None` where there is more to it, which [`who_does_it_with_env`] sees to.
pub(crate) fn greet(wanted: Wanted<'_>, caller: &Caller) -> Option<Greeted> {
    if wanted.way.daemon.no_daemon || repo_text(wanted.repo).is_err() || !is_small(&caller.env) {
        return None;
    }
    for candidate in wanted.candidates(caller) {
        match Link::open(&candidate.place).map_err(Refusal::Client) {
            Ok(mut link) => return link.ask_health().ok().map(|()| Greeted(link)),
            // Nothing would be said of it either.
            Err(refusal) if candidate.is_expected(&refusal) && candidate.is_without(&refusal) => {}
            Err(_) => return None,
        }
    }
    None
}

impl Greeted {
    /// Returns the connection to a daemon of our own version that takes work on.
    pub(crate) fn link(self) -> Option<Link> {
        let Self(mut link) = self;
        let health = link.health().ok()?;
        let is_usual =
            health.status == HealthStatus::Ok && compatibility(VERSION, &health.version) == Compatibility::Same;
        is_usual.then_some(link)
    }
}

/// Whether an environment can be sent, by no more than a look: each byte of it may become six of JSON, and each variable
/// has six around it.
fn is_small(env: &BTreeMap<String, String>) -> bool {
    env.iter().map(|(name, value)| (name.len() + value.len() + 1) * 6).sum::<usize>() < MAX_ENV
}

/// The same for work that needs the caller's environment, which a daemon is sent.
///
/// # Errors
/// As [`who_does_it`]; a daemon is demanded, and the environment is too large for it.
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
        let hint = "unset some of it, or leave `--daemon` out".to_owned();
        return Err(CliError::Usage { message: TOO_LARGE.to_owned(), hint });
    }
    screen.err(&style::warning(&format!("{TOO_LARGE}; this is done without a daemon")));
    Ok(None)
}

/// Whether an environment can be sent: by its JSON, in which one byte may become six.
fn is_sendable(env: &BTreeMap<String, String>) -> bool {
    serde_json::to_string(env).is_ok_and(|json| json.len() <= MAX_ENV)
}

/// The first of the places at which a daemon answers.
///
/// # Errors
/// There is none; code 6.
pub(crate) async fn demanded(candidates: &[Candidate], purpose: Purpose) -> Result<Daemon, CliError> {
    if candidates.is_empty() {
        return Err(unreachable("the config that was named has no `daemon.socket`".to_owned()));
    }
    first(candidates, purpose).await.map_err(|refusals| none_of(&refusals))
}

/// The daemon itself, whatever it is; `None` where none listens that may be this user's.
///
/// # Errors
/// Something listens and is no daemon that answers this user; code 6.
pub(crate) async fn running(candidates: &[Candidate]) -> Result<Option<Daemon>, CliError> {
    match first(candidates, Purpose::Itself).await {
        Ok(daemon) => Ok(Some(daemon)),
        Err(refusals) => none_runs(candidates, &refusals).map(|()| None),
    }
}

/// That no daemon is to speak of at any of these places, by what was found there.
fn none_runs(candidates: &[Candidate], refusals: &[Refusal]) -> Result<(), CliError> {
    let mut found = candidates.iter().zip(refusals);
    if found.all(|(candidate, refusal)| candidate.is_without(refusal)) { Ok(()) } else { Err(none_of(refusals)) }
}

/// The first daemon that can be used, or why each of them cannot.
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

/// Where daemons may be: at the socket that was named, else at the operator's, else where this
/// user's would be, and the system's.
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

/// Returns the first place whose lock a daemon of this user's or root's holds, with its process.
pub(crate) fn lock_holder(candidates: &[Candidate]) -> Option<(PathBuf, u32)> {
    let holder = |socket: &Path| proctor_daemon::life::lock_holder(socket).map(|pid| (socket.to_owned(), pid));
    candidates.iter().find_map(|candidate| holder(&candidate.place.socket))
}

/// Why a daemon does not do the work.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Client(ClientError),
    #[error("the daemon at `{}` says no: {}", show(socket), problem.detail)]
    Problem { socket: PathBuf, problem: Box<Problem> },
    #[error("the daemon at `{}` is ending", show(.0))]
    Draining(PathBuf),
    #[error("the daemon at `{}` is proctor {theirs}, which this proctor {VERSION} does not understand", show(socket))]
    OtherVersion { socket: PathBuf, theirs: String },
}

impl Refusal {
    /// Whether there is no daemon to speak of.
    fn is_absence(&self) -> bool {
        matches!(self, Self::Client(ClientError::NotThere { .. }))
    }

    /// Whether one may be there that is not for this user.
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
    /// Whether there is no daemon to speak of. The system's serves whom its operator admits: who may not use
    /// its socket is nobody of those, and has nothing to do with it.
    fn is_without(&self, refusal: &Refusal) -> bool {
        refusal.is_absence() || self.whose == Whose::Systems && refusal.is_of_rights()
    }

    /// Whether nobody is surprised that no daemon does the work.
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
        assert!(ending.to_string().contains("is ending"), "{ending}");
        judge(VERSION, HealthStatus::Draining, Purpose::Look).expect("it can still tell");
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
