//! Schemas, tidy, test counts.
fn main() {}
