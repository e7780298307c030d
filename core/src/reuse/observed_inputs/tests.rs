//! Each test records the inputs of a step, changes one of them, and expects that the step runs again.

use std::collections::BTreeMap;

use super::*;
use crate::model::trace::EntryKind as ListedKind;

/// Inputs that tests can change.
#[derive(Clone, Default)]
struct FakeInputs {
    covered: BTreeMap<Vec<u8>, Entry>,
    states: BTreeMap<Vec<u8>, PathNow>,
    listings: BTreeMap<Vec<u8>, ListingDigest>,
    git: BTreeMap<Vec<u8>, [u8; 32]>,
}

fn area_path(area: InputArea, path: &[u8]) -> Vec<u8> {
    let prefix: &[u8] = if area == InputArea::Tree { b"tree:" } else { b"" };
    [prefix, path].concat()
}

impl CurrentInputs for FakeInputs {
    fn covered(&self, path: &[u8]) -> Option<Entry> {
        self.covered.get(path).cloned()
    }

    fn state(&self, area: InputArea, path: &[u8]) -> Option<PathNow> {
        Some(self.states.get(&area_path(area, path)).cloned().unwrap_or((PathState::Absent, None)))
    }

    fn listing(&self, area: InputArea, path: &[u8]) -> Option<ListingDigest> {
        self.listings.get(&area_path(area, path)).copied()
    }

    fn git_content(&self, path: &[u8]) -> Option<[u8; 32]> {
        self.git.get(path).copied()
    }
}

fn file(size: u64) -> PathState {
    PathState::File { mode: 0o644, size, uid: 1, gid: 1 }
}

fn stamp(mtime_ns: i64) -> Option<FileStamp> {
    Some(FileStamp { dev: 1, ino: 2, size: 3, mtime_ns, ctime_ns: 5 })
}

const DIRECTORY: PathState = PathState::Directory { mode: 0o755, uid: 1, gid: 1 };

fn accessed(path: &[u8], state: PathState, read: bool) -> AccessedPath {
    let stamp = if state == PathState::Absent { None } else { stamp(4) };
    AccessedPath { path: path.to_vec(), state, stamp, read, listing: None }
}

fn listing(names: &[&str]) -> ListingDigest {
    ListingDigest::from_entries(names.iter().map(|name| (name.as_bytes(), ListedKind::File)).collect())
}

fn entry(content: &[u8]) -> Entry {
    Entry { kind: EntryKind::File, executable: false, sha256: Sha256Hex::digest(content) }
}

fn covered(content: &[u8]) -> ContentPin {
    ContentPin::Covered { sha256: Sha256Hex::digest(content).to_raw(), executable: false }
}

/// Returns the inputs of a step, and the same inputs now.
fn recorded() -> (ObservedInputs, FakeInputs) {
    let tree = vec![
        (AccessedPath { listing: Some(listing(&["a", "b"])), ..accessed(b"/", DIRECTORY, false) }, ContentPin::None),
        (accessed(b"/.git/HEAD", file(9), true), ContentPin::Git { sha256: [7; 32] }),
        (accessed(b"/a", file(1), true), covered(b"a")),
        (accessed(b"/b", file(1), false), covered(b"b")),
        (accessed(b"/ignored", file(2), true), ContentPin::None),
        (accessed(b"/looked_up", file(2), false), ContentPin::None),
        (accessed(b"/setup.cfg", PathState::Absent, false), ContentPin::None),
    ];
    let host = vec![
        accessed(b"/usr/bin/tool", file(3), true),
        accessed(b"/usr/bin/stat_only", file(3), false),
        accessed(b"/usr/local/bin/tool", PathState::Absent, false),
        AccessedPath { listing: Some(listing(&["x"])), ..accessed(b"/usr/lib", DIRECTORY, false) },
    ];
    let mut now = FakeInputs::default();
    for (area, entries) in [
        (InputArea::Tree, tree.iter().map(|(entry, _)| entry).collect::<Vec<_>>()),
        (InputArea::Host, host.iter().collect()),
    ] {
        for found in entries {
            let path = if area == InputArea::Tree { &found.path[1..] } else { &found.path[..] };
            now.states.insert(area_path(area, path), (found.state.clone(), found.stamp));
            found.listing.map(|listing| now.listings.insert(area_path(area, path), listing));
        }
    }
    now.covered = [(b"a".to_vec(), entry(b"a")), (b"b".to_vec(), entry(b"b"))].into();
    now.git = [(b".git/HEAD".to_vec(), [7; 32])].into();
    let (paths, contents): (Vec<_>, Vec<_>) = tree.into_iter().unzip();
    let trace = |entries| AccessTrace::new(entries).expect("a trace");
    (ObservedInputs::new(trace(paths), contents, trace(host)).expect("inputs"), now)
}

