//! Measures how fast the output of a step is read and hashed, compared with `cat | sha256sum`, and how much memory
//! that needs.

use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proctor_core::evidence::StreamEvidence;
use proctor_core::outcome::Outcome;
use proctor_core::plan::PlannedStep;
use proctor_runner::{CancellationToken, Session};
use tokio::time::Instant;

use crate::arena::{Arena, Place, step};
use crate::figures::{Bars, Sample, heading, millis, ratio, row};
use crate::{machine, program};

/// Minimum throughput, relative to the comparison program.
const SHARE: f64 = 0.7;
/// Maximum additional memory for a long output over a short one, in bytes.
const FLAT: u64 = 32 << 20;
/// Size of the short output, in bytes.
const SHORT: u64 = 1 << 20;

/// The timeout of a step that prints forever.
const DEADLINE: Duration = Duration::from_millis(300);
/// Maximum delay of its end, in milliseconds.
const LATE: f64 = 100.0;

/// An output: a shell command that takes the number of bytes.
struct Source {
    name: &'static str,
    command: fn(u64) -> String,
}

/// The first output is the easiest to compress, the second one the hardest.
const SOURCES: [Source; 2] = [
    Source { name: "zeros", command: |bytes| format!("head -c {bytes} /dev/zero") },
    Source { name: "noise", command: |bytes| format!("head -c {bytes} big") },
];

/// Measures, prints, and compares the medians with the limits. RUNS is the number of rounds, BYTES the size of each
/// output.
///
/// # Errors
/// A program cannot be run, or the record of an output is wrong.
pub(crate) fn measure(bars: &mut Bars) -> Result<()> {
    let runs: usize = program::setting("RUNS", 7)?;
    let bytes: u64 = program::setting("BYTES", 1 << 30)?;
    if !program::is_there("sha256sum") {
        println!("skipped: bench/output needs sha256sum, the peer that it measures against");
        return Ok(());
    }
    let place = Place::make()?;
    write_noise(&place.repository().join("big"), bytes)?;
    let arena = Arena::open(&place)?;
    let bench = Bench { session: arena.session(CancellationToken::new())?, arena: &arena, place: &place };
    for source in &SOURCES {
        bench.speed(source, bytes, runs, bars)?;
        bench.memory(source, bytes, bars)?;
    }
    bench.flood(runs, bars)
}

struct Bench<'a> {
    arena: &'a Arena,
    place: &'a Place,
    session: Arc<Session>,
}

impl Bench<'_> {
    fn speed(&self, source: &Source, bytes: u64, runs: usize, bars: &mut Bars) -> Result<()> {
        let command = (source.command)(bytes);
        let planned = step(&["sh", "-c", &command])?;
        let (mut peer, mut ours) = (Sample::default(), Sample::default());
        self.peer(&command)?;
        for _ in 0..runs {
            let (took, hash) = self.peer(&command)?;
            peer.push(took);
            let (stdout, took) = self.output_of(&planned)?;
            ours.push(took);
            check(&stdout, bytes, &hash)?;
        }
        println!("{}", heading(&format!("{runs} x {} MB of {}", bytes >> 20, source.name)));
        for (name, sample) in [("cat | sha256sum", &peer), ("proctor", &ours)] {
            let speed = bytes as f64 / (1 << 20) as f64 / sample.median().as_secs_f64();
            println!("{} {speed:>7.0} MB/s", row(name, sample));
        }
        let share = ratio(peer.median(), ours.median());
        bars.at_least(&format!("throughput of {} to the peer's", source.name), share, SHARE);
        Ok(())
    }

    /// Measures the peak memory for a long output, minus that for a short one.
    fn memory(&self, source: &Source, bytes: u64, bars: &mut Bars) -> Result<()> {
        let peak = |bytes: u64| {
            machine::forget_peak()?;
            self.output_of(&step(&["sh", "-c", &(source.command)(bytes)])?)?;
            machine::peak_memory()
        };
        let (short, long) = (peak(SHORT)?, peak(bytes)?);
        let more = long.saturating_sub(short);
        let figure = format!("{} KiB beyond {} KiB", more >> 10, short >> 10);
        bars.held(&format!("memory is flat over {}", source.name), more <= FLAT, &figure);
        Ok(())
    }

    /// Measures the delay of the end of a step that fills both of its streams: reading must not delay the timeout.
    fn flood(&self, runs: usize, bars: &mut Bars) -> Result<()> {
        let mut planned = step(&["sh", "-c", "yes >&2 & exec yes"])?;
        (planned.timeout_ms, planned.grace_ms) = (u64::try_from(DEADLINE.as_millis())?, 0);
        let mut late = Sample::default();
        for _ in 0..runs {
            let (report, _) = self.arena.run(&self.session, &planned, Outcome::TimedOut)?;
            late.push(Duration::from_millis(report.evidence.duration_ms).saturating_sub(DEADLINE));
        }
        println!("{}", heading("late by, milliseconds"));
        println!("{}", row("both streams full", &late));
        bars.at_most("milliseconds late where both streams are full", millis(late.median()), LATE);
        Ok(())
    }

    fn output_of(&self, planned: &PlannedStep) -> Result<(StreamEvidence, Duration)> {
        let (report, took) = self.arena.run(&self.session, planned, Outcome::Passed)?;
        Ok((report.evidence.stdout, took))
    }

    /// Pipes the same bytes into `sha256sum`; returns the duration and the hash.
    fn peer(&self, command: &str) -> Result<(Duration, String)> {
        let mut shell = program::quiet("sh", &["-c", &format!("{command} | sha256sum")]);
        shell.current_dir(self.place.repository()).stdout(std::process::Stdio::piped());
        let began = Instant::now();
        let output = shell.output().context("the peer cannot be started")?;
        let took = began.elapsed();
        program::succeeded(&shell, output.status)?;
        let text = String::from_utf8(output.stdout).context("the peer's answer is no text")?;
        Ok((took, text.split(' ').next().unwrap_or_default().to_owned()))
    }
}

/// Checks the record of an output: all of it is hashed and counted, and only a part is kept.
fn check(stdout: &StreamEvidence, bytes: u64, hash: &str) -> Result<()> {
    ensure!(stdout.complete && stdout.bytes == bytes, "{} of {bytes} bytes were seen", stdout.bytes);
    ensure!(stdout.sha256.as_str() == hash, "the recorded hash is {}, not {hash}", stdout.sha256);
    ensure!(stdout.kept_bytes < bytes, "all of the output is kept: the output is too short; set BYTES higher");
    Ok(())
}

/// Fills a file with incompressible bytes, the same ones each time.
#[expect(clippy::disallowed_methods, reason = "files of a scratch repository are not Proctor's")]
fn write_noise(path: &Path, bytes: u64) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("`{}` cannot be made", path.display()))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes.div_ceil(8) {
        // xorshift64, <https://doi.org/10.18637/jss.v008.i14>.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_ne_bytes())?;
    }
    file.flush().with_context(|| format!("`{}` cannot be written", path.display()))
}
