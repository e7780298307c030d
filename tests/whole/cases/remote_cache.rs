//! Tests results that machines share through a server: two state directories stand for two machines.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::text::digest::Sha256Hex;
use proctor_remote::messages::{ActionResult, Digest};
use prost::Message as _;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::environment::{Repo, TestEnvironment, release_step, wait_for_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

const CASD: &str = "buildbox/buildbox-casd";

pub(super) const CASES: &[CaseDefinition] = &[
    remote_case("remote_cache::second_machine_uses_the_result_of_the_first", second_machine_uses_result),
    remote_case("", second_machine_uses_result)
        .unprivileged("remote_cache::second_machine_uses_the_result_of_the_first_as_a_user"),
    remote_case("remote_cache::other_content_executes_the_step", other_content_executes),
    remote_case("remote_cache::machine_with_another_umask_uses_results", other_umask_uses_result),
    remote_case("remote_cache::key_that_is_no_longer_trusted_has_no_results", distrusted_key_has_no_results),
    remote_case("remote_cache::machine_that_may_not_write_stores_nothing", reader_stores_nothing),
    remote_case("remote_cache::step_with_a_secret_is_not_shared", secret_is_not_shared),
    remote_case("remote_cache::failed_step_is_not_shared", failure_is_not_shared),
    remote_case("remote_cache::signature_of_an_unknown_key_is_refused", unknown_key_is_refused),
    remote_case("remote_cache::changed_record_is_refused", changed_record_is_refused),
    remote_case("remote_cache::unsigned_record_is_refused", unsigned_record_is_refused),
    remote_case("remote_cache::oversized_record_is_refused", oversized_record_is_refused),
    remote_case("remote_cache::record_of_other_inputs_is_refused", moved_record_is_refused),
    remote_case("remote_cache::wrong_bytes_of_the_server_are_refused", wrong_blob_is_refused),
    remote_case("remote_cache::forged_path_set_is_refused", forged_path_set_is_refused),
    remote_case("remote_cache::server_that_is_away_costs_one_notice", absent_server_costs_notice),
    remote_case("remote_cache::silent_server_has_a_deadline", silent_server_has_deadline),
    case("remote_cache::server_that_ends_during_a_run_costs_one_notice", ending_server_costs_notice).needs(&[
        Needs::Sandbox,
        Needs::Views,
        Needs::Client(&[CASD, "--version"]),
        Needs::Program("python3"),
    ]),
    remote_case("remote_cache::doctor_names_server_and_keys", doctor_names_server),
    remote_case("remote_cache::second_machine_checks_only_files_that_the_first_has_not", files_are_shared),
    remote_case("", files_are_shared)
        .unprivileged("remote_cache::second_machine_checks_only_files_that_the_first_has_not_as_a_user"),
    remote_case("remote_cache::passes_of_files_do_not_replace_each_other", passes_do_not_replace_each_other),
    remote_case("remote_cache::passes_of_files_of_a_distrusted_key_do_not_count", distrusted_passes_do_not_count),
    remote_case("remote_cache::wrong_per_file_is_not_shared", wrong_per_file_is_not_shared),
    remote_case("remote_cache::changed_record_of_files_is_refused", changed_record_of_files_is_refused),
];

const fn remote_case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case(name, run).needs(&[Needs::Sandbox, Needs::Views, Needs::Client(&[CASD, "--version"])])
}

/// A key of the tests, and another public key.
const PRIVATE_KEY: &str = "MC4CAQAwBQYDK2VwBCIEIE0NoTiw5IwIg9hpBuAygAYuNOTvcUh2ZqF8407ilFNa";
const PUBLIC_KEY: &str = "MCowBQYDK2VwAyEAi+kaW1pTp7y+4eW8m1kHhHP+CvqB6N99YRD8kggGpEQ=";
const OTHER_PUBLIC_KEY: &str = "MCowBQYDK2VwAyEAK+LlIL6oOhie6VSboAURjr7F5yG770nEgqOj2FrwVMY=";
/// The beginning of the id of the first key.
const KEY_ID: &str = "07bb910f84baa283";

