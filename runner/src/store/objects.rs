//! Whole outputs, compressed, addressed by the sha256 of all that was written.
//!
//! `objects/<2 hex>/<62 hex>.zst` holds the whole; where the plan's output limit cut it, the
//! name ends in `.cut.zst` and the file holds what came before the cut. One that ends in
//! `.redacted.zst` is either of both without the secrets that stood in it: its hash is that of
//! bytes which are nowhere kept.

use std::fs::File;
use std::io::{self, Read, Write};

use proctor_core::digest::Sha256Hex;

use super::StoreError;
use super::directory::{Directory, Temporary};

/// The level is zstd's fastest: outputs are written while a step runs.
const LEVEL: i32 = 1;

/// What an object holds of the output whose hash names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// All of it.
    Whole,
    /// What came before a cut.
    Cut,
    /// All of it or what came before a cut, without secrets.
    Redacted,
}

impl Kept {
    fn suffix(self) -> &'static str {
        match self {
            Self::Whole => "zst",
            Self::Cut => "cut.zst",
            Self::Redacted => "redacted.zst",
        }
    }
}

/// The objects of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    root: Directory,
}

impl Objects {
    /// The objects below `state`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(crate) fn open(state: &Directory) -> Result<Self, StoreError> {
        Ok(Self { root: state.ensure("objects", 0o700)? })
    }

    /// A writer for an object whose hash is not known yet.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn writer(&self) -> Result<ObjectWriter, StoreError> {
        let temp = self.root.temporary("object")?;
        let failed = |source| StoreError::Io { action: "compress into", path: self.root.name().to_owned(), source };
        let file = temp.file.try_clone().map_err(failed)?;
        let encoder = zstd::stream::write::Encoder::new(file, LEVEL).map_err(failed)?;
        Ok(ObjectWriter { objects: self.clone(), temp, encoder })
    }

    /// A file without a name, for bytes that are needed no longer than this process runs.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn unnamed(&self) -> Result<File, StoreError> {
        self.root.unnamed("live")
    }

    /// The bytes kept under `sha256` as `kept`, at most `limit`. `None` where there are none.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn read(&self, sha256: &Sha256Hex, kept: Kept, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.unpacked(sha256, kept, |kept| {
            let mut bytes = Vec::new();
            kept.take(limit).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }
}

/// A part of an object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether there are more behind them.
    pub more: bool,
}

impl Objects {
    /// At most `limit` bytes of what is kept under `sha256` as `kept`, from `offset` on. `None`
    /// where nothing is kept. What lies before them is decompressed and forgotten.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn part(
        &self,
        sha256: &Sha256Hex,
        kept: Kept,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Part>, StoreError> {
        self.unpacked(sha256, kept, |mut kept| {
            io::copy(&mut kept.by_ref().take(offset), &mut io::sink())?;
            let mut bytes = Vec::new();
            kept.take(limit as u64 + 1).read_to_end(&mut bytes)?;
            let more = bytes.len() > limit;
            bytes.truncate(limit);
            Ok(Part { bytes, more })
        })
    }

    /// How many bytes are kept under `sha256` as `kept`; `None` where nothing is. All of them are
    /// decompressed.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn length(&self, sha256: &Sha256Hex, kept: Kept) -> Result<Option<u64>, StoreError> {
        self.unpacked(sha256, kept, |mut kept| io::copy(&mut kept, &mut io::sink()))
    }

    /// What `read` makes of what is kept.
    fn unpacked<T>(
        &self,
        sha256: &Sha256Hex,
        kept: Kept,
        read: impl FnOnce(zstd::stream::read::Decoder<'_, io::BufReader<File>>) -> io::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        let (shard, rest) = sha256.as_str().split_at(2);
        let Ok(directory) = self.root.descend(shard) else { return Ok(None) };
        let name = format!("{rest}.{}", kept.suffix());
        let Some(packed) = directory.open_file(&name)? else { return Ok(None) };
        let unpacked = zstd::stream::read::Decoder::new(packed).and_then(read);
        let unpacked = unpacked.map_err(|source| StoreError::Io { action: "decompress", path: name, source })?;
        Ok(Some(unpacked))
    }
}

/// An object on its way into the store; dropped unfinished, it goes away.
pub(crate) struct ObjectWriter {
    objects: Objects,
    temp: Temporary,
    encoder: zstd::stream::write::Encoder<'static, File>,
}

impl ObjectWriter {
    /// Adds bytes.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.encoder.write_all(bytes)
    }

    /// Makes the object appear under `sha256`.
    ///
    /// # Errors
    /// The system refuses; nothing appears.
    pub(crate) fn finish(self, sha256: &Sha256Hex, kept: Kept) -> Result<(), StoreError> {
        let (shard, rest) = sha256.as_str().split_at(2);
        let name = format!("{rest}.{}", kept.suffix());
        let failed = |source| StoreError::Io { action: "write", path: name.clone(), source };
        self.encoder.finish().and_then(|file| file.sync_all()).map_err(failed)?;
        let directory = self.objects.root.ensure(shard, 0o700)?;
        self.temp.publish_in(&directory, &name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let temp = tempfile::tempdir().expect("temp");
        let objects = Objects::open(&Directory::open(temp.path()).expect("opens")).expect("opens");
        let text = b"hello\n".repeat(1000);
        let sha256 = Sha256Hex::of(&text);
        assert_eq!(objects.read(&sha256, Kept::Whole, 10).expect("reads"), None);
        let mut writer = objects.writer().expect("makes");
        writer.write(&text).expect("writes");
        writer.finish(&sha256, Kept::Whole).expect("finishes");
        assert_eq!(objects.read(&sha256, Kept::Whole, 1 << 20).expect("reads"), Some(text));
        assert_eq!(objects.read(&sha256, Kept::Redacted, 1 << 20).expect("reads"), None);
        let part = |offset, limit| objects.part(&sha256, Kept::Whole, offset, limit).expect("reads");
        assert_eq!(part(2, 5), Some(Part { bytes: b"llo\nh".to_vec(), more: true }));
        assert_eq!(part(5_998, 2), Some(Part { bytes: b"o\n".to_vec(), more: false }));
        assert_eq!(part(9_000, 2), Some(Part { bytes: Vec::new(), more: false }));
        drop(objects.writer().expect("makes"));
        assert_eq!(objects.root.names().expect("lists").len(), 1);
    }
}
