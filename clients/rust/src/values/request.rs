//! The commands, as the module and as the script take them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Script};

use crate::values::rules::{MOST_TENANT_BYTES, WEIGHTS};
use crate::values::{Amount, Error, Limit};

/// Most commands have no more, and need no second allocation.
const WORDS: usize = 6;
const BYTES: usize = 128;

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
    /// Names a bucket, its limit, and the amount to take or hold.
    pub fn new(name: impl Into<String>, limit: &Limit, amount: impl Into<Amount>) -> Self {
        Self { name: name.into(), limit: limit.clone(), amount: amount.into() }
    }

    /// Names the bucket `{name}:which`, as in `Part::tagged("alice", "requests", &limit, 1)`. Any name will do: it is encoded, so
    /// that it ends no hash tag and is never empty.
    pub fn tagged(name: &str, which: &str, limit: &Limit, amount: impl Into<Amount>) -> Self {
        let encoded = match name {
            "" => "%".to_owned(),
            _ => name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D"),
        };
        Self::new(format!("{{{encoded}}}:{which}"), limit, amount)
    }

    /// Where a limiter keeps its batch.
    pub(crate) fn place(&self) -> (String, Limit) {
        (self.name.clone(), self.limit.clone())
    }

    fn write_limit(&self, command: &mut Cmd) {
        command.arg(self.limit.capacity()).arg(self.limit.rate());
    }
}

/// A command about one bucket or several.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `TB.MTAKE`, also if it has one bucket and is sent as `TB.TAKE`.
    operation: &'static str,
    /// The arguments before several buckets: `ttl_ms id` of a hold. Those of one bucket come last, or before what was used.
    before: Vec<String>,
    /// One at least, each with its key for a name.
    buckets: Vec<Part>,
    /// Whose turn it takes when it waits.
    share: Option<Arc<Share>>,
}

/// The tenant of a call that waits, and its weight.
#[derive(Debug)]
pub(crate) struct Share {
    tenant: String,
    weight: String,
}

impl Share {
    /// Checks that the tenant is of 1 to 128 bytes, and the weight from 0.001 to 1000.
    pub(crate) fn checked(tenant: String, weight: f64) -> Result<Self, Error> {
        let problem = if !(1..=MOST_TENANT_BYTES).contains(&tenant.len()) {
            format!("share: a tenant is of 1 to {MOST_TENANT_BYTES} bytes, not {}", tenant.len())
        } else if !WEIGHTS.contains(&weight) {
            format!("weight: {weight} is not a number from 0.001 to 1000")
        } else {
            return Ok(Self { tenant, weight: weight.to_string() });
        };
        Err(Error::BadArgument(problem))
    }
}

/// What runs a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Module,
    Script,
}

/// What decides for a server object that was made so.
pub(crate) const SCRIPT: &str = include_str!("../fallback.lua");
const _: () = assert!(SCRIPT.len() > 1000, "src/fallback.lua is a symbolic link: check it out as one");
static SHA: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

impl Request {
    /// One bucket, by its key.
    pub(crate) fn one(
        operation: &'static str,
        key: String,
        limit: &Limit,
        amount: impl Into<Amount>,
    ) -> Self {
        let buckets = vec![Part::new(key, limit, amount)];
        Self { operation, before: Vec::new(), buckets, share: None }
    }

    pub(crate) fn new(
        operation: &'static str,
        before: Vec<String>,
        prefix: &str,
        parts: &[Part],
        share: Option<&Arc<Share>>,
    ) -> Result<Self, Error> {
        let bucket = |part: &Part| {
            let name = [prefix, &part.name].concat();
            Ok(Part { name, limit: part.limit.clone(), amount: part.amount.checked(operation)? })
        };
        let buckets = parts.iter().map(bucket).collect::<Result<Vec<_>, Error>>()?;
        if buckets.is_empty() {
            return Err(Error::BadArgument("no limit is named".to_owned()));
        }
        if share.is_some() && buckets.len() > 1 {
            return Err(Error::BadArgument("share: a call of several buckets has none".to_owned()));
        }
        Ok(Self { operation, before, buckets, share: share.cloned() })
    }

    pub(crate) fn key(&self) -> &str {
        &self.buckets[0].name
    }

