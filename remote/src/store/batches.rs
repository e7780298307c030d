//! Uploads and reads blobs in batches, within the limits of the server. Larger blobs are transferred alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use bytes::Bytes;
use tonic::Code;

use crate::blob::{BlobDigest, BlobSource};
use crate::client::{Client, Method};
use crate::error::{RemoteError, displayed_message};
use crate::messages::{
    BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest, BatchUpdateBlobsResponse, BlobUpdate,
    FindMissingBlobsRequest, FindMissingBlobsResponse, IDENTITY, RpcStatus, SHA256, ZSTD,
};

const FIND_MISSING: Method = Method {
    name: "FindMissingBlobs",
    path: "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs",
};
const UPDATE: Method = Method {
    name: "BatchUpdateBlobs",
    path: "/build.bazel.remote.execution.v2.ContentAddressableStorage/BatchUpdateBlobs",
};
const READ: Method = Method {
    name: "BatchReadBlobs",
    path: "/build.bazel.remote.execution.v2.ContentAddressableStorage/BatchReadBlobs",
};
/// Maximum number of digests in one question for missing blobs.
const MAX_DIGESTS: usize = 10_000;
/// Maximum number of blobs in a batch.
const MAX_BATCH_BLOBS: usize = 2_000;
/// Bytes of a batch that a blob needs besides its content.
const BLOB_OVERHEAD: u64 = 128;
/// Blobs of this size and more are compressed.
pub(super) const MIN_COMPRESSED: usize = 2_048;

/// Returns `content` with zstd, if the server reads zstd and that makes it smaller.
pub(super) fn compressed(content: &[u8], is_offered: bool) -> Option<Vec<u8>> {
    if !is_offered || content.len() < MIN_COMPRESSED {
        return None;
    }
    zstd::bulk::compress(content, 1).ok().filter(|compressed| compressed.len() < content.len())
}

