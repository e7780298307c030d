//! Encodes answers as frames; the last frame contains the answer. Data that the parent process can use before the
//! answer is complete are sent in earlier frames.

use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index::from_file;
use super::protocol::{Answer, Index};
use crate::codec::{Reader, Writer};

/// An index, sent ahead of the listing that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    /// The top of the work tree.
    pub worktree: PathBuf,
    /// The index of the outermost repository.
    pub index: Arc<Index>,
}

/// Pieces of blobs, each with the number of its leaf. The pieces of a blob are consecutive; an empty blob has one
/// empty piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobPieces(Vec<u8>);

impl BlobPieces {
    /// Returns the pieces; an item is `None` if the bytes are invalid.
    pub fn iter(&self) -> impl Iterator<Item = Option<(u32, &[u8])>> {
        let mut reader = Reader::new(&self.0);
        std::iter::from_fn(move || {
            if reader.is_at_end() {
                return None;
            }
            let piece = reader.u32().and_then(|number| Some((number, reader.bytes()?)));
            if piece.is_none() {
                reader = Reader::new(&[]);
            }
            Some(piece)
        })
    }
}

/// Sends blobs, combining several small ones.
pub(super) struct BlobWriter<'a> {
    out: &'a mut dyn Write,
    pieces: Writer,
    length: usize,
}

