//! Tests steps that run on the workers of a cluster. The cluster is a real server of the Remote Execution API; lying workers
//! are scripts in place of the agent program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

const CASD: &str = "buildbox/buildbox-casd";

pub(super) const CASES: &[CaseDefinition] = &[
    remote_case("remote_executor::step_runs_on_a_worker", step_runs_on_worker),
    remote_case("", step_runs_on_worker).unprivileged("remote_executor::step_runs_on_a_worker_for_a_user"),
    remote_case("remote_executor::record_names_the_variables_that_the_worker_got", variables_are_recorded),
    remote_case("remote_executor::worker_without_namespaces_runs_a_step", worker_without_namespaces_runs_step),
    remote_case("remote_executor::platform_of_a_skill_that_no_worker_has_is_inconclusive", unknown_platform),
    remote_case("remote_executor::failure_on_a_worker_is_a_failure", failure_is_failure),
    remote_case("remote_executor::drift_on_a_worker_is_drift", drift_is_drift),
    remote_case("remote_executor::timeout_holds_on_a_worker", timeout_holds),
    remote_case("remote_executor::later_step_sees_the_files_of_an_earlier_one", later_step_sees_files),
    remote_case("remote_executor::links_have_their_targets_on_a_worker", links_have_targets),
    remote_case("remote_executor::cache_is_empty_on_a_worker_and_not_recorded", cache_is_empty),
    remote_case("remote_executor::step_with_inputs_gets_only_these", inputs_are_enforced),
    remote_case("remote_executor::network_is_denied_on_a_worker", network_is_denied),
    remote_case("remote_executor::many_steps_run_at_once", many_steps_run),
    remote_case("remote_executor::untrusted_worker_proves_no_pass", untrusted_worker_proves_nothing),
    remote_case("remote_executor::missing_control_makes_the_step_inconclusive", missing_control_is_inconclusive),
    remote_case("remote_executor::wrong_toolchain_of_a_worker_is_inconclusive", wrong_toolchain_is_inconclusive),
    remote_case("remote_executor::secret_does_not_leave_the_machine", secret_stays),
    remote_case("remote_executor::git_reads_the_commit_on_a_worker", git_reads_commit),
    remote_case("", git_reads_commit).unprivileged("remote_executor::git_reads_the_commit_on_a_worker_for_a_user"),
    remote_case("remote_executor::git_finds_changes_on_a_worker", git_finds_changes),
    remote_case("remote_executor::git_has_no_history_on_a_worker", git_has_no_history),
    remote_case("remote_executor::lying_worker_proves_nothing", lying_worker_proves_nothing),
    remote_case("remote_executor::absent_cluster_is_inconclusive_or_falls_back", absent_cluster_falls_back),
    remote_case("remote_executor::cluster_that_ends_during_a_step_is_inconclusive", ending_cluster_is_inconclusive),
    remote_case(
        "remote_executor::cluster_that_restarts_during_a_step_executes_it_again",
        restarting_cluster_executes_again,
    )
    .needs(&[
        Needs::Sandbox,
        Needs::Client(&[CASD, "--version"]),
        Needs::Program("bwrap"),
        Needs::Program("python3"),
    ]),
    remote_case("remote_executor::lost_inputs_are_uploaded_again", lost_inputs_are_uploaded),
    remote_case("remote_executor::interrupt_ends_the_step_on_the_worker", interrupt_ends_step),
    remote_case("remote_executor::doctor_names_the_cluster", doctor_names_cluster),
];

pub(super) const fn remote_case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case(name, run).needs(&[Needs::Sandbox, Needs::Client(&[CASD, "--version"]), Needs::Program("bwrap")])
}

/// A repository and a cluster.
pub(super) struct Cluster<'e> {
    pub(super) env: &'e TestEnvironment,
    pub(super) repo: Repo<'e>,
    pub(super) server: RunningProcess,
}

