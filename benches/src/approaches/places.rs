//! Ways to hold one of so many places for as long as something lasts: the window of the limit. A decision is to be given
//! a place and to give it back.

use super::{Approach, Way};
use crate::client::Client;
use crate::server::Module;
use redis::RedisResult;
use std::cell::Cell;
use std::rc::Rc;

/// What the others are compared with.
pub const COUNTER: &str = "INCR / DECR, EXPIRE by each";

/// A way to hold a place.
#[derive(Clone)]
pub struct Places {
    pub name: &'static str,
    pub module: Module,
    take: &'static str,
    /// Sent by whoever counts to one.
    at_one: &'static str,
    give_back: &'static str,
    /// A count is for the client to judge, who counts down again if it is too high.
    counts: bool,
    /// How many hold a place now, and the most that did: from the reply that gives it until the command that gives it
    /// back, so never more than the server has given.
    in_flight: Rc<Cell<(u64, u64)>>,
    /// Exchanges with the server for which a place is held.
    work: u32,
}

impl Places {
    /// All ways, the module's first.
    pub fn all() -> [Self; 4] {
        let way = |name, take, give_back| {
            let (module, in_flight) = (Module::None, Rc::default());
            Self { name, module, take, at_one: "", give_back, counts: false, in_flight, work: 0 }
        };
        let hold = "TB.HOLD {key} {capacity} 0 1 {window_ms} {id}";
        let own = way("TB.HOLD / TB.SETTLE", hold, "TB.SETTLE {key} {capacity} 0 {id} 0");
        let counter = way(COUNTER, "INCR {key} ; PEXPIRE {key} {window_ms}", "DECR {key}");
        let first = way("INCR / DECR, EXPIRE by the first", "INCR {key}", "DECR {key}");
        let script = "EVALSHA {semaphore} 1 {key} {now_ms} {window_ms} {capacity} {id}";
        [
            Self { module: Module::Own, ..own },
            Self { counts: true, ..counter },
            Self { counts: true, at_one: "PEXPIRE {key} {window_ms}", ..first },
            way("sorted-set semaphore in Lua", script, "ZREM {key} {id}"),
        ]
    }

    /// The same way, by which a place is held during so many exchanges with the server.
    pub fn with_work(&self, work: u32) -> Self {
        Self { work, in_flight: Rc::default(), ..self.clone() }
    }

    pub fn approach(&self) -> Approach {
        Approach { name: self.name.to_owned(), module: self.module, way: Way::Places(self.clone()) }
    }

    /// The most that were in flight at once.
    pub fn most_in_flight(&self) -> u64 {
        self.in_flight.get().1
    }

    /// Takes a place and gives it back; whether there was one.
    pub async fn decide(&self, client: &mut Client, key: &str) -> RedisResult<bool> {
        let Some(mut unsent) = self.place(client, key).await? else { return Ok(false) };
        let (now, most) = self.in_flight.get();
        self.in_flight.set((now + 1, most.max(now + 1)));
        for _ in 0..self.work {
            client.ask(&[std::mem::take(&mut unsent), "PING"], key).await?;
        }
        let (now, most) = self.in_flight.get();
        self.in_flight.set((now - 1, most));
        client.ask(&[unsent, self.give_back], key).await?;
        Ok(true)
    }

    /// Takes a place and keeps it, as who dies does; whether there was one.
    pub async fn keep(&self, client: &mut Client, key: &str) -> RedisResult<bool> {
        client.begin();
        let Some(unsent) = self.place(client, key).await? else { return Ok(false) };
        client.ask(&[unsent], key).await?;
        Ok(true)
    }

    /// Asks for a place: what the next exchange has to begin with, if there was one.
    async fn place(&self, client: &mut Client, key: &str) -> RedisResult<Option<&'static str>> {
        let number = client.ask_number(self.take, key).await?;
        let is_placed = number == 1 || self.counts && number <= client.limit.capacity as i64;
        if !is_placed && self.counts {
            client.ask(&[self.give_back], key).await?;
        }
        Ok(is_placed.then_some(if number == 1 { self.at_one } else { "" }))
    }
}
