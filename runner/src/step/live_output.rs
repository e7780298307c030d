//! Keeps the output of running steps available to readers.
//!
//! A step never waits for a reader: the task that drains its pipe appends redacted bytes, and readers read them by
//! offset. The offsets are those of the stored output. A reader therefore sees the same bytes whether it starts
//! before or after the end of the step.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_core::model::names::{SkillName, StepName};
use tokio::sync::watch;

use crate::store::objects::Objects;

/// Number of bytes of each output that stay in memory. An unlinked file holds the rest, up to the output limit of
/// the step.
const IN_MEMORY: usize = 64 << 10;
/// Number of bytes of one output that can be read while the step runs. They are not compressed, so without this
/// bound a step that has no output limit could fill the disk.
const MAX_LIVE: u64 = 256 << 20;

/// The live outputs of one run: one entry for each step that runs, or that has ended and is not recorded yet.
#[derive(Debug, Clone, Default)]
pub struct LiveOutputs(Arc<LiveSteps>);

#[derive(Debug, Default)]
struct LiveSteps {
    steps: Mutex<BTreeMap<(SkillName, StepName), LiveStep>>,
    /// Counts changes of any entry.
    changes: watch::Sender<u64>,
}

/// Both outputs of one attempt of a step.
#[derive(Debug, Clone)]
pub struct LiveStep {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The standard output of the attempt.
    pub stdout: LiveStream,
    /// The standard error of the attempt.
    pub stderr: LiveStream,
}

/// One output of an attempt. Clones read the same bytes.
#[derive(Debug, Clone)]
pub struct LiveStream {
    bytes: Arc<Mutex<LiveBytes>>,
    extent: watch::Receiver<StreamExtent>,
}

/// The current length and state of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamExtent {
    /// Number of bytes that can be read.
    pub length: u64,
    /// The state of the output.
    pub state: StreamState,
}

/// The state of an output: more bytes can follow only while it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamState {
    /// The attempt may still print.
    Open,
    /// The output is complete, as far as the output limit keeps it.
    Ended,
    /// Later bytes can only be read after the step has ended, if at all: storing failed, or there are too many.
    Broken,
}

#[derive(Debug, Default)]
struct LiveBytes {
    /// The first [`IN_MEMORY`] bytes.
    head: Vec<u8>,
    /// The bytes after `head`.
    rest: Option<Arc<File>>,
}

impl LiveOutputs {
    /// Adds an attempt. It replaces the earlier attempt of the same step.
    pub(crate) fn begin_attempt(&self, skill: &SkillName, step: &StepName, attempt: u32) -> [LiveWriter; 2] {
        let [(stdout, out), (stderr, err)] = [self.writer(), self.writer()];
        let entry = LiveStep { attempt, stdout, stderr };
        self.steps().insert((skill.clone(), step.clone()), entry);
        self.0.changes.send_modify(|count| *count += 1);
        [out, err]
    }

    fn writer(&self) -> (LiveStream, LiveWriter) {
        let (extent, receiver) = watch::channel(StreamExtent { length: 0, state: StreamState::Open });
        let bytes = Arc::<Mutex<LiveBytes>>::default();
        let stream = LiveStream { bytes: Arc::clone(&bytes), extent: receiver };
        (stream, LiveWriter { outputs: self.clone(), bytes, extent })
    }

    /// Returns the outputs of a step that runs or is not recorded yet.
    pub fn step(&self, skill: &str, step: &str) -> Option<LiveStep> {
        let steps = self.steps();
        steps.iter().find(|((s, t), _)| s.as_str() == skill && t.as_str() == step).map(|(_, live)| live.clone())
    }

    /// Returns the outputs of all such steps, ordered by name.
    pub fn all(&self) -> Vec<(SkillName, StepName, LiveStep)> {
        self.steps().iter().map(|((skill, step), live)| (skill.clone(), step.clone(), live.clone())).collect()
    }

    /// Removes a step: its recorded output replaces the live one.
    pub fn remove(&self, skill: &SkillName, step: &StepName) {
        self.steps().remove(&(skill.clone(), step.clone()));
        self.0.changes.send_modify(|count| *count += 1);
    }

