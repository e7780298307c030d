//! Tests real sandboxes with programs that misbehave on purpose, in three roles: root over root's repository, root
//! over another user's, and an ordinary user over their own.
//!
//! The tests that can run are determined by trial at the start. On a machine (or in a sandbox) that refuses
//! namespaces, tests are ignored, and their names say why.
#![expect(clippy::disallowed_methods, reason = "trials build their world with plain files")]

mod bench;
mod caches;
mod leaks;
mod memory;
mod plain;
mod pool;
mod served;
mod shown;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use bench::{Bench, Listed, Role, Step, line, until_closed};
use caches::cache;
use libtest_mimic::{Arguments, Failed};
use nix::mount::MsFlags;
use proctor_core::enforcement::{Control, ControlState};
use proctor_core::outcome::{LimitKind, StartFault};
use proctor_core::plan::{Limit, Network};
use proctor_sandbox::{GitDirs, Policy, Report, Rights, StepUser, ToolKind, ToolMount, WaitStatus, doctor};

/// Lists each check with the controls that it needs. It runs in every role that claims these controls.
macro_rules! checks {
    ($($check:path $(: $($control:ident),+)?;)*) => {
        &[$((stringify!($check), &[$($(Control::$control),+)?], $check)),*]
    };
}

const CHECKS: &[Listed] = checks![
    exit_code_and_signal_pass_through;
    writes_land_in_the_layer;
    the_next_step_sees_the_layer;
    attempts_at_once_do_not_see_each_other;
    git_is_read_only: MountNamespace;
    a_linked_worktree_keeps_its_common_directory: MountNamespace;
    the_network_is_denied_and_loopback_works: NetworkNamespace;
    the_network_is_the_hosts_where_it_is_allowed;
    homes_and_state_are_hidden: HiddenPaths;
    the_home_is_empty_and_writable: MountNamespace;
    the_root_is_read_only: ReadOnlyRoot, PrivateTmp;
    the_environment_is_exactly_the_policys;
    nothing_of_the_callers_environment_is_readable: Landlock;
    there_are_no_capabilities_and_no_new_privileges: PidNamespace;
    the_step_is_nobody_else_on_the_host;
    dev_and_proc_are_its_own: PrivateProc;
    protects_the_times_of_host_devices: MountNamespace;
    isolates_per_user_counts_of_two_runs: MountNamespace;
    a_terminal_can_be_opened: MountNamespace;
    the_accounts_are_synthetic: MountNamespace;
    stdio_can_be_opened_again;
    signals_are_as_in_a_fresh_shell;
    tools_are_shown_and_credentials_masked: MountNamespace;
    shown::a_tool_behind_a_closed_directory_is_passed_over: MountNamespace;
    shown::a_link_that_was_planted_on_the_way_to_a_tool_is_not_followed: MountNamespace;
    shown::a_mask_is_not_turned_aside_by_a_link: MountNamespace;
    caches::caches_outlive_the_step;
    caches::a_cache_is_never_mounted_through_a_link;
    caches::writes_to_a_cache_of_layers_leave_the_layers_as_they_are: MountNamespace;
    limits_hold: PidsLimit;
    memory::bounds_buffers_of_sockets: NetworkNamespace, MemoryLimit;
    memory::bounds_memory_where_the_plan_does_not: MemoryLimit;
    scratch_directories_hold_a_bounded_number_of_files: DiskLimit;
    a_full_layer_is_an_error_of_the_step: DiskLimit;
    kill_ends_everything;
    a_killed_helper_leaves_nothing: PidNamespace;
    a_stopped_helper_does_not_hold_us: PidNamespace;
    terminate_reaches_everybody;
    killing_early_is_safe;
    the_end_of_the_command_is_the_end_of_all;
    a_dead_parent_leaves_nothing;
    leaks::reports_processes_that_a_command_leaves_behind;
    leaks::reports_a_daemon_and_not_its_zombies;
    leaks::does_not_report_processes_that_are_ending;
    leaks::does_not_look_for_processes_that_the_plan_ignores;
    leaks::escapes_the_names_of_processes_that_are_left;
    leaks::bounds_the_count_of_processes_that_are_left: PidNamespace;
    leaks::reports_hostile_processes_that_are_left;
    leaks::processes_that_are_left_cannot_hide_from_pid_1: PidNamespace;
    a_missing_program_is_reported;
    a_missing_workdir_is_reported;
    a_workdir_outside_of_the_repository_is_reported;
    a_mount_in_the_repository_is_refused: MountNamespace;
    a_repository_that_cannot_be_mapped_is_refused: MountNamespace;
    without_an_overlay_a_copy_stands_at_its_place: MountNamespace;
    a_home_in_the_repository_is_refused;
    what_took_the_repositorys_place_is_not_opened;
    a_path_that_became_a_link_is_refused: MountNamespace;
    no_process_is_left_and_the_space_stays;
    a_prepared_sandbox_serves_one_command: MountNamespace;
    a_prepared_sandbox_serves_over_any_layers: MountNamespace;
    pool::eight_wait_at_most_and_the_oldest_makes_room: MountNamespace;
    pool::those_that_nobody_asks_for_go: MountNamespace;
    pool::one_that_has_died_is_replaced: MountNamespace;
    served::a_command_behind_another_finds_what_the_first_one_found: MountNamespace, Landlock;
    served::each_command_is_told_of_as_if_it_were_alone: MountNamespace;
    served::whatever_is_left_ends_the_sandbox: MountNamespace;
    served::each_command_is_charged_with_its_own_processes_alone: MountNamespace;
    served::refuses_posix_queues_and_leaves_none: SyscallFilter;
    served::pid_1_cannot_be_signalled: Landlock, MountNamespace;
    served::a_sandbox_without_all_of_its_controls_serves_once: MountNamespace;
    served::where_each_command_has_its_own_none_serves_on: MountNamespace;
    served::what_a_cache_keeps_is_no_leaving: MountNamespace;
    served::a_command_over_other_layers_gets_another_sandbox: MountNamespace;
    served::a_later_command_is_ended_like_a_first_one: MountNamespace;
    served::one_that_dies_while_it_waits_is_replaced: MountNamespace;
    a_discarded_layer_gives_its_room_back;
    a_layer_of_any_depth_can_be_discarded;
    every_control_is_accounted_for;
    the_doctor_finds_nothing_missing;
];

