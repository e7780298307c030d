//! Sends progress notifications to a waiting client, one for each event of a step.

use std::time::Duration;

use proctor_core::api::LoggedEvent;
use proctor_core::model::event::{EndReason, RunEvent};
use proctor_core::model::names::{SkillName, StepName};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};

use super::untrusted::safe_name;

/// Time that a client has to accept a notification, because its own call waits for that. A client that takes longer
/// gets no more notifications.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);
/// Increment of the progress when no step has ended: it must increase with each notification.
const MIN_INCREMENT: f64 = 0.001;

/// Progress of a run in numbers that only increase.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ProgressCounter {
    finished_count: u32,
    total: Option<u32>,
    last_progress: f64,
}

/// A progress notification.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProgressUpdate {
    /// Number of finished steps and checks.
    pub(super) progress: f64,
    /// Total number of steps and checks, if known.
    pub(super) total: Option<u32>,
    /// Description of the event in Proctor's own words.
    pub(super) message: String,
}

impl ProgressCounter {
    /// Creates the progress of a run with `total` steps and checks, of which `ended` have finished.
    pub(super) fn new(ended: usize, total: usize) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { finished_count: count(ended), total: Some(count(total)).filter(|total| *total > 0), last_progress: 0.0 }
    }

    /// Applies an event. Returns `None` if it does not concern a step or check.
    pub(super) fn apply(&mut self, event: &RunEvent) -> Option<ProgressUpdate> {
        if let RunEvent::RunStarted { skills, checks, .. } = event {
            let steps: usize = skills.iter().map(|skill| skill.steps.len()).sum();
            self.total = u32::try_from(steps).ok().map(|steps| steps.saturating_add(*checks));
        }
        let message = event_message(event)?;
        let ended = matches!(event, RunEvent::CheckFinished { .. } | RunEvent::StepFinished { .. });
        self.finished_count += u32::from(ended);
        Some(self.next_update(message))
    }

    /// Returns a notification about something that ends no step.
    pub(super) fn line_update(&mut self, message: &str) -> ProgressUpdate {
        self.next_update(message.to_owned())
    }

    fn next_update(&mut self, message: String) -> ProgressUpdate {
        self.last_progress = f64::from(self.finished_count).max(self.last_progress + MIN_INCREMENT);
        ProgressUpdate { progress: self.last_progress, total: self.total, message }
    }
}

fn event_message(event: &RunEvent) -> Option<String> {
    Some(match event {
        RunEvent::RunStarted { .. } => "the run begins".to_owned(),
        RunEvent::CheckFinished { check } => {
            format!("toolchain check {}: {}", safe_name(check.toolchain.as_str()), check.step.outcome.as_str())
        }
        RunEvent::StepStarted { skill, step, attempt: 1, .. } => format!("{} runs", step_name(skill, step)),
        RunEvent::StepStarted { skill, step, attempt, .. } => {
            format!("{} runs, attempt {attempt}", step_name(skill, step))
        }
        RunEvent::StepTerminating { skill, step, reason: EndReason::Timeout, .. } => {
            format!("{} ran out of time and is being stopped", step_name(skill, step))
        }
        RunEvent::StepTerminating { skill, step, reason: EndReason::Cancelled, .. } => {
            format!("{} is being cancelled", step_name(skill, step))
        }
        RunEvent::StepRetrying { skill, step, outcome, .. } => {
            format!("{}: {}, and is tried again", step_name(skill, step), outcome.as_str())
        }
        RunEvent::StepFinished { skill, step } => {
            format!("{}: {}", step_name(skill, &step.planned.name), step.outcome.as_str())
        }
        _ => return None,
    })
}

fn step_name(skill: &SkillName, step: &StepName) -> String {
    format!("{}/{}", safe_name(skill.as_str()), safe_name(step.as_str()))
}

/// Sender of notifications.
pub(super) struct ProgressSender {
    peer: Peer<RoleServer>,
    /// `None` if the client did not ask for progress, or did not accept a notification in time.
    token: Option<ProgressToken>,
    counter: ProgressCounter,
}

impl ProgressSender {
    /// Creates a sender for the client of a request. It sends nothing if the client did not ask for progress.
    pub(super) fn new(context: &RequestContext<RoleServer>, tally: ProgressCounter) -> Self {
        Self { peer: context.peer.clone(), token: context.meta.get_progress_token(), counter: tally }
    }

    /// Returns whether the client still receives notifications.
    pub(super) fn is_active(&self) -> bool {
        self.token.is_some()
    }

    /// Sends the last line that a step printed; `line` is a complete message.
    pub(super) async fn send_line(&mut self, line: &str) {
        let update = self.counter.line_update(line);
        self.send(update).await;
    }

    /// Sends a notification for an event of a step.
    pub(super) async fn send_event(&mut self, logged: &LoggedEvent) {
        if let Some(news) = self.counter.apply(&logged.event) {
            self.send(news).await;
        }
    }

    async fn send(&mut self, update: ProgressUpdate) {
        let Some(token) = self.token.clone() else { return };
        let mut note = ProgressNotificationParam::new(token, update.progress).with_message(update.message);
        note.total = update.total.map(f64::from);
        let sent = tokio::time::timeout(NOTIFY_TIMEOUT, self.peer.notify_progress(note)).await;
        if !matches!(sent, Ok(Ok(()))) {
            self.token = None;
        }
    }
}
