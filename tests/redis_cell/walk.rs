//! The same calls at the same moments, on redis-cell and on the module.

use crate::cell::{call, seconds, throttle, Cell, Limit, Reply, Told, MS, S, US};
use crate::common::{Connection, Random, Server};

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
        let client = server.connect();
        Self { server, cell, client, key, slack_ns: 0, calls: 0, limited: 0, lost: 0 }
    }

    pub fn client(&mut self) -> &mut Connection {
        &mut self.client
    }

    /// Sends one call to both and compares every field.
    pub fn step(&mut self, limit: &Limit, quantity: Option<i64>) -> Comparison {
        let told = self.cell.throttle(&self.key, limit, quantity);
        if told.lost_ns > 0 {
            self.lost += 1;
            self.client.run(&["DEL", &self.key]);
        }
        let ours = throttle(&mut self.client, &call(&self.key, limit, quantity));
        self.calls += 1;
        self.limited += u64::try_from(told.reply[0]).unwrap();
        if limit.is_exact() {
            assert_eq!(ours, told.reply, "{} {} {quantity:?}: {told:?}", self.key, limit.words());
            return Comparison::Same(ours);
        }
        self.compare_rounded(limit, quantity.unwrap_or(1), ours, told)
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
        assert_eq!(ours[1], told.reply[1], "{context}: limit");
        let within = |field: i64, of: &dyn Fn(i64) -> i64, at_ns: i64, what: &str| {
            let (one, other) = (of(at_ns - slack_ns), of(at_ns + slack_ns));
            assert!(field >= one.min(other) && field <= one.max(other), "{context}: {what}");
        };
        let remaining = |full_in_ns: i64| {
            let left_ns = limit.fill_ns() - full_in_ns.max(0);
            left_ns.max(0) / limit.interval_ns()
        };
        within(ours[2], &remaining, told.full_in_ns, "remaining");
        match told.passes_in_ns {
            None => assert_eq!(ours[3], -1, "{context}: retry after"),
            Some(passes_in_ns) => within(ours[3], &|ns| seconds(ns.max(0)), passes_in_ns, "retry after"),
        }
        within(ours[4], &|ns| seconds(ns.max(0)), told.full_in_ns, "reset after");
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