impl<'e> Cluster<'e> {
    /// Starts a cluster whose workers are trusted, for a spec with one skill.
    pub(super) fn new(env: &'e TestEnvironment, steps: impl IntoIterator<Item = TestStep>) -> Self {
        Self::with_spec(env, &TestSpec::new([TestSkill::new("verify.it", steps).determinism("D1")]))
    }

    pub(super) fn with_spec(env: &'e TestEnvironment, spec: &TestSpec) -> Self {
        let cluster = Self { env, repo: env.repo(spec), server: start_server(env) };
        cluster.configure("remote", &[USER, TRUSTED]);
        cluster
    }

    pub(super) fn configure(&self, mode: &str, more: &[&str]) {
        let socket = socket(self.env).display().to_string();
        let more = more.concat();
        self.env.configure_operator(&format!("[remote_executor]\nendpoint = 'unix:{socket}'\nmode = '{mode}'\n{more}"));
    }

    /// Uses a script in place of the agent program.
    fn use_agent(&self, script: &str) {
        let agent = self.env.root().join("agent.sh");
        machine::write(&agent, format!("#!/bin/sh\n{script}"));
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).expect("executable");
        self.env.give_to_actor(&agent);
        self.configure("remote", &[USER, TRUSTED, &format!("agent = '{}'\n", agent.display())]);
    }

    pub(super) fn run(&self) -> FinishedProcess {
        self.repo.run_with(&["--no-daemon", "--verbose", "--max-tier", "2"])
    }
}

/// The workers of the server show parts of their own /proc, have no control groups, and belong to root on the host, for
/// whom the kernel does not count processes.
pub(super) const TRUSTED: &str = "trust_workers = true\nmay_miss = ['cgroup', 'pids_limit', 'private_proc']\n";
/// A platform whose steps are not root, so that they can have namespaces.
pub(super) const USER: &str = "platform = { unixUID = '1000' }\n";
/// The controls that a worker without namespaces lacks.
pub(super) const NO_NAMESPACES: &str = "trust_workers = true\nmay_miss = ['cgroup', 'user_namespace', 'mount_namespace', \
    'pid_namespace', 'network_namespace', 'ipc_namespace', 'uts_namespace', 'cgroup_namespace', 'private_proc', \
    'private_tmp', 'layer', 'disk_limit', 'pids_limit', 'kernel_files', 'read_only_root', 'git_read_only', \
    'hidden_paths']\n";

fn socket(env: &TestEnvironment) -> PathBuf {
    env.root().join("casd.sock")
}

/// The directory of workers for their own programs.
pub(super) const WORKER_TOOLS: &str = "/opt";

/// Returns the directory of this machine that is [`WORKER_TOOLS`] of workers.
pub(super) fn machine_tools(env: &TestEnvironment) -> PathBuf {
    let tools = env.root().join("worker-tools");
    std::fs::create_dir_all(&tools).expect("a directory");
    tools
}

/// Starts the server, and waits until it accepts connections.
fn start_server(env: &TestEnvironment) -> RunningProcess {
    let mut command = machine::client_command(CASD);
    // The installed program is a link; the other program is next to its target.
    let runner = PathBuf::from(command.get_program()).canonicalize().expect("a program").with_file_name("buildbox-run");
    command.arg(format!("--bind=unix:{}", socket(env).display())).args(["--quota-high=500M", "--reserved=0"]);
    command.arg(format!("--buildbox-run={}", runner.display()));
    for mount in ["/usr:/usr", "/usr/bin:/bin", "/usr/lib:/lib", "/usr/lib64:/lib64"] {
        command.arg(format!("--runner-arg=--ro-bind-mount={mount}"));
    }
    command.arg(format!("--runner-arg=--ro-bind-mount={}:{WORKER_TOOLS}", machine_tools(env).display()));
    command.arg("--unix-socket-mode=0777");
    command.arg(env.root().join("casd-store"));
    let mut server = RunningProcess::start(command);
    server.wait_until(|| std::os::unix::net::UnixStream::connect(socket(env)).is_ok());
    server
}

