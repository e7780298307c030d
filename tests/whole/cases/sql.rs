//! Tests SQL judgements: from the command line, in a step, and over HTTP, with sandboxed engines, for root and for an
//! ordinary user. The judgements of the engines on individual statements are tested in `sql`.

use serde_json::{Value, json};

use super::http::{curl, parse_response, start_curl};
use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, DUCKDB_LIBRARY, Needs, case};
use crate::process::FinishedProcess;
use crate::test_spec::TestSpec;
use crate::{binaries, machine, schemas};

const NEEDS_CURL: &[Needs] = &[Needs::Sandbox, Needs::Program("curl")];
const NEEDS_POSTGRES: &[Needs] = &[Needs::Sandbox, Needs::Program("curl"), Needs::Postgres];
const NEEDS_DUCKDB: &[Needs] = &[Needs::Sandbox, Needs::Program("curl"), Needs::Duckdb];

pub(super) const CASES: &[CaseDefinition] = &[
    case("sql::cli_judges_a_file", cli_judges_file),
    case("sql::cli_judges_a_file_as_a_user", cli_judges_file).unprivileged("sql::cli_judges_a_file_as_a_user").long(),
    case("sql::cli_uses_the_daemon", cli_uses_daemon),
    case("sql::step_result_depends_on_its_files", step_result_depends_on_files),
    case("sql::step_result_depends_on_its_files_as_a_user", step_result_depends_on_files)
        .unprivileged("sql::step_result_depends_on_its_files_as_a_user")
        .long(),
    case("sql::ignores_a_proctor_sql_program_in_the_tree", ignores_proctor_sql_in_tree),
    case("sql::invalid_schema_or_missing_files_fail_a_step", invalid_schema_or_missing_files_fail_step),
    case("sql::missing_database_is_an_error", missing_database_is_an_error).needs(NEEDS_CURL),
    case("sql::http_returns_a_judgement", http_returns_judgement).needs(NEEDS_CURL),
    case("sql::hostile_texts_get_clear_answers", hostile_texts_get_clear_answers).needs(NEEDS_CURL),
    case("sql::uninterruptible_sqlite_query_ends_within_its_limit", uninterruptible_sqlite_query).needs(NEEDS_CURL),
    case("sql::uninterruptible_duckdb_query_ends_within_its_limit", uninterruptible_duckdb_query).needs(NEEDS_DUCKDB),
    case("sql::expensive_postgres_query_ends_within_its_limit", expensive_postgres_query).needs(NEEDS_POSTGRES),
    case("sql::daemon_and_command_judge_postgres", daemon_and_command_judge_postgres).needs(NEEDS_POSTGRES),
    case("sql::daemon_and_command_judge_mysql", daemon_and_command_judge_mysql).needs(&[
        Needs::Sandbox,
        Needs::Program("curl"),
        Needs::Mariadb,
    ]),
    case("", daemon_and_command_judge_postgres)
        .unprivileged("sql::daemon_and_command_judge_postgres_as_a_user")
        .needs(NEEDS_POSTGRES),
];

const SCHEMA: &str = "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, tier TEXT);\n";

/// Creates a repository with queries, a schema, and a step that judges them.
fn sql_repository<'e>(env: &'e TestEnvironment, more: &str) -> Repo<'e> {
    let repo = env.repo(&TestSpec::from_script("true"));
    let step = format!("sql: {{ dialect: sqlite, schema: [db/schema.sql], files: [\"q/*.sql\"]{more} }}");
    let spec = format!(
        "version: 1\nprofiles: {{ pr: {{ include: [sql] }} }}\nskills:\n  sql:\n    steps:\n      - name: queries\n        {step}\n"
    );
    repo.write("spec/verification.yaml", spec);
    repo.write("db/schema.sql", SCHEMA);
    repo.write("q/a.sql", "SELECT name FROM customers WHERE tier = 'premium';\n");
    repo.commit();
    repo
}

fn parse_judgement(run: &FinishedProcess) -> Value {
    let judgement = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    schemas::assert_valid("sql-judgement", &judgement, run);
    judgement
}

