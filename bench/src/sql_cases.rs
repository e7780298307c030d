//! Measures the accuracy of SQL verdicts: statements with known verdicts, correct queries, and the same queries
//! with one known error each. The engine of each dialect judges them in this process. The command line names a
//! folder with the data, which we may not redistribute.
//!
//! ```text
//! proctor-bench sql-cases FOLDER [--list KIND] [--half 0|1] [--only KIND] [--from PERCENT]
//! ```
//!
//! `--list` prints each wrong row of a kind. `--half` selects one half of the queries, so that rules tuned on one
//! half can be measured on the other. `--only` judges one kind. `--from` sets the confidence from which warnings
//! count.

pub(crate) mod rows;
mod schema;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context as _, Result, bail};
use proctor_core::sql::{
    Diagnostic, Dialect, Judgement, Limits, Policy, Request, Severity, SqlCode, StageName, Verdict,
};
use proctor_sql::sqlite::Sqlite;
use proctor_sql::{Engine, wire};

use crate::figures::Bars;
use crate::program;
use rows::{Row, rows};

/// The confidence, in percent, from which a warning counts.
const CONFIDENCE: u8 = 70;
/// Maximum share of correct queries with such a warning.
const GOLD_WARNED: f64 = 0.02;
/// Maximum number of rows that are listed.
const MOST_LISTED: usize = 400;

/// A group of rows with its limit and the results of other tools. The baselines were measured: the reference
/// implementation of the four-verifier chain (2,364 correct queries, 153 SQLite cases, and these mutants), and
/// sqlglot's qualify.
struct Bar {
    kind: &'static str,
    /// Minimum share of correct verdicts; `None` if there is no limit.
    least: Option<f64>,
    baseline: &'static str,
}

const BARS: [Bar; 24] = [
    Bar { kind: "cases", least: Some(1.0), baseline: "0.562 (86 of 153)" },
    Bar { kind: "gold: no error", least: Some(1.0), baseline: "0.294; sqlglot 0.819" },
    Bar { kind: "gold: no warning", least: Some(1.0 - GOLD_WARNED), baseline: "" },
    Bar { kind: "misspelt_column", least: Some(1.0), baseline: "" },
    Bar { kind: "misspelt_column_nonselect", least: Some(1.0), baseline: "" },
    Bar { kind: "misspelt_table", least: Some(1.0), baseline: "" },
    Bar { kind: "column_of_other_table", least: Some(1.0), baseline: "" },
    Bar { kind: "unknown_alias", least: Some(1.0), baseline: "" },
    Bar { kind: "syntax_keyword_typo", least: Some(1.0), baseline: "" },
    Bar { kind: "syntax_unbalanced", least: Some(1.0), baseline: "" },
    Bar { kind: "write_stacked", least: Some(1.0), baseline: "" },
    Bar { kind: "write_delete_all", least: Some(1.0), baseline: "0.60" },
    Bar { kind: "write_delete_star", least: Some(1.0), baseline: "" },
    Bar { kind: "write_update_all", least: Some(1.0), baseline: "" },
    Bar { kind: "flip_order", least: Some(0.6), baseline: "0.00" },
    Bar { kind: "cases of DuckDB", least: Some(1.0), baseline: "" },
    Bar { kind: "wrong_aggregate", least: Some(0.6), baseline: "0.00" },
    Bar { kind: "drop_limit", least: Some(0.6), baseline: "0.23" },
    Bar { kind: "drop_group_by", least: Some(0.6), baseline: "0.00" },
    Bar { kind: "cartesian_join", least: Some(0.6), baseline: "0.00" },
    Bar { kind: "drop_order_by", least: None, baseline: "0.65" },
    Bar { kind: "drop_aggregate", least: None, baseline: "0.74" },
    Bar { kind: "drop_where", least: None, baseline: "0.01" },
    Bar { kind: "mutants: rejected", least: None, baseline: "" },
];

