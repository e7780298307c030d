//! The trait of language models, and the parts of the process that its implementations need.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use proctor_core::model::enforcement::Tolerated;
use proctor_runner::Clock;
use proctor_sandbox::Launcher;
use tokio::time::Instant;

use super::completion::{Completion, Prompt};
use super::provider_error::ProviderError;

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A language model.
pub trait Provider: Send + Sync {
    /// Returns the answer of the model to a prompt, before the deadline.
    ///
    /// # Errors
    /// There is no answer.
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>>;
}

/// A provider with its name and model.
#[derive(Clone)]
pub struct NamedProvider {
    /// The name in the operator's config, or of the file with recorded answers.
    pub name: String,
    /// The model.
    pub model: Option<String>,
    /// The provider.
    pub provider: Arc<dyn Provider>,
}

impl fmt::Debug for NamedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedProvider").field("name", &self.name).field("model", &self.model).finish_non_exhaustive()
    }
}

/// The parts of the process that providers need.
#[derive(Clone)]
pub struct ProviderContext {
    /// The environment of the process.
    pub env: BTreeMap<String, String>,
    /// Starts the sandboxes of commands; `None` if no command can be used.
    pub launcher: Option<Arc<Launcher>>,
    /// The sandbox controls that may be missing.
    pub tolerated: Tolerated,
    /// True if the operator allows the network.
    pub allow_network: bool,
    /// The time of day.
    pub clock: Clock,
}
