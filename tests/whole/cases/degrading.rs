//! Tests runs on a machine that cannot enforce everything, by removing one feature at a time. In strict mode, the run
//! is refused before any step, and the message names the missing control and its fix. With `--sandbox=best-effort`
//! the step runs, and no control is recorded as enforced that the step itself finds missing.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, NEEDS_PYTHON, Needs, case, dry_case};
use crate::process::Finished;
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("degrading::a_whole_sandbox_is_what_the_step_sees", whole).needs(NEEDS_PYTHON),
    case("", whole).needs(NEEDS_PYTHON).unprivileged("degrading::a_whole_sandbox_is_what_the_step_sees_as_a_user"),
    case("degrading::without_seccomp", without_seccomp).needs(NEEDS_PYTHON),
    case("", without_seccomp).needs(NEEDS_PYTHON).unprivileged("degrading::without_seccomp_as_a_user"),
    case("degrading::without_landlock", without_landlock).needs(NEEDS_PYTHON),
    case("", without_landlock).needs(NEEDS_PYTHON).unprivileged("degrading::without_landlock_as_a_user"),
    case("degrading::with_the_hosts_network_landlock_holds_its_sockets_back", allowed_network).needs(NEEDS_PYTHON),
    case("", allowed_network)
        .needs(NEEDS_PYTHON)
        .unprivileged("degrading::with_the_hosts_network_landlock_holds_its_sockets_back_as_a_user"),
    case("degrading::with_landlock_switched_off", landlock_switched_off).needs(NEEDS_PYTHON),
    case("degrading::with_every_landlock_domain_taken", landlock_full).needs(NEEDS_PYTHON),
    case("degrading::without_cgroup_namespaces", without_cgroup_namespaces).needs(NEEDS_PYTHON),
    case("", without_cgroup_namespaces)
        .needs(NEEDS_PYTHON)
        .unprivileged("degrading::without_cgroup_namespaces_as_a_user"),
    case("degrading::without_a_host_name_of_its_own", without_host_name).needs(NEEDS_PYTHON),
    case("degrading::without_keyrings_nothing_is_missing", without_keyrings).needs(NEEDS_PYTHON),
    case("degrading::without_clone3_there_is_no_control_group_at_most", without_clone3).needs(NEEDS_PYTHON),
    case("degrading::without_overlays", without_overlays).needs(NEEDS_PYTHON),
    case("", without_overlays).needs(NEEDS_PYTHON).unprivileged("degrading::without_overlays_as_a_user"),
    case("degrading::without_mount_setattr_nothing_runs", without_mount_setattr).needs(NEEDS_PYTHON),
    case("", with_proc_masked).needs(NEEDS_PYTHON).unprivileged("degrading::with_parts_of_proc_masked"),
    case("", without_namespaces).needs(NEEDS_PYTHON).unprivileged("degrading::without_namespaces"),
    case("degrading::without_namespaces_as_root", without_namespaces_as_root).needs(NEEDS_ROOT),
    case("", in_bubblewrap).needs(NEEDS_BUBBLEWRAP).unprivileged("degrading::in_bubblewrap"),
    case("", without_control_group).unprivileged("degrading::without_a_control_group"),
    case("degrading::with_no_control_group_mounted", no_control_group_mounted).needs(NEEDS_ROOT),
    case("", refused_by_apparmor)
        .needs(NEEDS_PYTHON)
        .unprivileged("degrading::where_apparmor_refuses_namespaces_the_profile_is_named"),
    case("degrading::an_outcome_is_the_same_with_less", outcomes).needs(NEEDS_PYTHON),
    case("degrading::what_is_missing_with_another_is_demanded_too", coupled).needs(NEEDS_PYTHON),
    case("degrading::the_operator_can_forbid_best_effort", forbidden),
    case("degrading::the_operator_says_what_may_be_missing", may_miss).needs(NEEDS_PYTHON),
    dry_case("degrading::a_spec_cannot_ask_for_less", spec_cannot_ask),
    case("degrading::what_was_found_out_before_makes_no_record", stale_probe).needs(NEEDS_PYTHON),
];