/// Kinds of mutants that still run, so that only a warning can find them.
const WARNED: [&str; 8] = [
    "flip_order",
    "wrong_aggregate",
    "drop_limit",
    "drop_group_by",
    "cartesian_join",
    "drop_order_by",
    "drop_aggregate",
    "drop_where",
];

/// The results of one group.
#[derive(Default)]
struct Tally {
    right: usize,
    wrong: Vec<String>,
}

/// The settings of a measurement.
struct Asked<'a> {
    from: u8,
    list: Option<&'a str>,
    half: Option<u32>,
    only: Option<&'a str>,
}

/// Judges everything in a folder, prints the table, and compares it with the limits.
///
/// # Errors
/// A file exists but cannot be read.
pub(crate) fn measure(arguments: &[String], bars: &mut Bars) -> Result<()> {
    let Some(folder) = arguments.first().filter(|first| !first.starts_with('-')).map(Path::new) else {
        println!("skipped: no folder with cases was named");
        return Ok(());
    };
    if !folder.join("cases.jsonl").is_file() {
        println!("skipped: {} holds no cases.jsonl", folder.display());
        return Ok(());
    }
    let value = |name: &str| arguments.iter().position(|own| own == name).and_then(|at| arguments.get(at + 1));
    let half = value("--half").map(|half| half.parse::<u32>().context("--half is 0 or 1")).transpose()?;
    let from = value("--from").map_or(Ok(CONFIDENCE), |from| from.parse()).context("--from is a percentage")?;
    let asked =
        Asked { from, list: value("--list").map(String::as_str), half, only: value("--only").map(String::as_str) };
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let mut by_schema: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for row in rows(folder)?.into_iter().filter(|row| asked.takes(row)) {
        by_schema.entry(row.ddl.clone()).or_default().push(row);
    }
    for rows in by_schema.values() {
        judge(rows, &asked, &mut tallies)?;
    }
    if asked.only.is_none() {
        duckdb(folder, &mut tallies)?;
    }
    report(&tallies, &asked, bars);
    Ok(())
}

impl Asked<'_> {
    fn takes(&self, row: &Row) -> bool {
        let is_half = self.half.is_none_or(|half| row.half() == Some(half));
        is_half
            && self.only.is_none_or(|only| {
                only == row.kind || (only == "semantic" && WARNED.contains(&row.kind.as_str())) || row.kind == "gold"
            })
    }
}

/// Judges the rows of one schema with one engine.
fn judge(rows: &[Row], asked: &Asked<'_>, tallies: &mut BTreeMap<String, Tally>) -> Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    let mut opening = Request::new(Dialect::Sqlite, "SELECT 1");
    opening.schema = vec![first.ddl.clone()];
    let mut engine = match Sqlite::open(&opening) {
        Ok(engine) => engine,
        Err(refusal) => bail!("the schema of {} cannot be set up: {}", first.id, refusal.message),
    };
    for row in rows {
        let judgement = judged(row, &opening, &mut engine);
        for (kind, is_right) in outcomes(row, &judgement, asked.from) {
            let tally = tallies.entry(kind.to_owned()).or_default();
            if is_right {
                tally.right += 1;
            } else {
                tally.wrong.push(row.id.clone());
                if asked.list == Some(kind) && tally.wrong.len() <= MOST_LISTED {
                    list(row, &judgement);
                }
            }
        }
    }
    Ok(())
}