/// Checks that are specific to sandboxes without namespaces.
const PLAIN_CHECKS: &[Listed] = checks![
    plain::the_real_tree_and_the_host_are_out_of_reach: Landlock;
    plain::whatever_changes_lands_in_the_layer;
    plain::a_change_that_hides_itself_is_found;
    plain::the_git_directory_is_a_copy_that_no_layer_holds;
    plain::a_linked_worktree_reads_its_common_directory;
    plain::sockets_of_the_internet_are_refused: SyscallFilter;
    plain::tools_are_linked_and_credentials_are_not_read: Landlock;
    plain::sums_of_all_processes_are_bounded;
    plain::a_killed_helper_is_doubted_and_leaves_nothing;
    plain::twenty_stubborn_grandchildren_end;
    plain::what_a_dead_owner_left_is_swept;
    plain::nobody_gets_a_sandbox_with_less_unasked;
];

fn main() -> ExitCode {
    let all: Vec<Listed> = [CHECKS, PLAIN_CHECKS].concat();
    if let Some(code) = bench::play_a_part(&all) {
        return code;
    }
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (role, lacks) in bench::roles() {
        let special = if role.is_plain() { PLAIN_CHECKS } else { &[] };
        trials.extend([CHECKS, special].concat().iter().map(|(name, needs, _)| role.trial(name, needs, &lacks)));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn exit_code_and_signal_pass_through(bench: &Bench) -> Result<(), Failed> {
    for (script, status) in [("exit 0", WaitStatus::Code(0)), ("exit 7", WaitStatus::Code(7))] {
        assert_eq!(bench.run(&Step::sh(script))?.status(), Some(status), "{script}");
    }
    let ran = bench.run(&Step::sh("kill -SEGV $$"))?;
    assert_eq!(ran.status(), Some(WaitStatus::Signal(11)), "{ran:?}");
    Ok(())
}

const WRITE: &str = "echo new > new.txt && echo changed >> tracked.txt && rm src/lib.rs && cat tracked.txt";

fn writes_land_in_the_layer(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh(WRITE))?;
    assert_eq!(ran.printed(), "as it was\nchanged");
    assert_eq!(fs::read_to_string(bench.repo.join("tracked.txt"))?, "as it was\n");
    assert!(!bench.repo.join("new.txt").exists() && bench.repo.join("src/lib.rs").exists());
    assert_eq!(bench::names(ran.layer.upper())?, ["new.txt", "src", "tracked.txt"]);
    assert_eq!(bench::content(ran.layer.upper(), "new.txt")?, "new\n");
    let untouched = bench.run(&Step::sh("cat tracked.txt"))?;
    assert_eq!(bench::names(untouched.layer.upper())?, [""; 0]);
    Ok(())
}

fn the_next_step_sees_the_layer(bench: &Bench) -> Result<(), Failed> {
    let first = bench.run(&Step::sh(WRITE))?;
    let script =
        "test ! -e src/lib.rs && cat new.txt tracked.txt && rm new.txt && mkdir src/deep && echo x > src/deep/y";
    let second = bench.run_over(&Step::sh(script), &[&first.layer])?;
    assert_eq!(second.printed(), "new\nas it was\nchanged");
    let third = bench.run_over(&Step::sh("ls -A src/deep; ls"), &[&second.layer, &first.layer])?;
    assert_eq!(third.printed(), "y\nlink\nsrc\ntracked.txt");
    Ok(())
}

fn attempts_at_once_do_not_see_each_other(bench: &Bench) -> Result<(), Failed> {
    let earlier = bench.run(&Step::sh("echo sealed > f"))?;
    let (running, layer) = bench.start(&Step::sh("echo a >> f; echo up; exec sleep 1000"), &[&earlier.layer])?;
    assert_eq!(line(&running.stdout)?, "up");
    let other = bench.run_over(&Step::sh("cat f; echo b >> f"), &[&earlier.layer])?;
    assert_eq!(other.printed(), "sealed");
    running.kill()?;
    until_closed(&running)?;
    let contents = [layer.seal(), other.layer, earlier.layer].map(|layer| bench::content(layer.upper(), "f"));
    assert_eq!(contents.map(Result::unwrap_or_default), ["sealed\na\n", "sealed\nb\n", "sealed\n"]);
    Ok(())
}

fn git_is_read_only(bench: &Bench) -> Result<(), Failed> {
    let script =
        "cat .git/HEAD; echo x > .git/HEAD; echo x > .git/new; rm -rf .git; mv .git git; mv src .git; cat .git/HEAD";
    let ran = bench.run(&Step::sh(script))?;
    assert_eq!(ran.printed(), "ref: refs/heads/main\nref: refs/heads/main", "{ran:?}");
    let is_enforced = matches!(ran.enforcement().0.get(&Control::GitReadOnly), Some(ControlState::Enforced { .. }));
    assert!(is_enforced, "{ran:?}");
    Ok(())
}

fn a_linked_worktree_keeps_its_common_directory(bench: &Bench) -> Result<(), Failed> {
    let common = bench.root.join("main/.git");
    fs::create_dir_all(&common)?;
    fs::write(common.join("config"), "common\n")?;
    fs::write(bench.root.join("main/neighbour"), "secret")?;
    fs::remove_dir_all(bench.repo.join(".git"))?;
    fs::write(bench.repo.join(".git"), format!("gitdir: {}\n", common.display()))?;
    let common_path = common.display();
    let script = format!("cat .git {common_path}/config; echo x >> .git; echo x >> {common_path}/config; ls ../main");
    let mut policy = bench.policy(&Step::sh(&script))?;
    policy.git =
        GitDirs { worktree_git: Some(bench.repo.join(".git")), common: Some(common.clone()), nested: Vec::new() };
    let ran = bench.run_policy(&policy, &[])?;
    assert_eq!(ran.printed(), format!("gitdir: {common_path}\ncommon"), "{ran:?}");
    // A write to a file of root's in another user's repository is refused for lack of permission before the read-only
    // mount matters.
    let refused = ["Read-only file system", "Permission denied"].map(|error| ran.stderr.matches(error).count());
    assert_eq!(refused.iter().sum::<usize>(), 2, "{ran:?}");
    Ok(())
}

const LOOPBACK: &str = r"
import socket, threading
listener = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: listener.accept()[0].sendall(b'hello')).start()
print(socket.create_connection(listener.getsockname()).recv(5).decode())
for family, address in [(socket.AF_INET, ('192.0.2.1', 80)), (socket.AF_INET6, ('2001:db8::1', 80))]:
    try:
        socket.socket(family).connect(address)
    except OSError as error:
        print(error.strerror)
