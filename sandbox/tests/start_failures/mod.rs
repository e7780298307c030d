//! Tests of commands that cannot start: a program or a work directory is missing, or the directory is outside of the
//! repository.

use libtest_mimic::Failed;
use proctor_core::model::outcome::StartFault;
use proctor_sandbox::SandboxEvent;

use crate::environment::{SandboxTestEnv, TestCommand};

pub(crate) fn reports_missing_program(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for (program, named) in [("no-such-tool", "PATH (/usr/local/bin"), ("./src/lib.rs", "src/lib.rs"), ("/x/y", "/x/y")]
    {
        let ran = bench.run(&TestCommand::new(&[program, "x"]))?;
        match ran.reports.last() {
            Some(SandboxEvent::NotStarted { fault: StartFault::ProgramMissing, message }) => {
                assert!(message.contains(program) && message.contains(named), "{message}");
            }
            other => return Err(format!("{program}: {other:?}").into()),
        }
    }
    Ok(())
}

pub(crate) fn reports_missing_workdir(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::shell("pwd");
    step.workdir = "src";
    assert!(bench.is_path_in_repo(bench.run(&step)?.stdout_of_success(), "src"));
    step.workdir = "absent";
    let ran = bench.run(&step)?;
    let is_reported = matches!(ran.reports.as_slice(), [SandboxEvent::NotStarted { fault: StartFault::Workdir, .. }]);
    assert!(is_reported, "{ran:?}");
    Ok(())
}

/// The work directory is reached through a link of the repository: the record would name a directory in which the
/// command did not run.
pub(crate) fn reports_workdir_outside_repository(bench: &SandboxTestEnv) -> Result<(), Failed> {
    std::os::unix::fs::symlink("src", bench.repo.join("inside"))?;
    let mut step = TestCommand::shell("pwd -P");
    step.workdir = "inside";
    assert!(bench.is_path_in_repo(bench.run(&step)?.stdout_of_success(), "src"));
    step.workdir = "link";
    let ran = bench.run(&step)?;
    let is_reported = matches!(ran.reports.as_slice(), [SandboxEvent::NotStarted { fault: StartFault::Workdir, .. }]);
    assert!(is_reported, "{ran:?}");
    Ok(())
}
