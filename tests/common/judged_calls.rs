//! Random calls on buckets of a server, each judged by the model.

use super::model::bucket::assert_binding;
use super::model::call::Wanted;
use super::model::{
    milliseconds, number, operation, whole, Bucket, End, Exact, HoldOperation, Limit, Model, Operation,
    Trace, MILLION,
};
use super::{array, multi_decision, script, strategies, Connection, Decision, Random, Server};
use num_traits::{ToPrimitive, Zero};
use proptest::sample::select;
use redis::Value;
use std::collections::BTreeMap;

pub const YEAR_US: i64 = 365 * 86_400_000_000;

/// Rates as clients write them.
#[rustfmt::skip]
pub const RATES: &[&str] = &[
    "1", "5", "3.7", "0.25", "1e-3", "1E3", "123456.789", "1e12", "100/m", "100/h", "7/d", "1/250ms", "10/10s", "1/3s",
    "0.7/1.1m", "999999/7h", "1/365d", "10@d", "3@10s", "0.5@15m", "100@w-05:30", "1e3@mo+14:00", "5@y",
    "1e3@mo+14d", "30@w+6d-03:30", "700@3mo+27d+09:00", "40@mo+30d", "9@3mo+28d-03:30",
];

/// The largest capacity, in micro-tokens: what many calls may charge is no deeper debt than there may be.
const MOST_MICRO: i64 = 1_000_000 * MILLION;

pub fn limit(random: &mut Random, rates: &[&str]) -> Limit {
    let rates: Vec<_> = rates.iter().map(ToString::to_string).collect();
    random.draw(&strategies::limits(MOST_MICRO, select(rates)))
}

pub fn amount_micro(random: &mut Random, limit: &Limit) -> i64 {
    random.draw(&strategies::amounts(limit))
}

pub fn take(random: &mut Random, limit: &Limit) -> Operation {
    Operation::Take { cost_micro: amount_micro(random, limit) }
}

pub fn any_operation(random: &mut Random, limit: &Limit) -> Operation {
    random.draw(&strategies::operations(limit, strategies::amounts(limit)))
}

pub fn any_hold_operation(random: &mut Random, limit: &Limit) -> HoldOperation {
    random.draw(&strategies::hold_operations(limit, strategies::amounts(limit)))
}

/// After more than a year the newest Redis is busy for seconds.
pub fn pause_us(random: &mut Random, limit: &Limit) -> i64 {
    random.draw(&strategies::pauses_us(limit)).min(YEAR_US)
}

/// What `TB.STATE` shows.
pub fn stored(state: Option<(String, i64)>) -> Option<Bucket> {
    state.map(|(level, refilled_at_us)| {
        let level_micro = number::exact(&level) * whole(MILLION);
        assert!(level_micro.is_integer(), "{level} is no whole number of micro-tokens");
        Bucket { level_micro: level_micro.to_integer().to_i64().unwrap(), refilled_at_us }
    })
}

/// Holds as `TB.HOLDS` shows them, by their ids.
pub type ShownHolds = BTreeMap<String, ShownHold>;

#[derive(Clone, Debug)]
pub struct ShownHold {
    micro: Exact,
    /// The latest moment at which it can end: a millisecond that has begun is shown as a whole one.
    ends_by_us: i64,
}

/// One end is shown up to a millisecond apart at two moments; at one moment whole milliseconds apart, or not at all.
impl PartialEq for ShownHold {
    fn eq(&self, other: &Self) -> bool {
        self.micro == other.micro && (self.ends_by_us - other.ends_by_us).abs() < 1000
    }
}

/// What `TB.HOLDS` shows, the next to end first.
pub fn shown_holds(reply: Value, now_us: i64) -> ShownHolds {
    let listed: Vec<(Vec<u8>, String, i64)> = redis::from_redis_value(reply).unwrap();
    assert!(listed.is_sorted_by_key(|(.., left_ms)| *left_ms), "{listed:?}");
    let shown = |(id, amount, left_ms): &(Vec<u8>, String, i64)| {
        let micro = number::exact(amount) * whole(MILLION);
        (id.escape_ascii().to_string(), ShownHold { micro, ends_by_us: now_us + left_ms * 1000 })
    };
    let holds: ShownHolds = listed.iter().map(shown).collect();
    assert_eq!(holds.len(), listed.len(), "one hold is listed twice: {listed:?}");
    holds
}

