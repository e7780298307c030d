//! Tests of the operation lists.

use proctor_core::model::plan::{Argv, Leaks, Limits};

use super::*;
use crate::policy::{CacheMount, GitDirs, NestedGit, ToolMount};

const USER: StepUser = StepUser::Own { uid: 1001, gid: 1001 };
const ROOT: StepUser = StepUser::Mapped { uid: 7, gid: 7 };

fn host() -> Host {
    Host {
        helper: "/h".into(),
        state_dir: "/home/u/.state".into(),
        home: "/home/u".into(),
        resolv_conf: Some("/run/r/stub.conf".into()),
        homes: BTreeMap::new(),
        euid: 1001,
        egid: 1001,
        lacks_capabilities: true,
    }
}

fn policy() -> Policy {
    let limit = Limit::Max(1 << 20);
    let tool = |path: &str| {
        let (kind, rights) = (ToolKind::ReadOnly, AccessRights::Steps);
        ToolMount { source: path.into(), at: path.into(), kind, rights }
    };
    Policy {
        repo: "/home/u/src/r".into(),
        checkout: None,
        git: GitDirs {
            worktree_git: Some("/home/u/src/r/.git".into()),
            common: Some("/home/u/main/.git".into()),
            nested: Vec::new(),
        },
        workdir: RelPath::new("sub").expect("a path"),
        argv: Argv::new(vec!["true".into()]).expect("a command"),
        files: crate::FileBatches::default(),
        env: BTreeMap::new(),
        network: Network::Deny,
        leaks: Leaks::Warn,
        limits: Limits { memory: limit, pids: limit, disk: limit, ..Limits::UNLIMITED },
        home: "/home/u".into(),
        hide: vec!["/home/u/work".into(), "/srv/x".into(), "/".into()],
        tools: vec![tool("/home/u/.cargo/registry")],
        caches: vec![CacheMount {
            source: CacheSource::Directory("/home/u/.state/c".into()),
            at: RelPath::new("target").expect("a path"),
        }],
        tolerated: proctor_core::model::enforcement::Tolerated::default(),
        view: false,
        inputs: None,
    }
}

fn described_ops(user: StepUser) -> Vec<String> {
    setup_ops(&policy(), &host(), user).iter().map(ToString::to_string).collect()
}

#[test]
fn lists_operations_for_ordinary_user() {
    let expected = "\
join the run's user and mount namespace
new namespaces: user, mount, pid
map user 1001 and group 1001 to themselves
make all mounts private
open the host's tables of mounts and of Unix sockets
start PID 1
new namespaces: ipc, uts, net
wait until the daemon has registered PID 1
enter the control group of this attempt
hide control groups above it
host name `localhost`
bring the loopback device up
wait until / is read-only
mount a fresh /proc
mount a fresh /sys, read-only
report that /proc and /sys are mounted
leave the caller's keyrings
drop all capabilities
set no_new_privs
make PID 1 unreadable
refuse system calls that no check needs
wait for the command
refuse file systems mounted below /home/u/src/r
clone the mounts of null, zero, full, random, urandom, tty in /dev
clone the mount of /home/u/src/r/.git for /home/u/src/r/.git (git, read-only)
clone the mount of /home/u/main/.git for /home/u/main/.git (git, read-only)
clone the mount of /home/u/.cargo/registry for /home/u/.cargo/registry (tool, read-only)
clone the mount of /home/u/.state/c for /home/u/src/r/target (cache, writable)
open /home/u/src/r and the run space
make / read-only, nosuid, nodev, with all mounts below it
mount one tmpfs for all scratch directories
hide /home
empty home directory /home/u
hide /root
hide /run
hide /srv/x
private scratch directory /tmp
private scratch directory /var/tmp
mount a minimal /dev with its own pts and shm
mount a passwd and a group file of two lines, with the home /home/u
create the mount point /home/u/src/r
mount the opened directory at /home/u/.cargo/registry
mount the opened directory at /home/u/main/.git
mask the host's Unix sockets that are still visible
limit the scratch directories to 1048576 bytes
make the hiding directories read-only
create the overlay of /home/u/src/r, with the layers below and the step's own layer
wait until /proc and /sys are mounted
mask host details in /proc and /sys
start a new session
close every descriptor except the standard streams
restrict the writable paths a second time
put the overlay at /home/u/src/r
mount the opened directory at /home/u/src/r/target
mount the opened directory at /home/u/src/r/.git
start the command's process
set the resource limits
wait until the tree is mounted
change to /home/u/src/r/sub
restrict /home/u/src/r too, and apply the restriction
execute the command";
    assert_eq!(described_ops(USER).join("\n"), expected);
}

