//! The queue beside its model, without a server. The driver does what `src/redis/waiting/serve.rs` does, and the model judges
//! every turn.

use super::model::queue::{Buckets, Call, Waiting};
use std::collections::BTreeMap;
use tokenbucket_core::bucket::{Bucket, Change, Limit, Operation};
use tokenbucket_core::hold::{Hold, HoldPlan, Holds};
use tokenbucket_core::queue::{Arrival, Db, Held, Levels, Part, Queue};

type Stored = (Option<Bucket>, Holds);

#[derive(Clone, Default)]
pub struct World {
    pub now_us: i64,
    /// How often the queue has asked.
    pub asked: usize,
    stored: BTreeMap<(Db, Box<[u8]>), Stored>,
    none: Holds,
}

impl World {
    fn find(&self, db: Db, key: &[u8]) -> (Option<Bucket>, &Holds) {
        let stored = self.stored.get(&(db, key.into()));
        stored.map_or((None, &self.none), |(bucket, holds)| (*bucket, holds))
    }

    fn held_of(&self, db: Db, key: &[u8], id: &[u8]) -> Held {
        let hold = self.find(db, key).1.outstanding_of(id, self.now_us);
        hold.map_or_else(Held::default, |hold| Held { micro: hold.amount_micro, until_us: hold.ends_at_us })
    }

    fn make_so(&mut self, db: Db, key: &[u8], change: Change) {
        match change {
            Change::Keep => {}
            Change::Clear => drop(self.stored.remove(&(db, key.into()))),
            Change::Store { bucket, .. } => {
                let (stored, holds) = self.stored.entry((db, key.into())).or_default();
                holds.drop_ended(self.now_us);
                *stored = Some(bucket);
            }
        }
    }

    pub fn operate(&mut self, db: Db, part: &Part, operation: Operation) -> bool {
        let (bucket, holds) = self.find(db, &part.key);
        let decided = part.limit.decide_with(bucket, holds, operation, self.now_us);
        decided
            .inspect(|outcome| self.make_so(db, &part.key, outcome.change))
            .is_ok_and(|it| it.decision.allowed > 0)
    }

    /// Sets the hold of a part to what it wants, or ends it.
    pub fn change_hold(&mut self, db: Db, part: &Part, ttl_us: Option<i64>) -> bool {
        let (now_us, id, amount_micro) = (self.now_us, part.id.as_deref().unwrap(), part.wanted_micro);
        let (bucket, holds) = self.stored.entry((db, part.key.clone())).or_default();
        let plan = match ttl_us {
            Some(_) => part.limit.hold(*bucket, holds, id, amount_micro, now_us),
            None => part.limit.settle(*bucket, holds, id, amount_micro, now_us).unwrap(),
        };
        let HoldPlan::Change { bucket, taken_micro } = plan else {
            return matches!(plan, HoldPlan::Keep(outcome) if outcome.decision.allowed > 0);
        };
        holds.drop_ended(now_us);
        holds.remove(id);
        let hold = ttl_us.and_then(|ttl_us| Hold::checked(id, amount_micro, now_us + ttl_us));
        hold.into_iter().for_each(|hold| holds.set(hold));
        let change = part.limit.outcome_of_hold(bucket, holds, taken_micro, now_us).change;
        self.make_so(db, &part.key, change);
        true
    }

    pub fn take(&mut self, db: Db, part: &Part, ttl_us: i64) -> bool {
        match part.id {
            Some(_) => self.change_hold(db, part, Some(ttl_us)),
            None => self.operate(db, part, Operation::Take { cost_micro: part.wanted_micro }),
        }
    }
}

impl Buckets for World {
    fn needs_micro(&self, db: Db, part: &Part) -> i64 {
        let held_micro = part.id.as_ref().map_or(0, |id| self.held_of(db, &part.key, id).micro);
        part.wanted_micro - held_micro
    }

    fn lacks(&self, db: Db, part: &Part) -> bool {
        let ((bucket, holds), cost_micro) = (self.find(db, &part.key), self.needs_micro(db, part));
        let take = Operation::Take { cost_micro: cost_micro.max(0) };
        let is_denied =
            || part.limit.decide_with(bucket, holds, take, self.now_us).unwrap().decision.allowed == 0;
        (part.id.is_none() || cost_micro > 0) && is_denied()
    }
}

