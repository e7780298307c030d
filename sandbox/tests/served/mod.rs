//! Tests of sandboxes that serve several commands, one after another: which ones do, what the next command finds, and
//! that anything left behind ends the sandbox.

use libtest_mimic::Failed;
use proctor_core::enforcement::Tolerated;
use proctor_core::plan::Limit;
use proctor_sandbox::{Layer, Report, RunSpace, RunSpaceConfig, Sandboxes, Sealed, WaitStatus};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::bench::{Bench, Step, children, line, readable, until_closed};
use crate::caches::cache;

/// The results of a command, and whether its sandbox waits for another one.
struct Served {
    reports: Vec<Report>,
    stdout: String,
    stderr: String,
    serves_on: bool,
}

impl Served {
    fn printed(&self) -> &str {
        let status = self.reports.last();
        let ended = matches!(status, Some(Report::Exited { status: WaitStatus::Code(0), .. }));
        assert!(ended, "{:?}, {}{}", status, self.stdout, self.stderr);
        self.stdout.trim_end()
    }
}

/// Runs a command in a waiting sandbox if there is one, and puts the sandbox back.
fn serve(bench: &Bench, step: &Step) -> Result<Served, Failed> {
    serve_over(bench, step, &[])
}

fn serve_over(bench: &Bench, step: &Step, lowers: &[&Layer<Sealed>]) -> Result<Served, Failed> {
    let mut policy = bench.policy(step)?;
    policy.env.insert("HOME".to_owned(), bench.home.display().to_string());
    let (running, layer) = bench.launcher.spawn(&bench.space, lowers, &bench.facts, &policy)?;
    let reports = until_closed(&running)?;
    let (stdout, stderr) = (crate::bench::read(&running.stdout)?, crate::bench::read(&running.stderr)?);
    let layer = layer.seal();
    let serves_on = running.serves_on() && layer.is_empty();
    if serves_on {
        bench.launcher.put_back(&bench.space, lowers, &bench.facts, &policy, running, layer);
    }
    Ok(Served { reports, stdout, stderr, serves_on })
}

/// A script that prints everything a command can find out about its sandbox.
const LOOK: &str = "pwd; umask; env | sort; id; ls -la --time-style=full-iso /tmp /var/tmp /dev/shm \"$HOME\" . /dev/pts; \
    cat /proc/net/dev /proc/net/unix /proc/sysvipc/shm; sed -E 's/ (orphan|alloc|mem) [0-9]+//g' /proc/net/sockstat; ulimit -a; ulimit -Ha; \
    ls /proc/self/fd; cat /proc/self/limits; grep -E '^(Sig|Cap|NoNew|Seccomp|Cpus_allowed)' /proc/self/status; \
    cut -d' ' -f19 /proc/self/stat; cat /proc/1/oom_score_adj; \
    stat -c '%n %f %h %s %X %Y %Z' . /tmp /var/tmp /dev/shm \"$HOME\" /dev /dev/* /dev/pts/ptmx /proc/sys; \
    df --output=used,iused /tmp; cat /proc/net/snmp /proc/net/snmp6 /proc/net/igmp /proc/net/igmp6 /proc/sysvipc/*; \
    uname -n; cat /proc/sys/kernel/domainname /proc/self/timens_offsets /proc/locks";

