//! Declares the requirements of cases, and probes the machine for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use rustix::process::{Resource, getrlimit};

use crate::environment::TestEnvironment;
use crate::process::RunningProcess;
use crate::test_spec::TestSpec;
use crate::tracer::TraceOptions;
use crate::{binaries, machine};

/// The user who runs `proctor` in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    /// The user who runs the tests.
    Caller,
    /// An unprivileged user; if the tests run as root, `setpriv` switches to it.
    Unprivileged,
}

/// A requirement that the machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// All controls of the sandbox except control groups, according to `proctor doctor` for the case's actor.
    Sandbox,
    /// Root on the host; root inside a sandbox cannot switch to other users.
    Root,
    /// A program in one of the directories of [`machine::PATH`].
    Program(&'static str),
    /// A command that succeeds outside of any sandbox, given as a program with its arguments.
    WorkingCommand(&'static [&'static str]),
    /// Control groups for steps.
    ControlGroups,
    /// Views of the host, which record what a step reads, according to `proctor doctor`.
    Views,
    /// Tracing the system calls of a child process.
    Tracing,
    /// A limit of at least this many open files per process.
    OpenFiles(u64),
    /// The rustup toolchain that built the tests.
    Cargo,
    /// A third-party client, given as a command that succeeds; its program is a path below the directory that
    /// `scripts/clients` fills.
    Client(&'static [&'static str]),
    /// DuckDB's shared library, which `scripts/clients` installs.
    Duckdb,
    /// The server programs of PostgreSQL.
    Postgres,
    /// The server programs of MariaDB.
    Mariadb,
}

/// The format in which git creates the repositories of a case, as environment variables.
pub(crate) type GitFormat = &'static [(&'static str, &'static str)];

/// Repositories with SHA-256 object ids.
pub(crate) const SHA256: GitFormat = &[("GIT_DEFAULT_HASH", "sha256")];
/// Repositories with reftables.
pub(crate) const REFTABLE: GitFormat = &[("GIT_DEFAULT_REF_FORMAT", "reftable")];
/// Requirements of cases with such repositories.
pub(crate) const NEEDS_SHA256: &[Needs] =
    &[Needs::Sandbox, Needs::WorkingCommand(&["sh", "-c", "cd $(mktemp -d) && git init -q --object-format=sha256 ."])];
pub(crate) const NEEDS_REFTABLE: &[Needs] =
    &[Needs::Sandbox, Needs::WorkingCommand(&["sh", "-c", "cd $(mktemp -d) && git init -q --ref-format=reftable ."])];

/// A test case: its name, its requirements, and the function to run in its own environment.
pub(crate) struct CaseDefinition {
    pub(crate) name: &'static str,
    pub(crate) actor: Actor,
    pub(crate) needs: &'static [Needs],
    pub(crate) format: GitFormat,
    pub(crate) run: fn(&TestEnvironment),
    /// True if only `make test-long` runs the case.
    pub(crate) is_long: bool,
    /// True if `make test` also runs the case through a daemon.
    pub(crate) is_daemon_sample: bool,
}

/// Declares a case that runs in the sandbox as the user who runs the tests.
pub(crate) const fn case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    CaseDefinition { needs: &[Needs::Sandbox], ..dry_case(name, run) }
}

/// Declares a case in which no step runs.
pub(crate) const fn dry_case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    CaseDefinition { name, actor: Actor::Caller, needs: &[], format: &[], run, is_long: false, is_daemon_sample: false }
}

impl CaseDefinition {
    /// Replaces the requirements.
    pub(crate) const fn needs(self, needs: &'static [Needs]) -> Self {
        Self { needs, ..self }
    }

    /// Uses repositories with SHA-256 object ids.
    pub(crate) const fn with_sha256(self) -> Self {
        Self { format: SHA256, needs: NEEDS_SHA256, ..self }
    }

