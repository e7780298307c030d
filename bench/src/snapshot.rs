//! Measures snapshots, compared with `git status` and git libraries on the same trees: the first snapshot, and one
//! of an unchanged tree. Also measures the drift check of a step that changed three files, and the scan of a layer
//! with a million files in an ignored directory (`ignored.rs`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proctor_core::model::plan::ReadOnly;
use proctor_git::helper::{GitHelper, IgnoreQuery};
use proctor_snapshot::{DriftInput, LayerScan, ScanBounds, Snapshot, SnapshotStore, TreeView, find_drift, scan_layer};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::engine_fixture::{git_commit, write};
use crate::program;
use crate::samples::{LimitChecks, Sample, heading, ratio, row};

mod git_libraries;
mod ignored;
mod private_copy;

use private_copy::CopySamples;

/// Numbers of tracked files of the trees, unless `SIZES` sets them.
const SIZES: &str = "1000,10000,100000";
/// Number of files in a directory, and number of these directories in their parent.
const FILES_OF_A_DIRECTORY: usize = 20;
const DIRECTORIES_OF_ONE: usize = 50;
/// Number of files that the step changes.
const CHANGED: usize = 3;
/// Number of rounds before the measurement starts.
const WARM_UP: usize = 2;
/// Number of drift checks in one round; a single one is too short to be measured reliably.
const DRIFT_CHECKS: usize = 50;
/// Maximum wait until all files are old enough to be trusted by their times.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

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

/// A tree, and a step's layer.
struct SnapshotFixture {
    root: TempDir,
    upper: TempDir,
    helper: GitHelper,
}

impl SnapshotFixture {
    fn create(files: usize) -> Result<Self> {
        let root = TempDir::with_prefix("proctor-bench.").context("cannot create a scratch directory")?;
        // Layers are on a tmpfs.
        let upper =
            TempDir::with_prefix_in("proctor-bench.", "/dev/shm").context("cannot create a directory on a tmpfs")?;
        let own = std::env::current_exe().context("cannot determine the path of this program")?;
        let made = Self { root, upper, helper: GitHelper::new(own.with_file_name("proctor-git")) };
        let at = made.repository();
        for number in 0..files {
            let path = at.join(file_path(number));
            if number % FILES_OF_A_DIRECTORY == 0 {
                std::fs::create_dir_all(path.parent().context("path has no parent")?)?;
            }
            let line = format!("fn f{number}() -> u32 {{ {number} }}\n");
            write(&path, line.repeat(5 + number % 60).as_bytes())?;
        }
        write(&at.join(".gitignore"), b"target/\n*.o\n")?;
        git_commit(&at)?;
        for number in changed_files(files) {
            let path = made.upper.path().join(file_path(number));
            std::fs::create_dir_all(path.parent().context("path has no parent")?)?;
            write(&path, format!("changed {number}\n").repeat(20).as_bytes())?;
        }
        std::fs::create_dir(made.root.path().join("snapshots"))?;
        Ok(made)
    }

    fn repository(&self) -> PathBuf {
        self.root.path().join("repository")
    }

    fn store(&self) -> Result<SnapshotStore> {
        let directory = std::fs::File::open(self.root.path().join("snapshots"))?;
        Ok(SnapshotStore::new(self.helper.clone(), Some(OwnedFd::from(directory))))
    }

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
        // Edits come last: what is edited is read again for a while, whatever is measured.
        for round in 0..WARM_UP + runs {
            if round == WARM_UP {
                samples.copies.edited = private_copy::CopyStageSamples::default();
            }
            self.measure_edited(&snapshot, round, &mut samples.copies)?;
            samples.status.push(program::run_timed(&mut self.git_status())?);
        }
        Ok(samples)
    }

    /// Returns a snapshot of the tree after all files are old enough to be trusted and the snapshot file is
    /// written.
    fn settled_snapshot(&self, store: &SnapshotStore) -> Result<Arc<Snapshot>> {
        let until = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let taken = store.take(&self.repository())?;
            if taken.stats.hashed == 0 && !taken.stats.git_was_read {
                return Ok(taken);
            }
            ensure!(Instant::now() < until, "snapshots still rehash files: {:?}", taken.stats);
        }
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

    fn step_layer(&self, known: &Arc<Snapshot>) -> Result<StepLayer> {
        Ok(StepLayer {
            repo: open_directory(&self.repository())?,
            upper: open_directory(self.upper.path())?,
            ignored: IgnoreQuery::new(self.helper.clone(), self.repository()).with_submodules(known.known_submodules()),
            view: TreeView::new(Arc::clone(known)),
        })
    }

    fn git_status(&self) -> Command {
        let mut git = program::silent_command("git", &["status", "--porcelain"]);
        git.current_dir(self.repository()).env("GIT_OPTIONAL_LOCKS", "0");
        git
    }
}

/// The result of a step, and the tree before it.
struct StepLayer {
    repo: OwnedFd,
    upper: OwnedFd,
    ignored: IgnoreQuery,
    view: TreeView,
}

impl StepLayer {
    /// Returns the number of changes in its layer.
    fn count_changes(&self, scan: &LayerScan) -> Result<usize> {
        let drift = find_drift(DriftInput {
            view: &self.view,
            scan,
            mode: ReadOnly::Tracked,
            ignored: &self.ignored,
            repo: self.repo.as_fd(),
            upper: self.upper.as_fd(),
            lower_uppers: &[],
            caches: &[],
        })?;
        Ok(drift.changes.len())
    }
}

/// Returns the path of a file of the tree.
fn file_path(number: usize) -> String {
    let directory = number / FILES_OF_A_DIRECTORY;
    format!("src/m{}/p{}/file_{number}.rs", directory / DIRECTORIES_OF_ONE, directory % DIRECTORIES_OF_ONE)
}

/// Returns the files that the step changes, which are far apart.
fn changed_files(files: usize) -> impl Iterator<Item = usize> {
    (0..CHANGED).map(move |nth| files / (CHANGED + 1) * (nth + 1))
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    Ok(OwnedFd::from(std::fs::File::open(path)?))
}

fn measure_time(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}
