//! Tests what a cache keeps, for which scope, and what survives a crash at each point.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proctor_core::decision::gc::FreedItems;
use proctor_core::spec::{CacheRetention, DaemonSettings};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::clock::Clock;
use crate::store::gc_extent::GcExtent;

const LARGE: u64 = 1 << 40;

/// A state directory with a store.
struct CacheFixture {
    temp: TempDir,
    store: CacheStore,
}

impl CacheFixture {
    fn new() -> Self {
        let temp = tempfile::tempdir().expect("temp");
        let store = open(temp.path());
        Self { temp, store }
    }

    fn find(&self, scope: &CacheScope) -> BaseLookup {
        self.store.find_base(scope, &[]).expect("reads")
    }

    /// Runs `write` as a run of `scope`, and commits the result.
    fn run_and_commit(&self, scope: &CacheScope, write: impl FnOnce(&Path)) -> CommitOutcome {
        let (found, run) = (self.find(scope), self.store.create_run_dir().expect("makes"));
        let write_dir = run.create_write_dir(0).expect("makes");
        write(&write_dir.join(CACHE_UPPER));
        self.commit(scope, &found, &write_dir).expect("commits")
    }

    fn commit(&self, scope: &CacheScope, found: &BaseLookup, room: &Path) -> Result<CommitOutcome, SkillCacheError> {
        self.store.commit(&CacheCommit {
            scope,
            lookup: found,
            write_dir: room,
            is_overlay: true,
            owner: None,
            max_bytes: LARGE,
        })
    }

    /// Returns what a step would see of the base of `scope`.
    fn visible_tree(&self, scope: &CacheScope) -> Option<FileTree> {
        let base = self.find(scope).base?;
        let to = tempfile::tempdir().expect("temp");
        let directory = Directory::open(to.path()).expect("opens");
        merge(&base.layers, directory.as_fd(), MergeMode::Copy { owner: None }).expect("copies");
        Some(read_tree(to.path()))
    }

    fn layers(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.temp.path().join("skill-caches/layers")).expect("lists");
        listed.map(|entry| entry.expect("lists").path()).collect()
    }

    fn evict(&self, bounds: &CacheRetention, now: SystemTime) {
        let (kept, mut freed) = ((bounds, GcExtent::Excess), FreedItems::default());
        eviction::evict(self.temp.path(), kept, now, &mut freed).expect("evicts");
    }

    /// Removes everything that no run uses.
    fn evict_all(&self) -> FreedItems {
        let mut freed = FreedItems::default();
        eviction::evict(self.temp.path(), (&retention(), GcExtent::All), now(), &mut freed).expect("evicts");
        freed
    }
}

fn open(state: &Path) -> CacheStore {
    CacheStore::open(&Directory::open(state).expect("opens"), state).expect("opens")
}

fn scope() -> CacheScope {
    CacheScope {
        caller: 1,
        owner: 1,
        repository: "/r".into(),
        skill: "verify.it".into(),
        path: "target".into(),
        trust_scope: "branch:main".into(),
    }
}

fn now() -> SystemTime {
    Clock::system().system_time()
}

fn retention() -> CacheRetention {
    DaemonSettings::default().retention.caches
}

#[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
fn put(dir: &Path, name: &str, content: &str) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("makes");
    fs::write(path, content).expect("writes");
}

fn make_whiteout(path: &Path) {
    let made =
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty(), 0);
    made.expect("marks");
}

fn make_opaque(dir: &Path) {
    rustix::fs::setxattr(dir, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).expect("marks");
}

/// Paths with their contents: `None` for a directory, the target for a link.
type FileTree = BTreeMap<PathBuf, Option<String>>;

