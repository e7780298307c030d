//! The stored result of an execution of a step.

use serde::{Deserialize, Serialize};

use crate::model::cache::TransparentCache;
use crate::model::drift::{Entry, EntryKind};
use crate::model::names::RunId;
use crate::model::trace::MAX_ENCODED_BYTES;
use crate::record::evidence::{ResultOrigin, ReuseSource, StepEvidence};
use crate::reuse::observed_inputs::ObservedInputs;
use crate::reuse::worker_inputs::WorkerInputs;
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Maximum size of an encoded result, in bytes.
pub const MAX_STORED_BYTES: usize = 3 * MAX_ENCODED_BYTES;
const MAGIC: &[u8; 16] = b"proctor-result3\n";

/// The result of an execution that can be reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResult {
    /// The key of the step.
    pub key: Sha256Hex,
    /// The run that executed the step.
    pub run_id: RunId,
    /// The end of the execution, in UTC, RFC 3339. For a step with `per_file`, the end of the oldest execution that the
    /// passes of its files can come from.
    pub executed_at: String,
    /// The end time of the execution, in milliseconds since 1970.
    pub executed_ms: u64,
    /// True if the step left files in the tree, which git ignores.
    pub has_files: bool,
    /// The evidence of the execution.
    pub evidence: StepEvidence,
    /// The inputs. Those of a step with `per_file` do not contain its files, and those of a worker are empty.
    pub inputs: ObservedInputs,
    /// The inputs of a step that ran on a worker of a cluster; `None` if it ran on a machine that observed its inputs.
    pub worker: Option<WorkerInputs>,
    /// The [digest](Self::digest_inputs) of the inputs.
    pub inputs_sha256: Sha256Hex,
    /// The files of a step with `per_file`, each of which passed; empty for other steps.
    pub files: Vec<PassedFile>,
    /// The caches of the execution, whose content does not change the result as the spec declares.
    pub transparent_caches: Vec<TransparentCache>,
    /// The machine that executed the step; `None` if it was this one.
    pub origin: Option<ResultOrigin>,
    /// The mounts of the file system images that contain inputs, each once. The stamps of their files count only while these
    /// mounts exist.
    pub images: Vec<ImageMount>,
}

/// The mount of a file system image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImageMount {
    /// The device number of its files.
    pub device: u64,
    /// The identity of the mount and of the boot of the machine.
    pub mount: String,
}

/// A file that passed by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PassedFile {
    /// The path in the tree.
    pub path: String,
    /// The sha256 of the content of the file.
    pub sha256: Sha256Hex,
    /// True for an executable file.
    pub executable: bool,
}

impl PassedFile {
    /// Returns whether a file of the tree has the content that passed.
    pub fn has_content(&self, entry: &Entry) -> bool {
        entry.kind == EntryKind::File && entry.executable == self.executable && entry.sha256 == self.sha256
    }
}

/// Returns the digest that stands for the files that a step leaves, if it checks exactly `files` with these inputs. `files`
/// is empty for a step without `per_file`.
pub fn chain_digest(key: &Sha256Hex, inputs: &Sha256Hex, files: &[PassedFile]) -> Sha256Hex {
    Sha256Hex::digest(&canonical::to_vec(&(key, inputs, files)))
}

#[derive(Serialize, Deserialize)]
struct Header {
    key: Sha256Hex,
    run_id: RunId,
    executed_at: String,
    executed_ms: u64,
    has_files: bool,
    evidence: StepEvidence,
    inputs_sha256: Sha256Hex,
    files: Vec<PassedFile>,
    transparent_caches: Vec<TransparentCache>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<ResultOrigin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerInputs>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<ImageMount>,
}

impl StoredResult {
    /// Returns the digest that stands for the files of this execution in the identity of later steps: executions of the
    /// same step on the same inputs are interchangeable.
    pub fn chain_digest(&self) -> Sha256Hex {
        chain_digest(&self.key, &self.inputs_sha256, &self.files)
    }

    /// Returns the digest of the inputs.
    pub fn digest_inputs(&self) -> Sha256Hex {
        self.worker.as_ref().map_or_else(|| self.inputs.digest(), WorkerInputs::digest)
    }

    /// Adds the images of another result whose inputs this one contains.
    pub fn add_images(&mut self, images: &[ImageMount]) {
        self.images.extend_from_slice(images);
        self.images.sort();
        self.images.dedup();
    }

    /// Sets the age of the result to that of `other`, if `other` is older.
    pub fn keep_older_age(&mut self, other: &Self) {
        if other.executed_ms < self.executed_ms {
            self.executed_ms = other.executed_ms;
            self.executed_at.clone_from(&other.executed_at);
        }
    }

    /// Returns the source of a reused result, for its evidence.
    pub fn source(&self) -> ReuseSource {
        ReuseSource {
            run_id: self.run_id.clone(),
            executed_at: self.executed_at.clone(),
            inputs_sha256: self.inputs_sha256.clone(),
            inputs: self.inputs.path_count() as u64,
            whole_tree: self.worker.is_some(),
            transparent_caches: self.transparent_caches.clone(),
            origin: self.origin.clone(),
        }
    }

    /// Encodes the result.
    pub fn encode(&self) -> Vec<u8> {
        let header = Header {
            key: self.key.clone(),
            run_id: self.run_id.clone(),
            executed_at: self.executed_at.clone(),
            executed_ms: self.executed_ms,
            has_files: self.has_files,
            evidence: self.evidence.clone(),
            inputs_sha256: self.inputs_sha256.clone(),
            files: self.files.clone(),
            transparent_caches: self.transparent_caches.clone(),
            origin: self.origin.clone(),
            worker: self.worker.clone(),
            images: self.images.clone(),
        };
        // Serializing these types cannot fail.
        let header = serde_json::to_vec(&header).unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&self.inputs.encode());
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a result; `None` if the bytes are damaged or of another version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return None;
        }
        let (length, rest) = content.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
        let (header, inputs) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let header: Header = serde_json::from_slice(header).ok()?;
        Some(Self {
            key: header.key,
            run_id: header.run_id,
            executed_at: header.executed_at,
            executed_ms: header.executed_ms,
            has_files: header.has_files,
            evidence: header.evidence,
            inputs: ObservedInputs::decode(inputs).ok()?,
            inputs_sha256: header.inputs_sha256,
            files: header.files,
            transparent_caches: header.transparent_caches,
            origin: header.origin,
            worker: header.worker,
            images: header.images,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_digest_differs_for_different_files() {
        let digest = Sha256Hex::digest;
        let file = |path: &str, content: &str, executable| PassedFile {
            path: path.to_owned(),
            sha256: digest(content.as_bytes()),
            executable,
        };
        let (key, inputs) = (digest(b"key"), digest(b"inputs"));
        let combined = format!("a {} b", digest(b"1"));
        let lists = [
            vec![],
            vec![file("a", "1", false)],
            vec![file("a", "1", true)],
            vec![file("a", "2", false)],
            vec![file("a", "1", false), file("b", "2", false)],
            vec![file(&combined, "2", false)],
        ];
        let mut digests: Vec<Sha256Hex> = lists.iter().map(|files| chain_digest(&key, &inputs, files)).collect();
        digests.extend([chain_digest(&inputs, &inputs, &[]), chain_digest(&key, &key, &[])]);
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), lists.len() + 2);
    }
}
