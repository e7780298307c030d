//! The layers that a step sees below its own, and what stands at each path because of them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use proctor_sandbox::{Layer, Sealed};
use proctor_snapshot::{GitError, IgnoreQuery, LayerScan, Snapshot, View};

/// How many layers a step can stand on: the kernel stacks 500 directories (`OVL_MAX_STACK` of
/// fs/overlayfs), and the repository is one of them.
const MAX_LAYERS: usize = 499;

/// A sealed layer with what was found in it.
#[derive(Debug)]
pub(crate) struct Stacked {
    pub(crate) layer: Layer<Sealed>,
    pub(crate) scan: LayerScan,
}

/// The snapshot with layers on top. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    view: View,
    /// Oldest first.
    layers: Vec<Arc<Stacked>>,
}

impl Stack {
    pub(crate) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { view: View::new(snapshot), layers: Vec::new() }
    }

    /// The stack with one more layer on top. A layer in which nothing was written adds nothing,
    /// and the kernel's bound on the number of layers is kept for those that do.
    pub(crate) fn with(&self, layer: Arc<Stacked>, ignored: &IgnoreQuery) -> Result<Self, GitError> {
        if layer.scan.entries.is_empty() {
            return Ok(self.clone());
        }
        let view = self.view.apply(&layer.scan, ignored)?;
        let mut layers = self.layers.clone();
        layers.push(layer);
        Ok(Self { view, layers })
    }

    /// Why no step can stand on it, where that is so.
    pub(crate) fn overload(&self) -> Option<String> {
        (self.layers.len() > MAX_LAYERS).then(|| {
            format!(
                "{} steps before it have left something, and a step stands on {MAX_LAYERS} layers at most; have fewer \
                 steps write, or let skills `needs` each other so that not all are seen",
                self.layers.len()
            )
        })
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// For the overlay, newest first.
    pub(crate) fn lowers(&self) -> Vec<&Layer<Sealed>> {
        self.layers.iter().rev().map(|stacked| &stacked.layer).collect()
    }

    /// The upper directories, newest first.
    pub(crate) fn uppers(&self) -> Vec<BorrowedFd<'_>> {
        self.layers.iter().rev().map(|stacked| stacked.layer.upper()).collect()
    }
}
