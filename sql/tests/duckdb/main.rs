//! Tests DuckDB as an engine. `PROCTOR_DUCKDB` names its shared library; otherwise the usual directories and the one of
//! `make test` are searched. Since a C++ exception ends the process, texts are judged in a child process: this program
//! with `--judge`. Without the library, each test is skipped.
#![expect(clippy::disallowed_methods, reason = "a test starts itself and reads its own environment")]

mod adversarial;
mod allow_lists;
mod cases;
#[path = "../corpus/mod.rs"]
mod corpus;
mod rows;

use std::io::{BufRead as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use proctor_core::sql::{Judgement, SqlCode, SqlRequest, SqlSeverity, StageName};
use proctor_duckdb::LibraryNotFound;
use proctor_sql::duckdb::{DuckDb, find_library};
use proctor_sql::worker::{ServerTemplates, WorkerOptions};

fn main() {
    let library = library();
    if std::env::args().nth(1).as_deref() == Some("--judge") {
        return judge_all(&library.expect("the parent found it"));
    }
    if std::env::args().nth(1).as_deref() == Some("--make") {
        return create_database_in_process(&library.expect("the parent found it"));
    }
    if std::env::args().nth(1).as_deref() == Some("--trust") {
        return adversarial::run_trusting_process(&library.expect("the parent found it"));
    }
    if std::env::args().nth(1).as_deref() == Some("--run") {
        return rows::run_all(&library.expect("the parent found it"));
    }
    if std::env::args().nth(1).as_deref() == Some("--describe") {
        return rows::describe_schema(&library.expect("the parent found it"));
    }
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return run_worker(&library.expect("the parent found it"));
    }
    let all = || cases::all().into_iter().chain(adversarial::all()).chain(allow_lists::all()).chain(rows::all());
    let trials = match library {
        Ok(_) => all().map(|(name, test)| Trial::test(name, test)).collect(),
        Err(reason) => {
            let skipped = |(name, _)| {
                let name = format!("{name} (skipped: needs libduckdb.so)");
                Trial::test(name, || Ok(())).with_ignored_flag(true)
            };
            eprintln!("{reason}");
            all().map(skipped).collect()
        }
    };
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn library() -> Result<PathBuf, LibraryNotFound> {
    let given = std::env::var_os("PROCTOR_DUCKDB").map(PathBuf::from);
    let installed = std::env::current_exe().ok().and_then(|program| {
        program.ancestors().map(|place| place.join("clients/duckdb/libduckdb.so")).find(|library| library.is_file())
    });
    let home = std::env::var_os("HOME").map(PathBuf::from);
    find_library(given.or(installed).as_deref(), home.as_deref())
}

/// Runs a worker like `proctor-sql worker`, whose socket is its standard output.
fn run_worker(library: &Path) {
    let socket = std::io::stdout().as_fd().try_clone_to_owned().expect("a socket");
    let options = WorkerOptions {
        duckdb: Ok(library.to_owned()),
        starts_postgres: false,
        starts_mariadb: false,
        templates: ServerTemplates::default(),
        socket_directory: None,
        process_memory: None,
    };
    proctor_sql::worker::serve(&UnixStream::from(socket), options).expect("the parent listens");
}

/// Judges each request of standard input, one per line, with a new engine.
fn judge_all(library: &Path) {
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: SqlRequest = serde_json::from_str(&line.expect("a line")).expect("a request");
        let judgement = match DuckDb::open(library, &request) {
            Ok(mut engine) => proctor_sql::judge(&request, &mut engine),
            Err(refusal) => proctor_sql::chain::error_judgement(&request, "DuckDB", refusal.code, refusal.message),
        };
        let json = serde_json::to_string(&judgement).expect("a judgement is JSON");
        writeln!(output, "{json}").expect("the parent listens");
    }
}

/// Judges requests in one child process.
fn judge(requests: &[SqlRequest]) -> Result<Vec<Judgement>, Failed> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program).arg("--judge").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let lines: Vec<String> = requests.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    let writer = std::thread::spawn(move || input.write_all((lines.join("\n") + "\n").as_bytes()));
    let output = child.wait_with_output()?;
    let _ = writer.join();
    let stdout = String::from_utf8(output.stdout)?;
    let judgements: Vec<Judgement> = stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    if judgements.len() != requests.len() {
        return Err(
            format!("{} of {} were judged; it ended with {}", judgements.len(), requests.len(), output.status).into()
        );
    }
    Ok(judgements)
}

/// Returns the errors of a judgement, each with its stage.
fn errors(judgement: &Judgement) -> Vec<(StageName, SqlCode)> {
    let errors = judgement.diagnostics.iter().filter(|found| found.severity == SqlSeverity::Error);
    errors.map(|found| (found.stage, found.code)).collect()
}

/// Creates a database file in a child process.
fn create_database(file: &Path, schema: &str) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?).arg("--make").arg(file).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no input")?.write_all(schema.as_bytes())?;
    if child.wait()?.success() { Ok(()) } else { Err("the file could not be made".into()) }
}

fn create_database_in_process(library: &Path) {
    let file = std::env::args_os().nth(2).map(PathBuf::from).expect("a file");
    let schema = std::io::read_to_string(std::io::stdin()).expect("a schema");
    let library = proctor_duckdb::Library::load(library).expect("the library loads");
    let connection = library.open(Some(&file), &[]).and_then(|database| database.connect()).expect("a database");
    let statements = connection.extract(&schema).expect("statements");
    for index in 0..statements.count() {
        let mut rows = statements.prepare(index).and_then(|one| one.run()).expect("it runs");
        while rows.next_chunk().expect("it runs to its end").is_some() {}
    }
}