const NEEDS_ROOT: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Root];
const NEEDS_BUBBLEWRAP: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Works(&BUBBLEWRAP_TRUE)];
/// Bubblewrap's first process exits with its parent, and all processes inside exit with it.
const BUBBLEWRAP: [&str; 10] =
    ["bwrap", "--die-with-parent", "--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--"];
const BUBBLEWRAP_TRUE: [&str; 10] =
    ["bwrap", "--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--", "true"];

/// Wrapper that executes a program on a machine without certain features.
const LACKING: &str = include_str!("../lacking.py");
/// Program that prints what it sees of its sandbox.
const SEEN: &str = include_str!("../seen.py");

/// A missing feature of a machine.
struct Lack<'a> {
    /// Arguments for the wrapper that removes the feature.
    lacks: &'a [&'a str],
    /// Number of seccomp filters that the wrapper installs.
    filters: u32,
    /// A control that is missing as a result.
    control: &'a str,
    /// Expected text of the hint in the refusal.
    hint: &'a str,
}

/// The observations of a step.
#[derive(Deserialize)]
struct Seen {
    controls: BTreeMap<String, bool>,
    foreign: Vec<String>,
    namespaces: BTreeMap<String, String>,
}

pub(super) fn lacking<'a>(lacks: &[&'a str]) -> Vec<&'a str> {
    [&["python3", "-c", LACKING], lacks, &["--"]].concat()
}

/// Returns a spec with a step that inspects its sandbox, under this number of foreign seccomp filters.
fn looking(env: &TestEnvironment, filters: u32) -> Spec {
    spec_of(looker(env, filters))
}

fn looker(env: &TestEnvironment, filters: u32) -> Step {
    let secret = env.root().join("sibling/secret.txt");
    let secret = secret.to_str().expect("UTF-8");
    Step::argv("it", &["python3", "-c", SEEN, &filters.to_string(), secret, env.marker()])
}

/// The output of the step is different in each run.
fn spec_of(step: Step) -> Spec {
    Spec::new([Skill::new("verify.it", [step]).determinism("D2")])
}

/// Creates a service on the host that a step must not reach.
fn listen(env: &TestEnvironment) -> UnixListener {
    let address = SocketAddr::from_abstract_name(env.marker()).expect("a name");
    UnixListener::bind_addr(&address).expect("the name is unique")
}

fn through(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str], arguments: &[&str]) -> Finished {
    env.finish(env.start_through(repo.path(), wrapper, arguments))
}

fn run_through(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str], mode: &str) -> Finished {
    through(env, repo, wrapper, &["run", "--changeset", CHANGESET, "--sandbox", mode])
}

/// Returns the recorded state of a control for the step `it`.
fn recorded(repo: &Repo<'_>, control: &str) -> String {
    let state = repo.step("it")["enforcement"][control]["state"].clone();
    state.as_str().unwrap_or_else(|| panic!("no message names {control}")).to_owned()
}

