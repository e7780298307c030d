//! Checks lookups, order and identity of generated trees against a plain map.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tree_builder::{DirectoryLeaves, DirectoryPart, NewTreeLeaf};
use super::*;

type ExpectedTree = BTreeMap<Vec<u8>, (u8, [u8; 32])>;

/// Computes the identity as described in docs/development/snapshot.md, one directory at a time.
fn expected_digest(entries: &ExpectedTree, directory: &[u8]) -> Option<[u8; 32]> {
    let mut lines = BTreeSet::new();
    for (path, leaf) in entries {
        let rest = match directory {
            b"" => path.as_slice(),
            _ if paths::is_below(path, directory) => &path[directory.len() + 1..],
            _ => continue,
        };
        match rest.iter().position(|b| *b == b'/') {
            None => lines.insert((rest.to_vec(), leaf.0, leaf.1)),
            Some(end) => {
                let inner = paths::join(directory, &rest[..end]);
                let name = rest[..end].to_vec();
                expected_digest(entries, &inner).is_some_and(|digest| lines.insert((name, b'd', digest)))
            }
        };
    }
    let mut bytes = b"proctor-tree-v1\0".to_vec();
    for (name, tag, sha) in &lines {
        bytes.extend([&[*tag][..], name, b"\0", sha].concat());
    }
    (!lines.is_empty()).then(|| Sha256Hex::digest(&bytes).to_raw())
}

fn kind_for_tag(tag: u8) -> ScannedKind {
    [ScannedKind::File, ScannedKind::Executable, ScannedKind::Symlink, ScannedKind::Gitlink, ScannedKind::Special]
        .into_iter()
        .find(|kind| kind.identity_tag() == Some(tag))
        .unwrap_or(ScannedKind::Missing)
}

fn build_entries(plain: &ExpectedTree) -> EntryTree {
    let found =
        |leaf: &(u8, [u8; 32])| ScannedEntry { kind: kind_for_tag(leaf.0), sha256: leaf.1, ..ScannedEntry::MISSING };
    EntryTree::from_leaves(plain.iter().map(|(path, leaf)| (path.clone(), true, found(leaf))))
}

/// Generates paths from few names, so that they collide. `a`, `a-`, `a/…` and `a0` sort in unusual ways.
fn path_strategy() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(vec![&b"a"[..], b"a-", b"a0", b"b", b"\xff", b"-"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join(&b"/"[..]))
}

fn tree_strategy() -> impl Strategy<Value = ExpectedTree> {
    let leaf = (prop::sample::select(b"fxlgs?".to_vec()), (0_u8..4).prop_map(|byte| [byte; 32]));
    prop::collection::btree_map(path_strategy(), leaf, 0..20)
}

fn covered(plain: &ExpectedTree) -> ExpectedTree {
    plain.iter().filter(|(_, leaf)| leaf.0 != b'?').map(|(path, leaf)| (path.clone(), *leaf)).collect()
}

/// Returns a different scan state for each directory.
fn scan_state_for(directory: usize) -> DirectoryScanState {
    DirectoryScanState {
        stat: FileStat { ino: directory as u64, ..FileStat::default() },
        ..DirectoryScanState::default()
    }
}

/// Fills in the entries of a plain tree, in reverse order of the parts.
fn fill_from(entries: &mut EntryTree, plain: &ExpectedTree) -> Result<(), ()> {
    entries.fill(|names, blanks| {
        let mut filled: Vec<FilledPart> = blanks
            .map(|mut blank| {
                let (at, directory) = (blank.directory, names.directory_path(blank.directory));
                for (name, found) in blank.leaves() {
                    let (tag, sha256) = plain[&paths::join(directory, name)];
                    *found = ScannedEntry { kind: kind_for_tag(tag), sha256, ..ScannedEntry::MISSING };
                }
                blank.finish(scan_state_for(at))
            })
            .collect();
        filled.reverse();
        Ok(filled)
    })
}

/// The directory is shared by several threads, and has a subdirectory and a sibling.
#[test]
fn fills_large_directories_in_parts() {
    let name = |number: usize| format!("d/{number:05}").into_bytes();
    for count in [511, 512, 513, 1024, 1300] {
        let many = (0..count).map(|number| (name(number), (b"fx?"[number % 3], [number as u8; 32])));
        let few = [&b"d/000/x"[..], b"e/y"].map(|path| (path.to_vec(), (b'l', [9; 32])));
        for plain in [many.clone().collect::<ExpectedTree>(), many.chain(few).collect()] {
            let mut entries = EntryTree::from_tracked_paths(plain.keys().map(Vec::as_slice));
            fill_from(&mut entries, &plain).expect("fills in");
            assert_eq!(entries.directories[0].digest, expected_digest(&covered(&plain), b""), "{count}");
            assert_eq!(entries.len(), covered(&plain).len(), "{count}");
        }
    }
}

