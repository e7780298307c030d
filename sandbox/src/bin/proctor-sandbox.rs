//! Runs the sandbox helper. The daemon starts it with a control socket as its standard input; users do not run it.
//! All of its code is in the library.

// The C library's allocator returns freed memory early, through a system call that waits for each processor on which
// this process has run. This allocator does so for large blocks only, and keeps small blocks on few pages.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> std::process::ExitCode {
    proctor_sandbox::helper::main()
}
