//! Parses the command line, runs the command, and returns the exit code of the process.

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::{ContextKind, ErrorKind};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::verdict::EXIT_INCONCLUSIVE;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Cli, Command, DaemonCommand, Format};
use crate::caller::Caller;
use crate::commands::{
    cancel, codes, compare, daemon, doctor, exec, explain, gate, gc, hook, import, init, logs, man, mcp, plan, report,
    run, sql, status, tools, validate, watch,
};
use crate::error::CliError;
use crate::interrupt;
use crate::screen::Screen;
use crate::style;

/// Runs the program and returns its exit code.
pub(crate) fn main() -> ExitCode {
    interrupt::install_panic_hook();
    if let Err(error) = proctor_runner::claim_signals() {
        eprintln!("warning: what the caller left of its signals stays: {error}");
    }
    let cli = Cli::of_exec().unwrap_or_else(|| Cli::try_parse().unwrap_or_else(|refused| leave_with(refused)));
    let caller = match Caller::read() {
        Ok(caller) => caller,
        Err(error) => return unreadable_caller(&error),
    };
    // `exec` starts the log itself, after the part of its work that logs nothing.
    if !matches!(cli.command, Command::Exec(_)) {
        start_log(&caller);
    }
    let mut screen = Screen::new(cli.color, &caller);
    let code = match dispatch(&cli.command, &caller, &mut screen) {
        Ok(code) => code,
        Err(error) => fail(&error, wants_json(&cli.command), &mut screen),
    };
    ExitCode::from(delivered(code, &mut screen))
}

/// Prints the output of the argument parser and exits: help, the version, or a usage error. A usage error is printed
/// with its error code.
fn leave_with(mut refused: clap::Error) -> ! {
    if !refused.use_stderr() {
        refused.exit();
    }
    // Remove clap's tip to put `--` before an unknown option: it would make the option the program of `exec`.
    if refused.kind() == ErrorKind::UnknownArgument {
        refused.remove(ContextKind::Suggested);
    }
    let head = format!("error[{}]:", CommandCode::Usage.code());
    let coded = |text: String| text.replacen("error:", &head, 1);
    let text = refused.render();
    anstream::eprint!("{}", coded(text.ansi().to_string()));
    std::process::exit(refused.exit_code())
}

/// Starts the log of this process on standard error. It shows warnings, or whatever the filter in `PROCTOR_LOG`
/// selects (the syntax is that of `tracing-subscriber`).
pub(crate) fn start_log(caller: &Caller) {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into());
    let filter = filter.parse_lossy(caller.var("PROCTOR_LOG").unwrap_or_default());
    // The MCP library logs every cancelled call; these messages are noise.
    let filter = "rmcp::service=off".parse().map_or(filter.clone(), |quiet| filter.add_directive(quiet));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(false).without_time().init();
}

fn dispatch(command: &Command, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        Command::Run(args) => block_on(run::run(args, caller, screen)),
        Command::Exec(args) => exec::exec(args, caller, screen),
        Command::Doctor(args) => block_on(doctor::doctor(args, caller, screen)),
        Command::Gc(args) => gc::gc(args, caller, screen),
        Command::Import(args) => import::import(args, caller, screen),
        Command::Init(args) => init::init(args, caller, screen),
        Command::Validate(args) => validate::validate(args, caller, screen),
        Command::Plan(args) => plan::plan(args, caller, screen),
        Command::Explain(args) if args.is_about_codes() => codes::explain(args, screen),
        Command::Explain(args) => explain::explain(args, caller, screen),
        Command::Gate(args) => block_on(gate::gate(args, caller, screen)),
        Command::Sql(args) => block_on(sql::sql(&args.command, caller, screen)),
        Command::Hook(args) => block_on(hook::hook(&args.command, caller, screen)),
        Command::Status(args) => block_on(status::status(args, caller, screen)),
        Command::Logs(args) => block_on(logs::logs(args, caller, screen)),
        Command::Report(args) => block_on(report::report(args, caller, screen)),
        Command::Compare(args) => block_on(compare::compare(args, caller, screen)),
        Command::Cancel(args) => block_on(cancel::cancel(args, caller, screen)),
        Command::Watch(args) => block_on(watch::watch(args, caller, screen)),
        Command::Daemon(args) => block_on(daemon::daemon(&args.command, caller, screen)),
        Command::Mcp(args) => block_on(mcp::mcp(args, caller, screen)),
        Command::Schema(args) => tools::schema(args, screen),
        Command::Completions(args) => Ok(tools::completions(args, screen)),
        Command::Man(args) => man::man(args, screen),
    }
}

