//! State that all handlers share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::document_limit::DocumentLimit;
use crate::metrics::Metrics;
use crate::service::Service;

/// State that handlers use.
pub(super) struct AppState {
    pub(super) service: Arc<Service>,
    pub(super) metrics: Metrics,
    pub(super) stop: CancellationToken,
    pub(super) document_limit: DocumentLimit,
}
