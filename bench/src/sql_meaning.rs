//! Measures how well the semantic stage distinguishes correct queries from queries with a different meaning.
//!
//! ```text
//! proctor-bench sql-meaning [--half 0|1] [--from PERCENT] [--seed N] [--every N] [--list KIND] [--published] QUESTIONS TABLES …
//! ```
//!
//! QUESTIONS and TABLES are JSON files in the format of Spider: questions with queries, and the tables of their
//! databases. `--published` measures only the published queries. A mutant counts only if SQLite accepts it and its
//! result differs from that of the correct query on one of three databases with random rows. The halves divide the
//! databases, so that a rule that was tuned on one half is measured on databases that it has not seen.

mod mutants;
mod question_sets;
mod random_rows;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use proctor_core::sql::{Dialect, Judgement, SqlRequest, SqlSeverity, SqlVerdict, StageName};
use proctor_sql::sqlite::Sqlite;
use rusqlite::Connection;
use sqlparser::ast::Statement;
use sqlparser::dialect::SQLiteDialect;
use sqlparser::parser::Parser;

use crate::samples::LimitChecks;
use question_sets::{QuestionQuery, SetDatabase};
use random_rows::SplitMix64;

/// The lowest confidence, in percent, at which a warning counts.
const MIN_CONFIDENCE: u8 = 70;
/// Number of random databases on which results are compared.
const DATABASES: u64 = 3;
/// Minimum share of mutants with a changed aggregate that must be found.
const MIN_AGGREGATES_FOUND: f64 = 0.8;
/// Maximum share of correct queries with a warning.
const MAX_FALSE_WARNINGS: f64 = 0.01;

/// Counts for one kind of statement.
#[derive(Default)]
struct KindCounts {
    total: usize,
    rejected: usize,
    warned: usize,
    below_confidence: usize,
}

impl KindCounts {
    fn found(&self) -> usize {
        self.rejected + self.warned
    }
}

/// Settings of one measurement.
struct MeaningSettings<'a> {
    half: Option<u32>,
    min_confidence: u8,
    seed: u64,
    every: usize,
    list: Option<&'a str>,
    has_mutants: bool,
}

/// Measures every set that the arguments name.
///
/// # Errors
/// A file exists and cannot be read.
pub(crate) fn measure(arguments: &[String], bars: &mut LimitChecks) -> Result<()> {
    let value = |name: &str| arguments.iter().position(|own| own == name).and_then(|at| arguments.get(at + 1));
    let number = |name: &str| {
        value(name).map(|text| text.parse::<u32>().with_context(|| format!("`{name}` requires a number"))).transpose()
    };
    let settings = MeaningSettings {
        half: number("--half")?,
        min_confidence: number("--from")?.map_or(Ok(MIN_CONFIDENCE), u8::try_from)?,
        seed: u64::from(number("--seed")?.unwrap_or(7)),
        every: number("--every")?.map_or(Ok(1), usize::try_from)?.max(1),
        list: value("--list").map(String::as_str),
        has_mutants: !arguments.iter().any(|own| own == "--published"),
    };
    let is_option = |at: usize| at > 0 && arguments[at - 1].starts_with("--") && arguments[at - 1] != "--published";
    let paths: Vec<&Path> = (0..arguments.len())
        .filter(|at| !arguments[*at].starts_with("--") && !is_option(*at))
        .map(|at| Path::new(&arguments[at]))
        .collect();
    if paths.is_empty() {
        println!("skipped: no files with questions and tables were given");
        return Ok(());
    }
    let mut tallies: BTreeMap<String, KindCounts> = BTreeMap::new();
    for set in paths.chunks(2) {
        let [questions, tables] = set else { anyhow::bail!("expected pairs of files: questions and tables") };
        if let Some(missing) = set.iter().find(|path| !path.is_file()) {
            println!("skipped: the file {} does not exist", missing.display());
            continue;
        }
        measure_set(
            &question_sets::read_pairs(questions)?,
            &question_sets::read_databases(tables)?,
            &settings,
            &mut tallies,
        );
    }
    print_and_compare(&tallies, bars);
    Ok(())
}

fn half(name: &str) -> u32 {
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    (name.bytes().fold(2_166_136_261, hash) >> 7) & 1
}

fn measure_set(
    pairs: &[QuestionQuery],
    databases: &BTreeMap<String, SetDatabase>,
    settings: &MeaningSettings<'_>,
    tallies: &mut BTreeMap<String, KindCounts>,
) {
    let mut by_database: BTreeMap<&str, Vec<&QuestionQuery>> = BTreeMap::new();
    for pair in pairs.iter().step_by(settings.every) {
        if settings.half.is_none_or(|wanted| half(&pair.database) == wanted) {
            by_database.entry(&pair.database).or_default().push(pair);
        }
    }
    for (name, pairs) in by_database {
        let Some(database) = databases.get(name) else { continue };
        let Some(mut arena) = MeaningDatabase::new(database, &pairs, settings.seed) else {
            tallies.entry("database that cannot be made".to_owned()).or_default().total += 1;
            continue;
        };
        for pair in pairs {
            arena.measure(pair, settings, tallies);
        }
    }
}

/// One database: its engine for judgements, and copies with random rows.
struct MeaningDatabase<'a> {
    database: &'a SetDatabase,
    engine: Sqlite,
    copies: Vec<Connection>,
    random: SplitMix64,
}

