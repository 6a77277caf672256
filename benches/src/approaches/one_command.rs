//! Approaches that decide in one command.

use super::{last, Approach, Client, Step};
use crate::template::{Limit, Template};
use anyhow::Result;
use redis::{Pipeline, Value};
use std::path::{Path, PathBuf};

pub struct OneCommand {
    name: String,
    module: Option<PathBuf>,
    call: String,
    allows: fn(&[Value]) -> Result<bool>,
}

impl OneCommand {
    pub fn new(name: &str, call: &str, allows: fn(&[Value]) -> Result<bool>) -> Self {
        Self { name: name.to_owned(), module: None, call: call.to_owned(), allows }
    }

    pub fn of_module(self, module: &Path) -> Self {
        Self { module: Some(module.to_owned()), ..self }
    }

    /// A plain command, which limits nothing: the floor of what a call costs.
    pub fn plain(name: &str, call: &str) -> Self {
        Self::new(name, call, |_| Ok(true))
    }
}

impl Approach for OneCommand {
    fn name(&self) -> &str {
        &self.name
    }

    fn module(&self) -> Option<&Path> {
        self.module.as_deref()
    }

    fn has_any_limit(&self) -> bool {
        ["{count}", "{rate}", "{tokens_s}", "{window_ms}"].iter().any(|place| self.call.contains(place))
    }

    fn client(&self, _number: usize, limit: Limit) -> Box<dyn Client> {
        Box::new(Caller { call: Template::new(&self.call, limit), allows: self.allows })
    }
}

struct Caller {
    call: Template,
    allows: fn(&[Value]) -> Result<bool>,
}

impl Client for Caller {
    fn begin(&mut self, key: &str, batch: &mut Pipeline) {
        batch.add_command(self.call.on(|| key.to_owned()));
    }

    fn proceed(&mut self, replies: &[Value], _key: &str, _batch: &mut Pipeline) -> Result<Step> {
        Ok(Step::Decided { allowed: (self.allows)(replies)? })
    }
}

/// A decision of the module or the script.
pub fn first_is_one(replies: &[Value]) -> Result<bool> {
    Ok(last::<Vec<i64>>(replies)?.first() == Some(&1))
}

/// The count, and by how much it went up.
pub fn second_is_one(replies: &[Value]) -> Result<bool> {
    Ok(last::<Vec<i64>>(replies)?.get(1) == Some(&1))
}

/// Modules of redis-cell's family reply an array that starts with 0 if they allow; others an integer that is negative
/// if they do not.
pub fn denies_by_one_or_below_zero(replies: &[Value]) -> Result<bool> {
    match replies {
        [Value::Array(_)] => Ok(last::<Vec<i64>>(replies)?.first() == Some(&0)),
        _ => Ok(last::<i64>(replies)? >= 0),
    }
}
