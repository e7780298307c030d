//! Measures one sandboxed `/bin/true`, alternating with the same command in bubblewrap and with a plain
//! posix_spawn; then repeats this with a large parent process.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::PlannedStep;
use proctor_runner::{CancellationToken, Session};
use tokio::time::Instant;

use crate::engine_fixture::{EngineFixture, ScratchRepository, plan_step};
use crate::samples::{LimitChecks, Sample, heading, ratio, row};
use crate::stage_recorder::StageRecorder;
use crate::{host_state, program};

/// The command.
pub(crate) const COMMAND: &str = "/bin/true";
/// Number of rounds before the measurement starts.
const WARM_UP: usize = 20;
/// Number of consecutive rounds with the same parent size.
const BLOCK_ROUNDS: usize = 50;
/// Resident memory of the large parent, in bytes.
const LARGE_PARENT: usize = 2 << 30;
/// Memory that must be available in addition, in bytes.
const SPARE_MEMORY: u64 = 1 << 30;

/// Maximum wait for a sandbox of the pool, and the polling interval.
const POOL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum duration of our attempt, relative to bubblewrap.
const MAX_COLD: f64 = 0.7;
/// The same limit with a sandbox from the pool.
const MAX_POOL: f64 = 0.25;
/// Maximum duration with a large parent, relative to a small one.
const MAX_GROWTH: f64 = 1.15;

/// The measurements for one size of the parent.
#[derive(Default)]
struct AttemptSamples {
    plain: Sample,
    peer: Sample,
    cold: Sample,
    pool: Sample,
}

/// Measures, prints, and compares the medians with the limits. RUNS is the number of rounds.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let runs = program::setting("RUNS", 200)?;
    if !program::is_installed("bwrap") {
        println!("skipped: bench/attempt needs bwrap, the peer that it measures against");
        return Ok(());
    }
    let scratch = ScratchRepository::create()?;
    let arena = EngineFixture::open(&scratch)?;
    let mut bench = AttemptBench::new(&arena, &scratch)?;
    bench.run_rounds(WARM_UP, &mut AttemptSamples::default())?;
    let (mut small, mut large) = (AttemptSamples::default(), AttemptSamples::default());
    let has_memory = host_state::available_memory() >= LARGE_PARENT as u64 + SPARE_MEMORY;
    let mut left: usize = runs;
    // Alternate between both sizes, so that other load on the machine affects both.
    while left > 0 {
        let block = left.min(BLOCK_ROUNDS);
        bench.run_rounds(block, &mut small)?;
        if has_memory {
            let ballast = allocate_resident(LARGE_PARENT);
            bench.run_rounds(block, &mut large)?;
            drop(ballast);
        }
        left -= block;
    }
    small.print(&heading(&format!("{runs} rounds, milliseconds")), "");
    check_limits(bars, "", &small);
    if has_memory {
        large.print("", " with 2 GiB");
        check_limits(bars, " with 2 GiB resident", &large);
        for (name, large, small) in [("cold", &large.cold, &small.cold), ("pool", &large.pool, &small.pool)] {
            let grown = ratio(large.median(), small.median());
            bars.at_most(&format!("{name} with 2 GiB resident to {name} without"), grown, MAX_GROWTH);
        }
    } else {
        println!("skipped: a parent with 2 GiB resident needs 3 GiB of free memory");
    }
    bench.print_stages(runs)
}

fn check_limits(bars: &mut LimitChecks, suffix: &str, samples: &AttemptSamples) {
    let peer = samples.peer.median();
    bars.at_most(&format!("cold{suffix} to bubblewrap"), ratio(samples.cold.median(), peer), MAX_COLD);
    bars.at_most(&format!("pool{suffix} to bubblewrap"), ratio(samples.pool.median(), peer), MAX_POOL);
}

impl AttemptSamples {
    fn print(&self, heading: &str, with: &str) {
        println!("{heading}");
        let ours = [("proctor, cold", &self.cold), ("proctor, pool", &self.pool)];
        let rows = [("posix_spawn", &self.plain), ("bubblewrap", &self.peer)].into_iter().chain(ours);
        for (name, sample) in rows {
            let times = ratio(sample.median(), self.peer.median());
            println!("{} {times:>7.2} x bubblewrap", row(&format!("{name}{with}"), sample));
        }
    }
}

/// The measured programs.
struct AttemptBench<'a> {
    arena: &'a EngineFixture,
    /// A session whose pool stays empty.
    cold: Arc<Session>,
    pool: Arc<Session>,
    step: PlannedStep,
    plain: Command,
    peer: Command,
}

impl<'a> AttemptBench<'a> {
    fn new(arena: &'a EngineFixture, scratch: &ScratchRepository) -> Result<Self> {
        Ok(Self {
            arena,
            cold: arena.session(CancellationToken::new())?,
            pool: arena.session(CancellationToken::new())?,
            step: plan_step(&[COMMAND])?,
            plain: program::silent_command(COMMAND, &[]),
            peer: bubblewrap(&scratch.repository().display().to_string()),
        })
    }

    fn run_rounds(&mut self, count: usize, samples: &mut AttemptSamples) -> Result<()> {
        for _ in 0..count {
            samples.plain.push(program::run_timed(&mut self.plain)?);
            samples.peer.push(program::run_timed(&mut self.peer)?);
            samples.cold.push(self.run_attempt(&self.cold)?);
            self.wait_for_pool()?;
            samples.pool.push(self.run_attempt(&self.pool)?);
        }
        Ok(())
    }

    fn run_attempt(&self, session: &Arc<Session>) -> Result<Duration> {
        Ok(self.arena.run(session, &self.step, Outcome::Passed)?.1)
    }

    /// Waits until a sandbox of the pool is ready, as before a normal step.
    fn wait_for_pool(&self) -> Result<()> {
        self.arena.runtime().block_on(async {
            self.pool.prepare_sandboxes(&self.step, 1).await?;
            let until = Instant::now() + POOL_TIMEOUT;
            while self.pool.ready_sandboxes() == 0 {
                ensure!(Instant::now() < until, "no sandbox in the pool is ready after {POOL_TIMEOUT:?}");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok(())
        })
    }

    /// Prints the durations of the stages of an attempt. These rounds are separate, because tracing costs time as
    /// well.
    fn print_stages(&self, runs: usize) -> Result<()> {
        let stages = StageRecorder::start()?;
        let (mut cold, mut pool) = (Sample::default(), Sample::default());
        for _ in 0..runs {
            cold.push(self.run_attempt(&self.cold)?);
        }
        stages.print_and_clear("stages of a cold attempt", &cold);
        for _ in 0..runs {
            self.wait_for_pool()?;
            pool.push(self.run_attempt(&self.pool)?);
        }
        stages.print_and_clear("stages of a pooled attempt", &pool);
        Ok(())
    }
}

/// Returns a bubblewrap command with its usual flags.
pub(crate) fn bubblewrap(repository: &str) -> Command {
    let namespaces = ["--unshare-all", "--die-with-parent", "--new-session"];
    let root = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"];
    let scratch = ["--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/home"];
    let work = ["--bind", repository, repository, "--chdir", repository];
    let rest = ["--cap-drop", "ALL", "--clearenv", COMMAND];
    program::silent_command("bwrap", &[&namespaces[..], &root, &scratch, &work, &rest].concat())
}

/// Allocates memory and writes to every page.
fn allocate_resident(bytes: usize) -> Vec<u8> {
    let ballast = vec![1; bytes];
    std::hint::black_box(ballast)
}
