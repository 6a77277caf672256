//! `tokenbucket-gate`: see the README.

fn main() {}
