//! Tests databases on external servers, TiDB Cloud Zero, and databases that are kept. The servers are real ones that
//! accept only TLS with a password; the service is a stand-in that hands out one of them.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::database_server::{Certificates, DatabaseServer, PASSWORD, USER};
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::TestSpec;

const OPENSSL: Needs = Needs::Program("openssl");
const NEEDS_POSTGRES: &[Needs] =
    &[Needs::Sandbox, Needs::Postgres, OPENSSL, Needs::Program("setpriv"), Needs::Program("psql")];
const NEEDS_MARIADB: &[Needs] =
    &[Needs::Sandbox, Needs::Mariadb, OPENSSL, Needs::Program("setpriv"), Needs::Program("mariadb")];
const NEEDS_TIDB_ZERO: &[Needs] = &[
    Needs::Sandbox,
    Needs::Mariadb,
    OPENSSL,
    Needs::Program("setpriv"),
    Needs::Program("mariadb"),
    Needs::Program("python3"),
];

pub(super) const CASES: &[CaseDefinition] = &[
    case("sql_external::postgres_is_judged_and_run", postgres_is_judged_and_run).needs(NEEDS_POSTGRES),
    case("sql_external::mariadb_is_judged_and_run", mariadb_is_judged_and_run).needs(NEEDS_MARIADB),
    case("", mariadb_is_judged_and_run)
        .unprivileged("sql_external::mariadb_is_judged_and_run_as_a_user")
        .needs(NEEDS_MARIADB),
    case("sql_external::question_is_answered_from_a_server", question_is_answered).needs(NEEDS_POSTGRES),
    case("sql_external::tidb_zero_refuses_what_the_server_refuses", tidb_zero_refuses).needs(NEEDS_TIDB_ZERO),
    case("sql_external::broken_service_is_an_error", broken_service_is_error).needs(NEEDS_TIDB_ZERO),
    case("sql_external::postgres_database_is_kept", postgres_database_is_kept).needs(NEEDS_POSTGRES),
    case("", postgres_database_is_kept)
        .unprivileged("sql_external::postgres_database_is_kept_as_a_user")
        .needs(NEEDS_POSTGRES),
    case("sql_external::mariadb_database_is_kept", mariadb_database_is_kept).needs(NEEDS_MARIADB),
];

/// Runs a subcommand of `proctor sql` on a statement.
fn sql(repo: &Repo<'_>, env: &TestEnvironment, command: &str, statement: &str, more: &[&str]) -> FinishedProcess {
    repo.write("q.sql", statement);
    let state = env.state_dir();
    let words = ["sql", command, "--state-dir", state.to_str().expect("a path"), "--no-daemon", "q.sql"];
    let ran = repo.proctor(&[&words[..], more].concat());
    assert!(!ran.all_output().contains(PASSWORD), "the password is shown: {ran}");
    ran
}

const POSTGRES_SCHEMA: &str = "CREATE SCHEMA sales;
    CREATE TABLE customers (id int PRIMARY KEY, email text NOT NULL, tier text);
    CREATE TABLE sales.orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total numeric(10, 2));
    CREATE VIEW big AS SELECT * FROM sales.orders WHERE total > 100;
    CREATE MATERIALIZED VIEW totals AS SELECT customer_id, sum(total) AS total FROM sales.orders GROUP BY 1;
    ALTER TABLE customers ENABLE ROW LEVEL SECURITY;
    CREATE POLICY own ON customers TO app USING (true);
    COMMENT ON COLUMN customers.tier IS 'gold, tin or none';
    ALTER ROLE app SET search_path = sales, public;
    CREATE FUNCTION forget() RETURNS int LANGUAGE sql AS 'DELETE FROM sales.orders RETURNING 1';
    INSERT INTO customers VALUES (1, 'ann@example.org', 'gold'), (2, 'bo@example.org', 'tin');
    INSERT INTO sales.orders VALUES (1, 1, 250.50), (2, 2, 10);
    REFRESH MATERIALIZED VIEW totals";

