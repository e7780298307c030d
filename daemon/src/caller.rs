//! Identifies the user at the other end of a connection, and that user's home, environment and repositories.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::api::{Problem, ProblemType};
use proctor_core::drift::display_path;

/// The user that sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Caller {
    /// User ID of the process that connected, from `SO_PEERCRED` (unix(7)).
    pub uid: u32,
}

/// Home and environment of a user, for requests that bring no environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The home directory.
    pub home: PathBuf,
    /// Variables from which the `env_allowlist` of a spec selects.
    pub env: BTreeMap<String, String>,
}

/// Rules for what callers may access: the daemon's own user and the directories that it reserves.
#[derive(Debug, Clone)]
pub(crate) struct Household {
    own: u32,
    account: Account,
    /// Directories of Proctor. No repository may contain one of them or be inside one.
    ours: Vec<PathBuf>,
}

/// Maximum size of the environment in a request, in bytes.
pub(crate) const MAX_ENV: usize = 512 << 10;
/// `PATH` for callers whose environment is not known.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that name the directories of toolchains, which are visible to steps.
const TOOL_HOMES: [&str; 2] = ["CARGO_HOME", "RUSTUP_HOME"];

impl Household {
    /// Creates the rules for the current user; `ours` are directories that must not overlap with a repository.
    pub(crate) fn new(account: Account, ours: impl IntoIterator<Item = PathBuf>) -> Self {
        let ours = ours.into_iter().map(|path| path.canonicalize().unwrap_or(path)).collect();
        Self { own: rustix::process::geteuid().as_raw(), account, ours }
    }

    /// Returns the daemon's own user.
    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Returns whether the caller may see the runs of all users.
    pub(crate) fn sees_all(&self, caller: Caller) -> bool {
        caller.uid == self.own
    }

    /// Returns the required owner of the caller's repositories; `None` accepts any. For root, a daemon that runs as
    /// root accepts any owner, because root could verify such a repository itself.
    pub(crate) fn owner_for(&self, caller: Caller) -> Option<u32> {
        let is_root = caller.uid == 0 && self.own == 0;
        (!is_root).then_some(caller.uid)
    }

