//! The one binary, `punctual`.
fn main() {}
