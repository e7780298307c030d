//! The sandbox helper: started by the daemon with a control socket as its standard input, never
//! by a person. All of it lives in the library.

// A C library's own soon gives memory back by a system call, which waits for each processor that this
// process was on. This one does so for what is large only, and keeps what is small on few pages.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> std::process::ExitCode {
    proctor_sandbox::helper::main()
}