/// The override that `TB.STATE` shows, if any: capacity, rate, and the end.
pub type ShownOverride = Option<(String, String, ShownHold)>;

pub fn shown_override(third: &Value, now_us: i64) -> ShownOverride {
    let (capacity, rate, left_ms): (String, String, i64) = redis::from_redis_value(third.clone()).ok()?;
    Some((capacity, rate, ShownHold { micro: Exact::zero(), ends_by_us: now_us + left_ms * 1000 }))
}

/// What it must show of an override.
pub fn override_to_show(model: &Model, now_us: i64) -> ShownOverride {
    let (limit, ends_by_us) = model.override_at(now_us)?;
    let (capacity, rate) = limit.words.split_once(' ').unwrap();
    Some((capacity.to_owned(), rate.to_owned(), ShownHold { micro: Exact::zero(), ends_by_us }))
}

/// What it must show.
pub fn holds_to_show(model: &Model, now_us: i64) -> ShownHolds {
    let left_ms = |end: &End| milliseconds(&whole(end.at_us - now_us)).to_i64().unwrap();
    let shown = |end: End| ShownHold { ends_by_us: now_us + left_ms(&end) * 1000, micro: end.micro };
    model.holds(now_us).into_iter().map(|(id, end)| (id, shown(end))).collect()
}

/// How buckets are asked and looked at.
#[derive(Clone, Copy)]
pub struct Backend {
    /// What is sent instead of the words of a command.
    words: fn(&str) -> String,
    stored: fn(&mut Connection, &str) -> Option<Bucket>,
    has_overrides: bool,
}

impl Backend {
    pub const MODULE: Self =
        Self { words: str::to_owned, stored: |client, key| stored(client.state(key)), has_overrides: true };
    /// On a server that has the script.
    pub const SCRIPT: Self = Self { words: script::words, stored: script::stored, has_overrides: false };
}

/// One bucket of a server with a controlled clock, and its model.
pub struct JudgedCalls<'a> {
    backend: Backend,
    server: &'a Server,
    client: Connection,
    key: String,
    pub model: Model,
}

impl<'a> JudgedCalls<'a> {
    /// A bucket of its own for each `number`.
    pub fn new(server: &'a Server, number: u64) -> Self {
        Self::on(Backend::MODULE, server, number)
    }

    /// Judges calls of the module or of the script.
    pub fn on(backend: Backend, server: &'a Server, number: u64) -> Self {
        Self {
            backend,
            server,
            client: server.connect(),
            key: format!("walk:{number}"),
            model: Model::default(),
        }
    }

    pub fn has_overrides(&self) -> bool {
        self.backend.has_overrides
    }

