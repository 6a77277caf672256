//! What a bucket is limited to.

/// So many tokens at once, and so many in so many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub capacity: u64,
    pub count: u64,
    pub period_s: u64,
}

impl Limit {
    /// As the module's commands are told the rate.
    pub fn rate_words(self) -> String {
        match self.period_s {
            1 => self.count.to_string(),
            period_s => format!("{}/{period_s}s", self.count),
        }
    }

    /// Tokens a second.
    pub fn rate(self) -> f64 {
        self.count as f64 / self.period_s as f64
    }

    /// The window of approaches that count in windows: `capacity` in it is the rate. In milliseconds.
    pub fn window_ms(self) -> u64 {
        self.capacity * self.period_s * 1000 / self.count
    }
}