/// Judges the DuckDB cases with a worker as the daemon starts it, if the library is installed.
fn duckdb(folder: &Path, tallies: &mut BTreeMap<String, Tally>) -> Result<()> {
    let named = program::setting("PROCTOR_DUCKDB", PathBuf::new())?;
    let library = match proctor_sql::find_duckdb(Some(named.as_path()).filter(|named| named.is_file()), None) {
        Ok(library) => library,
        Err(missing) => {
            println!("skipped: the cases of DuckDB: {missing}");
            return Ok(());
        }
    };
    let mut worker = Worker::start(&library)?;
    for row in rows::cases(folder, "duckdb")? {
        let opening = Request { schema: vec![row.ddl.clone()], ..Request::new(Dialect::Duckdb, row.sql.clone()) };
        let policy = if row.policy == "write" { Policy::Write } else { Policy::Read };
        let request = Request { policy, ..opening };
        // A worker that died is replaced once, as in the daemon.
        let judgement = match worker.judge(&request) {
            Ok(judgement) => judgement,
            Err(_) => {
                worker = Worker::start(&library)?;
                worker.judge(&request)?
            }
        };
        let is_right = outcomes(&row, &judgement, CONFIDENCE).iter().all(|(_, is_right)| *is_right);
        let tally = tallies.entry("cases of DuckDB".to_owned()).or_default();
        if is_right {
            tally.right += 1;
        } else {
            tally.wrong.push(row.id.clone());
            list(&row, &judgement);
        }
    }
    Ok(())
}

/// A worker process for DuckDB.
struct Worker {
    child: Child,
    socket: UnixStream,
}

impl Worker {
    fn start(library: &Path) -> Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let path = std::env::current_exe()?.with_file_name("proctor-sql");
        #[expect(clippy::disallowed_methods, reason = "a measurement starts the program that it measures")]
        let child = Command::new(&path).arg("worker").arg(library).stdout(OwnedFd::from(theirs)).spawn();
        let child = child.with_context(|| path.display().to_string())?;
        let hello: Option<String> = wire::read(&socket)?;
        anyhow::ensure!(hello.is_some(), "the worker ended at its start");
        Ok(Self { child, socket })
    }

    fn judge(&mut self, request: &Request) -> Result<Judgement> {
        wire::write(&self.socket, request)?;
        wire::read(&self.socket)?.context("the worker ended")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn judged(row: &Row, opening: &Request, engine: &mut dyn Engine) -> Judgement {
    let mut request = opening.clone();
    request.sql.clone_from(&row.sql);
    request.question.clone_from(&row.question);
    request.policy = if row.policy == "write" { Policy::Write } else { Policy::Read };
    request.limits = Limits { time_ms: 20_000, ..Limits::default() };
    proctor_sql::judge(&request, engine)
}

/// Returns the result for each line of the table that the row belongs to.
fn outcomes<'a>(row: &'a Row, judgement: &Judgement, from: u8) -> Vec<(&'a str, bool)> {
    let is_rejected = judgement.verdict == Verdict::Reject;
    let warnings = || judgement.diagnostics.iter().filter(|found| found.stage == StageName::Semantic);
    let is_warned = warnings().any(|found| found.confidence >= from && found.severity > Severity::Note);
    match row.kind.as_str() {
        "gold" => vec![("gold: no error", judgement.verdict == Verdict::Ok), ("gold: no warning", !is_warned)],
        "case" => {
            let is_right = match row.expect.as_str() {
                "ok" => judgement.verdict == Verdict::Ok,
                _ => is_rejected && judgement.diagnostics.iter().any(|found| is_reason(found, &row.stage)),
            };
            vec![("cases", is_right), (&row.category, is_right)]
        }
        kind if WARNED.contains(&kind) => vec![(kind, is_warned), ("mutants: rejected", is_rejected)],
        kind => vec![(kind, is_rejected)],
    }
}

/// Returns whether an error has the reason that a case names.
fn is_reason(found: &Diagnostic, stage: &str) -> bool {
    const LIMITS: [SqlCode; 6] = [
        SqlCode::TimeLimit,
        SqlCode::StepLimit,
        SqlCode::MemoryLimit,
        SqlCode::ResultLimit,
        SqlCode::EndlessRecursion,
        SqlCode::TooDeep,
    ];
    let is_of = |stages: &[StageName]| stages.contains(&found.stage);
    found.severity == Severity::Error
        && match stage {
            "syntax" => is_of(&[StageName::Extract, StageName::Tokenize, StageName::Parse]),
            "schema" => is_of(&[StageName::Bind]),
            "safety" => is_of(&[StageName::Safety]),
            "semantic" => is_of(&[StageName::Semantic]),
            "resource" => LIMITS.contains(&found.code) || found.code == SqlCode::TextTooLong,
            _ => true,
        }
}

