//! Tests thousands of hostile statements: every harmful fragment in every position where a table, a value or a
//! statement can occur, and statements of a random grammar. A worker judges them; a worker that died has judged
//! nothing.
//!
//! Each statement that is judged `ok` then runs in an unrestricted engine, as a caller who trusts the verdict would run
//! it. The test checks which files it opened and which settings, databases, extensions and rows it changed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use libtest_mimic::Failed;
use proctor_core::sql::{Dialect, SqlBatch, SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits, SqlVerdict};
use proctor_duckdb::{Connection, DuckDbError, Library};
use proctor_sql::child_worker::ChildWorker;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use rustix::fs::inotify;

use crate::library;

type AdversarialTest = fn() -> Result<(), Failed>;

/// The number of random statements in `make test` and in `make test-long`.
const RANDOM_STATEMENTS: [usize; 2] = [500, 2_000];

const SCHEMA: &str = "CREATE TABLE t (a INTEGER PRIMARY KEY, b VARCHAR); CREATE TABLE u (a INTEGER, c VARCHAR);
    CREATE VIEW v AS SELECT a FROM t; CREATE MACRO twice(x) AS x + x; CREATE MACRO rows_of(n) AS TABLE SELECT * FROM range(n);
    CREATE MACRO told(x) AS current_setting(x); CREATE MACRO read_of(f) AS TABLE SELECT * FROM read_text(f);
    INSERT INTO t VALUES (1, 'x'), (2, 'y'); INSERT INTO u VALUES (1, 'z');";

/// Elements of FROM that access files, settings or the log. `@` is a directory with files.
const HARMFUL_TABLES: &[&str] = &[
    "read_csv('@/x.csv')",
    "read_csv_auto('@/*.csv')",
    "read_text('@/x.csv')",
    "read_blob(['@/x.csv'])",
    "read_json('@/x.json')",
    "read_json_auto('@/x.json')",
    "read_ndjson_objects('@/x.json')",
    "read_parquet('@/x.parquet')",
    "parquet_scan('@/x.parquet')",
    "parquet_metadata('@/x.parquet')",
    "parquet_schema('@/x.parquet')",
    "sniff_csv('@/x.csv')",
    "glob('@/*')",
    "\"read_csv\"('@/x.csv')",
    "ReAd_TeXt('@/x.csv')",
    "main.read_text('@/x.csv')",
    "system.main.read_text('@/x.csv')",
    "read_text/**/('@/x.csv')",
    "read_of('@/x.csv')",
    "'@/x.csv'",
    "'@/x.json'",
    "\"@/x.parquet\"",
    "'@/x.db'",
    "x.csv",
    "'https://example.com/x.csv'",
    "'s3://bucket/*.parquet'",
    "query('SELECT * FROM read_text(''@/x.csv'')')",
    "query('FROM ''@/x.csv''')",
    "query_table('@/x.csv')",
    "query_table(['t', '@/x.csv'])",
    "json_execute_serialized_sql(json_serialize_sql('FROM ''@/x.csv'''))",
    "sqlite_scan('@/x.db', 't')",
    "postgres_scan('host=x', 'public', 't')",
    "duckdb_settings()",
    "duckdb_secrets()",
    "duckdb_extensions()",
    "duckdb_logs()",
    "duckdb_temporary_files()",
    "duckdb_memory()",
    "duckdb_prepared_statements()",
    "duckdb_variables()",
    "which_secret('@/x', 's3')",
    "checkpoint()",
    "force_checkpoint()",
    "enable_logging()",
    "enable_profiling()",
    "pragma_database_size()",
    "pragma_storage_info('t')",
    "storage_info('t')",
    "add_parquet_key('k', 'AAAAAAAAAAAAAAAA')",
    "load_aws_credentials()",
];