fn read_tree(root: &Path) -> FileTree {
    let (mut tree, mut pending) = (FileTree::new(), vec![root.to_owned()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).expect("lists") {
            let path = entry.expect("lists").path();
            let meta = fs::symlink_metadata(&path).expect("there");
            let content = match (meta.is_dir(), meta.is_symlink()) {
                (true, _) => {
                    pending.push(path.clone());
                    None
                }
                (_, true) => Some(format!("-> {}", fs::read_link(&path).expect("reads").display())),
                _ => Some(fs::read_to_string(&path).expect("reads")),
            };
            tree.insert(path.strip_prefix(root).expect("below").to_owned(), content);
        }
    }
    tree
}

fn content_of(tree: &Option<FileTree>, name: &str) -> Option<String> {
    tree.as_ref()?.get(Path::new(name)).cloned().flatten()
}

#[test]
fn keeps_only_committed_content() {
    let (state, scope) = (CacheFixture::new(), scope());
    assert!(state.visible_tree(&scope).is_none());
    assert_eq!(state.run_and_commit(&scope, |upper| put(upper, "a/b", "1")), CommitOutcome::New { left_out: vec![] });
    assert_eq!(content_of(&state.visible_tree(&scope), "a/b").as_deref(), Some("1"));
    let run = state.store.create_run_dir().expect("makes");
    put(&run.create_write_dir(0).expect("makes").join(CACHE_UPPER), "a/b", "poison");
    drop(run);
    assert_eq!(content_of(&state.visible_tree(&scope), "a/b").as_deref(), Some("1"));
    assert_eq!(fs::read_dir(state.temp.path().join("skill-caches/runs")).expect("lists").count(), 0);
    assert_eq!(state.run_and_commit(&scope, |_| {}), CommitOutcome::Unchanged);
}

#[test]
fn separates_caches_by_each_part_of_scope() {
    let (state, own) = (CacheFixture::new(), scope());
    state.run_and_commit(&own, |upper| put(upper, "a", "1"));
    let others = [
        CacheScope { caller: 2, ..scope() },
        CacheScope { owner: 2, ..scope() },
        CacheScope { repository: "/s".into(), ..scope() },
        CacheScope { skill: "verify.other".into(), ..scope() },
        CacheScope { path: "other".into(), ..scope() },
        own.with_trust_scope("branch:feature"),
    ];
    for other in others {
        assert!(state.find(&other).base.is_none(), "{other:?}");
    }
}

#[test]
fn branch_reads_default_branch_and_writes_own_scope() {
    let (state, main) = (CacheFixture::new(), scope());
    let feature = main.with_trust_scope("branch:feature");
    state.run_and_commit(&main, |upper| put(upper, "a", "main"));
    let fallbacks = ["branch:main".to_owned()];
    let found = state.store.find_base(&feature, &fallbacks).expect("reads");
    let base = found.base.as_ref().expect("the default branch's");
    assert_eq!((base.trust(), base.to_record().scope.as_str()), (CacheTrust::Default, "branch:main"));
    let run = state.store.create_run_dir().expect("makes");
    let write_dir = run.create_write_dir(0).expect("makes");
    put(&write_dir.join(CACHE_UPPER), "a", "feature");
    assert!(matches!(state.commit(&feature, &found, &write_dir), Ok(CommitOutcome::New { .. })));
    assert_eq!(content_of(&state.visible_tree(&main), "a").as_deref(), Some("main"));
    let own = state.store.find_base(&feature, &fallbacks).expect("reads").base.expect("its own");
    assert_eq!(
        (own.to_record().scope.as_str(), own.trust()),
        ("branch:feature", CacheTrust::Default),
        "content of both"
    );
}

#[test]
fn later_of_two_concurrent_commits_is_stale() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| put(upper, "a", "0"));
    let (found, run) = (state.find(&scope), state.store.create_run_dir().expect("makes"));
    let write_dir = run.create_write_dir(0).expect("makes");
    put(&write_dir.join(CACHE_UPPER), "late", "1");
    state.run_and_commit(&scope, |upper| put(upper, "early", "1"));
    assert_eq!(state.commit(&scope, &found, &write_dir).expect("asks"), CommitOutcome::Stale);
    let shown = state.visible_tree(&scope);
    assert_eq!((content_of(&shown, "early").as_deref(), content_of(&shown, "late")), (Some("1"), None));
}

