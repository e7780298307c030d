//! Tests lists of tables and columns with PostgreSQL and MariaDB, on the corpus of `tests/corpus`. A statement that is
//! `ok` under lists must give the same result after everything off the lists was removed, and after its content was
//! changed. Servers that Proctor does not use run the statements.

#[path = "../corpus/mod.rs"]
mod corpus;
mod mariadb_oracle;
mod oracle_server;
#[path = "../pool/mod.rs"]
mod pool;
mod postgres_oracle;

use std::collections::BTreeSet;

use corpus::{Grammar, RandomNumbers, StrictRefusals};
use mariadb_oracle::MariadbOracle;
use pool::{Pool, ServerTest};
use postgres_oracle::PostgresOracle;
use proctor_core::sql::{Dialect, SqlAllow, SqlPolicy, SqlRequest, SqlResourceLimits, SqlVerdict, StageName};
use proctor_sql::mysql::MariadbPrograms;
use proctor_sql::postgres::PostgresPrograms;

const STATEMENTS_PER_LIST: usize = 25;

fn main() {
    let sandbox = pool::sandbox_unavailable_reason();
    let with_sandbox = |missing: Option<String>| missing.or_else(|| sandbox.clone());
    pool::run_tests(vec![
        ServerTest {
            name: "no_corpus_statement_bypasses_lists_of_postgres",
            test: |pool| run_corpus(pool, Dialect::Postgres, PostgresOracle::start),
            server: "PostgreSQL",
            unavailable_reason: with_sandbox(PostgresPrograms::find().err().map(|missing| missing.to_string())),
        },
        ServerTest {
            name: "no_corpus_statement_bypasses_lists_of_mariadb",
            test: |pool| run_corpus(pool, Dialect::Mysql, MariadbOracle::start),
            server: "MariaDB",
            unavailable_reason: with_sandbox(MariadbPrograms::find().err().map(|missing| missing.to_string())),
        },
    ]);
}

/// A database of the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The whole schema.
    Whole,
    /// Everything off the lists is removed.
    Removed,
    /// The content of everything off the lists is changed.
    Changed,
}

impl Variant {
    const ALL: [Self; 3] = [Self::Whole, Self::Removed, Self::Changed];

    fn database(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }

    /// Returns the statements that adapt the whole schema to lists.
    fn changes(self, allow: &SqlAllow) -> Vec<String> {
        match self {
            Self::Whole => Vec::new(),
            Self::Removed => corpus::removals_off_lists(allow),
            Self::Changed => corpus::changes_off_lists(allow),
        }
    }
}

/// The rows of a statement and the content after it, or the code of its error.
type Effect = Result<Vec<String>, String>;

/// The databases of a server on which statements run.
trait Oracle {
    /// Adapts the databases to lists.
    fn prepare(&mut self, pool: &Pool, allow: &SqlAllow);

    /// Returns the effect of a statement on a database, and undoes it.
    fn effect(&mut self, pool: &Pool, variant: Variant, sql: &str, allow: &SqlAllow) -> Effect;

    /// Returns the tables that the plan of a statement names, as far as the server shows them.
    fn planned_tables(&mut self, pool: &Pool, sql: &str) -> BTreeSet<String>;
}

/// Returns queries for the listed content of each table.
fn content_queries(allow: &SqlAllow) -> Vec<String> {
    let tables =
        corpus::OBJECTS.iter().filter(|(table, _)| !table.starts_with("v_") && corpus::is_listed(allow, table));
    let query = |(table, columns): &(&str, &[&str])| {
        let listed: Vec<&str> =
            columns.iter().copied().filter(|column| !corpus::is_hidden(allow, table, column)).collect();
        (!listed.is_empty()).then(|| format!("SELECT '{table}', {} FROM {table}", listed.join(", ")))
    };
    tables.filter_map(query).collect()
}

/// Reports whether a statement may change rows.
fn may_change_rows(sql: &str) -> bool {
    ["INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE"].iter().any(|word| sql.contains(word))
}

/// Reports whether a statement shows estimates, which depend on the history of a table.
fn shows_estimates(sql: &str) -> bool {
    ["EXPLAIN", "ANALYZE", "SHOW INDEX"].iter().any(|words| sql.starts_with(words))
}

fn run_corpus<O: Oracle>(pool: &Pool, dialect: Dialect, start: impl FnOnce(&Pool) -> O) {
    let mut oracle = start(pool);
    let (mut numbers, mut grammar) =
        (RandomNumbers::new(corpus::seed() + 2), Grammar::new(1_102 + corpus::seed(), dialect));
    let base = SqlRequest {
        policy: SqlPolicy::Write,
        stages: Some(vec![StageName::Parse, StageName::Bind, StageName::Safety]),
        schema: corpus::schema(dialect),
        limits: SqlResourceLimits { time_ms: 30_000, ..SqlResourceLimits::default() },
        ..SqlRequest::new(dialect, "SELECT 1")
    };
    let engine = pool.judge(&base).audit.engine;
    let (mut judged, mut ok, mut failed, mut slips) = (0, 0, 0, Vec::new());
    let mut strict = StrictRefusals::default();
    while judged < corpus::count(300) {
        let allow = corpus::random_lists(&mut numbers);
        oracle.prepare(pool, &allow);
        for _ in 0..STATEMENTS_PER_LIST {
            let sql = grammar.statement();
            judged += 1;
            let request = SqlRequest { sql: sql.clone(), allow: allow.clone(), ..base.clone() };
            let judgement = pool.judge(&request);
            assert_ne!(judgement.verdict, SqlVerdict::Error, "{sql}: {judgement:#?}");
            let [expected, others @ ..] = Variant::ALL.map(|variant| oracle.effect(pool, variant, &sql, &allow));
            let same = others.map(|other| other == expected);
            if judgement.verdict == SqlVerdict::Ok {
                ok += 1;
                failed += usize::from(expected.is_err());
                let mut planned = oracle.planned_tables(pool, &sql);
                planned.retain(|table| !corpus::is_listed(&allow, table));
                if same.contains(&false) || !planned.is_empty() {
                    slips.push(format!("{sql}\n    lists {allow:?}, same: {same:?}, reads {planned:?}: {expected:?}"));
                }
            } else if same == [true; 2] && expected.is_ok() {
                let free = SqlRequest { allow: SqlAllow::default(), ..request };
                if pool.judge(&free).verdict == SqlVerdict::Ok {
                    strict.add(&judgement, &format!("{sql}\n    lists {allow:?}"));
                }
            }
        }
    }
    println!(
        "{engine}, seed {}: {judged} judged, {ok} ok ({failed} of them fail), {} slips, {} refused though nothing off \
         the lists has an effect:",
        corpus::seed(),
        slips.len(),
        strict.count()
    );
    strict.print();
    assert!(slips.is_empty(), "{}", slips.join("\n"));
    assert!(ok > judged / 10, "only {ok} of {judged} are ok: the corpus shows little");
}