/// Returns whether a worker executed a step.
pub(super) fn is_remote(step: &Value) -> bool {
    step["executor"]["kind"] == "remote"
}

fn step_runs_on_worker(env: &TestEnvironment) {
    let script = "cat README.md; echo error >&2; git rev-parse HEAD; ls /; test -w README.md && echo writable";
    let cluster = Cluster::new(env, [TestStep::sh("it", script)]);
    let run = cluster.run().exits(0);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step), "{step:#}");
    let worker = &step["executor"]["worker"];
    assert_eq!(worker["architecture"], std::env::consts::ARCH);
    assert_eq!(
        (&step["executor"]["trusted"], &step["executor"]["platform"]["unixUID"]),
        (&true.into(), &"1000".into())
    );
    let stdout = step["stdout_preview"].as_str().expect("text");
    let head = cluster.repo.git(&["rev-parse", "HEAD"]);
    assert!(stdout.contains(head.trim()), "{stdout}");
    assert_eq!(step["stderr_preview"], "error\n");
    assert!(run.all_output().contains("executed on a worker of `unix:"), "{run}");
    let gate = ["gate", "--profile", "pr", "--changeset", CHANGESET, "--no-daemon"];
    let verified = cluster.repo.proctor(&gate).exits(0).all_output();
    assert!(verified.contains("steps ran on workers of `unix:"), "{verified}");
    let refused = cluster.repo.proctor(&[&gate[..], &["--this-machine"]].concat()).exits(1).all_output();
    assert!(refused.contains("other machines executed steps"), "{refused}");
}

/// The paths of a toolchain of this machine mean nothing to a worker.
fn variables_are_recorded(env: &TestEnvironment) {
    let cargo = env.home_dir().join(".cargo");
    machine::write(&cargo.join("bin/tool"), "");
    env.give_to_actor(&cargo);
    let cluster = Cluster::new(env, [TestStep::sh("it", "env | sed 's/=.*//'")]);
    let names = |mode| {
        cluster.configure(mode, &[USER, TRUSTED]);
        cluster.run().exits(0);
        let step = cluster.repo.step("it");
        let received: Vec<String> = step["stdout_preview"].as_str().expect("text").lines().map(str::to_owned).collect();
        let recorded: Vec<String> =
            step["env_names"].as_array().expect("names").iter().map(ToString::to_string).collect();
        let recorded: Vec<String> = recorded.iter().map(|name| name.trim_matches('"').to_owned()).collect();
        assert!(recorded.iter().all(|name| received.contains(name)), "{recorded:?} {received:?}");
        recorded
    };
    assert!(!names("remote").contains(&"CARGO_NET_OFFLINE".to_owned()));
    assert!(names("local").contains(&"CARGO_NET_OFFLINE".to_owned()));
}

fn worker_without_namespaces_runs_step(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("one", "cat README.md"), TestStep::sh("two", "rm README.md")]);
    cluster.configure("remote", &[NO_NAMESPACES]);
    cluster.run().exits(3);
    let (one, two) = (cluster.repo.step("one"), cluster.repo.step("two"));
    assert!(is_remote(&one) && one["outcome"] == "passed", "{one:#}");
    assert!(is_remote(&two) && two["outcome"] == "drifted", "{two:#}");
    assert_eq!(one["enforcement"]["network_namespace"]["state"], "not_enforced");
    assert_eq!(cluster.repo.evidence("verify.it")["tier"], 3, "because of the drift");
}

fn unknown_platform(env: &TestEnvironment) {
    let skill = TestSkill::new("verify.it", [TestStep::sh("it", "true")]).determinism("D1");
    let skill = skill.with_field("platform: { pool: large }").with_field("container: 'docker://image:latest'");
    let cluster = Cluster::with_spec(env, &TestSpec::new([skill]));
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("did not execute it") && run.contains("latest"), "{run}");
}

