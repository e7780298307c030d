//! `proctor`, the command line: words in, text and an exit code out. No rule about passing or
//! failing stands here; those are the core's.

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
