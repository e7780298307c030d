//! `proctor-bench`: measures attempts, gates, the daemon, kills, leftovers, the reading of output, snapshots, SQL
//! checks, and whole runs compared with hook runners. Each measurement uses the runner's normal code path, and a
//! comparison program if there is one. The argument selects the measurement. The exit code is 1 if a result exceeds
//! its limit.

mod arena;
mod attempt;
mod daemon;
mod figures;
mod gate;
mod kill;
mod leftovers;
mod machine;
mod output;
mod peers;
mod program;
mod snapshot;
mod sql_bind;
mod sql_cases;
mod sql_meaning;
mod stages;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use figures::Bars;

fn main() -> ExitCode {
    match measured() {
        Ok(bars) => bars.conclude(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measured() -> Result<Bars> {
    proctor_runner::claim_signals().context("signals cannot be claimed")?;
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut bars = Bars::default();
    if name == "respond" {
        daemon::respond(&std::env::args().skip(2).collect::<Vec<_>>())?;
    }
    println!("{}", machine::describe(&name)?);
    match name.as_str() {
        "attempt" => attempt::measure(&mut bars)?,
        "daemon" => daemon::measure(&mut bars)?,
        "exec" => daemon::exec::measure(&mut bars)?,
        "gate" => gate::measure(&mut bars)?,
        "kill" => kill::measure(&mut bars)?,
        "leftovers" => leftovers::measure(&mut bars)?,
        "output" => output::measure(&mut bars)?,
        "peers" => peers::measure(std::env::args_os().nth(2).as_deref().map(Path::new), &mut bars)?,
        "snapshot" => snapshot::measure(&mut bars)?,
        "sql-bind" => sql_bind::measure(&std::env::args().skip(2).collect::<Vec<_>>())?,
        "sql-cases" => sql_cases::measure(&std::env::args().skip(2).collect::<Vec<_>>(), &mut bars)?,
        "sql-meaning" => sql_meaning::measure(&std::env::args().skip(2).collect::<Vec<_>>(), &mut bars)?,
        other => {
            bail!(
                "`{other}` is no measurement; they are attempt, daemon, exec, gate, kill, leftovers, output, peers, snapshot, sql-bind, sql-cases and sql-meaning"
            )
        }
    }
    Ok(bars)
}