/// Runs `work` on a multi-threaded runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    run_on(tokio::runtime::Builder::new_multi_thread(), work)
}

/// Runs `work` on a single-threaded runtime. This suits work that mostly waits, for a daemon for example: starting
/// worker threads would take longer than the work itself.
pub(crate) fn block_on_one_thread<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    run_on(tokio::runtime::Builder::new_current_thread(), work)
}

fn run_on<T>(
    mut builder: tokio::runtime::Builder,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let runtime = builder.enable_all().build().map_err(|error| CliError::Environment {
        message: format!("threads could not be started: {error}"),
        hint: "raise the limit of processes (`ulimit -u`)".to_owned(),
    })?;
    let result = runtime.block_on(work);
    // Tasks that are still running have no result to deliver and must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Reports an error on standard error. With `json`, also prints the error document that the calling program expects
/// on standard output.
fn fail(error: &CliError, json: bool, screen: &mut Screen) -> u8 {
    screen.err(&error.render());
    if json && screen.out_json(&error.record()).is_err() {
        return EXIT_INCONCLUSIVE;
    }
    error.exit_code()
}

fn wants_json(command: &Command) -> bool {
    match command {
        Command::Validate(args) => args.format == Format::Json,
        Command::Sql(args) => args.wants_json(),
        Command::Import(args) => args.format == Format::Json,
        Command::Plan(args) => args.format == Format::Json,
        Command::Doctor(args) => args.format == Format::Json,
        Command::Gc(args) => args.format == Format::Json,
        Command::Exec(args) => args.format == Format::Json,
        Command::Gate(args) => args.format == Format::Json,
        Command::Status(args) => args.format == Format::Json,
        Command::Compare(args) => args.format == Format::Json,
        Command::Daemon(args) => {
            matches!(&args.command, DaemonCommand::Status(args) if args.format == Format::Json)
        }
        // These commands write the error in each requested format themselves.
        Command::Run(_) | Command::Report(_) => false,
        Command::Explain(_)
        | Command::Init(_)
        | Command::Hook(_)
        | Command::Logs(_)
        | Command::Cancel(_)
        | Command::Watch(_)
        | Command::Mcp(_)
        | Command::Schema(_)
        | Command::Completions(_)
        | Command::Man(_) => false,
    }
}

/// Returns the exit code, corrected if the result could not be written: a pass that never reached its reader is
/// inconclusive.
fn delivered(code: u8, screen: &mut Screen) -> u8 {
    let Some(error) = screen.lost() else { return code };
    let hint = "check where standard output goes; the disk may be full, for instance".to_owned();
    screen.err(&style::error(
        CommandCode::Unwritten.code(),
        &format!("the result could not be written: {error}"),
        &[hint],
    ));
    if code == 0 { EXIT_INCONCLUSIVE } else { code }
}

fn unreadable_caller(error: &std::io::Error) -> ExitCode {
    use std::io::Write as _;
    // Ignore the error: standard error may be closed too.
    let _ = writeln!(
        std::io::stderr(),
        "error[P0002]: the current directory cannot be determined: {error}\nhint: go to a directory that exists"
    );
    ExitCode::from(EXIT_INCONCLUSIVE)
}