impl Levels for World {
    fn lacks_until_us(&mut self, db: Db, key: &[u8], limit: &Limit, wanted_micro: i64) -> Option<i64> {
        self.asked += 1;
        let (bucket, holds) = self.find(db, key);
        let wait_us = limit.wait_after_us(bucket, holds, Change::Keep, wanted_micro, self.now_us);
        (wait_us > 0).then(|| self.now_us.saturating_add(wait_us))
    }

    fn held(&mut self, db: Db, key: &[u8], id: &[u8]) -> Held {
        self.asked += 1;
        self.held_of(db, key, id)
    }

    fn now_us(&self) -> i64 {
        self.now_us
    }
}

/// A server with nothing but buckets and calls that wait.
#[derive(Clone, Default)]
pub struct Server {
    pub world: World,
    pub queue: Queue,
    pub waiting: Waiting,
    /// Those that were served, in this order.
    pub served: Vec<Arrival>,
}

/// How long a hold lasts.
pub const TTL_US: i64 = 2_500_000;

impl Server {
    /// A call that takes all parts or none; denied, it waits as long as told, if it may. Returns whether it was allowed, and who
    /// waits.
    pub fn call(&mut self, db: Db, parts: &[Part], max_wait_us: Option<i64>) -> (bool, Option<Arrival>) {
        self.serve();
        if parts.iter().any(|part| self.is_denied(db, part)) {
            let arrival = max_wait_us.map(|max_wait_us| self.enter(db, parts, max_wait_us));
            return (false, arrival);
        }
        for part in parts {
            self.mark(db, part);
            assert!(self.world.take(db, part, TTL_US), "nobody lacks {part:?}");
        }
        self.serve();
        (true, None)
    }

    /// Whether a call that comes now is denied: it lacks, or it takes what one of those who wait lacks.
    fn is_denied(&mut self, db: Db, part: &Part) -> bool {
        let ahead_micro = self.queue.wanted_before(db, &part.key, &mut self.world);
        assert_eq!(ahead_micro, self.waiting.wanted_before(db, &part.key, &self.world), "ahead of {part:?}");
        self.world.lacks(db, part) || (ahead_micro.is_some() && self.world.needs_micro(db, part) > 0)
    }

    fn enter(&mut self, db: Db, parts: &[Part], max_wait_us: i64) -> Arrival {
        let deadline_us = self.world.now_us + max_wait_us;
        let arrival = self.queue.enter(db, parts.to_vec(), deadline_us, &mut self.world);
        self.waiting.0.push(Call { arrival, db, parts: parts.to_vec(), deadline_us });
        self.serve();
        arrival
    }

    fn mark(&mut self, db: Db, part: &Part) {
        match &part.id {
            Some(id) => self.queue.mark_hold(db, &part.key, id),
            None => self.queue.mark(db, &part.key),
        }
    }

    /// Gives, or charges if negative.
    pub fn give(&mut self, db: Db, part: &Part, micro: i64) {
        self.serve();
        self.mark(db, part);
        let operation = match micro {
            0.. => Operation::Give { amount_micro: micro },
            _ => Operation::Charge { amount_micro: -micro },
        };
        self.world.operate(db, part, operation);
        self.serve();
    }

    /// Ends the hold of a part, of which so much was used as it wants.
    pub fn settle(&mut self, db: Db, part: &Part) {
        self.serve();
        self.mark(db, part);
        self.world.change_hold(db, part, None);
        self.serve();
    }

    /// A key goes; of all databases, if it is not known which.
    pub fn vanish(&mut self, db: Option<Db>, key: &[u8]) {
        self.world.stored.retain(|(of, name), _| db.is_some_and(|db| db != *of) || **name != *key);
        self.queue.mark_gone(db, key);
        self.serve();
    }

    pub fn flush(&mut self, db: Option<Db>) {
        self.world.stored.retain(|(of, _), _| db.is_some_and(|db| db != *of));
        self.queue.mark_all(db);
        self.serve();
    }