/// A repository, a server, and the operator's config of two machines.
struct Machines<'e> {
    env: &'e TestEnvironment,
    repo: Repo<'e>,
    server: RunningProcess,
}

impl<'e> Machines<'e> {
    fn new(env: &'e TestEnvironment, steps: impl IntoIterator<Item = TestStep>) -> Self {
        Self::with_spec(env, &TestSpec::new([TestSkill::new("verify.it", steps).determinism("D1")]))
    }

    fn with_spec(env: &'e TestEnvironment, spec: &TestSpec) -> Self {
        let repo = env.repo(spec);
        let pem = |kind: &str, key: &str| format!("-----BEGIN {kind} KEY-----\n{key}\n-----END {kind} KEY-----\n");
        for (name, text) in [
            ("signing.pem", pem("PRIVATE", PRIVATE_KEY)),
            ("trusted.pem", pem("PUBLIC", PUBLIC_KEY)),
            ("other.pem", pem("PUBLIC", OTHER_PUBLIC_KEY)),
        ] {
            let file = env.root().join("keys").join(name);
            machine::write(&file, text);
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("private");
        }
        env.give_to_actor(&env.root().join("keys"));
        let machines = Self { env, repo, server: start_server(env) };
        machines.configure(true, "trusted.pem", "");
        machines
    }

    fn key(&self, name: &str) -> String {
        self.env.root().join("keys").join(name).display().to_string()
    }

    fn configure(&self, write: bool, trusted: &str, more: &str) {
        let (signing, trusted) = (self.key("signing.pem"), self.key(trusted));
        let socket = socket(self.env).display().to_string();
        self.env.configure_operator(&format!(
            "[reuse]\nrecheck_percent = 0\n[remote_cache]\nendpoint = 'unix:{socket}'\nwrite = {write}\n\
             signing_key = '{signing}'\ntrusted_keys = ['{trusted}']\n{more}\n"
        ));
    }

    fn start(&self, name: &str) -> RunningProcess {
        self.start_through(name, &[])
    }

    /// Starts a run on a machine through a wrapper program that executes it.
    fn start_through(&self, name: &str, wrapper: &[&str]) -> RunningProcess {
        machine::write(&self.repo.file("changes").join(name).join("00-meta.json"), "{}\n");
        self.env.give_to_actor(&self.repo.file("changes"));
        let mut command = self.env.program_command("proctor", self.repo.path(), wrapper);
        command.args(["run", "--profile", "pr", "--changeset", name, "--verbose", "--no-daemon", "--state-dir"]);
        command.arg(self.state_dir(name));
        RunningProcess::start(command)
    }

    fn state_dir(&self, name: &str) -> PathBuf {
        self.env.root().join("machines").join(name)
    }

    fn run(&self, name: &str) -> FinishedProcess {
        self.env.finish(self.start(name))
    }

    fn evidence(&self, name: &str) -> Vec<Value> {
        let path = self.repo.file("changes").join(name).join("verify/verify.it.json");
        let evidence: Value = serde_json::from_slice(&std::fs::read(path).expect("evidence")).expect("JSON");
        evidence["steps"].as_array().expect("steps").clone()
    }

    /// Checks that a machine executes every step, and passes. Returns what it prints.
    fn executes(&self, name: &str) -> String {
        let run = self.run(name).exits(0);
        assert!(self.evidence(name).iter().all(|step| step.get("reused").is_none()), "{run}");
        run.all_output()
    }

    /// Checks that a machine uses results of another one for every step.
    fn uses_results(&self, name: &str) -> String {
        let run = self.run(name).exits(0);
        for step in self.evidence(name) {
            let key =
                step["reused"]["origin"]["key_id"].as_str().unwrap_or_else(|| panic!("executed: {step:#}\n{run}"));
            assert!(key.starts_with(KEY_ID), "{key}");
        }
        run.all_output()
    }

