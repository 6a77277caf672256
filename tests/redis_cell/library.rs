//! Where redis-cell comes from.
//!
//! `REDIS_CELL` says which library to load. Without it, the crate that its author published is built once. Nothing of
//! redis-cell is part of this project.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library that servers load.
pub fn redis_cell() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| match std::env::var_os("REDIS_CELL").map(PathBuf::from) {
        None => published(),
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
    build.arg(folder.join("lock")).arg(root.join("benches/build-redis-cell.sh")).arg(&folder);
    assert!(build.status().is_ok_and(|status| status.success()), "{build:?}");
    folder.join("libredis_cell.so")
}
