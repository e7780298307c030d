//! Reads tables of mounts in the format of `/proc/self/mountinfo`, proc_pid_mountinfo(5).

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of the table.
struct Mount<'t> {
    /// The device of the file system.
    device: &'t [u8],
    /// The directory of the file system that is mounted.
    root: PathBuf,
    /// The mount point.
    point: PathBuf,
}

/// Returns the paths, other than the `trees` themselves, at which these directories or parts of them are visible. They are
/// sorted, and none is below another tree's own path.
pub(super) fn find_aliases(table: &[u8], trees: &[&Path]) -> Vec<PathBuf> {
    let mounts: Vec<Mount<'_>> = table.split(|byte| *byte == b'\n').filter_map(parse).collect();
    let mut aliases = Vec::new();
    for tree in trees {
        // A later mount at the same point covers an earlier one.
        let above = mounts.iter().filter(|mount| tree.starts_with(&mount.point));
        let Some(own) = above.max_by_key(|mount| mount.point.components().count()) else { continue };
        let Ok(below) = tree.strip_prefix(&own.point) else { continue };
        let inside = join(&own.root, below);
        for mount in mounts.iter().filter(|mount| mount.device == own.device) {
            if let Ok(below) = inside.strip_prefix(&mount.root) {
                aliases.push(join(&mount.point, below));
            } else if mount.root.starts_with(&inside) {
                aliases.push(mount.point.clone());
            }
        }
    }
    aliases.retain(|alias| !trees.iter().any(|tree| tree.starts_with(alias)));
    aliases.sort();
    aliases.dedup();
    aliases
}

fn parse(line: &[u8]) -> Option<Mount<'_>> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Mount { device, root: unescape(root), point: unescape(point) })
}

/// Joins two paths. [`Path::join`] would add a separator to the path before an empty one.
fn join(path: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { path.to_owned() } else { path.join(below) }
}

/// Decodes a path of mountinfo, in which blanks and backslashes are written as three octal digits.
pub(super) fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = || std::str::from_utf8(tail.get(..3)?).ok().and_then(|text| u8::from_str_radix(text, 8).ok());
        match (first, octal()) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
1 0 8:1 / / rw shared:1 - ext4 /dev/a rw
2 1 0:20 / /proc rw - proc proc rw
3 1 8:1 /home/dev/repo /mnt/whole rw - ext4 /dev/a rw
4 1 8:1 /home/dev/repo/src /mnt/a\\040part rw - ext4 /dev/a rw
5 1 8:1 / /mnt/host rw - ext4 /dev/a rw
6 1 8:2 /home/dev/repo /mnt/other-device rw - ext4 /dev/b rw
7 1 8:1 /home/dev /srv rw - ext4 /dev/a rw
8 1 8:1 /home/dev/repository /mnt/neighbour rw - ext4 /dev/a rw
";

    fn aliases(trees: &[&str]) -> Vec<String> {
        let trees: Vec<&Path> = trees.iter().map(Path::new).collect();
        find_aliases(TABLE, &trees).iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn finds_mounts_of_the_tree_of_parts_and_of_directories_above() {
        let expected = ["/mnt/a part", "/mnt/host/home/dev/repo", "/mnt/whole", "/srv/repo"];
        assert_eq!(aliases(&["/home/dev/repo"]), expected);
    }

    #[test]
    fn tree_below_a_bind_mount_is_found_at_its_origin() {
        let expected = ["/home/dev/repo", "/mnt/a part", "/mnt/host/home/dev/repo", "/mnt/whole"];
        assert_eq!(aliases(&["/srv/repo"]), expected);
    }

    #[test]
    fn own_paths_of_trees_are_not_aliases() {
        assert!(!aliases(&["/home/dev/repo", "/srv/repo"]).contains(&"/srv/repo".to_owned()));
        assert_eq!(aliases(&["/proc/x"]), Vec::<String>::new());
    }

    #[test]
    fn decodes_escaped_mount_points() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape(b"/a\\"), Path::new("/a\\"));
    }
}
