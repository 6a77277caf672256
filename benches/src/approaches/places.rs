//! Ways to hold one of so many places for as long as something lasts. A decision is to be given a place and to give
//! it back.

use super::{client_now_us, Approach, Client, Step};
use crate::template::Limit;
use anyhow::{Context, Result};
use redis::{from_redis_value_ref, Cmd, Pipeline, Value};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;

/// The semaphore as people copy it.
pub const SEMAPHORE: &str = include_str!("../semaphore.lua");

/// What the others are compared with.
pub const COUNTER: &str = "INCR / DECR, EXPIRE by each";

/// What a client does that has been given a place.
#[derive(Clone, Copy)]
pub enum Then {
    /// So many exchanges with the server, before it gives the place back.
    Work(u32),
    /// Nothing, ever again.
    Die,
}

/// A way to hold a place, and what is done with it.
#[derive(Clone)]
pub struct Places {
    name: &'static str,
    module: Option<PathBuf>,
    /// Commands in which `{key}`, `{places}`, `{ttl_ms}`, `{id}` and `{now_ms}` (by the client's clock) are left open.
    take: &'static str,
    /// Sent by whoever counts to one.
    at_one: &'static str,
    give_back: &'static str,
    /// A count is for the client to judge, who counts down again if it is too high.
    counts: bool,
    ttl_ms: u64,
    then: Then,
    /// How many hold a place now, and the most that did: from the reply that gives it until the command that gives it
    /// back, so never more than the server has given.
    in_flight: Rc<Cell<(u64, u64)>>,
}

impl Places {
    /// All ways, the module's first.
    pub fn all(module: &Path, ttl_ms: u64) -> [Self; 4] {
        let way = |name, take, give_back| {
            let (then, in_flight) = (Then::Work(0), Rc::default());
            Self { name, module: None, take, at_one: "", give_back, counts: false, ttl_ms, then, in_flight }
        };
        let hold = "TB.HOLD {key} {places} 0 1 {ttl_ms} {id}";
        let own = way("TB.HOLD / TB.SETTLE", hold, "TB.SETTLE {key} {places} 0 {id} 0");
        let counter = way(COUNTER, "INCR {key} ; PEXPIRE {key} {ttl_ms}", "DECR {key}");
        let first = way("INCR / DECR, EXPIRE by the first", "INCR {key}", "DECR {key}");
        let script = "EVALSHA {script} 1 {key} {now_ms} {ttl_ms} {places} {id}";
        [
            Self { module: Some(module.to_owned()), ..own },
            Self { counts: true, ..counter },
            Self { counts: true, at_one: "PEXPIRE {key} {ttl_ms}", ..first },
            way("sorted-set semaphore in Lua", script, "ZREM {key} {id}"),
        ]
    }

    /// The same, and something else done with it.
    pub fn and_then(&self, then: Then) -> Self {
        Self { then, in_flight: Rc::default(), ..self.clone() }
    }

    /// The most that were in flight at once.
    pub fn most_in_flight(&self) -> u64 {
        self.in_flight.get().1
    }
}

impl Approach for Places {
    fn name(&self) -> &str {
        self.name
    }

    fn module(&self) -> Option<&Path> {
        self.module.as_deref()
    }

    fn client(&self, number: usize, limit: Limit) -> Box<dyn Client> {
        let (way, places, id) = (self.clone(), limit.capacity, String::new());
        Box::new(Holder { way, places, number, held: 0, id, asked: Asked::Place })
    }
}

struct Holder {
    way: Places,
    places: u64,
    number: usize,
    held: u64,
    id: String,
    asked: Asked,
}

/// What was asked last.
enum Asked {
    Place,
    Work { left: u32 },
    End { allowed: bool },
}

impl Holder {
    fn send(&self, commands: &str, key: &str, batch: &mut Pipeline) {
        for command in commands.split(" ; ").filter(|command| !command.is_empty()) {
            let mut filled = Cmd::new();
            for word in command.split(' ') {
                match word {
                    "{key}" => filled.arg(key),
                    "{places}" => filled.arg(self.places),
                    "{ttl_ms}" => filled.arg(self.way.ttl_ms),
                    "{id}" => filled.arg(&self.id),
                    "{now_ms}" => filled.arg(client_now_us() / 1000),
                    "{script}" => filled.arg(semaphore_sha()),
                    word => filled.arg(word),
                };
            }
            batch.add_command(filled);
        }
    }

    fn give_back(&mut self, allowed: bool, key: &str, batch: &mut Pipeline) {
        self.send(self.way.give_back, key, batch);
        self.asked = Asked::End { allowed };
    }

    fn work(&mut self, left: u32, key: &str, batch: &mut Pipeline) {
        if left > 0 {
            batch.cmd("PING");
            self.asked = Asked::Work { left: left - 1 };
        } else {
            let (now, most) = self.way.in_flight.get();
            self.way.in_flight.set((now - 1, most));
            self.give_back(true, key, batch);
        }
    }

    fn begin_work(&mut self, key: &str, batch: &mut Pipeline) -> Step {
        let (now, most) = self.way.in_flight.get();
        self.way.in_flight.set((now + 1, most.max(now + 1)));
        match self.way.then {
            Then::Work(left) => self.work(left, key, batch),
            Then::Die if batch.is_empty() => return Step::Decided { allowed: true },
            Then::Die => self.asked = Asked::End { allowed: true },
        }
        Step::Ask
    }
}

impl Client for Holder {
    fn begin(&mut self, key: &str, batch: &mut Pipeline) {
        self.held += 1;
        // As long as a UUID.
        self.id = format!("{:08}-{:027}", self.number, self.held);
        self.asked = Asked::Place;
        self.send(self.way.take, key, batch);
    }

    fn proceed(&mut self, replies: &[Value], key: &str, batch: &mut Pipeline) -> Result<Step> {
        match self.asked {
            Asked::Place => {
                let number = first_number(replies)?;
                if number == 1 {
                    self.send(self.way.at_one, key, batch);
                }
                if number == 1 || self.way.counts && number <= self.places as i64 {
                    return Ok(self.begin_work(key, batch));
                }
                if !self.way.counts {
                    return Ok(Step::Decided { allowed: false });
                }
                self.give_back(false, key, batch);
            }
            Asked::Work { left } => self.work(left, key, batch),
            Asked::End { allowed } => return Ok(Step::Decided { allowed }),
        }
        Ok(Step::Ask)
    }
}

/// A count, or what a decision begins with.
fn first_number(replies: &[Value]) -> Result<i64> {
    let first = match replies.first() {
        Some(Value::Array(fields)) => fields.first(),
        other => other,
    };
    Ok(from_redis_value_ref(first.context("no reply")?)?)
}

fn semaphore_sha() -> &'static str {
    static SHA: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SEMAPHORE).digest().to_string());
    &SHA
}