#[test]
fn does_not_use_edited_base() {
    type LayerEdit = fn(&Path);
    let edits: [LayerEdit; 5] = [
        |layer| put(layer, "a", "2"),
        |layer| put(layer, "new", "1"),
        |layer| fs::remove_file(layer.join("a")).expect("removes"),
        |layer| fs::set_permissions(layer.join("a"), fs::Permissions::from_mode(0o755)).expect("sets"),
        |layer| {
            let old = fs::metadata(layer.join("a")).expect("there").modified().expect("a time");
            put(layer, "b", "2");
            fs::rename(layer.join("b"), layer.join("a")).expect("moves");
            let file = fs::File::options().write(true).open(layer.join("a")).expect("opens");
            file.set_modified(old).expect("dates");
        },
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let (state, scope) = (CacheFixture::new(), scope());
        state.run_and_commit(&scope, |upper| put(upper, "a", "1"));
        edit(&state.layers()[0]);
        let found = state.find(&scope);
        assert!(found.base.is_none() && found.reason.is_some_and(|why| why.contains("branch:main")), "{number}");
        // The next pass starts with an empty cache.
        state.run_and_commit(&scope, |upper| put(upper, "c", "3"));
        assert_eq!(state.visible_tree(&scope), Some([(PathBuf::from("c"), Some("3".to_owned()))].into()), "{number}");
    }
}

#[test]
fn does_not_use_invalid_manifest() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| put(upper, "a", "1"));
    let base = state.temp.path().join("skill-caches/scopes").join(scope.directory_name()).join(BASE_FILE);
    put(base.parent().expect("a parent"), BASE_FILE, "{}");
    assert!(state.find(&scope).base.is_none());
    fs::remove_file(&base).expect("removes");
    assert!(state.find(&scope).base.is_none());
}

#[test]
fn omits_sockets_and_fifos_without_uncovering_lower_entries() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| put(upper, "fifo", "a file"));
    let committed = state.run_and_commit(&scope, |upper| {
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            upper.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        );
        made.expect("makes");
        drop(UnixListener::bind(upper.join("socket")).expect("binds"));
        put(upper, "kept", "1");
    });
    assert_eq!(committed, CommitOutcome::New { left_out: vec!["fifo".into(), "socket".into()] });
    assert_eq!(state.visible_tree(&scope), Some([(PathBuf::from("kept"), Some("1".to_owned()))].into()));
}

#[test]
fn removes_set_id_bits_and_refuses_overlayfs_attributes() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| {
        put(upper, "program", "x");
        fs::set_permissions(upper.join("program"), fs::Permissions::from_mode(0o6755)).expect("sets");
    });
    let mode = fs::metadata(state.layers()[0].join("program")).expect("there").mode();
    assert_eq!(mode & 0o7777, 0o755);
    for (name, value) in
        [("user.overlay.redirect", "/etc"), ("user.overlay.opaque", "x"), ("user.overlay.metacopy", "")]
    {
        let (found, run) = (state.find(&scope), state.store.create_run_dir().expect("makes"));
        let write_dir = run.create_write_dir(0).expect("makes");
        put(&write_dir.join(CACHE_UPPER), "dir/a", "1");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(write_dir.join(CACHE_UPPER).join("dir"), name, value.as_bytes(), flags).expect("sets");
        let fault = state.commit(&scope, &found, &write_dir).expect_err(name);
        assert!(matches!(fault, SkillCacheError::Attribute { .. }), "{fault}");
    }
}

