//! The sandbox helper: started by the daemon with a control socket as its standard input, never
//! by a person. All of it lives in the library.

fn main() -> std::process::ExitCode {
    proctor_sandbox::helper::main()
}