impl Client {
    /// Returns which of the blobs the server does not have.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn find_missing(&self, digests: &[BlobDigest]) -> Result<BTreeSet<BlobDigest>, RemoteError> {
        let mut missing = BTreeSet::new();
        for part in digests.chunks(MAX_DIGESTS) {
            let request = FindMissingBlobsRequest {
                instance_name: self.instance().to_owned(),
                blob_digests: part.iter().map(BlobDigest::to_message).collect(),
                digest_function: SHA256,
            };
            let answer: FindMissingBlobsResponse = self.unary(FIND_MISSING, &request).await?;
            for digest in &answer.missing_blob_digests {
                let digest = BlobDigest::from_message(Some(digest))
                    .map_err(|error| self.violation(FIND_MISSING, error.to_string()))?;
                missing.insert(digest);
            }
        }
        Ok(missing)
    }

    /// Uploads the blobs that the server does not have. Returns the digests of the uploaded ones.
    ///
    /// # Errors
    /// The server does not answer or refuses a blob, or a file has changed.
    pub async fn upload(&self, blobs: &BTreeMap<BlobDigest, BlobSource>) -> Result<BTreeSet<BlobDigest>, RemoteError> {
        let capabilities = self.capabilities().await?;
        let digests: Vec<BlobDigest> = blobs.keys().cloned().collect();
        if let (Some(largest), Some(max)) =
            (digests.iter().max_by_key(|digest| digest.bytes), capabilities.max_blob_bytes)
            && largest.bytes > max
        {
            return Err(RemoteError::TooLarge { what: format!("blob {largest}"), bytes: largest.bytes, max });
        }
        let missing = self.find_missing(&digests).await?;
        // The server may only name requested blobs.
        let missing: Vec<(&BlobDigest, &BlobSource)> =
            blobs.iter().filter(|(digest, _)| missing.contains(digest)).collect();
        for batch in batches(missing.iter().map(|(digest, _)| digest.bytes), capabilities.max_batch_bytes) {
            match batch {
                Batch::Alone(at) => {
                    let (digest, source) = missing[at];
                    self.write_blob(digest, read_blob(digest, source).await?).await?;
                }
                Batch::Together(range) => {
                    let mut contents = Vec::new();
                    for (digest, source) in &missing[range] {
                        contents.push(((*digest).clone(), read_blob(digest, source).await?));
                    }
                    self.upload_batch(&contents, capabilities.zstd_batches).await?;
                }
            }
        }
        Ok(missing.into_iter().map(|(digest, _)| digest.clone()).collect())
    }

    async fn upload_batch(&self, blobs: &[(BlobDigest, Bytes)], zstd: bool) -> Result<(), RemoteError> {
        let update = |(digest, content): &(BlobDigest, Bytes)| {
            let (data, compressor) =
                compressed(content, zstd).map_or_else(|| (content.to_vec(), IDENTITY), |data| (data, ZSTD));
            BlobUpdate { digest: Some(digest.to_message()), data, compressor }
        };
        let request = BatchUpdateBlobsRequest {
            instance_name: self.instance().to_owned(),
            requests: blobs.iter().map(update).collect(),
            digest_function: SHA256,
        };
        let answer: BatchUpdateBlobsResponse = self.unary(UPDATE, &request).await?;
        let mut stored = BTreeSet::new();
        for response in &answer.responses {
            let digest = BlobDigest::from_message(response.digest.as_ref())
                .map_err(|error| self.violation(UPDATE, error.to_string()))?;
            self.require_ok(UPDATE, response.status.as_ref())?;
            stored.insert(digest);
        }
        match blobs.iter().find(|(digest, _)| !stored.contains(digest)) {
            None => Ok(()),
            Some((digest, _)) => Err(self.violation(UPDATE, format!("it does not mention blob {digest}"))),
        }
    }

    /// Reads blobs. Each one is compared with its digest. Blobs that the server does not have are left out.
    ///
    /// # Errors
    /// The server does not answer, returns wrong bytes, or the blobs have more than `max_bytes` together.
    pub async fn read(
        &self,
        digests: &BTreeSet<BlobDigest>,
        max_bytes: u64,
    ) -> Result<BTreeMap<BlobDigest, Bytes>, RemoteError> {
        let total = digests.iter().fold(0u64, |sum, digest| sum.saturating_add(digest.bytes));
        if total > max_bytes {
            return Err(RemoteError::TooLarge {
                what: "the content to be read".to_owned(),
                bytes: total,
                max: max_bytes,
            });
        }
        if digests.is_empty() {
            return Ok(BTreeMap::new());
        }
        let capabilities = self.capabilities().await?;
        let digests: Vec<&BlobDigest> = digests.iter().collect();
        let mut found = BTreeMap::new();
        for batch in batches(digests.iter().map(|digest| digest.bytes), capabilities.max_batch_bytes) {
            match batch {
                Batch::Alone(at) => match self.read_blob(digests[at]).await {
                    Ok(content) => drop(found.insert(digests[at].clone(), content)),
                    Err(RemoteError::Missing { .. }) => {}
                    Err(error) => return Err(error),
                },
                Batch::Together(range) => {
                    found.extend(self.read_batch(&digests[range], capabilities.zstd_batches).await?);
                }
            }
        }
        Ok(found)
    }

    async fn read_batch(
        &self,
        digests: &[&BlobDigest],
        zstd: bool,
    ) -> Result<BTreeMap<BlobDigest, Bytes>, RemoteError> {
        let request = BatchReadBlobsRequest {
            instance_name: self.instance().to_owned(),
            digests: digests.iter().map(|digest| digest.to_message()).collect(),
            acceptable_compressors: if zstd { vec![IDENTITY, ZSTD] } else { Vec::new() },
            digest_function: SHA256,
        };
        let answer: BatchReadBlobsResponse = self.unary(READ, &request).await?;
        let mut found = BTreeMap::new();
        for response in answer.responses {
            let digest = BlobDigest::from_message(response.digest.as_ref())
                .map_err(|error| self.violation(READ, error.to_string()))?;
            if !digests.contains(&&digest) {
                return Err(self.violation(READ, format!("it has blob {digest}, which was not requested")));
            }
            if response.status.as_ref().is_some_and(|status| status.code == Code::NotFound as i32) {
                continue;
            }
            self.require_ok(READ, response.status.as_ref())?;
            let wrong = || RemoteError::WrongBlob { endpoint: self.endpoint().to_owned(), digest: digest.clone() };
            let content = match response.compressor {
                IDENTITY => response.data,
                ZSTD => decompress(&response.data, digest.bytes).ok_or_else(wrong)?,
                other => return Err(self.violation(READ, format!("it uses compressor {other}"))),
            };
            if !digest.matches(&content) {
                return Err(wrong());
            }
            found.insert(digest, Bytes::from(content));
        }
        Ok(found)
    }

    /// # Errors
    /// The status is not OK.
    pub(crate) fn require_ok(&self, method: Method, status: Option<&RpcStatus>) -> Result<(), RemoteError> {
        match status {
            Some(status) if status.code != Code::Ok as i32 => Err(RemoteError::Status {
                endpoint: self.endpoint().to_owned(),
                method: method.name,
                code: Code::from_i32(status.code),
                message: displayed_message(&status.message, &[]),
            }),
            _ => Ok(()),
        }
    }
}

