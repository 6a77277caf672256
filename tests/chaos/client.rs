//! One client: makes calls on buckets of its own, and judges every reply.

use super::books::Books;
use super::judge::{hear, is_out_of_memory};
use super::step::{self, draw, Act, Step, Wrapping};
use super::world::{Memory, Now, World};
use crate::common::stored::on_the_wire;
use crate::common::{Connection, Random};
use redis::{Cmd, ConnectionLike, Value};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const BUCKETS: usize = 12;

/// Those of which redis-cell's command takes too.
const THROTTLED: usize = 3;

/// Calls that a failure shows.
const REMEMBERED: usize = 25;

/// How long a server that was killed may take to answer again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does several commands at one moment, and goes on after an error.
const SCRIPT: &str = "
    local replies, next = {}, 1
    while next <= #ARGV do
        local length = tonumber(ARGV[next])
        replies[#replies + 1] = redis.pcall(unpack(ARGV, next + 1, next + length))
        next = next + 1 + length
    end
    return replies";

pub struct Client<'a> {
    name: String,
    world: &'a World,
    books: &'a Mutex<Books>,
    random: Random,
    connection: Option<Connection>,
    tail: VecDeque<String>,
    answered: Instant,
}

/// The buckets of a client, all of them full.
pub fn new_books(random: &mut Random, client: u64) -> Books {
    let key = |place| format!("client:{client}:{place}");
    Books::new((0..BUCKETS).map(|place| step::new_bucket(random, key(place), place < THROTTLED)).collect())
}

impl<'a> Client<'a> {
    pub fn new(world: &'a World, books: &'a Mutex<Books>, number: u64) -> Self {
        let (name, tail) = (format!("client {number}"), VecDeque::new());
        let random = Random::new(number);
        Self { name, world, books, random, connection: None, tail, answered: Instant::now() }
    }

    /// Makes calls until all is over.
    pub fn work(&mut self) {
        while !self.world.is_over.load(Ordering::SeqCst) {
            if !self.turn() {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(self.answered.elapsed() < PATIENCE, "no answer for {PATIENCE:?}");
        }
    }

    /// Makes calls, once it is known what became of those that were cut off. False if there is nobody to call.
    fn turn(&mut self) -> bool {
        let world = self.world;
        let now = world.now.read().unwrap();
        if self.connection.is_none() && !world.is_down.load(Ordering::SeqCst) {
            self.connection = Connection::try_open(world.port).ok();
        }
        let mut books = self.books.lock().unwrap();
        let is_ready = self.connection.is_some() && books.is_settled();
        if is_ready {
            self.call(&mut books, &now);
        }
        is_ready
    }

    fn call(&mut self, books: &mut Books, now: &Now) {
        let (steps, wrapping) = self.plan(books, now);
        let looks_first = now.memory != Memory::Free
            || matches!(steps[0], Step::One(_, Act::NewLimit(..)))
            || self.random.once_in(8);
        let look = |place| Step::One(place, Act::Look);
        let looks =
            if looks_first { steps.iter().flat_map(Step::places).map(look).collect() } else { vec![] };
        if looks.into_iter().all(|look| self.make(books, &[look], Wrapping::None, now)) {
            self.make(books, &steps, wrapping, now);
        }
    }

    fn plan(&mut self, books: &mut Books, now: &Now) -> (Vec<Step>, Wrapping) {
        let page = books.page();
        let random = &mut self.random;
        if random.once_in(25) {
            if let Some(step) = step::new_limit(random, page) {
                return (vec![step], Wrapping::None);
            }
        }
        let wrapping =
            *random.pick(&[Wrapping::None, Wrapping::None, Wrapping::Transaction, Wrapping::Script]);
        // While memory is full, whether a bucket has a key decides, and only one look is taken.
        let several = wrapping != Wrapping::None && now.memory == Memory::Free;
        let count = if several { random.between(1, 4) } else { 1 };
        ((0..count).map(|_| draw(random, page)).collect(), wrapping)
    }

    /// Sends steps as one, and judges what comes back. False if nothing did.
    fn make(&mut self, books: &mut Books, steps: &[Step], wrapping: Wrapping, now: &Now) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let words: Vec<String> = steps.iter().map(|step| step.words(books.page())).collect();
        let (packed, count) = pack(&words, wrapping);
        self.tail.push_back(format!("{wrapping:?} {}", words.join("; ")));
        let replies = connection.inner().req_packed_commands(&packed, 0, count);
        self.tail.push_back(format!("    {replies:?}"));
        self.tail.drain(..self.tail.len().saturating_sub(2 * REMEMBERED));
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) => {
                assert!(error.is_io_error() && !error.is_timeout(), "no reply: {error}");
                self.connection = None;
                books.doubt(steps, now);
                return false;
            }
        };
        self.answered = Instant::now();
        let Some(replies) = unwrap(replies, wrapping, now) else { return false };
        assert_eq!(replies.len(), steps.len());
        for ((step, words), reply) in steps.iter().zip(&words).zip(&replies) {
            hear(books.page(), step, now, reply);
            self.world.count(&kind(words, reply));
        }
        true
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let calls = || self.tail.iter().cloned().collect::<Vec<_>>().join("\n");
        self.world.leave(&self.name, || format!("its last calls:\n{}", calls()));
    }
}

