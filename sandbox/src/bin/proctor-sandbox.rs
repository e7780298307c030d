//! Runs the sandbox helper. The daemon starts it with a control socket as its standard input; users do not run it.
//! With the argument `agent`, it is the agent of a remote worker instead. All of its code is in the library.

use std::process::ExitCode;

// The C library's allocator returns freed memory early, through a system call that waits for each processor on which
// this process has run. This allocator does so for large blocks only, and keeps small blocks on few pages.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(argument) if argument == proctor_sandbox::worker_agent::AGENT_ARGUMENT => {
            proctor_sandbox::worker_agent::main()
        }
        _ => proctor_sandbox::helper::main(),
    }
}
