//! Tests steps that judge SQL: queries and migrations of a repository, judged by the actual engine.

use proctor_core::api::{Reuse, RunSubmission, SubmissionOutcome};
use proctor_core::decision::verdict::Verdict;
use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::in_process_service::{InProcessService, run_submission};
use crate::needs::{CaseDefinition, DUCKDB_LIBRARY, Needs, case, dry_case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};
use crate::{binaries, machine};

pub(super) const CASES: &[CaseDefinition] = &[
    case("sql_steps::valid_queries_pass", valid_queries_pass).daemon_sample(),
    case("sql_steps::misspelt_column_is_reported_at_its_position", misspelt_column_is_located),
    case("sql_steps::an_edited_query_is_judged_again", edited_query_is_judged_again).daemon_sample(),
    case("sql_steps::writes_without_an_effective_filter_are_rejected", writes_need_effective_filter),
    case("sql_steps::migrations_build_on_earlier_migrations", migrations_build_on_earlier_ones),
    case("sql_steps::query_from_the_spec_is_judged", query_from_spec_is_judged),
    case("sql_steps::sql_that_cannot_be_judged_fails", unjudgeable_sql_fails),
    case("sql_steps::another_engine_library_prevents_reuse", another_library_prevents_reuse).needs(NEEDS_DUCKDB),
    case("sql_steps::spec_cannot_select_the_engine_library", spec_cannot_select_library)
        .needs(NEEDS_DUCKDB)
        .daemon_sample(),
    case("sql_steps::library_from_the_spec_is_no_fallback", library_from_spec_is_not_a_fallback).needs(NEEDS_DUCKDB),
    case("sql_steps::postgres_judges_in_the_sandbox_of_the_step", postgres_judges_in_sandbox_of_step)
        .needs(&[Needs::Sandbox, Needs::Postgres]),
    case("", postgres_judges_in_sandbox_of_step)
        .unprivileged("sql_steps::postgres_judges_in_the_sandbox_of_the_step_as_a_user")
        .needs(&[Needs::Sandbox, Needs::Postgres]),
    case("sql_steps::mariadb_judges_in_the_sandbox_of_the_step", mariadb_judges_in_sandbox_of_step)
        .needs(&[Needs::Sandbox, Needs::Mariadb]),
    case(
        "sql_steps::command_named_like_the_helper_runs_the_repositorys_program",
        command_named_like_helper_runs_own_program,
    ),
    case("sql_steps::ignored_files_are_not_judged", ignored_files_are_not_judged),
    case("sql_steps::expensive_query_ends_within_its_limits", expensive_query_ends_within_limits),
    case("sql_steps::repository_cannot_replace_the_engine", repository_cannot_replace_engine),
    case("sql_steps::earlier_step_cannot_change_the_judged_files", earlier_step_cannot_change_judged_files),
    dry_case("sql_steps::plan_contains_the_complete_check", plan_contains_complete_check),
    dry_case("sql_steps::invalid_sql_steps_are_refused", invalid_sql_steps_are_refused),
    case("", valid_queries_pass).unprivileged("sql_steps::valid_queries_pass_as_a_user"),
    case("", misspelt_column_is_located)
        .unprivileged("sql_steps::misspelt_column_is_reported_at_its_position_as_a_user")
        .long(),
    case("", repository_cannot_replace_engine)
        .unprivileged("sql_steps::repository_cannot_replace_the_engine_as_a_user"),
];

/// The variable with which the operator selects DuckDB's library.
const DUCKDB_VARIABLE: &str = proctor_core::sql::DUCKDB_VARIABLE;
const NEEDS_DUCKDB: &[Needs] = &[Needs::Sandbox, Needs::Duckdb];

const SCHEMA: &str = "\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, tier INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers(id), total INTEGER);
";
const READ_KEYS: &str = "schema: [db/schema.sql], files: [\"queries/**/*.sql\"]";
const WRITE_KEYS: &str = "schema: [db/schema.sql], files: [\"queries/*.sql\"], policy: write";
const MIGRATE_KEYS: &str = "schema: [db/schema.sql], files: [\"migrations/*.sql\"], policy: migrate";