/// What a call and its reply are counted as: the command, and whether it was allowed, where that is what it replies.
fn kind(words: &str, reply: &Value) -> String {
    let reply = match reply {
        Value::Array(fields) if matches!(fields.first(), Some(Value::Int(_))) => {
            i32::from(fields[0] != Value::Int(0)).to_string()
        }
        Value::ServerError(error) => error.code().to_owned(),
        _ => "-".to_owned(),
    };
    format!("{} {reply}", words.split(' ').next().unwrap_or_default())
}

/// Commands as bytes, and how many replies come back.
fn pack(words: &[String], wrapping: Wrapping) -> (Vec<u8>, usize) {
    let commands = words.iter().flat_map(|words| on_the_wire(words));
    match wrapping {
        Wrapping::None => (commands.collect(), words.len()),
        Wrapping::Transaction => (
            on_the_wire("MULTI").into_iter().chain(commands).chain(on_the_wire("EXEC")).collect(),
            words.len() + 2,
        ),
        Wrapping::Script => {
            let mut eval = Cmd::new();
            eval.arg("EVAL").arg(SCRIPT).arg(0);
            for words in words {
                eval.arg(words.split(' ').count()).arg(words.split(' ').collect::<Vec<_>>());
            }
            (eval.get_packed_command(), 1)
        }
    }
}

/// The replies to the commands themselves, unless the server refused to do anything at all.
fn unwrap(mut replies: Vec<Value>, wrapping: Wrapping, now: &Now) -> Option<Vec<Value>> {
    let last = replies.pop().expect("a reply to each command");
    match (last, wrapping) {
        (Value::Array(replies), Wrapping::Transaction | Wrapping::Script) => Some(replies),
        (Value::ServerError(error), _) if error.code() == "LOADING" => None,
        (Value::ServerError(error), Wrapping::Transaction) if error.code() == "EXECABORT" => {
            assert!(replies.iter().any(|reply| may_abort(reply, now)), "{error:?} after {replies:?}");
            None
        }
        (last, Wrapping::None) => Some(vec![last]),
        (last, _) => panic!("an unexpected reply: {last:?} after {replies:?}"),
    }
}

/// Whether the reply to a command of a transaction says why there can be none. While memory is full, a server
/// queues nothing.
fn may_abort(reply: &Value, now: &Now) -> bool {
    let is_loading = matches!(reply, Value::ServerError(error) if error.code() == "LOADING");
    is_loading || (is_out_of_memory(reply) && now.memory != Memory::Free)
}