/// Asserts that the recorded state of each control agrees with the step's observation, and returns the controls that
/// are recorded as missing.
fn honest(repo: &Repo<'_>) -> Vec<String> {
    let step = repo.step("it");
    let output = step["stdout_preview"].as_str().expect("the schema says so");
    let seen: Seen = serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {step:#}"));
    assert_eq!(seen.foreign, [""; 0], "other processes are in its reach");
    let namespace = |(kind, link): (&String, &String)| {
        let here = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace of this process");
        let word = match kind.as_str() {
            "mnt" => "mount",
            "net" => "network",
            other => other,
        };
        (format!("{word}_namespace"), here.as_os_str() != link.as_str())
    };
    // The observation of the network is derived from its interfaces, and that of the host name is separate.
    let namespaces = seen.namespaces.iter().map(namespace).filter(|(name, _)| name != "network_namespace");
    let mut facts: BTreeMap<String, bool> = namespaces.chain(seen.controls.clone()).collect();
    if recorded(repo, "mount_namespace") != "enforced" {
        // The namespace belongs to the wrapper that removed the others, and this process is not in it.
        facts.remove("user_namespace");
    }
    let host_name = facts.remove("uts").expect("seen");
    facts.entry("uts_namespace".to_owned()).and_modify(|own| *own &= host_name);
    assert!(facts.len() > 20, "{facts:?}");
    for (control, holds) in &facts {
        let said = &step["enforcement"][control];
        assert_eq!(recorded(repo, control) == "enforced", *holds, "{control} as the step sees it: {said:#}\n{output}");
    }
    missing(&step)
}

fn missing(step: &Value) -> Vec<String> {
    let controls = step["enforcement"].as_object().expect("the schema says so").iter();
    controls.filter(|(_, state)| state["state"] == "not_enforced").map(|(control, _)| control.clone()).collect()
}

/// Asserts that a strict run is refused and a best-effort run passes, and returns the missing controls.
fn degrades(env: &TestEnvironment, lack: &Lack<'_>) -> Vec<String> {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, lack.filters)));
    refuses(env, &repo, lack);
    let missing = runs_with_less(env, &repo, &lacking(lack.lacks));
    assert!(missing.contains(&lack.control.to_owned()), "{missing:?}");
    missing
}

fn refuses(env: &TestEnvironment, repo: &Repo<'_>, lack: &Lack<'_>) {
    let wrapper = lacking(lack.lacks);
    refuses_through(env, repo, &wrapper, [lack.control, lack.hint]);
}

fn refuses_through(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str], words: [&str; 2]) {
    let run = run_through(env, repo, wrapper, "strict").exits(5).complains(&words);
    let run = run.complains(&["hint:", "--sandbox=best-effort"]);
    assert!(repo.is_untouched(), "part of the run is recorded\n{run}");
    let exec = ["exec", "--", "echo", "the command ran"];
    let ran = through(env, repo, wrapper, &exec).exits(5).complains(&words).complains(&["--sandbox=best-effort"]);
    assert!(!ran.stdout.contains("the command ran"), "{ran}");
    let doctor = through(env, repo, wrapper, &["doctor"]).exits(5).says(&words).says(&["degraded"]);
    assert!(doctor.stdout.contains("not ready"), "{doctor}");
    through(env, repo, wrapper, &["doctor", "--sandbox", "best-effort"]).exits(0).says(&words);
}

/// Asserts that a best-effort run passes, and that it reports and records the missing controls.
fn runs_with_less(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str]) -> Vec<String> {
    let run = run_through(env, repo, wrapper, "best-effort").exits(0).says(&["passed", "not enforced here"]);
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["sandbox"], "best_effort");
    assert_eq!((&evidence["tier"], &evidence["declared_tier"]), (&json!(2), &json!(1)));
    assert_eq!(evidence["tier_reasons"], json!(["control_not_enforced"]));
    assert_eq!(repo.last_run()["tier"], 2);
    let missing = honest(repo);
    missing.iter().for_each(|control| assert!(run.stdout.contains(control), "{control} is not shown\n{run}"));
    // With `--max-tier 1` the run is no pass.
    let arguments = ["run", "--changeset", CHANGESET, "--sandbox=best-effort", "--max-tier", "1"];
    through(env, repo, wrapper, &arguments).exits(5).says(&["tier"]);
    let exec = ["exec", "--sandbox=best-effort", "--format", "json", "--", "true"];
    let exec = through(env, repo, wrapper, &exec).exits(0).complains(&["not enforced here"]);
    let record: Value = serde_json::from_str(&exec.stdout).unwrap_or_else(|error| panic!("{error}: {exec}"));
    assert_eq!((&record["sandbox"], &record["tier"]), (&json!("best_effort"), &json!(2)));
    missing
}

/// Nothing is removed, so all controls except control groups are enforced and observed.
fn whole(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 0)));
    let strict = run_through(env, &repo, &[], "strict").exits(0);
    let missing = honest(&repo);
    assert!(missing.iter().all(|control| control == "cgroup"), "{missing:?}\n{strict}");
    assert_eq!(repo.evidence("verify.it")["sandbox"], "strict");
    assert_eq!(strict.stdout.contains("not enforced here"), !missing.is_empty(), "{strict}");
    // Best-effort mode does not remove any control.
    run_through(env, &repo, &[], "best-effort").exits(0);
    assert_eq!((honest(&repo), &repo.evidence("verify.it")["sandbox"]), (missing, &json!("best_effort")));
}

