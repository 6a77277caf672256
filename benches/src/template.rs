//! Commands with places for keys and limits.

use redis::{Cmd, Pipeline, Script};
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The token bucket as a Lua script, as people copy it.
pub static TOKEN_BUCKET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("token_bucket.lua")));
/// What clients decide by where no module can be loaded.
pub static FALLBACK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../clients/fallback.lua")));
/// The semaphore as people copy it.
pub static SEMAPHORE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("semaphore.lua")));

/// So many tokens at once, and so many in so many seconds.
#[derive(Clone, Copy)]
pub struct Limit {
    pub capacity: u64,
    pub count: u64,
    pub period_s: u64,
}

impl Limit {
    /// Tokens a second.
    pub fn rate(self) -> f64 {
        self.count as f64 / self.period_s as f64
    }

    /// The window of approaches that count in windows: `capacity` in it is the rate. In milliseconds.
    fn window_ms(self) -> u64 {
        self.capacity * self.period_s * 1000 / self.count
    }

    /// As the module's commands are told the rate.
    fn rate_argument(self) -> String {
        match self.period_s {
            1 => self.count.to_string(),
            3600 => format!("{}/h", self.count),
            period_s => format!("{}/{period_s}s", self.count),
        }
    }
}

/// Adds the commands of a text, between ` ; `. In it the names of what a limit has stand for that, `{id}` for who decides,
/// `{uuid}` for the same at the length of a UUID, `{key}` for the next key, `{bucket}` for the arguments of a take from
/// one, and `{now_ms}` for the time of the client.
pub fn add(batch: &mut Pipeline, text: &str, limit: Limit, id: &str, mut key: impl FnMut() -> String) {
    for command in text.split(" ; ").filter(|command| !command.is_empty()) {
        let mut filled = Cmd::new();
        for word in command.split(' ') {
            match word {
                "{bucket}" => filled.arg(key()).arg(limit.capacity).arg(limit.rate_argument()).arg(1),
                "{capacity}" => filled.arg(limit.capacity),
                "{burst}" => filled.arg(limit.capacity - 1),
                "{count}" => filled.arg(limit.count),
                "{period_s}" => filled.arg(limit.period_s),
                "{rate}" => filled.arg(limit.rate_argument()),
                "{tokens_s}" => filled.arg(limit.rate().to_string()),
                "{window_ms}" => filled.arg(limit.window_ms()),
                "{token-bucket}" => filled.arg(TOKEN_BUCKET.get_hash()),
                "{fallback}" => filled.arg(FALLBACK.get_hash()),
                "{semaphore}" => filled.arg(SEMAPHORE.get_hash()),
                "{now_us}" => filled.arg(now_us()),
                "{now_ms}" => filled.arg(now_us() / 1000),
                "{window_begin_us}" => filled.arg(now_us().saturating_sub(limit.window_ms() * 1000)),
                "{id}" => filled.arg(id),
                "{uuid}" => filled.arg(format!("{id:0>36}")),
                word if word.contains("{key}") => filled.arg(word.replace("{key}", &key())),
                word => filled.arg(word),
            };
        }
        batch.add_command(filled);
    }
}

/// The key of a user: 12 bytes, up to ten million of them.
pub fn key(number: u64) -> String {
    format!("user:{number:07}")
}

/// The time of a client, in Unix microseconds.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    since.as_micros() as u64
}
