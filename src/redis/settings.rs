//! What can be set: a row in [`SETTINGS`] each, with its name, its values, the default, and whether it may change while the
//! server runs.

use redis_module::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering};
use tokenbucket_core::hold::MAX_HOLDS;
use tokenbucket_core::number::whole;
use tokenbucket_core::request::{MAX_TOP_KEYS, MAX_WAITERS};

/// What becomes of a bucket that would have to be created over `maxmemory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnOom {
    /// An error.
    Deny,
    /// The decision of a full bucket, with nothing stored.
    Allow,
}

pub(super) struct Setting {
    pub(super) name: &'static CStr,
    pub(super) kind: Kind,
    pub(super) flags: u32,
    /// The number of a choice, or the number itself; the default at first.
    pub(super) current: AtomicI64,
}

/// What a setting may be.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// One of two words, which count from 0.
    Choice([&'static CStr; 2]),
    /// A whole number within bounds.
    Whole { min: i64, max: i64 },
}

pub(super) static SETTINGS: [Setting; 5] = [
    Setting {
        name: c"on-oom",
        kind: Kind::Choice([c"deny", c"allow"]),
        flags: raw::REDISMODULE_CONFIG_DEFAULT,
        current: AtomicI64::new(0),
    },
    Setting {
        name: c"cl-throttle",
        kind: Kind::Choice([c"yes", c"no"]),
        flags: raw::REDISMODULE_CONFIG_IMMUTABLE,
        current: AtomicI64::new(0),
    },
    Setting {
        name: c"max-holds",
        kind: Kind::Whole { min: 1, max: MAX_HOLDS as i64 },
        flags: raw::REDISMODULE_CONFIG_DEFAULT,
        current: AtomicI64::new(10_000),
    },
    Setting {
        name: c"top-keys",
        kind: Kind::Whole { min: 0, max: MAX_TOP_KEYS },
        flags: raw::REDISMODULE_CONFIG_DEFAULT,
        current: AtomicI64::new(128),
    },
    Setting {
        name: c"max-waiters",
        kind: Kind::Whole { min: 0, max: MAX_WAITERS },
        flags: raw::REDISMODULE_CONFIG_DEFAULT,
        current: AtomicI64::new(1000),
    },
];

/// `tokenbucket.on-oom`.
pub(crate) fn on_oom() -> OnOom {
    let [on_oom, ..] = &SETTINGS;
    match on_oom.current.load(Ordering::Relaxed) {
        0 => OnOom::Deny,
        _ => OnOom::Allow,
    }
}

/// `tokenbucket.cl-throttle`: whether `CL.THROTTLE` is offered. Asked once, when the module is loaded.
pub(super) fn cl_throttle() -> bool {
    let [_, cl_throttle, ..] = &SETTINGS;
    cl_throttle.current.load(Ordering::Relaxed) == 0
}

/// `tokenbucket.max-holds`: how many holds a bucket may have.
pub(crate) fn max_holds() -> usize {
    let [_, _, max_holds, ..] = &SETTINGS;
    usize::try_from(max_holds.current.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

/// `tokenbucket.top-keys`: in how many counters denials are counted by key.
#[inline]
pub(super) fn top_keys() -> usize {
    let [.., top_keys, _] = &SETTINGS;
    usize::try_from(top_keys.current.load(Ordering::Relaxed)).unwrap_or(0)
}

/// `tokenbucket.max-waiters`: how many calls may wait in the server.
pub(super) fn max_waiters() -> usize {
    let [.., max_waiters] = &SETTINGS;
    usize::try_from(max_waiters.current.load(Ordering::Relaxed)).unwrap_or(0)
}

impl Kind {
    /// Reads a value; `None` if it is none of these.
    pub(super) fn read(self, value: &[u8]) -> Option<i64> {
        match self {
            Self::Choice(words) => {
                let is_it = |word: &&CStr| word.to_bytes().eq_ignore_ascii_case(value);
                i64::try_from(words.iter().position(is_it)?).ok()
            }
            Self::Whole { min, max } => whole(value, max).filter(|number| *number >= min),
        }
    }

    /// The values, for an error.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Choice(words) => words.map(CStr::to_string_lossy).join(" or "),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
        }
    }
}
