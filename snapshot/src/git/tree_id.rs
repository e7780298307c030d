//! The id of a tree of git over a list of files, without writing an object.

use super::object::{ObjectFormat, ObjectId, ObjectKind, object_id};

const TREE_MODE: u32 = 0o40000;

/// A file, link or submodule of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeFile<'a> {
    /// Relative to the top of the tree.
    pub(crate) path: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) id: ObjectId,
}

/// The id of the tree of `files`, which are sorted by the bytes of their paths. That is git's order
/// inside each tree too, where a directory sorts as if its name ended in `/`.
pub(crate) fn tree_id(format: ObjectFormat, files: &[TreeFile<'_>]) -> ObjectId {
    level(format, files, 0)
}

fn level(format: ObjectFormat, files: &[TreeFile<'_>], depth: usize) -> ObjectId {
    let mut object = Vec::new();
    let mut rest = files;
    while let Some(file) = rest.first() {
        let tail = &file.path[depth..];
        let (mode, name, id, count) = match tail.iter().position(|b| *b == b'/') {
            None => (file.mode, tail, file.id, 1),
            Some(end) => {
                let prefix = &file.path[..=depth + end];
                let count = rest.iter().take_while(|file| file.path.starts_with(prefix)).count();
                (TREE_MODE, &tail[..end], level(format, &rest[..count], prefix.len()), count)
            }
        };
        write_mode(mode, &mut object);
        object.push(b' ');
        object.extend_from_slice(name);
        object.push(0);
        object.extend_from_slice(id.as_bytes());
        rest = &rest[count..];
    }
    object_id(format, ObjectKind::Tree, &object)
}

/// A mode in octal, without zeros before it.
fn write_mode(mode: u32, object: &mut Vec<u8>) {
    const DIGITS: u32 = 6;
    let digits = (0..DIGITS).rev().map(|at| mode >> (3 * at) & 7).skip_while(|digit| *digit == 0);
    object.extend(digits.filter_map(|digit| char::from_digit(digit, 8)).map(|digit| digit as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_git_writes_them() {
        for mode in [TREE_MODE, 0o100_644, 0o100_755, 0o120_000, 0o160_000] {
            let mut written = Vec::new();
            write_mode(mode, &mut written);
            assert_eq!(String::from_utf8(written).expect("digits"), format!("{mode:o}"));
        }
    }

    #[test]
    fn the_empty_tree_has_gits_own_id() {
        let of = |format| tree_id(format, &[]).to_string();
        assert_eq!(of(ObjectFormat::Sha1), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
        assert_eq!(of(ObjectFormat::Sha256), "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321");
    }
}
