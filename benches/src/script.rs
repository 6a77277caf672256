//! The token bucket as a Lua script: what is used where no module can be loaded.

use crate::connection::Connection;
use anyhow::Result;
use std::sync::LazyLock;

const SOURCE: &str = include_str!("token_bucket.lua");

/// Makes the script known to a server.
pub fn load(connection: &mut Connection) -> Result<()> {
    connection.ask(&["SCRIPT", "LOAD", SOURCE]).map(drop)
}

/// What `EVALSHA` calls it by.
pub fn sha() -> &'static str {
    static SHA: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SOURCE).digest().to_string());
    &SHA
}
