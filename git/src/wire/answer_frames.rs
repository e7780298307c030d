//! Encodes answers as frames; the last frame contains the answer. Data that the parent process can use before the
//! answer is complete are sent in earlier frames.

use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::index::GitIndex;
use crate::index::index_parser;
use crate::protocol::GitAnswer;
use crate::wire::codec::{BinaryDecoder, BinaryEncoder};

/// An index, sent ahead of the listing that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlyIndex {
    /// The top of the work tree.
    pub worktree: PathBuf,
    /// The index of the outermost repository.
    pub index: Arc<GitIndex>,
}

/// Pieces of blobs, each with the number of its leaf and the size of the blob. The pieces of a blob are consecutive; an
/// empty blob has one empty piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobPieces(Vec<u8>);

impl BlobPieces {
    /// Returns the pieces; an item is `None` if the bytes are invalid.
    pub fn iter(&self) -> impl Iterator<Item = Option<BlobPiece<'_>>> {
        let mut reader = BinaryDecoder::new(&self.0);
        std::iter::from_fn(move || {
            if reader.is_at_end() {
                return None;
            }
            let piece = read_piece(&mut reader);
            if piece.is_none() {
                reader = BinaryDecoder::new(&[]);
            }
            Some(piece)
        })
    }
}

/// A piece of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobPiece<'a> {
    /// The number of the leaf.
    pub number: u32,
    /// Size of the whole blob, in bytes.
    pub size: u64,
    /// The bytes of the piece.
    pub bytes: &'a [u8],
}

fn read_piece<'a>(reader: &mut BinaryDecoder<'a>) -> Option<BlobPiece<'a>> {
    Some(BlobPiece { number: reader.u32()?, size: reader.u64()?, bytes: reader.bytes()? })
}

/// Sends blobs, combining several small ones.
pub(crate) struct BlobWriter<'a> {
    out: &'a mut dyn Write,
    pieces: BinaryEncoder,
    length: usize,
}

impl<'a> BlobWriter<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, pieces: BinaryEncoder::default(), length: 0 }
    }

    /// Sends the blob of a leaf.
    pub(crate) fn write(&mut self, number: u32, blob: &[u8]) -> io::Result<()> {
        let empty = blob.is_empty().then_some(&[][..]);
        for piece in empty.into_iter().chain(blob.chunks(BLOB_PIECE)) {
            self.pieces.u32(number);
            self.pieces.u64(blob.len() as u64);
            self.pieces.bytes(piece);
            self.length += piece.len() + PIECE_HEADER_BYTES;
            if self.length >= BLOB_PIECE {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Sends the remaining pieces.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.length == 0 { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.length = 0;
        write_frame(self.out, BLOBS_TAG, &[&std::mem::take(&mut self.pieces).into_bytes()])
    }
}

/// A frame of an answer.
pub(crate) enum AnswerFrame {
    /// `None` if the file is not in the format that this process reads; the answer then contains the whole index.
    EarlyIndex(Option<EarlyIndex>),
    Blobs(BlobPieces),
    Answer(Box<GitAnswer>),
}

/// A frame that is sent before an answer.
pub(crate) enum EarlyFrame {
    Index(EarlyIndex),
    Blobs(BlobPieces),
}

/// Number of bytes of blobs that are sent together.
const BLOB_PIECE: usize = 256 << 10;
/// Size of the header of a piece, in bytes.
const PIECE_HEADER_BYTES: usize = 20;

const EARLY_INDEX_TAG: u8 = b'T';
const BLOBS_TAG: u8 = b'B';
const ANSWER_TAG: u8 = b'A';
/// Size of a frame's header: the tag, and the length of the content.
const FRAME_HEADER_BYTES: usize = 9;

/// Writes an index without its entries, followed by the bytes of its file, before the answer.
pub(crate) fn write_early_index(out: &mut dyn Write, worktree: &Path, index: &GitIndex, file: &[u8]) -> io::Result<()> {
    let mut writer = BinaryEncoder::default();
    writer.short_bytes(worktree.as_os_str().as_bytes());
    writer.bytes(&serde_json::to_vec(index)?);
    writer.count(file.len());
    write_frame(out, EARLY_INDEX_TAG, &[&writer.into_bytes(), file])
}

/// Writes the answer.
pub(crate) fn write_answer(out: &mut dyn Write, answer: &GitAnswer) -> io::Result<()> {
    let mut writer = BinaryEncoder::default();
    writer.bytes(&serde_json::to_vec(answer)?);
    match answer {
        GitAnswer::List(listing) => listing.write_lists(&mut writer),
        GitAnswer::Tree(tree) => tree.write_leaves(&mut writer),
        GitAnswer::Objects(found) => found.write_packs(&mut writer),
        _ => {}
    }
    write_frame(out, ANSWER_TAG, &[&writer.into_bytes()])
}

fn write_frame(out: &mut dyn Write, tag: u8, parts: &[&[u8]]) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.write_all(&[tag])?;
    out.write_all(&(length as u64).to_le_bytes())?;
    parts.iter().try_for_each(|part| out.write_all(part))?;
    out.flush()
}

/// The reason why an answer of the helper cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The bytes are not valid frames.
    #[error("its answer is malformed")]
    Malformed,
    /// The JSON of the answer is invalid.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A frame does not belong to an answer to the request.
    #[error("it answered a different request")]
    OtherQuestion,
    /// More frames follow the answer.
    #[error("it sent data after its answer")]
    AfterAnswer,
    /// The caller cannot use a frame, and stops the exchange.
    #[error("the caller stopped the exchange")]
    Stopped,
}

