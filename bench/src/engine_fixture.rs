//! The environment of measurements: a small git repository, a state directory, an engine and a runtime. Everything
//! is removed on drop.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::names::StepName;
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{Argv, Limit, LimitSettings, Network, PlannedStep, ReadOnly, RelPath};
use proctor_core::spec::{AdhocCommand, OperatorConfig, adhoc_step};
use proctor_runner::{CancellationToken, Engine, EngineConfig, HelperPrograms, JudgedCommand, Session};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::program;

/// Number of files in the repository.
const FILES: usize = 100;
/// Limit of the layers of one session, in bytes.
const MAX_LAYER_BYTES: u64 = 1 << 30;
/// The caller's environment. It contains a secret, as most do, so that outputs are searched for it.
const CALLER_ENV: [(&str, &str); 2] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("BENCH_TOKEN", "a-token-that-no-step-prints"),
];

/// A repository and a state directory; removed with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct ScratchRepository(Arc<TempDir>);

impl ScratchRepository {
    /// Creates the repository.
    ///
    /// # Errors
    /// git is missing, or the disk is full.
    pub(crate) fn create() -> Result<Self> {
        let root = TempDir::with_prefix("proctor-bench.").context("cannot create a scratch directory")?;
        make_repository(&root.path().join("repository"))?;
        Ok(Self(Arc::new(root)))
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.0.path().join("repository")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }
}

/// An engine and its runtime for one repository.
pub(crate) struct EngineFixture {
    engine: Engine,
    runtime: Runtime,
    scratch: ScratchRepository,
}

impl EngineFixture {
    /// Starts the engine.
    ///
    /// # Errors
    /// A helper is missing in the directory of this program.
    pub(crate) fn open(scratch: &ScratchRepository) -> Result<Self> {
        let runtime = Runtime::new().context("cannot start the async runtime")?;
        let engine = Engine::open(config(scratch)?)?;
        Ok(Self { engine, runtime, scratch: scratch.clone() })
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts a session for the repository.
    ///
    /// # Errors
    /// The machine does not allow a session.
    pub(crate) fn session(&self, cancel: CancellationToken) -> Result<Arc<Session>> {
        let session = self.runtime.block_on(self.engine.open_session(
            &self.scratch.repository(),
            Limit::Max(MAX_LAYER_BYTES),
            SandboxMode::Strict,
            cancel,
        ));
        session
            .map(Arc::new)
            .map_err(|error| anyhow::anyhow!("{}; {}", error.message(), error.hint().unwrap_or_default()))
    }

    /// Runs a step to completion on a worker of the runtime, as the command line and the daemon do. Also returns the
    /// duration.
    ///
    /// # Errors
    /// The outcome is not `expected`.
    pub(crate) fn run(
        &self,
        session: &Arc<Session>,
        step: &PlannedStep,
        expected: Outcome,
    ) -> Result<(JudgedCommand, Duration)> {
        let (session, step) = (Arc::clone(session), step.clone());
        let attempt = self.runtime.spawn(async move {
            let began = Instant::now();
            let report = run_step(&session, &step, expected).await?;
            Ok((report, began.elapsed()))
        });
        self.runtime.block_on(attempt).context("the task of an attempt failed")?
    }
}

/// Runs a step to completion, inside the runtime.
///
/// # Errors
/// The outcome is not `expected`.
pub(crate) async fn run_step(session: &Session, step: &PlannedStep, expected: Outcome) -> Result<JudgedCommand> {
    let report = session.run(step).await?;
    let JudgedCommand { evidence, inconclusive_reasons: doubts, .. } = &report;
    if evidence.outcome != expected {
        bail!("a step ended as {:?} instead of {expected:?}: {:?} {doubts:?}", evidence.outcome, evidence.termination);
    }
    Ok(report)
}

/// Returns a step as `proctor exec` plans it.
///
/// # Errors
/// The command is empty.
pub(crate) fn plan_step(argv: &[&str]) -> Result<PlannedStep> {
    let adhoc = AdhocCommand {
        cmd: Argv::new(argv.iter().map(|word| (*word).to_owned()).collect())?,
        workdir: None::<RelPath>,
        timeout_ms: None,
        grace_ms: None,
        network: None::<Network>,
        read_only: None::<ReadOnly>,
        leaks: None,
        env_allowlist: None,
        env: BTreeMap::new(),
        limits: LimitSettings::default(),
    };
    let planned = adhoc_step(&adhoc, StepName::new("bench")?, None, &OperatorConfig::default());
    planned.map_err(|diagnostics| anyhow::anyhow!("cannot plan the step: {diagnostics:?}"))
}

fn config(scratch: &ScratchRepository) -> Result<EngineConfig> {
    let own = std::env::current_exe().context("cannot determine the path of this program")?;
    let sibling = |name: &str| own.with_file_name(name);
    Ok(EngineConfig {
        state_dir: scratch.state(),
        helpers: HelperPrograms {
            sandbox: sibling("proctor-sandbox"),
            git: sibling("proctor-git"),
            sql: sibling("proctor-sql"),
        },
        duckdb: None,
        // The real home directory: toolchains in it are mounted for every step.
        home: program::setting("HOME", scratch.0.path().join("home"))?,
        caller_env: CALLER_ENV.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        operator: OperatorConfig::default(),
        hidden_dirs: Vec::new(),
        is_long_running: false,
    })
}

fn make_repository(at: &Path) -> Result<()> {
    std::fs::create_dir(at)?;
    for number in 0..FILES {
        write(&at.join(format!("f{number}")), format!("file {number}\n").as_bytes())?;
    }
    write(&at.join(".gitignore"), b"big\nbuild\n")?;
    git_commit(at)
}

/// Turns a directory into a repository, and commits all files in it.
///
/// # Errors
/// git is missing, or it fails.
pub(crate) fn git_commit(at: &Path) -> Result<()> {
    for arguments in [&["init", "--quiet"][..], &["add", "--all"], &["commit", "--quiet", "--message=files"]] {
        let identity = ["-c", "user.name=Bench", "-c", "user.email=bench@example.org"];
        let mut git = program::silent_command("git", &[&identity[..], arguments].concat());
        git.current_dir(at).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        let status = git.status().context("cannot start git")?;
        ensure!(status.success(), "`git {}` ended with {status}", arguments.join(" "));
    }
    Ok(())
}

/// Writes a file of a temporary repository.
///
/// # Errors
/// The file cannot be written.
#[expect(clippy::disallowed_methods, reason = "scratch repositories need no atomic writes")]
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}
