//! Parses the bytes of commits, tags and trees (gitformat-object, in both formats). Pure functions without I/O.

use crate::object::object_id::{ObjectFormat, ObjectId};

/// The parts of a commit that this crate uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedCommit {
    pub(crate) id: ObjectId,
    pub(crate) tree: ObjectId,
    pub(crate) has_parents: bool,
    pub(crate) message: Vec<u8>,
}

/// An entry of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeEntry<'a> {
    pub(crate) mode: u32,
    pub(crate) name: &'a [u8],
    pub(crate) id: ObjectId,
}

/// Parses the bytes of the commit `id`; returns `None` if they are not a commit.
pub(crate) fn parse_commit(id: ObjectId, bytes: &[u8]) -> Option<ParsedCommit> {
    let (tree, rest) = split_line(bytes)?;
    let tree = parse_id_line(tree, b"tree ", id.format())?;
    let has_parents = rest.starts_with(b"parent ");
    let end = rest.windows(2).position(|two| two == b"\n\n");
    let message = end.map_or(&[][..], |end| &rest[end + 2..]).to_vec();
    Some(ParsedCommit { id, tree, has_parents, message })
}

/// Returns the object that a tag names; returns `None` if the bytes are not a tag.
pub(crate) fn parse_tag_target(format: ObjectFormat, bytes: &[u8]) -> Option<ObjectId> {
    parse_id_line(split_line(bytes)?.0, b"object ", format)
}

/// Returns the entries of a tree; returns `None` if the bytes are not a tree.
pub(crate) fn parse_tree(format: ObjectFormat, mut bytes: &[u8]) -> Option<Vec<TreeEntry<'_>>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().take(MODE_DIGITS + 1).position(|byte| *byte == b' ')?;
        let (mode, rest) = (std::str::from_utf8(&bytes[..space]).ok()?, &bytes[space + 1..]);
        let mode = u32::from_str_radix(mode, 8).ok().filter(|_| !mode.starts_with('+'))?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let (id, next) = rest[end + 1..].split_at_checked(format.width())?;
        entries.push(TreeEntry { mode, name: &rest[..end], id: ObjectId::from_raw(id)? });
        bytes = next;
    }
    Some(entries)
}

/// Maximum number of octal digits in a mode.
const MODE_DIGITS: usize = 7;

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

fn parse_id_line(line: &[u8], word: &[u8], format: ObjectFormat) -> Option<ObjectId> {
    ObjectId::from_hex(line.strip_prefix(word)?).filter(|id| id.format() == format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: &str, format: ObjectFormat) -> ObjectId {
        ObjectId::from_hex(digit.repeat(2 * format.width()).as_bytes()).expect("an id")
    }

    #[test]
    fn parses_commits_and_tags_in_both_formats() {
        for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
            let (own, tree) = (id("a", format), id("b", format));
            let text = format!("tree {tree}\nparent {own}\nauthor x\n\nwhat\n\nit says\n");
            let read = parse_commit(own, text.as_bytes()).expect("a commit");
            assert_eq!((read.tree, read.has_parents, read.message), (tree, true, b"what\n\nit says\n".to_vec()));
            let first = parse_commit(own, format!("tree {tree}\nauthor x\n").as_bytes()).expect("a commit");
            assert_eq!((first.has_parents, first.message), (false, Vec::new()));
            assert_eq!(parse_tag_target(format, format!("object {tree}\ntype commit\n").as_bytes()), Some(tree));
        }
        let short = id("a", ObjectFormat::Sha1);
        let mixed = format!("tree {short}\n");
        assert_eq!(parse_commit(id("a", ObjectFormat::Sha256), mixed.as_bytes()), None);
        assert_eq!(parse_tag_target(ObjectFormat::Sha1, b"object x\n"), None);
    }

    #[test]
    fn rejects_truncated_tree() {
        let format = ObjectFormat::Sha256;
        let entry = |mode: &str, name: &[u8], digit| {
            [mode.as_bytes(), b" ", name, b"\0", id(digit, format).as_bytes()].concat()
        };
        let bytes = [entry("40000", b"a b", "1"), entry("100644", b"\xff", "2")].concat();
        let read = parse_tree(format, &bytes).expect("a tree");
        assert_eq!((read[0].mode, read[0].name, read[0].id), (0o40_000, &b"a b"[..], id("1", format)));
        assert_eq!((read[1].mode, read[1].name), (0o100_644, &b"\xff"[..]));
        let first = entry("40000", b"a b", "1").len();
        for cut in 1..bytes.len() {
            assert_eq!(parse_tree(format, &bytes[..cut]).is_some(), cut == first, "{cut}");
        }
        assert_eq!(parse_tree(format, b"99 a\0"), None);
    }
}
