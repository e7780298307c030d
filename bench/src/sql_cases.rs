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

pub(crate) mod case_rows;
mod sqlite_schema;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context as _, Result, bail};
use proctor_core::sql::{
    Dialect, Judgement, SqlCode, SqlDiagnostic, SqlPolicy, SqlRequest, SqlResourceLimits, SqlSeverity, SqlVerdict,
    StageName,
};
use proctor_sql::sqlite::Sqlite;
use proctor_sql::{SqlEngine, wire};

use crate::program;
use crate::samples::LimitChecks;
use case_rows::{SqlCase, read_rows};

/// The lowest confidence, in percent, at which a warning counts.
const MIN_CONFIDENCE: u8 = 70;
/// Maximum share of correct queries with such a warning.
const MAX_GOLD_WARNINGS: f64 = 0.02;
/// Maximum number of rows that are listed.
const MAX_LISTED: usize = 400;

/// A group of rows with its limit and the results of other tools. The baselines were measured: the reference
/// implementation of the four-verifier chain (2,364 correct queries, 153 SQLite cases, and these mutants), and
/// sqlglot's qualify.
struct AccuracyLimit {
    kind: &'static str,
    /// Minimum share of correct verdicts; `None` if there is no limit.
    min_share: Option<f64>,
    baseline: &'static str,
}

const ACCURACY_LIMITS: [AccuracyLimit; 24] = [
    AccuracyLimit { kind: "cases", min_share: Some(1.0), baseline: "0.562 (86 of 153)" },
    AccuracyLimit { kind: "gold: no error", min_share: Some(1.0), baseline: "0.294; sqlglot 0.819" },
    AccuracyLimit { kind: "gold: no warning", min_share: Some(1.0 - MAX_GOLD_WARNINGS), baseline: "" },
    AccuracyLimit { kind: "misspelt_column", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "misspelt_column_nonselect", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "misspelt_table", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "column_of_other_table", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "unknown_alias", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "syntax_keyword_typo", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "syntax_unbalanced", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "write_stacked", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "write_delete_all", min_share: Some(1.0), baseline: "0.60" },
    AccuracyLimit { kind: "write_delete_star", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "write_update_all", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "flip_order", min_share: Some(0.6), baseline: "0.00" },
    AccuracyLimit { kind: "cases of DuckDB", min_share: Some(1.0), baseline: "" },
    AccuracyLimit { kind: "wrong_aggregate", min_share: Some(0.6), baseline: "0.00" },
    AccuracyLimit { kind: "drop_limit", min_share: Some(0.6), baseline: "0.23" },
    AccuracyLimit { kind: "drop_group_by", min_share: Some(0.6), baseline: "0.00" },
    AccuracyLimit { kind: "cartesian_join", min_share: Some(0.6), baseline: "0.00" },
    AccuracyLimit { kind: "drop_order_by", min_share: None, baseline: "0.65" },
    AccuracyLimit { kind: "drop_aggregate", min_share: None, baseline: "0.74" },
    AccuracyLimit { kind: "drop_where", min_share: None, baseline: "0.01" },
    AccuracyLimit { kind: "mutants: rejected", min_share: None, baseline: "" },
];

/// Kinds of mutants that still run, so that only a warning can find them.
const WARNING_KINDS: [&str; 8] = [
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
struct GroupResults {
    right: usize,
    wrong: Vec<String>,
}

/// The settings of a measurement.
struct CaseSettings<'a> {
    min_confidence: u8,
    list: Option<&'a str>,
    half: Option<u32>,
    only: Option<&'a str>,
}

