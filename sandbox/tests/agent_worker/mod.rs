//! Starts the agent like the workers of different build clusters.
#![expect(clippy::disallowed_methods, reason = "trials build their world with plain files and processes")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Argv, Leaks, Limit, Limits, Network, RelPath};
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::FileBatches;
use proctor_sandbox::agent::{
    AGENT_PROGRAM, AGENT_PROTOCOL, AgentCommand, AgentReport, AgentRequest, CHANGES_CONTENT_FILE, GIT_DIRECTORY,
    LayerChange, LayerChangeKind, REPORT_FILE, REQUEST_FILE, STDERR_FILE, STDOUT_FILE, TREE_DIRECTORY,
};

/// The ordinary user of the tests; it need not exist.
const USER: u32 = 1001;
/// Timeout for every wait.
const DEADLINE: Duration = Duration::from_secs(30);
/// The directory of the agent in the input root.
pub(crate) const WORK_DIRECTORY: &str = "proctor-work";
/// The path of the repository in each request.
pub(crate) const REPO: &str = "/proctor-test/project";

/// The environment in which a worker runs actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Environment {
    /// Directly, as root.
    Root,
    /// As root of a container that permits no namespaces.
    ContainerRoot,
    /// Directly, as an ordinary user.
    User,
    /// In bubblewrap, as user 0 without capabilities, as buildbox-casd does by default.
    BubblewrapRoot,
    /// In bubblewrap, as an ordinary user.
    BubblewrapUser,
    /// In bubblewrap, as user 0 without capabilities, on a kernel without Landlock. Nothing can confine a command.
    NoLandlock,
}

impl Environment {
    pub(crate) const ALL: [Self; 5] =
        [Self::Root, Self::ContainerRoot, Self::User, Self::BubblewrapRoot, Self::BubblewrapUser];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::ContainerRoot => "container_root",
            Self::User => "user",
            Self::BubblewrapRoot => "bubblewrap_root",
            Self::BubblewrapUser => "bubblewrap_user",
            Self::NoLandlock => "no_landlock",
        }
    }

    /// Returns the reason why the agent cannot be started like this on this machine, without using it.
    pub(crate) fn skip_reason(self) -> Option<String> {
        if matches!(self, Self::Root | Self::ContainerRoot) && !rustix::process::geteuid().is_root() {
            return Some("needs root".to_owned());
        }
        let dir = tempfile::tempdir().ok()?;
        prepare_root(dir.path(), self).ok()?;
        match self.command(dir.path(), &["/usr/bin/true"]).output() {
            Ok(output) if output.status.success() => self.lacks_namespaces(dir.path()),
            Ok(output) => Some(format!("needs bwrap: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => Some(format!("needs setpriv or bwrap: {error}")),
        }
    }

    /// Returns the reason if an ordinary user cannot have the namespaces that the tests expect.
    fn lacks_namespaces(self, root: &Path) -> Option<String> {
        if self != Self::User {
            return None;
        }
        let created = self.command(root, &["unshare", "--user", "--map-root-user", "--mount", "true"]).output();
        let is_created = created.is_ok_and(|output| output.status.success());
        (!is_created).then(|| "needs user namespaces".to_owned())
    }

    fn command(self, root: &Path, words: &[&str]) -> Command {
        let mut command = match self {
            Self::Root => Command::new("env"),
            Self::ContainerRoot => {
                let mut command = Command::new("setpriv");
                command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]);
                command
            }
            Self::User if !rustix::process::geteuid().is_root() => Command::new("env"),
            Self::User => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()]);
                command
            }
            Self::BubblewrapRoot => bubblewrap(root, "0"),
            Self::BubblewrapUser => bubblewrap(root, "1000"),
            Self::NoLandlock => {
                let mut command = Command::new("sh");
                command.args(["-c", "filter=$1; shift; exec bwrap --seccomp 9 \"$@\" 9<\"$filter\"", "sh"]);
                command.arg(root.join(FILTER_FILE)).args(bubblewrap(root, "0").get_args());
                command
            }
        };
        command.args(words).current_dir(root).env_clear().env("PATH", "/usr/bin:/bin").env("SECRET", "do not leak");
        command
    }
}

/// Returns the command line with which buildbox-run starts an action.
fn bubblewrap(root: &Path, uid: &str) -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-pid", "--die-with-parent", "--bind"]).arg(root).arg("/");
    command.args(["--unshare-net", "--unshare-uts", "--hostname", "buildbox", "--unshare-ipc", "--chdir", "/"]);
    command.args(["--unshare-user", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]);
    command.args(["--proc", "/proc", "--tmpfs", "/tmp", "--dev", "/dev", "--ro-bind", "/usr", "/usr"]);
    for (name, source) in [("bin", "/usr/bin"), ("lib", "/usr/lib"), ("lib64", "/usr/lib64")] {
        if Path::new(source).is_dir() {
            command.args(["--ro-bind", source]).arg(Path::new("/").join(name));
        }
    }
    command
}

