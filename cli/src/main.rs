//! The command-line program `proctor`. It parses arguments and prints results; every rule about passing and failing
//! is in the core crate.

mod app;
mod apparmor;
mod args;
mod caller;
mod commands;
mod daemon;
mod diagnostics;
mod engine;
mod error;
#[cfg(test)]
mod fixture;
mod installation;
mod interrupt;
#[cfg(test)]
mod manual;
mod progress;
mod recorded;
mod report;
mod reports;
mod runs;
mod schema;
mod screen;
mod specfile;
mod style;
mod target;
mod text;

fn main() -> std::process::ExitCode {
    app::main()
}
