//! Measures the number of bind checks of SQLite statements per second of CPU time, with loaded schemas: correct
//! queries, each judged only by the stage `bind`. `bench/sql-bind` compares it with sqlglot's qualify.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use proctor_core::sql::{Dialect, SqlRequest, SqlVerdict, StageName};
use proctor_sql::sqlite::Sqlite;
use rustix::time::{ClockId, clock_gettime};

use crate::sql_cases::case_rows;

/// Number of passes over all rows.
const PASSES: usize = 5;

/// Prints the number of checks per second of CPU time.
///
/// # Errors
/// The folder cannot be read, or a correct query does not bind.
pub(crate) fn measure(arguments: &[String]) -> Result<()> {
    let Some(folder) = arguments.first() else {
        println!("skipped: no directory with data/gold.jsonl was given");
        return Ok(());
    };
    let rows: Vec<_> = case_rows::read_rows(Path::new(folder))?.into_iter().filter(|row| row.kind == "gold").collect();
    let request = |sql: &str, ddl: &str| SqlRequest {
        schema: vec![ddl.to_owned()],
        stages: Some(vec![StageName::Bind]),
        ..SqlRequest::new(Dialect::Sqlite, sql)
    };
    let mut engines: BTreeMap<&str, Sqlite> = BTreeMap::new();
    for row in &rows {
        if !engines.contains_key(row.ddl.as_str()) {
            let engine =
                Sqlite::open(&request("SELECT 1", &row.ddl)).map_err(|refusal| anyhow::anyhow!(refusal.message))?;
            engines.insert(&row.ddl, engine);
        }
    }
    // The schema is already loaded, so the requests contain none.
    let requests: Vec<(&str, SqlRequest)> =
        rows.iter().map(|row| (row.ddl.as_str(), SqlRequest { schema: Vec::new(), ..request(&row.sql, "") })).collect();
    let start = clock_gettime(ClockId::ProcessCPUTime);
    for _ in 0..PASSES {
        for (ddl, request) in &requests {
            let engine = engines.get_mut(ddl).context("an engine of each schema")?;
            let judgement = proctor_sql::judge(request, engine);
            anyhow::ensure!(
                judgement.verdict == SqlVerdict::Ok,
                "`{}` does not bind: {}",
                request.sql,
                judgement.feedback
            );
        }
    }
    let spent = clock_gettime(ClockId::ProcessCPUTime) - start;
    #[expect(clippy::cast_precision_loss, reason = "the rate is shown to a human")]
    let seconds = spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9;
    #[expect(clippy::cast_precision_loss, reason = "the rate is shown to a human")]
    let checks = (requests.len() * PASSES) as f64;
    println!("{:.0} bind checks per CPU second", checks / seconds);
    Ok(())
}
