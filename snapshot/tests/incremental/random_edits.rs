//! Compares incremental snapshots with full snapshots after sequences of pseudo-random edits.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::{WatchedRepo, assert_same_snapshot, set_mtime};
use crate::campaign_size;
use crate::repository::{FixtureRepo, chmod, write_file};

/// A pseudo-random number generator with a fixed sequence.
pub(super) struct EditNumbers(pub(super) u64);

impl EditNumbers {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn choose<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const FILES: [&str; 12] =
    ["a", "b.log", "d/a", "d/b", "d/e/a", "d/e/b.log", "target/a", "d/target/a", "d-", "d.x/a", "f/g/h/a", "new"];
const DIRECTORIES: [&str; 6] = ["d", "d/e", "target", "d.x", "f", "f/g"];

/// Makes one edit, which may fail.
pub(super) fn apply_random_edit(repo: &FixtureRepo, numbers: &mut EditNumbers) -> String {
    let (path, directory) = (numbers.choose(&FILES), numbers.choose(&DIRECTORIES));
    let clear = |path: &str| {
        let path = repo.at(path);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
    };
    let write = |path: &str, content: &str| {
        let path = repo.at(path);
        let parent = path.parent().expect("a parent");
        if fs::create_dir_all(parent).is_ok() && !path.is_dir() {
            write_file(&path, content.as_bytes());
        }
    };
    let what = numbers.below(22);
    match what {
        0..=3 => write(path, numbers.choose(&["one", "two", "six", "seven"])),
        4 => clear(path),
        5 => clear(directory),
        6 => drop(fs::rename(repo.at(path), repo.at(numbers.choose(&FILES)))),
        7 => drop(fs::rename(repo.at(directory), repo.at(numbers.choose(&DIRECTORIES)))),
        8 => {
            if repo.at(path).is_file() {
                chmod(&repo.at(path), if numbers.below(2) == 0 { 0o755 } else { 0o644 });
            }
        }
        9 => {
            clear(path);
            drop(symlink(numbers.choose(&["a", "d", "nowhere"]), repo.at(path)));
        }
        10 => {
            clear(directory);
            drop(symlink("d", repo.at(directory)));
        }
        11 => {
            // The directory may be a nested repository with its own rules.
            let rules = numbers.choose(&["", "d/", "d/e/", "f/"]);
            let content =
                numbers.choose(&["target/\n*.log\n", "a\n", "*.log\n!b.log\n", "d/\n", "/new\n", "e\n.gitignore\n"]);
            let path = repo.at(format!("{rules}.gitignore"));
            if path.parent().is_some_and(|parent| parent.is_dir()) {
                write_file(&path, content.as_bytes());
            }
        }
        12 => drop(fs::remove_file(repo.at(numbers.choose(&[".gitignore", "d/.gitignore", "f/.gitignore"])))),
        13 => drop(repo.try_git(&["add", "-A"])),
        14 => drop(repo.try_git(&["add", "-f", path])),
        15 => drop(repo.try_git(&["rm", "-q", "-r", "--cached", path])),
        16 => drop(repo.try_git(&["commit", "-qm", "x", "--allow-empty"])),
        17 => drop(repo.try_git(&["checkout", "-q", "--force", "HEAD", "--", "."])),
        18 => drop(repo.try_git(&["reset", "-q", "--hard", "HEAD~"])),
        19 => write(".git/info/exclude", numbers.choose(&["", "new\n", "d.x\n"])),
        20 => drop(repo.try_git(&["init", "-q", directory])),
        _ => {
            if let Ok(stat) = repo.at(path).symlink_metadata() {
                write(path, "two");
                set_mtime(&repo.at(path), &stat);
            }
        }
    }
    format!("{what} {path} {directory}")
}

pub(super) fn matches_full_snapshot_after_random_edits() {
    const EDITS: usize = 10;
    for seed in 0..campaign_size(12, 40) {
        let mut numbers = EditNumbers(seed);
        let watched = WatchedRepo::small();
        if seed % 2 == 0 {
            watched.settle();
        }
        let mut script = Vec::new();
        for _ in 0..EDITS {
            script.push(apply_random_edit(&watched.repo, &mut numbers));
            let (taken, fresh) = (watched.store.take(&watched.repo.top), watched.repo.take());
            match (taken, fresh) {
                (Ok(taken), Ok(fresh)) => assert_same_snapshot(&taken, &fresh, &format!("seed {seed}: {script:#?}")),
                (Err(taken), Err(fresh)) => assert_eq!(taken.to_string(), fresh.to_string()),
                (taken, fresh) => panic!("seed {seed}: {script:#?}: {:?} {:?}", taken.err(), fresh.err()),
            }
            // In half of the cases the next edit starts from a settled tree, otherwise from a racy one.
            if numbers.below(2) == 0 && watched.repo.take().is_ok() && script.len() % 3 == 0 {
                watched.try_settle();
            }
        }
    }
}

impl WatchedRepo {
    /// Waits only a short time, since for some trees git must be asked every time.
    fn try_settle(&self) {
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            let taken = self.take();
            if taken.stats.hashed == 0 && !taken.stats.git_was_read {
                return;
            }
        }
    }
}