fn postgres_is_judged_and_run(env: &TestEnvironment) {
    let certificates = Certificates::create(env);
    let server = DatabaseServer::start_postgres(env, &certificates, POSTGRES_SCHEMA);
    let repo = env.repo(&TestSpec::from_script("true"));
    let url = server.url();
    let run = |statement: &str, more: &[&str]| sql(&repo, env, "run", statement, &[&["--dsn", &url], more].concat());
    // `orders` is found on the search path of the user, and the views and the policy have no effect.
    let join = "SELECT c.email, o.total FROM customers c JOIN orders o ON o.customer_id = c.id ORDER BY o.total";
    let csv = run(join, &["--format", "csv"]).exits(0);
    assert_eq!(csv.stdout, "email,total\nbo@example.org,10.00\nann@example.org,250.50\n");
    run("SELECT total FROM totals WHERE customer_id = 1", &[]).exits(0).prints(&["250.50"]);
    run("SELECT emial FROM customers", &[]).exits(1).prints_to_stderr(&["P0612", "did you mean `email`?"]);
    run("SELECT forget()", &[]).exits(1);
    assert_writes_are_undone_or_kept(&run);
    let within = "WITH u AS (UPDATE customers SET tier = 'x' WHERE id < 9 RETURNING id) SELECT id FROM u WHERE id = 1";
    run(within, &["--policy", "write"]).exits(0).prints_to_stderr(&["2 changed rows, undone"]);
    let denied = server.url().replace(USER, "nobody");
    let refused = sql(&repo, env, "run", "SELECT 1", &["--dsn", &denied]).exits(5);
    refused.prints_to_stderr(&["password authentication failed", "hint: check the host, the user and the password"]);
    let untrusted = sql(&repo, env, "run", "SELECT 1", &["--dsn", &server.url_without_authority()]).exits(5);
    untrusted.prints_to_stderr(&["invalid peer certificate"]);
    let schema = sql_schema(&repo, env, &url).exits(0);
    schema.prints(&["TABLE sales.orders", "comment \"gold, tin or none\"", "VIEW totals"]);
}

/// Checks that an update of the tier of customer 2 is undone without `--commit`, and kept with it.
fn assert_writes_are_undone_or_kept(run: &dyn Fn(&str, &[&str]) -> FinishedProcess) {
    let (update, tier) = ("UPDATE customers SET tier = 'none' WHERE id = 2", "SELECT tier FROM customers WHERE id = 2");
    run(update, &[]).exits(1);
    run(update, &["--policy", "write"]).exits(0).prints_to_stderr(&["1 changed row, undone"]);
    run(tier, &[]).exits(0).prints(&["tin"]);
    run("DELETE FROM customers", &["--policy", "write", "--commit"]).exits(1);
    run(update, &["--commit"]).exits(1);
    run(update, &["--policy", "write", "--commit"]).exits(0).prints_to_stderr(&["1 changed row, kept"]);
    run(tier, &[]).exits(0).prints(&["none"]);
    // A query with more rows than the limit neither ends the transaction nor counts as a change.
    let texts = "UPDATE customers SET tier = 'late' WHERE id = 2; SELECT id FROM customers; \
        UPDATE customers SET tier = 'later' WHERE id = 2; SELECT id FROM customers";
    let many = ["--policy", "write", "--commit", "--batch", "many", "--limit", "rows=1"];
    run(texts, &many).exits(0).prints_to_stderr(&["2 changed rows, kept"]).prints(&["(1 row and more)"]);
    run(tier, &[]).exits(0).prints(&["later"]);
    let reads = ["--batch", "many", "--limit", "rows=1", "--format", "csv"];
    let last = run("SELECT id FROM customers; SELECT tier FROM customers WHERE id = 2", &reads).exits(0);
    assert_eq!(last.stdout, "tier\nlater\n");
    let listed = run("SELECT tier FROM customers WHERE id = 2", &["--tables", "orders"]).exits(1);
    assert!(!listed.all_output().contains("later"), "{listed}");
    run("SELECT id FROM customers ORDER BY id", &["--limit", "rows=1"])
        .exits(0)
        .prints(&["(1 row and more)"])
        .prints_to_stderr(&["more rows than the limits"]);
}

