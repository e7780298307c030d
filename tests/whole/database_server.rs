//! Database servers of a test that only accept TLS and a password, as servers of an organisation do.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use proctor_sql::mysql::MariadbPrograms;
use proctor_sql::postgres::PostgresPrograms;
use rustix::process::Signal;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::process::RunningProcess;

/// The user who owns the database `shop`.
pub(crate) const USER: &str = "app";
/// The password of the user.
pub(crate) const PASSWORD: &str = "pass:/word";
/// The account that runs a server if the tests run as root, which servers refuse.
const SERVER_ACCOUNT: &str = "nobody";
/// The password in a URL.
const ENCODED_PASSWORD: &str = "pass%3A%2Fword";

/// A certificate authority, and a certificate for `localhost` that it issued.
pub(crate) struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    /// Creates new ones in the environment.
    pub(crate) fn create(env: &TestEnvironment) -> Self {
        let directory = env.root().join("certificates");
        let extensions = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        machine::write(&directory.join("extensions"), extensions);
        let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let openssl = |words: &[&str]| {
            let mut command = machine::command("openssl");
            command.current_dir(&directory).args(words);
            RunningProcess::start(command).wait().exits(0);
        };
        openssl(
            &[&["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test"], &new_key[..]].concat(),
        );
        openssl(&[&["req", "-keyout", "key.pem", "-out", "request", "-subj", "/CN=localhost"], &new_key[..]].concat());
        openssl(&[
            "x509",
            "-req",
            "-in",
            "request",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            "extensions",
            "-out",
            "cert.pem",
        ]);
        Self { directory }
    }

    /// Returns the file with the authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Returns the file with the certificate of the server.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join("cert.pem")
    }

    /// Returns the file with the key of the server.
    pub(crate) fn key(&self) -> PathBuf {
        self.directory.join("key.pem")
    }
}

/// A running server with a database `shop`.
pub(crate) struct DatabaseServer {
    process: RunningProcess,
    pub(crate) port: u16,
    scheme: &'static str,
    authority: PathBuf,
}