    /// Returns the files of the action cache with their content.
    fn action_results(&self) -> BTreeMap<PathBuf, ActionResult> {
        let files = machine::walk(&store(self.env).join("actioncache/objects"));
        let files = files.into_iter().filter(|path| path.is_file());
        files
            .map(|path| {
                let result =
                    ActionResult::decode(std::fs::read(&path).expect("a result").as_slice()).expect("a result");
                (path, result)
            })
            .collect()
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        store(self.env).join("cas/objects").join(&digest.hash[..2]).join(&digest.hash[2..])
    }

    /// Replaces the first file of each result whose file has a name with this end, in the store of the server.
    fn forge(&self, name: &str, change: impl Fn(Value) -> Vec<u8>) {
        let mut forged = 0;
        for (path, mut result) in self.action_results() {
            let Some(file) = result.output_files.first_mut().filter(|file| file.path.ends_with(name)) else { continue };
            let digest = file.digest.clone().expect("a digest");
            let envelope = serde_json::from_slice(&std::fs::read(self.blob(&digest)).expect("a blob")).expect("JSON");
            let content = change(envelope);
            let hash = Sha256Hex::digest(&content).to_string();
            let digest = Digest { hash, size_bytes: i64::try_from(content.len()).expect("small") };
            machine::write(&self.blob(&digest), content);
            file.digest = Some(digest);
            file.contents.clear();
            machine::write(&path, result.encode_to_vec());
            forged += 1;
        }
        assert!(forged > 0, "no {name}");
    }
}

const RECORD: &str = "record.dsse";
const PATH_SET: &str = "00.paths";
const RECORD_SUFFIX: &str = ".dsse";

fn socket(env: &TestEnvironment) -> PathBuf {
    env.root().join("casd.sock")
}

fn store(env: &TestEnvironment) -> PathBuf {
    env.root().join("casd-store")
}

/// Starts the server, and waits until it accepts connections.
fn start_server(env: &TestEnvironment) -> RunningProcess {
    let mut command = machine::client_command(CASD);
    command.arg(format!("--bind=unix:{}", socket(env).display())).args(["--quota-high=500M", "--reserved=0"]);
    command.arg("--unix-socket-mode=0777").arg(store(env));
    let mut server = RunningProcess::start(command);
    server.wait_until(|| std::os::unix::net::UnixStream::connect(socket(env)).is_ok());
    server
}

fn print_file(step: &str, file: &str) -> TestStep {
    TestStep::sh(step, &format!("cat {file}"))
}

fn second_machine_uses_result(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    let first = machines.executes("first");
    assert!(first.contains("0 results used, 2 results stored"), "{first}");
    let second = machines.uses_results("second");
    assert!(second.contains(&format!("cached from {KEY_ID}")), "{second}");
    assert!(second.contains("2 results used, 0 results stored"), "{second}");
    assert!(second.contains(&format!("2 cached (2 from {KEY_ID})")), "{second}");
    let (executed, reused) = (machines.evidence("first"), machines.evidence("second"));
    for (executed, reused) in executed.iter().zip(&reused) {
        assert_eq!(executed["stdout_sha256"], reused["stdout_sha256"]);
        assert!(reused["reused"]["origin"]["host"].is_string());
    }
    let state = machines.state_dir("second");
    let mut gate = env.command(machines.repo.path());
    gate.args(["gate", "--profile", "pr", "--changeset", "second", "--no-daemon", "--state-dir"]).arg(&state);
    let gate = env.finish(RunningProcess::start(gate)).exits(0).all_output();
    assert!(gate.contains("2 of 2 steps cached (some from `") && gate.contains(KEY_ID), "{gate}");
    let run = last_run_id(&machines, "second");
    let mut logs = env.command(machines.repo.path());
    logs.args(["logs", &run, "verify.it/one", "--state-dir"]).arg(&state);
    let logs = env.finish(RunningProcess::start(logs)).all_output();
    assert!(logs.contains("the output of `verify.it/one` is on the machine `"), "{logs}");
    let mut stats = env.command(machines.repo.path());
    stats.args(["cache", "stats", "--state-dir"]).arg(&state);
    let stats = env.finish(RunningProcess::start(stats)).exits(0).all_output();
    assert!(stats.contains("of other machines: 2 results"), "{stats}");
    // From now on, the result is stored on this machine, with its origin.
    machines.server.signal(Signal::KILL);
    let again = machines.uses_results("second");
    assert!(again.contains("0 results used") && !again.contains("warning"), "{again}");
}

