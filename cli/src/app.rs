//! Parses the command line, runs the command, and returns the exit code of the process.

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::{ContextKind, ErrorKind};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;

use crate::args::{Cli, CliCommand, DaemonCommand, OutputFormat};
use crate::caller::Caller;
use crate::commands::{
    cache, cancel, codes, compare, daemon, doctor, du, exec, explain, gate, gc, generated_texts, hook, import, init,
    logs, man, mcp, plan, report, run, runs, sql, status, validate, watch,
};
use crate::error::CliError;
use crate::interrupt;
use crate::log::start_log;
use crate::runtime::{block_on, block_on_one_thread};
use crate::screen::Screen;
use crate::style;

/// Runs the program and returns its exit code.
pub(crate) fn main() -> ExitCode {
    interrupt::install_panic_hook();
    let cli = Cli::parse_exec().unwrap_or_else(|| Cli::try_parse().unwrap_or_else(|refused| exit_with_usage(refused)));
    // The signals of a command that was handed over stay blocked until something listens for them.
    if !cli.command.is_handed_over()
        && let Err(error) = proctor_runner::restore_signal_handling()
    {
        eprintln!("warning: the signal settings of the calling program remain in effect: {error}");
    }
    let caller = match Caller::read() {
        Ok(caller) => caller,
        Err(error) => return report_unreadable_caller(&error),
    };
    // `exec` starts the log itself, because a complete result needs none.
    if !matches!(cli.command, CliCommand::Exec(_)) {
        start_log(&caller);
    }
    let mut screen = Screen::new(cli.color, &caller);
    let code = match dispatch(&cli.command, &caller, &mut screen) {
        Ok(code) => code,
        Err(error) => report_error(&error, wants_json(&cli.command), &mut screen),
    };
    ExitCode::from(final_exit_code(code, &mut screen))
}

/// Prints the output of the argument parser and exits: help, the version, or a usage error. A usage error is printed
/// with its error code.
fn exit_with_usage(mut usage_error: clap::Error) -> ! {
    if !usage_error.use_stderr() {
        usage_error.exit();
    }
    // Remove clap's tip to put `--` before an unknown option: it would make the option the program of `exec`.
    if usage_error.kind() == ErrorKind::UnknownArgument {
        usage_error.remove(ContextKind::Suggested);
    }
    let head = format!("error[{}]:", CommandCode::Usage.code());
    let coded = |text: String| text.replacen("error:", &head, 1);
    let text = usage_error.render();
    anstream::eprint!("{}", coded(text.ansi().to_string()));
    std::process::exit(usage_error.exit_code())
}

fn dispatch(command: &CliCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        CliCommand::Run(args) => run::run(args, caller, screen),
        CliCommand::Exec(args) => exec::exec(args, caller, screen),
        CliCommand::Doctor(args) => block_on(doctor::doctor(args, caller, screen)),
        CliCommand::Gc(args) => gc::gc(args, caller, screen),
        CliCommand::Du(args) => du::du(args, caller, screen),
        CliCommand::Cache(args) => cache::cache(&args.command, caller, screen),
        CliCommand::Import(args) => import::import(args, caller, screen),
        CliCommand::Init(args) => init::init(args, caller, screen),
        CliCommand::Validate(args) => validate::validate(args, caller, screen),
        CliCommand::Plan(args) => plan::plan(args, caller, screen),
        CliCommand::Explain(args) if args.is_about_codes() => codes::explain(args, screen),
        CliCommand::Explain(args) => block_on(explain::explain(args, caller, screen)),
        CliCommand::Gate(args) => block_on_one_thread(gate::gate(args, caller, screen)),
        CliCommand::Sql(args) => block_on(sql::sql(&args.command, caller, screen)),
        CliCommand::Hook(args) => block_on(hook::hook(&args.command, caller, screen)),
        CliCommand::Status(args) => block_on_one_thread(status::status(args, caller, screen)),
        CliCommand::Runs(args) => runs::runs(args, caller, screen),
        CliCommand::Logs(args) => block_on_one_thread(logs::logs(args, caller, screen)),
        CliCommand::Report(args) => block_on_one_thread(report::report(args, caller, screen)),
        CliCommand::Compare(args) => block_on_one_thread(compare::compare(args, caller, screen)),
        CliCommand::Cancel(args) => block_on_one_thread(cancel::cancel(args, caller, screen)),
        CliCommand::Watch(args) => block_on_one_thread(watch::watch(args, caller, screen)),
        CliCommand::Daemon(args) => block_on(daemon::daemon(&args.command, caller, screen)),
        CliCommand::Mcp(args) => block_on(mcp::mcp(args, caller, screen)),
        CliCommand::Schema(args) => generated_texts::schema(args, screen),
        CliCommand::Completions(args) => Ok(generated_texts::completions(args, screen)),
        CliCommand::Man(args) => man::man(args, screen),
    }
}

