//! Tests of sandboxes that serve several commands, one after another: which ones do, what the next command finds, and
//! that anything left behind ends the sandbox.

use libtest_mimic::Failed;
use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::Limit;
use proctor_sandbox::{Layer, RunSpace, RunSpaceConfig, SandboxEvent, SandboxReuse, Sealed, WaitStatus};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::caches::cache;
use crate::environment::{SandboxTestEnv, TestCommand, children, collect_events, read_line, wait_readable};

/// The results of a command, and whether its sandbox waits for another one.
struct ServedCommand {
    reports: Vec<SandboxEvent>,
    stdout: String,
    stderr: String,
    is_reusable: bool,
}

impl ServedCommand {
    fn stdout_of_success(&self) -> &str {
        let status = self.reports.last();
        let ended = matches!(status, Some(SandboxEvent::Exited { status: WaitStatus::Code(0), .. }));
        assert!(ended, "{:?}, {}{}", status, self.stdout, self.stderr);
        self.stdout.trim_end()
    }
}

/// Runs a command in a waiting sandbox if there is one, and puts the sandbox back.
fn serve(bench: &SandboxTestEnv, step: &TestCommand) -> Result<ServedCommand, Failed> {
    serve_over(bench, step, &[])
}

fn serve_over(bench: &SandboxTestEnv, step: &TestCommand, lowers: &[&Layer<Sealed>]) -> Result<ServedCommand, Failed> {
    let mut policy = bench.policy(step)?;
    policy.env.insert("HOME".to_owned(), bench.home.display().to_string());
    let (running, layer) = bench.launcher.spawn(&bench.space, lowers, &bench.facts, &policy)?;
    let reports = collect_events(&running)?;
    let (stdout, stderr) =
        (crate::environment::read_to_end(&running.stdout)?, crate::environment::read_to_end(&running.stderr)?);
    let layer = layer.seal();
    let serves_on = running.is_reusable() && layer.is_empty();
    if serves_on {
        bench.launcher.return_to_pool(&bench.space, lowers, &bench.facts, &policy, running, layer);
    }
    Ok(ServedCommand { reports, stdout, stderr, is_reusable: serves_on })
}

/// A script that prints everything a command can find out about its sandbox.
const INSPECT_SCRIPT: &str = "pwd; umask; env | sort; id; ls -la --time-style=full-iso /tmp /var/tmp /dev/shm \"$HOME\" . /dev/pts; \
    cat /proc/net/dev /proc/net/unix /proc/sysvipc/shm; sed -E 's/ (orphan|alloc|mem) [0-9]+//g' /proc/net/sockstat; ulimit -a; ulimit -Ha; \
    ls /proc/self/fd; cat /proc/self/limits; grep -E '^(Sig|Cap|NoNew|Seccomp|Cpus_allowed)' /proc/self/status; \
    cut -d' ' -f19 /proc/self/stat; cat /proc/1/oom_score_adj; \
    stat -c '%n %f %h %s %X %Y %Z' . /tmp /var/tmp /dev/shm \"$HOME\" /dev /dev/* /dev/pts/ptmx /proc/sys; \
    df --output=used,iused /tmp; cat /proc/net/snmp /proc/net/snmp6 /proc/net/igmp /proc/net/igmp6 /proc/sysvipc/*; \
    cat /proc/net/ip6_flowlabel /proc/self/projid_map 2>/dev/null; uname -n; cat /proc/sys/kernel/domainname /proc/self/timens_offsets /proc/locks";

pub(crate) fn later_command_finds_same_state(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut first = String::new();
    let mut helpers = Vec::new();
    for turn in 0..6 {
        let served = serve(bench, &TestCommand::shell(INSPECT_SCRIPT))?;
        let look = served.stdout_of_success().to_owned();
        assert!(served.is_reusable, "turn {turn}: {look}");
        if turn == 0 {
            (first, helpers) = (look, children()?);
        } else {
            let other: Vec<_> = look.lines().zip(first.lines()).filter(|(now, then)| now != then).collect();
            assert!(other.is_empty() && look.len() == first.len(), "turn {turn}: {other:#?}");
            assert_eq!(children()?, helpers, "turn {turn}: the same sandbox");
        }
    }
    assert_eq!(helpers.len(), 1);
    Ok(())
}