/// The file in the input root with a filter of system calls, for bubblewrap.
const FILTER_FILE: &str = "filter.bpf";

/// Returns a filter of system calls under which the kernel has no Landlock.
fn filter_without_landlock() -> Vec<u8> {
    const LANDLOCK_CREATE_RULESET: u32 = 444;
    const EOPNOTSUPP: u32 = 95;
    // The number of the system call is the first word of its description.
    let program: [(u16, u8, u8, u32); 4] = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, LANDLOCK_CREATE_RULESET),
        (0x06, 0, 0, 0x0005_0000 | EOPNOTSUPP),
        (0x06, 0, 0, 0x7fff_0000),
    ];
    let encode = |(code, jump_true, jump_false, value): (u16, u8, u8, u32)| {
        [&code.to_ne_bytes()[..], &[jump_true, jump_false], &value.to_ne_bytes()].concat()
    };
    program.into_iter().flat_map(encode).collect()
}

/// Creates the directories that each input root has, and the agent program.
fn prepare_root(root: &Path, environment: Environment) -> io::Result<()> {
    for name in [TREE_DIRECTORY, "usr", "bin", "lib", "lib64", "proc", "tmp", "dev"] {
        fs::create_dir(root.join(name))?;
    }
    let helper: PathBuf = std::env::var_os("PROCTOR_TEST_HELPER")
        .map_or_else(|| env!("CARGO_BIN_EXE_proctor-sandbox").into(), Into::into);
    fs::write(root.join(FILTER_FILE), filter_without_landlock())?;
    if environment == Environment::User && rustix::process::geteuid().is_root() {
        chown_to_user(root)?;
    }
    // The link keeps its owner.
    fs::hard_link(&helper, root.join(AGENT_PROGRAM)).or_else(|_| fs::copy(&helper, root.join(AGENT_PROGRAM)).map(drop))
}

fn chown_to_user(path: &Path) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(USER), Some(USER))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            chown_to_user(&entry?.path())?;
        }
    }
    Ok(())
}

/// An action of a worker.
pub(crate) struct Action {
    pub(crate) environment: Environment,
    pub(crate) root: PathBuf,
    dir: tempfile::TempDir,
}

/// The outputs of an action.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) report: AgentReport,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) content: Vec<u8>,
}

impl Action {
    pub(crate) fn new(environment: Environment) -> Result<Self, Failed> {
        let dir = tempfile::tempdir()?;
        // The ordinary user must reach the input root.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let root = dir.path().join("root");
        fs::create_dir(&root)?;
        prepare_root(&root, environment)?;
        let action = Self { environment, root, dir };
        for (name, text) in [("tracked.txt", "as it was\n"), ("src/lib.rs", "// nothing\n"), ("old/file", "old\n")] {
            action.write_input(&format!("{TREE_DIRECTORY}/{name}"), text)?;
        }
        Ok(action)
    }

    /// Writes an input file, with the directories above it.
    pub(crate) fn write_input(&self, name: &str, text: impl AsRef<[u8]>) -> Result<(), Failed> {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
        Ok(fs::write(path, text)?)
    }

