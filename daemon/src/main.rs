//! The `proctord` program.

fn main() -> std::process::ExitCode {
    proctor_daemon::lifecycle::main()
}
