//! The daemon's service in this process, over a case's own place: what callers of any transport are
//! answered. Not here: sockets, and the daemon as a program of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use proctor_core::api::{Asked, LoggedEvent, Problem, RunState, RunSubmission, RunView, Submitted};
use proctor_core::event::RunEvent;
use proctor_core::names::{ChangesetId, ProfileName, RunId};
use proctor_core::spec::Operator;
use proctor_core::sql::DUCKDB;
use proctor_daemon::caller::Caller;
use proctor_daemon::metrics::Metrics;
use proctor_daemon::service::{MAX_WAIT, Service, ServiceConfig, StartError};
use proctor_runner::{
    CachesWanted, CancellationToken, ChangesWanted, Engine, EngineConfig, Helpers, Pass, RunRequest, RunSource,
    SkillsWanted, Tracing,
};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::{binaries, documents, machine};

/// How long a case waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service, and the one who asks it.
pub(crate) struct Served<'e> {
    env: &'e TestEnvironment,
    runtime: Runtime,
    pub(crate) service: Arc<Service>,
    pub(crate) caller: Caller,
}

/// A request for the profile `pr` of a repository.
pub(crate) fn asks(repo: &Repo<'_>) -> RunSubmission {
    RunSubmission {
        repo: repo.path().to_str().expect("a UTF-8 path").to_owned(),
        profile: ProfileName::new("pr").expect("a name"),
        changeset_id: None,
        rev: None,
        submodules: false,
        max_tier: proctor_core::tier::Tier::TWO,
        sandbox: proctor_core::enforcement::SandboxMode::Strict,
        fail_fast: false,
        changes: proctor_core::api::ChangesAsked::Applied,
        reuse: proctor_core::api::Reuse::Never,
        skills: proctor_core::api::SkillsAsked::All,
        no_caches: false,
        env: None,
    }
}

/// The same for the changeset of the tests.
pub(crate) fn asks_for_changeset(repo: &Repo<'_>) -> RunSubmission {
    RunSubmission { changeset_id: Some(ChangesetId::new(CHANGESET).expect("an id")), ..asks(repo) }
}

impl<'e> Served<'e> {
    /// A service over the state of the case, with an operator who says nothing.
    pub(crate) fn open(env: &'e TestEnvironment) -> Self {
        Self::under(env, "")
    }

    /// The same under an operator's config.
    pub(crate) fn under(env: &'e TestEnvironment, operator: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let began = Instant::now();
        let service = loop {
            match runtime.block_on(Service::open(config(env, operator))) {
                // Of the one before: a program that another case starts holds its lock until it is executed.
                Err(StartError::StateInUse(_)) if began.elapsed() < PATIENCE => std::thread::yield_now(),
                other => break other.expect("a service"),
            }
        };
        let caller = Caller { uid: rustix::process::geteuid().as_raw() };
        Self { env, runtime, service, caller }
    }

    /// Does something of the service's, within what a case waits for.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(PATIENCE, work).await.expect("it happens at last") };
        self.runtime.block_on(bounded)
    }

    /// Asks for a run.
    pub(crate) fn submit(&self, asked: RunSubmission) -> Submitted {
        self.try_submit(asked, None).unwrap_or_else(|problem| panic!("{problem:#?}"))
    }

    /// The same, with a key, and maybe refused.
    pub(crate) fn try_submit(&self, asked: RunSubmission, key: Option<&str>) -> Result<Submitted, Problem> {
        self.wait(self.service.submit(self.caller, asked, key.map(str::to_owned)))
    }

    /// Waits for the end of a run; checks its whole log, and what it left.
    pub(crate) fn end_of(&self, id: &RunId) -> RunView {
        let seen = self.wait(self.service.see(self.caller, id, None, MAX_WAIT)).expect("the run is there");
        assert_eq!(seen.shown.view.state, RunState::Finished, "{:#?}", seen.shown.view);
        let log = self.log_of(id);
        check_log(&log);
        assert_eq!(RunView::fold(log.iter().map(Arc::as_ref)).as_ref(), Some(&seen.shown.view), "one truth");
        let left = machine::processes_with(self.env.marker());
        assert!(left.is_empty() || self.service.health().runs.running > 0, "processes {left:?} outlived their run");
        documents::check_all(self.env.root());
        seen.shown.view.clone()
    }

    /// All events of a run, to its end.
    pub(crate) fn log_of(&self, id: &RunId) -> Vec<Arc<LoggedEvent>> {
        self.wait(async {
            let events = self.service.events(self.caller, id, 0).await.expect("the run is there");
            events.collect().await
        })
    }

    /// Asks a run to end.
    pub(crate) fn cancel(&self, id: &RunId) {
        self.wait(self.service.cancel(self.caller, id, "the case")).expect("the run is there");
    }

    /// A run as it is now.
    pub(crate) fn view(&self, id: &RunId) -> RunView {
        self.wait(self.service.run(self.caller, id)).expect("the run is there").view.clone()
    }

    /// Waits until the waiting step of a run has got to where it waits.
    pub(crate) fn wait_for_step(&self, id: &RunId, seen: u32) -> u32 {
        self.wait(async {
            let mut events = self.service.events(self.caller, id, 0).await.expect("the run is there");
            while let Some(event) = events.next().await {
                if matches!(event.event, RunEvent::StepStarted { .. }) {
                    break;
                }
            }
        });
        let (ready, main) = (format!("{}-ready", self.env.marker()), format!("{}-main", self.env.marker()));
        self.wait(async {
            loop {
                if machine::process_called(&ready, 0).is_some()
                    && let Some(process) = machine::process_called(&main, seen)
                {
                    return process;
                }
                tokio::task::yield_now().await;
            }
        })
    }
}