/// Judges everything in a folder, prints the table, and compares it with the limits.
///
/// # Errors
/// A file exists but cannot be read.
pub(crate) fn measure(arguments: &[String], bars: &mut LimitChecks) -> Result<()> {
    let Some(folder) = arguments.first().filter(|first| !first.starts_with('-')).map(Path::new) else {
        println!("skipped: no directory with cases was given");
        return Ok(());
    };
    if !folder.join("cases.jsonl").is_file() {
        println!("skipped: {} does not contain cases.jsonl", folder.display());
        return Ok(());
    }
    let value = |name: &str| arguments.iter().position(|own| own == name).and_then(|at| arguments.get(at + 1));
    let half = value("--half").map(|half| half.parse::<u32>().context("`--half` must be 0 or 1")).transpose()?;
    let from =
        value("--from").map_or(Ok(MIN_CONFIDENCE), |from| from.parse()).context("`--from` must be a percentage")?;
    let settings = CaseSettings {
        min_confidence: from,
        list: value("--list").map(String::as_str),
        half,
        only: value("--only").map(String::as_str),
    };
    let mut tallies: BTreeMap<String, GroupResults> = BTreeMap::new();
    let mut by_schema: BTreeMap<String, Vec<SqlCase>> = BTreeMap::new();
    for row in read_rows(folder)?.into_iter().filter(|row| settings.selects(row)) {
        by_schema.entry(row.ddl.clone()).or_default().push(row);
    }
    for rows in by_schema.values() {
        judge_schema(rows, &settings, &mut tallies)?;
    }
    if settings.only.is_none() {
        judge_duckdb_cases(folder, &mut tallies)?;
    }
    print_and_compare(&tallies, &settings, bars);
    Ok(())
}

impl CaseSettings<'_> {
    fn selects(&self, row: &SqlCase) -> bool {
        let is_half = self.half.is_none_or(|half| row.half() == Some(half));
        is_half
            && self.only.is_none_or(|only| {
                only == row.kind
                    || (only == "semantic" && WARNING_KINDS.contains(&row.kind.as_str()))
                    || row.kind == "gold"
            })
    }
}

/// Judges the rows of one schema with one engine.
fn judge_schema(
    rows: &[SqlCase],
    settings: &CaseSettings<'_>,
    tallies: &mut BTreeMap<String, GroupResults>,
) -> Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    let mut opening = SqlRequest::new(Dialect::Sqlite, "SELECT 1");
    opening.schema = vec![first.ddl.clone()];
    let mut engine = match Sqlite::open(&opening) {
        Ok(engine) => engine,
        Err(refusal) => bail!("cannot set up the schema of {}: {}", first.id, refusal.message),
    };
    for row in rows {
        let judgement = judge_row(row, &opening, &mut engine);
        for (kind, is_right) in outcomes(row, &judgement, settings.min_confidence) {
            let tally = tallies.entry(kind.to_owned()).or_default();
            if is_right {
                tally.right += 1;
            } else {
                tally.wrong.push(row.id.clone());
                if settings.list == Some(kind) && tally.wrong.len() <= MAX_LISTED {
                    print_row(row, &judgement);
                }
            }
        }
    }
    Ok(())
}

/// Judges the DuckDB cases with a worker as the daemon starts it, if the library is installed.
fn judge_duckdb_cases(folder: &Path, tallies: &mut BTreeMap<String, GroupResults>) -> Result<()> {
    let named = program::setting("PROCTOR_DUCKDB", PathBuf::new())?;
    let library = match proctor_sql::find_duckdb(Some(named.as_path()).filter(|named| named.is_file()), None) {
        Ok(library) => library,
        Err(missing) => {
            println!("skipped: the cases of DuckDB: {missing}");
            return Ok(());
        }
    };
    let mut worker = DuckdbWorker::start(&library)?;
    for row in case_rows::read_cases(folder, "duckdb")? {
        let opening = SqlRequest { schema: vec![row.ddl.clone()], ..SqlRequest::new(Dialect::Duckdb, row.sql.clone()) };
        let policy = if row.policy == "write" { SqlPolicy::Write } else { SqlPolicy::Read };
        let request = SqlRequest { policy, ..opening };
        // A worker that died is replaced once, as in the daemon.
        let judgement = match worker.judge(&request) {
            Ok(judgement) => judgement,
            Err(_) => {
                worker = DuckdbWorker::start(&library)?;
                worker.judge(&request)?
            }
        };
        let is_right = outcomes(&row, &judgement, MIN_CONFIDENCE).iter().all(|(_, is_right)| *is_right);
        let tally = tallies.entry("cases of DuckDB".to_owned()).or_default();
        if is_right {
            tally.right += 1;
        } else {
            tally.wrong.push(row.id.clone());
            print_row(&row, &judgement);
        }
    }
    Ok(())
}

