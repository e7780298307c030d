//! A pool with one worker in a real sandbox, for tests of database servers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use libtest_mimic::{Arguments, Trial};
use proctor_core::model::enforcement::Tolerated;
use proctor_core::sql::{Judgement, SqlRequest};
use proctor_sandbox::{Host, HostConfig, Launcher, RunSpace, RunSpaceConfig, SandboxReuse};
use proctor_sql::worker_pool::{WorkerPool, WorkerPoolConfig};

/// A pool with one worker.
pub(crate) struct Pool {
    pub(crate) state: tempfile::TempDir,
    pub(crate) workers: Arc<WorkerPool>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl Pool {
    pub(crate) fn start() -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let launcher = launcher(state.path());
        let config = WorkerPoolConfig {
            program: program(),
            duckdb: None,
            max_idle: 1,
            tolerated: Tolerated::default(),
            verifiers: Vec::new(),
        };
        let workers = Arc::new(WorkerPool::new(launcher, config).expect("workers"));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        Self { state, workers, runtime }
    }

    pub(crate) fn judge(&self, request: &SqlRequest) -> Judgement {
        self.runtime.block_on(self.workers.judge(request))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.workers.release();
    }
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_proctor-sql"))
}

fn launcher(state: &Path) -> Arc<Launcher> {
    let helper = program().with_file_name("proctor-sandbox");
    assert!(helper.exists(), "`{}` is not built: `cargo build --workspace --bins`", helper.display());
    let config = HostConfig { helper, state_dir: state.join("state"), home: state.join("home") };
    Arc::new(Launcher::start(Host::new(config).expect("a host")).expect("a launcher"))
}

/// Returns the reason why no sandbox can be made here.
pub(crate) fn sandbox_unavailable_reason() -> Option<String> {
    let state = tempfile::tempdir().expect("a directory");
    let config = RunSpaceConfig {
        disk_bytes: 1 << 20,
        inodes: 1 << 10,
        tolerated: Tolerated::default(),
        reuse: SandboxReuse::Never,
        caches: None,
    };
    RunSpace::create(&launcher(state.path()), config).err().map(|error| format!("no sandbox can be made here: {error}"))
}

/// The function of a test, which gets the pool of all tests.
pub(crate) type TestFunction = fn(&Pool);

/// A test of a server, with the name of the server and the reason why the test cannot run.
pub(crate) struct ServerTest {
    pub(crate) name: &'static str,
    pub(crate) test: TestFunction,
    pub(crate) server: &'static str,
    pub(crate) unavailable_reason: Option<String>,
}

/// Runs tests one after another with one pool, and skips those that cannot run. Exits the process.
pub(crate) fn run_tests(tests: Vec<ServerTest>) -> ! {
    let pool = Arc::new(LazyLock::new(Pool::start as fn() -> Pool));
    let trial = |ServerTest { name, test, server, unavailable_reason }: ServerTest| match unavailable_reason {
        None => {
            let pool = Arc::clone(&pool);
            Trial::test(name, move || {
                test(&pool);
                Ok(())
            })
        }
        Some(reason) => {
            eprintln!("{reason}");
            let name = format!("{name} (skipped: needs a sandbox and {server})");
            Trial::test(name, || Ok(())).with_ignored_flag(true)
        }
    };
    // A test may kill every server of this process.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let conclusion = libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect());
    // Ends the workers and removes their directories.
    drop(pool);
    conclusion.exit()
}
