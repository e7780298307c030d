//! `proctord`, the daemon.

fn main() -> std::process::ExitCode {
    proctor_daemon::life::main()
}
