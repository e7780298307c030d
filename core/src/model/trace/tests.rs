//! Tests of traces and of their encoding.

use proptest::prelude::*;

use super::*;

fn stamp() -> FileStamp {
    FileStamp { dev: 64_512, ino: 7, size: 5, mtime_ns: -1, ctime_ns: 1_700_000_000_123_456_789 }
}

fn file(path: &str) -> AccessedPath {
    let state = PathState::File { mode: 0o644, size: 5, uid: 0, gid: 0 };
    AccessedPath { path: path.into(), state, stamp: Some(stamp()), read: true, listing: None }
}

fn absent(path: &str) -> AccessedPath {
    AccessedPath { path: path.into(), state: PathState::Absent, stamp: None, read: false, listing: None }
}

fn any_stamp() -> impl Strategy<Value = FileStamp> {
    (any::<u64>(), any::<u64>(), any::<u64>(), any::<i64>(), any::<i64>())
        .prop_map(|(dev, ino, size, mtime_ns, ctime_ns)| FileStamp { dev, ino, size, mtime_ns, ctime_ns })
}

fn any_state() -> impl Strategy<Value = PathState> {
    let ids = || (any::<u32>(), any::<u32>());
    prop_oneof![
        Just(PathState::Absent),
        (0..=0o7777_u32, any::<u64>(), ids()).prop_map(|(mode, size, (uid, gid))| PathState::File {
            mode,
            size,
            uid,
            gid
        }),
        (0..=0o7777_u32, ids()).prop_map(|(mode, (uid, gid))| PathState::Directory { mode, uid, gid }),
        (prop::collection::vec(1_u8.., 1..40), ids()).prop_map(|(target, (uid, gid))| PathState::Link {
            target,
            uid,
            gid
        }),
        (any::<u32>(), ids()).prop_map(|(mode, (uid, gid))| PathState::Other { mode, uid, gid }),
    ]
}

fn any_entry(path: String) -> impl Strategy<Value = AccessedPath> {
    (any_state(), any_stamp(), any::<bool>(), any::<Option<[u8; 32]>>()).prop_map(
        move |(state, stamp, read, listing)| {
            let absent = state == PathState::Absent;
            let is_dir = matches!(state, PathState::Directory { .. });
            AccessedPath {
                path: path.clone().into_bytes(),
                stamp: (!absent).then_some(stamp),
                read: read && !absent,
                listing: listing.filter(|_| is_dir).map(ListingDigest),
                state,
            }
        },
    )
}

fn any_trace() -> impl Strategy<Value = AccessTrace> {
    prop::collection::btree_set("/([a-c]{1,3}(/[a-z0-9]{1,4}){0,3})?", 0..12)
        .prop_flat_map(|paths| paths.into_iter().map(any_entry).collect::<Vec<_>>())
        .prop_map(|entries| AccessTrace::new(entries).expect("valid"))
}

proptest! {
    #[test]
    fn decodes_what_it_encodes(trace in any_trace()) {
        let bytes = trace.encode();
        prop_assert_eq!(AccessTrace::decode(&bytes), Ok(trace));
    }

    #[test]
    fn rejects_changed_byte(trace in any_trace(), at in any::<prop::sample::Index>(), flip in 1_u8..) {
        let mut bytes = trace.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(AccessTrace::decode(&bytes).is_err());
    }

    #[test]
    fn rejects_truncation(trace in any_trace(), at in any::<prop::sample::Index>()) {
        let bytes = trace.encode();
        prop_assert!(AccessTrace::decode(&bytes[..at.index(bytes.len())]).is_err());
    }

    /// Damage that the checksum does not reveal gives an error or another valid trace with the same bytes.
    #[test]
    fn damage_with_valid_checksum_is_bounded(trace in any_trace(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = trace.encode();
        let content = bytes.len() - 4;
        bytes[at.index(content)] = byte;
        bytes.truncate(content);
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        if let Ok(other) = AccessTrace::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes);
        }
    }

    #[test]
    fn listing_digest_ignores_order(names in prop::collection::btree_set("[a-z.]{1,6}", 0..8)) {
        let entries: Vec<_> = names.into_iter().map(|name| (name, EntryKind::File)).collect();
        let reversed = entries.iter().rev().cloned().collect();
        prop_assert_eq!(ListingDigest::from_entries(entries), ListingDigest::from_entries(reversed));
    }
}

#[test]
fn finds_entries_by_path() {
    let trace = AccessTrace::new(vec![file("/usr/bin/cc"), absent("/etc/x"), file("/usr")]).expect("valid");
    assert_eq!(trace.get(b"/etc/x"), Some(&absent("/etc/x")));
    assert_eq!(trace.get(b"/etc"), None);
    assert_eq!(trace.entries()[1].path, b"/usr");
}

#[test]
fn rejects_contradictions() {
    let unstamped = AccessedPath { stamp: None, ..file("/a") };
    let stamped = AccessedPath { stamp: Some(stamp()), ..absent("/a") };
    let listed = AccessedPath { listing: Some(ListingDigest([0; 32])), ..file("/a") };
    for entries in [
        vec![file("/a"), absent("/a")],
        vec![unstamped],
        vec![stamped],
        vec![listed],
        vec![file("a")],
        vec![file("/a/")],
        vec![file("/a/../b")],
        vec![file("//a")],
        vec![file("")],
        vec![file(&format!("/{}", "x".repeat(MAX_TRACE_PATH_BYTES)))],
    ] {
        AccessTrace::new(entries.clone()).expect_err(&format!("{entries:?}"));
    }
}

#[test]
fn rejects_paths_that_expand_beyond_the_bound() {
    let long = "x".repeat(MAX_TRACE_PATH_BYTES - 12);
    let entries: Vec<_> = (0..MAX_TRACE_TEXT_BYTES / MAX_TRACE_PATH_BYTES + 200)
        .map(|number| absent(&format!("/{long}{number:09}")))
        .collect();
    let few_bytes = AccessTrace { entries: entries.clone() }.encode();
    assert!(few_bytes.len() < 400_000, "{}", few_bytes.len());
    AccessTrace::decode(&few_bytes).expect_err("too long when expanded");
    AccessTrace::new(entries).expect_err("too long");
}

#[test]
fn largest_trace_fits_its_encoding() {
    // A number has at most 10 bytes, an entry at most 12 numbers, a flag byte and a listing.
    let bound = MAX_TRACE_ENTRIES * (12 * 10 + 1 + 32) + MAX_TRACE_TEXT_BYTES + 100;
    assert!(bound <= MAX_ENCODED_BYTES, "{bound}");
}

#[test]
fn listing_digest_depends_on_names_and_kinds() {
    let digest =
        |name: &'static str, kind| ListingDigest::from_entries(vec![(name, kind), (".", EntryKind::Directory)]);
    let base = digest("a", EntryKind::File);
    assert_ne!(base, digest("b", EntryKind::File));
    assert_ne!(base, digest("a", EntryKind::Link));
    assert_eq!(base, ListingDigest::from_entries(vec![("a", EntryKind::File)]));
}
