//! Measures snapshots, compared with `git status` and git libraries on the same trees: the first snapshot, and one
//! of an unchanged tree. Also measures the drift check of a step that changed three files, and the scan of a layer
//! with a million files in an ignored directory (`ignored.rs`).

use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proctor_snapshot::{ScanBounds, Snapshot, SnapshotStore, scan_layer};
use tokio::time::Instant;

use crate::program;
use crate::samples::{LimitChecks, Sample, heading, measure_time, ratio, row};

mod git_libraries;
mod ignored;
mod private_copy;
mod snapshot_fixture;

use private_copy::CopySamples;
use snapshot_fixture::{CHANGED, SnapshotFixture};

/// Numbers of tracked files of the trees, unless `SIZES` sets them.
const SIZES: &str = "1000,10000,100000";
/// Number of rounds before the measurement starts.
const WARM_UP: usize = 2;
/// Number of drift checks in one round; a single one is too short to be measured reliably.
const DRIFT_CHECKS: usize = 50;
/// Minimum number of files from which the limits apply. On smaller trees, the start of processes dominates.
const LARGE_TREE: usize = 100_000;
/// Maximum duration of a snapshot relative to `git status`: of an unchanged tree, and the first one.
const MAX_UNCHANGED: f64 = 0.45;
const MAX_FIRST: f64 = 2.0;
/// Maximum duration of a private copy, including its snapshot, relative to `git status`: the first one, and one
/// after a few edits.
const MAX_FIRST_COPY: f64 = 6.0;
const MAX_EDITED_COPY: f64 = MAX_UNCHANGED + 0.02;
/// Maximum duration of the step's drift check, relative to `git status`.
const MAX_DRIFT: f64 = 0.001;
/// Maximum duration of the drift check, relative to that on the smallest tree.
const MAX_DRIFT_GROWTH: f64 = 2.0;
/// Maximum duration of updating the snapshot id, in milliseconds.
const MAX_UPDATE_MS: f64 = 1.0;

/// The measurements of one tree.
#[derive(Default)]
struct SnapshotSamples {
    status: Sample,
    git2: Sample,
    gix: Sample,
    first: Sample,
    warm: Sample,
    next: Sample,
    drift: Sample,
    layer: Sample,
    update: Sample,
    copies: CopySamples,
}

/// Measures, prints, and compares the medians with the limits. RUNS is the number of rounds (15), SIZES the sizes
/// of the trees, IGNORED the number of a step's files in an ignored directory.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let runs: usize = program::setting("RUNS", 15)?;
    let sizes: String = program::setting("SIZES", SIZES.to_owned())?;
    ignored::measure(bars)?;
    let mut smallest = None;
    for size in sizes.split(',') {
        let files: usize = size.trim().parse().with_context(|| format!("`{size}` is not a number of files"))?;
        let samples = SnapshotFixture::create(files)?.measure_all(runs)?;
        samples.print(files);
        let drift = samples.drift.median();
        if files >= LARGE_TREE {
            samples.check_limits(files, bars);
            let of = smallest.unwrap_or(drift);
            bars.at_most(
                &format!("drift check, {files} files to the smallest tree"),
                ratio(drift, of),
                MAX_DRIFT_GROWTH,
            );
        }
        smallest.get_or_insert(drift);
    }
    Ok(())
}

impl SnapshotSamples {
    fn print(&self, files: usize) {
        println!("{}", heading(&format!("{files} files, ms")));
        let rows = [
            ("git status", &self.status),
            ("git2 statuses", &self.git2),
            ("gix status", &self.gix),
            ("proctor, first", &self.first),
            ("proctor, next process", &self.next),
            ("proctor, same process", &self.warm),
            ("drift of 3 files", &self.drift),
            ("layer on top, and its id", &self.layer),
            ("id after 3 changes", &self.update),
            ("private copy, first", &self.copies.first),
            ("private copy, unchanged", &self.copies.unchanged.all),
            ("  its snapshot", &self.copies.unchanged.snapshot),
            ("  its refs", &self.copies.unchanged.history),
            ("  its record", &self.copies.unchanged.opened),
            ("  its update", &self.copies.unchanged.updated),
            ("private copy, 3 edits", &self.copies.edited.all),
            ("  its snapshot", &self.copies.edited.snapshot),
            ("  its refs", &self.copies.edited.history),
            ("  its record", &self.copies.edited.opened),
            ("  its update", &self.copies.edited.updated),
        ];
        for (name, sample) in rows.iter().filter(|(_, sample)| sample.median() > Duration::ZERO) {
            let times = ratio(sample.median(), self.status.median());
            println!("{} {times:>9.4} x git status", row(name, sample));
        }
    }