print(*sorted(name for _, name in socket.if_nameindex()))
";

fn the_network_is_denied_and_loopback_works(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::new(&["/usr/bin/python3", "-c", LOOPBACK]))?;
    let lines: Vec<&str> = ran.printed().lines().collect();
    assert_eq!(lines.first(), Some(&"hello"));
    assert_eq!(lines.iter().filter(|line| line.contains("unreachable")).count(), 2, "{ran:?}");
    let cards = bench.run(&Step::sh("ls /sys/class/net"))?;
    assert_eq!(cards.stdout.replace("lo\n", "").lines().filter(|name| name.starts_with("eth")).count(), 0, "{cards:?}");
    Ok(())
}

fn the_network_is_the_hosts_where_it_is_allowed(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::sh("readlink /proc/self/ns/net");
    step.network = Network::Allow;
    let ran = bench.run(&step)?;
    assert_eq!(ran.printed(), fs::read_link("/proc/self/ns/net")?.to_string_lossy());
    let state = ran.enforcement().0.get(&Control::NetworkNamespace);
    assert!(matches!(state, Some(ControlState::NotRequested { .. })), "{state:?}");
    Ok(())
}

fn homes_and_state_are_hidden(bench: &Bench) -> Result<(), Failed> {
    fs::write(bench.root.join("neighbour"), "secret")?;
    let root = bench.root.display();
    let script = format!("ls -A /root /home /run 2>/dev/null; ls -A {root} /tmp /var/tmp; cat {root}/home/secret");
    let ran = bench.run(&Step::sh(&script))?;
    assert!(!ran.stdout.contains("neighbour") && !ran.stdout.contains("state"), "{ran:?}");
    assert!(ran.stderr.contains("secret"), "{ran:?}");
    let listed: Vec<&str> = ran.stdout.split_whitespace().filter(|word| !word.ends_with(':')).collect();
    assert!(listed.iter().all(|name| *name == "home" || *name == "repo" || bench.root.ends_with(name)), "{ran:?}");
    Ok(())
}

fn the_home_is_empty_and_writable(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::sh("ls ~; touch ~/x && cd ~ && pwd && git config --get core.checkStat");
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    let ran = bench.run(&step)?;
    let (home, rest) = ran.stdout.trim_end().split_once('\n').unwrap_or((ran.stdout.trim_end(), ""));
    assert_eq!(home, bench.home.display().to_string(), "{ran:?}");
    assert_eq!(rest, if bench.role == Role::RootOwn { "minimal" } else { "" }, "{ran:?}");
    Ok(())
}

fn the_root_is_read_only(bench: &Bench) -> Result<(), Failed> {
    let script = "for d in / /etc /usr /var /dev /opt /sys /run /home; do touch $d/x 2>&1; done; touch /tmp/proctor-x /var/tmp/x /dev/shm/x";
    let ran = bench.run(&Step::sh(script))?;
    assert_eq!(ran.printed().lines().count(), 9, "{ran:?}");
    assert!(!Path::new("/tmp/proctor-x").exists());
    let cannot_be_undone = bench.run(&Step::sh("mount -o remount,rw / || mount -t tmpfs none /mnt"))?;
    assert_ne!(cannot_be_undone.status(), Some(WaitStatus::Code(0)));
    Ok(())
}

fn the_environment_is_exactly_the_policys(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::new(&["/usr/bin/env"]);
    step.env = [("A", "1"), ("B", "two words"), ("C", "")].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
    assert_eq!(bench.run(&step)?.printed(), "A=1\nB=two words\nC=");
    Ok(())
}

fn nothing_of_the_callers_environment_is_readable(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh("cat /proc/*/environ | tr '\\0' '\\n'; ls /proc/1/fd; cat /proc/1/environ"))?;
    assert!(!ran.stdout.contains("PROCTOR_TEST_SECRET"), "{ran:?}");
    assert!(ran.stderr.contains("/proc/1/environ") && ran.stderr.contains("/proc/1/fd"), "{ran:?}");
    Ok(())
}

fn there_are_no_capabilities_and_no_new_privileges(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh("grep -E '^(Cap|NoNewPrivs)' /proc/self/status /proc/1/status | cut -d: -f2-"))?;
    let wrong: Vec<&str> = ran
        .printed()
        .lines()
        .filter(|line| !line.ends_with("0000000000000000") && !line.ends_with("NoNewPrivs:\t1"))
        .collect();
    assert_eq!((ran.stdout.lines().count(), wrong), (12, vec![]), "{ran:?}");
    Ok(())
}

/// Observed from the host, since inside the sandbox only the step's own user is visible.
fn the_step_is_nobody_else_on_the_host(bench: &Bench) -> Result<(), Failed> {
    let marker = format!("proctor-test-{}", std::process::id());
    let step = Step::sh(&format!("echo up; id -u; sleep 1000 {marker} || sleep 1000; : {marker}"));
    let (running, _layer) = bench.start(&step, &[])?;
    assert_eq!(line(&running.stdout)?, "up");
    let inside: u32 = line(&running.stdout)?.parse()?;
    let statuses = bench::statuses_of(&marker)?;
    assert!(!statuses.is_empty());
    for status in statuses {
        for field in ["Uid:", "Gid:"] {
            let ids = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
            let is_own = bench.role == Role::RootOwn;
            let is_right = |id: &str| id != "0" && (is_own || id == inside.to_string());
            assert!(ids.split_whitespace().all(is_right), "{field}{ids}");
        }
    }
    for helper in bench::children()? {
        // Unreadable for this process if the helper has dropped its privileges; a step cannot read it in that case
        // either.
        let environment = fs::read(format!("/proc/{helper}/environ")).unwrap_or_default();
        assert!(environment.is_empty(), "the helper has an environment: {environment:?}");
    }
    running.kill()?;
    until_closed(&running)?;
    Ok(())
}

