//! One output stream of an attempt: drained while the step runs, hashed as it comes, its two
//! ends kept for the preview, and as much of it as the plan allows kept whole.

use std::os::fd::OwnedFd;

use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::{PREVIEW_BYTES, StreamEvidence, escape_output};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use crate::store::objects::{ObjectWriter, Objects};

/// How much is read at a time: the size that pipes are set to.
const CHUNK: usize = 256 << 10;
/// The largest pipe that an ordinary user may have (`pipe-max-size` of pipe(7)).
const MAX_PIPE: usize = 1 << 20;

/// What was seen of a stream so far.
struct Capture {
    hash: Sha256,
    bytes: u64,
    keep: u64,
    kept: u64,
    head: Vec<u8>,
    tail: Tail,
    whole: Option<ObjectWriter>,
}

/// Drains `pipe` until its end, or until `stop` says that nothing more is waited for. At most
/// `keep` bytes are kept in `objects`; all of them are hashed and counted.
///
/// What cannot be kept (a full disk) is not kept, and `kept_bytes` says so: the step's result
/// does not depend on it.
pub(crate) async fn drain(pipe: OwnedFd, keep: u64, objects: Objects, stop: CancellationToken) -> StreamEvidence {
    let mut capture = Capture::new(keep, &objects);
    let complete = match prepare(pipe) {
        Ok(mut pipe) => {
            let end = tokio::select! {
                end = capture.read_all(&mut pipe) => Some(end),
                () = stop.cancelled() => None,
            };
            end.unwrap_or_else(|| capture.read_rest(&pipe))
        }
        Err(error) => {
            tracing::error!(%error, "an output pipe cannot be read");
            false
        }
    };
    capture.finish(complete)
}

fn prepare(pipe: OwnedFd) -> std::io::Result<pipe::Receiver> {
    // A larger pipe means fewer wake-ups; the limit of an ordinary user may forbid it.
    if let Err(errno) = rustix::pipe::fcntl_setpipe_size(&pipe, CHUNK) {
        tracing::debug!(%errno, "the pipe keeps its default size");
    }
    pipe::Receiver::from_owned_fd(pipe)
}

impl Capture {
    fn new(keep: u64, objects: &Objects) -> Self {
        let whole = objects.writer().inspect_err(|error| tracing::warn!(%error, "an output is not kept")).ok();
        let (head, tail) = (Vec::with_capacity(PREVIEW_BYTES), Tail::default());
        Self { hash: Sha256::new(), bytes: 0, keep, kept: 0, head, tail, whole }
    }

    /// Reads to the end; `false` where reading fails before it.
    async fn read_all(&mut self, pipe: &mut pipe::Receiver) -> bool {
        let mut buffer = vec![0u8; CHUNK];
        loop {
            match pipe.read(&mut buffer).await {
                Ok(0) => return true,
                Ok(count) => self.take(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "an output pipe cannot be read");
                    return false;
                }
            }
        }
    }

    /// Reads what lies in the pipe now, without waiting and at most as much as a pipe holds;
    /// `true` where that was the end.
    fn read_rest(&mut self, pipe: &pipe::Receiver) -> bool {
        let mut buffer = vec![0u8; CHUNK];
        for _ in 0..MAX_PIPE / CHUNK {
            match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut buffer)) {
                Ok(0) => return true,
                Ok(count) => self.take(&buffer[..count]),
                Err(_) => return false,
            }
        }
        false
    }

    fn take(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(PREVIEW_BYTES - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.push(rest);
        let wanted = usize::try_from(self.keep - self.kept).unwrap_or(usize::MAX).min(bytes.len());
        self.store(&bytes[..wanted]);
    }

    fn store(&mut self, bytes: &[u8]) {
        let Some(writer) = self.whole.as_mut().filter(|_| !bytes.is_empty()) else { return };
        match writer.write(bytes) {
            Ok(()) => self.kept += bytes.len() as u64,
            Err(error) => {
                tracing::warn!(%error, "the rest of an output is not kept");
                self.whole = None;
                self.kept = 0;
            }
        }
    }

    fn finish(self, complete: bool) -> StreamEvidence {
        let sha256 = Sha256Hex::from_raw(self.hash.finalize().into());
        let cut = self.kept < self.bytes;
        let stored = match self.whole {
            // Nothing printed needs no object.
            Some(writer) if self.bytes > 0 => writer.finish(&sha256, cut),
            _ => Ok(()),
        };
        let kept_bytes = match stored {
            Ok(()) => self.kept,
            Err(error) => {
                tracing::warn!(%error, "an output is not kept");
                0
            }
        };
        let (preview, tail) = (escape_output(&self.head), escape_output(&self.tail.into_bytes()));
        StreamEvidence { sha256, bytes: self.bytes, kept_bytes, complete, preview, tail }
    }
}