fn cli_judges_file(env: &TestEnvironment) {
    let repo = sql_repository(env, "");
    let state = env.state_dir();
    let judge = |file: &str, more: &[&str]| {
        let words =
            ["sql", "verify", "--schema", "db/schema.sql", "--state-dir", state.to_str().expect("a path"), file];
        repo.proctor(&[&words[..], more].concat())
    };
    judge("q/a.sql", &[]).exits(0).prints(&["ok: q/a.sql"]);
    repo.write("q/b.sql", "SELECT name\nFROM customers\nWHERE teir = 'premium'");
    judge("q/b.sql", &[]).exits(1).prints(&["q/b.sql:3:7", "there is no column `teir`", "did you mean `tier`?"]);
    let json = parse_judgement(&judge("q/b.sql", &["--format", "json"]).exits(1));
    assert_eq!((&json["verdict"], &json["diagnostics"][0]["code"]), (&"reject".into(), &"unknown_column".into()));
    assert_eq!(json["digest"], parse_judgement(&judge("q/b.sql", &["--format", "json"]).exits(1))["digest"]);
    let sarif = judge("q/b.sql", &["--format", "sarif"]).exits(1);
    let sarif: Value = serde_json::from_str(&sarif.stdout).expect("JSON");
    assert_eq!(sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"], 3);
    repo.write("q/c.sql", "DELETE FROM customers WHERE id IS NOT NULL OR id IS NULL");
    judge("q/c.sql", &[]).exits(1).prints(&["the policy is `read`"]);
    judge("q/c.sql", &["--policy", "write"]).exits(1).prints(&["changes every row"]);
    repo.write("q/d.sql", "DELETE FROM customers WHERE id = 7");
    judge("q/d.sql", &["--policy", "write"]).exits(0).prints(&["would change 1 of 8 rows of customers"]);
    judge("q/d.sql", &["--policy", "write", "--tables", "orders"]).exits(1).prints(&["not on the list"]);
    judge("q/d.sql", &["--limit", "time=never"]).exits(2);
    // The output names the stages that were not requested, and does not report the text as safe.
    let bound = judge("q/d.sql", &["--stages", "parse,bind"]).exits(0);
    bound.prints(&["warning[P0663]", "1 warning", "not checked: extract, tokenize, safety, run, semantic"]);
    let safe = judge("q/a.sql", &["--stages", "bind,safety"]).exits(0).prints(&["not checked: extract"]);
    assert!(!safe.stdout.contains("P0663"), "{safe}");
    let json = parse_judgement(&judge("q/d.sql", &["--stages", "bind", "--format", "json"]).exits(0));
    assert_eq!(json["diagnostics"][0]["code"], "safety_unchecked");
    assert!(json["feedback"].as_str().is_some_and(|feedback| feedback.contains("`safety` was not requested")));
    // A warning rejects up to a threshold of its own confidence, but not at one percent more.
    let json_format = ["--format", "json"];
    repo.write("q/e.sql", "SELECT c.name FROM customers c, customers d");
    let warned = parse_judgement(&judge("q/e.sql", &json_format).exits(0));
    let confidence = warned["diagnostics"][0]["confidence"].as_u64().expect("a warning");
    let at = |percent: u64| {
        let percent = percent.to_string();
        judge("q/e.sql", &[&json_format[..], &["--reject-at", &percent]].concat()).code
    };
    assert_eq!((at(confidence), at(confidence + 1)), (Some(1), Some(0)), "{warned:#}");
    judge("q/e.sql", &["--reject-at", "0"]).exits(2);
    repo.proctor(&["sql", "advice", "no such column: nmae"]).exits(0).prints(&["P0612"]);
    repo.proctor(&["sql", "advice", "8130"]).exits(0).prints(&["P0625", "(MySQL)", "several statements", "TiDB"]);
    repo.proctor(&["sql", "advice", "42P01"]).exits(0).prints(&["P0611", "(PostgreSQL)"]);
    repo.proctor(&["sql", "advice", "ORA-00942"]).exits(2).prints_to_stderr(&["looks like an error of Oracle"]);
    repo.proctor(&["sql", "advice", "blah"]).exits(2).prints_to_stderr(&["no supported engine"]);
    judge("q/none.sql", &[]).exits(2).prints_to_stderr(&["q/none.sql"]);
    judge("spec", &[]).exits(2);
}

/// The daemon judges for the command line. If a daemon is required and does not respond, the exit code is 6.
fn cli_uses_daemon(env: &TestEnvironment) {
    let repo = sql_repository(env, "");
    let daemon = env.start_ready_daemon();
    let socket = env.socket_path();
    let words = ["sql", "verify", "--socket", socket.to_str().expect("a path"), "--schema", "db/schema.sql"];
    let judge = |more: &[&str]| repo.proctor(&[&words[..], more].concat());
    judge(&["--daemon", "q/a.sql"]).exits(0).prints(&["ok: q/a.sql"]);
    repo.write("q/b.sql", "SELECT nmae FROM customers");
    let bad = parse_judgement(&judge(&["--daemon", "--format", "json", "q/b.sql"]).exits(1));
    assert_eq!(bad["diagnostics"][0]["candidates"], json!(["name"]));
    let metrics = daemon.request("GET", "/metrics", None).body;
    assert!(metrics.contains("route=\"/v1/sql/verify\""), "{metrics}");
    drop(daemon);
    judge(&["--daemon", "q/a.sql"]).exits(6);
}

fn step_result_depends_on_files(env: &TestEnvironment) {
    let repo = sql_repository(env, "");
    repo.run().exits(0);
    let step = repo.evidence("sql")["steps"][0].clone();
    let part = |name: &str| step[name].as_str().unwrap_or_else(|| panic!("{step:#}")).to_owned();
    let line = part("stdout_preview") + &part("stdout_tail");
    let printed: Value = serde_json::from_str(&line).expect("one line of JSON");
    assert_eq!((&printed["file"], &printed["judgement"]["verdict"]), (&"q/a.sql".into(), &"ok".into()));
    repo.write("q/b.sql", "SELECT id FROM customers;\nSELECT nmae FROM customers;\n");
    repo.run().exits(1).prints(&["q/b.sql:2:8: error[P0612]: there is no column `nmae`", "did you mean: name"]);
    repo.write("q/b.sql", "DROP TABLE customers");
    repo.run().exits(1).prints(&["changes the schema"]);
    repo.write("q/b.sql", "SELECT 1");
    repo.run().exits(0);
}

/// A program named `proctor-sql` in the tree, or first in `PATH`, is never used.
fn ignores_proctor_sql_in_tree(env: &TestEnvironment) {
    let repo = sql_repository(env, "");
    let spec = repo.read("spec/verification.yaml");
    repo.write("spec/verification.yaml", format!("{spec}        env: {{ PATH: \"{}\" }}\n", repo.path().display()));
    repo.write("proctor-sql", "#!/bin/sh\nexit 0\n");
    repo.git(&["add", "--chmod=+x", "proctor-sql"]);
    repo.write("q/a.sql", "SELECT nmae FROM customers");
    repo.run().exits(1).prints(&["there is no column `nmae`"]);
}

fn invalid_schema_or_missing_files_fail_step(env: &TestEnvironment) {
    let repo = sql_repository(env, "");
    repo.write("db/schema.sql", "CREATE TABLE (");
    repo.run().exits(1).prints(&["the schema (part 1) cannot be set up"]);
    repo.write("db/schema.sql", SCHEMA);
    repo.git(&["rm", "-q", "-f", "q/a.sql"]);
    repo.run().exits(1).prints(&["the glob `q/*.sql` matches no file"]);
}

fn verify_request(more: &Value) -> String {
    let mut body = json!({ "sql": "SELECT name FROM customers", "dialect": "sqlite", "schema": [SCHEMA] });
    for (key, value) in more.as_object().expect("a map") {
        body[key] = value.clone();
    }
    body.to_string()
}

fn http_returns_judgement(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let ask = |more: &Value| curl(env, &["--json", &verify_request(more), "/v1/sql/verify"]);
    assert_eq!(ask(&json!({})).assert_status(200).json_of_schema("Judgement")["verdict"], "ok");
    let bad = ask(&json!({ "sql": "SELECT nmae FROM customers" })).assert_status(200).json_of_schema("Judgement");
    assert_eq!((&bad["verdict"], &bad["diagnostics"][0]["candidates"]), (&"reject".into(), &json!(["name"])));
    let bomb = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT COUNT(*) FROM s";
    let bomb =
        ask(&json!({ "sql": bomb, "limits": { "time_ms": 500 } })).assert_status(200).json_of_schema("Judgement");
    assert_eq!((&bomb["verdict"], &bomb["diagnostics"][0]["code"]), (&"reject".into(), &"endless_recursion".into()));
    let broken = ask(&json!({ "schema": ["CREATE"] })).assert_status(200).json_of_schema("Judgement");
    assert_eq!(broken["verdict"], "error", "what cannot be judged is never ok");
    let text = ask(&json!({ "schema": SCHEMA })).assert_status(200).json_of_schema("Judgement");
    assert_eq!(text["verdict"], "ok", "a schema is one text too");
    // An input of the maximum size, together with a schema.
    let comment = "x".repeat((1 << 20) - 10);
    let file = env.root().join("input.json");
    machine::write(&file, verify_request(&json!({ "sql": format!("SELECT 1--{comment}") })));
    // Without the `Expect` header, curl gets no interim response.
    let whole = ["-H", "Expect:", "--json", &format!("@{}", file.display()), "/v1/sql/verify"];
    assert_eq!(curl(env, &whole).assert_status(200).json_of_schema("Judgement")["verdict"], "ok");
    ask(&json!({ "reject_at": 101 })).assert_problem(400, "invalid-request");
    ask(&json!({ "dialect": "oracle" })).assert_problem(400, "invalid-request");
    ask(&json!({ "database": "shop.db" })).assert_problem(400, "invalid-request");
    drop(daemon);
}

fn missing_database_is_an_error(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let absent = curl(env, &["--json", &verify_request(&json!({ "database": "/nowhere/shop.db" })), "/v1/sql/verify"]);
    assert_eq!(absent.assert_status(200).json_of_schema("Judgement")["verdict"], "error");
    drop(daemon);
}

/// For each unknown name, SQLite reads the whole text again.
fn uninterruptible_sqlite_query(env: &TestEnvironment) {
    let names: Vec<String> = (0..80_000).map(|number| format!("\"x{number}\"")).collect();
    assert_bomb_hits_limit(env, "sqlite", &format!("SELECT id FROM customers WHERE name IN ({})", names.join(",")));
}

/// DuckDB evaluates constant expressions before it checks for interruption.
fn uninterruptible_duckdb_query(env: &TestEnvironment) {
    env.set_caller_var("PROCTOR_DUCKDB", binaries::client_program(DUCKDB_LIBRARY).to_str().expect("UTF-8"));
    assert_bomb_hits_limit(env, "duckdb", "SELECT length(lpad('x', 2000000000, 'y')) FROM customers");
}

/// PostgreSQL stores no rows of a function in the select list, so only the time limit can end the query.
fn expensive_postgres_query(env: &TestEnvironment) {
    let rows = "SELECT generate_series(1, 1000000000000)";
    assert_bomb_hits_limit(env, "postgres", &format!("SELECT count(*) FROM ({rows}) AS numbers"));
}

fn daemon_and_command_judge_postgres(env: &TestEnvironment) {
    assert_judged_by_command_and_daemon(env, "postgres", "SELECT name FROM customers WHERE tier = $1");
}

fn daemon_and_command_judge_mysql(env: &TestEnvironment) {
    assert_judged_by_command_and_daemon(env, "mysql", "SELECT `name` FROM customers WHERE tier = ?");
}

/// The command line judges with a server of its own, and the daemon keeps one.
fn assert_judged_by_command_and_daemon(env: &TestEnvironment, dialect: &str, right: &str) {
    let repo = sql_repository(env, "");
    repo.write("q.sql", "SELECT nmae FROM customers");
    let words = ["sql", "verify", "--dialect", dialect, "--schema", "db/schema.sql", "q.sql"];
    let state = env.state_dir();
    repo.proctor(&[&words[..], &["--no-daemon", "--state-dir", state.to_str().expect("UTF-8")]].concat())
        .exits(1)
        .prints(&["error[P0612]", "did you mean `name`?"]);
    let daemon = env.start_ready_daemon();
    let socket = env.socket_path();
    let by_daemon = || repo.proctor(&[&words[..], &["--daemon", "--socket", socket.to_str().expect("UTF-8")]].concat());
    by_daemon().exits(1).prints(&["error[P0612]"]);
    repo.write("q.sql", right);
    by_daemon().exits(0);
    daemon.stop().exits(0);
}

/// Has a bomb judged together with small queries. The bomb is ended by its limit, and the small queries are answered
/// in the meantime and afterwards.
fn assert_bomb_hits_limit(env: &TestEnvironment, dialect: &str, sql: &str) {
    const LIMIT_MS: u64 = 1_500;
    let daemon = env.start_ready_daemon();
    let ask = |sql: &str| verify_request(&json!({ "sql": sql, "dialect": dialect, "limits": { "time_ms": LIMIT_MS } }));
    let check_small_query = || {
        let plain = verify_request(&json!({ "dialect": dialect, "limits": { "time_ms": 30_000 } }));
        assert_eq!(
            curl(env, &["--json", &plain, "/v1/sql/verify"]).assert_status(200).json_of_schema("Judgement")["verdict"],
            "ok"
        );
    };
    // The first query has waited for the engine to start.
    check_small_query();
    let file = env.root().join("bomb.json");
    machine::write(&file, ask(sql));
    let mut running = start_curl(env, &["--json", &format!("@{}", file.display())], "/v1/sql/verify");
    let mut served = 0;
    while !running.poll_finished() {
        check_small_query();
        served += 1;
    }
    let bombed = parse_response(&running.wait().exits(0)).assert_status(200).json_of_schema("Judgement");
    assert!(served > 0, "others are served at the same time");
    assert_eq!(
        (&bombed["verdict"], &bombed["diagnostics"][0]["code"]),
        (&"reject".into(), &"time_limit".into()),
        "{bombed:#}"
    );
    let took = bombed["timing"]["total_us"].as_u64().expect("the document says so") / 1_000;
    assert!((LIMIT_MS..LIMIT_MS + 1_000).contains(&took), "{took} ms");
    check_small_query();
    drop(daemon);
}

/// Judges hostile texts from a file and over HTTP. Each gets its answer, and the next query is not affected.
fn hostile_texts_get_clear_answers(env: &TestEnvironment) {
    let texts: &[(String, &str)] = &[
        (String::new(), "empty_text"),
        ("-- x\n/* y */\r\n".to_owned(), "empty_text"),
        ("SELECT 1\0; DROP TABLE customers".to_owned(), "nul_byte"),
        (format!("SELECT {}1{}", "(".repeat(100_000), ")".repeat(100_000)), "too_deep"),
        (format!("SELECT {}", "NOT ".repeat(100_000) + "1"), "too_deep"),
        ("SELECT 1;\n".repeat(10_000), "stacked_statements"),
        (format!("SELECT {}", "a".repeat(300_000)), "unknown_column"),
        ("SELECT 1\r\nFROM customers\r\n;\r\n".to_owned(), "ok"),
        ("\u{feff}SELECT name FROM customers".to_owned(), "ok"),
    ];
    let repo = sql_repository(env, "");
    let daemon = env.start_ready_daemon();
    let state = env.state_dir().join("cli");
    let words = ["sql", "verify", "--format", "json", "--schema", "db/schema.sql", "--state-dir"];
    let words: Vec<&str> = words.into_iter().chain([state.to_str().expect("a path"), "q/hostile.sql"]).collect();
    let assert_answer = |answer: &Value, expected: &str, text: &str| {
        let codes: Vec<&Value> =
            answer["diagnostics"].as_array().expect("a list").iter().map(|it| &it["code"]).collect();
        let is_expected = if expected == "ok" {
            answer["verdict"] == "ok"
        } else {
            answer["verdict"] == "reject" && codes.contains(&&expected.into())
        };
        assert!(is_expected, "{expected}: {} {codes:?} of {:.40}", answer["verdict"], text);
    };
    for (text, expected) in texts {
        repo.write("q/hostile.sql", text);
        assert_answer(&parse_judgement(&repo.proctor(&words)), expected, text);
        let file = env.root().join("hostile.json");
        machine::write(&file, verify_request(&json!({ "sql": text })));
        let answer = curl(env, &["--json", &format!("@{}", file.display()), "/v1/sql/verify"])
            .assert_status(200)
            .json_of_schema("Judgement");
        assert_answer(&answer, expected, text);
    }
    repo.write("q/hostile.sql", b"SELECT '\xff'");
    repo.proctor(&words).exits(2).prints_to_stderr(&["is not UTF-8 at byte 8"]);
    let large = env.root().join("large.json");
    machine::write(&large, verify_request(&json!({ "sql": "x".repeat(10 << 20) })));
    let refused = curl(env, &["--json", &format!("@{}", large.display()), "/v1/sql/verify"]);
    assert!((400..500).contains(&refused.code), "{refused:#?}");
    drop(daemon);
}
