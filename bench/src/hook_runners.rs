//! Compares whole runs with other hook runners: the same 8 and 32 checks that do nothing, and 8 real ones, on the
//! same repository. The other runners work on the host and write no evidence. Proctor uses a warm daemon, runs each
//! check in its sandbox, and writes evidence. Each sample is a whole process; the runners alternate in rotating
//! order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::engine_fixture::{git_commit, write};
use crate::program;
use crate::samples::{LimitChecks, Sample, heading, millis, row};

/// Number of rounds before the measurement starts.
const WARM_UP: usize = 2;
/// The two numbers of checks that define the line of costs.
const FEW_CHECKS: u32 = 8;
const MANY_CHECKS: u32 = 32;
/// Maximum fixed cost, relative to prek.
const MAX_FIXED_COST: f64 = 0.5;
/// The runner that sets the limit.
const REFERENCE_RUNNER: &str = "prek";
/// Our name in the table, followed by the mode.
const PROCTOR: &str = "proctor";

/// The real checks: a name and a shell command.
const REAL_CHECKS: [(&str, &str); 8] = [
    ("true", "/bin/true"),
    ("json_ok", "git ls-files -z '*.json' | xargs -0 checks/json_ok.py"),
    ("py_ok", "git ls-files -z 'py/*.py' | xargs -0 checks/py_ok.py"),
    ("py_tabs", "git ls-files -z 'py/*.py' | xargs -0 checks/nogrep.sh '^\t'"),
    ("trailing", "git ls-files -z '*.py' '*.json' '*.rs' '*.md' | xargs -0 checks/nogrep.sh '[ ]+$'"),
    ("conflict", "git ls-files -z '*.py' '*.json' '*.rs' '*.md' | xargs -0 checks/nogrep.sh '^(<<<<<<<|>>>>>>>) '"),
    ("rs_dbg", "git ls-files -z '*.rs' | xargs -0 checks/nogrep.sh 'dbg!|todo!'"),
    ("md_title", "git ls-files -z '*.md' | xargs -0 checks/md_title.sh"),
];

/// A runner in one of its modes.
struct HookRunner {
    /// The name that the table of results shows.
    name: String,
    /// The program, as a path relative to the directory of the other runners, or an absolute path.
    program: PathBuf,
    /// The arguments; `@` is replaced by `noop8`, `noop32` or `work`.
    arguments: &'static [&'static str],
    /// The environment variable for the configuration of the runner, if it uses one, and the value with `@` as above.
    config: Option<(&'static str, &'static str)>,
    /// True if the runner can run the real checks.
    runs_real_checks: bool,
}

/// Measures, prints, and compares Proctor with the fastest mode of prek. RUNS is the number of rounds (15), PEERS
/// the directory with the other runners' programs. `configs` is a directory with their configurations and the
/// script that creates the repository; without it, nothing is measured.
///
/// # Errors
/// A runner cannot be run or fails.
pub(crate) fn measure(configs: Option<&Path>, bars: &mut LimitChecks) -> Result<()> {
    let Some(configs) = configs else {
        println!("skipped: no directory with configurations of the peers was given");
        return Ok(());
    };
    if !configs.join("mkrepo.py").is_file() {
        println!("skipped: {} does not contain configurations of peers", configs.display());
        return Ok(());
    }
    let runs: usize = program::setting("RUNS", 15)?;
    let bin: PathBuf = program::setting("PEERS", PathBuf::new())?;
    let fixture = HookRunnerFixture::create(configs)?;
    let runners = installed_runners(&bin);
    ensure!(
        runners.iter().any(|peer| peer.name.starts_with(REFERENCE_RUNNER)),
        "{REFERENCE_RUNNER} does not exist in {}",
        bin.display()
    );
    let mut samples: BTreeMap<String, Sample> = BTreeMap::new();
    let cases = cases(&runners);
    for round in 0..WARM_UP + runs {
        for at in 0..cases.len() {
            let (name, peer, what) = &cases[(at + round) % cases.len()];
            let took = program::run_timed(&mut fixture.command(peer, what)?).with_context(|| name.clone())?;
            if round >= WARM_UP {
                samples.entry(name.clone()).or_default().push(took);
            }
        }
    }
    println!("{}", heading(&format!("{runs} rounds, ms")));
    samples.iter().for_each(|(name, sample)| println!("{}", row(name, sample)));
    compare_with_limits(&runners, &samples, bars)
}

/// Returns every runner with every set of checks that it supports.
fn cases(runners: &[HookRunner]) -> Vec<(String, &HookRunner, &'static str)> {
    runners.iter().flat_map(check_sets).collect()
}

fn check_sets(runner: &HookRunner) -> Vec<(String, &HookRunner, &'static str)> {
    let work = runner.runs_real_checks.then_some("work");
    ["noop8", "noop32"].into_iter().chain(work).map(|what| (format!("{} {what}", runner.name), runner, what)).collect()
}