    /// Returns a receiver that reports each change: a new attempt, more bytes, the end of an output.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn steps(&self) -> MutexGuard<'_, BTreeMap<(SkillName, StepName), LiveStep>> {
        self.0.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveStream {
    /// Returns the current length and state of the output.
    pub fn extent(&self) -> StreamExtent {
        *self.extent.borrow()
    }

    /// Waits until there are bytes after `offset`, or no more can follow.
    pub async fn wait_beyond(&self, offset: u64) -> StreamExtent {
        let mut extent = self.extent.clone();
        let ready = |extent: &StreamExtent| extent.length > offset || extent.state != StreamState::Open;
        // A dropped sender has sent its final state.
        let found = extent.wait_for(ready).await.map(|extent| *extent);
        found.unwrap_or_else(|_| self.extent())
    }

    /// Reads at most `limit` bytes, starting at `offset`; returns an empty vector at the current end. May read from
    /// the disk.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let length = self.extent().length;
        let wanted = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(limit);
        let (mut found, rest) = {
            let bytes = lock_bytes(&self.bytes);
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.head.len());
            let end = start.saturating_add(wanted).min(bytes.head.len());
            (bytes.head[start..end].to_vec(), bytes.rest.clone())
        };
        if let (Some(rest), true) = (rest, found.len() < wanted) {
            let known = found.len();
            found.resize(wanted, 0);
            rest.read_exact_at(&mut found[known..], offset + known as u64 - IN_MEMORY as u64)?;
        }
        Ok(found)
    }

    /// Returns the last line of the last `limit` bytes that is not blank.
    ///
    /// # Errors
    /// Same as [`LiveStream::read`].
    pub fn last_line(&self, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let offset = self.extent().length.saturating_sub(limit as u64);
        Ok(last_line(&self.read(offset, limit)?).map(<[u8]>::to_vec))
    }
}

/// Returns the last line that is not blank.
pub fn last_line(bytes: &[u8]) -> Option<&[u8]> {
    // A carriage return starts a line over, as in progress bars.
    let lines = bytes.rsplit(|byte| matches!(byte, b'\n' | b'\r'));
    lines.map(<[u8]>::trim_ascii).find(|line| !line.is_empty())
}

fn lock_bytes(bytes: &Mutex<LiveBytes>) -> MutexGuard<'_, LiveBytes> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The writing side of a [`LiveStream`]. Dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct LiveWriter {
    outputs: LiveOutputs,
    bytes: Arc<Mutex<LiveBytes>>,
    extent: watch::Sender<StreamExtent>,
}

impl LiveWriter {
    /// Appends redacted bytes. If they cannot be stored, the stream counts as broken.
    pub(crate) fn append(&self, objects: &Objects, bytes: &[u8]) {
        let StreamExtent { length, state } = *self.extent.borrow();
        if bytes.is_empty() || state != StreamState::Open {
            return;
        }
        if length + bytes.len() as u64 > MAX_LIVE {
            return self.mark_broken();
        }
        match self.store(objects, length, bytes) {
            Ok(()) => self.advance(StreamExtent { length: length + bytes.len() as u64, state }),
            Err(error) => {
                tracing::warn!(error = %error, "the live output of a step cannot be stored");
                self.mark_broken();
            }
        }
    }

    fn store(&self, objects: &Objects, length: u64, bytes: &[u8]) -> io::Result<()> {
        let mut held = lock_bytes(&self.bytes);
        let (first, more) = bytes.split_at(bytes.len().min(IN_MEMORY - held.head.len()));
        held.head.extend_from_slice(first);
        if more.is_empty() {
            return Ok(());
        }
        let rest = match &held.rest {
            Some(rest) => Arc::clone(rest),
            None => Arc::clone(held.rest.insert(Arc::new(objects.unlinked_file().map_err(io::Error::other)?))),
        };
        drop(held);
        rest.write_all_at(more, length + first.len() as u64 - IN_MEMORY as u64)
    }

    /// Reports that bytes were lost.
    pub(crate) fn mark_broken(&self) {
        let StreamExtent { length, state } = *self.extent.borrow();
        if state == StreamState::Open {
            self.advance(StreamExtent { length, state: StreamState::Broken });
        }
    }

