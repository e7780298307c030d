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
use crate::needs::{CaseDefinition, NEEDS_PYTHON, Needs, case, dry_case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("missing_controls::complete_sandbox_matches_the_steps_observation", complete_sandbox)
        .needs(NEEDS_PYTHON)
        .daemon_sample(),
    case("", complete_sandbox)
        .needs(NEEDS_PYTHON)
        .unprivileged("missing_controls::complete_sandbox_matches_the_steps_observation_as_a_user"),
    case("missing_controls::without_seccomp", lacks_seccomp).needs(NEEDS_PYTHON),
    case("", lacks_seccomp).needs(NEEDS_PYTHON).unprivileged("missing_controls::without_seccomp_as_a_user").long(),
    case("missing_controls::without_landlock", lacks_landlock).needs(NEEDS_PYTHON),
    case("", lacks_landlock).needs(NEEDS_PYTHON).unprivileged("missing_controls::without_landlock_as_a_user"),
    case("missing_controls::landlock_blocks_abstract_sockets_in_the_hosts_network", landlock_with_host_network)
        .needs(NEEDS_PYTHON),
    case("", landlock_with_host_network)
        .needs(NEEDS_PYTHON)
        .unprivileged("missing_controls::landlock_blocks_abstract_sockets_in_the_hosts_network_as_a_user"),
    case("missing_controls::with_landlock_disabled", lacks_disabled_landlock).needs(NEEDS_PYTHON),
    case("missing_controls::without_a_free_landlock_domain", lacks_landlock_domains).needs(NEEDS_PYTHON),
    case("missing_controls::without_cgroup_namespaces", lacks_cgroup_namespaces).needs(NEEDS_PYTHON),
    case("", lacks_cgroup_namespaces)
        .needs(NEEDS_PYTHON)
        .unprivileged("missing_controls::without_cgroup_namespaces_as_a_user"),
    case("missing_controls::without_a_separate_host_name", lacks_own_host_name).needs(NEEDS_PYTHON),
    case("missing_controls::without_keyrings_no_control_is_missing", keyrings_not_required).needs(NEEDS_PYTHON),
    case("missing_controls::without_clone3_at_most_control_groups_are_missing", lacks_clone3).needs(NEEDS_PYTHON),
    case("missing_controls::without_overlays", lacks_overlays).needs(NEEDS_PYTHON),
    case("", lacks_overlays).needs(NEEDS_PYTHON).unprivileged("missing_controls::without_overlays_as_a_user").long(),
    case("missing_controls::without_mount_setattr_nothing_runs", lacks_mount_setattr).needs(NEEDS_PYTHON),
    case("", lacks_complete_proc).needs(NEEDS_PYTHON).unprivileged("missing_controls::with_parts_of_proc_masked"),
    case("", lacks_namespaces_as_user)
        .needs(NEEDS_PYTHON)
        .unprivileged("missing_controls::without_namespaces")
        .daemon_sample(),
    case("missing_controls::without_namespaces_as_root", lacks_namespaces_as_root).needs(NEEDS_ROOT).daemon_sample(),
    case("", runs_in_bubblewrap).needs(NEEDS_BUBBLEWRAP_SANDBOX).unprivileged("missing_controls::in_bubblewrap"),
    case("", lacks_control_group).unprivileged("missing_controls::without_a_control_group"),
    case("missing_controls::without_a_control_group_mount", lacks_control_group_mount).needs(NEEDS_ROOT),
    case("", apparmor_refusal_names_fix)
        .needs(NEEDS_PYTHON)
        .unprivileged("missing_controls::apparmor_refusal_names_the_profile_command"),
    case("missing_controls::outcomes_do_not_change_with_a_missing_control", outcomes_unchanged)
        .needs(NEEDS_PYTHON)
        .daemon_sample(),
    case("missing_controls::control_lost_through_another_missing_control_is_required", coupled_control_required)
        .needs(NEEDS_PYTHON),
    case("missing_controls::operator_can_forbid_best_effort", operator_forbids_best_effort),
    case("missing_controls::operator_sets_which_controls_may_be_missing", operator_tolerates_missing_controls)
        .needs(NEEDS_PYTHON),
    dry_case("missing_controls::spec_cannot_lower_the_sandbox_mode", spec_cannot_lower_sandbox).daemon_sample(),
    case("missing_controls::outdated_probe_result_is_not_recorded", outdated_probe_is_not_recorded).needs(NEEDS_PYTHON),
];