#[test]
fn shows_checkout_at_repository_path() {
    let objects = Some(PathBuf::from("/home/u/src/r/.git/objects"));
    let nested =
        vec![NestedGit { git: "/home/u/src/r/m/.git".into(), objects: "/home/u/src/r/.git/modules/m/objects".into() }];
    let git = GitDirs { common: objects, nested, ..policy().git };
    let policy = Policy { checkout: Some("/home/u/.state/x/tree".into()), git, ..policy() };
    let list: Vec<String> = setup_ops(&policy, &host(), USER).iter().map(ToString::to_string).collect();
    for wanted in [
        "open /home/u/.state/x/tree and the run space",
        "clone the mount of /home/u/.state/x/tree/.git for /home/u/src/r/.git (git, read-only)",
        "clone the mount of /home/u/src/r/.git/objects for /home/u/src/r/.git/objects (git, read-only)",
        "clone the mount of /home/u/src/r/.git/modules/m/objects for /home/u/src/r/.git/modules/m/objects (git, read-only)",
        "clone the mount of /home/u/.state/x/tree/m/.git for /home/u/src/r/m/.git (git, read-only)",
        "mount the opened directory at /home/u/src/r/m/.git",
        "mount the opened directory at /home/u/src/r/.git/modules/m/objects",
        "refuse file systems mounted below /home/u/.state/x/tree",
    ] {
        assert!(list.iter().any(|line| line == wanted), "{wanted}: {list:#?}");
    }
    let at = |wanted: &str| list.iter().position(|line| line == wanted).expect(wanted);
    assert!(
        at("mount the opened directory at /home/u/src/r/.git")
            < at("mount the opened directory at /home/u/src/r/.git/objects")
    );
}

#[test]
fn root_changes_user_after_mounts_before_dropping_capabilities() {
    let ops = setup_ops(&policy(), &host(), ROOT);
    let at = |wanted: fn(&SetupOp) -> bool| ops.iter().position(wanted).expect("in the list");
    let down = at(|op| matches!(op, SetupOp::StepDown { .. }));
    assert!(at(|op| matches!(op, SetupOp::Sys)) < down && at(|op| matches!(op, SetupOp::Loopback)) < down);
    assert!(down < at(|op| matches!(op, SetupOp::DropCapabilities)));
    assert!(ops.iter().any(|op| matches!(op, SetupOp::Unshare { user: false })));
    assert!(!ops.iter().any(|op| matches!(op, SetupOp::MapUser { .. })));
    assert!(ops.iter().any(|op| matches!(op, SetupOp::GitConfig { .. })));
}

#[test]
fn hides_home_of_step_user() {
    let at = |homes: &[(u32, &str)]| {
        let homes = homes.iter().map(|(uid, home)| (*uid, PathBuf::from(home))).collect();
        let ops = setup_ops(&policy(), &Host { homes, ..host() }, USER);
        ops.iter().any(|op| matches!(op, SetupOp::Cover { at, kind: CoverKind::Hidden, .. } if at == "/var/lib/ci"))
    };
    assert!(at(&[(1001, "/var/lib/ci")]));
    assert!(!at(&[(1002, "/var/lib/ci")]), "another user's modes protect it");
    assert!(!at(&[]));
}

#[test]
fn mounts_nested_cache_after_its_parent() {
    let cache =
        |at: &str| CacheMount { source: CacheSource::Directory("/c".into()), at: RelPath::new(at).expect("a path") };
    let policy = Policy { caches: vec![cache("a/b"), cache("a"), cache("a.b")], ..policy() };
    let ops = setup_ops(&policy, &host(), USER);
    let at = |wanted: &str| {
        let is = |op: &SetupOp| matches!(op, SetupOp::Attach { inside: MountPointParent::Repo { path, .. }, .. } if path.as_str() == wanted);
        ops.iter().position(is).expect("attached")
    };
    assert!(at("a") < at("a/b"));
}

