//! Commands with places for keys and limits.

use redis::Cmd;
use std::sync::LazyLock;

/// The token bucket as a Lua script: what is used where no module can be loaded.
pub const SCRIPT: &str = include_str!("token_bucket.lua");

/// So many tokens at once, and so many in so many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub fn window_ms(self) -> u64 {
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

/// A command of which only the keys are left open.
#[derive(Clone, Debug)]
pub struct Template {
    words: Vec<String>,
}

impl Template {
    /// Reads a command in which `{capacity}`, `{burst}` (one less), `{count}`, `{period_s}`, `{rate}` (as the module reads
    /// it), `{tokens_s}` and `{window_ms}` stand for the limit, `{cost}` for one token, `{id}` for the name of a hold, as long
    /// as a UUID, `{script}` for what EVALSHA calls the script by, and `{key}` for a key.
    pub fn new(text: &str, limit: Limit) -> Self {
        let places = [
            ("{capacity}", limit.capacity.to_string()),
            ("{burst}", (limit.capacity - 1).to_string()),
            ("{count}", limit.count.to_string()),
            ("{period_s}", limit.period_s.to_string()),
            ("{rate}", limit.rate_argument()),
            ("{tokens_s}", limit.rate().to_string()),
            ("{window_ms}", limit.window_ms().to_string()),
            ("{cost}", "1".to_owned()),
            ("{id}", "1d0e8c5a-0b1c-4b1e-9f65-3a0f7d1c2b4e".to_owned()),
            ("{script}", script_sha().to_owned()),
        ];
        let filled = places.iter().fold(text.to_owned(), |text, (place, value)| text.replace(place, value));
        Self { words: filled.split_whitespace().map(str::to_owned).collect() }
    }

    /// The command's name.
    pub fn command(&self) -> &str {
        &self.words[0]
    }

    /// How many keys it takes.
    pub fn keys(&self) -> u64 {
        self.words.iter().filter(|word| word.contains("{key}")).count() as u64
    }

    /// The command on keys.
    pub fn on(&self, mut key: impl FnMut() -> String) -> Cmd {
        let mut command = Cmd::new();
        for word in &self.words {
            if word.contains("{key}") {
                command.arg(word.replace("{key}", &key()));
            } else {
                command.arg(word);
            }
        }
        command
    }
}

/// The key of a user: 12 bytes, up to ten million of them.
pub fn key(number: u64) -> String {
    format!("user:{number:07}")
}

fn script_sha() -> &'static str {
    static SHA: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SCRIPT).digest().to_string());
    &SHA
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_filled_in() {
        let limit = Limit { capacity: 10, count: 5, period_s: 60 };
        let template = Template::new("CL.THROTTLE {key} {burst} {count} {period_s}", limit);
        let packed = template.on(|| "user:1".to_owned()).get_packed_command();
        let words = "*5\r\n$11\r\nCL.THROTTLE\r\n$6\r\nuser:1\r\n$1\r\n9\r\n$1\r\n5\r\n$2\r\n60\r\n";
        assert_eq!(String::from_utf8_lossy(&packed), words);
        assert_eq!((template.command(), template.keys()), ("CL.THROTTLE", 1));
    }
}
