//! Tells a client that waits what happens in a run: one notification for each event of a step.

use std::time::Duration;

use proctor_core::api::LoggedEvent;
use proctor_core::event::{EndReason, RunEvent};
use proctor_core::names::{SkillName, StepName};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};

use super::untrusted::name;

/// How long a client may take to accept one notification, since its own call waits for that; who takes longer
/// gets none any more.
const PATIENCE: Duration = Duration::from_secs(1);
/// By how much progress grows where no step has ended: it has to grow with each notification.
const TICK: f64 = 0.001;

/// What a run has come to, in numbers that only grow.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tally {
    ended: u32,
    total: Option<u32>,
    told: f64,
}

/// One thing to tell.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct News {
    /// How far the run is: steps and checks that have ended.
    pub(super) progress: f64,
    /// How many there are, where that is known.
    pub(super) total: Option<u32>,
    /// What happened, in our own words.
    pub(super) message: String,
}

impl Tally {
    /// That of a run with so many steps and checks, of which so many have ended.
    pub(super) fn new(ended: usize, total: usize) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { ended: count(ended), total: Some(count(total)).filter(|total| *total > 0), told: 0.0 }
    }

    /// Takes an event in; `None` where it is not about a step.
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

    /// Tells something that ends no step.
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

/// Where notifications go.
pub(super) struct Teller {
    peer: Peer<RoleServer>,
    /// `None` where the client did not ask, or does not listen.
    token: Option<ProgressToken>,
    tally: Tally,
}

impl Teller {
    /// Tells the client of a request, where it asked to be told.
    pub(super) fn new(context: &RequestContext<RoleServer>, tally: Tally) -> Self {
        Self { peer: context.peer.clone(), token: context.meta.get_progress_token(), tally }
    }

    /// Whether the client still listens.
    pub(super) fn is_heard(&self) -> bool {
        self.token.is_some()
    }

    /// Tells what a step printed last: `line` says so in our own words.
    pub(super) async fn tell_line(&mut self, line: &str) {
        let news = self.tally.line(line);
        self.send(news).await;
    }

    /// Tells of an event, where it is about a step.
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
