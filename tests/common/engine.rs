//! Which server is under test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

pub fn executable() -> PathBuf {
    std::env::var_os("SERVER").unwrap_or_else(|| "redis-server".into()).into()
}

/// The C compiler for what is preloaded into the server under test, if that is not for this machine: `SERVER_CC`.
pub fn foreign_compiler() -> Option<PathBuf> {
    std::env::var_os("SERVER_CC").map(PathBuf::from)
}

/// The `redis-cli` on the path, or what `REDIS_CLI` says.
pub fn redis_cli() -> PathBuf {
    std::env::var_os("REDIS_CLI").unwrap_or_else(|| "redis-cli".into()).into()
}

/// Returns whether the tested server lacks what Redis has from this version on. Redict and Valkey began as Redis 7.2.
pub fn is_before(major: u32, minor: u32) -> bool {
    let Engine { brand, version } = Engine::under_test();
    let version = if brand == Brand::Redis { version } else { (7, 2) };
    version < (major, minor)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brand {
    Redis,
    Redict,
    Valkey,
}

/// The server under test. Tests ask it only for what a server is known to lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    pub brand: Brand,
    /// Major and minor version.
    pub version: (u32, u32),
}

impl Engine {
    pub fn under_test() -> Self {
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        *ENGINE.get_or_init(|| {
            let output = Command::new(executable()).arg("--version").output().unwrap_or_else(|error| {
                panic!("{} cannot be run: {error}; say which server with SERVER=path", executable().display())
            });
            // `Redis server v=7.0.15 …`
            let line = String::from_utf8_lossy(&output.stdout);
            let brand = match line.split_whitespace().next() {
                Some("Redis") => Brand::Redis,
                Some("Redict") => Brand::Redict,
                Some("Valkey") => Brand::Valkey,
                other => panic!("neither Redis nor one of its descendants: {other:?}"),
            };
            let (_, version) = line.split_once("v=").unwrap();
            let mut numbers = version.split(['.', ' ']).map(|number| number.parse().unwrap());
            Self { brand, version: (numbers.next().unwrap(), numbers.next().unwrap()) }
        })
    }

    /// Returns whether a user's rights can depend on the database.
    pub fn has_rights_by_database(&self) -> bool {
        self.brand == Brand::Valkey && self.version >= (9, 1)
    }

    /// Returns whether modules can have an ACL category of their own.
    pub fn has_module_categories(&self) -> bool {
        self.brand != Brand::Redis || self.version >= (7, 4)
    }
}
