//! The git helper.
fn main() {}