const NEEDS_ROOT: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Root];
const NEEDS_BUBBLEWRAP_SANDBOX: &[Needs] =
    &[Needs::Sandbox, Needs::Program("python3"), Needs::WorkingCommand(&BUBBLEWRAP_PROBE)];
/// Bubblewrap's first process exits with its parent, and all processes inside exit with it.
const BUBBLEWRAP_WRAPPER: [&str; 10] =
    ["bwrap", "--die-with-parent", "--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--"];
const BUBBLEWRAP_PROBE: [&str; 10] =
    ["bwrap", "--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--", "true"];

/// Wrapper that executes a program on a machine without certain features.
const LACKING_PROGRAM: &str = include_str!("../lacking.py");
/// Program that prints what it sees of its sandbox.
const SANDBOX_INSPECTOR: &str = include_str!("../seen.py");

/// A missing feature of a machine.
struct MissingFeature<'a> {
    /// Arguments for the wrapper that removes the feature.
    wrapper_arguments: &'a [&'a str],
    /// Number of seccomp filters that the wrapper installs.
    filter_count: u32,
    /// A control that is missing as a result.
    control: &'a str,
    /// Expected text of the hint in the refusal.
    hint: &'a str,
}

/// The observations of a step.
#[derive(Deserialize)]
struct InspectorReport {
    controls: BTreeMap<String, bool>,
    foreign: Vec<String>,
    namespaces: BTreeMap<String, String>,
}

pub(super) fn wrapper_without<'a>(lacks: &[&'a str]) -> Vec<&'a str> {
    [&["python3", "-c", LACKING_PROGRAM], lacks, &["--"]].concat()
}

/// Returns a spec with a step that inspects its sandbox, under this number of foreign seccomp filters.
fn inspecting_spec(env: &TestEnvironment, filters: u32) -> TestSpec {
    spec_with_varying_output(inspecting_step(env, filters))
}

fn inspecting_step(env: &TestEnvironment, filters: u32) -> TestStep {
    let secret = env.root().join("sibling/secret.txt");
    let secret = secret.to_str().expect("UTF-8");
    TestStep::argv("it", &["python3", "-c", SANDBOX_INSPECTOR, &filters.to_string(), secret, env.marker()])
}

/// The output of the step is different in each run.
fn spec_with_varying_output(step: TestStep) -> TestSpec {
    TestSpec::new([TestSkill::new("verify.it", [step]).determinism("D2")])
}

/// Creates a service on the host that a step must not reach.
fn listen_on_abstract_socket(env: &TestEnvironment) -> UnixListener {
    let address = SocketAddr::from_abstract_name(env.marker()).expect("a name");
    UnixListener::bind_addr(&address).expect("the name is unique")
}

fn proctor_through(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str], arguments: &[&str]) -> FinishedProcess {
    env.finish(env.start_through(repo.path(), wrapper, arguments))
}

fn run_through(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str], mode: &str) -> FinishedProcess {
    proctor_through(env, repo, wrapper, &["run", "--changeset", CHANGESET, "--sandbox", mode])
}

/// Returns the recorded state of a control for the step `it`.
fn recorded_state(repo: &Repo<'_>, control: &str) -> String {
    let state = repo.step("it")["enforcement"][control]["state"].clone();
    state.as_str().unwrap_or_else(|| panic!("no message names {control}")).to_owned()
}

