//! Runs the commands of a request, each in its own sandbox.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use proctor_core::model::enforcement::{Control, Enforcement, Tolerated};
use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::{Argv, max_files};
use rustix::fs::{Mode, OFlags};

use super::agent_error::AgentError;
use super::attempt::{self, Streams};
use super::input_root::{InputRoot, WorkDirectory, home_directory};
use super::mount_points::MountPoints;
use super::stream_capture::StreamCapture;
use super::termination_signals::TerminationSignals;
use super::{needed_paths, outputs, tree_import};
use crate::agent::{
    AgentAttempt, AgentCommand, AgentRequest, AgentStream, CheckReport, GIT_DIRECTORY, LAYERS_CONTENT_FILE,
    LayerChange, LayerChangeKind, NEEDED_PATHS_DIRECTORY, REQUEST_FILE, STDERR_FILE, STDOUT_FILE, TREE_DIRECTORY,
};
use crate::file_batches::FileBatches;
use crate::host::{Host, HostConfig, RepoFacts};
use crate::launcher::Launcher;
use crate::layer_changes::LayerBounds;
use crate::policy::{AccessRights, CacheMount, CacheSource, GitDirs, Policy, ToolKind, ToolMount};
use crate::run_space::{Layer, RunSpace, RunSpaceConfig, SandboxReuse, Sealed, Unsealed};
use crate::setup;

/// Maximum number of bytes that are kept of each output stream of a check.
const MAX_CHECK_OUTPUT: usize = 16 << 10;
/// Size of the run space of a step without a disk limit, in bytes.
const MAX_DISK: u64 = 64 << 30;
/// Maximum number of entries in one earlier layer.
const MAX_LAYER_ENTRIES: usize = 2_000_000;
/// The directories in the input root that no command may see.
const INPUT_DIRECTORIES: [&str; 3] = [TREE_DIRECTORY, GIT_DIRECTORY, NEEDED_PATHS_DIRECTORY];
/// A path that no kernel executes.
const NO_PROGRAM: &str = "/";
/// The reason why no command starts without namespaces and Landlock.
const NO_LANDLOCK: &str = "without namespaces and Landlock, a command could change the report; `landlock` must not be missing on such a worker";
/// Size of a page, by which the size of a file in a run space is rounded up.
const PAGE: u64 = 4096;

/// The prepared tree and layers. The fields are dropped in this order: the sandboxes end before their files are removed.
pub(super) struct CommandRunner<'a> {
    request: &'a AgentRequest,
    root: &'a InputRoot,
    signals: &'a TerminationSignals,
    /// The layers of earlier steps, newest first.
    layers: Vec<Layer<Sealed>>,
    space: RunSpace,
    launcher: Launcher,
    places: CommandPaths,
    mount_points: MountPoints,
    work: WorkDirectory,
}

/// The directories of the worker, and the paths at which commands see them.
struct CommandPaths {
    /// The copy of the tree.
    tree: PathBuf,
    /// A directory that has only the needed paths. The checks see it instead of the tree.
    for_checks: PathBuf,
    /// The path at which commands see the tree, if there are namespaces.
    repo: PathBuf,
    /// The path of the home directory of the step's user.
    home: PathBuf,
}

/// The tree over which a command runs.
struct Tree<'a> {
    source: &'a Path,
    has_git: bool,
    layers: &'a [Layer<Sealed>],
    caches: Vec<CacheMount>,
}

/// The results of the step.
pub(super) struct StepRun {
    /// The path at which the tree appeared.
    pub(super) repo: PathBuf,
    pub(super) attempt: Option<AgentAttempt>,
    pub(super) stdout: AgentStream,
    pub(super) stderr: AgentStream,
    pub(super) changes: Vec<LayerChange>,
    pub(super) changes_error: Option<String>,
}

impl<'a> CommandRunner<'a> {
    /// Copies the tree, and creates the run space with the layers of earlier steps.
    pub(super) fn prepare(
        request: &'a AgentRequest,
        root: &'a InputRoot,
        signals: &'a TerminationSignals,
    ) -> Result<Self, AgentError> {
        let work = WorkDirectory::create(root)?;
        let tree = import_tree(request, root, &work)?;
        let for_checks = work.create_directory("for-checks")?;
        needed_paths::import(request, root, &for_checks)?;
        let state_dir = work.create_directory("state")?;
        let helper = std::env::current_exe().map_err(AgentError::system("cannot find the agent's own program"))?;
        let home = home_directory().unwrap_or_else(|| state_dir.clone());
        let launcher = Launcher::start(Host::new(HostConfig { helper, state_dir, home })?)?;
        let disk_bytes = request.step.limits.disk.get_or_max().min(MAX_DISK).saturating_add(layers_size(request));
        let space = RunSpaceConfig {
            disk_bytes,
            inodes: max_files(disk_bytes).saturating_add(request.layers.iter().map(|layer| layer.len() as u64).sum()),
            tolerated: Tolerated::all(),
            reuse: SandboxReuse::Never,
            caches: None,
        };
        let space = RunSpace::create(&launcher, space)?;
        let layers = fill_layers(request, root, (&launcher, &space), &tree, disk_bytes)?;
        let places = CommandPaths { repo: tree.clone(), home: request.home.clone(), tree, for_checks };
        let mut runner =
            Self { request, root, signals, layers, space, launcher, places, mount_points: MountPoints::new(), work };
        runner.choose_paths()?;
        Ok(runner)
    }