    /// Uses repositories with reftables.
    pub(crate) const fn with_reftables(self) -> Self {
        Self { format: REFTABLE, needs: NEEDS_REFTABLE, ..self }
    }

    /// Renames the case and runs it as an unprivileged user.
    pub(crate) const fn unprivileged(self, name: &'static str) -> Self {
        Self { name, actor: Actor::Unprivileged, ..self }
    }

    /// Leaves the case to `make test-long`: a campaign, or a variant (another actor or git format) of a case that
    /// `make test` runs.
    pub(crate) const fn long(self) -> Self {
        Self { is_long: true, ..self }
    }

    /// Runs the case through a daemon too, even in `make test`. `cases::daemon_cases` has the criterion.
    pub(crate) const fn daemon_sample(self) -> Self {
        Self { is_daemon_sample: true, ..self }
    }

    /// Returns the first requirement that the machine lacks.
    pub(crate) fn unmet_need(&self) -> Option<String> {
        let missing = if self.actor == Actor::Unprivileged { missing_user_change() } else { None };
        missing.or_else(|| self.needs.iter().find_map(|need| need.missing_requirement(self.actor)))
    }
}

impl Needs {
    fn missing_requirement(self, actor: Actor) -> Option<String> {
        match self {
            Self::Sandbox => missing_sandbox(actor),
            Self::Root => (!machine::is_root()).then(|| "root".to_owned()).or_else(missing_owner_change),
            Self::Program(name) => (!machine::has_program(name)).then(|| format!("the program {name}")),
            Self::Client(command) => (!client_works(command))
                .then(|| format!("`{}`, which scripts/clients installs, to work", command.join(" "))),
            Self::Duckdb => (!binaries::client_program(DUCKDB_LIBRARY).is_file())
                .then(|| "DuckDB's library, which scripts/clients installs".to_owned()),
            Self::Mariadb => proctor_sql::mysql::MariadbPrograms::find().err().map(|missing| missing.to_string()),
            Self::Postgres => proctor_sql::postgres::PostgresPrograms::find().err().map(|missing| missing.to_string()),
            Self::WorkingCommand(command) => {
                (!command_works(command)).then(|| format!("`{}` to work", command.join(" ")))
            }
            Self::ControlGroups => (!has_control_groups(actor)).then(|| "control groups that can be made".to_owned()),
            Self::Views => doctor_result(actor).missing_views,
            Self::Tracing => missing_tracing(),
            Self::OpenFiles(count) => missing_open_files(count),
            Self::Cargo => machine::rust_toolchain().is_none().then(|| "a Rust toolchain of rustup".to_owned()),
        }
    }
}

/// Returns why root cannot switch to the unprivileged user. Other users do not need to switch.
fn missing_user_change() -> Option<String> {
    /// The same command as in [`TestEnvironment`].
    const CHANGE_USER: &[&str] = &["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups", "--", "true"];
    if !machine::is_root() {
        return None;
    }
    if !machine::has_program(CHANGE_USER[0]) {
        return Some("setpriv of util-linux, to become another user".to_owned());
    }
    if command_works(CHANGE_USER) {
        missing_owner_change()
    } else {
        Some("to become another user, which a sandbox refuses".to_owned())
    }
}

fn missing_owner_change() -> Option<String> {
    (!machine::can_change_owner()).then(|| "to give files to another user, which a sandbox refuses".to_owned())
}

fn missing_open_files(count: u64) -> Option<String> {
    let maximum = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    (maximum < count).then(|| format!("{count} open files, and {maximum} are allowed"))
}

/// Caches the result of each probe. Different probes run concurrently; one probe runs once.
struct ProbeCache<K, V>(Mutex<BTreeMap<K, Arc<OnceLock<V>>>>);

impl<K: Ord, V: Clone> ProbeCache<K, V> {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn get_or_probe(&self, key: K, probe: impl FnOnce() -> V) -> V {
        let slot = Arc::clone(self.0.lock().expect("no panic while it is locked").entry(key).or_default());
        slot.get_or_init(probe).clone()
    }
}