#[test]
fn refuses_oversized_commit_and_keeps_old_base() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| put(upper, "a", "1"));
    let (found, run) = (state.find(&scope), state.store.create_run_dir().expect("makes"));
    let write_dir = run.create_write_dir(0).expect("makes");
    put(&write_dir.join(CACHE_UPPER), "big", &"x".repeat(64 << 10));
    let commit = CacheCommit {
        scope: &scope,
        lookup: &found,
        write_dir: &write_dir,
        is_overlay: true,
        owner: None,
        max_bytes: 4096,
    };
    let fault = state.store.commit(&commit).expect_err("too large");
    assert!(matches!(fault, SkillCacheError::TooLarge { most: 4096, .. }), "{fault}");
    assert_eq!(content_of(&state.visible_tree(&scope), "a").as_deref(), Some("1"));
}

#[test]
fn merges_full_stack_into_equivalent_layer() {
    let (state, scope) = (CacheFixture::new(), scope());
    for number in 0..=MAX_LAYERS {
        state.run_and_commit(&scope, |upper| {
            put(upper, &format!("dir/{number}"), "1");
            put(upper, "last", &number.to_string());
            if number > 0 {
                make_whiteout(&upper.join("dir").join((number - 1).to_string()));
            }
        });
    }
    let base = state.find(&scope).base.expect("a base");
    assert_eq!(base.layer_paths().len(), 1);
    let shown = state.visible_tree(&scope);
    assert_eq!(content_of(&shown, "last"), Some(MAX_LAYERS.to_string()));
    assert_eq!(shown.expect("shown").len(), 3, "one file of `dir` is left");
    drop(base);
    state.evict(&retention(), now());
    assert_eq!(state.layers().len(), 1, "the others are removed");
    assert_eq!(
        content_of(&state.visible_tree(&scope), "last"),
        Some(MAX_LAYERS.to_string()),
        "the links do not need them"
    );
}

#[test]
fn keeps_layers_while_run_uses_them() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| put(upper, "a", "1"));
    let used = state.find(&scope);
    let far = now() + retention().max_unused * 2;
    state.evict(&retention(), far);
    assert!(state.find(&scope).base.is_none(), "the base is forgotten");
    assert_eq!(state.layers().len(), 1, "its layer is in use");
    drop(used);
    state.evict(&retention(), far);
    assert_eq!(state.layers().len(), 0);
}

#[test]
fn removes_directories_of_killed_runs_only() {
    let state = CacheFixture::new();
    let (held, killed) = (state.store.create_run_dir().expect("makes"), state.store.create_run_dir().expect("makes"));
    put(&held.create_write_dir(0).expect("makes").join(CACHE_UPPER), "a", "1");
    let path = killed.path.clone();
    put(&killed.create_write_dir(0).expect("makes").join(CACHE_UPPER), "a", "1");
    // A kill releases the lock and leaves the files.
    rustix::fs::flock(&killed.directory, FlockOperation::Unlock).expect("unlocks");
    state.evict(&retention(), now());
    assert!(held.path.exists() && !path.exists());
}

#[test]
fn crash_during_commit_leaves_old_or_new_base() {
    // The states on disk if the process dies: before the layer has its name, before the manifest names it (without
    // and with half of a new manifest), and after.
    for point in ["written", "named", "half", "whole"] {
        let (state, scope) = (CacheFixture::new(), scope());
        state.run_and_commit(&scope, |upper| put(upper, "a", "old"));
        let root = state.temp.path().join("skill-caches");
        let dir = root.join("scopes").join(scope.directory_name());
        let old = fs::read(dir.join(BASE_FILE)).expect("reads");
        state.run_and_commit(&scope, |upper| put(upper, "a", "new"));
        match point {
            "written" => {
                let manifest =
                    CacheManifest::parse(&fs::read(dir.join(BASE_FILE)).expect("reads")).expect("a manifest");
                fs::create_dir_all(root.join("runs/killed/0")).expect("makes");
                let (from, to) = (root.join("layers").join(&manifest.layers[0].id), root.join("runs/killed/0/upper"));
                fs::rename(from, to).expect("moves");
                put(&dir, BASE_FILE, std::str::from_utf8(&old).expect("text"));
            }
            "named" => put(&dir, BASE_FILE, std::str::from_utf8(&old).expect("text")),
            "half" => {
                put(&dir, BASE_FILE, std::str::from_utf8(&old).expect("text"));
                put(&dir, ".base.json.0123456789abcdef.tmp", "{\"version\":1,\"lay");
            }
            _ => {}
        }
        let expected = if point == "whole" { "new" } else { "old" };
        assert_eq!(content_of(&state.visible_tree(&scope), "a").as_deref(), Some(expected), "{point}");
        state.evict(&retention(), now());
        assert_eq!(content_of(&state.visible_tree(&scope), "a").as_deref(), Some(expected), "{point}, tidied");
        assert_eq!(state.layers().len(), if point == "whole" { 2 } else { 1 }, "{point}");
        assert!(!root.join("runs/killed").exists(), "{point}");
        // The next run commits as usual.
        state.run_and_commit(&scope, |upper| put(upper, "b", "1"));
        assert_eq!(content_of(&state.visible_tree(&scope), "b").as_deref(), Some("1"), "{point}");
    }
}

