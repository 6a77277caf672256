//! The queue beside its model, without a server. The driver does what `src/redis/waiting/serve.rs` does, and the model judges
//! every turn.

use super::model::queue::{Buckets, Call, Share, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub type Name = Arc<[u8]>;
pub type Part = Request<Name>;
use tokenbucket_core::bucket::{Bucket, Change, Decision, Expiring, Limit, Operation, NEVER_MS};
use tokenbucket_core::hold::{Extension, Hold, Override, NO_EXTENSION};
use tokenbucket_core::plan::Plan;
use tokenbucket_core::queue::{Arrival, Db, Levels, Queue, Seen};
use tokenbucket_core::request::{Request, Wanted};

/// Takes, or holds under an id.
pub fn part(key: Name, limit: Limit, micro: i64, id: Option<Name>) -> Part {
    let hold = |id| Wanted::Hold { id, amount_micro: micro, ttl_ms: 1 };
    let wanted = id.map_or(Wanted::Tokens(Operation::Take { cost_micro: micro }), hold);
    Request { key, limit, wanted }
}

type Stored = (Option<Bucket>, Extension);

#[derive(Clone, Default)]
pub struct World {
    pub now_us: i64,
    /// How often the queue has asked.
    pub asked: usize,
    /// How many examinations this turn has time for.
    pub steps_left: usize,
    stored: BTreeMap<(Db, Name), Stored>,
}

impl World {
    fn find(&self, db: Db, key: &[u8]) -> (Option<Bucket>, &Extension) {
        let stored = self.stored.get(&(db, key.into()));
        stored.map_or((None, &NO_EXTENSION), |(bucket, extension)| (*bucket, extension))
    }

    pub fn seen(&self, db: Db, key: &[u8]) -> Seen<'_> {
        let (bucket, extension) = self.find(db, key);
        Seen::new(bucket, extension, self.now_us)
    }

    pub fn held_of(&self, db: Db, part: &Part) -> Option<&Hold> {
        self.find(db, &part.key).1.holds.outstanding_of(part.id()?, self.now_us)
    }

    /// Drops the ended holds, changes the others, and stores the bucket accordingly.
    fn write(&mut self, db: Db, key: &[u8], own: &Limit, change: impl FnOnce(&mut Extension) -> Change) {
        let (stored, extension) = self.stored.entry((db, key.into())).or_default();
        let withheld_micro = extension.withholds_micro(own, *stored, self.now_us);
        let before = (*stored, extension.clone());
        extension.holds.drop_ended(self.now_us);
        extension.limit_override.take_if(|stored| stored.ends_at_us <= self.now_us);
        withheld_micro.into_iter().for_each(|micro| extension.withhold(micro));
        match change(extension) {
            Change::Keep => (*stored, *extension) = before,
            Change::Clear => drop(self.stored.remove(&(db, key.into()))),
            Change::Store { bucket, .. } => *stored = Some(bucket),
        }
    }

    /// Returns the level of a bucket under the limit of a part, in micro-tokens.
    pub fn level_micro(&self, db: Db, part: &Part) -> i64 {
        let (bucket, extension) = self.find(db, &part.key);
        let charge = Operation::Charge { amount_micro: 1 };
        let charged = part.limit.decide_with(bucket, extension, charge, self.now_us);
        let Ok(Change::Store { bucket, .. }) = charged.map(|outcome| outcome.change) else {
            unreachable!("it is not as deep in debt")
        };
        bucket.level_micro + 1
    }

    pub fn operate(&mut self, db: Db, part: &Part, operation: Operation) -> bool {
        let (bucket, extension) = self.find(db, &part.key);
        let decided = part.limit.decide_with(bucket, extension, operation, self.now_us);
        decided
            .inspect(|outcome| self.write(db, &part.key, &part.limit, |_| outcome.change))
            .is_ok_and(|it| it.decision.allowed > 0)
    }

    /// Returns all that a call can find of the bucket of a part, with times as seen from now: the level and the age of its last
    /// refill after a charge of one micro-token, and the holds that have not ended.
    pub fn outlook(&self, db: Db, part: &Part) -> (i64, i64, Vec<Hold>) {
        let (bucket, extension) = self.find(db, &part.key);
        let charge = Operation::Charge { amount_micro: 1 };
        let charged =
            part.limit.decide_with(bucket, extension, charge, self.now_us).map(|outcome| outcome.change);
        let Ok(Change::Store { bucket, .. }) = charged else { unreachable!("it is not as deep in debt") };
        let outstanding = extension.holds.iter().filter(|hold| hold.ends_at_us > self.now_us).cloned();
        let left = outstanding.map(|hold| Hold { ends_at_us: hold.ends_at_us - self.now_us, ..hold });
        (bucket.level_micro, self.now_us - bucket.refilled_at_us, left.collect())
    }

    /// Sets the hold of a part to what it wants, or ends it.
    pub fn change_hold(&mut self, db: Db, part: &Part, ttl_us: Option<i64>) -> bool {
        let (id, amount_micro) = (part.id().unwrap(), part.wanted.micro());
        let wanted = match ttl_us {
            Some(ttl_us) => Wanted::Hold { id, amount_micro, ttl_ms: ttl_us / 1000 },
            None => Wanted::Settle { id, used_micro: amount_micro },
        };
        let (now_us, request) = (self.now_us, Request { key: &part.key, limit: part.limit, wanted });
        let (bucket, extension) = self.stored.entry((db, part.key.clone())).or_default();
        let plan = request.plan(*bucket, Some(extension), usize::MAX, now_us).unwrap();
        let Plan::Hold { bucket, taken_micro, amount_micro } = plan else {
            return matches!(plan, Plan::Outcome(outcome) if outcome.decision.allowed > 0);
        };
        self.write(db, &part.key, &part.limit, |extension| {
            request.change_hold(extension, bucket, taken_micro, amount_micro, now_us).change
        });
        true
    }

    /// Overrides the limit of a bucket, or ends the override if it lasts 0.
    pub fn override_limit(&mut self, db: Db, key: &Name, [capacity, rate]: [&str; 2], ttl_ms: i64) {
        let now_us = self.now_us;
        let (stored, extension) = self.stored.entry((db, key.clone())).or_default();
        if ttl_ms == 0 {
            return extension.end_override(now_us);
        }
        let times_us = (now_us, now_us + ttl_ms * 1000);
        let begins = Override::parse(capacity.as_bytes(), rate.as_bytes(), false, times_us).unwrap();
        let replaced = extension.replaced(*stored, now_us);
        extension.holds.drop_first(replaced.dropped);
        *stored = Some(extension.begin_override(begins.into(), replaced.bucket, now_us));
    }

    pub fn take(&mut self, db: Db, part: &Part, ttl_us: i64) -> bool {
        match part.wanted {
            Wanted::Tokens(operation) => self.operate(db, part, operation),
            _ => self.change_hold(db, part, Some(ttl_us)),
        }
    }
}