/// Removes a complete frame from the front of the received bytes. Returns `None` if the frame is incomplete.
///
/// # Errors
/// The bytes are not valid frames.
pub(crate) fn take_frame(received: &mut Vec<u8>) -> Result<Option<AnswerFrame>, AnswerError> {
    let Some((head, rest)) = received.split_first_chunk::<FRAME_HEADER_BYTES>() else { return Ok(None) };
    let length = BinaryDecoder::new(&head[1..]).u64().and_then(|length| usize::try_from(length).ok());
    let Some(bytes) = length.and_then(|length| rest.get(..length)) else { return Ok(None) };
    let frame = match head[0] {
        EARLY_INDEX_TAG => AnswerFrame::EarlyIndex(read_early_index(bytes).ok_or(AnswerError::Malformed)?),
        BLOBS_TAG => AnswerFrame::Blobs(BlobPieces(bytes.to_vec())),
        ANSWER_TAG => AnswerFrame::Answer(Box::new(read_answer(bytes)?)),
        _ => return Err(AnswerError::Malformed),
    };
    let length = FRAME_HEADER_BYTES + bytes.len();
    received.drain(..length);
    Ok(Some(frame))
}

fn read_early_index(bytes: &[u8]) -> Option<Option<EarlyIndex>> {
    let mut reader = BinaryDecoder::new(bytes);
    let worktree = PathBuf::from(std::ffi::OsString::from_vec(reader.short_bytes()?.to_vec()));
    let mut index: GitIndex = serde_json::from_slice(reader.bytes()?).ok()?;
    let entries = index_parser::parse(reader.bytes()?);
    reader.is_at_end().then(|| {
        index.entries = entries?;
        Some(EarlyIndex { worktree, index: Arc::new(index) })
    })
}

fn read_answer(bytes: &[u8]) -> Result<GitAnswer, AnswerError> {
    let mut reader = BinaryDecoder::new(bytes);
    let json = reader.bytes().ok_or(AnswerError::Malformed)?;
    let mut answer: GitAnswer = serde_json::from_slice(json)?;
    match &mut answer {
        GitAnswer::List(listing) => listing.read_lists(&mut reader).ok_or(AnswerError::Malformed)?,
        GitAnswer::Tree(tree) => tree.read_leaves(&mut reader).ok_or(AnswerError::Malformed)?,
        GitAnswer::Objects(found) => found.read_packs(&mut reader).ok_or(AnswerError::Malformed)?,
        _ => {}
    }
    if reader.is_at_end() { Ok(answer) } else { Err(AnswerError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::repo_path::RepoPath;
    use crate::index::ConversionConfig;
    use crate::object::object_id::ObjectFormat;

    fn index() -> GitIndex {
        let rules = ConversionConfig {
            file_mode: true,
            symlinks: true,
            autocrlf: false,
            foreign_attributes: false,
            own_attributes: None,
        };
        let (at, format) = (RepoPath(Vec::new()), ObjectFormat::Sha1);
        GitIndex { at, format, head_tree: None, written: (1, 2), entries: Vec::new(), rules }
    }

    #[test]
    fn splits_and_joins_blobs() {
        let blobs = [(0, Vec::new()), (3, b"small".to_vec()), (4, vec![7; 2 * BLOB_PIECE + 1]), (9, b"last".to_vec())];
        let mut sent = Vec::new();
        let mut writer = BlobWriter::new(&mut sent);
        blobs.iter().for_each(|(number, blob)| writer.write(*number, blob).expect("writes"));
        writer.finish().expect("writes");
        let mut received = std::collections::BTreeMap::<u32, Vec<u8>>::new();
        while let Some(frame) = take_frame(&mut sent).expect("frames") {
            let AnswerFrame::Blobs(pieces) = frame else { panic!("other frames") };
            for piece in pieces.iter() {
                let BlobPiece { number, size, bytes } = piece.expect("a piece");
                assert_eq!(
                    size,
                    blobs.iter().find(|(wanted, _)| *wanted == number).map_or(0, |(_, blob)| blob.len() as u64)
                );
                received.entry(number).or_default().extend_from_slice(bytes);
            }
        }
        assert!(sent.is_empty() && received.into_iter().eq(blobs));
        assert_eq!(BlobPieces(b"too short".to_vec()).iter().collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn waits_for_complete_frames() {
        let mut sent = Vec::new();
        let index = index();
        let file = index_parser::tests::index_file(&[("a/\u{fc}", 0)]);
        write_early_index(&mut sent, Path::new("/a b"), &index, &file).expect("writes");
        let answer = GitAnswer::Ignored { ignored: vec![true, false] };
        write_answer(&mut sent, &answer).expect("writes");
        let mut received = Vec::new();
        let mut found = Vec::new();
        for byte in sent {
            received.push(byte);
            found.extend(take_frame(&mut received).expect("frames"));
        }
        let entries = index_parser::parse(&file).expect("entries");
        assert!(
            matches!(&found[0], AnswerFrame::EarlyIndex(Some(ahead)) if *ahead.index == GitIndex { entries, ..index })
        );
        assert!(matches!(&found[1], AnswerFrame::Answer(found) if **found == answer));
        assert!(received.is_empty() && found.len() == 2);
        assert!(take_frame(&mut b"X\0\0\0\0\0\0\0\0".to_vec()).is_err());
    }
}
