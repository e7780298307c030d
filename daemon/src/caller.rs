//! Identifies the user at the other end of a connection, and that user's home, environment and repositories.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::drift::display_path;
use proctor_runner::WorktreePlace;

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
pub(crate) struct CallerPolicy {
    daemon_uid: u32,
    daemon_account: Account,
    /// Directories of Proctor. No repository may contain one of them or be inside one.
    reserved_dirs: Vec<PathBuf>,
}

/// Maximum size of the environment in a request, in bytes.
pub(crate) const MAX_ENV: usize = 512 << 10;
/// `PATH` for callers whose environment is not known.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that name the directories of toolchains, which are visible to steps.
const TOOL_HOMES: [&str; 2] = ["CARGO_HOME", "RUSTUP_HOME"];

impl CallerPolicy {
    /// Creates the rules for the current user; `ours` are directories that must not overlap with a repository.
    pub(crate) fn new(account: Account, reserved_dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        let ours = reserved_dirs.into_iter().map(|path| path.canonicalize().unwrap_or(path)).collect();
        Self { daemon_uid: rustix::process::geteuid().as_raw(), daemon_account: account, reserved_dirs: ours }
    }

    /// Returns the daemon's own user.
    pub(crate) fn daemon_uid(&self) -> u32 {
        self.daemon_uid
    }

    /// Returns whether the caller may see the runs of all users.
    pub(crate) fn sees_all(&self, caller: Caller) -> bool {
        caller.uid == self.daemon_uid
    }