impl Buckets for World {
    fn needs_micro(&self, db: Db, part: &Part) -> i64 {
        part.wanted.micro() - self.held_of(db, part).map_or(0, |held| held.amount_micro)
    }

    fn is_denied(&self, db: Db, part: &Part) -> bool {
        self.denial(db, part).is_some()
    }

    fn is_overridden(&self, db: Db, part: &Part) -> bool {
        let extension = self.find(db, &part.key).1;
        if extension.override_at(self.now_us).is_none() || !self.is_denied(db, part) {
            return false;
        }
        let limit = extension.counting(&part.limit, None, self.now_us).limit;
        let is_larger =
            |micro| micro > limit.capacity_micro() || (micro > 0 && extension.is_suspended(self.now_us));
        is_larger(self.needs_micro(db, part))
    }

    fn is_lost(&self, db: Db, part: &Part) -> bool {
        let is_overridden = self.find(db, &part.key).1.override_at(self.now_us).is_some();
        let Some(denied) = self.denial(db, part).filter(|_| !is_overridden) else { return false };
        let ends_before = self.outlasts_its_hold(db, part);
        let anew = || self.decide_take(db, part, part.wanted.micro());
        denied.retry_after_ms == NEVER_MS || (ends_before && anew().retry_after_ms == NEVER_MS)
    }
}

