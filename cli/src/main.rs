//! The program `proctord`: the daemon, or the command line if it was started with the name `proctor`. The command line
//! parses arguments and prints results; every rule about passing and failing is in the core crate.

mod app;
mod apparmor;
mod args;
mod caller;
mod commands;
mod daemon;
mod destination_file;
mod diagnostics;
mod documents_record;
mod engine;
mod error;
#[cfg(test)]
mod fixture;
mod human_report;
mod installation;
mod interrupt;
mod loaded_spec;
mod log;
#[cfg(test)]
mod manual;
mod named_run;
mod process_group;
mod progress;
mod report_outputs;
mod run_display;
mod run_documents;
mod runtime;
mod schema;
mod screen;
mod style;
mod text;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// The name of the command line.
const COMMAND_LINE: &str = "proctor";

fn main() -> ExitCode {
    let name = std::env::args_os().next();
    if name.as_deref().and_then(|name| Path::new(name).file_name()) == Some(OsStr::new(COMMAND_LINE)) {
        // Without this, process lists would show the name of the file, `proctord`.
        let _ = rustix::thread::set_name(c"proctor");
        return app::main();
    }
    proctor_daemon::lifecycle::main()
}