#[test]
fn commit_of_copy_replaces_whole_content() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| {
        put(upper, "dir/a", "1");
        put(upper, "b", "1");
        symlink("b", upper.join("link")).expect("links");
    });
    let (found, run) = (state.find(&scope), state.store.create_run_dir().expect("makes"));
    let write_dir = run.create_write_dir(0).expect("makes");
    state.store.copy_base(found.base.as_ref().expect("a base"), &write_dir, None).expect("copies");
    let upper = write_dir.join(CACHE_UPPER);
    assert_eq!(Some(read_tree(&upper)), state.visible_tree(&scope));
    put(&upper, "b", "2");
    fs::remove_dir_all(upper.join("dir")).expect("removes");
    let commit = CacheCommit {
        scope: &scope,
        lookup: &found,
        write_dir: &write_dir,
        is_overlay: false,
        owner: None,
        max_bytes: LARGE,
    };
    assert!(matches!(state.store.commit(&commit), Ok(CommitOutcome::New { .. })));
    let shown = state.visible_tree(&scope);
    assert_eq!((content_of(&shown, "b").as_deref(), content_of(&shown, "dir/a")), (Some("2"), None));
    assert_eq!(state.find(&scope).base.expect("a base").layer_paths().len(), 1);
}

/// The changes that a step can make to a tree, in the form in which overlayfs stores them in a layer.
#[derive(Debug, Clone)]
enum TreeChange {
    Write(usize, usize, String),
    Remove(usize, usize),
    RemoveDir(usize),
    ReplaceDir(usize, usize, String),
}

fn tree_changes() -> impl Strategy<Value = Vec<Vec<TreeChange>>> {
    let act = prop_oneof![
        (0..3usize, 0..3usize, "[a-c]{1,3}").prop_map(|(dir, file, text)| TreeChange::Write(dir, file, text)),
        (0..3usize, 0..3usize).prop_map(|(dir, file)| TreeChange::Remove(dir, file)),
        (0..3usize).prop_map(TreeChange::RemoveDir),
        (0..3usize, 0..3usize, "[a-c]{1,3}").prop_map(|(dir, file, text)| TreeChange::ReplaceDir(dir, file, text)),
    ];
    prop::collection::vec(prop::collection::vec(act, 0..6), 1..10)
}

