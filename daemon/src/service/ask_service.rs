//! Answers questions to databases with the providers of the operator. A caller names no address, file or key. The number
//! of concurrent questions is bounded, and each judgement waits in the queue like any other.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_ask::ask_loop::{AskProgress, Asker};
use proctor_ask::audit::AuditTrail;
use proctor_ask::backend::{SqlBackend, unanswered_judgement, unanswered_run, unanswered_schema};
use proctor_ask::provider::{self, BoxFuture, NamedProvider, ProviderContext};
use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::spec::{AskSettings, OperatorConfig, ProviderSettings};
use proctor_core::sql::{
    AskAnswer, AskRequest, Judgement, SchemaAnswer, SchemaRequest, SqlRequest, SqlRunAnswer, SqlRunRequest,
};
use proctor_runner::{Clock, Launcher};

use super::Service;
use super::judgement_count::JudgementCount;
use super::question_observer::{QuestionFacts, QuestionObserver, QuestionSpan};
use crate::caller::Caller;
use crate::telemetry::RequestSpan;

/// The directory of the audit trail, in the state directory.
const AUDIT_DIRECTORY: &str = "ask";
/// Number of seconds after which a refused question may be sent again.
const RETRY_AFTER_S: u32 = 10;
/// Maximum size of a question, in bytes.
const MAX_QUESTION_BYTES: usize = 16 << 10;

/// The state of the questions of all callers.
pub(super) struct AskState {
    launcher: Arc<Launcher>,
    env: BTreeMap<String, String>,
    directory: PathBuf,
    active: ActiveQuestions,
    trail: Mutex<Option<Arc<Mutex<AuditTrail>>>>,
}

/// The number of running questions of each caller.
#[derive(Clone, Default)]
struct ActiveQuestions(Arc<Mutex<HashMap<Caller, usize>>>);

/// A running question. Dropping it lets another one start.
struct AskPermit {
    caller: Caller,
    active: ActiveQuestions,
}

