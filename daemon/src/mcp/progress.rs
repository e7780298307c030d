//! Sends progress notifications to a waiting client, one for each event of a step.

use std::time::Duration;

use proctor_core::api::LoggedEvent;
use proctor_core::event::{EndReason, RunEvent};
use proctor_core::names::{SkillName, StepName};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};

use super::untrusted::name;

/// Time that a client has to accept a notification, because its own call waits for that. A client that takes longer
/// gets no more notifications.
const PATIENCE: Duration = Duration::from_secs(1);
/// Increment of the progress when no step has ended: it must increase with each notification.
const TICK: f64 = 0.001;

/// Progress of a run in numbers that only increase.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tally {
    ended: u32,
    total: Option<u32>,
    told: f64,
}

/// A progress notification.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct News {
    /// Number of finished steps and checks.
    pub(super) progress: f64,
    /// Total number of steps and checks, if known.
    pub(super) total: Option<u32>,
    /// Description of the event in Proctor's own words.
    pub(super) message: String,
}

impl Tally {
    /// Creates the progress of a run with `total` steps and checks, of which `ended` have finished.
    pub(super) fn new(ended: usize, total: usize) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { ended: count(ended), total: Some(count(total)).filter(|total| *total > 0), told: 0.0 }
    }

    /// Applies an event. Returns `None` if it does not concern a step or check.
    pub(super) fn take(&mut self, event: &RunEvent) -> Option<News> {
        if let RunEvent::RunStarted { skills, checks, .. } = event {
            let steps: usize = skills.iter().map(|skill| skill.steps.len()).sum();
            self.total = u32::try_from(steps).ok().map(|steps| steps.saturating_add(*checks));
        }
        let message = message(event)?;
        let ended = matches!(event, RunEvent::CheckFinished { .. } | RunEvent::StepFinished { .. });
        self.ended += u32::from(ended);
        Some(self.news(message))
    }

    /// Returns a notification about something that ends no step.
    pub(super) fn line(&mut self, message: &str) -> News {
        self.news(message.to_owned())
    }

    fn news(&mut self, message: String) -> News {
        self.told = f64::from(self.ended).max(self.told + TICK);
        News { progress: self.told, total: self.total, message }
    }
}

fn message(event: &RunEvent) -> Option<String> {
    Some(match event {
        RunEvent::RunStarted { .. } => "the run begins".to_owned(),
        RunEvent::CheckFinished { check } => {
            format!("toolchain check {}: {}", name(check.toolchain.as_str()), check.step.outcome.as_str())
        }
        RunEvent::StepStarted { skill, step, attempt: 1, .. } => format!("{} runs", named(skill, step)),
        RunEvent::StepStarted { skill, step, attempt, .. } => format!("{} runs, attempt {attempt}", named(skill, step)),
        RunEvent::StepTerminating { skill, step, reason: EndReason::Timeout, .. } => {
            format!("{} ran out of time and is being ended", named(skill, step))
        }
        RunEvent::StepTerminating { skill, step, reason: EndReason::Cancelled, .. } => {
            format!("{} is being cancelled", named(skill, step))
        }
        RunEvent::StepRetrying { skill, step, outcome, .. } => {
            format!("{}: {}, and is tried again", named(skill, step), outcome.as_str())
        }
        RunEvent::StepFinished { skill, step } => {
            format!("{}: {}", named(skill, &step.planned.name), step.outcome.as_str())
        }
        _ => return None,
    })
}

fn named(skill: &SkillName, step: &StepName) -> String {
    format!("{}/{}", name(skill.as_str()), name(step.as_str()))
}

/// Sender of notifications.
pub(super) struct Teller {
    peer: Peer<RoleServer>,
    /// `None` if the client did not ask for progress, or did not accept a notification in time.
    token: Option<ProgressToken>,
    tally: Tally,
}

impl Teller {
    /// Creates a sender for the client of a request. It sends nothing if the client did not ask for progress.
    pub(super) fn new(context: &RequestContext<RoleServer>, tally: Tally) -> Self {
        Self { peer: context.peer.clone(), token: context.meta.get_progress_token(), tally }
    }

    /// Returns whether the client still receives notifications.
    pub(super) fn is_heard(&self) -> bool {
        self.token.is_some()
    }

    /// Sends the last line that a step printed; `line` is a complete message.
    pub(super) async fn tell_line(&mut self, line: &str) {
        let news = self.tally.line(line);
        self.send(news).await;
    }

    /// Sends a notification for an event of a step.
    pub(super) async fn tell(&mut self, logged: &LoggedEvent) {
        if let Some(news) = self.tally.take(&logged.event) {
            self.send(news).await;
        }
    }

    async fn send(&mut self, news: News) {
        let Some(token) = self.token.clone() else { return };
        let mut note = ProgressNotificationParam::new(token, news.progress).with_message(news.message);
        note.total = news.total.map(f64::from);
        let told = tokio::time::timeout(PATIENCE, self.peer.notify_progress(note)).await;
        if !matches!(told, Ok(Ok(()))) {
            self.token = None;
        }
    }
}
