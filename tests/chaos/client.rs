//! One client: makes calls on buckets of its own, and judges every reply.

use super::books::Books;
use super::judge::{hear, is_out_of_memory};
use super::step::{self, draw, Act, Step, Wrapping};
use super::world::{Memory, Now, Worker, World};
use crate::common::exact::Holding;
use crate::common::stored::Stored;
use crate::common::walk::shown_holds;
use crate::common::{integer, reply, Connection, Random};
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
    world: &'a World,
    books: &'a Mutex<Books>,
    random: Random,
    connection: Option<Connection>,
    tail: VecDeque<String>,
    answered: Instant,
}

/// What came back.
enum Answer {
    Replies(Vec<Value>),
    /// The server refused to do anything at all.
    Refused,
    /// The connection broke: it may have been done or not.
    Lost,
}

/// The buckets of a client, all of them full.
pub fn new_books(random: &mut Random, client: u64) -> Books {
    let key = |place| format!("client:{client}:{place}");
    Books::new((0..BUCKETS).map(|place| step::new_bucket(random, key(place), place < THROTTLED)).collect())
}

impl<'a> Client<'a> {
    pub fn new(world: &'a World, books: &'a Mutex<Books>, client: u64) -> Self {
        let tail = VecDeque::new();
        let random = Random::new(client);
        Self { world, books, random, connection: None, tail, answered: Instant::now() }
    }

    /// Makes calls until all is over.
    pub fn work(&mut self) {
        while !self.world.is_over() {
            self.turn();
            assert!(self.answered.elapsed() < PATIENCE, "no answer for {PATIENCE:?}");
        }
    }

    fn turn(&mut self) {
        let world = self.world;
        let now = world.now.read().unwrap();
        if !self.is_connected() {
            drop(now);
            return std::thread::sleep(Duration::from_millis(5));
        }
        let mut books = self.books.lock().unwrap();
        if !books.is_settled() && !self.settle(&mut books, &now) {
            return;
        }
        self.call(&mut books, &now);
    }

    fn is_connected(&mut self) -> bool {
        if self.connection.is_none() && !self.world.is_down.load(Ordering::SeqCst) {
            self.connection = Connection::try_open(self.world.port).ok();
        }
        self.connection.is_some()
    }

    /// Looks at what became of a call that was cut off. False if there is nobody to ask.
    fn settle(&mut self, books: &mut Books, now: &Now) -> bool {
        let keys = books.keys();
        let questions = ["TB.STATE", "TB.HOLDS", "PTTL"];
        let words: Vec<String> =
            keys.iter().flat_map(|key| questions.map(|question| format!("{question} {key}"))).collect();
        let Answer::Replies(replies) = self.send(&words, Wrapping::Script, now) else { return false };
        let found = |key: &str| {
            let place = keys.iter().position(|known| known == key).unwrap();
            let [state, holds, left_ms] = &replies[3 * place..][..3] else { panic!("too few replies") };
            let expires_at_ms = Some(integer(left_ms)).filter(|ms| *ms >= 0).map(|ms| now.us / 1000 + ms);
            let holds = shown_holds(holds.clone(), now.us);
            let Some((level, refilled_at_us)) = reply::state(state) else {
                assert!(
                    holds.is_empty() && expires_at_ms.is_none(),
                    "{key} has left {holds:?} until {expires_at_ms:?}"
                );
                return None;
            };
            Some(Stored { level, refilled_at_us, expires_at_ms, holds })
        };
        books.settle(now, found).into_iter().for_each(|fate| self.world.count(fate));
        true
    }