/// Asserts that the recorded state of each control agrees with the step's observation, and returns the controls that
/// are recorded as missing.
fn assert_record_matches_observation(repo: &Repo<'_>) -> Vec<String> {
    let step = repo.step("it");
    let output = step["stdout_preview"].as_str().expect("the schema says so");
    let report: InspectorReport = serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {step:#}"));
    assert_eq!(report.foreign, [""; 0], "other processes are in its reach");
    let namespace = |(kind, link): (&String, &String)| {
        let own_namespace = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("a namespace of this process");
        let word = match kind.as_str() {
            "mnt" => "mount",
            "net" => "network",
            other => other,
        };
        (format!("{word}_namespace"), own_namespace.as_os_str() != link.as_str())
    };
    // The observation of the network is derived from its interfaces, and that of the host name is separate.
    let namespaces = report.namespaces.iter().map(namespace).filter(|(name, _)| name != "network_namespace");
    let mut observations: BTreeMap<String, bool> = namespaces.chain(report.controls.clone()).collect();
    if recorded_state(repo, "mount_namespace") != "enforced" {
        // The namespace belongs to the wrapper that removed the other features, and this process is outside of it.
        observations.remove("user_namespace");
    }
    let host_name = observations.remove("uts").expect("seen");
    observations.entry("uts_namespace".to_owned()).and_modify(|own| *own &= host_name);
    assert!(observations.len() > 20, "{observations:?}");
    for (control, is_observed) in &observations {
        let state = &step["enforcement"][control];
        assert_eq!(
            recorded_state(repo, control) == "enforced",
            *is_observed,
            "{control} as the step sees it: {state:#}\n{output}"
        );
    }
    unenforced_controls(&step)
}

fn unenforced_controls(step: &Value) -> Vec<String> {
    let controls = step["enforcement"].as_object().expect("the schema says so").iter();
    controls.filter(|(_, state)| state["state"] == "not_enforced").map(|(control, _)| control.clone()).collect()
}

/// Asserts that a strict run is refused and a best-effort run passes, and returns the missing controls.
fn assert_degrades(env: &TestEnvironment, feature: &MissingFeature<'_>) -> Vec<String> {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, feature.filter_count)));
    assert_strict_is_refused(env, &repo, feature);
    let missing = assert_best_effort_passes(env, &repo, &wrapper_without(feature.wrapper_arguments));
    assert!(missing.contains(&feature.control.to_owned()), "{missing:?}");
    missing
}

fn assert_strict_is_refused(env: &TestEnvironment, repo: &Repo<'_>, feature: &MissingFeature<'_>) {
    let wrapper = wrapper_without(feature.wrapper_arguments);
    assert_strict_is_refused_through(env, repo, &wrapper, [feature.control, feature.hint]);
}

fn assert_strict_is_refused_through(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str], words: [&str; 2]) {
    let run = run_through(env, repo, wrapper, "strict").exits(5).prints_to_stderr(&words);
    let run = run.prints_to_stderr(&["hint:", "--sandbox=best-effort"]);
    assert!(repo.has_no_documents(), "part of the run is recorded\n{run}");
    let exec = ["exec", "--", "echo", "the command ran"];
    let ran = proctor_through(env, repo, wrapper, &exec)
        .exits(5)
        .prints_to_stderr(&words)
        .prints_to_stderr(&["--sandbox=best-effort"]);
    assert!(!ran.stdout.contains("the command ran"), "{ran}");
    let doctor = proctor_through(env, repo, wrapper, &["doctor"]).exits(5).prints(&words).prints(&["degraded"]);
    assert!(doctor.stdout.contains("not ready"), "{doctor}");
    proctor_through(env, repo, wrapper, &["doctor", "--sandbox", "best-effort"]).exits(0).prints(&words);
}