/// Creates a repository whose only step `it` judges these files.
fn repo_with_sql_step<'e>(env: &'e TestEnvironment, keys: &str, files: &[(&str, &str)]) -> Repo<'e> {
    repo_with_schema_and_files(env, &TestSpec::from_steps([TestStep::sqlite("it", keys)]), files)
}

fn repo_with_schema_and_files<'e>(env: &'e TestEnvironment, spec: &TestSpec, files: &[(&str, &str)]) -> Repo<'e> {
    let repo = env.repo(spec);
    repo.write("db/schema.sql", SCHEMA);
    files.iter().for_each(|(path, text)| repo.write(path, text));
    repo.commit();
    repo
}

/// Returns the output of the step, which has a line for each file.
fn judgement_lines(repo: &Repo<'_>) -> Vec<Value> {
    let step = repo.step("it");
    let output = step["stdout_preview"].as_str().expect("the schema says so");
    output.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns each file with its verdict.
fn file_verdicts(repo: &Repo<'_>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    judgement_lines(repo).iter().map(|line| (text(&line["file"]), text(&line["judgement"]["verdict"]))).collect()
}

fn owned_pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(file, verdict)| ((*file).to_owned(), (*verdict).to_owned())).collect()
}

fn valid_queries_pass(env: &TestEnvironment) {
    let top = "SELECT name FROM customers ORDER BY tier DESC LIMIT 3;\n";
    let two = "-- updated_at; DROP TABLE x\nSELECT count(*) FROM orders;\nSELECT sum(total) FROM orders;\n";
    let repo = repo_with_sql_step(env, READ_KEYS, &[("queries/top.sql", top), ("queries/deep/two.sql", two)]);
    repo.run().exits(0).prints(&["passed", "verify.it"]);
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/deep/two.sql", "ok"), ("queries/top.sql", "ok")]));
    let step = repo.step("it");
    assert_eq!((&step["cmd"][0], &step["cmd"][1]), (&"proctor-sql".into(), &"check".into()));
    assert_eq!(step["stderr_preview"], "ok: 2 ok, 0 rejected, 0 not judged\n");
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
    // In class D0 the output is identical, byte for byte.
    let before = step["stdout_sha256"].clone();
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_sha256"], before);
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(0);
}

fn misspelt_column_is_located(env: &TestEnvironment) {
    let bad = "SELECT id FROM orders;\nSELECT c.nmae FROM customers AS c;\n";
    let repo = repo_with_sql_step(env, READ_KEYS, &[("queries/a.sql", "SELECT 1"), ("queries/b.sql", bad)]);
    let run = repo.run().exits(1).prints(&["failed", "queries/b.sql:2:", "error[P0612]", "nmae", "name"]);
    let diagnostic_line = run.stdout.lines().find(|line| line.contains("error[P0612]")).expect("asserted");
    assert!(diagnostic_line.contains("queries/b.sql:2:8:"), "{run}");
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/a.sql", "ok"), ("queries/b.sql", "reject")]));
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["exit_code"]), (&"failed".into(), &1.into()));
    let diagnostic = &judgement_lines(&repo)[1]["judgement"]["diagnostics"][0];
    assert_eq!((&diagnostic["code"], &diagnostic["candidates"][0]), (&"unknown_column".into(), &"name".into()));
    assert_eq!((&diagnostic["span"]["line"], &diagnostic["span"]["column"]), (&2.into(), &8.into()));
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(1);
}

fn edited_query_is_judged_again(env: &TestEnvironment) {
    let right = "SELECT name FROM customers;\n";
    let repo = repo_with_sql_step(env, READ_KEYS, &[("queries/a.sql", right)]);
    repo.run().exits(0);
    repo.write("queries/a.sql", "SELECT total FROM customers;\n");
    assert_ne!(repo.proctor(&["gate", "--changeset", CHANGESET]).code, Some(0), "another tree was verified");
    repo.run().exits(1).prints(&["queries/a.sql:1:8: error[P0612]"]);
    repo.write("queries/a.sql", right);
    repo.write("db/schema.sql", SCHEMA.replace("name TEXT", "full_name TEXT"));
    repo.run().exits(1).prints(&["queries/a.sql:1:8: error[P0612]", "full_name"]);
    repo.write("db/schema.sql", SCHEMA);
    repo.run().exits(0);
}