/// Applies the change to a model and to the upper directory over it.
fn apply_change(model: &mut FileTree, upper: &Path, act: &TreeChange) {
    let dir_at = |dir: &usize| upper.join(format!("d{dir}"));
    let is_marked = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir() && !meta.is_file());
    let clear = |path: &Path| {
        if is_marked(path) || path.is_file() {
            fs::remove_file(path).expect("removes");
        } else if path.is_dir() {
            fs::remove_dir_all(path).expect("removes");
        }
    };
    match act {
        TreeChange::Write(dir, file, text) => {
            let dir_path = dir_at(dir);
            let was_removed = is_marked(&dir_path);
            if was_removed {
                clear(&dir_path);
            }
            clear(&dir_path.join(format!("f{file}")));
            put(upper, &format!("d{dir}/f{file}"), text);
            if was_removed {
                make_opaque(&dir_path);
            }
            model.insert(format!("d{dir}").into(), None);
            model.insert(format!("d{dir}/f{file}").into(), Some(text.clone()));
        }
        TreeChange::Remove(dir, file) => {
            let path = PathBuf::from(format!("d{dir}/f{file}"));
            if model.remove(&path).is_some() {
                fs::create_dir_all(dir_at(dir)).expect("makes");
                clear(&upper.join(&path));
                make_whiteout(&upper.join(&path));
            }
        }
        TreeChange::RemoveDir(dir) => {
            let root = PathBuf::from(format!("d{dir}"));
            if model.contains_key(&root) {
                model.retain(|path, _| !path.starts_with(&root));
                clear(&dir_at(dir));
                make_whiteout(&dir_at(dir));
            }
        }
        TreeChange::ReplaceDir(dir, file, text) => {
            let root = PathBuf::from(format!("d{dir}"));
            model.retain(|path, _| !path.starts_with(&root));
            clear(&dir_at(dir));
            put(upper, &format!("d{dir}/f{file}"), text);
            make_opaque(&dir_at(dir));
            model.insert(root.clone(), None);
            model.insert(root.join(format!("f{file}")), Some(text.clone()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn merged_layers_match_model(runs in tree_changes()) {
        let temp = tempfile::tempdir().expect("temp");
        let (mut model, mut layers) = (FileTree::new(), Vec::new());
        for (number, run) in runs.iter().enumerate() {
            let upper = temp.path().join(number.to_string());
            fs::create_dir(&upper).expect("makes");
            run.iter().for_each(|one| apply_change(&mut model, &upper, one));
            layers.insert(0, Directory::open(&upper).expect("opens"));
        }
        let stack = || -> Vec<OwnedFd> {
            layers.iter().map(|layer| layer.as_fd().try_clone_to_owned().expect("a descriptor")).collect()
        };
        for (name, how) in [("copy", MergeMode::Copy { owner: None }), ("link", MergeMode::Link)] {
            let made = temp.path().join(name);
            fs::create_dir(&made).expect("makes");
            let to = Directory::open(&made).expect("opens");
            merge(&stack(), to.as_fd(), how).expect("merges");
            prop_assert_eq!(read_tree(&made), model.clone(), "{}", name);
        }
    }
}

#[test]
fn verifies_layer_on_each_use() {
    let (state, scope) = (CacheFixture::new(), scope());
    state.run_and_commit(&scope, |upper| put(upper, "a", "1"));
    let first = state.find(&scope);
    assert!(first.base.is_some());
    std::thread::scope(|threads| {
        let others: Vec<_> = (0..4).map(|_| threads.spawn(|| state.find(&scope).base.is_some())).collect();
        assert!(others.into_iter().all(|other| other.join().expect("no panic")), "locks are shared");
    });
    let old = now() - Duration::from_secs(60);
    let file = fs::File::options().write(true).open(state.layers()[0].join("a")).expect("opens");
    file.set_modified(old).expect("dates");
    assert!(state.find(&scope).base.is_none());
}

#[test]
fn evict_all_keeps_cache_in_use() {
    let state = CacheFixture::new();
    let other = CacheScope { path: "other".into(), ..scope() };
    for scope in [&scope(), &other] {
        state.run_and_commit(scope, |upper| put(upper, "a", "1"));
    }
    let used = state.find(&scope());
    let freed = state.evict_all();
    assert_eq!((freed.number, freed.in_use, freed.bytes > 0), (1, 1, true));
    assert_eq!((state.layers().len(), state.visible_tree(&other)), (1, None));
    assert!(state.visible_tree(&scope()).is_some());
    drop(used);
    assert_eq!(state.evict_all().number, 1);
    assert_eq!(state.layers(), [] as [PathBuf; 0]);
    assert_eq!(state.evict_all(), FreedItems::default());
}
