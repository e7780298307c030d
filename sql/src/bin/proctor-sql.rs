//! Runs SQL engines in a separate process. `proctor-sql worker` answers requests over the socket on its standard
//! output; `proctor-sql check` judges files as a step of a run; `proctor-sql postgres-template` and `mariadb-template`
//! prepare a database server. `proctord`, `proctor` or a step's command starts it in a sandbox. `proctor-sql external`
//! performs one operation on an external server, outside of a sandbox.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use proctor_core::sql::SqlRequest;
use proctor_sql::child_worker::ChildWorker;
use proctor_sql::external::{self, external_operations};
use proctor_sql::mysql::{self, MariadbPrograms};
use proctor_sql::postgres::{self, PostgresPrograms};
use proctor_sql::server_files::ServerError;
use proctor_sql::worker::WorkerOptions;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("worker") => worker(args),
        Some("postgres-template") => {
            write_template(|| postgres::write_template(&PostgresPrograms::find()?, std::io::stdout().lock()))
        }
        Some("mariadb-template") => {
            write_template(|| mysql::write_template(&MariadbPrograms::find()?, std::io::stdout().lock()))
        }
        Some(external::COMMAND) => external(),
        Some("check") => check(&args.next().unwrap_or_default(), args),
        Some("--version") => {
            println!("proctor-sql {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("error: `proctor-sql` is started by `proctor` and `proctord`");
            eprintln!("hint: `proctor sql verify --help` describes how to check SQL");
            ExitCode::from(2)
        }
    }
}

/// Runs the check of a step in its sandbox; the current directory is the repository. The arguments `[--duckdb=FILE] --
/// FILE…` name DuckDB's library and the files to match. The parent process decides both, since the environment of the
/// step is under the control of the repository.
fn check(json: &str, mut args: impl Iterator<Item = String>) -> ExitCode {
    let mut library = None;
    for word in args.by_ref().take_while(|word| word != "--") {
        match word.strip_prefix("--duckdb=") {
            Some(file) => library = Some(PathBuf::from(file)),
            None => {
                eprintln!("error: `{word}` is not an option of a check");
                return ExitCode::from(2);
            }
        }
    }
    let git_files: Vec<String> = args.collect();
    let duckdb = proctor_duckdb::find(library.as_deref(), None);
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let mut worker = ChildWorker::new(duckdb);
    let judge = &mut |request: &SqlRequest| worker.judge(request);
    match proctor_sql::check::run(json, Path::new("."), &git_files, judge, &mut out, &mut err) {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        // The output is closed: the parent process has exited.
        Err(_) => ExitCode::from(5),
    }
}

/// Performs one operation on an external server, which standard input describes.
fn external() -> ExitCode {
    match external_operations::serve(std::io::stdin().lock(), std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Writes the archive of a data directory for a server to standard output.
fn write_template(write: impl FnOnce() -> Result<(), ServerError>) -> ExitCode {
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(5)
        }
    }
}

fn worker(args: impl Iterator<Item = String>) -> ExitCode {
    let socket = match std::io::stdout().as_fd().try_clone_to_owned() {
        Ok(socket) => UnixStream::from(socket),
        Err(error) => {
            eprintln!("error: no socket on standard output: {error}");
            return ExitCode::from(2);
        }
    };
    let options = match WorkerOptions::parse(args) {
        Ok(options) => options,
        Err(unknown) => {
            eprintln!("error: `{unknown}` is not an option of a worker");
            return ExitCode::from(2);
        }
    };
    match proctor_sql::worker::serve(&socket, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: the worker ends: {error}");
            ExitCode::from(2)
        }
    }
}