    /// Returns the home and environment for a request; `brought` is the environment in the request. Blocks on the
    /// system's account databases.
    ///
    /// # Errors
    /// The environment is invalid, or the user has no account.
    pub(crate) fn account(
        &self,
        caller: Caller,
        brought: Option<BTreeMap<String, String>>,
    ) -> Result<Account, Problem> {
        brought.as_ref().map_or(Ok(()), checked)?;
        if caller.uid == self.own {
            let env = brought.unwrap_or_else(|| self.account.env.clone());
            let home = env.get("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
            return Ok(Account { home: home.unwrap_or_else(|| self.account.home.clone()), env });
        }
        let home = home_of(caller.uid).ok_or_else(|| no_account(caller.uid))?;
        let system_path = || BTreeMap::from([("PATH".to_owned(), SYSTEM_PATH.to_owned())]);
        let mut env = brought.unwrap_or_else(system_path);
        // The daemon may be able to read more than the caller, so toolchains shown to steps must be in the caller's
        // home.
        env.retain(|name, value| !TOOL_HOMES.contains(&name.as_str()) || is_plainly_below(Path::new(value), &home));
        Ok(Account { home, env })
    }

    /// Returns the canonical path of the repository that a caller names. The error does not reveal whether a
    /// directory of another user exists. Blocks on the disk; the run checks the owner again when it opens the
    /// directory.
    ///
    /// # Errors
    /// The path is not a directory that the caller owns, or the directory overlaps with a reserved one.
    pub(crate) fn repository(&self, caller: Caller, named: &str) -> Result<PathBuf, Problem> {
        let path = Path::new(named);
        if !path.is_absolute() || named.contains('\0') {
            let detail = format!("`repo` must be an absolute path, but `{}` is not", display_path(named.as_bytes()));
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        let found = path.canonicalize().and_then(|real| Ok((real.metadata()?, real)));
        let demanded = self.owner_for(caller);
        let real = match found {
            Ok((metadata, _)) if demanded.is_some_and(|owner| owner != metadata.uid()) => {
                return Err(self.not_there(caller, named, &format!("it belongs to user {}", metadata.uid())));
            }
            Ok((metadata, _)) if !metadata.is_dir() => {
                return Err(self.not_there(caller, named, "it is no directory"));
            }
            Ok((_, real)) => real,
            Err(error) => return Err(self.not_there(caller, named, &error.to_string())),
        };
        match self.ours.iter().find(|ours| ours.starts_with(&real) || real.starts_with(ours)) {
            None => Ok(real),
            Some(ours) => Err(holds_ours(&real, ours)),
        }
    }

    fn not_there(&self, caller: Caller, named: &str, why: &str) -> Problem {
        let named = display_path(named.as_bytes());
        let kind = ProblemType::Unprocessable;
        match self.sees_all(caller) {
            true => Problem::new(kind, format!("the repository `{named}` cannot be used: {why}")),
            false => Problem::new(kind, format!("there is no repository of yours at `{named}`")),
        }
        .with_hint("name a directory that contains `spec/verification.yaml` and belongs to you")
    }
}

fn holds_ours(repo: &Path, ours: &Path) -> Problem {
    let name = |path: &Path| display_path(path.as_os_str().as_encoded_bytes());
    let detail = format!("the repository `{}` contains the daemon's `{}`, or is inside it", name(repo), name(ours));
    Problem::new(ProblemType::Unprocessable, detail)
        .with_hint("start the daemon with `--socket` and `--state-dir` outside every repository")
}

fn no_account(uid: u32) -> Problem {
    Problem::new(ProblemType::Forbidden, format!("user {uid} has no account with a home directory on this machine"))
}

/// Returns the home of a user from the system's account databases.
fn home_of(uid: u32) -> Option<PathBuf> {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten()?;
    Some(user.dir).filter(|home| home.is_absolute())
}

/// Checks by text alone whether `path` is below `home`.
fn is_plainly_below(path: &Path, home: &Path) -> bool {
    path.starts_with(home) && path.components().all(|part| part != std::path::Component::ParentDir)
}

fn checked(env: &BTreeMap<String, String>) -> Result<(), Problem> {
    let bytes = held_bytes(env);
    let bad = env.iter().find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    let detail = match bad {
        Some((name, _)) => format!("`env` holds what is no variable: `{}`", display_path(name.as_bytes())),
        None if bytes > MAX_ENV => format!("`env` has {bytes} bytes; a request takes up to {MAX_ENV}"),
        None => return Ok(()),
    };
    Err(Problem::new(ProblemType::InvalidRequest, detail))
}

/// Returns the size of an environment in bytes.
pub(crate) fn held_bytes(env: &BTreeMap<String, String>) -> usize {
    env.iter().map(|(name, value)| name.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn household(own: u32, ours: &[&Path]) -> Household {
        let account = Account { home: "/home/own".into(), env: env(&[("OWN", "1")]) };
        Household { own, account, ours: ours.iter().map(|path| path.canonicalize().expect("there")).collect() }
    }

    fn me() -> Caller {
        Caller { uid: rustix::process::geteuid().as_raw() }
    }

    #[test]
    fn the_own_user_has_the_daemons_environment_where_none_is_brought() {
        let household = household(7, &[]);
        let own = household.account(Caller { uid: 7 }, None).expect("an account");
        assert_eq!((own.home.as_path(), own.env), (Path::new("/home/own"), env(&[("OWN", "1")])));
        let brought = household.account(Caller { uid: 7 }, Some(env(&[("HOME", "/other")]))).expect("an account");
        assert_eq!(brought.home, Path::new("/other"));
        let relative = household.account(Caller { uid: 7 }, Some(env(&[("HOME", "x")]))).expect("an account");
        assert_eq!(relative.home, Path::new("/home/own"));
    }

    #[test]
    fn another_user_has_nothing_of_the_daemons_and_a_home_of_their_own() {
        let household = household(7, &[]);
        let root = Caller { uid: 0 };
        let bare = household.account(root, None).expect("root has an account");
        assert_eq!(bare.env, env(&[("PATH", SYSTEM_PATH)]));
        let home = bare.home.display().to_string();
        let inside = format!("{home}/tools");
        let lies = env(&[("HOME", "/elsewhere"), ("CARGO_HOME", "/elsewhere/cargo"), ("RUSTUP_HOME", &inside)]);
        let account = household.account(root, Some(lies)).expect("an account");
        assert_eq!(account.home, bare.home, "the system says where it is");
        assert_eq!(account.env, env(&[("HOME", "/elsewhere"), ("RUSTUP_HOME", &inside)]));
        let climbs = env(&[("CARGO_HOME", &format!("{home}/../other"))]);
        assert_eq!(household.account(root, Some(climbs)).expect("an account").env, env(&[]));
        let nobody = household.account(Caller { uid: 3_999_999_999 }, None).expect_err("no account");
        assert_eq!(nobody.kind, ProblemType::Forbidden);
    }

    #[test]
    fn what_is_no_environment_is_refused() {
        let household = household(7, &[]);
        let large = "x".repeat(MAX_ENV);
        for bad in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0"), ("A", large.as_str())] {
            let refused = household.account(Caller { uid: 7 }, Some(env(&[bad]))).expect_err("no variable");
            assert_eq!(refused.kind, ProblemType::InvalidRequest);
        }
    }

    #[test]
    fn a_repository_is_the_callers_and_holds_nothing_of_ours() {
        let room = tempfile::tempdir().expect("a directory");
        let at = |name: &str| room.path().join(name);
        for dir in ["repo", "around/state", "state/repo"] {
            std::fs::create_dir_all(at(dir)).expect("made");
        }
        std::os::unix::fs::symlink(at("repo"), at("link")).expect("a link");
        let household = household(me().uid, &[&at("around/state"), &at("state")]);
        let find = |caller: Caller, name: &str| household.repository(caller, at(name).to_str().expect("text"));
        assert_eq!(find(me(), "link").expect("it is"), at("repo").canonicalize().expect("there"));
        for name in ["around", "around/state", "state/repo", "absent"] {
            assert_eq!(find(me(), name).expect_err(name).kind, ProblemType::Unprocessable);
        }
        let foreign = Caller { uid: me().uid + 1 };
        let [theirs, absent] = ["repo", "absent"].map(|name| find(foreign, name).expect_err("not theirs").detail);
        assert_eq!(theirs.replace("repo", ""), absent.replace("absent", "").replace("repo", ""), "nothing is told");
    }

    #[test]
    fn only_root_names_the_repositories_of_others_and_only_to_roots_daemon() {
        let owner = |own: u32, uid: u32| household(own, &[]).owner_for(Caller { uid });
        assert_eq!(owner(0, 0), None);
        assert_eq!((owner(0, 5), owner(5, 0), owner(5, 5)), (Some(5), Some(0), Some(5)));
    }
}
