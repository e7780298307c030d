//! Runs the daemon's service in the test process over the state of a case, to test it independently of a transport.
//! Sockets and the daemon program are tested elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use proctor_core::api::{
    LoggedEvent, LoggedRun, Problem, RecordedRequest, RunState, RunSubmission, RunView, SubmittedRun,
};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::{ChangesetId, IdempotencyKey, ProfileName, RunId};
use proctor_core::spec::OperatorConfig;
use proctor_core::sql::DUCKDB_VARIABLE;
use proctor_daemon::caller::Caller;
use proctor_daemon::history::OpenHistoryError;
use proctor_daemon::metrics::Metrics;
use proctor_daemon::service::{MAX_WAIT, Service, ServiceConfig, StartError};
use proctor_runner::{
    CacheMode, CancellationToken, ChangeHandling, Engine, EngineConfig, HelperPrograms, RevocablePass, RunRequest,
    RunSource, SkillSelection, TraceSettings,
};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::{binaries, documents, machine};

/// Time limit for an expected event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A service with a caller.
pub(crate) struct InProcessService<'e> {
    env: &'e TestEnvironment,
    runtime: Runtime,
    pub(crate) service: Arc<Service>,
    pub(crate) caller: Caller,
}

/// Builds a request for the profile `pr` of a repository.
pub(crate) fn run_submission(repo: &Repo<'_>) -> RunSubmission {
    RunSubmission {
        repo: repo.path().to_str().expect("a UTF-8 path").to_owned(),
        profile: ProfileName::new("pr").expect("a name"),
        changeset_id: None,
        rev: None,
        submodules: false,
        max_tier: proctor_core::model::tier::Tier::TWO,
        sandbox: proctor_core::model::enforcement::SandboxMode::Strict,
        fail_fast: false,
        changes: proctor_core::api::ChangeDelivery::Applied,
        reuse: proctor_core::api::Reuse::Never,
        skills: proctor_core::api::SkillFilter::All,
        scope: Default::default(),
        no_caches: false,
        no_cache: false,
        env: None,
    }
}

/// Builds a request for the usual changeset.
pub(crate) fn changeset_submission(repo: &Repo<'_>) -> RunSubmission {
    RunSubmission { changeset_id: Some(ChangesetId::new(CHANGESET).expect("an id")), ..run_submission(repo) }
}

impl<'e> InProcessService<'e> {
    /// Opens a service over the state of the case, with an empty operator config.
    pub(crate) fn open(env: &'e TestEnvironment) -> Self {
        Self::open_with_config(env, "")
    }

    /// Opens a service with an operator config.
    pub(crate) fn open_with_config(env: &'e TestEnvironment, operator: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let began = Instant::now();
        let service = loop {
            match runtime.block_on(Service::open(service_config(env, operator))) {
                // The lock of the previous service may be inherited by a program that another case is just starting;
                // it is released on exec.
                Err(StartError::History(OpenHistoryError::InUse(_))) if began.elapsed() < EVENT_TIMEOUT => {
                    std::thread::yield_now();
                }
                other => break other.expect("a service"),
            }
        };
        let caller = Caller { uid: rustix::process::geteuid().as_raw() };
        Self { env, runtime, service, caller }
    }

    /// Runs a future with the time limit of a case.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(EVENT_TIMEOUT, work).await.expect("it happens at last") };
        self.runtime.block_on(bounded)
    }

    /// Submits a run.
    pub(crate) fn submit(&self, submission: RunSubmission) -> SubmittedRun {
        self.try_submit(submission, None).unwrap_or_else(|problem| panic!("{problem:#?}"))
    }

    /// Submits a run with an optional key, and returns a refusal as an error.
    pub(crate) fn try_submit(&self, submission: RunSubmission, key: Option<&str>) -> Result<SubmittedRun, Problem> {
        let key = key.map(|key| IdempotencyKey::new(key).expect("a key"));
        self.block_on(self.service.submit(self.caller, submission, key))
    }

    /// Waits for the end of a run, and checks its whole log and its remaining processes.
    pub(crate) fn wait_for_end(&self, id: &RunId) -> RunView {
        let response =
            self.block_on(self.service.watch_shared(self.caller, id, None, MAX_WAIT)).expect("the run is there");
        assert_eq!(response.run.view.state, RunState::Finished, "{:#?}", response.run.view);
        let log = self.run_log(id);
        assert_log_complete(&log);
        assert_eq!(
            LoggedRun::from_log(log.iter().map(Arc::as_ref)).map(|run| run.view()).as_ref(),
            Some(&response.run.view),
            "one truth"
        );
        let left = machine::processes_with_marker(self.env.marker());
        assert!(left.is_empty() || self.service.health().runs.running > 0, "processes {left:?} outlived their run");
        documents::check_all_documents(self.env.root());
        response.run.view.clone()
    }

    /// Returns all events of a run.
    pub(crate) fn run_log(&self, id: &RunId) -> Vec<Arc<LoggedEvent>> {
        self.block_on(async {
            let events = self.service.events(self.caller, id, 0).await.expect("the run is there");
            events.collect().await
        })
    }

    /// Cancels a run.
    pub(crate) fn cancel_run(&self, id: &RunId) {
        self.block_on(self.service.cancel(self.caller, id, "the case")).expect("the run is there");
    }

    /// Returns the current state of a run.
    pub(crate) fn run_view(&self, id: &RunId) -> RunView {
        self.block_on(self.service.run(self.caller, id)).expect("the run is there").view.clone()
    }

    /// Waits until the waiting step of a run is ready for the signal.
    pub(crate) fn wait_for_step(&self, id: &RunId, earlier_pid: u32) -> u32 {
        self.block_on(async {
            let mut events = self.service.events(self.caller, id, 0).await.expect("the run is there");
            while let Some(event) = events.next().await {
                if matches!(event.event, RunEvent::StepStarted { .. }) {
                    break;
                }
            }
        });
        let (ready, main) = (format!("{}-ready", self.env.marker()), format!("{}-main", self.env.marker()));
        self.block_on(async {
            loop {
                if machine::process_with_argument(&ready, 0).is_some()
                    && let Some(process) = machine::process_with_argument(&main, earlier_pid)
                {
                    return process;
                }
                tokio::task::yield_now().await;
            }
        })
    }
}

