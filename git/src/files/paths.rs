//! Helpers for paths as bytes, relative to the repository, with `/` between their parts.

use std::collections::BTreeMap;

/// Checks whether `path` is below `dir`.
pub fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.len() > dir.len() && path.starts_with(dir) && path[dir.len()] == b'/'
}

/// Returns the parent directories of `path`, outermost first.
pub fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| &path[..at])
}

/// Returns the last part of `path`.
pub fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Splits `path` into its directory, which is empty for the top, and its last part.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Checks whether any part of `path` is `.git`.
pub fn is_in_git_dir(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(|part| part == b".git")
}

/// Joins `dir` and `name`; `dir` may be empty.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// Returns the elements of `map` below `dir`.
pub fn below<'a, V>(map: &'a BTreeMap<Vec<u8>, V>, dir: &[u8]) -> impl Iterator<Item = (&'a Vec<u8>, &'a V)> {
    let (from, to) = range_below(dir);
    map.range(from..to)
}

/// Returns the half-open range of all paths below `dir`.
pub fn range_below(dir: &[u8]) -> (Vec<u8>, Vec<u8>) {
    ([dir, b"/"].concat(), [dir, b"0"].concat())
}

/// Returns the keys at which two sorted lists differ.
pub fn difference<V: PartialEq, K: AsRef<[u8]> + Ord>(
    left: impl Iterator<Item = (K, V)>,
    right: impl Iterator<Item = (K, V)>,
) -> Vec<Vec<u8>> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    let mut changed = Vec::new();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return changed,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((l, _)), Some((r, _))) => l.cmp(r),
        };
        let (l, r) = (left.next_if(|_| order.is_le()), right.next_if(|_| order.is_ge()));
        let equal = matches!((&l, &r), (Some((_, l)), Some((_, r))) if l == r);
        if let (false, Some((path, _))) = (equal, l.or(r)) {
            changed.push(path.as_ref().to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_compares_whole_components() {
        let map: BTreeMap<Vec<u8>, ()> = ["a", "a-b", "a/b", "a/b/c", "a0", "ab"].map(|p| (p.into(), ())).into();
        let found: Vec<_> = below(&map, b"a").map(|(p, ())| p.clone()).collect();
        assert_eq!(found, [b"a/b".to_vec(), b"a/b/c".to_vec()]);
        assert!(is_below(b"a/b", b"a") && !is_below(b"ab", b"a") && !is_below(b"a", b"a"));
        assert_eq!(ancestors(b"a/b/c").collect::<Vec<_>>(), [&b"a"[..], b"a/b"]);
        assert_eq!((join(b"", b"x"), join(b"a", b"x")), (b"x".to_vec(), b"a/x".to_vec()));
    }

    #[test]
    fn difference_includes_both_sides() {
        let of = |pairs: &[(&str, u8)]| pairs.iter().map(|(p, v)| (p.as_bytes().to_vec(), *v)).collect::<Vec<_>>();
        let (old, new) = (of(&[("a", 1), ("b", 1), ("c", 1)]), of(&[("b", 2), ("c", 1), ("d", 1)]));
        let changed = difference(old.into_iter(), new.into_iter());
        assert_eq!(changed, [b"a".to_vec(), b"b".to_vec(), b"d".to_vec()]);
    }
}