pub(crate) fn a_command_behind_another_finds_what_the_first_one_found(bench: &Bench) -> Result<(), Failed> {
    let mut first = String::new();
    let mut helpers = Vec::new();
    for turn in 0..6 {
        let served = serve(bench, &Step::sh(LOOK))?;
        let look = served.printed().to_owned();
        assert!(served.serves_on, "turn {turn}: {look}");
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

pub(crate) fn each_command_is_told_of_as_if_it_were_alone(bench: &Bench) -> Result<(), Failed> {
    let used = |served: &Served| match served.reports.last() {
        Some(Report::Exited { resources, .. }) => resources.clone(),
        other => panic!("{other:?}"),
    };
    let mut big =
        Step::new(&["/usr/bin/python3", "-c", "x = bytearray(64 << 20); sum(range(3_000_000)); print('big')"]);
    let mut small = Step::sh("echo out; echo err >&2; exit 3");
    (big.limits.memory, small.limits.memory) = (Limit::Max(1 << 30), Limit::Max(1 << 30));
    let first = serve(bench, &big)?;
    assert_eq!(first.printed(), "big");
    let second = serve(bench, &small)?;
    assert!(first.serves_on && second.serves_on);
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("out\n", "err\n"));
    assert!(matches!(second.reports.last(), Some(Report::Exited { status: WaitStatus::Code(3), .. })));
    let (big, small) = (used(&first), used(&second));
    assert!(small.max_rss_kib < big.max_rss_kib / 2, "{big:?}, {small:?}");
    assert!(small.user_ms + small.system_ms < big.user_ms + big.system_ms, "{big:?}, {small:?}");
    if let (Some(big), Some(small)) = (big.memory_peak_kib, small.memory_peak_kib) {
        assert!(small < big, "the group's peak is that of one command: {big} KiB, {small} KiB");
    }
    match (&first.reports[0], &second.reports[0]) {
        (Report::Ready { enforcement: first }, Report::Ready { enforcement: second }) => assert_eq!(first, second),
        other => panic!("{other:?}"),
    }
    Ok(())
}

/// Returns the number of processes that a command left behind.
fn left(served: &Served) -> Option<u64> {
    match served.reports.last() {
        Some(Report::Exited { leaked, .. }) => leaked.as_ref().map(|leaked| leaked.processes),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn each_command_is_charged_with_its_own_processes_alone(bench: &Bench) -> Result<(), Failed> {
    let leaving = Step::sh("sleep 1000 </dev/null >/dev/null 2>&1 & setsid sleep 1000 </dev/null >/dev/null 2>&1 &");
    let ending = Step::sh("(sleep 0.02) </dev/null >/dev/null 2>&1 &");
    for _ in 0..2 {
        let (first, second) = (serve(bench, &Step::sh("true"))?, serve(bench, &leaving)?);
        assert_eq!((left(&first), first.serves_on), (None, true));
        assert_eq!((left(&second), second.serves_on), (Some(2), false));
    }
    assert_eq!(left(&serve(bench, &ending)?), None);
    assert_eq!(left(&serve(bench, &Step::sh("true"))?), None);
    Ok(())
}

/// Objects that a command can leave behind: a name, and a shell script. The sandbox serves no other command after any
/// of them. Some scripts wait for a clock tick first: setting a time to now within the tick in which the sandbox was
/// made changes nothing.
const LEAVINGS: &[(&str, &str)] = &[
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
    ("a process in a session of its own", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & sleep 0"),
    ("a process that nobody waits for", "sleep 1000 </dev/null >/dev/null 2>&1 &"),
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
];

pub(crate) fn whatever_is_left_ends_the_sandbox(bench: &Bench) -> Result<(), Failed> {
    for (what, script) in LEAVINGS {
        // In a sandbox that has served a command before, and in a new one.
        for turn in ["first", "second"] {
            if turn == "second" {
                // Packets of the kernel itself, such as the first one in a new network namespace, may occasionally
                // count as left behind.
                let mut clean = serve(bench, &Step::sh("true"))?;
                for _ in 0..2 {
                    if !clean.serves_on {
                        clean = serve(bench, &Step::sh("true"))?;
                    }
                }
                assert!(clean.serves_on, "before {what}: {:?}", clean.reports.last());
            }
            let served = serve(bench, &Step::sh(script))?;
            assert_eq!(served.printed(), "", "{what}");
            assert!(!served.serves_on, "{what}, as the {turn} command");
        }
    }
    let look = "ls -A /tmp | grep -v proctor-sandbox; ls -A /var/tmp /dev/shm; ipcs | grep -c ' 6[04][04] '; pgrep sleep; true";
    let after = serve(bench, &Step::sh(look))?;
    assert_eq!(after.printed(), "/dev/shm:\n\n/var/tmp:\n0");
    Ok(())
}

pub(crate) fn pid_1_cannot_be_signalled(bench: &Bench) -> Result<(), Failed> {
    let served = serve(bench, &Step::sh("for s in TERM CHLD STOP HUP; do kill -$s 1 2>/dev/null || echo no; done"))?;
    assert_eq!(served.printed(), "no\nno\nno\nno");
    assert!(served.serves_on);
    Ok(())
}

/// `mq_open` creates the queue before Landlock refuses to open it, and no table of the kernel lists queues.
pub(crate) fn refuses_posix_queues_and_leaves_none(bench: &Bench) -> Result<(), Failed> {
    let make = "import ctypes; c = ctypes.CDLL(None, use_errno=True); \
        print(c.mq_open(b'/x', 0o102, 0o600, None), ctypes.get_errno(), c.mq_unlink(b'/x'), ctypes.get_errno())";
    let served = serve(bench, &Step::new(&["/usr/bin/python3", "-c", make]))?;
    let absent = rustix::io::Errno::NOSYS.raw_os_error();
    assert_eq!(served.printed(), format!("-1 {absent} -1 {absent}"));
    Ok(())
}

pub(crate) fn a_sandbox_without_all_of_its_controls_serves_once(bench: &Bench) -> Result<(), Failed> {
    let mut open = Step::sh("true");
    open.network = proctor_core::plan::Network::Allow;
    let served = serve(bench, &open)?;
    assert_eq!(served.printed(), "");
    assert!(!served.serves_on, "the host's network is not looked at");
    Ok(())
}

pub(crate) fn where_each_command_has_its_own_none_serves_on(bench: &Bench) -> Result<(), Failed> {
    let bounds = RunSpaceConfig {
        disk_bytes: 1 << 20,
        inodes: 100,
        tolerated: Tolerated::default(),
        sandboxes: Sandboxes::ForOne,
        caches: None,
    };
    let space = RunSpace::create(&bench.launcher, bounds)?;
    let policy = bench.policy(&Step::sh("true"))?;
    let (running, layer) = bench.launcher.spawn(&space, &[], &bench.facts, &policy)?;
    let reports = until_closed(&running)?;
    assert!(matches!(reports.last(), Some(Report::Exited { status: WaitStatus::Code(0), .. })), "{reports:?}");
    assert!(!running.serves_on() && layer.seal().is_empty());
    Ok(())
}

pub(crate) fn what_a_cache_keeps_is_no_leaving(bench: &Bench) -> Result<(), Failed> {
    let mut step = Step::sh("cat kept/x 2>/dev/null; echo more >> kept/x");
    step.caches.push(cache(bench, "kept")?);
    for turn in 0..3 {
        let served = serve(bench, &step)?;
        assert_eq!(served.printed(), vec!["more"; turn].join("\n"));
        // If the repository has no mount point, the first command's layer contains it, so the sandbox is not
        // reused.
        let _ = served.serves_on;
    }
    Ok(())
}

pub(crate) fn a_command_over_other_layers_gets_another_sandbox(bench: &Bench) -> Result<(), Failed> {
    let read = Step::sh("cat tracked.txt");
    assert!(serve(bench, &read)?.serves_on);
    let changed = bench.run(&Step::sh("echo changed > tracked.txt"))?;
    let over = serve_over(bench, &read, &[&changed.layer])?;
    assert_eq!(over.printed(), "changed");
    assert!(over.serves_on);
    assert_eq!(serve_over(bench, &read, &[&changed.layer])?.printed(), "changed");
    assert_eq!(serve(bench, &read)?.printed(), "as it was", "the one over the tree alone waits still");
    Ok(())
}

pub(crate) fn a_later_command_is_ended_like_a_first_one(bench: &Bench) -> Result<(), Failed> {
    assert!(serve(bench, &Step::sh("true"))?.serves_on);
    let hang =
        Step::sh("trap 'echo term; exit 7' TERM; setsid sleep 1000 & echo on; while :; do sleep 1000 & wait $!; done");
    let policy = bench.policy(&hang)?;
    let (running, layer) = bench.launcher.spawn(&bench.space, &[], &bench.facts, &policy)?;
    assert_eq!(line(&running.stdout)?, "on");
    running.terminate()?;
    let reports = until_closed(&running)?;
    assert!(matches!(reports.last(), Some(Report::Exited { status: WaitStatus::Code(7), .. })), "{reports:?}");
    drop((running, layer));
    assert!(serve(bench, &Step::sh("true"))?.serves_on);
    let (running, layer) = bench.launcher.spawn(&bench.space, &[], &bench.facts, &policy)?;
    assert_eq!(line(&running.stdout)?, "on");
    running.kill()?;
    let reports = until_closed(&running)?;
    assert!(matches!(reports.last(), Some(Report::Exited { status: WaitStatus::Signal(9), .. })), "{reports:?}");
    assert!(!running.serves_on());
    drop((running, layer));
    let missing = serve(bench, &Step::new(&["/nowhere/program"]))?;
    assert!(matches!(missing.reports.last(), Some(Report::NotStarted { .. })), "{:?}", missing.reports);
    Ok(())
}

pub(crate) fn one_that_dies_while_it_waits_is_replaced(bench: &Bench) -> Result<(), Failed> {
    for _ in 0..3 {
        assert!(serve(bench, &Step::sh("true"))?.serves_on);
        for helper in children()? {
            let pid = Pid::from_raw(helper.parse()?).ok_or("no process")?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            pidfd_send_signal(&pidfd, Signal::KILL)?;
            readable(std::os::fd::AsFd::as_fd(&pidfd))?;
        }
        assert_eq!(serve(bench, &Step::sh("echo there"))?.printed(), "there");
    }
    Ok(())
}
