//! Tests the reuse of results of steps that judge SQL.

use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::binaries;
use crate::cases::reuse::ReuseRepo;
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, DUCKDB_LIBRARY, Needs, case};
use crate::test_spec::TestStep;

pub(super) const CASES: &[CaseDefinition] = &[
    case("sql_reuse::sql_is_judged_again_after_a_change_of_its_inputs", sql_is_judged_after_change)
        .needs(&[Needs::Sandbox, Needs::Views]),
    case("sql_reuse::judgement_of_postgres_is_reused", judgement_of_postgres_is_reused).needs(&[
        Needs::Sandbox,
        Needs::Views,
        Needs::Postgres,
    ]),
    case("sql_reuse::engine_library_is_an_input", engine_library_is_input).needs(&[
        Needs::Sandbox,
        Needs::Views,
        Needs::Duckdb,
    ]),
];

fn sql_is_judged_after_change(env: &TestEnvironment) {
    let reuse = sql_repository(env, "sqlite");
    reuse.pass();
    assert_eq!(reuse.executed(), ["it"]);
    reuse.repo.write("README.md", "no input of the step");
    let cached = reuse.pass();
    assert!(cached.stderr.contains("PASS verify.it (cached)"), "{cached}");
    reuse.repo.write("queries/b.sql", "SELECT id FROM customers");
    reuse.pass();
    assert_eq!(reuse.executed(), ["it"], "a new file that the step checks");
    assert!(reuse.stdout("it").contains("queries/b.sql"));
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0]);
    reuse.repo.write("db/schema.sql", "CREATE TABLE customers (id INTEGER)");
    reuse.repo.run().exits(1);
    assert_eq!(reuse.executed(), ["it"]);
    assert!(reuse.stdout("it").contains("no such column: name"), "{}", reuse.stdout("it"));
}

fn judgement_of_postgres_is_reused(env: &TestEnvironment) {
    let reuse = sql_repository(env, "postgres");
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0], "{}", reuse.explain("verify.it/it"));
    reuse.repo.write("queries/a.sql", "SELECT nmae FROM customers");
    reuse.repo.run().exits(1);
    assert_eq!(reuse.executed(), ["it"]);
}

fn engine_library_is_input(env: &TestEnvironment) {
    let library = binaries::client_program(DUCKDB_LIBRARY);
    env.set_caller_var(proctor_core::sql::DUCKDB_VARIABLE, library.to_str().expect("UTF-8"));
    let reuse = sql_repository(env, "duckdb");
    reuse.pass();
    reuse.pass();
    assert_eq!(reuse.executed(), [""; 0], "{}", reuse.explain("verify.it/it"));
    let inputs = reuse.proctor(&["explain", "cache", "-v", "verify.it/it"]).exits(0).stdout;
    let is_read = |path: &std::path::Path| inputs.contains(&format!("read   {}\n", path.display()));
    assert!(
        is_read(&library.canonicalize().expect("exists")) && is_read(&binaries::built_program("proctor-sql")),
        "{inputs}"
    );
}

/// Waits until the program that judges is so old that its stamp shows each change: it may have just been built.
#[expect(clippy::disallowed_methods, reason = "results of programs are stored only from a certain age on")]
fn wait_until_program_is_settled() {
    let program = std::fs::metadata(binaries::built_program("proctor-sql")).expect("a program");
    let changed = UNIX_EPOCH + Duration::from_secs(program.ctime().unsigned_abs());
    while let Ok(left) = (changed + Duration::from_secs(42)).duration_since(SystemTime::now()) {
        std::thread::sleep(left);
    }
}

/// Creates a repository whose step `it` judges a query.
fn sql_repository<'e>(env: &'e TestEnvironment, dialect: &str) -> ReuseRepo<'e> {
    wait_until_program_is_settled();
    let keys = format!("dialect: {dialect}, schema: [db/schema.sql], files: [\"queries/*.sql\"]");
    let reuse = ReuseRepo::new(env, [TestStep::sql("it", &keys)]);
    reuse.repo.write("db/schema.sql", "CREATE TABLE customers (id INTEGER, name TEXT)");
    reuse.repo.write("queries/a.sql", "SELECT name FROM customers");
    reuse
}