/// Reports an error on standard error. With `json`, also prints the error document that the calling program expects
/// on standard output.
fn report_error(error: &CliError, json: bool, screen: &mut Screen) -> u8 {
    screen.err(&error.render());
    if json && screen.out_json(&error.to_record()).is_err() {
        return EXIT_INCONCLUSIVE;
    }
    error.exit_code()
}

fn wants_json(command: &CliCommand) -> bool {
    match command {
        CliCommand::Validate(args) => args.format == OutputFormat::Json,
        CliCommand::Sql(args) => args.wants_json(),
        CliCommand::Import(args) => args.format == OutputFormat::Json,
        CliCommand::Plan(args) => args.format == OutputFormat::Json,
        CliCommand::Doctor(args) => args.format == OutputFormat::Json,
        CliCommand::Gc(args) => args.format == OutputFormat::Json,
        CliCommand::Du(args) => args.format == OutputFormat::Json,
        CliCommand::Cache(args) => args.command.shared().format == OutputFormat::Json,
        CliCommand::Exec(args) => args.format == OutputFormat::Json,
        CliCommand::Gate(args) => args.format == OutputFormat::Json,
        CliCommand::Status(args) => args.format == OutputFormat::Json,
        CliCommand::Runs(args) => args.format == OutputFormat::Json,
        CliCommand::Compare(args) => args.format == OutputFormat::Json,
        CliCommand::Daemon(args) => {
            matches!(&args.command, DaemonCommand::Status(args) if args.format == OutputFormat::Json)
        }
        // These commands write the error in each requested format themselves.
        CliCommand::Run(_) | CliCommand::Report(_) => false,
        CliCommand::Explain(_)
        | CliCommand::Init(_)
        | CliCommand::Hook(_)
        | CliCommand::Logs(_)
        | CliCommand::Cancel(_)
        | CliCommand::Watch(_)
        | CliCommand::Mcp(_)
        | CliCommand::Schema(_)
        | CliCommand::Completions(_)
        | CliCommand::Man(_) => false,
    }
}

/// Returns the exit code, corrected if the result could not be written: a pass that never reached its reader is
/// inconclusive.
fn final_exit_code(code: u8, screen: &mut Screen) -> u8 {
    let Some(error) = screen.take_write_error() else { return code };
    let hint = "check where standard output goes; the disk may be full, for instance".to_owned();
    screen.err(&style::error(
        CommandCode::Unwritten.code(),
        &format!("the result could not be written: {error}"),
        &[hint],
    ));
    if code == 0 { EXIT_INCONCLUSIVE } else { code }
}

fn report_unreadable_caller(error: &std::io::Error) -> ExitCode {
    use std::io::Write as _;
    // Ignore the error: standard error may be closed too.
    let _ = writeln!(
        std::io::stderr(),
        "error[P0002]: the current directory cannot be determined: {error}\nhint: go to a directory that exists"
    );
    ExitCode::from(EXIT_INCONCLUSIVE)
}
