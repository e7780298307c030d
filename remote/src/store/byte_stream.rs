//! Transfers single blobs as streams, and resumes a transfer that was interrupted.

use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use tonic::Code;

use super::batches::compressed;
use crate::blob::BlobDigest;
use crate::client::{Attempts, Client, Method, random_u64};
use crate::error::RemoteError;
use crate::messages::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, ReadResponse, WriteRequest, WriteResponse,
};
use crate::upload_progress::UploadLimits;

const READ: Method = Method { name: "Read", path: "/google.bytestream.ByteStream/Read" };
const WRITE: Method = Method { name: "Write", path: "/google.bytestream.ByteStream/Write" };
const QUERY: Method = Method { name: "QueryWriteStatus", path: "/google.bytestream.ByteStream/QueryWriteStatus" };
/// The bytes in one message of an upload.
const CHUNK: usize = 256 << 10;
/// The slowest accepted transfer, in bytes per second.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;
/// The slowest accepted storing of a received blob, in bytes per second.
const MIN_STORED_PER_SECOND: u64 = 4 << 20;
/// The size that a server reports for a blob that it already has.
const ALREADY_STORED: i64 = -1;

/// Returns the deadline for the transfer of this many bytes.
fn transfer_limit(base: Duration, bytes: u64) -> Duration {
    base.saturating_add(Duration::from_secs(bytes / MIN_BYTES_PER_SECOND))
}

impl Client {
    /// Returns the prefix of the names of the instance's blobs.
    fn resource_prefix(&self) -> String {
        if self.instance().is_empty() { String::new() } else { format!("{}/", self.instance()) }
    }

    /// Reads a blob, and compares it with its digest.
    ///
    /// # Errors
    /// The server does not have the blob, does not answer, or returns wrong bytes.
    pub async fn read_blob(&self, digest: &BlobDigest) -> Result<Bytes, RemoteError> {
        let zstd = self.capabilities().await?.zstd;
        let kind = if zstd { "compressed-blobs/zstd" } else { "blobs" };
        let resource_name = format!("{}{kind}/{digest}", self.resource_prefix());
        let mut content = BoundedBuffer { bytes: Vec::new(), max: digest.bytes };
        let mut attempts = Attempts::default();
        let limit = transfer_limit(self.timeouts().call, digest.bytes);
        loop {
            // The offset always counts decompressed bytes.
            let request = ReadRequest {
                resource_name: resource_name.clone(),
                read_offset: i64::try_from(content.bytes.len()).unwrap_or(i64::MAX),
                read_limit: 0,
            };
            let received = tokio::time::timeout(limit, self.receive(request, zstd, &mut content)).await;
            match received.unwrap_or_else(|_| Err(self.deadline_error(READ.name, limit))) {
                Ok(()) => break,
                Err(error) if error.has_code(Code::NotFound) => {
                    return Err(RemoteError::Missing { endpoint: self.endpoint().to_owned(), digest: digest.clone() });
                }
                Err(error) => self.pause_or_fail(&mut attempts, error).await?,
            }
        }
        if !digest.matches(&content.bytes) {
            return Err(RemoteError::WrongBlob { endpoint: self.endpoint().to_owned(), digest: digest.clone() });
        }
        Ok(Bytes::from(content.bytes))
    }

    async fn receive(&self, request: ReadRequest, zstd: bool, content: &mut BoundedBuffer) -> Result<(), RemoteError> {
        let mut answers = self.stream_once::<_, ReadResponse>(READ, request).await?;
        let idle = self.timeouts().idle;
        let damaged = |error: io::Error| self.violation(READ, error.to_string());
        if !zstd {
            while let Some(answer) = answers.next(idle).await? {
                content.write_all(&answer.data).map_err(damaged)?;
            }
            return Ok(());
        }
        let mut decoder = zstd::stream::write::Decoder::new(content).map_err(damaged)?;
        while let Some(answer) = answers.next(idle).await? {
            decoder.write_all(&answer.data).map_err(damaged)?;
            // The received part stays if the next message does not arrive.
            decoder.flush().map_err(damaged)?;
        }
        Ok(())
    }