fn failure_is_failure(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "echo wrong; exit 7")]);
    cluster.run().exits(1);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step) && step["outcome"] == "failed" && step["exit_code"] == 7, "{step:#}");
    // The next execution does not reuse a stored result of the server.
    cluster.run().exits(1);
}

fn drift_is_drift(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [drifting_step()]);
    let before = cluster.repo.read("README.md");
    cluster.run().exits(3);
    require_drift(&cluster.repo.step("it"));
    assert_eq!(cluster.repo.read("README.md"), before, "the worktree is unchanged");
}

/// A step that changes the tree.
pub(super) fn drifting_step() -> TestStep {
    TestStep::sh("it", "echo changed >> README.md; rm src/lib.rs; echo new > new.txt")
}

/// Requires that the changes of [`drifting_step`] on a worker were found.
pub(super) fn require_drift(step: &Value) {
    assert!(is_remote(step) && step["outcome"] == "drifted", "{step:#}");
    let changes: Vec<(&str, &str)> = step["drift"]["changes"]
        .as_array()
        .expect("changes")
        .iter()
        .map(|change| (change["path"].as_str().expect("a path"), change["kind"].as_str().expect("a kind")))
        .collect();
    assert!(
        changes.contains(&("README.md", "modified")) && changes.contains(&("src/lib.rs", "deleted")),
        "{changes:?}"
    );
}

fn timeout_holds(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [slow_step()]);
    cluster.run().exits(4);
    require_timeout(&cluster.repo.step("it"));
}

/// A step that reaches its timeout.
pub(super) fn slow_step() -> TestStep {
    TestStep::sh("it", "echo started; sleep 600").with_field("timeout_ms: 300").with_field("grace_ms: 100")
}

/// Requires that [`slow_step`] reached its timeout on a worker.
pub(super) fn require_timeout(step: &Value) {
    assert!(is_remote(step) && step["outcome"] == "timed_out", "{step:#}");
    assert_eq!(step["stdout_preview"], "started\n");
}

fn later_step_sees_files(env: &TestEnvironment) {
    let first = TestStep::sh("one", "mkdir -p out/sub && echo built > out/sub/file && ln -s sub/file out/link");
    let second = TestStep::sh("two", "cat out/link && rm out/sub/file && echo again > out/other");
    let third = TestStep::sh("three", "test ! -e out/sub/file && cat out/other");
    let cluster = Cluster::new(env, [first, second, third]);
    cluster.repo.write(".gitignore", "out/\n");
    cluster.repo.commit();
    cluster.run().exits(0);
    for (name, stdout) in [("one", ""), ("two", "built\n"), ("three", "again\n")] {
        let step = cluster.repo.step(name);
        assert!(is_remote(&step) && step["stdout_preview"] == stdout, "{step:#}");
    }
}

/// Servers change or refuse some targets.
fn links_have_targets(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "readlink l0 l1 l2 && git diff --exit-code")]);
    let targets: [&[u8]; 4] = [b"./README.md", b"a//b", b"/usr/bin/env", b"\xff"];
    for (number, target) in targets.into_iter().enumerate() {
        cluster.repo.link(&format!("l{number}"), Path::new(OsStr::from_bytes(target)));
    }
    cluster.repo.commit();
    cluster.run().exits(0);
    assert_eq!(cluster.repo.step("it")["stdout_preview"], "./README.md\na//b\n/usr/bin/env\n");
}

fn cache_is_empty(env: &TestEnvironment) {
    let step = TestStep::sh("it", "ls out && test ! -e out/file && echo kept > out/file");
    let skill = TestSkill::new("verify.it", [step]).determinism("D1").with_field("caches: [out]");
    let cluster = Cluster::with_spec(env, &TestSpec::new([skill]));
    let caches = || cluster.repo.evidence("verify.it")["measured"]["caches"].clone();
    for _ in 0..2 {
        cluster.run().exits(0);
        assert!(is_remote(&cluster.repo.step("it")) && caches().is_null(), "{:#}", caches());
    }
    cluster.configure("local", &[]);
    cluster.run().exits(0);
    assert!(caches()[0]["base"].is_null(), "no run on a worker has stored a cache: {:#}", caches());
}

