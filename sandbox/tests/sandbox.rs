//! Tests real sandboxes with programs that misbehave on purpose, in three roles: root over root's repository, root
//! over another user's, and an ordinary user over their own.
//!
//! The tests that can run are determined by trial at the start. On a machine (or in a sandbox) that refuses
//! namespaces, tests are ignored, and their names say why.
#![expect(clippy::disallowed_methods, reason = "trials build their world with plain files")]

mod batches;
mod caches;
mod environment;
mod layer_changes;
mod leaks;
mod memory;
mod no_namespaces;
mod pool;
mod process_end;
mod reuse;
mod shown_paths;
mod start_failures;
mod views;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use caches::cache;
use environment::{
    HostAccess, SandboxTestCase, SandboxTestEnv, SkipReasons, TestCommand, UserRole, collect_events, read_line,
};
use libtest_mimic::{Arguments, Failed};
use nix::mount::MsFlags;
use proctor_core::model::enforcement::{Control, ControlState};
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::{Limit, Network};
use proctor_sandbox::{AccessRights, GitDirs, Policy, SandboxEvent, StepUser, ToolKind, ToolMount, WaitStatus, doctor};

/// Lists each check with the controls that it needs. It runs in every role that claims these controls.
macro_rules! checks {
    ($($check:path $(: $($control:ident),+)?;)*) => {
        &[$((stringify!($check), &[$($(Control::$control),+)?], $check)),*]
    };
}

const CHECKS: &[SandboxTestCase] = checks![
    passes_exit_code_and_signal_through;
    batches::batch_gets_files_as_arguments;
    batches::outputs_keep_the_order_of_batches;
    batches::worst_batch_decides;
    batches::failure_of_a_batch_outweighs_a_higher_code_that_passes;
    batches::missing_program_of_a_batch_is_not_a_result;
    stores_writes_in_layer;
    next_step_sees_layer;
    isolates_concurrent_attempts;
    git_is_read_only: MountNamespace;
    shows_common_directory_of_linked_worktree: MountNamespace;
    denies_network_except_loopback: NetworkNamespace;
    uses_host_network_if_allowed;
    hides_homes_and_state_directory: HiddenPaths;
    provides_empty_writable_home: MountNamespace;
    makes_root_read_only: ReadOnlyRoot, PrivateTmp;
    passes_only_environment_of_policy;
    hides_environment_of_caller: Landlock;
    drops_capabilities_and_privileges: PidNamespace;
    step_has_no_other_users_ids;
    provides_private_dev_and_proc: PrivateProc;
    protects_the_times_of_host_devices: MountNamespace;
    isolates_per_user_counts_of_two_runs: MountNamespace;
    can_open_terminal: MountNamespace;
    provides_synthetic_accounts: MountNamespace;
    can_reopen_stdio;
    resets_signal_handling;
    shows_tools_and_masks_credentials: MountNamespace;
    shown_paths::skips_tool_behind_closed_directory: MountNamespace;
    shown_paths::does_not_follow_link_on_tool_path: MountNamespace;
    shown_paths::refuses_mask_redirected_by_link: MountNamespace;
    caches::keeps_caches_after_step;
    caches::writes_original_directory;
    caches::refuses_cache_through_link;
    caches::keeps_cache_layers_unchanged: MountNamespace;
    enforces_resource_limits: PidsLimit;
    limits_cpu_time: PidsLimit;
    memory::limits_socket_buffers: NetworkNamespace, MemoryLimit;
    memory::limits_memory_without_plan_limit: MemoryLimit;
    limits_files_in_scratch_directories: DiskLimit;
    reports_full_layer_to_step: DiskLimit;
    process_end::kill_ends_all_processes;
    process_end::killed_helper_leaves_no_process: PidNamespace;
    process_end::stopped_helper_does_not_block: PidNamespace;
    process_end::terminate_signals_all_processes;
    process_end::ends_processes_that_fork_and_exit: Landlock;
    process_end::kill_during_setup_leaves_no_process;
    process_end::command_exit_ends_all_processes;
    process_end::dead_parent_leaves_no_process;
    leaks::reports_leftover_processes;
    leaks::reports_daemon_without_zombies;
    leaks::ignores_exiting_processes;
    leaks::ignores_leftovers_if_plan_allows;
    leaks::escapes_names_of_leftover_processes;
    leaks::limits_count_of_leftover_processes: PidNamespace;
    leaks::reports_hostile_leftover_processes;
    leaks::leftover_process_cannot_evade_pid_1: PidNamespace;
    start_failures::reports_missing_program;
    start_failures::reports_missing_workdir;
    start_failures::reports_workdir_outside_repository;
    refuses_mount_in_repository: MountNamespace;
    refuses_unmappable_repository: MountNamespace;
    falls_back_to_copy_without_overlay: MountNamespace;
    refuses_home_in_repository;
    refuses_replaced_repository;
    refuses_path_that_became_link: MountNamespace;
    keeps_run_space_without_processes;
    prepared_sandbox_serves_one_command: MountNamespace;
    prepared_sandbox_serves_over_any_layers: MountNamespace;
    pool::evicts_oldest_of_eight_waiting_sandboxes: MountNamespace;
    pool::releases_unused_sandboxes: MountNamespace;
    pool::replaces_dead_sandbox: MountNamespace;
    reuse::later_command_finds_same_state: MountNamespace, Landlock;
    reuse::reports_resources_of_each_command: MountNamespace;
    reuse::leftover_object_ends_sandbox: MountNamespace;
    reuse::reports_leftovers_of_each_command: MountNamespace;
    reuse::refuses_posix_queues: SyscallFilter;
    reuse::refuses_signals_to_pid_1: Landlock, MountNamespace;
    reuse::does_not_reuse_sandbox_with_missing_control: MountNamespace;
    reuse::does_not_reuse_sandbox_if_reuse_is_off: MountNamespace;
    reuse::cache_content_is_not_a_leftover: MountNamespace;
    reuse::uses_another_sandbox_for_other_layers: MountNamespace;
    reuse::terminates_and_kills_later_command: MountNamespace;
    reuse::replaces_sandbox_that_died_while_waiting: MountNamespace;
    layer_changes::filled_layer_equals_the_original;
    layer_changes::refused_layer_creates_nothing_outside;
    discarding_layer_frees_space;
    discards_deep_layer;
    reports_every_control;
    doctor_finds_nothing_missing;
];

