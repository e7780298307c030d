//! Tracks the layers below a step, and the resulting content at each path.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use proctor_git::error::GitError;
use proctor_git::helper::IgnoreQuery;
use proctor_sandbox::{Layer, Sealed};
use proctor_snapshot::{LayerScan, Snapshot, TreeView};
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

/// The snapshot with layers on top. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LayerStack {
    view: TreeView,
    /// The layers, oldest first.
    layers: Vec<Arc<StackedLayer>>,
}

impl LayerStack {
    pub(crate) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { view: TreeView::new(snapshot), layers: Vec::new() }
    }

    /// Returns the stack with one more layer on top. An empty layer is left out, since the kernel limits the number
    /// of layers.
    pub(crate) fn with_layer(&self, layer: Arc<StackedLayer>, ignored: &IgnoreQuery) -> Result<Self, GitError> {
        if layer.scan.entries.is_empty() {
            return Ok(self.clone());
        }
        let view = self.view.with_layer(&layer.scan, ignored)?;
        let mut layers = self.layers.clone();
        layers.push(layer);
        Ok(Self { view, layers })
    }

    /// Returns why no step can run on this stack, if it has too many layers.
    pub(crate) fn too_many_layers_message(&self) -> Option<String> {
        (self.layers.len() > MAX_LAYERS).then(|| {
            format!(
                "{} earlier steps wrote files, but a step can be based on at most {MAX_LAYERS} layers; reduce the \
                 number of steps that write, or declare `needs` so that fewer layers are visible",
                self.layers.len()
            )
        })
    }

    pub(crate) fn view(&self) -> &TreeView {
        &self.view
    }

    /// Returns the layers for the overlay, newest first.
    pub(crate) fn lowers(&self) -> Vec<&Layer<Sealed>> {
        self.layers.iter().rev().map(|stacked| &stacked.layer).collect()
    }

    /// Returns the upper directories, newest first.
    pub(crate) fn uppers(&self) -> Vec<BorrowedFd<'_>> {
        self.layers.iter().rev().map(|stacked| stacked.layer.upper()).collect()
    }
}
