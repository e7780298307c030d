//! Runs statements on three databases of a PostgreSQL server. Everything happens in transactions that are rolled back.

use std::collections::BTreeSet;

use proctor_core::sql::{Dialect, SqlAllow};
use proctor_sql::postgres::PostgresPrograms;
use rustix::process::Signal;
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

use crate::oracle_server::{self, OracleServer};
use crate::pool::Pool;
use crate::{Effect, Oracle, Variant, corpus};

const SETTINGS: &[&str] = &[
    "listen_addresses=",
    "fsync=off",
    "autovacuum=off",
    "jit=off",
    "max_parallel_workers_per_gather=0",
    "statement_timeout=10s",
];

/// A server with a database for each variant.
pub(crate) struct PostgresOracle {
    clients: [Client; 3],
    _server: OracleServer,
}

impl PostgresOracle {
    pub(crate) fn start(pool: &Pool) -> Self {
        let directory = oracle_server::server_directory(pool.state.path(), "oracle-postgres");
        let (data, program) = (directory.join("data"), PostgresPrograms::find().expect("the programs").server());
        let mut initdb = oracle_server::as_server_user(&program.with_file_name("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", "admin", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        oracle_server::run_to_end(initdb);
        let mut command = oracle_server::as_server_user(&program);
        command.arg("-D").arg(&data).arg("-k").arg(&directory);
        SETTINGS.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        let server = OracleServer::start(command, "ready to accept connections", Signal::QUIT);
        let connect = |database: &str| {
            let mut config = Config::new();
            config.host_path(&directory).user("admin").dbname(database);
            pool.runtime.block_on(async {
                let (client, connection) = config.connect(NoTls).await.expect("a connection");
                tokio::spawn(connection);
                client
            })
        };
        let admin = connect("postgres");
        let clients = Variant::ALL.map(|variant| {
            let create = format!("CREATE DATABASE {}", variant.database());
            pool.runtime.block_on(admin.batch_execute(&create)).expect("a database");
            let client = connect(variant.database());
            for part in corpus::schema(Dialect::Postgres) {
                pool.runtime.block_on(client.batch_execute(&part)).expect("a schema");
            }
            // The transaction of the first lists follows.
            pool.runtime.block_on(client.batch_execute("BEGIN")).expect("a transaction");
            client
        });
        Self { clients, _server: server }
    }
}

impl Oracle for PostgresOracle {
    fn prepare(&mut self, pool: &Pool, allow: &SqlAllow) {
        for (client, variant) in self.clients.iter().zip(Variant::ALL) {
            pool.runtime.block_on(async {
                client.batch_execute("ROLLBACK; BEGIN").await.expect("a transaction");
                for change in variant.changes(allow) {
                    client.batch_execute("SAVEPOINT change").await.expect("a savepoint");
                    let done = client.batch_execute(&change).await;
                    assert!(done.is_ok() || change.starts_with("CREATE VIEW"), "{change}: {done:?}");
                    if done.is_err() {
                        client.batch_execute("ROLLBACK TO SAVEPOINT change").await.expect("undone");
                    }
                }
            });
        }
    }

    fn effect(&mut self, pool: &Pool, variant: Variant, sql: &str, allow: &SqlAllow) -> Effect {
        let client = &self.clients[variant as usize];
        pool.runtime.block_on(async {
            client.batch_execute("SAVEPOINT statement").await.expect("a savepoint");
            let outcome = rows_and_content(client, sql, allow).await;
            client.batch_execute("ROLLBACK TO SAVEPOINT statement").await.expect("undone");
            outcome.map_err(|error| error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()))
        })
    }

    fn planned_tables(&mut self, pool: &Pool, sql: &str) -> BTreeSet<String> {
        let client = &self.clients[Variant::Whole as usize];
        pool.runtime.block_on(async {
            client.batch_execute("SAVEPOINT statement").await.expect("a savepoint");
            let plan = rows(client, &format!("EXPLAIN (VERBOSE, FORMAT JSON) {sql}")).await.unwrap_or_default();
            client.batch_execute("ROLLBACK TO SAVEPOINT statement").await.expect("undone");
            let text = plan.concat();
            let names = text.split(r#"\"Relation Name\": \""#).skip(1);
            names.filter_map(|rest| Some(rest.split_once('\\')?.0.to_owned())).collect()
        })
    }
}

async fn rows_and_content(client: &Client, sql: &str, allow: &SqlAllow) -> Result<Vec<String>, Error> {
    let mut found = rows(client, sql).await?;
    if crate::shows_estimates(sql) {
        found.clear();
    }
    if crate::may_change_rows(sql) {
        found.extend(rows(client, &crate::content_queries(allow).join(";")).await?);
    }
    Ok(found)
}

/// Returns the sorted rows of statements.
async fn rows(client: &Client, sql: &str) -> Result<Vec<String>, Error> {
    let messages = client.simple_query(sql).await?.into_iter();
    let mut found: Vec<String> = messages
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|at| row.get(at)).collect::<Vec<_>>()).map(|row| format!("{row:?}"))
            }
            _ => None,
        })
        .collect();
    found.sort();
    Ok(found)
}
