//! Where a daemon is measured: a repository with a spec, the daemon's process, and the same engine
//! in this one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use proctor_core::api::RunSubmission;
use proctor_core::enforcement::SandboxMode;
use proctor_core::names::ProfileName;
use proctor_core::spec::Operator;
use proctor_core::tier::Tier;
use proctor_core::verdict::Verdict;
use proctor_runner::{
    CachesWanted, CancellationToken, ChangesWanted, Engine, EngineConfig, Helpers, RunRequest, RunSource, SkillsWanted,
    Tracing,
};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::arena::{git_commit, write};
use crate::program;

/// How long a process may take until it listens.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often is looked whether it does.
const LOOK: Duration = Duration::from_millis(5);
/// How many events wait for nobody.
const EVENTS: usize = 256;

/// One profile whose run ends at once, and one whose run takes long enough for many to wait.
const SPEC: &str = "version: 1\n\
    profiles: { quick: { include: [quick] }, slow: { include: [slow] } }\n\
    skills:\n  \
    quick: { description: d, determinism: D0, tier: 1, steps: [ { name: a, cmd: [\"true\"] } ] }\n  \
    slow: { description: d, determinism: D0, tier: 1, steps: [ { name: a, cmd: [\"sleep\", \"4\"] } ] }\n";

/// A repository and a place for state; they go with the last clone.
#[derive(Clone)]
pub(super) struct Place(Arc<TempDir>);

impl Place {
    pub(super) fn make() -> Result<Self> {
        let root = TempDir::with_prefix("proctor-bench.").context("a scratch directory cannot be made")?;
        let place = Self(Arc::new(root));
        let repository = place.path("repository");
        std::fs::create_dir_all(repository.join("spec"))?;
        write(&repository.join("spec/verification.yaml"), SPEC.as_bytes())?;
        git_commit(&repository)?;
        Ok(place)
    }

    /// The same with so many files more, in directories of a hundred.
    pub(super) fn with_files(count: usize) -> Result<Self> {
        let place = Self::make()?;
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

    /// A request for a run of `profile`, which nothing else answers.
    pub(super) fn submission(&self, profile: &str) -> Result<RunSubmission> {
        let asked = serde_json::json!({ "repo": self.path("repository"), "profile": profile, "reuse": "never" });
        Ok(serde_json::from_value(asked)?)
    }
}

/// A daemon of its own process, which ends with this value.
pub(super) struct Daemon {
    pub(super) place: Place,
    pub(super) socket: PathBuf,
    process: Child,
}

impl Daemon {
    pub(super) async fn start(place: &Place) -> Result<Self> {
        let socket = place.path("run/proctord.sock");
        let argument = |name: &str| place.path(name).display().to_string();
        let arguments = ["--socket", &argument("run/proctord.sock"), "--state-dir", &argument("daemon-state")];
        let program = beside("proctord")?.display().to_string();
        let process = program::quiet(&program, &arguments).spawn().context("proctord cannot be started")?;
        let daemon = Self { place: place.clone(), socket, process };
        listening(&daemon.socket).await?;
        Ok(daemon)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        // It may have ended by itself; that was noticed by whoever asked it.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::TERM));
        let _ = self.process.wait();
    }
}

/// The same engine as the daemon's, here.
pub(super) struct InProcess {
    engine: Engine,
    request: RunRequest,
}

impl InProcess {
    pub(super) fn open(place: &Place) -> Result<Self> {
        let config = EngineConfig {
            state_dir: place.path("state"),
            helpers: Helpers {
                sandbox: beside("proctor-sandbox")?,
                git: beside("proctor-git")?,
                sql: beside("proctor-sql")?,
            },
            duckdb: None,
            home: program::setting("HOME", place.path("home"))?,
            caller_env: BTreeMap::new(),
            operator: Operator::default(),
            hide: Vec::new(),
            stays: true,
        };
        let request = RunRequest {
            plan_sha256: None,
            run_id: None,
            repo: place.path("repository"),
            source: RunSource::Worktree,
            profile: ProfileName::new("quick")?,
            changeset: None,
            max_tier: Tier::TWO,
            sandbox: SandboxMode::Strict,
            fail_fast: false,
            changes: ChangesWanted::Applied,
            skills: SkillsWanted::All,
            caches: CachesWanted::Kept,
            live: None,
            trace: Tracing::default(),
        };
        Ok(Self { engine: Engine::open(config)?, request })
    }

    /// One run, and how long it took.
    pub(super) async fn run(&self) -> Result<Duration> {
        let began = Instant::now();
        let (sender, mut events) = mpsc::channel(EVENTS);
        let heard = tokio::spawn(async move { while events.recv().await.is_some() {} });
        let report = self.engine.run(self.request.clone(), sender, CancellationToken::new()).await?;
        heard.await?;
        ensure!(report.verdict == Verdict::Passed, "a run did not pass: {:?}", report.doubts);
        Ok(began.elapsed())
    }
}

pub(super) fn beside(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe().context("cannot determine the path of this program")?.with_file_name(name))
}

/// Waits until somebody listens at `socket`.
pub(super) async fn listening(socket: &Path) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while UnixStream::connect(socket).await.is_err() {
        if Instant::now() > until {
            bail!("no daemon listens at {} after {PATIENCE:?}", socket.display());
        }
        // A socket that another process is about to bind cannot be waited for: there is none yet.
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
