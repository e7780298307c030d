//! Parses the `git` program's output about a repository that libgit2 cannot read: refs, resolved commits, and
//! objects. The hash of each object is verified against its id; if one differs, the whole output is refused.

use std::collections::HashMap;

use crate::object::object_id::{ObjectFormat, ObjectId, ObjectKind, object_id};
use crate::program::script_output::ScriptOutput;

/// The reason why the output of the `git` program cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramOutputError {
    /// The output is malformed.
    #[error("the answer of the `git` program has an unknown format")]
    Malformed,
    /// The program could not list the refs.
    #[error("git cannot list its refs")]
    NoRefs,
    /// The program could not walk the history.
    #[error("git cannot walk the history")]
    NoWalk,
    /// The content of an object does not match its id.
    #[error("the content of its object {0} does not match the id")]
    WrongObject(ObjectId),
}

/// The parsed output.
pub(crate) struct ProgramOutput<'a> {
    parts: ScriptOutput<'a>,
    objects: HashMap<ObjectId, (ObjectKind, &'a [u8])>,
}

impl<'a> ProgramOutput<'a> {
    /// Parses the output of the script in [`crate::program::history_task`].
    ///
    /// # Errors
    /// The output is malformed, or the content of an object does not match its id.
    pub(crate) fn parse(printed: &'a [u8], format: ObjectFormat) -> Result<Self, ProgramOutputError> {
        let parts = ScriptOutput::parse(printed).ok_or(ProgramOutputError::Malformed)?;
        let objects = match parts.bytes("objects") {
            Some(printed) => parse_objects(printed, format)?,
            None => HashMap::new(),
        };
        Ok(Self { parts, objects })
    }

    /// Returns an object, or `None` if git did not have it.
    pub(crate) fn object(&self, id: ObjectId) -> Option<(ObjectKind, &'a [u8])> {
        self.objects.get(&id).copied()
    }

    /// Returns all refs in the format of `packed-refs`.
    pub(crate) fn refs(&self) -> Result<Vec<u8>, ProgramOutputError> {
        let listed = self.parts.bytes("refs").ok_or(ProgramOutputError::NoRefs)?;
        let is_plain = |line: &&[u8]| {
            let space = line.iter().position(|byte| *byte == b' ').unwrap_or_default();
            let (id, name) = (&line[..space], &line[line.len().min(space + 1)..]);
            ObjectId::from_hex(id).is_some() && name.starts_with(b"refs/") && name.iter().all(|byte| *byte > b' ')
        };
        Ok(listed
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| is_plain(&line.trim_ascii_end()))
            .flatten()
            .copied()
            .collect())
    }

    /// Returns how git resolved one end of a range, or a single revision.
    pub(crate) fn revision_end(&self, name: &str) -> RevisionEnd {
        let id = |part: &str| self.id(&format!("{name}{part}"));
        RevisionEnd {
            commit: id(""),
            kind: self.parts.text(&format!("{name}.kind")),
            candidates: ["tags", "heads", "remotes"].map(|namespace| (namespace, id(&format!(".{namespace}")))),
        }
    }

    /// Returns the commits of a walk, oldest first.
    pub(crate) fn walked_commits(&self) -> Result<Vec<ObjectId>, ProgramOutputError> {
        let walked = self.parts.bytes("walk").ok_or(ProgramOutputError::NoWalk)?;
        let lines = walked.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| ObjectId::from_hex(line).ok_or(ProgramOutputError::Malformed)).collect()
    }

    fn id(&self, part: &str) -> Option<ObjectId> {
        ObjectId::from_hex(self.parts.text(part)?.as_bytes())
    }
}