fn dev_and_proc_are_its_own(bench: &Bench) -> Result<(), Failed> {
    let script = "ls /dev | xargs echo; ls /proc | grep -c '^[0-9]'; head -c 3 /dev/zero | wc -c; echo x > /dev/null; hostname; cat /proc/1/comm";
    let ran = bench.run(&Step::sh(script))?;
    let mut lines = ran.printed().lines();
    let devices = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(lines.next(), Some(devices));
    assert!(lines.next().and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count <= 5), "{ran:?}");
    assert_eq!(lines.collect::<Vec<_>>(), ["3", "localhost", "proctor-sandbox"]);
    Ok(())
}

/// A process that can write a device can set its times to now, unless the mount is read-only.
fn protects_the_times_of_host_devices(bench: &Bench) -> Result<(), Failed> {
    let masked = bench.root.join("tools");
    fs::create_dir_all(&masked)?;
    fs::write(masked.join("credentials"), "secret")?;
    let tool = |source: &Path, kind| ToolMount {
        source: source.to_owned(),
        at: source.to_owned(),
        kind,
        rights: Rights::Ours,
    };
    let credentials = masked.join("credentials");
    let script = format!(
        "for f in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/stdin {0}; do \
         touch -c $f 2>/dev/null && echo set $f; chmod 600 $f 2>/dev/null && echo mode $f; done; \
         echo x > /dev/null && wc -c < {0}; head -c 2 /dev/urandom | wc -c",
        credentials.display()
    );
    let mut step = Step::sh(&script);
    step.tools = vec![tool(&masked, ToolKind::ReadOnly), tool(&credentials, ToolKind::Masked)];
    assert_eq!(bench.run(&step)?.printed(), "0\n2");
    Ok(())
}

/// The kernel counts inotify instances, pending signals and pipe buffers per user of the host.
fn isolates_per_user_counts_of_two_runs(bench: &Bench) -> Result<(), Failed> {
    if !bench.role.steps_down() || bench.role.is_foreign() {
        // The step runs as an existing user of the host.
        return Ok(());
    }
    let greedy = "import ctypes, time\nc = ctypes.CDLL(None)\nwhile c.inotify_init1(0) >= 0: pass\nprint('full', flush=True)\ntime.sleep(1000)";
    let mut step = Step::new(&["/usr/bin/python3", "-c", greedy]);
    step.limits.open_files = Limit::Unlimited;
    let (running, _layer) = bench.start(&step, &[])?;
    assert_eq!(line(&running.stdout)?, "full");
    let space = bench.another_space()?;
    let modest = "import ctypes, os; print(ctypes.CDLL(None).inotify_init1(0) >= 0, os.getuid())";
    let policy = bench.policy(&Step::new(&["/usr/bin/python3", "-c", modest]))?;
    let (other, _other_layer) = bench.launcher.spawn(&space, &[], &bench.facts, &policy)?;
    assert_eq!(line(&other.stdout)?, "True 1879048192", "the step sees one id, whatever it is on the host");
    until_closed(&other)?;
    running.kill()?;
    until_closed(&running)?;
    Ok(())
}

fn a_terminal_can_be_opened(bench: &Bench) -> Result<(), Failed> {
    let script = "import os; a, b = os.openpty(); os.write(b, b'x'); print(os.ttyname(b), os.read(a, 1).decode())";
    assert_eq!(bench.run(&Step::new(&["/usr/bin/python3", "-c", script]))?.printed(), "/dev/pts/0 x");
    let no_terminal = bench.run(&Step::sh("exec 3< /dev/tty"))?;
    assert_ne!(no_terminal.status(), Some(WaitStatus::Code(0)));
    Ok(())
}

fn the_accounts_are_synthetic(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh("whoami; id -gn; wc -l < /etc/passwd; getent passwd $(id -u) | cut -d: -f6"))?;
    assert_eq!(ran.printed(), format!("step\nstep\n2\n{}", bench.home.display()));
    Ok(())
}

fn stdio_can_be_opened_again(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh("echo out > /dev/stdout; echo err > /dev/stderr; wc -c < /dev/stdin"))?;
    assert_eq!((ran.printed(), ran.stderr.as_str()), ("out\n0", "err\n"));
    Ok(())
}

fn signals_are_as_in_a_fresh_shell(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh(
        "cat /proc/self/status | grep -E '^Sig(Blk|Ign|Cgt)' | cut -f2; umask; ls /proc/self/fd | wc -l",
    ))?;
    let none = "0000000000000000";
    // The fourth descriptor is the directory that `ls` reads.
    assert_eq!(ran.printed().split_whitespace().collect::<Vec<_>>(), [none, none, none, "0022", "4"], "{ran:?}");
    Ok(())
}

fn tools_are_shown_and_credentials_masked(bench: &Bench) -> Result<(), Failed> {
    let tool = bench.home.join(".tool");
    fs::create_dir_all(bench.root.join("elsewhere/bin"))?;
    fs::create_dir(&tool)?;
    fs::write(bench.root.join("elsewhere/bin/t"), "tool\n")?;
    fs::write(tool.join("credentials"), "token")?;
    std::os::unix::fs::symlink(bench.root.join("elsewhere"), bench.home.join(".linked"))?;
    let rights = Rights::Steps;
    let mount = |at: &Path, kind| ToolMount { source: at.to_owned(), at: at.to_owned(), kind, rights };
    let mut step = Step::sh("cd ~; cat .linked/bin/t .tool/credentials; touch .tool/x 2>&1; touch mine; ls -A .tool");
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    step.tools = vec![
        mount(&tool, ToolKind::ReadOnly),
        mount(&tool.join("credentials"), ToolKind::Masked),
        ToolMount {
            source: fs::canonicalize(bench.home.join(".linked"))?,
            ..mount(&bench.home.join(".linked"), ToolKind::ReadOnly)
        },
        mount(&bench.home.join(".absent"), ToolKind::ReadOnly),
    ];
    let ran = bench.run(&step)?;
    let lines: Vec<&str> = ran.printed().lines().collect();
    assert!(lines.len() == 3 && lines[1].contains("Read-only file system"), "{ran:?}");
    assert_eq!((lines[0], lines[2]), ("tool", "credentials"));
    Ok(())
}