impl World {
    /// Returns whether its hold ends before there is what it needs in addition.
    fn outlasts_its_hold(&self, db: Db, part: &Part) -> bool {
        let (bucket, extension) = self.find(db, &part.key);
        let needs_micro = self.needs_micro(db, part);
        let wait_us = part.limit.wait_after_us(bucket, extension, Change::Keep, needs_micro, self.now_us);
        let then_us = self.now_us.saturating_add(wait_us);
        self.held_of(db, part).is_some_and(|held| then_us >= held.ends_at_us)
    }

    fn decide_take(&self, db: Db, part: &Part, cost_micro: i64) -> Decision {
        let (bucket, extension) = self.find(db, &part.key);
        part.limit
            .decide_with(bucket, extension, Operation::Take { cost_micro }, self.now_us)
            .unwrap()
            .decision
    }

    /// How a call that needs something is denied what it needs.
    fn denial(&self, db: Db, part: &Part) -> Option<Decision> {
        let needs_micro = self.needs_micro(db, part);
        let needs_nothing = part.id().is_some() && needs_micro <= 0;
        let decide = || self.decide_take(db, part, needs_micro);
        (!needs_nothing).then(decide).filter(|decision| decision.allowed == 0)
    }
}

impl Levels<Name> for World {
    fn look<T>(&mut self, db: Db, key: &Name, look: impl FnOnce(Option<&Seen<'_>>) -> T) -> T {
        self.asked += 1;
        look(Some(&self.seen(db, key)))
    }

    fn has_time(&mut self) -> bool {
        let has_time = self.steps_left > 0;
        self.steps_left = self.steps_left.saturating_sub(1);
        has_time
    }
}

/// A server with nothing but buckets and calls that wait.
#[derive(Clone, Default)]
pub struct Server {
    pub world: World,
    pub queue: Queue<Name>,
    pub waiting: Waiting,
    /// Those that were served, in this order.
    pub served: Vec<Arrival>,
    /// Set once a grant has made a hold smaller, which brings tokens to calls that were not due before.
    has_given_back: bool,
    /// For how many examinations each event leaves time. `None`: for all.
    pub slice: Option<usize>,
}

/// More turns than any change can need before a call is served.
const MAX_TURNS: usize = 100_000;

/// How long a hold lasts.
pub const TTL_US: i64 = 2_500_000;

impl Server {
    /// A call that takes all parts or none; denied, it waits as long as told, if it may. Returns whether it was allowed, and who
    /// waits.
    pub fn call(&mut self, db: Db, parts: &[Part], max_wait_us: Option<i64>) -> (bool, Option<Arrival>) {
        self.call_with(db, parts, max_wait_us, None)
    }

    /// Makes a call of one key with a share, like [`Self::call`].
    pub fn call_with(
        &mut self,
        db: Db,
        parts: &[Part],
        max_wait_us: Option<i64>,
        share: Option<Share>,
    ) -> (bool, Option<Arrival>) {
        self.waiting.look(&self.world);
        if parts.iter().any(|part| self.is_denied(db, part)) {
            let arrival = max_wait_us.map(|max_wait_us| self.enter(db, parts, max_wait_us, share));
            return (false, arrival);
        }
        // A hold that was there before may give tokens back; a waiting call that wants the same hold then lacks less of it.
        let is_claimed = |part: &Part| {
            let mut others =
                self.waiting.calls.iter().filter(|call| call.db == db).flat_map(|call| &call.parts);
            part.id().is_some() && others.any(|other| (&other.key, other.id()) == (&part.key, part.id()))
        };
        let only_takes = parts.iter().all(|part| self.world.held_of(db, part).is_none() && !is_claimed(part));
        let is_marked = self.queue.is_marked(self.world.now_us);
        let without = (only_takes && is_marked).then(|| self.served_to_the_end());
        for part in parts {
            let is_anew = self.world.held_of(db, part).is_none();
            assert!(self.world.take(db, part, TTL_US), "nobody lacks {part:?}");
            match is_anew {
                true => self.mark_taken(db, part),
                false => self.mark(db, part),
            }
        }
        // What a grant will give back is not there yet, and the calls that lack it are not due.
        if let Some((without, false)) = without {
            let (with, _) = self.served_to_the_end();
            let missing: Vec<_> = without.difference(&with).collect();
            assert!(missing.is_empty(), "{parts:?} overtakes {missing:?}");
        }
        self.serve();
        (true, None)
    }

