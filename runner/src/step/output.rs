//! Drains one output stream of an attempt while the step runs. It hashes the bytes as they arrive, keeps both ends
//! for the preview, and stores as much of the whole output as the plan allows. The hash covers the original bytes;
//! stored and shown bytes are redacted.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use proctor_core::api::StreamView;
use proctor_core::record::evidence::{PREVIEW_BYTES, StreamEvidence, escape_output};
use proctor_core::text::digest::Sha256Hex;
use proctor_core::text::redact::{RedactedStream, Redactor};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use crate::step::live_output::LiveWriter;
use crate::store::StoreError;
use crate::store::objects::{ObjectWriter, Objects, StoredForm, StoredPart};

/// Size of a read in bytes, and the size that pipes are set to.
const CHUNK: usize = 256 << 10;
/// Size of the first reads in bytes: most outputs are short, and allocating a larger buffer costs time.
const FIRST_CHUNK: usize = 4 << 10;
/// Maximum pipe size of an ordinary user (`pipe-max-size` in pipe(7)).
const MAX_PIPE: usize = 1 << 20;

/// Pause in an output after which readers get the bytes that the search for secrets holds back.
const RELEASE_AFTER: Duration = Duration::from_millis(50);

/// The store for outputs, and the redactor.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    pub(crate) objects: Objects,
    pub(crate) redactor: Redactor,
}

impl Outputs {
    /// Stores a whole file that a step left, like an output. Returns its hash and the number of redacted secrets;
    /// `None` if it cannot be stored.
    pub(crate) fn store_file(&self, bytes: &[u8]) -> Option<(Sha256Hex, u64)> {
        let sha256 = Sha256Hex::digest(bytes);
        let mut store = RedactedWriter::new(self, None);
        bytes.chunks(CHUNK).for_each(|chunk| store.push(chunk));
        let (kept, redacted) = store.finish(&sha256, bytes.len() as u64);
        (kept == bytes.len() as u64).then_some((sha256, redacted))
    }

    /// Returns the stored bytes of a stream that was drained here.
    ///
    /// # Errors
    /// The bytes cannot be read.
    pub(crate) fn read(&self, stream: &StreamEvidence) -> Result<Vec<u8>, StoreError> {
        if stream.kept_bytes == 0 {
            return Ok(vec![]);
        }
        if stream.redacted > 0
            // A redaction mark may be longer than the secret, so `kept_bytes` is not an upper bound.
            && let Some(bytes) = self.objects.read(&stream.sha256, StoredForm::Redacted, u64::MAX)?
        {
            return Ok(bytes);
        }
        let form = if stream.kept_bytes < stream.bytes { StoredForm::Cut } else { StoredForm::Whole };
        Ok(self.objects.read(&stream.sha256, form, stream.kept_bytes)?.unwrap_or_default())
    }
}

/// Returns at most `limit` stored bytes of a stream, starting at `offset`, and their total number; `None` if the
/// stream is no longer stored.
///
/// # Errors
/// The bytes cannot be read.
pub(crate) fn read_part(
    objects: &Objects,
    stream: &StreamView,
    offset: u64,
    limit: usize,
) -> Result<Option<(StoredPart, u64)>, StoreError> {
    if stream.kept_bytes == 0 {
        return Ok(Some((StoredPart { bytes: Vec::new(), has_more: false }, 0)));
    }
    // A redaction mark may be longer or shorter than the secret, so the length must be read.
    if stream.redacted > 0
        && let Some(length) = objects.length(&stream.sha256, StoredForm::Redacted)?
    {
        let part = objects.read_part(&stream.sha256, StoredForm::Redacted, offset, limit)?;
        return Ok(part.map(|part| (part, length)));
    }
    let form = if stream.kept_bytes < stream.bytes { StoredForm::Cut } else { StoredForm::Whole };
    let part = objects.read_part(&stream.sha256, form, offset, limit)?;
    Ok(part.map(|part| (part, stream.kept_bytes)))
}

/// The state of a stream that is being drained.
struct OutputCapture {
    hash: Sha256,
    bytes: u64,
    store_limit: u64,
    ends: StreamEnds,
    store: RedactedWriter,
}