fn inputs_are_enforced(env: &TestEnvironment) {
    let step = TestStep::sh("it", "cat README.md; cat src/lib.rs").with_field("inputs: [README.md]");
    let cluster = Cluster::new(env, [step]);
    cluster.run().exits(1);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step) && step["input_enforcement"]["state"] == "enforced", "{step:#}");
    assert!(step["stderr_preview"].as_str().expect("text").contains("src/lib.rs"), "{step:#}");
}

fn network_is_denied(env: &TestEnvironment) {
    let program = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError as error:\n    \
        print(type(error).__name__, error.errno)\n";
    let cluster = Cluster::new(env, [TestStep::python("it", program)]);
    cluster.run().exits(0);
    let step = cluster.repo.step("it");
    let (stdout, controls) = (step["stdout_preview"].as_str().expect("text"), &step["enforcement"]);
    let is_enforced = |control: &str| controls[control]["state"] == "enforced";
    assert!(is_enforced("network_namespace") || is_enforced("syscall_filter"), "{controls:#}");
    assert!(!stdout.is_empty(), "{step:#}");
}

/// More steps than run at once.
fn many_steps_run(env: &TestEnvironment) {
    let cluster = Cluster::with_spec(env, &many_steps());
    cluster.run().exits(0);
    require_many_passes(&cluster.repo);
}

/// Number of steps of [`many_steps`].
const MANY: usize = 32;

/// A spec of which four steps run at once.
pub(super) fn many_steps() -> TestSpec {
    let skill = |number: usize| {
        let step = TestStep::sh("it", &format!("echo {number}"));
        TestSkill::new(&format!("verify.n{number}"), [step]).determinism("D1").with_field("needs: []")
    };
    TestSpec::new((0..MANY).map(skill)).parallel(4)
}

/// Requires that workers executed all steps of [`many_steps`] and returned the output of each step.
pub(super) fn require_many_passes(repo: &Repo<'_>) {
    for number in 0..MANY {
        let evidence = repo.evidence(&format!("verify.n{number}"));
        let step = &evidence["steps"][0];
        assert!(is_remote(step) && step["stdout_preview"] == format!("{number}\n"), "{step:#}");
    }
}

fn untrusted_worker_proves_nothing(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "true")]);
    cluster.configure("remote", &[USER, &TRUSTED.replace("true", "false")]);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("trust_workers"), "{run}");
    assert_eq!(cluster.repo.step("it")["outcome"], "inconclusive");
}

fn missing_control_is_inconclusive(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "true")]);
    cluster.configure("remote", &[USER, "trust_workers = true\nmay_miss = []\n"]);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("the worker's sandbox is not sufficient: it lacks ") && run.contains("cgroup"), "{run}");
    cluster.configure("hybrid", &[USER, "trust_workers = true\nmay_miss = []\n"]);
    cluster.run().exits(0);
    let step = cluster.repo.step("it");
    assert_eq!(step["executor"]["kind"], "local_fallback", "{step:#}");
}

fn wrong_toolchain_is_inconclusive(env: &TestEnvironment) {
    let spec = TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("it", "exit 1")]).determinism("D1")]);
    let checks = "toolchains:\n  tool: { required: [{ cmd: [sh, -c, 'echo 1.2.3'], version: '>=2' }] }";
    let cluster = Cluster::with_spec(env, &spec.clone().with_top_level(checks));
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("1.2.3"), "{run}");
    // The workers have no /etc, unlike this machine.
    let checks = checks.replace("echo 1.2.3", "test -d /etc && echo 2.0.0 || echo 1.2.3");
    let repo = env.repo_at("other", &spec.with_top_level(&checks));
    cluster.configure("hybrid", &[USER, TRUSTED]);
    repo.run_with(&["--no-daemon", "--max-tier", "2"]).exits(1);
    let fallback = &repo.step("it")["executor"];
    let reason = fallback["reason"].as_str().unwrap_or_default();
    assert!(fallback["kind"] == "local_fallback" && reason.contains("does not satisfy"), "{fallback:#}");
}