    /// Returns the required owner of the caller's repositories; `None` accepts any. For root, a daemon that runs as
    /// root accepts any owner, because root could verify such a repository itself.
    pub(crate) fn required_owner(&self, caller: Caller) -> Option<u32> {
        let is_root = caller.uid == 0 && self.daemon_uid == 0;
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
        request_env: Option<BTreeMap<String, String>>,
    ) -> Result<Account, Problem> {
        request_env.as_ref().map_or(Ok(()), check_env)?;
        if caller.uid == self.daemon_uid {
            let env = request_env.unwrap_or_else(|| self.daemon_account.env.clone());
            let home = env.get("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
            return Ok(Account { home: home.unwrap_or_else(|| self.daemon_account.home.clone()), env });
        }
        let home = home_dir(caller.uid).ok_or_else(|| no_account(caller.uid))?;
        let system_path = || BTreeMap::from([("PATH".to_owned(), SYSTEM_PATH.to_owned())]);
        let mut env = request_env.unwrap_or_else(system_path);
        // The daemon may be able to read more than the caller, so toolchains shown to steps must be in the caller's
        // home.
        env.retain(|name, value| !TOOL_HOMES.contains(&name.as_str()) || is_lexically_below(Path::new(value), &home));
        Ok(Account { home, env })
    }

    /// Returns the canonical path of the repository that a caller names. The error does not reveal whether a
    /// directory of another user exists. Blocks on the disk; the run checks the owner again when it opens the
    /// directory.
    ///
    /// # Errors
    /// The path is not a directory that the caller owns, or the directory overlaps with a reserved one.
    pub(crate) fn repository(&self, caller: Caller, requested: &str) -> Result<PathBuf, Problem> {
        let path = Path::new(requested);
        if !path.is_absolute() || requested.contains('\0') {
            let detail =
                format!("`repo` must be an absolute path, but `{}` is not", display_path(requested.as_bytes()));
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        let found = path.canonicalize().and_then(|real| Ok((real.metadata()?, real)));
        let demanded = self.required_owner(caller);
        let real = match found {
            Ok((metadata, _)) if demanded.is_some_and(|owner| owner != metadata.uid()) => {
                return Err(self.unusable_repo(caller, requested, &format!("it belongs to user {}", metadata.uid())));
            }
            Ok((metadata, _)) if !metadata.is_dir() => {
                return Err(self.unusable_repo(caller, requested, "it is not a directory"));
            }
            Ok((_, real)) => real,
            Err(error) => return Err(self.unusable_repo(caller, requested, &error.to_string())),
        };
        // A run sees the whole worktree, even for a spec in a subdirectory.
        let top = worktree_top(&real);
        match self.reserved_dirs.iter().find(|reserved| reserved.starts_with(&top) || top.starts_with(reserved)) {
            None => Ok(real),
            Some(reserved) => Err(overlaps_reserved_dir(&real, reserved)),
        }
    }

    fn unusable_repo(&self, caller: Caller, requested: &str, why: &str) -> Problem {
        let named = display_path(requested.as_bytes());
        let kind = ProblemType::Unprocessable;
        match self.sees_all(caller) {
            true => Problem::new(kind, format!("the repository `{named}` cannot be used: {why}")),
            false => Problem::new(kind, format!("there is no repository of this user at `{named}`")),
        }
        .with_hint("name a directory that contains `spec/verification.yaml` and belongs to you")
    }
}

/// Returns the top of the worktree that contains a directory; the directory itself if it is in none.
pub(crate) fn worktree_top(directory: &Path) -> PathBuf {
    WorktreePlace::find(directory).map_or_else(|_| directory.to_path_buf(), |place| place.top)
}

fn overlaps_reserved_dir(repo: &Path, reserved: &Path) -> Problem {
    let name = |path: &Path| display_path(path.as_os_str().as_encoded_bytes());
    let detail = format!("the repository `{}` contains the daemon's `{}`, or is inside it", name(repo), name(reserved));
    Problem::new(ProblemType::Unprocessable, detail)
        .with_hint("start the daemon with `--socket` and `--state-dir` outside every repository")
}

fn no_account(uid: u32) -> Problem {
    Problem::new(ProblemType::Forbidden, format!("user {uid} has no account with a home directory on this machine"))
}

/// Returns the home of a user from the system's account databases.
fn home_dir(uid: u32) -> Option<PathBuf> {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten()?;
    Some(user.dir).filter(|home| home.is_absolute())
}

/// Checks by text alone whether `path` is below `home`.
fn is_lexically_below(path: &Path, home: &Path) -> bool {
    path.starts_with(home) && path.components().all(|part| part != std::path::Component::ParentDir)
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), Problem> {
    let bytes = env_size(env);
    let bad = env.iter().find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    let detail = match bad {
        Some((name, _)) => format!("`env` contains an invalid variable: `{}`", display_path(name.as_bytes())),
        None if bytes > MAX_ENV => format!("`env` has {bytes} bytes; a request takes up to {MAX_ENV}"),
        None => return Ok(()),
    };
    Err(Problem::new(ProblemType::InvalidRequest, detail))
}

/// Returns the size of an environment in bytes.
pub(crate) fn env_size(env: &BTreeMap<String, String>) -> usize {
    env.iter().map(|(name, value)| name.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn caller_policy(own: u32, reserved_dirs: &[&Path]) -> CallerPolicy {
        let account = Account { home: "/home/own".into(), env: env(&[("OWN", "1")]) };
        CallerPolicy {
            daemon_uid: own,
            daemon_account: account,
            reserved_dirs: reserved_dirs.iter().map(|path| path.canonicalize().expect("there")).collect(),
        }
    }

    fn current_user() -> Caller {
        Caller { uid: rustix::process::geteuid().as_raw() }
    }

    #[test]
    fn own_user_gets_daemon_environment_by_default() {
        let policy = caller_policy(7, &[]);
        let own = policy.account(Caller { uid: 7 }, None).expect("an account");
        assert_eq!((own.home.as_path(), own.env), (Path::new("/home/own"), env(&[("OWN", "1")])));
        let brought = policy.account(Caller { uid: 7 }, Some(env(&[("HOME", "/other")]))).expect("an account");
        assert_eq!(brought.home, Path::new("/other"));
        let relative = policy.account(Caller { uid: 7 }, Some(env(&[("HOME", "x")]))).expect("an account");
        assert_eq!(relative.home, Path::new("/home/own"));
    }

    #[test]
    fn other_user_gets_own_home_and_no_daemon_environment() {
        let policy = caller_policy(7, &[]);
        let root = Caller { uid: 0 };
        let bare = policy.account(root, None).expect("root has an account");
        assert_eq!(bare.env, env(&[("PATH", SYSTEM_PATH)]));
        let home = bare.home.display().to_string();
        let inside = format!("{home}/tools");
        let lies = env(&[("HOME", "/elsewhere"), ("CARGO_HOME", "/elsewhere/cargo"), ("RUSTUP_HOME", &inside)]);
        let account = policy.account(root, Some(lies)).expect("an account");
        assert_eq!(account.home, bare.home, "the system says where it is");
        assert_eq!(account.env, env(&[("HOME", "/elsewhere"), ("RUSTUP_HOME", &inside)]));
        let climbs = env(&[("CARGO_HOME", &format!("{home}/../other"))]);
        assert_eq!(policy.account(root, Some(climbs)).expect("an account").env, env(&[]));
        let nobody = policy.account(Caller { uid: 3_999_999_999 }, None).expect_err("no account");
        assert_eq!(nobody.kind, ProblemType::Forbidden);
    }

    #[test]
    fn rejects_invalid_environment() {
        let policy = caller_policy(7, &[]);
        let large = "x".repeat(MAX_ENV);
        for bad in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0"), ("A", large.as_str())] {
            let refused = policy.account(Caller { uid: 7 }, Some(env(&[bad]))).expect_err("no variable");
            assert_eq!(refused.kind, ProblemType::InvalidRequest);
        }
    }

    #[test]
    fn repository_must_belong_to_caller_outside_reserved_dirs() {
        let root_dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root_dir.path().join(name);
        for dir in ["repo", "around/state", "state/repo"] {
            std::fs::create_dir_all(at(dir)).expect("made");
        }
        std::os::unix::fs::symlink(at("repo"), at("link")).expect("a link");
        let policy = caller_policy(current_user().uid, &[&at("around/state"), &at("state")]);
        let find = |caller: Caller, name: &str| policy.repository(caller, at(name).to_str().expect("text"));
        assert_eq!(find(current_user(), "link").expect("it is"), at("repo").canonicalize().expect("there"));
        std::fs::create_dir_all(at("around/.git")).expect("made");
        std::fs::create_dir_all(at("around/svc")).expect("made");
        for name in ["around", "around/state", "around/svc", "state/repo", "absent"] {
            assert_eq!(find(current_user(), name).expect_err(name).kind, ProblemType::Unprocessable);
        }
        let foreign = Caller { uid: current_user().uid + 1 };
        let [theirs, absent] = ["repo", "absent"].map(|name| find(foreign, name).expect_err("not theirs").detail);
        assert_eq!(
            theirs.replace("repo", ""),
            absent.replace("absent", "").replace("repo", ""),
            "the error reveals nothing"
        );
    }

    #[test]
    fn only_root_may_use_other_users_repositories_with_roots_daemon() {
        let owner = |own: u32, uid: u32| caller_policy(own, &[]).required_owner(Caller { uid });
        assert_eq!(owner(0, 0), None);
        assert_eq!((owner(0, 5), owner(5, 0), owner(5, 5)), (Some(5), Some(0), Some(5)));
    }
}
