//! Tests of memory that the kernel charges to no process, and of the limit that applies if the plan sets none.

use libtest_mimic::Failed;
use proctor_core::model::enforcement::{Control, ControlState};
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::Limit;

use crate::environment::{SandboxTestEnv, TestCommand};

/// The kernel charges socket buffers to no process, and a control group of version 1 counts those of network sockets
/// separately.
pub(crate) fn limits_socket_buffers(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let fill = "import socket as s, sys, time\n\
        def fill(a, b):\n  a.setblocking(False)\n  try:\n    while True: a.send(bytes(65536))\n  except BlockingIOError: pass\n\
        kept = []\n\
        for _ in range(int(sys.argv[2])):\n\
        \u{20} if sys.argv[1] == 'unix': pair = s.socketpair()\n\
        \u{20} else:\n    l = s.create_server(('127.0.0.1', 0)); c = s.create_connection(l.getsockname()); pair = (c, l.accept()[0]); l.close()\n\
        \u{20} fill(*pair); kept.append(pair)\n\
        time.sleep(1)\nprint('held')\n";
    for kind in ["unix", "tcp"] {
        let mut step = TestCommand::new(&["/usr/bin/python3", "-c", fill, kind, "4"]);
        step.limits.open_files = Limit::Max(4096);
        step.limits.memory = Limit::Max(64 << 20);
        assert_eq!(bench.run(&step)?.stdout_of_success(), "held", "a few of them are no matter");
        step.argv = TestCommand::new(&["/usr/bin/python3", "-c", fill, kind, "1500"]).argv;
        let ran = bench.run(&step)?;
        assert_eq!(ran.limit(), Some(LimitKind::Memory), "{kind}: {ran:?}");
    }
    Ok(())
}

/// The limit is three quarters of the machine's memory, and the record does not present it as a limit of the plan.
pub(crate) fn limits_memory_without_plan_limit(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench.run(&TestCommand::shell("true"))?;
    let state = ran.enforcement().0.get(&Control::MemoryLimit);
    let names_default_limit = |reason: &str| reason.contains("three quarters of the machine's memory");
    assert!(
        matches!(state, Some(ControlState::NotRequested { reason, .. }) if names_default_limit(reason)),
        "{state:?}"
    );
    Ok(())
}