/// Checks that are specific to views.
const VIEW_CHECKS: &[SandboxTestCase] = checks![
    views::records_each_kind_of_access;
    views::records_program_with_its_libraries;
    views::records_owners_on_disk;
    views::trace_agrees_with_observation;
    views::completeness::contains_everything_that_strace_sees;
    views::completeness::path_that_changes_during_a_call_is_recorded;
    views::completeness::contains_everything_that_the_kernel_has_cached;
    views::fixtures::cargo;
    views::fixtures::chromium;
    views::fixtures::everyday;
    views::fixtures::go;
    views::fixtures::npm;
    views::fixtures::pip;
    views::fixtures::pytest;
    views::fixtures::servers;
    views::fixtures::sqlite;
    views::traps::each_way_to_read_is_recorded;
    views::traps::links_out_of_the_tree_record_their_targets;
    views::traps::second_command_of_a_run_records_everything_again;
    views::traps::files_of_root_stay_unread;
    views::traps::refusal_by_access_control_list_gives_no_trace;
    views::traps::fifos_of_the_host_are_empty;
    views::step_changes_the_tree_as_without_a_view;
    views::server_has_only_the_rights_of_the_step;
    views::killed_server_invalidates_the_result;
    views::wrong_answer_invalidates_the_result;
    views::stopped_server_does_not_delay_a_kill;
    views::leaves_nothing_behind;
    views::too_many_paths_give_no_trace;
    views::changed_file_gives_no_trace;
    views::new_file_gives_no_trace;
    views::sockets_of_the_host_are_unreachable;
    views::shows_private_copy;
    views::shows_tool_that_is_a_file;
    views::namespace_contains_no_mount_of_the_host;
    views::prepared_sandbox_records_from_the_start;
    views::runs_without_a_view_if_none_is_available;
    views::inputs::withheld_files_are_absent_and_reported;
    views::inputs::inputs_and_their_directories_behave_as_usual;
    views::inputs::trace_is_that_of_the_shown_files;
    views::inputs::withheld_files_cannot_be_reached_by_other_names;
    views::inputs::step_can_create_files_with_withheld_names;
    views::inputs::files_of_earlier_steps_are_shown;
    views::inputs::second_mount_of_the_tree_is_withheld;
    views::inputs::withheld_paths_are_bounded;
    views::inputs::inputs_have_no_effect_without_a_view;
];

/// Checks that are specific to sandboxes without namespaces.
const NO_NAMESPACE_CHECKS: &[SandboxTestCase] = checks![
    no_namespaces::cannot_reach_real_tree_or_host: Landlock;
    no_namespaces::stores_all_changes_in_layer;
    no_namespaces::detects_change_with_restored_times;
    no_namespaces::copies_git_directory_outside_layers;
    no_namespaces::linked_worktree_reads_common_directory;
    no_namespaces::refuses_internet_sockets: SyscallFilter;
    no_namespaces::links_tools_and_hides_credentials: Landlock;
    no_namespaces::limits_sum_of_all_processes;
    no_namespaces::killed_helper_is_reported_and_leaves_no_process;
    no_namespaces::kills_twenty_stubborn_grandchildren;
    no_namespaces::sweeps_directory_of_dead_owner;
    no_namespaces::refuses_missing_namespaces_unless_tolerated;
];