/// The last bytes of a stream, without holding more than twice as many.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&bytes[bytes.len().saturating_sub(PREVIEW_BYTES)..]);
        if self.0.len() > 2 * PREVIEW_BYTES {
            self.0.drain(..self.0.len() - PREVIEW_BYTES);
        }
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.0.drain(..self.0.len().saturating_sub(PREVIEW_BYTES));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::directory::Directory;
    use std::io::Write as _;

    fn objects(temp: &tempfile::TempDir) -> Objects {
        Objects::open(&Directory::open(temp.path()).expect("opens")).expect("opens")
    }

    async fn drained(text: Vec<u8>, keep: u64) -> (StreamEvidence, Option<(Vec<u8>, bool)>) {
        let temp = tempfile::tempdir().expect("temp");
        let objects = objects(&temp);
        let (reader, writer) = std::io::pipe().expect("pipe");
        let feeder = std::thread::spawn(move || {
            let mut writer = writer;
            writer.write_all(&text).expect("writes");
        });
        let stream = drain(reader.into(), keep, objects.clone(), CancellationToken::new()).await;
        feeder.join().expect("fed");
        let kept = objects.read(&stream.sha256, u64::MAX).expect("reads");
        (stream, kept)
    }

    #[tokio::test]
    async fn the_hash_covers_all_and_the_previews_both_ends() {
        let text: Vec<u8> = (0..1_000_000u32).flat_map(|i| format!("{i}\n").into_bytes()).collect();
        let (stream, kept) = drained(text.clone(), 1000).await;
        assert_eq!(stream.sha256, Sha256Hex::of(&text));
        assert_eq!((stream.bytes, stream.kept_bytes, stream.complete), (text.len() as u64, 1000, true));
        assert_eq!(stream.preview.as_bytes(), &text[..PREVIEW_BYTES]);
        assert_eq!(stream.tail.as_bytes(), &text[text.len() - PREVIEW_BYTES..]);
        assert_eq!(kept, Some((text[..1000].to_vec(), true)));
    }

    #[tokio::test]
    async fn a_short_output_is_all_preview() {
        let (stream, kept) = drained(b"hi".to_vec(), 1000).await;
        assert_eq!((stream.preview.as_str(), stream.tail.as_str()), ("hi", ""));
        assert_eq!(kept, Some((b"hi".to_vec(), false)));
    }

    #[tokio::test]
    async fn a_held_pipe_is_given_up_and_what_came_is_kept() {
        let temp = tempfile::tempdir().expect("temp");
        let (reader, mut writer) = std::io::pipe().expect("pipe");
        writer.write_all(b"so far").expect("writes");
        let stop = CancellationToken::new();
        stop.cancel();
        let stream = drain(reader.into(), 1000, objects(&temp), stop).await;
        assert_eq!((stream.preview.as_str(), stream.complete), ("so far", false));
        drop(writer);
    }

    proptest::proptest! {
        #[test]
        fn the_tail_is_the_last_bytes_after_the_head(chunks in proptest::collection::vec(proptest::collection::vec(0u8..255, 0..3000), 0..12)) {
            let mut tail = Tail::default();
            chunks.iter().for_each(|chunk| tail.push(chunk));
            let all: Vec<u8> = chunks.concat();
            let expected = &all[all.len().saturating_sub(PREVIEW_BYTES)..];
            proptest::prop_assert_eq!(tail.into_bytes(), expected);
        }
    }
}