/// Asserts that a best-effort run passes, and that it reports and records the missing controls.
fn assert_best_effort_passes(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str]) -> Vec<String> {
    let run = run_through(env, repo, wrapper, "best-effort").exits(0).prints(&["passed"]);
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["sandbox"], "best_effort");
    assert_eq!((&evidence["tier"], &evidence["declared_tier"]), (&json!(2), &json!(1)));
    assert_eq!(evidence["tier_reasons"], json!(["control_not_enforced"]));
    assert_eq!(repo.last_run()["tier"], 2);
    let missing = assert_record_matches_observation(repo);
    missing.iter().for_each(|control| assert!(run.stdout.contains(control), "{control} is not shown\n{run}"));
    // With `--max-tier 1` the run does not pass.
    let arguments = ["run", "--changeset", CHANGESET, "--sandbox=best-effort", "--max-tier", "1"];
    proctor_through(env, repo, wrapper, &arguments).exits(5).prints(&["tier"]);
    let exec = ["exec", "--sandbox=best-effort", "--format", "json", "--", "true"];
    let exec = proctor_through(env, repo, wrapper, &exec).exits(0).prints_to_stderr(&["not enforced:"]);
    let record: Value = serde_json::from_str(&exec.stdout).unwrap_or_else(|error| panic!("{error}: {exec}"));
    assert_eq!((&record["sandbox"], &record["tier"]), (&json!("best_effort"), &json!(2)));
    missing
}

/// Nothing is removed, so all controls except control groups are enforced and observed.
fn complete_sandbox(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 0)));
    let strict = run_through(env, &repo, &[], "strict").exits(0);
    let missing = assert_record_matches_observation(&repo);
    assert!(missing.iter().all(|control| control == "cgroup"), "{missing:?}\n{strict}");
    assert_eq!(repo.evidence("verify.it")["sandbox"], "strict");
    assert_eq!(strict.stdout.contains("tier 2 (no cgroup)"), !missing.is_empty(), "{strict}");
    // Best-effort mode does not remove any control.
    run_through(env, &repo, &[], "best-effort").exits(0);
    assert_eq!(
        (assert_record_matches_observation(&repo), &repo.evidence("verify.it")["sandbox"]),
        (missing, &json!("best_effort"))
    );
}

fn lacks_seccomp(env: &TestEnvironment) {
    let feature = MissingFeature {
        wrapper_arguments: &["seccomp=ENOSYS"],
        filter_count: 1,
        control: "syscall_filter",
        hint: "seccomp",
    };
    assert!(assert_degrades(env, &feature).contains(&"keyring".to_owned()), "keys can be named by their numbers then");
}

fn lacks_landlock(env: &TestEnvironment) {
    let lacks = ["landlock_create_ruleset=ENOSYS"];
    assert_degrades(
        env,
        &MissingFeature { wrapper_arguments: &lacks, filter_count: 1, control: "landlock", hint: "lsm=" },
    );
}

/// In the host's network namespace, every process can connect to abstract sockets.
fn landlock_with_host_network(env: &TestEnvironment) {
    let spec = |filters| inspecting_spec(env, filters).with_default("network: allow");
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&spec(0)));
    run_through(env, &repo, &[], "strict").exits(0);
    assert!(
        !assert_record_matches_observation(&repo).contains(&"abstract_sockets".to_owned()),
        "this kernel has Landlock's scopes"
    );
    let repo = env.repo_at("without", &spec(1));
    let wrapper = wrapper_without(&["landlock_create_ruleset=ENOSYS"]);
    let config = write_operator_config(env, "may_miss = ['cgroup', 'landlock']\n");
    let exec = ["exec", "--config", &config, "--network", "allow", "--", "echo", "the command ran"];
    let exec = proctor_through(env, &repo, &wrapper, &exec).exits(5).prints_to_stderr(&["`abstract_sockets`"]);
    assert!(!exec.stdout.contains("the command ran"), "{exec}");
    run_through(env, &repo, &wrapper, "best-effort").exits(0).prints(&["abstract_sockets", "landlock"]);
    assert!(assert_record_matches_observation(&repo).contains(&"abstract_sockets".to_owned()));
}

fn lacks_disabled_landlock(env: &TestEnvironment) {
    let lacks = ["landlock_create_ruleset=EOPNOTSUPP"];
    assert_degrades(
        env,
        &MissingFeature { wrapper_arguments: &lacks, filter_count: 1, control: "landlock", hint: "lsm=" },
    );
}

fn lacks_landlock_domains(env: &TestEnvironment) {
    let lacks = ["landlock_restrict_self=E2BIG"];
    assert_degrades(
        env,
        &MissingFeature { wrapper_arguments: &lacks, filter_count: 1, control: "landlock", hint: "domains" },
    );
}

