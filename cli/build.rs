//! Links `proctor` at fixed addresses. A position-independent program of its size has 43,000 addresses corrected at each
//! start, which copies 200 pages: 0.6 ms or more of a command that takes a few. The libraries, the heap and the stack
//! have random addresses all the same.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[expect(clippy::disallowed_methods, reason = "cargo tells a build script of the target by its environment")]
    let target = ["CARGO_CFG_TARGET_OS", "CARGO_CFG_TARGET_ENV"].map(|name| std::env::var(name).unwrap_or_default());
    if target == ["linux", "gnu"] {
        println!("cargo::rustc-link-arg-bin=proctor=-no-pie");
    }
}
