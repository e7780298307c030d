//! Drains one output stream of an attempt while the step runs. It hashes the bytes as they arrive, keeps both ends
//! for the preview, and stores as much of the whole output as the plan allows. The hash covers the original bytes;
//! stored and shown bytes are redacted.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use proctor_core::api::StreamView;
use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::{PREVIEW_BYTES, StreamEvidence, escape_output};
use proctor_core::redact::{RedactedStream, Redactor};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use crate::live_output::LiveWriter;
use crate::store::StoreError;
use crate::store::objects::{Kept, ObjectWriter, Objects, Part};

/// Size of a read in bytes, and the size that pipes are set to.
const CHUNK: usize = 256 << 10;
/// Size of the first reads in bytes: most outputs are short, and allocating a larger buffer costs time.
const FIRST: usize = 4 << 10;
/// Maximum pipe size of an ordinary user (`pipe-max-size` in pipe(7)).
const MAX_PIPE: usize = 1 << 20;

/// Pause in an output after which readers get the bytes that the search for secrets holds back.
const PAUSE: Duration = Duration::from_millis(50);

/// The store for outputs, and the redactor.
#[derive(Debug, Clone)]
pub(crate) struct Outputs {
    pub(crate) objects: Objects,
    pub(crate) redactor: Redactor,
}

impl Outputs {
    /// Stores a whole file that a step left, like an output. Returns its hash and the number of redacted secrets;
    /// `None` if it cannot be stored.
    pub(crate) fn keep(&self, bytes: &[u8]) -> Option<(Sha256Hex, u64)> {
        let sha256 = Sha256Hex::of(bytes);
        let mut store = Store::new(self, None);
        bytes.chunks(CHUNK).for_each(|chunk| store.take(chunk));
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
            // A redaction mark may be longer than the secret, so `kept_bytes` is no bound.
            && let Some(bytes) = self.objects.read(&stream.sha256, Kept::Redacted, u64::MAX)?
        {
            return Ok(bytes);
        }
        let kept = if stream.kept_bytes < stream.bytes { Kept::Cut } else { Kept::Whole };
        Ok(self.objects.read(&stream.sha256, kept, stream.kept_bytes)?.unwrap_or_default())
    }
}

/// Returns at most `limit` stored bytes of a stream, starting at `offset`, and their total number; `None` if the
/// stream is no longer stored.
///
/// # Errors
/// The bytes cannot be read.
pub(crate) fn part(
    objects: &Objects,
    stream: &StreamView,
    offset: u64,
    limit: usize,
) -> Result<Option<(Part, u64)>, StoreError> {
    if stream.kept_bytes == 0 {
        return Ok(Some((Part { bytes: Vec::new(), more: false }, 0)));
    }
    // A redaction mark may be longer or shorter than the secret, so the length must be read.
    if stream.redacted > 0
        && let Some(length) = objects.length(&stream.sha256, Kept::Redacted)?
    {
        let part = objects.part(&stream.sha256, Kept::Redacted, offset, limit)?;
        return Ok(part.map(|part| (part, length)));
    }
    let kept = if stream.kept_bytes < stream.bytes { Kept::Cut } else { Kept::Whole };
    let part = objects.part(&stream.sha256, kept, offset, limit)?;
    Ok(part.map(|part| (part, stream.kept_bytes)))
}

/// The state of a stream that is being drained.
struct Capture {
    hash: Sha256,
    bytes: u64,
    keep: u64,
    ends: Ends,
    whole: Store,
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
    let mut capture = Capture::new(keep, outputs, live);
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
    capture.finish_apart(complete).await
}

fn prepare(pipe: OwnedFd) -> std::io::Result<pipe::Receiver> {
    // A larger pipe means fewer wake-ups, but a limit of the system may forbid it.
    if let Err(errno) = rustix::pipe::fcntl_setpipe_size(&pipe, CHUNK) {
        tracing::debug!(%errno, "the pipe keeps its default size");
    }
    pipe::Receiver::from_owned_fd(pipe)
}

impl Capture {
    fn new(keep: u64, outputs: Outputs, live: Option<LiveWriter>) -> Self {
        let whole = Store::new(&outputs, live);
        Self { hash: Sha256::new(), bytes: 0, keep, ends: Ends::new(outputs.redactor), whole }
    }

