//! Tests definitions: the functions that they call, and schemas that define more than tables.

use proctor_core::sql::{Dialect, SqlCode, SqlPolicy, SqlRequest};
use serde_json::json;

use super::pool::Pool;
use super::request;

pub(super) fn checks_functions_of_definitions(pool: &Pool) {
    let migrate = |sql: &str| request(SqlPolicy::Migrate, sql);
    for sql in [
        "CREATE TABLE notes (a text DEFAULT pg_read_file('/etc/passwd'))",
        "CREATE TABLE notes (a int CHECK (\"pg_backend_pid\"() > a))",
        "CREATE DOMAIN d AS int CHECK (VALUE > U&\"\\0073py\"())",
        "ALTER TABLE big ADD COLUMN a int DEFAULT spy()",
        "ALTER TABLE big ALTER COLUMN n TYPE text USING current_setting('port')",
        "CREATE TABLE notes AS SELECT spy() AS data",
        "CREATE TABLE notes AS WITH q AS (SELECT 1) SELECT spy() option",
        "SELECT spy() AS into INTO TEMP notes",
        "CREATE MATERIALIZED VIEW notes AS SELECT spy() AS a WITH NO DATA",
        "TRUNCATE emptied",
    ] {
        let schema = "CREATE TABLE emptied (id int); CREATE TRIGGER emptying BEFORE TRUNCATE ON emptied
            EXECUTE FUNCTION audit()";
        let request = migrate(sql);
        let schema =
            [&request.schema[..], &[schema.replace("audit", "public.audit").replace("emptied", "public.emptied")]];
        pool.assert_codes(&SqlRequest { schema: schema.concat(), ..request }, &[SqlCode::FunctionRefused]);
    }
    pool.assert_codes(&migrate("CREATE TABLE notes AS EXECUTE q"), &[SqlCode::StatementRefused]);
    pool.assert_codes(&migrate("CREATE SCHEMA s GRANT ALL ON TABLE s.t TO PUBLIC"), &[SqlCode::StatementRefused]);
    for sql in [
        "CREATE TABLE notes (a text, b text GENERATED ALWAYS AS (lower(a)) STORED, made timestamptz DEFAULT now())",
        "CREATE TABLE version (id serial, other bigint DEFAULT nextval('customers_id_seq'), UNIQUE (id))",
        "CREATE TYPE place AS (a int, b text)",
        "CREATE INDEX ON customers (lower(name), (length(tier)))",
        "CREATE TABLE notes AS SELECT id AS data FROM customers WITH NO DATA",
        "SELECT id INTO notes FROM customers",
    ] {
        pool.assert_codes(&migrate(sql), &[]);
    }
    let misspelt = pool.judge(&migrate("CREATE TABLE é AS SELECT nmae FROM customers"));
    assert_eq!(misspelt.diagnostics[0].span.map(|span| span.start), Some(26), "{misspelt:#?}");
}

/// The schemas of two requests are databases of one server.
pub(super) fn schemas_affect_no_other_database(pool: &Pool) {
    let other = "SELECT a FROM t WHERE a <> '\\'";
    let other =
        SqlRequest { schema: vec!["CREATE TABLE t (a text)".to_owned()], ..SqlRequest::new(Dialect::Postgres, other) };
    let other_again = SqlRequest { schema: vec!["CREATE TABLE t (a text, b int)".to_owned()], ..other.clone() };
    pool.assert_codes(&other, &[]);
    let seen = "CREATE TABLE seen AS SELECT count(*) AS n FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND query <> '<insufficient privilege>'";
    let ended = "CREATE TABLE ended AS SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname <> current_database() AND backend_type = 'client backend'";
    let schema = |sql: &str| vec![sql.to_owned()];
    let spied = SqlRequest { schema: schema(seen), ..SqlRequest::new(Dialect::Postgres, "SELECT n FROM seen") };
    assert_eq!(pool.rows(spied).rows, [[json!(0)]]);
    for sql in [
        "ALTER ROLE CURRENT_USER SET standard_conforming_strings = off",
        "ALTER ROLE CURRENT_USER SET default_transaction_read_only = on",
        "ALTER ROLE CURRENT_USER SET statement_timeout = 1",
        ended,
    ] {
        pool.judge(&SqlRequest { schema: schema(sql), ..SqlRequest::new(Dialect::Postgres, "SELECT 1") });
        pool.assert_codes(&other, &[]);
        pool.assert_codes(&other_again, &[]);
    }
    // A schema may change the settings of its own database, but not the meaning of the statement.
    let own =
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET standard_conforming_strings = off', current_database());
        END $$; CREATE TABLE t (a text)";
    pool.assert_codes(&SqlRequest { schema: schema(own), ..other }, &[]);
}