fn limits_hold(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::sh("ulimit -n; ulimit -c; ulimit -t");
    assert_eq!(bench.run(&step)?.printed(), "256\n0\n20");
    let core = "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0)); print(r.getrlimit(r.RLIMIT_CORE))";
    step.argv = Step::new(&["/usr/bin/python3", "-c", core]).argv;
    let most = rustix::process::getrlimit(rustix::process::Resource::Core).maximum.map_or(1, |own| own.min(1));
    let expected = format!("({most}, {most})");
    assert_eq!(bench.run(&step)?.printed(), expected, "with 0 the kernel starts the host's handler of core dumps");
    step.limits.pids = Limit::Max(8);
    let forks = "import os, time\nn = 0\ntry:\n  while n < 100:\n    if os.fork() == 0: time.sleep(1000)\n    n += 1\nexcept OSError: pass\nprint(n)";
    step.argv = Step::new(&["/usr/bin/python3", "-c", forks]).argv;
    assert_eq!(bench.run(&step)?.printed(), "7", "python itself is the eighth");
    step.limits.pids = Limit::Max(64);
    step.limits.memory = Limit::Max(256 << 20);
    let memory = "\ntry: bytearray(512 << 20)\nexcept MemoryError: print('no')";
    step.argv = Step::new(&["/usr/bin/python3", "-c", memory]).argv;
    let balloon = bench.run(&step)?;
    match bench.launcher.control_groups() {
        Ok(_) => assert_eq!(balloon.limit(), Some(LimitKind::Memory), "{balloon:?}"),
        Err(_) => assert_eq!(balloon.printed(), "no"),
    }
    step.limits.memory = Limit::Unlimited;
    step.limits.cpu_seconds = Limit::Max(1);
    step.argv = Step::sh("while :; do :; done").argv;
    let burnt = bench.run(&step)?.status();
    assert!(matches!(burnt, Some(WaitStatus::Signal(9 | 24))), "{burnt:?}");
    // No single process uses a second of CPU time, but all of them together use more.
    let children = "import os, time\nfor _ in range(40):\n  if os.fork() == 0:\n    end = time.process_time() + 0.2\n    while time.process_time() < end: pass\n    os._exit(0)\n  os.wait()\n";
    step.argv = Step::new(&["/usr/bin/python3", "-c", children]).argv;
    let burnt = bench.run(&step)?;
    assert_eq!(burnt.limit(), Some(LimitKind::CpuSeconds), "{burnt:?}");
    // The parent ignores SIGCHLD, so the kernel adds the children's CPU time to no process.
    let unwaited = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(40):\n  read, write = os.pipe()\n  if os.fork() == 0:\n    end = time.process_time() + 0.5\n    while time.process_time() < end: pass\n    os._exit(0)\n  os.close(write)\n  os.read(read, 1)\n";
    step.argv = Step::new(&["/usr/bin/python3", "-c", unwaited]).argv;
    let burnt = bench.run(&step)?;
    assert_eq!(burnt.limit(), Some(LimitKind::CpuSeconds), "{burnt:?}");
    Ok(())
}

/// A file costs kernel memory that no limit in bytes counts.
fn scratch_directories_hold_a_bounded_number_of_files(bench: &Bench) -> Result<(), Failed> {
    let count =
        "import os\nfor d in ('/tmp', '/var/tmp', '/dev/shm', os.environ['HOME']): print(os.statvfs(d).f_files)";
    let mut step = Step::new(&["/usr/bin/python3", "-c", count]);
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    assert_eq!(bench.run(&step)?.printed(), ["4096"; 4].join("\n"), "the least that there is");
    Ok(())
}

fn a_full_layer_is_an_error_of_the_step(bench: &Bench) -> Result<(), Failed> {
    let fill = "for d in . /tmp /dev/shm; do for f in 1 2 3 4; do head -c 12M /dev/zero > $d/$f; done; du -sm $d; done";
    let ran = bench.run(&Step::sh(fill))?;
    assert!(ran.stderr.matches("No space left on device").count() >= 3, "{ran:?}");
    let sparse = bench.run(&Step::sh("truncate -s 1G big"))?;
    assert_ne!(sparse.status(), Some(WaitStatus::Code(0)), "{sparse:?}");
    Ok(())
}

/// A grandchild in its own session that ignores every signal and holds the pipe open.
const STUBBORN: &str = r"
import os, signal, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
            os.write(1, b'up ' + sys.argv[1].encode() + b'\n')
            while True: time.sleep(1000)
        os._exit(0)
while True: time.sleep(1000)
";

fn stubborn(marker: &str) -> Step {
    Step::new(&["/usr/bin/python3", "-c", STUBBORN, marker])
}

fn marker(name: &str) -> String {
    format!("proctor-test-{name}-{}", std::process::id())
}

fn kill_ends_everything(bench: &Bench) -> Result<(), Failed> {
    let marker = marker("kill");
    let (running, _layer) = bench.start(&stubborn(&marker), &[])?;
    for _ in 0..3 {
        line(&running.stdout)?;
    }
    assert!(bench::statuses_of(&marker)?.len() >= 4);
    running.kill()?;
    let reports = until_closed(&running)?;
    assert_eq!(bench::statuses_of(&marker)?, [""; 0]);
    assert!(matches!(reports.last(), Some(Report::Exited { status: WaitStatus::Signal(9), .. })), "{reports:?}");
    let mut rest = String::new();
    fs::File::from(running.stdout.try_clone()?).read_to_string(&mut rest)?;
    Ok(())
}