    fn check_limits(&self, files: usize, bars: &mut LimitChecks) {
        let status = self.status.median();
        for (what, sample, most) in [
            ("first snapshot", &self.first, MAX_FIRST),
            ("snapshot in the next process", &self.next, MAX_UNCHANGED),
            ("snapshot in the same process", &self.warm, MAX_UNCHANGED),
            ("drift check", &self.drift, MAX_DRIFT),
            ("first private copy", &self.copies.first, MAX_FIRST_COPY),
            ("unchanged private copy", &self.copies.unchanged.all, MAX_UNCHANGED),
            ("private copy after 3 edits", &self.copies.edited.all, MAX_EDITED_COPY),
        ] {
            bars.at_most(&format!("{what} / git status, {files} files"), ratio(sample.median(), status), most);
        }
        let update = self.update.median().as_secs_f64() * 1000.0;
        bars.at_most(&format!("milliseconds to the id after {CHANGED} changes, {files} files"), update, MAX_UPDATE_MS);
    }
}

impl SnapshotFixture {
    fn measure_all(&self, runs: usize) -> Result<SnapshotSamples> {
        let store = self.store()?;
        let snapshot = self.settled_snapshot(&store)?;
        let mut samples = SnapshotSamples::default();
        for round in 0..WARM_UP + runs {
            if round == WARM_UP {
                samples = SnapshotSamples::default();
            }
            self.measure_round(&store, &snapshot, &mut samples)?;
            self.measure_copies(round, &mut samples.copies)?;
        }
        // Edits come last: edited files are read again for a while, which would affect the other measurements.
        for round in 0..WARM_UP + runs {
            if round == WARM_UP {
                samples.copies.edited = private_copy::CopyStageSamples::default();
            }
            self.measure_edited(&snapshot, round, &mut samples.copies)?;
            samples.status.push(program::run_timed(&mut self.git_status())?);
        }
        Ok(samples)
    }

    /// Measures everything once. The order alternates, so that other load on the machine affects all measurements.
    fn measure_round(&self, store: &SnapshotStore, known: &Arc<Snapshot>, samples: &mut SnapshotSamples) -> Result<()> {
        let at = self.repository();
        samples.status.push(program::run_timed(&mut self.git_status())?);
        samples.git2.push(measure_time(|| git_libraries::git2_status(&at))?);
        if let Some(took) = git_libraries::gix_status(&at)? {
            samples.gix.push(took);
        }
        samples.first.push(measure_time(|| {
            self.require_same(&*SnapshotStore::new(self.helper.clone(), None).take(&at)?, known)
        })?);
        samples.status.push(program::run_timed(&mut self.git_status())?);
        let next = self.store()?;
        samples.next.push(measure_time(|| self.require_same(&*next.take(&at)?, known))?);
        samples.warm.push(measure_time(|| self.require_same(&*store.take(&at)?, known))?);
        self.measure_step(known, samples)
    }

    fn require_same(&self, taken: &Snapshot, known: &Snapshot) -> Result<()> {
        ensure!(taken.id == known.id, "the snapshot of an unchanged tree differs");
        Ok(())
    }

    /// Measures the work after a step: scanning and comparing its layer, applying it to the view, and computing the
    /// new snapshot id.
    fn measure_step(&self, known: &Arc<Snapshot>, samples: &mut SnapshotSamples) -> Result<()> {
        let step = self.step_layer(known)?;
        for _ in 0..DRIFT_CHECKS {
            let began = Instant::now();
            let scan = scan_layer(step.upper.as_fd(), ScanBounds::default())?;
            let changes = step.count_changes(&scan)?;
            samples.drift.push(began.elapsed());
            ensure!(changes == CHANGED, "{changes} changes were found");
            let began = Instant::now();
            let after = step.view.with_layer(&scan, &step.ignored)?;
            let laid = Instant::now();
            let id = after.id();
            samples.update.push(laid.elapsed());
            samples.layer.push(began.elapsed());
            ensure!(id != known.id, "the identity did not change");
        }
        Ok(())
    }

    fn git_status(&self) -> Command {
        let mut git = program::silent_command("git", &["status", "--porcelain"]);
        git.current_dir(self.repository()).env("GIT_OPTIONAL_LOCKS", "0");
        git
    }
}
