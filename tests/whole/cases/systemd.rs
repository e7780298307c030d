//! Tests the units in `systemd/` in a booted systemd, in a container with only the system's own programs. `booted.py`
//! contains the checks that run in the container.

use std::path::Path;
use std::process::Command;

use crate::environment::TestEnvironment;
use crate::needs::{Case, Needs, case};
use crate::process::Running;
use crate::{binaries, machine, schemas};

pub(super) const CASES: &[Case] = &[case("systemd::the_units_hold_in_a_booted_system", booted).needs(NEEDS)];

const NEEDS: &[Needs] =
    &[Needs::Root, Needs::Sandbox, Needs::Program("python3"), Needs::Program("git"), Needs::Works(BOOT)];
/// Boots a container and shuts it down, which the machine must support.
const BOOT: &[&str] = &[
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
const BOUND: &str = "100";
/// Number of checks in the container.
const LOOKED_AT: usize = 50;

/// The unit that starts the checks, and then shuts down the container.
const DRIVE: &str = "[Unit]\nAfter=multi-user.target\nDefaultDependencies=no\n\
    [Service]\nType=oneshot\nExecStart=/usr/bin/python3 /drive.py /out/report\n\
    StandardError=file:/out/stderr\nExecStopPost=/bin/systemctl --no-block poweroff\n";
/// Changes to the units: the paths of the programs, a shorter watchdog interval, and a secret that must not be
/// logged.
const HERE: &str = "[Service]\nExecStart=\nExecStart=/opt/proctor/bin/proctord\n\
    ExecReload=\nExecReload=/bin/kill -HUP $MAINPID\nExecReload=/opt/proctor/bin/proctord --check-config\nWatchdogSec=3\n\
    Environment=API_TOKEN=hunter2-of-the-daemon\n";
/// Changes to a user's manager: no PAM, because its files are missing in the container.
const MANAGER: &str = "[Service]\nPAMName=\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n";

fn booted(env: &TestEnvironment) {
    for (name, text) in [("drive.service", DRIVE), ("here.conf", HERE), ("manager.conf", MANAGER), ("out/report", "")] {
        machine::write(&env.root().join(name), text);
    }
    let finished = Running::start(container(env)).wait();
    let read = |name: &str| std::fs::read_to_string(env.root().join(name)).unwrap_or_default();
    let report = format!("{}\n{}\n{finished}", read("out/report"), read("out/stderr"));
    let failed: Vec<&str> = report.lines().filter(|line| line.starts_with("FAILED ")).collect();
    assert!(failed.is_empty() && report.lines().any(|line| line == "done"), "{failed:#?}\n{report}");
    assert_eq!(report.lines().filter(|line| line.starts_with("ok ")).count(), LOOKED_AT, "{report}");
}

/// Returns the command for a container that is as close to a real machine as possible: with all capabilities, its own
/// network, and Landlock's system calls.
fn container(env: &TestEnvironment) -> Command {
    let mut command = machine::command(BOOT[0]);
    command.args([BOOT[1], BOUND]).args(&BOOT[3..BOOT.len() - 1]).arg("--capability=all");
    for call in ["create_ruleset", "add_rule", "restrict_self"] {
        command.arg(format!("--system-call-filter=landlock_{call}"));
    }
    let root = env.root();
    command.arg(format!("--bind={}:/out", root.join("out").display()));
    let programs = binaries::for_all("proctord");
    let tests = schemas::project().join("tests/whole");
    let systemd = schemas::project().join("systemd");
    let etc = "/etc/systemd";
    for (source, place) in [
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
        command.arg(bind(&source, &place));
    }
    command.args(["systemd.unit=multi-user.target", "systemd.wants=drive.service"]);
    command
}

fn bind(source: &Path, place: &str) -> String {
    format!("--bind-ro={}:{place}", source.display())
}