    /// Reads to the end; `false` if a read fails first.
    async fn read_all(&mut self, pipe: &mut pipe::Receiver) -> bool {
        let mut buffer = vec![0u8; FIRST];
        let mut unbroken = 0;
        loop {
            let read = if self.whole.may_release() {
                match tokio::time::timeout(PAUSE, pipe.read(&mut buffer)).await {
                    Ok(read) => read,
                    Err(_) => {
                        self.whole.release();
                        continue;
                    }
                }
            } else {
                pipe.read(&mut buffer).await
            };
            match read {
                Ok(0) => return true,
                Ok(count) => {
                    self.take(&buffer[..count]);
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
        self.ends.take(bytes);
        let wanted = usize::try_from(self.keep - self.whole.kept).unwrap_or(usize::MAX).min(bytes.len());
        self.whole.take(&bytes[..wanted]);
    }

    /// Finishes the stream. If bytes are stored, it uses a blocking thread, because it waits for the disk.
    async fn finish_apart(self, complete: bool) -> StreamEvidence {
        if self.whole.kept == 0 {
            return self.finish(complete);
        }
        tokio::task::spawn_blocking(move || self.finish(complete)).await.unwrap_or_else(|error| {
            tracing::error!(%error, "the end of an output could not be kept");
            StreamEvidence { complete: false, ..StreamEvidence::empty() }
        })
    }

    fn finish(self, complete: bool) -> StreamEvidence {
        let sha256 = Sha256Hex::from_raw(self.hash.finalize().into());
        let (kept_bytes, kept_secrets) = self.whole.finish(&sha256, self.bytes);
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
struct Store {
    objects: Objects,
    object: Object,
    clean: RedactedStream,
    /// Number of original bytes that went in.
    kept: u64,
    /// Gives readers the bytes while the step runs.
    live: Option<LiveWriter>,
    /// True if no more bytes can be released until the next byte arrives.
    is_released: bool,
}

/// The state of the stored object.
enum Object {
    /// No bytes have arrived. Most streams stay empty and need no file.
    Unmade,
    Open(Box<ObjectWriter>),
    /// The object could not be created or written.
    Lost,
}

impl Store {
    fn new(outputs: &Outputs, live: Option<LiveWriter>) -> Self {
        let (objects, clean) = (outputs.objects.clone(), outputs.redactor.stream());
        Self { objects, object: Object::Unmade, clean, kept: 0, live, is_released: false }
    }

    /// Returns whether readers would get more bytes after a pause.
    fn may_release(&self) -> bool {
        self.live.is_some() && !self.is_released && self.clean.is_holding()
    }

    /// Releases held-back bytes that cannot be part of a secret.
    fn release(&mut self) {
        self.is_released = true;
        let clean = self.clean.release();
        self.write(&clean);
    }

    /// Writes redacted bytes; `false` if they are lost.
    fn write(&mut self, clean: &[u8]) -> bool {
        let Object::Open(writer) = &mut self.object else { return false };
        if let Err(error) = writer.write(clean) {
            self.object = lost(error);
            self.kept = 0;
            self.live.iter().for_each(LiveWriter::fail);
            return false;
        }
        if let Some(live) = &self.live {
            live.append(&self.objects, clean);
        }
        true
    }

    fn take(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if matches!(self.object, Object::Unmade) {
            self.object = self.objects.writer().map_or_else(lost, |writer| Object::Open(Box::new(writer)));
        }
        if !matches!(self.object, Object::Open(_)) {
            self.live.iter().for_each(LiveWriter::fail);
            return;
        }
        self.is_released = false;
        let clean = self.clean.push(bytes);
        if self.write(&clean) {
            self.kept += bytes.len() as u64;
        }
    }

    /// Finishes the object. Returns the number of original bytes that are stored and the number of secrets redacted
    /// in them.
    fn finish(self, sha256: &Sha256Hex, bytes: u64) -> (u64, u64) {
        let Object::Open(mut writer) = self.object else { return (0, 0) };
        let cut = self.kept < bytes;
        let (rest, secrets) = self.clean.finish(cut);
        let kept = match (secrets, cut) {
            (0, false) => Kept::Whole,
            (0, true) => Kept::Cut,
            _ => Kept::Redacted,
        };
        if let Some(live) = &self.live {
            live.append(&self.objects, &rest);
        }
        let written = writer.write(&rest).map_err(|error| error.to_string());
        match written.and_then(|()| writer.finish(sha256, kept).map_err(|error| error.to_string())) {
            Ok(()) => (self.kept, secrets),
            Err(error) => {
                tracing::warn!(%error, "an output is not kept");
                (0, 0)
            }
        }
    }
}

fn lost(error: impl std::fmt::Display) -> Object {
    tracing::warn!(%error, "an output, or the rest of it, is not kept");
    Object::Lost
}

/// The first and last bytes of a stream, each with enough extra bytes to recognize a secret that crosses its edge.
struct Ends {
    redactor: Redactor,
    room: usize,
    head: Vec<u8>,
    tail: Tail,
}

/// The ends as they are shown.
struct Shown {
    preview: String,
    tail: String,
    /// Offsets in the stream of the secrets that were redacted in the two ends.
    secrets: BTreeSet<u64>,
}

impl Ends {
    fn new(redactor: Redactor) -> Self {
        let room = PREVIEW_BYTES + redactor.margin();
        Self { redactor, room, head: Vec::with_capacity(room), tail: Tail { room, bytes: Vec::new() } }
    }

    fn take(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.room - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.push(rest);
    }

    /// Renders the ends of a stream of `bytes` bytes. Secrets are redacted before anything is cut, so that no
    /// partial secret remains at an edge.
    fn finish(self, bytes: u64) -> Shown {
        let (mut head, tail) = (self.head, self.tail.into_bytes());
        if (head.len() + tail.len()) as u64 == bytes {
            head.extend_from_slice(&tail);
            let (end, begin) = (head.len().min(PREVIEW_BYTES), head.len().saturating_sub(PREVIEW_BYTES));
            let (preview, mut secrets) = self.redactor.part(&head, 0..end);
            let (tail, more) = self.redactor.part(&head, begin.max(end)..head.len());
            secrets.extend(more);
            return Shown::new(&preview, &tail, secrets.into_iter().map(|at| at as u64));
        }
        let (preview, secrets) = self.redactor.part(&head, 0..PREVIEW_BYTES);
        let before = bytes - tail.len() as u64;
        let (tail, more) = self.redactor.part(&tail, tail.len() - PREVIEW_BYTES..tail.len());
        let secrets = secrets.into_iter().map(|at| at as u64);
        Shown::new(&preview, &tail, secrets.chain(more.into_iter().map(|at| before + at as u64)))
    }
}

impl Shown {
    fn new(preview: &[u8], tail: &[u8], secrets: impl Iterator<Item = u64>) -> Self {
        Self { preview: escape_output(preview), tail: escape_output(tail), secrets: secrets.collect() }
    }
}

/// The last `room` bytes of a stream; holds at most twice as many.
struct Tail {
    room: usize,
    bytes: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(self.room)..]);
        if self.bytes.len() > 2 * self.room {
            self.bytes.drain(..self.bytes.len() - self.room);
        }
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.drain(..self.bytes.len().saturating_sub(self.room));
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live_output::{LiveOutputs, StreamState};
    use crate::store::directory::Directory;
    use proctor_core::names::{SkillName, StepName};
    use std::io::Write as _;

    const SECRET: &str = "s3cr3t-value";

    fn outputs(temp: &tempfile::TempDir) -> Outputs {
        let objects = Objects::open(&Directory::open(temp.path()).expect("opens")).expect("opens");
        Outputs { objects, redactor: Redactor::of([("A_TOKEN", SECRET)], |_| false) }
    }

    async fn drained(text: Vec<u8>, keep: u64) -> (StreamEvidence, Vec<u8>) {
        let temp = tempfile::tempdir().expect("temp");
        let outputs = outputs(&temp);
        let stream = drained_into(&outputs, text, keep).await;
        let kept = outputs.read(&stream).expect("reads");
        (stream, kept)
    }

    async fn drained_into(outputs: &Outputs, text: Vec<u8>, keep: u64) -> StreamEvidence {
        let (reader, writer) = std::io::pipe().expect("pipe");
        let feeder = std::thread::spawn(move || {
            let mut writer = writer;
            writer.write_all(&text).expect("writes");
        });
        let stream = drain(reader.into(), keep, outputs.clone(), None, CancellationToken::new()).await;
        feeder.join().expect("fed");
        stream
    }

    #[tokio::test]
    async fn the_hash_covers_all_and_the_previews_both_ends() {
        let text: Vec<u8> = (0..1_000_000u32).flat_map(|i| format!("{i}\n").into_bytes()).collect();
        let (stream, kept) = drained(text.clone(), 1000).await;
        assert_eq!(stream.sha256, Sha256Hex::of(&text));
        assert_eq!((stream.bytes, stream.kept_bytes, stream.complete), (text.len() as u64, 1000, true));
        assert_eq!((stream.preview.as_bytes(), stream.redacted), (&text[..PREVIEW_BYTES], 0));
        assert_eq!(stream.tail.as_bytes(), &text[text.len() - PREVIEW_BYTES..]);
        assert_eq!(kept, text[..1000]);
    }

    #[tokio::test]
    async fn a_short_output_is_all_preview() {
        let (stream, kept) = drained(b"hi".to_vec(), 1000).await;
        assert_eq!((stream.preview.as_str(), stream.tail.as_str()), ("hi", ""));
        assert_eq!(kept, b"hi");
    }

    #[tokio::test]
    async fn a_secret_is_hashed_and_neither_kept_nor_shown() {
        let text = format!("a {SECRET} b\n").into_bytes();
        let (stream, kept) = drained(text.clone(), 1000).await;
        assert_eq!((stream.sha256, stream.bytes, stream.kept_bytes), (Sha256Hex::of(&text), 17, 17));
        assert_eq!((stream.preview.as_str(), stream.redacted), ("a [redacted] b\n", 1));
        assert_eq!(kept, b"a [redacted] b\n");
    }

    #[test]
    fn a_file_is_kept_whole_and_without_secrets() {
        let temp = tempfile::tempdir().expect("temp");
        let outputs = outputs(&temp);
        for (text, kept, secrets) in
            [("<a/>".to_owned(), "<a/>", 0), (format!("<a b='{SECRET}'/>"), "<a b='[redacted]'/>", 1)]
        {
            let (sha256, redacted) = outputs.keep(text.as_bytes()).expect("keeps");
            assert_eq!((&sha256, redacted), (&Sha256Hex::of(text.as_bytes()), secrets));
            let kind = if secrets > 0 { Kept::Redacted } else { Kept::Whole };
            let object = outputs.objects.read(&sha256, kind, 99).expect("reads").expect("is kept");
            assert_eq!(object, kept.as_bytes());
        }
        assert_eq!(outputs.keep(b""), Some((Sha256Hex::of(b""), 0)));
    }

    #[tokio::test]
    async fn a_part_tells_how_long_all_is_that_can_be_read() {
        let temp = tempfile::tempdir().expect("temp");
        let outputs = outputs(&temp);
        let secret = format!("a {SECRET} b\n");
        for (text, keep, kept) in
            [("hello", 9, "hello"), ("hello", 3, "hel"), (secret.as_str(), 99, "a [redacted] b\n"), ("", 9, "")]
        {
            let stream = drained_into(&outputs, text.into(), keep).await;
            let part = |offset, limit| {
                let part = part(&outputs.objects, &StreamView::from(&stream), offset, limit);
                let (part, length) = part.expect("reads").expect("is kept");
                (String::from_utf8(part.bytes).expect("text"), part.more, length)
            };
            assert_eq!(part(0, 99), (kept.to_owned(), false, kept.len() as u64));
            assert_eq!(part(2, 1), (kept.chars().skip(2).take(1).collect(), kept.len() > 3, kept.len() as u64));
            assert_eq!(part(99, 99), (String::new(), false, kept.len() as u64));
        }
    }

    #[tokio::test]
    async fn no_half_of_a_secret_stands_at_an_edge() {
        // One secret crosses the end of the preview, one the output limit, and one the start of the tail.
        let filler = |length: usize| ".".repeat(length);
        let (edge, cut) = (PREVIEW_BYTES - 5, 20_000 - 5);
        let middle = filler(cut - edge - SECRET.len());
        let end = filler(PREVIEW_BYTES - 5);
        let text = format!("{}{SECRET}{middle}{SECRET}{}{SECRET}{end}", filler(edge), filler(9000));
        let (stream, kept) = drained(text.into_bytes(), 20_000).await;
        assert_eq!(stream.preview, filler(edge) + "[redacted]");
        assert_eq!(stream.tail, "[redacted]".to_owned() + &end);
        assert_eq!(kept, format!("{}[redacted]{middle}[redacted]", filler(edge)).into_bytes());
        assert_eq!((stream.redacted, stream.kept_bytes), (3, 20_000));
    }

    #[tokio::test]
    async fn secrets_between_the_ends_are_not_kept_either() {
        let text = format!("{}{SECRET}{}", " ".repeat(300_000), " ".repeat(300_000));
        let (stream, kept) = drained(text.into_bytes(), 1 << 20).await;
        assert_eq!((stream.redacted, kept.len()), (1, 600_010));
        assert!(!String::from_utf8_lossy(&kept).contains(SECRET));
    }

    /// Returns what readers see of an output that arrives in `pieces` with a pause after each, and what is stored.
    async fn seen_and_kept(pieces: &[&str], keep: u64) -> (Vec<Vec<u8>>, Vec<u8>) {
        let temp = tempfile::tempdir().expect("temp");
        let (outputs, live) = (outputs(&temp), LiveOutputs::default());
        let (skill, step) = (SkillName::new("s").expect("a name"), StepName::new("t").expect("a name"));
        let [out, _err] = live.begin(&skill, &step, 1);
        let stream = live.step("s", "t").expect("it runs").stdout;
        let (reader, mut writer) = std::io::pipe().expect("pipe");
        let stop = CancellationToken::new();
        let draining = tokio::spawn(drain(reader.into(), keep, outputs.clone(), Some(out), stop));
        let mut seen = vec![Vec::new()];
        for piece in pieces {
            writer.write_all(piece.as_bytes()).expect("writes");
            // Wait for the bytes that a pause releases, or for the end of the stored output.
            let before = seen.concat().len() as u64;
            let more = tokio::time::timeout(4 * PAUSE, stream.beyond(before)).await;
            tokio::time::sleep(2 * PAUSE).await;
            seen.push(more.map_or_else(|_| Vec::new(), |_| stream.read(before, usize::MAX).expect("reads")));
        }
        drop(writer);
        let evidence = draining.await.expect("drains");
        let before = seen.concat().len() as u64;
        assert_eq!(stream.beyond(u64::MAX).await.state, StreamState::Ended);
        seen.push(stream.read(before, usize::MAX).expect("reads"));
        (seen, outputs.read(&evidence).expect("reads"))
    }

    #[tokio::test(start_paused = true)]
    async fn readers_see_the_kept_bytes_while_they_come_and_no_part_of_a_secret() {
        let (seen, kept) = seen_and_kept(&["building\nkey s3cr", "3t-va", "lue\n", "done"], 1000).await;
        let text: Vec<String> = seen.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        assert_eq!(text, ["", "building\nkey ", "", "[redacted]\n", "done", ""]);
        assert_eq!(seen.concat(), kept);
    }

    #[tokio::test(start_paused = true)]
    async fn readers_see_no_more_than_is_kept() {
        // The limit cuts through a secret.
        let (seen, kept) = seen_and_kept(&["0123 s3cr3t-value", " more"], 10).await;
        assert_eq!((seen.concat(), kept), (b"0123 [redacted]".to_vec(), b"0123 [redacted]".to_vec()));
    }

    #[tokio::test]
    async fn a_held_pipe_is_given_up_and_what_came_is_kept() {
        let temp = tempfile::tempdir().expect("temp");
        let (reader, mut writer) = std::io::pipe().expect("pipe");
        writer.write_all(b"so far").expect("writes");
        let stop = CancellationToken::new();
        stop.cancel();
        let stream = drain(reader.into(), 1000, outputs(&temp), None, stop).await;
        assert_eq!((stream.preview.as_str(), stream.complete), ("so far", false));
        drop(writer);
    }

    proptest::proptest! {
        #[test]
        fn the_tail_is_the_last_bytes(chunks in proptest::collection::vec(proptest::collection::vec(0u8..255, 0..3000), 0..12)) {
            let mut tail = Tail { room: PREVIEW_BYTES, bytes: Vec::new() };
            chunks.iter().for_each(|chunk| tail.push(chunk));
            let all: Vec<u8> = chunks.concat();
            let expected = &all[all.len().saturating_sub(PREVIEW_BYTES)..];
            proptest::prop_assert_eq!(tail.into_bytes(), expected);
        }
    }
}