fn secret_stays(env: &TestEnvironment) {
    env.set_caller_var("SERVICE_TOKEN", "very-secret-value");
    let step = TestStep::sh("it", "test -n \"$SERVICE_TOKEN\"").with_field("env_allowlist: [SERVICE_TOKEN]");
    let cluster = Cluster::new(env, [step]);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("`SERVICE_TOKEN` has a secret of the caller"), "{run}");
    assert_eq!(find_stored(env, "very-secret-value"), None);
    cluster.configure("hybrid", &[USER, TRUSTED]);
    cluster.run().exits(0);
    let step = cluster.repo.step("it");
    assert_eq!(step["executor"]["kind"], "local_fallback", "{step:#}");
}

/// Runs a step on a worker and on this machine, and returns its output, which must be the same.
fn same_output(cluster: &Cluster<'_>) -> String {
    let outputs = ["remote", "local"].map(|mode| {
        cluster.configure(mode, &[USER, TRUSTED]);
        cluster.run().exits(0);
        let step = cluster.repo.step("it");
        assert_eq!(is_remote(&step), mode == "remote", "{step:#}");
        assert_eq!(step["executor"].get("no_git_objects"), None, "{step:#}");
        step["stdout_preview"].as_str().expect("text").to_owned()
    });
    assert_eq!(outputs[0], outputs[1]);
    outputs[0].clone()
}

/// Returns a file of the server's store that contains a text.
fn find_stored(env: &TestEnvironment, text: &str) -> Option<PathBuf> {
    let stored = machine::walk(&env.root().join("casd-store")).into_iter().filter(|path| path.is_file());
    let has_text = |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).contains(text);
    stored.into_iter().find(has_text)
}

fn git_reads_commit(env: &TestEnvironment) {
    let script = "set -e; git status --porcelain; git log -1 --format='%H %T %s'; git describe --always\n\
        git ls-tree -r -t HEAD; git show HEAD:README.md; git rev-parse 'HEAD^{tree}'\n\
        git diff --exit-code; git diff --cached --exit-code; git rev-list HEAD | head -n 1\n\
        git describe --exact-match; git tag --points-at HEAD; git grep -c . HEAD -- README.md";
    let cluster = Cluster::new(env, [TestStep::sh("it", script)]);
    // The history, other branches and their tags have objects that workers do not get.
    cluster.repo.git(&["branch", "before"]);
    cluster.repo.git(&["tag", "-am", "of another commit", "old"]);
    cluster.repo.write("docs/a/b", "text\n");
    cluster.repo.commit();
    cluster.repo.git(&["tag", "-am", "of HEAD", "v1"]);
    let url = "https://user:credential-in-url@example.com/repo.git";
    cluster.repo.git(&["remote", "add", "origin", url]);
    cluster.repo.git(&["config", "http.extraHeader", "Authorization: credential-in-header"]);
    let output = same_output(&cluster);
    let head = cluster.repo.git(&["rev-parse", "HEAD"]);
    assert!(output.contains(head.trim()) && output.contains("\nv1\n"), "{output}");
    assert_eq!(find_stored(env, "credential-in-"), None);
    assert!(find_stored(env, "refs/tags/v1").is_some(), "the store has the git directory");
}

