//! Tests statements that run on database files of SQLite in real sandboxes: their effects are kept or undone as a whole,
//! and changes in the files beside a database are read. Tests are skipped if sandboxes are not available.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use proctor_core::model::enforcement::Tolerated;
use proctor_core::sql::{
    Dialect, SqlBatch, SqlPolicy, SqlRequest, SqlResourceLimits, SqlRunAnswer, SqlRunRequest, SqlVerdict,
};
use proctor_sandbox::{Host, HostConfig, Launcher, RunSpace, RunSpaceConfig, SandboxReuse};
use proctor_sql::worker_pool::{WorkerPool, WorkerPoolConfig};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn main() {
    let tests: [(&str, fn()); 8] = [
        ("keeps_effects_only_on_request", keeps_effects_only_on_request),
        ("keeps_effects_in_database_with_write_ahead_log", keeps_effects_in_database_with_write_ahead_log),
        ("failed_statement_leaves_database_unchanged", failed_statement_leaves_database_unchanged),
        ("concurrent_writer_prevents_commit", concurrent_writer_prevents_commit),
        ("killed_worker_leaves_database_unchanged", killed_worker_leaves_database_unchanged),
        ("refuses_commit_without_permission", refuses_commit_without_permission),
        ("reads_write_ahead_log", reads_write_ahead_log),
        ("refuses_log_without_index_and_hot_journal", refuses_log_without_index_and_hot_journal),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = match sandbox_unavailable_reason() {
        None => tests.into_iter().map(trial).collect(),
        Some(reason) => {
            eprintln!("no sandbox can be made here: {reason}");
            let skipped = |(name, _)| Trial::test(format!("{name} (skipped: needs a sandbox)"), || Ok(()));
            tests.into_iter().map(|test| skipped(test).with_ignored_flag(true)).collect()
        }
    };
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Returns the reason why commands cannot be sandboxed here, for example because this is a sandbox already.
fn sandbox_unavailable_reason() -> Option<String> {
    let state = tempfile::tempdir().expect("a directory");
    let config = RunSpaceConfig {
        disk_bytes: 1 << 20,
        inodes: 1 << 10,
        tolerated: Tolerated::default(),
        reuse: SandboxReuse::Never,
        caches: None,
    };
    RunSpace::create(&launcher(state.path()), config).err().map(|error| error.to_string())
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_proctor-sql"))
}

fn launcher(state: &Path) -> Arc<Launcher> {
    let helper = program().with_file_name("proctor-sandbox");
    assert!(helper.exists(), "`{}` is not built: `cargo build --workspace --bins`", helper.display());
    let config = HostConfig { helper, state_dir: state.join("state"), home: state.join("home") };
    Arc::new(Launcher::start(Host::new(config).expect("a host")).expect("a launcher"))
}

/// A pool of workers, and a directory with a database.
struct Bench {
    _state: tempfile::TempDir,
    directory: tempfile::TempDir,
    workers: Arc<WorkerPool>,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn start() -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let launcher = launcher(state.path());
        let config = WorkerPoolConfig {
            program: program(),
            duckdb: None,
            max_idle: 2,
            tolerated: Tolerated::default(),
            verifiers: Vec::new(),
        };
        let workers = Arc::new(WorkerPool::new(launcher, config).expect("workers"));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let directory = tempfile::tempdir().expect("a directory");
        Self { _state: state, directory, workers, runtime }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("my shop.db")
    }

    /// Creates the database, and returns the connection that created it.
    fn create(&self, settings: &str) -> Connection {
        let made = Connection::open(self.file()).expect("opens");
        let schema =
            "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z')";
        made.execute_batch(&format!("{settings}; {schema}")).expect("fills");
        made
    }

    fn request(&self, policy: SqlPolicy, sql: &str) -> SqlRequest {
        let database = Some(self.file().to_string_lossy().into_owned());
        let limits = SqlResourceLimits { time_ms: 20_000, ..SqlResourceLimits::default() };
        SqlRequest { database, policy, limits, ..SqlRequest::new(Dialect::Sqlite, sql) }
    }

    fn run(&self, request: SqlRequest, commit: bool) -> SqlRunAnswer {
        self.runtime.block_on(self.workers.run_statement(&SqlRunRequest { request, commit }))
    }

    #[track_caller]
    fn rows(&self, sql: &str) -> Value {
        let answer = self.run(self.request(SqlPolicy::Read, sql), false);
        json!(answer.result.unwrap_or_else(|| panic!("{:?} {:#?}", answer.error, answer.judgement)).rows)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.workers.release();
    }
}

/// Reads a table with a connection that is unrelated to the workers.
fn stored(file: &Path, sql: &str) -> String {
    Connection::open(file).and_then(|open| open.query_row(sql, [], |row| row.get(0))).expect("a value")
}

const ALL_TEXTS: &str = "SELECT group_concat(b, '') FROM (SELECT b FROM t ORDER BY a)";

fn keeps_effects_only_on_request() {
    let bench = Bench::start();
    drop(bench.create(""));
    let before = std::fs::read(bench.file()).expect("reads");
    let owner = bench.file().metadata().expect("a file").uid();
    let update = bench.request(SqlPolicy::Write, "UPDATE t SET b = upper(b) WHERE a < 3 RETURNING b");
    let undone = bench.run(update.clone(), false).result.expect("a result");
    assert_eq!((json!(undone.rows), undone.changed, undone.committed), (json!([["X"], ["Y"]]), Some(2), false));
    assert_eq!(std::fs::read(bench.file()).expect("reads"), before, "not a byte has changed");
    assert_eq!(bench.rows("SELECT b FROM t WHERE a = 1"), json!([["x"]]));
    let answer = bench.run(update, true);
    let kept = answer.result.unwrap_or_else(|| panic!("{:?} {:#?}", answer.error, answer.judgement));
    assert_eq!((json!(kept.rows), kept.changed, kept.committed), (json!([["X"], ["Y"]]), Some(2), true));
    assert_eq!(stored(&bench.file(), ALL_TEXTS), "XYz");
    assert_eq!(bench.rows("SELECT b FROM t WHERE a = 1"), json!([["X"]]), "a warm worker sees the change");
    assert_eq!(bench.file().metadata().expect("a file").uid(), owner);
    let names: Vec<_> = std::fs::read_dir(bench.directory.path()).expect("lists").collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

fn keeps_effects_in_database_with_write_ahead_log() {
    let bench = Bench::start();
    let other = bench.create("PRAGMA journal_mode = WAL");
    let sql = "CREATE TABLE u (c); INSERT INTO u SELECT b FROM t WHERE a > 1; DELETE FROM t WHERE a = 3";
    let answer = bench.run(bench.request(SqlPolicy::Migrate, sql), true);
    let kept = answer.result.unwrap_or_else(|| panic!("{:?} {:#?}", answer.error, answer.judgement));
    assert_eq!((kept.changed, kept.committed), (Some(3), true));
    let read: String = other.query_row(ALL_TEXTS, [], |row| row.get(0)).expect("a value");
    assert_eq!(read, "xy", "an open connection sees the change");
    assert_eq!(bench.rows("SELECT c FROM u ORDER BY c"), json!([["y"], ["z"]]));
    drop(other);
    assert_eq!(stored(&bench.file(), ALL_TEXTS), "xy");
}

fn failed_statement_leaves_database_unchanged() {
    let bench = Bench::start();
    drop(bench.create(""));
    let before = std::fs::read(bench.file()).expect("reads");
    let migrate = |sql| SqlRequest { batch: Some(SqlBatch::Many), ..bench.request(SqlPolicy::Migrate, sql) };
    // The chain without the stage `run` does not see that the second statement fails.
    let stages = Some(vec![proctor_core::sql::StageName::Bind, proctor_core::sql::StageName::Safety]);
    let late = SqlRequest { stages, ..migrate("INSERT INTO t VALUES (4, 'w'); INSERT INTO t VALUES (1, 'again')") };
    let answer = bench.run(late, true);
    assert_eq!(answer.judgement.verdict, SqlVerdict::Ok, "{:#?}", answer.judgement);
    assert!(answer.result.is_none() && answer.error.expect("a reason").contains("UNIQUE"));
    let rejected = bench.run(migrate("INSERT INTO t VALUES (4, 'w'); INSERT INTO t VALUES (1, 'again')"), true);
    assert_eq!((rejected.judgement.verdict, rejected.result), (SqlVerdict::Reject, None));
    let unbounded = bench.run(bench.request(SqlPolicy::Write, "DELETE FROM t"), true);
    assert_eq!((unbounded.judgement.verdict, unbounded.result), (SqlVerdict::Reject, None));
    assert_eq!(std::fs::read(bench.file()).expect("reads"), before, "not a byte has changed");
}

fn concurrent_writer_prevents_commit() {
    let bench = Bench::start();
    let other = bench.create("");
    other.execute_batch("BEGIN IMMEDIATE; UPDATE t SET b = 'other' WHERE a = 1").expect("a lock");
    let limits = SqlResourceLimits { time_ms: 300, ..SqlResourceLimits::default() };
    let update = SqlRequest { limits, ..bench.request(SqlPolicy::Write, "UPDATE t SET b = 'ours' WHERE a = 1") };
    let answer = bench.run(update.clone(), true);
    assert_eq!((answer.judgement.verdict, answer.result), (SqlVerdict::Error, None), "{:#?}", answer.judgement);
    let reason = &answer.judgement.diagnostics[0].message;
    assert!(reason.contains("locked"), "{reason}");
    assert_eq!(bench.rows("SELECT b FROM t WHERE a = 1"), json!([["x"]]), "a reader sees the state before");
    other.execute_batch("COMMIT").expect("commits");
    let limits = SqlResourceLimits::default();
    let answer = bench.run(SqlRequest { limits, ..update }, true);
    assert!(answer.result.is_some_and(|kept| kept.committed), "{:?}", answer.error);
    assert_eq!(stored(&bench.file(), ALL_TEXTS), "oursyz");
}

fn killed_worker_leaves_database_unchanged() {
    let bench = Bench::start();
    drop(bench.create(""));
    let sql = "INSERT INTO t WITH RECURSIVE s(n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM s WHERE n < 600000)
        SELECT n, printf('row %d', n) FROM s";
    let limits = SqlResourceLimits { time_ms: 120_000, steps: u64::MAX, ..SqlResourceLimits::default() };
    let insert = SqlRequest { limits, ..bench.request(SqlPolicy::Write, sql) };
    let journal = bench.directory.path().join("my shop.db-journal");
    let answer = std::thread::scope(|scope| {
        let committing = scope.spawn(|| bench.run(insert, true));
        let until = Instant::now() + Duration::from_secs(100);
        // The journal is written while the transaction changes the file.
        while journal.metadata().map_or(0, |meta| meta.len()) < 4_096 {
            assert!(!committing.is_finished(), "it has committed: {:?}", committing.join().map(|answer| answer.error));
            assert!(Instant::now() < until, "the transaction never began");
            std::thread::yield_now();
        }
        kill_process(worker_of(&bench.file()), Signal::KILL).expect("a worker");
        committing.join().expect("an answer")
    });
    assert_eq!((answer.judgement.verdict, answer.result), (SqlVerdict::Error, None), "{:#?}", answer.judgement);
    assert!(journal.exists(), "the transaction was not complete");
    // The next program that opens the file undoes the transaction.
    assert_eq!(stored(&bench.file(), "PRAGMA integrity_check"), "ok");
    assert_eq!(stored(&bench.file(), ALL_TEXTS), "xyz");
    assert_eq!(bench.rows("SELECT count(*) FROM t"), json!([[3]]));
}

/// Returns the worker whose sandbox shows this database as writable.
fn worker_of(database: &Path) -> Pid {
    let wanted = database.metadata().expect("a file").ino();
    let has_open = |pid: &i32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut inodes = files.flatten().filter_map(|file| std::fs::metadata(file.path()).ok()).map(|meta| meta.ino());
        inodes.any(|inode| inode == wanted).then_some(*pid)
    };
    let processes = std::fs::read_dir("/proc").expect("lists").flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let own = i32::try_from(std::process::id()).expect("a pid");
    let found = pids.filter(|pid| *pid != own).find_map(|pid| has_open(&pid));
    found.and_then(Pid::from_raw).expect("a worker")
}

fn refuses_commit_without_permission() {
    let bench = Bench::start();
    drop(bench.create(""));
    let refusal = |request| {
        let answer = bench.run(request, true);
        assert_eq!((answer.judgement.verdict, answer.result), (SqlVerdict::Error, None));
        answer.judgement.diagnostics[0].message.clone()
    };
    assert!(refusal(bench.request(SqlPolicy::Read, "SELECT 1")).contains("policy"));
    let write = bench.request(SqlPolicy::Write, "UPDATE t SET b = '' WHERE a = 1");
    assert!(refusal(SqlRequest { database: None, ..write.clone() }).contains("database file"));
    assert!(refusal(SqlRequest { schema: vec!["CREATE TABLE u (a)".to_owned()], ..write }).contains("schema"));
}

fn reads_write_ahead_log() {
    let bench = Bench::start();
    let other = bench.create("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0");
    assert_eq!(bench.rows("SELECT count(*) FROM t"), json!([[3]]), "everything is in the log");
    other.execute_batch("INSERT INTO t VALUES (4, 'new')").expect("inserts");
    assert_eq!(bench.rows("SELECT b FROM t WHERE a = 4"), json!([["new"]]));
    let write = bench.run(bench.request(SqlPolicy::Write, "DELETE FROM t WHERE a > 2 RETURNING b"), false);
    assert_eq!(json!(write.result.expect("a result").rows), json!([["z"], ["new"]]), "a copy has the log too");
    drop(other);
    // Closing the last connection has merged the log and removed it.
    assert_eq!(bench.rows("SELECT count(*) FROM t"), json!([[4]]));
}

fn refuses_log_without_index_and_hot_journal() {
    let bench = Bench::start();
    let other = bench.create("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0");
    let copies = tempfile::tempdir().expect("a directory");
    let copy = copies.path().join("copy.db");
    std::fs::copy(bench.file(), &copy).expect("copies");
    std::fs::copy(bench.directory.path().join("my shop.db-wal"), copies.path().join("copy.db-wal")).expect("copies");
    drop(other);
    let database = Some(copy.to_string_lossy().into_owned());
    let read = SqlRequest { database, ..bench.request(SqlPolicy::Read, "SELECT count(*) FROM t") };
    let answer = bench.run(read.clone(), false);
    let message = &answer.judgement.diagnostics[0].message;
    assert!(message.contains("unmerged changes"), "{message}");

    // A transaction that changes the file more than the cache holds, and is copied before its end.
    let writer = Connection::open(bench.file()).expect("opens");
    writer
        .execute_batch(
            "PRAGMA journal_mode = DELETE; PRAGMA cache_size = 1; BEGIN;
            INSERT INTO t WITH RECURSIVE s(n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM s WHERE n < 5000) SELECT n, n FROM s",
        )
        .expect("writes");
    std::fs::copy(bench.file(), &copy).expect("copies");
    std::fs::remove_file(copies.path().join("copy.db-wal")).expect("removes");
    std::fs::copy(bench.directory.path().join("my shop.db-journal"), copies.path().join("copy.db-journal"))
        .expect("copies");
    let answer = bench.run(read.clone(), false);
    assert_eq!(answer.judgement.verdict, SqlVerdict::Error, "{:?}", answer.result);
    let message = &answer.judgement.diagnostics[0].message;
    assert!(message.contains("unmerged changes"), "{message}");
    // A commit may write, so SQLite undoes the other transaction first.
    let update = SqlRequest { policy: SqlPolicy::Write, sql: "UPDATE t SET b = 'new' WHERE a = 1".to_owned(), ..read };
    let answer = bench.run(update, true);
    assert!(answer.result.is_some_and(|kept| kept.committed), "{:?} {:#?}", answer.error, answer.judgement);
    assert_eq!(stored(&copy, ALL_TEXTS), "newyz");
}