    /// Returns the calls that will be served if no call comes, and whether one of them gives tokens back.
    fn served_to_the_end(&self) -> (BTreeSet<Arrival>, bool) {
        let mut server = Self { has_given_back: false, ..self.clone() };
        server.finish();
        (server.served.into_iter().collect(), server.has_given_back)
    }

    fn mark_taken(&mut self, db: Db, part: &Part) {
        self.queue.mark_taken(db, &part.key, &part.limit);
        part.id().into_iter().for_each(|id| self.queue.mark_hold(db, &part.key, id));
    }

    /// Returns whether a call that comes now is denied: it lacks, or it takes what one of those who wait lacks.
    fn is_denied(&mut self, db: Db, part: &Part) -> bool {
        let needs_micro = self.world.needs_micro(db, part);
        let seen = self.world.seen(db, &part.key);
        let ahead_micro = self.queue.wanted_before(db, &part.key, &seen, &part.limit, needs_micro);
        if needs_micro <= 0 {
            return self.world.denial(db, part).is_some();
        }
        let left_micro = self.world.level_micro(db, part) - needs_micro;
        let lacking_micro = self.waiting.lacking_micro(db, &part.key, &self.world);
        let is_denied = self.world.denial(db, part).is_some();
        let overtakes = !is_denied && lacking_micro.is_some_and(|lacking_micro| lacking_micro > left_micro);
        assert!(ahead_micro.is_some() || !overtakes, "{part:?} takes what a call lacks");
        // Between slices calls that are due want the bucket, too.
        if ahead_micro.is_some() && !self.queue.is_marked(self.world.now_us) {
            let wanted_micro = self.waiting.wanted_micro(db, &part.key);
            assert_eq!(ahead_micro, lacking_micro.map(|_| wanted_micro), "ahead of {part:?}");
        }
        ahead_micro.is_some() || is_denied
    }

    fn enter(&mut self, db: Db, parts: &[Part], max_wait_us: i64, share: Option<Share>) -> Arrival {
        let deadline_us = self.world.now_us + max_wait_us;
        let arrival = self.queue.enter(db, parts.to_vec(), deadline_us, share.clone(), &mut self.world);
        let call = Call { arrival, db, parts: parts.to_vec(), deadline_us, share, is_apart: false };
        self.waiting.enter(call, &self.world);
        self.serve();
        arrival
    }

    fn mark(&mut self, db: Db, part: &Part) {
        self.queue.mark(db, &part.key);
        part.id().into_iter().for_each(|id| self.queue.mark_hold(db, &part.key, id));
    }

    /// An operator overrides the limit of a bucket, with a capacity and a rate.
    pub fn override_limit(&mut self, db: Db, key: &[u8], limit: [&str; 2], ttl_ms: i64) {
        self.world.override_limit(db, &key.into(), limit, ttl_ms);
        self.queue.mark_gone(Some(db), Some(key));
        self.serve();
    }

    /// Gives, or charges if negative.
    pub fn give(&mut self, db: Db, part: &Part, micro: i64) {
        let operation = match micro {
            0.. => Operation::Give { amount_micro: micro },
            _ => Operation::Charge { amount_micro: -micro },
        };
        self.world.operate(db, part, operation);
        match micro {
            0.. => self.mark(db, part),
            _ => self.mark_taken(db, part),
        }
        self.serve();
    }

    /// Ends the hold of a part, of which so much was used as it wants.
    pub fn settle(&mut self, db: Db, part: &Part) {
        self.mark(db, part);
        self.world.change_hold(db, part, None);
        self.serve();
    }

    /// A key goes; of all databases, if it is not known which.
    pub fn vanish(&mut self, db: Option<Db>, key: &[u8]) {
        self.world.stored.retain(|(of, name), _| db.is_some_and(|db| db != *of) || **name != *key);
        self.queue.mark_gone(db, Some(key));
        self.serve();
    }

