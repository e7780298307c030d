//! Measures `proctor gate` on verified and unchanged trees, compared with `git status` on the same trees. The gate
//! runs as a separate process, and inside a running process as in a daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use proctor_core::decision::gate::{
    AgeLimits, GateRequirements, InputRequirement, MachineRequirement, UnattestedPolicy,
};
use proctor_core::model::cache::CacheTrust;
use proctor_core::model::names::ProfileName;
use proctor_core::model::tier::Tier;
use proctor_core::spec::OperatorConfig;
use proctor_git::files::file_stat::RacyWindow;
use proctor_runner::{Clock, EngineConfig, Gate, GateRequest, HelperPrograms};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::engine_fixture::{git_commit, write};
use crate::program;
use crate::samples::{LimitChecks, Sample, heading, ratio, row};

/// Numbers of tracked files of the trees, unless `FILES` sets one.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
/// Number of files in a directory.
const FILES_OF_A_DIRECTORY: usize = 100;
/// Number of runs of each program before the measurement starts.
const WARM_UP: usize = 3;
/// Maximum duration of a gate on a large tree, relative to `git status`.
const MAX_TO_GIT_STATUS: f64 = 0.8;
/// Minimum number of files of a large tree. On smaller trees, the start of a process has too much weight.
const LARGE_TREE: usize = 100_000;

const SPEC: &str = "version: 1\nprofiles: { pr: { include: [a] } }\nskills:\n  a: { description: d, determinism: D0, \
                    tier: 1, steps: [ { name: a, cmd: [\"true\"] } ] }\n";

/// A verified tree.
struct VerifiedTree {
    root: TempDir,
}

/// Measures, prints, and compares the medians on large trees with the limit. RUNS is the number of rounds (20),
/// FILES the size of a single tree instead of several.
///
/// # Errors
/// A program cannot be run, or a verified tree does not pass.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let runs = program::setting("RUNS", 20)?;
    let sizes = match program::setting("FILES", 0)? {
        0 => SIZES.to_vec(),
        files => vec![files],
    };
    for files in sizes {
        let tree = VerifiedTree::create(files)?;
        let gate = tree.gate()?;
        let [mut status, mut as_program, mut in_process] = [Sample::default(), Sample::default(), Sample::default()];
        for round in 0..WARM_UP + runs {
            let took = [
                program::run_timed(&mut tree.git_status())?,
                program::run_timed(&mut tree.proctor_command("gate")?)?,
                {
                    let began = Instant::now();
                    tree.check_gate(&gate)?;
                    began.elapsed()
                },
            ];
            if round >= WARM_UP {
                for (sample, took) in [&mut status, &mut as_program, &mut in_process].into_iter().zip(took) {
                    sample.push(took);
                }
            }
        }
        println!("{}", heading(&format!("{files} files, ms")));
        let rows = [("git status", &status), ("proctor gate", &as_program), ("within a process", &in_process)];
        rows.iter().for_each(|(name, sample)| println!("{}", row(name, sample)));
        if files >= LARGE_TREE {
            let share = ratio(as_program.median(), status.median());
            bars.at_most(&format!("proctor gate / git status, {files} files"), share, MAX_TO_GIT_STATUS);
        }
    }
    Ok(())
}

impl VerifiedTree {
    fn create(files: usize) -> Result<Self> {
        let root = TempDir::with_prefix("proctor-bench.").context("cannot create a scratch directory")?;
        let made = Self { root };
        let at = made.repository();
        for number in 0..files {
            let directory = at.join(format!("d{}", number / FILES_OF_A_DIRECTORY));
            if number % FILES_OF_A_DIRECTORY == 0 {
                std::fs::create_dir_all(&directory)?;
            }
            write(&directory.join(format!("f{number}")), format!("file {number}\n").repeat(20).as_bytes())?;
        }
        std::fs::create_dir_all(at.join("spec"))?;
        write(&at.join("spec/verification.yaml"), SPEC.as_bytes())?;
        git_commit(&at)?;
        Self::wait_for_racy_window();
        program::run_timed(&mut made.proctor_command("run")?)?;
        Ok(made)
    }

    /// Waits until all files are old enough to be trusted by their times; younger files are read every time.
    #[expect(clippy::disallowed_methods, reason = "the measurement waits for time to pass")]
    fn wait_for_racy_window() {
        // Only age makes the times of a file trustworthy.
        std::thread::sleep(RacyWindow::default().0);
    }

    fn repository(&self) -> PathBuf {
        self.root.path().join("repository")
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    fn git_status(&self) -> Command {
        let mut git = program::silent_command("git", &["status", "--porcelain"]);
        git.current_dir(self.repository()).env("GIT_OPTIONAL_LOCKS", "0");
        git
    }

    fn proctor_command(&self, command: &str) -> Result<Command> {
        let mut proctor = program::silent_command(&path_text(&sibling_program("proctor")?)?, &[command, "--repo"]);
        proctor.arg(self.repository()).arg("--state-dir").arg(self.state());
        Ok(proctor)
    }

    /// Returns the gate as in a daemon.
    fn gate(&self) -> Result<Gate> {
        let config = EngineConfig {
            state_dir: self.state(),
            helpers: HelperPrograms {
                sandbox: sibling_program("proctor-sandbox")?,
                git: sibling_program("proctor-git")?,
                sql: sibling_program("proctor-sql")?,
            },
            duckdb: None,
            home: self.root.path().join("home"),
            caller_env: BTreeMap::new(),
            operator: OperatorConfig::default(),
            hidden_dirs: Vec::new(),
            is_long_running: false,
        };
        Ok(Gate::new(config, Clock::system()))
    }

    /// Requests a gate decision as a daemon would.
    fn check_gate(&self, gate: &Gate) -> Result<()> {
        let demands = GateRequirements {
            profile: ProfileName::new("pr")?,
            changeset: None,
            max_tier: Tier::TWO,
            max_age: AgeLimits::default(),
            unattested: UnattestedPolicy::Refuse,
            max_cache_trust: CacheTrust::Default,
            inputs: InputRequirement::Any,
            machines: MachineRequirement::Any,
        };
        let answer = gate.check(&GateRequest { repo: self.repository(), demands });
        let answer = answer.map_err(|error| anyhow::anyhow!("{}", error.message()))?;
        ensure!(answer.pass, "a verified tree does not pass: {:?}", answer.findings);
        Ok(())
    }
}

/// Returns the path of one of Proctor's own programs.
fn sibling_program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot determine the path of this program")?;
    Ok(own.with_file_name(name))
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).context("the path of this program is not UTF-8")
}