/// Returns the line through the two numbers of checks: the cost of each further check, and the fixed cost.
fn cost_line(runner: &HookRunner, samples: &BTreeMap<String, Sample>) -> Result<(f64, f64)> {
    let median = |what: &str| -> Result<f64> {
        let sample = samples.get(&format!("{} {what}", runner.name)).with_context(|| format!("no {what}"))?;
        Ok(millis(sample.median()))
    };
    let (few, many) = (median("noop8")?, median("noop32")?);
    let each = (many - few) / f64::from(MANY_CHECKS - FEW_CHECKS);
    Ok((each, few - each * f64::from(FEW_CHECKS)))
}

fn compare_with_limits(
    runners: &[HookRunner],
    samples: &BTreeMap<String, Sample>,
    bars: &mut LimitChecks,
) -> Result<()> {
    println!("{:<28} {:>9} {:>9} {:>9}", "of the medians, ms", "per check", "fixed", "8 real");
    let mut lines = Vec::new();
    for peer in runners {
        let (each, fixed) = cost_line(peer, samples)?;
        let work = samples.get(&format!("{} work", peer.name)).map(|sample| millis(sample.median()));
        let shown = work.map_or_else(|| "-".to_owned(), |work| format!("{work:.0}"));
        println!("{:<28} {each:>9.2} {fixed:>9.1} {shown:>9}", peer.name);
        lines.push((peer.name.as_str(), each, fixed, work));
    }
    let fastest = |of: &str| {
        let modes = lines.iter().filter(|(name, ..)| name.starts_with(of));
        modes.min_by(|a, b| a.1.total_cmp(&b.1)).copied()
    };
    let (Some(proctor), Some(prek)) = (fastest(PROCTOR), fastest(REFERENCE_RUNNER)) else {
        bail!("no measurements are available")
    };
    bars.at_most(&format!("per check, {} / {}", proctor.0, prek.0), proctor.1 / prek.1, 1.0);
    bars.at_most(&format!("fixed, {} / {}", proctor.0, prek.0), proctor.2 / prek.2, MAX_FIXED_COST);
    let least = |of: &str| {
        let modes = lines.iter().filter(|(name, ..)| name.starts_with(of)).filter_map(|(.., work)| *work);
        modes.min_by(f64::total_cmp)
    };
    for other in [REFERENCE_RUNNER, "lefthook"] {
        if let (Some(ours), Some(theirs)) = (least(PROCTOR), least(other)) {
            bars.at_most(&format!("8 real checks, {PROCTOR} / {other}"), ours / theirs, 1.0);
        }
    }
    Ok(())
}

/// Returns the installed runners, and Proctor in two modes.
fn installed_runners(bin: &Path) -> Vec<HookRunner> {
    type RunnerRow = (&'static str, &'static str, &'static [&'static str], Option<(&'static str, &'static str)>, bool);
    const LEFTHOOK: &[&str] = &["run", "verify", "--force"];
    // The cost of the checks' own programs, two at a time: a lower bound for every runner.
    const BARE: &[&str] = &["-c", "checks=@; seq ${checks#noop} | xargs -P 2 -n 1 /bin/true"];
    const ROWS: [RunnerRow; 7] = [
        ("no runner: xargs -P 2", "/bin/sh", BARE, None, false),
        ("pre-commit", "pre-commit", &["run", "-a", "-c", "../pre-commit-@.yaml"], None, true),
        ("prek", "prek", &["run", "-a", "-c", "../pre-commit-@.yaml"], None, true),
        ("prek, same priority", "prek", &["run", "-a", "-c", "../prek-@-par.yaml"], None, true),
        ("lefthook", "lefthook", LEFTHOOK, Some(("LEFTHOOK_CONFIG", "../lefthook-@.yml")), true),
        ("lefthook, parallel", "lefthook", LEFTHOOK, Some(("LEFTHOOK_CONFIG", "../lefthook-@-par.yml")), true),
        ("just", "just", &["-f", "../justfile-@", "-d", ".", "all"], None, false),
    ];
    let peer = |(name, program, arguments, config, works): RunnerRow| {
        let program = bin.join(program);
        HookRunner { name: name.to_owned(), program, arguments, config, runs_real_checks: works }
    };
    let there = ROWS.into_iter().map(peer).filter(|peer| {
        let is_there = peer.program.is_file();
        if !is_there {
            println!("skipped: {} ({} does not exist)", peer.name, peer.program.display());
        }
        is_there
    });
    let ours = |mode: &str, arguments| HookRunner {
        name: format!("{PROCTOR}, {mode}"),
        program: PathBuf::from(PROCTOR),
        arguments,
        config: None,
        runs_real_checks: true,
    };
    let steps = ours("a step each", &["run", "--daemon", "--profile", "@"]);
    let skills = ours("a skill each", &["run", "--daemon", "--profile", "@-par"]);
    there.chain([steps, skills]).collect()
}

/// The repository with all configurations next to it, and our daemon.
struct HookRunnerFixture {
    root: TempDir,
}