fn writes_need_effective_filter(env: &TestEnvironment) {
    let refused = [
        ("DELETE FROM orders WHERE 1=1", "P0629"),
        ("UPDATE orders SET total = 0", "P0628"),
        ("DROP TABLE orders", "P0627"),
        ("ATTACH 'x.db' AS x", "P0631"),
        ("VACUUM INTO 'x.db'", "P06"),
    ];
    let repo = repo_with_sql_step(env, WRITE_KEYS, &[("queries/a.sql", "DELETE FROM orders WHERE customer = 3;\n")]);
    repo.run().exits(0);
    for (sql, code) in refused {
        repo.write("queries/a.sql", sql);
        repo.run().exits(1).prints(&[&format!("queries/a.sql:1:1: error[{code}")]);
        assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/a.sql", "reject")]), "{sql}");
    }
    // Without the write policy, the same statement is refused.
    let text = repo.read("spec/verification.yaml").replace("policy: write", "policy: read");
    repo.write("spec/verification.yaml", text);
    repo.write("queries/a.sql", "DELETE FROM orders WHERE customer = 3;\n");
    repo.run().exits(1).prints(&["error[P0626]"]);
}

fn migrations_build_on_earlier_ones(env: &TestEnvironment) {
    let files = [
        ("migrations/001.sql", "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT);\n"),
        ("migrations/002.sql", "ALTER TABLE notes ADD COLUMN author INTEGER;\n"),
        ("migrations/003.sql", "INSERT INTO notes (body, author) SELECT name, id FROM customers WHERE tier > 1;\n"),
    ];
    let repo = repo_with_sql_step(env, MIGRATE_KEYS, &files);
    repo.run().exits(0);
    assert_eq!(judgement_lines(&repo).len(), 3);
    repo.write("migrations/002.sql", "ALTER TABLE note ADD COLUMN author INTEGER;\n");
    repo.run().exits(1).prints(&["migrations/002.sql:1:", "error[P0611]", "notes"]);
    let judged = [("migrations/001.sql", "ok"), ("migrations/002.sql", "reject")];
    assert_eq!(file_verdicts(&repo), owned_pairs(&judged), "the base of the third is unknown");
}

fn query_from_spec_is_judged(env: &TestEnvironment) {
    let keys = "schema: [db/schema.sql], query: SELECT count(*) FROM customers, question: how many customers are there";
    let repo = repo_with_sql_step(env, keys, &[]);
    repo.run().exits(0);
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("query", "ok")]));
    let keys = "schema: [db/schema.sql], query: SELECT nmae FROM customers";
    repo.write("spec/verification.yaml", TestSpec::from_steps([TestStep::sqlite("it", keys)]).to_yaml(env.marker()));
    repo.run().exits(1).prints(&["query:1:8: error[P0612]"]);
    let keys = "query: SELECT 1; SELECT 2";
    repo.write("spec/verification.yaml", TestSpec::from_steps([TestStep::sqlite("it", keys)]).to_yaml(env.marker()));
    repo.run().exits(1).prints(&["error[P0625]"]);
}

fn unjudgeable_sql_fails(env: &TestEnvironment) {
    env.set_caller_var(DUCKDB_VARIABLE, "/nowhere/libduckdb.so");
    let repo = repo_with_sql_step(env, READ_KEYS, &[]);
    let fails = |words: &[&str]| {
        let run = repo.run().exits(1).prints(words);
        assert_eq!(repo.step("it")["exit_code"], 5, "{run}");
    };
    fails(&["the glob `queries/**/*.sql` matches no file that git tracks or would add"]);
    repo.write("queries/a.sql", b"SELECT '\xff'");
    fails(&["`queries/a.sql` is not UTF-8 at byte 8"]);
    repo.write("queries/a.sql", "SELECT 1");
    repo.write("db/schema.sql", "CREATE TABLE (");
    fails(&["error[P0624]"]);
    std::fs::remove_file(repo.file("db/schema.sql")).expect("it was there");
    fails(&["`db/schema.sql` cannot be read"]);
    let text = repo.read("spec/verification.yaml").replace("dialect: sqlite", "dialect: duckdb");
    repo.write("spec/verification.yaml", text);
    repo.write("db/schema.sql", SCHEMA);
    fails(&["error[P0660]", "there is no DuckDB at `/nowhere/libduckdb.so`"]);
}