/// Returns the first difference after a change of the inputs.
fn change_after(edit: impl FnOnce(&mut FakeInputs)) -> Option<String> {
    let (inputs, mut now) = recorded();
    edit(&mut now);
    inputs.first_change(&now).map(|change| change.to_string())
}

fn set(now: &mut FakeInputs, path: &[u8], state: PathNow) {
    now.states.insert(path.to_vec(), state);
}

#[test]
fn same_inputs_have_no_change() {
    assert_eq!(change_after(|_| {}), None);
    assert_eq!(
        change_after(|now| {
            now.covered.insert(b"other".to_vec(), entry(b"x"));
        }),
        None
    );
}

#[test]
fn finds_changed_content_of_the_tree() {
    let edited = |now: &mut FakeInputs| {
        now.covered.insert(b"a".to_vec(), entry(b"c"));
    };
    assert_eq!(change_after(edited).as_deref(), Some("`a` has different content"));
    assert_eq!(
        change_after(|now| {
            now.covered.remove(&b"a"[..]);
        })
        .as_deref(),
        Some("`a` no longer exists")
    );
    let executable = |now: &mut FakeInputs| {
        now.covered.insert(b"a".to_vec(), Entry { executable: true, ..entry(b"a") });
    };
    assert_eq!(change_after(executable).as_deref(), Some("`a` has a different kind or mode"));
    let link = |now: &mut FakeInputs| {
        now.covered.insert(b"a".to_vec(), Entry { kind: EntryKind::Symlink, ..entry(b"a") });
    };
    assert_eq!(change_after(link).as_deref(), Some("`a` has a different kind or mode"));
}

#[test]
fn stamps_do_not_matter_for_covered_files() {
    assert_eq!(change_after(|now| set(now, b"tree:a", (file(1), stamp(9)))), None);
}

#[test]
fn content_matters_for_a_file_that_was_only_looked_up() {
    let edit = |content: &'static [u8], size| {
        move |now: &mut FakeInputs| {
            now.covered.insert(b"b".to_vec(), entry(content));
            set(now, b"tree:b", (file(size), stamp(9)));
        }
    };
    // `git diff` reads no file whose time and size are those of the index.
    assert_eq!(change_after(edit(b"c", 1)).as_deref(), Some("`b` has different content"));
    assert_eq!(change_after(edit(b"cc", 2)).as_deref(), Some("`b` has different content"));
    assert_eq!(change_after(edit(b"b", 1)), None, "only the time");
}

#[test]
fn finds_files_that_were_absent() {
    let config = |now: &mut FakeInputs| {
        now.covered.insert(b"setup.cfg".to_vec(), entry(b""));
    };
    assert_eq!(change_after(config).as_deref(), Some("`setup.cfg` now exists"));
    let ignored = |now: &mut FakeInputs| set(now, b"tree:setup.cfg", (file(1), stamp(1)));
    assert_eq!(change_after(ignored).as_deref(), Some("`setup.cfg` now exists"));
    let program = |now: &mut FakeInputs| set(now, b"/usr/local/bin/tool", (file(1), stamp(1)));
    assert_eq!(change_after(program).as_deref(), Some("`/usr/local/bin/tool` now exists"));
}

#[test]
fn finds_changed_listings() {
    let tree = |now: &mut FakeInputs| {
        now.listings.insert(b"tree:".to_vec(), listing(&["a", "b", "c"]));
    };
    assert_eq!(change_after(tree).as_deref(), Some("`.` has other entries"));
    let host = |now: &mut FakeInputs| {
        now.listings.remove(&b"/usr/lib"[..]);
    };
    assert_eq!(change_after(host).as_deref(), Some("`/usr/lib` has other entries"));
}