/// Drains `pipe` until its end or until `stop` is cancelled. At most `keep` bytes are stored; all are hashed and
/// counted.
///
/// If storing fails (a full disk), `kept_bytes` shows it: the step's result does not depend on storing. Readers of
/// `live` get the stored bytes as they arrive.
pub(crate) async fn drain(
    pipe: OwnedFd,
    keep: u64,
    outputs: Outputs,
    live: Option<LiveWriter>,
    stop: CancellationToken,
) -> StreamEvidence {
    let mut capture = OutputCapture::new(keep, outputs, live);
    let complete = match open_pipe(pipe) {
        Ok(mut pipe) => {
            let end = tokio::select! {
                end = capture.read_all(&mut pipe) => Some(end),
                () = stop.cancelled() => None,
            };
            end.unwrap_or_else(|| capture.read_available(&pipe))
        }
        Err(error) => {
            tracing::error!(%error, "an output pipe cannot be read");
            false
        }
    };
    capture.finish_on_blocking_thread(complete).await
}

/// An output stream that was read elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedStream<'a> {
    /// Its beginning.
    pub(crate) head: &'a [u8],
    /// Its end, if something is left out between the two.
    pub(crate) tail: &'a [u8],
    /// Number of bytes of the whole stream.
    pub(crate) bytes: u64,
    /// The digest of the whole stream.
    pub(crate) sha256: &'a Sha256Hex,
    /// True if the output was read to its end.
    pub(crate) complete: bool,
}

/// Stores a stream that was read elsewhere. At most `keep` bytes are stored. Returns `None` if the stream is complete
/// and its digest differs. Blocks the thread.
pub(crate) fn store_received(
    stream: ReceivedStream<'_>,
    keep: u64,
    outputs: &Outputs,
    live: Option<LiveWriter>,
) -> Option<StreamEvidence> {
    let mut capture = OutputCapture::new(keep.min(stream.head.len() as u64), outputs.clone(), live);
    stream.head.chunks(CHUNK).for_each(|chunk| capture.push(chunk));
    let is_cut = stream.head.len() as u64 != stream.bytes;
    if is_cut {
        stream.tail.chunks(CHUNK).for_each(|chunk| capture.push(chunk));
        if capture.bytes >= stream.bytes {
            return None;
        }
        capture.bytes = stream.bytes;
    }
    let sha256 = Sha256Hex::from_raw(std::mem::take(&mut capture.hash).finalize().into());
    if !is_cut && sha256 != *stream.sha256 {
        return None;
    }
    Some(capture.finish_with_digest(stream.complete, stream.sha256.clone()))
}

fn open_pipe(pipe: OwnedFd) -> std::io::Result<pipe::Receiver> {
    // A larger pipe means fewer wake-ups, but a limit of the system may forbid it.
    if let Err(errno) = rustix::pipe::fcntl_setpipe_size(&pipe, CHUNK) {
        tracing::debug!(%errno, "the pipe keeps its default size");
    }
    pipe::Receiver::from_owned_fd(pipe)
}

impl OutputCapture {
    fn new(keep: u64, outputs: Outputs, live: Option<LiveWriter>) -> Self {
        let whole = RedactedWriter::new(&outputs, live);
        Self { hash: Sha256::new(), bytes: 0, store_limit: keep, ends: StreamEnds::new(outputs.redactor), store: whole }
    }

    /// Reads to the end; `false` if a read fails first.
    async fn read_all(&mut self, pipe: &mut pipe::Receiver) -> bool {
        let mut buffer = vec![0u8; FIRST_CHUNK];
        let mut unbroken = 0;
        loop {
            let read = if self.store.can_release() {
                match tokio::time::timeout(RELEASE_AFTER, pipe.read(&mut buffer)).await {
                    Ok(read) => read,
                    Err(_) => {
                        self.store.release();
                        continue;
                    }
                }
            } else {
                pipe.read(&mut buffer).await
            };
            match read {
                Ok(0) => return true,
                Ok(count) => {
                    self.push(&buffer[..count]);
                    if count == buffer.len() {
                        buffer.resize(CHUNK, 0);
                    }
                    unbroken += count;
                    if unbroken >= CHUNK {
                        // Yields, so that a stream that always has data cannot keep this task from noticing a
                        // deadline.
                        tokio::task::yield_now().await;
                        unbroken = 0;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "an output pipe cannot be read");
                    return false;
                }
            }
        }
    }

