//! What it costs to look at the layer of a step that left a million files in an ignored directory: time, and
//! memory, where nothing in it is read, and where names are.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use proctor_snapshot::{IgnoredContent, ScanBounds, Snapshot, Spare, scan_layer_sparing};
use tokio::time::Instant;

use super::{CHANGED, Ground};
use crate::figures::{Bars, Sample, heading, millis, row};
use crate::{arena, machine, program};

/// From how many files of the step on the bars hold.
const FILES: usize = 1_000_000;
/// How many of them share a directory.
const FILES_OF_A_DIRECTORY: usize = 1_000;
/// How many tracked files there are beside them.
const TRACKED: usize = 1_000;
/// How often each is measured, and how often before that.
const ROUNDS: usize = 5;
const WARM_UP: usize = 1;

/// One way to look, and what it may take of milliseconds and MiB.
struct Way {
    name: &'static str,
    content: IgnoredContent,
    most_ms: f64,
    most_mib: f64,
}

const WAYS: [Way; 2] = [
    Way { name: "nothing of them is read", content: IgnoredContent::Skipped, most_ms: 10.0, most_mib: 8.0 },
    Way { name: "their names are read", content: IgnoredContent::Listed, most_ms: 3_500.0, most_mib: 220.0 },
];

/// Measures, prints, and holds what a million files cost to the bars. It comes before the trees: memory that was
/// used once is not asked for again. IGNORED is how many files; nothing is measured where it does
/// not say: to make and remove a million takes minutes.
///
/// # Errors
/// Something does not run at all.
pub(super) fn measure(bars: &mut Bars) -> Result<()> {
    let files: usize = program::setting("IGNORED", 0)?;
    if files == 0 {
        return Ok(());
    }
    let ground = Ground::make(TRACKED)?;
    leave(ground.upper.path(), files)?;
    let known = ground.settled(&ground.store()?)?;
    println!("{}", heading(&format!("{files} ignored files of a step, ms")));
    for way in WAYS {
        let (mut took, mut most) = (Sample::default(), 0);
        for round in 0..WARM_UP + ROUNDS {
            machine::forget_peak()?;
            let before = machine::peak_memory()?;
            let began = Instant::now();
            ground.look(&known, way.content, files)?;
            let elapsed = began.elapsed();
            most = most.max(machine::peak_memory()?.saturating_sub(before));
            if round >= WARM_UP {
                took.push(elapsed);
            }
        }
        let mib = (most >> 10) as f64 / 1024.0;
        println!("{} {mib:>9.1} MiB", row(way.name, &took));
        if files >= FILES {
            let what = format!("{files} ignored files, {}", way.name);
            bars.at_most(&format!("milliseconds, {what}"), millis(took.median()), way.most_ms);
            bars.at_most(&format!("MiB, {what}"), mib, way.most_mib);
        }
    }
    Ok(())
}

/// What the step left, beside the files that it changed.
fn leave(upper: &Path, files: usize) -> Result<()> {
    let room = rustix::fs::statvfs(upper).context("the tmpfs cannot be asked for its room")?;
    // One without a bound says that it has none at all.
    let room = if room.f_files == 0 { usize::MAX } else { usize::try_from(room.f_ffree)? };
    ensure!(room > files + files / 100, "/dev/shm has room for {room} more files");
    for number in 0..files {
        let directory = upper.join(format!("target/d{}", number / FILES_OF_A_DIRECTORY));
        if number % FILES_OF_A_DIRECTORY == 0 {
            std::fs::create_dir_all(&directory)?;
        }
        arena::write(&directory.join(format!("object_{number}.o")), b"")?;
    }
    Ok(())
}

impl Ground {
    /// The layer is scanned, and its changes are found: those of tracked files, and nothing of the others.
    fn look(&self, known: &Arc<Snapshot>, content: IgnoredContent, files: usize) -> Result<()> {
        let step = self.after_a_step(known)?;
        let spare = Spare { view: &step.view, ignored: &step.ignored, content };
        let scan = scan_layer_sparing(step.upper.as_fd(), ScanBounds::default(), spare)?;
        let changes = step.changes(&scan)?;
        ensure!(changes == CHANGED, "{changes} changes were found");
        let (entries, is_listed) = (scan.entries.len(), content == IgnoredContent::Listed);
        ensure!((entries >= files) == is_listed, "{entries} entries of {files} files were read");
        Ok(())
    }
}
