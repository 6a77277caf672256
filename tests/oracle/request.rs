//! What a client's arguments mean, and which error they are if they mean nothing: the contract, read naively.
//!
//! Uses the naive reader of numbers next to this file.

use super::decimal::{self, Rate};
use std::collections::HashSet;
use tokenbucket::bucket::{Limit, Operation};
use tokenbucket::error::Error;
use tokenbucket::number::{self, RateError, Rounding, MAX_TOKENS};
use tokenbucket::request::{self, Request};

/// 100 years in milliseconds.
const LONGEST_WAIT_MS: i64 = 3_155_760_000_000;

/// The most buckets of one call.
const MOST_BUCKETS: usize = 1024;

/// A command that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Take,
    TakeUpTo,
    Reserve,
    Charge,
    Give,
    MultiTake,
}

pub const COMMANDS: [Command; 6] =
    [Command::Take, Command::TakeUpTo, Command::Reserve, Command::Charge, Command::Give, Command::MultiTake];

/// What is wanted of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant<'a> {
    pub key: &'a [u8],
    pub capacity_micro: i64,
    pub rate: Rate,
    /// The rate as it was worded.
    pub rate_words: &'a [u8],
    pub operation: Operation,
}

/// What these arguments want, or the error of the first of them that is wrong.
pub fn read<'a>(command: Command, arguments: &[&'a [u8]]) -> Result<Vec<Meant<'a>>, Error> {
    match (command, arguments) {
        (Command::MultiTake, _) => read_multi_take(arguments),
        (Command::Take, &[key, capacity, rate]) => {
            Ok(vec![read_one(command, [key, capacity, rate, b"1"], b"")?])
        }
        (Command::Reserve, &[key, capacity, rate, cost, max_wait]) => {
            Ok(vec![read_one(command, [key, capacity, rate, cost], max_wait)?])
        }
        (Command::Reserve, _) => Err(Error::WrongArity),
        (_, &[key, capacity, rate, amount]) => {
            Ok(vec![read_one(command, [key, capacity, rate, amount], b"")?])
        }
        _ => Err(Error::WrongArity),
    }
}

fn read_multi_take<'a>(arguments: &[&'a [u8]]) -> Result<Vec<Meant<'a>>, Error> {
    let (numkeys, groups) = arguments.split_first().ok_or(Error::WrongArity)?;
    let numkeys = read_numkeys(numkeys).ok_or(Error::NumKeys)?;
    if groups.len() != numkeys * 4 {
        return Err(Error::NumKeysMismatch);
    }
    let mut meant = Vec::new();
    for group in groups.chunks(4) {
        meant.push(read_one(Command::Take, group.try_into().unwrap(), b"")?);
    }
    let different: HashSet<&[u8]> = meant.iter().map(|meant| meant.key).collect();
    if different.len() < meant.len() {
        return Err(Error::DuplicateKey);
    }
    Ok(meant)
}

/// Only the spelling that the server knows too, which looks for the keys behind it.
fn read_numkeys(bytes: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number: usize = text.parse().ok()?;
    (number.to_string() == text && (1..=MOST_BUCKETS).contains(&number)).then_some(number)
}

fn read_one<'a>(
    command: Command,
    [key, capacity, rate_words, wanted]: [&'a [u8]; 4],
    max_wait: &[u8],
) -> Result<Meant<'a>, Error> {
    let capacity_micro = decimal::amount(capacity, Rounding::Down).ok_or(Error::Capacity)?;
    let rate = decimal::rate(rate_words).map_err(|error| match error {
        RateError::Malformed => Error::Rate,
        RateError::OutOfRange => Error::RateOutOfRange,
    })?;
    if !decimal::refills_within_a_century(capacity_micro, &rate.per_second) {
        return Err(Error::RefillTooSlow);
    }
    let amount = |rounding, error| decimal::amount(wanted, rounding).ok_or(error);
    let operation = match command {
        Command::Take | Command::MultiTake => {
            Operation::Take { cost_micro: amount(Rounding::Up, Error::Cost)? }
        }
        Command::TakeUpTo => {
            let max_tokens = decimal::whole(wanted, MAX_TOKENS).filter(|max_tokens| *max_tokens > 0);
            Operation::TakeUpTo { max_tokens: max_tokens.ok_or(Error::Max)? }
        }
        Command::Reserve => Operation::Reserve {
            cost_micro: amount(Rounding::Up, Error::Cost)?,
            max_wait_ms: decimal::whole(max_wait, LONGEST_WAIT_MS).ok_or(Error::MaxWait)?,
        },
        Command::Charge => Operation::Charge { amount_micro: amount(Rounding::Up, Error::Amount)? },
        Command::Give => Operation::Give { amount_micro: amount(Rounding::Down, Error::Amount)? },
    };
    Ok(Meant { key, capacity_micro, rate, rate_words, operation })
}

/// What the module reads.
pub fn parse<'a>(command: Command, arguments: &'a [&'a [u8]]) -> Result<Vec<Request<'a, &'a [u8]>>, Error> {
    let one = match command {
        Command::Take => request::take(arguments),
        Command::TakeUpTo => request::take_up_to(arguments),
        Command::Reserve => request::reserve(arguments),
        Command::Charge => request::charge(arguments),
        Command::Give => request::give(arguments),
        Command::MultiTake => return request::multi_take(arguments),
    };
    one.map(|request| vec![request])
}

/// The module reads these arguments as the naive reader does.
///
/// Of a rate with many digits some may be dropped, and with them it may fall out of bounds: then all that is asked is
/// that there is an answer.
pub fn agrees(command: Command, arguments: &[&[u8]]) {
    if arguments.iter().any(|argument| decimal::unbounded_rate(argument).is_ok_and(|rate| !rate.is_kept())) {
        let _ = parse(command, arguments);
        return;
    }
    let shown: Vec<String> = arguments.iter().map(|argument| argument.escape_ascii().to_string()).collect();
    match (parse(command, arguments), read(command, arguments)) {
        (Ok(read), Ok(meant)) => {
            assert_eq!(read.len(), meant.len(), "{command:?} {shown:?}");
            for (read, meant) in read.iter().zip(&meant) {
                assert_means(read, meant);
            }
        }
        (read, meant) => assert_eq!(read.err(), meant.err(), "{command:?} {shown:?}"),
    }
}

fn assert_means(read: &Request<&[u8]>, meant: &Meant) {
    assert_eq!(*read.key, meant.key);
    assert_eq!(read.limit.capacity_micro(), meant.capacity_micro);
    let rate = number::Rate::parse(meant.rate_words).unwrap();
    assert_eq!(Some(read.limit), Limit::new(meant.capacity_micro, rate));
    assert_eq!(read.operation, meant.operation);
}