    /// Writes a blob. An interrupted upload continues where the server has stopped.
    ///
    /// # Errors
    /// The server does not answer, or refuses the blob.
    pub async fn write_blob(&self, digest: &BlobDigest, content: Bytes) -> Result<(), RemoteError> {
        let zstd = self.capabilities().await?.zstd;
        let (kind, payload) = match compressed(&content, zstd) {
            Some(payload) => ("compressed-blobs/zstd", Bytes::from(payload)),
            None => ("blobs", content),
        };
        let resource_name = format!("{}uploads/{}/{kind}/{digest}", self.resource_prefix(), random_uuid());
        let (timeouts, bytes) = (self.timeouts(), payload.len() as u64);
        let limits = UploadLimits {
            total: transfer_limit(timeouts.call, bytes),
            idle: timeouts.idle,
            answer: timeouts.call.saturating_add(Duration::from_secs(bytes / MIN_STORED_PER_SECOND)),
        };
        let (mut attempts, mut offset) = (Attempts::default(), 0);
        loop {
            let messages = write_requests(resource_name.clone(), payload.clone(), offset);
            match self.upload_once::<_, WriteResponse>(WRITE, messages, limits).await {
                Ok(WriteResponse { committed_size }) => {
                    let whole = i64::try_from(payload.len()).unwrap_or(i64::MAX);
                    let blob = i64::try_from(digest.bytes).unwrap_or(i64::MAX);
                    if [whole, blob, ALREADY_STORED].contains(&committed_size) {
                        return Ok(());
                    }
                    return Err(self.violation(WRITE, format!("it has stored {committed_size} of {whole} bytes")));
                }
                Err(error) if error.has_code(Code::AlreadyExists) => return Ok(()),
                Err(error) => self.pause_or_fail(&mut attempts, error).await?,
            }
            let Some(committed) = self.committed_size(&resource_name, payload.len()).await else { return Ok(()) };
            offset = committed;
        }
    }

    /// Returns the offset at which an interrupted upload continues; `None` if the upload is complete. If the server
    /// does not know the offset, the upload starts again.
    async fn committed_size(&self, resource_name: &str, total: usize) -> Option<usize> {
        let request = QueryWriteStatusRequest { resource_name: resource_name.to_owned() };
        let status: Result<QueryWriteStatusResponse, RemoteError> = self.unary_once(QUERY, request).await;
        match status {
            Ok(status) if status.complete => None,
            Ok(status) => Some(usize::try_from(status.committed_size).ok().filter(|size| *size <= total).unwrap_or(0)),
            Err(_) => Some(0),
        }
    }
}

/// Returns the messages of an upload from `offset`; one without content for an empty blob.
fn write_requests(resource_name: String, payload: Bytes, offset: usize) -> impl Iterator<Item = WriteRequest> + Send {
    let total = payload.len();
    let count = (total - offset).div_ceil(CHUNK).max(1);
    (0..count).map(move |number| {
        let start = offset + number * CHUNK;
        let end = (start + CHUNK).min(total);
        WriteRequest {
            resource_name: if number == 0 { resource_name.clone() } else { String::new() },
            write_offset: i64::try_from(start).unwrap_or(i64::MAX),
            finish_write: end == total,
            data: payload.slice(start..end),
        }
    })
}

/// Returns a random UUID of version 4, which names an upload.
fn random_uuid() -> String {
    let (high, low) = (random_u64(), random_u64());
    let (version, variant) = ((high & 0xfff) | 0x4000, (low >> 48 & 0x3fff) | 0x8000);
    format!(
        "{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        low & 0xffff_ffff_ffff
    )
}

/// Content with a maximum size.
struct BoundedBuffer {
    bytes: Vec<u8>,
    max: u64,
}

impl Write for BoundedBuffer {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + part.len()) as u64 > self.max {
            return Err(io::Error::other("the blob is longer than its digest says"));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_is_divided_into_messages() {
        let payload = Bytes::from(vec![7; CHUNK + 1]);
        let whole: Vec<_> = write_requests("r".to_owned(), payload.clone(), 0).collect();
        let shape = |request: &WriteRequest| (request.write_offset, request.data.len(), request.finish_write);
        assert_eq!(whole.iter().map(shape).collect::<Vec<_>>(), [(0, CHUNK, false), (CHUNK as i64, 1, true)]);
        assert_eq!((whole[0].resource_name.as_str(), whole[1].resource_name.as_str()), ("r", ""));
        let rest: Vec<_> = write_requests("r".to_owned(), payload, CHUNK).collect();
        assert_eq!(rest.iter().map(shape).collect::<Vec<_>>(), [(CHUNK as i64, 1, true)]);
        let empty: Vec<_> = write_requests("r".to_owned(), Bytes::new(), 0).collect();
        assert_eq!(empty.iter().map(shape).collect::<Vec<_>>(), [(0, 0, true)]);
    }

    #[test]
    fn names_of_uploads_are_random_uuids() {
        let (first, second) = (random_uuid(), random_uuid());
        assert_ne!(first, second);
        assert_eq!(first.len(), 36);
        assert_eq!(&first[14..15], "4", "{first}");
        assert!("89ab".contains(&first[19..20]), "{first}");
    }
}