fn without_seccomp(env: &TestEnvironment) {
    let lack = Lack { lacks: &["seccomp=ENOSYS"], filters: 1, control: "syscall_filter", hint: "seccomp" };
    assert!(degrades(env, &lack).contains(&"keyring".to_owned()), "keys can be named by their numbers then");
}

fn without_landlock(env: &TestEnvironment) {
    let lacks = ["landlock_create_ruleset=ENOSYS"];
    degrades(env, &Lack { lacks: &lacks, filters: 1, control: "landlock", hint: "lsm=" });
}

/// In the host's network namespace, every process can connect to abstract sockets.
fn allowed_network(env: &TestEnvironment) {
    let spec = |filters| looking(env, filters).with_default("network: allow");
    let (_outside, repo) = (listen(env), env.repo(&spec(0)));
    run_through(env, &repo, &[], "strict").exits(0);
    assert!(!honest(&repo).contains(&"abstract_sockets".to_owned()), "this kernel has Landlock's scopes");
    let repo = env.repo_at("without", &spec(1));
    let wrapper = lacking(&["landlock_create_ruleset=ENOSYS"]);
    let config = config(env, "may_miss = ['cgroup', 'landlock']\n");
    let exec = ["exec", "--config", &config, "--network", "allow", "--", "echo", "the command ran"];
    let exec = through(env, &repo, &wrapper, &exec).exits(5).complains(&["`abstract_sockets`"]);
    assert!(!exec.stdout.contains("the command ran"), "{exec}");
    run_through(env, &repo, &wrapper, "best-effort").exits(0).says(&["abstract_sockets", "landlock"]);
    assert!(honest(&repo).contains(&"abstract_sockets".to_owned()));
}

fn landlock_switched_off(env: &TestEnvironment) {
    let lacks = ["landlock_create_ruleset=EOPNOTSUPP"];
    degrades(env, &Lack { lacks: &lacks, filters: 1, control: "landlock", hint: "lsm=" });
}

fn landlock_full(env: &TestEnvironment) {
    let lacks = ["landlock_restrict_self=E2BIG"];
    degrades(env, &Lack { lacks: &lacks, filters: 1, control: "landlock", hint: "domains" });
}

fn without_cgroup_namespaces(env: &TestEnvironment) {
    let lacks = ["unshare:0&0x2000000=EPERM"];
    degrades(env, &Lack { lacks: &lacks, filters: 1, control: "cgroup_namespace", hint: "nesting" });
}

fn without_host_name(env: &TestEnvironment) {
    let lacks = ["sethostname=EPERM"];
    degrades(env, &Lack { lacks: &lacks, filters: 1, control: "uts_namespace", hint: "nesting" });
}

/// A filter that refuses `keyctl` to us refuses it to the step too.
fn without_keyrings(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 1)));
    run_through(env, &repo, &lacking(&["keyctl=EPERM"]), "strict").exits(0);
    assert_eq!(recorded(&repo, "keyring"), "enforced");
    honest(&repo);
}

fn without_clone3(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 1)));
    run_through(env, &repo, &lacking(&["clone3=ENOSYS"]), "strict").exits(0);
    let missing = honest(&repo);
    assert!(missing.iter().all(|control| control == "cgroup"), "{missing:?}");
    let held = |control: &str| repo.step("it")["enforcement"][control]["mechanism"].to_string();
    let by_group = held("pids_limit").contains("cgroup");
    assert_eq!(by_group, missing.is_empty(), "a group that it is not in holds nothing: {}", held("pids_limit"));
}

/// Simulates a kernel whose overlayfs does not accept flags, in particular the flag that an ordinary user needs.
fn without_overlays(env: &TestEnvironment) {
    let lack = Lack { lacks: &["fsconfig:1@0=EINVAL"], filters: 1, control: "layer", hint: "overlayfs" };
    assert_eq!(degrades(env, &lack).into_iter().filter(|control| control != "cgroup").count(), 1, "nothing else");
}

fn without_mount_setattr(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 1)));
    let run = run_through(env, &repo, &lacking(&["mount_setattr=ENOSYS"]), "strict").exits(5);
    assert!(run.everything().contains("hint:") && run.everything().contains("5.12"), "{run}");
    assert!(repo.is_untouched() || repo.step("it")["termination"]["kind"] == "not_started", "{run}");
}