    fn call(&mut self, books: &mut Books, now: &Now) {
        let (steps, wrapping) = self.plan(books, now);
        let looks_first = now.memory != Memory::Free
            || matches!(steps[0], Step::One(_, Act::NewLimit(..)))
            || self.random.once_in(8);
        if looks_first && !self.look(books, &steps, now) {
            return;
        }
        self.make(books, &steps, wrapping, now);
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

    fn look(&mut self, books: &mut Books, steps: &[Step], now: &Now) -> bool {
        let mut places = steps.iter().flat_map(Step::places);
        places.all(|place| self.make(books, &[Step::One(place, Act::Look)], Wrapping::None, now))
    }

    /// Sends steps as one, and judges what comes back. False if nothing did.
    fn make(&mut self, books: &mut Books, steps: &[Step], wrapping: Wrapping, now: &Now) -> bool {
        let words: Vec<String> = steps.iter().map(|step| step.words(books.page())).collect();
        match self.send(&words, wrapping, now) {
            Answer::Replies(replies) => {
                assert_eq!(replies.len(), steps.len());
                for (step, reply) in steps.iter().zip(&replies) {
                    hear(books.page(), step, now, reply);
                    self.world.count(kind(step, reply));
                }
                true
            }
            Answer::Refused => false,
            Answer::Lost => {
                books.doubt(steps, now);
                false
            }
        }
    }

    fn send(&mut self, words: &[String], wrapping: Wrapping, now: &Now) -> Answer {
        let (packed, count) = pack(words, wrapping);
        let Some(connection) = &mut self.connection else { return Answer::Lost };
        self.tail.push_back(format!("{wrapping:?} {}", words.join("; ")));
        let replies = connection.inner().req_packed_commands(&packed, 0, count);
        let answer = match replies {
            Ok(replies) => unwrap(replies, wrapping, now),
            Err(error) => {
                assert!(error.is_io_error() && !error.is_timeout(), "no reply: {error}");
                self.connection = None;
                Answer::Lost
            }
        };
        self.tail.push_back(match &answer {
            Answer::Replies(replies) => format!("    {replies:?}"),
            Answer::Refused => "    refused".to_owned(),
            Answer::Lost => "    cut off".to_owned(),
        });
        if !matches!(answer, Answer::Lost) {
            self.answered = Instant::now();
        }
        self.tail.drain(..self.tail.len().saturating_sub(2 * REMEMBERED));
        answer
    }
}

impl Worker for Client<'_> {
    fn tail(&self) -> String {
        format!("its last calls:\n{}", self.tail.iter().cloned().collect::<Vec<_>>().join("\n"))
    }
}

/// What a reply is counted as.
fn kind(step: &Step, reply: &Value) -> &'static str {
    let [yes, no] = match step {
        Step::One(_, Act::Hold(Holding::Set { .. })) => ["held", "not held"],
        Step::One(_, Act::Hold(Holding::Settle { .. })) => ["settled", "settled late"],
        // The other way round than ours: whether it is limited.
        Step::One(_, Act::Throttle(_)) => ["denied", "allowed"],
        Step::One(_, Act::Call(_) | Act::NewLimit(..)) | Step::MultiTake(_) => ["allowed", "denied"],
        Step::One(_, Act::Reset(_)) => return "reset",
        Step::One(_, Act::Peek(_) | Act::Look | Act::LookAtHolds) => return "looked at",
    };
    match reply {
        Value::Array(fields) if fields[0] == Value::Int(0) => no,
        Value::Array(_) => yes,
        _ => "out of memory",
    }
}

/// Commands as bytes, and how many replies come back.
fn pack(words: &[String], wrapping: Wrapping) -> (Vec<u8>, usize) {
    let command = |words: &str| words.split(' ').fold(Cmd::new(), |mut cmd, word| cmd.arg(word).take());
    let mut commands: Vec<Cmd> = words.iter().map(|words| command(words)).collect();
    match wrapping {
        Wrapping::None => {}
        Wrapping::Transaction => {
            commands.insert(0, command("MULTI"));
            commands.push(command("EXEC"));
        }
        Wrapping::Script => {
            let mut eval = redis::cmd("EVAL");
            eval.arg(SCRIPT).arg(0);
            for words in words {
                eval.arg(words.split(' ').count()).arg(words.split(' ').collect::<Vec<_>>());
            }
            commands = vec![eval];
        }
    }
    (commands.iter().flat_map(Cmd::get_packed_command).collect(), commands.len())
}

/// The replies to the commands themselves.
fn unwrap(mut replies: Vec<Value>, wrapping: Wrapping, now: &Now) -> Answer {
    let last = replies.pop();
    match (last, wrapping) {
        (Some(Value::Array(replies)), Wrapping::Transaction | Wrapping::Script) => Answer::Replies(replies),
        (Some(Value::ServerError(error)), _) if error.code() == "LOADING" => Answer::Refused,
        (Some(Value::ServerError(error)), Wrapping::Transaction) if error.code() == "EXECABORT" => {
            assert!(replies.iter().any(|reply| may_abort(reply, now)), "{error:?} after {replies:?}");
            Answer::Refused
        }
        (Some(last), Wrapping::None) => Answer::Replies(vec![last]),
        (last, _) => panic!("an unexpected reply: {last:?} after {replies:?}"),
    }
}

/// Whether the reply to a command of a transaction says why there can be none. While memory is full, a server
/// queues nothing.
fn may_abort(reply: &Value, now: &Now) -> bool {
    let is_loading = matches!(reply, Value::ServerError(error) if error.code() == "LOADING");
    is_loading || (is_out_of_memory(reply) && now.memory != Memory::Free)
}
