//! Measures `proctor exec -- /bin/true` as a process from start to exit: with a running daemon, and without one,
//! compared with bubblewrap with its usual flags on the same repository.

use std::process::Command;

use anyhow::{Context as _, Result};
use proctor_git::files::file_stat::RacyWindow;
use tokio::runtime::Runtime;

use super::daemon_fixture::{DaemonFixture, DaemonProcess, sibling_program};
use crate::attempt::{COMMAND, bubblewrap};
use crate::program;
use crate::samples::{LimitChecks, Sample, heading, ratio, row};

/// Number of files in the repository, unless `FILES` sets it.
const FILES: usize = 1_000;
/// Number of rounds before the measurement starts.
const WARM_UP: usize = 10;
/// Maximum duration relative to bubblewrap with a daemon, which keeps a prepared sandbox.
const MAX_WITH_DAEMON: f64 = 1.2;
/// Maximum duration relative to bubblewrap without a daemon: the command also starts its helper processes, reads the
/// repository, and takes a snapshot.
const MAX_WITHOUT_DAEMON: f64 = 4.0;

/// Measures, prints, and compares the medians with the limits. RUNS is the number of rounds (100), FILES the number
/// of files in the repository.
///
/// # Errors
/// A program cannot be run or fails.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let (runs, files): (usize, usize) = (program::setting("RUNS", 100)?, program::setting("FILES", FILES)?);
    if !program::is_installed("bwrap") {
        println!("skipped: bench/exec needs bwrap, the peer that it measures against (`apt-get install bubblewrap`)");
        return Ok(());
    }
    let fixture = DaemonFixture::with_files(files)?;
    let runtime = Runtime::new().context("cannot start the async runtime")?;
    let daemon = runtime.block_on(DaemonProcess::start(&fixture))?;
    let socket = daemon.socket.display().to_string();
    let state = fixture.path("state").display().to_string();
    let mut peer = bubblewrap(&fixture.path("repository").display().to_string());
    let mut with_daemon = proctor_command(&fixture, &["exec", "--socket", &socket])?;
    let mut without_daemon = proctor_command(&fixture, &["exec", "--no-daemon", "--state-dir", &state])?;
    let mut version = proctor_command(&fixture, &["--version"])?;
    wait_for_racy_window();
    let [mut bwrap, mut by_daemon, mut worked, mut started] = [const { Sample::new() }; 4];
    for round in 0..WARM_UP + runs {
        let took = [
            program::run_timed(&mut peer)?,
            program::run_timed(&mut with_daemon)?,
            program::run_timed(&mut without_daemon)?,
            program::run_timed(&mut version)?,
        ];
        if round >= WARM_UP {
            let samples = [&mut bwrap, &mut by_daemon, &mut worked, &mut started];
            samples.into_iter().zip(took).for_each(|(sample, took)| sample.push(took));
        }
    }
    println!("{}", heading(&format!("{runs} rounds, {files} files, ms")));
    let rows = [
        ("bubblewrap", &bwrap),
        ("proctor exec, by a daemon", &by_daemon),
        ("proctor exec, without one", &worked),
        ("proctor --version", &started),
    ];
    for (name, sample) in rows {
        println!("{} {:>7.2} x bubblewrap", row(name, sample), ratio(sample.median(), bwrap.median()));
    }
    bars.at_most("exec by a daemon to bubblewrap", ratio(by_daemon.median(), bwrap.median()), MAX_WITH_DAEMON);
    bars.at_most("exec without a daemon to bubblewrap", ratio(worked.median(), bwrap.median()), MAX_WITHOUT_DAEMON);
    Ok(())
}

/// Waits until all files are old enough to be trusted by their times; a snapshot reads younger files every time. In
/// a tree in daily use, only a few files are that young.
#[expect(clippy::disallowed_methods, reason = "the measurement waits for time to pass")]
fn wait_for_racy_window() {
    std::thread::sleep(RacyWindow::default().0);
}

/// Returns a `proctor` command in the repository; `exec` gets [`COMMAND`] as its command.
fn proctor_command(fixture: &DaemonFixture, words: &[&str]) -> Result<Command> {
    let mut command = program::silent_command(&sibling_program("proctor")?.display().to_string(), words);
    if words[0] == "exec" {
        command.args(["--", COMMAND]);
    }
    command.current_dir(fixture.path("repository"));
    Ok(command)
}
