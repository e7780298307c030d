//! Tests the commands that are shown for each cause.

use super::*;

fn finding(control: Control) -> FindingRecord {
    FindingRecord {
        control: Some(control),
        message: "cannot do it: EPERM\nrm -rf /".to_owned(),
        hint: "do\nsomething".to_owned(),
        refuses: true,
    }
}

fn places() -> Places {
    Places { proctor: "/usr/bin/proctor".to_owned(), repo: "'/srv/a b'".to_owned() }
}

/// Returns a machine on which nothing is missing.
fn sound() -> Machine {
    Machine {
        family: Family::Debian,
        systemd: true,
        uid: 1000,
        userns_clone: Some(1),
        apparmor_restricts: Some(0),
        modules: ["capability", "landlock", "yama"].map(str::to_owned).to_vec(),
        has_landlock: Some(true),
        has_overlay: true,
        has_unified: true,
        delegated: Some(true),
        has_bus: true,
        ..Machine::default()
    }
}

fn shown(controls: &[Control], machine: &Machine) -> String {
    let findings: Vec<FindingRecord> = controls.iter().copied().map(finding).collect();
    render(&fixes(&findings, machine, &places()))
}

#[test]
fn each_cause_has_its_commands() {
    let off = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let old = ["capability", "yama", "apparmor"].map(str::to_owned).to_vec();
    let namespaces = [Control::UserNamespace, Control::PidNamespace];
    let machines: [(&str, &[Control], Machine); 15] = [
        ("no namespaces", &namespaces, Machine { no_namespaces: off(&["user.max_user_namespaces"]), ..sound() }),
        ("userns_clone", &namespaces, Machine { userns_clone: Some(0), ..sound() }),
        ("apparmor", &namespaces, Machine { apparmor_restricts: Some(1), ..sound() }),
        ("container", &[Control::UserNamespace, Control::PrivateProc], Machine { container: true, ..sound() }),
        ("landlock, debian", &[Control::Landlock], Machine { modules: old.clone(), ..sound() }),
        ("landlock, fedora", &[Control::Landlock], Machine { modules: old.clone(), family: Family::Fedora, ..sound() }),
        ("landlock, other", &[Control::Landlock], Machine { modules: old, family: Family::Other, ..sound() }),
        ("landlock, kernel", &[Control::Landlock], Machine { has_landlock: Some(false), ..sound() }),
        ("overlay", &[Control::Layer], Machine { has_overlay: false, ..sound() }),
        ("cgroup v1, root", &[Control::Cgroup], Machine { has_unified: false, root: true, ..sound() }),
        ("cgroup, no systemd", &[Control::Cgroup], Machine { has_unified: false, systemd: false, ..sound() }),
        ("cgroup, undelegated", &[Control::Cgroup], Machine { delegated: Some(false), ..sound() }),
        ("cgroup, no bus", &[Control::Cgroup], Machine { delegated: None, has_bus: false, ..sound() }),
        ("cgroup, scope", &[Control::Cgroup], Machine { has_user_unit: true, ..sound() }),
        ("unknown", &[Control::Keyring], sound()),
    ];
    let text: String =
        machines.iter().map(|(name, controls, machine)| format!("== {name}\n{}\n", shown(controls, machine))).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn a_cause_is_told_once_and_what_is_not_a_command_is_a_comment() {
    let text = shown(&[Control::UserNamespace, Control::PidNamespace, Control::Keyring], &sound());
    let is_command = |line: &&str| !line.is_empty() && !line.starts_with('#');
    assert_eq!(text.lines().filter(is_command).count(), 0, "{text}");
    assert!(text.contains("# user_namespace, pid_namespace, keyring: cannot do it: EPERM\\nrm -rf /\n"), "{text}");
}

#[test]
fn what_is_made_in_namespaces_comes_with_them() {
    let controls =
        [Control::UserNamespace, Control::Layer, Control::GitReadOnly, Control::DiskLimit, Control::Landlock];
    let text = shown(&controls, &Machine { userns_clone: Some(0), has_overlay: false, ..sound() });
    assert!(text.contains("\n# user_namespace, layer, git_read_only, disk_limit: `kernel."), "{text}");
    assert!(!text.contains("modprobe") && text.contains("\n# landlock: "), "{text}");
}

#[test]
fn owners_are_mended_where_the_repository_is() {
    let idmapped = FindingRecord { message: "an idmapped mount: EINVAL".to_owned(), ..finding(Control::UserNamespace) };
    let text = render(&fixes(&[idmapped], &Machine { root: true, ..sound() }, &places()));
    assert!(text.contains("\nchown -R USER: '/srv/a b'\n"), "{text}");
}

#[test]
fn root_needs_no_sudo() {
    let machine = Machine { has_overlay: false, root: true, ..sound() };
    assert!(!shown(&[Control::Layer], &machine).contains("sudo"));
    assert!(render(&[]).starts_with("# nothing is missing"));
}