/// Values that access files, settings or the environment.
const HARMFUL_VALUES: &[&str] = &[
    "getenv('HOME')",
    "GetEnv('HOME')",
    "'HOME'.getenv()",
    "current_setting('home_directory')",
    "main.current_setting('threads')",
    "told('threads')",
    "nextval('counter')",
    "setseed(0.5)",
    "write_log('x')",
    "pg_sleep(1)",
    "sleep_ms(1)",
    "(SELECT content FROM read_text('@/x.csv'))",
    "(SELECT max(size) FROM read_blob('@/*'))",
    "(FROM '@/x.csv' LIMIT 1)",
    "list_transform([1], x -> getenv('HOME'))",
    "[current_setting('threads') FOR x IN [1]]",
    "{'k': getenv('HOME')}",
    "COALESCE(NULL, current_setting('threads'))",
];

/// Statements that are harmful by themselves.
const HARMFUL_STATEMENTS: &[&str] = &[
    "COPY t TO '@/leak.csv'",
    "COPY (SELECT * FROM t) TO '@/leak.parquet' (FORMAT parquet)",
    "COPY t FROM '@/x.csv'",
    "COPY FROM DATABASE memory TO memory",
    "EXPORT DATABASE '@/leak'",
    "IMPORT DATABASE '@/leak'",
    "ATTACH '@/leak.db' AS x",
    "ATTACH ':memory:' AS x",
    "ATTACH IF NOT EXISTS '@/x.db'",
    "DETACH memory",
    "USE memory.main",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '@/x.so'",
    "UPDATE EXTENSIONS",
    "SET threads = 1",
    "SET GLOBAL threads = 1",
    "SET SESSION search_path = 'main'",
    "SET schema = 'main'",
    "SET VARIABLE x = 1",
    "SET enable_external_access = true",
    "RESET threads",
    "PRAGMA threads = 1",
    "PRAGMA memory_limit = '10GB'",
    "PRAGMA enable_profiling",
    "PRAGMA enable_progress_bar",
    "PRAGMA force_checkpoint",
    "PRAGMA storage_info('t')",
    "PRAGMA database_size",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "CALL dbgen(sf = 0)",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "VACUUM ANALYZE t",
    "ANALYZE",
    "BEGIN",
    "START TRANSACTION",
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CREATE PERSISTENT SECRET s (TYPE s3)",
    "DROP SECRET s",
    "COMMENT ON DATABASE memory IS 'x'",
    "ALTER DATABASE memory RENAME TO y",
    "KILL 1",
];

/// Contexts for a table; `%` is its position.
const TABLE_CONTEXTS: &[&str] = &[
    "SELECT * FROM %",
    "SELECT count(*) FROM % AS x, t",
    "FROM %",
    "TABLE %",
    "WITH x AS (SELECT * FROM %) SELECT 1",
    "WITH x AS MATERIALIZED (FROM %) SELECT * FROM x",
    "WITH RECURSIVE x AS (SELECT 1 UNION SELECT 2 FROM %) SELECT * FROM x",
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM %)",
    "SELECT a FROM t WHERE b IN (SELECT x::VARCHAR FROM % AS x)",
    "SELECT (SELECT count(*) FROM %) FROM t",
    "SELECT a FROM t UNION ALL SELECT 1 FROM %",
    "SELECT a FROM t WHERE false AND EXISTS (FROM %)",
    "SELECT * FROM t, LATERAL (SELECT * FROM %) AS x",
    "SELECT * FROM t JOIN % AS x ON true",
    "SELECT * FROM (FROM (FROM %))",
    "SELECT * FROM % LIMIT 0",
    "DESCRIBE SELECT * FROM %",
    "DESCRIBE %",
    "SUMMARIZE %",
    "SUMMARIZE SELECT * FROM %",
    "SHOW %",
    "EXPLAIN SELECT * FROM %",
    "EXPLAIN ANALYZE SELECT * FROM %",
    "PIVOT (SELECT * FROM %) ON a",
    "UNPIVOT (SELECT 1 AS a, count(*) AS n FROM %) ON a, n",
    "INSERT INTO u SELECT 1, 'x' FROM %",
    "UPDATE u SET c = 'q' FROM % AS x WHERE u.a = 7",
    "DELETE FROM u USING % AS x WHERE u.a = 7",
    "MERGE INTO u USING % AS x ON u.a = 7 WHEN MATCHED THEN DELETE",
    "CREATE TABLE e AS SELECT * FROM %",
    "CREATE VIEW e AS SELECT * FROM %",
    "CREATE MACRO e() AS TABLE SELECT * FROM %",
    "CREATE MACRO e() AS (SELECT count(*) FROM %)",
    "CREATE TABLE e AS FROM % WITH NO DATA",
    "SELECT * FROM query('FROM %')",
    "/* x */ SELECT 1 AS x FROM % -- y",
    "SELECT COLUMNS(*) FROM %",
    "SELECT 1 FROM t QUALIFY row_number() OVER (ORDER BY (SELECT count(*) FROM %)) = 1",
];