    pub fn leave(&mut self, arrival: Arrival) -> Call {
        self.queue.leave(arrival);
        self.waiting.leave(arrival)
    }

    /// A client has gone.
    pub fn disconnect(&mut self, arrival: Arrival) {
        self.leave(arrival);
        self.serve();
    }

    /// Serves everyone whose turn it is.
    pub fn serve(&mut self) {
        let is_marked = self.queue.is_marked(self.world.now_us);
        assert!(is_marked || self.waiting.next_served(&self.world).is_none(), "there is nothing to look at");
        self.queue.mark_due(self.world.now_us);
        loop {
            let expected = self.waiting.next_served(&self.world);
            let next = self.queue.next_served(&mut self.world);
            assert_eq!(next, expected, "it is the turn of another one");
            let Some(arrival) = next else { break };
            let call = self.leave(arrival);
            // Nothing is marked meanwhile.
            let is_taken = call.parts.iter().all(|part| self.world.take(call.db, part, TTL_US));
            assert!(is_taken, "{call:?} lacks something");
            self.served.push(arrival);
        }
        assert!(!self.queue.is_marked(self.world.now_us), "there is something to look at");
        assert_eq!(self.queue.len(), self.waiting.0.len());
        assert_eq!(self.queue.is_empty(), self.waiting.0.is_empty());
        assert!(self.queue.arrivals().eq(self.waiting.0.iter().map(|call| call.arrival)));
    }

    /// Time passes, and the timer fires whenever the queue wants it to. Nobody could be served before.
    pub fn sleep(&mut self, by_us: i64) {
        let until_us = self.world.now_us + by_us;
        while let Some(look_us) = self.queue.next_look_us().filter(|look_us| *look_us <= until_us) {
            self.sleep_idle(look_us - 1);
            self.world.now_us = look_us;
            self.serve();
            self.end_overdue();
            self.serve();
        }
        self.sleep_idle(until_us);
    }

    fn sleep_idle(&mut self, until_us: i64) {
        self.world.now_us = self.world.now_us.max(until_us);
        assert_eq!(self.waiting.next_served(&self.world), None, "nobody looks before {until_us}");
    }

    fn end_overdue(&mut self) {
        let now_us = self.world.now_us;
        let is_over = |call: &&Call| call.deadline_us <= now_us;
        while let Some(call) =
            self.waiting.0.iter().filter(is_over).min_by_key(|call| (call.deadline_us, call.arrival))
        {
            assert_eq!(self.queue.overdue(now_us), Some(call.arrival));
            self.leave(call.arrival);
        }
        assert_eq!(self.queue.overdue(now_us), None);
    }

    /// The clock steps back. Buckets that a waiting call lacks count on from the new time, and the waits do.
    pub fn set_back(&mut self, by_us: i64) {
        let by_us = by_us.min(self.world.now_us);
        self.world.now_us -= by_us;
        for call in &self.waiting.0 {
            let is_denied = call.parts.iter().any(|part| self.world.lacks(call.db, part));
            for part in call.parts.iter().filter(|_| is_denied) {
                let (bucket, holds) = self.world.find(call.db, &part.key);
                let change = part.limit.denied_by_another(bucket, holds, self.world.now_us).change;
                self.world.make_so(call.db, &part.key, change);
            }
        }
        self.queue.set_back(by_us);
        self.queue.mark_all(None);
        self.waiting.0.iter_mut().for_each(|call| call.deadline_us -= by_us);
        self.serve();
    }

    /// Everybody leaves, and nothing of them stays in the queue.
    pub fn close(mut self) {
        while let Some(arrival) = self.waiting.0.last().map(|call| call.arrival) {
            self.disconnect(arrival);
        }
        self.assert_empty();
    }

    pub fn assert_empty(&self) {
        assert!(
            self.queue.is_empty() && !self.queue.is_marked(i64::MAX) && self.queue.next_look_us().is_none()
        );
        let empty = "Queue { names: {}, buckets: {}, waiters: {}, deadlines: {}, looks: {}, marked: {},";
        assert!(format!("{:?}", self.queue).starts_with(empty), "{:?}", self.queue);
    }
}