/// The kernel may kill the helper for lack of memory, for instance.
fn a_killed_helper_leaves_nothing(bench: &Bench) -> Result<(), Failed> {
    let marker = marker("helper");
    let (running, _layer) = bench.start(&stubborn(&marker), &[])?;
    for _ in 0..3 {
        line(&running.stdout)?;
    }
    for helper in bench::children()? {
        let pid = rustix::process::Pid::from_raw(helper.parse()?).ok_or("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    let reports = until_closed(&running)?;
    assert_eq!(bench::statuses_of(&marker)?, [""; 0]);
    assert!(matches!(reports.as_slice(), [Report::Ready { .. }]), "no report of its end: {reports:?}");
    Ok(())
}

/// Another process of the same user may stop the helper; a step cannot reach it.
fn a_stopped_helper_does_not_hold_us(bench: &Bench) -> Result<(), Failed> {
    let marker = marker("stopped");
    let (running, _layer) = bench.start(&stubborn(&marker), &[])?;
    for _ in 0..3 {
        line(&running.stdout)?;
    }
    for helper in bench::children()? {
        let pid = rustix::process::Pid::from_raw(helper.parse()?).ok_or("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    }
    drop(running);
    assert_eq!(bench::statuses_of(&marker)?, [""; 0]);
    bench::no_children()?;
    Ok(())
}

fn terminate_reaches_everybody(bench: &Bench) -> Result<(), Failed> {
    let script = "(trap 'echo child; exit' TERM; echo up; while :; do sleep 0.01; done) & trap 'wait; echo leader; exit 3' TERM; echo up; wait";
    let (running, _layer) = bench.start(&Step::sh(script), &[])?;
    assert_eq!((line(&running.stdout)?.as_str(), line(&running.stdout)?.as_str()), ("up", "up"));
    running.terminate()?;
    let reports = until_closed(&running)?;
    assert!(matches!(reports.last(), Some(Report::Exited { status: WaitStatus::Code(3), .. })), "{reports:?}");
    let mut text = String::new();
    fs::File::from(running.stdout.try_clone()?).read_to_string(&mut text)?;
    assert_eq!(text, "child\nleader\n");
    Ok(())
}

/// The attempt ends and leaves nothing behind, whatever stage the kill interrupts.
fn killing_early_is_safe(bench: &Bench) -> Result<(), Failed> {
    let marker = marker("early");
    // The first delays are closer together, around the time when the helper reports its PID 1.
    let delays = (0..40).map(|n| n * 400).chain((1..20).map(|n| n * 20_000));
    for (round, delay) in delays.enumerate() {
        let (running, _layer) = bench.start(&stubborn(&marker), &[])?;
        for _ in 0..delay {
            std::hint::spin_loop();
        }
        if round % 2 == 0 {
            running.kill()?;
        } else {
            running.terminate()?;
        }
        if round % 2 == 1 {
            running.kill()?;
        }
        until_closed(&running)?;
        assert_eq!(bench::statuses_of(&marker)?, [""; 0], "round {round}");
    }
    Ok(())
}

fn the_end_of_the_command_is_the_end_of_all(bench: &Bench) -> Result<(), Failed> {
    let marker = marker("orphan");
    let ran = bench.run(&Step::sh(&format!(
        "(trap '' TERM HUP; exec setsid sh -c 'while :; do sleep 100; done' {marker}) & exit 4"
    )))?;
    assert_eq!(ran.status(), Some(WaitStatus::Code(4)));
    assert_eq!(bench::statuses_of(&marker)?, [""; 0]);
    Ok(())
}

fn a_dead_parent_leaves_nothing(bench: &Bench) -> Result<(), Failed> {
    let marker = marker("parent");
    let mut parent = bench::spawn_parent(
        bench.role,
        &format!("echo up; (exec setsid sh -c 'while :; do sleep 100; done' {marker}) & wait"),
    )?;
    let mut first = String::new();
    BufReader::new(parent.stdout.take().ok_or("no output")?).read_line(&mut first)?;
    assert_eq!(first, "up\n");
    let processes = bench::pidfds_of(&marker)?;
    assert!(!processes.is_empty());
    parent.kill()?;
    parent.wait()?;
    for process in processes {
        bench::readable(process.as_fd())?;
    }
    Ok(())
}

fn a_missing_program_is_reported(bench: &Bench) -> Result<(), Failed> {
    for (program, named) in [("no-such-tool", "PATH (/usr/local/bin"), ("./src/lib.rs", "src/lib.rs"), ("/x/y", "/x/y")]
    {
        let ran = bench.run(&Step::new(&[program, "x"]))?;
        match ran.reports.last() {
            Some(Report::NotStarted { fault: StartFault::ProgramMissing, message }) => {
                assert!(message.contains(program) && message.contains(named), "{message}");
            }
            other => return Err(format!("{program}: {other:?}").into()),
        }
    }
    Ok(())
}

fn a_missing_workdir_is_reported(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::sh("pwd");
    step.workdir = "src";
    assert!(bench.is_at(bench.run(&step)?.printed(), "src"));
    step.workdir = "absent";
    let ran = bench.run(&step)?;
    let is_reported = matches!(ran.reports.as_slice(), [Report::NotStarted { fault: StartFault::Workdir, .. }]);
    assert!(is_reported, "{ran:?}");
    Ok(())
}

/// The work directory is reached through a link of the repository: the record would name a directory in which the
/// command did not run.
fn a_workdir_outside_of_the_repository_is_reported(bench: &Bench) -> Result<(), Failed> {
    std::os::unix::fs::symlink("src", bench.repo.join("inside"))?;
    let mut step = Step::sh("pwd -P");
    step.workdir = "inside";
    assert!(bench.is_at(bench.run(&step)?.printed(), "src"));
    step.workdir = "link";
    let ran = bench.run(&step)?;
    let is_reported = matches!(ran.reports.as_slice(), [Report::NotStarted { fault: StartFault::Workdir, .. }]);
    assert!(is_reported, "{ran:?}");
    Ok(())
}

/// Only root can mount a file system there.
fn a_mount_in_the_repository_is_refused(bench: &Bench) -> Result<(), Failed> {
    if bench.role == Role::User {
        return Ok(());
    }
    let at = bench.repo.join("src");
    bench::own_mounts()?;
    nix::mount::mount(None::<&str>, &at, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    // With a new launcher and run space: those of the first bench were made before the mount.
    let bench = Bench::over(bench.role, &bench.root)?;
    let ran = bench.run(&Step::sh("true"))?;
    match ran.reports.as_slice() {
        [Report::Refused { control: Control::Layer, message, hint }] => {
            assert!(message.contains(&at.display().to_string()) && hint.contains("umount"), "{message} {hint}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// The file system of the repository is an overlay, which cannot map owners. For another user's repository nothing
/// needs to be mapped.
fn a_repository_that_cannot_be_mapped_is_refused(bench: &Bench) -> Result<(), Failed> {
    if bench.role == Role::User {
        return Ok(());
    }
    bench::own_mounts()?;
    let options = format!("lowerdir={}:{}", bench.repo.display(), bench.home.display());
    nix::mount::mount(Some("overlay"), &bench.repo, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
    let bench = Bench::over(bench.role, &bench.root)?;
    let ran = bench.run(&Step::sh("cat tracked.txt"))?;
    match ran.reports.as_slice() {
        [Report::Refused { control: Control::UserNamespace, hint, .. }] if bench.role == Role::RootOwn => {
            assert!(hint.contains("chown"), "{hint}");
            Ok(())
        }
        _ if bench.role == Role::RootForeign => {
            assert_eq!(ran.printed(), "as it was");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// The kernel stacks two overlays but not three, and maps the owners of none. An ordinary user can cause neither
/// case.
fn without_an_overlay_a_copy_stands_at_its_place(bench: &Bench) -> Result<(), Failed> {
    let (overlays, lacks) = match bench.role {
        Role::RootForeign => (2, Control::Layer),
        Role::RootOwn => (1, Control::UserNamespace),
        _ => return Ok(()),
    };
    bench::own_mounts()?;
    let options = format!("lowerdir={}:{}", bench.repo.display(), bench.home.display());
    for _ in 0..overlays {
        nix::mount::mount(Some("overlay"), &bench.repo, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
    }
    let bench = Bench::over(bench.role, &bench.root)?;
    let strict = bench.run(&Step::sh("true"))?;
    let is_refused = matches!(strict.reports.as_slice(), [Report::Refused { control, .. }] if *control == lacks);
    assert!(is_refused, "{strict:?}");

    let mut step =
        Step::sh("pwd; echo x >> tracked.txt; rm -r src; mkdir new; echo y > new/y; echo x > .git/HEAD; echo k > c/k");
    step.caches = vec![cache(&bench, "c")?];
    let mut policy = bench.policy(&step)?;
    policy.tolerated = [Control::Cgroup, Control::Layer].into_iter().collect();
    let first = bench.run_policy(&policy, &[])?;
    assert_eq!(first.printed(), bench.repo.display().to_string(), "{first:?}");
    assert!(first.stderr.contains("Read-only file system"), "{first:?}");
    assert_eq!(bench::names(first.layer.upper())?, ["new", "src", "tracked.txt"]);
    let missing: Vec<_> = first.enforcement().missing().map(|(control, _)| control).collect();
    assert!(missing.contains(&Control::Layer) && missing.len() <= 2, "{missing:?}");
    policy.argv = proctor_core::plan::Argv::new(
        ["sh", "-c", "ls; cat tracked.txt new/y c/k; echo $(id -u) $(stat -c %u .)"].map(str::to_owned).into(),
    )?;
    let second = bench.run_policy(&policy, &[&first.layer])?;
    let uid = StepUser::choose(bench.launcher.host(), &bench.facts)?.uid();
    let seen = format!("c\nlink\nnew\nsecret\ntracked.txt\nas it was\nx\ny\nk\n{uid} {uid}");
    assert_eq!(second.printed(), seen, "{second:?}");
    assert_eq!(bench::names(second.layer.upper())?, [""; 0]);
    Ok(())
}

fn a_home_in_the_repository_is_refused(bench: &Bench) -> Result<(), Failed> {
    let mut policy = bench.policy(&Step::sh("true"))?;
    for home in [bench.repo.clone(), bench.repo.join("src")] {
        policy.home = home;
        assert!(bench.launcher.spawn(&bench.space, &[], &bench.facts, &policy).is_err());
    }
    let whole = Bench::over_state(bench.role, &bench.root, &bench.repo.join("state"))?;
    assert!(whole.run(&Step::sh("true")).is_err(), "a state directory in the repository shows up in itself");
    Ok(())
}

fn what_took_the_repositorys_place_is_not_opened(bench: &Bench) -> Result<(), Failed> {
    bench.facts.open()?;
    let moved = bench.root.join("moved");
    fs::rename(&bench.repo, &moved)?;
    std::os::unix::fs::symlink(&moved, &bench.repo)?;
    assert!(bench.facts.open().is_err(), "a link, although to the same directory");
    fs::remove_file(&bench.repo)?;
    fs::create_dir(&bench.repo)?;
    assert_eq!(bench.facts.open().is_err(), bench.role.is_foreign(), "a directory of root's");
    Ok(())
}

/// The owner may replace a path by a link after it was checked; a root daemon would show the link's target.
fn a_path_that_became_a_link_is_refused(bench: &Bench) -> Result<(), Failed> {
    std::os::unix::fs::symlink(&bench.root, bench.root.join("swapped"))?;
    let (plain, swapped) = (bench.policy(&Step::sh("ls"))?, bench.root.join("swapped/repo"));
    let repo = Policy { repo: swapped.clone(), ..plain.clone() };
    let git = GitDirs { common: Some(swapped.join(".git")), ..plain.git.clone() };
    for (policy, control) in [(repo, Control::Layer), (Policy { git, ..plain }, Control::GitReadOnly)] {
        let ran = bench.run_policy(&policy, &[])?;
        let is_refused =
            matches!(ran.reports.as_slice(), [Report::Refused { control: named, .. }] if *named == control);
        assert!(is_refused, "{control:?}: {ran:?}");
    }
    Ok(())
}

fn no_process_is_left_and_the_space_stays(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh("echo kept > file"))?;
    bench::no_children()?;
    assert_eq!(bench::content(ran.layer.upper(), "file")?, "kept\n");
    assert_eq!(fs::read_dir(bench.root.join("state/space"))?.count(), 0, "on the host nothing is mounted");
    Ok(())
}

/// A sandbox that became ready long before its command works too, and the next command sees nothing of the previous
/// one.
fn a_prepared_sandbox_serves_one_command(bench: &Bench) -> Result<(), Failed> {
    let step = Step::sh("test ! -e /tmp/left && test ! -e new && echo left > /tmp/left && echo new > new && cat new");
    bench.launcher.warm(&bench.space, &[], &bench.facts, &bench.policy(&step)?, 2)?;
    let began = std::time::Instant::now();
    while bench.space.ready() < 2 {
        assert!(began.elapsed().as_secs() < 30, "only {} got ready", bench.space.ready());
        std::thread::yield_now();
    }
    for left in [1, 0, 0] {
        let ran = bench.run(&step)?;
        assert_eq!(ran.printed(), "new", "nothing of the one before is there");
        assert_eq!(bench.space.ready(), left, "each serves one, and then they are made when asked for");
    }
    bench.launcher.warm(&bench.space, &[], &bench.facts, &bench.policy(&step)?, 1)?;
    let mut other = Step::sh("ulimit -n");
    other.limits.open_files = Limit::Max(99);
    assert_eq!(bench.run(&other)?.printed(), "99", "one that is made for other limits is not taken");
    Ok(())
}

/// The sandbox serves over the layers that it was made for, and over others. In the latter case the mounts for the
/// expected layers are removed, and git's directory and the caches are mounted again.
fn a_prepared_sandbox_serves_over_any_layers(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::sh(
        "cat f 2>/dev/null || echo none; echo mine > f
         test -f .git/HEAD && ! touch .git/HEAD 2>/dev/null && echo more >> cache/f && wc -l < cache/f
         grep -c \" $PWD .* - overlay \" /proc/self/mountinfo",
    );
    step.git = true;
    step.caches.push(cache(bench, "cache")?);
    let ready = |step: &Step, lowers: &[&proctor_sandbox::Layer<proctor_sandbox::Sealed>]| {
        bench.launcher.warm(&bench.space, lowers, &bench.facts, &bench.policy(step)?, 1)?;
        let began = std::time::Instant::now();
        while bench.space.ready() == 0 {
            assert!(began.elapsed().as_secs() < 30, "none got ready");
            std::thread::yield_now();
        }
        Ok::<_, Failed>(())
    };
    let first = bench.run(&Step::sh("echo first > f"))?;
    for (run, (made_for, run_over, seen)) in (1..).zip([
        (vec![&first.layer], vec![&first.layer], "first"),
        (vec![], vec![&first.layer], "first"),
        (vec![&first.layer], vec![], "none"),
    ]) {
        ready(&step, &made_for)?;
        let ran = bench.run_over(&step, &run_over)?;
        assert_eq!(ran.printed(), format!("{seen}\n{run}\n1"), "{ran:?}");
        assert_eq!(bench.space.ready(), 0);
        assert_eq!(bench::content(ran.layer.upper(), "f")?, "mine\n");
    }
    assert_eq!(bench::content(first.layer.upper(), "f")?, "first\n");
    // If the expected layers lack a mount point for a cache, none is created in the layer of the attempt, since it
    // would hide entries of the actual layers.
    let gone = bench.run(&Step::sh("rm -r src"))?;
    let back = bench.run_over(&Step::sh("mkdir src && echo back > src/f"), &[&gone.layer])?;
    let mut step = Step::sh("cat src/f && test -d src/cache && ls src");
    step.caches.push(cache(bench, "src/cache")?);
    ready(&step, &[&gone.layer])?;
    let ran = bench.run_over(&step, &[&back.layer, &gone.layer])?;
    assert_eq!(ran.printed(), "back\ncache\nf");
    Ok(())
}

fn a_discarded_layer_gives_its_room_back(bench: &Bench) -> Result<(), Failed> {
    let script = "mkdir -p a/b && head -c 12M /dev/zero > a/b/c && mkfifo a/f && ln -s /etc a/l && chmod 0 a/b/c a/b a";
    let fill = Step::sh(script);
    for _ in 0..4 {
        let ran = bench.run(&fill)?;
        assert_eq!(ran.printed(), "");
        ran.layer.discard()?;
    }
    Ok(())
}

fn a_layer_of_any_depth_can_be_discarded(bench: &Bench) -> Result<(), Failed> {
    let dig = "import os\nfor _ in range(3000):\n  os.mkdir('d')\n  os.chdir('d')\n  open('f', 'w').close()";
    let ran = bench.run(&Step::new(&["/usr/bin/python3", "-c", dig]))?;
    assert_eq!(ran.printed(), "");
    let few = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few)?;
    ran.layer.discard()?;
    Ok(())
}

fn every_control_is_accounted_for(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::sh("true");
    step.limits.memory = Limit::Max(1 << 30);
    let ran = bench.run(&step)?;
    let not_enforced: Vec<_> =
        ran.enforcement().0.iter().filter(|(_, state)| !matches!(state, ControlState::Enforced { .. })).collect();
    assert_eq!(
        ran.enforcement().0.len(),
        Control::ALL.len(),
        "every control of the vocabulary: {:?}",
        ran.enforcement()
    );
    if bench.role.is_plain() {
        return Ok(());
    }
    let groups = bench.launcher.control_groups();
    assert_eq!(not_enforced.len(), usize::from(groups.is_err()), "but the control group: {not_enforced:?}, {groups:?}");
    Ok(())
}

fn the_doctor_finds_nothing_missing(bench: &Bench) -> Result<(), Failed> {
    let report = doctor(&bench.launcher, &bench.repo);
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!(report.root, bench.role.steps_down());
    if bench.role.is_plain() {
        assert_eq!(report.enforcement.0.len(), Control::ALL.len(), "{report:?}");
        return Ok(());
    }
    let missing: Vec<_> = report.enforcement.missing().map(|(control, _)| control).collect();
    let groups = bench.launcher.control_groups();
    assert_eq!(missing, if groups.is_ok() { vec![] } else { vec![Control::Cgroup] }, "{groups:?}");
    assert!(!report.enforcement.0.is_empty());
    Ok(())
}
