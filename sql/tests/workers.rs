//! Tests workers in real sandboxes: they answer, are released and die, and one caller's expensive request does not
//! delay others. Tests are skipped if sandboxes are not available.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use proctor_core::model::enforcement::Tolerated;
use proctor_core::sql::{Dialect, SqlCode, SqlRequest, SqlResourceLimits, SqlVerdict, StageName};
use proctor_sandbox::{Host, HostConfig, Launcher, RunSpace, RunSpaceConfig, SandboxReuse};
use proctor_sql::worker_pool::{WorkerPool, WorkerPoolConfig};

const SCHEMA: &str =
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL); CREATE TABLE big (n INTEGER);
    INSERT INTO big WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 3000) SELECT n FROM s;";

fn main() {
    let tests: [(&str, fn()); 8] = [
        ("reuses_idle_worker", reuses_idle_worker),
        ("users_share_no_worker", users_share_no_worker),
        ("worker_sandbox_hides_host_files", worker_sandbox_hides_host_files),
        ("leaves_database_file_unchanged", leaves_database_file_unchanged),
        ("detects_replaced_database_file", detects_replaced_database_file),
        ("expensive_requests_end_without_delaying_others", expensive_requests_end_without_delaying_others),
        ("limits_statement_length", limits_statement_length),
        ("unjudgeable_request_is_error", unjudgeable_request_is_error),
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

fn launcher(state: &Path) -> Arc<Launcher> {
    let helper = program().with_file_name("proctor-sandbox");
    assert!(helper.exists(), "`{}` is not built: `cargo build --workspace --bins`", helper.display());
    let config = HostConfig { helper, state_dir: state.join("state"), home: state.join("home") };
    Arc::new(Launcher::start(Host::new(config).expect("a host")).expect("a launcher"))
}

struct WorkerPoolFixture {
    _state: tempfile::TempDir,
    workers: Arc<WorkerPool>,
    runtime: tokio::runtime::Runtime,
}

impl WorkerPoolFixture {
    fn judge(&self, request: &SqlRequest) -> proctor_core::sql::Judgement {
        self.runtime.block_on(self.workers.judge(request))
    }
}

impl Drop for WorkerPoolFixture {
    fn drop(&mut self) {
        self.workers.release();
    }
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_proctor-sql"))
}

fn start_pool(max_idle: usize) -> WorkerPoolFixture {
    let state = tempfile::tempdir().expect("a directory");
    let launcher = launcher(state.path());
    let config = WorkerPoolConfig {
        program: program(),
        duckdb: None,
        max_idle,
        tolerated: Tolerated::default(),
        verifiers: Vec::new(),
    };
    let workers = Arc::new(WorkerPool::new(launcher, config).expect("workers"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    WorkerPoolFixture { _state: state, workers, runtime }
}

fn request(sql: &str) -> SqlRequest {
    SqlRequest { schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Sqlite, sql) }
}

fn codes(judgement: &proctor_core::sql::Judgement) -> Vec<SqlCode> {
    judgement.diagnostics.iter().map(|found| found.code).collect()
}

fn reuses_idle_worker() {
    let bench = start_pool(2);
    let good = bench.judge(&request("SELECT name FROM customers"));
    assert_eq!(good.verdict, SqlVerdict::Ok, "{good:?}");
    assert_eq!(bench.workers.idle_count(), 1);
    let bad = bench.judge(&request("SELECT nmae FROM customers"));
    assert_eq!((bad.verdict, codes(&bad)), (SqlVerdict::Reject, vec![SqlCode::UnknownColumn]), "{bad:?}");
    assert_eq!(bad.diagnostics[0].candidates, ["name"]);
    assert_eq!(bench.workers.idle_count(), 1, "the same worker");
    let again = bench.judge(&request("SELECT nmae FROM customers"));
    assert_eq!(bad.digest, again.digest, "equal requests, equal bytes");
}

fn users_share_no_worker() {
    let bench = start_pool(4);
    let users = [1, 2].map(|user| bench.workers.for_user(user));
    for (count, user) in [(1, 0), (2, 1), (2, 0), (2, 1)] {
        let judged = bench.runtime.block_on(users[user].judge(&request("SELECT name FROM customers")));
        assert_eq!((judged.verdict, bench.workers.idle_count()), (SqlVerdict::Ok, count), "{judged:?}");
    }
}

fn worker_sandbox_hides_host_files() {
    let bench = start_pool(1);
    // SQLite refuses these statements. Even if it did not, the sandbox would not contain the files.
    for sql in ["SELECT readfile('/etc/passwd')", "ATTACH '/etc/hostname' AS x", "SELECT load_extension('/lib/x.so')"] {
        let judgement = bench.judge(&request(sql));
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}: {judgement:?}");
    }
    let absent = SqlRequest { database: Some("/nowhere/x.db".to_owned()), ..request("SELECT 1") };
    assert_eq!(bench.judge(&absent).verdict, SqlVerdict::Error);
}

fn leaves_database_file_unchanged() {
    let bench = start_pool(1);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("my shop.db");
    let made = rusqlite::Connection::open(&file).expect("opens");
    made.execute_batch("CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1), (2), (3)").expect("fills");
    drop(made);
    let before = std::fs::read(&file).expect("reads");
    let of_file = |sql: &str, policy| SqlRequest {
        schema: Vec::new(),
        database: Some(file.to_string_lossy().into_owned()),
        policy,
        ..request(sql)
    };
    use proctor_core::sql::SqlPolicy;
    let read = bench.judge(&of_file("SELECT a FROM t WHERE a > 1", SqlPolicy::Read));
    assert_eq!((read.verdict, read.execution.as_ref().map(|it| it.rows)), (SqlVerdict::Ok, Some(2)), "{read:?}");
    let write = bench.judge(&of_file("UPDATE t SET a = 9 WHERE a > 1", SqlPolicy::Write));
    let touched = write.execution.as_ref().and_then(|it| it.affected.first()).map(|it| (it.rows, it.of));
    assert_eq!((write.verdict, touched), (SqlVerdict::Ok, Some((2, 3))), "{write:?}");
    assert_eq!(std::fs::read(&file).expect("reads"), before, "not a byte has changed");
}

fn detects_replaced_database_file() {
    let bench = start_pool(1);
    // The directory must not be below one that sandboxes hide: a symbolic link there would replace the mount point.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let holds = |name: &str, column: &str| {
        let made = rusqlite::Connection::open(place(name)).expect("opens");
        made.execute_batch(&format!("CREATE TABLE t ({column} INTEGER); INSERT INTO t VALUES (1)")).expect("fills");
    };
    holds("first.db", "a");
    holds("second.db", "b");
    std::os::unix::fs::symlink("first.db", place("link.db")).expect("made");
    let verdict_of = |name: &str| {
        let database = Some(place(name).to_string_lossy().into_owned());
        bench.judge(&SqlRequest { schema: Vec::new(), database, ..request("SELECT a FROM t") }).verdict
    };
    assert_eq!((verdict_of("first.db"), verdict_of("link.db")), (SqlVerdict::Ok, SqlVerdict::Ok));
    std::fs::rename(place("second.db"), place("first.db")).expect("renamed");
    assert_eq!((verdict_of("first.db"), verdict_of("link.db")), (SqlVerdict::Reject, SqlVerdict::Reject));
}

fn expensive_requests_end_without_delaying_others() {
    let bench = start_pool(4);
    let bombs = [
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT COUNT(*) FROM s",
        "SELECT COUNT(*) FROM big a, big b, big c, big d",
    ];
    let limits = SqlResourceLimits { time_ms: 5_000, steps: u64::MAX, ..SqlResourceLimits::default() };
    // Starts a worker first, so that only the expensive requests take time.
    assert_eq!(bench.judge(&request("SELECT name FROM customers")).verdict, SqlVerdict::Ok);
    std::thread::scope(|scope| {
        let bombed: Vec<_> = bombs
            .iter()
            .map(|sql| {
                let bench = &bench;
                scope.spawn(move || {
                    let begun = Instant::now();
                    (bench.judge(&SqlRequest { limits, ..request(sql) }), begun.elapsed())
                })
            })
            .collect();
        for _ in 0..3 {
            let served = bench.judge(&request("SELECT name FROM customers"));
            assert_eq!(served.verdict, SqlVerdict::Ok);
        }
        assert!(bombed.iter().all(|bomb| !bomb.is_finished()), "others were served at the same time");
        for (bomb, code) in bombed.into_iter().zip([SqlCode::EndlessRecursion, SqlCode::TimeLimit]) {
            let (judgement, took) = bomb.join().expect("joins");
            assert_eq!((judgement.verdict, codes(&judgement)[0]), (SqlVerdict::Reject, code), "{judgement:?}");
            assert!(took < Duration::from_secs(20), "{took:?}");
        }
    });
}

fn limits_statement_length() {
    let bench = start_pool(1);
    let huge = format!("SELECT '{}'", "x".repeat(10 << 20));
    let refused = bench.judge(&request(&huge));
    assert_eq!(codes(&refused), [SqlCode::TextTooLong]);
    let limits = SqlResourceLimits { input: 32 << 20, ..SqlResourceLimits::default() };
    let judged = bench.judge(&SqlRequest { limits, ..request(&huge) });
    assert_ne!(judged.verdict, SqlVerdict::Error, "{:?}", judged.diagnostics);
}

fn unjudgeable_request_is_error() {
    let bench = start_pool(1);
    let broken = SqlRequest { schema: vec!["CREATE TABLE (".to_owned()], ..request("SELECT 1") };
    let judgement = bench.judge(&broken);
    assert_eq!((judgement.verdict, codes(&judgement)), (SqlVerdict::Error, vec![SqlCode::SchemaBroken]));
    let nothing = SqlRequest { stages: Some(Vec::new()), ..request("SELECT 1") };
    assert_eq!(bench.judge(&nothing).verdict, SqlVerdict::Error);
    let short = SqlRequest { stages: Some(vec![StageName::Bind]), ..request("SELECT nope FROM customers") };
    assert_eq!(bench.judge(&short).verdict, SqlVerdict::Reject);
    assert!(Path::new(env!("CARGO_BIN_EXE_proctor-sql")).exists());
}