fn sql_schema(repo: &Repo<'_>, env: &TestEnvironment, url: &str) -> FinishedProcess {
    let state = env.state_dir();
    repo.proctor(&["sql", "schema", "--state-dir", state.to_str().expect("a path"), "--no-daemon", "--dsn", url])
}

/// The views are not defined in the order of their names.
const MARIADB_SCHEMA: &str = "CREATE TABLE customers (id INT PRIMARY KEY, email VARCHAR(99) NOT NULL, tier VARCHAR(9));
    CREATE TABLE orders (id INT PRIMARY KEY, customer_id INT REFERENCES customers (id), total DECIMAL(10, 2));
    CREATE VIEW z_all AS SELECT * FROM shop.orders;
    CREATE VIEW a_big AS SELECT * FROM z_all WHERE total > 100;
    CREATE FUNCTION next_of(x INT) RETURNS INT DETERMINISTIC RETURN x + 1;
    CREATE TRIGGER tier_of BEFORE INSERT ON customers FOR EACH ROW SET NEW.tier = coalesce(NEW.tier, 'tin');
    INSERT INTO customers VALUES (1, 'ann@example.org', 'gold'), (2, 'bo@example.org', NULL);
    INSERT INTO orders VALUES (1, 1, 250.50), (2, 2, 10);";

fn mariadb_is_judged_and_run(env: &TestEnvironment) {
    let certificates = Certificates::create(env);
    // The creation of a repository gives all files of the case to its user.
    let repo = env.repo(&TestSpec::from_script("true"));
    let server = DatabaseServer::start_mariadb(env, &certificates, MARIADB_SCHEMA);
    // The URL is in a file that only its owner may read.
    repo.write("dsn", server.url());
    machine::make_file_public(&repo.path().join("dsn"));
    sql(&repo, env, "run", "SELECT 1", &["--dsn-file", "dsn"]).exits(2).prints_to_stderr(&["chmod 600"]);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(repo.path().join("dsn"), private).expect("a mode");
    let run =
        |statement: &str, more: &[&str]| sql(&repo, env, "run", statement, &[&["--dsn-file", "dsn"], more].concat());
    let csv = run("SELECT customer_id, total FROM a_big", &["--format", "csv"]).exits(0);
    assert_eq!(csv.stdout, "customer_id,total\n1,250.50\n");
    run("SELECT emial FROM customers", &[]).exits(1).prints_to_stderr(&["P0612", "did you mean `email`?"]);
    assert_writes_are_undone_or_kept(&run);
    // A change of the schema commits at once, so it is only run with `--commit`.
    run("CREATE TABLE notes (id INT)", &["--policy", "migrate"]).exits(5).prints_to_stderr(&["add `--commit`"]);
    // Only the rows of the server break the constraint; the table before it remains.
    let texts = "CREATE TABLE kept (id INT); \
        ALTER TABLE customers ADD CONSTRAINT other CHECK (locate(char(64), email) = 0)";
    run(texts, &["--policy", "migrate", "--commit"])
        .exits(5)
        .prints_to_stderr(&["the changes of the schema before it were kept"]);
    run("SELECT count(*) FROM kept", &[]).exits(0);
    run("CREATE TABLE notes (id INT) ENGINE=MyISAM", &["--policy", "migrate", "--commit"]).exits(0);
    let unsafe_write = run("UPDATE customers SET tier = 'x' WHERE id = 1", &["--policy", "write"]).exits(5);
    unsafe_write.prints_to_stderr(&["tables without transactions: `notes`"]);
    run("SELECT tier FROM customers WHERE id = 1", &[]).exits(0).prints(&["gold"]);
    sql(&repo, env, "run", "SELECT 1", &["--dsn", &server.url_without_authority()])
        .exits(5)
        .prints_to_stderr(&["invalid peer certificate"]);
    sql(&repo, env, "verify", "SELECT 1", &["--dialect", "postgres", "--dsn-file", "dsn"]).exits(2);
}

