//! Measures one sandboxed `/bin/true`, alternating with the same command in bubblewrap and with a plain
//! posix_spawn; then repeats this with a large parent process.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use proctor_core::outcome::Outcome;
use proctor_core::plan::PlannedStep;
use proctor_runner::{CancellationToken, Session};
use tokio::time::Instant;

use crate::arena::{Arena, Place, step};
use crate::figures::{Bars, Sample, heading, ratio, row};
use crate::stages::Stages;
use crate::{machine, program};

/// The command.
pub(crate) const COMMAND: &str = "/bin/true";
/// Number of rounds before the measurement starts.
const WARM_UP: usize = 20;
/// Number of consecutive rounds with the same parent size.
const BLOCK: usize = 50;
/// Resident memory of the large parent, in bytes.
const LARGE: usize = 2 << 30;
/// Memory that must be available in addition, in bytes.
const ROOM: u64 = 1 << 30;

/// Maximum wait for a sandbox of the pool, and the polling interval.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);

/// Maximum duration of our attempt, relative to bubblewrap.
const COLD: f64 = 0.7;
/// The same limit with a sandbox from the pool.
const POOL: f64 = 0.25;
/// Maximum duration with a large parent, relative to a small one.
const UNCHANGED: f64 = 1.15;

/// The measurements for one size of the parent.
#[derive(Default)]
struct Samples {
    plain: Sample,
    peer: Sample,
    cold: Sample,
    pool: Sample,
}

/// Measures, prints, and compares the medians with the limits. RUNS is the number of rounds.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn measure(bars: &mut Bars) -> Result<()> {
    let runs = program::setting("RUNS", 200)?;
    if !program::is_there("bwrap") {
        println!("skipped: bench/attempt needs bwrap, the peer that it measures against");
        return Ok(());
    }
    let place = Place::make()?;
    let arena = Arena::open(&place)?;
    let mut bench = Bench::new(&arena, &place)?;
    bench.rounds(WARM_UP, &mut Samples::default())?;
    let (mut small, mut large) = (Samples::default(), Samples::default());
    let has_room = machine::available_memory() >= LARGE as u64 + ROOM;
    let mut left: usize = runs;
    // Alternate between both sizes, so that other load on the machine affects both.
    while left > 0 {
        let block = left.min(BLOCK);
        bench.rounds(block, &mut small)?;
        if has_room {
            let ballast = resident(LARGE);
            bench.rounds(block, &mut large)?;
            drop(ballast);
        }
        left -= block;
    }
    small.show(&heading(&format!("{runs} rounds, milliseconds")), "");
    hold(bars, "", &small);
    if has_room {
        large.show("", " with 2 GiB");
        hold(bars, " with 2 GiB resident", &large);
        for (name, large, small) in [("cold", &large.cold, &small.cold), ("pool", &large.pool, &small.pool)] {
            let grown = ratio(large.median(), small.median());
            bars.at_most(&format!("{name} with 2 GiB resident to {name} without"), grown, UNCHANGED);
        }
    } else {
        println!("skipped: a parent with 2 GiB resident needs 3 GiB of free memory");
    }
    bench.breakdown(runs)
}

fn hold(bars: &mut Bars, with: &str, samples: &Samples) {
    let peer = samples.peer.median();
    bars.at_most(&format!("cold{with} to bubblewrap"), ratio(samples.cold.median(), peer), COLD);
    bars.at_most(&format!("pool{with} to bubblewrap"), ratio(samples.pool.median(), peer), POOL);
}

impl Samples {
    fn show(&self, heading: &str, with: &str) {
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
struct Bench<'a> {
    arena: &'a Arena,
    /// A session whose pool stays empty.
    cold: Arc<Session>,
    pool: Arc<Session>,
    step: PlannedStep,
    plain: Command,
    peer: Command,
}

impl<'a> Bench<'a> {
    fn new(arena: &'a Arena, place: &Place) -> Result<Self> {
        Ok(Self {
            arena,
            cold: arena.session(CancellationToken::new())?,
            pool: arena.session(CancellationToken::new())?,
            step: step(&[COMMAND])?,
            plain: program::quiet(COMMAND, &[]),
            peer: bubblewrap(&place.repository().display().to_string()),
        })
    }

    fn rounds(&mut self, count: usize, samples: &mut Samples) -> Result<()> {
        for _ in 0..count {
            samples.plain.push(program::timed(&mut self.plain)?);
            samples.peer.push(program::timed(&mut self.peer)?);
            samples.cold.push(self.attempt(&self.cold)?);
            self.warm()?;
            samples.pool.push(self.attempt(&self.pool)?);
        }
        Ok(())
    }

    fn attempt(&self, session: &Arc<Session>) -> Result<Duration> {
        Ok(self.arena.run(session, &self.step, Outcome::Passed)?.1)
    }

    /// Waits until a sandbox of the pool is ready, as before a normal step.
    fn warm(&self) -> Result<()> {
        self.arena.runtime().block_on(async {
            self.pool.warm(&self.step, 1).await?;
            let until = Instant::now() + PATIENCE;
            while self.pool.ready() == 0 {
                ensure!(Instant::now() < until, "no sandbox of the pool is ready after {PATIENCE:?}");
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        })
    }

    /// Prints the durations of the stages of an attempt. These rounds are separate, because tracing costs time as
    /// well.
    fn breakdown(&self, runs: usize) -> Result<()> {
        let stages = Stages::listen()?;
        let (mut cold, mut pool) = (Sample::default(), Sample::default());
        for _ in 0..runs {
            cold.push(self.attempt(&self.cold)?);
        }
        stages.show("where a cold one goes", &cold);
        for _ in 0..runs {
            self.warm()?;
            pool.push(self.attempt(&self.pool)?);
        }
        stages.show("where one of the pool goes", &pool);
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
    program::quiet("bwrap", &[&namespaces[..], &root, &scratch, &work, &rest].concat())
}

/// Allocates memory and writes to every page.
fn resident(bytes: usize) -> Vec<u8> {
    let ballast = vec![1; bytes];
    std::hint::black_box(ballast)
}
