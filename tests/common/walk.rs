//! Random calls on one bucket, each judged by the model.

use super::model::{exact, fraction, whole, Exact, ExactLimit, Model, Wish};
use super::{Connection, Decision, Random, Server};

/// Rates: as clients write them, the count, and the period in microseconds.
pub const RATES: &[Rate] = &[
    ("1", "1", 1_000_000),
    ("5", "5", 1_000_000),
    ("3.7", "3.7", 1_000_000),
    ("0.25", "0.25", 1_000_000),
    ("1e-3", "1e-3", 1_000_000),
    ("1E3", "1e3", 1_000_000),
    ("123456.789", "123456.789", 1_000_000),
    ("1e12", "1e12", 1_000_000),
    ("100/m", "100", 60_000_000),
    ("100/h", "100", 3_600_000_000),
    ("7/d", "7", 86_400_000_000),
    ("1/250ms", "1", 250_000),
    ("10/10s", "10", 10_000_000),
    ("1/3s", "1", 3_000_000),
    ("0.7/1.1m", "0.7", 66_000_000),
    ("999999/7h", "999999", 25_200_000_000),
    ("1/365d", "1", 31_536_000_000_000),
];

/// One of [`RATES`].
pub type Rate = (&'static str, &'static str, i64);

/// Those of [`RATES`] that are a whole number of tokens a second, at which nothing is ever rounded.
pub fn whole_rates() -> Vec<Rate> {
    let is_whole = |count: &str, period_us: i64| (exact(count) * fraction(1_000_000, period_us)).is_integer();
    RATES.iter().copied().filter(|(_, count, period_us)| is_whole(count, *period_us)).collect()
}

/// A limit at one of the rates, that fills within 100 years.
pub fn limit(random: &mut Random, rates: &[Rate]) -> ExactLimit {
    let century_us = whole(3_155_760_000_000_000);
    loop {
        let (words, count, period_us) = *random.pick(rates);
        let limit = ExactLimit::new(&capacity(random), words, count, period_us);
        if limit.time_us(&limit.capacity) <= century_us {
            return limit;
        }
    }
}

fn capacity(random: &mut Random) -> String {
    let usual = ["0.000001", "0.5", "1", "1.5", "3", "10", "33.333333", "100", "1e3", "123456.789012"];
    match random.below(4) {
        0 => random.between(1, 1000).to_string(),
        1 => format!("{}.{:06}", random.between(0, 9), random.between(1, 999_999)),
        _ => (*random.pick(&usual)).to_owned(),
    }
}

/// Tokens near what matters: nothing, a little, one, a share of the capacity, all of it, and too much.
pub fn amount(random: &mut Random, limit: &ExactLimit) -> Exact {
    let micro_token = || fraction(1, 1_000_000);
    let tokens = match random.below(10) {
        0 => whole(0),
        1 => micro_token(),
        2 | 3 => whole(1),
        4 => limit.capacity.clone(),
        5 => &limit.capacity + micro_token(),
        _ => &limit.capacity * fraction(random.between(0, 1000), 1000),
    };
    (tokens / micro_token()).floor() * micro_token()
}

/// A time in which something can happen: none, little, or a part of what filling the bucket takes.
pub fn pause_us(random: &mut Random, limit: &ExactLimit) -> i64 {
    let fill_us: i64 = limit.time_us(&limit.capacity).ceil().to_integer().try_into().unwrap();
    let part = |random: &mut Random, parts: i64| random.between(0, fill_us / parts + 1);
    match random.below(8) {
        0 => 0,
        1 => random.between(1, 10),
        2 | 3 => part(random, 100),
        4..=6 => part(random, 5),
        _ => part(random, 1) * 2,
    }
}

/// One bucket of a server with a controlled clock, and its model.
pub struct Walk<'a> {
    server: &'a Server,
    client: Connection,
    key: String,
    model: Model,
}

impl<'a> Walk<'a> {
    /// A bucket of its own for each `number`.
    pub fn new(server: &'a Server, number: u64) -> Self {
        Self { server, client: server.connect(), key: format!("walk:{number}"), model: Model::default() }
    }

    /// Makes a call and judges what is stored before it, what `TB.PEEK` foresees, and the decision.
    pub fn call(&mut self, limit: &ExactLimit, wish: &Wish) -> Decision {
        let now_us = self.server.clock().now_us();
        let stored = self.client.state(&self.key);
        match &stored {
            None => self.model.vanish(now_us),
            Some((level, refilled_at_us)) => self.model.judge_state(limit, now_us, level, *refilled_at_us),
        }
        let foreseen = matches!(wish, Wish::Take(_)).then(|| self.peek(limit, wish));
        assert_eq!(self.client.state(&self.key), stored, "a trace of TB.PEEK");
        let decision = self.client.decide(&wish.words(&self.key, limit));
        assert!(foreseen.is_none_or(|foreseen| foreseen == decision), "{wish:?}: {foreseen:?}, {decision:?}");
        self.model.follow(limit, wish, now_us, decision);
        decision
    }

    /// What a take would be told.
    pub fn peek(&mut self, limit: &ExactLimit, take: &Wish) -> Decision {
        let words = take.words(&self.key, limit);
        self.client.decide(&words.replace("TB.TAKE ", "TB.PEEK "))
    }
}