#[test]
fn operations_are_ordered_by_stage() {
    for user in [USER, ROOT] {
        let ops = setup_ops(&policy(), &host(), user);
        assert!(ops.iter().map(SetupOp::stage).is_sorted(), "{ops:?}");
        assert_eq!(ops.last(), Some(&SetupOp::Exec));
    }
}

#[test]
fn clones_before_hiding_and_making_read_only() {
    let ops = setup_ops(&policy(), &host(), USER);
    let last_taken = ops.iter().rposition(|op| matches!(op, SetupOp::Clone { .. } | SetupOp::HoldTree { .. }));
    let first_changed = ops.iter().position(|op| matches!(op, SetupOp::ReadOnlyRoot | SetupOp::Cover { .. }));
    assert!(last_taken < first_changed);
    let taken = ops.iter().filter(|op| matches!(op, SetupOp::Clone { .. })).count();
    let put = ops.iter().filter(|op| matches!(op, SetupOp::Attach { .. })).count();
    assert_eq!(taken, put);
}

#[test]
fn view_adds_three_operations() {
    let with_view = Policy { view: true, ..policy() };
    let ops: Vec<String> = setup_ops(&with_view, &host(), USER).iter().map(ToString::to_string).collect();
    let plain = described_ops(USER);
    let added: Vec<&String> = ops.iter().filter(|op| !plain.contains(op)).collect();
    assert_eq!(
        added,
        [
            "start the server of the view as the step's user",
            "mount the view of the host, and make it the root",
            "unmount everything that the view has replaced"
        ]
    );
    let at = |phrase: &str| ops.iter().position(|op| op.contains(phrase)).expect(phrase);
    assert_eq!(at("start the server"), 0, "while the process sees the host as the host is");
    assert!(at("open /home/u/src/r and the run space") < at("mount the view"));
    assert!(at("mount the view") < at("make / read-only"), "PID 1 mounts /proc after that");
    assert!(at("wait until /proc and /sys are mounted") < at("unmount everything"));
}

#[test]
fn keeps_host_network_if_allowed() {
    let policy = Policy { network: Network::Allow, ..policy() };
    let ops = setup_ops(&policy, &host(), USER);
    assert!(ops.iter().any(|op| matches!(op, SetupOp::OwnNamespaces { network: false })));
    assert!(!ops.iter().any(|op| matches!(op, SetupOp::Sys | SetupOp::Loopback)));
    let shows_resolver = |op: &SetupOp| matches!(op, SetupOp::Attach { at, .. } if at.starts_with("/run/r"));
    assert!(ops.iter().any(shows_resolver));
}

#[test]
fn refuses_writable_directory_that_exposes_home_or_state() {
    let writable = |source: PathBuf| {
        let at = RelPath::new("database").expect("a path");
        Policy { caches: vec![CacheMount { source: CacheSource::Original(source), at }], ..policy() }
    };
    assert!(check_policy(&writable("/srv/data".into()), &host()).is_ok());
    let own = [host().state_dir, host().home, policy().home];
    for directory in own.iter().flat_map(|path| path.ancestors()) {
        assert!(check_policy(&writable(directory.to_owned()), &host()).is_err(), "{}", directory.display());
    }
}

#[test]
fn refuses_unenforceable_path_arrangements() {
    assert!(check_policy(&policy(), &host()).is_ok());
    let state = Host { state_dir: "/home/u/src/r/.state".into(), ..host() };
    assert!(check_policy(&policy(), &state).is_err(), "the state directory lies in the repository");
    let spoilt: [fn(&mut Policy); 8] = [
        |policy| policy.repo = "/".into(),
        |policy| policy.repo = "/home".into(),
        |policy| policy.repo = "work/r".into(),
        |policy| policy.hide.push("/home/u/src/r/sub".into()),
        |policy| policy.tools[0].source = "/home/u".into(),
        |policy| policy.tools[0].at = "/home/u/src/r/tool".into(),
        |policy| policy.tools[0].at = "/home/u/../x".into(),
        |policy| policy.caches[0].at = RelPath::new(".git/objects").expect("a path"),
    ];
    for (index, spoil) in spoilt.into_iter().enumerate() {
        let mut policy = policy();
        spoil(&mut policy);
        assert!(check_policy(&policy, &host()).is_err(), "{index}");
    }
}