/// Returns the id of the last run of a machine.
fn last_run_id(machines: &Machines<'_>, name: &str) -> String {
    let path = machines.repo.file("changes").join(name).join("05-status.json");
    let status: Value = serde_json::from_slice(&std::fs::read(path).expect("a status")).expect("JSON");
    status["verification"]["last_run"]["run_id"].as_str().expect("a run").to_owned()
}

fn other_umask_uses_result(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md"), TestStep::sh("git", "git rev-parse HEAD")]);
    machines.executes("first");
    let strict = machines.start_through("second", &["sh", "-c", "umask 077; exec \"$@\"", "sh"]);
    let run = env.finish(strict).exits(0);
    let steps = machines.evidence("second");
    assert!(steps.iter().all(|step| step["reused"]["origin"].is_object()), "{run}\n{steps:#?}");
}

fn other_content_executes(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md src/ignored.txt")]);
    machines.repo.write(".gitignore", "ignored.txt\n");
    machines.repo.write("src/ignored.txt", "same");
    machines.repo.commit();
    machines.executes("first");
    machines.repo.write("src/ignored.txt", "same");
    machines.uses_results("with_equal_content");
    machines.repo.write("src/ignored.txt", "else");
    machines.executes("with_other_ignored_file");
    machines.repo.write("src/ignored.txt", "same");
    machines.repo.write("README.md", "changed\n");
    machines.executes("with_other_file");
    machines.uses_results("last");
}

/// Returns a step that checks each Python file by itself, with a file that all checks read, and prints the checked ones.
fn per_file_step() -> TestStep {
    let script = "cat src/config.txt > /dev/null && cat \"$@\" > /dev/null && basename -a \"$@\"";
    TestStep::argv("each", &["sh", "-c", script, "sh", "{files}"])
        .with_field("files: { include: ['src/*.py'] }")
        .with_field("per_file: true")
}

fn machines_with_files(env: &TestEnvironment) -> Machines<'_> {
    let machines = Machines::new(env, [per_file_step()]);
    for name in ["a.py", "b.py", "c.py", "config.txt"] {
        machines.repo.write(&format!("src/{name}"), format!("{name}\n"));
    }
    machines
}

/// Runs the step, and returns the names of the files that it checked; `None` if it was cached.
fn checked_by(machines: &Machines<'_>, name: &str) -> Option<String> {
    machines.run(name).exits(0);
    let step = machines.evidence(name).remove(0);
    let is_cached = step.get("reused").is_some();
    (!is_cached).then(|| step["stdout_preview"].as_str().expect("text").replace('\n', " ").trim().to_owned())
}

fn origins(machines: &Machines<'_>, name: &str) -> Vec<String> {
    let step = machines.evidence(name).remove(0);
    let origins = step["checked_files"]["origins"].as_array().cloned().unwrap_or_default();
    origins.iter().map(|origin| origin["key_id"].as_str().expect("a key")[..KEY_ID.len()].to_owned()).collect()
}

