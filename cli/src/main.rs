//! The command-line program `proctor`. It parses arguments and prints results; every rule about passing and failing
//! is in the core crate.

mod app;
mod apparmor;
mod args;
mod caller;
mod commands;
mod daemon;
mod destination_file;
mod diagnostics;
mod engine;
mod error;
#[cfg(test)]
mod fixture;
mod human_report;
mod installation;
mod interrupt;
mod loaded_spec;
#[cfg(test)]
mod manual;
mod progress;
mod report_outputs;
mod run_display;
mod run_documents;
mod schema;
mod screen;
mod style;
mod text;

fn main() -> std::process::ExitCode {
    app::main()
}