/// A worker process for DuckDB.
struct DuckdbWorker {
    child: Child,
    socket: UnixStream,
}

impl DuckdbWorker {
    fn start(library: &Path) -> Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let path = std::env::current_exe()?.with_file_name("proctor-sql");
        #[expect(clippy::disallowed_methods, reason = "a measurement starts the program that it measures")]
        let child = Command::new(&path).arg("worker").arg(library).stdout(OwnedFd::from(theirs)).spawn();
        let child = child.with_context(|| path.display().to_string())?;
        let hello: Option<String> = wire::read_frame(&socket)?;
        anyhow::ensure!(hello.is_some(), "the worker exited at startup");
        Ok(Self { child, socket })
    }

    fn judge(&mut self, request: &SqlRequest) -> Result<Judgement> {
        wire::write_frame(&self.socket, request)?;
        wire::read_frame(&self.socket)?.context("the worker exited")
    }
}

impl Drop for DuckdbWorker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn judge_row(row: &SqlCase, opening: &SqlRequest, engine: &mut dyn SqlEngine) -> Judgement {
    let mut request = opening.clone();
    request.sql.clone_from(&row.sql);
    request.question.clone_from(&row.question);
    request.policy = if row.policy == "write" { SqlPolicy::Write } else { SqlPolicy::Read };
    request.limits = SqlResourceLimits { time_ms: 20_000, ..SqlResourceLimits::default() };
    proctor_sql::judge(&request, engine)
}

/// Returns the result for each line of the table that the row belongs to.
fn outcomes<'a>(row: &'a SqlCase, judgement: &Judgement, from: u8) -> Vec<(&'a str, bool)> {
    let is_rejected = judgement.verdict == SqlVerdict::Reject;
    let warnings = || judgement.diagnostics.iter().filter(|found| found.stage == StageName::Semantic);
    let is_warned = warnings().any(|found| found.confidence >= from && found.severity > SqlSeverity::Note);
    match row.kind.as_str() {
        "gold" => vec![("gold: no error", judgement.verdict == SqlVerdict::Ok), ("gold: no warning", !is_warned)],
        "case" => {
            let is_right = match row.expect.as_str() {
                "ok" => judgement.verdict == SqlVerdict::Ok,
                _ => is_rejected && judgement.diagnostics.iter().any(|found| is_reason(found, &row.stage)),
            };
            vec![("cases", is_right), (&row.category, is_right)]
        }
        kind if WARNING_KINDS.contains(&kind) => vec![(kind, is_warned), ("mutants: rejected", is_rejected)],
        kind => vec![(kind, is_rejected)],
    }
}

/// Returns whether an error has the reason that a case names.
fn is_reason(found: &SqlDiagnostic, stage: &str) -> bool {
    const LIMITS: [SqlCode; 6] = [
        SqlCode::TimeLimit,
        SqlCode::StepLimit,
        SqlCode::MemoryLimit,
        SqlCode::ResultLimit,
        SqlCode::EndlessRecursion,
        SqlCode::TooDeep,
    ];
    let is_of = |stages: &[StageName]| stages.contains(&found.stage);
    found.severity == SqlSeverity::Error
        && match stage {
            "syntax" => is_of(&[StageName::Extract, StageName::Tokenize, StageName::Parse]),
            "schema" => is_of(&[StageName::Bind]),
            "safety" => is_of(&[StageName::Safety]),
            "semantic" => is_of(&[StageName::Semantic]),
            "resource" => LIMITS.contains(&found.code) || found.code == SqlCode::TextTooLong,
            _ => true,
        }
}