fn lacks_cgroup_namespaces(env: &TestEnvironment) {
    let lacks = ["unshare:0&0x2000000=EPERM"];
    assert_degrades(
        env,
        &MissingFeature { wrapper_arguments: &lacks, filter_count: 1, control: "cgroup_namespace", hint: "nesting" },
    );
}

fn lacks_own_host_name(env: &TestEnvironment) {
    let lacks = ["sethostname=EPERM"];
    assert_degrades(
        env,
        &MissingFeature { wrapper_arguments: &lacks, filter_count: 1, control: "uts_namespace", hint: "nesting" },
    );
}

/// A filter that refuses `keyctl` to us refuses it to the step too.
fn keyrings_not_required(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 1)));
    run_through(env, &repo, &wrapper_without(&["keyctl=EPERM"]), "strict").exits(0);
    assert_eq!(recorded_state(&repo, "keyring"), "enforced");
    assert_record_matches_observation(&repo);
}

fn lacks_clone3(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 1)));
    run_through(env, &repo, &wrapper_without(&["clone3=ENOSYS"]), "strict").exits(0);
    let missing = assert_record_matches_observation(&repo);
    assert!(missing.iter().all(|control| control == "cgroup"), "{missing:?}");
    let limit_mechanism = |control: &str| repo.step("it")["enforcement"][control]["mechanism"].to_string();
    let is_by_control_group = limit_mechanism("pids_limit").contains("cgroup");
    assert_eq!(
        is_by_control_group,
        missing.is_empty(),
        "a group that it is not in holds nothing: {}",
        limit_mechanism("pids_limit")
    );
}

/// Simulates a kernel whose overlayfs does not accept flags, in particular the flag that an ordinary user needs.
fn lacks_overlays(env: &TestEnvironment) {
    let feature = MissingFeature {
        wrapper_arguments: &["fsconfig:1@0=EINVAL"],
        filter_count: 1,
        control: "layer",
        hint: "overlayfs",
    };
    assert_eq!(
        assert_degrades(env, &feature).into_iter().filter(|control| control != "cgroup").count(),
        1,
        "nothing else"
    );
}

fn lacks_mount_setattr(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 1)));
    let run = run_through(env, &repo, &wrapper_without(&["mount_setattr=ENOSYS"]), "strict").exits(5);
    assert!(run.all_output().contains("hint:") && run.all_output().contains("5.12"), "{run}");
    assert!(repo.has_no_documents() || repo.step("it")["termination"]["kind"] == "not_started", "{run}");
}

const MASKED_PROC: [&str; 2] = ["mask:/proc/interrupts", "mask:/proc/timer_list"];

fn lacks_complete_proc(env: &TestEnvironment) {
    let feature = MissingFeature {
        wrapper_arguments: &MASKED_PROC,
        filter_count: 0,
        control: "private_proc",
        hint: "systempaths",
    };
    assert_degrades(env, &feature);
    assert_limits_count_only_the_step(env);
}

/// Limits apply to the step alone, even if `/proc` shows other processes.
fn assert_limits_count_only_the_step(env: &TestEnvironment) {
    let hold_memory =
        |mebibytes| format!("import time; held = b'x' * ({mebibytes} << 20); time.sleep(0.3); print('had it')");
    let repo = env.repo_at("sums", &TestSpec::from_script("true"));
    let limits = ["exec", "--sandbox=best-effort", "--memory", "100MiB", "--cpu-seconds", "60", "--"];
    for (program, code) in [(hold_memory(40), 0), ("import os\nos.fork()\n".to_owned() + &hold_memory(70), 1)] {
        let arguments = [&limits[..], &["python3", "-c", &program]].concat();
        let ran = proctor_through(env, &repo, &wrapper_without(&MASKED_PROC), &arguments).exits(code);
        assert_eq!(ran.stderr.contains("its limit"), code != 0, "{ran}");
    }
}