/// Decompresses a blob whose size is known; `None` if the bytes are damaged, or are longer than the blob.
fn decompress(data: &[u8], bytes: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(data).ok()?;
    decoder.take(bytes + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 == bytes).then_some(content)
}

/// Returns the content of a blob, which has its digest.
async fn read_blob(digest: &BlobDigest, source: &BlobSource) -> Result<Bytes, RemoteError> {
    match source {
        BlobSource::Bytes(content) => Ok(content.clone()),
        BlobSource::File(path) => {
            let (path, digest) = (path.clone(), digest.clone());
            let read = tokio::task::spawn_blocking(move || read_unchanged(&path, &digest)).await;
            read.unwrap_or_else(|error| Err(RemoteError::Changed(error.to_string())))
        }
    }
}

fn read_unchanged(path: &Path, digest: &BlobDigest) -> Result<Bytes, RemoteError> {
    let shown = || path.display().to_string();
    let mut content = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(digest.bytes + 1).read_to_end(&mut content))
        .map_err(|source| RemoteError::File { what: "the file to be uploaded", path: shown(), source })?;
    if digest.matches(&content) { Ok(Bytes::from(content)) } else { Err(RemoteError::Changed(shown())) }
}

/// A part of a transfer, as positions in the list of blobs.
#[derive(Debug, PartialEq, Eq)]
enum Batch {
    Together(std::ops::Range<usize>),
    Alone(usize),
}

/// Divides blobs with these sizes into batches of at most `max` bytes.
fn batches(sizes: impl Iterator<Item = u64>, max: u64) -> Vec<Batch> {
    let (mut found, mut start, mut sum, mut end) = (Vec::new(), 0, 0u64, 0);
    let close = |found: &mut Vec<Batch>, start: usize, end: usize| {
        if start < end {
            found.push(Batch::Together(start..end));
        }
    };
    for (at, bytes) in sizes.enumerate() {
        end = at + 1;
        let needed = bytes.saturating_add(BLOB_OVERHEAD);
        if needed > max {
            close(&mut found, start, at);
            found.push(Batch::Alone(at));
            (start, sum) = (end, 0);
            continue;
        }
        if sum + needed > max || at - start >= MAX_BATCH_BLOBS {
            close(&mut found, start, at);
            (start, sum) = (at, 0);
        }
        sum += needed;
    }
    close(&mut found, start, end);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_stay_within_the_limit() {
        let max = 2 * (10 + BLOB_OVERHEAD);
        assert_eq!(batches([].into_iter(), max), []);
        assert_eq!(batches([10, 10, 10].into_iter(), max), [Batch::Together(0..2), Batch::Together(2..3)]);
        assert_eq!(
            batches([10, 1_000, 10, 10].into_iter(), max),
            [Batch::Together(0..1), Batch::Alone(1), Batch::Together(2..4)]
        );
        let many = batches(std::iter::repeat_n(0, MAX_BATCH_BLOBS + 1), u64::MAX);
        assert_eq!(many, [Batch::Together(0..MAX_BATCH_BLOBS), Batch::Together(MAX_BATCH_BLOBS..MAX_BATCH_BLOBS + 1)]);
    }

    #[test]
    fn decompressed_content_has_a_bound() {
        let bomb = compressed(&vec![0; 1 << 20], true).expect("compressed");
        assert_eq!(decompress(&bomb, 1 << 20).expect("content").len(), 1 << 20);
        assert_eq!(decompress(&bomb, 1 << 10), None);
        assert_eq!(decompress(&bomb[..bomb.len() / 2], 1 << 20), None);
        assert_eq!(compressed(b"short", true), None);
    }

    #[test]
    fn changed_file_is_not_uploaded() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = read_unchanged(file.path(), &BlobDigest::for_bytes(b"earlier")).expect_err("changed");
        assert!(matches!(error, RemoteError::Changed(_)), "{error}");
    }
}