    /// Reads the bytes in the pipe without waiting, at most the capacity of a pipe; `true` if it reached the end.
    fn read_available(&mut self, pipe: &pipe::Receiver) -> bool {
        let mut buffer = vec![0u8; CHUNK];
        for _ in 0..MAX_PIPE / CHUNK {
            match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut buffer)) {
                Ok(0) => return true,
                Ok(count) => self.push(&buffer[..count]),
                Err(_) => return false,
            }
        }
        false
    }

    fn push(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.ends.push(bytes);
        let wanted = usize::try_from(self.store_limit - self.store.kept).unwrap_or(usize::MAX).min(bytes.len());
        self.store.push(&bytes[..wanted]);
    }

    /// Finishes the stream. If bytes are stored, it uses a blocking thread, because it waits for the disk.
    async fn finish_on_blocking_thread(self, complete: bool) -> StreamEvidence {
        if self.store.kept == 0 {
            return self.finish(complete);
        }
        tokio::task::spawn_blocking(move || self.finish(complete)).await.unwrap_or_else(|error| {
            tracing::error!(%error, "the end of an output could not be stored");
            StreamEvidence { complete: false, ..StreamEvidence::empty() }
        })
    }

    fn finish(mut self, complete: bool) -> StreamEvidence {
        let sha256 = Sha256Hex::from_raw(std::mem::take(&mut self.hash).finalize().into());
        self.finish_with_digest(complete, sha256)
    }

    fn finish_with_digest(self, complete: bool, sha256: Sha256Hex) -> StreamEvidence {
        let (kept_bytes, kept_secrets) = self.store.finish(&sha256, self.bytes);
        let shown = self.ends.finish(self.bytes);
        let only_shown = shown.secrets.range(kept_bytes..).count() as u64;
        StreamEvidence {
            sha256,
            bytes: self.bytes,
            kept_bytes,
            complete,
            redacted: kept_secrets + only_shown,
            preview: shown.preview,
            tail: shown.tail,
        }
    }
}

/// The redacted bytes on their way to the store.
struct RedactedWriter {
    objects: Objects,
    object: StoredObject,
    redaction: RedactedStream,
    /// Number of original bytes that were written.
    kept: u64,
    /// Gives readers the bytes while the step runs.
    live: Option<LiveWriter>,
    /// True if no more bytes can be released until the next byte arrives.
    is_released: bool,
}

/// The state of the stored object.
enum StoredObject {
    /// No bytes have arrived. Most streams stay empty and need no file.
    NotCreated,
    Open(Box<ObjectWriter>),
    /// The object could not be created or written.
    Failed,
}

impl RedactedWriter {
    fn new(outputs: &Outputs, live: Option<LiveWriter>) -> Self {
        let (objects, clean) = (outputs.objects.clone(), outputs.redactor.redact_stream());
        Self { objects, object: StoredObject::NotCreated, redaction: clean, kept: 0, live, is_released: false }
    }

    /// Returns whether readers would get more bytes after a pause.
    fn can_release(&self) -> bool {
        self.live.is_some() && !self.is_released && self.redaction.has_pending()
    }

    /// Releases held-back bytes that cannot be part of a secret.
    fn release(&mut self) {
        self.is_released = true;
        let clean = self.redaction.release_safe_bytes();
        self.write(&clean);
    }

