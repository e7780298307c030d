//! Checks lookups, order and identity of generated trees against a plain map.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::assemble::{Leaves, NewLeaf, Part};
use super::*;

type Plain = BTreeMap<Vec<u8>, (u8, [u8; 32])>;

/// Computes the identity as described in docs/snapshot.md, one directory at a time.
fn plain_digest(entries: &Plain, directory: &[u8]) -> Option<[u8; 32]> {
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
                plain_digest(entries, &inner).is_some_and(|digest| lines.insert((name, b'd', digest)))
            }
        };
    }
    let mut bytes = b"proctor-tree-v1\0".to_vec();
    for (name, tag, sha) in &lines {
        bytes.extend([&[*tag][..], name, b"\0", sha].concat());
    }
    (!lines.is_empty()).then(|| Sha256Hex::of(&bytes).to_raw())
}

fn kind_of(tag: u8) -> Kind {
    [Kind::File, Kind::Executable, Kind::Symlink, Kind::Gitlink, Kind::Special]
        .into_iter()
        .find(|kind| kind.tag() == Some(tag))
        .unwrap_or(Kind::Missing)
}

fn entries_of(plain: &Plain) -> Entries {
    let found = |leaf: &(u8, [u8; 32])| Found { kind: kind_of(leaf.0), sha256: leaf.1, ..Found::MISSING };
    Entries::of_leaves(plain.iter().map(|(path, leaf)| (path.clone(), true, found(leaf))))
}

/// Generates paths from few names, so that they collide. `a`, `a-`, `a/…` and `a0` sort in unusual ways.
fn a_path() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(vec![&b"a"[..], b"a-", b"a0", b"b", b"\xff", b"-"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join(&b"/"[..]))
}

fn a_tree() -> impl Strategy<Value = Plain> {
    let leaf = (prop::sample::select(b"fxlgs?".to_vec()), (0_u8..4).prop_map(|byte| [byte; 32]));
    prop::collection::btree_map(a_path(), leaf, 0..20)
}

fn covered(plain: &Plain) -> Plain {
    plain.iter().filter(|(_, leaf)| leaf.0 != b'?').map(|(path, leaf)| (path.clone(), *leaf)).collect()
}

/// Returns a different scan state for each directory.
fn look_of(directory: usize) -> DirectoryLook {
    DirectoryLook { stamp: Stamp { ino: directory as u64, ..Stamp::default() }, ..DirectoryLook::default() }
}

/// Fills in the entries of a plain tree, in reverse order of the parts.
fn fill(entries: &mut Entries, plain: &Plain) -> Result<(), ()> {
    entries.fill(|names, blanks| {
        let mut filled: Vec<Filled> = blanks
            .map(|mut blank| {
                let (at, directory) = (blank.directory, names.directory_path(blank.directory));
                for (name, found) in blank.leaves() {
                    let (tag, sha256) = plain[&paths::join(directory, name)];
                    *found = Found { kind: kind_of(tag), sha256, ..Found::MISSING };
                }
                blank.filled(look_of(at))
            })
            .collect();
        filled.reverse();
        Ok(filled)
    })
}

/// The directory is shared by several threads, and has a subdirectory and a sibling.
#[test]
fn large_directories_are_filled_in_part_by_part() {
    let name = |number: usize| format!("d/{number:05}").into_bytes();
    for count in [511, 512, 513, 1024, 1300] {
        let many = (0..count).map(|number| (name(number), (b"fx?"[number % 3], [number as u8; 32])));
        let few = [&b"d/000/x"[..], b"e/y"].map(|path| (path.to_vec(), (b'l', [9; 32])));
        for plain in [many.clone().collect::<Plain>(), many.chain(few).collect()] {
            let mut entries = Entries::of_tracked(plain.keys().map(Vec::as_slice));
            fill(&mut entries, &plain).expect("fills in");
            assert_eq!(entries.directories[0].digest, plain_digest(&covered(&plain), b""), "{count}");
            assert_eq!(entries.len(), covered(&plain).len(), "{count}");
        }
    }
}

