//! Stores whole outputs, compressed, under the sha256 of the original output.
//!
//! `objects/<2 hex>/<62 hex>.zst` holds a whole output. If the plan's output limit cut it, the name ends in
//! `.cut.zst` and the file holds the bytes before the cut. A name that ends in `.redacted.zst` marks either kind
//! without its secrets: its hash is that of bytes that are not stored anywhere.

use std::fs::File;
use std::io::{self, Read, Write};

use proctor_core::text::digest::Sha256Hex;

use super::StoreError;
use super::directory::{Directory, TemporaryFile};

/// zstd's fastest level: outputs are compressed while a step runs.
const COMPRESSION_LEVEL: i32 = 1;

/// The part of an output that an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredForm {
    /// The whole output.
    Whole,
    /// The bytes before a cut.
    Cut,
    /// All of it or the bytes before a cut, without secrets.
    Redacted,
}

impl StoredForm {
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
    /// Opens the objects in the state directory, and creates their directory if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn open(state: &Directory) -> Result<Self, StoreError> {
        Ok(Self { root: state.ensure("objects", 0o700)? })
    }

    /// Returns a writer for an object whose hash is not known yet.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn writer(&self) -> Result<ObjectWriter, StoreError> {
        let temp = self.root.create_temporary("object")?;
        let failed = |source| StoreError::Io { action: "compress into", path: self.root.name().to_owned(), source };
        let file = temp.file.try_clone().map_err(failed)?;
        let encoder = zstd::stream::write::Encoder::new(file, COMPRESSION_LEVEL).map_err(failed)?;
        Ok(ObjectWriter { objects: self.clone(), temp, encoder })
    }

    /// Returns an unlinked file for bytes that this process needs only while it runs.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn unlinked_file(&self) -> Result<File, StoreError> {
        self.root.create_unlinked("live")
    }

    /// Reads at most `limit` bytes of the object; `None` if it does not exist.
    ///
    /// # Errors
    /// The object cannot be read.
    pub(crate) fn read(&self, sha256: &Sha256Hex, form: StoredForm, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.with_decompressed(sha256, form, |kept| {
            let mut bytes = Vec::new();
            kept.take(limit).read_to_end(&mut bytes)?;
            Ok(bytes)
        })
    }
}

/// A part of an object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// True if more bytes follow.
    pub has_more: bool,
}

impl Objects {
    /// Reads at most `limit` bytes of the object, starting at `offset`; `None` if it does not exist. The bytes
    /// before `offset` are decompressed and discarded.
    ///
    /// # Errors
    /// The object cannot be read.
    pub(crate) fn read_part(
        &self,
        sha256: &Sha256Hex,
        form: StoredForm,
        offset: u64,
        limit: usize,
    ) -> Result<Option<StoredPart>, StoreError> {
        self.with_decompressed(sha256, form, |mut kept| {
            io::copy(&mut kept.by_ref().take(offset), &mut io::sink())?;
            let mut bytes = Vec::new();
            kept.take(limit as u64 + 1).read_to_end(&mut bytes)?;
            let more = bytes.len() > limit;
            bytes.truncate(limit);
            Ok(StoredPart { bytes, has_more: more })
        })
    }

    /// Returns the length of the object's content; `None` if it does not exist. Decompresses all of it.
    ///
    /// # Errors
    /// The object cannot be read.
    pub(crate) fn length(&self, sha256: &Sha256Hex, form: StoredForm) -> Result<Option<u64>, StoreError> {
        self.with_decompressed(sha256, form, |mut kept| io::copy(&mut kept, &mut io::sink()))
    }

    /// Sets the time of an object to now, if it exists. The oldest objects are removed first.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn touch(&self, sha256: &Sha256Hex, form: StoredForm) -> Result<(), StoreError> {
        let digits = sha256.to_string();
        let (shard, rest) = digits.split_at(2);
        match self.root.descend(shard) {
            Ok(directory) => directory.touch(&format!("{rest}.{}", form.suffix())),
            Err(_) => Ok(()),
        }
    }

    /// Applies `read` to the decompressed content of an object.
    fn with_decompressed<T>(
        &self,
        sha256: &Sha256Hex,
        form: StoredForm,
        read: impl FnOnce(zstd::stream::read::Decoder<'_, io::BufReader<File>>) -> io::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        let digits = sha256.to_string();
        let (shard, rest) = digits.split_at(2);
        let Ok(directory) = self.root.descend(shard) else { return Ok(None) };
        let name = format!("{rest}.{}", form.suffix());
        let Some(packed) = directory.open_file(&name)? else { return Ok(None) };
        let unpacked = zstd::stream::read::Decoder::new(packed).and_then(read);
        let unpacked = unpacked.map_err(|source| StoreError::Io { action: "decompress", path: name, source })?;
        Ok(Some(unpacked))
    }
}

/// An object that is being written; it is removed on drop unless it is finished.
pub(crate) struct ObjectWriter {
    objects: Objects,
    temp: TemporaryFile,
    encoder: zstd::stream::write::Encoder<'static, File>,
}

impl ObjectWriter {
    /// Adds bytes.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.encoder.write_all(bytes)
    }

    /// Publishes the object under `sha256`.
    ///
    /// # Errors
    /// A system call fails; no object appears.
    pub(crate) fn finish(self, sha256: &Sha256Hex, form: StoredForm) -> Result<(), StoreError> {
        let digits = sha256.to_string();
        let (shard, rest) = digits.split_at(2);
        let name = format!("{rest}.{}", form.suffix());
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
    fn reads_written_object() {
        let temp = tempfile::tempdir().expect("temp");
        let objects = Objects::open(&Directory::open(temp.path()).expect("opens")).expect("opens");
        let text = b"hello\n".repeat(1000);
        let sha256 = Sha256Hex::digest(&text);
        assert_eq!(objects.read(&sha256, StoredForm::Whole, 10).expect("reads"), None);
        let mut writer = objects.writer().expect("makes");
        writer.write(&text).expect("writes");
        writer.finish(&sha256, StoredForm::Whole).expect("finishes");
        assert_eq!(objects.read(&sha256, StoredForm::Whole, 1 << 20).expect("reads"), Some(text));
        assert_eq!(objects.read(&sha256, StoredForm::Redacted, 1 << 20).expect("reads"), None);
        let part = |offset, limit| objects.read_part(&sha256, StoredForm::Whole, offset, limit).expect("reads");
        assert_eq!(part(2, 5), Some(StoredPart { bytes: b"llo\nh".to_vec(), has_more: true }));
        assert_eq!(part(5_998, 2), Some(StoredPart { bytes: b"o\n".to_vec(), has_more: false }));
        assert_eq!(part(9_000, 2), Some(StoredPart { bytes: Vec::new(), has_more: false }));
        drop(objects.writer().expect("makes"));
        assert_eq!(objects.root.names().expect("lists").len(), 1);
    }
}