const MASKED_PROC: [&str; 2] = ["mask:/proc/interrupts", "mask:/proc/timer_list"];

fn with_proc_masked(env: &TestEnvironment) {
    let lack = Lack { lacks: &MASKED_PROC, filters: 0, control: "private_proc", hint: "systempaths" };
    degrades(env, &lack);
    sums_are_the_steps(env);
}

/// Limits apply to the step alone, even if `/proc` shows other processes.
fn sums_are_the_steps(env: &TestEnvironment) {
    let hold = |mebibytes| format!("import time; held = b'x' * ({mebibytes} << 20); time.sleep(0.3); print('had it')");
    let repo = env.repo_at("sums", &Spec::of_script("true"));
    let limits = ["exec", "--sandbox=best-effort", "--memory", "100MiB", "--cpu-seconds", "60", "--"];
    for (program, code) in [(hold(40), 0), ("import os\nos.fork()\n".to_owned() + &hold(70), 1)] {
        let arguments = [&limits[..], &["python3", "-c", &program]].concat();
        let ran = through(env, &repo, &lacking(&MASKED_PROC), &arguments).exits(code);
        assert_eq!(ran.stderr.contains("its limit"), code != 0, "{ran}");
    }
}

/// Only Landlock, seccomp and file modes separate the step from the host then.
fn without_namespaces(env: &TestEnvironment) {
    let hint = "max_user_namespaces";
    lacks_namespaces(env, &Lack { lacks: &["namespaces"], filters: 0, control: "user_namespace", hint });
}

/// Simulates a container that refuses namespaces to root.
fn without_namespaces_as_root(env: &TestEnvironment) {
    lacks_namespaces(env, &Lack { lacks: &["unshare=EPERM"], filters: 1, control: "mount_namespace", hint: "nesting" });
}

/// Simulates Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`. A program without a profile gets no user
/// namespace (23.10), or one in which it cannot mount (24.04). Both messages name the command that fixes it.
fn refused_by_apparmor(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    for lacks in [&["unshare:0&0x10000000=EACCES"][..], &["mount=EPERM", "fsopen=EPERM", "mount_setattr=EPERM"]] {
        let command = "proctor doctor --apparmor-profile | sudo tee /etc/apparmor.d/proctor-sandbox";
        refuses_through(env, &repo, &lacking(lacks), [command, "sudo apparmor_parser -r"]);
    }
}

fn lacks_namespaces(env: &TestEnvironment, lack: &Lack<'_>) {
    let missing = degrades(env, lack);
    for control in ["mount_namespace", "pid_namespace", "network_namespace", "layer", "private_proc"] {
        assert!(missing.contains(&control.to_owned()), "{control}: {missing:?}");
    }
}

fn in_bubblewrap(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 0)));
    let doctor = through(env, &repo, &BUBBLEWRAP, &["doctor"]);
    if doctor.code == Some(0) {
        // This bubblewrap masks nothing of `/proc`.
        run_through(env, &repo, &BUBBLEWRAP, "strict").exits(0);
        honest(&repo);
        return;
    }
    refuses_through(env, &repo, &BUBBLEWRAP, ["private_proc", "systempaths"]);
    let missing = runs_with_less(env, &repo, &BUBBLEWRAP);
    assert!(missing.contains(&"private_proc".to_owned()), "{missing:?}");
}

/// Without control groups a run has tier 2, unless the operator requires them.
fn without_control_group(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let doctor = repo.proctor(&["doctor", "--format", "json"]).exits(0);
    let doctor: Value = serde_json::from_str(&doctor.stdout).expect("a document");
    let has_groups = !doctor["control_groups"].is_null();
    assert_eq!(doctor["reach"], if has_groups { "full" } else { "full_without_cgroup" });
    repo.run().exits(0);
    let evidence = repo.evidence("verify.it");
    let (tier, reasons) = if has_groups { (1, json!([])) } else { (2, json!(["control_not_enforced"])) };
    assert_eq!((&evidence["tier"], &evidence["tier_reasons"]), (&json!(tier), &reasons));
    assert_eq!(recorded(&repo, "cgroup") == "enforced", has_groups);
    let config = config(env, "may_miss = []\n");
    let demanding = repo.run_with(&["--config", &config]).exits(if has_groups { 0 } else { 5 });
    assert_eq!(demanding.stderr.contains("`cgroup`"), !has_groups, "{demanding}");
}