    /// Makes a call and judges the decision, what is stored before and behind it, what `TB.PEEK` foresees, which holds
    /// are listed, and when the key expires.
    pub fn call<'w>(&mut self, limit: &Limit, wanted: impl Into<Wanted<'w>>) -> Decision {
        self.leave_expiry();
        let (wanted, before) = (wanted.into(), self.look(limit));
        let words = wanted.words(&self.key, limit);
        let foreseen = words.starts_with("TB.TAKE ").then(|| self.decide(&words.replacen("TAKE", "PEEK", 1)));
        let peeked = self.stored();
        self.model.see_trace(limit, self.now_us(), Trace::None, [before, peeked]);
        let decision = self.decide(&words);
        assert!(foreseen.is_none_or(|foreseen| foreseen == decision), "{foreseen:?}, but then {decision:?}");
        let trace = self.model.follow(limit, wanted, self.now_us(), decision);
        let hold_operation = match wanted {
            Wanted::Hold(hold_operation) => hold_operation,
            Wanted::Override { .. } => {
                self.see_override(limit);
                return decision;
            }
            Wanted::Operation(_) => {
                self.check_after(limit, trace, peeked);
                return decision;
            }
        };
        // The same call again, now as then, takes nothing more.
        let is_set = !matches!(hold_operation, HoldOperation::Settle { .. }) && decision.allowed == 1;
        if is_set && trace == Trace::Written {
            assert_eq!(self.decide(&words), decision, "{hold_operation:?} again");
        }
        // A renewal moves the end alone.
        match self.stored() == before && trace == Trace::Written {
            true => self.see_expiry(limit),
            false => self.check_after(limit, trace, before),
        }
        let listed = self.client.run(&["TB.HOLDS", &self.key]);
        let now_us = self.now_us();
        assert_eq!(shown_holds(listed, now_us), holds_to_show(&self.model, now_us));
        decision
    }

    /// Takes from several buckets together, and judges all of it. Says whether they allowed it.
    pub fn take_together(walks: &mut [Self], limits: &[Limit], takes: &[Operation]) -> bool {
        while walks.iter_mut().any(Self::leave_expiry) {}
        let before: Vec<_> = walks.iter_mut().zip(limits).map(|(walk, limit)| walk.look(limit)).collect();
        let mut words = format!("TB.MTAKE {}", walks.len());
        for ((walk, limit), take) in walks.iter().zip(limits).zip(takes) {
            words += &format!(" {}", operation::arguments(*take, &walk.key, limit));
        }
        let words = (walks[0].backend.words)(&words);
        let (binding, own) = multi_decision(&walks[0].client.say(&words));
        assert_eq!(own.len(), walks.len(), "{words}");
        assert_binding(binding, &own);
        for (place, walk) in walks.iter_mut().enumerate() {
            let (limit, now_us) = (&limits[place], walk.now_us());
            let allowed = binding.allowed == 1;
            let trace = walk.model.follow_together(limit, takes[place], now_us, own[place], allowed);
            walk.check_after(limit, trace, before[place]);
        }
        binding.allowed == 1
    }

    fn decide(&mut self, words: &str) -> Decision {
        self.client.decide(&(self.backend.words)(words))
    }

    fn stored(&mut self) -> Option<Bucket> {
        (self.backend.stored)(&mut self.client, &self.key)
    }

    fn now_us(&self) -> i64 {
        self.server.clock().now_us()
    }

    /// Leaves the millisecond in which the key expires. Commands find it until that is over, but Redis 8.10 may delete it
    /// before. Returns whether the clock was moved.
    fn leave_expiry(&mut self) -> bool {
        let is_due = self.client.expires_at_ms(&self.key) == Some(self.now_us() / 1000);
        if is_due {
            self.server.clock().advance_ms(1);
        }
        is_due
    }

    /// An override may leave level and time as they were.
    fn see_override(&mut self, limit: &Limit) {
        self.look(limit);
        self.see_expiry(limit);
        let now_us = self.now_us();
        let state = self.client.run(&["TB.STATE", &self.key]);
        let third = if state == Value::Nil { None } else { array(state).get(2).cloned() };
        let shown = third.and_then(|third| shown_override(&third, now_us));
        assert_eq!(shown, override_to_show(&self.model, now_us));
    }

    fn look(&mut self, limit: &Limit) -> Option<Bucket> {
        let state = self.stored();
        self.model.see(limit, self.now_us(), state);
        state
    }

    fn check_after(&mut self, limit: &Limit, trace: Trace, before: Option<Bucket>) {
        let after = self.stored();
        self.model.see_trace(limit, self.now_us(), trace, [before, after]);
        self.see_expiry(limit);
    }

    fn see_expiry(&mut self, limit: &Limit) {
        let expires_at_ms = self.client.expires_at_ms(&self.key);
        if expires_at_ms.is_none() {
            // A key whose time has come may go between two looks.
            self.look(limit);
        }
        self.model.see_expiry(expires_at_ms);
    }
}
