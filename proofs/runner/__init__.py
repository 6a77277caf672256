"""Proves theorems about Rust functions, on the LLVM IR that rustc makes of them."""