    /// Writes redacted bytes; `false` if they are lost.
    fn write(&mut self, clean: &[u8]) -> bool {
        let StoredObject::Open(writer) = &mut self.object else { return false };
        if let Err(error) = writer.write(clean) {
            self.object = discard_object(error);
            self.kept = 0;
            self.live.iter().for_each(LiveWriter::mark_broken);
            return false;
        }
        if let Some(live) = &self.live {
            live.append(&self.objects, clean);
        }
        true
    }

    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if matches!(self.object, StoredObject::NotCreated) {
            self.object =
                self.objects.writer().map_or_else(discard_object, |writer| StoredObject::Open(Box::new(writer)));
        }
        if !matches!(self.object, StoredObject::Open(_)) {
            self.live.iter().for_each(LiveWriter::mark_broken);
            return;
        }
        self.is_released = false;
        let clean = self.redaction.push_chunk(bytes);
        if self.write(&clean) {
            self.kept += bytes.len() as u64;
        }
    }

    /// Finishes the object. Returns the number of original bytes that are stored and the number of secrets redacted
    /// in them.
    fn finish(self, sha256: &Sha256Hex, bytes: u64) -> (u64, u64) {
        let StoredObject::Open(mut writer) = self.object else { return (0, 0) };
        let cut = self.kept < bytes;
        let (rest, secrets) = self.redaction.finish(cut);
        let kept = match (secrets, cut) {
            (0, false) => StoredForm::Whole,
            (0, true) => StoredForm::Cut,
            _ => StoredForm::Redacted,
        };
        if let Some(live) = &self.live {
            live.append(&self.objects, &rest);
        }
        let written = writer.write(&rest).map_err(|error| error.to_string());
        match written.and_then(|()| writer.finish(sha256, kept).map_err(|error| error.to_string())) {
            Ok(()) => (self.kept, secrets),
            Err(error) => {
                tracing::warn!(%error, "an output cannot be stored");
                (0, 0)
            }
        }
    }
}

fn discard_object(error: impl std::fmt::Display) -> StoredObject {
    tracing::warn!(%error, "an output, or the rest of it, cannot be stored");
    StoredObject::Failed
}

/// The first and last bytes of a stream, each with enough extra bytes to recognize a secret that crosses its edge.
struct StreamEnds {
    redactor: Redactor,
    capacity: usize,
    head: Vec<u8>,
    tail: TailBuffer,
}

/// The ends as they are shown.
struct RenderedEnds {
    preview: String,
    tail: String,
    /// Offsets in the stream of the secrets that were redacted in the two ends.
    secrets: BTreeSet<u64>,
}

impl StreamEnds {
    fn new(redactor: Redactor) -> Self {
        let room = PREVIEW_BYTES + redactor.margin();
        Self {
            redactor,
            capacity: room,
            head: Vec::with_capacity(room),
            tail: TailBuffer { capacity: room, bytes: Vec::new() },
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.capacity - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.push(rest);
    }

    /// Renders the ends of a stream of `bytes` bytes. Secrets are redacted before anything is cut, so that no
    /// partial secret remains at an edge.
    fn finish(self, bytes: u64) -> RenderedEnds {
        let (mut head, tail) = (self.head, self.tail.into_bytes());
        if (head.len() + tail.len()) as u64 == bytes {
            head.extend_from_slice(&tail);
            let (end, begin) = (head.len().min(PREVIEW_BYTES), head.len().saturating_sub(PREVIEW_BYTES));
            let (preview, mut secrets) = self.redactor.redact_part(&head, 0..end);
            let (tail, more) = self.redactor.redact_part(&head, begin.max(end)..head.len());
            secrets.extend(more);
            return RenderedEnds::new(&preview, &tail, secrets.into_iter().map(|at| at as u64));
        }
        let (preview, secrets) = self.redactor.redact_part(&head, 0..PREVIEW_BYTES);
        let before = bytes - tail.len() as u64;
        let (tail, more) = self.redactor.redact_part(&tail, tail.len() - PREVIEW_BYTES..tail.len());
        let secrets = secrets.into_iter().map(|at| at as u64);
        RenderedEnds::new(&preview, &tail, secrets.chain(more.into_iter().map(|at| before + at as u64)))
    }
}

impl RenderedEnds {
    fn new(preview: &[u8], tail: &[u8], secrets: impl Iterator<Item = u64>) -> Self {
        Self { preview: escape_output(preview), tail: escape_output(tail), secrets: secrets.collect() }
    }
}

/// The last `room` bytes of a stream; holds at most twice as many.
struct TailBuffer {
    capacity: usize,
    bytes: Vec<u8>,
}

impl TailBuffer {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(self.capacity)..]);
        if self.bytes.len() > 2 * self.capacity {
            self.bytes.drain(..self.bytes.len() - self.capacity);
        }
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.drain(..self.bytes.len().saturating_sub(self.capacity));
        self.bytes
    }
}

#[cfg(test)]
mod tests;