/// Probes all requirements of the cases concurrently, because the probes mostly wait for processes.
pub(crate) fn probe_concurrently(cases: &[&'static CaseDefinition]) {
    let (next, cases) = (AtomicUsize::new(0), cases_with_distinct_needs(cases));
    std::thread::scope(|scope| {
        for _ in 0..PROBE_THREADS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    case.unmet_need();
                }
            });
        }
    });
}

/// Maximum number of concurrent probes.
const PROBE_THREADS: usize = 6;

/// Returns one case for each combination of an actor and requirements.
fn cases_with_distinct_needs(cases: &[&'static CaseDefinition]) -> Vec<&'static CaseDefinition> {
    let mut distinct: Vec<&'static CaseDefinition> = Vec::new();
    for case in cases {
        if !distinct.iter().any(|other| other.actor == case.actor && other.needs == case.needs) {
            distinct.push(case);
        }
    }
    distinct
}

/// Checks whether a command succeeds; the result is cached.
fn command_works(command: &'static [&'static str]) -> bool {
    static ANSWERS: ProbeCache<&[&str], bool> = ProbeCache::new();
    ANSWERS.get_or_probe(command, || {
        machine::has_program(command[0]) && {
            let mut started = machine::command(command[0]);
            started.args(&command[1..]).env("HOME", "/nonexistent");
            RunningProcess::start(started).wait().code == Some(0)
        }
    })
}

/// Returns why no program can be traced; the result is cached.
fn missing_tracing() -> Option<String> {
    static ANSWER: LazyLock<Option<String>> = LazyLock::new(|| {
        let dir = tempfile::tempdir().expect("a directory for a probe");
        let report = dir.path().join("report");
        let words =
            TraceOptions { kill_at: 0, tear_write: false, call_log: &report, traced_dir: dir.path() }.to_arguments();
        let mut started = machine::command(&words[0]);
        started.args(&words[1..]).args(["sh", "-c", "echo > \"$1\"", "sh"]).arg(dir.path().join("x"));
        let finished = RunningProcess::start(started).wait();
        let traced_calls = std::fs::read_to_string(report).unwrap_or_default();
        let works = finished.code == Some(0) && traced_calls.contains("/x\n");
        (!works).then(|| format!("to trace a program: {}", finished.stderr.lines().next().unwrap_or("nothing is seen")))
    });
    ANSWER.clone()
}

/// Checks whether a client's command succeeds; the result is cached.
fn client_works(command: &'static [&'static str]) -> bool {
    static ANSWERS: ProbeCache<&[&str], bool> = ProbeCache::new();
    ANSWERS.get_or_probe(command, || {
        binaries::client_program(command[0]).is_file() && {
            let mut started = machine::client_command(command[0]);
            started.args(&command[1..]).env("HOME", "/nonexistent");
            RunningProcess::start(started).wait().code == Some(0)
        }
    })
}

/// The result of `proctor doctor`, cached for each actor.
#[derive(Clone)]
struct DoctorResult {
    /// The reason why no step can run; `None` if steps can run.
    missing_control: Option<String>,
    has_control_groups: bool,
    /// The reason why no step can run on a view of the host; `None` if steps can.
    missing_views: Option<String>,
}

fn doctor_result(actor: Actor) -> DoctorResult {
    static ANSWERS: ProbeCache<Actor, DoctorResult> = ProbeCache::new();
    ANSWERS.get_or_probe(actor, || run_doctor(actor))
}

fn missing_sandbox(actor: Actor) -> Option<String> {
    doctor_result(actor).missing_control
}

/// Checks whether control groups can be created. Without them, every result has tier 2.
pub(crate) fn has_control_groups(actor: Actor) -> bool {
    doctor_result(actor).has_control_groups
}

