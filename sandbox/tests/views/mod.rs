//! Tests of views: the trace of a command is complete, and the command behaves as without a view.

use libtest_mimic::Failed;
use proctor_core::model::trace::{AccessTrace, AccessedPath, PathState};

use crate::environment::{SandboxTestEnv, TestCommand};

/// Runs a shell script on a view, and returns its trace.
fn trace_of(bench: &SandboxTestEnv, script: &str) -> Result<AccessTrace, Failed> {
    let ran = bench.run(&TestCommand { view: true, ..TestCommand::shell(script) })?;
    ran.stdout_of_success();
    match ran.trace {
        Some(Ok(trace)) => Ok(trace),
        other => Err(format!("{other:?}").into()),
    }
}

/// Returns the entry of a path in the repository.
fn entry<'t>(bench: &SandboxTestEnv, trace: &'t AccessTrace, below: &str) -> Option<&'t AccessedPath> {
    trace.get(bench.repo.join(below).as_os_str().as_encoded_bytes())
}

pub(crate) fn records_each_kind_of_access(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "test ! -e missing && test -f src/lib.rs && read line < tracked.txt && readlink link && echo src/*";
    let trace = trace_of(bench, script)?;
    let find = |below| entry(bench, &trace, below);
    assert_eq!(find("missing").map(|entry| &entry.state), Some(&PathState::Absent));
    let only_examined = find("src/lib.rs").ok_or("src/lib.rs")?;
    assert!(matches!(only_examined.state, PathState::File { .. }) && !only_examined.read, "{only_examined:?}");
    let read = find("tracked.txt").ok_or("tracked.txt")?;
    assert!(matches!(read.state, PathState::File { size: 10, .. }) && read.read, "{read:?}");
    let link = find("link").ok_or("link")?;
    assert!(matches!(&link.state, PathState::Link { .. }), "{link:?}");
    assert!(find("src").is_some_and(|entry| entry.listing.is_some()));
    Ok(())
}
