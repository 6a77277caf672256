//! The commands, as the module and as the script take them.

use std::fmt;

use redis::Cmd;

use crate::limit::Limit;

/// Tokens: a cost, a charge, what is held or used. Kept to a millionth of a token.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Amount(f64);

impl Amount {
    /// The number of tokens, if it is a whole one above 0 that a batch may serve.
    pub(crate) fn as_whole(self) -> Option<u64> {
        let is_whole = self.0 >= 1.0 && self.0 <= MOST_TOKENS && self.0.fract() == 0.0;
        is_whole.then_some(self.0 as u64)
    }

    pub(crate) fn is_zero(self) -> bool {
        self.0 == 0.0
    }
}

const MOST_TOKENS: f64 = 1e12;

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<f64> for Amount {
    fn from(tokens: f64) -> Self {
        Self(tokens)
    }
}

impl From<i32> for Amount {
    fn from(tokens: i32) -> Self {
        Self(tokens.into())
    }
}

impl From<u32> for Amount {
    fn from(tokens: u32) -> Self {
        Self(tokens.into())
    }
}

/// Exact up to 2^53, far above the 10^12 tokens that the server allows.
impl From<u64> for Amount {
    fn from(tokens: u64) -> Self {
        Self(tokens as f64)
    }
}

impl From<usize> for Amount {
    fn from(tokens: usize) -> Self {
        Self(tokens as f64)
    }
}

/// One of several buckets that are taken from, or held, all together or not at all.
///
/// In a cluster their names have to share a hash tag, as in `{alice}:requests` and `{alice}:tokens`.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub(crate) name: String,
    pub(crate) limit: Limit,
    pub(crate) amount: Amount,
}

impl Part {
    /// `amount` of the bucket `name`, under this limit.
    pub fn new(name: impl Into<String>, limit: &Limit, amount: impl Into<Amount>) -> Self {
        Self { name: name.into(), limit: limit.clone(), amount: amount.into() }
    }
}

/// A command about one bucket or several.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `TAKE` of `TB.TAKE`.
    operation: &'static str,
    /// What stands before the buckets of a joint command: `ttl_ms id` of a hold.
    before: Option<Vec<String>>,
    buckets: Vec<Bucket>,
}

#[derive(Clone, Debug)]
struct Bucket {
    key: String,
    limit: Limit,
    /// What stands behind the limit.
    words: Vec<String>,
}

impl Request {
    pub(crate) fn one(operation: &'static str, key: String, limit: &Limit, words: Vec<String>) -> Self {
        let bucket = Bucket { key, limit: limit.clone(), words };
        Self { operation, before: None, buckets: vec![bucket] }
    }

    pub(crate) fn joint(operation: &'static str, before: Vec<String>, prefix: &str, parts: &[Part]) -> Self {
        let bucket = |part: &Part| Bucket {
            key: format!("{prefix}{}", part.name),
            limit: part.limit.clone(),
            words: vec![part.amount.to_string()],
        };
        Self { operation, before: Some(before), buckets: parts.iter().map(bucket).collect() }
    }

    /// By which the command finds its node.
    pub(crate) fn key(&self) -> &str {
        self.buckets.first().map_or("", |bucket| &bucket.key)
    }

    /// The same, of the script.
    pub(crate) fn script_key(&self) -> String {
        script_key(self.key())
    }

    /// Holds are beyond the script.
    pub(crate) fn needs_the_module(&self) -> bool {
        matches!(self.operation, "MHOLD" | "MSETTLE")
    }

    /// Whether it may be sent again if the connection broke before the reply. At worst it takes twice, which errs on the
    /// side of the limit; giving, charging and settling twice would not do.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self.operation, "GIVE" | "CHARGE" | "MSETTLE")
    }

    pub(crate) fn to_command(&self) -> Cmd {
        let mut command = redis::cmd(&format!("TB.{}", self.operation));
        if let Some(before) = &self.before {
            command.arg(self.buckets.len()).arg(before);
        }
        for bucket in &self.buckets {
            command.arg(&bucket.key).arg(bucket.limit.capacity()).arg(bucket.limit.rate()).arg(&bucket.words);
        }
        command
    }

    /// As a call of the script: `EVALSHA sha` or `EVAL source`, then the keys, under names of their own, and the rest.
    pub(crate) fn to_script(&self, eval: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(eval);
        command.arg(script).arg(self.buckets.len());
        for bucket in &self.buckets {
            command.arg(script_key(&bucket.key));
        }
        command.arg(self.operation);
        for bucket in &self.buckets {
            command.arg(bucket.limit.capacity()).arg(bucket.limit.rate()).arg(&bucket.words);
        }
        command
    }
}

/// No key is a bucket of the module at one time and one of the script at another.
fn script_key(key: &str) -> String {
    format!("{key}:script")
}