/// Returns a spec whose only step judges with DuckDB.
fn duckdb_spec(fields: &[&str]) -> TestSpec {
    let step = TestStep::sql("it", &format!("dialect: duckdb, {READ_KEYS}"));
    TestSpec::from_steps([fields.iter().fold(step, |step, field| step.with_field(field))])
}

/// An earlier result is only reused for the same engine library.
fn another_library_prevents_reuse(env: &TestEnvironment) {
    let own = env.root().join("libduckdb.so");
    let text = own.to_str().expect("UTF-8");
    std::os::unix::fs::symlink(binaries::client_program(DUCKDB_LIBRARY), &own).expect("made");
    env.set_caller_var(DUCKDB_VARIABLE, text);
    let repo = repo_with_schema_and_files(env, &duckdb_spec(&[]), &[("queries/a.sql", "SELECT 1")]);
    let served = InProcessService::open(env);
    let submit = |expected: SubmissionOutcome| {
        let submitted = served.submit(RunSubmission { reuse: Reuse::Verified, ..run_submission(&repo) });
        assert_eq!(submitted.how, expected);
        assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(Verdict::Passed));
    };
    submit(SubmissionOutcome::Queued);
    submit(SubmissionOutcome::Verified);
    std::fs::remove_file(&own).expect("removed");
    std::fs::copy(binaries::client_program(DUCKDB_LIBRARY), &own).expect("copied");
    submit(SubmissionOutcome::Queued);
}

/// Only the operator can set the variable; in a spec it has no effect.
fn spec_cannot_select_library(env: &TestEnvironment) {
    env.set_caller_var(DUCKDB_VARIABLE, binaries::client_program(DUCKDB_LIBRARY).to_str().expect("UTF-8"));
    let fields = ["env: { PROCTOR_DUCKDB: ./libduckdb.so }"];
    let repo = repo_with_schema_and_files(env, &duckdb_spec(&fields), &[("queries/a.sql", "SELECT 1")]);
    repo.write("libduckdb.so", "no library, and who loads it cannot judge");
    repo.commit();
    repo.run().exits(0);
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/a.sql", "ok")]));
}

/// The spec's variable also has no effect if the operator's library does not exist.
fn library_from_spec_is_not_a_fallback(env: &TestEnvironment) {
    env.set_caller_var(DUCKDB_VARIABLE, "/nowhere/libduckdb.so");
    let library = binaries::client_program(DUCKDB_LIBRARY);
    let field = format!("env: {{ PROCTOR_DUCKDB: {} }}", library.display());
    let repo = repo_with_schema_and_files(env, &duckdb_spec(&[&field]), &[("queries/a.sql", "SELECT 1")]);
    repo.run().exits(1).prints(&["error[P0660]", "there is no DuckDB at `/nowhere/libduckdb.so`"]);
}

fn postgres_judges_in_sandbox_of_step(env: &TestEnvironment) {
    assert_judged_by_server_of_step(env, "postgres");
}

fn mariadb_judges_in_sandbox_of_step(env: &TestEnvironment) {
    assert_judged_by_server_of_step(env, "mysql");
}

