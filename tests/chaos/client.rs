//! One client: makes calls on buckets of its own, and judges every reply.

use super::possible_states::{is_error, judge_reply, PossibleStates};
use super::step::{draw, look, Step};
use super::world::{Memory, Now, World};
use crate::common::{Connection, Random, HOUR_MS};
use redis::{ConnectionLike, Pipeline, Value};
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::time::Duration;

/// Does several commands at one moment, and goes on after an error.
const SCRIPT: &str = "
    local replies, next = {}, 1
    while next <= #ARGV do
        local length = tonumber(ARGV[next])
        replies[#replies + 1] = redis.pcall(unpack(ARGV, next + 1, next + length))
        next = next + 1 + length
    end
    return replies";

/// How steps are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrapping {
    None,
    Transaction,
    Script,
}

pub struct Client<'a> {
    name: String,
    world: &'a World,
    states: &'a Mutex<PossibleStates>,
    random: Random,
    connection: Option<Connection>,
}

impl<'a> Client<'a> {
    pub fn new(world: &'a World, states: &'a Mutex<PossibleStates>, number: u64) -> Self {
        let (name, random) = (format!("client {number}"), Random::new(number));
        Self { name, world, states, random, connection: None }
    }

    /// Makes calls until all is over.
    pub fn work(&mut self) {
        while !self.world.is_over.load(Ordering::SeqCst) {
            if !self.turn() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Makes calls, once it is known what became of those that were cut off. False if there is nobody to call.
    fn turn(&mut self) -> bool {
        let world = self.world;
        let now = world.now.read().unwrap();
        if self.connection.is_none() {
            self.connection = Connection::try_open(world.port).ok();
        }
        let mut states = self.states.lock().unwrap();
        let is_ready = self.connection.is_some() && states.is_settled();
        if is_ready {
            self.call(&mut states, &now);
        }
        is_ready
    }

    fn call(&mut self, states: &mut PossibleStates, now: &Now) {
        let (steps, wrapping) = self.plan(states, now);
        let overrides = steps.iter().any(Step::overrides);
        let looks_first = now.memory != Memory::Free || overrides || self.random.once_in(8);
        let places = steps.iter().flat_map(|step| &step.places).filter(|_| looks_first);
        let looks: Vec<Step> = places.map(|place| look(states.buckets(), *place)).collect();
        if looks.into_iter().all(|look| self.make(states, &[look], Wrapping::None, now)) {
            self.make(states, &steps, wrapping, now);
        }
    }

    fn plan(&mut self, states: &mut PossibleStates, now: &Now) -> (Vec<Step>, Wrapping) {
        let (buckets, random) = (states.buckets(), &mut self.random);
        let wrapping =
            *random.pick(&[Wrapping::None, Wrapping::None, Wrapping::Transaction, Wrapping::Script]);
        // While memory is full, whether a bucket has a key decides, and only one look is taken.
        let several = wrapping != Wrapping::None && now.memory == Memory::Free;
        let count = if several { random.between(1, 4) } else { 1 };
        let max_wait_ms = if wrapping == Wrapping::None { 0 } else { random.between(0, HOUR_MS) };
        let step = |_| match (draw(random, buckets), random.once_in(4)) {
            (step, true) => step.with_max_wait_ms(max_wait_ms),
            (step, false) => step,
        };
        let mut steps: Vec<_> = (0..count).map(step).collect();
        // Whether a full bucket has a key decides what an override makes of it: it is looked at just before.
        if let Some(place) = steps.iter().position(Step::overrides) {
            steps = vec![steps.swap_remove(place)];
        }
        (steps, wrapping)
    }

    /// Sends steps as one, and judges what comes back. False if nothing did.
    fn make(&mut self, states: &mut PossibleStates, steps: &[Step], wrapping: Wrapping, now: &Now) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let words: Vec<&str> = steps.iter().map(|step| step.words.as_str()).collect();
        let (packed, count) = pack(&words, wrapping);
        self.world.remember(&self.name, &format!("{wrapping:?} {}", words.join("; ")));
        let replies = connection.inner().req_packed_commands(&packed, 0, count);
        self.world.remember(&self.name, &format!("    {replies:?}"));
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) => {
                assert!(error.is_io_error() && !error.is_timeout(), "no reply: {error}");
                self.connection = None;
                states.fork(steps, now);
                return false;
            }
        };
        let Some(replies) = unwrap(replies, wrapping, now) else { return false };
        assert_eq!(replies.len(), steps.len());
        for (step, reply) in steps.iter().zip(&replies) {
            judge_reply(states.buckets(), step, now, reply);
            self.world.count(&kind(&step.words, reply));
        }
        true
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.world.leave(&self.name);
    }
}

/// What a call and its reply are counted as: the command, and whether it was allowed, where that is what it replies.
fn kind(words: &str, reply: &Value) -> String {
    let reply = match reply {
        Value::ServerError(error) => error.code(),
        Value::Array(fields) if matches!(fields.first(), Some(Value::Int(0))) => "0",
        Value::Array(fields) if matches!(fields.first(), Some(Value::Int(_))) => "1",
        _ => "-",
    };
    format!("{} {reply}", words.split(' ').next().unwrap_or_default())
}

/// Commands as bytes, and how many replies come back.
fn pack(words: &[&str], wrapping: Wrapping) -> (Vec<u8>, usize) {
    let (mut batch, mut replies) = (Pipeline::new(), words.len());
    if wrapping == Wrapping::Script {
        batch.cmd("EVAL").arg(SCRIPT).arg(0);
        replies = 1;
    }
    for words in words.iter().map(|words| words.split(' ').collect::<Vec<_>>()) {
        match wrapping {
            Wrapping::Script => batch.arg(words.len()).arg(words),
            _ => batch.cmd(words[0]).arg(&words[1..]),
        };
    }
    if wrapping == Wrapping::Transaction {
        batch.atomic();
        replies += 2;
    }
    (batch.get_packed_pipeline(), replies)
}

/// The replies to the commands themselves, unless the server refused to do anything at all.
fn unwrap(mut replies: Vec<Value>, wrapping: Wrapping, now: &Now) -> Option<Vec<Value>> {
    let last = replies.pop().expect("a reply to each command");
    let is_loading = |reply: &Value| is_error(reply, "LOADING");
    // While memory is full, a server queues nothing.
    let may_abort = |reply| is_loading(reply) || (is_error(reply, "OOM") && now.memory != Memory::Free);
    match (last, wrapping) {
        (Value::Array(replies), Wrapping::Transaction | Wrapping::Script) => Some(replies),
        (last, _) if is_loading(&last) => None,
        (last, Wrapping::None) => Some(vec![last]),
        (last, Wrapping::Transaction) if is_error(&last, "EXECABORT") && replies.iter().any(may_abort) => {
            None
        }
        (last, _) => panic!("an unexpected reply: {last:?} after {replies:?}"),
    }
}
