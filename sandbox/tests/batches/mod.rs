//! Tests commands that run once for each batch of files.

use libtest_mimic::Failed;
use proctor_core::model::outcome::StartFault;
use proctor_sandbox::{FileBatches, SandboxEvent, WaitStatus};

use crate::environment::{SandboxTestEnv, TestCommand};

/// Returns a command over 12 files, in batches of at least four.
fn over_files(script: &str, parallel: u32) -> TestCommand {
    let files: Vec<Vec<u8>> = (0..12).map(|number| format!("f{number:02}").into_bytes()).collect();
    // The small limit of the stack does not divide so few files; the number of jobs does.
    let files = FileBatches::new(&files, parallel, 0, Some(1 << 20));
    TestCommand { files, ..TestCommand::new(&["sh", "-c", script, "sh", "{files}"]) }
}

pub(crate) fn batch_gets_files_as_arguments(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let ran = bench.run(&over_files(r#"echo "$#: $1 $12""#, 1))?;
    assert_eq!(ran.stdout_of_success(), "12: f00 f002");
    Ok(())
}

/// The first batch ends last, and its output still comes first.
pub(crate) fn outputs_keep_the_order_of_batches(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = r#"case $1 in
        f00) while [ ! -e second ]; do sleep 0.01; done;;
        f04) : > second;;
    esac
    echo "$1 $#"; echo "to stderr" >&2"#;
    let ran = bench.run(&over_files(script, 3))?;
    assert_eq!(ran.stdout_of_success(), "f00 4\nf04 4\nf08 4");
    Ok(())
}

pub(crate) fn worst_batch_decides(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let cases = [
        ("for f; do case $f in f04) exit 3;; f08) exit 1;; esac; done", WaitStatus::Code(3)),
        ("for f; do case $f in f00) kill -KILL $$;; f11) exit 9;; esac; done", WaitStatus::Signal(9)),
        ("exit 0", WaitStatus::Code(0)),
    ];
    for parallel in [2, 3] {
        for (script, status) in cases {
            let ran = bench.run(&over_files(script, parallel))?;
            assert_eq!(ran.status(), Some(status), "{script}: {ran:?}");
        }
    }
    Ok(())
}

pub(crate) fn failure_of_a_batch_outweighs_a_higher_code_that_passes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut command = over_files("for f; do case $f in f00) exit 1;; f04) exit 5;; esac; done", 3);
    command.files = command.files.with_passing_codes(vec![0, 5]);
    assert_eq!(bench.run(&command)?.status(), Some(WaitStatus::Code(1)));
    Ok(())
}

pub(crate) fn missing_program_of_a_batch_is_not_a_result(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let command = TestCommand { argv: vec!["no-such-program".into(), "{files}".into()], ..over_files("", 3) };
    let ran = bench.run(&command)?;
    let missing =
        |event: &SandboxEvent| matches!(event, SandboxEvent::NotStarted { fault: StartFault::ProgramMissing, .. });
    assert!(ran.status().is_none_or(|status| status != WaitStatus::Code(0)), "{ran:?}");
    assert!(ran.reports.iter().any(missing), "{ran:?}");
    Ok(())
}