/// The step starts a server of its own, which ends with the step.
fn assert_judged_by_server_of_step(env: &TestEnvironment, dialect: &str) {
    let step = TestStep::sql("it", &format!("dialect: {dialect}, {READ_KEYS}")).with_field("leaks: fail");
    let files = [
        ("queries/a.sql", "SELECT name FROM customers WHERE tier = 1"),
        ("queries/b.sql", "SELECT nmae FROM customers"),
    ];
    let repo = repo_with_schema_and_files(env, &TestSpec::from_steps([step]), &files);
    let run = repo.run().exits(1).prints(&["queries/b.sql:1:8: error[P0612]"]);
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/a.sql", "ok"), ("queries/b.sql", "reject")]), "{run}");
    // A server that is left behind would be recorded.
    assert_eq!(repo.step("it").get("leaked"), None, "{run}");
    repo.write("queries/b.sql", "SELECT id FROM customers FOR UPDATE");
    repo.run().exits(1).prints(&["no policy allows this: it locks rows"]);
    repo.write("queries/b.sql", "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer");
    repo.run().exits(0);
}

/// Only an `sql` step runs Proctor's program; a command with the same name runs the repository's own program.
fn command_named_like_helper_runs_own_program(env: &TestEnvironment) {
    let step =
        TestStep::argv("it", &["proctor-sql", "check", "{}"]).with_field("env: { PATH: \"./bin:/usr/bin:/bin\" }");
    let repo = repo_with_schema_and_files(env, &TestSpec::from_steps([step]), &[]);
    repo.run().exits(5).prints(&["the program `proctor-sql` is not in PATH"]);
    repo.write("bin/proctor-sql", "#!/bin/sh\necho the author has $2\n");
    machine::make_executable(&repo.file("bin/proctor-sql"));
    repo.commit();
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "the author has {}\n");
}

/// A check judges exactly the files that belong to the identity of the tree.
fn ignored_files_are_not_judged(env: &TestEnvironment) {
    let bad = "SELECT nope FROM customers";
    let files =
        [("queries/a.sql", "SELECT 1"), ("queries/tracked.sql", "SELECT 2"), (".gitignore", "*.out.sql\nbuilt/\n")];
    let repo = repo_with_sql_step(env, READ_KEYS, &files);
    // The file is tracked, although it is ignored.
    repo.write(".gitignore", "*.out.sql\nbuilt/\ntracked.sql\n");
    repo.write("queries/made.out.sql", bad);
    repo.write("queries/built/x.sql", bad);
    repo.write("queries/new.sql", "SELECT 3");
    repo.run().exits(0);
    let judged = owned_pairs(&[("queries/a.sql", "ok"), ("queries/new.sql", "ok"), ("queries/tracked.sql", "ok")]);
    assert_eq!(file_verdicts(&repo), judged);
    repo.write(".gitignore", "");
    repo.run().exits(1).prints(&["queries/built/x.sql:1:8", "queries/made.out.sql:1:8"]);
}

fn expensive_query_ends_within_limits(env: &TestEnvironment) {
    // The step limit ends the query at the same point on every machine; the time limit is too long to interfere on a
    // busy one.
    let keys = format!("{READ_KEYS}, limits: {{ time_ms: 600000, steps: 5000000, memory: 64MiB }}");
    let recursion = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r;\n";
    let repo = repo_with_sql_step(env, &keys, &[("queries/a.sql", recursion), ("queries/b.sql", "SELECT 1;\n")]);
    repo.run().exits(1).prints(&["queries/a.sql:1:", "error[P0643]"]);
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/a.sql", "reject"), ("queries/b.sql", "ok")]));
    let large = format!("SELECT '{}';\n", "x".repeat(10 << 20));
    repo.write("queries/a.sql", large);
    repo.run().exits(1).prints(&["error[P0604]"]);
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/a.sql", "reject"), ("queries/b.sql", "ok")]));
}

/// Programs of the repository with the engine's name are in the `PATH`, and accept everything.
fn repository_cannot_replace_engine(env: &TestEnvironment) {
    let path = "env: { PATH: \"/repo/bin:./bin:bin:/usr/bin:/bin\" }";
    let step = TestStep::sqlite("it", READ_KEYS).with_field(path);
    let bad = "SELECT nmae FROM customers;\n";
    let repo = repo_with_schema_and_files(env, &TestSpec::from_steps([step]), &[("queries/a.sql", bad)]);
    for program in ["proctor-sql", "bin/proctor-sql"] {
        repo.write(program, "#!/bin/sh\necho an impostor\nexit 0\n");
        machine::make_executable(&repo.file(program));
    }
    repo.commit();
    let run = repo.run().exits(1).prints(&["queries/a.sql:1:8: error[P0612]"]);
    assert!(!run.all_output().contains("an impostor"), "{run}");
    assert_eq!(file_verdicts(&repo), owned_pairs(&[("queries/a.sql", "reject")]));
}

