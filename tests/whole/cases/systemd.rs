//! Tests the units in `systemd/` in a booted systemd, in a container with only the system's own programs. `booted.py`
//! contains the checks that run in the container.

use std::path::Path;
use std::process::Command;

use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::RunningProcess;
use crate::{binaries, machine, schemas};

pub(super) const CASES: &[CaseDefinition] =
    &[case("systemd::units_work_in_a_booted_system", units_work_in_booted_system).needs(NEEDS).long()];

const NEEDS: &[Needs] = &[
    Needs::Root,
    Needs::Sandbox,
    Needs::Program("python3"),
    Needs::Program("git"),
    Needs::WorkingCommand(BOOT_COMMAND),
];
/// Boots a container and shuts it down, which the machine must support.
const BOOT_COMMAND: &[&str] = &[
    "timeout",
    "--kill-after=5",
    "60",
    "systemd-nspawn",
    "--quiet",
    "--register=no",
    "--keep-unit",
    "--volatile=yes",
    "--machine=proctor-test",
    "--directory=/",
    "--boot",
    "--console=pipe",
    "--private-network",
    "systemd.unit=poweroff.target",
];
/// Time limit for the container in seconds. It takes about 12.
const CONTAINER_TIMEOUT_SECS: &str = "100";
/// Number of checks in the container.
const CHECK_COUNT: usize = 50;

/// The unit that starts the checks, and then shuts down the container.
const CHECKS_UNIT: &str = "[Unit]\nAfter=multi-user.target\nDefaultDependencies=no\n\
    [Service]\nType=oneshot\nExecStart=/usr/bin/python3 /drive.py /out/report\n\
    StandardError=file:/out/stderr\nExecStopPost=/bin/systemctl --no-block poweroff\n";
/// Changes to the units: the paths of the programs, a shorter watchdog interval, and a secret that must not be
/// logged.
const UNIT_OVERRIDES: &str = "[Service]\nExecStart=\nExecStart=/opt/proctor/bin/proctord\n\
    ExecReload=\nExecReload=/bin/kill -HUP $MAINPID\nExecReload=/opt/proctor/bin/proctord --check-config\nWatchdogSec=3\n\
    Environment=API_TOKEN=hunter2-of-the-daemon\n";
/// Changes to a user's manager: no PAM, because its files are missing in the container.
const USER_MANAGER_OVERRIDES: &str = "[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n";

fn units_work_in_booted_system(env: &TestEnvironment) {
    for (name, text) in [
        ("drive.service", CHECKS_UNIT),
        ("here.conf", UNIT_OVERRIDES),
        ("manager.conf", USER_MANAGER_OVERRIDES),
        ("out/report", ""),
    ] {
        machine::write(&env.root().join(name), text);
    }
    let finished = RunningProcess::start(container_command(env)).wait();
    let read = |name: &str| std::fs::read_to_string(env.root().join(name)).unwrap_or_default();
    let report = format!("{}\n{}\n{finished}", read("out/report"), read("out/stderr"));
    let failed: Vec<&str> = report.lines().filter(|line| line.starts_with("FAILED ")).collect();
    assert!(failed.is_empty() && report.lines().any(|line| line == "done"), "{failed:#?}\n{report}");
    assert_eq!(report.lines().filter(|line| line.starts_with("ok ")).count(), CHECK_COUNT, "{report}");
}

/// Returns the command for a container that is as close to a real machine as possible: with all capabilities, its own
/// network, and Landlock's system calls.
fn container_command(env: &TestEnvironment) -> Command {
    let mut command = machine::command(BOOT_COMMAND[0]);
    command
        .args([BOOT_COMMAND[1], CONTAINER_TIMEOUT_SECS])
        .args(&BOOT_COMMAND[3..BOOT_COMMAND.len() - 1])
        .arg("--capability=all");
    for call in ["create_ruleset", "add_rule", "restrict_self"] {
        command.arg(format!("--system-call-filter=landlock_{call}"));
    }
    let root = env.root();
    command.arg(format!("--bind={}:/out", root.join("out").display()));
    let programs = binaries::public_program("proctord");
    let tests = schemas::workspace_root().join("tests/whole");
    let systemd = schemas::workspace_root().join("systemd");
    let etc = "/etc/systemd";
    for (source, target) in [
        (programs.parent().expect("a directory").to_owned(), "/opt/proctor/bin".to_owned()),
        (tests.join("booted.py"), "/drive.py".to_owned()),
        (root.join("drive.service"), format!("{etc}/system/drive.service")),
        (systemd.join("system/proctord.service"), format!("{etc}/system/proctord.service")),
        (systemd.join("system/proctord.socket"), format!("{etc}/system/proctord.socket")),
        (systemd.join("user/proctord.service"), format!("{etc}/user/proctord.service")),
        (systemd.join("user/proctord.socket"), format!("{etc}/user/proctord.socket")),
        (root.join("here.conf"), format!("{etc}/system/proctord.service.d/here.conf")),
        (root.join("here.conf"), format!("{etc}/user/proctord.service.d/here.conf")),
        (root.join("manager.conf"), format!("{etc}/system/user@.service.d/here.conf")),
        (systemd.join("sysusers.d/proctor.conf"), "/etc/sysusers.d/proctor.conf".to_owned()),
        (systemd.join("tmpfiles.d/proctor.conf"), "/etc/tmpfiles.d/proctor.conf".to_owned()),
    ] {
        command.arg(read_only_bind(&source, &target));
    }
    command.args(["systemd.unit=multi-user.target", "systemd.wants=drive.service"]);
    command
}

fn read_only_bind(source: &Path, target: &str) -> String {
    format!("--bind-ro={}:{target}", source.display())
}