/// Returns a pass of the usual changeset from an engine in this process that is aborted after the pass was recorded
/// and before it was reported, as by a panic.
pub(crate) fn pass_from_aborted_run(env: &TestEnvironment, repo: &Repo<'_>) -> RevocablePass {
    let RunSubmission { profile, changeset_id, max_tier, sandbox, fail_fast, .. } = changeset_submission(repo);
    let request = RunRequest {
        run_id: None,
        repo: repo.path().to_owned(),
        spec_dir: None,
        source: RunSource::Worktree,
        profile,
        plan_sha256: None,
        changeset: changeset_id,
        max_tier,
        sandbox,
        fail_fast,
        changes: ChangeHandling::Apply,
        skills: SkillSelection::All,
        scope: Default::default(),
        caches: CacheMode::Persistent,
        reuses_steps: false,
        live: None,
        trace: TraceSettings::default(),
    };
    let engine = Engine::open(service_config(env, "").engine).expect("an engine");
    let (sender, mut events) = mpsc::channel(1);
    let (passed, pass) = oneshot::channel();
    Runtime::new().expect("a runtime").block_on(async move {
        let cancel = CancellationToken::new();
        let running = tokio::spawn(async move { engine.run_revocably(request, sender, cancel, passed).await });
        // Wait for the evidence of the checks. The channel has space for the next event, that of the only skill, but
        // not for the last one, so the run blocks there until it is aborted.
        while !matches!(events.recv().await.expect("it goes on"), RunEvent::EvidenceWritten { .. }) {}
        let pass = pass.await.expect("it passes");
        running.abort();
        assert!(running.await.is_err_and(|error| error.is_cancelled()), "it has no report");
        pass
    })
}

fn service_config(env: &TestEnvironment, operator: &str) -> ServiceConfig {
    ServiceConfig {
        engine: EngineConfig {
            state_dir: env.state_dir(),
            helpers: HelperPrograms {
                sandbox: binaries::built_program("proctor-sandbox"),
                git: binaries::built_program("proctor-git"),
                sql: binaries::built_program("proctor-sql"),
            },
            duckdb: env.caller_var(DUCKDB_VARIABLE).map(PathBuf::from),
            home: env.home_dir(),
            caller_env: BTreeMap::from([("PATH".to_owned(), machine::PATH.to_owned())]),
            operator: OperatorConfig::parse(operator).expect("a config"),
            hidden_dirs: vec![],
            is_long_running: true,
        },
        config: None,
        metrics: Metrics::new(0),
        telemetry: None,
    }
}

/// Checks that a log has one start, no gaps, and one end.
fn assert_log_complete(log: &[Arc<LoggedEvent>]) {
    let seqs: Vec<u64> = log.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=log.len() as u64).collect::<Vec<_>>(), "no gap");
    assert!(matches!(log[0].event, RunEvent::RunQueued { .. }), "{:#?}", log[0]);
    let ends = log.iter().filter(|event| matches!(event.event, RunEvent::RunFinished { .. })).count();
    assert_eq!(ends, 1, "{log:#?}");
    assert!(matches!(log[log.len() - 1].event, RunEvent::RunFinished { .. }));
}

/// Checks whether a recorded request is about the repository at `path`.
pub(crate) fn is_for_repo(request: &RecordedRequest, path: &Path) -> bool {
    Path::new(&request.repo) == path.canonicalize().expect("there")
}