    /// Returns the path of the copy of the tree.
    pub(super) fn tree(&self) -> &Path {
        &self.places.tree
    }

    /// Chooses the paths of the request if the worker allows them. Without namespaces, each command runs in a copy
    /// that is somewhere else.
    fn choose_paths(&mut self) -> Result<(), AgentError> {
        if !self.space.is_in_memory() {
            return Ok(());
        }
        // Some workers lack a control group. If it cannot be created, the sandbox reports that.
        self.mount_points.ensure(Path::new("/sys"));
        if !self.mount_points.ensure(&self.request.home) {
            self.places.home = self.work.create_directory("home")?;
        }
        let own = std::mem::replace(&mut self.places.repo, self.request.repo.clone());
        let tree = Tree { source: &self.places.tree, has_git: false, layers: &[], caches: Vec::new() };
        let policy = self.policy(&self.request.step, &tree);
        let is_possible = setup::check_policy(&policy, self.launcher.host()).is_ok();
        if !is_possible || !self.mount_points.ensure(&self.request.repo) {
            self.places.repo = own;
        }
        Ok(())
    }

    /// Puts the needed paths of the step into the tree. Must come after the checks.
    pub(super) fn complete_tree(&self) -> Result<(), AgentError> {
        needed_paths::place(self.request, &self.places.for_checks, &self.places.tree)
    }

    /// Runs a check over a tree that has only the needed paths.
    pub(super) fn run_check(&self, check: &AgentCommand) -> Result<CheckReport, AgentError> {
        let tree = Tree { source: &self.places.for_checks, has_git: false, layers: &[], caches: Vec::new() };
        let mut streams = Streams {
            stdout: StreamCapture::with_beginning(MAX_CHECK_OUTPUT),
            stderr: StreamCapture::with_beginning(MAX_CHECK_OUTPUT),
        };
        let (attempt, layer) = self.run_command(check, &tree, &mut streams)?;
        // The layer of a process that may still run is removed with the run space.
        if let Some(layer) = layer.filter(|_| attempt.processes_ended) {
            layer.seal().discard()?;
        }
        let (stdout, stderr) = (streams.stdout.beginning(), streams.stderr.beginning());
        Ok(CheckReport { name: check.name.clone(), attempt, stdout, stderr })
    }

    /// Runs the step, and stores its outputs and changes.
    pub(super) fn run_step(&mut self) -> Result<StepRun, AgentError> {
        let step = &self.request.step;
        let caches = self.create_caches()?;
        let tree = Tree { source: &self.places.tree, has_git: self.request.has_git, layers: &self.layers, caches };
        let max = step.max_output_bytes;
        let mut streams =
            Streams { stdout: StreamCapture::with_both_ends(max), stderr: StreamCapture::with_both_ends(max) };
        let (mut attempt, layer) = self.run_command(step, &tree, &mut streams)?;
        let repo = layer.as_ref().and_then(Layer::copy_path).unwrap_or_else(|| self.places.repo.clone());
        // Either all processes have ended, or the layer is not read.
        let layer = layer.map(Layer::seal);
        if let Some(layer) = layer.as_ref().filter(|_| attempt.enforcement.is_enforced(Control::DiskLimit)) {
            attempt.exhausted = layer.exhausted_space().limits().collect();
        }
        let readable = match (&layer, attempt.processes_ended) {
            (Some(layer), true) => Ok(layer),
            (Some(_), false) => Err("processes of the step may still run, so its files cannot be trusted".to_owned()),
            (None, _) => Err("the step has no layer, since no sandbox was started".to_owned()),
        };
        let (changes, changes_error) = self.store_changes(readable)?;
        let stdout = outputs::write_stream(self.root, STDOUT_FILE, streams.stdout)?;
        let stderr = outputs::write_stream(self.root, STDERR_FILE, streams.stderr)?;
        Ok(StepRun { repo, attempt: Some(attempt), stdout, stderr, changes, changes_error })
    }