#[test]
fn finds_changes_outside_of_the_tree() {
    let replaced = |now: &mut FakeInputs| set(now, b"/usr/bin/tool", (file(3), stamp(9)));
    assert_eq!(change_after(replaced).as_deref(), Some("`/usr/bin/tool` has changed"));
    // Python reads no source whose time and size are those of the compiled file.
    let edited = |now: &mut FakeInputs| set(now, b"/usr/bin/stat_only", (file(3), stamp(9)));
    assert_eq!(change_after(edited).as_deref(), Some("`/usr/bin/stat_only` has changed"));
    let linked = |now: &mut FakeInputs| {
        let stamp = stamp(4).map(|stamp| FileStamp { ctime_ns: 9, ..stamp });
        set(now, b"/usr/bin/stat_only", (file(3), stamp));
    };
    assert_eq!(change_after(linked), None, "the content and the time of modification are the same");
    let grown = |now: &mut FakeInputs| set(now, b"/usr/bin/stat_only", (file(4), stamp(4)));
    assert!(change_after(grown).is_some());
    let gone = |now: &mut FakeInputs| set(now, b"/usr/bin/tool", (PathState::Absent, None));
    assert_eq!(change_after(gone).as_deref(), Some("`/usr/bin/tool` no longer exists"));
}

#[test]
fn finds_changed_ignored_files_and_git_files() {
    let ignored = |now: &mut FakeInputs| set(now, b"tree:ignored", (file(2), stamp(9)));
    assert_eq!(change_after(ignored).as_deref(), Some("`ignored` has changed"));
    let looked_up = |now: &mut FakeInputs| set(now, b"tree:looked_up", (file(2), stamp(9)));
    assert_eq!(change_after(looked_up).as_deref(), Some("`looked_up` has changed"));
    let head = |now: &mut FakeInputs| {
        now.git.insert(b".git/HEAD".to_vec(), [8; 32]);
    };
    assert_eq!(change_after(head).as_deref(), Some("`.git/HEAD` has different content"));
}

#[test]
fn encoding_is_lossless_and_detects_damage() {
    let (inputs, _) = recorded();
    let bytes = inputs.encode();
    assert_eq!(ObservedInputs::decode(&bytes), Ok(inputs));
    for length in 0..bytes.len() {
        assert!(ObservedInputs::decode(&bytes[..length]).is_err(), "{length}");
    }
    assert!(ObservedInputs::decode(&[&bytes[..], b"x"].concat()).is_err());
}

#[test]
fn digest_contains_only_stamps_of_files_without_recorded_content() {
    let (inputs, _) = recorded();
    let digest_after_change_of = |path: &[u8]| {
        let restamp = |entry: &AccessedPath| match entry.path == path {
            true => AccessedPath { stamp: entry.stamp.and(stamp(99)), ..entry.clone() },
            false => entry.clone(),
        };
        let restamped =
            |trace: &AccessTrace| AccessTrace::new(trace.entries().iter().map(restamp).collect()).expect("a trace");
        let changed = ObservedInputs { tree: restamped(&inputs.tree), host: restamped(&inputs.host), ..inputs.clone() };
        assert_ne!(changed, inputs);
        changed.digest()
    };
    for same in [&b"/a"[..], b"/b", b"/.git/HEAD", b"/", b"/usr/lib"] {
        assert_eq!(digest_after_change_of(same), inputs.digest(), "{same:?}");
    }
    // Files of the step that later steps see may depend on these.
    for other in [&b"/ignored"[..], b"/looked_up", b"/usr/bin/tool", b"/usr/bin/stat_only"] {
        assert_ne!(digest_after_change_of(other), inputs.digest(), "{other:?}");
    }
}

#[test]
fn combined_inputs_have_the_stamp_of_the_read_file() {
    let trace = |entries| AccessTrace::new(entries).expect("a trace");
    let inputs = |entry| ObservedInputs::new(AccessTrace::default(), Vec::new(), trace(vec![entry])).expect("inputs");
    let read = accessed(b"/f", file(1), true);
    let older = stamp(4).map(|stamp| FileStamp { ctime_ns: 1, ..stamp });
    let looked_up = inputs(AccessedPath { stamp: older, read: false, ..read.clone() });
    assert_eq!(looked_up.union(&inputs(read.clone())).expect("inputs"), inputs(read.clone()));
    assert_eq!(inputs(read.clone()).union(&looked_up).expect("inputs"), inputs(read));
}