    /// A bucket gets another name, and replaces what has it.
    pub fn rename(&mut self, db: Db, from: &[u8], to: &[u8]) {
        if let Some(stored) = self.world.stored.remove(&(db, from.into())) {
            self.world.stored.insert((db, to.into()), stored);
        }
        [from, to].into_iter().for_each(|key| self.queue.mark_gone(Some(db), Some(key)));
        self.serve();
    }

    pub fn flush(&mut self, db: Option<Db>) {
        self.world.stored.retain(|(of, _), _| db.is_some_and(|db| db != *of));
        self.queue.mark_gone(db, None);
        self.serve();
    }

    /// A wait ends, and nothing is granted.
    pub fn leave(&mut self, arrival: Arrival) -> Call {
        self.queue.leave(arrival);
        self.waiting.give_up(arrival)
    }

    /// A client has gone.
    pub fn disconnect(&mut self, arrival: Arrival) {
        self.leave(arrival);
        self.serve();
    }

    /// Serves everyone whose turn it is, or as many as one slice has time for.
    pub fn serve(&mut self) {
        self.waiting.look(&self.world);
        let is_marked = self.queue.is_marked(self.world.now_us);
        assert!(is_marked || self.waiting.next_served(&self.world).is_none(), "there is nothing to look at");
        self.world.steps_left = self.slice.unwrap_or(0);
        while let Some(arrival) = self.next_served() {
            let mut lost = self.waiting.calls.iter().filter(|call| call.is_lost(&self.world));
            if lost.any(|call| call.arrival == arrival) {
                self.leave(arrival);
                continue;
            }
            if self.waiting.is_exact() {
                let next = self.waiting.all_next(&self.world);
                assert!(next.contains(&arrival), "it is the turn of one of {next:?}, not of {arrival}");
            }
            let call = self.waiting.calls.iter().find(|call| call.arrival == arrival).unwrap().clone();
            for part in &call.parts {
                let needs_micro = self.world.needs_micro(call.db, part);
                self.has_given_back |= needs_micro < 0;
                self.waiting.grant(&call, part, needs_micro);
            }
            self.queue.grant(arrival);
            self.waiting.leave(arrival);
            // Nothing is marked meanwhile.
            let is_taken = call.parts.iter().all(|part| self.world.take(call.db, part, TTL_US));
            assert!(is_taken, "{call:?} lacks something");
            self.served.push(arrival);
            // It may have changed a hold that another call wants to enlarge.
            self.waiting.look(&self.world);
        }
        if self.slice.is_none() || !self.queue.is_marked(self.world.now_us) {
            assert_eq!(self.waiting.next_served(&self.world), None, "it is its turn");
            let lost = self.waiting.calls.iter().find(|call| call.is_lost(&self.world));
            assert!(lost.is_none(), "{lost:?} waits in vain");
            assert!(!self.queue.is_marked(self.world.now_us), "there is something to look at");
            self.waiting.end_turn();
        }
        assert_eq!(self.queue.count(), self.waiting.calls.len());
        assert!(self.queue.arrivals().eq(self.waiting.calls.iter().map(|call| call.arrival)));
    }

    /// Serves everyone whose turn it is, however long that takes.
    pub fn finish(&mut self) {
        self.slice = None;
        self.serve();
    }

    /// The next call that the queue serves. Half of the turns have time for one examination each, which changes nothing.
    fn next_served(&mut self) -> Option<Arrival> {
        for _ in 0..MAX_TURNS {
            if self.slice.is_none() {
                self.world.steps_left = if self.world.now_us % 2 == 0 { usize::MAX } else { 1 };
            }
            let next = self.queue.next_served(self.world.now_us, &mut self.world);
            if next.is_some() || !self.queue.is_marked(self.world.now_us) {
                return next;
            }
            self.assert_none_is_passed_over();
            if self.slice.is_some() {
                return None;
            }
        }
        panic!("its turns do not end");
    }

    /// Has the queue say whose turn it is, in a turn with time for everything.
    pub fn turn(&mut self) -> Option<Arrival> {
        self.world.steps_left = usize::MAX;
        self.queue.next_served(self.world.now_us, &mut self.world)
    }