    /// By which the command finds its node.
    pub(crate) fn key_by(&self, by: By) -> Cow<'_, str> {
        match by {
            By::Module => self.key().into(),
            By::Script => script_key(self.key()).into(),
        }
    }

    /// Returns whether it is beyond the script.
    pub(crate) fn needs_the_module(&self) -> bool {
        let is_of_holds = matches!(self.operation, "TB.MHOLD" | "TB.MRENEW" | "TB.MSETTLE");
        is_of_holds || self.is_any() || self.share.is_some()
    }

    /// Returns whether it is of alternatives.
    fn is_any(&self) -> bool {
        matches!(self.operation, "TB.TAKEANY" | "TB.HOLDANY")
    }

    /// Returns whether it may be sent again if the connection broke before the reply. At worst it takes twice, which errs
    /// on the side of the limit; giving, charging and settling twice would not do.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self.operation, "TB.GIVE" | "TB.CHARGE" | "TB.MSETTLE")
    }

    /// Returns whether it takes or peeks: it may be sent twice, and no other call refers to it.
    pub(crate) fn is_take(&self) -> bool {
        matches!(self.operation, "TB.MTAKE" | "TB.TAKEANY" | "TB.PEEK")
    }

    /// What a policy that is open grants.
    pub(crate) fn most_granted(&self) -> u64 {
        match self.operation {
            "TB.TAKEUPTO" => self.buckets[0].amount.as_whole().unwrap_or(0),
            _ => 1,
        }
    }

    pub(crate) fn command_by(&self, by: By) -> Cmd {
        match by {
            By::Module => self.to_command(self.name()),
            By::Script => self.to_script(),
        }
    }

    /// The command that waits at most so long for what this would be denied.
    pub(crate) fn to_waiting(&self, max_wait: Duration) -> Cmd {
        let mut waiting = self.clone();
        waiting.before.push(max_wait.as_micros().div_ceil(1000).to_string());
        // TB.BTAKE of TB.TAKE.
        let mut command = waiting.to_command(&format!("TB.B{}", without_prefix(self.name())));
        if let Some(Share { tenant, weight }) = self.share.as_deref() {
            command.arg(&["SHARE", tenant, "WEIGHT", weight]);
        }
        command
    }

    /// Returns what makes a hold last longer, and takes nothing if it is gone.
    pub(crate) fn to_renewal(&self) -> Self {
        Self { operation: "TB.MRENEW", ..self.clone() }
    }

    /// Returns what ends the hold that this makes or settles, with nothing used.
    pub(crate) fn to_end(&self) -> Option<Self> {
        let before = vec![self.before.last()?.clone()];
        let mut end = Self { operation: "TB.MSETTLE", before, share: None, ..self.clone() };
        end.buckets.iter_mut().for_each(|bucket| bucket.amount = 0.into());
        if self.is_any() {
            end.buckets = each_once(&end.buckets);
        }
        Some(end)
    }

    /// Returns whether it has the id of that hold, and its buckets.
    pub(crate) fn ends(&self, hold: &Self) -> bool {
        self.before.last() == hold.before.last() && self.keys() == hold.keys()
    }

    fn keys(&self) -> HashSet<&str> {
        self.buckets.iter().map(|bucket| bucket.name.as_str()).collect()
    }

    /// Returns the command's name: of one bucket the one that does without a list, as it decides and replies faster.
    fn name(&self) -> &'static str {
        match (self.operation, self.buckets.len()) {
            ("TB.MTAKE", 1) => "TB.TAKE",
            ("TB.MHOLD", 1) => "TB.HOLD",
            ("TB.MRENEW", 1) => "TB.RENEW",
            ("TB.MSETTLE", 1) => "TB.SETTLE",
            (operation, _) => operation,
        }
    }

    /// One command, of this name.
    fn to_command(&self, operation: &str) -> Cmd {
        if operation == "DEL" {
            return redis::cmd("DEL").arg(self.key()).take();
        }
        let several = self.buckets.len();
        let mut command = Cmd::with_capacity(WORDS * (1 + several), BYTES * (1 + several));
        command.arg(operation);
        let (is_joint, is_settle) = (several > 1 || self.is_any(), operation == "TB.SETTLE");
        if is_joint {
            command.arg(several).arg(&self.before);
        }
        for bucket in &self.buckets {
            command.arg(&bucket.name);
            bucket.write_limit(&mut command);
            if is_settle {
                command.arg(&self.before);
            }
            if self.operation != "TB.MRENEW" {
                command.arg(bucket.amount);
            }
        }
        if !is_joint && !is_settle {
            command.arg(&self.before);
        }
        command
    }

    /// `EVALSHA sha`, then the keys, under names of their own, and the rest.
    fn to_script(&self) -> Cmd {
        if self.operation == "DEL" {
            return redis::cmd("DEL").arg(script_key(self.key())).take();
        }
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*SHA).arg(self.buckets.len());
        for bucket in &self.buckets {
            command.arg(script_key(&bucket.name));
        }
        command.arg(without_prefix(self.name()));
        for bucket in &self.buckets {
            bucket.write_limit(&mut command);
            command.arg(bucket.amount);
        }
        command.arg(&self.before);
        command
    }
}

/// Returns each bucket once. One may be in several alternatives.
pub(crate) fn each_once(parts: &[Part]) -> Vec<Part> {
    let mut names = HashSet::new();
    parts.iter().filter(|part| names.insert(&part.name)).cloned().collect()
}

/// `TAKE` of `TB.TAKE`.
fn without_prefix(operation: &str) -> &str {
    operation.strip_prefix("TB.").unwrap_or(operation)
}

/// A key that the module never uses.
fn script_key(key: &str) -> String {
    format!("{key}:script")
}
