//! Measures how fast the output of a step is read and hashed, compared with `cat | sha256sum`, and how much memory
//! that needs.

use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::PlannedStep;
use proctor_core::record::evidence::StreamEvidence;
use proctor_runner::{CancellationToken, Session};
use tokio::time::Instant;

use crate::engine_fixture::{EngineFixture, ScratchRepository, plan_step};
use crate::samples::{LimitChecks, Sample, heading, millis, ratio, row};
use crate::{host_state, program};

/// Minimum throughput, relative to the comparison program.
const MIN_THROUGHPUT: f64 = 0.7;
/// Maximum additional memory for a long output over a short one, in bytes.
const MAX_MORE_MEMORY: u64 = 32 << 20;
/// Size of the short output, in bytes.
const SHORT_OUTPUT: u64 = 1 << 20;

/// The timeout of a step that prints forever.
const STEP_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum delay of its end, in milliseconds.
const MAX_DELAY_MS: f64 = 100.0;

/// A kind of output, as a shell command that takes the number of bytes.
struct ProducedOutput {
    name: &'static str,
    command: fn(u64) -> String,
}

/// The first output is the easiest to compress, the second one the hardest.
const SOURCES: [ProducedOutput; 2] = [
    ProducedOutput { name: "zeros", command: |bytes| format!("head -c {bytes} /dev/zero") },
    ProducedOutput { name: "noise", command: |bytes| format!("head -c {bytes} big") },
];

/// Measures, prints, and compares the medians with the limits. RUNS is the number of rounds, BYTES the size of each
/// output.
///
/// # Errors
/// A program cannot be run, or the record of an output is wrong.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let runs: usize = program::setting("RUNS", 7)?;
    let bytes: u64 = program::setting("BYTES", 1 << 30)?;
    if !program::is_installed("sha256sum") {
        println!("skipped: bench/output needs sha256sum, the peer that it measures against");
        return Ok(());
    }
    let scratch = ScratchRepository::create()?;
    write_noise(&scratch.repository().join("big"), bytes)?;
    let arena = EngineFixture::open(&scratch)?;
    let bench = OutputBench { session: arena.session(CancellationToken::new())?, arena: &arena, scratch: &scratch };
    for source in &SOURCES {
        bench.measure_throughput(source, bytes, runs, bars)?;
        bench.measure_memory(source, bytes, bars)?;
    }
    bench.measure_timeout_delay(runs, bars)
}

struct OutputBench<'a> {
    arena: &'a EngineFixture,
    scratch: &'a ScratchRepository,
    session: Arc<Session>,
}

impl OutputBench<'_> {
    fn measure_throughput(
        &self,
        source: &ProducedOutput,
        bytes: u64,
        runs: usize,
        bars: &mut LimitChecks,
    ) -> Result<()> {
        let command = (source.command)(bytes);
        let planned = plan_step(&["sh", "-c", &command])?;
        let (mut peer, mut ours) = (Sample::default(), Sample::default());
        self.run_peer(&command)?;
        for _ in 0..runs {
            let (took, hash) = self.run_peer(&command)?;
            peer.push(took);
            let (stdout, took) = self.output_of(&planned)?;
            ours.push(took);
            check_record(&stdout, bytes, &hash)?;
        }
        println!("{}", heading(&format!("{runs} x {} MB of {}", bytes >> 20, source.name)));
        for (name, sample) in [("cat | sha256sum", &peer), ("proctor", &ours)] {
            let speed = bytes as f64 / (1 << 20) as f64 / sample.median().as_secs_f64();
            println!("{} {speed:>7.0} MB/s", row(name, sample));
        }
        let share = ratio(peer.median(), ours.median());
        bars.at_least(&format!("throughput of {} to the peer's", source.name), share, MIN_THROUGHPUT);
        Ok(())
    }

    /// Measures the peak memory for a long output, minus that for a short one.
    fn measure_memory(&self, source: &ProducedOutput, bytes: u64, bars: &mut LimitChecks) -> Result<()> {
        let peak = |bytes: u64| {
            host_state::reset_peak()?;
            self.output_of(&plan_step(&["sh", "-c", &(source.command)(bytes)])?)?;
            host_state::peak_memory()
        };
        let (short, long) = (peak(SHORT_OUTPUT)?, peak(bytes)?);
        let more = long.saturating_sub(short);
        let figure = format!("{} KiB beyond {} KiB", more >> 10, short >> 10);
        bars.record(&format!("memory is flat over {}", source.name), more <= MAX_MORE_MEMORY, &figure);
        Ok(())
    }

    /// Measures the delay of the end of a step that fills both of its streams: reading must not delay the timeout.
    fn measure_timeout_delay(&self, runs: usize, bars: &mut LimitChecks) -> Result<()> {
        let mut planned = plan_step(&["sh", "-c", "yes >&2 & exec yes"])?;
        (planned.timeout_ms, planned.grace_ms) = (u64::try_from(STEP_TIMEOUT.as_millis())?, 0);
        let mut late = Sample::default();
        for _ in 0..runs {
            let (report, _) = self.arena.run(&self.session, &planned, Outcome::TimedOut)?;
            late.push(Duration::from_millis(report.evidence.duration_ms).saturating_sub(STEP_TIMEOUT));
        }
        println!("{}", heading("late by, milliseconds"));
        println!("{}", row("both streams full", &late));
        bars.at_most("milliseconds late where both streams are full", millis(late.median()), MAX_DELAY_MS);
        Ok(())
    }

    fn output_of(&self, planned: &PlannedStep) -> Result<(StreamEvidence, Duration)> {
        let (report, took) = self.arena.run(&self.session, planned, Outcome::Passed)?;
        Ok((report.evidence.stdout, took))
    }

    /// Pipes the same bytes into `sha256sum`; returns the duration and the hash.
    fn run_peer(&self, command: &str) -> Result<(Duration, String)> {
        let mut shell = program::silent_command("sh", &["-c", &format!("{command} | sha256sum")]);
        shell.current_dir(self.scratch.repository()).stdout(std::process::Stdio::piped());
        let began = Instant::now();
        let output = shell.output().context("cannot start the peer")?;
        let took = began.elapsed();
        program::require_success(&shell, output.status)?;
        let text = String::from_utf8(output.stdout).context("the output of the peer is not UTF-8")?;
        Ok((took, text.split(' ').next().unwrap_or_default().to_owned()))
    }
}

/// Checks the record of an output: all of it is hashed and counted, and only a part is kept.
fn check_record(stdout: &StreamEvidence, bytes: u64, hash: &str) -> Result<()> {
    ensure!(stdout.complete && stdout.bytes == bytes, "{} of {bytes} bytes were recorded", stdout.bytes);
    ensure!(stdout.sha256.to_string() == hash, "the recorded hash is {}, not {hash}", stdout.sha256);
    ensure!(stdout.kept_bytes < bytes, "all of the output is kept: the output is too short; set BYTES higher");
    Ok(())
}

/// Fills a file with incompressible bytes, the same ones each time.
#[expect(clippy::disallowed_methods, reason = "scratch repositories need no atomic writes")]
fn write_noise(path: &Path, bytes: u64) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot create `{}`", path.display()))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes.div_ceil(8) {
        // xorshift64, <https://doi.org/10.18637/jss.v008.i14>.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_ne_bytes())?;
    }
    file.flush().with_context(|| format!("cannot write `{}`", path.display()))
}