pub(crate) fn reports_resources_of_each_command(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let used = |served: &ServedCommand| match served.reports.last() {
        Some(SandboxEvent::Exited { resources, .. }) => resources.clone(),
        other => panic!("{other:?}"),
    };
    let mut big =
        TestCommand::new(&["/usr/bin/python3", "-c", "x = bytearray(64 << 20); sum(range(3_000_000)); print('big')"]);
    let mut small = TestCommand::shell("echo out; echo err >&2; exit 3");
    (big.limits.memory, small.limits.memory) = (Limit::Max(1 << 30), Limit::Max(1 << 30));
    let first = serve(bench, &big)?;
    assert_eq!(first.stdout_of_success(), "big");
    let second = serve(bench, &small)?;
    assert!(first.is_reusable && second.is_reusable);
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("out\n", "err\n"));
    assert!(matches!(second.reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Code(3), .. })));
    let (big, small) = (used(&first), used(&second));
    assert!(small.max_rss_kib < big.max_rss_kib / 2, "{big:?}, {small:?}");
    assert!(small.user_ms + small.system_ms < big.user_ms + big.system_ms, "{big:?}, {small:?}");
    if let (Some(big), Some(small)) = (big.memory_peak_kib, small.memory_peak_kib) {
        assert!(small < big, "the group's peak is that of one command: {big} KiB, {small} KiB");
    }
    match (&first.reports[0], &second.reports[0]) {
        (SandboxEvent::Ready { enforcement: first }, SandboxEvent::Ready { enforcement: second }) => {
            assert_eq!(first, second);
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// Returns the number of processes that a command left behind.
fn leftover_count(served: &ServedCommand) -> Option<u64> {
    match served.reports.last() {
        Some(SandboxEvent::Exited { leaked, .. }) => leaked.as_ref().map(|leaked| leaked.processes),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn reports_leftovers_of_each_command(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let leaving =
        TestCommand::shell("sleep 1000 </dev/null >/dev/null 2>&1 & setsid sleep 1000 </dev/null >/dev/null 2>&1 &");
    let ending = TestCommand::shell("(sleep 0.02) </dev/null >/dev/null 2>&1 &");
    for _ in 0..2 {
        let (first, second) = (serve(bench, &TestCommand::shell("true"))?, serve(bench, &leaving)?);
        assert_eq!((leftover_count(&first), first.is_reusable), (None, true));
        assert_eq!((leftover_count(&second), second.is_reusable), (Some(2), false));
    }
    assert_eq!(leftover_count(&serve(bench, &ending)?), None);
    assert_eq!(leftover_count(&serve(bench, &TestCommand::shell("true"))?), None);
    Ok(())
}

/// Objects that a command can leave behind: a name, and a shell script. The sandbox serves no other command after any
/// of them. Some scripts wait for a clock tick first: setting a time to now within the tick in which the sandbox was
/// made changes nothing.
const LEFTOVER_CASES: &[(&str, &str)] = &[
    ("a file in /tmp", "touch /tmp/x"),
    ("a hidden file in /var/tmp", "touch /var/tmp/.x"),
    ("shared memory by its name", "touch /dev/shm/x"),
    ("a file in the home", "touch \"$HOME/.profile\""),
    ("a directory in the home", "mkdir -p \"$HOME/.config/x\""),
    ("a link in /tmp", "ln -s / /tmp/x"),
    ("a FIFO", "mkfifo /tmp/x"),
    ("a file that has come and gone", "touch /tmp/x; rm /tmp/x"),
    ("a change of the home's time", "touch -d 2001-01-01 \"$HOME\""),
    ("a change of the home's mode", "chmod 700 \"$HOME\"; chmod 711 \"$HOME\""),
    ("an attribute of the home", "python3 -c 'import os; os.setxattr(os.environ[\"HOME\"], \"user.x\", b\"1\")'"),
    ("a file of the repository", "echo >> tracked.txt"),
    ("a new file of the repository", "touch new"),
    ("the mode of the repository", "chmod 777 ."),
    ("a removal", "rm tracked.txt"),
    ("a process in a separate session", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & sleep 0"),
    ("an orphaned process", "sleep 1000 </dev/null >/dev/null 2>&1 &"),
    ("a segment of System V", "ipcmk -M 4096 >/dev/null"),
    ("a semaphore of System V", "ipcmk -S 1 >/dev/null"),
    ("a queue of System V", "ipcmk -Q >/dev/null"),
    ("a segment of System V that has come and gone", "ipcrm -m $(ipcmk -M 4096 | tr -dc 0-9)"),
    ("a semaphore of System V that has come and gone", "ipcrm -s $(ipcmk -S 1 | tr -dc 0-9)"),
    ("a queue of System V that has come and gone", "ipcrm -q $(ipcmk -Q | tr -dc 0-9)"),
    (
        "the mode or the time of the terminal multiplexer",
        "chmod 600 /dev/pts/ptmx || { sleep 0.05; touch -c /dev/pts/ptmx; }",
    ),
    ("the mode of the directory of terminals", "chmod 700 /dev/pts || { sleep 0.05; touch -c /dev/pts/ptmx; }"),
    ("an attribute of the repository", "python3 -c 'import os; os.setxattr(\".\", \"user.x\", b\"1\")'"),
    ("a time of access", "touch -a -d 2001-01-01 \"$HOME\""),
    (
        "a packet that goes nowhere",
        "python3 -c 'import socket as s; a = s.socket(s.AF_INET, s.SOCK_DGRAM)\ntry: a.sendto(b\"x\", (\"192.0.2.1\", 9))\nexcept OSError: pass'",
    ),
    (
        "packets on the loopback device",
        "python3 -c 'import socket as s; a = s.socket(s.AF_INET, s.SOCK_DGRAM); a.sendto(b\"x\", (\"127.0.0.1\", 9))'",
    ),
    (
        "a connection that waits for its end",
        "python3 -c 'import socket as s; l = s.create_server((\"127.0.0.1\", 0)); c = s.create_connection(l.getsockname()); \
         d, _ = l.accept(); c.close(); d.close()'",
    ),
    // In the last two cases, a kernel that refuses the operation gets another object.
    (
        "a flow label of IPv6",
        "python3 -c 'import socket as s, struct as t\ntry: s.socket(s.AF_INET6, s.SOCK_DGRAM).setsockopt(s.IPPROTO_IPV6, 32, \
         t.pack(\"!16sI\", s.inet_pton(s.AF_INET6, \"::1\"), 7) + t.pack(\"=BBHHHI\", 0, 255, 1, 99, 99, 0))\n\
         except OSError: open(\"/tmp/x\", \"w\")'",
    ),
    ("the map of project ids", "echo 7 7 1 2>/dev/null >/proc/self/projid_map || touch /tmp/x"),
];

pub(crate) fn leftover_object_ends_sandbox(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for (what, script) in LEFTOVER_CASES {
        // The test runs in a sandbox that has served a command before, and in a new one.
        for turn in ["first", "second"] {
            if turn == "second" {
                // Packets of the kernel itself, such as the first one in a new network namespace, may occasionally
                // count as left behind.
                let mut clean = serve(bench, &TestCommand::shell("true"))?;
                for _ in 0..2 {
                    if !clean.is_reusable {
                        clean = serve(bench, &TestCommand::shell("true"))?;
                    }
                }
                assert!(clean.is_reusable, "before {what}: {:?}", clean.reports.last());
            }
            let served = serve(bench, &TestCommand::shell(script))?;
            assert_eq!(served.stdout_of_success(), "", "{what}");
            assert!(!served.is_reusable, "{what}, as the {turn} command");
        }
    }
    let look = "ls -A /tmp | grep -v proctor-sandbox; ls -A /var/tmp /dev/shm; ipcs | grep -c ' 6[04][04] '; pgrep sleep; true";
    let after = serve(bench, &TestCommand::shell(look))?;
    assert_eq!(after.stdout_of_success(), "/dev/shm:\n\n/var/tmp:\n0");
    Ok(())
}

pub(crate) fn refuses_signals_to_pid_1(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let served =
        serve(bench, &TestCommand::shell("for s in TERM CHLD STOP HUP; do kill -$s 1 2>/dev/null || echo no; done"))?;
    assert_eq!(served.stdout_of_success(), "no\nno\nno\nno");
    assert!(served.is_reusable);
    Ok(())
}

/// `mq_open` creates the queue before Landlock refuses to open it, and no table of the kernel lists queues.
pub(crate) fn refuses_posix_queues(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let make = "import ctypes; c = ctypes.CDLL(None, use_errno=True); \
        print(c.mq_open(b'/x', 0o102, 0o600, None), ctypes.get_errno(), c.mq_unlink(b'/x'), ctypes.get_errno())";
    let served = serve(bench, &TestCommand::new(&["/usr/bin/python3", "-c", make]))?;
    let absent = rustix::io::Errno::NOSYS.raw_os_error();
    assert_eq!(served.stdout_of_success(), format!("-1 {absent} -1 {absent}"));
    Ok(())
}

pub(crate) fn does_not_reuse_sandbox_with_missing_control(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut open = TestCommand::shell("true");
    open.network = proctor_core::model::plan::Network::Allow;
    let served = serve(bench, &open)?;
    assert_eq!(served.stdout_of_success(), "");
    assert!(!served.is_reusable, "the host network is not checked");
    Ok(())
}

pub(crate) fn does_not_reuse_sandbox_if_reuse_is_off(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let bounds = RunSpaceConfig {
        disk_bytes: 1 << 20,
        inodes: 100,
        tolerated: Tolerated::default(),
        reuse: SandboxReuse::Never,
        caches: None,
    };
    let space = RunSpace::create(&bench.launcher, bounds)?;
    let policy = bench.policy(&TestCommand::shell("true"))?;
    let (running, layer) = bench.launcher.spawn(&space, &[], &bench.facts, &policy)?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Code(0), .. })), "{reports:?}");
    assert!(!running.is_reusable() && layer.seal().is_empty());
    Ok(())
}

pub(crate) fn cache_content_is_not_a_leftover(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("cat kept/x 2>/dev/null; echo more >> kept/x");
    step.caches.push(cache(bench, "kept")?);
    for turn in 0..3 {
        let served = serve(bench, &step)?;
        assert_eq!(served.stdout_of_success(), vec!["more"; turn].join("\n"));
        // If the repository has no mount point, the first command's layer contains it, so the sandbox is not
        // reused.
        let _ = served.is_reusable;
    }
    Ok(())
}

pub(crate) fn uses_another_sandbox_for_other_layers(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let read = TestCommand::shell("cat tracked.txt");
    assert!(serve(bench, &read)?.is_reusable);
    let changed = bench.run(&TestCommand::shell("echo changed > tracked.txt"))?;
    let over = serve_over(bench, &read, &[&changed.layer])?;
    assert_eq!(over.stdout_of_success(), "changed");
    assert!(over.is_reusable);
    assert_eq!(serve_over(bench, &read, &[&changed.layer])?.stdout_of_success(), "changed");
    assert_eq!(serve(bench, &read)?.stdout_of_success(), "as it was", "the one over the tree alone waits still");
    Ok(())
}

pub(crate) fn terminates_and_kills_later_command(bench: &SandboxTestEnv) -> Result<(), Failed> {
    assert!(serve(bench, &TestCommand::shell("true"))?.is_reusable);
    let hang = TestCommand::shell(
        "trap 'echo term; exit 7' TERM; setsid sleep 1000 & echo on; while :; do sleep 1000 & wait $!; done",
    );
    let policy = bench.policy(&hang)?;
    let (running, layer) = bench.launcher.spawn(&bench.space, &[], &bench.facts, &policy)?;
    assert_eq!(read_line(&running.stdout)?, "on");
    running.terminate()?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Code(7), .. })), "{reports:?}");
    drop((running, layer));
    assert!(serve(bench, &TestCommand::shell("true"))?.is_reusable);
    let (running, layer) = bench.launcher.spawn(&bench.space, &[], &bench.facts, &policy)?;
    assert_eq!(read_line(&running.stdout)?, "on");
    running.kill()?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Signal(9), .. })), "{reports:?}");
    assert!(!running.is_reusable());
    drop((running, layer));
    let missing = serve(bench, &TestCommand::new(&["/nowhere/program"]))?;
    assert!(matches!(missing.reports.last(), Some(SandboxEvent::NotStarted { .. })), "{:?}", missing.reports);
    Ok(())
}

pub(crate) fn replaces_sandbox_that_died_while_waiting(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for _ in 0..3 {
        assert!(serve(bench, &TestCommand::shell("true"))?.is_reusable);
        for helper in children()? {
            let pid = Pid::from_raw(helper.parse()?).ok_or("no process")?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            pidfd_send_signal(&pidfd, Signal::KILL)?;
            wait_readable(std::os::fd::AsFd::as_fd(&pidfd))?;
        }
        assert_eq!(serve(bench, &TestCommand::shell("echo there"))?.stdout_of_success(), "there");
    }
    Ok(())
}
