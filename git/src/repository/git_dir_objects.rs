//! Reads the ids of the objects that a git directory names, as [`GitDir::write`](super::git_dir::GitDir::write) wrote it.

use std::io;
use std::path::Path;

use crate::index::index_writer;
use crate::object::object_id::ObjectId;
use crate::protocol::WantedObjects;
use crate::repository::ref_history::head_line;

/// Maximum number of tags that are examined.
const MAX_TAGS: usize = 10_000;
const TAGS: &str = "refs/tags/";

impl WantedObjects {
    /// Returns the objects that the git directory needs; `None` if its HEAD names no commit yet.
    ///
    /// # Errors
    /// A file cannot be read or has an unknown format.
    pub fn for_git_dir(git: &Path) -> io::Result<Option<Self>> {
        let head = head_line(&std::fs::read(git.join("HEAD"))?).ok_or_else(|| malformed("HEAD"))?;
        let refs = std::fs::read(git.join("packed-refs"))?;
        let refs: Vec<(ObjectId, &str)> = refs.split(|byte| *byte == b'\n').filter_map(parse_ref).collect();
        let commit = match head.strip_prefix("ref: ") {
            Some(branch) => refs.iter().find(|(_, name)| *name == branch).map(|(id, _)| *id),
            None => ObjectId::from_hex(head.as_bytes()),
        };
        let Some(commit) = commit else { return Ok(None) };
        let tags = refs.iter().filter(|(id, name)| name.starts_with(TAGS) && *id != commit);
        let tags = tags.map(|(id, _)| *id).take(MAX_TAGS).collect();
        let index = std::fs::read(git.join("index"))?;
        let blobs = index_writer::blobs(commit.format(), &index).ok_or_else(|| malformed("index"))?;
        Ok(Some(Self { commit, tags, blobs }))
    }
}

fn malformed(name: &str) -> io::Error {
    io::Error::other(format!("the `{name}` of the private copy is malformed"))
}

/// Parses a line of `packed-refs`. Returns `None` if its name is not text.
fn parse_ref(line: &[u8]) -> Option<(ObjectId, &str)> {
    let (id, name) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    Some((ObjectId::from_hex(id.as_bytes())?, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::index_writer::{NewIndexEntry, encode_index};
    use crate::object::object_id::ObjectFormat;

    fn id(digit: &str) -> ObjectId {
        ObjectId::from_hex(digit.repeat(40).as_bytes()).expect("an id")
    }

    #[expect(clippy::disallowed_methods, reason = "files of the test")]
    fn write(git: &Path, head: &str, refs: &str) {
        let (intent_to_add, skip_worktree) = (false, false);
        let entry = |path: &[u8], mode, id, stage| NewIndexEntry {
            path: path.to_vec(),
            mode,
            id,
            stage,
            intent_to_add,
            skip_worktree,
            stat: None,
        };
        let entries = [entry(b"a", 0o100_644, id("a"), 0), entry(b"sub", 0o160_000, id("b"), 0)];
        for (name, content) in [
            ("HEAD", head.as_bytes()),
            ("packed-refs", refs.as_bytes()),
            ("index", &encode_index(ObjectFormat::Sha1, &entries)),
        ] {
            std::fs::write(git.join(name), content).expect("written");
        }
    }

    #[test]
    fn finds_commit_tags_and_blobs() {
        let git = tempfile::tempdir().expect("a directory");
        let (one, two, three) = (id("1"), id("2"), id("3"));
        let refs = format!("{one} refs/heads/main\n{one} refs/tags/light\n{two} refs/tags/t\n{three} refs/heads/x\n");
        write(git.path(), "ref: refs/heads/main\n", &refs);
        let found = WantedObjects::for_git_dir(git.path()).expect("reads").expect("a commit");
        assert_eq!(found, WantedObjects { commit: one, tags: vec![two], blobs: vec![id("a")] });
        write(git.path(), &format!("{three}\n"), &refs);
        let detached = WantedObjects::for_git_dir(git.path()).expect("reads").expect("a commit");
        assert_eq!((detached.commit, detached.tags), (three, vec![one, two]));
        write(git.path(), "ref: refs/heads/unborn\n", &refs);
        assert_eq!(WantedObjects::for_git_dir(git.path()).expect("reads"), None);
        write(git.path(), "no line\n", &refs);
        assert!(WantedObjects::for_git_dir(git.path()).is_err());
    }
}