impl<'a> MeaningDatabase<'a> {
    fn new(database: &'a SetDatabase, pairs: &[&QuestionQuery], seed: u64) -> Option<Self> {
        let mut opening = SqlRequest::new(Dialect::Sqlite, "SELECT 1");
        opening.schema = vec![database.ddl()];
        let engine = Sqlite::open(&opening).ok()?;
        let mut literals = random_rows::Literals::default();
        pairs
            .iter()
            .filter_map(|pair| parse_statement(&pair.query))
            .for_each(|tree| random_rows::collect_literals(&tree, &mut literals));
        let fill = |number| {
            random_rows::fill_database(database, &literals, &mut SplitMix64(seed.wrapping_mul(1_000) + number)).ok()
        };
        let copies: Vec<Connection> = (0..DATABASES).map(fill).collect::<Option<_>>()?;
        Some(Self { database, engine, copies, random: SplitMix64(seed) })
    }

    fn measure(
        &mut self,
        pair: &QuestionQuery,
        settings: &MeaningSettings<'_>,
        tallies: &mut BTreeMap<String, KindCounts>,
    ) {
        let results = |arena: &mut Self, sql: &str, is_sorted| -> Vec<Option<Vec<String>>> {
            arena.copies.iter_mut().map(|copy| random_rows::query_rows(copy, sql, is_sorted)).collect()
        };
        // The rejection of a correct query by the engine is unrelated to the semantic stage.
        if self.copies[0].prepare(&pair.query).is_err() {
            tallies.entry("gold that SQLite refuses".to_owned()).or_default().total += 1;
            return;
        }
        self.count("gold", &pair.query, &pair.question, settings, tallies);
        let Some(tree) = parse_statement(&pair.query).filter(|_| settings.has_mutants) else { return };
        let is_sorted = matches!(&tree, Statement::Query(query) if query.order_by.is_some());
        let right = results(self, &pair.query, is_sorted);
        for mutant in mutants::mutants(&tree, self.database, &mut self.random) {
            let other = results(self, &mutant.sql, is_sorted);
            let is_different = right.iter().zip(&other).any(|(right, other)| match (right, other) {
                (Some(right), Some(other)) => right != other,
                _ => false,
            });
            if is_different {
                self.count(&mutant.kind, &mutant.sql, &pair.question, settings, tallies);
            }
        }
    }

    fn count(
        &mut self,
        kind: &str,
        sql: &str,
        question: &str,
        settings: &MeaningSettings<'_>,
        tallies: &mut BTreeMap<String, KindCounts>,
    ) {
        let judgement = self.judge_query(sql, question);
        let warnings = || judgement.diagnostics.iter().filter(|found| found.stage == StageName::Semantic);
        let is_rejected = judgement.verdict != SqlVerdict::Ok;
        let is_warned =
            warnings().any(|found| found.confidence >= settings.min_confidence && found.severity > SqlSeverity::Note);
        let tally = tallies.entry(kind.to_owned()).or_default();
        tally.total += 1;
        match (is_rejected, is_warned, warnings().next()) {
            (true, ..) => tally.rejected += 1,
            (_, true, _) => tally.warned += 1,
            (_, _, Some(_)) => tally.below_confidence += 1,
            _ => {}
        }
        let is_gold = kind == "gold";
        if settings.list.is_some_and(|wanted| kind.starts_with(wanted)) && (is_rejected || is_warned) == is_gold {
            println!("--- {kind}\n    {question}\n    {sql}");
            for found in judgement.diagnostics.iter().filter(|found| found.severity > SqlSeverity::Note) {
                println!("    {} {:?} {}: {}", found.severity.as_str(), found.code, found.confidence, found.message);
            }
        }
    }

    fn judge_query(&mut self, sql: &str, question: &str) -> Judgement {
        let mut request = SqlRequest::new(Dialect::Sqlite, sql);
        request.question = Some(question.to_owned());
        request.stages = Some(vec![StageName::Parse, StageName::Bind, StageName::Semantic]);
        proctor_sql::judge(&request, &mut self.engine)
    }
}

fn parse_statement(sql: &str) -> Option<Statement> {
    Parser::parse_sql(&SQLiteDialect {}, sql).ok()?.into_iter().next()
}

fn print_and_compare(tallies: &BTreeMap<String, KindCounts>, bars: &mut LimitChecks) {
    println!(
        "{:<44} {:>6} {:>8} {:>6} {:>7} {:>6} {:>6}",
        "kind", "n", "rejected", "warned", "found", "lower", "silent"
    );
    let row = |name: &str, tally: &KindCounts| {
        let silent = tally.total - tally.found() - tally.below_confidence;
        let share = share(tally.found(), tally.total);
        println!(
            "{name:<44} {:>6} {:>8} {:>6} {share:>7.4} {:>6} {silent:>6}",
            tally.total, tally.rejected, tally.warned, tally.below_confidence
        );
    };
    let mut sums: BTreeMap<&str, KindCounts> = BTreeMap::new();
    for (name, tally) in tallies {
        row(name, tally);
        let Some(clause) = name.strip_prefix("aggregate ").map(|_| name.split(':').next().unwrap_or(name)) else {
            continue;
        };
        for sum in [clause, "aggregate, all clauses"] {
            let sum = sums.entry(sum).or_default();
            sum.total += tally.total;
            sum.rejected += tally.rejected;
            sum.warned += tally.warned;
            sum.below_confidence += tally.below_confidence;
        }
    }
    sums.iter().for_each(|(name, tally)| row(name, tally));
    if let Some(all) = sums.get("aggregate, all clauses") {
        bars.at_least("another aggregate", share(all.found(), all.total), MIN_AGGREGATES_FOUND);
    }
    if let Some(gold) = tallies.get("gold") {
        bars.at_least(
            "right queries without a warning",
            1.0 - share(gold.found(), gold.total),
            1.0 - MAX_FALSE_WARNINGS,
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "some thousand statements")]
fn share(part: usize, total: usize) -> f64 {
    if total == 0 { 0.0 } else { part as f64 / total as f64 }
}
