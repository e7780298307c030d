//! Tests the store of prepared paths: scopes, damage, replacement and bounds.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::store::caches::RunCacheDir;

struct Store {
    state: tempfile::TempDir,
    store: CacheStore,
    run: RunCacheDir,
}

fn store() -> Store {
    let state = tempfile::tempdir().expect("temp");
    let directory = Directory::open(state.path()).expect("opens");
    let store = CacheStore::open(&directory, state.path()).expect("opens");
    let run = store.create_run_dir().expect("makes");
    Store { state, store, run }
}

fn scope(path: &str, origin: PathOrigin) -> PathScope {
    PathScope { caller: 1, owner: 1, repository: "/r".into(), path: path.into(), origin }
}

fn of_command(inputs: &[u8]) -> PathOrigin {
    PathOrigin::Command { trust_scope: "branch:main".into(), inputs: Sha256Hex::digest(inputs) }
}

impl Store {
    /// Stores a path with one file.
    fn put(&self, number: usize, scope: &PathScope, text: &str) -> HeldPath {
        self.put_from(number, scope, text, None)
    }

    fn put_from(&self, number: usize, scope: &PathScope, text: &str, source: Option<Sha256Hex>) -> HeldPath {
        let room = self.run.create_write_dir(number).expect("makes");
        fs::create_dir(room.join("upper/bin")).expect("makes");
        fs::write(room.join("upper/bin/tool"), text).expect("writes");
        symlink("tool", room.join("upper/bin/link")).expect("links");
        let new = NewPath {
            scope: scope.clone(),
            source,
            command: None,
            room: &room,
            is_overlay: false,
            owner: None,
            max_bytes: 1 << 20,
        };
        self.store.store_path(new).expect("stores")
    }

    fn find(&self, scope: &PathScope) -> Option<HeldPath> {
        self.store.find_path(scope, None).expect("finds")
    }

    fn names(&self) -> Vec<String> {
        let listed = fs::read_dir(self.state.path().join("skill-caches/prepared")).expect("lists");
        listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    }
}

fn text_of(held: &HeldPath) -> String {
    fs::read_to_string(held.content.join("bin/link")).expect("reads")
}

#[test]
fn finds_a_path_of_the_same_scope_only() {
    let store = store();
    let one = scope("node_modules", of_command(b"1"));
    let stored = store.put(0, &one, "one");
    assert_eq!(text_of(&stored), "one");
    let found = store.find(&one).expect("it");
    assert_eq!((text_of(&found), &found.record), ("one".to_owned(), &stored.record));
    assert_eq!((found.record.content.files, found.record.content.bytes), (2, 3));
    let others = [
        scope("node_modules", of_command(b"2")),
        scope("node_modules", PathOrigin::Worktree),
        scope(".venv", of_command(b"1")),
        PathScope { caller: 2, ..one.clone() },
        PathScope { owner: 2, ..one.clone() },
        PathScope { repository: "/s".into(), ..one.clone() },
    ];
    assert!(others.iter().all(|other| store.find(other).is_none()));
    let has =
        |caller, path| store.store.has_path((caller, "/r", path), |record, _| record.content == stored.record.content);
    assert!(has(1, "node_modules") && !has(2, "node_modules") && !has(1, ".venv"));
}

/// Each change of a stored path is noticed, and a damaged path is removed.
#[test]
fn does_not_use_a_changed_path() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 6] = [
        ("content", |content| fs::write(content.join("bin/tool"), "two").expect("writes")),
        ("added", |content| fs::write(content.join("new"), "").expect("writes")),
        ("removed", |content| fs::remove_file(content.join("bin/tool")).expect("removes")),
        ("link", |content| {
            fs::remove_file(content.join("bin/link")).expect("removes");
            symlink("/etc/passwd", content.join("bin/link")).expect("links");
        }),
        ("directory as link", |content| {
            fs::remove_dir_all(content).expect("removes");
            symlink("/etc", content).expect("links");
        }),
        ("record", |content| fs::write(content.with_file_name("entry.json"), "{}").expect("writes")),
    ];
    for (name, damage) in damages {
        let store = store();
        let one = scope("node_modules", of_command(b"1"));
        let content = store.put(0, &one, "one").content.clone();
        damage(&content);
        assert!(store.find(&one).is_none(), "{name}");
        assert_eq!(store.names(), Vec::<String>::new(), "{name}");
    }
}

/// An edit that restores size and modification time changes the time of the last status change.
#[test]
fn detects_an_edit_that_restores_the_modification_time() {
    let store = store();
    let one = scope("node_modules", of_command(b"1"));
    let file = store.put(0, &one, "one").content.join("bin/tool");
    let before = fs::metadata(&file).expect("stat").modified().expect("a time");
    fs::write(&file, "owt").expect("writes");
    fs::File::options().write(true).open(&file).expect("opens").set_modified(before).expect("sets");
    assert!(store.find(&one).is_none());
}