    /// Returns a directory next to the input root.
    pub(crate) fn outside(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write_request(&self, request: &AgentRequest) -> Result<(), Failed> {
        self.write_input(REQUEST_FILE, serde_json::to_vec(request)?)
    }

    /// Runs the agent to its end.
    pub(crate) fn start(&self) -> Result<Output, Failed> {
        Ok(self.spawn()?.wait_with_output()?)
    }

    pub(crate) fn spawn(&self) -> Result<Child, Failed> {
        if self.environment == Environment::User && rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(&self.root, Some(USER), Some(USER))?;
            for entry in fs::read_dir(&self.root)?.flatten().filter(|entry| entry.file_name() != AGENT_PROGRAM) {
                chown_to_user(&entry.path())?;
            }
        }
        let mut command = self.environment.command(&self.root, &[&format!("./{AGENT_PROGRAM}"), "agent"]);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// Runs the agent with this request, and reads its outputs.
    pub(crate) fn run(&self, request: &AgentRequest) -> Result<Outputs, Failed> {
        self.write_request(request)?;
        let output = self.start()?;
        self.outputs(&output)
    }

    pub(crate) fn outputs(&self, output: &Output) -> Result<Outputs, Failed> {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() || !stdout.is_empty() || !stderr.is_empty() {
            return Err(format!("{}: {stdout}{stderr}", output.status).into());
        }
        assert_eq!(self.root.join(WORK_DIRECTORY).exists(), self.root.join(WORK_DIRECTORY).join("kept").exists());
        let text = |name| Ok::<_, Failed>(String::from_utf8_lossy(&fs::read(self.root.join(name))?).into_owned());
        Ok(Outputs {
            report: serde_json::from_slice(&fs::read(self.root.join(REPORT_FILE))?)?,
            stdout: text(STDOUT_FILE)?,
            stderr: text(STDERR_FILE)?,
            content: fs::read(self.root.join(CHANGES_CONTENT_FILE))?,
        })
    }

    pub(crate) fn run_shell(&self, script: &str) -> Result<Outputs, Failed> {
        self.run(&request(shell("step", script)))
    }

    /// Runs a script with a git directory.
    pub(crate) fn run_with_git(&self, script: &str) -> Result<Outputs, Failed> {
        self.write_input(&format!("{GIT_DIRECTORY}/HEAD"), "ref: refs/heads/main\n")?;
        self.run(&AgentRequest { has_git: true, ..request(shell("step", script)) })
    }

    /// Waits until a process runs whose command line contains `marker`.
    pub(crate) fn wait_for_process(&self, marker: &str) -> Result<(), Failed> {
        wait_for("the step", || processes().into_iter().find(|(_, line)| line.contains(marker)).map(drop))
    }

    /// Returns the process of the agent, as this process sees it.
    pub(crate) fn agent_process(&self) -> Result<rustix::process::Pid, Failed> {
        let root = fs::metadata(&self.root)?;
        let is_agent = |pid: i32, line: &str| {
            // Other processes of the agent have no arguments, and bubblewrap has more.
            let starts_here = fs::metadata(format!("/proc/{pid}/cwd"))
                .is_ok_and(|cwd| (cwd.dev(), cwd.ino()) == (root.dev(), root.ino()));
            line == format!("./{AGENT_PROGRAM}\0agent\0") && starts_here
        };
        wait_for("the agent", || {
            let found = processes().into_iter().find(|(pid, line)| is_agent(*pid, line));
            found.and_then(|(pid, _)| rustix::process::Pid::from_raw(pid))
        })
    }
}

/// Returns all processes with their command lines.
fn processes() -> Vec<(i32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    // A process that has ended in the meantime has no command line.
    pids.filter_map(|pid: i32| Some((pid, fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?))).collect()
}

fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> Result<T, Failed> {
    let began = Instant::now();
    loop {
        match find() {
            Some(found) => return Ok(found),
            None if began.elapsed() > DEADLINE => return Err(format!("{what} did not start").into()),
            None => std::thread::yield_now(),
        }
    }
}

pub(crate) fn command(name: &str, argv: &[&str]) -> AgentCommand {
    AgentCommand {
        name: name.to_owned(),
        workdir: RelPath::new(".").expect("a path"),
        argv: Argv::new(argv.iter().map(|word| (*word).to_owned()).collect()).expect("a command"),
        files: FileBatches::default(),
        env: BTreeMap::from(
            [("PATH", "/usr/bin:/bin"), ("HOME", "/home/dev")].map(|(k, v)| (k.to_owned(), v.to_owned())),
        ),
        network: Network::Deny,
        limits: Limits { pids: Limit::Max(64), disk: Limit::Max(16 << 20), ..Limits::UNLIMITED },
        leaks: Leaks::Warn,
        timeout_ms: 20_000,
        grace_ms: 5_000,
        max_output_bytes: 64 << 10,
    }
}

pub(crate) fn shell(name: &str, script: &str) -> AgentCommand {
    command(name, &["sh", "-c", script])
}

pub(crate) fn request(step: AgentCommand) -> AgentRequest {
    AgentRequest {
        version: AGENT_PROTOCOL,
        nonce: "a nonce".to_owned(),
        repo: REPO.into(),
        home: "/home/dev".into(),
        step,
        checks: Vec::new(),
        layers: Vec::new(),
        caches: Vec::new(),
        needed_paths: Vec::new(),
        has_git: false,
        tolerated: Tolerated::all(),
        max_changes_bytes: 1 << 20,
    }
}

/// Returns an entry of a layer.
pub(crate) fn change(path: &str, kind: LayerChangeKind) -> LayerChange {
    LayerChange { path: path.as_bytes().to_vec(), kind }
}

/// Returns a file of a layer whose content is at `offset` of `content`.
pub(crate) fn file(path: &str, content: &[u8], offset: u64) -> LayerChange {
    let kind =
        LayerChangeKind::File { mode: 0o644, offset, bytes: content.len() as u64, sha256: Sha256Hex::digest(content) };
    change(path, kind)
}