    /// Stores empty outputs of a step that does not run because of a check or a signal.
    pub(super) fn skip_step(&self) -> Result<StepRun, AgentError> {
        let (changes, changes_error) = self.store_changes(Err("the step did not run".to_owned()))?;
        self.root.create_output(STDOUT_FILE)?;
        self.root.create_output(STDERR_FILE)?;
        let (stdout, stderr) = (AgentStream::default(), AgentStream::default());
        Ok(StepRun { repo: self.places.repo.clone(), attempt: None, stdout, stderr, changes, changes_error })
    }

    fn store_changes(
        &self,
        layer: Result<&Layer<Sealed>, String>,
    ) -> Result<(Vec<LayerChange>, Option<String>), AgentError> {
        let is_cache = |path: &[u8]| self.request.caches.iter().any(|cache| cache.as_str().as_bytes() == path);
        let read = outputs::write_changes(self.root, layer, self.request.max_changes_bytes, &is_cache)?;
        Ok(read.map_or_else(|reason| (Vec::new(), Some(reason)), |changes| (changes, None)))
    }

    /// Runs one command. Returns its layer, if a sandbox could be started.
    fn run_command(
        &self,
        command: &AgentCommand,
        tree: &Tree<'_>,
        streams: &mut Streams,
    ) -> Result<(AgentAttempt, Option<Layer<Unsealed>>), AgentError> {
        let policy = self.policy(command, tree);
        let (mut attempt, layer) = self.launch(command, tree, &policy, streams)?;
        if matches!(attempt.not_started, Some((StartFault::Sandbox, _))) {
            attempt.enforcement = self.available_controls(command, tree, policy)?;
            if self.needs_landlock() && attempt.enforcement.missing().any(|(control, _)| control == Control::Landlock) {
                attempt.not_started = Some((StartFault::Sandbox, NO_LANDLOCK.to_owned()));
            }
        }
        Ok((attempt, layer))
    }

    fn launch(
        &self,
        command: &AgentCommand,
        tree: &Tree<'_>,
        policy: &Policy,
        streams: &mut Streams,
    ) -> Result<(AgentAttempt, Option<Layer<Unsealed>>), AgentError> {
        let facts = RepoFacts::read(tree.source)?;
        let layers: Vec<&Layer<Sealed>> = tree.layers.iter().collect();
        match self.launcher.spawn(&self.space, &layers, &facts, policy) {
            Ok((running, layer)) => Ok((attempt::supervise(&running, command, streams, self.signals), Some(layer))),
            Err(error) => Ok((attempt::not_started(StartFault::Sandbox, error.to_string()), None)),
        }
    }

    /// Returns the controls that the worker enforces for a command that did not start. Sets up a sandbox that runs no
    /// program.
    fn available_controls(
        &self,
        command: &AgentCommand,
        tree: &Tree<'_>,
        policy: Policy,
    ) -> Result<Enforcement, AgentError> {
        let argv = Argv::new(vec![NO_PROGRAM.to_owned()]).unwrap_or(policy.argv);
        let policy = Policy { argv, files: FileBatches::default(), tolerated: Tolerated::all(), ..policy };
        let mut streams =
            Streams { stdout: StreamCapture::with_beginning(0), stderr: StreamCapture::with_beginning(0) };
        let (attempt, layer) = self.launch(command, tree, &policy, &mut streams)?;
        if let Some(layer) = layer.filter(|_| attempt.processes_ended) {
            layer.seal().discard()?;
        }
        Ok(attempt.enforcement)
    }

    /// Returns whether Landlock alone keeps commands from the outputs of the action, and from this process.
    fn needs_landlock(&self) -> bool {
        !self.space.is_in_memory()
    }

    /// Returns the controls that may be missing.
    fn tolerated(&self) -> Tolerated {
        let may_miss = |control: &Control| *control != Control::Landlock || !self.needs_landlock();
        self.request.tolerated.controls().filter(may_miss).collect()
    }

    fn policy(&self, command: &AgentCommand, tree: &Tree<'_>) -> Policy {
        // Without namespaces, commands see the host's paths.
        let repo = if self.space.is_in_memory() { self.places.repo.clone() } else { tree.source.to_owned() };
        Policy {
            checkout: (repo != tree.source).then(|| tree.source.to_owned()),
            git: GitDirs { worktree_git: tree.has_git.then(|| repo.join(".git")), ..GitDirs::default() },
            repo,
            workdir: command.workdir.clone(),
            argv: command.argv.clone(),
            files: command.files.clone(),
            env: self.environment(command),
            network: command.network,
            limits: command.limits,
            leaks: command.leaks,
            home: self.places.home.clone(),
            hide: self.hidden_directories(),
            tools: self.hidden_files(),
            caches: tree.caches.clone(),
            tolerated: self.tolerated(),
            view: false,
            inputs: None,
        }
    }