#[test]
fn what_cannot_be_filled_in_stays_a_tree() {
    let mut entries = Entries::of_tracked([&b"a/b"[..], b"c"].into_iter());
    assert_eq!(entries.fill(|names, _| Err(names.directories())), Err(2));
    assert!(entries.leaf(b"a/b").is_some_and(|leaf| leaf.found == Found::MISSING) && entries.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn it_is_as_a_map(plain in a_tree(), asked in a_path()) {
        let (entries, covered) = (entries_of(&plain), covered(&plain));
        prop_assert_eq!(entries.paths().collect::<Vec<_>>(), covered.keys().cloned().collect::<Vec<_>>());
        prop_assert_eq!(entries.len(), covered.len());
        prop_assert_eq!(entries.get(&asked).is_some(), covered.contains_key(&asked));
        let below: Vec<_> = paths::below(&covered, &asked).map(|(path, _)| path.clone()).collect();
        prop_assert_eq!(entries.below(&asked).map(|(path, _)| path).collect::<Vec<_>>(), below);
        for (path, leaf) in &covered {
            prop_assert_eq!(entries.get(path).map(|entry| merkle::leaf(&entry)), Some(*leaf));
        }
        prop_assert_eq!(entries.directories[0].digest, plain_digest(&covered, b""));
    }

    #[test]
    fn filled_in_it_is_as_put_together(plain in a_tree()) {
        let mut entries = Entries::of_tracked(plain.keys().map(Vec::as_slice));
        prop_assert!(fill(&mut entries, &plain).is_ok());
        prop_assert_eq!(&entries, &entries_of(&plain));
        prop_assert_eq!(entries.iter().collect::<Vec<_>>(), entries_of(&plain).iter().collect::<Vec<_>>());
        prop_assert_eq!(entries.len(), covered(&plain).len());
        let is_looked_at = |at: usize| entries.directory(at).look == look_of(at);
        prop_assert!((0..entries.directories()).all(is_looked_at));
    }

    #[test]
    fn paths_are_found_one_after_the_other_as_alone(plain in a_tree(), asked in prop::collection::vec(a_path(), 0..30)) {
        let (entries, mut place) = (entries_of(&plain), Place::default());
        for path in asked.iter().chain(plain.keys()).chain(&asked) {
            let behind = entries.leaf_behind(&mut place, path).map(|leaf| leaf.found);
            prop_assert_eq!(behind, entries.leaf(path).map(|leaf| leaf.found));
        }
    }

    #[test]
    fn an_overlay_is_as_the_tree_with_its_changes(
        plain in a_tree(),
        changes in a_tree(),
        hidden in prop::collection::btree_set(a_path(), 0..3),
    ) {
        let entries = entries_of(&plain);
        let mut after = covered(&plain);
        after.retain(|path, _| !hidden.iter().any(|gone| path == gone || paths::is_below(path, gone)));
        for (path, leaf) in &changes {
            match leaf.0 {
                b'?' => drop(after.remove(path)),
                _ => drop(after.insert(path.clone(), *leaf)),
            }
        }
        let leaves = changes.iter().map(|(path, leaf)| (path.as_slice(), Some(*leaf).filter(|leaf| leaf.0 != b'?')));
        let overlay = Overlay { leaves: leaves.collect(), hidden: &hidden };
        prop_assert_eq!(entries.id_with(&overlay), id_of(plain_digest(&after, b"")));
    }

    #[test]
    fn differences_are_those_of_maps(left in a_tree(), right in a_tree()) {
        let expected = paths::difference(covered(&left).into_iter(), covered(&right).into_iter());
        let (left, right) = (entries_of(&left), entries_of(&right));
        for what in [Difference::Identity, Difference::Change] {
            prop_assert_eq!(left.difference(&right, what), expected.clone());
        }
        prop_assert_eq!(left == right, expected.is_empty());
    }

    #[test]
    fn what_is_kept_keeps_its_digest(plain in a_tree(), also in a_tree()) {
        let before = entries_of(&plain);
        let mut parts: Vec<Part<'_>> = (0..before.directories())
            .map(|at| Part {
                path: before.directory_path(at).to_vec(),
                look: DirectoryLook::default(),
                leaves: Leaves::Kept { of: &before, at },
            })
            .collect();
        prop_assert_eq!(&Entries::assemble(parts), &before);
        // Adds directories with one leaf each.
        let mut after = covered(&plain);
        parts = (0..before.directories())
            .map(|at| Part {
                path: before.directory_path(at).to_vec(),
                look: DirectoryLook::default(),
                leaves: Leaves::Kept { of: &before, at },
            })
            .collect();
        let new: BTreeSet<Vec<u8>> = also.keys().filter(|path| before.find(path).is_none()).cloned().collect();
        for path in new {
            let found = Found { kind: Kind::File, ..Found::MISSING };
            after.insert(paths::join(&path, b"n"), (b'f', [0; 32]));
            let leaves = Leaves::New(vec![NewLeaf { name: b"n".to_vec(), tracked: false, found }]);
            parts.push(Part { path, look: DirectoryLook::default(), leaves });
        }
        prop_assert_eq!(Entries::assemble(parts).directories[0].digest, plain_digest(&after, b""));
    }
}
