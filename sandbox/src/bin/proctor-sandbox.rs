//! The sandbox helper. The daemon starts it with a control socket as its standard input; it is not meant to be run by
//! users. The library contains all of its code.

// The C library's allocator soon returns memory through a system call that waits for each processor on which this
// process has run. This allocator does so for large blocks only, and keeps small ones on few pages.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> std::process::ExitCode {
    proctor_sandbox::helper::main()
}