fn git_finds_changes(env: &TestEnvironment) {
    let script = "git status --porcelain; git diff; git diff --cached; git diff --stat HEAD";
    let cluster = Cluster::new(env, [TestStep::sh("it", script)]);
    cluster.repo.write("staged.txt", "one\n");
    cluster.repo.git(&["add", "staged.txt"]);
    cluster.repo.write("staged.txt", "two\n");
    cluster.repo.write("README.md", "changed\n");
    cluster.repo.write("untracked.txt", "new\n");
    let output = same_output(&cluster);
    for line in ["AM staged.txt", " M README.md", "?? untracked.txt", "-one", "+two", "+changed"] {
        assert!(output.lines().any(|found| found == line), "{line}\n{output}");
    }
}

fn git_has_no_history(env: &TestEnvironment) {
    let cluster = Cluster::new(
        env,
        [TestStep::sh("it", "git rev-list --count --all; git for-each-ref | wc -l; git cat-file -e HEAD~1 || true")],
    );
    cluster.repo.git(&["branch", "before"]);
    cluster.repo.write("new", "text\n");
    cluster.repo.commit();
    cluster.run().exits(0);
    assert_eq!(cluster.repo.step("it")["stdout_preview"], "1\n1\n");
    // Without a commit, there are no objects to report.
    cluster.repo.git(&["update-ref", "-d", "HEAD"]);
    cluster.run().exits(0);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step) && step["executor"].get("no_git_objects").is_none(), "{step:#}");
}

fn lying_worker_proves_nothing(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "exit 1")]);
    let attempt = r#"{"started":true,"not_started":null,"status":{"code":0},"limit":null,"timed_out":false,"cancelled":false,
        "duration_ms":1,"enforcement":{"landlock":{"state":"enforced","mechanism":"m"}},"resources":{"user_ms":0,"system_ms":0,
        "max_rss_kib":0,"limits_hit":[]},"leaked":null,"processes_ended":true,"exhausted":[]}"#;
    let stream = r#"{"bytes":0,"head_bytes":0,"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "complete":true}"#;
    let report = |nonce: &str, stream: &str, changes: &str| {
        format!(
            "nonce={nonce}\ncat > report.json <<END\n{{\"version\":4,\"nonce\":\"$nonce\",\"worker\":{{\"architecture\":\"x\",\
             \"kernel\":\"k\",\"os\":\"o\",\"processors\":1,\"programs\":[]}},\"repo\":\"/r\",\"checks\":[],\
             \"attempt\":{attempt},\"stdout\":{stream},\"stderr\":{stream},\"changes\":[{changes}],\
             \"changes_error\":null}}\nEND\n: > stdout; : > stderr; : > changes.bin\n"
        )
    };
    let own = "$(sed 's/.*\"nonce\":\"\\([0-9a-f]*\\)\".*/\\1/' request.json)";
    // Proves that the format of this script is the agent's: a complete lie cannot be found.
    cluster.use_agent(&report(own, stream, ""));
    let complete = cluster.run().all_output();
    assert!(complete.contains("executed on a worker"), "{complete}");
    let escaping = r#"{"path":"2e2e2f78","kind":{"kind":"deleted"}}"#;
    let git = r#"{"path":"2e676974","kind":{"kind":"deleted"}}"#;
    let other = stream.replace("e3b0", "e3b1");
    let longer = stream.replace(r#""bytes":0"#, r#""bytes":9"#);
    for (script, expected) in [
        ("exit 0".to_owned(), "the worker wrote no report (exit code 0)"),
        ("echo no space >&2; exit 1".to_owned(), "the worker wrote no report (exit code 1): no space"),
        ("echo '{' > report.json".to_owned(), "the report of the worker cannot be read"),
        (report("0123", stream, ""), "belongs to another request"),
        (report(own, &other, ""), "the digest of an output of the worker differs"),
        (report(own, &longer, ""), "the sizes of an output are inconsistent"),
        (report(own, stream, escaping), "in the list of a step's changes is refused"),
        (report(own, stream, git), "changes of `.git`"),
    ] {
        cluster.use_agent(&script);
        let run = cluster.run().exits(5).all_output();
        assert!(run.contains(expected), "{script}\n{run}");
        assert_eq!(cluster.repo.step("it")["outcome"], "inconclusive");
    }
}

