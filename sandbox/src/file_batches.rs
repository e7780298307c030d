//! The files that a command gets as arguments, divided into batches. The command runs once for each batch.

use proctor_core::model::plan::FILES_PLACEHOLDER;
use proctor_core::text::digest::Sha256Hex;
use serde::{Deserialize, Serialize};

/// Number of bytes that a batch may have in the argument list by default, including its pointers. Every Linux system
/// accepts four times as much, shared with the environment.
const DEFAULT_BATCH_BYTES: usize = 512 << 10;
/// Number of bytes that an argument list may always have: `ARG_MAX` of POSIX systems with a small stack limit.
const MIN_BATCH_BYTES: usize = 64 << 10;
/// Size of a pointer to an argument.
const POINTER_BYTES: usize = 8;
/// Minimum number of files in a batch when batches run in parallel, since starting a process has a cost.
const MIN_PARALLEL_FILES: usize = 4;

/// The batches of files of a command. Without batches, the command runs once, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileBatches {
    /// The batches, in order.
    pub(crate) batches: Vec<FileBatch>,
    /// Maximum number of batches that run at once.
    pub(crate) parallel: u32,
    /// The exit codes with which a batch passes. Any other code is worse than each of them.
    pub(crate) passing_codes: Vec<u8>,
}

/// The files of one batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct FileBatch {
    /// The paths, each followed by a NUL byte.
    bytes: Vec<u8>,
}

/// The reason why bytes are not a batch.
#[derive(Debug, thiserror::Error)]
#[error("a batch of files is not written in hexadecimal")]
pub(crate) struct BadFileBatch;

impl FileBatches {
    /// Returns a digest of the batches, with their order and limits.
    pub fn digest(&self) -> Sha256Hex {
        let mut bytes = self.parallel.to_le_bytes().to_vec();
        for batch in &self.batches {
            bytes.extend_from_slice(&(batch.bytes.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&batch.bytes);
        }
        Sha256Hex::digest(&bytes)
    }
}

impl FileBatch {
    /// Returns the paths.
    pub(crate) fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty())
    }
}

impl From<FileBatch> for String {
    fn from(batch: FileBatch) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = |byte: u8| [byte >> 4, byte & 15].map(|half| char::from(DIGITS[usize::from(half)]));
        batch.bytes.into_iter().flat_map(digits).collect()
    }
}

impl TryFrom<String> for FileBatch {
    type Error = BadFileBatch;
    fn try_from(text: String) -> Result<Self, BadFileBatch> {
        let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Some(value(*high)? << 4 | value(*low)?),
            _ => None,
        });
        pairs.collect::<Option<Vec<u8>>>().map(|bytes| Self { bytes }).ok_or(BadFileBatch)
    }
}

impl FileBatches {
    /// Divides files into batches that fit into an argument list, and into at least as many batches as may run at
    /// once. `words_bytes` is the size of the command's other words and of its environment; `stack_limit` is the
    /// soft limit of the stack size, on which the limit of the argument list depends. A path that begins with `-`
    /// gets the prefix `./`, so that no program takes it for an option.
    pub fn new(files: &[Vec<u8>], parallel: u32, words_bytes: usize, stack_limit: Option<u64>) -> Self {
        // The kernel allows a quarter of the stack limit for arguments and environment.
        let allowed = stack_limit.map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX));
        let most = allowed.saturating_sub(words_bytes).saturating_sub(4096).clamp(MIN_BATCH_BYTES, DEFAULT_BATCH_BYTES);
        let per_job = files.len().div_ceil(usize::try_from(parallel.max(1)).unwrap_or(1));
        let most_files = if parallel > 1 { per_job.max(MIN_PARALLEL_FILES) } else { usize::MAX };
        let mut batches: Vec<FileBatch> = Vec::new();
        let (mut used, mut count) = (usize::MAX, 0);
        for file in files {
            let prefix: &[u8] = if file.first() == Some(&b'-') { b"./" } else { b"" };
            let size = prefix.len() + file.len() + 1 + POINTER_BYTES;
            if used.saturating_add(size) > most || count >= most_files {
                batches.push(FileBatch { bytes: Vec::new() });
                (used, count) = (0, 0);
            }
            if let Some(batch) = batches.last_mut() {
                batch.bytes.extend_from_slice(prefix);
                batch.bytes.extend_from_slice(file);
                batch.bytes.push(0);
            }
            (used, count) = (used + size, count + 1);
        }
        Self { batches, parallel: parallel.max(1), passing_codes: vec![0] }
    }

    /// Sets the exit codes with which a batch passes, by default only 0.
    #[must_use]
    pub fn with_passing_codes(self, passing_codes: Vec<u8>) -> Self {
        Self { passing_codes, ..self }
    }

    /// Returns the number of batches.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Returns whether there are no batches, so the command runs once.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}

