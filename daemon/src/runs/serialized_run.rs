//! A run with its JSON.

use std::sync::OnceLock;

use bytes::Bytes;
use proctor_core::api::RunView;

/// A run as the API returns it, with its JSON serialized once.
#[derive(Debug)]
pub struct SerializedRun {
    /// The run.
    pub view: RunView,
    json: OnceLock<Bytes>,
}

impl SerializedRun {
    /// Wraps `view`; the JSON is serialized on first use.
    pub fn new(view: RunView) -> Self {
        Self { view, json: OnceLock::new() }
    }

    /// Returns the run as JSON.
    pub fn json(&self) -> Bytes {
        self.json.get_or_init(|| serde_json::to_vec(&self.view).map(Bytes::from).unwrap_or_default()).clone()
    }
}
