//! Tracks the layers below a step, and the resulting content at each path.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::reuse::{ObservedInputs, StoredResult};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::error::GitError;
use proctor_git::helper::IgnoreQuery;
use proctor_sandbox::{Layer, Sealed};
use proctor_snapshot::{LayerScan, Snapshot, TreeView};
use tokio::sync::OnceCell;
use tokio::task::JoinError;

/// Maximum number of layers below a step: the kernel stacks 500 directories (`OVL_MAX_STACK` of fs/overlayfs), one
/// of which is the repository.
const MAX_LAYERS: usize = 499;

/// The reason why a layer cannot be put on a stack.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerStackError {
    /// Git does not report which paths of the layer are ignored.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The task that stacks the layer panicked.
    #[error("stacking the layer failed unexpectedly: {0}")]
    Task(#[from] JoinError),
}

/// A sealed layer and its scan.
#[derive(Debug)]
pub(crate) struct StackedLayer {
    pub(crate) layer: Layer<Sealed>,
    pub(crate) scan: LayerScan,
}

/// The files of a step that was executed only to recreate them.
#[derive(Debug, Clone)]
pub(crate) struct RecreatedFiles {
    /// The layer; `None` if the step left nothing.
    pub(crate) layer: Option<Arc<StackedLayer>>,
    /// True if the stored result stands for these files: the execution took place where the result comes from, on a worker
    /// or on this machine, and with the same inputs.
    pub(crate) is_same: bool,
}

/// The files of a step whose result was reused, completely or for some of the files that it checks.
#[derive(Debug)]
pub(crate) struct ReusedFiles {
    pub(crate) skill: PlannedSkill,
    pub(crate) step: PlannedStep,
    /// The key of the step.
    pub(crate) key: Sha256Hex,
    /// The digest of the stored result; without one, no result of a later step is stored or used.
    pub(crate) stored_as: Option<Sha256Hex>,
    /// The inputs of the stored result, which its digest stands for.
    pub(crate) inputs: ObservedInputs,
    /// True if the stored result is of a worker.
    pub(crate) is_of_worker: bool,
    /// True if the step skips files that are outside the run's restriction.
    pub(crate) leaves_out_others: bool,
    /// The files, once the step was executed.
    pub(crate) layer: OnceCell<Result<RecreatedFiles, String>>,
}

impl ReusedFiles {
    pub(crate) fn new(
        skill: &PlannedSkill,
        step: &PlannedStep,
        result: &StoredResult,
        leaves_out_others: bool,
    ) -> Self {
        let stored_as = Some((result.chain_digest(), result.inputs.clone()));
        Self {
            is_of_worker: result.worker.is_some(),
            ..Self::of_some_files((skill, step), &result.key, stored_as, leaves_out_others)
        }
    }

    /// Creates the files of a step that was executed for some of the files that it checks, because the others had passed.
    pub(crate) fn of_some_files(
        (skill, step): (&PlannedSkill, &PlannedStep),
        key: &Sha256Hex,
        stored_as: Option<(Sha256Hex, ObservedInputs)>,
        leaves_out_others: bool,
    ) -> Self {
        let (stored_as, inputs) = stored_as.unzip();
        Self {
            skill: skill.clone(),
            step: step.clone(),
            key: key.clone(),
            stored_as,
            inputs: inputs.unwrap_or_default(),
            is_of_worker: false,
            leaves_out_others,
            layer: OnceCell::new(),
        }
    }
}

/// The files that a step has left in the tree for later steps.
#[derive(Debug, Clone)]
pub(crate) enum StackPart {
    /// A layer, and the digest that identifies its stored result. Without a stored result, no result of a later step is
    /// stored or used.
    Layer(Arc<StackedLayer>, Option<Sha256Hex>),
    /// The files of a step whose result was reused. They have not been recreated yet.
    Reused(Arc<ReusedFiles>),
}

/// The snapshot with layers on top. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LayerStack {
    view: TreeView,
    /// The parts, oldest first.
    parts: Vec<StackPart>,
}

impl LayerStack {
    pub(crate) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { view: TreeView::new(snapshot), parts: Vec::new() }
    }

    /// Returns the stack with one more layer on top. An empty layer is left out, since the kernel limits the number
    /// of layers.
    pub(crate) fn with_layer(
        &self,
        layer: Arc<StackedLayer>,
        stored_as: Option<Sha256Hex>,
        ignored: &IgnoreQuery,
    ) -> Result<Self, GitError> {
        if layer.scan.entries.is_empty() {
            return Ok(self.clone());
        }
        let view = self.view.with_layer(&layer.scan, ignored)?;
        let mut parts = self.parts.clone();
        parts.push(StackPart::Layer(layer, stored_as));
        Ok(Self { view, parts })
    }

    /// Returns the stack with the files of a step whose result was reused. Git ignores all of them, so that they do not
    /// change the covered content.
    pub(crate) fn with_reused(&self, files: Arc<ReusedFiles>) -> Self {
        let mut parts = self.parts.clone();
        parts.push(StackPart::Reused(files));
        Self { view: self.view.clone(), parts }
    }

    /// Returns the digests of the stored results that stand for the parts, oldest first; `None` if a part has none.
    pub(crate) fn stored_results(&self) -> Option<Vec<Sha256Hex>> {
        let digest = |part: &StackPart| match part {
            StackPart::Layer(_, stored_as) => stored_as.clone(),
            StackPart::Reused(files) => files.stored_as.clone(),
        };
        self.parts.iter().map(digest).collect()
    }

    /// Returns the parts, oldest first, if files of a reused step are missing among them.
    pub(crate) fn incomplete_parts(&self) -> Option<&[StackPart]> {
        let is_missing = |part: &StackPart| matches!(part, StackPart::Reused(_));
        self.parts.iter().any(is_missing).then_some(&self.parts)
    }

    /// Returns the stack without layers.
    pub(crate) fn without_layers(&self) -> Self {
        Self { view: self.view.without_layers(), parts: Vec::new() }
    }

    /// Returns why no step can run on this stack, if it has too many layers.
    pub(crate) fn too_many_layers_message(&self) -> Option<String> {
        (self.parts.len() > MAX_LAYERS).then(|| {
            format!(
                "{} earlier steps wrote files, but a step can be based on at most {MAX_LAYERS} layers; reduce the \
                 number of steps that write, or declare `needs` so that fewer layers are visible",
                self.parts.len()
            )
        })
    }

    pub(crate) fn view(&self) -> &TreeView {
        &self.view
    }

    fn layers(&self) -> impl DoubleEndedIterator<Item = &StackedLayer> {
        self.parts.iter().filter_map(|part| match part {
            StackPart::Layer(layer, _) => Some(&**layer),
            StackPart::Reused(_) => None,
        })
    }

    /// Returns the layers for the overlay, newest first.
    pub(crate) fn lowers(&self) -> Vec<&Layer<Sealed>> {
        self.layers().rev().map(|stacked| &stacked.layer).collect()
    }

    /// Returns the upper directories, newest first.
    pub(crate) fn uppers(&self) -> Vec<BorrowedFd<'_>> {
        self.layers().rev().map(|stacked| stacked.layer.upper()).collect()
    }
}