fn absent_cluster_falls_back(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "true")]);
    cluster.server.signal(Signal::KILL);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("cannot be reached"), "{run}");
    cluster.configure("hybrid", &[USER, TRUSTED]);
    let run = cluster.run().exits(0).all_output();
    assert!(run.contains("executed on this machine, because"), "{run}");
    let step = cluster.repo.step("it");
    assert!(step["executor"]["kind"] == "local_fallback" && step["outcome"] == "passed", "{step:#}");
    cluster.configure("local", &[USER, TRUSTED]);
    cluster.run().exits(0);
    assert!(cluster.repo.step("it").get("executor").is_none());
}

/// A step that runs until it is ended.
pub(super) fn endless_step(env: &TestEnvironment) -> (TestStep, String) {
    let word = format!("{}-endless", env.marker());
    (TestStep::argv("it", &["sh", "-c", "sleep 600; true", &word]), word)
}

fn ending_cluster_is_inconclusive(env: &TestEnvironment) {
    let (step, word) = endless_step(env);
    let cluster = Cluster::new(env, [step]);
    let mut run = cluster.repo.start(&["--no-daemon", "--max-tier", "2"]);
    run.wait_for_process(&word);
    cluster.server.signal(Signal::KILL);
    env.finish(run).exits(5);
    let step = cluster.repo.step("it");
    assert!(step["outcome"] == "inconclusive" && step["termination"]["fault"] == "remote", "{step:#}");
}

fn restarting_cluster_executes_again(env: &TestEnvironment) {
    let word = format!("{}-waiting", env.marker());
    let script = format!("python3 -c 'import signal; signal.pause()' {word} || echo continued");
    let cluster = Cluster::new(env, [TestStep::sh("it", &script)]);
    let mut run = cluster.repo.start(&["--no-daemon", "--max-tier", "2"]);
    let first = run.wait_for_process(&word);
    cluster.server.signal(Signal::KILL);
    machine::send_signal_if_alive(first, Signal::KILL);
    std::fs::remove_file(socket(env)).expect("removed");
    let _server = start_server(env);
    let second = run.wait_for_other_process(&word, first);
    machine::send_signal(second, Signal::KILL);
    env.finish(run).exits(0);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step) && step["stdout_preview"] == "continued\n", "{step:#}");
}

/// Another run needs blobs that the server has removed meanwhile.
fn lost_inputs_are_uploaded(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "cat README.md")]);
    cluster.run().exits(0);
    for path in machine::walk(&env.root().join("casd-store/cas/objects")).into_iter().filter(|path| path.is_file()) {
        std::fs::remove_file(path).expect("removed");
    }
    cluster.run().exits(0);
    assert!(is_remote(&cluster.repo.step("it")));
}

fn interrupt_ends_step(env: &TestEnvironment) {
    let (step, word) = endless_step(env);
    let cluster = Cluster::new(env, [step]);
    let mut run = cluster.repo.start(&["--no-daemon", "--max-tier", "2"]);
    run.wait_for_process(&word);
    run.signal(Signal::INT);
    env.finish(run).exits(130);
    assert_eq!(cluster.repo.step("it")["outcome"], "cancelled");
}

fn doctor_names_cluster(env: &TestEnvironment) {
    let cluster = Cluster::new(env, [TestStep::sh("it", "true")]);
    let doctor = cluster.repo.proctor(&["doctor", "--no-daemon"]).exits(0).all_output();
    assert!(doctor.contains("steps run on workers only; workers are trusted"), "{doctor}");
    cluster.server.signal(Signal::KILL);
    let doctor = cluster.repo.proctor(&["doctor", "--no-daemon"]).all_output();
    assert!(doctor.contains("does not work:"), "{doctor}");
}