/// Only Landlock, seccomp and file modes separate the step from the host then.
fn lacks_namespaces_as_user(env: &TestEnvironment) {
    let hint = "max_user_namespaces";
    assert_namespaces_missing(
        env,
        &MissingFeature { wrapper_arguments: &["namespaces"], filter_count: 0, control: "user_namespace", hint },
    );
}

/// Simulates a container that refuses namespaces to root.
fn lacks_namespaces_as_root(env: &TestEnvironment) {
    assert_namespaces_missing(
        env,
        &MissingFeature {
            wrapper_arguments: &["unshare=EPERM"],
            filter_count: 1,
            control: "mount_namespace",
            hint: "nesting",
        },
    );
}

/// Simulates Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`. A program without a profile gets no user
/// namespace (23.10), or one in which it cannot mount (24.04). Both messages name the command that fixes it.
fn apparmor_refusal_names_fix(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    for lacks in [&["unshare:0&0x10000000=EACCES"][..], &["mount=EPERM", "fsopen=EPERM", "mount_setattr=EPERM"]] {
        let command = "proctor doctor --apparmor-profile | sudo tee /etc/apparmor.d/proctor-sandbox";
        assert_strict_is_refused_through(env, &repo, &wrapper_without(lacks), [command, "sudo apparmor_parser -r"]);
    }
}

fn assert_namespaces_missing(env: &TestEnvironment, feature: &MissingFeature<'_>) {
    let missing = assert_degrades(env, feature);
    for control in ["mount_namespace", "pid_namespace", "network_namespace", "layer", "private_proc"] {
        assert!(missing.contains(&control.to_owned()), "{control}: {missing:?}");
    }
}

fn runs_in_bubblewrap(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 0)));
    let doctor = proctor_through(env, &repo, &BUBBLEWRAP_WRAPPER, &["doctor"]);
    if doctor.code == Some(0) {
        // This bubblewrap command does not mask parts of `/proc`.
        run_through(env, &repo, &BUBBLEWRAP_WRAPPER, "strict").exits(0);
        assert_record_matches_observation(&repo);
        return;
    }
    assert_strict_is_refused_through(env, &repo, &BUBBLEWRAP_WRAPPER, ["private_proc", "systempaths"]);
    let missing = assert_best_effort_passes(env, &repo, &BUBBLEWRAP_WRAPPER);
    assert!(missing.contains(&"private_proc".to_owned()), "{missing:?}");
}

/// Without control groups a run has tier 2, unless the operator requires them.
fn lacks_control_group(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let doctor = repo.proctor(&["doctor", "--format", "json"]).exits(0);
    let doctor: Value = serde_json::from_str(&doctor.stdout).expect("a document");
    let has_groups = !doctor["control_groups"].is_null();
    assert_eq!(doctor["reach"], if has_groups { "full" } else { "full_without_cgroup" });
    repo.run().exits(0);
    let evidence = repo.evidence("verify.it");
    let (tier, reasons) = if has_groups { (1, json!([])) } else { (2, json!(["control_not_enforced"])) };
    assert_eq!((&evidence["tier"], &evidence["tier_reasons"]), (&json!(tier), &reasons));
    assert_eq!(recorded_state(&repo, "cgroup") == "enforced", has_groups);
    let config = write_operator_config(env, "may_miss = []\n");
    let demanding = repo.run_with(&["--config", &config]).exits(if has_groups { 0 } else { 5 });
    assert_eq!(demanding.stderr.contains("`cgroup`"), !has_groups, "{demanding}");
}