fn list(row: &Row, judgement: &Judgement) {
    println!("--- {} {} {}", row.id, row.expect, row.stage);
    println!("    {}", row.question.as_deref().unwrap_or("(no question)"));
    println!("    {}", row.sql.replace('\n', " "));
    for found in &judgement.diagnostics {
        println!("    {} {:?} {}: {}", found.severity.as_str(), found.code, found.confidence, found.message);
    }
}

fn report(tallies: &BTreeMap<String, Tally>, asked: &Asked<'_>, bars: &mut Bars) {
    println!("{:<28} {:>6} {:>6} {:>6} {:>7} {:>6}  baseline", "kind", "n", "right", "wrong", "share", "bar");
    let is_known = |kind: &str| BARS.iter().any(|bar| bar.kind == kind);
    let others = tallies.keys().filter(|kind| !is_known(kind)).map(|kind| (kind.as_str(), None));
    for (kind, bar) in BARS.iter().map(|bar| (bar.kind, Some(bar))).chain(others) {
        let Some(tally) = tallies.get(kind) else { continue };
        let n = tally.right + tally.wrong.len();
        let least = bar.and_then(|bar| bar.least);
        let shown = least.map_or_else(|| "-".to_owned(), |least| format!("{least:.2}"));
        let share = share(tally.right, n);
        let baseline = bar.map_or("", |bar| bar.baseline);
        println!("{kind:<28} {n:>6} {:>6} {:>6} {share:>7.3} {shown:>6}  {baseline}", tally.right, tally.wrong.len());
    }
    if asked.only.is_some() {
        return;
    }
    for (bar, tally) in BARS.iter().filter_map(|bar| tallies.get(bar.kind).map(|tally| (bar, tally))) {
        if let Some(least) = bar.least {
            bars.at_least(bar.kind, share(tally.right, tally.right + tally.wrong.len()), least);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "some thousand rows")]
fn share(part: usize, of: usize) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, sql: &str, question: Option<&str>) -> Row {
        Row {
            id: "a".to_owned(),
            gold: "a".to_owned(),
            kind: kind.to_owned(),
            ddl: String::new(),
            sql: sql.to_owned(),
            question: question.map(str::to_owned),
            policy: "read".to_owned(),
            expect: "reject".to_owned(),
            stage: "schema".to_owned(),
            category: "schema".to_owned(),
        }
    }

    fn judge_one(row: &Row) -> Vec<(String, bool)> {
        let mut opening = Request::new(Dialect::Sqlite, "SELECT 1");
        opening.schema = vec!["CREATE TABLE products (id INTEGER PRIMARY KEY, price NUMERIC)".to_owned()];
        let mut engine = Sqlite::open(&opening).unwrap();
        let judgement = judged(row, &opening, &mut engine);
        outcomes(row, &judgement, CONFIDENCE).into_iter().map(|(kind, right)| (kind.to_owned(), right)).collect()
    }

    #[test]
    fn a_row_comes_out_right_for_its_own_reason_only() {
        let of = |kind: &str, sql: &str, question| judge_one(&row(kind, sql, question))[0].1;
        assert!(of("case", "SELECT prise FROM products", None));
        assert!(!of("case", "DELETE FROM products", None), "rejected, but not for the schema");
        assert!(of("gold", "SELECT price FROM products", None));
        assert!(!of("gold", "SELECT prise FROM products", None));
        assert!(of("flip_order", "SELECT id FROM products ORDER BY price DESC LIMIT 1", Some("the cheapest product")));
        assert!(!of("flip_order", "SELECT id FROM products ORDER BY price LIMIT 1", Some("the cheapest product")));
    }

    #[test]
    fn a_mutant_is_in_the_half_of_its_query() {
        let (one, other) = (row("gold", "", None), row("flip_order", "", None));
        assert_eq!(one.half(), other.half());
        assert_eq!(Row { gold: String::new(), ..one }.half(), None);
    }
}
