//! The settings: name, values, default, and whether they may change while the server runs.

use redis_module::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicI64, Ordering};
use tokenbucket_core::hold;
use tokenbucket_core::number::whole;
use tokenbucket_core::request;

pub(crate) struct Setting {
    pub(super) name: &'static CStr,
    pub(super) kind: Kind,
    pub(super) flags: u32,
    /// The index of a choice, or the number itself; initially the default.
    pub(super) current: AtomicI64,
}

/// The values of a setting.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// One of two words, whose indexes are 0 and 1.
    Choice([&'static CStr; 2]),
    /// A whole number within bounds.
    Whole { min: i64, max: i64 },
}

static ON_OOM: Setting = Setting::new(c"on-oom", Kind::Choice([c"deny", c"allow"]), 0);
static CL_THROTTLE: Setting = Setting {
    flags: raw::REDISMODULE_CONFIG_IMMUTABLE,
    ..Setting::new(c"cl-throttle", Kind::Choice([c"yes", c"no"]), 0)
};
/// The most holds of a bucket.
pub(crate) static MAX_HOLDS: Setting =
    Setting::new(c"max-holds", Kind::Whole { min: 1, max: hold::MAX_HOLDS as i64 }, 10_000);
/// The number of counters for denied keys.
pub(super) static TOP_KEYS: Setting =
    Setting::new(c"top-keys", Kind::Whole { min: 0, max: request::MAX_TOP_KEYS }, 128);
/// The most calls that may wait in the server.
pub(super) static MAX_WAITERS: Setting =
    Setting::new(c"max-waiters", Kind::Whole { min: 0, max: request::MAX_WAITERS }, 1000);

pub(super) static SETTINGS: [&Setting; 5] = [&ON_OOM, &CL_THROTTLE, &MAX_HOLDS, &TOP_KEYS, &MAX_WAITERS];

/// Returns whether creating a bucket over `maxmemory` is an error. Otherwise (`on-oom allow`) the call gets the decision of
/// a full bucket, and nothing is stored.
pub(crate) fn denies_on_oom() -> bool {
    ON_OOM.current() == 0
}

/// Returns whether to register `CL.THROTTLE`. Read once, when the module is loaded.
pub(super) fn cl_throttle() -> bool {
    CL_THROTTLE.current() == 0
}

impl Setting {
    const fn new(name: &'static CStr, kind: Kind, default: i64) -> Self {
        let flags = raw::REDISMODULE_CONFIG_DEFAULT;
        Self { name, kind, flags, current: AtomicI64::new(default) }
    }

    #[inline]
    pub(super) fn current(&self) -> i64 {
        self.current.load(Ordering::Relaxed)
    }

    /// Returns a whole number.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.current()).unwrap_or(0)
    }
}

impl Kind {
    /// Reads a value; `None` if it is invalid.
    pub(super) fn read(self, value: &[u8]) -> Option<i64> {
        match self {
            Self::Choice(words) => {
                let is_it = |word: &&CStr| word.to_bytes().eq_ignore_ascii_case(value);
                i64::try_from(words.iter().position(is_it)?).ok()
            }
            Self::Whole { min, max } => whole(value, max).filter(|number| *number >= min),
        }
    }

    /// Returns the values, for an error.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Choice(words) => words.map(CStr::to_string_lossy).join(" or "),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
        }
    }
}
