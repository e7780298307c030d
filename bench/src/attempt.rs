//! One sandboxed `/bin/true` beside the same one under bubblewrap and under plain posix_spawn,
//! alternating; then all of it with a large parent.

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

/// What is run.
pub(crate) const COMMAND: &str = "/bin/true";
/// How many rounds are run before any is measured.
const WARM_UP: usize = 20;
/// How many rounds follow each other with the same parent.
const BLOCK: usize = 50;
/// How much is resident in the large parent, in bytes.
const LARGE: usize = 2 << 30;
/// How much memory must be left beside it.
const ROOM: u64 = 1 << 30;

/// How long a sandbox of the pool may take to get ready, and how often is looked.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);

/// What one attempt of ours may cost of one of bubblewrap's.
const COLD: f64 = 0.7;
/// The same of one from the pool.
const POOL: f64 = 0.25;
/// What a large parent may add.
const UNCHANGED: f64 = 1.15;

/// What was measured with one size of the parent.
#[derive(Default)]
struct Samples {
    plain: Sample,
    peer: Sample,
    cold: Sample,
    pool: Sample,
}

/// Measures, prints, and holds the medians to their bars. RUNS is how many rounds.
///
/// # Errors
/// Something does not run at all.
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
    // In turns, so that what else happens on the machine falls on both.
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

/// The contestants.
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

    /// Waits until a sandbox is ready: that is what a pool is for.
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

    /// Where the time of an attempt goes: rounds of their own, since listening costs too.
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

/// Bubblewrap with the flags that people give it.
pub(crate) fn bubblewrap(repository: &str) -> Command {
    let namespaces = ["--unshare-all", "--die-with-parent", "--new-session"];
    let root = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"];
    let scratch = ["--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/home"];
    let work = ["--bind", repository, repository, "--chdir", repository];
    let rest = ["--cap-drop", "ALL", "--clearenv", COMMAND];
    program::quiet("bwrap", &[&namespaces[..], &root, &scratch, &work, &rest].concat())
}

/// Memory of which every page was written.
fn resident(bytes: usize) -> Vec<u8> {
    let ballast = vec![1; bytes];
    std::hint::black_box(ballast)
}