fn run_doctor(actor: Actor) -> DoctorResult {
    let env = TestEnvironment::new(actor);
    let doctor = env.repo(&TestSpec::from_script("true")).proctor(&["doctor"]);
    let lines = || doctor.stdout.lines().chain(doctor.stderr.lines());
    let reason = lines().find(|line| line.starts_with("error")).or_else(|| lines().next()).unwrap_or("no answer");
    let root = env.root().to_str().unwrap_or_default();
    let missing_control =
        (doctor.code != Some(0)).then(|| format!("the sandbox as {actor:?}: {}", reason.replace(root, "…")));
    let views = lines().find_map(|line| line.strip_prefix("views ")).map_or("no answer", str::trim);
    DoctorResult {
        missing_control,
        missing_views: (views != "available").then(|| format!("views as {actor:?}: {}", views.replace(root, "…"))),
        has_control_groups: lines().any(|line| line.starts_with("enforced") && line.contains(" cgroup ")),
    }
}

/// DuckDB's shared library, below the clients' directory.
pub(crate) const DUCKDB_LIBRARY: &str = "duckdb/libduckdb.so";
/// Requirements of a case that calls git.
pub(crate) const NEEDS_GIT: &[Needs] = &[Needs::Sandbox, Needs::Program("git")];
/// The Python interpreter with the official SDK of the Model Context Protocol.
pub(crate) const MCP_SDK_PYTHON: &str = "python/bin/python";
/// The Inspector of the Model Context Protocol.
pub(crate) const MCP_INSPECTOR: &str = "node/node_modules/.bin/mcp-inspector";
/// Requirements of a case that uses the MCP SDK.
pub(crate) const NEEDS_MCP_SDK: &[Needs] =
    &[Needs::Sandbox, Needs::Client(&[MCP_SDK_PYTHON, "-c", "import mcp, httpx2"])];
/// Requirements of a case that uses the MCP Inspector.
pub(crate) const NEEDS_MCP_INSPECTOR: &[Needs] = &[Needs::Sandbox, Needs::Client(&[MCP_INSPECTOR, "--cli", "--help"])];
/// The Python interpreter with LangChain, its MCP adapters, and two model providers.
pub(crate) const LANGCHAIN_PYTHON: &str = "langchain/bin/python";
/// Requirements of a case that uses LangChain.
pub(crate) const NEEDS_LANGCHAIN: &[Needs] = &[
    Needs::Sandbox,
    Needs::Client(&[LANGCHAIN_PYTHON, "-c", "import langchain_mcp_adapters, langchain_openai, langchain_anthropic"]),
];
/// The Python interpreter with the tools that test the Python client.
pub(crate) const PYTHON_CLIENT_PYTHON: &str = "python-client/bin/python";
/// Requirements of a case that tests the Python client.
pub(crate) const NEEDS_PYTHON_CLIENT: &[Needs] = &[
    Needs::Sandbox,
    Needs::Program("git"),
    Needs::Client(&[PYTHON_CLIENT_PYTHON, "-c", "import hatchling, jsonschema, langchain_core, mypy, pytest, ruff"]),
];
/// The Python interpreter with OpenTelemetry's message definitions.
pub(crate) const OPENTELEMETRY_PYTHON: &str = "opentelemetry/bin/python";
/// Requirements of a case that receives spans with these definitions.
pub(crate) const NEEDS_OPENTELEMETRY: &[Needs] = &[
    Needs::Sandbox,
    Needs::Client(&[OPENTELEMETRY_PYTHON, "-c", "import opentelemetry.proto.collector.trace.v1.trace_service_pb2"]),
];
/// Requirements of a case that sends spans to Rotel, a collector.
pub(crate) const NEEDS_ROTEL: &[Needs] =
    &[Needs::Sandbox, Needs::Client(&[OPENTELEMETRY_PYTHON, "-c", "import rotel.agent"])];
/// Requirements of a case whose steps misbehave in ways that need more than a shell.
pub(crate) const NEEDS_PYTHON: &[Needs] = &[Needs::Sandbox, Needs::Program("python3")];
