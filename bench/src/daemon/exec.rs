//! `proctor exec -- /bin/true` as a program, from its start to its end: by a daemon that is there, and in a process of its
//! own, beside bubblewrap with its usual full flags over the same repository.

use std::process::Command;

use anyhow::{Context as _, Result};
use proctor_snapshot::Settling;
use tokio::runtime::Runtime;

use super::place::{Daemon, Place, beside};
use crate::attempt::{COMMAND, bubblewrap};
use crate::figures::{Bars, Sample, heading, ratio, row};
use crate::program;

/// How many files the repository has, where `FILES` does not say.
const FILES: usize = 1_000;
/// How many rounds come before any is measured.
const WARM_UP: usize = 10;
/// What a command may cost of one of bubblewrap's: by a daemon, and in a process of its own.
const BY_DAEMON: f64 = 1.2;
const HERE: f64 = 1.2;

/// Measures, prints, and holds the medians to their bars. RUNS is how many rounds (100), FILES how many files the
/// repository has.
///
/// # Errors
/// Something does not run at all, or does not pass.
pub(crate) fn measure(bars: &mut Bars) -> Result<()> {
    let (runs, files): (usize, usize) = (program::setting("RUNS", 100)?, program::setting("FILES", FILES)?);
    if !program::is_there("bwrap") {
        println!("skipped: bench/exec needs bwrap, the peer that it measures against (`apt-get install bubblewrap`)");
        return Ok(());
    }
    let place = Place::with_files(files)?;
    let runtime = Runtime::new().context("the runtime cannot be started")?;
    let daemon = runtime.block_on(Daemon::start(&place))?;
    let socket = daemon.socket.display().to_string();
    let state = place.path("state").display().to_string();
    let mut peer = bubblewrap(&place.path("repository").display().to_string());
    let mut asking = proctor(&place, &["exec", "--socket", &socket])?;
    let mut working = proctor(&place, &["exec", "--no-daemon", "--state-dir", &state])?;
    let mut starting = proctor(&place, &["--version"])?;
    settle();
    let [mut bwrap, mut asked, mut worked, mut started] = [const { Sample::new() }; 4];
    for round in 0..WARM_UP + runs {
        let took = [
            program::timed(&mut peer)?,
            program::timed(&mut asking)?,
            program::timed(&mut working)?,
            program::timed(&mut starting)?,
        ];
        if round >= WARM_UP {
            let samples = [&mut bwrap, &mut asked, &mut worked, &mut started];
            samples.into_iter().zip(took).for_each(|(sample, took)| sample.push(took));
        }
    }
    println!("{}", heading(&format!("{runs} rounds, {files} files, ms")));
    let rows = [
        ("bubblewrap", &bwrap),
        ("proctor exec, by a daemon", &asked),
        ("proctor exec, without one", &worked),
        ("proctor --version", &started),
    ];
    for (name, sample) in rows {
        println!("{} {:>7.2} x bubblewrap", row(name, sample), ratio(sample.median(), bwrap.median()));
    }
    bars.at_most("exec by a daemon to bubblewrap", ratio(asked.median(), bwrap.median()), BY_DAEMON);
    bars.at_most("exec without a daemon to bubblewrap", ratio(worked.median(), bwrap.median()), HERE);
    Ok(())
}

/// Waits until no file is so young that every snapshot reads it again: of a tree that somebody works on, a few are.
#[expect(clippy::disallowed_methods, reason = "what is waited for is that time passes")]
fn settle() {
    std::thread::sleep(Settling::default().0);
}

/// A command line of ours in the repository; one that runs a command runs [`COMMAND`].
fn proctor(place: &Place, words: &[&str]) -> Result<Command> {
    let mut command = program::quiet(&beside("proctor")?.display().to_string(), words);
    if words[0] == "exec" {
        command.args(["--", COMMAND]);
    }
    command.current_dir(place.path("repository"));
    Ok(command)
}