fn earlier_step_cannot_change_judged_files(env: &TestEnvironment) {
    let mends = TestStep::sh("mends", "echo 'SELECT name FROM customers;' > queries/a.sql");
    let spec = TestSpec::new([
        TestSkill::new("verify.first", [mends]),
        TestSkill::new("verify.it", [TestStep::sqlite("it", READ_KEYS)]),
    ]);
    let repo = repo_with_schema_and_files(env, &spec, &[("queries/a.sql", "SELECT nmae FROM customers;\n")]);
    repo.run().exits(3).prints(&["queries/a.sql"]);
    assert_eq!(repo.evidence("verify.first")["steps"][0]["outcome"], "drifted");
    assert_ne!(repo.last_run()["outcome"], "passed");
    assert_eq!(repo.read("queries/a.sql"), "SELECT nmae FROM customers;\n");
}

fn plan_contains_complete_check(env: &TestEnvironment) {
    let keys = "files: [q.sql], tables: [orders], limits: { rows: 7 }";
    let repo = repo_with_sql_step(env, keys, &[("q.sql", "SELECT 1")]);
    repo.proctor(&["validate"]).exits(0);
    let planned = repo.proctor(&["plan", "--format", "json"]).exits(0);
    let plan: Value = serde_json::from_str(&planned.stdout).unwrap_or_else(|error| panic!("{error}: {planned}"));
    let cmd = &plan["skills"][0]["steps"][0]["cmd"];
    assert_eq!((&cmd[0], &cmd[1]), (&"proctor-sql".into(), &"check".into()), "{planned}");
    let check: Value = serde_json::from_str(cmd[2].as_str().expect("a word")).expect("the check as JSON");
    assert_eq!(check["files"], serde_json::json!(["q.sql"]));
    assert_eq!((&check["dialect"], &check["policy"]), (&"sqlite".into(), &"read".into()));
    assert_eq!((&check["allow"]["tables"][0], &check["limits"]["rows"]), (&"orders".into(), &7.into()));
    // The plan contains all defaults.
    assert_eq!(check["limits"]["time_ms"], 5000);
    repo.proctor(&["explain", "verify.it/it"]).exits(0).prints(&["proctor-sql check"]);
}

fn invalid_sql_steps_are_refused(env: &TestEnvironment) {
    let wrong = [
        ("dialect: oracle, files: [q.sql]", "spec::bad_value", "`oracle`"),
        ("dialect: sqlite", "spec::sql_step", "judges nothing"),
        ("dialect: sqlite, files: [q.sql], query: SELECT 1", "spec::sql_step", "`files` and a `query`"),
        ("dialect: sqlite, files: [../q.sql]", "spec::bad_path", "`..`"),
        ("dialect: sqlite, query: SELECT 1, policy: any", "spec::bad_value", "`any`"),
        ("dialect: sqlite, query: SELECT 1, limits: { time_ms: 0 }", "spec::sql_step", "0"),
    ];
    let repo = repo_with_sql_step(env, "files: [q.sql]", &[("q.sql", "SELECT 1")]);
    let right = repo.read("spec/verification.yaml");
    repo.proctor(&["validate"]).exits(0);
    for (keys, code, word) in wrong {
        repo.write("spec/verification.yaml", right.replace("dialect: sqlite, files: [q.sql]", keys));
        let run = repo.proctor(&["validate", "--format", "json"]).exits(2);
        assert!(run.stdout.contains(code) && run.stdout.contains(word), "{keys}\n{run}");
        repo.run().exits(2);
    }
    repo.write("spec/verification.yaml", right.replace("name: it,", "name: it, cmd: [\"true\"],"));
    repo.proctor(&["validate"]).exits(2).prints(&["has a `cmd` and `sql`"]);
    assert!(repo.has_no_documents());
}
