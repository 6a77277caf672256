//! The same calls at the same moments, on redis-cell and on the module; what the module says is judged by the model too.

use crate::cell::{throttle, with_redis_cell, Cell, Limit, Reply, Told, MS, S, US};
use crate::common::exact::{self, whole, Model};
use crate::common::{text, walk, Connection, Random, Server};
use num_traits::ToPrimitive;
use redis::Value;

/// Two servers, and one key after the other on both.
pub struct Walk {
    pub server: Server,
    pub client: Connection,
    pub cell: Cell,
    pub random: Random,
    pub key: String,
    /// `None` of a bucket that redis-cell left, of which the model has not heard.
    model: Option<Model>,
    /// How far the moments at which the two buckets are full may lie apart by rounding, in nanoseconds.
    slack_ns: i64,
    pub met: Met,
}

/// Calls, by what became of them.
#[derive(Debug, Default)]
pub struct Met {
    pub compared: u64,
    pub limited: u64,
    /// The two fell apart at the very edge, where one rounds in the caller's favour and the other does not.
    pub parted: u64,
    /// redis-cell had forgotten the bucket before it was full.
    pub lost: u64,
}

impl Walk {
    pub fn new(salt: u64) -> Self {
        let (server, client) = Server::with_clock_and_client();
        let cell = Cell::start(with_redis_cell().clock_of(&server));
        let (random, key, met) = (Random::new(salt), String::new(), Met::default());
        Self { server, client, cell, random, key, model: None, slack_ns: 0, met }
    }

    /// Goes on to a key that is on neither server, with a limit at one of the rates.
    pub fn begin(&mut self, number: u64, rates: &[(i64, i64)]) -> Limit {
        (self.key, self.model, self.slack_ns) = (format!("key:{number}"), Some(Model::default()), 0);
        let (count, period_s) = *self.random.pick(rates);
        let any = self.random.between(0, 1000);
        Limit { burst: *self.random.pick(&[0, 1, 4, 15, 99, any]), count, period_s }
    }

    /// Moves what redis-cell has stored in the key to the module. False if there is nothing.
    pub fn take_over(&mut self) -> bool {
        self.model = None;
        let stored = self.cell.client.run(&["GET", &self.key]);
        if stored != Value::Nil {
            self.client.run(&["SET", &self.key, &text(&stored)]);
        }
        stored != Value::Nil
    }

    /// Sends one call to both and compares every field; `None` if they parted.
    pub fn step(&mut self, limit: &Limit, quantity: Option<i64>) -> Option<Reply> {
        let told = self.cell.throttle(&self.key, limit, quantity);
        if told.lost_ns > 0 {
            self.met.lost += 1;
            self.client.run(&["DEL", &self.key]);
            self.model = Some(Model::default());
        }
        let ours = self.judged(limit, quantity);
        self.met.compared += 1;
        self.met.limited += u64::try_from(told.reply[0]).unwrap();
        if limit.is_exact() {
            assert_eq!(ours, told.reply, "{} {} {quantity:?}: {told:?}", self.key, limit.words());
            return Some(ours);
        }
        self.compare_rounded(limit, quantity.unwrap_or(1), ours, told)
    }

    /// What the module says, which is right by the model.
    fn judged(&mut self, limit: &Limit, quantity: Option<i64>) -> Reply {
        let (exact, now_us) = (limit.exact(), self.server.clock().now_us());
        if let Some(model) = &mut self.model {
            model.see(&exact, now_us, walk::stored(self.client.state(&self.key)));
        }
        let ours = throttle(&mut self.client, &limit.call(&self.key, quantity));
        if let Some(model) = &mut self.model {
            exact::throttle::follow(model, &exact, quantity.unwrap_or(1), now_us, ours);
        }
        ours
    }

    /// Where a token does not take whole microseconds, either may be off by what it rounds.
    fn compare_rounded(&mut self, limit: &Limit, quantity: i64, ours: Reply, told: Told) -> Option<Reply> {
        let context = format!("{} {} {quantity}: {ours:?}, {told:?}", self.key, limit.words());
        let slack_ns = self.slack(limit, quantity, &told);
        let edge_ns = told.full_in_before_ns + limit.interval_ns() * quantity - limit.fill_ns();
        if ours[0] != told.reply[0] {
            assert!(edge_ns.abs() <= slack_ns, "{context}: {edge_ns} ns is no edge");
            self.met.parted += 1;
            return None;
        }
        // All fields of a reply follow from when the bucket is full.
        let (exact, now_us) = (limit.exact(), self.server.clock().now_us());
        let level = self.model.as_ref().expect("a bucket of the module's own").level(&exact, now_us).high;
        let full_in_us = exact.reaches_in_us(&level, now_us, &exact.capacity);
        let full_in_ns = (full_in_us * whole(1000)).floor().to_integer().to_i64().unwrap();
        let apart_ns = (full_in_ns - told.full_in_ns).abs();
        assert!(apart_ns <= slack_ns, "{context}: full {apart_ns} ns apart");
        Some(ours)
    }

    /// redis-cell may be a nanosecond early for each token, the module late by what flows in a microsecond, or by
    /// a millionth of a token if that is less, for each call that takes.
    fn slack(&mut self, limit: &Limit, quantity: i64, told: &Told) -> i64 {
        if told.full_in_before_ns == 0 {
            self.slack_ns = 0;
        }
        let before_ns = self.slack_ns;
        if told.reply[0] == 0 {
            self.slack_ns += quantity + limit.interval_ns().div_euclid(1_000_000).min(US) + 1;
        }
        before_ns.max(self.slack_ns) + US + 2 * limit.capacity()
    }

    /// A time in which something can happen: none, little, whole seconds, or a part of what filling takes.
    pub fn pause(&mut self, limit: &Limit) {
        let fill_us = limit.fill_ns() / US;
        let pause_us = match self.random.below(10) {
            0 | 1 => 0,
            2 => self.random.between(1, 3000),
            3 => self.random.between(1, 10) * S / US,
            4 => self.random.between(1, 5000) * MS / US,
            5..=8 => self.random.between(0, fill_us / 8 + 1),
            _ => self.random.between(0, fill_us * 2),
        };
        self.server.clock().advance_us(pause_us);
    }

    /// How much is asked for: mostly a token, sometimes nothing, a share, all of it, or too much.
    pub fn quantity(&mut self, limit: &Limit) -> Option<i64> {
        match self.random.below(10) {
            0 => Some(0),
            1 => Some(limit.capacity()),
            2 => Some(limit.capacity() + 1),
            3..=5 => Some(self.random.between(1, limit.capacity())),
            6 => Some(1),
            _ => None,
        }
    }
}