/// Removes the control groups even if the machine has them. Their limits are then enforced for each process and by PID
/// 1, and the record reports this.
fn lacks_control_group_mount(env: &TestEnvironment) {
    let wrapper = wrapper_without(&["cgroups"]);
    let step = inspecting_step(env, 0).with_field("limits: { memory: 512MiB, pids: 200 }");
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&spec_with_varying_output(step)));
    for mode in ["strict", "best-effort"] {
        run_through(env, &repo, &wrapper, mode).exits(0).prints(&["tier 2 (no cgroup)"]);
        assert_eq!(assert_record_matches_observation(&repo), ["cgroup"], "{mode}");
        let evidence = repo.evidence("verify.it");
        assert_eq!(evidence["sandbox"], mode.replace('-', "_"));
        let expected = (&json!(2), &json!(["control_not_enforced"]));
        assert_eq!((&evidence["tier"], &evidence["tier_reasons"]), expected, "{mode}");
        let step = repo.step("it");
        let cgroup = &step["enforcement"]["cgroup"];
        assert!(cgroup["reason"].to_string().contains("no mount") && cgroup["hint"].is_string(), "{cgroup:#}");
        for (control, by) in [("memory_limit", ["RLIMIT_DATA", "PID 1"]), ("pids_limit", ["RLIMIT_NPROC", "200"])] {
            let state = &step["enforcement"][control];
            assert_eq!(state["state"], "enforced");
            let mechanism = state["mechanism"].to_string();
            assert!(
                by.iter().all(|word| mechanism.contains(word)) && !mechanism.contains("cgroup"),
                "{control}: {mechanism}"
            );
        }
        assert_eq!(step["resources"]["memory_peak_kib"], Value::Null, "nobody counted it");
    }
    let doctor = proctor_through(env, &repo, &wrapper, &["doctor", "--format", "json"]).exits(0);
    let doctor: Value = serde_json::from_str(&doctor.stdout).expect("a document");
    assert_eq!((&doctor["reach"], &doctor["control_groups"]), (&json!("full_without_cgroup"), &Value::Null));
    let config = write_operator_config(env, "may_miss = []\n");
    let demanding = ["exec", "--config", &config, "--", "echo", "the command ran"];
    let demanding =
        proctor_through(env, &repo, &wrapper, &demanding).exits(5).prints_to_stderr(&["`cgroup`", "mount cgroup v2"]);
    assert!(!demanding.stdout.contains("the command ran"), "{demanding}");
    assert_limits_without_control_group(env, &repo, &wrapper);
}

/// Checks the replacement limits: on the memory of all processes together, and on the number of processes.
fn assert_limits_without_control_group(env: &TestEnvironment, repo: &Repo<'_>, wrapper: &[&str]) {
    let hoard = "import os, signal\nos.fork()\nos.fork()\nheld = b'x' * (60 << 20)\nsignal.pause()";
    let hoard = ["exec", "--memory", "100MiB", "--", "python3", "-c", hoard];
    proctor_through(env, repo, wrapper, &hoard).exits(1).prints_to_stderr(&["hit its limit of 100 MiB memory"]);
    let forks = "import os, signal\ntry:\n  while os.fork(): pass\n  signal.pause()\nexcept OSError: print('bounded')";
    let forks = ["exec", "--pids", "40", "--", "python3", "-c", forks];
    proctor_through(env, repo, wrapper, &forks).exits(0).prints(&["bounded"]);
}

fn write_operator_config(env: &TestEnvironment, text: &str) -> String {
    let path = env.root().join("proctord.toml");
    machine::write(&path, text);
    machine::make_file_public(&path);
    path.to_str().expect("UTF-8").to_owned()
}

/// A missing control does not change the outcome of a step.
fn outcomes_unchanged(env: &TestEnvironment) {
    let wrapper = wrapper_without(&["landlock_create_ruleset=ENOSYS"]);
    let cases = [("exit 7", 1, "failed"), ("echo x >> README.md", 3, "drifted"), ("sleep 300", 4, "timed_out")];
    for (index, (script, code, outcome)) in cases.into_iter().enumerate() {
        let step =
            TestStep::sh("it", script).with_field(if code == 4 { "timeout_ms: 300" } else { "timeout_ms: 60000" });
        let repo = env.repo_at(&format!("repo{index}"), &TestSpec::from_steps([step]));
        run_through(env, &repo, &wrapper, "best-effort").exits(code);
        assert_eq!(repo.step("it")["outcome"], outcome);
        assert_eq!(recorded_state(&repo, "landlock"), "not_enforced");
    }
}

