#!/usr/bin/env bash
# build-redis-cell.sh FOLDER   Builds redis-cell, the rate limiter that CL.THROTTLE comes from, out of the crate that its
# author published, into FOLDER/libredis_cell.so. Nothing of it is part of this project.
set -euo pipefail
version=0.2.2
folder=$(realpath -m "${1:?a folder is needed}")
[ -e "$folder/libredis_cell.so" ] && exit
echo "building redis-cell $version"
build=$folder/redis-cell-$version
rm -rf "$build"
mkdir -p "$build/src"
: >"$build/src/lib.rs"
cat >"$build/Cargo.toml" <<MANIFEST
[package]
name = "fetch-redis-cell"
version = "0.0.0"
edition = "2021"
[dependencies]
redis-cell = "=$version"
[workspace]
MANIFEST
cargo vendor --quiet --manifest-path "$build/Cargo.toml" "$build/vendor" >/dev/null
# A workspace of its own, and with Rust's library linked into it: as published it would have to be found at run time.
echo '[workspace]' >>"$build/vendor/redis-cell/Cargo.toml"
RUSTFLAGS='--cap-lints allow' cargo rustc --quiet --release --lib --crate-type cdylib \
    --manifest-path "$build/vendor/redis-cell/Cargo.toml" --target-dir "$build/target"
cp "$build/target/release/libredis_cell.so" "$folder/libredis_cell.so"