#[test]
fn files_of_a_step_can_be_left_out_and_inputs_combined() {
    let (inputs, now) = recorded();
    let own: BTreeSet<&[u8]> = [&b"a"[..], b"ignored"].into();
    let rest = inputs.without_files(&own).expect("inputs");
    assert_eq!(inputs.path_count() - rest.path_count(), 1, "an ignored file stays: it has no recorded content");
    let read: Vec<&[u8]> = inputs.read_files().collect();
    assert_eq!(read, [&b"a"[..]], "only covered files that were read");
    let edited = |now: &FakeInputs| {
        let mut now = now.clone();
        now.covered.insert(b"a".to_vec(), entry(b"c"));
        now
    };
    assert_eq!(rest.first_change(&edited(&now)), None);
    assert_eq!(rest.union(&inputs).expect("inputs"), inputs);
    assert!(rest.union(&inputs).expect("inputs").first_change(&edited(&now)).is_some());
}

#[test]
fn combined_inputs_contain_every_kind_of_access() {
    let trace = |entries| AccessTrace::new(entries).expect("a trace");
    let inputs = |host| ObservedInputs::new(AccessTrace::default(), Vec::new(), trace(host)).expect("inputs");
    let listed = AccessedPath { listing: Some(listing(&["x"])), ..accessed(b"/d", DIRECTORY, false) };
    let one = inputs(vec![accessed(b"/d", DIRECTORY, false), accessed(b"/f", file(1), true)]);
    let other =
        inputs(vec![listed.clone(), accessed(b"/f", file(1), false), accessed(b"/g", PathState::Absent, false)]);
    let both = one.union(&other).expect("inputs");
    assert_eq!(both.host(), [listed, accessed(b"/f", file(1), true), accessed(b"/g", PathState::Absent, false)]);
    assert_eq!(other.union(&one).expect("inputs"), both);
}

#[test]
fn inputs_that_contradict_each_other_are_not_combined() {
    let trace = |entries| AccessTrace::new(entries).expect("a trace");
    let host = |entry| ObservedInputs::new(AccessTrace::default(), Vec::new(), trace(vec![entry])).expect("inputs");
    let tree = |entry, content| ObservedInputs::new(trace(vec![entry]), vec![content], trace(vec![])).expect("inputs");
    let listed = |names| AccessedPath { listing: Some(listing(names)), ..accessed(b"/d", DIRECTORY, false) };
    let link = |target: &str| {
        let state = PathState::Link { target: target.as_bytes().to_vec(), uid: 1, gid: 1 };
        accessed(b"/l", state, false)
    };
    let stamped = |ctime_ns, mtime_ns, read| {
        let stamp = stamp(mtime_ns).map(|stamp| FileStamp { ctime_ns, ..stamp });
        AccessedPath { stamp, ..accessed(b"/f", file(1), read) }
    };
    let git = |content: &str| ContentPin::Git { sha256: Sha256Hex::digest(content.as_bytes()).to_raw() };
    let differ = [
        (host(accessed(b"/f", file(1), true)), host(accessed(b"/f", PathState::Absent, false))),
        (host(accessed(b"/f", file(1), true)), host(accessed(b"/f", file(2), false))),
        (host(listed(&["a"])), host(listed(&["b"]))),
        (host(link("a")), host(link("b"))),
        (host(stamped(1, 4, true)), host(stamped(2, 4, true))),
        (host(stamped(1, 4, true)), host(stamped(1, 5, false))),
        (tree(stamped(1, 4, true), covered(b"1")), tree(stamped(1, 4, true), covered(b"2"))),
        (tree(stamped(1, 4, true), covered(b"1")), tree(stamped(1, 4, true), ContentPin::None)),
        (tree(stamped(1, 4, true), git("1")), tree(stamped(1, 4, true), git("2"))),
    ];
    for (one, other) in differ {
        one.union(&other).expect_err("a contradiction");
        other.union(&one).expect_err("a contradiction");
    }
    let same = [
        (host(stamped(1, 4, true)), host(stamped(2, 4, false))),
        (tree(stamped(1, 4, true), covered(b"1")), tree(stamped(2, 5, true), covered(b"1"))),
        (tree(stamped(1, 4, false), ContentPin::None), tree(stamped(1, 4, true), git("1"))),
    ];
    for (one, other) in same {
        assert_eq!(one.union(&other).expect("inputs").path_count(), 1);
        assert_eq!(other.union(&one).expect("inputs").path_count(), 1);
    }
}