/// Contexts for a value.
const VALUE_CONTEXTS: &[&str] = &[
    "SELECT %",
    "SELECT a FROM t WHERE b = %",
    "SELECT a FROM t ORDER BY %",
    "SELECT a FROM t GROUP BY ALL HAVING min(b) = %",
    "SELECT max(%) FROM t",
    "SELECT CASE WHEN a > 9 THEN % END FROM t",
    "VALUES (%)",
    "SELECT a FROM t LIMIT length(%)",
    "SELECT * FROM unnest([%])",
    "SELECT sum(a) FILTER (WHERE b = %) FROM t",
    "SELECT lag(b, 1, %) OVER () FROM t",
    "EXPLAIN SELECT %",
    "WITH x AS (SELECT % AS q) SELECT q FROM x",
    "INSERT INTO u VALUES (1, %)",
    "INSERT INTO u VALUES (1, 'x') RETURNING %",
    "UPDATE u SET c = % WHERE a = 7",
    "DELETE FROM u WHERE c = %",
    "CREATE TABLE e (x VARCHAR DEFAULT %)",
    "CREATE TABLE e AS SELECT % AS x",
    "CREATE VIEW e AS SELECT % AS x",
    "CREATE MACRO e() AS %",
    "CREATE INDEX e ON u (%)",
    "ALTER TABLE u ADD COLUMN e VARCHAR DEFAULT %",
    "ALTER TABLE u ALTER c SET DEFAULT %",
    "ALTER TABLE u ALTER c TYPE VARCHAR USING %",
    "CREATE TABLE e (x VARCHAR CHECK (x = %))",
    "CREATE TABLE e (a VARCHAR, x VARCHAR AS (%))",
    "CREATE TYPE e AS ENUM (SELECT %)",
];

/// Contexts for a statement.
const STATEMENT_CONTEXTS: &[&str] = &[
    "%",
    "/* x */ %",
    "-- x\n%",
    "%;",
    "EXPLAIN %",
    "EXPLAIN ANALYZE %",
    "EXPLAIN (FORMAT json) %",
    "SELECT 1; %",
    "%; SELECT 1",
    "PREPARE q AS %",
    "SELECT * FROM query('%')",
    "WITH x AS (SELECT 1) %",
];

/// Harmless tables of the random grammar.
const HARMLESS_TABLES: &[&str] = &[
    "t",
    "u",
    "v",
    "main.t",
    "range(3)",
    "rows_of(2)",
    "(VALUES (1))",
    "duckdb_tables()",
    "information_schema.tables",
];
const HARMLESS_VALUES: &[&str] = &[
    "1",
    "'x'",
    "a",
    "b",
    "t.a",
    "*",
    "NULL",
    "count(*)",
    "upper(b)",
    "twice(a)",
    "[1, 2]",
    "{'k': 1}",
    "$1",
    "?",
    "x -> x",
    "a::VARCHAR",
    "now()",
    "\"b\"",
    "random()",
    "''",
    "'@/x.csv'",
];
/// Fragments that are inserted into statements.
const INSERTED_FRAGMENTS: &[&str] = &[
    ";",
    ";;",
    "--",
    "\n",
    "/*",
    "*/",
    "(",
    ")",
    ",",
    "'",
    "\"",
    "$$",
    "WHERE",
    "UNION ALL",
    "FROM",
    "AS x",
    "LIMIT 1",
    "\0",
    "é",
    "ON CONFLICT DO NOTHING",
    "RETURNING *",
    "OVER ()",
    "USING SAMPLE 1",
    "AT (VERSION => 1)",
    "EXPLAIN",
    "COPY",
    "BEGIN",
];