/// Returns the words of a command with the files of a batch in place of `{files}`.
pub(crate) fn words_with_files<'a>(words: &'a [String], batch: Option<&'a FileBatch>) -> Vec<&'a [u8]> {
    let mut argv = Vec::new();
    for word in words {
        match batch.filter(|_| word == FILES_PLACEHOLDER) {
            Some(batch) => argv.extend(batch.files()),
            None => argv.push(word.as_bytes()),
        }
    }
    argv
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|number| format!("src/file_{number:06}.py").into_bytes()).collect()
    }

    fn all(batches: &FileBatches) -> Vec<Vec<u8>> {
        batches.batches.iter().flat_map(|batch| batch.files().map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn keeps_all_files_in_order_within_the_limit() {
        let files = files(68_000);
        let batches = FileBatches::new(&files, 1, 1000, Some(8 << 20));
        assert_eq!(all(&batches), files);
        assert!(batches.len() > 1 && batches.batches.iter().all(|batch| batch.bytes.len() <= DEFAULT_BATCH_BYTES));
        let small = FileBatches::new(&files, 1, 1000, Some(1 << 20));
        assert!(small.batches.iter().all(|batch| batch.bytes.len() <= 256 << 10));
        assert_eq!(all(&small), files);
    }

    #[test]
    fn divides_files_for_parallel_batches() {
        assert_eq!(FileBatches::new(&files(100), 4, 0, None).len(), 4);
        assert_eq!(FileBatches::new(&files(5), 4, 0, None).len(), 2, "at least four files in a batch");
        assert_eq!(FileBatches::new(&[], 4, 0, None).len(), 0);
        assert_eq!(FileBatches::new(&files(3), 1, 0, None).len(), 1);
    }

    #[test]
    fn file_is_never_an_option() {
        let batches = FileBatches::new(&[b"-rf".to_vec(), b"a-b".to_vec(), b"--".to_vec()], 1, 0, None);
        assert_eq!(all(&batches), [b"./-rf".to_vec(), b"a-b".to_vec(), b"./--".to_vec()]);
    }

    #[test]
    fn survives_encoding() {
        let batches = FileBatches::new(&[b"a\xff\nb".to_vec(), b"c d".to_vec()], 1, 0, None);
        let text = serde_json::to_string(&batches).expect("writes");
        assert_eq!(serde_json::from_str::<FileBatches>(&text).expect("reads"), batches);
        serde_json::from_str::<FileBatch>("\"abc\"").expect_err("odd");
        serde_json::from_str::<FileBatch>("\"zz\"").expect_err("not hexadecimal");
    }

    #[test]
    fn replaces_whole_words_only() {
        let words = ["lint", "{files}", "x{files}", "--"].map(str::to_owned);
        let batches = FileBatches::new(&[b"a".to_vec(), b"b".to_vec()], 1, 0, None);
        let argv = words_with_files(&words, batches.batches.first());
        assert_eq!(argv, [&b"lint"[..], b"a", b"b", b"x{files}", b"--"]);
        assert_eq!(words_with_files(&words, None).len(), 4);
    }
}