/// Without the syscall filter, keys are reachable. An operator that only tolerates the missing filter has not
/// tolerated that.
fn coupled_control_required(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 1)));
    let config = write_operator_config(env, "may_miss = ['cgroup', 'syscall_filter', 'network_namespace']\n");
    let wrapper = wrapper_without(&["seccomp=ENOSYS"]);
    let arguments = ["run", "--changeset", CHANGESET, "--config", &config];
    proctor_through(env, &repo, &wrapper, &arguments).exits(5).prints_to_stderr(&["`keyring`"]);
    let exec = ["exec", "--config", &config, "--", "echo", "the command ran"];
    let exec = proctor_through(env, &repo, &wrapper, &exec).exits(5).prints_to_stderr(&["`keyring`"]);
    assert!(!exec.stdout.contains("the command ran"), "{exec}");
}

fn operator_forbids_best_effort(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let config = write_operator_config(env, "allow_best_effort = false\n");
    for words in [&["run"][..], &["exec"], &["doctor"]] {
        let command: &[&str] = if words == ["exec"] { &["--", "true"] } else { &[] };
        let arguments = [words, &["--sandbox=best-effort", "--config", &config], command].concat();
        repo.proctor(&arguments).exits(2).prints_to_stderr(&["--sandbox=best-effort", "allow_best_effort", "hint:"]);
        repo.proctor(&[words, &["--config", &config], command].concat()).exits(0);
    }
}

fn operator_tolerates_missing_controls(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 1)));
    let wrapper = wrapper_without(&["landlock_create_ruleset=ENOSYS"]);
    let arguments = |config| ["run", "--changeset", CHANGESET, "--config", config];
    let allowed = write_operator_config(env, "may_miss = ['cgroup', 'landlock']\n");
    proctor_through(env, &repo, &wrapper, &arguments(&allowed)).exits(0).prints(&["no landlock"]);
    let evidence = repo.evidence("verify.it");
    assert_eq!((&evidence["sandbox"], &evidence["tier"]), (&json!("strict"), &json!(2)));
    assert_record_matches_observation(&repo);
    let unknown = write_operator_config(env, "may_miss = ['cgroup', 'firewall']\n");
    let run = proctor_through(env, &repo, &wrapper, &arguments(&unknown)).exits(2);
    assert!(run.all_output().contains("firewall") && run.all_output().contains("landlock"), "{run}");
}

fn spec_cannot_lower_sandbox(env: &TestEnvironment) {
    let step = TestStep::sh("it", "true").with_field("sandbox: best_effort");
    let specs = [
        TestSpec::from_script("true").with_top_level("sandbox: best_effort"),
        TestSpec::from_script("true").with_default("sandbox: best_effort"),
        TestSpec::from_steps([step]),
    ];
    for (index, spec) in specs.iter().enumerate() {
        let repo = env.repo_at(&format!("repo{index}"), spec);
        let run = repo.run().exits(2);
        assert!(run.all_output().contains("`sandbox`"), "{run}");
        assert!(repo.has_no_documents());
    }
}

/// A stored trial is only trusted if nothing was missing, and even then each step is refused by the missing control
/// itself. After a fix of the machine, the next run detects the control without further action.
fn outdated_probe_is_not_recorded(env: &TestEnvironment) {
    let (_outside, repo) = (listen_on_abstract_socket(env), env.repo(&inspecting_spec(env, 0)));
    let wrapper = wrapper_without(&["seccomp=ENOSYS"]);
    run_through(env, &repo, &[], "strict").exits(0);
    let probe_file = env.state_dir().join("probe.json");
    assert_eq!(probe_file.metadata().expect("a trial was kept").permissions().mode() & 0o777, 0o600);
    run_through(env, &repo, &wrapper, "strict").exits(5).prints(&["syscall_filter"]);
    assert_eq!(repo.step("it")["termination"]["kind"], "not_started");
    proctor_through(env, &repo, &wrapper, &["doctor"]).exits(5);
    run_through(env, &repo, &wrapper, "strict").exits(5).prints_to_stderr(&["syscall_filter", "nothing ran"]);
    run_through(env, &repo, &[], "strict").exits(0);
    assert_record_matches_observation(&repo);
    machine::write(&probe_file, "{");
    run_through(env, &repo, &[], "strict").exits(0);
}