/// Git's resolution of a revision.
pub(crate) struct RevisionEnd {
    /// The commit behind the revision.
    pub(crate) commit: Option<ObjectId>,
    /// The kind of object that it names; `None` if it names no object.
    pub(crate) kind: Option<String>,
    /// The objects of this name in each namespace below `refs/`.
    pub(crate) candidates: [(&'static str, Option<ObjectId>); 3],
}

/// Parses the output of `git cat-file --batch`; missing objects are omitted.
fn parse_objects(
    mut printed: &[u8],
    format: ObjectFormat,
) -> Result<HashMap<ObjectId, (ObjectKind, &[u8])>, ProgramOutputError> {
    let mut objects = HashMap::new();
    while !printed.is_empty() {
        let end = printed.iter().position(|byte| *byte == b'\n').ok_or(ProgramOutputError::Malformed)?;
        let (head, rest) =
            (std::str::from_utf8(&printed[..end]).map_err(|_| ProgramOutputError::Malformed)?, &printed[end + 1..]);
        let mut words = head.split(' ');
        let (name, kind, size) = (words.next().unwrap_or_default(), words.next(), words.next());
        printed = rest;
        if (kind, size) == (Some("missing"), None) {
            continue;
        }
        let id = ObjectId::from_hex(name.as_bytes()).ok_or(ProgramOutputError::Malformed)?;
        let kind = kind.and_then(ObjectKind::from_name).ok_or(ProgramOutputError::Malformed)?;
        let size: usize = size.and_then(|size| size.parse().ok()).ok_or(ProgramOutputError::Malformed)?;
        let (content, rest) = rest.split_at_checked(size).ok_or(ProgramOutputError::Malformed)?;
        if object_id(format, kind, content) != id {
            return Err(ProgramOutputError::WrongObject(id));
        }
        printed = rest.strip_prefix(b"\n").ok_or(ProgramOutputError::Malformed)?;
        objects.insert(id, (kind, content));
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HI: &str = "96c18f0297e38d01f4b2dacddea4259aea6b2961eb0822bd2c0c3f6029030045";

    fn printed(objects: &str) -> Vec<u8> {
        format!("objects 0 {}\n{objects}", objects.len()).into_bytes()
    }

    fn parse_output(printed: &[u8]) -> Result<ProgramOutput<'_>, ProgramOutputError> {
        ProgramOutput::parse(printed, ObjectFormat::Sha256)
    }

    #[test]
    fn rejects_objects_with_wrong_id() {
        let id = ObjectId::from_hex(HI.as_bytes()).expect("an id");
        let good = printed(&format!("{} missing\n{HI} blob 3\nhi\n\n", "0".repeat(64)));
        assert_eq!(parse_output(&good).expect("reads").object(id), Some((ObjectKind::Blob, &b"hi\n"[..])));
        // Other bytes, another kind and another format all result in another id.
        for bad in [format!("{HI} blob 3\nho\n\n"), format!("{HI} tree 3\nhi\n\n"), format!("{HI} blob 2\nhi\n")] {
            let problem = parse_output(&printed(&bad)).err().expect("refused").to_string();
            assert!(problem.contains("does not match the id"), "{problem}");
        }
        assert!(ProgramOutput::parse(&good, ObjectFormat::Sha1).is_err());
        for bad in [format!("{HI} blob 3\nhi\n"), format!("{HI} blob 9\nhi\n\n"), format!("{HI}\n"), "x".to_owned()] {
            assert!(matches!(parse_output(&printed(&bad)), Err(ProgramOutputError::Malformed)), "{bad:?}");
        }
    }

    #[test]
    fn omits_parts_of_failed_commands() {
        let text = format!("walk 0 130\n{HI}\n{HI}\nfrom 128 0\nfrom.kind 0 5\ntree\nfrom.tags 0 65\n{HI}\nrefs 1 0\n");
        let output = parse_output(text.as_bytes()).expect("reads");
        assert_eq!(output.walked_commits().expect("walks").len(), 2);
        let end = output.revision_end("from");
        assert_eq!((end.commit, end.kind.as_deref(), end.candidates[1].1), (None, Some("tree"), None));
        assert!(end.candidates[0].1.is_some() && output.refs().is_err());
    }
}
