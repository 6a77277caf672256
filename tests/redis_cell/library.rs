//! Where redis-cell comes from.
//!
//! `REDIS_CELL` says which: the library to load, or a folder with its source, which is built here. Without it, the
//! crate that its author published is built once. Nothing of redis-cell is part of this project.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library that servers load.
pub fn redis_cell() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| match std::env::var_os("REDIS_CELL").map(PathBuf::from) {
        None => published(),
        Some(folder) if folder.is_dir() => built_from(&folder),
        Some(library) => {
            assert!(library.exists(), "REDIS_CELL={}: there is no such file", library.display());
            library.canonicalize().unwrap()
        }
    })
}

fn published() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("target/redis-cell");
    std::fs::create_dir_all(&folder).unwrap();
    // One at a time: several test programs may want it at once.
    let mut build = Command::new("flock");
    run(build.arg(folder.join("lock")).arg(root.join("benches/build-redis-cell.sh")).arg(&folder));
    folder.join("libredis_cell.so")
}

fn built_from(source: &Path) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("redis-cell");
    let mut build = Command::new("cargo");
    build.args(["rustc", "--quiet", "--release", "--lib", "--crate-type", "cdylib", "--manifest-path"]);
    run(build.arg(source.join("Cargo.toml")).arg("--target-dir").arg(&target));
    target.join("release/libredis_cell.so")
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
