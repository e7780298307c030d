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

fn test_paths() -> ShellPaths {
    ShellPaths { proctor: "/usr/bin/proctor".to_owned(), repo: "'/srv/a b'".to_owned() }
}

/// Returns a machine on which nothing is missing.
fn sound_machine() -> MachineFacts {
    MachineFacts {
        family: DistroFamily::Debian,
        has_systemd: true,
        uid: 1000,
        userns_clone: Some(1),
        apparmor_restricts: Some(0),
        security_modules: ["capability", "landlock", "yama"].map(str::to_owned).to_vec(),
        has_landlock: Some(true),
        has_overlay: true,
        has_cgroup_v2: true,
        has_delegation: Some(true),
        has_bus: true,
        ..MachineFacts::default()
    }
}

fn rendered_fixes(controls: &[Control], machine: &MachineFacts) -> String {
    let findings: Vec<FindingRecord> = controls.iter().copied().map(finding).collect();
    render(&fixes(&findings, machine, &test_paths()))
}

#[test]
fn each_cause_has_its_commands() {
    let off = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let old = ["capability", "yama", "apparmor"].map(str::to_owned).to_vec();
    let namespaces = [Control::UserNamespace, Control::PidNamespace];
    let machines: [(&str, &[Control], MachineFacts); 15] = [
        (
            "no namespaces",
            &namespaces,
            MachineFacts { disabled_namespaces: off(&["user.max_user_namespaces"]), ..sound_machine() },
        ),
        ("userns_clone", &namespaces, MachineFacts { userns_clone: Some(0), ..sound_machine() }),
        ("apparmor", &namespaces, MachineFacts { apparmor_restricts: Some(1), ..sound_machine() }),
        (
            "container",
            &[Control::UserNamespace, Control::PrivateProc],
            MachineFacts { is_container: true, ..sound_machine() },
        ),
        ("landlock, debian", &[Control::Landlock], MachineFacts { security_modules: old.clone(), ..sound_machine() }),
        (
            "landlock, fedora",
            &[Control::Landlock],
            MachineFacts { security_modules: old.clone(), family: DistroFamily::Fedora, ..sound_machine() },
        ),
        (
            "landlock, other",
            &[Control::Landlock],
            MachineFacts { security_modules: old, family: DistroFamily::Other, ..sound_machine() },
        ),
        ("landlock, kernel", &[Control::Landlock], MachineFacts { has_landlock: Some(false), ..sound_machine() }),
        ("overlay", &[Control::Layer], MachineFacts { has_overlay: false, ..sound_machine() }),
        (
            "cgroup v1, root",
            &[Control::Cgroup],
            MachineFacts { has_cgroup_v2: false, is_root: true, ..sound_machine() },
        ),
        (
            "cgroup, no systemd",
            &[Control::Cgroup],
            MachineFacts { has_cgroup_v2: false, has_systemd: false, ..sound_machine() },
        ),
        ("cgroup, undelegated", &[Control::Cgroup], MachineFacts { has_delegation: Some(false), ..sound_machine() }),
        (
            "cgroup, no bus",
            &[Control::Cgroup],
            MachineFacts { has_delegation: None, has_bus: false, ..sound_machine() },
        ),
        ("cgroup, scope", &[Control::Cgroup], MachineFacts { has_user_unit: true, ..sound_machine() }),
        ("unknown", &[Control::Keyring], sound_machine()),
    ];
    let text: String = machines
        .iter()
        .map(|(name, controls, machine)| format!("== {name}\n{}\n", rendered_fixes(controls, machine)))
        .collect();
    insta::assert_snapshot!(text);
}

#[test]
fn each_cause_appears_once_and_other_text_is_a_comment() {
    let text = rendered_fixes(&[Control::UserNamespace, Control::PidNamespace, Control::Keyring], &sound_machine());
    let is_command = |line: &&str| !line.is_empty() && !line.starts_with('#');
    assert_eq!(text.lines().filter(is_command).count(), 0, "{text}");
    assert!(text.contains("# user_namespace, pid_namespace, keyring: cannot do it: EPERM\\nrm -rf /\n"), "{text}");
}

#[test]
fn controls_inside_namespaces_share_their_fix() {
    let controls =
        [Control::UserNamespace, Control::Layer, Control::GitReadOnly, Control::DiskLimit, Control::Landlock];
    let text =
        rendered_fixes(&controls, &MachineFacts { userns_clone: Some(0), has_overlay: false, ..sound_machine() });
    assert!(text.contains("\n# user_namespace, layer, git_read_only, disk_limit: `kernel."), "{text}");
    assert!(!text.contains("modprobe") && text.contains("\n# landlock: "), "{text}");
}

#[test]
fn owner_fix_names_the_repository() {
    let idmapped = FindingRecord { message: "an idmapped mount: EINVAL".to_owned(), ..finding(Control::UserNamespace) };
    let text = render(&fixes(&[idmapped], &MachineFacts { is_root: true, ..sound_machine() }, &test_paths()));
    assert!(text.contains("\nchown -R USER: '/srv/a b'\n"), "{text}");
}

#[test]
fn root_needs_no_sudo() {
    let machine = MachineFacts { has_overlay: false, is_root: true, ..sound_machine() };
    assert!(!rendered_fixes(&[Control::Layer], &machine).contains("sudo"));
    assert!(render(&[]).starts_with("# nothing is missing"));
}
