//! Tests of memory that the kernel charges to no process, and of the limit that applies if the plan sets none.

use libtest_mimic::Failed;
use proctor_core::enforcement::{Control, ControlState};
use proctor_core::outcome::LimitKind;
use proctor_core::plan::Limit;

use crate::bench::{Bench, Step};

/// The kernel charges socket buffers to no process, and a control group of version 1 counts those of network sockets
/// separately.
pub(crate) fn bounds_buffers_of_sockets(bench: &Bench) -> Result<(), Failed> {
    let fill = "import socket as s, sys, time\n\
        def fill(a, b):\n  a.setblocking(False)\n  try:\n    while True: a.send(bytes(65536))\n  except BlockingIOError: pass\n\
        kept = []\n\
        for _ in range(int(sys.argv[2])):\n\
        \u{20} if sys.argv[1] == 'unix': pair = s.socketpair()\n\
        \u{20} else:\n    l = s.create_server(('127.0.0.1', 0)); c = s.create_connection(l.getsockname()); pair = (c, l.accept()[0]); l.close()\n\
        \u{20} fill(*pair); kept.append(pair)\n\
        time.sleep(1)\nprint('held')\n";
    for kind in ["unix", "tcp"] {
        let mut step = Step::new(&["/usr/bin/python3", "-c", fill, kind, "4"]);
        step.limits.open_files = Limit::Max(4096);
        step.limits.memory = Limit::Max(64 << 20);
        assert_eq!(bench.run(&step)?.printed(), "held", "a few of them are no matter");
        step.argv = Step::new(&["/usr/bin/python3", "-c", fill, kind, "1500"]).argv;
        let ran = bench.run(&step)?;
        assert_eq!(ran.limit(), Some(LimitKind::Memory), "{kind}: {ran:?}");
    }
    Ok(())
}

/// The limit is three quarters of the machine's memory, and the record does not present it as a limit of the plan.
pub(crate) fn bounds_memory_where_the_plan_does_not(bench: &Bench) -> Result<(), Failed> {
    let ran = bench.run(&Step::sh("true"))?;
    let state = ran.enforcement().0.get(&Control::MemoryLimit);
    let is_said = |reason: &str| reason.contains("three quarters of the machine's memory");
    assert!(matches!(state, Some(ControlState::NotRequested { reason, .. }) if is_said(reason)), "{state:?}");
    Ok(())
}
