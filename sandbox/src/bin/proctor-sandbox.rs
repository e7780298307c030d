//! The sandbox helper.
fn main() {}
