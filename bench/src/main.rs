//! `proctor-bench`: measures attempts, gates, the daemon, kills, leftovers, the reading of output, snapshots, SQL
//! checks, and whole runs compared with hook runners. Each measurement uses the runner's normal code path, and a
//! comparison program if there is one. The argument selects the measurement. The exit code is 1 if a result exceeds
//! its limit.

mod attempt;
mod daemon;
mod engine_fixture;
mod gate;
mod hook_runners;
mod host_state;
mod kill;
mod leftovers;
mod output;
mod program;
mod samples;
mod snapshot;
mod sql_bind;
mod sql_cases;
mod sql_meaning;
mod stage_recorder;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use samples::LimitChecks;

fn main() -> ExitCode {
    match run_measurement() {
        Ok(bars) => bars.exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_measurement() -> Result<LimitChecks> {
    proctor_runner::restore_signal_handling().context("cannot restore signal handling")?;
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut bars = LimitChecks::default();
    if name == "respond" {
        daemon::run_responder(&std::env::args().skip(2).collect::<Vec<_>>())?;
    }
    println!("{}", host_state::describe(&name)?);
    match name.as_str() {
        "attempt" => attempt::measure(&mut bars)?,
        "daemon" => daemon::measure(&mut bars)?,
        "exec" => daemon::exec::measure(&mut bars)?,
        "gate" => gate::measure(&mut bars)?,
        "kill" => kill::measure(&mut bars)?,
        "leftovers" => leftovers::measure(&mut bars)?,
        "output" => output::measure(&mut bars)?,
        "peers" => hook_runners::measure(std::env::args_os().nth(2).as_deref().map(Path::new), &mut bars)?,
        "snapshot" => snapshot::measure(&mut bars)?,
        "sql-bind" => sql_bind::measure(&std::env::args().skip(2).collect::<Vec<_>>())?,
        "sql-cases" => sql_cases::measure(&std::env::args().skip(2).collect::<Vec<_>>(), &mut bars)?,
        "sql-meaning" => sql_meaning::measure(&std::env::args().skip(2).collect::<Vec<_>>(), &mut bars)?,
        other => {
            bail!(
                "unknown measurement `{other}`; expected one of attempt, daemon, exec, gate, kill, leftovers, output, peers, snapshot, sql-bind, sql-cases and sql-meaning"
            )
        }
    }
    Ok(bars)
}
