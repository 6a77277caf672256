//! The same calls at the same moments, on redis-cell and on the module; what the module says is judged by the model too.

use crate::cell::{call, throttle, Cell, Limit, Reply, Told, MS, S, US};
use crate::common::exact::{self, whole, Model};
use crate::common::{walk, Connection, Random, Server};
use num_traits::ToPrimitive;

/// What the two said.
pub enum Comparison {
    /// The same.
    Same(Reply),
    /// They fell apart at the very edge, where one rounds in the caller's favour and the other does not.
    Parted,
}

/// One key on both servers.
pub struct Walk<'a> {
    server: &'a Server,
    cell: &'a mut Cell,
    client: Connection,
    key: String,
    /// `None` of a bucket that redis-cell left, of which the model has not heard.
    model: Option<Model>,
    /// How far the moments at which the two buckets are full may lie apart by rounding, in nanoseconds.
    slack_ns: i64,
    /// Calls that were compared.
    pub calls: u64,
    /// Calls that were limited.
    pub limited: u64,
    /// How often redis-cell forgot a bucket before it was full.
    pub lost: u64,
}

impl<'a> Walk<'a> {
    pub fn new(server: &'a Server, cell: &'a mut Cell, key: String) -> Self {
        let (client, model) = (server.connect(), Some(Model::default()));
        Self { server, cell, client, key, model, slack_ns: 0, calls: 0, limited: 0, lost: 0 }
    }

    /// The same with what redis-cell has stored in the key, moved to the other server.
    pub fn taking_over(server: &'a Server, cell: &'a mut Cell, key: String, full_at_ns: i64) -> Self {
        let walk = Self { model: None, ..Self::new(server, cell, key) };
        server.connect().run(&["SET", &walk.key, &full_at_ns.to_string()]);
        walk
    }

    /// Sends one call to both and compares every field.
    pub fn step(&mut self, limit: &Limit, quantity: Option<i64>) -> Comparison {
        let told = self.cell.throttle(&self.key, limit, quantity);
        if told.lost_ns > 0 {
            self.lost += 1;
            self.client.run(&["DEL", &self.key]);
            self.model = Some(Model::default());
        }
        let ours = self.judged(limit, quantity);
        self.calls += 1;
        self.limited += u64::try_from(told.reply[0]).unwrap();
        if limit.is_exact() {
            assert_eq!(ours, told.reply, "{} {} {quantity:?}: {told:?}", self.key, limit.words());
            return Comparison::Same(ours);
        }
        self.compare_rounded(limit, quantity.unwrap_or(1), ours, told)
    }

    /// What the module says, which is right by the model.
    fn judged(&mut self, limit: &Limit, quantity: Option<i64>) -> Reply {
        let now_us = self.server.clock().now_us();
        let exact = limit.exact();
        if let Some(model) = &mut self.model {
            model.see(&exact, now_us, walk::stored(self.client.state(&self.key)));
        }
        let ours = throttle(&mut self.client, &call(&self.key, limit, quantity));
        if let Some(model) = &mut self.model {
            exact::throttle::follow(model, &exact, quantity.unwrap_or(1), now_us, ours);
        }
        ours
    }

    /// Where a token does not take whole microseconds, either may be off by what it rounds.
    fn compare_rounded(&mut self, limit: &Limit, quantity: i64, ours: Reply, told: Told) -> Comparison {
        let context = format!("{} {} {quantity}: {ours:?}, {told:?}", self.key, limit.words());
        let slack_ns = self.slack(limit, quantity, &told);
        let edge_ns = told.full_in_before_ns + limit.interval_ns() * quantity - limit.fill_ns();
        if ours[0] != told.reply[0] {
            assert!(edge_ns.abs() <= slack_ns, "{context}: {edge_ns} ns is no edge");
            return Comparison::Parted;
        }
        // All fields of a reply follow from when the bucket is full.
        let (exact, now_us) = (limit.exact(), self.server.clock().now_us());
        let model = self.model.as_ref().expect("a bucket of the module's own");
        let level = model.level(&exact, now_us).high;
        let full_in_us = exact.reaches_in_us(&level, now_us, &exact.capacity);
        let full_in_ns = (full_in_us * whole(1000)).floor().to_integer().to_i64().unwrap();
        let apart_ns = (full_in_ns - told.full_in_ns).abs();
        assert!(apart_ns <= slack_ns, "{context}: full {apart_ns} ns apart");
        Comparison::Same(ours)
    }

    /// redis-cell may be a nanosecond early for each token, the module late by what flows in a microsecond, or by
    /// a millionth of a token if that is less, for each call that takes.
    fn slack(&mut self, limit: &Limit, quantity: i64, told: &Told) -> i64 {
        let now_ns = US + 2 * limit.capacity();
        if told.full_in_before_ns == 0 {
            self.slack_ns = 0;
        }
        let before_ns = self.slack_ns;
        if told.reply[0] == 0 {
            self.slack_ns += quantity + limit.interval_ns().div_euclid(1_000_000).min(US) + 1;
        }
        before_ns.max(self.slack_ns) + now_ns
    }

    /// A time in which something can happen: none, little, whole seconds, or a part of what filling takes.
    pub fn pause(&mut self, random: &mut Random, limit: &Limit) {
        let fill_us = limit.fill_ns() / US;
        let pause_us = match random.below(10) {
            0 | 1 => 0,
            2 => random.between(1, 3000),
            3 => random.between(1, 10) * S / US,
            4 => random.between(1, 5000) * MS / US,
            5..=8 => random.between(0, fill_us / 8 + 1),
            _ => random.between(0, fill_us * 2),
        };
        self.server.clock().advance_us(pause_us);
    }

    /// How much is asked for: mostly a token, sometimes nothing, a share, all of it, or too much.
    pub fn quantity(random: &mut Random, limit: &Limit) -> Option<i64> {
        match random.below(10) {
            0 => Some(0),
            1 => Some(limit.capacity()),
            2 => Some(limit.capacity() + 1),
            3..=5 => Some(random.between(1, limit.capacity())),
            6 => Some(1),
            _ => None,
        }
    }
}
