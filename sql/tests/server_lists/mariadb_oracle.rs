//! Runs statements on three databases of a MariaDB server, in transactions that are rolled back. Definitions are not
//! transactional there, so that the database without the objects off the lists is created again for each list.

use std::collections::BTreeSet;
use std::path::Path;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, OptsBuilder, Row};
use proctor_core::sql::{Dialect, SqlAllow};
use proctor_sql::mysql::MariadbPrograms;
use rustix::process::Signal;

use crate::oracle_server::{self, OracleServer};
use crate::pool::Pool;
use crate::{Effect, Oracle, Variant, corpus};

const SETTINGS: &[&str] = &[
    "--skip-networking",
    "--lower-case-table-names=0",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_general_ci",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-stats-persistent=OFF",
    "--performance-schema=OFF",
    "--sync-frm=0",
];
/// The strictness of the engine under test.
const STRICT: &str = "SET sql_mode = 'STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO'";
/// The mode in which the schema of the corpus is changed.
const ANSI: &str = "SET sql_mode = 'PIPES_AS_CONCAT'";

/// A server with a database for each variant.
pub(crate) struct MariadbOracle {
    connections: [Conn; 3],
    _server: OracleServer,
}

impl MariadbOracle {
    pub(crate) fn start(pool: &Pool) -> Self {
        let directory = oracle_server::server_directory(pool.state.path(), "oracle-mariadb");
        let program = MariadbPrograms::find().expect("the programs").server();
        let data = format!("--datadir={}", directory.join("data").display());
        let mut install = oracle_server::as_server_user(Path::new("mariadb-install-db"));
        install.args(["--no-defaults", &data, "--auth-root-authentication-method=normal", "--skip-test-db"]);
        oracle_server::run_to_end(install);
        let socket = directory.join("socket");
        let mut command = oracle_server::as_server_user(&program);
        command.args(["--no-defaults", &data]).args(SETTINGS);
        command.arg(format!("--socket={}", socket.display()));
        command.arg(format!("--pid-file={}", directory.join("pid").display()));
        let server = OracleServer::start(command, "ready for connections", Signal::KILL);
        let connections = Variant::ALL.map(|variant| {
            let options = OptsBuilder::default().socket(Some(socket.to_string_lossy())).user(Some("root"));
            pool.runtime.block_on(async {
                let mut connection = Conn::new(options).await.expect("a connection");
                create(&mut connection, variant).await;
                connection
            })
        });
        Self { connections, _server: server }
    }
}

/// Creates the whole database of a variant anew.
async fn create(connection: &mut Conn, variant: Variant) {
    let name = variant.database();
    let begin = format!("CREATE OR REPLACE DATABASE {name}; USE {name}");
    for part in [begin].into_iter().chain(corpus::schema(Dialect::Mysql)) {
        execute(connection, &part).await.expect("a schema");
    }
}

async fn change_all(connection: &mut Conn, changes: &[String]) {
    for change in changes {
        let done = execute(connection, change).await;
        assert!(done.is_ok() || change.starts_with("CREATE VIEW"), "{change}: {done:?}");
    }
}

async fn execute(connection: &mut Conn, sql: &str) -> Result<(), Error> {
    connection.query_iter(sql).await?.drop_result().await
}

impl Oracle for MariadbOracle {
    fn prepare(&mut self, pool: &Pool, allow: &SqlAllow) {
        for (connection, variant) in self.connections.iter_mut().zip(Variant::ALL) {
            pool.runtime.block_on(async {
                execute(connection, &format!("ROLLBACK; {ANSI}")).await.expect("undone");
                if variant == Variant::Removed {
                    create(connection, variant).await;
                    change_all(connection, &variant.changes(allow)).await;
                }
                execute(connection, "START TRANSACTION").await.expect("a transaction");
                if variant == Variant::Changed {
                    change_all(connection, &variant.changes(allow)).await;
                }
                execute(connection, STRICT).await.expect("a mode");
            });
        }
    }

    fn effect(&mut self, pool: &Pool, variant: Variant, sql: &str, allow: &SqlAllow) -> Effect {
        let connection = &mut self.connections[variant as usize];
        pool.runtime.block_on(async {
            execute(connection, "SAVEPOINT statement").await.expect("a savepoint");
            let outcome = rows_and_content(connection, sql, allow).await;
            execute(connection, "ROLLBACK TO SAVEPOINT statement").await.expect("undone");
            outcome.map_err(|error| match error {
                Error::Server(reported) => reported.code.to_string(),
                other => panic!("{sql}: {other}"),
            })
        })
    }

    fn planned_tables(&mut self, _pool: &Pool, _sql: &str) -> BTreeSet<String> {
        // `EXPLAIN` shows the aliases of tables instead of their names.
        BTreeSet::new()
    }
}

async fn rows_and_content(connection: &mut Conn, sql: &str, allow: &SqlAllow) -> Result<Vec<String>, Error> {
    let mut found = rows(connection, sql).await?;
    if crate::shows_estimates(sql) {
        found.clear();
    }
    if crate::may_change_rows(sql) {
        for query in crate::content_queries(allow) {
            found.extend(rows(connection, &query).await?);
        }
    }
    Ok(found)
}

/// Returns the sorted rows of a statement.
async fn rows(connection: &mut Conn, sql: &str) -> Result<Vec<String>, Error> {
    let rows: Vec<Row> = connection.query(sql).await?;
    let mut found: Vec<String> = rows
        .into_iter()
        .map(|row| format!("{:?}", row.unwrap().iter().map(|value| value.as_sql(false)).collect::<Vec<_>>()))
        .collect();
    found.sort();
    Ok(found)
}