impl<'a> BlobWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, pieces: Writer::default(), length: 0 }
    }

    /// Sends the blob of a leaf.
    pub(super) fn write(&mut self, number: u32, blob: &[u8]) -> io::Result<()> {
        let empty = blob.is_empty().then_some(&[][..]);
        for piece in empty.into_iter().chain(blob.chunks(BLOB_PIECE)) {
            self.pieces.u32(number);
            self.pieces.bytes(piece);
            self.length += piece.len() + BLOB_HEAD;
            if self.length >= BLOB_PIECE {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Sends the remaining pieces.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.length == 0 { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.length = 0;
        write_frame(self.out, BLOBS, &[&std::mem::take(&mut self.pieces).into_bytes()])
    }
}

/// A frame of an answer.
pub(super) enum Frame {
    /// `None` if the file is not in the format that this process reads; the answer then contains the whole index.
    Ahead(Option<Ahead>),
    Blobs(BlobPieces),
    Answer(Box<Answer>),
}

/// A frame that is sent before an answer.
pub(super) enum Early {
    Index(Ahead),
    Blobs(BlobPieces),
}

/// Number of bytes of blobs that are sent together.
const BLOB_PIECE: usize = 256 << 10;
/// Size of the header of a piece, in bytes.
const BLOB_HEAD: usize = 12;

const AHEAD: u8 = b'T';
const BLOBS: u8 = b'B';
const ANSWER: u8 = b'A';
/// Size of a frame's header: the tag, and the length of the content.
const HEAD: usize = 9;

/// Writes an index without its entries, followed by the bytes of its file, before the answer.
pub(super) fn write_ahead(out: &mut dyn Write, worktree: &Path, index: &Index, file: &[u8]) -> io::Result<()> {
    let mut writer = Writer::default();
    writer.short(worktree.as_os_str().as_bytes());
    writer.bytes(&serde_json::to_vec(index)?);
    writer.count(file.len());
    write_frame(out, AHEAD, &[&writer.into_bytes(), file])
}

/// Writes the answer.
pub(super) fn write_answer(out: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    let mut writer = Writer::default();
    writer.bytes(&serde_json::to_vec(answer)?);
    match answer {
        Answer::List(listing) => listing.write_bulk(&mut writer),
        Answer::Tree(tree) => tree.write_bulk(&mut writer),
        _ => {}
    }
    write_frame(out, ANSWER, &[&writer.into_bytes()])
}

fn write_frame(out: &mut dyn Write, tag: u8, parts: &[&[u8]]) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.write_all(&[tag])?;
    out.write_all(&(length as u64).to_le_bytes())?;
    parts.iter().try_for_each(|part| out.write_all(part))?;
    out.flush()
}

/// Removes a complete frame from the front of the received bytes. Returns `None` if the frame is incomplete.
///
/// # Errors
/// The bytes are not valid frames.
pub(super) fn take(received: &mut Vec<u8>) -> Result<Option<Frame>, String> {
    let Some((head, rest)) = received.split_first_chunk::<HEAD>() else { return Ok(None) };
    let length = Reader::new(&head[1..]).u64().and_then(|length| usize::try_from(length).ok());
    let Some(bytes) = length.and_then(|length| rest.get(..length)) else { return Ok(None) };
    let frame = match head[0] {
        AHEAD => Frame::Ahead(read_ahead(bytes).ok_or_else(garbled)?),
        BLOBS => Frame::Blobs(BlobPieces(bytes.to_vec())),
        ANSWER => Frame::Answer(Box::new(read_answer(bytes)?)),
        _ => return Err(garbled()),
    };
    let length = HEAD + bytes.len();
    received.drain(..length);
    Ok(Some(frame))
}

fn read_ahead(bytes: &[u8]) -> Option<Option<Ahead>> {
    let mut reader = Reader::new(bytes);
    let worktree = PathBuf::from(std::ffi::OsString::from_vec(reader.short()?.to_vec()));
    let mut index: Index = serde_json::from_slice(reader.bytes()?).ok()?;
    let entries = from_file::parse(reader.bytes()?);
    reader.is_at_end().then(|| {
        index.entries = entries?;
        Some(Ahead { worktree, index: Arc::new(index) })
    })
}

fn read_answer(bytes: &[u8]) -> Result<Answer, String> {
    let mut reader = Reader::new(bytes);
    let json = reader.bytes().ok_or_else(garbled)?;
    let mut answer: Answer = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    match &mut answer {
        Answer::List(listing) => listing.read_bulk(&mut reader).ok_or_else(garbled)?,
        Answer::Tree(tree) => tree.read_bulk(&mut reader).ok_or_else(garbled)?,
        _ => {}
    }
    if reader.is_at_end() { Ok(answer) } else { Err(garbled()) }
}

fn garbled() -> String {
    "its answer is not understood".to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{FileRules, ObjectFormat, RepoPath};
    use super::*;

    fn index() -> Index {
        let rules = FileRules {
            file_mode: true,
            symlinks: true,
            autocrlf: false,
            foreign_attributes: false,
            own_attributes: None,
        };
        let (at, format) = (RepoPath(Vec::new()), ObjectFormat::Sha1);
        Index { at, format, head_tree: None, written: (1, 2), entries: Vec::new(), rules }
    }

    #[test]
    fn blobs_arrive_in_pieces_as_they_were_sent() {
        let blobs = [(0, Vec::new()), (3, b"small".to_vec()), (4, vec![7; 2 * BLOB_PIECE + 1]), (9, b"last".to_vec())];
        let mut sent = Vec::new();
        let mut writer = BlobWriter::new(&mut sent);
        blobs.iter().for_each(|(number, blob)| writer.write(*number, blob).expect("writes"));
        writer.finish().expect("writes");
        let mut received = std::collections::BTreeMap::<u32, Vec<u8>>::new();
        while let Some(frame) = take(&mut sent).expect("frames") {
            let Frame::Blobs(pieces) = frame else { panic!("other frames") };
            for piece in pieces.iter() {
                let (number, bytes) = piece.expect("a piece");
                received.entry(number).or_default().extend_from_slice(bytes);
            }
        }
        assert!(sent.is_empty() && received.into_iter().eq(blobs));
        assert_eq!(BlobPieces(b"too short".to_vec()).iter().collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn frames_come_whole_or_not_at_all() {
        let mut sent = Vec::new();
        let index = index();
        let file = from_file::tests::file(&[("a/\u{fc}", 0)]);
        write_ahead(&mut sent, Path::new("/a b"), &index, &file).expect("writes");
        let answer = Answer::Ignored { ignored: vec![true, false] };
        write_answer(&mut sent, &answer).expect("writes");
        let mut received = Vec::new();
        let mut found = Vec::new();
        for byte in sent {
            received.push(byte);
            found.extend(take(&mut received).expect("frames"));
        }
        let entries = from_file::parse(&file).expect("entries");
        assert!(matches!(&found[0], Frame::Ahead(Some(ahead)) if *ahead.index == Index { entries, ..index }));
        assert!(matches!(&found[1], Frame::Answer(found) if **found == answer));
        assert!(received.is_empty() && found.len() == 2);
        assert!(take(&mut b"X\0\0\0\0\0\0\0\0".to_vec()).is_err());
    }
}