/// Removes the control groups even if the machine has them. Their limits are then enforced for each process and by
/// PID 1, and the record says so.
fn no_control_group_mounted(env: &TestEnvironment) {
    let wrapper = lacking(&["cgroups"]);
    let step = looker(env, 0).with("limits: { memory: 512MiB, pids: 200 }");
    let (_outside, repo) = (listen(env), env.repo(&spec_of(step)));
    for mode in ["strict", "best-effort"] {
        run_through(env, &repo, &wrapper, mode).exits(0).says(&["not enforced here", "cgroup"]);
        assert_eq!(honest(&repo), ["cgroup"], "{mode}");
        let evidence = repo.evidence("verify.it");
        assert_eq!(evidence["sandbox"], mode.replace('-', "_"));
        let expected = (&json!(2), &json!(["control_not_enforced"]));
        assert_eq!((&evidence["tier"], &evidence["tier_reasons"]), expected, "{mode}");
        let step = repo.step("it");
        let cgroup = &step["enforcement"]["cgroup"];
        assert!(cgroup["reason"].to_string().contains("no mount") && cgroup["hint"].is_string(), "{cgroup:#}");
        for (control, by) in [("memory_limit", ["RLIMIT_DATA", "PID 1"]), ("pids_limit", ["RLIMIT_NPROC", "200"])] {
            let said = &step["enforcement"][control];
            assert_eq!(said["state"], "enforced");
            let how = said["mechanism"].to_string();
            assert!(by.iter().all(|word| how.contains(word)) && !how.contains("cgroup"), "{control}: {how}");
        }
        assert_eq!(step["resources"]["memory_peak_kib"], Value::Null, "nobody counted it");
    }
    let doctor = through(env, &repo, &wrapper, &["doctor", "--format", "json"]).exits(0);
    let doctor: Value = serde_json::from_str(&doctor.stdout).expect("a document");
    assert_eq!((&doctor["reach"], &doctor["control_groups"]), (&json!("full_without_cgroup"), &Value::Null));
    let config = config(env, "may_miss = []\n");
    let demanding = ["exec", "--config", &config, "--", "echo", "the command ran"];
    let demanding = through(env, &repo, &wrapper, &demanding).exits(5).complains(&["`cgroup`", "mount cgroup v2"]);
    assert!(!demanding.stdout.contains("the command ran"), "{demanding}");
    hold_without_control_group(env, &repo, &wrapper);
}

/// Checks the replacement limits: on the memory of all processes together, and on the number of processes.
fn hold_without_control_group(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str]) {
    let hoard = "import os, signal\nos.fork()\nos.fork()\nheld = b'x' * (60 << 20)\nsignal.pause()";
    let hoard = ["exec", "--memory", "100MiB", "--", "python3", "-c", hoard];
    through(env, repo, wrapper, &hoard).exits(1).complains(&["hit its limit of 100 MiB memory"]);
    let forks = "import os, signal\ntry:\n  while os.fork(): pass\n  signal.pause()\nexcept OSError: print('bounded')";
    let forks = ["exec", "--pids", "40", "--", "python3", "-c", forks];
    through(env, repo, wrapper, &forks).exits(0).says(&["bounded"]);
}

fn config(env: &TestEnvironment, text: &str) -> String {
    let path = env.root().join("proctord.toml");
    machine::write(&path, text);
    machine::open_file_to_all(&path);
    path.to_str().expect("UTF-8").to_owned()
}

/// A missing control does not change the outcome of a step.
fn outcomes(env: &TestEnvironment) {
    let wrapper = lacking(&["landlock_create_ruleset=ENOSYS"]);
    let cases = [("exit 7", 1, "failed"), ("echo x >> README.md", 3, "drifted"), ("sleep 300", 4, "timed_out")];
    for (index, (script, code, outcome)) in cases.into_iter().enumerate() {
        let step = Step::sh("it", script).with(if code == 4 { "timeout_ms: 300" } else { "timeout_ms: 60000" });
        let repo = env.repo_at(&format!("repo{index}"), &Spec::of_steps([step]));
        run_through(env, &repo, &wrapper, "best-effort").exits(code);
        assert_eq!(repo.step("it")["outcome"], outcome);
        assert_eq!(recorded(&repo, "landlock"), "not_enforced");
    }
}

