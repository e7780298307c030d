//! Measures the scan of a layer with a million files in an ignored directory: time and memory, without reading the
//! directory and with reading the names in it.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use proctor_snapshot::{IgnoredContent, ScanBounds, Snapshot, SparingRules, scan_layer_sparing};
use tokio::time::Instant;

use super::snapshot_fixture::{CHANGED, SnapshotFixture};
use crate::samples::{LimitChecks, Sample, heading, millis, row};
use crate::{engine_fixture, host_state, program};

/// Minimum number of files from which the limits apply.
const LIMIT_FROM_FILES: usize = 1_000_000;
/// Number of files in a directory.
const FILES_OF_A_DIRECTORY: usize = 1_000;
/// Number of tracked files in addition.
const TRACKED_FILES: usize = 1_000;
/// Number of measured rounds, and of rounds before the measurement starts.
const ROUNDS: usize = 5;
const WARM_UP: usize = 1;

/// A scan mode, with its maximum duration in milliseconds and maximum memory in MiB.
struct ScanMode {
    name: &'static str,
    content: IgnoredContent,
    max_ms: f64,
    max_mib: f64,
}

const SCAN_MODES: [ScanMode; 2] = [
    ScanMode { name: "nothing of them is read", content: IgnoredContent::Skipped, max_ms: 10.0, max_mib: 8.0 },
    ScanMode { name: "their names are read", content: IgnoredContent::Listed, max_ms: 3_500.0, max_mib: 220.0 },
];

/// Measures, prints, and compares the cost of a million files with the limits. This runs before the measurements of
/// the trees, because memory that a process has used once does not show up as growth. IGNORED is the number of
/// files; by default nothing is measured, because creating and removing a million files takes minutes.
///
/// # Errors
/// A program cannot be run.
pub(super) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let files: usize = program::setting("IGNORED", 0)?;
    if files == 0 {
        return Ok(());
    }
    let fixture = SnapshotFixture::create(TRACKED_FILES)?;
    create_ignored_files(fixture.upper.path(), files)?;
    let known = fixture.settled_snapshot(&fixture.store()?)?;
    println!("{}", heading(&format!("{files} ignored files of a step, ms")));
    for mode in SCAN_MODES {
        let (mut took, mut most) = (Sample::default(), 0);
        for round in 0..WARM_UP + ROUNDS {
            host_state::reset_peak()?;
            let before = host_state::peak_memory()?;
            let began = Instant::now();
            fixture.scan_and_check(&known, mode.content, files)?;
            let elapsed = began.elapsed();
            most = most.max(host_state::peak_memory()?.saturating_sub(before));
            if round >= WARM_UP {
                took.push(elapsed);
            }
        }
        let mib = (most >> 10) as f64 / 1024.0;
        println!("{} {mib:>9.1} MiB", row(mode.name, &took));
        if files >= LIMIT_FROM_FILES {
            let what = format!("{files} ignored files, {}", mode.name);
            bars.at_most(&format!("milliseconds, {what}"), millis(took.median()), mode.max_ms);
            bars.at_most(&format!("MiB, {what}"), mib, mode.max_mib);
        }
    }
    Ok(())
}

/// Creates the ignored files of the step, in addition to its changed files.
fn create_ignored_files(upper: &Path, files: usize) -> Result<()> {
    let free_inodes = rustix::fs::statvfs(upper).context("cannot read the free inodes of the tmpfs")?;
    // An unlimited tmpfs reports zero inodes.
    let free_inodes = if free_inodes.f_files == 0 { usize::MAX } else { usize::try_from(free_inodes.f_ffree)? };
    ensure!(free_inodes > files + files / 100, "/dev/shm has room for {free_inodes} more files");
    for number in 0..files {
        let directory = upper.join(format!("target/d{}", number / FILES_OF_A_DIRECTORY));
        if number % FILES_OF_A_DIRECTORY == 0 {
            std::fs::create_dir_all(&directory)?;
        }
        engine_fixture::write(&directory.join(format!("object_{number}.o")), b"")?;
    }
    Ok(())
}

impl SnapshotFixture {
    /// Scans the layer and finds the changes: those of tracked files, and none of ignored files.
    fn scan_and_check(&self, known: &Arc<Snapshot>, content: IgnoredContent, files: usize) -> Result<()> {
        let step = self.step_layer(known)?;
        let spare = SparingRules { view: &step.view, ignored: &step.ignored, content };
        let scan = scan_layer_sparing(step.upper.as_fd(), ScanBounds::default(), spare)?;
        let changes = step.count_changes(&scan)?;
        ensure!(changes == CHANGED, "{changes} changes were found");
        let (entries, is_listed) = (scan.entries.len(), content == IgnoredContent::Listed);
        ensure!((entries >= files) == is_listed, "{entries} entries of {files} files were read");
        Ok(())
    }
}