impl HookRunnerFixture {
    fn create(configs: &Path) -> Result<Self> {
        let root = TempDir::with_prefix("proctor-bench.").context("cannot create a scratch directory")?;
        let place = Self { root };
        let repository = place.path("repository");
        let script = configs.join("mkrepo.py").display().to_string();
        let target = repository.display().to_string();
        program::run_timed(&mut program::silent_command("python3", &[&script, &target]))?;
        copy_files(configs, place.root.path(), |name| name != "mkrepo.py" && name != "README.md")?;
        fs::create_dir_all(repository.join("checks"))?;
        copy_files(&configs.join("checks"), &repository.join("checks"), |_| true)?;
        fs::create_dir_all(repository.join("spec"))?;
        write(&repository.join("spec/verification.yaml"), spec().as_bytes())?;
        git_commit(&repository)?;
        for directory in ["home", "runtime", "state"] {
            fs::create_dir_all(place.path(directory))?;
        }
        let (socket, state) = (place.socket(), place.path("state").display().to_string());
        let start = ["daemon", "start", "--socket", &socket, "--state-dir", &state];
        program::run_timed(&mut place.with_environment(program::silent_command(&proctor_program()?, &start)))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Returns the socket of our daemon.
    fn socket(&self) -> String {
        self.path("runtime/proctord.sock").display().to_string()
    }

    fn with_environment(&self, mut command: Command) -> Command {
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path("bin").display());
        let variables = [("HOME", "home"), ("PREK_HOME", "home/prek"), ("PRE_COMMIT_HOME", "home/pre-commit")];
        command.env_clear().current_dir(self.path("repository")).env("PATH", path).env("CI", "1").env("NO_COLOR", "1");
        variables.into_iter().for_each(|(name, place)| {
            command.env(name, self.path(place));
        });
        command
    }

    fn command(&self, runner: &HookRunner, what: &str) -> Result<Command> {
        let arguments: Vec<String> = runner.arguments.iter().map(|word| word.replace('@', what)).collect();
        let is_us = runner.program == Path::new(PROCTOR);
        let socket = self.socket();
        let own = if is_us { vec!["--socket", &socket] } else { Vec::new() };
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(own).collect();
        let program = if is_us { proctor_program()? } else { runner.program.display().to_string() };
        let mut command = self.with_environment(program::silent_command(&program, &arguments));
        if let Some((variable, value)) = runner.config {
            command.env(variable, value.replace('@', what));
        }
        Ok(command)
    }
}

impl Drop for HookRunnerFixture {
    fn drop(&mut self) {
        // If this command fails, the daemon has already exited.
        let _ = proctor_program()
            .map(|us| program::silent_command(&us, &["daemon", "stop", "--socket", &self.socket()]).status());
    }
}

/// Returns our program, which is in the directory of this one.
fn proctor_program() -> Result<String> {
    let own = std::env::current_exe().context("cannot determine the path of this program")?;
    Ok(own.with_file_name(PROCTOR).display().to_string())
}

/// Copies the files of a directory, without its subdirectories.
fn copy_files(from: &Path, to: &Path, filter: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let is_wanted = entry.file_name().to_str().is_some_and(&filter);
        if entry.file_type()?.is_file() && is_wanted {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Returns our spec: each set of checks as the steps of one skill, and as independent skills.
fn spec() -> String {
    let noops = |number: u32| (1..=number).map(|n| (format!("n{n}"), "\"/bin/true\"".to_owned())).collect::<Vec<_>>();
    let shell = |command: &str| format!("\"sh\", \"-c\", {}", serde_json::Value::from(command));
    let work = REAL_CHECKS.iter().map(|(name, command)| ((*name).to_owned(), shell(command))).collect::<Vec<_>>();
    let sets = [("noop8", noops(FEW_CHECKS)), ("noop32", noops(MANY_CHECKS)), ("work", work)];
    let (mut profiles, mut skills) = (String::new(), String::new());
    let skill = |name: &str, steps: &str| {
        format!("  {name}:\n    determinism: D1\n    tier: 1\n    needs: []\n    steps:\n{steps}")
    };
    for (set, checks) in sets {
        let step = |(name, cmd): &(String, String)| format!("      - {{ name: {name}, cmd: [{cmd}] }}\n");
        skills.push_str(&skill(set, &checks.iter().map(step).collect::<String>()));
        checks.iter().for_each(|check| skills.push_str(&skill(&format!("{set}.{}", check.0), &step(check))));
        let names: Vec<String> = checks.iter().map(|(name, _)| format!("{set}.{name}")).collect();
        profiles.push_str(&format!("  {set}: {{ include: [{set}] }}\n"));
        profiles.push_str(&format!("  {set}-par: {{ include: [{}] }}\n", names.join(", ")));
    }
    format!("version: 1\nprofiles:\n{profiles}skills:\n{skills}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_spec_is_valid() {
        let read = proctor_core::spec::parse(spec().as_bytes());
        assert!(read.is_ok(), "{:?}", read.err());
    }
}