fn main() -> ExitCode {
    let all: Vec<SandboxTestCase> = [CHECKS, VIEW_CHECKS, NO_NAMESPACE_CHECKS].concat();
    if let Some(code) = environment::run_subprocess(&all) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // More tests than processors run at once, because a test mostly waits for processes.
    arguments.test_threads.get_or_insert_with(|| 2 * std::thread::available_parallelism().map_or(1, usize::from));
    let mut trials = Vec::new();
    for (role, lacks) in environment::roles() {
        let special = if role.has_no_namespaces() { NO_NAMESPACE_CHECKS } else { &[] };
        let lacks = &lacks;
        let trial = |host| move |(name, needs, _): &SandboxTestCase| role.trial(name, needs, lacks, host);
        // CPU time is counted in the same way over another user's repository, and this check uses much of it.
        let applies = |name: &str| is_long() || !role.is_foreign() || name != "limits_cpu_time";
        let checks = [CHECKS, special].concat();
        trials.extend(checks.iter().filter(|(name, ..)| applies(name)).map(trial(HostAccess::Direct)));
        if !role.has_no_namespaces() {
            trials.extend(CHECKS.iter().filter(|(name, ..)| works_on_view(name)).map(trial(HostAccess::View)));
            // Two roles are sufficient for the slow checks of real tools.
            let applies = |name: &str| match name {
                // Only root can mount a directory a second time.
                "views::inputs::second_mount_of_the_tree_is_withheld" => role.is_set_up_by_root(),
                _ => role != UserRole::RootForeign || !name.starts_with("views::fixtures::"),
            };
            let checks = VIEW_CHECKS.iter().filter(|(name, ..)| applies(name));
            trials.extend(checks.map(|check @ (name, needs, _)| match missing_program(name) {
                Some(program) => role.trial(name, needs, &SkipReasons::for_missing_program(program), HostAccess::View),
                None => trial(HostAccess::View)(check),
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns a program that a check of views needs, such as another observer of accesses, and that this machine lacks.
fn missing_program(check: &str) -> Option<&'static str> {
    let needs: &[&str] = match check {
        _ if check.starts_with("views::completeness::") => &["strace", "git", "make", "cc"],
        _ if check.starts_with("views::fixtures::") => &["strace"],
        _ => &[],
    };
    let missing = needs.iter().copied().find(|program| !views::is_installed(program));
    missing.or_else(|| check.starts_with("views::fixtures::").then(|| views::fixtures::missing_program(check))?)
}

/// Returns whether a check applies to sandboxes with a view. They are not used again, and the kernel makes an overlay
/// over the view of an overlay of any depth. CPU time is counted in the same way with a view, so that only
/// `make test-long` checks its limit.
fn works_on_view(check: &str) -> bool {
    !check.starts_with("reuse::")
        && check != "falls_back_to_copy_without_overlay"
        && (is_long() || check != "limits_cpu_time")
}

/// Returns whether `make test-long` runs these tests.
#[expect(clippy::disallowed_methods, reason = "the command line selects the level")]
fn is_long() -> bool {
    std::env::var("PROCTOR_TEST_LONG").is_ok_and(|value| value == "1")
}

fn passes_exit_code_and_signal_through(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for (script, status) in [("exit 0", WaitStatus::Code(0)), ("exit 7", WaitStatus::Code(7))] {
        assert_eq!(bench.run(&TestCommand::shell(script))?.status(), Some(status), "{script}");
    }
    let ran = bench.run(&TestCommand::shell("kill -SEGV $$"))?;
    assert_eq!(ran.status(), Some(WaitStatus::Signal(11)), "{ran:?}");
    Ok(())
}

const WRITE_SCRIPT: &str = "echo new > new.txt && echo changed >> tracked.txt && rm src/lib.rs && cat tracked.txt";

fn stores_writes_in_layer(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench.run(&TestCommand::shell(WRITE_SCRIPT))?;
    assert_eq!(ran.stdout_of_success(), "as it was\nchanged");
    assert_eq!(fs::read_to_string(bench.repo.join("tracked.txt"))?, "as it was\n");
    assert!(!bench.repo.join("new.txt").exists() && bench.repo.join("src/lib.rs").exists());
    assert_eq!(environment::names(ran.layer.upper())?, ["new.txt", "src", "tracked.txt"]);
    assert_eq!(environment::content(ran.layer.upper(), "new.txt")?, "new\n");
    let untouched = bench.run(&TestCommand::shell("cat tracked.txt"))?;
    assert_eq!(environment::names(untouched.layer.upper())?, [""; 0]);
    Ok(())
}

fn next_step_sees_layer(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let first = bench.run(&TestCommand::shell(WRITE_SCRIPT))?;
    let script =
        "test ! -e src/lib.rs && cat new.txt tracked.txt && rm new.txt && mkdir src/deep && echo x > src/deep/y";
    let second = bench.run_over(&TestCommand::shell(script), &[&first.layer])?;
    assert_eq!(second.stdout_of_success(), "new\nas it was\nchanged");
    let third = bench.run_over(&TestCommand::shell("ls -A src/deep; ls"), &[&second.layer, &first.layer])?;
    assert_eq!(third.stdout_of_success(), "y\nlink\nsrc\ntracked.txt");
    Ok(())
}

fn isolates_concurrent_attempts(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let earlier = bench.run(&TestCommand::shell("echo sealed > f"))?;
    let (running, layer) =
        bench.start(&TestCommand::shell("echo a >> f; echo up; exec sleep 1000"), &[&earlier.layer])?;
    assert_eq!(read_line(&running.stdout)?, "up");
    let other = bench.run_over(&TestCommand::shell("cat f; echo b >> f"), &[&earlier.layer])?;
    assert_eq!(other.stdout_of_success(), "sealed");
    running.kill()?;
    collect_events(&running)?;
    let contents = [layer.seal(), other.layer, earlier.layer].map(|layer| environment::content(layer.upper(), "f"));
    assert_eq!(contents.map(Result::unwrap_or_default), ["sealed\na\n", "sealed\nb\n", "sealed\n"]);
    Ok(())
}

fn git_is_read_only(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script =
        "cat .git/HEAD; echo x > .git/HEAD; echo x > .git/new; rm -rf .git; mv .git git; mv src .git; cat .git/HEAD";
    let ran = bench.run(&TestCommand::shell(script))?;
    assert_eq!(ran.stdout_of_success(), "ref: refs/heads/main\nref: refs/heads/main", "{ran:?}");
    let is_enforced = matches!(ran.enforcement().0.get(&Control::GitReadOnly), Some(ControlState::Enforced { .. }));
    assert!(is_enforced, "{ran:?}");
    Ok(())
}

fn shows_common_directory_of_linked_worktree(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let common = bench.root.join("main/.git");
    fs::create_dir_all(&common)?;
    fs::write(common.join("config"), "common\n")?;
    fs::write(bench.root.join("main/neighbour"), "secret")?;
    fs::remove_dir_all(bench.repo.join(".git"))?;
    fs::write(bench.repo.join(".git"), format!("gitdir: {}\n", common.display()))?;
    let common_path = common.display();
    let script = format!("cat .git {common_path}/config; echo x >> .git; echo x >> {common_path}/config; ls ../main");
    let mut policy = bench.policy(&TestCommand::shell(&script))?;
    policy.git =
        GitDirs { worktree_git: Some(bench.repo.join(".git")), common: Some(common.clone()), nested: Vec::new() };
    let ran = bench.run_policy(&policy, &[])?;
    assert_eq!(ran.stdout_of_success(), format!("gitdir: {common_path}\ncommon"), "{ran:?}");
    // A write to a file of root's in another user's repository is refused for lack of permission before the read-only
    // mount matters.
    let refused = ["Read-only file system", "Permission denied"].map(|error| ran.stderr.matches(error).count());
    assert_eq!(refused.iter().sum::<usize>(), 2, "{ran:?}");
    Ok(())
}

const LOOPBACK_SCRIPT: &str = r"
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

fn denies_network_except_loopback(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench.run(&TestCommand::new(&["/usr/bin/python3", "-c", LOOPBACK_SCRIPT]))?;
    let lines: Vec<&str> = ran.stdout_of_success().lines().collect();
    assert_eq!(lines.first(), Some(&"hello"));
    assert_eq!(lines.iter().filter(|line| line.contains("unreachable")).count(), 2, "{ran:?}");
    let cards = bench.run(&TestCommand::shell("ls /sys/class/net"))?;
    assert_eq!(cards.stdout.replace("lo\n", "").lines().filter(|name| name.starts_with("eth")).count(), 0, "{cards:?}");
    Ok(())
}

fn uses_host_network_if_allowed(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("readlink /proc/self/ns/net");
    step.network = Network::Allow;
    let ran = bench.run(&step)?;
    assert_eq!(ran.stdout_of_success(), fs::read_link("/proc/self/ns/net")?.to_string_lossy());
    let state = ran.enforcement().0.get(&Control::NetworkNamespace);
    assert!(matches!(state, Some(ControlState::NotRequested { .. })), "{state:?}");
    Ok(())
}

fn hides_homes_and_state_directory(bench: &SandboxTestEnv) -> Result<(), Failed> {
    fs::write(bench.root.join("neighbour"), "secret")?;
    let root = bench.root.display();
    let script = format!("ls -A /root /home /run 2>/dev/null; ls -A {root} /tmp /var/tmp; cat {root}/home/secret");
    let ran = bench.run(&TestCommand::shell(&script))?;
    assert!(!ran.stdout.contains("neighbour") && !ran.stdout.contains("state"), "{ran:?}");
    assert!(ran.stderr.contains("secret"), "{ran:?}");
    let listed: Vec<&str> = ran.stdout.split_whitespace().filter(|word| !word.ends_with(':')).collect();
    assert!(listed.iter().all(|name| *name == "home" || *name == "repo" || bench.root.ends_with(name)), "{ran:?}");
    Ok(())
}

fn provides_empty_writable_home(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("ls ~; touch ~/x && cd ~ && pwd && git config --get core.checkStat");
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    let ran = bench.run(&step)?;
    let (home, rest) = ran.stdout.trim_end().split_once('\n').unwrap_or((ran.stdout.trim_end(), ""));
    assert_eq!(home, bench.home.display().to_string(), "{ran:?}");
    assert_eq!(rest, if bench.role == UserRole::RootOwn { "minimal" } else { "" }, "{ran:?}");
    Ok(())
}

fn makes_root_read_only(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "for d in / /etc /usr /var /dev /opt /sys /run /home; do touch $d/x 2>&1; done; touch /tmp/proctor-x /var/tmp/x /dev/shm/x";
    let ran = bench.run(&TestCommand::shell(script))?;
    assert_eq!(ran.stdout_of_success().lines().count(), 9, "{ran:?}");
    assert!(!Path::new("/tmp/proctor-x").exists());
    let cannot_be_undone = bench.run(&TestCommand::shell("mount -o remount,rw / || mount -t tmpfs none /mnt"))?;
    assert_ne!(cannot_be_undone.status(), Some(WaitStatus::Code(0)));
    Ok(())
}

fn passes_only_environment_of_policy(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::new(&["/usr/bin/env"]);
    step.env = [("A", "1"), ("B", "two words"), ("C", "")].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
    assert_eq!(bench.run(&step)?.stdout_of_success(), "A=1\nB=two words\nC=");
    Ok(())
}

fn hides_environment_of_caller(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran =
        bench.run(&TestCommand::shell("cat /proc/*/environ | tr '\\0' '\\n'; ls /proc/1/fd; cat /proc/1/environ"))?;
    assert!(!ran.stdout.contains("PROCTOR_TEST_SECRET"), "{ran:?}");
    assert!(ran.stderr.contains("/proc/1/environ") && ran.stderr.contains("/proc/1/fd"), "{ran:?}");
    Ok(())
}

fn drops_capabilities_and_privileges(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench
        .run(&TestCommand::shell("grep -E '^(Cap|NoNewPrivs)' /proc/self/status /proc/1/status | cut -d: -f2-"))?;
    let wrong: Vec<&str> = ran
        .stdout_of_success()
        .lines()
        .filter(|line| !line.ends_with("0000000000000000") && !line.ends_with("NoNewPrivs:\t1"))
        .collect();
    assert_eq!((ran.stdout.lines().count(), wrong), (12, vec![]), "{ran:?}");
    Ok(())
}

/// Observed from the host, since inside the sandbox only the step's own user is visible.
fn step_has_no_other_users_ids(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let marker = format!("proctor-test-{}", std::process::id());
    let step = TestCommand::shell(&format!("echo up; id -u; sleep 1000 {marker} || sleep 1000; : {marker}"));
    let (running, _layer) = bench.start(&step, &[])?;
    assert_eq!(read_line(&running.stdout)?, "up");
    let inside: u32 = read_line(&running.stdout)?.parse()?;
    let statuses = environment::process_statuses(&marker)?;
    assert!(!statuses.is_empty());
    for status in statuses {
        for field in ["Uid:", "Gid:"] {
            let ids = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
            let is_own = bench.role == UserRole::RootOwn;
            let is_right = |id: &str| id != "0" && (is_own || id == inside.to_string());
            assert!(ids.split_whitespace().all(is_right), "{field}{ids}");
        }
    }
    for helper in environment::children()? {
        // Unreadable for this process if the helper has dropped its privileges; a step cannot read it in that case
        // either.
        let environment = fs::read(format!("/proc/{helper}/environ")).unwrap_or_default();
        assert!(environment.is_empty(), "the helper has an environment: {environment:?}");
    }
    running.kill()?;
    collect_events(&running)?;
    Ok(())
}

fn provides_private_dev_and_proc(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "ls /dev | xargs echo; ls /proc | grep -c '^[0-9]'; head -c 3 /dev/zero | wc -c; echo x > /dev/null; hostname; cat /proc/1/comm";
    let ran = bench.run(&TestCommand::shell(script))?;
    let mut lines = ran.stdout_of_success().lines();
    let devices = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(lines.next(), Some(devices));
    assert!(lines.next().and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count <= 5), "{ran:?}");
    assert_eq!(lines.collect::<Vec<_>>(), ["3", "localhost", "proctor-sandbox"]);
    Ok(())
}

/// A process that can write a device can set its times to now, unless the mount is read-only.
fn protects_the_times_of_host_devices(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let masked = bench.root.join("tools");
    fs::create_dir_all(&masked)?;
    fs::write(masked.join("credentials"), "secret")?;
    let tool = |source: &Path, kind| ToolMount {
        source: source.to_owned(),
        at: source.to_owned(),
        kind,
        rights: AccessRights::Ours,
    };
    let credentials = masked.join("credentials");
    let script = format!(
        "for f in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/stdin {0}; do \
         touch -c $f 2>/dev/null && echo set $f; chmod 600 $f 2>/dev/null && echo mode $f; done; \
         echo x > /dev/null && wc -c < {0}; head -c 2 /dev/urandom | wc -c",
        credentials.display()
    );
    let mut step = TestCommand::shell(&script);
    step.tools = vec![tool(&masked, ToolKind::ReadOnly), tool(&credentials, ToolKind::Masked)];
    assert_eq!(bench.run(&step)?.stdout_of_success(), "0\n2");
    Ok(())
}

/// The kernel counts inotify instances, pending signals and pipe buffers per user of the host.
fn isolates_per_user_counts_of_two_runs(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if !bench.role.is_set_up_by_root() || bench.role.is_foreign() {
        // The step runs as an existing user of the host.
        return Ok(());
    }
    let greedy = "import ctypes, time\nc = ctypes.CDLL(None)\nwhile c.inotify_init1(0) >= 0: pass\nprint('full', flush=True)\ntime.sleep(1000)";
    let mut step = TestCommand::new(&["/usr/bin/python3", "-c", greedy]);
    step.limits.open_files = Limit::Unlimited;
    let (running, _layer) = bench.start(&step, &[])?;
    assert_eq!(read_line(&running.stdout)?, "full");
    let space = bench.new_run_space()?;
    let modest = "import ctypes, os; print(ctypes.CDLL(None).inotify_init1(0) >= 0, os.getuid())";
    let policy = bench.policy(&TestCommand::new(&["/usr/bin/python3", "-c", modest]))?;
    let (other, _other_layer) = bench.launcher.spawn(&space, &[], &bench.facts, &policy)?;
    assert_eq!(read_line(&other.stdout)?, "True 1879048192", "the step sees one id, whatever it is on the host");
    collect_events(&other)?;
    running.kill()?;
    collect_events(&running)?;
    Ok(())
}

fn can_open_terminal(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "import os; a, b = os.openpty(); os.write(b, b'x'); print(os.ttyname(b), os.read(a, 1).decode())";
    assert_eq!(bench.run(&TestCommand::new(&["/usr/bin/python3", "-c", script]))?.stdout_of_success(), "/dev/pts/0 x");
    let no_terminal = bench.run(&TestCommand::shell("exec 3< /dev/tty"))?;
    assert_ne!(no_terminal.status(), Some(WaitStatus::Code(0)));
    Ok(())
}

fn provides_synthetic_accounts(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran =
        bench.run(&TestCommand::shell("whoami; id -gn; wc -l < /etc/passwd; getent passwd $(id -u) | cut -d: -f6"))?;
    assert_eq!(ran.stdout_of_success(), format!("step\nstep\n2\n{}", bench.home.display()));
    Ok(())
}

fn can_reopen_stdio(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench.run(&TestCommand::shell("echo out > /dev/stdout; echo err > /dev/stderr; wc -c < /dev/stdin"))?;
    assert_eq!((ran.stdout_of_success(), ran.stderr.as_str()), ("out\n0", "err\n"));
    Ok(())
}

fn resets_signal_handling(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench.run(&TestCommand::shell(
        "cat /proc/self/status | grep -E '^Sig(Blk|Ign|Cgt)' | cut -f2; umask; ls /proc/self/fd | wc -l",
    ))?;
    let none = "0000000000000000";
    // The fourth descriptor is the directory that `ls` reads.
    assert_eq!(
        ran.stdout_of_success().split_whitespace().collect::<Vec<_>>(),
        [none, none, none, "0022", "4"],
        "{ran:?}"
    );
    Ok(())
}

fn shows_tools_and_masks_credentials(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let tool = bench.home.join(".tool");
    fs::create_dir_all(bench.root.join("elsewhere/bin"))?;
    fs::create_dir(&tool)?;
    fs::write(bench.root.join("elsewhere/bin/t"), "tool\n")?;
    fs::write(tool.join("credentials"), "token")?;
    std::os::unix::fs::symlink(bench.root.join("elsewhere"), bench.home.join(".linked"))?;
    let rights = AccessRights::Steps;
    let mount = |at: &Path, kind| ToolMount { source: at.to_owned(), at: at.to_owned(), kind, rights };
    let mut step =
        TestCommand::shell("cd ~; cat .linked/bin/t .tool/credentials; touch .tool/x 2>&1; touch mine; ls -A .tool");
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
    let lines: Vec<&str> = ran.stdout_of_success().lines().collect();
    assert!(lines.len() == 3 && lines[1].contains("Read-only file system"), "{ran:?}");
    assert_eq!((lines[0], lines[2]), ("tool", "credentials"));
    Ok(())
}

fn enforces_resource_limits(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("ulimit -n; ulimit -c; ulimit -t");
    assert_eq!(bench.run(&step)?.stdout_of_success(), "256\n0\n20");
    let core = "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0)); print(r.getrlimit(r.RLIMIT_CORE))";
    step.argv = TestCommand::new(&["/usr/bin/python3", "-c", core]).argv;
    let most = rustix::process::getrlimit(rustix::process::Resource::Core).maximum.map_or(1, |own| own.min(1));
    let expected = format!("({most}, {most})");
    assert_eq!(
        bench.run(&step)?.stdout_of_success(),
        expected,
        "with 0 the kernel starts the host's handler of core dumps"
    );
    step.limits.pids = Limit::Max(8);
    let forks = "import os, time\nn = 0\ntry:\n  while n < 100:\n    if os.fork() == 0: time.sleep(1000)\n    n += 1\nexcept OSError: pass\nprint(n)";
    step.argv = TestCommand::new(&["/usr/bin/python3", "-c", forks]).argv;
    assert_eq!(bench.run(&step)?.stdout_of_success(), "7", "python itself is the eighth");
    step.limits.pids = Limit::Max(64);
    step.limits.memory = Limit::Max(256 << 20);
    let memory = "\ntry: bytearray(512 << 20)\nexcept MemoryError: print('no')";
    step.argv = TestCommand::new(&["/usr/bin/python3", "-c", memory]).argv;
    let balloon = bench.run(&step)?;
    match bench.launcher.control_groups() {
        Ok(_) => assert_eq!(balloon.limit(), Some(LimitKind::Memory), "{balloon:?}"),
        Err(_) => assert_eq!(balloon.stdout_of_success(), "no"),
    }
    Ok(())
}

fn limits_cpu_time(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("while :; do :; done");
    step.limits.cpu_seconds = Limit::Max(1);
    let burnt = bench.run(&step)?.status();
    assert!(matches!(burnt, Some(WaitStatus::Signal(9 | 24))), "{burnt:?}");
    // No single process uses a second of CPU time, but all of them together use more.
    let children = "import os, time\nfor _ in range(40):\n  if os.fork() == 0:\n    end = time.process_time() + 0.2\n    while time.process_time() < end: pass\n    os._exit(0)\n  os.wait()\n";
    step.argv = TestCommand::new(&["/usr/bin/python3", "-c", children]).argv;
    let burnt = bench.run(&step)?;
    assert_eq!(burnt.limit(), Some(LimitKind::CpuSeconds), "{burnt:?}");
    // The parent ignores SIGCHLD, so the kernel adds the children's CPU time to no process.
    let unwaited = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nfor _ in range(40):\n  read, write = os.pipe()\n  if os.fork() == 0:\n    end = time.process_time() + 0.5\n    while time.process_time() < end: pass\n    os._exit(0)\n  os.close(write)\n  os.read(read, 1)\n";
    step.argv = TestCommand::new(&["/usr/bin/python3", "-c", unwaited]).argv;
    let burnt = bench.run(&step)?;
    assert_eq!(burnt.limit(), Some(LimitKind::CpuSeconds), "{burnt:?}");
    // The children end before a check of the processes sees their time, so only a control group counts it.
    if !bench.role.has_no_namespaces() && bench.launcher.control_groups().is_ok() {
        step.argv =
            TestCommand::new(&["/usr/bin/python3", "-c", &unwaited.replace("0.5", "0.01").replace("40", "800")]).argv;
        let burnt = bench.run(&step)?;
        assert_eq!(burnt.limit(), Some(LimitKind::CpuSeconds), "{burnt:?}");
    }
    Ok(())
}

/// A file costs kernel memory that no limit in bytes counts.
fn limits_files_in_scratch_directories(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let count =
        "import os\nfor d in ('/tmp', '/var/tmp', '/dev/shm', os.environ['HOME']): print(os.statvfs(d).f_files)";
    let mut step = TestCommand::new(&["/usr/bin/python3", "-c", count]);
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    assert_eq!(bench.run(&step)?.stdout_of_success(), ["4096"; 4].join("\n"), "the least that there is");
    Ok(())
}

fn reports_full_layer_to_step(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let fill = "for d in . /tmp /dev/shm; do for f in 1 2 3 4; do head -c 12M /dev/zero > $d/$f; done; du -sm $d; done";
    let ran = bench.run(&TestCommand::shell(fill))?;
    assert!(ran.stderr.matches("No space left on device").count() >= 3, "{ran:?}");
    let sparse = bench.run(&TestCommand::shell("truncate -s 1G big"))?;
    assert_ne!(sparse.status(), Some(WaitStatus::Code(0)), "{sparse:?}");
    Ok(())
}

/// Only root can mount a file system there.
fn refuses_mount_in_repository(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if bench.role == UserRole::User {
        return Ok(());
    }
    let at = bench.repo.join("src");
    environment::enter_mount_namespace()?;
    nix::mount::mount(None::<&str>, &at, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    // The launcher and the run space are new: those of the first bench were made before the mount.
    let bench = SandboxTestEnv::with_existing_files(bench.role, &bench.root)?;
    let ran = bench.run(&TestCommand::shell("true"))?;
    match ran.reports.as_slice() {
        [SandboxEvent::Refused { control: Control::Layer, message, hint }] => {
            assert!(message.contains(&at.display().to_string()) && hint.contains("umount"), "{message} {hint}");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// The file system of the repository is an overlay, which cannot map owners. For another user's repository nothing
/// needs to be mapped.
fn refuses_unmappable_repository(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if bench.role == UserRole::User {
        return Ok(());
    }
    environment::enter_mount_namespace()?;
    let options = format!("lowerdir={}:{}", bench.repo.display(), bench.home.display());
    nix::mount::mount(Some("overlay"), &bench.repo, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
    let bench = SandboxTestEnv::with_existing_files(bench.role, &bench.root)?;
    let ran = bench.run(&TestCommand::shell("cat tracked.txt"))?;
    match ran.reports.as_slice() {
        [SandboxEvent::Refused { control: Control::UserNamespace, hint, .. }] if bench.role == UserRole::RootOwn => {
            assert!(hint.contains("chown"), "{hint}");
            Ok(())
        }
        _ if bench.role == UserRole::RootForeign => {
            assert_eq!(ran.stdout_of_success(), "as it was");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// The kernel stacks two overlays but not three, and maps the owners of none. An ordinary user can cause neither
/// case.
fn falls_back_to_copy_without_overlay(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (overlays, lacks) = match bench.role {
        UserRole::RootForeign => (2, Control::Layer),
        UserRole::RootOwn => (1, Control::UserNamespace),
        _ => return Ok(()),
    };
    environment::enter_mount_namespace()?;
    let options = format!("lowerdir={}:{}", bench.repo.display(), bench.home.display());
    for _ in 0..overlays {
        nix::mount::mount(Some("overlay"), &bench.repo, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
    }
    let bench = SandboxTestEnv::with_existing_files(bench.role, &bench.root)?;
    let strict = bench.run(&TestCommand::shell("true"))?;
    let is_refused = matches!(strict.reports.as_slice(), [SandboxEvent::Refused { control, .. }] if *control == lacks);
    assert!(is_refused, "{strict:?}");

    let mut step = TestCommand::shell(
        "pwd; echo x >> tracked.txt; rm -r src; mkdir new; echo y > new/y; echo x > .git/HEAD; echo k > c/k",
    );
    step.caches = vec![cache(&bench, "c")?];
    let mut policy = bench.policy(&step)?;
    policy.tolerated = [Control::Cgroup, Control::Layer].into_iter().collect();
    let first = bench.run_policy(&policy, &[])?;
    assert_eq!(first.stdout_of_success(), bench.repo.display().to_string(), "{first:?}");
    assert!(first.stderr.contains("Read-only file system"), "{first:?}");
    assert_eq!(environment::names(first.layer.upper())?, ["new", "src", "tracked.txt"]);
    let missing: Vec<_> = first.enforcement().missing().map(|(control, _)| control).collect();
    assert!(missing.contains(&Control::Layer) && missing.len() <= 2, "{missing:?}");
    policy.argv = proctor_core::model::plan::Argv::new(
        ["sh", "-c", "ls; cat tracked.txt new/y c/k; echo $(id -u) $(stat -c %u .)"].map(str::to_owned).into(),
    )?;
    let second = bench.run_policy(&policy, &[&first.layer])?;
    let uid = StepUser::choose(bench.launcher.host(), &bench.facts)?.uid();
    let seen = format!("c\nlink\nnew\nsecret\ntracked.txt\nas it was\nx\ny\nk\n{uid} {uid}");
    assert_eq!(second.stdout_of_success(), seen, "{second:?}");
    assert_eq!(environment::names(second.layer.upper())?, [""; 0]);
    Ok(())
}

fn refuses_home_in_repository(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut policy = bench.policy(&TestCommand::shell("true"))?;
    for home in [bench.repo.clone(), bench.repo.join("src")] {
        policy.home = home;
        assert!(bench.launcher.spawn(&bench.space, &[], &bench.facts, &policy).is_err());
    }
    let whole = SandboxTestEnv::with_state_dir(bench.role, &bench.root, &bench.repo.join("state"))?;
    assert!(whole.run(&TestCommand::shell("true")).is_err(), "a state directory in the repository shows up in itself");
    Ok(())
}

fn refuses_replaced_repository(bench: &SandboxTestEnv) -> Result<(), Failed> {
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
fn refuses_path_that_became_link(bench: &SandboxTestEnv) -> Result<(), Failed> {
    std::os::unix::fs::symlink(&bench.root, bench.root.join("swapped"))?;
    let (plain, swapped) = (bench.policy(&TestCommand::shell("ls"))?, bench.root.join("swapped/repo"));
    let repo = Policy { repo: swapped.clone(), ..plain.clone() };
    let git = GitDirs { common: Some(swapped.join(".git")), ..plain.git.clone() };
    for (policy, control) in [(repo, Control::Layer), (Policy { git, ..plain }, Control::GitReadOnly)] {
        let ran = bench.run_policy(&policy, &[])?;
        let is_refused =
            matches!(ran.reports.as_slice(), [SandboxEvent::Refused { control: named, .. }] if *named == control);
        assert!(is_refused, "{control:?}: {ran:?}");
    }
    Ok(())
}

fn keeps_run_space_without_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench.run(&TestCommand::shell("echo kept > file"))?;
    environment::wait_for_no_children()?;
    assert_eq!(environment::content(ran.layer.upper(), "file")?, "kept\n");
    assert_eq!(fs::read_dir(bench.root.join("state/space"))?.count(), 0, "on the host nothing is mounted");
    Ok(())
}

/// A sandbox that became ready long before its command works too, and the next command sees nothing of the previous
/// one.
fn prepared_sandbox_serves_one_command(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let step = TestCommand::shell(
        "test ! -e /tmp/left && test ! -e new && echo left > /tmp/left && echo new > new && cat new",
    );
    bench.launcher.warm(&bench.space, &[], &bench.facts, &bench.policy(&step)?, 2)?;
    let began = std::time::Instant::now();
    while bench.space.ready_count() < 2 {
        assert!(began.elapsed().as_secs() < 30, "only {} got ready", bench.space.ready_count());
        std::thread::yield_now();
    }
    for left in [1, 0, 0] {
        let ran = bench.run(&step)?;
        assert_eq!(ran.stdout_of_success(), "new", "nothing of the one before is there");
        assert_eq!(bench.space.ready_count(), left, "each serves one, and then they are made when asked for");
    }
    bench.launcher.warm(&bench.space, &[], &bench.facts, &bench.policy(&step)?, 1)?;
    let mut other = TestCommand::shell("ulimit -n");
    other.limits.open_files = Limit::Max(99);
    assert_eq!(bench.run(&other)?.stdout_of_success(), "99", "one that is made for other limits is not taken");
    Ok(())
}

/// The sandbox serves over the layers that it was made for, and over others. In the latter case the mounts for the
/// expected layers are removed, and git's directory and the caches are mounted again.
fn prepared_sandbox_serves_over_any_layers(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell(
        "cat f 2>/dev/null || echo none; echo mine > f
         test -f .git/HEAD && ! touch .git/HEAD 2>/dev/null && echo more >> cache/f && wc -l < cache/f
         grep -c \" $PWD .* - overlay \" /proc/self/mountinfo",
    );
    step.git = true;
    step.caches.push(cache(bench, "cache")?);
    let ready = |step: &TestCommand, lowers: &[&proctor_sandbox::Layer<proctor_sandbox::Sealed>]| {
        bench.launcher.warm(&bench.space, lowers, &bench.facts, &bench.policy(step)?, 1)?;
        let began = std::time::Instant::now();
        while bench.space.ready_count() == 0 {
            assert!(began.elapsed().as_secs() < 30, "none got ready");
            std::thread::yield_now();
        }
        Ok::<_, Failed>(())
    };
    let first = bench.run(&TestCommand::shell("echo first > f"))?;
    for (run, (made_for, run_over, seen)) in (1..).zip([
        (vec![&first.layer], vec![&first.layer], "first"),
        (vec![], vec![&first.layer], "first"),
        (vec![&first.layer], vec![], "none"),
    ]) {
        ready(&step, &made_for)?;
        let ran = bench.run_over(&step, &run_over)?;
        assert_eq!(ran.stdout_of_success(), format!("{seen}\n{run}\n1"), "{ran:?}");
        assert_eq!(bench.space.ready_count(), 0);
        assert_eq!(environment::content(ran.layer.upper(), "f")?, "mine\n");
    }
    assert_eq!(environment::content(first.layer.upper(), "f")?, "first\n");
    // If the expected layers lack a mount point for a cache, none is created in the layer of the attempt, since it
    // would hide entries of the actual layers.
    let gone = bench.run(&TestCommand::shell("rm -r src"))?;
    let back = bench.run_over(&TestCommand::shell("mkdir src && echo back > src/f"), &[&gone.layer])?;
    let mut step = TestCommand::shell("cat src/f && test -d src/cache && ls src");
    step.caches.push(cache(bench, "src/cache")?);
    ready(&step, &[&gone.layer])?;
    let ran = bench.run_over(&step, &[&back.layer, &gone.layer])?;
    assert_eq!(ran.stdout_of_success(), "back\ncache\nf");
    Ok(())
}

fn discarding_layer_frees_space(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "mkdir -p a/b && head -c 12M /dev/zero > a/b/c && mkfifo a/f && ln -s /etc a/l && chmod 0 a/b/c a/b a";
    let fill = TestCommand::shell(script);
    for _ in 0..4 {
        let ran = bench.run(&fill)?;
        assert_eq!(ran.stdout_of_success(), "");
        ran.layer.discard()?;
    }
    Ok(())
}

/// The path of the last directory is longer than the kernel accepts, and there are more directories than open files.
fn discards_deep_layer(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let dig = "import os\nfor _ in range(1000):\n  os.mkdir('deeper')\n  os.chdir('deeper')\n  open('f', 'w').close()";
    let ran = bench.run(&TestCommand::new(&["/usr/bin/python3", "-c", dig]))?;
    assert_eq!(ran.stdout_of_success(), "");
    let few = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few)?;
    ran.layer.discard()?;
    Ok(())
}

fn reports_every_control(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("true");
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
    if bench.role.has_no_namespaces() {
        return Ok(());
    }
    let groups = bench.launcher.control_groups();
    assert_eq!(not_enforced.len(), usize::from(groups.is_err()), "but the control group: {not_enforced:?}, {groups:?}");
    Ok(())
}

fn doctor_finds_nothing_missing(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let report = doctor(&bench.launcher, &bench.repo);
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!(report.root, bench.role.is_set_up_by_root());
    if bench.role.has_no_namespaces() {
        assert_eq!(report.enforcement.0.len(), Control::ALL.len(), "{report:?}");
        return Ok(());
    }
    let missing: Vec<_> = report.enforcement.missing().map(|(control, _)| control).collect();
    let groups = bench.launcher.control_groups();
    assert_eq!(missing, if groups.is_ok() { vec![] } else { vec![Control::Cgroup] }, "{groups:?}");
    assert!(!report.enforcement.0.is_empty());
    Ok(())
}
