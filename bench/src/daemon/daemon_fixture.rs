//! The environment for measurements of a daemon: a repository with a spec, the daemon's process, and the same
//! engine in this process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use proctor_core::api::RunSubmission;
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::names::ProfileName;
use proctor_core::model::tier::Tier;
use proctor_core::spec::OperatorConfig;
use proctor_runner::{
    CacheMode, CancellationToken, ChangeHandling, Engine, EngineConfig, HelperPrograms, RunRequest, RunSource,
    SkillSelection, TraceSettings,
};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::engine_fixture::{git_commit, write};
use crate::program;

/// Maximum wait until a process listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Polling interval while waiting for a process to listen.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Capacity of the channel for events.
const EVENT_CAPACITY: usize = 256;

/// A spec with one profile that ends at once, and one that runs long enough for many callers to wait.
const SPEC: &str = "version: 1\n\
    profiles: { quick: { include: [quick] }, slow: { include: [slow] } }\n\
    skills:\n  \
    quick: { description: d, determinism: D0, tier: 1, steps: [ { name: a, cmd: [\"true\"] } ] }\n  \
    slow: { description: d, determinism: D0, tier: 1, steps: [ { name: a, cmd: [\"sleep\", \"4\"] } ] }\n";

/// A repository and a state directory; removed with the last clone.
#[derive(Clone)]
pub(super) struct DaemonFixture(Arc<TempDir>);

impl DaemonFixture {
    pub(super) fn create() -> Result<Self> {
        let root = TempDir::with_prefix("proctor-bench.").context("cannot create a scratch directory")?;
        let place = Self(Arc::new(root));
        let repository = place.path("repository");
        std::fs::create_dir_all(repository.join("spec"))?;
        write(&repository.join("spec/verification.yaml"), SPEC.as_bytes())?;
        git_commit(&repository)?;
        Ok(place)
    }

    /// Creates the same with `count` additional files, in directories of 100 files.
    pub(super) fn with_files(count: usize) -> Result<Self> {
        let place = Self::create()?;
        let repository = place.path("repository");
        for number in 0..count {
            let dir = repository.join(format!("d{}", number / 100));
            std::fs::create_dir_all(&dir)?;
            write(&dir.join(format!("f{number}.txt")), format!("file {number}\n").as_bytes())?;
        }
        git_commit(&repository)?;
        Ok(place)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a request for a new run of `profile`, which must not be answered from an earlier run.
    pub(super) fn submission(&self, profile: &str) -> Result<RunSubmission> {
        let body = serde_json::json!({ "repo": self.path("repository"), "profile": profile, "reuse": "never" });
        Ok(serde_json::from_value(body)?)
    }
}

/// A daemon in a separate process, which is stopped on drop.
pub(super) struct DaemonProcess {
    pub(super) fixture: DaemonFixture,
    pub(super) socket: PathBuf,
    process: Child,
}

impl DaemonProcess {
    pub(super) async fn start(place: &DaemonFixture) -> Result<Self> {
        let socket = place.path("run/proctord.sock");
        let argument = |name: &str| place.path(name).display().to_string();
        let arguments = ["--socket", &argument("run/proctord.sock"), "--state-dir", &argument("daemon-state")];
        let program = sibling_program("proctord")?.display().to_string();
        let process = program::silent_command(&program, &arguments).spawn().context("cannot start proctord")?;
        let daemon = Self { fixture: place.clone(), socket, process };
        wait_for_listener(&daemon.socket).await?;
        Ok(daemon)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        // The process may have exited already; its client has reported that.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::TERM));
        let _ = self.process.wait();
    }
}

/// The same engine as the daemon's, in this process.
pub(super) struct InProcessEngine {
    engine: Engine,
    request: RunRequest,
}

impl InProcessEngine {
    pub(super) fn open(fixture: &DaemonFixture) -> Result<Self> {
        let config = EngineConfig {
            state_dir: fixture.path("state"),
            helpers: HelperPrograms {
                sandbox: sibling_program("proctor-sandbox")?,
                git: sibling_program("proctor-git")?,
                sql: sibling_program("proctor-sql")?,
            },
            duckdb: None,
            home: program::setting("HOME", fixture.path("home"))?,
            caller_env: BTreeMap::new(),
            operator: OperatorConfig::default(),
            hidden_dirs: Vec::new(),
            is_long_running: true,
        };
        let request = RunRequest {
            plan_sha256: None,
            run_id: None,
            repo: fixture.path("repository"),
            spec_dir: None,
            source: RunSource::Worktree,
            profile: ProfileName::new("quick")?,
            changeset: None,
            max_tier: Tier::TWO,
            sandbox: SandboxMode::Strict,
            fail_fast: false,
            changes: ChangeHandling::Apply,
            skills: SkillSelection::All,
            scope: Default::default(),
            caches: CacheMode::Persistent,
            reuses_steps: false,
            live: None,
            trace: TraceSettings::default(),
        };
        Ok(Self { engine: Engine::open(config)?, request })
    }

    /// Runs the request once, and returns the duration.
    pub(super) async fn run(&self) -> Result<Duration> {
        let began = Instant::now();
        let (sender, mut events) = mpsc::channel(EVENT_CAPACITY);
        let drained = tokio::spawn(async move { while events.recv().await.is_some() {} });
        let report = self.engine.run(self.request.clone(), sender, CancellationToken::new()).await?;
        drained.await?;
        ensure!(report.verdict == Verdict::Passed, "a run did not pass: {:?}", report.inconclusive_reasons);
        Ok(began.elapsed())
    }
}

pub(super) fn sibling_program(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe().context("cannot determine the path of this program")?.with_file_name(name))
}

/// Waits until a process listens on `socket`.
pub(super) async fn wait_for_listener(socket: &Path) -> Result<()> {
    let until = Instant::now() + LISTEN_TIMEOUT;
    while UnixStream::connect(socket).await.is_err() {
        if Instant::now() > until {
            bail!("no daemon listens at {} after {LISTEN_TIMEOUT:?}", socket.display());
        }
        // Polling is needed, because there is no event for a process that will bind a socket.
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