fn files_are_shared(env: &TestEnvironment) {
    let machines = machines_with_files(env);
    assert_eq!(checked_by(&machines, "first").as_deref(), Some("a.py b.py c.py"));
    // All files have passed on the first machine.
    let second = machines.uses_results("second");
    assert!(second.contains(&format!("cached from {KEY_ID}")), "{second}");
    assert_eq!(origins(&machines, "second"), [KEY_ID]);
    // The third machine has other files.
    machines.repo.write("src/b.py", "changed\n");
    machines.repo.write("src/d.py", "new\n");
    let run = machines.run("third").exits(0).all_output();
    let step = machines.evidence("third").remove(0);
    assert_eq!(step["stdout_preview"], "b.py\nd.py\n", "{step:#}");
    let checked = &step["checked_files"];
    assert_eq!((&checked["count"], &checked["reused"]), (&4.into(), &2.into()), "{checked:#}");
    assert_eq!(origins(&machines, "third"), [KEY_ID]);
    assert!(run.contains("2 of 4 files checked, 2 passed earlier (some of them on `"), "{run}");
    let mut gate = env.command(machines.repo.path());
    gate.args(["gate", "--profile", "pr", "--changeset", "third", "--no-daemon", "--this-machine", "--state-dir"]);
    gate.arg(machines.state_dir("third"));
    let gate = env.finish(RunningProcess::start(gate)).exits(1).all_output();
    assert!(gate.contains("other machines executed steps") && gate.contains(KEY_ID), "{gate}");
    // The passes are now stored on this machine, with their origin.
    machines.server.signal(Signal::KILL);
    assert_eq!(checked_by(&machines, "third"), None);
    assert_eq!(origins(&machines, "third"), [KEY_ID]);
    // All checks read the config, so a change of it invalidates all passes.
    machines.repo.write("src/config.txt", "changed\n");
    assert_eq!(checked_by(&machines, "third").as_deref(), Some("a.py b.py c.py d.py"));
    assert!(origins(&machines, "third").is_empty());
}

/// Machines that keep nothing between runs, such as those of a CI service.
fn passes_do_not_replace_each_other(env: &TestEnvironment) {
    let machines = machines_with_files(env);
    assert_eq!(checked_by(&machines, "first").as_deref(), Some("a.py b.py c.py"));
    for number in 0..20 {
        machines.repo.write("src/a.py", format!("{number}\n"));
        let name = format!("machine_{number}");
        assert_eq!(checked_by(&machines, &name).as_deref(), Some("a.py"), "{number}");
    }
    assert_eq!(checked_by(&machines, "last"), None);
    let most = machines.action_results().values().map(|result| result.output_files.len()).max();
    assert_eq!(most, Some(16));
}

fn distrusted_passes_do_not_count(env: &TestEnvironment) {
    let machines = machines_with_files(env);
    assert_eq!(checked_by(&machines, "first").as_deref(), Some("a.py b.py c.py"));
    machines.repo.write("src/b.py", "changed\n");
    assert_eq!(checked_by(&machines, "second").as_deref(), Some("b.py"));
    assert_eq!(checked_by(&machines, "second"), None);
    machines.configure(false, "other.pem", "");
    assert_eq!(checked_by(&machines, "second").as_deref(), Some("a.py c.py"), "`b.py` passed on this machine");
    assert!(origins(&machines, "second").is_empty());
}

fn wrong_per_file_is_not_shared(env: &TestEnvironment) {
    let script = "cat src/a.py > /dev/null && basename -a \"$@\"";
    let step = TestStep::argv("each", &["sh", "-c", script, "sh", "{files}"])
        .with_field("files: { include: ['src/*.py'] }")
        .with_field("per_file: true");
    let machines = Machines::new(env, [step]);
    machines.repo.write("src/a.py", "a\n");
    machines.repo.write("src/b.py", "b\n");
    // The first execution checked all files together, which does not show that the check of one file reads another.
    assert_eq!(checked_by(&machines, "first").as_deref(), Some("a.py b.py"));
    machines.repo.write("src/b.py", "changed\n");
    let run = machines.run("second").exits(0).all_output();
    assert!(run.contains("`per_file` is wrong: the check of `src/b.py` read `src/a.py`"), "{run}");
    let step = machines.evidence("second").remove(0);
    assert_eq!(step["stdout_preview"], "a.py\nb.py\n", "{step:#}");
    assert!(step["checked_files"].get("origins").is_none(), "{step:#}");
    // Another machine comes to the same result.
    assert_eq!(checked_by(&machines, "third").as_deref(), Some("a.py b.py"));
}

