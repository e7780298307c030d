//! Sets the linker options of the programs in this package and in those whose manifests name this file.

use std::env;

/// Links the programs at a fixed address. The dynamic loader would otherwise process tens of thousands of relocations at
/// each start, which takes a millisecond and more, and their table would make the programs larger. Libraries, stack and
/// heap still have random addresses. `proctor-git`, which parses the files of a repository with C code, and outside of a
/// sandbox, is not among these programs: it has few relocations.
#[expect(clippy::disallowed_methods, reason = "cargo passes the target to a build script in the environment")]
fn main() {
    println!("cargo:rerun-if-changed=../cli/build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