pub(crate) fn all() -> Vec<(&'static str, AdversarialTest)> {
    vec![
        ("rejects_harmful_fragments_in_every_context", rejects_harmful_fragments_in_every_context),
        ("accepted_random_statements_are_harmless", accepted_random_statements_are_harmless),
    ]
}

/// Reports whether the harmful fragment has no effect in its context: it is part of a string, or is the name of
/// something that the text itself creates.
fn is_inert(sql: &str) -> bool {
    // An empty statement in a query function, and strings that DuckDB reads as names of tables.
    sql.contains("TABLE '") || sql.contains("SHOW '")
}

/// Tests each harmful fragment in each context.
fn rejects_harmful_fragments_in_every_context() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let at = dir.path().to_str().ok_or("the path is no text")?;
    let product = |around: &[&str], parts: &[&str]| -> Vec<String> {
        let one = |around: &&str, part: &&str| {
            let is_quoted = around.contains("'%'") || around.contains("'FROM %'");
            let part = if is_quoted { part.replace('\'', "''") } else { (*part).to_owned() };
            around.replace('%', &part).replace('@', at)
        };
        around.iter().flat_map(|around| parts.iter().map(move |part| one(around, part))).collect()
    };
    let texts = [
        product(TABLE_CONTEXTS, HARMFUL_TABLES),
        product(VALUE_CONTEXTS, HARMFUL_VALUES),
        product(STATEMENT_CONTEXTS, HARMFUL_STATEMENTS),
    ]
    .concat();
    let mut judge = WorkerJudge::new()?;
    let mut wrong = Vec::new();
    for (number, sql) in texts.iter().enumerate().filter(|(_, sql)| !is_inert(sql)) {
        let policy = SqlPolicy::ALL[number % SqlPolicy::ALL.len()];
        if judge.verdict(sql, policy) == SqlVerdict::Ok {
            wrong.push(format!("{} ({})", sql, policy.as_str()));
        }
    }
    judge.print_lost_workers("planted", texts.len());
    if wrong.is_empty() { Ok(()) } else { Err(format!("judged ok:\n{}", wrong.join("\n")).into()) }
}

/// Tests random statements.
fn accepted_random_statements_are_harmless() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let at = dir.path().to_str().ok_or("the path is no text")?;
    let mut judge = WorkerJudge::new()?;
    let mut trusting = TrustingProcess::start(dir.path())?;
    let mut runner = TestRunner::default();
    let (grammar, mut oks) = (statement(), 0);
    let count = random_statements();
    for _ in 0..count {
        let sql = grammar.new_tree(&mut runner)?.current().replace('@', at);
        if judge.verdict(&sql, SqlPolicy::Read) != SqlVerdict::Ok {
            continue;
        }
        oks += 1;
        if let Some(harm) = trusting.find_harm(&sql)? {
            return Err(format!("judged ok, but {harm}:\n{sql}").into());
        }
    }
    judge.print_lost_workers("grown", count);
    // If none of the statements were `ok`, the test would check nothing.
    if oks > count / 50 { Ok(()) } else { Err(format!("only {oks} of {count} were ok").into()) }
}

fn random_statements() -> usize {
    #[expect(clippy::disallowed_methods, reason = "the command line selects the level")]
    let is_long = std::env::var("PROCTOR_TEST_LONG").is_ok_and(|value| value == "1");
    RANDOM_STATEMENTS[usize::from(is_long)]
}