fn question_is_answered(env: &TestEnvironment) {
    let certificates = Certificates::create(env);
    let server = DatabaseServer::start_postgres(env, &certificates, POSTGRES_SCHEMA);
    let repo = env.repo(&TestSpec::from_script("true"));
    let answers = [json!("SELECT emial FROM customers"), json!("SELECT email FROM customers WHERE tier = 'gold'")];
    let lines: Vec<String> = answers.iter().map(|answer| json!({ "answer": answer }).to_string()).collect();
    repo.write("answers.jsonl", &(lines.join("\n") + "\n"));
    let state = env.state_dir();
    let words = ["sql", "ask", "--state-dir", state.to_str().expect("a path"), "--answers", "answers.jsonl"];
    let question = ["--dsn", &server.url(), "--format", "json", "Which email has the gold customer?"];
    let answered = repo.proctor(&[&words[..], &question].concat()).exits(0);
    let answer: Value = serde_json::from_str(&answered.stdout).expect("JSON");
    assert_eq!(answer["result"]["rows"], json!([["ann@example.org"]]), "{answered}");
    assert_eq!(answer["attempts"].as_array().map(Vec::len), Some(2), "{answered}");
    assert!(!answered.all_output().contains(PASSWORD), "{answered}");
}

/// A stand-in for the service, whose instances are a real server.
struct Service {
    process: RunningProcess,
    config: String,
}

impl Service {
    /// Starts the stand-in, and writes a config with its address.
    fn start(repo: &Repo<'_>, certificates: &Certificates, port: u16, mode: &str) -> Self {
        let mut command = machine::command("python3");
        command.args(["-c", include_str!("../tidb_zero.py"), mode]).arg(certificates.certificate());
        command.arg(certificates.key()).args(["localhost", &port.to_string(), USER, PASSWORD]);
        let mut process = RunningProcess::start(command);
        process.wait_for_stdout("\n");
        let address = process.stdout_so_far();
        let config = format!("tidb-{mode}.toml");
        let text = format!(
            "[sql.tidb_zero]\nurl = \"https://localhost:{}/v1beta1\"\ncertificates = \"{}\"\n",
            address.trim(),
            certificates.authority().display()
        );
        repo.write(&config, &text);
        Self { process, config }
    }

    /// Returns the number of requests so far.
    fn requests(&mut self) -> usize {
        assert!(!self.process.poll_finished(), "the service ended");
        self.process.stdout_so_far().lines().count() - 1
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.process.signal_if_alive(Signal::KILL);
    }
}

/// The schema of requests to the service.
const REQUEST_SCHEMA: &str = "CREATE TABLE customers (id INT PRIMARY KEY, email VARCHAR(99), tier VARCHAR(9));\n\
    INSERT INTO customers VALUES (1, 'a;b@example.org', 'gold'), (2, 'c@example.org', 'gold'), (3, 'd', 'gold');\n";

fn tidb_zero_refuses(env: &TestEnvironment) {
    let certificates = Certificates::create(env);
    // The server refuses joins that the local one accepts, as another product or version may.
    let setup = "SET GLOBAL init_connect = 'SET SESSION max_join_size = 3'";
    let server = DatabaseServer::start_mariadb(env, &certificates, setup);
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("schema.sql", REQUEST_SCHEMA);
    let mut service = Service::start(&repo, &certificates, server.port, "ok");
    let config = service.config.clone();
    let verify = |statement: &str, more: &[&str]| {
        let words = ["--dialect", "mysql", "--schema", "schema.sql", "--config", &config];
        sql(&repo, env, "verify", statement, &[&words[..], &["--provisioner", "tidb-zero"], more].concat())
    };
    let accepted = verify("SELECT email FROM customers WHERE tier = 'gold'", &["--format", "json"]).exits(0);
    let judgement: Value = serde_json::from_str(&accepted.stdout).expect("JSON");
    let stages = judgement["stages"].as_array().expect("stages");
    let record = stages.iter().find(|record| record["verifier"] == "tidb-zero").expect("a record");
    assert_eq!((&record["stage"], &record["state"]), (&json!("custom"), &json!("passed")));
    // Only a statement that was judged `ok` is sent.
    verify("SELECT emial FROM customers", &[]).exits(1).prints(&["P0612"]);
    verify("DELETE FROM customers WHERE id = 1", &[]).exits(1);
    let join = "SELECT a.email, b.email FROM customers AS a JOIN customers AS b ON a.tier = b.tier AND a.id < b.id";
    let refused = verify(join, &[]).exits(1);
    refused.prints(&["TiDB: The SELECT would examine more than MAX_JOIN_SIZE rows", "(code 1104)"]);
    verify("UPDATE customers SET tier = 'tin' WHERE id = 1", &["--policy", "write"]).exits(0);
    // One instance serves all commands until it expires, and keeps no database.
    assert_eq!(service.requests(), 1);
    let databases = server.databases();
    assert!(!databases.contains("proctor_"), "{databases}");
    verify("SELECT emial FROM customers", &["--keep-alive", "1m"]).exits(1).prints_to_stderr(&["no database is kept"]);
    verify("SELECT 1", &["--keep-alive", "1m"]).exits(0).prints_to_stderr(&["database until ", "mysql://app:"]);
    let databases = server.databases();
    assert!(databases.contains("proctor_"), "{databases}");
}