impl Drop for AskPermit {
    fn drop(&mut self) {
        let mut active = lock(&self.active.0);
        if let Some(count) = active.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                active.remove(&self.caller);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ActiveQuestions {
    /// Starts a question. One caller cannot use all places.
    ///
    /// # Errors
    /// Too many questions are being answered.
    fn enter(&self, caller: Caller, most: usize) -> Result<AskPermit, Problem> {
        let mut active = lock(&self.0);
        let own = active.get(&caller).copied().unwrap_or(0);
        let all: usize = active.values().sum();
        if all >= most || own >= most.saturating_sub(1).max(1) {
            let detail = format!("{all} questions are being answered, {own} of them for this caller");
            let mut problem = Problem::new(ProblemType::TooManyRequests, detail)
                .with_hint("try again later; the operator sets `ask.max_concurrent`");
            problem.retry_after_s = Some(RETRY_AFTER_S);
            return Err(problem);
        }
        *active.entry(caller).or_default() += 1;
        Ok(AskPermit { caller, active: self.clone() })
    }
}

impl AskState {
    /// Prepares to answer questions; opens nothing yet. `env` is the environment of the daemon.
    pub(super) fn new(launcher: Arc<Launcher>, env: BTreeMap<String, String>, state_dir: &std::path::Path) -> Self {
        let directory = state_dir.join(AUDIT_DIRECTORY);
        Self { launcher, env, directory, active: ActiveQuestions::default(), trail: Mutex::default() }
    }

    /// Opens the audit trail once; blocks on the disk.
    fn trail(&self, settings: &AskSettings) -> Result<Arc<Mutex<AuditTrail>>, Problem> {
        let mut open = lock(&self.trail);
        if let Some(trail) = &*open {
            return Ok(Arc::clone(trail));
        }
        let trail = AuditTrail::open(&self.directory, settings.audit, Clock::system());
        let trail = trail.map_err(|error| Problem::new(ProblemType::Unavailable, error.to_string()))?;
        Ok(Arc::clone(open.insert(Arc::new(Mutex::new(trail)))))
    }

    /// Opens a provider; blocks on the disk.
    fn provider(
        &self,
        name: &str,
        settings: &ProviderSettings,
        operator: &OperatorConfig,
    ) -> Result<NamedProvider, Problem> {
        let context = ProviderContext {
            env: self.env.clone(),
            launcher: Some(Arc::clone(&self.launcher)),
            tolerated: operator.tolerated(SandboxMode::Strict).unwrap_or_default(),
            allow_network: operator.allow_network,
            clock: Clock::system(),
        };
        // The message names files and variables of the operator, which are for the log only.
        provider::open(name, settings, &context).map_err(|error| {
            tracing::warn!(%error, provider = name, "a provider of a language model cannot be used");
            Problem::new(ProblemType::Unavailable, format!("the provider `{name}` cannot be used"))
                .with_hint("the log of the daemon shows the reason")
        })
    }
}

impl Service {
    /// Answers a question. `progress` receives the steps.
    ///
    /// # Errors
    /// No provider of this name is configured, the caller may not use the database, or too many questions are being
    /// answered.
    pub async fn ask_sql(
        self: &Arc<Self>,
        caller: Caller,
        request: AskRequest,
        span: RequestSpan,
        mut progress: impl FnMut(AskProgress) + Send,
    ) -> Result<AskAnswer, Problem> {
        check_request(&request)?;
        self.check_sql(caller, request.database.as_deref(), &request.limits)?;
        let operator = Arc::clone(&self.operator.borrow());
        let (provider, trail, _permit) = match self.open_question(caller, &request, &operator).await {
            Ok(opened) => opened,
            Err(problem) => {
                span.refuse_question(&problem);
                return Err(problem);
            }
        };
        let span = QuestionSpan::new(span);
        let facts = QuestionFacts {
            dialect: request.dialect,
            policy: request.policy,
            provider: provider.name.clone(),
            model: provider.model.clone(),
        };
        let mut observer = QuestionObserver::new(self.metrics.clone(), Arc::clone(&span), facts);
        let backend = QueuedBackend { service: Arc::clone(self), caller, span };
        let asker = Asker {
            backend: &backend,
            provider: &provider,
            audit: trail,
            settings: &operator.ask,
            clock: Clock::system(),
            caller: format!("uid {}", caller.uid),
        };
        let mut observe = |step| {
            observer.apply(step);
            progress(step);
        };
        let answer = asker.ask(&request, &mut observe).await;
        observer.finish(&answer);
        Ok(answer)
    }

    /// Opens the provider and the audit trail of a question.
    async fn open_question(
        self: &Arc<Self>,
        caller: Caller,
        request: &AskRequest,
        operator: &Arc<OperatorConfig>,
    ) -> Result<(NamedProvider, Arc<Mutex<AuditTrail>>, AskPermit), Problem> {
        let (name, settings) =
            operator.ask.provider(request.provider.as_deref()).ok_or_else(|| no_provider(request))?;
        let permit = self.ask.active.enter(caller, operator.ask.max_concurrent)?;
        let (name, settings) = (name.to_owned(), settings.clone());
        let (service, config) = (Arc::clone(self), Arc::clone(operator));
        let opening = tokio::task::spawn_blocking(move || {
            let provider = service.ask.provider(&name, &settings, &config)?;
            Ok::<_, Problem>((provider, service.ask.trail(&config.ask)?))
        });
        let (provider, trail) = opening.await.map_err(|error| super::task_panicked(&error))??;
        Ok((provider, trail, permit))
    }
}

fn check_request(request: &AskRequest) -> Result<(), Problem> {
    if request.question.trim().is_empty() || request.question.len() > MAX_QUESTION_BYTES {
        let detail = format!("`question` must have 1 to {MAX_QUESTION_BYTES} bytes");
        return Err(Problem::new(ProblemType::InvalidRequest, detail));
    }
    Ok(())
}

fn no_provider(request: &AskRequest) -> Problem {
    let detail = match &request.provider {
        Some(name) => format!("there is no provider `{name}` of a language model"),
        None => "no default provider of a language model is configured".to_owned(),
    };
    Problem::new(ProblemType::Unprocessable, detail)
        .with_hint("the operator configures `[ask.providers.NAME]` in proctord.toml")
}

/// The workers of the daemon behind the queue. A permit of the queue is held only while a worker is in use, not while
/// the model writes its answer.
struct QueuedBackend {
    service: Arc<Service>,
    caller: Caller,
    span: Arc<QuestionSpan>,
}

impl SqlBackend for QueuedBackend {
    fn describe<'a>(&'a self, request: &'a SchemaRequest) -> BoxFuture<'a, SchemaAnswer> {
        Box::pin(async move {
            let answer = self.service.describe_sql(self.caller, request.clone(), self.span.start_child()).await;
            answer.unwrap_or_else(|problem| unanswered_schema(request, problem.detail))
        })
    }

    fn judge<'a>(&'a self, request: &'a SqlRequest) -> BoxFuture<'a, Judgement> {
        Box::pin(async move {
            let answer = self.service.judge_sql(self.caller, request.clone(), self.span.start_child()).await;
            answer.unwrap_or_else(|problem| unanswered_judgement(request, problem.detail))
        })
    }

    fn run<'a>(&'a self, request: &'a SqlRunRequest) -> BoxFuture<'a, SqlRunAnswer> {
        Box::pin(async move {
            // The loop has already had this statement judged, so this judgement must not be counted again.
            let (span, count) = (self.span.start_child(), JudgementCount::Repeated);
            let answer = self.service.run_statement(self.caller, request.clone(), span, count).await;
            answer.unwrap_or_else(|problem| unanswered_run(request, problem.detail))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_room_for_another() {
        let active = ActiveQuestions::default();
        let [first, second] = [1, 2].map(|uid| Caller { uid });
        let held: Vec<AskPermit> = (0..3).map(|_| active.enter(first, 4).unwrap_or_else(|_| panic!("room"))).collect();
        let refused = active.enter(first, 4).err().expect("one place is left for others");
        assert_eq!((refused.kind, refused.retry_after_s), (ProblemType::TooManyRequests, Some(RETRY_AFTER_S)));
        let other = active.enter(second, 4).unwrap_or_else(|_| panic!("room"));
        assert!(active.enter(second, 4).is_err(), "all places are taken");
        drop((held, other));
        assert!(lock(&active.0).is_empty());
        assert!(active.enter(first, 1).is_ok(), "a single place is for any caller");
    }
}
