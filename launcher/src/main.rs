//! The program `proctor`. It is small, so that it starts fast: a short `exec` takes less time in a daemon than the start
//! of the full command line. It sends such a command to a daemon itself and prints a plain pass. Everything else, and
//! every other result, is handed over to `proctord`, which contains the full command line.

mod exec_attempt;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use proctor_client::exec_handover::{self, ExecHandover};
use proctor_client::installation::{MAIN_PROGRAM, find_program};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;

use crate::exec_attempt::ExecAttempt;

/// The name under which `proctord` is the command line.
const NAME: &str = "proctor";

fn main() -> ExitCode {
    if let Err(error) = proctor_sandbox::restore_signal_handling() {
        report(&format!("warning: the signal settings of the calling program remain in effect: {error}"));
    }
    let words: Vec<OsString> = std::env::args_os().collect();
    let attempt = exec_attempt::attempt_exec(&words);
    let handover = match attempt {
        ExecAttempt::Printed(code) => return ExitCode::from(code),
        ExecAttempt::HandOver(handover) => Some(handover),
        ExecAttempt::NotStarted => None,
    };
    let error = execute_main_program(words, handover.as_ref());
    report(&format!("error[{}]: {}\nhint: {}", CommandCode::Environment.code(), error.message, error.hint));
    ExitCode::from(EXIT_INCONCLUSIVE)
}

/// The reason why the main program does not run.
struct MainProgramError {
    message: String,
    hint: String,
}

/// Replaces this program by the main program, with the same arguments. Returns only if that fails.
fn execute_main_program(words: Vec<OsString>, handover: Option<&ExecHandover>) -> MainProgramError {
    let program = match std::env::current_exe() {
        Ok(own) => find_program(MAIN_PROGRAM, own.parent().unwrap_or(Path::new("/"))),
        Err(error) => {
            let message = format!("the path of the program cannot be determined: {error}");
            return MainProgramError { message, hint: "mount /proc".to_owned() };
        }
    };
    let program = match program {
        Ok(program) => program,
        Err(error) => {
            return MainProgramError { message: error.to_string(), hint: error.hint().unwrap_or_default().to_owned() };
        }
    };
    let error = command(&program, words, handover).exec();
    MainProgramError {
        message: format!("`{}` cannot be executed: {error}", proctor_client::installation::show(&program)),
        hint: "install proctor's programs again".to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "executes `proctord`, which contains the full command line")]
fn command(program: &Path, words: Vec<OsString>, handover: Option<&ExecHandover>) -> Command {
    let mut command = Command::new(program);
    let mut words = words.into_iter().skip(1);
    command.arg0(NAME);
    if let Some(handover) = handover {
        // The first word is `exec`.
        command.args(words.next()).arg(exec_handover::OPTION).arg(handover.option_value());
    }
    command.args(words);
    command
}

/// Writes lines to standard error. Errors are ignored, because there is no other stream to report them on.
fn report(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