/// Without the syscall filter, keys are reachable. An operator that only tolerates the missing filter has not
/// tolerated that.
fn coupled(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 1)));
    let config = config(env, "may_miss = ['cgroup', 'syscall_filter', 'network_namespace']\n");
    let wrapper = lacking(&["seccomp=ENOSYS"]);
    let arguments = ["run", "--changeset", CHANGESET, "--config", &config];
    through(env, &repo, &wrapper, &arguments).exits(5).complains(&["`keyring`"]);
    let exec = ["exec", "--config", &config, "--", "echo", "the command ran"];
    let exec = through(env, &repo, &wrapper, &exec).exits(5).complains(&["`keyring`"]);
    assert!(!exec.stdout.contains("the command ran"), "{exec}");
}

fn forbidden(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let config = config(env, "allow_best_effort = false\n");
    for words in [&["run"][..], &["exec"], &["doctor"]] {
        let command: &[&str] = if words == ["exec"] { &["--", "true"] } else { &[] };
        let arguments = [words, &["--sandbox=best-effort", "--config", &config], command].concat();
        repo.proctor(&arguments).exits(2).complains(&["--sandbox=best-effort", "allow_best_effort", "hint:"]);
        repo.proctor(&[words, &["--config", &config], command].concat()).exits(0);
    }
}

fn may_miss(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 1)));
    let wrapper = lacking(&["landlock_create_ruleset=ENOSYS"]);
    let arguments = |config| ["run", "--changeset", CHANGESET, "--config", config];
    let allowed = config(env, "may_miss = ['cgroup', 'landlock']\n");
    through(env, &repo, &wrapper, &arguments(&allowed)).exits(0).says(&["not enforced here", "landlock"]);
    let evidence = repo.evidence("verify.it");
    assert_eq!((&evidence["sandbox"], &evidence["tier"]), (&json!("strict"), &json!(2)));
    honest(&repo);
    let unknown = config(env, "may_miss = ['cgroup', 'firewall']\n");
    let run = through(env, &repo, &wrapper, &arguments(&unknown)).exits(2);
    assert!(run.everything().contains("firewall") && run.everything().contains("landlock"), "{run}");
}

fn spec_cannot_ask(env: &TestEnvironment) {
    let step = Step::sh("it", "true").with("sandbox: best_effort");
    let specs = [
        Spec::of_script("true").top("sandbox: best_effort"),
        Spec::of_script("true").with_default("sandbox: best_effort"),
        Spec::of_steps([step]),
    ];
    for (index, spec) in specs.iter().enumerate() {
        let repo = env.repo_at(&format!("repo{index}"), spec);
        let run = repo.run().exits(2);
        assert!(run.everything().contains("`sandbox`"), "{run}");
        assert!(repo.is_untouched());
    }
}

/// A stored trial is only trusted if nothing was missing, and even then each step is refused by the missing control
/// itself. After a fix of the machine, the next run detects the control without further action.
fn stale_probe(env: &TestEnvironment) {
    let (_outside, repo) = (listen(env), env.repo(&looking(env, 0)));
    let wrapper = lacking(&["seccomp=ENOSYS"]);
    run_through(env, &repo, &[], "strict").exits(0);
    let kept = env.state().join("probe.json");
    assert_eq!(kept.metadata().expect("a trial was kept").permissions().mode() & 0o777, 0o600);
    run_through(env, &repo, &wrapper, "strict").exits(5).says(&["syscall_filter"]);
    assert_eq!(repo.step("it")["termination"]["kind"], "not_started");
    through(env, &repo, &wrapper, &["doctor"]).exits(5);
    run_through(env, &repo, &wrapper, "strict").exits(5).complains(&["syscall_filter", "nothing ran"]);
    run_through(env, &repo, &[], "strict").exits(0);
    honest(&repo);
    machine::write(&kept, "{");
    run_through(env, &repo, &[], "strict").exits(0);
}
