//! Records the durations of the stages of an attempt from the runner's tracing events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use proctor_runner::timing;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::samples::{Sample, heading, row};

/// The recorded stages, in the order of their first event.
#[derive(Debug, Default, Clone)]
pub(crate) struct StageRecorder(Arc<Mutex<RecordedStages>>);

#[derive(Debug, Default)]
struct RecordedStages {
    order: Vec<String>,
    samples: BTreeMap<String, Sample>,
}

impl StageRecorder {
    /// Starts recording events of all threads.
    ///
    /// # Errors
    /// Another tracing subscriber is already installed.
    pub(crate) fn start() -> Result<Self> {
        let stages = Self::default();
        let filtered = stages.clone().with_filter(Targets::new().with_target(timing::TARGET, LevelFilter::TRACE));
        let subscriber = tracing_subscriber::registry().with(filtered);
        tracing::subscriber::set_global_default(subscriber)
            .context("cannot install the subscriber that records stages")?;
        Ok(stages)
    }

    /// Prints the recorded stages in order, and clears them.
    pub(crate) fn print_and_clear(&self, what: &str, whole: &Sample) {
        let heard = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        println!("{}", heading(what));
        for stage in &heard.order {
            println!("{}", row(stage, &heard.samples[stage]));
        }
        println!("{}", row("total", whole));
    }

    fn record_stage(&self, stage: String, took: Duration) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !heard.samples.contains_key(&stage) {
            heard.order.push(stage.clone());
        }
        heard.samples.entry(stage).or_default().push(took);
    }
}

impl<S: tracing::Subscriber> Layer<S> for StageRecorder {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        let mut fields = StageFields::default();
        event.record(&mut fields);
        if let (Some(stage), Some(took)) = (fields.stage, fields.took) {
            self.record_stage(stage, took);
        }
    }
}

#[derive(Default)]
struct StageFields {
    stage: Option<String>,
    took: Option<Duration>,
}

impl Visit for StageFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "stage" {
            self.stage = Some(value.to_owned());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "us" {
            self.took = Some(Duration::from_micros(value));
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}
