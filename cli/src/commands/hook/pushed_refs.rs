//! Parses the standard input of a `pre-push` hook (githooks(5)), which has a line for each pushed ref. This module is
//! pure.

use std::str::Utf8Error;

use crate::text::escape_text;

/// Largest input in bytes, which is enough for about 300,000 refs.
pub(super) const MAX_INPUT_BYTES: u64 = 64 << 20;

/// A pushed ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefUpdate {
    /// The pushed ref as the user named it; `(delete)` for a deletion.
    pub local_ref: String,
    /// The pushed object; `None` if the ref is deleted.
    pub local: Option<String>,
    /// The ref on the remote.
    pub remote_ref: String,
    /// The object that the remote has now; `None` if the ref is new.
    pub remote: Option<String>,
}

/// A line that git would not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {number} of standard input does not describe a push: {problem}")]
pub(super) struct PushLineError {
    /// Line number, counted from 1.
    number: usize,
    #[source]
    problem: PushLineProblem,
}

/// Reason why a line does not describe a pushed ref.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum PushLineProblem {
    #[error("it is not UTF-8")]
    NotUtf8(#[source] Utf8Error),
    #[error("it is incomplete: its end is missing")]
    Torn,
    #[error("four words are expected: local ref, local id, remote ref, remote id")]
    MissingWords,
    #[error("a ref has no name")]
    UnnamedRef,
    #[error("its two ids are of different formats")]
    MixedIdFormats,
    #[error("`{}` is not an object ID", escape_text(.0))]
    InvalidId(String),
}

/// Parses the input.
///
/// # Errors
/// The first line that does not have git's format.
pub(super) fn parse_updates(bytes: &[u8]) -> Result<Vec<RefUpdate>, PushLineError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let number = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        PushLineError { number, problem: PushLineProblem::NotUtf8(error) }
    })?;
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(PushLineError { number: text.lines().count(), problem: PushLineProblem::Torn });
    }
    text.split_terminator('\n')
        .enumerate()
        .map(|(index, line)| parse_update(line).map_err(|problem| PushLineError { number: index + 1, problem }))
        .collect()
}

/// Parses `<local ref> SP <local oid> SP <remote ref> SP <remote oid>`. The local ref may contain spaces, as in
/// `HEAD@{2 days ago}`; the other fields cannot.
fn parse_update(line: &str) -> Result<RefUpdate, PushLineProblem> {
    let mut words = line.rsplitn(4, ' ');
    let (remote, remote_ref, local, local_ref) = (words.next(), words.next(), words.next(), words.next());
    let (Some(remote), Some(remote_ref), Some(local), Some(local_ref)) = (remote, remote_ref, local, local_ref) else {
        return Err(PushLineProblem::MissingWords);
    };
    if local_ref.is_empty() || remote_ref.is_empty() {
        return Err(PushLineProblem::UnnamedRef);
    }
    if local.len() != remote.len() {
        return Err(PushLineProblem::MixedIdFormats);
    }
    let (local_ref, remote_ref) = (local_ref.to_owned(), remote_ref.to_owned());
    Ok(RefUpdate { local_ref, local: parse_object_id(local)?, remote_ref, remote: parse_object_id(remote)? })
}

/// Parses a full SHA-1 or SHA-256 object id; an id of zeros means no object.
fn parse_object_id(text: &str) -> Result<Option<String>, PushLineProblem> {
    let is_id = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match is_id {
        false => Err(PushLineProblem::InvalidId(text.to_owned())),
        true if text.bytes().all(|byte| byte == b'0') => Ok(None),
        true => Ok(Some(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const ZERO: &str = "0000000000000000000000000000000000000000";

    fn parse_one(line: &str) -> RefUpdate {
        let read = parse_updates(format!("{line}\n").as_bytes()).expect("reads");
        assert_eq!(read.len(), 1);
        read[0].clone()
    }

    #[test]
    fn parses_each_kind_of_line() {
        let new = parse_one(&format!("refs/heads/main {A} refs/heads/main {ZERO}"));
        assert_eq!((new.local.as_deref(), new.remote), (Some(A), None));
        let deleted = parse_one(&format!("(delete) {ZERO} refs/heads/old {A}"));
        assert_eq!((deleted.local, deleted.remote.as_deref()), (None, Some(A)));
        let odd = parse_one(&format!("HEAD@{{2 days ago}} {A} refs/heads/x {ZERO}"));
        assert_eq!((odd.local_ref.as_str(), odd.remote_ref.as_str()), ("HEAD@{2 days ago}", "refs/heads/x"));
        let (long, zeros) = ("b".repeat(64), "0".repeat(64));
        assert_eq!(parse_one(&format!("a {long} b {zeros}")).local, Some(long));
        assert_eq!(parse_updates(b""), Ok(Vec::new()));
    }

    #[test]
    fn rejects_malformed_input_with_line_number() {
        let good = format!("a {A} b {A}");
        let long = "b".repeat(64);
        for bad in [
            "".to_owned(),
            "a".to_owned(),
            format!("a {A} b"),
            format!("a {A} b {}", &A[1..]),
            format!("a {A} b {}", A.to_uppercase()),
            format!("a {A} b {long}"),
            format!(" {A} b {A}"),
            format!("a {A}  {A}"),
            format!("a {A} b {A}\r"),
        ] {
            let error = parse_updates(format!("{good}\n{bad}\n").as_bytes()).expect_err(&bad);
            assert_eq!(error.number, 2, "{bad}");
        }
        assert_eq!(parse_updates(good.as_bytes()).expect_err("torn").number, 1);
        assert_eq!(parse_updates(b"a\n\xff\n").expect_err("no text").number, 2);
    }
}