fn changed_record_of_files_is_refused(env: &TestEnvironment) {
    let machines = machines_with_files(env);
    machines.executes("first");
    machines.forge(RECORD_SUFFIX, |mut envelope| {
        let payload = envelope["payload"].as_str().expect("text").to_owned();
        let (first, rest) = payload.split_at(1);
        envelope["payload"] = json!(format!("{}{rest}", if first == "e" { "f" } else { "e" }));
        envelope.to_string().into_bytes()
    });
    refuses(&machines, "a record: its signature does not match its content");
}

fn distrusted_key_has_no_results(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.executes("first");
    machines.uses_results("second");
    let gate = || {
        let mut gate = env.command(machines.repo.path());
        gate.args(["gate", "--profile", "pr", "--changeset", "second", "--no-daemon", "--state-dir"]);
        gate.arg(machines.state_dir("second"));
        env.finish(RunningProcess::start(gate))
    };
    gate().exits(0);
    machines.configure(false, "other.pem", "");
    let refused = gate().exits(1).all_output();
    assert!(refused.contains("does not trust") && refused.contains(KEY_ID), "{refused}");
    std::fs::remove_file(machines.key("other.pem")).expect("removed");
    let refused = gate().exits(1).all_output();
    assert!(refused.contains("other.pem` cannot be read"), "{refused}");
    machines.configure(false, "trusted.pem", "");
    gate().exits(0);
    machines.configure(true, "signing.pem", "");
    gate().exits(1);
    machines.executes("second");
}

fn reader_stores_nothing(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.configure(false, "trusted.pem", "");
    machines.executes("first");
    assert!(machines.action_results().is_empty());
    machines.executes("second");
}

fn secret_is_not_shared(env: &TestEnvironment) {
    env.set_caller_var("SERVICE_TOKEN", "very-secret-value");
    let step = print_file("one", "README.md").with_field("env_allowlist: [SERVICE_TOKEN]");
    let machines = Machines::new(env, [step]);
    machines.executes("first");
    assert!(machines.action_results().is_empty());
    machines.executes("second");
}

fn failure_is_not_shared(env: &TestEnvironment) {
    let machines = Machines::new(env, [TestStep::sh("one", "exit 3")]);
    machines.run("first").exits(1);
    assert!(machines.action_results().is_empty());
    machines.run("second").exits(1);
}

/// Checks that the second machine refuses what the server has, with this reason, and executes the step.
fn refuses(machines: &Machines<'_>, reason: &str) {
    let second = machines.executes("second");
    assert!(second.contains("1 refused:") && second.contains(reason), "{second}");
    assert!(!second.contains("warning"), "a refused record is no fault of the server: {second}");
}

fn unknown_key_is_refused(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.executes("first");
    machines.configure(false, "other.pem", "");
    refuses(&machines, "a path set: it is signed by a key that is not in `trusted_keys`");
}

fn changed_record_is_refused(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.executes("first");
    machines.forge(RECORD, |mut envelope| {
        let payload = envelope["payload"].as_str().expect("text").to_owned();
        let (first, rest) = payload.split_at(1);
        envelope["payload"] = json!(format!("{}{rest}", if first == "e" { "f" } else { "e" }));
        envelope.to_string().into_bytes()
    });
    refuses(&machines, "a record: its signature does not match its content");
}

fn unsigned_record_is_refused(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.executes("first");
    machines.forge(RECORD, |mut envelope| {
        envelope["signatures"] = json!([]);
        envelope.to_string().into_bytes()
    });
    refuses(&machines, "a record: it is not signed");
}

fn oversized_record_is_refused(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.executes("first");
    machines.forge(RECORD, |envelope| {
        let mut content = envelope.to_string().into_bytes();
        content.resize(4 << 20, b' ');
        content
    });
    refuses(&machines, "a record: it has 4194304 bytes");
}