    fn advance(&self, extent: StreamExtent) {
        self.extent.send_replace(extent);
        self.outputs.0.changes.send_modify(|count| *count += 1);
    }
}

impl Drop for LiveWriter {
    fn drop(&mut self) {
        let StreamExtent { length, state } = *self.extent.borrow();
        if state == StreamState::Open {
            self.advance(StreamExtent { length, state: StreamState::Ended });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::directory::Directory;

    fn sample_names() -> (SkillName, StepName) {
        (SkillName::new("s").expect("a name"), StepName::new("t").expect("a name"))
    }

    fn objects(temp: &tempfile::TempDir) -> Objects {
        Objects::open(&Directory::open(temp.path()).expect("opens")).expect("opens")
    }

    #[test]
    fn reads_every_part_of_a_long_output_by_offset() {
        let temp = tempfile::tempdir().expect("temp");
        let (objects, outputs, (skill, step)) = (objects(&temp), LiveOutputs::default(), sample_names());
        let [writer, _] = outputs.begin_attempt(&skill, &step, 1);
        let stream = outputs.step("s", "t").expect("it runs").stdout;
        let text: Vec<u8> = (0..3 * IN_MEMORY).map(|n| n.to_le_bytes()[n % 2]).collect();
        text.chunks(1000).for_each(|chunk| writer.append(&objects, chunk));
        for (offset, limit) in
            [(0, 10), (IN_MEMORY - 3, 6), (IN_MEMORY, 5), (2 * IN_MEMORY, IN_MEMORY), (0, text.len() + 1)]
        {
            let end = (offset + limit).min(text.len());
            assert!(stream.read(offset as u64, limit).expect("reads") == text[offset..end], "{offset}");
        }
        assert!(stream.read(text.len() as u64 + 9, 9).expect("reads").is_empty());
        assert_eq!(std::fs::read_dir(temp.path().join("objects")).expect("lists").count(), 0, "the file has no name");
    }

    #[tokio::test]
    async fn reader_waits_for_bytes_and_end() {
        let temp = tempfile::tempdir().expect("temp");
        let (objects, outputs, (skill, step)) = (objects(&temp), LiveOutputs::default(), sample_names());
        let [out, err] = outputs.begin_attempt(&skill, &step, 1);
        let live = outputs.step("s", "t").expect("it runs");
        out.append(&objects, b"one\n");
        assert_eq!(live.stdout.wait_beyond(0).await, StreamExtent { length: 4, state: StreamState::Open });
        drop(out);
        assert_eq!(live.stdout.wait_beyond(4).await, StreamExtent { length: 4, state: StreamState::Ended });
        err.mark_broken();
        drop(err);
        assert_eq!(live.stderr.wait_beyond(0).await.state, StreamState::Broken);
    }

    #[test]
    fn new_attempt_replaces_old_one_only_for_new_readers() {
        let temp = tempfile::tempdir().expect("temp");
        let (objects, outputs, (skill, step)) = (objects(&temp), LiveOutputs::default(), sample_names());
        let [first, _] = outputs.begin_attempt(&skill, &step, 1);
        first.append(&objects, b"one");
        let early = outputs.step("s", "t").expect("it runs");
        let [second, _] = outputs.begin_attempt(&skill, &step, 2);
        second.append(&objects, b"two");
        let late = outputs.step("s", "t").expect("it runs");
        assert_eq!((early.attempt, early.stdout.read(0, 9).expect("reads")), (1, b"one".to_vec()));
        assert_eq!((late.attempt, late.stdout.read(0, 9).expect("reads")), (2, b"two".to_vec()));
        outputs.remove(&skill, &step);
        assert!(outputs.step("s", "t").is_none() && outputs.all().is_empty());
    }

    #[test]
    fn last_line_skips_blank_lines() {
        for (text, line) in
            [("", None), ("\n \n", None), ("a\nb", Some("b")), ("a\nb\n\n", Some("b")), ("10%\r20%\r", Some("20%"))]
        {
            assert_eq!(last_line(text.as_bytes()), line.map(str::as_bytes), "{text:?}");
        }
    }
}