    /// While a turn is not finished, no newcomer takes what a call wants whose turn it is, and its time is not over.
    fn assert_none_is_passed_over(&self) {
        let Some(arrival) = self.waiting.next_served(&self.world) else { return };
        let call = self.waiting.calls.iter().find(|call| call.arrival == arrival).unwrap();
        for part in call.parts.iter().filter(|part| self.world.needs_micro(call.db, part) > 0) {
            let seen = self.world.seen(call.db, &part.key);
            assert!(
                self.queue.wanted_before(call.db, &part.key, &seen, &part.limit, i64::MAX).is_some(),
                "{part:?} of {arrival} is free"
            );
        }
        assert_ne!(
            self.queue.clone().overdue(i64::MAX, true, &mut self.world.clone()),
            Some(arrival),
            "its time is over although it is its turn"
        );
    }

    /// Time passes while a release is served in slices: who is due is not late.
    pub fn sleep_between_slices(&mut self, by_us: i64) {
        self.world.now_us += by_us;
        self.serve();
        self.world.steps_left = usize::MAX;
        while let Some(arrival) = self.queue.overdue(self.world.now_us, true, &mut self.world) {
            let next = self.waiting.all_next(&self.world);
            assert!(!next.contains(&arrival), "its time is over although it is the turn of {next:?}");
            self.disconnect(arrival);
        }
    }

    /// Time passes, and the timer fires whenever the queue wants it to. Nobody could be served before.
    pub fn sleep(&mut self, by_us: i64) {
        self.finish();
        let until_us = self.world.now_us + by_us;
        while let Some(look_us) = self.queue.next_look_us().filter(|look_us| *look_us <= until_us) {
            self.sleep_idle(look_us.saturating_sub(1));
            // It may have been over between slices.
            self.world.now_us = self.world.now_us.max(look_us);
            self.serve();
            self.end_overdue();
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
        loop {
            let overdue = self.waiting.calls.iter().filter(is_over);
            let overdue =
                overdue.min_by_key(|call| (call.deadline_us, call.arrival)).map(|call| call.arrival);
            assert_eq!(self.queue.overdue(now_us, true, &mut self.world), overdue);
            let Some(arrival) = overdue else { break };
            // It may be the turn of others now, whose time is over too.
            self.disconnect(arrival);
        }
    }

    /// The clock steps back. Buckets that a waiting call lacks count on from the new time, and the waits do.
    pub fn set_back(&mut self, by_us: i64) {
        self.finish();
        let by_us = by_us.min(self.world.now_us);
        self.world.now_us -= by_us;
        for call in &self.waiting.calls {
            let is_denied = call.parts.iter().any(|part| self.world.denial(call.db, part).is_some());
            for part in call.parts.iter().filter(|_| is_denied) {
                let (bucket, extension) = self.world.find(call.db, &part.key);
                let change = part.limit.denied_by_another(bucket, extension, self.world.now_us).change;
                self.world.write(call.db, &part.key, &part.limit, |_| change);
            }
        }
        self.queue.set_back(by_us);
        self.queue.mark_gone(None, None);
        self.waiting.calls.iter_mut().for_each(|call| call.deadline_us -= by_us);
        self.serve();
    }

    /// Everybody leaves, those with a share first, and nothing of them stays in the queue.
    pub fn close(mut self) {
        self.finish();
        let shared = |call: &&Call| call.share.is_some();
        while let Some(arrival) = self.waiting.calls.iter().find(shared).map(|call| call.arrival) {
            self.disconnect(arrival);
        }
        assert!(!format!("{:?}", self.queue).contains("Share {"), "{:?}", self.queue);
        while let Some(arrival) = self.waiting.calls.last().map(|call| call.arrival) {
            self.disconnect(arrival);
        }
        self.assert_empty();
    }

    pub fn assert_empty(&self) {
        let empty = "Queue { names: {}, lines: {}, waiters: {}, claims: {}, deadlines: {}, late: {}, looks: {}, changed: {}, due: {}, apart: {},";
        assert!(format!("{:?}", self.queue).starts_with(empty), "{:?}", self.queue);
    }
}