    /// Returns the command's environment. If the path of the home directory differs from the requested one, `HOME`
    /// names the actual path.
    fn environment(&self, command: &AgentCommand) -> BTreeMap<String, String> {
        let mut env = command.env.clone();
        if let Some(home) = env.get_mut("HOME")
            && let Ok(below) = Path::new(home.as_str()).strip_prefix(&self.request.home)
        {
            *home = self.places.home.join(below).components().collect::<PathBuf>().display().to_string();
        }
        env
    }

    /// Returns the directories of the action that no command may see.
    fn hidden_directories(&self) -> Vec<PathBuf> {
        let root = self.root.path();
        let mut hidden = vec![self.work.path().to_owned()];
        match self.is_root_of_file_system() {
            true => hidden.extend(INPUT_DIRECTORIES.map(|name| root.join(name))),
            false => hidden.push(root.to_owned()),
        }
        hidden
    }

    /// Returns masks for the files of the action that no command may see: those that are in no hidden directory.
    fn hidden_files(&self) -> Vec<ToolMount> {
        if !self.is_root_of_file_system() {
            return Vec::new();
        }
        let mask = |name| {
            let path = self.root.path().join(name);
            ToolMount { source: path.clone(), at: path, kind: ToolKind::Masked, rights: AccessRights::Ours }
        };
        [REQUEST_FILE, LAYERS_CONTENT_FILE].map(mask).into()
    }

    /// Returns whether the input root is `/`, which no sandbox can hide.
    fn is_root_of_file_system(&self) -> bool {
        self.root.path().parent().is_none()
    }

    fn create_caches(&self) -> Result<Vec<CacheMount>, AgentError> {
        let create = |(number, at): (usize, &_)| {
            let source = CacheSource::Directory(self.work.create_directory(&format!("cache{number}"))?);
            Ok(CacheMount { at: Clone::clone(at), source })
        };
        self.request.caches.iter().enumerate().map(create).collect()
    }
}

/// Copies the tree and its git directory.
fn import_tree(request: &AgentRequest, root: &InputRoot, work: &WorkDirectory) -> Result<PathBuf, AgentError> {
    let tree = work.create_directory("tree")?;
    import(root, TREE_DIRECTORY, &tree)?;
    if request.has_git {
        let git = tree.join(".git");
        rustix::fs::mkdir(&git, Mode::RWXU).map_err(AgentError::path("cannot create", &git))?;
        import(root, GIT_DIRECTORY, &git)?;
    }
    Ok(tree)
}

fn import(root: &InputRoot, name: &str, to: &Path) -> Result<(), AgentError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::open(to, flags, Mode::empty()).map_err(AgentError::path("cannot open", to))?;
    tree_import::import(&root.open_directory(name)?, target.as_fd())
        .map_err(AgentError::path("cannot copy the inputs to", to))
}

/// Returns the size of the layers of earlier steps in the run space, in bytes.
fn layers_size(request: &AgentRequest) -> u64 {
    let size = |change: &LayerChange| match &change.kind {
        LayerChangeKind::File { bytes, .. } => bytes.div_ceil(PAGE).saturating_mul(PAGE),
        _ => PAGE,
    };
    request.layers.iter().flatten().map(size).fold(0, u64::saturating_add).min(MAX_DISK)
}

/// Creates the layers of earlier steps. Returns them newest first.
fn fill_layers(
    request: &AgentRequest,
    root: &InputRoot,
    (launcher, space): (&Launcher, &RunSpace),
    tree: &Path,
    max_bytes: u64,
) -> Result<Vec<Layer<Sealed>>, AgentError> {
    if request.layers.is_empty() {
        return Ok(Vec::new());
    }
    let facts = RepoFacts::read(tree)?;
    let content = root
        .open_input(LAYERS_CONTENT_FILE)
        .map_err(AgentError::path("cannot open", root.path().join(LAYERS_CONTENT_FILE)))?;
    let bounds = LayerBounds { entries: MAX_LAYER_ENTRIES, bytes: max_bytes };
    let fill = |changes: &Vec<LayerChange>| {
        let layer = space.new_layer(launcher.host(), &facts)?;
        layer.fill(changes, &content, bounds)?;
        Ok(layer.seal())
    };
    request.layers.iter().rev().map(fill).collect()
}