#[test]
fn accepts_other_stat_data_with_the_same_content() {
    let store = store();
    let one = scope("node_modules", of_command(b"1"));
    let stored = store.put(0, &one, "one");
    let (before, file) = (stored.record.content.modified_sha256.clone(), stored.content.join("bin/tool"));
    drop(stored);
    fs::remove_file(&file).expect("removes");
    fs::write(&file, "one").expect("writes");
    let restored = store.find(&one).expect("restored");
    assert_eq!(text_of(&restored), "one");
    let again = store.find(&one).expect("with its new seal");
    assert_eq!(text_of(&again), "one");
    let times = |held: &HeldPath| held.record.content.modified_sha256.clone();
    assert!(times(&again) == times(&restored) && times(&again) != before);
}

#[test]
fn second_result_of_a_command_serves_its_own_run_only() {
    let store = store();
    let one = scope("node_modules", of_command(b"1"));
    let first = store.put(0, &one, "one");
    let second = store.put(1, &one, "two");
    assert_eq!((text_of(&first), text_of(&second)), ("one".to_owned(), "two".to_owned()));
    assert_eq!(text_of(&store.find(&one).expect("the first")), "one");
}

#[test]
fn newer_copy_replaces_the_older_one_unless_a_run_uses_it() {
    let store = store();
    let copied = scope(".venv", PathOrigin::Worktree);
    let states = [b"1", b"2", b"3"].map(|state| Sha256Hex::digest(state));
    let find = |at: usize| store.store.find_path(&copied, Some(&states[at])).expect("finds");
    drop(store.put_from(0, &copied, "one", Some(states[0].clone())));
    let held = store.put_from(1, &copied, "two", Some(states[1].clone()));
    assert!(find(0).is_none() && find(1).is_some());
    let unstored = store.put_from(2, &copied, "three", Some(states[2].clone()));
    assert_eq!((text_of(&held), text_of(&unstored)), ("two".to_owned(), "three".to_owned()));
    assert!(find(2).is_none() && find(1).is_some());
    assert_eq!(store.names().len(), 1);
}

/// The stat data of a recently changed directory do not show each change.
#[test]
fn copy_of_a_recently_changed_directory_is_compared() {
    let store = store();
    let copied = scope(".venv", PathOrigin::Worktree);
    let source = tempfile::tempdir().expect("temp");
    fs::create_dir(source.path().join("bin")).expect("makes");
    fs::write(source.path().join("bin/tool"), "one").expect("writes");
    symlink("tool", source.path().join("bin/link")).expect("links");
    let opened = Directory::open(source.path()).expect("opens");
    let state = source_state(opened.as_fd(), None).expect("read");
    let stored = store.put_from(0, &copied, "one", Some(state.recorded()));
    let of = (1, "/r", ".venv");
    let finds = || {
        let found = store.store.find_copy(&copied, &opened, &state).expect("finds").is_some();
        (found, store.store.has_copy(of, (&opened, &state), &stored.record.content.sha256))
    };
    assert_eq!(finds(), (true, true));
    // The bytes differ, although the caller passes the former state.
    fs::write(source.path().join("bin/tool"), "two").expect("writes");
    assert_eq!(finds(), (false, false));
}

#[test]
fn refuses_a_path_that_is_too_large() {
    let store = store();
    let room = store.run.create_write_dir(0).expect("makes");
    fs::write(room.join("upper/big"), vec![b'x'; 64 << 10]).expect("writes");
    let scope = scope("node_modules", of_command(b"1"));
    let new =
        NewPath { scope, source: None, command: None, room: &room, is_overlay: false, owner: None, max_bytes: 1000 };
    assert!(matches!(store.store.store_path(new), Err(SkillCacheError::TooLarge { .. })));
}

#[test]
fn source_must_be_readable_with_the_given_rights() {
    let directory = tempfile::tempdir().expect("temp");
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("sets");
    };
    let (file, inner) = (directory.path().join("file"), directory.path().join("inner"));
    set_mode(directory.path(), 0o755);
    fs::write(&file, "x").expect("writes");
    fs::create_dir(&inner).expect("makes");
    symlink("nowhere", directory.path().join("link")).expect("links");
    let opened = Directory::open(directory.path()).expect("opens");
    let state = |rights| source_state(opened.as_fd(), rights);
    let other = Some(StepRights { uid: 4_000_000, gid: 4_000_000 });
    let cases = [(0o644, 0o755, None), (0o600, 0o755, Some("file")), (0o644, 0o744, Some("inner"))];
    for (file_mode, directory_mode, unreadable) in cases {
        set_mode(&file, file_mode);
        set_mode(&inner, directory_mode);
        assert!(state(None).is_ok());
        let refused = state(other).err().map(|error| error.to_string());
        let expected = unreadable.map(|name| format!("cannot read `{name}` in it: Permission denied (os error 13)"));
        assert_eq!(refused, expected, "file {file_mode:o}, directory {directory_mode:o}");
    }
}