impl DatabaseServer {
    /// Starts PostgreSQL, and runs statements in the new database as its owner.
    pub(crate) fn start_postgres(env: &TestEnvironment, certificates: &Certificates, schema: &str) -> Self {
        let programs = PostgresPrograms::find().expect("the case needs the programs").server();
        let program = |name: &str| programs.with_file_name(name);
        let (directory, port) = (server_directory(env, certificates, "postgres"), free_port());
        let data = directory.join("data");
        machine::write(&directory.join("password"), "admin\n");
        machine::make_file_public(&directory.join("password"));
        let mut initdb = as_server_user(&program("initdb"));
        initdb.arg("-D").arg(&data).args([
            "-U",
            "admin",
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]);
        RunningProcess::start({
            initdb.arg("--pwfile").arg(directory.join("password"));
            initdb
        })
        .wait()
        .exits(0);
        machine::write(&directory.join("hba"), "hostssl all all 127.0.0.1/32 scram-sha-256\n");
        machine::make_file_public(&directory.join("hba"));
        let mut server = as_server_user(&program("postgres"));
        server.arg("-D").arg(&data);
        for setting in [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
            "unix_socket_directories=".to_owned(),
            "fsync=off".to_owned(),
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", directory.join("cert.pem").display()),
            format!("ssl_key_file={}", directory.join("key.pem").display()),
            format!("hba_file={}", directory.join("hba").display()),
        ] {
            server.args(["-c", &setting]);
        }
        let mut process = RunningProcess::start(server);
        process.wait_for_stderr("ready to accept connections");
        let as_admin = |sql: &str| psql(port, ("admin", "admin"), "postgres", sql);
        as_admin(&format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"));
        as_admin(&format!("CREATE DATABASE shop OWNER {USER}"));
        psql(port, (USER, PASSWORD), "shop", schema);
        Self { process, port, scheme: "postgres", authority: certificates.authority() }
    }

    /// Starts MariaDB, and runs statements in the new database.
    pub(crate) fn start_mariadb(env: &TestEnvironment, certificates: &Certificates, schema: &str) -> Self {
        let program = MariadbPrograms::find().expect("the case needs the programs").server();
        let (directory, port) = (server_directory(env, certificates, "mariadb"), free_port());
        let data = format!("--datadir={}", directory.join("data").display());
        let socket = format!("--socket={}", directory.join("socket").display());
        let mut install = as_server_user(Path::new("mariadb-install-db"));
        install.args(["--no-defaults", &data, "--auth-root-authentication-method=normal", "--skip-test-db"]);
        RunningProcess::start(install).wait().exits(0);
        let mut server = as_server_user(&program);
        server.args(["--no-defaults", &data, &socket, "--bind-address=127.0.0.1", "--require-secure-transport=ON"]);
        server.arg(format!("--port={port}")).arg(format!("--pid-file={}", directory.join("pid").display()));
        server.arg(format!("--ssl-cert={}", directory.join("cert.pem").display()));
        server.arg(format!("--ssl-key={}", directory.join("key.pem").display()));
        let mut process = RunningProcess::start(server);
        process.wait_for_stderr("ready for connections");
        let mut setup = machine::command("mariadb");
        setup.args(["--no-defaults", "-u", "root", &socket, "-e"]).arg(format!(
            "CREATE DATABASE shop; CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'; \
             GRANT ALL ON shop.* TO {USER}@'%'; GRANT ALL ON `proctor\\_%`.* TO {USER}@'%'; USE shop; {schema}"
        ));
        RunningProcess::start(setup).wait().exits(0);
        Self { process, port, scheme: "mysql", authority: certificates.authority() }
    }

    /// Returns the names of the databases of a MariaDB server.
    pub(crate) fn databases(&self) -> String {
        let mut command = machine::command("mariadb");
        command.args(["--no-defaults", "-h", "127.0.0.1", "-u", USER, &format!("--password={PASSWORD}")]);
        command.arg(format!("--port={}", self.port)).arg(format!("--ssl-ca={}", self.authority.display()));
        command.args(["-e", "SET sql_big_selects = 1; SHOW DATABASES"]);
        RunningProcess::start(command).wait().exits(0).stdout
    }

    /// Runs a statement in the database of a PostgreSQL server, and returns its rows, one in a line.
    pub(crate) fn query_postgres(&self, sql: &str) -> String {
        psql(self.port, (USER, PASSWORD), "shop", sql)
    }

    /// Returns the URL of the database, with the password and the trusted authority.
    pub(crate) fn url(&self) -> String {
        format!("{}&sslrootcert={}", self.url_without_authority(), self.authority.display())
    }

    /// Returns the URL of the database without the trusted authority.
    pub(crate) fn url_without_authority(&self) -> String {
        let (scheme, port) = (self.scheme, self.port);
        format!("{scheme}://{USER}:{ENCODED_PASSWORD}@localhost:{port}/shop?sslmode=verify-full")
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        self.process.signal_if_alive(Signal::KILL);
    }
}

/// Runs a statement with `psql` as a user with a password, and returns its rows.
fn psql(port: u16, (user, password): (&str, &str), database: &str, sql: &str) -> String {
    let programs = PostgresPrograms::find().expect("the case needs the programs").server();
    let mut command = machine::command(programs.with_file_name("psql"));
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &port.to_string()]);
    command.args(["-U", user, "-d", database, "-c", sql]).env("PGPASSWORD", password).env("PGSSLMODE", "require");
    RunningProcess::start(command).wait().exits(0).stdout
}

/// Creates a directory with the certificate that belongs to the user of the server.
fn server_directory(env: &TestEnvironment, certificates: &Certificates, name: &str) -> PathBuf {
    let directory = env.root().join(name);
    for (from, name) in [(certificates.certificate(), "cert.pem"), (certificates.key(), "key.pem")] {
        machine::write(&directory.join(name), std::fs::read(from).expect("a certificate"));
    }
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(directory.join("key.pem"), private).expect("a mode for a file of the test");
    if machine::is_root() {
        machine::change_owner(&directory, machine::account_uid(SERVER_ACCOUNT));
    }
    directory
}

/// Returns a command that runs as an ordinary user, as servers demand.
fn as_server_user(program: &Path) -> Command {
    if !machine::is_root() {
        return machine::command(program);
    }
    let mut command = machine::command("setpriv");
    command.args(["--reuid", SERVER_ACCOUNT, "--clear-groups", "--"]).arg(program);
    command
}

/// Returns a port on which nothing listens.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}