/// Returns a strategy for statements with nested queries.
fn statement() -> impl Strategy<Value = String> {
    let pick = |list: &'static [&'static str]| prop::sample::select(list).prop_map(str::to_owned);
    let value = prop_oneof![8 => pick(HARMLESS_VALUES), 1 => pick(HARMFUL_VALUES)];
    let table = prop_oneof![8 => pick(HARMLESS_TABLES), 1 => pick(HARMFUL_TABLES)];
    let leaf = (value.clone(), table.clone()).prop_map(|(value, table)| format!("SELECT {value} FROM {table}"));
    let query = leaf.prop_recursive(3, 12, 3, move |inner| {
        let nested = inner.clone().prop_map(|query| format!("({query})"));
        let source = prop_oneof![3 => table.clone(), 2 => nested.clone()];
        let item = prop_oneof![5 => value.clone(), 1 => nested];
        prop_oneof![
            (item.clone(), source.clone(), item.clone())
                .prop_map(|(a, b, c)| format!("SELECT {a} FROM {b} WHERE {c} IS NOT NULL")),
            (item.clone(), source.clone(), source.clone())
                .prop_map(|(a, b, c)| format!("SELECT {a} FROM {b} AS x, {c} AS y")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a} UNION ALL {b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("WITH x AS ({a}) {b}")),
            (prop::sample::select(TABLE_CONTEXTS), source).prop_map(|(around, table)| around.replace('%', &table)),
            (prop::sample::select(VALUE_CONTEXTS), item).prop_map(|(around, value)| around.replace('%', &value)),
        ]
    });
    let harmful = (prop::sample::select(STATEMENT_CONTEXTS), prop::sample::select(HARMFUL_STATEMENTS))
        .prop_map(|(around, statement)| around.replace('%', statement));
    let whole = prop_oneof![10 => query, 1 => harmful];
    // A third of the statements are damaged at a random position.
    (whole, prop::option::weighted(0.3, (any::<prop::sample::Index>(), prop::sample::select(INSERTED_FRAGMENTS))))
        .prop_map(|(sql, torn)| {
            let Some((at, piece)) = torn else { return sql };
            let at = sql.floor_char_boundary(at.index(sql.len() + 1));
            format!("{} {piece} {}", &sql[..at], &sql[at..])
        })
}

/// A worker, and the statements during which it died.
struct WorkerJudge {
    worker: ChildWorker,
    lost: Vec<String>,
}

impl WorkerJudge {
    fn new() -> Result<Self, Failed> {
        Ok(Self { worker: ChildWorker::new(Ok(library()?)), lost: Vec::new() })
    }

    fn verdict(&mut self, sql: &str, policy: SqlPolicy) -> SqlVerdict {
        let limits = SqlResourceLimits { time_ms: 2_000, memory: 128 << 20, ..SqlResourceLimits::default() };
        let schema = vec![SCHEMA.to_owned()];
        let batch = Some(SqlBatch::One);
        let judgement =
            self.worker.judge(&SqlRequest { policy, schema, limits, batch, ..SqlRequest::new(Dialect::Duckdb, sql) });
        if judgement.diagnostics.iter().any(|found| found.code == SqlCode::EngineDied) {
            self.lost.push(sql.to_owned());
        }
        judgement.verdict
    }

    /// Prints how often the worker died. This is a fault of DuckDB, which costs only one answer.
    fn print_lost_workers(&self, what: &str, of: usize) {
        let first = self.lost.first().map_or(String::new(), |sql| format!(", first by: {sql}"));
        eprintln!("{what}: {of} statements, {} workers died{first}", self.lost.len());
    }
}

/// A separate process that runs the statements with the verdict `ok`.
struct TrustingProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl TrustingProcess {
    fn start(dir: &Path) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("--trust").arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn find_harm(&mut self, sql: &str) -> Result<Option<String>, Failed> {
        writeln!(self.input, "{}", serde_json::to_string(sql)?)?;
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Ok(Some("it ended the process".to_owned())),
            _ => Ok(serde_json::from_str(&line)?),
        }
    }
}