fn broken_service_is_error(env: &TestEnvironment) {
    let certificates = Certificates::create(env);
    let server = DatabaseServer::start_mariadb(env, &certificates, "");
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("schema.sql", REQUEST_SCHEMA);
    let verify = |config: &str| {
        let words = ["--dialect", "mysql", "--schema", "schema.sql", "--provisioner", "tidb-zero", "--config", config];
        sql(&repo, env, "verify", "SELECT id FROM customers", &words)
    };
    for (mode, message) in [
        ("busy", "answers with status 503: no capacity"),
        ("nonsense", "describes no instance"),
        ("expired", "expires at once"),
    ] {
        let service = Service::start(&repo, &certificates, server.port, mode);
        let run = verify(&service.config).exits(5);
        run.prints(&["TiDB could not check the statement", message]);
    }
    // An instance that the service deleted early is replaced.
    let mut service = Service::start(&repo, &certificates, server.port, "gone");
    verify(&service.config).exits(0);
    assert_eq!(service.requests(), 2);
    // No process listens on this port any more.
    let config = service.config.clone();
    drop(service);
    std::fs::remove_file(env.state_dir().join("tidb-zero.json")).expect("the stored instance");
    verify(&config).exits(5).prints(&["cannot be reached"]);
    repo.write("plain.toml", "[sql.tidb_zero]\nurl = \"http://zero.example.org\"\n");
    verify("plain.toml").exits(5).prints(&["does not begin with `https://`"]);
}

fn postgres_database_is_kept(env: &TestEnvironment) {
    assert_database_is_kept(env, "postgres");
}

fn mariadb_database_is_kept(env: &TestEnvironment) {
    assert_database_is_kept(env, "mysql");
}

/// Keeps a database, queries it by its URL with another `proctor`, and ends it with an interrupt.
fn assert_database_is_kept(env: &TestEnvironment, dialect: &str) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("schema.sql", "CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2);");
    repo.write("kept.sql", "SELECT a FROM t");
    let state = env.state_dir();
    let state = state.to_str().expect("a path");
    let words = ["sql", "verify", "--state-dir", state, "--dialect", dialect, "--schema", "schema.sql"];
    let mut keeper = repo.start_proctor(&[&words[..], &["--keep-alive", "1h", "kept.sql"]].concat());
    keeper.wait_for_stderr("or Ctrl-C: ");
    keeper.wait_for_stderr("\n");
    let output = keeper.stderr_so_far();
    let url = output.lines().find_map(|line| line.split_once("or Ctrl-C: ")).expect("a URL").1;
    let rows = sql(&repo, env, "run", "SELECT sum(a) FROM t", &["--dsn", url, "--format", "csv"]).exits(0);
    assert!(rows.stdout.ends_with("\n3\n"), "{rows}");
    let directory = url.split_once(['?']).and_then(|(_, socket)| socket.split_once('=')).expect("a socket").1;
    let directory = directory.trim_end_matches("/socket");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(directory).expect("the directory"));
    assert_eq!(mode & 0o077, 0, "other users reach the server");
    keeper.signal(Signal::INT);
    env.finish(keeper).exits(0);
    assert!(!std::path::Path::new(directory).exists(), "the socket remains");
    sql(&repo, env, "run", "SELECT 1", &["--dsn", url]).exits(5);
}