#[test]
fn failed_fill_leaves_valid_tree() {
    let mut entries = EntryTree::from_tracked_paths([&b"a/b"[..], b"c"].into_iter());
    assert_eq!(entries.fill(|names, _| Err(names.directory_count())), Err(2));
    assert!(entries.leaf_at_path(b"a/b").is_some_and(|leaf| leaf.found == ScannedEntry::MISSING) && entries.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn lookups_match_plain_map(plain in tree_strategy(), queried in path_strategy()) {
        let (entries, covered) = (build_entries(&plain), covered(&plain));
        prop_assert_eq!(entries.paths().collect::<Vec<_>>(), covered.keys().cloned().collect::<Vec<_>>());
        prop_assert_eq!(entries.len(), covered.len());
        prop_assert_eq!(entries.get(&queried).is_some(), covered.contains_key(&queried));
        let below: Vec<_> = paths::below(&covered, &queried).map(|(path, _)| path.clone()).collect();
        prop_assert_eq!(entries.below(&queried).map(|(path, _)| path).collect::<Vec<_>>(), below);
        for (path, leaf) in &covered {
            prop_assert_eq!(entries.get(path).map(|entry| merkle::leaf(&entry)), Some(*leaf));
        }
        prop_assert_eq!(entries.directories[0].digest, expected_digest(&covered, b""));
    }

    #[test]
    fn filled_tree_equals_assembled_tree(plain in tree_strategy()) {
        let mut entries = EntryTree::from_tracked_paths(plain.keys().map(Vec::as_slice));
        prop_assert!(fill_from(&mut entries, &plain).is_ok());
        prop_assert_eq!(&entries, &build_entries(&plain));
        prop_assert_eq!(entries.iter().collect::<Vec<_>>(), build_entries(&plain).iter().collect::<Vec<_>>());
        prop_assert_eq!(entries.len(), covered(&plain).len());
        let is_looked_at = |at: usize| entries.directory(at).scan_state == scan_state_for(at);
        prop_assert!((0..entries.directory_count()).all(is_looked_at));
    }

    #[test]
    fn cursor_lookups_match_single_lookups(plain in tree_strategy(), queried in prop::collection::vec(path_strategy(), 0..30)) {
        let (entries, mut place) = (build_entries(&plain), LookupCursor::default());
        for path in queried.iter().chain(plain.keys()).chain(&queried) {
            let behind = entries.leaf_at_cursor(&mut place, path).map(|leaf| leaf.found);
            prop_assert_eq!(behind, entries.leaf_at_path(path).map(|leaf| leaf.found));
        }
    }

    #[test]
    fn overlay_identity_matches_changed_tree(
        plain in tree_strategy(),
        changes in tree_strategy(),
        hidden in prop::collection::btree_set(path_strategy(), 0..3),
    ) {
        let entries = build_entries(&plain);
        let mut after = covered(&plain);
        after.retain(|path, _| !hidden.iter().any(|gone| path == gone || paths::is_below(path, gone)));
        for (path, leaf) in &changes {
            match leaf.0 {
                b'?' => drop(after.remove(path)),
                _ => drop(after.insert(path.clone(), *leaf)),
            }
        }
        let leaves = changes.iter().map(|(path, leaf)| (path.as_slice(), Some(*leaf).filter(|leaf| leaf.0 != b'?')));
        let overlay = Overlay { leaves: leaves.collect(), removed: &hidden };
        prop_assert_eq!(entries.id_with_overlay(&overlay), snapshot_id(expected_digest(&after, b"")));
    }

    #[test]
    fn difference_matches_plain_maps(left in tree_strategy(), right in tree_strategy()) {
        let expected = paths::difference(covered(&left).into_iter(), covered(&right).into_iter());
        let (left, right) = (build_entries(&left), build_entries(&right));
        for what in [TreeDifferenceKind::Identity, TreeDifferenceKind::IdentityOrChangeTime] {
            prop_assert_eq!(left.difference(&right, what), expected.clone());
        }
        prop_assert_eq!(left == right, expected.is_empty());
    }

    #[test]
    fn kept_directories_keep_their_digest(plain in tree_strategy(), also in tree_strategy()) {
        let before = build_entries(&plain);
        let mut parts: Vec<DirectoryPart<'_>> = (0..before.directory_count())
            .map(|at| DirectoryPart {
                path: before.directory_path(at).to_vec(),
                scan_state: DirectoryScanState::default(),
                leaves: DirectoryLeaves::Kept { source: &before, directory: at },
            })
            .collect();
        prop_assert_eq!(&EntryTree::assemble(parts), &before);
        // Adds directories with one leaf each.
        let mut after = covered(&plain);
        parts = (0..before.directory_count())
            .map(|at| DirectoryPart {
                path: before.directory_path(at).to_vec(),
                scan_state: DirectoryScanState::default(),
                leaves: DirectoryLeaves::Kept { source: &before, directory: at },
            })
            .collect();
        let new: BTreeSet<Vec<u8>> = also.keys().filter(|path| before.directory_index(path).is_none()).cloned().collect();
        for path in new {
            let found = ScannedEntry { kind: ScannedKind::File, ..ScannedEntry::MISSING };
            after.insert(paths::join(&path, b"n"), (b'f', [0; 32]));
            let leaves = DirectoryLeaves::New(vec![NewTreeLeaf { name: b"n".to_vec(), tracked: false, found }]);
            parts.push(DirectoryPart { path, scan_state: DirectoryScanState::default(), leaves });
        }
        prop_assert_eq!(EntryTree::assemble(parts).directories[0].digest, expected_digest(&after, b""));
    }
}