impl Drop for TrustingProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// State that no statement may change, each as a query that returns one text.
const PROTECTED_STATE: &[(&str, &str)] = &[
    ("a setting", "SELECT md5(string_agg(concat(name, '=', value), ',' ORDER BY name)) FROM duckdb_settings()"),
    ("a variable", "SELECT CAST(count(*) AS VARCHAR) FROM duckdb_variables()"),
    (
        "the databases",
        "SELECT string_agg(concat(database_name, path), ',' ORDER BY database_name) FROM duckdb_databases()",
    ),
    (
        "the extensions",
        "SELECT CAST(sum(CAST(loaded AS INTEGER) + CAST(installed AS INTEGER)) AS VARCHAR) FROM duckdb_extensions()",
    ),
    ("a prepared statement", "SELECT CAST(count(*) AS VARCHAR) FROM duckdb_prepared_statements()"),
    ("a secret", "SELECT CAST(count(*) AS VARCHAR) FROM duckdb_secrets()"),
    ("the functions", "SELECT CAST(count(*) AS VARCHAR) FROM duckdb_functions()"),
    (
        "the tables",
        "SELECT string_agg(concat(table_name, column_name), ',' ORDER BY table_name, column_name) FROM duckdb_columns()",
    ),
    (
        "rows",
        "SELECT concat((SELECT string_agg(concat(a, b), ',' ORDER BY a) FROM t), (SELECT string_agg(concat(a, c), ',' ORDER BY a) FROM u))",
    ),
    ("where it is", "SELECT concat(current_database(), current_schema())"),
];

/// Runs in the process of [`TrustingProcess`]: reads one statement per line, and prints its effects or `null`.
pub(crate) fn run_trusting_process(library: &Path) {
    let dir = std::env::args_os().nth(2).map(PathBuf::from).expect("a directory");
    for (file, text) in [("x.csv", "a,b\n1,2\n"), ("x.json", "{\"a\": 1}\n"), ("x.parquet", ""), ("x.db", "")] {
        let mut made = std::fs::File::create(dir.join(file)).expect("a file");
        made.write_all(text.as_bytes()).expect("written");
    }
    std::env::set_current_dir(&dir).expect("a directory");
    let library = Library::load(library).expect("the library loads");
    // The test must not download anything.
    let settings = [("autoinstall_known_extensions", "false"), ("threads", "1"), ("memory_limit", "256MB")];
    let connection = library.open(None, &settings).and_then(|database| database.connect()).expect("a database");
    run(&connection, SCHEMA).expect("the schema");
    let inotify_fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).expect("eyes");
    let watched_events = inotify::WatchFlags::OPEN
        | inotify::WatchFlags::CREATE
        | inotify::WatchFlags::MODIFY
        | inotify::WatchFlags::DELETE;
    inotify::add_watch(&inotify_fd, &dir, watched_events).expect("eyes");
    let state = || PROTECTED_STATE.iter().map(|(_, sql)| ask(&connection, sql)).collect::<Vec<_>>();
    let before = state();
    for line in std::io::stdin().lock().lines() {
        let sql: String = serde_json::from_str(&line.expect("a line")).expect("a text");
        // A statement may fail on these rows.
        let _ = run(&connection, &sql);
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4_096];
        let touched = match inotify::Reader::new(&inotify_fd, &mut buffer).next() {
            Ok(event) => Some(format!("it touched a file: {:?} {:?}", event.file_name(), event.events())),
            Err(_) => None,
        };
        let is_begun = run(&connection, "BEGIN TRANSACTION").is_err();
        let _ = run(&connection, "ROLLBACK");
        let begun = is_begun.then(|| "it left a transaction open".to_owned());
        let changed = state().iter().zip(&before).position(|(now, before)| now != before);
        let changed = changed.map(|at| format!("it changed {}", PROTECTED_STATE[at].0));
        println!("{}", serde_json::to_string(&touched.or(begun).or(changed)).expect("JSON"));
    }
}

fn run(connection: &Connection, sql: &str) -> Result<(), DuckDbError> {
    let statements = connection.extract(sql)?;
    for index in 0..statements.count() {
        let prepared = statements.prepare(index)?;
        (1..=prepared.parameter_count()).try_for_each(|parameter| prepared.bind_null(parameter))?;
        let mut rows = prepared.run()?;
        while rows.next_chunk()?.is_some() {}
    }
    Ok(())
}

fn ask(connection: &Connection, sql: &str) -> Option<String> {
    let mut rows = connection.extract(sql).and_then(|prepared| prepared.prepare(0)?.run()).expect("a question of ours");
    rows.next_chunk().expect("an answer").and_then(|chunk| chunk.text(0, 0))
}