/// Stores the properly signed record of one step under the key of another step.
fn moved_record_is_refused(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    machines.executes("first");
    let results = machines.action_results();
    let records: Vec<(&PathBuf, &ActionResult)> =
        results.iter().filter(|(_, result)| result.output_files[0].path == RECORD).collect();
    assert_eq!(records.len(), 2);
    for (to, from) in [(0, 1), (1, 0)] {
        machine::write(records[to].0, records[from].1.encode_to_vec());
    }
    let second = machines.executes("second");
    assert!(second.contains("2 refused: a record: it describes another step or other inputs"), "{second}");
}

fn wrong_blob_is_refused(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.executes("first");
    for result in machines.action_results().values() {
        let digest = result.output_files[0].digest.as_ref().expect("a digest");
        let blob = machines.blob(digest);
        let mut content = std::fs::read(&blob).expect("a blob");
        let last = content.len() - 3;
        content[last] ^= 1;
        std::fs::set_permissions(&blob, std::fs::Permissions::from_mode(0o644)).expect("writable");
        machine::write(&blob, content);
    }
    let second = machines.executes("second");
    let notice = "warning: the remote cache does not work, so the run did not use it:";
    assert!(second.contains(notice) && second.contains("do not match the digest"), "{second}");
}

/// A result with an empty path set would be valid for every tree.
fn forged_path_set_is_refused(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    machines.executes("first");
    machines.forge(PATH_SET, |mut envelope| {
        let payload = envelope["payload"].as_str().expect("text").to_owned();
        // The first 48 bytes: the version, and the weak fingerprint.
        envelope["payload"] = json!(&payload[..64]);
        envelope.to_string().into_bytes()
    });
    machines.repo.write("README.md", "changed\n");
    refuses(&machines, "a path set: its signature does not match its content");
}

/// Checks that a machine executes its step after one notice.
fn costs_one_notice(machines: &Machines<'_>, name: &str, reason: &str) {
    let output = machines.executes(name);
    let notices = output.matches("warning: the remote cache does not work").count();
    assert!(notices == 1 && output.contains(reason), "{output}");
}

fn absent_server_costs_notice(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    machines.server.signal(Signal::KILL);
    costs_one_notice(&machines, "first", "cannot be reached");
}

fn silent_server_has_deadline(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md"), print_file("two", "src/lib.rs")]);
    machines.configure(true, "trusted.pem", "timeout_ms = 300");
    machines.server.signal(Signal::STOP);
    costs_one_notice(&machines, "first", "within 300");
    machines.server.signal(Signal::CONT);
    machines.executes("first_again");
}

fn ending_server_costs_notice(env: &TestEnvironment) {
    // The step must leave no process behind, or its result is not stored.
    let marker = env.marker();
    let sleeper = format!("python3 -c 'import time; time.sleep(300)' {marker}-ready");
    let script = format!("trap 'kill $sleeper; wait $sleeper; exit 0' USR1; {sleeper} & sleeper=$!; wait");
    let machines = Machines::new(env, [TestStep::argv("waits", &["sh", "-c", &script, &format!("{marker}-main")])]);
    let mut running = machines.start("first");
    let step = wait_for_step(env, &mut running);
    machines.server.signal(Signal::KILL);
    release_step(&step);
    let output = env.finish(running).exits(0).all_output();
    assert_eq!(output.matches("warning: the remote cache does not work").count(), 1, "{output}");
}

fn doctor_names_server(env: &TestEnvironment) {
    let machines = Machines::new(env, [print_file("one", "README.md")]);
    let doctor = || {
        let mut command = env.command(machines.repo.path());
        command.args(["doctor", "--no-daemon", "--state-dir"]).arg(machines.state_dir("first"));
        RunningProcess::start(command).wait().all_output()
    };
    let known = doctor();
    assert!(known.contains(&format!("trusts {KEY_ID}; writes with key {KEY_ID}")), "{known}");
    machines.server.signal(Signal::KILL);
    let away = doctor();
    assert!(away.contains("not used: ") && away.contains("cannot be reached"), "{away}");
    std::fs::remove_file(Path::new(&machines.key("trusted.pem"))).expect("removed");
    let absent = doctor();
    assert!(absent.contains("not used: the key in `") && absent.contains("cannot be read"), "{absent}");
}