fn print_row(row: &SqlCase, judgement: &Judgement) {
    println!("--- {} {} {}", row.id, row.expect, row.stage);
    println!("    {}", row.question.as_deref().unwrap_or("(no question)"));
    println!("    {}", row.sql.replace('\n', " "));
    for found in &judgement.diagnostics {
        println!("    {} {:?} {}: {}", found.severity.as_str(), found.code, found.confidence, found.message);
    }
}

fn print_and_compare(tallies: &BTreeMap<String, GroupResults>, settings: &CaseSettings<'_>, bars: &mut LimitChecks) {
    println!("{:<28} {:>6} {:>6} {:>6} {:>7} {:>6}  baseline", "kind", "n", "right", "wrong", "share", "bar");
    let is_known = |kind: &str| ACCURACY_LIMITS.iter().any(|bar| bar.kind == kind);
    let others = tallies.keys().filter(|kind| !is_known(kind)).map(|kind| (kind.as_str(), None));
    for (kind, bar) in ACCURACY_LIMITS.iter().map(|bar| (bar.kind, Some(bar))).chain(others) {
        let Some(tally) = tallies.get(kind) else { continue };
        let n = tally.right + tally.wrong.len();
        let least = bar.and_then(|bar| bar.min_share);
        let shown = least.map_or_else(|| "-".to_owned(), |least| format!("{least:.2}"));
        let share = share(tally.right, n);
        let baseline = bar.map_or("", |bar| bar.baseline);
        println!("{kind:<28} {n:>6} {:>6} {:>6} {share:>7.3} {shown:>6}  {baseline}", tally.right, tally.wrong.len());
    }
    if settings.only.is_some() {
        return;
    }
    for (bar, tally) in ACCURACY_LIMITS.iter().filter_map(|bar| tallies.get(bar.kind).map(|tally| (bar, tally))) {
        if let Some(least) = bar.min_share {
            bars.at_least(bar.kind, share(tally.right, tally.right + tally.wrong.len()), least);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "some thousand rows")]
fn share(part: usize, total: usize) -> f64 {
    if total == 0 { 0.0 } else { part as f64 / total as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, sql: &str, question: Option<&str>) -> SqlCase {
        SqlCase {
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

    fn judge_one(row: &SqlCase) -> Vec<(String, bool)> {
        let mut opening = SqlRequest::new(Dialect::Sqlite, "SELECT 1");
        opening.schema = vec!["CREATE TABLE products (id INTEGER PRIMARY KEY, price NUMERIC)".to_owned()];
        let mut engine = Sqlite::open(&opening).unwrap();
        let judgement = judge_row(row, &opening, &mut engine);
        outcomes(row, &judgement, MIN_CONFIDENCE).into_iter().map(|(kind, right)| (kind.to_owned(), right)).collect()
    }

    #[test]
    fn row_is_right_only_for_expected_reason() {
        let of = |kind: &str, sql: &str, question| judge_one(&row(kind, sql, question))[0].1;
        assert!(of("case", "SELECT prise FROM products", None));
        assert!(!of("case", "DELETE FROM products", None), "rejected, but not for the schema");
        assert!(of("gold", "SELECT price FROM products", None));
        assert!(!of("gold", "SELECT prise FROM products", None));
        assert!(of("flip_order", "SELECT id FROM products ORDER BY price DESC LIMIT 1", Some("the cheapest product")));
        assert!(!of("flip_order", "SELECT id FROM products ORDER BY price LIMIT 1", Some("the cheapest product")));
    }

    #[test]
    fn mutant_is_in_half_of_its_query() {
        let (one, other) = (row("gold", "", None), row("flip_order", "", None));
        assert_eq!(one.half(), other.half());
        assert_eq!(SqlCase { gold: String::new(), ..one }.half(), None);
    }
}