/// A pass of the changeset of the tests, by an engine in this process that broke when it was on record and
/// nobody was told of it yet, as by a panic.
pub(crate) fn passed_and_broke(env: &TestEnvironment, repo: &Repo<'_>) -> Pass {
    let RunSubmission { profile, changeset_id, max_tier, sandbox, fail_fast, .. } = asks_for_changeset(repo);
    let request = RunRequest {
        run_id: None,
        repo: repo.path().to_owned(),
        source: RunSource::Worktree,
        profile,
        plan_sha256: None,
        changeset: changeset_id,
        max_tier,
        sandbox,
        fail_fast,
        changes: ChangesWanted::Applied,
        skills: SkillsWanted::All,
        caches: CachesWanted::Kept,
        live: None,
        trace: Tracing::default(),
    };
    let engine = Engine::open(config(env, "").engine).expect("an engine");
    let (sender, mut events) = mpsc::channel(1);
    let (passed, pass) = oneshot::channel();
    Runtime::new().expect("a runtime").block_on(async move {
        let cancel = CancellationToken::new();
        let running = tokio::spawn(async move { engine.run_revocably(request, sender, cancel, passed).await });
        // The evidence of the checks. There is room for the next event, that of the one skill, and none for the
        // end: the run waits there until it is ended.
        while !matches!(events.recv().await.expect("it goes on"), RunEvent::EvidenceWritten { .. }) {}
        let pass = pass.await.expect("it passes");
        running.abort();
        assert!(running.await.is_err_and(|error| error.is_cancelled()), "it has no report");
        pass
    })
}

fn config(env: &TestEnvironment, operator: &str) -> ServiceConfig {
    ServiceConfig {
        engine: EngineConfig {
            state_dir: env.state(),
            helpers: Helpers {
                sandbox: binaries::built("proctor-sandbox"),
                git: binaries::built("proctor-git"),
                sql: binaries::built("proctor-sql"),
            },
            duckdb: env.caller_var(DUCKDB).map(PathBuf::from),
            home: env.home(),
            caller_env: BTreeMap::from([("PATH".to_owned(), machine::PATH.to_owned())]),
            operator: Operator::parse(operator).expect("a config"),
            hide: vec![],
            stays: true,
        },
        config: None,
        metrics: Metrics::new(0),
        telemetry: None,
    }
}

/// Every log begins with its beginning, has no gap, and one end.
fn check_log(log: &[Arc<LoggedEvent>]) {
    let seqs: Vec<u64> = log.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=log.len() as u64).collect::<Vec<_>>(), "no gap");
    assert!(matches!(log[0].event, RunEvent::RunQueued { .. }), "{:#?}", log[0]);
    let ends = log.iter().filter(|event| matches!(event.event, RunEvent::RunFinished { .. })).count();
    assert_eq!(ends, 1, "{log:#?}");
    assert!(matches!(log[log.len() - 1].event, RunEvent::RunFinished { .. }));
}

/// What was asked for, as a repository's path on record.
pub(crate) fn is_of(asked: &Asked, path: &Path) -> bool {
    Path::new(&asked.repo) == path.canonicalize().expect("there")
}
